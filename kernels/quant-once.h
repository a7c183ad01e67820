// The product of one row with weights that all multiprocessors together have room for at once: kernels/quant-once.hip.
#ifndef WICK_QUANT_ONCE_H
#define WICK_QUANT_ONCE_H
#include "quant-whole.h"
#include "row.h"

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

// `splits` warps for 16 rows of W, each with STEPS steps of them, of which it rounds x by itself: no warp waits for another before all
// have multiplied. One step becomes operands in registers before x is there; more, behind a norm, would take the registers of blocks
// that other kernels have beside these.
template <class Q, bool Norm> struct Once : WholeRows<Q> {
  typedef WholeRows<Q> Base;
  typedef typename Base::Unit Unit;
  typedef typename Base::Rows Rows;
  static constexpr u32 STEPS = Norm ? ONCE_STEPS : 1;

  // x · scale · alpha of this warp's steps in shared memory. Returns this lane's part of (x · scale)².
  template <u32 dtype> GPU_FN f32 round_as(const Rows& to, u32 first, const Eight (&x)[STEPS], const Eight (&alpha)[STEPS], f32 scale) {
    f32 square = 0;
    UNROLL for (u32 i = 0; i < STEPS; i++) {
      f32 values[8];
      x[i].get(values, dtype);
      if (Norm) {
        f32 factor[8];
        alpha[i].get(factor, dtype);
        UNROLL for (int j = 0; j < 8; j++) {
          values[j] *= scale;
          square = m_fma(values[j], values[j], square);
          values[j] *= factor[j];
        }
      }
      ScaleSum s;
      const Planes<Base::P> q = round_group<Base::P>(values, s);
      to.put((first + i) * 8 + lane_id() / 4, 0, q, s);
    }
    return square;
  }
  // Halves of both kinds come alike.
  GPU_FN void bring(Eight (&to)[STEPS], const void* from, u32 first) {
    UNROLL for (u32 i = 0; i < STEPS; i++) to[i].load(from, (first + i) * 32 + lane_id(), DTYPE_bf16);
  }

  GPU_FN void run(u32* shared, Signal* signals, const void* x, const u8* w, const void* alpha, const void* bias, const void* residual, void* out, u32 n, u32 k, f32 eps,
                  u32 splits, u32 dtype) {
    const u32 warps = bdim_x() / 32, warp = uniform(tid_x() / 32), lane = lane_id(), own = warp / splits, part = warp - own * splits, groups = warps / splits;
    const u32 row_bytes = k / Q::Elements * Q::Bytes, group = bid_x() * groups + own, first = part * STEPS;
    const bool there = 16 * group < n;
    const Rows rows(shared, 1, 1, k);
    u32* const all_weights = shared + Unit::words(1, k);
    u32* const weights = all_weights + own * 4 * row_bytes;
    f32* const totals = (f32*)(all_weights + groups * 4 * row_bytes);
    f32* const squares = totals + groups * 16 * ONCE_PITCH;
    Base::make_signals(signals, groups);
    barrier();
    // Of a group's rows, each of its warps brings some.
    if (there) {
      const u32 from = 16 * part / splits, end = 16 * (part + 1) / splits;
      if (part == 0) Base::expect(signals + own, 16 * row_bytes);
      if (from < end) Base::send(weights + from * (row_bytes / 4), w + ((size_t)group * 16 + from) * row_bytes, (end - from) * row_bytes, signals + own);
    }
    const typename Base::Pair lines{weights, row_bytes};
    const auto arrive = [&] {
      if (there || !BULK_COPIES) Base::arrived(signals + own);
    };
    Eight by[STEPS];
    Taken<Q> taken;
    if (Norm) bring(by, alpha, first);
    else {
      arrive();
      if (there) taken.take(lines, 4 * first + lane % 4);
    }
    wait_for_previous();
    f32 added = 0;
    const u32 line = 16 * group + lane;
    if (part == 0 && there && lane < 16) {
      if (residual) added = load_float(residual, line, dtype);
      if (bias) added += load_float(bias, line, dtype);
    }
    // What all warps make of x · scale; returns the sum of its squares.
    const auto multiply = [&](f32 scale, bool is_first) {
      Eight v[STEPS];
      bring(v, x, first);
      f32 square = dtype == DTYPE_bf16 ? round_as<DTYPE_bf16>(rows, first, v, by, scale) : round_as<DTYPE_f16>(rows, first, v, by, scale);
      wave_sync();
      f32 acc[2] = {};
      if (Norm) {
        if (is_first) arrive();
        if (there) UNROLL for (u32 i = 0; i < STEPS; i++) Base::step(acc, lines, rows, first + i);
        UNROLL for (u32 mask = 1; mask < 32; mask *= 2) square += shfl_xor(square, mask);
        if (lane == 0) squares[warp] = square;
      } else if (there) taken.multiply(acc, rows, 4 * first + lane % 4);
      Unit::finish(acc);
      if (lane % 4 == 0) UNROLL for (int e = 0; e < 2; e++) totals[(own * 16 + 8 * e + lane / 4) * ONCE_PITCH + part] = acc[e];
      barrier();
      f32 all = 0;
      if (Norm) UNROLL for (u32 p = 0; p < 16; p++) all += p < splits ? squares[own * splits + p] : 0.0f;
      return all;
    };
    f32 factor = 1;
    const f32 all = multiply(1.0f, true);
    if (Norm) factor = rms_factor(all, k, eps);
    // A row whose squares overflow comes again, made small: all threads see the same.
    if (Norm && is_infinite(all)) {
      barrier();
      factor = rms_factor(multiply(small_scale(), false), k, 0.0f);
    }
    if (part || !there) return;
    // Two lanes to a row, each with up to eight warps' sums.
    f32 sum = 0;
    UNROLL for (u32 i = 0; i < 8; i++) {
      const u32 p = lane / 16 * 8 + i;
      sum += p < splits ? totals[(own * 16 + lane % 16) * ONCE_PITCH + p] : 0.0f;
    }
    sum += shfl_xor(sum, 16);
    if (lane < 16) store_float(out, line, sum * factor + added, dtype);
  }
};

}  // namespace gpu
#endif  // GPU_BYTE_TILES
#endif  // WICK_QUANT_ONCE_H
