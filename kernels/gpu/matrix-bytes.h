// Products of tiles of signed bytes, where the device has a unit for them that fits (GPU_BYTE_TILES).
#ifndef WICK_GPU_MATRIX_BYTES_H
#define WICK_GPU_MATRIX_BYTES_H
#include "gpu.h"

// NVIDIA's from sm_80 on; on the host where the program is told so.
#ifndef GPU_BYTE_TILES
#if GPU_NVIDIA && __CUDA_ARCH__ >= 800
#define GPU_BYTE_TILES 1
#else
#define GPU_BYTE_TILES 0
#endif
#endif

#if GPU_BYTE_TILES
namespace gpu {
// d[i][j] = Σ a[i][k]·b[j][k] over signed bytes, i below 16, j below 8, k below 32 or 16 (PTX ISA, "Matrix Fragments for
// mma.m16n8k32" and "…k16"). Lane 4y + x holds of a the words x (and x + 4) of the rows y and y + 8, of b those of row y, and
// of d the columns 2x, 2x + 1 of the rows y and y + 8.
#if GPU_NVIDIA
GPU_FN void multiply_bytes(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
}
GPU_FN void multiply_bytes(i32 (&d)[4], const u32 (&a)[2], const u32 (&b)[1]) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(0));
}
// d += the same.
GPU_FN void add_bytes(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
template <int N> GPU_FN void multiply_bytes(i32 (&d)[4], const u32 (&a)[2 * N], const u32 (&b)[N]) {
  const u32 x = lane_id() % 4, y = lane_id() / 4;
  UNROLL for (int e = 0; e < 4; e++) d[e] = 0;
  UNROLL for (u32 lane = 0; lane < 4; lane++)
    UNROLL for (int n = 0; n < N; n++)
      UNROLL for (u32 e = 0; e < 4; e++)
        d[e] = dot4(shfl(a[2 * n + e / 2], 4 * y + lane), shfl(b[n], 4 * (2 * x + e % 2) + lane), d[e]);
}
GPU_FN void add_bytes(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  i32 more[4];
  multiply_bytes<2>(more, a, b);
  UNROLL for (int e = 0; e < 4; e++) d[e] += more[e];
}
#endif
}  // namespace gpu
#endif  // GPU_BYTE_TILES

#endif  // WICK_GPU_MATRIX_BYTES_H
