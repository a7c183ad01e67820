// The product of up to ROWS rows with quantized weights: y (batch, n) = f(x (batch, k) · W (n, k)ᵀ + bias) + residual; arguments as in
// linear.hip, x as halves of `dtype`.
//
// x is in shared memory for as long as a block lives, in f16: of bf16 with other exponents, a row that is too large or too small for
// them lifted by a power of two so that its largest is near 2^15, and nothing is lost that counts beside it. A warp takes CHUNK weights
// of 16 rows of W at a time by way of its own shared memory, and decodes them straight into the registers that mma.sync takes its left
// operand from: each four neighbouring weights are columns 2t, 2t + 1, 2t + 8, 2t + 9 of the unit, and x is in that order. While a warp
// multiplies one chunk, the next is on its way, the first before the kernel that makes x has ended. `splits` warps share 16 rows of W.
// `parts` blocks have a piece of k each, where x does not fit or leaves room for few warps, and the last warp of those that have pieces
// of the same rows adds up what all have left in `sums`.
// Only Hopper is given these products, for its shared memory. Traffic: W once; x once for each `parts` blocks, from the cache.
#ifndef WICK_QUANT_BATCH_H
#define WICK_QUANT_BATCH_H
#include "gpu/uniform.h"
#include "gpu/warpgroup.h"
#include "quant-slices.h"

