// Random numbers, the same bits as on every other device: Philox 4×32-10 with key = seed and counter = draw number gives
// four words; draw i makes the elements 2i and 2i + 1. The arithmetic is f64 with one rounding per operation, in a fixed
// order, and the result is then rounded to T (small floats by way of f32).
//   u(p)     = ((w[2p] >> 5)·2^26 + (w[2p+1] >> 6))·2^−53
//   uniform  = a + u(p)·(b − a), clamped to the least T value ≥ a and the greatest < b, so that rounding stays in [a, b)
//   normal   = (r·cos)·b + a and (r·sin)·b + a with r = √(−2 ln(1 − u(0))) and the angle 2π·u(1)
// Launch: one draw per thread and round. Traffic: one write per element.
#include "gpu.h"
namespace gpu {

struct Draw { f64 u0, u1; };

GPU_FN f64 uniform_of(u32 high, u32 low) { return ((f64)(high >> 5) * 67108864.0 + (f64)(low >> 6)) * 1.1102230246251565e-16; }

GPU_FN Draw draw(u64 counter, u64 key) {
  u32 c0 = (u32)counter, c1 = (u32)(counter >> 32), c2 = 0, c3 = 0, k0 = (u32)key, k1 = (u32)(key >> 32);
  UNROLL for (int round = 0; round < 10; round++) {
    const u64 p0 = (u64)c0 * 0xd2511f53u, p1 = (u64)c2 * 0xcd9e8d57u;
    c0 = (u32)(p1 >> 32) ^ c1 ^ k0;
    c1 = (u32)p1;
    c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
    c3 = (u32)p0;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return Draw{uniform_of(c0, c1), uniform_of(c2, c3)};
}

GPU_FN f64 horner(f64 p, f64 z, f64 c) { return exact_add(exact_mul(p, z), c); }

// y = m·2^e with m in [√½, √2); s = (m − 1)/(m + 1), z = s²; ln y = e·ln 2 + 2s·(1 + z/3 + z²/5 + … + z⁹/19).
GPU_FN f64 exact_ln(f64 y) {
  const u64 bits = f64_bits(y);
  f64 e = (f64)((i32)(bits >> 52) - 1023);
  f64 m = f64_from_bits((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.4142135623730951) {
    m = exact_mul(m, 0.5);
    e = exact_add(e, 1.0);
  }
  const f64 s = exact_div(exact_sub(m, 1.0), exact_add(m, 1.0));
  const f64 z = exact_mul(s, s);
  f64 p = 1.0 / 19.0;
  p = horner(p, z, 1.0 / 17.0);
  p = horner(p, z, 1.0 / 15.0);
  p = horner(p, z, 1.0 / 13.0);
  p = horner(p, z, 1.0 / 11.0);
  p = horner(p, z, 1.0 / 9.0);
  p = horner(p, z, 1.0 / 7.0);
  p = horner(p, z, 1.0 / 5.0);
  p = horner(p, z, 1.0 / 3.0);
  p = horner(p, z, 1.0);
  return exact_add(exact_mul(e, 0.6931471805599453), exact_mul(exact_add(s, s), p));
}

// For 0 ≤ x ≤ π/4.
GPU_FN f64 sin_eighth(f64 x) {
  const f64 z = exact_mul(x, x);
  f64 p = -1.0 / 1307674368000.0;
  p = horner(p, z, 1.0 / 6227020800.0);
  p = horner(p, z, -1.0 / 39916800.0);
  p = horner(p, z, 1.0 / 362880.0);
  p = horner(p, z, -1.0 / 5040.0);
  p = horner(p, z, 1.0 / 120.0);
  p = horner(p, z, -1.0 / 6.0);
  p = horner(p, z, 1.0);
  return exact_mul(x, p);
}
GPU_FN f64 cos_eighth(f64 x) {
  const f64 z = exact_mul(x, x);
  f64 p = 1.0 / 20922789888000.0;
  p = horner(p, z, -1.0 / 87178291200.0);
  p = horner(p, z, 1.0 / 479001600.0);
  p = horner(p, z, -1.0 / 3628800.0);
  p = horner(p, z, 1.0 / 40320.0);
  p = horner(p, z, -1.0 / 720.0);
  p = horner(p, z, 1.0 / 24.0);
  p = horner(p, z, -0.5);
  p = horner(p, z, 1.0);
  return p;
}

template <class T> struct Normal {
  f64 mean, deviation;
  GPU_METHOD void operator()(const Draw& d, T (&out)[2]) const {
    const f64 r = m_sqrt(exact_mul(-2.0, exact_ln(exact_sub(1.0, d.u0))));
    // The turn in eighths; beside the vertical axis (octants 1, 2, 5, 6) sine and cosine change places.
    const f64 eighths = exact_mul(d.u1, 8.0);
    const i32 k = (i32)eighths;
    const f64 f = exact_sub(eighths, (f64)k);
    const f64 x = exact_mul(k & 1 ? exact_sub(1.0, f) : f, 0.7853981633974483);
    const f64 s = sin_eighth(x), c = cos_eighth(x);
    const bool swapped = ((k + 1) >> 1) & 1;
    const f64 cosine = swapped ? s : c, sine = swapped ? c : s;
    out[0] = convert<T>(exact_add(exact_mul(exact_mul(r, k >= 2 && k <= 5 ? -cosine : cosine), deviation), mean));
    out[1] = convert<T>(exact_add(exact_mul(exact_mul(r, k >= 4 ? -sine : sine), deviation), mean));
  }
};

// The T values nearest to a bound, found on the bit pattern.
GPU_FN u64 pattern(f64 x) { return f64_bits(x); }
GPU_FN u64 pattern(f32 x) { return f32_bits(x); }
GPU_FN u64 pattern(f16 x) { return x.bits; }
GPU_FN u64 pattern(bf16 x) { return x.bits; }
GPU_FN u64 pattern(f8e4m3 x) { return x.bits; }
template <class T> GPU_FN T from_pattern(u64 bits) { return T{(bits_t<T>)bits}; }
template <> GPU_DEVICE f32 from_pattern<f32>(u64 bits) { return f32_from_bits((u32)bits); }
template <> GPU_DEVICE f64 from_pattern<f64>(u64 bits) { return f64_from_bits(bits); }
// From infinity, or f8's only NaN, back to the greatest finite value.
template <class T> GPU_FN f64 neighbour(T x, bool up) {
  const u64 sign = 1ull << (sizeof(T) * 8 - 1), bits = pattern(x);
  if ((bits & ~sign) == 0) return (f64)widen(from_pattern<T>(up ? 1 : sign | 1));
  return (f64)widen(from_pattern<T>(((bits & sign) == 0) == up ? bits + 1 : bits - 1));
}

template <class T> struct Uniform {
  f64 a, span, low, high;
  GPU_METHOD Uniform(f64 from, f64 to) : a(from), span(exact_sub(to, from)) {
    const T first = convert<T>(from), last = convert<T>(to);
    low = (f64)widen(first) >= from ? (f64)widen(first) : neighbour(first, true);
    high = (f64)widen(last) < to ? (f64)widen(last) : neighbour(last, false);
  }
  GPU_METHOD T place(f64 u) const {
    f64 x = exact_add(a, exact_mul(u, span));
    x = x > high ? high : x;
    return convert<T>(x < low ? low : x);
  }
  GPU_METHOD void operator()(const Draw& d, T (&out)[2]) const {
    out[0] = place(d.u0);
    out[1] = place(d.u1);
  }
};

template <class T, class Fill> GPU_FN void draw_all(size_t n, u64 seed, T* out, Fill fill) {
  const size_t draws = ceil_div(n, 2), step = (size_t)gdim_x() * bdim_x();
  for (size_t i = (size_t)bid_x() * bdim_x() + tid_x(); i < draws; i += step) {
    T x[2];
    fill(draw((u64)i, seed), x);
    out[2 * i] = x[0];
    if (2 * i + 1 < n) out[2 * i + 1] = x[1];
  }
}

#define RANDOM(T) \
  KERNEL_BOUNDS(GPU_BLOCK, rand_uniform_##T, T* out, size_t numel, u64 seed, f64 low, f64 high) { \
    draw_all(numel, seed, out, Uniform<T>(low, high)); \
  } \
  KERNEL_BOUNDS(GPU_BLOCK, rand_normal_##T, T* out, size_t numel, u64 seed, f64 mean, f64 deviation) { \
    draw_all(numel, seed, out, Normal<T>{mean, deviation}); \
  }
GPU_FLOATS(RANDOM)
GPU_f8e4m3(RANDOM)

}  // namespace gpu
