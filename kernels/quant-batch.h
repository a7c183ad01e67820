// The product of up to ROWS rows with quantized weights: y (batch, n) = f(x (batch, k) · W (n, k)ᵀ + bias) + residual; arguments as in
// linear.hip, x as halves of `dtype`.
//
// x is in shared memory for as long as a block lives, in f16, each row lifted by a power of two so that its largest is near 2^15: of
// bf16 nothing is lost that counts beside it. A warp takes CHUNK weights of 16 rows of W at a time by way of its own shared memory, and
// multiplies them as integers (quant-pairs.h); x is in the order of those, and its sums over each group beside it. While a warp multiplies
// one chunk, the next are on their way, the first of them before the kernel that makes x has ended. `splits` warps share 16 rows of W.
// `parts` blocks have a piece of k each, where x does not fit or leaves room for few warps, and the last of them to end adds up what all
// have left in `sums`.
// Only Hopper is given these products, for its shared memory. Traffic: W once; x once for each `parts` blocks, from the cache.
#ifndef WICK_QUANT_BATCH_H
#define WICK_QUANT_BATCH_H
#include "gpu/uniform.h"
#include "gpu/warpgroup.h"
#include "quant-pairs.h"

#if GPU_WARPGROUPS
namespace gpu {

template <class Q, u32 ROWS> struct QuantBatch {
  static constexpr u32 TILES = ROWS / 8, VALUES = 4 * TILES;  // of the unit; a lane's sums
  static constexpr u32 CHUNK = Q::Fine ? QUANT_BATCH_FINE : QUANT_BATCH_CHUNK;
  typedef RunPairs<Q> Any;
  typedef WordPairs<Q> Whole;
  // Vectors that a row's chunk lies in at most. Rows are an odd number of vectors apart, so that eight hit all banks.
  static constexpr u32 BYTES = CHUNK / Q::Elements * Q::Bytes, VECTORS = (BYTES + 16 - Q::Align + 15) / 16, GAP = (VECTORS | 1u) * 4, PLACE_WORDS = 16 * GAP;
  static constexpr u32 PLACES = 2;
  typedef Outputs<16, ROWS> Out;

  // What of x a block has in shared memory: `width` elements of each row, whole chunks; the sums of its groups, or of their halves, a
  // row's beside its neighbour's and both twice, as the unit takes what it adds to; and what the products of each row are to be
  // multiplied with.
  struct Rows {
    u16* halves;
    f32 *groups, *factors, *largest;
    u32 width;
    GPU_METHOD u32 pitch() const { return width + 32; }  // sixteen bytes of two rows lie in all banks
    GPU_METHOD u16* row(u32 b) const { return halves + b * pitch(); }
    GPU_FN u32 group_at(u32 g) { return g * Q::Halves * ROWS * 2; }
  };
  GPU_FN f32 value(u32 word, int i, u32 dtype) { return dtype == DTYPE_f16 ? InWord<f16>::at(word, i) : InWord<bf16>::at(word, i); }
  // A piece of a row: QUARTERS of them are more than there are warps, which so have about as many. `blocks` of 256 elements.
  static constexpr u32 QUARTERS = 4;
  struct Piece {
    u32 row, from, blocks;
    GPU_METHOD Piece(u32 item, u32 width) : row(item / QUARTERS) {
      const u32 all = width / 256, most = (all + QUARTERS - 1) / QUARTERS, first = item % QUARTERS * most;
      from = first * 256;
      blocks = row >= ROWS || first >= all ? 0 : all - first < most ? all - first : most;
    }
  };
  GPU_FN f32 largest_of(const u32* row, const Piece& piece, u32 dtype) {
    f32 largest = 0;
    UNROLL_SOME for (u32 i = 0; i < piece.blocks; i++) {
      const Words4 raw = load_shared<4>(row, piece.from / 2 + i * 128 + lane_id() * 4);
      UNROLL for (int j = 0; j < 8; j++) largest = maximum(largest, m_abs(value(raw.v[j / 2], j % 2, dtype)));
    }
    UNROLL for (u32 mask = 16; mask; mask /= 2) largest = maximum(largest, shfl_xor(largest, mask));
    return largest;
  }
  // A piece, which is there as it came, becomes what is multiplied.
  template <class P> GPU_FN void lift(const Rows& rows, const Piece& piece, u32 dtype) {
    const u32 b = piece.row < ROWS ? piece.row : 0, most = (rows.width / 256 + QUARTERS - 1) / QUARTERS;
    u32* const row = (u32*)rows.row(b);
    f32 largest = 0;
    UNROLL for (u32 i = 0; i < QUARTERS; i++) largest = maximum(largest, rows.largest[b * QUARTERS + i]);
    const u32 exponent = f32_bits(largest) >> 23, near = exponent < 15 ? 15 : exponent > 254 ? 254 : exponent;
    const f32 up = f32_from_bits((268 - near) << 23), down = f32_from_bits((near - 14) << 23);
    // A lane to what a lane of the unit takes of a group: half of them begin with the second word, so that banks are hit by turns.
    const u32 t = lane_id() % 4, odd = lane_id() / 4 % 2, turned = lane_id() / 8 % 2;
    u32 from[4];
    P::order(odd, t, from);
    f32 factor[2], counts[2];
    UNROLL for (u32 q = 0; q < 2; q++) {
      factor[q] = q == turned ? up : up * P::UPPER;
      counts[q] = (q == turned ? 1.0f : 1.0f / P::UPPER) * (P::ZERO > 0 ? -P::ZERO : 1.0f) / 16777216.0f;
    }
    u32 at[4];
    UNROLL for (int i = 0; i < 4; i++) {
      const u32 own = from[i], other = from[i ^ 2];
      at[i] = (turned ? other : own) / 2;
    }
    NO_UNROLL for (u32 i = 0; i < most; i++) {
      const bool there = i < piece.blocks;
      const u32 group = there ? piece.from / 32 + i * 8 + lane_id() / 4 : 0;
      const u32* const own = row + group * 16;
      u32 words[4];
      UNROLL for (int i = 0; i < 4; i++) words[i] = there ? own[at[i]] : 0;
      wave_sync();
      f32 sums[2];
      UNROLL for (u32 q = 0; q < 2; q++) {
        f32 v[4];
        UNROLL for (int i = 0; i < 4; i++) v[i] = value(words[2 * q + i / 2], i % 2, dtype) * factor[q];
        const Vec<u32, 2> two{{pack2(f16{}, v[0], v[2]), pack2(f16{}, v[1], v[3])}};
        if (there) store_shared<2>((u32*)own, 4 * t + 2 * (q ^ turned), two);
        sums[q] = (v[0] + v[1] + v[2] + v[3]) * counts[q];
      }
      if (Q::Halves == 1) sums[0] = sums[1] = sums[0] + sums[1];
      else if (turned) {
        const f32 other = sums[0];
        sums[0] = sums[1], sums[1] = other;
      }
      UNROLL for (u32 half = 0; half < Q::Halves; half++) {
        UNROLL for (u32 mask = 1; mask < 4; mask *= 2) sums[half] += shfl_xor(sums[half], mask);
        if (there && t < 2) rows.groups[rows.group_at(group) + half * ROWS * 2 + b / 2 * 4 + b % 2 + 2 * t] = sums[half];
      }
    }
    if (piece.from == 0 && piece.blocks && lane_id() == 0) rows.factors[b] = down;
  }

  // acc += run `run` of a chunk, whose rows' weights begin at chunk[h], with those of x from x_at on and their sums.
  template <class P> GPU_FN void multiply(f32 (&acc)[TILES][4], const Staged<Q::Align> (&chunk)[2], u32 run, const u16* x_at, const f32* sums_at, u32 pitch) {
    P w[2];
    UNROLL for (int h = 0; h < 2; h++) w[h].take(chunk[h], run, lane_id() % 4);
    UNROLL for (u32 g = 0; g < P::GROUPS; g++) {
      const u32 group = run * P::GROUPS + g;
      UNROLL for (u32 j = 0; j < TILES; j++) {
        const Words4 right = load_shared<4>((const u32*)(x_at + j * 8 * pitch), 16 * group);
        f32 d[4];
        UNROLL for (int step = 0; step < 2; step++) {
          constexpr bool WHOLE = Q::Halves == 1;
          Vec<f32, 4> sums{};
          if (!WHOLE || step == 0) {
            sums = load_shared<4>(sums_at, Rows::group_at(group) + (step * ROWS + j * 8) * 2);
            UNROLL for (int i = 0; i < 4; i++) d[i] = P::ZERO > 0 ? sums.v[i] : 0;
          }
          const u32 left[4] = {w[0].pairs[g][2 * step], w[1].pairs[g][2 * step], w[0].pairs[g][2 * step + 1], w[1].pairs[g][2 * step + 1]};
          mma_m16n8k16(f16{}, d, left, right.v + 2 * step);
          if (!WHOLE || step == 1) UNROLL for (int i = 0; i < 4; i++) acc[j][i] = m_fma(w[i / 2].scale[WHOLE ? 0 : step][g], d[i], acc[j][i]);
          if (Q::HasMin && (!WHOLE || step == 0))
            UNROLL for (int i = 0; i < 4; i++) acc[j][i] = m_fma(w[i / 2].min[WHOLE ? 0 : step][g], sums.v[i], acc[j][i]);
        }
      }
    }
  }
  // All runs of a chunk; `left` weights of it are in x.
  template <class P> GPU_FN void multiply_all(f32 (&acc)[TILES][4], const Staged<Q::Align> (&chunk)[2], u32 left, const u16* x_at, const f32* sums_at, u32 pitch) {
    constexpr u32 RUNS = CHUNK / P::RUN;
    const u32 runs = left < CHUNK ? left / P::RUN : RUNS;
    if (GPU_TILE_LOCKSTEP) {
      // All warps multiply as often; what is not there goes nowhere, whatever it is.
      f32 none[TILES][4] = {};
      for (u32 r = 0; r < RUNS; r++) multiply<P>(r < runs ? acc : none, chunk, r < runs ? r : 0, x_at, sums_at, pitch);
    } else if (runs == RUNS) UNROLL for (u32 r = 0; r < RUNS; r++) multiply<P>(acc, chunk, r, x_at, sums_at, pitch);
    else NO_UNROLL for (u32 r = 0; r < runs; r++) multiply<P>(acc, chunk, r, x_at, sums_at, pitch);
  }

  // What the blocks of one share have in common: how many they are, their sums, and a zero to count with.
  struct Parts {
    u32 count, own;
    f32* sums;
    u32* counter;
  };
  // Which groups come, which of their chunks, and to which place, used an even or odd number of times before.
  struct Cursor {
    u32 base, round, place, phase;
    GPU_METHOD void advance(u32 rounds, u32 step) {
      place = place + 1 == PLACES ? 0 : place + 1;
      phase ^= place == 0;
      round = round + 1 == rounds ? 0 : round + 1;
      base += round ? 0 : step;
    }
  };

  GPU_FN void run(u32* shared, Signal* signals, const Out& out, u32 k, const u8* w, const void* x, u32 splits, const Parts& parts) {
    const u32 warps = bdim_x() / 32, warp = uniform(tid_x() / 32), lane = lane_id(), t = lane % 4, split = warp % splits, own = warp / splits, together = warps / splits;
    const u32 all = (k + CHUNK - 1) / CHUNK, most = (all + parts.count - 1) / parts.count, first = parts.own * most;
    const u32 chunks = first >= all ? 0 : all - first < most ? all - first : most;
    const u32 rounds = (most + splits - 1) / splits, step = out.share.blocks * together, groups = out.groups(), row_bytes = k / Q::Elements * Q::Bytes;
    // Shared memory: x, its sums and factors, weights of each warp, what warps tell each other.
    const u32 width = most * CHUNK, here = chunks == 0 ? 0 : k - first * CHUNK < width ? k - first * CHUNK : width;
    f32* const sums_of_x = (f32*)((u16*)shared + ROWS * (width + 32));
    f32* const factors = sums_of_x + Rows::group_at(width / 32);
    const Rows rows{(u16*)shared, sums_of_x, factors, factors + ROWS, width};
    const bool whole = Whole::EXISTS && row_bytes % 4 == 0;
    u32* const weights = (u32*)(factors + 5 * ROWS) + warp * PLACES * PLACE_WORDS;
    f32* const totals = (f32*)((u32*)(factors + 5 * ROWS) + warps * PLACES * PLACE_WORDS);

    const auto from = [&](u32 base, u32 chunk, u32 r) { return (size_t)out.row(base + own, r) * row_bytes + (first + chunk) * BYTES; };
    const auto skew_of = [](size_t begin) { return Q::Align == 16 ? 0 : (u32)begin & 15u; };
    Signal* const own_signals = signals + warp * PLACES;
    if (BULK_COPIES) {
      if (lane < PLACES) make_signal(own_signals + lane, 16);
      signals_made();
      wave_sync();
    }
    Cursor sent{out.share.block * together, 0, 0, 0};
    const auto send = [&] {
      const u32 chunk = sent.round * splits + split, left = k - (first + chunk) * CHUNK, count = (left < CHUNK ? left : CHUNK) / Q::Elements * Q::Bytes;
      const bool wanted = sent.base + own < groups && chunk < chunks;
      u32* const place = weights + sent.place * PLACE_WORDS;
      if (BULK_COPIES) {
        // By one lane, where rows lie evenly; else a row to each of sixteen.
        const bool even = row_bytes % 16 == 0 && (sent.base + own + 1) * out.per_group() <= out.columns;
        const size_t begin = from(sent.base, chunk, lane % 16);
        const u32 skew = skew_of(begin), bytes = wanted ? (skew + count + 15) / 16 * 16 : 0;
        if (lane < 16) expect_bytes(own_signals + sent.place, bytes);
        if (even) {
          const u8* const half[2] = {w + from(sent.base, chunk, 0), w + from(sent.base, chunk, 8)};
          if (wanted && one_lane())
            UNROLL for (u32 r = 0; r < 16; r++) copy_bulk(place + r * GAP, half[r / 8] + r % 8 * row_bytes, count, own_signals + sent.place);
        } else if (wanted && lane < 16) copy_bulk(place + lane * GAP, w + (begin - skew), bytes, own_signals + sent.place);
      } else {
        // Four lanes to a row, and to the eighth behind it.
        UNROLL for (u32 h = 0; h < 2; h++) {
          const size_t begin = from(sent.base, chunk, lane / 4 + 8 * h);
          const u32 end = wanted ? skew_of(begin) + count : 0;
          UNROLL for (u32 v = t; v < VECTORS; v += 4)
            copy16_async(place + (lane / 4 + 8 * h) * GAP + 4 * v, w + (begin - skew_of(begin)) + 16 * v, 16 * v < end);
        }
        copies_bunch();
      }
      sent.advance(rounds, step);
    };
    NO_UNROLL for (u32 i = 0; i + 1 < PLACES; i++) send();
    wait_for_previous();
    // Rows that x does not have are zeros, and so is what is behind its end.
    for (u32 i = warp; i < ROWS * QUARTERS; i += warps) {
      const Piece piece(i, width);
      UNROLL_SOME for (u32 j = 0; j < piece.blocks; j++) {
        const u32 at = piece.from + j * 256 + lane * 8;
        const bool there = piece.row < out.batch && at < here;
        copy16_async((void*)(rows.row(piece.row) + at), (const u16*)x + (there ? (size_t)piece.row * k + first * CHUNK + at : 0), there, true);
      }
    }
    copies_wait();
    wave_sync();
    for (u32 i = warp; i < ROWS * QUARTERS; i += warps) {
      const Piece piece(i, width);
      const f32 largest = largest_of((const u32*)rows.row(piece.row), piece, out.dtype);
      if (lane == 0) rows.largest[i] = largest;
    }
    barrier();
    for (u32 i = warp; i < ROWS * QUARTERS + warp; i += warps) {
      if (whole) lift<Whole>(rows, Piece(i, width), out.dtype);
      else lift<Any>(rows, Piece(i, width), out.dtype);
    }
    barrier();

    f32 acc[TILES][4] = {};
    for (Cursor c{out.share.block * together, 0, 0, 0}; c.base < groups;) {
      const u32 chunk = c.round * splits + split, group = c.base + own;
      if (BULK_COPIES) await_signal(own_signals + c.place, c.phase);
      else copies_wait_but<PLACES - 2>();
      wave_sync();
      // Every lane has done with the chunk before this one: its place is free.
      send();
      const bool wanted = group < groups && chunk < chunks;
      const u32 left = wanted ? k - (first + chunk) * CHUNK : 0, x_chunk = wanted ? chunk : 0;
      const u16* const x_at = rows.row(lane / 4) + x_chunk * CHUNK + t * 8;
      const f32* const sums_at = rows.groups + Rows::group_at(x_chunk * CHUNK / 32) + t * 4;
      Staged<Q::Align> lines[2];
      UNROLL for (u32 h = 0; h < 2; h++)
        lines[h] = Staged<Q::Align>{weights + c.place * PLACE_WORDS + (lane / 4 + 8 * h) * GAP, skew_of(from(c.base, chunk, lane / 4 + 8 * h))};
      if (GPU_TILE_LOCKSTEP && left == 0) lines[0] = lines[1] = Staged<Q::Align>{shared, 0};
      if (whole) multiply_all<Whole>(acc, lines, left, x_at, sums_at, rows.pitch());
      else multiply_all<Any>(acc, lines, left, x_at, sums_at, rows.pitch());
      c.advance(rounds, step);
      if (c.round) continue;
      if (splits > 1) {
        UNROLL for (u32 e = 0; e < VALUES; e++) totals[e * bdim_x() + tid_x()] = acc[e / 4][e % 4];
        barrier();
        for (u32 s = 1; split == 0 && s < splits; s++) UNROLL for (u32 e = 0; e < VALUES; e++) acc[e / 4][e % 4] += totals[e * bdim_x() + tid_x() + 32 * s];
        barrier();
      }
      if (split == 0 && group < groups) {
        UNROLL for (u32 e = 0; e < VALUES; e++) acc[e / 4][e % 4] = acc[e / 4][e % 4] * 16777216.0f * factors[e / 4 * 8 + 2 * t + e % 2];
        if (parts.count == 1) store(out, group, acc);
        else UNROLL for (u32 e = 0; e < VALUES; e++) parts.sums[(((size_t)parts.own * groups + group) * VALUES + e) * 32 + lane] = acc[e / 4][e % 4];
      }
      UNROLL for (u32 e = 0; e < VALUES; e++) acc[e / 4][e % 4] = 0;
    }
    if (parts.count > 1) add_up(shared, out, groups, parts, together);
  }

  GPU_FN void store(const Out& out, u32 group, f32 (&acc)[TILES][4]) {
    UNROLL for (u32 j = 0; j < TILES; j++) {
      const u32 b = j * 8 + lane_id() % 4 * 2;
      UNROLL for (int i = 0; i < 4; i++) acc[j][i] = out.biased(group, lane_id() / 4 + i / 2 * 8, acc[j][i]);
      UNROLL for (int i = 0; i < 4; i++) {
        const u32 r = lane_id() / 4 + i / 2 * 8;
        if (out.glu && i >= 2) continue;
        out.keep(group, r, b + i % 2, (out.glu ? out.gated(acc[j][i], acc[j][i % 2 + 2]) : acc[j][i]) + out.added(group, r, b + i % 2));
      }
    }
  }

  // The last block of a share to come here adds up what all have left, in their order.
  static constexpr u32 AT_ONCE = 32 / VALUES;
  GPU_FN void add_up(u32* shared, const Out& out, u32 groups, const Parts& parts, u32 together) {
    device_fence();
    barrier();
    if (tid_x() == 0) {
      *shared = atomic_add(parts.counter, 1u) == parts.count - 1;
      if (*shared) *parts.counter = 0;
    }
    barrier();
    if (!*shared) return;
    device_fence();
    for (u32 base = out.share.block * together; base < groups; base += out.share.blocks * together)
      for (u32 i = tid_x() / 32; i < together && base + i < groups; i += bdim_x() / 32) {
        f32 acc[TILES][4] = {};
        NO_UNROLL for (u32 first = 0; first < parts.count; first += AT_ONCE) {
          f32 added[AT_ONCE][VALUES];
          UNROLL for (u32 p = 0; p < AT_ONCE; p++)
            UNROLL for (u32 e = 0; e < VALUES; e++)
              added[p][e] = first + p < parts.count ? parts.sums[(((size_t)(first + p) * groups + base + i) * VALUES + e) * 32 + lane_id()] : 0.0f;
          UNROLL for (u32 p = 0; p < AT_ONCE; p++) UNROLL for (u32 e = 0; e < VALUES; e++) acc[e / 4][e % 4] += added[p][e];
        }
        store(out, base + i, acc);
      }
  }
};

}  // namespace gpu
#endif
#endif
