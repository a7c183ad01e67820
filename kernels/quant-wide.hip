// Products of many rows of halves with quantized weights by warpgroups, which only Hopper has. x is in the order of quant-wide.h;
// the name says how many rows a block takes: 64, or (without) 256. Launch: `splits` blocks per tile of 128 lines of W; `parts` has
// as many sums as they make, `counters` a zero per tile.
#include "quant-wide.h"
namespace gpu {

#if GPU_WARPGROUPS
template <class Q, class T, int BN> GPU_FN void quant_wide(T* shared, u16* table, const T* x, const u8* w, T* out, f32* parts, u32* counters, size_t rows, size_t n, size_t k, u32 splits) {
  typedef QuantWide<Q, T, BN> P;
  fill_table<Q>(table);
  barrier();
  const size_t down = ceil_div(n, (size_t)P::LINES), across = ceil_div(rows, (size_t)BN);
  for (size_t i = bid_x(); i < down * across * splits; i += gdim_x()) {
    const size_t tile = divide(i, splits);
    const TileAt at = tile_at(tile, down, across);
    const typename P::Shares shares{splits, (u32)(i - tile * splits), parts + tile * splits * (P::THREADS * BN / 2), counters + tile};
    P::run(shared, table, w, Operand<T>{x, rows, k, (i64)k}, out, n, at.row * P::LINES, at.column * BN, shares);
  }
}
#define QUANT_WIDE_BODY(Q, T, BN) \
  DYNAMIC_SHARED(T, shared); \
  SHARED(u16, table, TableSize<Q>::value); \
  quant_wide<Q, T, BN>(shared, table, x, w, out, parts, counters, rows, n, k, splits);
#else
#define QUANT_WIDE_BODY(Q, T, BN)
#endif
#define QUANT_WIDE_KERNEL(size, BN, Q, T) \
  KERNEL_EARLY(GPU_BLOCK, BN > 128 ? 1 : 2, quant_wide##size##_##Q##_##T, const T* x, const u8* w, T* out, f32* parts, u32* counters, \
                 size_t rows, size_t n, size_t k, u32 splits) { QUANT_WIDE_BODY(Q, T, BN) }
#define QUANT_WIDE_SIZES(Q, T) QUANT_WIDE_KERNEL(_64, 64, Q, T) QUANT_WIDE_KERNEL(, QUANT_WIDE_ROWS, Q, T)
#define QUANT_WIDE(Q) QUANT_WIDE_SIZES(Q, bf16) QUANT_WIDE_SIZES(Q, f16)
QUANT_TYPES(QUANT_WIDE)

// x as quant-wide.h wants it; numel is a multiple of 32. Launch: a thread per 16 elements.
#define QUANT_ORDER(T) \
  KERNEL(quant_order_##T, const T* x, T* out, size_t numel) { \
    single_loop(numel / 16, [&](size_t i) { \
      const Vec<u32, 8> from = ((const Vec<u32, 8>*)x)[i]; \
      Vec<u32, 8> to; \
      UNROLL for (int t = 0; t < 4; t++) { \
        to.v[t] = from.v[2 * t]; \
        to.v[4 + t] = from.v[2 * t + 1]; \
      } \
      ((Vec<u32, 8>*)out)[i] = to; \
    }); \
  }
GPU_bf16(QUANT_ORDER)
GPU_f16(QUANT_ORDER)

}  // namespace gpu
