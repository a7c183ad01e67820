// The product of up to eight rows with quantized weights, as templates: kernels/quant-matvec.hip picks their parameters.
#ifndef WICK_QUANT_MATVEC_H
#define WICK_QUANT_MATVEC_H
#include "quant-activations.h"
#include "quant.h"
namespace gpu {

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

// What a block keeps of x for as long as it lives: all rows, rounded to bytes, in the order of units.
template <class Q, int NB> struct Rounded8 {
  u32* quants;
  ScaleSum* sums;
  u32 units;  // per row, with those that fill the last CHUNK

  // Word 4 · half + j of the 32 units that a warp takes at once lies at half · 128 + lane · 4 + j: no bank is hit twice.
  GPU_METHOD u32 slot(u32 b, u32 unit, u32 w) const { return (b * units + unit / 32 * 32) * 8 + w / 4 * 128 + unit % 32 * 4 + w % 4; }
  GPU_METHOD void put(u32 b, u32 eight, const Words2& q) const {
    constexpr u32 PerBlock = Q::Elements / 8;
    const u32 home = Q::home(eight % PerBlock);
    store_shared<2>(quants, slot(b, eight / PerBlock * Q::Units + home / 8, home % 8), q);
  }
  GPU_METHOD void get(Activations<Q>& x, u32 b, u32 unit) const {
    constexpr int Words = 8 / Q::Parts;
    UNROLL for (int half = 0; half < 2; half++) {
      const Words4 v = load_shared<4>(quants, slot(b, unit, 4 * half));
      UNROLL for (int j = 0; j < 4; j++) x.q[4 * half + j] = v.v[j];
    }
    // The parts of a unit lie in consecutive groups.
    const u32 group = b * units + (unit / Q::Units * Q::Elements + Q::place(unit % Q::Units, 0)) / 32;
    UNROLL for (int p = 0; p < Q::Parts; p++) {
      const ScaleSum s = sums[group + p];
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
};

// y (batch, n) = f(norm(x) (batch, k) · W (n, k)ᵀ + bias) + residual for batch ≤ NB; arguments as in linear.hip. x comes as
// floats of `dtype`, or, with xs, as quantize_q8's bytes. `splits` warps share R rows of W. A warp takes CHUNK weights of each
// row at a time, a unit per lane, by way of its own shared memory: blocks of weights have no alignment to speak of. While it
// multiplies one chunk, the next are on their way to other places, of which there are `Places` (the last is in registers where
// the device cannot copy by itself). Traffic: weights once; x once per block, from the cache.
template <class Q, int NB, int R, int Places> struct MatVec {
  static constexpr u32 CHUNK = 1024, AHEAD = ASYNC_COPIES ? Places - 1 : 1;
  typedef Stage<CHUNK / Q::Elements * Q::Bytes> S;
  typedef Outputs<R, NB> Out;
  static constexpr int Values = R * NB;

  GPU_FN u32 padded(u32 k) { return (k + CHUNK - 1) / CHUNK * CHUNK; }

  // Rounds row b of x, with a norm x · scale · alpha, and leaves each warp's sum of (x · scale)² in `squares`.
  GPU_FN void round_row(const Rounded8<Q, NB>& to, f32* squares, u32 b, size_t k, const void* x, const void* alpha, u32 dtype, f32 scale) {
    const u32 items = (u32)k / 8;
    f32 square[1] = {0};
    for (u32 base = 0; base < items; base += bdim_x()) {
      const u32 i = base + tid_x();
      f32 v[8] = {}, weight[8];
      if (i < items) {
        load_eight(x, (size_t)b * items + i, v, dtype);
        if (alpha) load_eight(alpha, i, weight, dtype);
      }
      if (alpha && i < items) UNROLL for (int j = 0; j < 8; j++) {
        v[j] *= scale;
        square[0] += v[j] * v[j];
        v[j] *= weight[j];
      }
      ScaleSum s;
      const Words2 q = round_group(v, s);
      if (i < items) {
        to.put(b, i, q);
        if (i % 4 == 0) to.sums[b * to.units + i / 4] = s;
      }
    }
    if (!alpha) return;
    const f32 total = WarpTotals<1>::of(square);
    if (lane_id() == 0) squares[b * (bdim_x() / 32) + tid_x() / 32] = total;
  }
  GPU_FN f32 sum_squares(const f32* squares, u32 b) {
    f32 total = 0;
    for (u32 w = 0; w < bdim_x() / 32; w++) total += squares[b * (bdim_x() / 32) + w];
    return total;
  }
  // x in shared memory; factor[b] is what its products are to be multiplied with.
  GPU_FN void prepare(const Rounded8<Q, NB>& to, f32* squares, f32* factors, size_t k, const void* x, const ScaleSum* xs,
                      const void* alpha, f32 eps, u32 batch, u32 dtype) {
    if (xs) {
      NO_UNROLL for (u32 b = 0; b < batch; b++) {
        for (u32 i = tid_x(); i < (u32)k / 8; i += bdim_x()) to.put(b, i, ((const Words2*)x)[b * (k / 8) + i]);
        for (u32 i = tid_x(); i < (u32)k / 32; i += bdim_x()) to.sums[b * to.units + i] = xs[b * (k / 32) + i];
      }
    } else NO_UNROLL for (u32 b = 0; b < batch; b++) round_row(to, squares, b, k, x, alpha, dtype, 1.0f);
    barrier();
    if (!alpha) return;
    NO_UNROLL for (u32 b = 0; b < batch; b++) {
      f32 square = sum_squares(squares, b);
      f32 bias = eps;
      if (is_infinite(square)) {
        barrier();
        round_row(to, squares, b, k, x, alpha, dtype, small_scale());
        barrier();
        square = sum_squares(squares, b);
        bias = 0;
      }
      if (tid_x() == 0) factors[b] = norm_factor(square, k, bias);
    }
    barrier();
  }

  // Where a warp is: a group of rows, and of their chunks those that `round` gives its splits.
  struct Cursor {
    size_t base;
    u32 round, place;
    GPU_METHOD void advance(u32 rounds, size_t step) {
      place = place + 1 == Places ? 0 : place + 1;
      if (++round < rounds) return;
      round = 0;
      base += step;
    }
  };

  GPU_FN void run(u32* shared, u16* table, const Out& out, size_t k, const u8* w, const void* x, const ScaleSum* xs, const void* alpha,
                  f32 eps, u32 splits) {
    const u32 warps = bdim_x() / 32, warp = tid_x() / 32, lane = lane_id(), part = warp % splits, per_block = warps / splits;
    const u32 length = (u32)k, rounds = (padded(length) / CHUNK + splits - 1) / splits;
    const size_t groups = out.groups(), step = (size_t)gdim_x() * per_block, end = out.n * (k / Q::Elements) * Q::Bytes;
    const size_t row_bytes = (size_t)(length / Q::Elements) * Q::Bytes;
    // Shared memory: x, then weights of each warp, then what warps tell each other.
    const Rounded8<Q, NB> rounded{shared, (ScaleSum*)(shared + NB * (padded(length) / 4)), padded(length) / 32};
    u32* weights = shared + NB * (padded(length) / 4 + padded(length) / 16) + warp * Places * R * S::Words;
    f32* totals = (f32*)(shared + NB * (padded(length) / 4 + padded(length) / 16) + warps * Places * R * S::Words);
    f32 *squares = totals + warps * Values, *factors = squares + warps * NB;

    S stage[R];
    // Calls use(r, its place, first byte, bytes) for each row of the chunk.
    const auto each_row = [&](const Cursor& c, auto use) {
      const u32 first = (c.round * splits + part) * CHUNK;
      if (first >= length || c.base >= groups) return;
      const u32 count = (length - first < CHUNK ? length - first : CHUNK) / Q::Elements * Q::Bytes;
      UNROLL for (int r = 0; r < R; r++)
        use(r, weights + (c.place * R + r) * S::Words, out.row(c.base + warp / splits, r) * row_bytes + first / Q::Elements * Q::Bytes, count);
    };
    const auto send = [&](const Cursor& c) {
      each_row(c, [&](int r, u32* to, size_t from, u32 count) { stage[r].load(to, w, from, count, end); });
      copies_end_group();
    };
    Cursor now{(size_t)bid_x() * per_block, 0, 0}, ahead = now;
    UNROLL for (u32 i = 0; i < AHEAD; i++) {
      send(ahead);
      ahead.advance(rounds, step);
    }
    fill_table<Q>(table);
    prepare(rounded, squares, factors, k, x, xs, alpha, eps, out.batch, out.dtype);

    f32 acc[Values];
    UNROLL for (int i = 0; i < Values; i++) acc[i] = 0;
    while (now.base < groups) {
      u32 at[R];
      each_row(now, [&](int r, u32* to, size_t from, u32 count) {
        stage[r].land(to, w, from, count, end);
        at[r] = (now.place * R + r) * (S::Words * 4) + S::place(from);
      });
      copies_wait<AHEAD - 1>();
      warp_sync();
      send(ahead);
      ahead.advance(rounds, step);
      const u32 unit = (now.round * splits + part) * (CHUNK / 32) + lane;
      if (unit < length / 32) {
        typename Q::U u[R];
        UNROLL for (int r = 0; r < R; r++)
          Q::unit(Staged<Q::Align>{weights, at[r] + lane / Q::Units * Q::Bytes}, lane % Q::Units, table, u[r]);
        UNROLL for (int b = 0; b < NB; b++) {
          if (NB > 1 && (u32)b >= out.batch) break;
          Activations<Q> a;
          rounded.get(a, b, unit);
          UNROLL for (int r = 0; r < R; r++) acc[r * NB + b] += dot<Q>(u[r], a);
        }
      }
      warp_sync();
      if (now.round + 1 == rounds) {
        f32 total = WarpTotals<Values>::of(acc);
        UNROLL for (int i = 0; i < Values; i++) acc[i] = 0;
        if (splits > 1) {
          if (lane % Out::Spread == 0) totals[warp * Values + out.value()] = total;
          barrier();
          total = 0;
          for (u32 p = 0; p < splits; p++) total += totals[(warp - part + p) * Values + out.value()];
          barrier();
        }
        if (alpha && out.value() % NB < out.batch) total *= factors[out.value() % NB];
        if (part == 0) out.store(now.base + warp / splits, total);
      }
      now.advance(rounds, step);
    }
  }
};

// Launch: blocks of up to 256 threads; shared_bytes as the layout in run() needs them.
#define MAT_VEC_KERNEL(name, Q, NB, R, Places) \
  KERNEL_BOUNDS(256, name, size_t n, size_t k, const u8* w, const void* x, const void* xs, const void* alpha, f64 eps, \
                const void* bias, const void* residual, void* y, u32 batch, u32 glu, u32 splits, u32 dtype) { \
    DYNAMIC_SHARED(u32, shared); \
    SHARED(u16, table, TableSize<Q>::value); \
    MatVec<Q, NB, R, Places>::run(shared, table, Outputs<R, NB>(n, bias, residual, y, batch, glu, dtype), k, w, x, \
                                  (const ScaleSum*)xs, alpha, (f32)eps, splits); \
  }

}  // namespace gpu
#endif  // WICK_QUANT_MATVEC_H
