// The order of x beside quantized weights: which of a piece of 256 elements is at each place of it, in an order by number (QUANT_ORDER_…,
// by the type of the weights). Quantized types are taken apart by words, and x is brought to where their weights come out.
#ifndef WICK_X_ORDER_H
#define WICK_X_ORDER_H
#include "gpu.h"

namespace gpu {

constexpr u32 PIECE = 256;
// Lane t's eight of x of steps 2s and 2s + 1 of a piece, 16 steps long, are made of four neighbouring pairs: the first of pair j.
// Of two pairs side by side, the first of both go together, and the second of both.
GPU_FN u32 piece_from(u32 s, u32 t, u32 j, u32 order) {
  const u32 block = s / 4, first = t * 64 + block * 32, lower = order == QUANT_ORDER_q4_0;
  // A word is both steps' nibbles, or one step's bytes.
  const u32 word = lower ? s % 4 : s % 4 * 2 + j / 2, upper = lower ? j / 2 * 16 : 0, last = lower ? 14 : 30;
  return first + upper + (block ? 4 * word + j % 2 * 2 : word ? 4 * word - 2 + j % 2 * 2 : j % 2 * last);
}

// Which element of a piece is at place `at` of it: as slices of weights (quant-slices.h) are decoded, at places 2t, 2t + 1, 2t + 8 and 2t + 9
// of each 16 for lane t.
GPU_FN u32 ordered_from(u32 at, u32 order) {
  const u32 t = at % 8 / 2, step = at / 16, second = at / 8 % 2, i = at % 2;
  return order == QUANT_ORDER_ANY ? step * 16 + 4 * t + 2 * second + i : piece_from(step / 2, t, step % 2 * 2 + i, order) + second;
}

// The other way round, for types that are taken apart by words: at which place element e of a piece is.
GPU_FN u32 ordered_place(u32 e, u32 order) {
  const u32 lower = order == QUANT_ORDER_q4_0, span = lower ? 16 : 32, block = e / 32 % 2, i = e % span;
  // Of a lane's first block the words begin two elements earlier, and what is at its ends becomes one.
  const u32 at = block ? i : i < 2 ? i : i < span - 2 ? i + 2 : i + 4 - span, word = at / 4;
  const u32 step = lower ? 2 * (block * 4 + word) + e / 16 % 2 : block * 8 + word;
  return step * 16 + at % 2 * 8 + e / 64 * 2 + at % 4 / 2;
}

// Where x goes in order, beside where it goes as it is: the form of quant-wide.h for up to 64 rows of f16, which are not lifted. `width`
// elements to a row, a multiple of PIECE; `height` rows, a multiple of 8.
struct OrderedRows {
  u16* to;
  u32 order, width, height;
  // 128 columns of a row from `column` on, a multiple of 128, by 32 lanes: each has made four of them and brings four to their places.
  GPU_METHOD void put128(const Vec<u16, 4>& x, u32 row, u32 column) const {
    const u32 half = column / 128 % 2, at = order == QUANT_ORDER_ANY ? 128 * half + 4 * lane_id() : 8 * lane_id() + 4 * half;
    Vec<u16, 4> four;
    UNROLL for (u32 j = 0; j < 4; j++) {
      const u32 from = ordered_from(at + j, order) % 128, lane = from / 4;
      const u32 first = shfl(x.v[0] | (u32)x.v[1] << 16, lane), second = shfl(x.v[2] | (u32)x.v[3] << 16, lane);
      four.v[j] = (u16)((from & 2u ? second : first) >> from % 2 * 16);
    }
    const u32 slice = column / PIECE * 4 + at / 64;
    put(to + ((size_t)slice * height + row) * 64 + (at / 8 % 8 ^ row % 8) * 8 + at % 8, four);
  }
  // One element, where the order is not QUANT_ORDER_ANY.
  GPU_METHOD void put_one(u16 x, u32 row, u32 column) const {
    const u32 at = ordered_place(column % PIECE, order);
    to[((size_t)(column / PIECE * 4 + at / 64) * height + row) * 64 + (at / 8 % 8 ^ row % 8) * 8 + at % 8] = x;
  }
  // What the products of a row are to be multiplied with.
  GPU_METHOD void put_factor(u32 row) const { ((f32*)(to + (size_t)height * width))[row] = 1; }
};

}  // namespace gpu
#endif
