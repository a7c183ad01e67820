// Rows of a cache in 8 bits: d elements of f8e4m3, then the power of two that they count in, as f32, then room up to F8_ROW_TAIL bytes.
// The greatest element of a row is between 224 and 448 of that: f8 has sixteen powers of two below, and never overflows. Where an
// element is not finite the power is NaN, and so is the row; what is beyond 448 · 2⁶⁰ ends there.
#ifndef WICK_CACHE_ROWS_H
#define WICK_CACHE_ROWS_H
#include "gpu.h"
#include "gpu/f8.h"
namespace gpu {

// What a row counts in whose greatest element has this size.
GPU_FN f32 row_scale(f32 most) {
  const u32 bits = f32_bits(most);
  if (bits >= 0x7f800000u) return f32_from_bits(0x7fc00000u);
  const u32 exponent = (bits + 0x1fffffu) >> 23;
  return f32_from_bits((exponent < 10 ? 1 : exponent > 195 ? 187 : exponent - 8) << 23);
}
GPU_FN f32 inverse_scale(f32 scale) { return scale != scale ? scale : f32_from_bits(0x7f000000u - f32_bits(scale)); }
GPU_FN u8 to_row(f32 x, f32 inverse) {
  const f32 y = x * inverse;
  return f32_to_f8e4m3(y > 448 ? 448 : y < -448 ? -448 : y);
}

// Some of a row, as it lies in memory: W elements.
template <class T> struct RowPart {
  static constexpr int W = 16 / sizeof(T), WORDS = W / 4;
  u32 words[WORDS];
  f32 scale;
  // Elements `at` … of a row of d, both multiples of W. What counts for zeros is read all the same: loads without branches between
  // them are under way together.
  GPU_FN RowPart load(const u8* row, u32 at, u32 d, bool counts) {
    RowPart part;
    const Vec<u32, WORDS> own = *(const Vec<u32, WORDS>*)(row + at);
    UNROLL for (int j = 0; j < WORDS; j++) part.words[j] = own.v[j];
    const f32 scale = *(const f32*)(row + d);
    part.scale = counts ? scale : 0;
    return part;
  }
  // As T, 16 bytes of them.
  GPU_METHOD Vec<u32, 4> made() const {
    Vec<u32, 4> y;
    const F8Factor<T> by(scale);
    if constexpr (sizeof(T) == 2) UNROLL for (int j = 0; j < 4; j++) y.v[j] = by.pair(words[j / 2], j % 2 * 2);
    else UNROLL for (int j = 0; j < 4; j++) y.v[j] = f32_bits(by.element(words[0], j));
    return y;
  }
};

}  // namespace gpu
#endif
