// A slice of 64 quantized weights of a line as one lane of four gives it to a matrix unit: in f16, 16 along k at a time, of which a lane
// has two pairs.
//
// Any type gives four neighbouring weights, two and two. Where two blocks are whole words, those are taken as they lie, and bytes 0
// and 2 of a word are one pair and 1 and 3 the next, as a mask finds them so: which weights those are differs by type, so x is brought
// into that order (QUANT_ORDER_…).
#ifndef WICK_QUANT_SLICES_H
#define WICK_QUANT_SLICES_H
#include "gpu/halves.h"
#include "quant.h"

namespace gpu {

// The middle of the integers of a type that has a minimum.
template <class Q> struct Centre { static constexpr u32 of = 8; };
template <> struct Centre<q5_1> { static constexpr u32 of = 16; };
template <> struct Centre<q5_k> { static constexpr u32 of = 16; };
template <> struct Centre<q2_k> { static constexpr u32 of = 2; };
// Four neighbouring weights in f16, two and two.
template <class Q> GPU_FN void four_weights(u32 q, f32 scale, f32 min, u32& first, u32& second) {
  const u32 factor = pack2(f16{}, 16 * scale, 16 * scale);
  if constexpr (Q::HasMin) {
    const f32 shift = min + (f32)Centre<Q>::of * scale;
    centred_halves<Centre<Q>::of>(q, factor, pack2(f16{}, shift, shift), first, second);
  } else scaled_halves<false>(q, factor, 0, first, second);
}

// Slice J of a chunk, of which there are `left` weights.
template <class Q> struct QuantSlice {
  static constexpr bool WORDS = false;
  static constexpr u32 STORED = 0, ORDER = QUANT_ORDER_ANY;
  static constexpr u32 RUN = 32 * Q::Parts, RUNS = RUN > 64 ? 1 : 64 / RUN, PARTS = RUN > 64 ? 2 : Q::Parts, PER_BLOCK = Q::Elements / RUN;
  typename Q::Frag q[RUNS];
  bool there[RUNS];

  template <u32 J> GPU_METHOD void load(const Staged<Q::Align>& chunk, u32 left) {
    UNROLL for (u32 r = 0; r < RUNS; r++) {
      const u32 run = J * 64 / RUN + r;
      // A vector at the end may hold something of the next line; there x is zero, and so must be the weights.
      there[r] = Q::Elements > 32 || run * RUN < left;
      Q::fragment(Staged<Q::Align>{chunk.words, chunk.at + run / PER_BLOCK * Q::Bytes}, run % PER_BLOCK, lane_id() % 4, q[r]);
    }
  }
  // Of the 16 at 16 I.
  template <u32 J, u32 I> GPU_METHOD void decode(u32& first, u32& second) const {
    constexpr u32 r = I / 2 / PARTS, part = I / 2 % PARTS + J * 64 % RUN / 32, half = I % 2, s = Q::Halves == 1 ? 0 : half;
    const f32 scale = there[r] ? q[r].scale[s][part] : 0.0f, min = Q::HasMin && there[r] ? q[r].min[s][part] : 0.0f;
    four_weights<Q>(q[r].q[part][half], scale, min, first, second);
  }
};

// Of two blocks in whole words, the first one's integers lie between words: lane 3 takes what is at their ends. Rows are whole chunks.
struct TwoBlocks {
  static constexpr bool WORDS = true;
  GPU_FN u32 joined(u32 word, u32 next) { return funnel_shift(word, next, lane_id() % 4 == 3 ? 16 : 0); }
  GPU_FN u32 ends(u32 other) { return lane_id() % 4 == 3 ? 0 : other + lane_id() % 4; }
};
template <> struct QuantSlice<q8_0> : TwoBlocks {
  static constexpr u32 STORED = 17, ORDER = QUANT_ORDER_q8_0;  // words of a slice
  u32 q[4], scale[2];
  template <u32 J> GPU_METHOD void load(const Staged<q8_0::Align>& chunk, u32) {
    const u32* const words = chunk.words + STORED * J;
    const u32 t = lane_id() % 4, middle = words[8];
    q[0] = words[1 + t];
    q[1] = joined(words[ends(5)], middle);
    q[2] = words[9 + t];
    q[3] = words[13 + t];
    scale[0] = half_twice<false>(words[0]);
    scale[1] = half_twice<true>(middle);
  }
  // A byte below 0x64 is 1024 more than it, and here 128 more than that.
  template <u32 J, u32 I> GPU_METHOD void decode(u32& first, u32& second) const {
    first = multiply_halves(add_halves(and_xor(q[I], 0x00ff00ffu, 0x64806480u), 0xe480e480u), scale[I / 2]);
    second = multiply_halves(add_halves(and_xor(q[I] >> 8, 0x00ff00ffu, 0x64806480u), 0xe480e480u), scale[I / 2]);
  }
};
template <> struct QuantSlice<q4_0> : TwoBlocks {
  static constexpr u32 STORED = 9, ORDER = QUANT_ORDER_q4_0;
  u32 q[2], scale[2];
  template <u32 J> GPU_METHOD void load(const Staged<q4_0::Align>& chunk, u32) {
    const u32* const words = chunk.words + STORED * J;
    const u32 middle = words[4];
    q[0] = joined(words[ends(1)], middle);
    q[1] = words[5 + lane_id() % 4];
    scale[0] = half_twice<false>(words[0]);
    scale[1] = half_twice<true>(middle);
  }
  // Low nibbles are the first sixteen of a block: 1024 more than they are. Of high ones it is sixteenths.
  template <u32 J, u32 I> GPU_METHOD void decode(u32& first, u32& second) const {
    constexpr u32 MASK = I % 2 ? 0x00f000f0u : 0x000f000fu;
    const u32 two[2] = {and_xor(q[I / 2], MASK, 0x64006400u), and_xor(q[I / 2] >> 8, MASK, 0x64006400u)};
    u32 y[2];
    UNROLL for (int i = 0; i < 2; i++) y[i] = multiply_halves(I % 2 ? fma_halves(two[i], 0x2c002c00u, 0xd480d480u) : add_halves(two[i], 0xe408e408u), scale[I / 2]);
    first = y[0];
    second = y[1];
  }
};

// Which weight of a slice is at place `at` of it, in an order by number: as decode() above has them, at places 2t, 2t + 1, 2t + 8 and
// 2t + 9 of each 16 for lane t.
GPU_FN u32 ordered_from(u32 at, u32 order) {
  const u32 t = at % 8 / 2, step = at / 16, second = at / 8 % 2, i = at % 2;
  if (order == QUANT_ORDER_ANY) return step * 16 + 4 * t + 2 * second + i;
  // Byte `second` or two more of the lane's word.
  const u32 byte = second + 2 * i, first = step / 2 * 32, upper = step % 2 * 16;
  if (step >= 2) return first + upper + 4 * t + byte;
  if (order == QUANT_ORDER_q4_0) return upper + (t == 3 ? byte % 2 + i * 14 : 2 + 4 * t + byte);
  // QUANT_ORDER_q8_0.
  return t == 3 && upper ? byte % 2 + i * 30 : 2 + upper + 4 * t + byte;
}

}  // namespace gpu
#endif
