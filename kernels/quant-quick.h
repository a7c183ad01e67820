// Pieces of quantized weights (quant-pieces.h) decoded in the fewest instructions: one operation on two halves for each pair. Integers at
// bits 3 … 10 of halves are multiples of 2^-21 as they stand, since denormals have the step of the numbers above them. That is exact where
// the scale multiplied with 2^21 is a half, which is_large tells.
#ifndef WICK_QUANT_QUICK_H
#define WICK_QUANT_QUICK_H
#include "quant-pieces.h"

namespace gpu {

template <class Q> struct RaisedBlock : PieceBlock<Q> {
  GPU_METHOD bool is_large() const { return (this->scale & 0x7fffu) >= 0x2800u; }
};
template <class Q> struct QuickBlock;
template <> struct QuickBlock<q8_0> : RaisedBlock<q8_0> {
  u32 raised, offset;
  GPU_METHOD void prepare() {
    raised = multiply_halves(multiply_halves(scale, 0x78007800u), 0x54005400u);
    offset = multiply_halves(scale, 0xd800d800u);
  }
  template <u32 I> GPU_METHOD void decode_quickly(u32& first, u32& second) const {
    first = fma_halves(and_xor(q[I] << 3, 0x07f807f8u, 0x04000400u), raised, offset);
    second = fma_halves(and_xor(q[I] >> 5, 0x07f807f8u, 0x04000400u), raised, offset);
  }
};
// High nibbles lie four bits above low ones.
template <> struct QuickBlock<q4_0> : RaisedBlock<q4_0> {
  u32 raised[2], offset;
  GPU_METHOD void prepare() {
    const u32 most = multiply_halves(scale, 0x78007800u);
    raised[0] = multiply_halves(most, 0x54005400u);
    raised[1] = multiply_halves(most, 0x44004400u);
    offset = multiply_halves(scale, 0xc800c800u);
  }
  template <u32 I> GPU_METHOD void decode_quickly(u32& first, u32& second) const {
    constexpr u32 MASK = I % 2 ? 0x07800780u : 0x00780078u;
    first = fma_halves(q[I / 2] << 3 & MASK, raised[I % 2], offset);
    second = fma_halves(q[I / 2] >> 5 & MASK, raised[I % 2], offset);
  }
};

}  // namespace gpu
#endif
