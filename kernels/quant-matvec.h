// The product of up to eight rows with quantized weights, as templates: kernels/quant-matvec.hip picks their parameters.
#ifndef WICK_QUANT_MATVEC_H
#define WICK_QUANT_MATVEC_H
#include "quant-activations.h"
#include "quant.h"
namespace gpu {

// The activations that meet one unit of weights. `sum` is what the minima of its parts are multiplied with.
template <class Q> struct Activations {
  u32 q[8];
  f32 scale[Q::Parts], sum[Q::Parts];
};
template <class Q> GPU_FN f32 dot(const typename Q::U& u, const Activations<Q>& x, f32 total) {
  constexpr int Words = 8 / Q::Parts;
  UNROLL for (int p = 0; p < Q::Parts; p++) {
    i32 a = 0;
    UNROLL for (int w = 0; w < Words; w++) a = dot4(u.q[p * Words + w], x.q[p * Words + w], a);
    total = m_fma(u.scale[p], x.scale[p] * (f32)a, total);
    if (Q::HasMin) total = m_fma(u.min[p], x.sum[p], total);
  }
  return total;
}

// What a block keeps of x for as long as it lives: all rows, rounded to bytes, in the order of units.
template <class Q> struct RoundedRows {
  u32* quants;
  ScaleSum* sums;
  u32 units;  // per row, with those that fill the last chunk

  // Word 4 · half + j of the 32 units that a warp takes at once lies at half · 128 + lane · 4 + j: no bank is hit twice.
  GPU_METHOD u32 slot(u32 b, u32 unit, u32 w) const { return (b * units + unit / 32 * 32) * 8 + w / 4 * 128 + unit % 32 * 4 + w % 4; }
  GPU_METHOD void put(u32 b, u32 eight, const Words2& q) const {
    constexpr u32 PerBlock = Q::Elements / 8;
    const u32 home = Q::home(eight % PerBlock);
    store_shared<2>(quants, slot(b, eight / PerBlock * Q::Units + home / 8, home % 8), q);
  }
  // A part that is half a group counts half of the group's sum: its other half is another lane's.
  GPU_METHOD void put_sum(u32 b, u32 group, const ScaleSum& s) const {
    sums[b * units + group] = ScaleSum{{s.v[0], s.v[1] / Q::Parts}};
  }
  GPU_METHOD void get(Activations<Q>& x, u32 b, u32 unit) const {
    constexpr int Words = 8 / Q::Parts, Pairs = Q::Parts == 1 ? 1 : 2;
    UNROLL for (int half = 0; half < 2; half++) {
      const Words4 v = load_shared<4>(quants, slot(b, unit, 4 * half));
      UNROLL for (int j = 0; j < 4; j++) x.q[4 * half + j] = v.v[j];
    }
    UNROLL for (int p = 0; p < Q::Parts; p += Pairs) {
      const Vec<f32, 2 * Pairs> s = load_shared<2 * Pairs>((const f32*)sums, 2 * (b * units + Q::group(unit) + p));
      UNROLL for (int i = 0; i < Pairs; i++) {
        x.scale[p + i] = s.v[2 * i];
        x.sum[p + i] = s.v[2 * i + 1];
        // Where minima change within the group, the part needs a sum of its own.
        if (Q::Group != 32 && Q::HasMin) {
          i32 a = 0;
          UNROLL for (int w = 0; w < Words; w++) a = dot4(0x01010101u, x.q[(p + i) * Words + w], a);
          x.sum[p + i] = s.v[2 * i] * (f32)a;
        }
      }
    }
  }
};

// y (batch, n) = f(norm(x) (batch, k) · W (n, k)ᵀ + bias) + residual for batch ≤ NB; arguments as in linear.hip. x comes as
// floats of `dtype` or, with xs and where one plane is enough, as quantize_q8's bytes. `splits` warps share R rows of W. A warp takes CHUNK weights of each
// row at a time, a unit per lane, by way of its own shared memory: blocks of weights have no alignment to speak of. While it
// multiplies one chunk, the next is on its way, to another of its Places or in registers; the first goes before what x comes from
// has ended. Traffic: weights once; x once per
// block, from the cache.
template <class Q, int NB, int R, int Places> struct MatVec {
  // Weights of eight bits lose more by activations of eight bits than by their own rounding. For few rows, x is therefore the
  // sum of two rounded rows, the second of what the first leaves, which costs little while memory is what is waited for.
  static constexpr int P = Q::Fine && NB <= 4 ? 2 : 1, Columns = NB * P;
  static constexpr u32 CHUNK = MATVEC_CHUNK, ChunkBytes = CHUNK / Q::Elements * Q::Bytes;
  typedef Stage<ChunkBytes, Q::Align> S;
  typedef Outputs<R, NB> Out;
  typedef RoundedRows<Q> Rows;
  static constexpr int Values = R * NB;

  GPU_FN u32 padded(u32 k) { return (k + CHUNK - 1) / CHUNK * CHUNK; }

  // Rounds x, with a norm x · scale · alpha, and adds up each warp's (x · scale)² in `squares`, for the rows that `wanted`
  // names. A thread's loads of some rounds are on their way before the first is rounded.
  GPU_FN void round_rows(const Rows& to, f32* squares, u32 k, const void* x, const void* alpha, u32 batch, u32 dtype, f32 scale, u32 wanted) {
    constexpr int U = NB == 1 ? 3 : 2;
    const u32 items = k / 8, rounds = (items + bdim_x() - 1) / bdim_x(), warps = bdim_x() / 32, warp = tid_x() / 32;
    NO_UNROLL for (u32 first = 0; first < rounds * batch; first += U) {
      Eight v[U], weight[U];
      u32 row[U], item[U];
      UNROLL for (int u = 0; u < U; u++) {
        row[u] = (first + u) / rounds;
        item[u] = (first + u - row[u] * rounds) * bdim_x() + tid_x();
        if (row[u] >= batch || item[u] >= items) continue;
        v[u].load(x, (size_t)row[u] * items + item[u], dtype);
        if (alpha) weight[u].load(alpha, item[u], dtype);
      }
      UNROLL for (int u = 0; u < U; u++) {
        if (row[u] >= batch || !(wanted >> row[u] & 1u)) continue;
        f32 values[8] = {}, square[1] = {0};
        if (item[u] < items) v[u].get(values, dtype);
        if (alpha) {
          f32 factor[8] = {};
          if (item[u] < items) weight[u].get(factor, dtype);
          UNROLL for (int j = 0; j < 8; j++) {
            values[j] *= scale;
            square[0] += values[j] * values[j];
            values[j] *= factor[j];
          }
          const f32 total = WarpTotals<1>::of(square);
          if (lane_id() == 0) squares[row[u] * warps + warp] = total + (item[u] < bdim_x() ? 0.0f : squares[row[u] * warps + warp]);
        }
        UNROLL for (int p = 0; p < P; p++) {
          ScaleSum s;
          const Words2 q = round_group(values, s);
          if (item[u] < items) {
            to.put(row[u] * P + p, item[u], q);
            if (item[u] % 4 == 0) to.put_sum(row[u] * P + p, item[u] / 4, s);
          }
          // What a scale that is not finite leaves counts for nothing: the first plane has made the row NaN.
          const f32 scale = s.v[0] < Limits<f32>::highest() ? s.v[0] : 0.0f;
          UNROLL for (int j = 0; j < 8; j++)
            values[j] = scale > 0 ? values[j] - scale * (f32)(signed char)(q.v[j / 4] >> (j % 4 * 8)) : 0.0f;
        }
      }
    }
  }
  // put(b, i, from[b, i]) for i below `count` of each row, four at a time on their way.
  template <class T, class Put> GPU_FN void copy_all(u32 count, u32 batch, const T* from, Put put) {
    NO_UNROLL for (u32 first = tid_x(); first < count * batch; first += 4 * bdim_x()) {
      T v[4];
      UNROLL for (int u = 0; u < 4; u++)
        if (first + u * bdim_x() < count * batch) v[u] = from[first + u * bdim_x()];
      UNROLL for (int u = 0; u < 4; u++) {
        const u32 at = first + u * bdim_x();
        if (at < count * batch) put(at / count, at % count, v[u]);
      }
    }
  }
  // x in shared memory. Returns what the products of row lane % NB are to be multiplied with.
  GPU_FN f32 prepare(const Rows& to, f32* squares, u32 k, const void* x, const ScaleSum* xs, const void* alpha, f32 eps, u32 batch, u32 dtype) {
    if (P == 1 && xs) {
      copy_all(k / 8, batch, (const Words2*)x, [&](u32 b, u32 i, const Words2& q) { to.put(b, i, q); });
      copy_all(k / 32, batch, xs, [&](u32 b, u32 i, const ScaleSum& s) { to.put_sum(b, i, s); });
      barrier();
      return 1.0f;
    }
    const u32 b = lane_id() % NB < batch ? lane_id() % NB : 0;
    u32 large = 0;
    // Rows whose squares overflow go again, made small. All threads see the same.
    NO_UNROLL for (u32 again = 0;; again++) {
      round_rows(to, squares, k, x, alpha, batch, dtype, again ? small_scale() : 1.0f, again ? large : ~0u);
      barrier();
      if (!alpha) return 1.0f;
      const f32 square = sum_squares(squares, b);
      if (!again) {
        large = is_infinite(square) ? 1u << b : 0;
        UNROLL for (u32 mask = NB / 2; mask; mask /= 2) large |= shfl_xor(large, mask);
      }
      if (again || !large) return norm_factor(square, k, large >> b & 1u ? 0.0f : eps);
      barrier();
    }
  }
  GPU_FN f32 sum_squares(const f32* squares, u32 b) {
    f32 total = 0;
    for (u32 w = 0; w < bdim_x() / 32; w++) total += squares[b * (bdim_x() / 32) + w];
    return total;
  }

  GPU_FN void run(u32* shared, u16* table, const Out& out, u32 k, const u8* w, const void* x, const ScaleSum* xs, const void* alpha,
                  f32 eps, u32 splits) {
    const u32 warps = bdim_x() / 32, warp = tid_x() / 32, lane = lane_id(), part = warp % splits, per_block = warps / splits;
    const u32 rounds = (padded(k) / CHUNK + splits - 1) / splits, step = gdim_x() * per_block;
    const u32 groups = out.groups(), row_bytes = k / Q::Elements * Q::Bytes;
    // Shared memory: x, then weights of each warp, then what warps tell each other.
    const Rows rows{shared, (ScaleSum*)(shared + Columns * (padded(k) / 4)), padded(k) / 32};
    u32* weights = shared + Columns * (padded(k) / 4 + padded(k) / 16) + warp * Places * R * S::Words;
    f32* totals = (f32*)(shared + Columns * (padded(k) / 4 + padded(k) / 16) + warps * Places * R * S::Words);
    f32* squares = totals + warps * Values;

    // What comes next: a group, of its chunks the one that `round` gives this warp, and its place in shared memory.
    S stage[R];
    u32 next = bid_x() * per_block, round = 0, place = 0;
    const auto bytes_of = [&](u32 chunk) { return (k - chunk * CHUNK < CHUNK ? k - chunk * CHUNK : CHUNK) / Q::Elements * Q::Bytes; };
    const auto from = [&](int r) { return (size_t)out.row(next + warp / splits, r) * row_bytes + (round * splits + part) * ChunkBytes; };
    const auto send = [&] {
      const u32 chunk = round * splits + part;
      if (next < groups && chunk * CHUNK < k)
        UNROLL for (int r = 0; r < R; r++) stage[r].load(weights + (place * R + r) * S::Words, w, from(r), bytes_of(chunk));
    };
    send();
    fill_table<Q>(table);
    wait_for_previous();
    const f32 factor = prepare(rows, squares, k, x, xs, alpha, eps, out.batch, out.dtype);

    f32 acc[Values];
    UNROLL for (int i = 0; i < Values; i++) acc[i] = 0;
    const u32 columns = out.batch * P;
    while (next < groups) {
      const u32 group = next + warp / splits, chunk = round * splits + part, unit = chunk * (CHUNK / 32) + lane;
      const bool last = round + 1 == rounds;
      const u32* staged = weights + place * R * S::Words;
      u32 at[R];
      UNROLL for (int r = 0; r < R; r++) {
        at[r] = S::place(from(r));
        if (chunk * CHUNK < k) stage[r].land(weights + (place * R + r) * S::Words, from(r), bytes_of(chunk));
      }
      copies_wait();
      wave_sync();
      place = place + 1 == Places ? 0 : place + 1;
      round = last ? 0 : round + 1;
      next += last ? step : 0;
      send();
      if (unit < k / 32) {
        typename Q::U u[R];
        UNROLL for (int r = 0; r < R; r++)
          Q::unit(staged_block<Q>(staged + r * S::Words, at[r], lane), lane % Q::Units, table, u[r]);
        // The activations of one row of x are read while those of another are multiplied where registers allow, and no
        // earlier. Rows that x does not have are the first once more, and not stored.
        constexpr int Held = Columns == 8 && Q::HasMin ? 1 : 2;
        Activations<Q> a[Held];
        rows.get(a[0], 0, unit);
        UNROLL for (int c = 0; c < Columns; c++) {
          const auto read_next = [&] {
            if (c + 1 < Columns) rows.get(a[(c + 1) % Held], (u32)c + 1 < columns ? c + 1 : 0, unit);
            GPU_KEEP_ORDER();
          };
          if (Held > 1) read_next();
          UNROLL for (int r = 0; r < R; r++) acc[r * NB + c / P] = dot<Q>(u[r], a[c % Held], acc[r * NB + c / P]);
          if (Held == 1) read_next();
        }
      }
      wave_sync();
      if (!last) continue;
      f32 total = WarpTotals<Values>::of(acc);
      UNROLL for (int i = 0; i < Values; i++) acc[i] = 0;
      if (splits > 1) {
        if (lane % Out::Spread == 0) totals[warp * Values + out.value()] = total;
        barrier();
        total = 0;
        for (u32 p = 0; p < splits; p++) total += totals[(warp - part + p) * Values + out.value()];
        barrier();
      }
      total *= shfl(factor, out.value() % NB);
      if (part == 0) out.store(group, total);
    }
  }
};

// Launch: blocks of up to `threads`, of which `blocks` share a multiprocessor; shared_bytes as the layouts in run() need them.
#define MAT_VEC_LAUNCH(threads, blocks, name) \
  KERNEL_EARLY(threads, blocks, name, const void* x, const void* xs, const u8* w, const void* alpha, const void* bias, \
                 const void* residual, void* out, size_t n, size_t k, f64 eps, u32 batch, u32 glu, u32 splits, u32 dtype)
#define MAT_VEC_BODY(Q, ...) \
  typedef __VA_ARGS__ Product; \
  DYNAMIC_SHARED(u32, shared); \
  SHARED(u16, table, TableSize<Q>::value); \
  Product::run(shared, table, typename Product::Out(n, bias, residual, out, batch, glu, dtype), (u32)k, w, x, (const ScaleSum*)xs, alpha, \
               (f32)eps, splits);
#define MAT_VEC_KERNEL(name, Q, NB, R, Places) \
  MAT_VEC_LAUNCH(MATVEC_WARPS * 32, (NB == 1 ? MATVEC_CROWD_OF_ONE : MATVEC_CROWD), name) { MAT_VEC_BODY(Q, MatVec<Q, NB, R, Places>) }

}  // namespace gpu
#endif  // WICK_QUANT_MATVEC_H
