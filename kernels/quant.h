// GGUF block types as kernels see them. A type says what its stored words hold, and from that come
//
// - units, for kernels in which a thread takes weights by itself: 32 of them in eight words of four signed bytes, with the
//   scales (and minima) of their parts;
// - fragments, for matrix units: of a run of whole groups of 32 weights, the words that one lane of four holds.
//
//   weight = scale · q + min
//
// Where a format counts from an offset, q is made signed at the upper end of its byte, which takes a single exclusive or, and
// the scale is so much smaller.
//
// Tensors begin at multiples of 16 bytes, and whole 16 bytes may be read at their ends. Blocks have 17 to 292 bytes, so they
// lie at any multiple of gcd(bytes, 16).
#ifndef WICK_QUANT_H
#define WICK_QUANT_H
#include "stream.h"
namespace gpu {

// ---------------------------------------------------------------------------------------------------------------------
// Where the bytes of a block come from: byte(offset), half(offset), and load(base, word, x), words from base + 4 · word on. What
// loads of one base have in common is computed once.
// ---------------------------------------------------------------------------------------------------------------------
// Shared memory to which a Stage copied them: whole words around them may be read.
template <int Align> struct Staged {
  const u32* words;
  u32 at;
  template <class T> GPU_METHOD T of(u32 offset) const { return *(const T*)((const u8*)words + at + offset); }
  GPU_METHOD u32 byte(u32 offset) const { return of<u8>(offset); }
  GPU_METHOD u32 half(u32 offset) const {
    if (Align == 1) return byte(offset) | byte(offset + 1) << 8;
    return of<u16>(offset);
  }
  template <int N> GPU_METHOD void load(u32 base, u32 word, u32 (&x)[N]) const {
    if constexpr (Align == 16 && N == 4) {
      const Words4 whole = of<Words4>(base + 4 * word);
      UNROLL for (int j = 0; j < N; j++) x[j] = whole.v[j];
    } else if constexpr (Align >= 4) {
      UNROLL for (int j = 0; j < N; j++) x[j] = of<u32>(base + 4 * (word + j));
    } else if constexpr (Align == 2 && N == 1) {
      x[0] = half(base + 4 * word) | half(base + 4 * word + 2) << 16;
    } else {
      // The last is the word of the last byte, so that nothing behind it is touched.
      const u32 *first = words + (at + base) / 4 + word, *last = words + (at + base + 3) / 4 + word + N - 1;
      u32 low = *first;
      UNROLL for (int j = 0; j < N; j++) {
        const u32 high = j + 1 < N ? first[j + 1] : *last;
        x[j] = funnel_shift(low, high, (at + base) * 8);
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
  template <int N> GPU_METHOD void load(u32 base, u32 word, u32 (&x)[N]) const {
    const u32 offset = base + 4 * word;
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
  s.load(offset, 0, x);
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
// Of `Parts` groups of 32 weights, the words t and t + 4 of each, and the scales of their halves.
template <int Parts, int Halves> struct Fragment {
  u32 q[Parts][2];
  f32 scale[Halves][Parts], min[Halves][Parts];
};

// Elements and bytes per block, weights per scale, words of weights that a stored word has, whether there are minima.
// Self has
// - words<N>(s, run, first, q): q[f · N + j] is what field f of stored word first + j of a run of Parts groups holds;
// - scales(s, run, half, scale, min): of the run's groups, or with 16 weights per scale of one half of each.
template <class Self, int E, int B, class O, int G, int F, bool Min = false>
struct BlockType : O {
  using O::Parts;
  typedef Unit<Parts> U;
  static constexpr int Elements = E, Bytes = B, Units = E / 32, Group = G, Halves = 32 / G, Fields = F;
  static constexpr bool HasMin = Min, Fine = B >= E;  // Fine: eight bits per weight
  static constexpr int Align = B % 16 == 0 ? 16 : B % 4 == 0 ? 4 : B % 2 == 0 ? 2 : 1;
  typedef Fragment<Parts, Halves> Frag;

  template <class Src> GPU_FN void unit(const Src& s, u32 i, U& u) {
    constexpr int N = 8 / F;
    Self::template words<N>(s, i / Parts, i % Parts * N, u.q);
    Self::scales(s, i / Parts, i % Parts * Halves / Parts, u.scale, u.min);
  }
  template <class Src> GPU_FN void fragment(const Src& s, u32 run, u32 t, Frag& f) {
    // Nibbles of one group: both words come from one that is stored.
    constexpr int Loads = F > Parts ? 1 : 2;
    UNROLL for (int half = 0; half < Loads; half++) {
      u32 q[F];
      Self::template words<1>(s, run, t + 4 * half, q);
      UNROLL for (int i = 0; i < F; i++) f.q[F > Parts ? 0 : i][F > Parts ? i : half] = q[i];
    }
    UNROLL for (int half = 0; half < Halves; half++) Self::scales(s, run, half, f.scale[half], f.min[half]);
  }
};

// The block of a lane's unit among those that a Stage brought to `to`, where the first begins at byte `place`.
template <class Q> GPU_FN Staged<Q::Align> staged_block(const u32* to, u32 place, u32 lane) {
  if (Q::Align == 16) return Staged<Q::Align>{to + lane / Q::Units * (Q::Bytes / 4), 0};
  return Staged<Q::Align>{to, place + lane / Q::Units * Q::Bytes};
}

GPU_FN u32 byte_of(u32 word, u32 j) { return word >> 8 * j & 0xffu; }
GPU_FN u32 low_nibbles(u32 x) { return x & 0x0f0f0f0fu; }
GPU_FN u32 high_nibbles(u32 x) { return x >> 4 & 0x0f0f0f0fu; }

// Words of nibbles: low ones are field 0, high ones field 1.
template <int N, class Src> GPU_FN void nibbles(const Src& s, u32 base, u32 word, u32 (&q)[2 * N]) {
  u32 x[N];
  s.load(base, word, x);
  UNROLL for (int j = 0; j < N; j++) {
    q[j] = low_nibbles(x[j]);
    q[N + j] = high_nibbles(x[j]);
  }
}
template <int N, class Src> GPU_FN void coded_nibbles(const Src& s, u32 base, u32 word, const u32 (&codes)[4], u32 (&q)[2 * N]) {
  u32 x[N];
  s.load(base, word, x);
  UNROLL for (int j = 0; j < N; j++) bytes_by_nibble(x[j], codes, q[j], q[N + j]);
}

// ---------------------------------------------------------------------------------------------------------------------
// The types. A comment gives each layout: name[bytes].
// ---------------------------------------------------------------------------------------------------------------------
struct q4_0 : BlockType<q4_0, 32, 18, Flat, 32, 2> {  // d[2] qs[16]
  template <int N, class Src> GPU_FN void words(const Src& s, u32, u32 first, u32 (&q)[2 * N]) {
    u32 x[N];
    s.load(2, first, x);
    UNROLL for (int j = 0; j < N; j++) {
      q[j] = and_xor(x[j] << 4, 0xf0f0f0f0u, 0x80808080u);
      q[N + j] = and_xor(x[j], 0xf0f0f0f0u, 0x80808080u);
    }
  }
  template <class Src> GPU_FN void scales(const Src& s, u32, u32, f32 (&scale)[1], f32 (&)[1]) { scale[0] = half_at(s, 0) / 16; }
};
struct q4_1 : BlockType<q4_1, 32, 20, Flat, 32, 2, true> {  // d[2] m[2] qs[16]
  template <int N, class Src> GPU_FN void words(const Src& s, u32, u32 first, u32 (&q)[2 * N]) {
    nibbles<N>(s, 4, first, q);
  }
  template <class Src> GPU_FN void scales(const Src& s, u32, u32, f32 (&scale)[1], f32 (&min)[1]) {
    scale[0] = half_at(s, 0);
    min[0] = half_at(s, 2);
  }
};
// Nibbles with fifth bits, four of which become bit 7 of four bytes; eight times the five bits.
template <int N, class Src> GPU_FN void five_bits(const Src& s, u32 base, u32 first, u32 fifth, u32 (&q)[2 * N]) {
  u32 x[N];
  s.load(base, first, x);
  UNROLL for (int j = 0; j < N; j++)
    UNROLL for (int field = 0; field < 2; field++) {
      const u32 top = (fifth >> (4 * (first + j) + 16 * field) & 15u) * 0x10204080u & 0x80808080u;
      q[field * N + j] = ((field ? x[j] >> 1 : x[j] << 3) & 0x78787878u) | top;
    }
}
struct q5_0 : BlockType<q5_0, 32, 22, Flat, 32, 2> {  // d[2] qh[4] qs[16]
  template <int N, class Src> GPU_FN void words(const Src& s, u32, u32 first, u32 (&q)[2 * N]) {
    five_bits<N>(s, 6, first, ~word_at(s, 2), q);
  }
  template <class Src> GPU_FN void scales(const Src& s, u32, u32, f32 (&scale)[1], f32 (&)[1]) { scale[0] = half_at(s, 0) / 8; }
};
struct q5_1 : BlockType<q5_1, 32, 24, Flat, 32, 2, true> {  // d[2] m[2] qh[4] qs[16]
  template <int N, class Src> GPU_FN void words(const Src& s, u32, u32 first, u32 (&q)[2 * N]) {
    five_bits<N>(s, 8, first, word_at(s, 4), q);
    UNROLL for (int j = 0; j < 2 * N; j++) q[j] = q[j] >> 3;
  }
  template <class Src> GPU_FN void scales(const Src& s, u32, u32, f32 (&scale)[1], f32 (&min)[1]) {
    scale[0] = half_at(s, 0);
    min[0] = half_at(s, 2);
  }
};
struct q8_0 : BlockType<q8_0, 32, 34, Flat, 32, 1> {  // d[2] qs[32]
  template <int N, class Src> GPU_FN void words(const Src& s, u32, u32 first, u32 (&q)[N]) { s.load(2, first, q); }
  template <class Src> GPU_FN void scales(const Src& s, u32, u32, f32 (&scale)[1], f32 (&)[1]) { scale[0] = half_at(s, 0); }
};
struct q8_1 : BlockType<q8_1, 32, 36, Flat, 32, 1> {  // d[2] sum[2] qs[32]
  template <int N, class Src> GPU_FN void words(const Src& s, u32, u32 first, u32 (&q)[N]) { s.load(4, first, q); }
  template <class Src> GPU_FN void scales(const Src& s, u32, u32, f32 (&scale)[1], f32 (&)[1]) { scale[0] = half_at(s, 0); }
};

struct q2_k : BlockType<q2_k, 256, 84, Columns, 16, 4, true> {  // scales[16] qs[64] d[2] dmin[2]
  template <int N, class Src> GPU_FN void words(const Src& s, u32 run, u32 first, u32 (&q)[4 * N]) {
    u32 x[N];
    s.load(16, 8 * run + first, x);
    UNROLL for (int p = 0; p < 4; p++)
      UNROLL for (int j = 0; j < N; j++) q[p * N + j] = x[j] >> 2 * p & 0x03030303u;
  }
  template <class Src> GPU_FN void scales(const Src& s, u32 run, u32 half, f32 (&scale)[4], f32 (&min)[4]) {
    const f32 d = half_at(s, 80), dmin = half_at(s, 82);
    UNROLL for (int p = 0; p < 4; p++) {
      const u32 both = s.byte(8 * run + 2 * p + half);
      scale[p] = d * (f32)(both & 15u);
      min[p] = -dmin * (f32)(both >> 4);
    }
  }
};
struct q3_k : BlockType<q3_k, 256, 110, Columns, 16, 4> {  // hmask[32] qs[64] scales[12] d[2]
  template <int N, class Src> GPU_FN void words(const Src& s, u32 run, u32 first, u32 (&q)[4 * N]) {
    u32 x[N], high[N];
    s.load(0, 8 + 8 * run + first, x);
    s.load(0, first, high);
    UNROLL for (int j = 0; j < N; j++) {
      const u32 top = ~(high[j] >> 4 * run);
      UNROLL for (int p = 0; p < 4; p++)
        q[p * N + j] = ((p == 3 ? x[j] >> 1 : x[j] << (5 - 2 * p)) & 0x60606060u) | (top << (7 - p) & 0x80808080u);
    }
  }
  template <class Src> GPU_FN void scales(const Src& s, u32 run, u32 half, f32 (&scale)[4], f32 (&)[4]) {
    const f32 d = half_at(s, 108) / 32;
    UNROLL for (int p = 0; p < 4; p++) {
      // Six bits: four in the first eight bytes, two in the last four.
      const u32 low = s.byte(96 + 2 * p + half) >> 4 * run & 15u;
      const u32 top = s.byte(104 + 2 * (p % 2) + half) >> (4 * run + 2 * (p / 2)) & 3u;
      scale[p] = d * (f32)((i32)(low | top << 4) - 32);
    }
  }
};
// Scales and minima of the groups 2 run and 2 run + 1: six bits each in twelve bytes.
template <class Src> GPU_FN void six_bit_scales(const Src& s, u32 run, f32 (&scale)[2], f32 (&min)[2]) {
  u32 x[4];
  s.load(0, 0, x);
  const f32 d = f16_to_f32((u16)x[0]), dmin = f16_to_f32((u16)(x[0] >> 16));
  // The first four groups have theirs whole, the others in two pieces; masks, as lanes of a warp would else part here.
  const u32 shift = run < 2 ? 0 : 2, upper = run < 2 ? 0x3f3f3f3fu : 0x30303030u, lower = run < 2 ? 0 : 0x0f0f0f0fu, at = run % 2 * 16;
  const u32 scales = ((x[1] >> shift & upper) | (x[3] & lower)) >> at, mins = ((x[2] >> shift & upper) | (x[3] >> 4 & lower)) >> at;
  UNROLL for (int p = 0; p < 2; p++) {
    scale[p] = d * (f32)byte_of(scales, p);
    min[p] = -dmin * (f32)byte_of(mins, p);
  }
}
struct q4_k : BlockType<q4_k, 256, 144, Pairs, 32, 2, true> {  // d[2] dmin[2] scales[12] qs[128]
  template <int N, class Src> GPU_FN void words(const Src& s, u32 run, u32 first, u32 (&q)[2 * N]) {
    nibbles<N>(s, 16, 8 * run + first, q);
  }
  template <class Src> GPU_FN void scales(const Src& s, u32 run, u32, f32 (&scale)[2], f32 (&min)[2]) { six_bit_scales(s, run, scale, min); }
};
struct q5_k : BlockType<q5_k, 256, 176, Pairs, 32, 2, true> {  // d[2] dmin[2] scales[12] qh[32] qs[128]
  template <int N, class Src> GPU_FN void words(const Src& s, u32 run, u32 first, u32 (&q)[2 * N]) {
    nibbles<N>(s, 48, 8 * run + first, q);
    u32 high[N];
    s.load(16, first, high);
    UNROLL for (int j = 0; j < 2 * N; j++) q[j] |= (high[j % N] >> (2 * run + j / N) & 0x01010101u) << 4;
  }
  template <class Src> GPU_FN void scales(const Src& s, u32 run, u32, f32 (&scale)[2], f32 (&min)[2]) { six_bit_scales(s, run, scale, min); }
};
struct q6_k : BlockType<q6_k, 256, 210, Columns, 16, 4> {  // ql[128] qh[64] scales[16] d[2]
  template <int N, class Src> GPU_FN void words(const Src& s, u32 run, u32 first, u32 (&q)[4 * N]) {
    u32 a[N], b[N], high[N];
    s.load(0, 16 * run + first, a);
    s.load(0, 16 * run + 8 + first, b);
    s.load(0, 32 + 8 * run + first, high);
    UNROLL for (int j = 0; j < N; j++) {
      UNROLL for (int p = 0; p < 4; p++) {
        const u32 low = p % 2 ? b[j] : a[j];
        q[p * N + j] = ((p < 2 ? low << 2 : low >> 2) & 0x3c3c3c3cu) | and_xor(high[j] << (6 - 2 * p), 0xc0c0c0c0u, 0x80808080u);
      }
    }
  }
  template <class Src> GPU_FN void scales(const Src& s, u32 run, u32 half, f32 (&scale)[4], f32 (&)[4]) {
    const f32 d = half_at(s, 208) / 4;
    UNROLL for (int p = 0; p < 4; p++) scale[p] = d * (f32)(signed char)s.byte(192 + 8 * run + half + 2 * p);
  }
};
struct q8_k : BlockType<q8_k, 256, 292, Flat, 32, 1> {  // d[4] qs[256] sums[32]
  template <int N, class Src> GPU_FN void words(const Src& s, u32 run, u32 first, u32 (&q)[N]) {
    s.load(4, 8 * run + first, q);
  }
  template <class Src> GPU_FN void scales(const Src& s, u32, u32, f32 (&scale)[1], f32 (&)[1]) { scale[0] = f32_from_bits(word_at(s, 0)); }
};

// Words of nibbles that stand for the sixteen values of the non-linear types.
template <int N, class Src> GPU_FN void curve_nibbles(const Src& s, u32 base, u32 word, u32 (&q)[2 * N]) {
  coded_nibbles<N>(s, base, word, {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}, q);
}
// For twice the values of e2m1.
template <int N, class Src> GPU_FN void fp4_nibbles(const Src& s, u32 base, u32 word, u32 (&q)[2 * N]) {
  coded_nibbles<N>(s, base, word, {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}, q);
}
struct iq4_nl : BlockType<iq4_nl, 32, 18, Flat, 32, 2> {  // d[2] qs[16]
  template <int N, class Src> GPU_FN void words(const Src& s, u32, u32 first, u32 (&q)[2 * N]) {
    curve_nibbles<N>(s, 2, first, q);
  }
  template <class Src> GPU_FN void scales(const Src& s, u32, u32, f32 (&scale)[1], f32 (&)[1]) { scale[0] = half_at(s, 0); }
};
struct iq4_xs : BlockType<iq4_xs, 256, 136, Flat, 32, 2> {  // d[2] scales_h[2] scales_l[4] qs[128]
  template <int N, class Src> GPU_FN void words(const Src& s, u32 run, u32 first, u32 (&q)[2 * N]) {
    curve_nibbles<N>(s, 8, 4 * run + first, q);
  }
  template <class Src> GPU_FN void scales(const Src& s, u32 run, u32, f32 (&scale)[1], f32 (&)[1]) {
    const u32 six = (s.byte(4 + run / 2) >> 4 * (run % 2) & 15u) | (s.half(2) >> 2 * run & 3u) << 4;
    scale[0] = half_at(s, 0) * (f32)((i32)six - 32);
  }
};
struct mxfp4 : BlockType<mxfp4, 32, 17, Flat, 32, 2> {  // e[1] qs[16]
  template <int N, class Src> GPU_FN void words(const Src& s, u32, u32 first, u32 (&q)[2 * N]) {
    fp4_nibbles<N>(s, 1, first, q);
  }
  template <class Src> GPU_FN void scales(const Src& s, u32, u32, f32 (&scale)[1], f32 (&)[1]) {
    // 2^(e − 127) / 2, whose two smallest values are subnormal.
    const u32 e = s.byte(0);
    scale[0] = f32_from_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  }
};


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
