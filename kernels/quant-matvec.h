// The mat-vec of quantized weights as templates: kernels/quant-matvec.hip picks their parameters.
#ifndef WICK_QUANT_MATVEC_H
#define WICK_QUANT_MATVEC_H
#include "quant.h"
namespace gpu {

// Activations: per row k signed bytes, and per 32 of them the scale and scale · Σ bytes.
typedef Vec<f32, 2> ScaleSum;

// The activations that meet one unit of weights.
template <class Q> struct Activations {
  u32 q[8];
  f32 scale[Q::Parts], sum[Q::Parts];
};
template <class Q> GPU_FN f32 dot(const typename Q::U& u, const Activations<Q>& x) {
  constexpr int Words = 8 / Q::Parts;
  f32 total = 0;
  UNROLL for (int p = 0; p < Q::Parts; p++) {
    i32 a = 0;
    UNROLL for (int w = 0; w < Words; w++) a = dot4(u.q[p * Words + w], x.q[p * Words + w], a);
    total += u.scale[p] * (x.scale[p] * (f32)a);
    if (Shifts<Q>::value) total += shift_of<Q>(u, p) * x.sum[p];
  }
  return total;
}

// Totals of N values over the warp (N a power of two up to 32): lane l gets that of value l / (32 / N). Each step sends away
// the half of the values that the other lane keeps: N − 1 shuffles and a few more, not 5 N.
template <int N, int Bit = 16> struct WarpTotals {
  GPU_FN f32 of(const f32 (&v)[N]) {
    const bool upper = lane_id() & Bit;
    f32 kept[N / 2];
    UNROLL for (int i = 0; i < N / 2; i++)
      kept[i] = (upper ? v[i + N / 2] : v[i]) + shfl_xor(upper ? v[i] : v[i + N / 2], Bit);
    return WarpTotals<N / 2, Bit / 2>::of(kept);
  }
};
template <int Bit> struct WarpTotals<1, Bit> {
  GPU_FN f32 of(const f32 (&v)[1]) {
    f32 total = v[0];
    UNROLL for (int bit = Bit; bit; bit /= 2) total += shfl_xor(total, bit);
    return total;
  }
};

// y (batch, n) = x (batch, k) · W (n, k)ᵀ for batch ≤ NB. A block has Warps warps, each warp R rows. Weights go to shared
// memory Depth at a time as aligned 16-byte vectors (blocks themselves have no alignment to speak of), activations in the
// order of units, so that a lane reads its 32 as two vectors; lane l then takes units l, l + 32, … of its warp's rows.
// Traffic: weights once for all columns; activations once per block, from the cache.
template <class Q, int NB, int R, int Depth, int Warps> struct MatVec {
  typedef Stage<Depth / Q::Elements * Q::Bytes, 32> S;
  static constexpr int Threads = Warps * 32, Rows = Warps * R;
  static constexpr int WeightWords = Rows * S::Words, QuantWords = NB * Depth / 4, Sums = NB * Depth / 32;

  // Word 4 · half + j of the 1024 weights that a warp takes at once lies at half · 128 + lane · 4 + j: no bank is hit twice.
  GPU_FN u32 slot(u32 b, u32 unit, u32 w) { return (b * (Depth / 32) + unit / 32 * 32) * 8 + w / 4 * 128 + unit % 32 * 4 + w % 4; }

  GPU_FN void load_activations(u32* quants, ScaleSum* sums, const u8* xq, const ScaleSum* xs, u32 length, u32 part, u32 batch) {
    constexpr u32 PerBlock = Q::Elements / 8;
    UNROLL for (int b = 0; b < NB; b++) {
      const size_t col = (size_t)((u32)b < batch ? b : batch - 1) * length;
      for (u32 p = tid_x(); p < part / 8; p += Threads) {
        const u32 home = Q::home(p % PerBlock);
        store_shared<2>(quants, slot(b, p / PerBlock * Q::Units + home / 8, home % 8), *(const Vec<u32, 2>*)(xq + col + 8 * p));
      }
      for (u32 g = tid_x(); g < part / 32; g += Threads) sums[b * (Depth / 32) + g] = xs[col / 32 + g];
    }
  }
  GPU_FN void read_activations(Activations<Q>& x, const u32* quants, const ScaleSum* sums, u32 b, u32 unit) {
    UNROLL for (int half = 0; half < 2; half++) {
      const Vec<u32, 4> v = load_shared<4>(quants, slot(b, unit, 4 * half));
      UNROLL for (int j = 0; j < 4; j++) x.q[4 * half + j] = v.v[j];
    }
    UNROLL for (int p = 0; p < Q::Parts; p++) {
      constexpr int Words = 8 / Q::Parts;
      const u32 first = unit / Q::Units * Q::Elements + Q::place(unit % Q::Units, p * Words);
      const ScaleSum s = sums[b * (Depth / 32) + first / 32];
      x.scale[p] = s.v[0];
      // A part that is half a group counts half of the group's sum: its other half is another lane's. Where minima change
      // within the group, the part needs a sum of its own.
      if (Q::Group == 32) x.sum[p] = s.v[1] * (1.0f / Q::Parts);
      else if (Q::HasMin) {
        i32 a = 0;
        UNROLL for (int w = 0; w < Words; w++) a = dot4(0x01010101u, x.q[p * Words + w], a);
        x.sum[p] = s.v[0] * (f32)a;
      }
    }
  }

  GPU_FN void run(u32* weights, u32* quants, ScaleSum* sums, u16* table, size_t n, size_t k, const u8* w, const u8* xq,
                  const ScaleSum* xs, void* y, u32 batch, u32 dtype) {
    const u32 warp = tid_x() / 32, lane = tid_x() % 32;
    // A row has fewer than 2^32 weights, and there are fewer than 2^32 groups of rows.
    const u32 length = (u32)k, groups = (u32)ceil_div(n, Rows);
    const size_t row_bytes = (size_t)(length / Q::Elements) * Q::Bytes;
    fill_table<Q>(table);
    for (u32 group = bid_x(); group < groups; group += gdim_x()) {
      const size_t row = (size_t)group * Rows + warp * R;
      f32 acc[R * NB];
      UNROLL for (int j = 0; j < R * NB; j++) acc[j] = 0;
      for (u32 k0 = 0; k0 < length; k0 += Depth) {
        const u32 part = length - k0 < Depth ? length - k0 : Depth;
        S stage[R];
        u32 at[R];
        UNROLL for (int r = 0; r < R; r++) {
          // Past the last row it is taken again, and not stored.
          const size_t from = (row + r < n ? row + r : n - 1) * row_bytes + (size_t)(k0 / Q::Elements) * Q::Bytes;
          at[r] = (warp * R + r) * (S::Words * 4) + S::place(w, from);
          stage[r].load(w, from, part / Q::Elements * Q::Bytes, n * row_bytes, lane);
        }
        load_activations(quants, sums, xq + k0, xs + k0 / 32, length, part, batch);
        UNROLL for (int r = 0; r < R; r++) stage[r].store(weights + (warp * R + r) * S::Words, lane);
        barrier();
        NO_UNROLL for (u32 unit = lane; unit < part / 32; unit += 32) {
          typename Q::U u[R];
          UNROLL for (int r = 0; r < R; r++)
            Q::unit(Staged<Q::Align>{weights, at[r] + unit / Q::Units * Q::Bytes}, unit % Q::Units, table, u[r]);
          UNROLL for (int b = 0; b < NB; b++) {
            Activations<Q> x;
            read_activations(x, quants, sums, b, unit);
            UNROLL for (int r = 0; r < R; r++) acc[r * NB + b] += dot<Q>(u[r], x);
          }
        }
        barrier();
      }
      const f32 total = WarpTotals<R * NB>::of(acc);
      const u32 value = lane / (32 / (R * NB)), r = value / NB, b = value % NB;
      if (lane % (32 / (R * NB)) == 0 && row + r < n && b < batch) store_float(y, b * n + row + r, total, dtype);
    }
  }
};

#define MAT_VEC_KERNEL(name, Q, NB, R, Depth, Warps) \
  KERNEL_BOUNDS(Warps * 32, name, size_t n, size_t k, const u8* w, const u8* xq, const void* xs, void* y, u32 batch, u32 dtype) { \
    typedef MatVec<Q, NB, R, Depth, Warps> M; \
    SHARED(u32, weights, M::WeightWords); \
    SHARED(u32, quants, M::QuantWords); \
    SHARED(ScaleSum, sums, M::Sums); \
    SHARED(u16, table, TableSize<Q>::value); \
    M::run(weights, quants, sums, table, n, k, w, xq, (const ScaleSum*)xs, y, batch, dtype); \
  }

}  // namespace gpu
#endif  // WICK_QUANT_MATVEC_H
