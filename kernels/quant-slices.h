// A slice of 64 quantized weights of a line as one lane of four gives it to a matrix unit: in f16, 16 along k at a time, of which a lane
// has two pairs.
//
// Any type gives four neighbouring weights, two and two. Where two blocks are whole words, those are taken as they lie: which weights go
// together then differs by type, so x is brought into that order (QUANT_ORDER_…).
#ifndef WICK_QUANT_SLICES_H
#define WICK_QUANT_SLICES_H
#include "gpu/halves.h"
#include "quant-pieces.h"

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
  static constexpr u32 ORDER = QUANT_ORDER_ANY;
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

// Of two blocks in whole words each lane has its own slice of a chunk of four, and gives four of its weights at a time (quant-pieces.h).
// Rows are whole chunks. What is loaded for an even slice serves the next one, too.
template <class Q, u32 WAY> struct PieceSlice {
  static constexpr bool WORDS = true;
  static constexpr u32 ORDER = WAY;
  PieceBlock<Q> block;
  template <u32 J> GPU_METHOD void load(const Staged<Q::Align>& chunk, u32) {
    if (J % 2 == 0) block.template load<J / 2>(chunk.words);
  }
  template <u32 J, u32 I> GPU_METHOD void decode(u32& first, u32& second) const { block.template decode<J % 2 * 4 + I>(first, second); }
};
template <> struct QuantSlice<q8_0> : PieceSlice<q8_0, QUANT_ORDER_q8_0> {};
template <> struct QuantSlice<q4_0> : PieceSlice<q4_0, QUANT_ORDER_q4_0> {};

}  // namespace gpu
#endif
