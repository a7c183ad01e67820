// The order of x beside quantized weights: which of a piece of 256 elements is at each place of it, in an order by number (QUANT_ORDER_…,
// by the type of the weights). Quantized types are taken apart by words, and x is brought to where their weights come out.
#ifndef WICK_X_ORDER_H
#define WICK_X_ORDER_H
#include "row.h"

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

// The place of an element.
GPU_FN u32 ordered_to(u32 element, u32 order) {
  if (order == QUANT_ORDER_ANY) return element / 16 * 16 + element % 4 / 2 * 8 + element % 16 / 4 * 2 + element % 2;
  const u32 t = element / 64, block = element / 32 % 2, lower = order == QUANT_ORDER_q4_0, count = lower ? 16 : 32;
  // The words of the first block begin two elements before it, and end with its last two.
  const u32 at = (element + (block ? 0 : 2)) % count, word = at / 4, i = at % 4 / 2 ^ (block || word ? 0 : 1);
  const u32 step = block * 8 + (lower ? 2 * word + element / 16 % 2 : word);
  return step * 16 + element % 2 * 8 + 2 * t + i;
}

// Where x goes in order, beside where it goes as it is: the form of quant-wide.h for up to 64 rows of f16, which are not lifted. `width`
// elements to a row, a multiple of PIECE. Where a norm comes between, elements are multiplied with its
// weights `alpha`, and with `lower`, the power of two that leaves none of those above 1; the squares of a row follow from those
// of each 128 elements, which lie behind the rows.
// Fields are as kernels are given them, so that they lie in no register before they are used.
struct OrderedRows {
  u16* to;
  const u16* alpha;
  f64 lower;
  u32 order, width, rows;
  GPU_METHOD u32 height() const { return (rows + 7) / 8 * 8; }
  // A row of a piece, and place `at` of it.
  GPU_METHOD u16* piece(u32 row, u32 column) const { return to + ((size_t)(column / PIECE * 4) * height() + row) * 64; }
  GPU_METHOD u32 within(u32 row, u32 at) const { return at / 64 * height() * 64 + (at / 8 % 8 ^ row % 8) * 8 + at % 8; }
  GPU_METHOD u16* place(u32 row, u32 column, u32 at) const { return piece(row, column) + within(row, at); }
  // N weights of the norm from `column` on, where there is one, and elements as it leaves them, but for the row's factor.
  template <int N> GPU_METHOD Vec<u16, N> weights(u32 column) const { return alpha ? *(const Vec<u16, N>*)(alpha + column) : Vec<u16, N>{}; }
  template <int N> GPU_METHOD Vec<u16, N> normed(const Vec<u16, N>& x, const Vec<u16, N>& by) const {
    if (!alpha) return x;
    Vec<u16, N> y;
    UNROLL for (int j = 0; j < N; j++) y.v[j] = f32_to_f16(f16_to_f32(x.v[j]) * (f32)lower * f16_to_f32(by.v[j]));
    return y;
  }
  template <int N> GPU_FN f32 squares(const Vec<u16, N>& x) {
    f32 sum = 0;
    UNROLL for (int j = 0; j < N; j++) sum = m_fma(f16_to_f32(x.v[j]), f16_to_f32(x.v[j]), sum);
    return sum;
  }
  // Which four of 128 columns, the first or the second of a piece, this lane brings to their places, from `ordered_at` on: a byte each.
  GPU_METHOD u32 ordered_at(u32 half) const { return order == QUANT_ORDER_ANY ? 128 * half + 4 * lane_id() : 8 * lane_id() + 4 * half; }
  GPU_METHOD u32 sources(u32 half) const {
    u32 from = 0;
    UNROLL for (u32 j = 0; j < 4; j++) from |= ordered_from(ordered_at(half) + j, order) % 128 << 8 * j;
    return from;
  }
  // 128 columns of a row from `column` on, a multiple of 128, by 32 lanes: each has made four of them, and has their weights, and brings
  // four to their places.
  GPU_METHOD void put128(const Vec<u16, 4>& made, const Vec<u16, 4>& by, u32 row, u32 column) const { put128(made, by, row, column, sources(column / 128 % 2)); }
  GPU_METHOD void put128(const Vec<u16, 4>& made, const Vec<u16, 4>& by, u32 row, u32 column, u32 sources) const {
    const Vec<u16, 4> x = normed(made, by);
    Vec<u16, 4> four;
    UNROLL for (u32 j = 0; j < 4; j++) {
      const u32 from = sources >> 8 * j, lane = from / 4 % 32;
      const u32 first = shfl(x.v[0] | (u32)x.v[1] << 16, lane), second = shfl(x.v[2] | (u32)x.v[3] << 16, lane);
      four.v[j] = (u16)((from & 2u ? second : first) >> from % 2 * 16);
    }
    put(place(row, column, ordered_at(column / 128 % 2)), four);
    if (!alpha) {
      if (column == 0) tell(row, 0, 1);
      return;
    }
    f32 sum = squares(made);
    UNROLL for (u32 mask = 16; mask; mask /= 2) sum += shfl_xor(sum, mask);
    if (lane_id() == 0) tell(row, column / 128, sum);
  }
  // What the products of a row are to be multiplied with, or the squares of 128 elements.
  GPU_METHOD void tell(u32 row, u32 part, f32 x) const { ((f32*)(to + (size_t)height() * width))[part * height() + row] = x; }
};

// What the products of a row of x in order are multiplied with: it is told, or `parts` sums of squares are, of rows of k elements.
struct RowFactors {
  const u16* x;
  u32 parts, rows, k;
  f64 raise, eps;
  GPU_METHOD u32 height() const { return (rows + 7) / 8 * 8; }
  GPU_METHOD f32 told(u32 part, u32 row) const { return ((const f32*)(x + (size_t)height() * k))[part * height() + row]; }
  GPU_METHOD Vec<f32, 4> told4(u32 part, u32 row) const { return *(const Vec<f32, 4>*)((const f32*)(x + (size_t)height() * k) + part * height() + row); }
  GPU_METHOD f32 of(f32 squares) const { return (f32)raise * rms_factor(squares, k, (f32)eps); }
};

}  // namespace gpu
#endif
