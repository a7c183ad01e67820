// The product of up to eight rows with quantized weights, as templates: kernels/quant-matvec.hip picks their parameters.
#ifndef WICK_QUANT_MATVEC_H
#define WICK_QUANT_MATVEC_H
#include "expert-slot.h"
#include "quant-activations.h"
#include "quant.h"
namespace gpu {

// One byte of each of the activations that meet one unit of weights.
typedef Vec<u32, 8> Plane;

// acc · 256 + the products of each part.
template <class Q> GPU_FN void add_dots(const typename Q::U& u, const Plane& x, i32 (&acc)[Q::Parts]) {
  constexpr int Words = 8 / Q::Parts;
  UNROLL for (int p = 0; p < Q::Parts; p++) {
    acc[p] *= 256;
    UNROLL for (int w = 0; w < Words; w++) acc[p] = dot4(u.q[p * Words + w], x.v[p * Words + w], acc[p]);
  }
}

// What a block keeps of x for as long as it lives: all rows, rounded to P planes of bytes, in the order of units.
template <class Q, int P> struct RoundedRows {
  static constexpr int Parts = Q::Parts;
  u32* quants;
  ScaleSum* sums;
  u32 units;  // per row, with those that fill the last chunk

  // Word 4 · half + j of the 32 units that a warp takes at once lies at half · 128 + lane · 4 + j: no bank is hit twice.
  GPU_METHOD u32 slot(u32 plane, u32 unit, u32 w) const {
    return (plane * units + unit / 32 * 32) * 8 + w / 4 * 128 + unit % 32 * 4 + w % 4;
  }
  GPU_METHOD void put(u32 b, u32 eight, const Planes<P>& q) const {
    constexpr u32 PerBlock = Q::Elements / 8;
    const u32 home = Q::home(eight % PerBlock), unit = eight / PerBlock * Q::Units + home / 8;
    UNROLL for (int plane = 0; plane < P; plane++) store_shared<2>(quants, slot(P * b + plane, unit, home % 8), q.v[plane]);
  }
  // A part that is half a group counts half of the group's sum: its other half is another lane's.
  GPU_METHOD void put_sum(u32 b, u32 group, const ScaleSum& s) const {
    sums[b * units + group] = ScaleSum{{s.v[0], s.v[1] / Parts}};
  }
  GPU_METHOD void get(Plane& x, u32 plane, u32 unit) const {
    UNROLL for (int half = 0; half < 2; half++) {
      const Words4 v = load_shared<4>(quants, slot(plane, unit, 4 * half));
      UNROLL for (int j = 0; j < 4; j++) x.v[4 * half + j] = v.v[j];
    }
  }
  // The scales of the parts and what their minima are multiplied with. `ones` are the sums of the parts' integers, needed where
  // minima change within a group.
  GPU_METHOD void get_sums(f32 (&scale)[Parts], f32 (&sum)[Parts], u32 b, u32 unit, const f32 (&ones)[Parts]) const {
    constexpr int Pairs = Parts == 1 ? 1 : 2;
    UNROLL for (int p = 0; p < Parts; p += Pairs) {
      const Vec<f32, 2 * Pairs> s = load_shared<2 * Pairs>((const f32*)sums, 2 * (b * units + Q::group(unit) + p));
      UNROLL for (int i = 0; i < Pairs; i++) {
        scale[p + i] = s.v[2 * i];
        sum[p + i] = Q::Group != 32 && Q::HasMin ? s.v[2 * i] * ones[p + i] : s.v[2 * i + 1];
      }
    }
  }
};

// y (batch, n) = f(norm(x) (batch, k) · W (n, k)ᵀ + bias) + residual for batch ≤ NB; arguments as in linear.hip, x as floats of
// `dtype`. `splits` warps share R rows of W. A warp takes CHUNK weights of each row at a time, a unit per lane, by way of its own
// shared memory: blocks of weights have no alignment to speak of. While it multiplies one chunk, the next is on its way, to
// another of its Places or in registers; the first goes before the kernel that makes x has ended. Of x, `segment` elements of
// each row are in shared memory at a time: all, in whole chunks, unless they are too many. Rows with pieces in several matrices
// (expert-slot.h) count as if each piece filled its last chunk. Traffic: weights once; x once per block, from the cache.
template <class Q, int NB, int R, int Places, int P> struct MatVec {
  static constexpr u32 CHUNK = MATVEC_CHUNK, ChunkBytes = CHUNK / Q::Elements * Q::Bytes;
  typedef Stage<ChunkBytes, Q::Align> S;
  typedef Outputs<R, NB> Out;
  typedef RoundedRows<Q, P> Rows;
  static constexpr int Values = R * NB;

  // Rounds the elements [from, from + count) of each row of x, with a norm x · scale · alpha, and adds up each warp's
  // (x · scale)² in `squares`, for the rows that `wanted` names. A thread's loads of some rounds are on their way before the first
  // is rounded.
  template <class Source>
  GPU_FN void round_rows(const Rows& to, const Source& source, f32* squares, u32 k, u32 from, u32 count, const void* x, const void* alpha, u32 batch, u32 dtype,
                         f32 scale, u32 wanted) {
    constexpr int U = NB == 1 ? 3 : 2;
    const u32 per_slot = (k + CHUNK - 1) / CHUNK * (CHUNK / 8);
    const u32 items = count / 8, rounds = (items + bdim_x() - 1) / bdim_x(), warps = bdim_x() / 32, warp = tid_x() / 32;
    NO_UNROLL for (u32 first = 0; first < rounds * batch; first += U) {
      Eight v[U], weight[U];
      u32 row[U], item[U];
      f32 counts[U];
      UNROLL for (int u = 0; u < U; u++) {
        row[u] = (first + u) / rounds;
        item[u] = (first + u - row[u] * rounds) * bdim_x() + tid_x();
        if (row[u] >= batch || item[u] >= items) continue;
        if constexpr (Source::SUMS) {
          const u32 slot = (from / 8 + item[u]) / per_slot, piece = from / 8 + item[u] - slot * per_slot;
          v[u].load(x, (size_t)slot * (k / 8) + (piece * 8 < k ? piece : 0), dtype);
          counts[u] = source.factor(slot);
        } else v[u].load(x, (size_t)row[u] * (k / 8) + from / 8 + item[u], dtype);
        if (alpha) weight[u].load(alpha, from / 8 + item[u], dtype);
      }
      UNROLL for (int u = 0; u < U; u++) {
        if (row[u] >= batch || !(wanted >> row[u] & 1u)) continue;
        f32 values[8] = {}, square[1] = {0};
        if (item[u] < items) v[u].get(values, dtype);
        if constexpr (Source::SUMS)
          if (item[u] < items) UNROLL for (int j = 0; j < 8; j++) values[j] *= counts[u];
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
        ScaleSum s;
        const Planes<P> q = round_group<P>(values, s);
        if (item[u] >= items) continue;
        to.put(row[u], item[u], q);
        if (item[u] % 4 == 0) to.put_sum(row[u], item[u] / 4, s);
      }
    }
  }
  // All of x in shared memory. Returns what the products of row lane % NB are to be multiplied with.
  template <class Source>
  GPU_FN f32 prepare(const Rows& to, const Source& source, f32* squares, u32 k, u32 whole, const void* x, const void* alpha, f32 eps, u32 batch, u32 dtype) {
    const u32 b = lane_id() % NB < batch ? lane_id() % NB : 0;
    u32 large = 0;
    // Rows whose squares overflow go again, made small. All threads see the same.
    NO_UNROLL for (u32 again = 0;; again++) {
      round_rows(to, source, squares, k, 0, whole, x, alpha, batch, dtype, again ? small_scale() : 1.0f, again ? large : ~0u);
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
  GPU_FN void add_ones(const Plane& x, i32 (&acc)[Q::Parts]) {
    constexpr int Words = 8 / Q::Parts;
    UNROLL for (int p = 0; p < Q::Parts; p++) {
      acc[p] *= 256;
      UNROLL for (int w = 0; w < Words; w++) acc[p] = dot4(0x01010101u, x.v[p * Words + w], acc[p]);
    }
  }
  GPU_FN f32 sum_squares(const f32* squares, u32 b) {
    f32 total = 0;
    for (u32 w = 0; w < bdim_x() / 32; w++) total += squares[b * (bdim_x() / 32) + w];
    return total;
  }

  template <class Source>
  GPU_FN void run(u32* shared, Signal*, const Out& out, const Source& source, u32 k, const u8* w, const void* x, const void* alpha, f32 eps, u32 splits,
                  u32 segment) {
    const u32 warps = bdim_x() / 32, warp = tid_x() / 32, lane = lane_id(), part = warp % splits, per_block = warps / splits;
    const u32 own_chunks = (k + CHUNK - 1) / CHUNK, chunks = source.slots * own_chunks, whole = Source::SUMS ? chunks * CHUNK : k;
    const u32 rounds = (chunks + splits - 1) / splits, step = out.share.blocks * per_block;
    const u32 groups = out.groups(), row_bytes = k / Q::Elements * Q::Bytes;
    // Shared memory: x, then weights of each warp, then what warps tell each other.
    const Rows rows{shared, (ScaleSum*)(shared + NB * (segment / 4) * P), segment / 32};
    u32* all_weights = shared + NB * (segment / 4 * P + segment / 16);
    u32* weights = all_weights + warp * Places * R * S::Words;
    f32* totals = (f32*)(all_weights + warps * Places * R * S::Words);
    f32* squares = totals + warps * Values;

    // What comes next: a group, of its chunks the one that `round` gives this warp, and its place in shared memory.
    S stage[R];
    u32 next = out.share.block * per_block, round = 0, place = 0;
    // That chunk: in whose piece, as the how-manieth of it, and from which row of W on.
    struct Piece {
      u32 first, chunk;
      bool exists;
    };
    const auto piece_of = [&] {
      const u32 chunk = round * splits + part, slot = Source::SUMS ? chunk / own_chunks : 0;
      return Piece{source.first(slot), chunk - slot * own_chunks, chunk < chunks && source.exists(slot)};
    };
    const auto bytes_of = [&](const Piece& p) { return (k - p.chunk * CHUNK < CHUNK ? k - p.chunk * CHUNK : CHUNK) / Q::Elements * Q::Bytes; };
    const auto from = [&](const Piece& p, int r) { return (size_t)(p.first + out.row(next + warp / splits, r)) * row_bytes + p.chunk * ChunkBytes; };
    const auto send = [&] {
      const Piece piece = piece_of();
      if (next < groups && piece.exists)
        UNROLL for (int r = 0; r < R; r++) stage[r].load(weights + (place * R + r) * S::Words, w, from(piece, r), bytes_of(piece));
    };
    send();
    wait_for_previous();
    const f32 factor = segment < whole ? 1.0f : prepare(rows, source, squares, k, whole, x, alpha, eps, out.batch, out.dtype);

    f32 acc[Values];
    UNROLL for (int i = 0; i < Values; i++) acc[i] = 0;
    while (next < groups) {
      const u32 group = next + warp / splits, chunk = round * splits + part, done = round * splits * CHUNK / segment * segment;
      const u32 unit = (chunk * CHUNK - done) / 32 + lane;
      const Piece piece = piece_of();
      const bool last = round + 1 == rounds;
      // All warps have done with the segment before.
      if (segment < whole && round * splits * CHUNK == done) {
        barrier();
        round_rows(rows, source, squares, k, done, whole - done < segment ? whole - done : segment, x, nullptr, out.batch, out.dtype, 1.0f, ~0u);
        barrier();
      }
      const u32* staged = weights + place * R * S::Words;
      u32 at[R];
      UNROLL for (int r = 0; r < R; r++) {
        at[r] = S::place(from(piece, r));
        if (piece.exists) stage[r].land(weights + (place * R + r) * S::Words, from(piece, r), bytes_of(piece));
      }
      copies_wait();
      wave_sync();
      place = place + 1 == Places ? 0 : place + 1;
      round = last ? 0 : round + 1;
      next += last ? step : 0;
      send();
      if (piece.exists && piece.chunk * (CHUNK / 32) + lane < k / 32) {
        typename Q::U u[R];
        UNROLL for (int r = 0; r < R; r++)
          Q::unit(staged_block<Q>(staged + r * S::Words, at[r], lane), lane % Q::Units, u[r]);
        // One plane of x is read while another is multiplied where registers allow, and no earlier. Rows that x does not have
        // are the first once more, and not stored.
        constexpr int Held = NB == 8 && Q::HasMin ? 1 : 2;
        Plane x[Held];
        i32 dots[R][Q::Parts], ones[Q::Parts];
        f32 whole[R][Q::Parts], whole_ones[Q::Parts];  // of the planes before the point
        rows.get(x[0], 0, unit);
        UNROLL for (int c = 0; c < P * NB; c++) {
          const int plane = c % P;
          const u32 b = (u32)(c / P) < out.batch ? c / P : 0;
          const auto read_next = [&] {
            if (c + 1 < P * NB) rows.get(x[(c + 1) % Held], (u32)((c + 1) / P) < out.batch ? c + 1 : (c + 1) % P, unit);
            GPU_KEEP_ORDER();
          };
          if (Held > 1) read_next();
          if (plane != 1) {
            UNROLL for (int p = 0; p < Q::Parts; p++) {
              ones[p] = 0;
              UNROLL for (int r = 0; r < R; r++) dots[r][p] = 0;
            }
          }
          UNROLL for (int r = 0; r < R; r++) add_dots<Q>(u[r], x[c % Held], dots[r]);
          if (Q::Group != 32 && Q::HasMin) add_ones(x[c % Held], ones);
          if (plane > 0) {
            UNROLL for (int p = 0; p < Q::Parts; p++) {
              whole_ones[p] = plane == 1 ? (f32)ones[p] : m_fma((f32)ones[p], 1.0f / 256.0f, whole_ones[p]);
              UNROLL for (int r = 0; r < R; r++)
                whole[r][p] = plane == 1 ? (f32)dots[r][p] : m_fma((f32)dots[r][p], 1.0f / 256.0f, whole[r][p]);
            }
          }
          if (plane == P - 1) {
            f32 scale[Q::Parts], sum[Q::Parts];
            rows.get_sums(scale, sum, b, unit, whole_ones);
            UNROLL for (int r = 0; r < R; r++) UNROLL for (int p = 0; p < Q::Parts; p++) {
              f32& total = acc[r * NB + c / P];
              total = m_fma(u[r].scale[p], scale[p] * whole[r][p], total);
              if (Q::HasMin) total = m_fma(u[r].min[p], sum[p], total);
            }
          }
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
  KERNEL_EARLY(threads, blocks, name, const void* x, const u8* w, const void* alpha, const void* bias, \
                 const void* residual, void* out, size_t n, size_t k, f64 eps, u32 batch, u32 glu, u32 splits, u32 segment, u32 dtype)
#define MAT_VEC_SHARED(Q) \
  DYNAMIC_SHARED(u32, shared); \
  SHARED(Signal, signals, BULK_COPIES ? TILE_WARPS * 4 : 1);
#define MAT_VEC_BODY(Q, ...) \
  typedef __VA_ARGS__ Product; \
  MAT_VEC_SHARED(Q) \
  Product::run(shared, signals, typename Product::Out(n, bias, residual, out, batch, glu, dtype, all_blocks()), OneMatrix(), (u32)k, w, x, alpha, (f32)eps, splits, segment);
#define MAT_VEC_KERNEL(name, Q, NB, R, Places, P) \
  MAT_VEC_LAUNCH(MATVEC_WARPS * 32, MATVEC_CROWD, name) { MAT_VEC_BODY(Q, MatVec<Q, NB, R, Places, P>) }

// The same for experts, slot by slot and summed (expert-slot.h).
#define EXPERT_MAT_VEC(threads, blocks, fine, Q, ...) \
  KERNEL_EARLY(threads, blocks, expert_linear##fine##_##Q, const void* x, const u8* w, const void* alpha, const u32* ids, const void* bias, void* out, size_t n, \
                 size_t k, f64 eps, u32 per_slot, u32 share, u32 experts, u32 glu, u32 splits, u32 early, u32 segment, u32 dtype, u64* error) { \
    typedef __VA_ARGS__ Product; \
    MAT_VEC_SHARED(Q) \
    const ExpertSlot slot(ids, per_slot, share, experts, n, early, error); \
    void* const y = slot.result(out, n, glu, dtype); \
    if (!slot.exists) return slot.clear(y, n, glu, dtype); \
    const void* const row = (const u8*)x + slot.row * k * bytes_of_float(dtype); \
    Product::run(shared, signals, typename Product::Out(n, bias, nullptr, y, 1, glu, dtype, slot.share), OneMatrix(), (u32)k, w, row, alpha, (f32)eps, splits, \
                 segment); \
  } \
  KERNEL_EARLY(threads, blocks, expert_sum##fine##_##Q, const void* x, const u8* w, const u32* ids, const void* mix, const void* residual, void* out, \
                 size_t n, size_t k, u32 per_row, u32 slots, u32 experts, u32 splits, u32 early, u32 segment, u32 dtype, u32 mix_dtype, u64* error) { \
    typedef __VA_ARGS__ Product; \
    MAT_VEC_SHARED(Q) \
    const ExpertSum sum(ids, per_row, slots, experts, n, mix, mix_dtype, early, error); \
    const size_t size = bytes_of_float(dtype), to = sum.row * n * size; \
    const void* const from = (const u8*)x + (size_t)sum.row * slots * k * size; \
    const void* const added = residual ? (const u8*)residual + to : nullptr; \
    Product::run(shared, signals, typename Product::Out(n, nullptr, added, (u8*)out + to, 1, 0, dtype, sum.share), sum, (u32)k, w, from, nullptr, 0.0f, splits, \
                 segment); \
  }

}  // namespace gpu
#endif  // WICK_QUANT_MATVEC_H
