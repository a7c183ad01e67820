// The matrix unit of a program's target and its instructions. Which unit it is follows from the compiler and its target:
// mma.sync on NVIDIA from sm_80 on, WMMA on gfx11 and gfx12, MFMA on gfx90a and its successors where the compiler has the
// builtins, none elsewhere; probe.hip tells. On the host GPU_HOST_TILE picks one, and matrix-host.h plays the instructions.
#ifndef WICK_GPU_MATRIX_H
#define WICK_GPU_MATRIX_H
#include "gpu.h"

// Units go by the numbers that the host knows them by.
#if !defined(TILE_FMA) || !defined(TILE_MMA) || !defined(TILE_WMMA11) || !defined(TILE_WMMA12) || !defined(TILE_MFMA)
#error "the numbers of the matrix units are not given"
#endif
#if GPU_HOST && defined(GPU_HOST_TILE)
#define GPU_TILE GPU_HOST_TILE
#elif GPU_NVIDIA && __CUDA_ARCH__ >= 800
#define GPU_TILE TILE_MMA
#elif defined(__GFX11__) && GPU_HAS(__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32) && \
    GPU_HAS(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32)
#define GPU_TILE TILE_WMMA11
// gfx1250 has the builtins and another instruction, by which it is known.
#elif defined(__GFX12__) && GPU_HAS(__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12) && \
    GPU_HAS(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12) && !GPU_HAS(__builtin_amdgcn_wmma_f32_16x16x32_bf16)
#define GPU_TILE TILE_WMMA12
// gfx908 has the builtins, too, but no instruction for the one with bf16.
#elif defined(__GFX9__) && !defined(__gfx908__) && GPU_HAS(__builtin_amdgcn_mfma_f32_16x16x16bf16_1k) && \
    GPU_HAS(__builtin_amdgcn_mfma_f32_16x16x16f16)
#define GPU_TILE TILE_MFMA
#else
#define GPU_TILE TILE_FMA
#endif

#if GPU_HOST
#include "gpu/matrix-host.h"
#endif
#if GPU_NVIDIA
namespace gpu {
GPU_FN void schedule_fence() {}
GPU_FN void keep_apart(f32&) {}
#if GPU_TILE == TILE_MMA
// A place in shared memory as the matrix loads name it.
struct MatrixRef {
  u32 at;
  GPU_METHOD MatrixRef plus(u32 elements) const { return MatrixRef{at + elements * 2}; }
};
GPU_FN MatrixRef matrix_ref(const void* p) { return MatrixRef{(u32)__cvta_generic_to_shared(p)}; }
// Four 8 × 8 matrices: lanes 8i … 8i+7 name the rows of matrix i; each lane gets two neighbours of row lane/4.
GPU_FN void load_matrices(u32 (&x)[4], MatrixRef row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(row.at));
}
// The same of the transposed matrices.
GPU_FN void load_matrices_transposed(u32 (&x)[4], MatrixRef row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(row.at));
}
#define TILE_MMA_SYNC(T) \
  GPU_FN void mma_m16n8k16(T, f32* d, const u32* a, const u32* b) { \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #T "." #T ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
  }
TILE_MMA_SYNC(bf16)
TILE_MMA_SYNC(f16)
#undef TILE_MMA_SYNC
#endif
}  // namespace gpu
#elif GPU_AMD
namespace gpu {
// Nothing moves across: where the scheduler would start so many loads that registers run out.
#if GPU_HAS(__builtin_amdgcn_sched_barrier)
GPU_FN void schedule_fence() { __builtin_amdgcn_sched_barrier(0); }
#else
GPU_FN void schedule_fence() { GPU_KEEP_ORDER(); }
#endif
// LLVM's vectorizer makes vectors of neighbouring sums, and some releases run out of registers by it (22, and those up to 16);
// it does not look through this. Beside MFMA only f32 is multiplied so, and packed multiply-adds are worth it there.
#if GPU_TILE == TILE_MFMA
GPU_FN void keep_apart(f32&) {}
#else
GPU_FN void keep_apart(f32& x) { asm("" : "+v"(x)); }
#endif

#define TILE_VECTOR(name, T, n) typedef T name __attribute__((ext_vector_type(n)))
template <int N> struct Registers { u32 x[N]; };
template <class V, int N> GPU_FN V as_vector(const u32 (&x)[N]) {
  Registers<N> r;
  UNROLL for (int i = 0; i < N; i++) r.x[i] = x[i];
  return __builtin_bit_cast(V, r);
}
#define TILE_AMD(name, instruction, T, H, width, results, ...) \
  GPU_FN void name(T, f32 (&d)[results], const u32 (&a)[width / 2], const u32 (&b)[width / 2]) { \
    TILE_VECTOR(In, H, width); \
    TILE_VECTOR(Out, float, results); \
    Out c; \
    UNROLL for (int i = 0; i < results; i++) c[i] = d[i]; \
    c = instruction(as_vector<In>(a), as_vector<In>(b), c __VA_ARGS__); \
    UNROLL for (int i = 0; i < results; i++) d[i] = c[i]; \
  }
#define TILE_COMMA ,
#if GPU_TILE == TILE_WMMA11
TILE_AMD(wmma_gfx11, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32, bf16, short, 16, 8)
TILE_AMD(wmma_gfx11, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32, f16, _Float16, 16, 8)
#elif GPU_TILE == TILE_WMMA12
TILE_AMD(wmma_gfx12, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12, bf16, short, 8, 8)
TILE_AMD(wmma_gfx12, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12, f16, _Float16, 8, 8)
#elif GPU_TILE == TILE_MFMA
TILE_AMD(mfma_16x16x16, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k, bf16, short, 4, 4, TILE_COMMA 0 TILE_COMMA 0 TILE_COMMA 0)
TILE_AMD(mfma_16x16x16, __builtin_amdgcn_mfma_f32_16x16x16f16, f16, _Float16, 4, 4, TILE_COMMA 0 TILE_COMMA 0 TILE_COMMA 0)
// Over all 64 lanes of the wave.
GPU_FN f32 wave_xor(f32 x, u32 mask) {
  const u32 self = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
  return f32_from_bits((u32)__builtin_amdgcn_ds_bpermute((int)((self ^ mask) << 2), (int)f32_bits(x)));
}
#endif
#undef TILE_AMD
#undef TILE_COMMA
#undef TILE_VECTOR
}  // namespace gpu
#endif

#endif  // WICK_GPU_MATRIX_H
