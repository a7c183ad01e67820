// Pieces of 256 quantized weights of a line as four lanes give them to a matrix unit, in f16: each lane has 64 of them to itself, two
// blocks in whole words, and a step of 16 along k has four of each lane. So every word and scale is read once, by one lane.
//
// Bytes 0 and 2 of a word are one pair and 1 and 3 the next, as a mask finds them so; x is brought into that order (piece_from).
#ifndef WICK_QUANT_PIECES_H
#define WICK_QUANT_PIECES_H
#include "gpu/halves.h"
#include "quant.h"
#include "x-order.h"

namespace gpu {

// Of a line that is whole pieces, block P of a lane's two: eight steps.
template <class Q> struct PieceBlock {
  static constexpr bool THERE = false;
  template <u32 P> GPU_METHOD void load(const u32*) {}
  template <u32 I> GPU_METHOD void decode(u32&, u32&) const {}
};
// N words of integers to a block; those of the first lie between words, so what is at their ends becomes a word.
template <u32 N> struct PieceWords {
  static constexpr bool THERE = true;
  u32 q[N], scale;
  template <u32 P> GPU_METHOD void load(const u32* piece) {
    const u32* const words = piece + lane_id() % 4 * (2 * N + 1);
    UNROLL for (u32 i = 0; i < N; i++) q[i] = words[(N + 1) * P + i];
    const u32 middle = words[N];
    scale = P ? half_twice<true>(middle) : half_twice<false>(q[0]);
    if (P == 0) q[0] = funnel_shift(q[0], middle, 16);
  }
};
template <> struct PieceBlock<q8_0> : PieceWords<8> {
  // A byte below 0x64 is 1024 more than it, and here 128 more than that.
  template <u32 I> GPU_METHOD void decode(u32& first, u32& second) const {
    first = multiply_halves(add_halves(and_xor(q[I], 0x00ff00ffu, 0x64806480u), 0xe480e480u), scale);
    second = multiply_halves(add_halves(and_xor(q[I] >> 8, 0x00ff00ffu, 0x64806480u), 0xe480e480u), scale);
  }
};
template <> struct PieceBlock<q4_0> : PieceWords<4> {
  // Low nibbles are the first sixteen of a block: 1024 more than they are. Of high ones it is sixteenths.
  template <u32 I> GPU_METHOD void decode(u32& first, u32& second) const {
    constexpr u32 MASK = I % 2 ? 0x00f000f0u : 0x000f000fu;
    const u32 two[2] = {and_xor(q[I / 2], MASK, 0x64006400u), and_xor(q[I / 2] >> 8, MASK, 0x64006400u)};
    u32 y[2];
    UNROLL for (int i = 0; i < 2; i++) y[i] = multiply_halves(I % 2 ? fma_halves(two[i], 0x2c002c00u, 0xd480d480u) : add_halves(two[i], 0xe408e408u), scale);
    first = y[0];
    second = y[1];
  }
};

}  // namespace gpu
#endif
