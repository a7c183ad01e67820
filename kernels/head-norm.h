// The RMS norm of a head of queries or keys, before it is turned.
#ifndef WICK_HEAD_NORM_H
#define WICK_HEAD_NORM_H
#include "row.h"
namespace gpu {

GPU_FN bool share_a_warp(u32 lanes) { return lanes <= 32 && (lanes & (lanes - 1)) == 0; }

// What makes the mean square of a head 1, of which each of `lanes` neighbours has N elements; where these are no power of two that a
// warp has, every thread goes through the head by itself. Squares are taken near 1, so that none overflows or vanishes.
template <class T, int N> GPU_FN f32 head_factor(const Vec<T, N>& own, const T* head, u32 d, u32 lanes, f32 eps) {
  const bool together = share_a_warp(lanes);
  f32 most = 0, squares = 0;
  if (together) {
    UNROLL for (int j = 0; j < N; j++) most = maximum(most, m_abs(widen(own.v[j])));
    for (u32 mask = lanes / 2; mask; mask /= 2) most = maximum(most, shfl_xor(most, mask));
  } else for (u32 i = 0; i < d; i++) most = maximum(most, m_abs(widen(head[i])));
  const u32 exponent = f32_bits(most) >> 23;
  const f32 scale = f32_from_bits((exponent < 67 ? 187 : exponent > 247 ? 7 : 254 - exponent) << 23);
  const auto add = [&](f32 x) { squares = m_fma(x * scale, x * scale, squares); };
  if (together) {
    UNROLL for (int j = 0; j < N; j++) add(widen(own.v[j]));
    for (u32 mask = lanes / 2; mask; mask /= 2) squares += shfl_xor(squares, mask);
  } else for (u32 i = 0; i < d; i++) add(widen(head[i]));
  return scale * rms_factor(squares, d, eps * scale * scale);
}

}  // namespace gpu
#endif
