// The normal distribution, for x·Φ(x), the exact GELU.
#ifndef WICK_NORMAL_H
#define WICK_NORMAL_H
#include "gpu.h"
namespace gpu {

// Φ(x) = erfc(−x/√2)/2: the complement keeps the left tail accurate.
GPU_FN f64 normal_cdf(f64 x) { return 0.5 * m_erfc(-0.70710678118654752440 * x); }
// In f32 the library's erfc would cost more than memory does. The tail 1 − Φ(a) = e^(−a²/2)·P(s)/(a + 2.5) with
// s = (a − 2.5)/(a + 2.5), P fitted to 7e-8 of it for 0 ≤ a ≤ 15; what a² loses by rounding goes into the power. NaN gives a number.
GPU_FN f32 normal_cdf(f32 x) {
  const f32 a = m_abs(x) < 15.0f ? m_abs(x) : 15.0f;
  const f32 t = approx_recip(a + 2.5f), s = (a - 2.5f) * t;
  const f32 terms[10] = {-0.000157703937f, -0.000311625306f, 0.000684413593f, 0.00252393517f, -0.00160082988f,
                         -0.0163861867f, 0.00923587568f, 0.131986976f, -0.433692008f, 0.706656635f};
  f32 p = terms[0];
  UNROLL for (int i = 1; i < 10; i++) p = m_fma(p, s, terms[i]);
  const f32 square = a * a, lost = m_fma(a, a, -square), power = square * -0.721347520f;
  const f32 rest = m_fma(square, -0.721347520f, -power) - 0.721347520f * lost;
  const f32 tail = approx_exp2(power) * m_fma(0.693147181f, rest, 1.0f) * (p * t);
  return x < 0.0f ? tail : 1.0f - tail;
}
// For halves: e^(−a²/2) times a polynomial of 1/(1 + 0.37a), to 4e-5 of the tail.
GPU_FN f32 rough_normal_cdf(f32 x) {
  const f32 a = m_abs(x) < 15.0f ? m_abs(x) : 15.0f, t = approx_recip(m_fma(a, 0.37f, 1.0f)), b = a * 0.849321800f;
  const f32 terms[5] = {-0.0903679579f, 0.209969923f, 0.0761085972f, 0.157386363f, 0.146918565f};
  f32 p = terms[0];
  UNROLL for (int i = 1; i < 5; i++) p = m_fma(p, t, terms[i]);
  const f32 tail = approx_exp2(-b * b) * (p * t);
  return x < 0.0f ? tail : 1.0f - tail;
}
template <class T> GPU_FN compute_t<T> bell(compute_t<T> x) {
  if constexpr (sizeof(T) == 2) return rough_normal_cdf(x);
  else return normal_cdf(x);
}

}  // namespace gpu
#endif
