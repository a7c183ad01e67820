// What kernels need whose work is to read weights once: sums over the lanes of a warp, and what a linear layer does to its results
// before it stores them.
#ifndef WICK_STREAM_H
#define WICK_STREAM_H
#include "gpu.h"
namespace gpu {

// Element j of a word of T.
template <class T> struct InWord;
template <> struct InWord<f32> {
  static constexpr int Count = 1;
  GPU_FN f32 at(u32 word, int) { return f32_from_bits(word); }
};
template <> struct InWord<f16> {
  static constexpr int Count = 2;
  GPU_FN f32 at(u32 word, int j) { return f16_to_f32((u16)(word >> 16 * j)); }
};
template <> struct InWord<bf16> {
  static constexpr int Count = 2;
  GPU_FN f32 at(u32 word, int j) { return f32_from_bits(j ? word & 0xffff0000u : word << 16); }
};

// Totals of N values over the warp (N a power of two up to 32): lane l gets that of value l / (32 / N). Each step sends away
// the half of the values that the other lane keeps: N − 1 shuffles and a few more, not 5 N.
template <int N, int Bit = 16> struct WarpTotals {
  GPU_FN f32 of(const f32 (&v)[N]) {
    const bool upper = lane_id() & Bit;
    f32 kept[N / 2];
    UNROLL for (int i = 0; i < N / 2; i++) {
      // As values: of a choice between places older compilers make an address, and keep the array in memory for it.
      const f32 low = v[i], high = v[i + N / 2];
      kept[i] = (upper ? high : low) + shfl_xor(upper ? low : high, Bit);
    }
    return WarpTotals<N / 2, Bit / 2>::of(kept);
  }
};
template <int Bit> struct WarpTotals<1, Bit> {
  GPU_FN f32 of(const f32 (&v)[1]) {
    f32 total = v[0];
    UNROLL for (int bit = Bit; bit; bit /= 2) total += shfl_xor(total, bit);
    return total;
  }
};

// Floats whose type is known by number only: DTYPE_f32, DTYPE_f16, DTYPE_bf16.
template <class T> struct DTypeNumber;
template <> struct DTypeNumber<f32> { static constexpr u32 value = DTYPE_f32; };
template <> struct DTypeNumber<f16> { static constexpr u32 value = DTYPE_f16; };
template <> struct DTypeNumber<bf16> { static constexpr u32 value = DTYPE_bf16; };
GPU_FN void store_float(void* y, size_t at, f32 x, u32 dtype) {
  if (dtype == DTYPE_f32) ((f32*)y)[at] = x;
  else if (dtype == DTYPE_f16) ((f16*)y)[at] = narrow<f16>(x);
  else ((bf16*)y)[at] = narrow<bf16>(x);
}
GPU_FN f32 load_float(const void* x, size_t at, u32 dtype) {
  if (dtype == DTYPE_f32) return ((const f32*)x)[at];
  if (dtype == DTYPE_f16) return widen(((const f16*)x)[at]);
  return widen(((const bf16*)x)[at]);
}

GPU_FN bool is_infinite(f32 x) { return x > 3.402823466e+38f; }
// What makes rows small whose squares overflow; eps is nothing beside them.
GPU_FN f32 small_scale() { return f32_from_bits(0x1c800000u); }  // 2^-70
// What a row's products are multiplied with, by its sum of squares.
GPU_FN f32 norm_factor(f32 squares, size_t k, f32 eps) { return 1.0f / m_sqrt(squares / (f32)k + eps); }

// Which of how many blocks make a result, from which row of W on.
struct Share {
  u32 block, blocks, first;
};
GPU_FN Share all_blocks() { return Share{bid_x(), gdim_x(), 0}; }

// The rows of W that a warp takes together, R of them, and what becomes of their products. With a gate, the first half of them
// are gates and the second what they open, half of W apart.
template <int R, int NB> struct Outputs {
  static constexpr int Values = R * NB, Spread = 32 / Values;
  u32 columns;  // of y; rows of W are as many, or twice with a gate
  const void *bias, *residual;
  void* y;
  u32 batch, glu, dtype;  // glu: 0 none, GLU_silu, …
  Share share;

  GPU_METHOD Outputs(size_t n, const void* bias, const void* residual, void* y, u32 batch, u32 glu, u32 dtype, const Share& share)
      : columns((u32)(glu ? n / 2 : n)), bias(bias), residual(residual), y(y), batch(batch), glu(glu), dtype(dtype), share(share) {}

  GPU_METHOD u32 per_group() const { return glu ? R / 2 : R; }
  GPU_METHOD u32 groups() const { return (columns + per_group() - 1) / per_group(); }
  // Past the last column it is taken again, and not stored.
  GPU_METHOD u32 row(u32 group, u32 r) const {
    const u32 column = group * per_group() + (glu ? r % (R / 2) : r);
    return share.first + (column < columns ? column : columns - 1) + (glu && r >= R / 2 ? columns : 0);
  }
  GPU_METHOD f32 biased(u32 group, u32 r, f32 total) const { return bias ? total + load_float(bias, row(group, r), dtype) : total; }
  GPU_METHOD f32 gated(f32 gate, f32 total) const {
    if (glu == GLU_clampedSwiglu) {
      const f32 g = gate > 7.0f ? 7.0f : gate, u = total > 7.0f ? 7.0f : total < -7.0f ? -7.0f : total;
      return g / (1.0f + m_exp(-1.702f * g)) * (u + 1.0f);
    }
    const f32 slope = glu == GLU_silu ? gate : 1.59576912160573071176f * gate * (1.0f + 0.044715f * gate * gate);
    return gate / (1.0f + m_exp(-slope)) * total;
  }
  // Row r of the group with row b of x, where there are such: what is added to it, and where it is kept.
  GPU_METHOD bool exists(u32 group, u32 r, u32 b) const { return r < per_group() && group * per_group() + r < columns && b < batch; }
  GPU_METHOD size_t at(u32 group, u32 r, u32 b) const { return (size_t)b * columns + group * per_group() + r; }
  GPU_METHOD f32 added(u32 group, u32 r, u32 b) const {
    return residual && exists(group, r, b) ? load_float(residual, at(group, r, b), dtype) : 0.0f;
  }
  GPU_METHOD void keep(u32 group, u32 r, u32 b, f32 total) const {
    if (exists(group, r, b)) store_float(y, at(group, r, b), total, dtype);
  }
  // The value of this lane, counted r · NB + b; one lane in Spread stores.
  GPU_METHOD u32 value() const { return lane_id() / Spread; }
  GPU_METHOD void store(u32 group, f32 total) const {
    const u32 r = value() / NB, b = value() % NB;
    total = biased(group, r, total);
    if (glu) total = gated(total, shfl_xor(total, 16));
    if (lane_id() % Spread == 0) keep(group, r, b, total + added(group, r, b));
  }
};

}  // namespace gpu
#endif
