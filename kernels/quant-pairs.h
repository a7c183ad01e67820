// Quantized weights as integers in halves, two to a word, as mma.sync takes its left operand: an integer below 1024 is, as it stands, a
// half of 2^-24 times as much. Nothing is converted, added or scaled: scales are applied to the sums of each group, and what an integer
// counts too much (ZERO) is taken off them with the sum of x over the group.
//
// Of a group of 32, lane t of four has two words of four integers. Bytes 0 and 2 of a word are one pair and 1 and 3 the next, since a
// mask finds them so. Which weights those are differs by type, so x is brought into that order.
#ifndef WICK_QUANT_PAIRS_H
#define WICK_QUANT_PAIRS_H
#include "quant.h"

namespace gpu {

// Four bytes as two pairs; signed ones with 128 more.
template <bool SIGNED> GPU_FN void pairs_of(u32 bytes, u32* pairs) {
  UNROLL for (int i = 0; i < 2; i++) pairs[i] = SIGNED ? and_xor(bytes >> 8 * i, 0x00ff00ffu, 0x00800080u) : bytes >> 8 * i & 0x00ff00ffu;
}

// Any type: a run of Parts groups.
template <class Q> struct RunPairs {
  static constexpr u32 GROUPS = Q::Parts, RUN = 32 * GROUPS, PER_BLOCK = Q::Elements / RUN;
  static constexpr f32 ZERO = Q::HasMin ? 0 : 128, UPPER = 1;
  u32 pairs[GROUPS][4];
  f32 scale[Q::Halves][GROUPS], min[Q::Halves][GROUPS];

  // Run `run` of those that begin at `chunk`.
  GPU_METHOD void take(const Staged<Q::Align>& chunk, u32 run, u32 t) {
    typename Q::Frag f;
    Q::fragment(Staged<Q::Align>{chunk.words, chunk.at + run / PER_BLOCK * Q::Bytes}, run % PER_BLOCK, t, f);
    UNROLL for (u32 g = 0; g < GROUPS; g++) {
      UNROLL for (int i = 0; i < 2; i++) pairs_of<!Q::HasMin>(f.q[g][i], pairs[g] + 2 * i);
      UNROLL for (int half = 0; half < Q::Halves; half++) {
        scale[half][g] = f.scale[half][g];
        if (Q::HasMin) min[half][g] = f.min[half][g];
      }
    }
  }
  // Where in group `g` of two the weights of lane t lie: those of its first word and of its second, two neighbours and two more.
  GPU_FN void order(u32, u32 t, u32 (&from)[4]) {
    UNROLL for (u32 i = 0; i < 4; i++) from[i] = 4 * t + 2 * (i % 2) + i / 2 * 16;
  }
};

// Blocks of which two are whole words, where these begin at words: the first block's integers lie between two words, and lane 3 takes
// what is at its ends.
template <class Q> struct WordPairs : RunPairs<Q> {
  static constexpr bool EXISTS = false;
};
struct TwoBlocks {
  static constexpr bool EXISTS = true;
  static constexpr u32 GROUPS = 2, RUN = 64;
  u32 pairs[GROUPS][4];
  f32 scale[1][GROUPS], min[1][GROUPS];
  // The last word of lane 3 is its first and its second half that of `next`.
  GPU_FN u32 joined(u32 word, u32 next, u32 t) { return funnel_shift(word, next, t == 3 ? 16 : 0); }
};
template <> struct WordPairs<q8_0> : TwoBlocks {
  static constexpr f32 ZERO = 128, UPPER = 1;
  GPU_METHOD void take(const Staged<q8_0::Align>& chunk, u32 run, u32 t) {
    const u32* const words = chunk.words + chunk.at / 4 + run * 17;
    const u32 first = words[0], middle = words[8], last = words[t == 3 ? 0 : 5 + t];
    pairs_of<true>(words[1 + t], pairs[0]);
    pairs_of<true>(joined(last, middle, t), pairs[0] + 2);
    pairs_of<true>(words[9 + t], pairs[1]);
    pairs_of<true>(words[13 + t], pairs[1] + 2);
    scale[0][0] = f16_to_f32((u16)first);
    scale[0][1] = f16_to_f32((u16)(middle >> 16));
  }
  GPU_FN void order(u32 g, u32 t, u32 (&from)[4]) {
    UNROLL for (u32 i = 0; i < 4; i++) from[i] = 4 * t + 2 * (i % 2) + i / 2 * 16 + (g == 0 ? 2 : 0);
    if (g == 0 && t == 3) from[2] = 0, from[3] = 30;
  }
};
// Low nibbles are the first sixteen, high ones the others, sixteen times as much: x is so much less there.
template <> struct WordPairs<q4_0> : TwoBlocks {
  static constexpr f32 ZERO = 8, UPPER = 1.0f / 16;
  GPU_METHOD void take(const Staged<q4_0::Align>& chunk, u32 run, u32 t) {
    const u32* const words = chunk.words + chunk.at / 4 + run * 9;
    const u32 first = words[0], middle = words[4], own[2] = {joined(words[t == 3 ? 0 : 1 + t], middle, t), words[5 + t]};
    UNROLL for (int g = 0; g < 2; g++)
      UNROLL for (int i = 0; i < 4; i++) pairs[g][i] = own[g] >> 8 * (i % 2) & (i < 2 ? 0x000f000fu : 0x00f000f0u);
    scale[0][0] = f16_to_f32((u16)first);
    scale[0][1] = f16_to_f32((u16)(middle >> 16));
  }
  GPU_FN void order(u32 g, u32 t, u32 (&from)[4]) {
    UNROLL for (u32 i = 0; i < 4; i++) from[i] = 4 * t + 2 * (i % 2) + i / 2 * 16 + (g == 0 ? 2 : 0);
    if (g == 0 && t == 3) UNROLL for (u32 i = 0; i < 4; i++) from[i] = i % 2 * 14 + i / 2 * 16;
  }
};

}  // namespace gpu
#endif
