// GGUF block types as kernels see them. Every type gives units: 32 weights that one thread decodes into eight words of four
// signed bytes, with the scales (and minima) of its parts. All kernels over quantized weights are written over units.
//
//   weight = scale · (q − Offset) + min
//
// Tensors begin at multiples of 16 bytes, and whole 16 bytes may be read at their ends. Blocks have 17 to 292 bytes, so they lie at any multiple of gcd(bytes, 16).
#ifndef WICK_QUANT_H
#define WICK_QUANT_H
#include "stream.h"
namespace gpu {

// ---------------------------------------------------------------------------------------------------------------------
// Where the bytes of a block come from
// ---------------------------------------------------------------------------------------------------------------------
// Shared memory to which a Stage copied them: whole words around them may be read.
template <int Align> struct Staged {
  const u32* words;
  u32 at;
  GPU_METHOD u32 byte(u32 offset) const { return ((const u8*)words)[at + offset]; }
  GPU_METHOD u32 half(u32 offset) const {
    if (Align == 1) return byte(offset) | byte(offset + 1) << 8;
    return ((const u16*)words)[(at + offset) / 2];
  }
  template <int N> GPU_METHOD void load(u32 offset, u32 (&x)[N]) const {
    const u32 first = at + offset, shift = first % 4 * 8;
    if constexpr (Align == 16 && N == 4) {
      const Words4 whole = load_shared<4>(words, first / 4);
      UNROLL for (int j = 0; j < N; j++) x[j] = whole.v[j];
    } else if constexpr (Align >= 4) {
      UNROLL for (int j = 0; j < N; j++) x[j] = words[first / 4 + j];
    } else {
      u32 low = words[first / 4];
      UNROLL for (int j = 0; j < N; j++) {
        // The word of the last byte, so that nothing behind it is touched.
        const u32 high = words[j + 1 < N ? first / 4 + j + 1 : (first + 4 * N - 1) / 4];
        x[j] = funnel_shift(low, high, shift);
        low = high;
      }
    }
  }
};
// Device memory: not a byte outside the block is read.
template <int Align> struct Direct {
  const u8* block;
  GPU_METHOD u32 byte(u32 offset) const { return block[offset]; }
  GPU_METHOD u32 half(u32 offset) const {
    if (Align == 1) return byte(offset) | byte(offset + 1) << 8;
    return *(const u16*)(block + offset);
  }
  template <int N> GPU_METHOD void load(u32 offset, u32 (&x)[N]) const {
    if constexpr (Align == 16 && N == 4) {
      const Words4 whole = *(const Words4*)(block + offset);
      UNROLL for (int j = 0; j < N; j++) x[j] = whole.v[j];
    } else UNROLL for (int j = 0; j < N; j++) {
      if (Align >= 4) x[j] = *(const u32*)(block + offset + 4 * j);
      else x[j] = half(offset + 4 * j) | half(offset + 4 * j + 2) << 16;
    }
  }
};
template <class Src> GPU_FN f32 half_at(const Src& s, u32 offset) { return f16_to_f32((u16)s.half(offset)); }
template <class Src> GPU_FN u32 word_at(const Src& s, u32 offset) {
  u32 x[1];
  s.load(offset, x);
  return x[0];
}

// Bytes [from, from + count) of a tensor on their way to one warp's shared memory, as aligned vectors: byte j lands at byte
// place(from) + j of `to`. load() sends them, land() has them there: by the device's own copies where it has them, which `to`
// must be free for from the start, else through registers.
template <int MaxBytes, int Align> struct Stage {
  static constexpr int Vectors = (MaxBytes + 30) / 16, Words = Vectors * 4, PerLane = (Vectors + 31) / 32;
  Words4 x[ASYNC_COPIES ? 1 : PerLane];

  GPU_FN u32 place(size_t from) { return Align == 16 ? 0 : (u32)from & 15u; }
  GPU_FN u32 vectors(size_t from, u32 count) { return (place(from) + count + 15) / 16; }
  GPU_METHOD void load(u32* to, const u8* w, size_t from, u32 count) {
    const u32 lane = lane_id(), all = vectors(from, count);
    const u8* src = w + (from - place(from)) + 16 * lane;
    UNROLL for (int j = 0; j < PerLane; j++)
      if (lane + 32 * j < all) {
        if (ASYNC_COPIES) copy16_async(to + 4 * lane + 128 * j, src + 512 * j);
        else x[ASYNC_COPIES ? 0 : j] = load_once(src + 512 * j);
      }
  }
  GPU_METHOD void land(u32* to, size_t from, u32 count) const {
    const u32 lane = lane_id(), all = vectors(from, count);
    UNROLL for (int j = 0; j < PerLane && !ASYNC_COPIES; j++)
      if (lane + 32 * j < all) store_shared<4>(to, 4 * lane + 128 * j, x[ASYNC_COPIES ? 0 : j]);
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// The order of the weights: place(i, w) is the first of the four weights in word w of unit i of a block, and home(p) the
// word, counted over the block's units, of the weights 8p … 8p + 3 (the next four are in the next word).
// A part is a run of words with one scale, all inside one group of 32 weights; group(u) is that of the first part of unit u of
// a row, and the others follow.
// ---------------------------------------------------------------------------------------------------------------------
struct Flat {
  static constexpr int Parts = 1;
  GPU_FN u32 place(u32 i, u32 w) { return 32 * i + 4 * w; }
  GPU_FN u32 home(u32 p) { return 2 * p; }
  GPU_FN u32 group(u32 unit) { return unit; }
};
// Sixteen bytes hold sixteen weights of one group of 32 in their low bits and sixteen of the next in their high bits.
struct Pairs {
  static constexpr int Parts = 2;
  GPU_FN u32 place(u32 i, u32 w) { return 64 * (i / 2) + 32 * (w / 4) + 16 * (i % 2) + 4 * (w % 4); }
  GPU_FN u32 home(u32 p) { return 8 * (p / 8 * 2 + p % 4 / 2) + 4 * (p % 8 / 4) + 2 * (p % 2); }
  GPU_FN u32 group(u32 unit) { return unit & ~1u; }
};
// Eight bytes hold eight weights of each of four groups of 32.
struct Columns {
  static constexpr int Parts = 4;
  GPU_FN u32 place(u32 i, u32 w) { return 128 * (i / 4) + 32 * (w / 2) + 8 * (i % 4) + 4 * (w % 2); }
  GPU_FN u32 home(u32 p) { return 8 * (p / 16 * 4 + p % 4) + 2 * (p % 16 / 4); }
  GPU_FN u32 group(u32 unit) { return unit & ~3u; }
};

template <int Parts> struct Unit {
  u32 q[8];
  f32 scale[Parts], min[Parts];
};

// Elements and bytes per block, weights per scale, what is subtracted from each q, whether there are minima.
template <int E, int B, class O, int G, int Off = 0, bool Min = false, bool Table_ = false>
struct BlockType : O {
  typedef Unit<O::Parts> U;
  static constexpr int Elements = E, Bytes = B, Units = E / 32, Group = G, Offset = Off;
  static constexpr bool HasMin = Min, Table = Table_, Fine = B >= E;  // Fine: eight bits per weight
  static constexpr int Align = B % 16 == 0 ? 16 : B % 4 == 0 ? 4 : B % 2 == 0 ? 2 : 1;
  GPU_FN u32 value(u32) { return 0; }
};

// The block of a lane's unit among those that a Stage brought to `to`, where the first begins at byte `place`.
template <class Q> GPU_FN Staged<Q::Align> staged_block(const u32* to, u32 place, u32 lane) {
  if (Q::Align == 16) return Staged<Q::Align>{to + lane / Q::Units * (Q::Bytes / 4), 0};
  return Staged<Q::Align>{to, place + lane / Q::Units * Q::Bytes};
}

// n subtracted from each byte of x; both below 128.
GPU_FN u32 subtract_bytes(u32 x, u32 n) { return ((x | 0x80808080u) - n) ^ 0x80808080u; }
GPU_FN u32 byte_of(u32 word, u32 j) { return word >> 8 * j & 0xffu; }
GPU_FN u32 low_nibbles(u32 x) { return x & 0x0f0f0f0fu; }
GPU_FN u32 high_nibbles(u32 x) { return x >> 4 & 0x0f0f0f0fu; }
// Four bits become bit 4 of four bytes.
GPU_FN u32 fifth_bits(u32 bits) { return (bits & 15u) * 0x02040810u & 0x10101010u; }

// Byte b of 16 code words: 8 in each half.
GPU_FN u32 code_of(u64 low, u64 high, u32 i) { return (u32)((i < 8 ? low : high) >> 8 * (i & 7)) & 0xffu; }
// table[b] holds the values of b's low and high nibble.
GPU_FN void look_up(const u16* table, u32 x, u32& low, u32& high) {
  const u32 a = table[x & 0xffu] | (u32)table[x >> 16 & 0xffu] << 16;
  const u32 b = table[x >> 8 & 0xffu] | (u32)table[x >> 24] << 16;
  low = (a & 0x00ff00ffu) | (b & 0x00ff00ffu) << 8;
  high = (a >> 8 & 0x00ff00ffu) | (b & 0xff00ff00u);
}
// The sixteen bytes at `offset`: low nibbles are the weights 0 … 15, high ones 16 … 31.
template <class Src> GPU_FN void nibbles(const Src& s, u32 offset, u32 (&q)[8]) {
  u32 x[4];
  s.load(offset, x);
  UNROLL for (int j = 0; j < 4; j++) {
    q[j] = low_nibbles(x[j]);
    q[j + 4] = high_nibbles(x[j]);
  }
}
template <class Src> GPU_FN void coded_nibbles(const Src& s, u32 offset, const u16* table, u32 (&q)[8]) {
  u32 x[4];
  s.load(offset, x);
  UNROLL for (int j = 0; j < 4; j++) look_up(table, x[j], q[j], q[j + 4]);
}

// ---------------------------------------------------------------------------------------------------------------------
// The types. A comment gives each layout: name[bytes].
// ---------------------------------------------------------------------------------------------------------------------
struct q4_0 : BlockType<32, 18, Flat, 32, 8> {  // d[2] qs[16]
  template <class Src> GPU_FN void unit(const Src& s, u32, const u16*, U& u) {
    nibbles(s, 2, u.q);
    u.scale[0] = half_at(s, 0);
  }
};
struct q4_1 : BlockType<32, 20, Flat, 32, 0, true> {  // d[2] m[2] qs[16]
  template <class Src> GPU_FN void unit(const Src& s, u32, const u16*, U& u) {
    nibbles(s, 4, u.q);
    u.scale[0] = half_at(s, 0);
    u.min[0] = half_at(s, 2);
  }
};
template <class Src> GPU_FN void five_bits(const Src& s, u32 high_at, u32 low_at, u32 (&q)[8]) {
  nibbles(s, low_at, q);
  const u32 high = word_at(s, high_at);
  UNROLL for (int j = 0; j < 8; j++) q[j] |= fifth_bits(high >> 4 * j);
}
struct q5_0 : BlockType<32, 22, Flat, 32, 16> {  // d[2] qh[4] qs[16]
  template <class Src> GPU_FN void unit(const Src& s, u32, const u16*, U& u) {
    five_bits(s, 2, 6, u.q);
    u.scale[0] = half_at(s, 0);
  }
};
struct q5_1 : BlockType<32, 24, Flat, 32, 0, true> {  // d[2] m[2] qh[4] qs[16]
  template <class Src> GPU_FN void unit(const Src& s, u32, const u16*, U& u) {
    five_bits(s, 4, 8, u.q);
    u.scale[0] = half_at(s, 0);
    u.min[0] = half_at(s, 2);
  }
};
struct q8_0 : BlockType<32, 34, Flat, 32> {  // d[2] qs[32]
  template <class Src> GPU_FN void unit(const Src& s, u32, const u16*, U& u) {
    s.load(2, u.q);
    u.scale[0] = half_at(s, 0);
  }
};
struct q8_1 : BlockType<32, 36, Flat, 32> {  // d[2] sum[2] qs[32]
  template <class Src> GPU_FN void unit(const Src& s, u32, const u16*, U& u) {
    s.load(4, u.q);
    u.scale[0] = half_at(s, 0);
  }
};

struct q2_k : BlockType<256, 84, Columns, 16, 0, true> {  // scales[16] qs[64] d[2] dmin[2]
  template <class Src> GPU_FN void unit(const Src& s, u32 i, const u16*, U& u) {
    const u32 h = i / 4, c = i % 4;
    const f32 d = half_at(s, 80), dmin = half_at(s, 82);
    u32 x[2];
    s.load(16 + 32 * h + 8 * c, x);
    UNROLL for (int p = 0; p < 4; p++) {
      const u32 scale = s.byte(8 * h + 2 * p + c / 2);
      UNROLL for (int t = 0; t < 2; t++) u.q[2 * p + t] = x[t] >> 2 * p & 0x03030303u;
      u.scale[p] = d * (f32)(scale & 15u);
      u.min[p] = -dmin * (f32)(scale >> 4);
    }
  }
};
struct q3_k : BlockType<256, 110, Columns, 16> {  // hmask[32] qs[64] scales[12] d[2]
  template <class Src> GPU_FN void unit(const Src& s, u32 i, const u16*, U& u) {
    const u32 h = i / 4, c = i % 4;
    const f32 d = half_at(s, 108);
    u32 x[2], high[2];
    s.load(32 + 32 * h + 8 * c, x);
    s.load(8 * c, high);
    UNROLL for (int p = 0; p < 4; p++) {
      UNROLL for (int t = 0; t < 2; t++) {
        const u32 q = (x[t] >> 2 * p & 0x03030303u) | (high[t] >> (4 * h + p) & 0x01010101u) << 2;
        u.q[2 * p + t] = subtract_bytes(q, 0x04040404u);
      }
      // Six bits per scale: four in the first eight bytes, two in the last four.
      const u32 low = s.byte(96 + 2 * p + c / 2) >> 4 * h & 15u;
      const u32 top = s.byte(104 + 2 * (p % 2) + c / 2) >> (4 * h + 2 * (p / 2)) & 3u;
      u.scale[p] = d * (f32)((i32)(low | top << 4) - 32);
    }
  }
};
// Scales and minima of the groups 2j and 2j + 1: six bits each in twelve bytes.
template <class Src> GPU_FN void six_bit_scales(const Src& s, u32 j, Unit<2>& u) {
  u32 x[4];
  s.load(0, x);
  const f32 d = f16_to_f32((u16)x[0]), dmin = f16_to_f32((u16)(x[0] >> 16));
  // The first four groups have theirs whole, the others in two pieces; masks, as lanes of a warp would else part here.
  const u32 shift = j < 2 ? 0 : 2, upper = j < 2 ? 0x3f3f3f3fu : 0x30303030u, lower = j < 2 ? 0 : 0x0f0f0f0fu, at = j % 2 * 16;
  const u32 scales = ((x[1] >> shift & upper) | (x[3] & lower)) >> at, mins = ((x[2] >> shift & upper) | (x[3] >> 4 & lower)) >> at;
  UNROLL for (int p = 0; p < 2; p++) {
    u.scale[p] = d * (f32)byte_of(scales, p);
    u.min[p] = -dmin * (f32)byte_of(mins, p);
  }
}
struct q4_k : BlockType<256, 144, Pairs, 32, 0, true> {  // d[2] dmin[2] scales[12] qs[128]
  template <class Src> GPU_FN void unit(const Src& s, u32 i, const u16*, U& u) {
    nibbles(s, 16 + 16 * i, u.q);
    six_bit_scales(s, i / 2, u);
  }
};
struct q5_k : BlockType<256, 176, Pairs, 32, 0, true> {  // d[2] dmin[2] scales[12] qh[32] qs[128]
  template <class Src> GPU_FN void unit(const Src& s, u32 i, const u16*, U& u) {
    nibbles(s, 48 + 16 * i, u.q);
    u32 high[4];
    s.load(16 + 16 * (i % 2), high);
    UNROLL for (int j = 0; j < 8; j++) u.q[j] |= (high[j % 4] >> (i / 2 * 2 + j / 4) & 0x01010101u) << 4;
    six_bit_scales(s, i / 2, u);
  }
};
struct q6_k : BlockType<256, 210, Columns, 16> {  // ql[128] qh[64] scales[16] d[2]
  template <class Src> GPU_FN void unit(const Src& s, u32 i, const u16*, U& u) {
    const u32 h = i / 4, c = i % 4;
    const f32 d = half_at(s, 208);
    u32 a[2], b[2], high[2];
    s.load(64 * h + 8 * c, a);
    s.load(64 * h + 32 + 8 * c, b);
    s.load(128 + 32 * h + 8 * c, high);
    UNROLL for (int t = 0; t < 2; t++) {
      u.q[t] = low_nibbles(a[t]) | (high[t] << 4 & 0x30303030u);
      u.q[2 + t] = low_nibbles(b[t]) | (high[t] << 2 & 0x30303030u);
      u.q[4 + t] = high_nibbles(a[t]) | (high[t] & 0x30303030u);
      u.q[6 + t] = high_nibbles(b[t]) | (high[t] >> 2 & 0x30303030u);
    }
    UNROLL for (int j = 0; j < 8; j++) u.q[j] = subtract_bytes(u.q[j], 0x20202020u);
    UNROLL for (int p = 0; p < 4; p++) u.scale[p] = d * (f32)(signed char)s.byte(192 + 8 * h + c / 2 + 2 * p);
  }
};
struct q8_k : BlockType<256, 292, Flat, 32> {  // d[4] qs[256] sums[32]
  template <class Src> GPU_FN void unit(const Src& s, u32 i, const u16*, U& u) {
    s.load(4 + 32 * i, u.q);
    u.scale[0] = f32_from_bits(word_at(s, 0));
  }
};

// The sixteen values of the non-linear types, as bytes.
struct Curve {
  GPU_FN u32 value(u32 i) { return code_of(0xf6eaddcfbfad9881ull, 0x7159453526190d01ull, i); }
};
// Twice the values of e2m1.
struct Fp4 {
  GPU_FN u32 value(u32 i) { return code_of(0x0c08060403020100ull, 0xf4f8fafcfdfeff00ull, i); }
};
struct iq4_nl : BlockType<32, 18, Flat, 32, 0, false, true> {  // d[2] qs[16]
  GPU_FN u32 value(u32 i) { return Curve::value(i); }
  template <class Src> GPU_FN void unit(const Src& s, u32, const u16* table, U& u) {
    coded_nibbles(s, 2, table, u.q);
    u.scale[0] = half_at(s, 0);
  }
};
struct iq4_xs : BlockType<256, 136, Flat, 32, 0, false, true> {  // d[2] scales_h[2] scales_l[4] qs[128]
  GPU_FN u32 value(u32 i) { return Curve::value(i); }
  template <class Src> GPU_FN void unit(const Src& s, u32 i, const u16* table, U& u) {
    coded_nibbles(s, 8 + 16 * i, table, u.q);
    const u32 scale = (s.byte(4 + i / 2) >> 4 * (i % 2) & 15u) | (s.half(2) >> 2 * i & 3u) << 4;
    u.scale[0] = half_at(s, 0) * (f32)((i32)scale - 32);
  }
};
struct mxfp4 : BlockType<32, 17, Flat, 32, 0, false, true> {  // e[1] qs[16]
  GPU_FN u32 value(u32 i) { return Fp4::value(i); }
  template <class Src> GPU_FN void unit(const Src& s, u32, const u16* table, U& u) {
    coded_nibbles(s, 1, table, u.q);
    // 2^(e − 127) / 2, whose two smallest values are subnormal.
    const u32 e = s.byte(0);
    u.scale[0] = f32_from_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  }
};

// Shared memory for the values of nibble pairs, 1 element for types that need none.
template <class Q> struct TableSize { static constexpr int value = Q::Table ? 256 : 1; };
template <class Q> GPU_FN void fill_table(u16* table) {
  for (u32 b = tid_x(); Q::Table && b < 256; b += bdim_x()) table[b] = (u16)(Q::value(b & 15u) | Q::value(b >> 4) << 8);
}

// What is added to scale · q, for kernels that use q without its offset.
template <class Q> struct Shifts { static constexpr bool value = Q::HasMin || Q::Offset; };
template <class Q> GPU_FN f32 shift_of(const typename Q::U& u, int part) {
  return Q::HasMin ? u.min[part] : u.scale[part] * -(f32)Q::Offset;
}

// QUANT_TYPES(M) is M(q4_0) M(q4_1) …; GPU_ONLY and GPU_ONLY_<type> leave one of them, as with dtypes.
#if !defined(GPU_ONLY) || defined(GPU_ONLY_q4_0)
#define QUANT_q4_0(M) M(q4_0)
#else
#define QUANT_q4_0(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_q4_1)
#define QUANT_q4_1(M) M(q4_1)
#else
#define QUANT_q4_1(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_q5_0)
#define QUANT_q5_0(M) M(q5_0)
#else
#define QUANT_q5_0(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_q5_1)
#define QUANT_q5_1(M) M(q5_1)
#else
#define QUANT_q5_1(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_q8_0)
#define QUANT_q8_0(M) M(q8_0)
#else
#define QUANT_q8_0(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_q8_1)
#define QUANT_q8_1(M) M(q8_1)
#else
#define QUANT_q8_1(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_q2_k)
#define QUANT_q2_k(M) M(q2_k)
#else
#define QUANT_q2_k(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_q3_k)
#define QUANT_q3_k(M) M(q3_k)
#else
#define QUANT_q3_k(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_q4_k)
#define QUANT_q4_k(M) M(q4_k)
#else
#define QUANT_q4_k(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_q5_k)
#define QUANT_q5_k(M) M(q5_k)
#else
#define QUANT_q5_k(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_q6_k)
#define QUANT_q6_k(M) M(q6_k)
#else
#define QUANT_q6_k(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_q8_k)
#define QUANT_q8_k(M) M(q8_k)
#else
#define QUANT_q8_k(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_iq4_nl)
#define QUANT_iq4_nl(M) M(iq4_nl)
#else
#define QUANT_iq4_nl(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_iq4_xs)
#define QUANT_iq4_xs(M) M(iq4_xs)
#else
#define QUANT_iq4_xs(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_mxfp4)
#define QUANT_mxfp4(M) M(mxfp4)
#else
#define QUANT_mxfp4(M)
#endif
#define QUANT_TYPES(M) \
  QUANT_q4_0(M) QUANT_q4_1(M) QUANT_q5_0(M) QUANT_q5_1(M) QUANT_q8_0(M) QUANT_q8_1(M) QUANT_q2_k(M) QUANT_q3_k(M) \
  QUANT_q4_k(M) QUANT_q5_k(M) QUANT_q6_k(M) QUANT_q8_k(M) QUANT_iq4_nl(M) QUANT_iq4_xs(M) QUANT_mxfp4(M)

}  // namespace gpu
#endif  // WICK_QUANT_H
