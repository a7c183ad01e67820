// The product of five to eight rows with quantized weights on matrix units: with bytes on both sides these multiply in a
// single instruction what takes 32 of dot4. kernels/quant-matvec.hip picks where.
#ifndef WICK_QUANT_TILE_H
#define WICK_QUANT_TILE_H
#include "gpu/matrix-bytes.h"
#include "quant-activations.h"
#include "quant.h"

#if GPU_BYTE_TILES
namespace gpu {

// y (batch, n) = f(norm(x) (batch, k) · W (n, k)ᵀ + bias) + residual for batch ≤ 8; arguments as in linear.hip. x comes as
// floats of `dtype` or, with xs, as quantize_q8's bytes. `splits` warps share 16 rows of W. A warp takes CHUNK weights of each
// row at a time by way of its own shared memory; while it multiplies one chunk, the next ones are on their way to its other
// Places, the first of them before x is looked at. Traffic: weights once; x once per block, from the cache.
template <class Q> struct TileVec {
  static constexpr u32 CHUNK = TILE_CHUNK, Runs = CHUNK / 32 / Q::Parts, ChunkBytes = CHUNK / Q::Elements * Q::Bytes;
  // Vectors that a row's chunk lies in at most. Rows are an odd number of vectors apart, so that eight hit all banks.
  static constexpr u32 Vectors = (ChunkBytes + 16 - Q::Align + 15) / 16, Pitch = (Vectors | 1u) * 4, StageWords = 16 * Pitch;
  // As many as fourteen warps can have beside eight rows of 4096 elements.
  static constexpr u32 Fit = TILE_STAGES / 4 / StageWords, Places = Fit < 2 ? 2 : Fit > 4 ? 4 : Fit;
  typedef Outputs<16, 8> Out;

  // x by groups of 32 in shared memory: of each row, lane 4b + t's words t and t + 4 together, and {scale, sum}. Rows that x does
  // not have are the last once more.
  struct Rows {
    u32* quants;
    ScaleSum* sums;
    u32 k, batch;

    // For each N groups of this warp load(item, row, group) and then, when the next N are on their way and meanwhile() has
    // started something else, take(items, first group, step). What is past the last group or row is the last once more.
    template <class Item, int N, class Load, class Take, class Meanwhile>
    GPU_METHOD void each(Load load, Take take, Meanwhile meanwhile) const {
      const u32 step = bdim_x() / 32, groups = k / 32, b = lane_id() / 4 < batch ? lane_id() / 4 : batch - 1;
      const auto fetch = [&](Item(&items)[N], u32 first) {
        UNROLL for (int i = 0; i < N; i++) load(items[i], b, first + i * step < groups ? first + i * step : groups - 1);
      };
      Item even[N], odd[N];
      fetch(even, tid_x() / 32);
      NO_UNROLL for (u32 first = tid_x() / 32; first < groups; first += 2 * N * step) {
        fetch(odd, first + N * step);
        meanwhile();
        take(even, first, step);
        fetch(even, first + 2 * N * step);
        if (first + N * step < groups) take(odd, first + N * step, step);
      }
    }
    GPU_METHOD void put(u32 group, const Words2& q, const ScaleSum& s, bool wanted) const {
      if (wanted) store_shared<2>(quants, group * 64 + lane_id() * 2, q);
      if (wanted && lane_id() % 4 == 0) sums[group * 8 + lane_id() / 4] = s;
    }
  };
  template <class Meanwhile> GPU_FN void copy_rows(const Rows& to, const u32* x, const ScaleSum* xs, Meanwhile meanwhile) {
    struct Item {
      Words2 q;
      ScaleSum s;
    };
    constexpr int N = 4;
    const u32 t = lane_id() % 4;
    to.template each<Item, N>(
        [&](Item& item, u32 b, u32 group) {
          UNROLL for (int half = 0; half < 2; half++) item.q.v[half] = x[(size_t)b * (to.k / 4) + group * 8 + half * 4 + t];
          item.s = xs[(size_t)b * (to.k / 32) + group];
        },
        [&](const Item* items, u32 first, u32 step) {
          UNROLL for (int i = 0; i < N; i++) to.put(first + i * step, items[i].q, items[i].s, first + i * step < to.k / 32);
        },
        meanwhile);
  }
  // Rounds x, with a norm x · scale · alpha, in the rows that `wanted` names. Returns this lane's part of its row's (x · scale)².
  template <class Meanwhile>
  GPU_FN f32 round_rows(const Rows& to, const void* x, const void* alpha, u32 dtype, f32 scale, u32 wanted, Meanwhile meanwhile) {
    constexpr int N = 2;
    struct Item {
      TwoFours x, weight;
    };
    const u32 t = lane_id() % 4;
    f32 square = 0;
    to.template each<Item, N>(
        [&](Item& item, u32 b, u32 group) {
          item.x.load(x, (size_t)b * (to.k / 4) + group * 8 + t, dtype);
          if (alpha) item.weight.load(alpha, group * 8 + t, dtype);
        },
        [&](const Item* items, u32 first, u32 step) {
          f32 values[N][8];
          UNROLL for (int i = 0; i < N; i++) items[i].x.get(values[i], dtype);
          if (alpha) UNROLL for (int i = 0; i < N; i++) {
            f32 factor[8];
            items[i].weight.get(factor, dtype);
            UNROLL for (int j = 0; j < 8; j++) {
              values[i][j] *= scale;
              square += first + i * step < to.k / 32 ? values[i][j] * values[i][j] : 0.0f;
              values[i][j] *= factor[j];
            }
          }
          Words2 q[N];
          ScaleSum s[N];
          UNROLL for (int i = 0; i < N; i++) q[i] = round_group(values[i], s[i]);
          UNROLL for (int i = 0; i < N; i++) to.put(first + i * step, q[i], s[i], first + i * step < to.k / 32 && wanted >> lane_id() / 4 & 1u);
        },
        meanwhile);
    return square;
  }
  // x in shared memory. Returns what the products of row lane / 4 are to be multiplied with.
  template <class Meanwhile>
  GPU_FN f32 prepare(const Rows& to, f32* squares, const void* x, const ScaleSum* xs, const void* alpha, f32 eps, u32 dtype, Meanwhile meanwhile) {
    if (xs) {
      copy_rows(to, (const u32*)x, xs, meanwhile);
      barrier();
      return 1.0f;
    }
    const u32 b = lane_id() / 4, warps = bdim_x() / 32;
    u32 large = 0;
    f32 square = 0;
    // Rows whose squares overflow go again, made small. All threads see the same.
    NO_UNROLL for (u32 again = 0;; again++) {
      const f32 own = round_rows(to, x, alpha, dtype, again ? small_scale() : 1.0f, again ? large : ~0u, meanwhile);
      if (alpha) {
        const f32 half = own + shfl_xor(own, 1), whole = half + shfl_xor(half, 2);
        if (lane_id() % 4 == 0) squares[tid_x() / 32 * 8 + b] = whole;
      }
      barrier();
      if (!alpha) return 1.0f;
      if (!again || large >> b & 1u) {
        square = 0;
        for (u32 w = 0; w < warps; w++) square += squares[w * 8 + b];
      }
      if (!again) {
        large = is_infinite(square) ? 1u << b : 0;
        UNROLL for (u32 mask = 16; mask > 2; mask /= 2) large |= shfl_xor(large, mask);
      }
      if (again || !large) return norm_factor(square, to.k, large >> b & 1u ? 0.0f : eps);
      barrier();
    }
  }

  // acc += the products of run `run` of a chunk, in two rows of which this lane has the words t and t + 4.
  GPU_FN void multiply(f32 (&acc)[4], const u32* const (&row)[2], const u32 (&at)[2], u32 run, const u16* table, const u32* quants, const f32* sums,
                       u32 group) {
    constexpr u32 PerBlock = Q::Elements / 32 / Q::Parts;
    const u32 lane = lane_id(), t = lane % 4;
    typename Q::Frag f[2];
    UNROLL for (int h = 0; h < 2; h++) {
      const Staged<Q::Align> block{row[h], at[h] + run / PerBlock * Q::Bytes};
      Q::fragment(block, run % PerBlock, t, table, f[h]);
    }
    UNROLL for (int g = 0; g < Q::Parts; g++) {
      const Words2 x = load_shared<2>(quants, (group + g) * 64 + lane * 2);
      // Of the rows 2t and 2t + 1.
      const Vec<f32, 4> s = load_shared<4>(sums, (group + g) * 16 + t * 4);
      if (Q::Group == 32) {
        i32 d[4];
        multiply_bytes(d, {f[0].q[g][0], f[1].q[g][0], f[0].q[g][1], f[1].q[g][1]}, {x.v[0], x.v[1]});
        UNROLL for (int e = 0; e < 4; e++) {
          acc[e] = m_fma(f[e / 2].scale[0][g], s.v[e % 2 * 2] * (f32)d[e], acc[e]);
          if (Q::HasMin) acc[e] = m_fma(f[e / 2].min[0][g], s.v[e % 2 * 2 + 1], acc[e]);
        }
      } else {
        f32 total[4] = {};
        UNROLL for (int half = 0; half < Q::Halves; half++) {
          i32 d[4];
          multiply_bytes(d, {f[0].q[g][half], f[1].q[g][half]}, {x.v[half]});
          UNROLL for (int e = 0; e < 4; e++) total[e] = m_fma(f[e / 2].scale[half][g], (f32)d[e], total[e]);
          if (!Q::HasMin) continue;
          // Minima that change within the group are multiplied with the sums of its halves.
          multiply_bytes(d, {0x01010101u, 0x01010101u}, {x.v[half]});
          UNROLL for (int e = 0; e < 4; e++) total[e] = m_fma(f[e / 2].min[half][g], (f32)d[e], total[e]);
        }
        UNROLL for (int e = 0; e < 4; e++) acc[e] = m_fma(s.v[e % 2 * 2], total[e], acc[e]);
      }
    }
  }

  GPU_FN void run(u32* shared, u16* table, const Out& out, u32 k, const u8* w, const void* x, const ScaleSum* xs, const void* alpha,
                  f32 eps, u32 splits) {
    const u32 warps = bdim_x() / 32, warp = tid_x() / 32, lane = lane_id(), t = lane % 4;
    const u32 part = warp % splits, own = warp / splits, per_block = warps / splits;
    const u32 chunks = (k + CHUNK - 1) / CHUNK, rounds = (chunks + splits - 1) / splits, step = gdim_x() * per_block;
    const u32 groups = out.groups(), row_bytes = k / Q::Elements * Q::Bytes;
    // Shared memory: x, then weights of each warp, then what warps tell each other.
    const Rows rows{shared, (ScaleSum*)(shared + 2 * k), k, out.batch};
    u32* weights = shared + 2 * k + k / 2 + warp * Places * StageWords + lane / 4 * Pitch;
    f32* totals = (f32*)(shared + 2 * k + k / 2 + warps * Places * StageWords);
    f32* squares = totals + warps * 128;

    // Which group comes, which of its chunks, and to which place.
    struct Cursor {
      u32 group, round, place;
      GPU_METHOD void advance(u32 rounds, u32 step) {
        place = place + 1 == Places ? 0 : place + 1;
        round = round + 1 == rounds ? 0 : round + 1;
        group += round ? 0 : step;
      }
    };
    // Where the chunk begins in row lane / 4 or eight rows further.
    const auto from = [&](const Cursor& c, int h) {
      return (size_t)out.row(c.group, lane / 4 + 8 * h) * row_bytes + (c.round * splits + part) * ChunkBytes;
    };
    Cursor sent{bid_x() * per_block + own, 0, 0};
    u32 started = 0;
    const auto send = [&] {
      const u32 chunk = sent.round * splits + part;
      if (sent.group < groups && chunk < chunks) {
        const u32 count = (k - chunk * CHUNK < CHUNK ? k - chunk * CHUNK : CHUNK) / Q::Elements * Q::Bytes;
        UNROLL for (int h = 0; h < 2; h++) {
          const size_t begin = from(sent, h);
          const u32 skew = Q::Align == 16 ? 0 : (u32)begin & 15u;
          const u8* src = w + (begin - skew) + 16 * t;
          u32* to = weights + sent.place * StageWords + h * 8 * Pitch + 4 * t;
          UNROLL for (u32 j = 0; j < Vectors; j += 4) copy16_async(to + 4 * j, src + 16 * j, 16 * (j + t) < skew + count);
        }
      }
      copies_bunch();
      sent.advance(rounds, step);
    };
    // Loads of x would wait behind weights that are asked for before: a chunk of these goes between the loads.
    const auto start = [&] {
      if (started + 1 < Places) send();
      started++;
    };
    fill_table<Q>(table);
    start();
    wait_for_previous();
    const f32 factor = prepare(rows, squares, x, xs, alpha, eps, out.dtype, start);
    while (started + 1 < Places) start();
    const f32 factors[2] = {shfl(factor, 8 * t), shfl(factor, 8 * t + 4)};

    f32 acc[4] = {};
    for (Cursor c{bid_x() * per_block + own, 0, 0}; c.group - own < groups;) {
      copies_wait_but<Places - 2>();
      wave_sync();
      // Every lane has done with the chunk before this one: its place is free.
      send();
      const u32 chunk = c.round * splits + part, group = c.group;
      const u32* const row[2] = {weights + c.place * StageWords, weights + c.place * StageWords + 8 * Pitch};
      const u32 at[2] = {Q::Align == 16 ? 0 : (u32)from(c, 0) & 15u, Q::Align == 16 ? 0 : (u32)from(c, 1) & 15u};
      const auto take = [&](u32 r) { multiply(acc, row, at, r, table, rows.quants, (const f32*)rows.sums, chunk * (CHUNK / 32) + r * Q::Parts); };
      // Warps of a group that does not exist only keep step with the others. Runs that follow each other without a question
      // overlap, so only the last chunk asks.
      if (group < groups && (chunk + 1) * CHUNK <= k) UNROLL for (u32 r = 0; r < Runs; r++) take(r);
      else if (group < groups && Q::Elements < (int)CHUNK) NO_UNROLL for (u32 r = 0; chunk * CHUNK + r * 32 < k; r++) take(r);
      c.advance(rounds, step);
      if (c.round) continue;
      if (splits > 1) {
        store_shared<4>(totals, tid_x() * 4, Vec<f32, 4>{{acc[0], acc[1], acc[2], acc[3]}});
        barrier();
        for (u32 p = 1; part == 0 && p < splits; p++) {
          const Vec<f32, 4> other = load_shared<4>(totals, (tid_x() + 32 * p) * 4);
          UNROLL for (int e = 0; e < 4; e++) acc[e] += other.v[e];
        }
        barrier();
      }
      if (part == 0) {
        UNROLL for (int e = 0; e < 4; e++) acc[e] = out.biased(group, lane / 4 + e / 2 * 8, acc[e] * factors[e % 2]);
        UNROLL for (int e = 0; e < 4; e++) {
          if (out.glu && e >= 2) continue;
          out.put(group, lane / 4 + e / 2 * 8, 2 * t + e % 2, out.glu ? out.gated(acc[e], acc[e % 2 + 2]) : acc[e]);
        }
      }
      UNROLL for (int e = 0; e < 4; e++) acc[e] = 0;
    }
  }
};

}  // namespace gpu
#endif  // GPU_BYTE_TILES
#endif  // WICK_QUANT_TILE_H
