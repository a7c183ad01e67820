// What kernels have in common that take whole rows of quantized weights, all on their way at once, for one row of x.
#ifndef WICK_QUANT_WHOLE_H
#define WICK_QUANT_WHOLE_H
#include "quant-tile.h"

#if GPU_BYTE_TILES
namespace gpu {

// What quant-lanes.h multiplies with, of whole rows in shared memory as they lie in memory, one behind the other.
template <class Q> struct WholeRows {
  static constexpr int P = 2;
  typedef TileRows<Q, 1, P> Unit;
  typedef typename Unit::Rows Rows;
  static constexpr u32 STEP = Unit::STEP, PER_BLOCK = Unit::PER_BLOCK;

  // Bytes, a multiple of 16, to shared memory, by one warp; one warp says how many a signal is for.
  GPU_FN void expect(Signal* signal, u32 bytes) {
    if (BULK_COPIES && one_lane()) expect_bytes(signal, bytes);
  }
  GPU_FN void send(u32* to, const void* from, u32 bytes, Signal* signal) {
    if (BULK_COPIES) {
      if (one_lane()) copy_bulk(to, from, bytes, signal);
    } else for (u32 i = 16 * lane_id(); i < bytes; i += 512) copy16_async(to + i / 4, (const u8*)from + i);
  }
  // All that a signal is for; without signals, all that was sent.
  GPU_FN void arrived(Signal* signal) {
    if (BULK_COPIES) await_signal(signal, 0);
    else {
      copies_wait();
      barrier();
    }
    wave_sync();
  }
  GPU_FN void make_signals(Signal* signals, u32 count) {
    if (!BULK_COPIES) return;
    if (tid_x() == 0) for (u32 i = 0; i < count; i++) make_signal(signals + i, 1);
    signals_made();
  }

  // All of x · alpha in shared memory, and each warp's squares: four lanes to a group of 32, each with one or a few. Returns whether the row
  // was made small, as its squares overflow: all threads see the same. Few warps are here, so that every instruction counts.
  template <u32 dtype> GPU_FN bool round_as(const Rows& to, f32* squares, u32 k, const void* x, const void* alpha) {
    const u32 groups = k / 32;
    NO_UNROLL for (u32 again = 0;; again++) {
      f32 square = 0;
      NO_UNROLL for (u32 base = tid_x() / 32 * 8; base < groups; base += bdim_x() / 32 * 8) {
        const u32 group = base + lane_id() / 4 < groups ? base + lane_id() / 4 : 0;
        Eight v, weight;
        v.load(x, group * 4 + lane_id() % 4, dtype);
        if (alpha) weight.load(alpha, group * 4 + lane_id() % 4, dtype);
        f32 values[8];
        v.get(values, dtype);
        if (alpha) {
          f32 factor[8];
          weight.get(factor, dtype);
          UNROLL for (int j = 0; j < 8; j++) {
            if (again) values[j] *= small_scale();
            square = m_fma(values[j], group == base + lane_id() / 4 ? values[j] : 0.0f, square);
            values[j] *= factor[j];
          }
        }
        ScaleSum s;
        const Planes<P> q = round_group<P>(values, s);
        if (group == base + lane_id() / 4) to.put(group, 0, q, s);
      }
      if (alpha) {
        UNROLL for (u32 mask = 1; mask < 32; mask *= 2) square += shfl_xor(square, mask);
        if (lane_id() == 0) squares[tid_x() / 32] = square;
      }
      barrier();
      if (!alpha || again) return again;
      f32 sum = 0;
      for (u32 i = 0; i < bdim_x() / 32; i++) sum += squares[i];
      if (!is_infinite(sum)) return false;
      barrier();
    }
  }
  GPU_FN bool round_row(const Rows& to, f32* squares, u32 k, const void* x, const void* alpha, u32 dtype) {
    return dtype == DTYPE_bf16 ? round_as<DTYPE_bf16>(to, squares, k, x, alpha) : round_as<DTYPE_f16>(to, squares, k, x, alpha);
  }

  // Row lane / 4 and that eight further on of 16 that begin at `lines`.
  struct Pair {
    const u32* lines;
    u32 bytes;
    GPU_METHOD void block(Staged<Q::Align> (&to)[2], u32 run) const {
      UNROLL for (u32 h = 0; h < 2; h++) {
        const u32 at = (lane_id() / 4 + 8 * h) * bytes + run / PER_BLOCK * Q::Bytes;
        to[h] = Staged<Q::Align>{lines + at / 16 * 4, Q::Align == 16 ? 0 : at % 16};
      }
    }
  };
  // acc += step s of two rows and of x.
  GPU_FN void step(f32 (&acc)[2], const Pair& rows, const Rows& x, u32 s) {
    const u32 t = lane_id() % 4, run = 4 * s + t;
    Staged<Q::Align> block[2];
    rows.block(block, run);
    Unit::multiply(acc, block, run % PER_BLOCK, typename Unit::Sight(x, run * Q::Parts), 0, true);
  }
};

}  // namespace gpu
#endif  // GPU_BYTE_TILES
#endif  // WICK_QUANT_WHOLE_H
