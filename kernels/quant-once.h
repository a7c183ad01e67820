// The product of one row with weights that all multiprocessors together have room for at once: kernels/quant-once.hip.
#ifndef WICK_QUANT_ONCE_H
#define WICK_QUANT_ONCE_H
#include "quant-whole.h"

#if GPU_BYTE_TILES
namespace gpu {

// Weights of a run of each of two rows, as the unit takes them.
template <class Q> struct Taken {
  typedef WholeRows<Q> Base;
  typedef typename Base::Unit Unit;
  static_assert(Q::Halves == 1 && Q::Fields == Q::Parts, "scales of 32 weights, each word's own");
  f32 scale[2][Q::Parts], min[2][Q::Parts];
  u32 q[2][2][4 * Q::Fields];
  GPU_METHOD void take(const typename Base::Pair& rows, u32 run) {
    Staged<Q::Align> block[2];
    rows.block(block, run);
    UNROLL for (int h = 0; h < 2; h++) {
      LaneType<Q>::scales(block[h], run % Base::PER_BLOCK, 0, scale[h], min[h]);
      UNROLL for (int half = 0; half < 2; half++) LaneType<Q>::template words<4>(block[h], run % Base::PER_BLOCK, 4 * half, q[h][half]);
    }
  }
  GPU_METHOD void multiply(f32 (&acc)[2], const typename Base::Rows& x, u32 run) const {
    const typename Unit::Sight sight(x, run * Q::Parts);
    typename Unit::Sums4 d[Q::Parts];
    UNROLL for (int half = 0; half < 2; half++)
      UNROLL for (int p = 0; p < Q::Parts; p++) d[p].add(q[0][half] + 4 * p, q[1][half] + 4 * p, sight, 8 * p + 4 * half);
    UNROLL for (int p = 0; p < Q::Parts; p++) {
      const ScaleSum s = sight.sums[p];
      UNROLL for (int h = 0; h < 2; h++) {
        acc[h] = m_fma(scale[h][p], s.v[0] * d[p].of(h), acc[h]);
        if (Q::HasMin) acc[h] = m_fma(min[h][p], s.v[1], acc[h]);
      }
    }
  }
};

// `splits` warps, each with one step of a row, for 16 rows of W. Weights become operands in registers before x is there.
template <class Q> struct Once : WholeRows<Q> {
  typedef WholeRows<Q> Base;
  typedef typename Base::Unit Unit;
  GPU_FN void run(u32* shared, Signal* signals, const void* x, const u8* w, const void* bias, const void* residual, void* out, u32 n, u32 k, u32 splits, u32 dtype) {
    const u32 warps = bdim_x() / 32, warp = uniform(tid_x() / 32), lane = lane_id(), own = warp / splits, part = warp - own * splits, groups = warps / splits;
    const u32 row_bytes = k / Q::Elements * Q::Bytes, group = bid_x() * groups + own;
    const bool there = 16 * group < n;
    const typename Base::Rows rows(shared, 1, 1, k);
    u32* const all_weights = shared + Unit::words(1, k);
    u32* const weights = all_weights + own * 4 * row_bytes;
    f32* const totals = (f32*)(all_weights + groups * 4 * row_bytes);
    Base::make_signals(signals, groups);
    barrier();
    // Of a group's rows, each of its warps brings some.
    if (there) {
      const u32 first = 16 * part / splits, end = 16 * (part + 1) / splits;
      if (part == 0) Base::expect(signals + own, 16 * row_bytes);
      if (first < end) Base::send(weights + first * (row_bytes / 4), w + ((size_t)group * 16 + first) * row_bytes, (end - first) * row_bytes, signals + own);
    }
    const typename Base::Pair lines{weights, row_bytes};
    Taken<Q> taken;
    const u32 run = 4 * part + lane % 4;
    if (there || !BULK_COPIES) Base::arrived(signals + own);
    if (there) taken.take(lines, run);
    wait_for_previous();
    f32 added = 0;
    const u32 line = 16 * group + lane;
    if (part == 0 && there && lane < 16) {
      if (residual) added = load_float(residual, line, dtype);
      if (bias) added += load_float(bias, line, dtype);
    }
    Base::round_row(rows, nullptr, k, x, nullptr, dtype);
    f32 acc[2] = {};
    if (there) taken.multiply(acc, rows, run);
    Unit::finish(acc);
    if (lane % 4 == 0) UNROLL for (int e = 0; e < 2; e++) totals[16 * warp + 8 * e + lane / 4] = acc[e];
    barrier();
    if (part || !there || lane >= 16) return;
    f32 sum = 0;
    for (u32 p = 0; p < splits; p++) sum += totals[16 * (warp + p) + lane];
    store_float(out, line, sum + added, dtype);
  }
};

}  // namespace gpu
#endif  // GPU_BYTE_TILES
#endif  // WICK_QUANT_ONCE_H
