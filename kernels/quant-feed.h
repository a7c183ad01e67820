// Quantized weights as the left operand of a product (product-feed.h): stored bytes come to shared memory as whole vectors, and are
// decoded from there into slices. Each warp brings and decodes lines of its own, so that no other has to be waited for.
#ifndef WICK_QUANT_FEED_H
#define WICK_QUANT_FEED_H
#include "product-feed.h"
#include "quant.h"
namespace gpu {

// Where four neighbouring weights go: rounded once, or SPLIT in upper halves and, HALF elements further, what those leave.
template <class T, bool SPLIT, int HALF> GPU_FN void put_four(T* to, T* rest, const f32 (&x)[4]) {
  if constexpr (sizeof(T) == 4) {
    *(Vec<f32, 4>*)to = Vec<f32, 4>{{x[0], x[1], x[2], x[3]}};
  } else {
    const Vec<u32, 2> upper{{pack2(T{}, x[0], x[1]), pack2(T{}, x[2], x[3])}};
    *(Vec<u32, 2>*)to = upper;
    if constexpr (SPLIT) {
      f32 left[4];
      UNROLL for (int i = 0; i < 4; i++) left[i] = x[i] - f32_from_bits(i % 2 ? upper.v[i / 2] & 0xffff0000u : upper.v[i / 2] << 16);
      *(Vec<u32, 2>*)rest = Vec<u32, 2>{{pack2(T{}, left[0], left[1]), pack2(T{}, left[2], left[3])}};
    }
  }
}

// Weights (lines, k) from weight `from` of every line on; both are multiples of whole chunks or ends of lines.
template <class T> struct Blocks {
  const u8* w;
  size_t lines;
  u32 k, from, to;
  u32* raw;  // shared memory for stored bytes
  const u16* table;
};

// LINES × BK elements at a time. Chunks of stored bytes have PLACES; where copies run beside arithmetic, a slice is asked for AHEAD
// slices before it is decoded, and its chunk PLACES - 1 chunks before.
template <class Q, class T, int LINES, int BK, int THREADS, int AHEAD, int PLACES, bool WIDE, bool SPLIT_> struct QuantFeed {
  typedef tile_t<T> Tile;
  typedef Blocks<T> Source;
  static constexpr bool KEPT = false, SPLIT = SPLIT_;
  static constexpr int PITCH = WIDE ? WIDE_ROW : swizzled_pitch<T>(BK), SIZE = LINES * PITCH;
  // Weights of a line in a slice and in a chunk; bytes and vectors of the latter, wherever they begin. Lines are an odd number of
  // vectors apart, so that words of eight lie in all banks.
  static constexpr u32 STEP = SPLIT ? BK / 2 : BK, CHUNK = Tile::ASYNC || Q::Elements > QUANT_NEAR ? QUANT_FAR : QUANT_NEAR, PER = CHUNK / STEP;
  static constexpr u32 BYTES = CHUNK / Q::Elements * Q::Bytes, VECTORS = (BYTES + 16 - Q::Align + 15) / 16, GAP = (VECTORS | 1) * 4;
  static constexpr u32 PLACE_WORDS = LINES * GAP, OWN = LINES / (THREADS / 32), ROUNDS = (OWN * VECTORS + 31) / 32;
  static_assert(OWN == 16, "a lane decodes two lines");
  typedef Bytes16 Held[ROUNDS];

  const u8* w;
  u32* raw;
  const u16* table;
  size_t row_bytes, start, first, last;  // `start`: where the range begins in a line; `first`, `last`: lines
  u32 bytes, depth;                      // of the range

  GPU_METHOD QuantFeed(const Source& s, size_t first_line) : w(s.w), table(s.table) {
    row_bytes = (size_t)(s.k / Q::Elements) * Q::Bytes;
    start = (size_t)(s.from / Q::Elements) * Q::Bytes;
    depth = s.to - s.from;
    bytes = depth / Q::Elements * Q::Bytes;
    first = first_line + tid_x() / 32 * OWN;
    last = s.lines - 1;
    raw = s.raw + tid_x() / 32 * OWN * GAP;
    if constexpr (Tile::ASYNC) UNROLL for (u32 c = 0; c < PLACES - 1; c++) send(c);
  }

  // Past the last line it is taken again.
  GPU_METHOD size_t line_start(u32 line) const { return (first + line < last ? first + line : last) * row_bytes + start; }
  GPU_FN u32 skew(size_t at) { return Q::Align == 16 ? 0 : (u32)at & 15u; }
  // take(to, from, wanted) for the vectors of chunk c that this lane moves.
  template <class Take> GPU_METHOD void each_vector(u32 c, Take take) const {
    const u32 begin = c * BYTES, count = bytes - begin < BYTES ? bytes - begin : BYTES;
    UNROLL for (u32 r = 0; r < ROUNDS; r++) {
      const u32 i = lane_id() + 32 * r, line = i / VECTORS, v = i % VECTORS;
      const size_t at = line_start(line) + begin;
      const bool wanted = i < OWN * VECTORS && 16 * v < skew(at) + count;
      take(r, raw + c % PLACES * PLACE_WORDS + line * GAP + 4 * v, w + (at - skew(at)) + 16 * v, wanted);
    }
  }
  GPU_METHOD void send(u32 c) const {
    if (c * CHUNK < depth) each_vector(c, [](u32, u32* to, const u8* from, bool wanted) { copy16_async(to, from, wanted); });
  }

  // Parts FIRST … FIRST + COUNT - 1 of a run of groups, to element `at` of a row and on.
  template <int FIRST, int COUNT> GPU_METHOD void put_parts(T* row, u32 line, u32 at, const Staged<Q::Align>& block, u32 run, bool there) const {
    const u32 t = lane_id() % 4;
    typename Q::Frag f;
    Q::fragment(block, run, t, table, f);
    UNROLL for (int p = 0; p < COUNT; p++)
      UNROLL for (int half = 0; half < 2; half++) {
        f32 x[4];
        const int h = Q::Halves == 1 ? 0 : half;
        scaled_bytes<Q::HasMin>(f.q[FIRST + p][half], there ? f.scale[h][FIRST + p] : 0.0f, Q::HasMin && there ? f.min[h][FIRST + p] : 0.0f, x);
        put_four<T, SPLIT, STEP>(row + place(line, at + 32 * p + 16 * half + 4 * t), row + (SPLIT ? place(line, STEP + at + 32 * p + 16 * half + 4 * t) : 0), x);
      }
  }
  GPU_FN u32 place(u32 line, u32 at) {
    constexpr u32 V = 16 / sizeof(T);
    return Tile::template place<PITCH>(line, at / V) + at % V;
  }
  // The weights from k0 on, from stored bytes that this warp sees.
  GPU_METHOD void decode(T* slice, u32 k0) const {
    constexpr u32 RUN = 32 * Q::Parts, PER_BLOCK = Q::Elements / RUN;
    const u32 c = k0 / CHUNK, j = lane_id() / 4;
    T* const rows = slice + tid_x() / 32 * OWN * PITCH;
    UNROLL for (u32 h = 0; h < 2; h++) {
      // Lanes that store together have lines whose pieces lie in different banks.
      const u32 line = 8 * h + j % 4 * 2 + j / 4, at = skew(line_start(line) + c * BYTES);
      const u32* const from = raw + c % PLACES * PLACE_WORDS + line * GAP;
      UNROLL for (u32 g = 0; g < (STEP < RUN ? 1 : STEP / RUN); g++) {
        // Groups past the end are zeros under the slice's first.
        const bool there = Q::Elements > 32 || k0 + g * RUN < depth;
        const u32 run = k0 % CHUNK / RUN + (there ? g : 0);
        const Staged<Q::Align> block{from, at + run / PER_BLOCK * Q::Bytes};
        // Of a run longer than a slice, only the parts in it.
        if constexpr (STEP >= RUN) put_parts<0, Q::Parts>(rows, line, g * RUN, block, run % PER_BLOCK, there);
        else UNROLL for (u32 p = 0; p < RUN; p += STEP)
          if (k0 % RUN == p) put_parts_from(rows, line, block, run % PER_BLOCK, p);
      }
    }
  }
  GPU_METHOD void put_parts_from(T* rows, u32 line, const Staged<Q::Align>& block, u32 run, u32 p) const {
    constexpr int COUNT = STEP / 32 < Q::Parts ? STEP / 32 : Q::Parts;
    if (p == 0) put_parts<0, COUNT>(rows, line, 0, block, run, true);
    if constexpr (COUNT < Q::Parts)
      if (p == 32 * COUNT) put_parts<COUNT, COUNT>(rows, line, 0, block, run, true);
    if constexpr (2 * COUNT < Q::Parts)
      if (p == 64 * COUNT) put_parts<2 * COUNT, COUNT>(rows, line, 0, block, run, true);
    if constexpr (3 * COUNT < Q::Parts)
      if (p == 96 * COUNT) put_parts<3 * COUNT, COUNT>(rows, line, 0, block, run, true);
  }

  GPU_METHOD void copy(T*, u32 k0) const {
    const u32 s = k0 / BK - AHEAD;
    if (k0 / BK >= AHEAD && s % PER == 0) send(s / PER + PLACES - 1);
  }
  GPU_METHOD void land(T* slice, u32 k0) const {
    wave_sync();
    decode(slice, k0 / BK * STEP);
  }
  GPU_METHOD void hold(Held& held, u32 k0) const {
    if (k0 / BK % PER == 0)
      each_vector(k0 / BK / PER, [&](u32 r, u32*, const u8* from, bool wanted) { held[r] = wanted ? *(const Bytes16*)from : Bytes16{}; });
  }
  GPU_METHOD void put(T* slice, Held& held, u32 k0) const {
    if (k0 / BK % PER == 0) {
      each_vector(k0 / BK / PER, [&](u32 r, u32* to, const u8*, bool wanted) {
        if (wanted) *(Bytes16*)to = held[r];
      });
      wave_sync();
    }
    decode(slice, k0 / BK * STEP);
  }
};

}  // namespace gpu
#endif