#if GPU_WARPGROUPS
namespace gpu {

template <class Q, u32 ROWS> struct QuantBatch {
  static constexpr u32 TILES = ROWS / 8, LINES = 16, VALUES = 4 * TILES;  // of the unit; a lane's sums
  static constexpr u32 CHUNK = Q::Fine ? QUANT_BATCH_FINE : QUANT_BATCH_CHUNK, RUN = 32 * Q::Parts, RUNS = CHUNK / RUN, PER_BLOCK = Q::Elements / RUN;
  // Vectors that a row's chunk lies in at most. Rows are an odd number of vectors apart, so that eight hit all banks.
  static constexpr u32 BYTES = CHUNK / Q::Elements * Q::Bytes, VECTORS = (BYTES + 16 - Q::Align + 15) / 16, GAP = (VECTORS | 1u) * 4;
  static constexpr u32 PLACES = QUANT_BATCH_PLACES;
  typedef Outputs<LINES, ROWS> Out;
  typedef f32 Sums[TILES][4];
  typedef Staged<Q::Align> Lines[2];

  // What of x a block has in shared memory: `width` elements of each row, whole chunks; and what the products of each row are to be
  // multiplied with.
  struct Rows {
    u16* halves;
    f32* factors;
    u32 width;
    GPU_METHOD u32 pitch() const { return width + 32; }  // sixteen bytes of four lanes of two rows lie in all banks
    GPU_METHOD u16* row(u32 b) const { return halves + b * pitch(); }
  };
  // Exponents of bf16 from `near` down become those of f16 from 29 down. Most rows can have these, of up to 2^12: f16 has as many bits as
  // bf16 of what is above 2^-20.
  static constexpr u32 PLAIN = 137, AS_IT_IS = 141;
  // A row that has come becomes what is multiplied: f16 as it is, bf16 with the exponents of f16. Of each 32, lane t of four has eight
  // side by side: four of the first sixteen and four of the others, in the order in which weights come. The largest of each lane's.
  GPU_FN u32 place(const Rows& rows, u32 b, u32 batch, u32 count, u32 dtype, u32 near) {
    u32* const row = (u32*)rows.row(b < ROWS ? b : 0);
    // Zeros are in their place.
    const u32 least = (near - 29) * 0x00800080u, ends = b < batch ? count / 8 : 0;
    u32 largest = 0;
    // Several at once; all of them are read before any is written.
    constexpr u32 ONCE = 4;
    NO_UNROLL for (u32 first = 0; first < ends; first += ONCE * 32) {
      u32 v[ONCE][4];
      UNROLL for (u32 n = 0; n < ONCE; n++) {
        const u32 i = first + n * 32 + lane_id();
        UNROLL for (int j = 0; j < 4; j++) v[n][j] = i < ends ? row[i / 4 * 16 + j / 2 * 8 + lane_id() % 4 * 2 + j % 2] : 0;
      }
      wave_sync();
      UNROLL for (u32 n = 0; n < ONCE; n++) {
        const u32 i = first + n * 32 + lane_id();
        UNROLL for (int j = 0; j < 4; j++) {
          const u32 raw = v[n][j], magnitude = raw & 0x7fff7fffu;
          largest = larger_of_pairs(largest, magnitude);
          v[n][j] = dtype == DTYPE_f16 ? raw : (larger_of_pairs(magnitude, least) - least) << 3 | (raw & 0x80008000u);
        }
        Words4 halves;
        UNROLL for (int j = 0; j < 4; j++) halves.v[j] = v[n][j];
        if (i < ends) store_shared<4>(row, 4 * i, halves);
      }
    }
    return largest > largest << 16 ? largest >> 16 : largest & 0xffffu;
  }

  template <u32 N> GPU_FN void load_32(Words4 (&right)[N], const u16* x_at, u32 pitch) {
    UNROLL for (u32 j = 0; j < N; j++) right[j] = *(const Words4*)(x_at + j * 8 * pitch);
  }
  // acc += run `run` of a chunk, whose rows' weights begin at `lines`, with those of x from x_at on.
  GPU_FN void multiply(Sums& acc, const Lines& lines, u32 run, const u16* x_at, u32 pitch) {
    typename Q::Frag f[2];
    UNROLL for (u32 h = 0; h < 2; h++)
      Q::fragment(Staged<Q::Align>{lines[h].words, lines[h].at + run / PER_BLOCK * Q::Bytes}, run % PER_BLOCK, lane_id() % 4, f[h]);
    UNROLL for (u32 p = 0; p < Q::Parts; p++) {
      Words4 right[TILES];
      load_32(right, x_at + (run * Q::Parts + p) * 32, pitch);
      UNROLL for (u32 half = 0; half < 2; half++) {
        u32 left[4];
        const u32 s = Q::Halves == 1 ? 0 : half;
        UNROLL for (u32 h = 0; h < 2; h++) four_weights<Q>(f[h].q[p][half], f[h].scale[s][p], Q::HasMin ? f[h].min[s][p] : 0.0f, left[h], left[2 + h]);
        UNROLL for (u32 j = 0; j < TILES; j++) mma_m16n8k16(f16{}, acc[j], left, right[j].v + 2 * half);
      }
    }
  }
  // What the blocks of one share have in common: how many they are, their sums, and zeros to count with, one for each of their warps.
  struct Parts {
    u32 count, own;
    f32* sums;
    u32* counters;
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
    constexpr u32 PLACE = LINES * GAP;
    // Shared memory: x, its factors, weights of each warp, what warps tell each other.
    const u32 width = most * CHUNK, here = k - first * CHUNK < width ? k - first * CHUNK : width;
    f32* const factors = (f32*)((u16*)shared + ROWS * (width + 32));
    const Rows rows{(u16*)shared, factors, width};
    u32* const weights = (u32*)(factors + 32) + warp * PLACES * PLACE;
    f32* const totals = (f32*)((u32*)(factors + 32) + warps * PLACES * PLACE);

    const auto line = [&](u32 base, u32 chunk, u32 r) { return (size_t)out.row(base + own, r) * row_bytes + (first + chunk) * BYTES; };
    const auto skew_of = [&](size_t begin) { return Q::Align == 16 ? 0 : (u32)begin & 15u; };
    Signal* const own_signals = signals + warp * PLACES;
    if (BULK_COPIES) {
      if (lane < PLACES) make_signal(own_signals + lane, 1);
      signals_made();
      wave_sync();
    }
    Cursor sent{out.share.block * together, 0, 0, 0};
    const auto send = [&] {
      const u32 chunk = sent.round * splits + split, left = k - (first + chunk) * CHUNK, count = (left < CHUNK ? left : CHUNK) / Q::Elements * Q::Bytes;
      const bool wanted = sent.base + own < groups && chunk < chunks;
      u32* const place = weights + sent.place * PLACE;
      if (BULK_COPIES) {
        Signal* const signal = own_signals + sent.place;
        // By one lane, where rows lie evenly; else a row to each.
        if (!wanted) {
          if (one_lane()) expect_bytes(signal, 0);
        } else if (BYTES % 16 == 0 && row_bytes % 16 == 0 && (sent.base + own + 1) * out.per_group() <= out.columns) {
          const u8 *upper = w + line(sent.base, chunk, 0), *lower = w + line(sent.base, chunk, LINES / 2);
          if (one_lane()) {
            expect_bytes(signal, LINES * count);
            UNROLL for (u32 r = 0; r < LINES; r++) copy_bulk(place + r * GAP, (r < LINES / 2 ? upper : lower) + r % (LINES / 2) * row_bytes, count, signal);
          }
        } else {
          const size_t begin = line(sent.base, chunk, lane % LINES);
          const u32 skew = skew_of(begin), bytes = (skew + count + 15) / 16 * 16;
          u32 total = bytes;
          UNROLL for (u32 mask = LINES / 2; mask; mask /= 2) total += shfl_xor(total, mask);
          if (one_lane()) expect_bytes(signal, total);
          wave_sync();
          if (lane < LINES) copy_bulk(place + lane * GAP, w + (begin - skew), bytes, signal);
        }
      } else {
        // Four lanes to a row, and to the eighth behind it.
        for (u32 r = lane / 4; r < LINES; r += 8) {
          const size_t begin = line(sent.base, chunk, r);
          const u32 end = wanted ? skew_of(begin) + count : 0;
          for (u32 v = t; v < VECTORS; v += 4) copy16_async(place + r * GAP + 4 * v, w + (begin - skew_of(begin)) + 16 * v, 16 * v < end);
        }
      }
      sent.advance(rounds, step);
    };
    // Those of the other places take longer than what follows could wait for.
    send();
    wait_for_previous();
    // Rows that x does not have are zeros.
    const auto bring = [&](u32 b) {
      const u16* const from = (const u16*)x + (b < out.batch ? (size_t)b * k + first * CHUNK : 0);
      if (b < ROWS)
        UNROLL_SOME for (u32 i = lane; i < here / 8; i += 32) copy16_async((void*)(rows.row(b) + 8 * i), from + 8 * i, b < out.batch, true);
    };
    for (u32 b = warp; b < ROWS; b += warps) bring(b);
    NO_UNROLL for (u32 i = 1; i < PLACES; i++) send();
    copies_wait();
    wave_sync();
    for (u32 b = warp; b < ROWS + warp; b += warps) {
      const bool halves = out.dtype == DTYPE_f16;
      const u32 exponent = warp_most(place(rows, b, out.batch, here, out.dtype, PLAIN)) >> 7;
      u32 near = halves ? AS_IT_IS : PLAIN;
      // Of bf16, too large, or so small that f16 has few bits of it: once more, lifted so that the largest is near 2^15.
      if (!halves && exponent && (exponent < PLAIN - 24 || exponent > PLAIN + 1)) {
        if (!halves) near = exponent < 30 ? 30 : exponent > 253 ? 253 : exponent;
        bring(b);
        copies_wait();
        wave_sync();
        place(rows, b, out.batch, here, out.dtype, near);
      }
      if (b < ROWS && lane == 0) factors[b] = f32_from_bits((near - 14) << 23);
    }
    barrier();

    Sums acc = {};
    for (Cursor c{out.share.block * together, 0, 0, 0}; c.base < groups;) {
      const u32 chunk = c.round * splits + split, group = c.base + own;
      if (BULK_COPIES) await_signal(own_signals + c.place, c.phase);
      const u32 left = (k - (first + chunk) * CHUNK) / RUN, runs = group >= groups || chunk >= chunks ? 0 : left < RUNS ? left : RUNS;
      const u16* const x_at = rows.row(lane / 4) + chunk * CHUNK + t * 8;
      u32* const place = weights + c.place * PLACE;
      Lines lines;
      UNROLL for (u32 h = 0; h < 2; h++) {
        const u32 r = lane / 4 + 8 * h;
        lines[h] = Staged<Q::Align>{place + r * GAP, skew_of(line(c.base, chunk, r))};
      }
      if (runs == RUNS) UNROLL for (u32 r = 0; r < RUNS; r++) multiply(acc, lines, r, x_at, rows.pitch());
      else NO_UNROLL for (u32 r = 0; r < runs; r++) multiply(acc, lines, r, x_at, rows.pitch());
      c.advance(rounds, step);
      wave_sync();
      if (c.round == 0) {
        if (splits > 1) {
          UNROLL for (u32 e = 0; e < VALUES; e++) totals[e * bdim_x() + tid_x()] = acc[e / 4][e % 4];
          barrier();
          for (u32 s = 1; split == 0 && s < splits; s++) UNROLL for (u32 e = 0; e < VALUES; e++) acc[e / 4][e % 4] += totals[e * bdim_x() + tid_x() + 32 * s];
          barrier();
        }
        const bool there = split == 0 && group < groups;
        UNROLL for (u32 e = 0; e < VALUES; e++) acc[e / 4][e % 4] *= factors[e / 4 * 8 + 2 * t + e % 2];
        if (parts.count == 1) {
          store(out, group, acc, (f32*)place, there);
          warpgroup_publish();
        } else if (there) UNROLL for (u32 e = 0; e < VALUES; e++) parts.sums[(((size_t)parts.own * groups + group) * VALUES + e) * 32 + lane] = acc[e / 4][e % 4];
        UNROLL for (u32 e = 0; e < VALUES; e++) acc[e / 4][e % 4] = 0;
      }
      send();
    }
    if (parts.count > 1) add_up(out, groups, parts, own, together, (f32*)weights, split == 0);
  }

  // By way of the warp's shared memory, so that lanes side by side store columns side by side, and the code is short.
  GPU_FN void store(const Out& out, u32 group, const Sums& acc, f32* scratch, bool there) {
    constexpr u32 PITCH = LINES + 4;
    UNROLL for (u32 e = 0; e < VALUES; e++) scratch[(e / 4 * 8 + lane_id() % 4 * 2 + e % 2) * PITCH + lane_id() / 4 + e % 4 / 2 * 8] = acc[e / 4][e % 4];
    wave_sync();
    // Several at once, so that they need not wait for each other.
    constexpr u32 ONCE = 4;
    const u32 columns = out.per_group(), r = lane_id() % columns, step = 32 / columns;
    NO_UNROLL for (u32 first = 0; there && first < out.batch; first += ONCE * step) {
      f32 total[ONCE], added[ONCE];
      UNROLL for (u32 i = 0; i < ONCE; i++) {
        const u32 b = first + i * step + lane_id() / columns;
        const f32* const from = scratch + (b < ROWS ? b : 0) * PITCH + r;
        added[i] = out.added(group, r, b);
        total[i] = out.biased(group, r, *from);
        if (out.glu) total[i] = out.gated(total[i], out.biased(group, r + LINES / 2, from[LINES / 2]));
      }
      UNROLL for (u32 i = 0; i < ONCE; i++) out.keep(group, r, first + i * step + lane_id() / columns, total[i] + added[i]);
    }
    wave_sync();
  }

  // Of the warps that have pieces of the same sums, the last to come here adds them up, in their order.
  GPU_FN void add_up(const Out& out, u32 groups, const Parts& parts, u32 own, u32 together, f32* scratch, bool there) {
    device_fence();
    wave_sync();
    u32* const counter = parts.counters + out.share.block * together + own;
    u32 last = 0;
    if (there && lane_id() == 0) {
      last = atomic_add(counter, 1u) == parts.count - 1;
      if (last) *counter = 0;
    }
    last = shfl(last, 0);
    if (!last) return;
    device_fence();
    for (u32 base = out.share.block * together; base < groups; base += out.share.blocks * together) {
      const u32 group = base + own;
      const bool wanted = last && group < groups;
      Sums acc = {};
      for (u32 p = 0; wanted && p < parts.count; p++)
        UNROLL for (u32 e = 0; e < VALUES; e++) acc[e / 4][e % 4] += parts.sums[(((size_t)p * groups + group) * VALUES + e) * 32 + lane_id()];
      store(out, group, acc, scratch, wanted);
    }
  }
};

}  // namespace gpu
#endif
#endif
