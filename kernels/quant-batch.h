// The product of up to ROWS rows with quantized weights: y (batch, n) = f(x (batch, k) · W (n, k)ᵀ + bias) + residual; arguments as in
// linear.hip, x as halves of `dtype`.
//
// x is in shared memory for as long as a block lives, in f16, each row lifted by a power of two so that its largest is near 2^15: of
// bf16 nothing is lost that counts beside it. A warp takes CHUNK weights of 16 rows of W at a time by way of its own shared memory, and
// decodes them straight into the registers that mma.sync takes its left operand from: each four neighbouring weights are columns 2t,
// 2t + 1, 2t + 8, 2t + 9 of the unit, and those of x in the same order; or, of types and rows that are words, as quant-slices.h has them. While it multiplies one chunk, the next are on their way, the
// first of them before the kernel that makes x has ended. `splits` warps share 16 rows of W. `parts` blocks have a piece of k each, where
// x does not fit or leaves room for few warps, and the last of them to end adds up what all have left in `sums`.
// Only Hopper is given these products, for its shared memory. Traffic: W once; x once for each `parts` blocks, from the cache.
#ifndef WICK_QUANT_BATCH_H
#define WICK_QUANT_BATCH_H
#include "gpu/uniform.h"
#include "gpu/warpgroup.h"
#include "quant-slices.h"

