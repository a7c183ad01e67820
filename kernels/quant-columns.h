// How quant-tile.h multiplies up to eight rows of x: each is a column of the matrix unit, or two in their two planes.
#ifndef WICK_QUANT_COLUMNS_H
#define WICK_QUANT_COLUMNS_H
#include "gpu/matrix-bytes.h"
#include "quant-activations.h"
#include "quant.h"

#if GPU_BYTE_TILES
namespace gpu {

// NB: 4 or 8, the rows that there may be; P planes of each. The unit has eight columns: four rows of x in their two planes, or one plane
// of eight rows and then the other; then the third plane, where there are P = 3.
template <class Q, int NB, int P> struct TileRows {
  static constexpr u32 CHUNK = TILE_CHUNK, Runs = CHUNK / 32 / Q::Parts;
  // A lane's sums: value e is of its row e / X of W with row X · (lane % 4) + e % X of x.
  static constexpr int X = NB / 4, Sums = 2 * X;
  typedef TwoFours Fetched;
  GPU_FN size_t place(size_t group, u32 t) { return group * 8 + t; }
  GPU_FN u32 words(u32 rows, u32 segment) { return rows * (segment / 4 * P) + (rows * segment + 63) / 64 * 4; }

  // x by groups of 32 in shared memory: of each row, for t below 4, the high bytes of words t and t + 4 and then the low ones; what
  // is behind the point; and {scale, sum}.
  struct Rows {
    u32 *quants, *rests;
    ScaleSum* sums;
    u32 batch, rows;  // rows: a power of two, for which there is room

    GPU_METHOD Rows(u32* shared, u32 batch, u32 rows, u32 segment)
        : quants(shared), rests(shared + rows * (segment / 2)), sums((ScaleSum*)(shared + rows * (segment / 4) * P)), batch(batch), rows(rows) {}
    GPU_METHOD u32 at(u32 group, u32 b) const { return group * rows + b; }
    GPU_METHOD void put(u32 group, u32 b, const Planes<P>& q, const ScaleSum& s) const {
      const Words4 both{{q.v[0].v[0], q.v[0].v[1], q.v[1].v[0], q.v[1].v[1]}};
      store_shared<4>(quants, (at(group, b) * 4 + lane_id() % 4) * 4, both);
      if constexpr (P > 2) store_shared<2>(rests, (at(group, b) * 4 + lane_id() % 4) * 2, q.v[2]);
      if (lane_id() % 4 == 0) sums[at(group, b)] = s;
    }
    // What lane 4 y + t gives the unit: of four rows plane y % 2 of row y / 2, of eight both planes of row y.
    typedef Vec<u32, 2 * X> Piece;
    GPU_METHOD Piece piece(u32 group) const {
      const u32 y = lane_id() / 4, b = X == 2 ? y : y / 2, plane = X == 2 ? 0 : y % 2;
      return load_shared<2 * X>(quants, (at(group, b < batch ? b : 0) * 4 + lane_id() % 4) * 4 + 2 * plane);
    }
    // The same of the third plane; of four rows both columns of a row are the same.
    GPU_METHOD Words2 rest(u32 group) const {
      const u32 b = lane_id() / 4 * X / 2;
      return load_shared<2>(rests, (at(group, b < batch ? b : 0) * 4 + lane_id() % 4) * 2);
    }
    // {scale, sum} of the rows of this lane's sums.
    GPU_METHOD void get_sums(u32 group, ScaleSum (&s)[X]) const {
      UNROLL for (int i = 0; i < X; i++) {
        const u32 b = X * (lane_id() % 4) + i;
        s[i] = sums[at(group, b < batch ? b : 0)];
      }
    }
  };
  // Σ q · x over all planes, for the sums of this lane; `words` of one half of a group or of all of it.
  template <int N> GPU_FN void products(f32 (&d)[Sums], const u32 (&a)[2 * N], const typename Rows::Piece& x, const Words2& rest, int half) {
    i32 one[4];
    if constexpr (X == 1) {
      take_product<N>(one, a, x.v, half);
      UNROLL for (int e = 0; e < 2; e++) d[e] = (f32)(one[2 * e] * 256 + one[2 * e + 1]);
    } else {
      i32 other[4];
      take_product<N>(one, a, x.v, half);
      take_product<N>(other, a, x.v + 2, half);
      UNROLL for (int e = 0; e < 4; e++) d[e] = (f32)(one[e] * 256 + other[e]);
    }
    if constexpr (P > 2) {
      take_product<N>(one, a, rest.v, half);
      UNROLL for (int e = 0; e < Sums; e++) d[e] = m_fma((f32)one[X == 1 ? 2 * e : e], 1.0f / 256.0f, d[e]);
    }
  }
  template <int N> GPU_FN void take_product(i32 (&d)[4], const u32 (&a)[2 * N], const u32* x, int half) {
    if constexpr (N == 2) multiply_bytes(d, a, {x[0], x[1]});
    else multiply_bytes(d, a, {x[half]});
  }

  // Blocks of four runs whose scales take long to find: lane t finds those of run t in its two rows, for all four.
  static constexpr u32 PerBlock = Q::Elements / 32 / Q::Parts;
  static constexpr bool Shares = PerBlock == 4 && Q::Halves == 1;
  struct Found {
    f32 scale[2][Q::Parts], min[2][Q::Parts];
  };
  // acc += the products of run `run` of a chunk, in two rows of which this lane has the words t and t + 4.
  GPU_FN void multiply(f32 (&acc)[Sums], const u32* const (&row)[2], const u32 (&at)[2], u32 run, const Rows& rows, u32 group,
                       Found& found) {
    typename Q::Frag f[2];
    UNROLL for (int h = 0; h < 2; h++) {
      // Four blocks are whole words: with every fourth, bytes lie the same way.
      const Staged<Q::Align> block{row[h] + run / PerBlock / 4 * Q::Bytes, at[h] + run / PerBlock % 4 * Q::Bytes};
      Q::fragment(block, run % PerBlock, lane_id() % 4, f[h]);
      if (!Shares) continue;
      if (run % PerBlock == 0) Q::scales(block, lane_id() % 4, 0, found.scale[h], found.min[h]);
      UNROLL for (int g = 0; g < Q::Parts; g++) {
        f[h].scale[0][g] = shfl(found.scale[h][g], lane_id() / 4 * 4 + run % PerBlock);
        if (Q::HasMin) f[h].min[0][g] = shfl(found.min[h][g], lane_id() / 4 * 4 + run % PerBlock);
      }
    }
    UNROLL for (int g = 0; g < Q::Parts; g++) {
      const typename Rows::Piece x = rows.piece(group + g);
      Words2 rest{};
      if constexpr (P > 2) rest = rows.rest(group + g);
      ScaleSum s[X];
      rows.get_sums(group + g, s);
      f32 d[Sums];
      if constexpr (Q::Group == 32) {
        products<2>(d, {f[0].q[g][0], f[1].q[g][0], f[0].q[g][1], f[1].q[g][1]}, x, rest, 0);
        UNROLL for (int e = 0; e < Sums; e++) {
          acc[e] = m_fma(f[e / X].scale[0][g], s[e % X].v[0] * d[e], acc[e]);
          if (Q::HasMin) acc[e] = m_fma(f[e / X].min[0][g], s[e % X].v[1], acc[e]);
        }
      } else {
        f32 total[Sums] = {};
        UNROLL for (int half = 0; half < Q::Halves; half++) {
          products<1>(d, {f[0].q[g][half], f[1].q[g][half]}, x, rest, half);
          UNROLL for (int e = 0; e < Sums; e++) total[e] = m_fma(f[e / X].scale[half][g], d[e], total[e]);
          if (!Q::HasMin) continue;
          // Minima that change within the group are multiplied with the sums of its halves.
          products<1>(d, {0x01010101u, 0x01010101u}, x, rest, half);
          UNROLL for (int e = 0; e < Sums; e++) total[e] = m_fma(f[e / X].min[half][g], d[e], total[e]);
        }
        UNROLL for (int e = 0; e < Sums; e++) acc[e] = m_fma(s[e % X].v[0], total[e], acc[e]);
      }
    }
  }

  // acc += a chunk, of which `left` weights of each row are there, with x from `group` on.
  GPU_FN void take(f32 (&acc)[Sums], const u32* const (&row)[2], const u32 (&at)[2], const Rows& rows, u32 group, u32 left) {
    Found found;
    // Runs that follow each other without a question overlap, so only the last chunk asks, for four of them at a time.
    if (left >= CHUNK) UNROLL for (u32 r = 0; r < Runs; r++) multiply(acc, row, at, r, rows, group + r * Q::Parts, found);
    else if (Q::Elements < (int)CHUNK) {
      const u32 runs = left / (32 * Q::Parts);
      u32 r = 0;
      NO_UNROLL for (; r + 4 <= runs; r += 4) UNROLL for (u32 i = 0; i < 4; i++) multiply(acc, row, at, r + i, rows, group + (r + i) * Q::Parts, found);
      NO_UNROLL for (; r < runs; r++) multiply(acc, row, at, r, rows, group + r * Q::Parts, found);
    }
  }
  GPU_FN void finish(f32 (&)[Sums]) {}
};

}  // namespace gpu
#endif
#endif
