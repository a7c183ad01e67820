// out (batch, n) = x (batch, k) · W (n, k)ᵀ for batches too large for quant-matvec.hip, on machines without a BLAS: with one,
// dequantizing to halves and multiplying there is faster from some 32 rows on.
//
//   mul_mat_Q_q8  dtype of out: DTYPE_f32, DTYPE_f16, DTYPE_bf16. Launch: a block per tile of MATMUL_ROWS rows of W by MATMUL_COLUMNS rows of x.
#include "quant-activations.h"
#include "quant.h"
namespace gpu {

// A block decodes MATMUL_ROWS × 128 weights and MATMUL_COLUMNS × 128 activations at a time into shared memory as words of four bytes, rows side
// by side, so that a thread reads its 8 and 4 rows as vectors: 3 reads for 32 dot products. Sums of products are integers
// within a scale's group and f32 beyond it.
template <class Q> struct MatMul {
  static constexpr int Rows = MATMUL_ROWS, Cols = MATMUL_COLUMNS, Depth = 128, Words = Depth / 4, Groups = Depth / Q::Group;
  static constexpr int WStride = Rows + 4, XStride = Cols + 4;

  // Unit and row of a warp's lanes: neighbouring units of eight rows.
  GPU_FN void load_weights(u32* sw, f32* scales, f32* shifts, const u16* table, const u8* w, size_t n, size_t k, size_t row0, size_t k0) {
    constexpr int UnitsPerRow = Depth / 32, PartWords = 8 / Q::Parts;
    const size_t row_blocks = k / Q::Elements;
    UNROLL for (u32 round = 0; round < Rows * UnitsPerRow / GPU_BLOCK; round++) {
      const u32 t = tid_x() + round * GPU_BLOCK, r = t / 32 * 8 + t % 8, i = t / 8 % UnitsPerRow;
      const size_t first = k0 + 32 * i;
      typename Q::U u = {};
      if (row0 + r < n && first < k) {
        const size_t block = first / Q::Elements;
        Q::unit(Direct<Q::Align>{w + ((row0 + r) * row_blocks + block) * Q::Bytes}, (u32)(first % Q::Elements) / 32, table, u);
      }
      // Places within the slice: a super-block is two slices.
      UNROLL for (u32 j = 0; j < 8; j++) sw[Q::place(i, j) / 4 * WStride + r] = u.q[j];
      UNROLL for (u32 p = 0; p < Q::Parts; p++) {
        const u32 group = Q::place(i, p * PartWords) / Q::Group;
        scales[group * Rows + r] = u.scale[p];
        if (Q::HasMin) shifts[group * Rows + r] = u.min[p];
      }
    }
  }
  GPU_FN void load_activations(u32* sx, f32* scales, f32* sums, const u8* xq, const ScaleSum* xs, size_t batch, size_t k, size_t col0,
                               size_t k0) {
    const u32 c = tid_x() / 4, g = tid_x() % 4;
    const size_t first = k0 + 32 * g;
    Vec<u32, 4> q[2] = {};
    ScaleSum s = {};
    if (col0 + c < batch && first < k) {
      const Vec<u32, 4>* from = (const Vec<u32, 4>*)(xq + (col0 + c) * k + first);
      q[0] = from[0];
      q[1] = from[1];
      s = xs[((col0 + c) * k + first) / 32];
    }
    UNROLL for (u32 j = 0; j < 8; j++) sx[(8 * g + j) * XStride + c] = q[j / 4].v[j % 4];
    scales[g * Cols + c] = s.v[0];
    if (!Q::HasMin) return;
    if (Q::Group == 32) sums[g * Cols + c] = s.v[1];
    else UNROLL for (u32 half = 0; half < 2; half++) {
      i32 a = 0;
      UNROLL for (u32 j = 0; j < 4; j++) a = dot4(0x01010101u, q[half].v[j], a);
      sums[(2 * g + half) * Cols + c] = s.v[0] * (f32)a;
    }
  }

  GPU_FN void run(u32* sw, u32* sx, f32* w_scales, f32* w_shifts, f32* x_scales, f32* x_sums, u16* table, size_t batch, size_t n,
                  size_t k, const u8* w, const u8* xq, const ScaleSum* xs, void* y, u32 dtype) {
    // Thread (tx, ty): rows 4 tx … and 64 + 4 tx …, columns 4 ty ….
    const u32 tx = tid_x() % 16, ty = tid_x() / 16;
    const size_t across = ceil_div(batch, Cols), tiles = ceil_div(n, Rows) * across;
    fill_table<Q>(table);
    barrier();
    for (size_t tile = bid_x(); tile < tiles; tile += gdim_x()) {
      const size_t row0 = divide(tile, across) * Rows, col0 = (tile - divide(tile, across) * across) * Cols;
      f32 acc[8][4];
      UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < 4; j++) acc[i][j] = 0;
      for (size_t k0 = 0; k0 < k; k0 += Depth) {
        load_weights(sw, w_scales, w_shifts, table, w, n, k, row0, k0);
        load_activations(sx, x_scales, x_sums, xq, xs, batch, k, col0, k0);
        barrier();
        NO_UNROLL for (u32 g = 0; g < Groups; g++) {
          i32 dots[8][4];
          UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < 4; j++) dots[i][j] = 0;
          UNROLL for (u32 word = 0; word < Q::Group / 4; word++) {
            const u32 at = g * (Q::Group / 4) + word;
            const Vec<u32, 4> a[2] = {load_shared<4>(sw, at * WStride + 4 * tx), load_shared<4>(sw, at * WStride + 64 + 4 * tx)};
            const Vec<u32, 4> b = load_shared<4>(sx, at * XStride + 4 * ty);
            UNROLL for (int i = 0; i < 8; i++)
              UNROLL for (int j = 0; j < 4; j++) dots[i][j] = dot4(a[i / 4].v[i % 4], b.v[j], dots[i][j]);
          }
          const Vec<f32, 4> xd = load_shared<4>(x_scales, g * Q::Group / 32 * Cols + 4 * ty);
          Vec<f32, 4> sum = {};
          if (Q::HasMin) sum = load_shared<4>(x_sums, g * Cols + 4 * ty);
          UNROLL for (int h = 0; h < 2; h++) {
            const Vec<f32, 4> scale = load_shared<4>(w_scales, g * Rows + 64 * h + 4 * tx);
            Vec<f32, 4> shift = {};
            if (Q::HasMin) shift = load_shared<4>(w_shifts, g * Rows + 64 * h + 4 * tx);
            UNROLL for (int i = 0; i < 4; i++)
              UNROLL for (int j = 0; j < 4; j++) {
                acc[4 * h + i][j] += scale.v[i] * (xd.v[j] * (f32)dots[4 * h + i][j]);
                if (Q::HasMin) acc[4 * h + i][j] += shift.v[i] * sum.v[j];
              }
          }
        }
        barrier();
      }
      UNROLL for (int j = 0; j < 4; j++)
        UNROLL for (int i = 0; i < 8; i++) {
          const size_t row = row0 + 64 * (i / 4) + 4 * tx + i % 4, col = col0 + 4 * ty + j;
          if (row < n && col < batch) store_float(y, col * n + row, acc[i][j], dtype);
        }
    }
  }
};

#define MAT_MUL(Q) \
  KERNEL_BOUNDS(GPU_BLOCK, mul_mat_##Q##_q8, const u8* xq, const void* xs, const u8* w, void* out, size_t batch, size_t n, size_t k, \
                u32 dtype) { \
    typedef MatMul<Q> M; \
    SHARED(u32, sw, M::Words * M::WStride); \
    SHARED(u32, sx, M::Words * M::XStride); \
    SHARED(f32, w_scales, M::Groups * M::Rows); \
    SHARED(f32, w_shifts, Q::HasMin ? M::Groups * M::Rows : 4); \
    SHARED(f32, x_scales, M::Depth / 32 * M::Cols); \
    SHARED(f32, x_sums, Q::HasMin ? M::Groups * M::Cols : 4); \
    SHARED(u16, table, TableSize<Q>::value); \
    M::run(sw, sx, w_scales, w_shifts, x_scales, x_sums, table, batch, n, k, w, xq, (const ScaleSum*)xs, out, dtype); \
  }
QUANT_TYPES(MAT_MUL)

}  // namespace gpu
