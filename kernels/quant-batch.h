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

#if GPU_NVIDIA
#define BV_PRAGMA_A _Pragma("unroll AT_ONCE")
#define BV_PRAGMA_B _Pragma("unroll 2")
#else
#define BV_PRAGMA_A
#define BV_PRAGMA_B
#endif
#ifndef QUANT_BATCH_GROUPS
#define QUANT_BATCH_GROUPS 1
#endif
#ifndef QUANT_BATCH_PLACES
#define QUANT_BATCH_PLACES 2
#endif
#ifndef QUANT_BATCH_UNROLL
#define QUANT_BATCH_UNROLL 2
#endif
template <class Q, u32 ROWS> struct QuantBatch {
  static constexpr int AT_ONCE = QUANT_BATCH_UNROLL;
  typedef QuantSlice<Q> Slice;
  static constexpr u32 TILES = ROWS / 8, VALUES = 4 * TILES;  // of the unit; a lane's sums
  static constexpr u32 GROUPS = QUANT_BATCH_GROUPS, LINES = 16 * GROUPS;  // of W, that a warp takes at a time
  static constexpr u32 CHUNK = Q::Fine ? QUANT_BATCH_FINE : QUANT_BATCH_CHUNK, RUN = 32 * Q::Parts, RUNS = CHUNK / RUN, PER_BLOCK = Q::Elements / RUN;
  // Vectors that a row's chunk lies in at most. Rows are an odd number of vectors apart, so that eight hit all banks.
  static constexpr u32 BYTES = CHUNK / Q::Elements * Q::Bytes, VECTORS = (BYTES + 16 - Q::Align + 15) / 16, GAP = (VECTORS | 1u) * 4, PLACE_WORDS = LINES * GAP;
  static constexpr u32 PLACES = QUANT_BATCH_PLACES;
  typedef Outputs<16, ROWS> Out;
  typedef f32 Sums[GROUPS][TILES][4];
  typedef Staged<Q::Align> Lines[GROUPS][2];

  // What of x a block has in shared memory: `width` elements of each row, whole chunks; and what the products of each row are to be
  // multiplied with.
  struct Rows {
    u16* halves;
    f32* factors;
    u32 width;
    GPU_METHOD u32 pitch() const { return width + 32; }  // sixteen bytes of four lanes of two rows lie in all banks
    GPU_METHOD u16* row(u32 b) const { return halves + b * pitch(); }
  };
  GPU_FN u32 larger_of_pairs(u32 a, u32 b) {
#if GPU_NVIDIA
    u32 y;
    asm("max.u16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
#else
    const u32 low = (a & 0xffffu) > (b & 0xffffu) ? a & 0xffffu : b & 0xffffu;
    return low | (a >> 16 > b >> 16 ? a >> 16 : b >> 16) << 16;
#endif
  }
  // The first `count` elements of a row, which are there as they came, become what is multiplied: f16 as it is, of bf16 each the same
  // with another exponent. Of each 32, lane t of four has eight side by side: four of the first sixteen and four of the others, in
  // the order in which weights come.
  GPU_FN void lift(const Rows& rows, u32 b, u32 count, u32 dtype, u32 order) {
    const bool own = b < ROWS;
    u32* const row = (u32*)rows.row(own ? b : 0);
    u32 least = 0;
    f32 down = 1;
    if (dtype != DTYPE_f16) {
      u32 largest = 0;
      if (own) UNROLL_SOME for (u32 i = lane_id(); i < count / 8; i += 32) {
        const Words4 raw = load_shared<4>(row, 4 * i);
        UNROLL for (int j = 0; j < 4; j++) largest = larger_of_pairs(largest, raw.v[j] & 0x7fff7fffu);
      }
      UNROLL for (u32 mask = 16; mask; mask /= 2) largest = larger_of_pairs(largest, shfl_xor(largest, mask));
      const u32 exponent = (largest > largest << 16 ? largest >> 16 : largest & 0xffffu) >> 7, near = exponent < 30 ? 30 : exponent > 253 ? 253 : exponent;
      least = (near - 29) * 0x00800080u;
      down = f32_from_bits((near - 14) << 23);
    }
    if (own && lane_id() == 0) rows.factors[b] = down;
    // The words that a lane's eight come from.
    u32 from[4];
    UNROLL for (u32 j = 0; j < 4; j++) {
      const u32 t = lane_id() % 4, step = lane_id() % 8 / 4 * 2 + j / 2;
      from[j] = ordered_from(step * 16 + 2 * t + (order == QUANT_ORDER_ANY ? j % 2 * 8 : j % 2), order) / 2;
    }
    // All of a slice is read before any of it is written.
    UNROLL_SOME for (u32 first = 0; first < count / 8; first += 32) {
      const u32 i = first + lane_id();
      const bool there = own && i < count / 8;
      u32 v[4];
      UNROLL for (int j = 0; j < 4; j++) {
        const u32 raw = there ? row[i / 8 * 32 + from[j]] : 0;
        v[j] = dtype == DTYPE_f16 ? raw : (larger_of_pairs(raw & 0x7fff7fffu, least) - least) << 3 | (raw & 0x80008000u);
      }
      wave_sync();
      Words4 halves;
      UNROLL for (int j = 0; j < 4; j++)
        halves.v[j] = order == QUANT_ORDER_ANY ? v[j] : j % 2 ? v[j - 1] >> 16 | (v[j] & 0xffff0000u) : (v[j] & 0xffffu) | v[j + 1] << 16;
      if (there) store_shared<4>(row, 4 * i, halves);
    }
  }

  // acc += 32 weights of each line with those of x at `right`; decode(g, h, half, left) gives a lane's of 16, of line h of group g.
  template <class Decode> GPU_FN void multiply_32(Sums& acc, const u16* x_at, u32 pitch, Decode decode) {
    Words4 right[TILES];
    UNROLL for (u32 j = 0; j < TILES; j++) right[j] = *(const Words4*)(x_at + j * 8 * pitch);
    UNROLL for (u32 half = 0; half < 2; half++)
      UNROLL for (u32 g = 0; g < GROUPS; g++) {
        u32 left[4];
        UNROLL for (u32 h = 0; h < 2; h++) decode(g, h, half, left[h], left[2 + h]);
        UNROLL for (u32 j = 0; j < TILES; j++) mma_m16n8k16(f16{}, acc[g][j], left, right[j].v + 2 * half);
      }
  }
  // acc += run `run` of a chunk, whose rows' weights begin at `lines`, with those of x from x_at on.
  GPU_FN void multiply(Sums& acc, const Lines& lines, u32 run, const u16* x_at, u32 pitch) {
    typename Q::Frag f[GROUPS][2];
    UNROLL for (u32 g = 0; g < GROUPS; g++)
      UNROLL for (u32 h = 0; h < 2; h++)
        Q::fragment(Staged<Q::Align>{lines[g][h].words, lines[g][h].at + run / PER_BLOCK * Q::Bytes}, run % PER_BLOCK, lane_id() % 4, f[g][h]);
    UNROLL for (u32 p = 0; p < Q::Parts; p++)
      multiply_32(acc, x_at + (run * Q::Parts + p) * 32, pitch, [&](u32 g, u32 h, u32 half, u32& first, u32& second) {
        const typename Q::Frag& q = f[g][h];
        const u32 s = Q::Halves == 1 ? 0 : half;
        const f32 scale = 16 * q.scale[s][p], min = Q::HasMin ? q.min[s][p] : 0.0f;
        scaled_halves<Q::HasMin>(q.q[p][half], pack2(f16{}, scale, scale), Q::HasMin ? pack2(f16{}, min, min) : 0, first, second);
      });
  }
  // The same of slice `slice` of a chunk in words.
  GPU_FN void multiply_words(Sums& acc, const Lines& lines, u32 slice, const u16* x_at, u32 pitch) {
    Slice w[GROUPS][2];
    UNROLL for (u32 g = 0; g < GROUPS; g++)
      UNROLL for (u32 h = 0; h < 2; h++) w[g][h].template load<0>(Staged<Q::Align>{lines[g][h].words + slice * Slice::STORED, 0}, 64);
    multiply_32(acc, x_at + slice * 64, pitch, [&](u32 g, u32 h, u32 half, u32& first, u32& second) {
      if (half == 0) w[g][h].template decode<0, 0>(first, second);
      else w[g][h].template decode<0, 1>(first, second);
    });
    multiply_32(acc, x_at + slice * 64 + 32, pitch, [&](u32 g, u32 h, u32 half, u32& first, u32& second) {
      if (half == 0) w[g][h].template decode<0, 2>(first, second);
      else w[g][h].template decode<0, 3>(first, second);
    });
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
    const u32 rounds = (most + splits - 1) / splits, step = out.share.blocks * together, groups = out.groups(), sets = (groups + GROUPS - 1) / GROUPS, row_bytes = k / Q::Elements * Q::Bytes;
    // Shared memory: x, its factors, weights of each warp, what warps tell each other.
    const u32 width = most * CHUNK, here = k - first * CHUNK < width ? k - first * CHUNK : width;
    f32* const factors = (f32*)((u16*)shared + ROWS * (width + 32));
    const Rows rows{(u16*)shared, factors, width};
    u32* const weights = (u32*)(factors + ROWS) + warp * PLACES * PLACE_WORDS;
    f32* const totals = (f32*)((u32*)(factors + ROWS) + warps * PLACES * PLACE_WORDS);

    // Line r of those that a warp takes together.
    const auto from = [&](u32 base, u32 chunk, u32 r) { return (size_t)out.row((base + own) * GROUPS + r / 16, r % 16) * row_bytes + (first + chunk) * BYTES; };
    const auto skew_of = [](size_t begin) { return Q::Align == 16 ? 0 : (u32)begin & 15u; };
    Signal* const own_signals = signals + warp * PLACES;
    if (BULK_COPIES) {
      if (lane < PLACES) make_signal(own_signals + lane, 1);
      signals_made();
      wave_sync();
    }
    Cursor sent{out.share.block * together, 0, 0, 0};
    const auto send = [&] {
      const u32 chunk = sent.round * splits + split, left = k - (first + chunk) * CHUNK, count = (left < CHUNK ? left : CHUNK) / Q::Elements * Q::Bytes;
      const bool wanted = sent.base + own < sets && chunk < chunks;
      u32* const place = weights + sent.place * PLACE_WORDS;
      Signal* const signal = own_signals + sent.place;
      if (BULK_COPIES) {
        // By one lane, where rows lie evenly; else a row to each.
        if (!wanted) {
          if (one_lane()) expect_bytes(signal, 0);
        } else if (BYTES % 16 == 0 && row_bytes % 16 == 0 && (sent.base + own + 1) * GROUPS * out.per_group() <= out.columns) {
          const u8 *upper = w + from(sent.base, chunk, 0), *lower = w + from(sent.base, chunk, 8);
          if (one_lane()) {
            expect_bytes(signal, LINES * count);
            UNROLL for (u32 r = 0; r < LINES; r++) copy_bulk(place + r * GAP, (r / 8 % 2 ? lower : upper) + (r / 16 * out.per_group() + r % 8) * row_bytes, count, signal);
          }
        } else {
          const size_t begin = from(sent.base, chunk, lane % LINES);
          const u32 skew = skew_of(begin), bytes = (skew + count + 15) / 16 * 16;
          u32 total = bytes;
          UNROLL for (u32 mask = LINES / 2; mask; mask /= 2) total += shfl_xor(total, mask);
          if (one_lane()) expect_bytes(signal, total);
          wave_sync();
          if (lane < LINES) copy_bulk(place + lane * GAP, w + (begin - skew), bytes, signal);
        }
      } else {
        // Four lanes to a row, and to the eighths behind it.
        UNROLL for (u32 r = lane / 4; r < LINES; r += 8) {
          const size_t begin = from(sent.base, chunk, r);
          const u32 end = wanted ? skew_of(begin) + count : 0;
          UNROLL for (u32 v = t; v < VECTORS; v += 4) copy16_async(place + r * GAP + 4 * v, w + (begin - skew_of(begin)) + 16 * v, 16 * v < end);
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
    for (u32 b = warp; b < ROWS + warp; b += warps) lift(rows, b, here, out.dtype, words ? Slice::ORDER : QUANT_ORDER_ANY);
    barrier();

    Sums acc = {};
    for (Cursor c{out.share.block * together, 0, 0, 0}; c.base < sets;) {
      const u32 chunk = c.round * splits + split, set = c.base + own;
      if (BULK_COPIES) await_signal(own_signals + c.place, c.phase);
      else copies_wait_but<PLACES - 2>();
      wave_sync();
      // Every lane has done with the chunk before this one: its place is free.
      send();
      const u32 left = (k - (first + chunk) * CHUNK) / RUN, runs = set >= sets || chunk >= chunks ? 0 : left < RUNS ? left : RUNS;
      const u32 slices = runs * RUN / 64;
      const u16* const x_at = rows.row(lane / 4) + chunk * CHUNK + t * 8;
      Lines lines;
      UNROLL for (u32 g = 0; g < GROUPS; g++)
        UNROLL for (u32 h = 0; h < 2; h++) {
          const u32 r = 16 * g + 8 * h + lane / 4;
          lines[g][h] = Staged<Q::Align>{weights + c.place * PLACE_WORDS + r * GAP, words ? 0 : skew_of(from(c.base, chunk, r))};
        }
      if (GPU_TILE_LOCKSTEP) {
        // All warps multiply as often; what is not there goes nowhere.
        Sums none = {};
        if (runs == 0) UNROLL for (u32 i = 0; i < 2 * GROUPS; i++) lines[i / 2][i % 2] = Staged<Q::Align>{shared, 0};
        if constexpr (Slice::WORDS)
          for (u32 r = 0; words && r < CHUNK / 64; r++) multiply_words(r < slices ? acc : none, lines, r < slices ? r : 0, runs ? x_at : rows.row(0), rows.pitch());
        for (u32 r = 0; !words && r < RUNS; r++) multiply(r < runs ? acc : none, lines, r < runs ? r : 0, runs ? x_at : rows.row(0), rows.pitch());
      } else if (Slice::WORDS && words) {
        if constexpr (Slice::WORDS) BV_PRAGMA_A for (u32 r = 0; r < slices; r++) multiply_words(acc, lines, r, x_at, rows.pitch());
      } else BV_PRAGMA_B for (u32 r = 0; r < runs; r++) multiply(acc, lines, r, x_at, rows.pitch());
      c.advance(rounds, step);
      if (c.round) continue;
      if (splits > 1) {
        UNROLL for (u32 e = 0; e < GROUPS * VALUES; e++) totals[e * bdim_x() + tid_x()] = value(acc, e);
        barrier();
        for (u32 s = 1; split == 0 && s < splits; s++) UNROLL for (u32 e = 0; e < GROUPS * VALUES; e++) value(acc, e) += totals[e * bdim_x() + tid_x() + 32 * s];
        barrier();
      }
      if (split == 0 && set < sets) {
        UNROLL for (u32 e = 0; e < GROUPS * VALUES; e++) value(acc, e) *= factors[e % VALUES / 4 * 8 + 2 * t + e % 2];
        NO_UNROLL for (u32 g = 0; g < GROUPS; g++) {
          const u32 group = set * GROUPS + g;
          f32 own_sums[TILES][4];
          UNROLL for (u32 e = 0; e < VALUES; e++) own_sums[e / 4][e % 4] = g ? acc[GROUPS - 1][e / 4][e % 4] : acc[0][e / 4][e % 4];
          if (group >= groups) break;
          if (parts.count == 1) store(out, group, own_sums);
          else UNROLL for (u32 e = 0; e < VALUES; e++) parts.sums[(((size_t)parts.own * groups + group) * VALUES + e) * 32 + lane] = own_sums[e / 4][e % 4];
        }
      }
      UNROLL for (u32 e = 0; e < GROUPS * VALUES; e++) value(acc, e) = 0;
    }
    if (parts.count > 1) add_up(shared, out, groups, parts, together * GROUPS);
  }
  GPU_FN f32& value(Sums& acc, u32 e) { return acc[e / VALUES][e % VALUES / 4][e % 4]; }

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
