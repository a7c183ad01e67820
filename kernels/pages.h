// Where a row of a step goes in a cache, whose sequences lie side by side or in pages of PAGE_SIZE positions.
#ifndef WICK_PAGES_H
#define WICK_PAGES_H
#include "gpu.h"
namespace gpu {

// Which sequence of the cache, or page, and which place in it; the row of cos and sin. A place below 0 is none: nothing is written.
struct RowPlace {
  size_t b;
  i64 slot, position;
};

// Sequences side by side, `t` rows each. A position is the place minus padding[b], but at least 0.
GPU_FN RowPlace place_of(size_t row, size_t t, size_t past, const i64* lengths, const i64* padding) {
  const size_t b = divide(row, t);
  const i64 slot = (lengths ? lengths[b] - (i64)t : (i64)past) + (i64)(row - b * t), position = slot - (padding ? padding[b] : 0);
  return RowPlace{b, slot, position > 0 ? position : 0};
}
// A row of sequence b in pages: table b has `width` of them. starts[b] is the row of cos and sin that position 0 has.
GPU_FN RowPlace in_page(const RowPlace& at, const i64* tables, u32 width, const i64* starts) {
  if (at.slot < 0) return at;
  const size_t page = (size_t)tables[at.b * width + (size_t)at.slot / PAGE_SIZE];
  return RowPlace{page, at.slot % PAGE_SIZE, at.slot + (starts ? starts[at.b] : 0)};
}

// Rows of sequences one behind the other: those of b from offsets[b] to offsets[b + 1], the first `singles` one row each.
struct PagedRows {
  const i64 *tables, *offsets;
  u32 sequences, singles, width;

  // The last rows of the lengths[b] positions that a sequence has.
  GPU_METHOD RowPlace place(u32 row, const i64* lengths, const i64* starts) const {
    u32 b = row;
    if (row >= singles) {
      // The last that begins before the row or with it.
      u32 end = sequences;
      b = singles;
      NO_UNROLL while (b + 1 < end) {
        const u32 middle = (b + end) / 2;
        if (offsets[middle] <= (i64)row) b = middle;
        else end = middle;
      }
    }
    const i64 left = row < singles ? 1 : offsets[b + 1] - (i64)row;
    return in_page(RowPlace{b, lengths[b] - left, 0}, tables, width, starts);
  }
};

}  // namespace gpu
#endif