#if GPU_WARPGROUPS
namespace gpu {

template <class Q, u32 ROWS> struct QuantBatch {
  static constexpr u32 TILES = ROWS / 8, VALUES = 4 * TILES;  // of the unit; a lane's sums
  static constexpr u32 CHUNK = Q::Fine ? QUANT_BATCH_FINE : QUANT_BATCH_CHUNK, RUN = 32 * Q::Parts, RUNS = CHUNK / RUN, PER_BLOCK = Q::Elements / RUN;
  // Vectors that a row's chunk lies in at most. Rows are an odd number of vectors apart, so that eight hit all banks.
  static constexpr u32 BYTES = CHUNK / Q::Elements * Q::Bytes, VECTORS = (BYTES + 16 - Q::Align + 15) / 16, GAP = (VECTORS | 1u) * 4, PLACE_WORDS = 16 * GAP;
  static constexpr u32 PLACES = 2;
  typedef Outputs<16, ROWS> Out;
  typedef QuantSlice<Q> Slice;

  // What of x a block has in shared memory: `width` elements of each row, whole chunks; and what the products of each row are to be
  // multiplied with.
  struct Rows {
    u16* halves;
    f32* factors;
    u32 width;
    GPU_METHOD u32 pitch() const { return width + 16; }  // eight bytes of four rows lie in all banks
    GPU_METHOD u16* row(u32 b) const { return halves + b * pitch(); }
  };
  GPU_FN void eight(f32 (&v)[8], const u16* from, u32 i, u32 dtype) {
    const Words4 raw = load_shared<4>((const u32*)from, 4 * i);
    if (dtype == DTYPE_f16) UNROLL for (int j = 0; j < 8; j++) v[j] = InWord<f16>::at(raw.v[j / 2], j % 2);
    else UNROLL for (int j = 0; j < 8; j++) v[j] = InWord<bf16>::at(raw.v[j / 2], j % 2);
  }
  // The first `count` elements of a row, which are there as they came, become what is multiplied, in order where they are `ordered`.
  GPU_FN void lift(const Rows& rows, u32 b, u32 count, u32 dtype, bool ordered) {
    u16* const row = rows.row(b < ROWS ? b : 0);
    f32 largest = 0, v[8];
    if (b < ROWS) UNROLL_SOME for (u32 i = lane_id(); i < count / 8; i += 32) {
      eight(v, row, i, dtype);
      UNROLL for (int j = 0; j < 8; j++) largest = maximum(largest, m_abs(v[j]));
    }
    UNROLL for (u32 mask = 16; mask; mask /= 2) largest = maximum(largest, shfl_xor(largest, mask));
    const u32 exponent = f32_bits(largest) >> 23, near = exponent < 15 ? 15 : exponent > 254 ? 254 : exponent;
    const f32 up = f32_from_bits((268 - near) << 23), down = f32_from_bits((near - 14) << 23);
    if (b < ROWS && lane_id() == 0) rows.factors[b] = down;
    if (!(Slice::WORDS && ordered)) {
      if (b < ROWS) UNROLL_SOME for (u32 i = lane_id(); i < count / 8; i += 32) {
        eight(v, row, i, dtype);
        Words4 halves;
        UNROLL for (int j = 0; j < 4; j++) halves.v[j] = pack2(f16{}, v[2 * j] * up, v[2 * j + 1] * up);
        store_shared<4>((u32*)row, 4 * i, halves);
      }
      return;
    }
    u32 from[8];
    UNROLL for (u32 j = 0; j < 8; j++) {
      const u32 at = lane_id() % 8 * 8 + j;
      from[j] = ordered_from(at / 16 * 16 + at % 4 / 2 * 8 + at / 4 % 4 * 2 + at % 2, Slice::ORDER);
    }
    // All of a slice is read before any of it is written.
    UNROLL_SOME for (u32 first = 0; first < count / 8; first += 32) {
      const u32 i = first + lane_id();
      const bool there = b < ROWS && i < count / 8;
      UNROLL for (int j = 0; j < 8; j++) {
        const u32 raw = there ? row[i / 8 * 64 + from[j]] : 0;
        v[j] = (dtype == DTYPE_f16 ? InWord<f16>::at(raw, 0) : InWord<bf16>::at(raw, 0)) * up;
      }
      wave_sync();
      Words4 halves;
      UNROLL for (int j = 0; j < 4; j++) halves.v[j] = pack2(f16{}, v[2 * j], v[2 * j + 1]);
      if (there) store_shared<4>((u32*)row, 4 * i, halves);
    }
  }

  // acc += slice `slice` of a chunk in words, whose rows' weights begin at chunk[h], with those of x from x_at on.
  GPU_FN void multiply_words(f32 (&acc)[TILES][4], const Staged<Q::Align> (&chunk)[2], u32 slice, const u16* x_at, u32 pitch) {
    Slice w[2];
    UNROLL for (int h = 0; h < 2; h++) w[h].template load<0>(Staged<Q::Align>{chunk[h].words + slice * Slice::STORED, 0}, 64);
    multiply_step<0>(acc, w, x_at + slice * 64, pitch);
    multiply_step<1>(acc, w, x_at + slice * 64, pitch);
    multiply_step<2>(acc, w, x_at + slice * 64, pitch);
    multiply_step<3>(acc, w, x_at + slice * 64, pitch);
  }
  template <u32 I> GPU_FN void multiply_step(f32 (&acc)[TILES][4], const Slice (&w)[2], const u16* x_at, u32 pitch) {
    u32 left[4];
    UNROLL for (int h = 0; h < 2; h++) w[h].template decode<0, I>(left[h], left[2 + h]);
    UNROLL for (u32 j = 0; j < TILES; j++) {
      const Vec<u32, 2> right = *(const Vec<u32, 2>*)(x_at + j * 8 * pitch + I * 16);
      mma_m16n8k16(f16{}, acc[j], left, right.v);
    }
  }

  // acc += run `run` of a chunk, whose rows' weights begin at chunk[h], with those of x from x_at on.
  GPU_FN void multiply(f32 (&acc)[TILES][4], const Staged<Q::Align> (&chunk)[2], u32 run, const u16* x_at, u32 pitch) {
    typename Q::Frag f[2];
    UNROLL for (int h = 0; h < 2; h++)
      Q::fragment(Staged<Q::Align>{chunk[h].words, chunk[h].at + run / PER_BLOCK * Q::Bytes}, run % PER_BLOCK, lane_id() % 4, f[h]);
    UNROLL for (int p = 0; p < Q::Parts; p++)
      UNROLL for (int half = 0; half < 2; half++) {
        const int s = Q::Halves == 1 ? 0 : half;
        u32 left[4];
        UNROLL for (int h = 0; h < 2; h++) {
          const f32 scale = 16 * f[h].scale[s][p], min = Q::HasMin ? f[h].min[s][p] : 0.0f;
          scaled_halves<Q::HasMin>(f[h].q[p][half], pack2(f16{}, scale, scale), Q::HasMin ? pack2(f16{}, min, min) : 0, left[h], left[2 + h]);
        }
        UNROLL for (u32 j = 0; j < TILES; j++) {
          const Vec<u32, 2> right = *(const Vec<u32, 2>*)(x_at + j * 8 * pitch + (run * Q::Parts + p) * 32 + half * 16);
          mma_m16n8k16(f16{}, acc[j], left, right.v);
        }
      }
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
    // Shared memory: x, its factors, weights of each warp, what warps tell each other.
    const u32 width = most * CHUNK, here = k - first * CHUNK < width ? k - first * CHUNK : width;
    f32* const factors = (f32*)((u16*)shared + ROWS * (width + 16));
    const Rows rows{(u16*)shared, factors, width};
    u32* const weights = (u32*)(factors + ROWS) + warp * PLACES * PLACE_WORDS;
    f32* const totals = (f32*)((u32*)(factors + ROWS) + warps * PLACES * PLACE_WORDS);

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
    // Rows that x does not have are zeros.
    for (u32 b = warp; b < ROWS; b += warps) {
      const u16* const from = (const u16*)x + (b < out.batch ? (size_t)b * k + first * CHUNK : 0);
      UNROLL_SOME for (u32 i = lane; i < here / 8; i += 32) copy16_async((void*)(rows.row(b) + 8 * i), from + 8 * i, b < out.batch, true);
    }
    copies_wait();
    wave_sync();
    const bool words = Slice::WORDS && k % 256 == 0;
    for (u32 b = warp; b < ROWS + warp; b += warps) lift(rows, b, here, out.dtype, words);
    barrier();

    f32 acc[TILES][4] = {};
    for (Cursor c{out.share.block * together, 0, 0, 0}; c.base < groups;) {
      const u32 chunk = c.round * splits + split, group = c.base + own;
      if (BULK_COPIES) await_signal(own_signals + c.place, c.phase);
      else copies_wait_but<PLACES - 2>();
      wave_sync();
      // Every lane has done with the chunk before this one: its place is free.
      send();
      const u32 left = (k - (first + chunk) * CHUNK) / RUN, runs = group >= groups || chunk >= chunks ? 0 : left < RUNS ? left : RUNS;
      const u32 slices = runs * RUN / 64;
      const u16* const x_at = rows.row(lane / 4) + chunk * CHUNK + t * 4;
      Staged<Q::Align> lines[2];
      UNROLL for (u32 h = 0; h < 2; h++)
        lines[h] = Staged<Q::Align>{weights + c.place * PLACE_WORDS + (lane / 4 + 8 * h) * GAP, skew_of(from(c.base, chunk, lane / 4 + 8 * h))};
      if (GPU_TILE_LOCKSTEP) {
        // All warps multiply as often; what is not there goes nowhere.
        f32 none[TILES][4] = {};
        if (runs == 0) lines[0] = lines[1] = Staged<Q::Align>{shared, 0};
        if constexpr (Slice::WORDS)
          for (u32 r = 0; words && r < CHUNK / 64; r++) multiply_words(r < slices ? acc : none, lines, r < slices ? r : 0, runs ? x_at : rows.row(0), rows.pitch());
        for (u32 r = 0; !words && r < RUNS; r++) multiply(r < runs ? acc : none, lines, r < runs ? r : 0, runs ? x_at : rows.row(0), rows.pitch());
      } else if (Slice::WORDS && words) {
        if constexpr (Slice::WORDS) {
          if (slices == CHUNK / 64) UNROLL for (u32 r = 0; r < CHUNK / 64; r++) multiply_words(acc, lines, r, x_at, rows.pitch());
          else NO_UNROLL for (u32 r = 0; r < slices; r++) multiply_words(acc, lines, r, x_at, rows.pitch());
        }
      } else if (runs == RUNS) UNROLL for (u32 r = 0; r < RUNS; r++) multiply(acc, lines, r, x_at, rows.pitch());
      else NO_UNROLL for (u32 r = 0; r < runs; r++) multiply(acc, lines, r, x_at, rows.pitch());
      c.advance(rounds, step);
      if (c.round) continue;
      if (splits > 1) {
        UNROLL for (u32 e = 0; e < VALUES; e++) totals[e * bdim_x() + tid_x()] = acc[e / 4][e % 4];
        barrier();
        for (u32 s = 1; split == 0 && s < splits; s++) UNROLL for (u32 e = 0; e < VALUES; e++) acc[e / 4][e % 4] += totals[e * bdim_x() + tid_x() + 32 * s];
        barrier();
      }
      if (split == 0 && group < groups) {
        UNROLL for (u32 e = 0; e < VALUES; e++) acc[e / 4][e % 4] *= factors[e / 4 * 8 + 2 * t + e % 2];
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
        for (u32 p = 0; p < parts.count; p++)
          UNROLL for (u32 e = 0; e < VALUES; e++) acc[e / 4][e % 4] += parts.sums[(((size_t)p * groups + base + i) * VALUES + e) * 32 + lane_id()];
        store(out, base + i, acc);
      }
  }
};

}  // namespace gpu
#endif
#endif
