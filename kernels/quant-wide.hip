// Products of many rows of halves with quantized weights by warpgroups, which only Hopper has. x is in the order of quant-wide.h;
// the name says how many rows a block takes: 64, or (without) 256. Launch: blocks that make `alone` tiles of 128 lines of W by
// themselves; the first `sharers` of them share the others, for which `parts` has as many sums as there are sharers and such tiles,
// and `counters` a zero per tile.
#include "quant-wide.h"
namespace gpu {

#if GPU_WARPGROUPS
template <class Q, class T, int BN>
GPU_FN void quant_wide(T* shared, const T* x, const u8* w, T* out, f32* parts, u32* counters, size_t rows, size_t n, size_t k, u32 alone, u32 sharers) {
  typedef QuantWide<Q, T, BN> P;
  // Slices of x, their signals and a word, and every warp's places.
  Signal* const signals = (Signal*)(shared + P::SLICES * P::X_SIZE);
  u32* const words = (u32*)(signals + 2 * P::SLICES);
  const u32 down = (u32)ceil_div(n, (size_t)P::LINES), across = (u32)ceil_div(rows, (size_t)BN);
  const P product{shared, signals, signals + P::SLICES, words + 4 + tid_x() / 32 * (P::PLACES * P::PLACE_WORDS), x, w, (u32)rows, (u32)n,
                  (u32)(k / Q::Elements * Q::Bytes), (u32)k, down, across};
  if (tid_x() == 0) {
    UNROLL for (u32 j = 0; j < P::SLICES; j++) {
      make_signal(product.full + j, 1);
      make_signal(product.free + j, P::THREADS / 32);
    }
    signals_made();
  }
  barrier();
  product.run(out, typename P::Shares{parts, counters, alone, sharers, down * across, words});
}
#define QUANT_WIDE_BODY(Q, T, BN) \
  DYNAMIC_SHARED(T, shared); \
  quant_wide<Q, T, BN>(shared, x, w, out, parts, counters, rows, n, k, alone, sharers);
#else
#define QUANT_WIDE_BODY(Q, T, BN)
#endif
#define QUANT_WIDE_KERNEL(size, BN, Q, T) \
  KERNEL_EARLY(GPU_BLOCK, BN > 128 ? 1 : 2, quant_wide##size##_##Q##_##T, const T* x, const u8* w, T* out, f32* parts, u32* counters, \
                 size_t rows, size_t n, size_t k, u32 alone, u32 sharers) { QUANT_WIDE_BODY(Q, T, BN) }
#define QUANT_WIDE_SIZES(Q, T) QUANT_WIDE_KERNEL(_64, 64, Q, T) QUANT_WIDE_KERNEL(, QUANT_WIDE_ROWS, Q, T)
#define QUANT_WIDE(Q) QUANT_WIDE_SIZES(Q, bf16) QUANT_WIDE_SIZES(Q, f16)
QUANT_TYPES(QUANT_WIDE)

// x as quant-wide.h wants it; k is a multiple of 32. Launch: a thread per 8 elements of what it writes.
#define QUANT_ORDER(T) \
  KERNEL(quant_order_##T, const T* x, T* out, u32 rows, u32 k, u32 tile_rows) { \
    const u32 across = (k + QUANT_WIDE_CHUNK - 1) / QUANT_WIDE_CHUNK * (QUANT_WIDE_CHUNK / 8); \
    single_loop((size_t)((rows + 7) / 8 * 8) * across, [&](size_t i) { \
      const size_t row = divide(i, across); \
      order_of(x, out, rows, k, tile_rows, (u32)row, (u32)(i - row * across)); \
    }); \
  }
GPU_bf16(QUANT_ORDER)
GPU_f16(QUANT_ORDER)

}  // namespace gpu
