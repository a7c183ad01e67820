// How quant-tile.h multiplies one row of x. The unit's columns 2t and 2t + 1 are the two planes of it where lane t of four brings the
// weights, and zero elsewhere: so each lane brings groups of its own, as they lie in memory, and gets their sums to scale, which else all
// four would do for each group.
#ifndef WICK_QUANT_LANES_H
#define WICK_QUANT_LANES_H
#include "quant-columns.h"

#if GPU_BYTE_TILES
namespace gpu {

// A type as lanes take it: where the upper nibbles of words are wanted as they lie, signed, their scale is a sixteenth, and the minimum
// has what they lack.
template <class Q> struct LaneType : Q {};
template <> struct LaneType<q4_k> : q4_k {
  template <int N, class Src> GPU_FN void words(const Src& s, u32 run, u32 first, u32 (&q)[2 * N]) {
    u32 x[N];
    s.load(16, 8 * run + first, x);
    UNROLL for (int j = 0; j < N; j++) {
      q[j] = low_nibbles(x[j]);
      q[N + j] = and_xor(x[j], 0xf0f0f0f0u, 0x80808080u);
    }
  }
  template <class Src> GPU_FN void scales(const Src& s, u32 run, u32 half, f32 (&scale)[2], f32 (&min)[2]) {
    q4_k::scales(s, run, half, scale, min);
    min[1] = m_fma(8.0f, scale[1], min[1]);
    scale[1] *= 1.0f / 16.0f;
  }
};

template <class Q, int P> struct TileRows<Q, 1, P> {
  // A lane has one run of Parts groups in each step.
  static constexpr u32 CHUNK = TILE_CHUNK, STEP = 4 * 32 * Q::Parts, STEPS = CHUNK / STEP, PER_BLOCK = Q::Elements / 32 / Q::Parts;
  // Words of a run that are stored, of which four are taken at a time, and zeros for as many groups as a chunk has.
  static constexpr int STORED = Q::Fields > Q::Parts ? 4 : 8, ZEROS = CHUNK / 4;
  static constexpr int X = 1, Sums = 2;  // a lane's sums are of its rows of W
  typedef Eight Fetched;
  GPU_FN size_t place(size_t group, u32 t) { return group * 4 + t; }
  // A vector more to each plane, so that what lanes read of two lies in all banks.
  GPU_FN u32 pitch(u32 segment) { return segment / 4 + 4; }
  GPU_FN u32 words(u32, u32 segment) { return P * pitch(segment) + (segment + 63) / 64 * 4 + ZEROS; }

  // Planes of x, {scale, sum} of each group, zeros.
  struct Rows {
    u32 *quants, *zeros;
    ScaleSum* sums;
    u32 between;
    static constexpr u32 batch = 1, rows = 1;

    GPU_METHOD Rows(u32* shared, u32, u32, u32 segment) : quants(shared + ZEROS), zeros(shared), between(pitch(segment)) {
      sums = (ScaleSum*)(quants + P * between);
      for (u32 i = tid_x(); i < ZEROS; i += bdim_x()) zeros[i] = 0;
    }
    GPU_METHOD void put(u32 group, u32, const Planes<P>& q, const ScaleSum& s) const {
      UNROLL for (int p = 0; p < P; p++) store_shared<2>(quants + p * between, group * 8 + lane_id() % 4 * 2, q.v[p]);
      if (lane_id() % 4 == 0) sums[group] = s;
    }
  };
  // Where this lane finds what it gives the unit of each plane, and {scale, sum} of the groups that it gets sums of.
  struct Sight {
    const u32 *planes, *rest;
    const ScaleSum* sums;
    GPU_METHOD Sight(const Rows& rows, u32 first) {
      const u32 y = lane_id() / 4;
      const bool own = y / 2 == lane_id() % 4;
      planes = own ? rows.quants + y % 2 * rows.between + first * 8 : rows.zeros;
      rest = own ? rows.quants + 2 * rows.between + first * 8 : rows.zeros;
      sums = rows.sums + first;
    }
  };

  // d += q · x of four words in each of two rows, both planes of x (and the third).
  struct Sums4 {
    i32 planes[4] = {}, rest[4] = {};
    GPU_METHOD void add(const u32* q0, const u32* q1, const Sight& x, u32 word) {
      const Words4 both = load_shared<4>(x.planes, word);
      UNROLL for (int i = 0; i < 4; i += 2) add_bytes(planes, {q0[i], q1[i], q0[i + 1], q1[i + 1]}, {both.v[i], both.v[i + 1]});
      if constexpr (P > 2) {
        const Words4 third = load_shared<4>(x.rest, word);
        UNROLL for (int i = 0; i < 4; i += 2) add_bytes(rest, {q0[i], q1[i], q0[i + 1], q1[i + 1]}, {third.v[i], third.v[i + 1]});
      }
    }
    GPU_METHOD f32 of(int row) const {
      const f32 sum = (f32)(planes[2 * row] * 256 + planes[2 * row + 1]);
      return P > 2 ? m_fma((f32)rest[2 * row], 1.0f / 256.0f, sum) : sum;
    }
  };
  // acc += a run of each of two rows, `exists` or not, with the groups of x from 8 · `word` words on.
  GPU_FN void multiply(f32 (&acc)[2], const Staged<Q::Align> (&block)[2], u32 run, const Sight& x, u32 group, bool exists) {
    f32 scale[2][Q::Halves][Q::Parts], min[2][Q::Halves][Q::Parts];
    UNROLL for (int h = 0; h < 2; h++) UNROLL for (int half = 0; half < Q::Halves; half++) {
      LaneType<Q>::scales(block[h], run, half, scale[h][half], min[h][half]);
      UNROLL for (int p = 0; p < Q::Parts; p++) {
        scale[h][half][p] = exists ? scale[h][half][p] : 0.0f;
        if (Q::HasMin) min[h][half][p] = exists ? min[h][half][p] : 0.0f;
      }
    }
    f32 total[Q::Parts][2] = {};
    Sums4 d[Q::Parts];
    UNROLL for (int i = 0; i < STORED; i += 4) {
      u32 q[2][4 * Q::Fields];
      UNROLL for (int h = 0; h < 2; h++) LaneType<Q>::template words<4>(block[h], run, i, q[h]);
      UNROLL for (int f = 0; f < Q::Fields; f++) {
        const int p = Q::Fields > Q::Parts ? 0 : f;
        d[p].add(q[0] + 4 * f, q[1] + 4 * f, x, (group + p) * 8 + (Q::Fields > Q::Parts ? 4 * f : i));
      }
      if constexpr (Q::Halves > 1) UNROLL for (int p = 0; p < Q::Parts; p++) {
        UNROLL for (int h = 0; h < 2; h++) total[p][h] = m_fma(scale[h][i / 4 % Q::Halves][p], d[p].of(h), total[p][h]);
        d[p] = Sums4();
        if constexpr (Q::HasMin) {
          // Minima that change within the group are multiplied with the sums of its halves.
          const u32 ones[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
          d[p].add(ones, ones, x, (group + p) * 8 + i);
          UNROLL for (int h = 0; h < 2; h++) total[p][h] = m_fma(min[h][i / 4 % Q::Halves][p], d[p].of(h), total[p][h]);
          d[p] = Sums4();
        }
      }
    }
    UNROLL for (int p = 0; p < Q::Parts; p++) {
      ScaleSum s = x.sums[group + p];
      UNROLL for (int i = 0; i < 2; i++) s.v[i] = exists ? s.v[i] : 0.0f;
      UNROLL for (int h = 0; h < 2; h++) {
        if (Q::Halves > 1) acc[h] = m_fma(s.v[0], total[p][h], acc[h]);
        else acc[h] = m_fma(scale[h][0][p], s.v[0] * d[p].of(h), acc[h]);
        if (Q::Halves == 1 && Q::HasMin) acc[h] = m_fma(min[h][0][p], s.v[1], acc[h]);
      }
    }
  }
  // acc += a chunk, of which `left` weights of each row are there, with x from `group` on.
  GPU_FN void take(f32 (&acc)[2], const u32* const (&row)[2], const u32 (&at)[2], const Rows& rows, u32 group, u32 left) {
    // What the four lanes take in a step are whole words, so that in the next bytes lie the same way.
    const auto step = [&](u32 s, u32 t, bool exists) {
      const u32 words = 4 * s / PER_BLOCK * Q::Bytes / 4, skew = t / PER_BLOCK * Q::Bytes;
      const Staged<Q::Align> block[2] = {{row[0] + words, at[0] + skew}, {row[1] + words, at[1] + skew}};
      multiply(acc, block, (4 * s + t) % PER_BLOCK, Sight(rows, group + t * Q::Parts), 4 * s * Q::Parts, exists);
    };
    const u32 t = lane_id() % 4;
    if (left >= CHUNK) UNROLL for (u32 s = 0; s < STEPS; s++) step(s, t, true);
    else NO_UNROLL for (u32 s = 0; s * STEP < left; s++) {
      // A lane without a run takes the first, and nothing of it.
      const bool exists = (4 * s + t) * 32 * Q::Parts < left;
      step(s, exists ? t : 0, exists);
    }
  }
  // What the four lanes have makes a row's sum.
  GPU_FN void finish(f32 (&acc)[2]) {
    UNROLL for (int h = 0; h < 2; h++) UNROLL for (u32 mask = 1; mask < 4; mask *= 2) acc[h] += shfl_xor(acc[h], mask);
  }
};

}  // namespace gpu
#endif
#endif
