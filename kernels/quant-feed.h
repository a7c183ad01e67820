// Quantized weights as the left operand of a product (product-feed.h): stored bytes come to shared memory as whole vectors, and are
// decoded from there into slices. Each warp brings and decodes lines of its own, so that no other has to be waited for.
#ifndef WICK_QUANT_FEED_H
#define WICK_QUANT_FEED_H
#include "product-feed.h"
#include "quant.h"
namespace gpu {

// Four neighbouring weights: rounded once, or SPLIT in upper halves and what those leave.
template <class T, bool SPLIT> GPU_FN void put_four(T* to, T* rest, const f32 (&x)[4]) {
  if constexpr (sizeof(T) == 4) {
    *(Vec<f32, 4>*)to = Vec<f32, 4>{{x[0], x[1], x[2], x[3]}};
  } else {
    const u32 upper[2] = {pack2(T{}, x[0], x[1]), pack2(T{}, x[2], x[3])};
    *(u64*)to = (u64)upper[1] << 32 | upper[0];
    if constexpr (SPLIT) {
      f32 left[4];
      UNROLL for (int i = 0; i < 4; i++) left[i] = x[i] - f32_from_bits(i % 2 ? upper[i / 2] & 0xffff0000u : upper[i / 2] << 16);
      *(u64*)rest = (u64)pack2(T{}, left[2], left[3]) << 32 | pack2(T{}, left[0], left[1]);
    }
  }
}

// Weights `from` … `to` of every line of (lines, k); `from` is a multiple of a chunk.
struct Blocks {
  const u8* w;
  size_t lines;
  u32 k, from, to;
};

// LINES × BK elements at a time, from chunks of stored bytes that have PLACES in shared memory. Where copies run beside arithmetic, a
// slice is asked for while the one before it is multiplied, and its chunk PLACES - 1 chunks before.
template <class Q, class T, int LINES, int BK, int THREADS, int PLACES, bool WIDE, bool SPLIT_> struct QuantFeed {
  typedef tile_t<T> Tile;
  static constexpr bool KEPT = false, SPLIT = SPLIT_;
  static constexpr int PITCH = WIDE ? WIDE_ROW : swizzled_pitch<T>(BK), SIZE = LINES * PITCH;
  // Weights of a line in a slice and in a chunk; bytes and vectors of the latter, wherever they begin. Lines are an odd number of
  // vectors apart, so that words of eight lie in all banks.
  static constexpr u32 STEP = SPLIT ? BK / 2 : BK, CHUNK = Q::Elements < QUANT_NEAR && (!Tile::ASYNC || Q::Fine) ? QUANT_NEAR : QUANT_FAR, PER = CHUNK / STEP;
  static constexpr u32 BYTES = CHUNK / Q::Elements * Q::Bytes, VECTORS = (BYTES + 16 - Q::Align + 15) / 16, GAP = (VECTORS | 1) * 4;
  static constexpr u32 PLACE_WORDS = LINES * GAP, OWN = LINES / (THREADS / 32), ROUNDS = (OWN * VECTORS + 31) / 32;
  static_assert(OWN == 16, "a lane decodes two lines");
  // Vectors on their way through registers, unless they are too many.
  static constexpr bool HOLDS = ROUNDS <= 8;
  typedef Bytes16 Held[HOLDS ? ROUNDS : 1];

  const u8* w;
  u32* raw;
  size_t row_bytes, start, first, last;  // `start`: where the range begins in a line; `first`, `last`: lines
  u32 bytes, depth;                      // of the range
  u32 skews[2], places[2];               // of the two lines that a lane decodes: where they begin, modulo 2^32, and where their weights go

  GPU_METHOD QuantFeed(const Blocks& b, u32* stored, size_t first_line) : w(b.w) {
    const u32 warp = tid_x() / 32;
    row_bytes = (size_t)(b.k / Q::Elements) * Q::Bytes;
    start = (size_t)(b.from / Q::Elements) * Q::Bytes;
    depth = b.to - b.from;
    bytes = depth / Q::Elements * Q::Bytes;
    first = first_line + warp * OWN;
    last = b.lines - 1;
    raw = stored + warp * OWN * GAP;
    UNROLL for (int h = 0; h < 2; h++) {
      skews[h] = (u32)line_start(own_line(h));
      places[h] = place(warp * OWN + own_line(h), 4 * (lane_id() % 4));
    }
    if constexpr (Tile::ASYNC) UNROLL for (u32 c = 0; c < PLACES - 1; c++) send(c);
  }

  // Lanes that store together have lines whose pieces lie in different banks.
  GPU_METHOD u32 own_line(u32 h) const { return 8 * h + lane_id() / 4 % 4 * 2 + lane_id() / 16; }
  GPU_FN u32 place(u32 line, u32 at) {
    constexpr u32 V = 16 / sizeof(T);
    return Tile::template place<PITCH>(line, at / V) + at % V;
  }
  // The same `by` elements further along the line, a multiple of two pieces: mixed rows have them in other places.
  GPU_FN u32 further(u32 place, u32 by) { return Tile::ASYNC ? place ^ by : place + by; }
  // Past the last line it is taken again.
  GPU_METHOD size_t line_start(u32 line) const { return (first + line < last ? first + line : last) * row_bytes + start; }
  GPU_FN u32 skew(u32 at) { return Q::Align == 16 ? 0 : at & 15u; }
  GPU_METHOD u32 count(u32 c) const { return bytes - c * BYTES < BYTES ? bytes - c * BYTES : BYTES; }
  GPU_METHOD u32* place_of(u32 c) const { return raw + c % PLACES * PLACE_WORDS; }

  // take(round, to, from, wanted) for the vectors of chunk c that this lane moves.
  template <class Take> GPU_METHOD void each_vector(u32 c, Take take) const {
    UNROLL for (u32 r = 0; r < ROUNDS; r++) {
      const u32 i = lane_id() + 32 * r, line = i / VECTORS, v = i % VECTORS;
      const size_t at = line_start(line) + c * BYTES;
      const bool wanted = i < OWN * VECTORS && 16 * v < skew((u32)at) + count(c);
      take(r, place_of(c) + line * GAP + 4 * v, w + (at - skew((u32)at)) + 16 * v, wanted);
    }
  }
  GPU_METHOD void send(u32 c) const {
    if (c * CHUNK < depth) each_vector(c, [](u32, u32* to, const u8* from, bool wanted) { copy16_async(to, from, wanted); });
  }

  // Parts FIRST … FIRST + COUNT - 1 of a run of groups, to element `at` of a line and on.
  template <int FIRST, int COUNT> GPU_METHOD void put_parts(T* slice, u32 line_place, u32 at, const Staged<Q::Align>& block, u32 run, bool there) const {
    typename Q::Frag f;
    Q::fragment(block, run, lane_id() % 4, f);
    UNROLL for (int p = 0; p < COUNT; p++)
      UNROLL for (int half = 0; half < 2; half++) {
        f32 x[4];
        const int h = Q::Halves == 1 ? 0 : half;
        scaled_bytes<Q::HasMin>(f.q[FIRST + p][half], there ? f.scale[h][FIRST + p] : 0.0f, Q::HasMin && there ? f.min[h][FIRST + p] : 0.0f, x);
        const u32 to = at + 32 * p + 16 * half;
        put_four<T, SPLIT>(slice + further(line_place, to), slice + further(line_place, SPLIT ? STEP + to : 0), x);
      }
  }
  // Of a run longer than a slice, the parts from part `first` on.
  template <int FIRST> GPU_METHOD void put_some(T* slice, u32 line_place, const Staged<Q::Align>& block, u32 run, u32 first) const {
    constexpr int COUNT = STEP / 32;
    if constexpr (FIRST < Q::Parts) {
      if (first == FIRST) put_parts<FIRST, COUNT>(slice, line_place, 0, block, run, true);
      put_some<FIRST + COUNT>(slice, line_place, block, run, first);
    }
  }
  // The weights from k0 on, from stored bytes that this warp sees.
  GPU_METHOD void decode(T* slice, u32 k0) const {
    constexpr u32 RUN = 32 * Q::Parts, PER_BLOCK = Q::Elements / RUN;
    const u32 c = k0 / CHUNK;
    UNROLL for (u32 h = 0; h < 2; h++) {
      const Staged<Q::Align> chunk{place_of(c) + own_line(h) * GAP, skew(skews[h] + c * BYTES)};
      UNROLL for (u32 g = 0; g < (STEP < RUN ? 1 : STEP / RUN); g++) {
        // Groups past the end are zeros under the slice's first.
        const bool there = Q::Elements > 32 || k0 + g * RUN < depth;
        const u32 run = k0 % CHUNK / RUN + (there ? g : 0);
        const Staged<Q::Align> block{chunk.words, chunk.at + run / PER_BLOCK * Q::Bytes};
        if constexpr (STEP >= RUN) put_parts<0, Q::Parts>(slice, places[h], g * RUN, block, run % PER_BLOCK, there);
        else put_some<0>(slice, places[h], block, run % PER_BLOCK, k0 % RUN / 32);
      }
    }
  }

  GPU_METHOD void copy(T*, u32 k0) const {
    const u32 s = k0 / BK - 1;
    if (k0 && s % PER == 0) send(s / PER + PLACES - 1);
  }
  GPU_METHOD void land(T* slice, u32 k0) const {
    wave_sync();
    decode(slice, k0 / BK * STEP);
  }
  template <bool> GPU_METHOD void hold(Held& held, u32 k0) const {
    if (HOLDS && k0 / BK % PER == 0)
      each_vector(k0 / BK / PER, [&](u32 r, u32*, const u8* from, bool wanted) { held[HOLDS ? r : 0] = wanted ? *(const Bytes16*)from : Bytes16{}; });
  }
  template <bool> GPU_METHOD void put(T* slice, Held& held, u32 k0) const {
    if (k0 / BK % PER == 0) {
      each_vector(k0 / BK / PER, [&](u32 r, u32* to, const u8* from, bool wanted) {
        if (wanted) *(Bytes16*)to = HOLDS ? held[HOLDS ? r : 0] : *(const Bytes16*)from;
      });
      wave_sync();
    }
    decode(slice, k0 / BK * STEP);
  }
};

}  // namespace gpu
#endif
