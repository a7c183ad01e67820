// The product of few rows with quantized weights on matrix units: with bytes on both sides these multiply in a single instruction
// what takes 32 of dot4. kernels/quant-matvec.hip picks where.
#ifndef WICK_QUANT_TILE_H
#define WICK_QUANT_TILE_H
#include "expert-slot.h"
#include "gpu/uniform.h"
#include "quant-lanes.h"

#if GPU_BYTE_TILES
namespace gpu {

// y (batch, n) = f(norm(x) (batch, k) · W (n, k)ᵀ + bias) + residual for batch ≤ NB; arguments as in linear.hip, x as floats of
// `dtype`. `splits` warps share 16 rows of W. A warp takes CHUNK weights of each row at a time by way of its own shared memory;
// while it multiplies one chunk, the next ones are on their way to its other Places, the first of them before the kernel that
// makes x has ended. Of x, `segment` elements of each row are in shared memory at a time: all, unless they are too many. Rows with
// pieces in several matrices (expert-slot.h) count as if each piece filled its last chunk. Traffic: weights once; x once per block,
// from the cache.
template <class Q, int NB, int P> struct TileVec {
  typedef TileRows<Q, NB, P> Unit;
  typedef typename Unit::Rows Rows;
  static constexpr u32 CHUNK = TILE_CHUNK, ChunkBytes = CHUNK / Q::Elements * Q::Bytes;
  // Vectors that a row's chunk lies in at most. Rows are an odd number of vectors apart, so that eight hit all banks.
  static constexpr u32 Vectors = (ChunkBytes + 16 - Q::Align + 15) / 16, Pitch = (Vectors | 1u) * 4, StageWords = 16 * Pitch;
  static constexpr u32 Fit = TILE_STAGES / 4 / StageWords, Places = Fit < 2 ? 2 : Fit > 4 ? 4 : Fit;
  static constexpr int X = Unit::X, Sums = Unit::Sums;
  typedef Outputs<16, NB> Out;

  // Rounds the elements [from, from + count) of each row of x, with a norm x · scale · alpha, in the rows that `wanted` names: four
  // lanes to a group of 32. Returns this lane's part of (x · scale)², of row lane / 4 % rows. A lane's next group is on its
  // way while it rounds one.
  template <class Source>
  GPU_FN f32 round_rows(const Rows& to, const Source& source, u32 k, u32 from, u32 count, const void* x, const void* alpha, u32 dtype, f32 scale, u32 wanted) {
    struct Item {
      typename Unit::Fetched x, weight;
      f32 factor;
    };
    const u32 per_slot = (k + CHUNK - 1) / CHUNK * (CHUNK / 32);
    const u32 t = lane_id() % 4, b = lane_id() / 4 % to.rows, row = b < to.batch ? b : 0;
    const u32 per_warp = 8 / to.rows, step = bdim_x() / 32 * per_warp, groups = count / 32, own = lane_id() / 4 / to.rows;
    const bool stored = b < to.batch && (wanted >> b & 1u);
    f32 square = 0;
    const auto fetch_one = [&](Item& item, u32 wanted_group) {
      const u32 group = wanted_group + own < groups ? wanted_group + own : 0;
      if constexpr (Source::SUMS) {
        const u32 slot = (from / 32 + group) / per_slot, piece = from / 32 + group - slot * per_slot;
        item.x.load(x, Unit::place((size_t)slot * (k / 32) + (piece * 32 < k ? piece : 0), t), dtype);
        item.factor = source.factor(slot);
      } else item.x.load(x, Unit::place((size_t)row * (k / 32) + from / 32 + group, t), dtype);
      if (alpha) item.weight.load(alpha, Unit::place(from / 32 + group, t), dtype);
    };
    const auto take_one = [&](const Item& item, u32 group) {
      f32 values[8];
      item.x.get(values, dtype);
      if constexpr (Source::SUMS) UNROLL for (int j = 0; j < 8; j++) values[j] *= item.factor;
      if (alpha) {
        f32 factor[8];
        item.weight.get(factor, dtype);
        UNROLL for (int j = 0; j < 8; j++) {
          values[j] *= scale;
          square += group + own < groups ? values[j] * values[j] : 0.0f;
          values[j] *= factor[j];
        }
      }
      ScaleSum s;
      const Planes<P> q = round_group<P>(values, s);
      if (stored && group + own < groups) to.put(group + own, b, q, s);
    };
    // One place for all rounds: code that is written out for several is longer than what it saves is worth.
    const u32 begin = tid_x() / 32 * per_warp;
    Item item;
    fetch_one(item, begin);
    NO_UNROLL for (u32 first = begin; first < groups; first += step) {
      const bool more = first + step < groups;
      Item next;
      if (more) fetch_one(next, first + step);
      take_one(item, first);
      if (more) item = next;
    }
    return square;
  }
  // The sum of all warps' squares of row lane % rows.
  GPU_FN f32 sum_of(const f32* squares, u32 rows) {
    f32 sum = 0;
    for (u32 i = lane_id(); i < bdim_x() / 32 * rows; i += 32) sum += squares[i];
    UNROLL for (u32 mask = 16; mask; mask /= 2) {
      const f32 other = shfl_xor(sum, mask);
      if (mask >= rows) sum += other;
    }
    return sum;
  }
  // The elements [from, from + count) of x in shared memory, with a norm all, and its squares. Returns which rows were made small, as
  // their squares overflow: all threads see the same. A sum of squares that no warp has more of than the limit is finite.
  template <class Source>
  GPU_FN u32 prepare(const Rows& to, const Source& source, f32* squares, u32 k, u32 from, u32 count, const void* x, const void* alpha, u32 dtype) {
    const f32 limit = f32_from_bits(0x7c800000u);  // 2^122
    u32 large = 0;
    NO_UNROLL for (u32 again = 0;; again++) {
      f32 own = round_rows(to, source, k, from, count, x, alpha, dtype, again ? small_scale() : 1.0f, again ? large : ~0u);
      if (alpha) {
        UNROLL for (u32 mask = 1; mask < 32; mask *= 2) {
          const f32 other = shfl_xor(own, mask);
          if (mask < 4 || mask >= 4 * to.rows) own += other;
        }
        const u32 b = lane_id() / 4;
        if (lane_id() % 4 == 0 && b < to.rows && (!again || large >> b & 1u)) squares[tid_x() / 32 * to.rows + b] = own;
      }
      barrier();
      if (!alpha || again) return large;
      f32 most = 0;
      for (u32 i = lane_id(); i < bdim_x() / 32 * to.rows; i += 32) most = squares[i] > most ? squares[i] : most;
      if (!warp_most(most > limit ? 1u : 0u)) return 0;
      large = sum_of(squares, to.rows) > limit ? 1u << lane_id() % to.rows : 0;
      UNROLL for (u32 mask = 1; mask < 8; mask *= 2) large |= shfl_xor(large, mask);
      barrier();
    }
  }

  template <class Source>
  GPU_FN void run(u32* shared, Signal* signals, const Out& out, const Source& source, u32 k, const u8* w, const void* x, const void* alpha, f32 eps, u32 splits,
                  u32 segment) {
    const u32 warps = bdim_x() / 32, warp = uniform(tid_x() / 32), lane = lane_id(), t = lane % 4;
    // splits: a power of two up to 16
    const u32 shift = (splits > 1) + (splits > 2) + (splits > 4) + (splits > 8), part = warp & (splits - 1), own = warp >> shift, per_block = warps >> shift;
    const u32 own_chunks = (k + CHUNK - 1) / CHUNK, chunks = source.slots * own_chunks, whole = Source::SUMS ? chunks * CHUNK : k;
    const u32 rounds = (chunks + splits - 1) >> shift, step = out.share.blocks * per_block;
    const u32 groups = out.groups(), row_bytes = k / Q::Elements * Q::Bytes;
    // Shared memory: x, then weights of each warp, then what warps tell each other.
    const u32 room = out.batch > 4 ? 8 : out.batch > 2 ? 4 : out.batch;
    const Rows rows(shared, out.batch, room, segment);
    u32* all_weights = shared + Unit::words(room, segment);
    u32* weights = all_weights + warp * Places * StageWords;
    f32* totals = (f32*)(all_weights + warps * Places * StageWords);
    f32* squares = totals + warps * 32 * Sums;

    // Which group comes, which of its chunks, and to which place, used an even or odd number of times before.
    struct Cursor {
      u32 group, round, place, phase;
      GPU_METHOD void advance(u32 rounds, u32 step) {
        place = place + 1 == Places ? 0 : place + 1;
        phase ^= place == 0;
        round = round + 1 == rounds ? 0 : round + 1;
        group += round ? 0 : step;
      }
    };
    // A chunk of a row: in whose piece, as the how-manieth of it, and from which row of W on.
    struct Piece {
      u32 first, chunk;
      bool exists;
    };
    const auto piece_of = [&](const Cursor& c) {
      const u32 chunk = c.round * splits + part, slot = Source::SUMS ? chunk / own_chunks : 0;
      return Piece{Source::SUMS ? uniform(source.first(slot)) : 0, chunk - slot * own_chunks, c.group < groups && chunk < chunks && source.exists(slot)};
    };
    const auto from = [&](const Cursor& c, const Piece& p, u32 r) { return (size_t)(p.first + out.row(c.group, r)) * row_bytes + p.chunk * ChunkBytes; };
    const auto skew_of = [](size_t begin) { return Q::Align == 16 ? 0 : (u32)begin & 15u; };
    Signal* own_signals = signals + warp * Places;
    if (BULK_COPIES) {
      if (one_lane()) UNROLL for (u32 i = 0; i < Places; i++) make_signal(own_signals + i, 1);
      signals_made();
      wave_sync();
    }
    Cursor sent{out.share.block * per_block + own, 0, 0, 0};
    const auto send = [&] {
      const Piece piece = piece_of(sent);
      const bool wanted = piece.exists;
      const u32 left = k - piece.chunk * CHUNK, count = (left < CHUNK ? left : CHUNK) / Q::Elements * Q::Bytes;
      u32* place = weights + sent.place * StageWords;
      if (BULK_COPIES) {
        // By one lane, where rows lie evenly; else a row to each of sixteen.
        Signal* const signal = own_signals + sent.place;
        if (!wanted) {
          if (lane == 0) expect_bytes(signal, 0);
        } else if (ChunkBytes % 16 == 0 && row_bytes % 16 == 0 && (sent.group + 1) * out.per_group() <= out.columns) {
          const u8* const half[2] = {w + from(sent, piece, 0), w + from(sent, piece, 8)};
          if (one_lane()) {
            expect_bytes(signal, 16 * count);
            UNROLL for (u32 r = 0; r < 16; r++) copy_bulk(place + r * Pitch, half[r / 8] + r % 8 * row_bytes, count, signal);
          }
        } else {
          const size_t begin = from(sent, piece, lane % 16);
          const u32 skew = skew_of(begin), bytes = lane < 16 ? (skew + count + 15) / 16 * 16 : 0;
          u32 total = bytes;
          UNROLL for (u32 mask = 16; mask; mask /= 2) total += shfl_xor(total, mask);
          if (lane == 0) expect_bytes(signal, total);
          if (bytes) copy_bulk(place + lane * Pitch, w + (begin - skew), bytes, signal);
        }
      } else {
        // Four rows at a time, eight lanes to each.
        UNROLL for (int h = 0; h < 4; h++) {
          const u32 row = lane / 8 + 4 * h, v = lane % 8;
          const size_t begin = from(sent, piece, row);
          const u32 skew = skew_of(begin);
          const u8* src = w + (begin - skew) + 16 * v;
          u32* to = place + row * Pitch + 4 * v;
          UNROLL for (u32 j = 0; j < Vectors; j += 8) copy16_async(to + 4 * j, src + 16 * j, wanted && 16 * (j + v) < skew + count);
        }
        copies_bunch();
      }
      sent.advance(rounds, step);
    };
    NO_UNROLL for (u32 i = 0; i + 1 < Places; i++) send();
    wait_for_previous();
    // What is added at the end is on its way from the beginning, as it lies.
    const auto fetch_added = [&](u32 (&raw)[Sums], u32 group) {
      UNROLL for (int e = 0; e < Sums; e++) {
        const u32 r = lane / 4 + e / X * 8, b = X * t + e % X;
        raw[e] = 0;
        if (!out.residual || !out.exists(group, r, b)) continue;
        raw[e] = out.dtype == DTYPE_f32 ? ((const u32*)out.residual)[out.at(group, r, b)] : ((const u16*)out.residual)[out.at(group, r, b)];
      }
    };
    const auto number = [&](u32 raw) {
      return out.dtype == DTYPE_f32 ? f32_from_bits(raw) : out.dtype == DTYPE_f16 ? f16_to_f32((u16)raw) : f32_from_bits(raw << 16);
    };
    bool ready = false, scaled = false;
    u32 large = 0, added[Sums];
    f32 acc[Sums] = {}, factors[X];
    UNROLL for (int i = 0; i < X; i++) factors[i] = 1.0f;
    for (Cursor c{out.share.block * per_block + own, 0, 0, 0}; c.group - own < groups;) {
      const u32 chunk = c.round * splits + part, group = c.group, done = segment < whole ? c.round * splits * CHUNK / segment * segment : 0;
      const Piece piece = piece_of(c);
      if (c.round == 0) fetch_added(added, group);
      // All of x once, or of each group one segment after another, when all warps have done with the one before.
      if (!ready || (segment < whole && c.round * splits * CHUNK == done)) {
        if (ready) barrier();
        large = prepare(rows, source, squares, k, done, whole - done < segment ? whole - done : segment, x, alpha, out.dtype);
        ready = true;
      }
      if (BULK_COPIES) await_signal(own_signals + c.place, c.phase);
      else copies_wait_but<Places - 2>();
      wave_sync();
      // Every lane has done with the chunk before this one: its place is free.
      send();
      const u32* first = weights + c.place * StageWords + lane / 4 * Pitch;
      const u32* const row[2] = {first, first + 8 * Pitch};
      const u32 at[2] = {skew_of(from(c, piece, lane / 4)), skew_of(from(c, piece, lane / 4 + 8))};
      // Warps of a group that does not exist only keep step with the others.
      if (piece.exists) Unit::take(acc, row, at, rows, (chunk * CHUNK - done) / 32, k - piece.chunk * CHUNK);
      c.advance(rounds, step);
      if (c.round) continue;
      if (alpha && part == 0 && !scaled) {
        const u32 b = lane % room;
        const f32 factor = norm_factor(sum_of(squares, room), k, large >> b & 1u ? 0.0f : eps);
        UNROLL for (int i = 0; i < X; i++) factors[i] = shfl(factor, X * t + i);
        scaled = true;
      }
      if (splits > 1) {
        UNROLL for (int e = 0; e < Sums; e++) totals[e * bdim_x() + tid_x()] = acc[e];
        barrier();
        for (u32 p = 1; part == 0 && p < splits; p++)
          UNROLL for (int e = 0; e < Sums; e++) acc[e] += totals[e * bdim_x() + tid_x() + 32 * p];
        if (c.group - own < groups) barrier();
      }
      if (part == 0) {
        Unit::finish(acc);
        UNROLL for (int e = 0; e < Sums; e++) acc[e] = out.biased(group, lane / 4 + e / X * 8, acc[e] * factors[e % X]);
        UNROLL for (int e = 0; e < Sums; e++) {
          if (out.glu && e >= X) continue;
          out.keep(group, lane / 4 + e / X * 8, X * t + e % X, (out.glu ? out.gated(acc[e], acc[e % X + X]) : acc[e]) + number(added[e]));
        }
      }
      UNROLL for (int e = 0; e < Sums; e++) acc[e] = 0;
    }
  }
};

}  // namespace gpu
#endif  // GPU_BYTE_TILES
#endif  // WICK_QUANT_TILE_H
