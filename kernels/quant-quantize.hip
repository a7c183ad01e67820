// Floats as quantized blocks.
//
//   split_f32      activations for products on matrix units (quant-product.h): of each 32 floats their upper halves (bf16), then what
//                  these leave
//   quantize_Q     weights, byte for byte what gguf's reference writes
#include "quant-activations.h"
namespace gpu {

// The largest finite half where a scale is beyond it: infinity would make every weight of the block infinite.
GPU_FN u16 scale_bits(f32 x) { return f32_to_f16(x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x); }

// Eight floats per thread. Traffic: each read once, as many bytes written. Infinities leave nothing.
#define SPLIT_F32(T) \
  KERNEL_BOUNDS(GPU_BLOCK, split_##T, const T* x, bf16* out, size_t numel) { \
    single_loop(numel / 8, [&](size_t i) { \
      Vec<bf16, 8> upper, rest; \
      UNROLL for (int j = 0; j < 8; j += 4) { \
        const Vec<f32, 4> four = load_vec<f32, 4>(x, 2 * i + j / 4); \
        UNROLL for (int e = 0; e < 4; e++) { \
          upper.v[j + e] = narrow<bf16>(four.v[e]); \
          const f32 above = widen(upper.v[j + e]), left = four.v[e] - above; \
          rest.v[j + e] = narrow<bf16>(m_abs(above) > 3.402823466e+38f ? 0.0f : left); \
        } \
      } \
      store_vec(out, i / 4 * 8 + i % 4, upper); \
      store_vec(out, i / 4 * 8 + 4 + i % 4, rest); \
    }); \
  }
GPU_f32(SPLIT_F32)

// A thread per block. Products and sums that the reference rounds one by one go through f64, where no compiler can fuse
// them: a product of two f32 is exact there, and so is what the addition needs.
GPU_FN f32 product(f32 a, f32 b) { return (f32)exact_mul(a, b); }
GPU_FN f32 reciprocal(f32 d) { return d == 0 ? 0.0f : 1.0f / d; }
GPU_FN u32 clip(f32 x, i32 highest) {
  const i32 q = float_to_int<i32>(x);
  return (u32)(q < 0 ? 0 : q > highest ? highest : q);
}

// Symmetric: the element of largest magnitude (the first of equals) becomes −2^(Bits − 1).
template <int Bits> struct Symmetric {
  static constexpr int Header = 2;
  f32 inverse;
  GPU_METHOD Symmetric(const f32 (&x)[32], u8* to) {
    f32 extreme = x[0];
    UNROLL for (int j = 1; j < 32; j++)
      if (m_abs(x[j]) > m_abs(extreme)) extreme = x[j];
    const f32 d = extreme / -(f32)(1 << (Bits - 1));
    inverse = reciprocal(d);
    *(u16*)to = scale_bits(d);
  }
  GPU_METHOD u32 quant(f32 x) const {
    // One rounding of the whole to f32, as a fused multiply-add has it.
    return clip((f32)exact_add(exact_mul(x, inverse), (1 << (Bits - 1)) + 0.5), (1 << Bits) - 1);
  }
};
// Affine: the smallest element becomes 0, the largest 2^Bits − 1.
template <int Bits> struct Affine {
  static constexpr int Header = 4;
  f32 inverse, low;
  GPU_METHOD Affine(const f32 (&x)[32], u8* to) {
    f32 high = x[0];
    low = x[0];
    UNROLL for (int j = 1; j < 32; j++) {
      high = maximum(high, x[j]);
      low = minimum(low, x[j]);
    }
    const f32 d = (high - low) / (f32)((1 << Bits) - 1);
    inverse = reciprocal(d);
    ((u16*)to)[0] = scale_bits(d);
    ((u16*)to)[1] = scale_bits(low);
  }
  GPU_METHOD u32 quant(f32 x) const { return clip((f32)exact_add(product(x - low, inverse), 0.5), (1 << Bits) - 1); }
};

template <int Bits, class Scale> GPU_FN void quantize_nibbles(const f32 (&x)[32], u8* to) {
  const Scale scale(x, to);
  to += Scale::Header;
  u32 high = 0;
  UNROLL for (int j = 0; j < 16; j++) {
    const u32 a = scale.quant(x[j]), b = scale.quant(x[j + 16]);
    high |= a >> 4 << j | b >> 4 << (j + 16);
    to[(Bits == 5 ? 4 : 0) + j] = (u8)((a & 15u) | (b & 15u) << 4);
  }
  if (Bits == 5) UNROLL for (int j = 0; j < 4; j++) to[j] = (u8)(high >> 8 * j);
}
GPU_FN void quantize_bytes(const f32 (&x)[32], u8* to) {
  f32 largest = 0;
  UNROLL for (int j = 0; j < 32; j++) largest = maximum(largest, m_abs(x[j]));
  const f32 d = largest / 127.0f, inverse = reciprocal(d);
  *(u16*)to = scale_bits(d);
  UNROLL for (int j = 0; j < 32; j++) to[2 + j] = (u8)float_to_int<i32>(m_round(product(x[j], inverse)));
}

#define QUANTIZE(Q, Bytes, quantize_block) \
  KERNEL_BOUNDS(GPU_BLOCK, quantize_##Q, const f32* x, u8* out, size_t numel) { \
    single_loop(numel / 32, [&](size_t i) { \
      f32 block[32]; \
      UNROLL for (int j = 0; j < 32; j++) block[j] = x[32 * i + j]; \
      quantize_block(block, out + i * Bytes); \
    }); \
  }
#define QUANTIZE_ALL(T) \
  QUANTIZE(q4_0, 18, (quantize_nibbles<4, Symmetric<4>>)) \
  QUANTIZE(q4_1, 20, (quantize_nibbles<4, Affine<4>>)) \
  QUANTIZE(q5_0, 22, (quantize_nibbles<5, Symmetric<5>>)) \
  QUANTIZE(q5_1, 24, (quantize_nibbles<5, Affine<5>>)) \
  QUANTIZE(q8_0, 34, quantize_bytes)
GPU_f32(QUANTIZE_ALL)

}  // namespace gpu
