// Where the operands of a product come from: what brings a block's lines of one, slice by slice along k, into shared memory.
//
// A feed has
// - Source: what a kernel knows of the operand; a feed is made of it and of the first of its LINES lines;
// - SIZE: elements of shared memory per slice, at whose front the lines lie as the unit reads them: rows of PITCH along k, or,
//   where KEPT, side by side;
// - SPLIT: whether a row is the upper halves of so many floats and then what they leave (Terms);
// - copy(slice, k0), which begins to bring a slice by copies that run beside arithmetic, and land(slice, k0), called when this
//   thread's copies have arrived and before the block's barrier; or
// - Held, hold<LAST>(held, k0) and put<LAST>(slice, held, k0): the same by way of registers, where the device has no such copies;
//   only slices that are LAST may reach beyond the depth.
#ifndef WICK_PRODUCT_FEED_H
#define WICK_PRODUCT_FEED_H
#include "tile.h"
namespace gpu {

// How lines lie outside: along k, or side by side.
enum Lie { ALONG_K, SIDE_BY_SIDE };

// Which 16 elements along a slice of the left operand are multiplied with which of the right: the same; of operands that are SPLIT in
// upper and lower halves all but lower with lower, which f32's error is made of.
template <bool SPLIT, int BK> struct Terms {
  static constexpr int STRIPS = BK / 16, HALF = STRIPS / 2, COUNT = SPLIT ? 3 * HALF : STRIPS;
  GPU_FN constexpr int a(int i) { return 16 * (SPLIT && i >= HALF ? i - HALF : i); }
  GPU_FN constexpr int b(int i) { return 16 * (SPLIT && i >= 2 * HALF ? i - 2 * HALF : i); }
};

// The rows of shared memory that warpgroups read (gpu/warpgroup.h): 64 halves.
constexpr int WIDE_ROW = 64;

// `lines` × `depth` elements, each `step` from the next line's or, side by side, from the next k's; the others are neighbours.
// Pieces of 8 are whole: `at` and `step` are multiples of them, and so is the depth along k; of lines side by side there is room for whole pieces.
template <class T> struct Operand {
  const T* at;
  size_t lines, depth;
  i64 step;
  // Along k.
  GPU_METHOD const T* line(size_t i) const { return at + (i64)i * step; }
};

// Of 8 pieces of 8 halves: what piece r is when they are turned, element r of each.
template <class Piece> GPU_FN Piece turned(const Piece (&x)[8], int r) {
  Piece y;
  UNROLL for (int w = 0; w < 4; w++) {
    const u32 low = x[2 * w][r / 2], high = x[2 * w + 1][r / 2];
    y[w] = r % 2 ? (low >> 16) | (high & 0xffff0000u) : (low & 0xffffu) | high << 16;
  }
  return y;
}

// Of two pieces of 8 halves: halves r of both, side by side.
template <class Piece> GPU_FN u32 paired(const Piece (&x)[2], int r) {
  const u32 low = x[0][r / 2], high = x[1][r / 2];
  return r % 2 ? (low >> 16) | (high & 0xffff0000u) : (low & 0xffffu) | high << 16;
}

// Of what lies in memory: LINES × BK at a time, by THREADS threads. WIDE: in rows for warpgroups.
template <class T, int LINES, int BK, Lie LIE, int THREADS, bool WIDE> struct DenseFeed {
  typedef tile_t<T> Tile;
  typedef Operand<T> Source;
  static constexpr bool SPLIT = false;
  static constexpr int V = 16 / sizeof(T);
  // Side by side as they are, for a unit that can transpose; turned on the way for the others.
  static constexpr bool KEPT = LIE == SIDE_BY_SIDE && Tile::ASYNC, TURNED = LIE == SIDE_BY_SIDE && !KEPT;
  static constexpr int PITCH = WIDE ? WIDE_ROW : swizzled_pitch<T>(KEPT ? LINES : BK), SIZE = WIDE ? LINES * BK : (KEPT ? BK : LINES) * PITCH;
  // What a thread moves at once is one piece, or two of neighbouring k, which go into shared memory as pairs of halves.
  static constexpr int GROUP = TURNED ? 2 : 1, ITEMS = LINES * BK / V / GROUP, ROUNDS = (ITEMS + THREADS - 1) / THREADS;
  // From one round to the next a thread goes so many lines on, or so many k.
  static constexpr int ON = TURNED ? THREADS / (BK / GROUP) * V : LIE == ALONG_K ? THREADS / (BK / V) : THREADS / (LINES / V);
  static_assert(ON % 8 == 0, "rounds keep their place among eight rows");
  typedef Bytes16 Held[ROUNDS][GROUP];

  const T* start;
  const T* anywhere;
  i64 round_step, k_step;
  u32 depth;
  // Which rounds have their lines inside of the operand.
  u32 there;
  // Where the rounds' items lie in a slice of the operand, lines beyond its edge in the last ones: their results go nowhere.
  i64 from[ROUNDS];

  GPU_METHOD DenseFeed(const Source& o, size_t first) : anywhere(o.at), depth((u32)o.depth) {
    k_step = LIE == ALONG_K ? 1 : o.step;
    start = o.at + (i64)(first + line_of(0)) * (LIE == ALONG_K ? o.step : 1) + (i64)k_of(0) * k_step;
    round_step = ON * o.step;
    there = 0;
    UNROLL for (int round = 0; round < ROUNDS; round++)
      if (first + line_of(round) < o.lines) there |= 1u << round;
    const size_t last = LIE == ALONG_K ? o.lines - 1 : (o.lines - 1) / V * V;
    UNROLL for (int round = 0; round < ROUNDS; round++) {
      const size_t line = first + line_of(round);
      from[round] = (i64)(line < last ? line : last) * (LIE == ALONG_K ? o.step : 1) + (i64)k_of(round) * k_step;
    }
  }
  // Of an item: its first line and its first k, inside of the slice.
  GPU_METHOD u32 line_of(int round) const {
    const u32 i = tid_x();
    return TURNED ? i / (BK / GROUP) * V + round * ON : LIE == ALONG_K ? i / (BK / V) + round * ON : i % (LINES / V) * V;
  }
  GPU_METHOD u32 k_of(int round) const {
    const u32 i = tid_x();
    // Neighbouring threads have neighbouring pairs, which are written to different banks.
    return TURNED ? i % (BK / GROUP) * GROUP : LIE == ALONG_K ? i % (BK / V) * V : i / (LINES / V) + round * ON;
  }
  GPU_METHOD bool mine(int round) const { return ITEMS % THREADS == 0 || tid_x() + round * THREADS < ITEMS; }
  GPU_METHOD bool inside(int round, u32 k0, int g) const { return (there >> round & 1) && k0 + k_of(round) + g < depth; }
  // Where an item lies in a slice; of pairs those of line r.
  GPU_METHOD u32 place(int round, int r) const {
    if constexpr (KEPT && WIDE)
      return line_of(round) / WIDE_ROW * (BK * WIDE_ROW) + Tile::template place<WIDE_ROW>(k_of(round), line_of(round) % WIDE_ROW / V);
    else if constexpr (KEPT) return Tile::template place<PITCH>(k_of(round), line_of(round) / V);
    else return Tile::template place<PITCH>(line_of(round) + r, k_of(round) / V) + k_of(round) % V;
  }

  GPU_METHOD void copy(T* slice, u32 k0) const {
    const T* at = start + (i64)k0 * k_step;
    T* const to = slice + place(0, 0);
    UNROLL for (int round = 0; round < ROUNDS; round++) {
      const bool valid = inside(round, k0, 0);
      if (mine(round)) Tile::copy(to + round * ON * PITCH, valid ? at : anywhere, valid, true);
      at += round_step;
    }
  }
  GPU_METHOD void land(T*, u32) const {}
  // Without a branch, behind which compilers would let these loads wait for those before them: what lies beyond the depth is
  // read from anywhere, and is zero when it is put.
  template <bool LAST> GPU_METHOD void hold(Held& held, u32 k0) const {
    const T* at = anywhere + (i64)k0 * k_step;
    UNROLL for (int round = 0; round < ROUNDS; round++)
      if (mine(round)) UNROLL for (int g = 0; g < GROUP; g++)
        held[round][g] = *(const Bytes16*)(!LAST || k0 + k_of(round) + g < depth ? at + from[round] + g * k_step : anywhere);
  }
  template <bool LAST> GPU_METHOD void put(T* slice, Held& held, u32 k0) const {
    if constexpr (LAST)
      UNROLL for (int round = 0; round < ROUNDS; round++)
        UNROLL for (int g = 0; g < GROUP; g++)
          if (k0 + k_of(round) + g >= depth) held[round][g] = Bytes16{};
    UNROLL for (int round = 0; round < ROUNDS; round++) {
      if (!mine(round)) continue;
      if constexpr (TURNED) UNROLL for (int r = 0; r < V; r++) *(u32*)(slice + place(round, r)) = paired(held[round], r);
      else *(Bytes16*)(slice + place(round, 0)) = held[round][0];
    }
  }
};

// Lines along k that a list names: line i is line order[i] / share of what lies at `at`.
template <class T> struct Gathered {
  const T* at;
  size_t lines, depth;
  i64 step;
  const u32* order;
  u32 share;
  GPU_METHOD const T* line(size_t i) const { return at + (i64)(order[i] / share) * step; }
};
// SPLIT: whether lines are upper and lower halves in turn.
template <class T, int LINES, int BK, int THREADS, bool WIDE, bool SPLIT_> struct GatheredFeed : DenseFeed<T, LINES, BK, ALONG_K, THREADS, WIDE> {
  typedef DenseFeed<T, LINES, BK, ALONG_K, THREADS, WIDE> Dense;
  typedef Gathered<T> Source;
  static constexpr bool SPLIT = SPLIT_;

  GPU_METHOD GatheredFeed(const Source& o, size_t first) : Dense(Operand<T>{o.at, o.lines, o.depth, o.step}, first) {
    UNROLL for (int round = 0; round < Dense::ROUNDS; round++) {
      const size_t line = first + this->line_of(round), last = o.lines - 1;
      this->from[round] = (o.line(line < last ? line : last) - o.at) + this->k_of(round);
    }
  }
  GPU_METHOD void copy(T* slice, u32 k0) const {
    T* const to = slice + this->place(0, 0);
    UNROLL for (int round = 0; round < Dense::ROUNDS; round++) {
      const bool valid = this->inside(round, k0, 0);
      if (this->mine(round)) Dense::Tile::copy(to + round * Dense::ON * Dense::PITCH, this->anywhere + (valid ? this->from[round] + k0 : 0), valid, true);
    }
  }
};

}  // namespace gpu
#endif
