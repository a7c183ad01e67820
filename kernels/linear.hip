// out (batch, n) = x (batch, k) · W (n, k)ᵀ for up to eight rows, with all that a layer has around its product.
//
//   linear_T_bN, linear_norm_T_bN  for N/2 < batch ≤ N; out = f(norm(x)·Wᵀ + bias) + residual, where norm is RMS with weight
//     alpha and f nothing (glu 0), silu(gate)·up (GLU_silu), gelu(gate)·up (GLU_gelu) or gpt-oss's gate (GLU_clampedSwiglu) of the two halves of W's rows. bias and residual may
//     be null. k is a multiple of 16 bytes, and x, alpha and W are aligned to them.
//   linear_thin_T  the same for one row and few rows of W, as of a router, without a gate: a block for each of them
//   expert_linear_T, expert_sum_T  a row of x each through one of the matrices of W (experts, n, k), see expert-slot.h
//
// Launch: blocks of `threads`, `splits` warps for each group of LINEAR_GROUP rows of W (half as many columns of out with a gate).
#include "expert-slot.h"
#include "row.h"
namespace gpu {

// A warp keeps R · U vectors of W in flight. The norm's factor is one number per row of x, so it comes after the sums: no pass
// over x goes before the product. Traffic: W once; x and alpha from the cache, once per warp.
template <class T, int NB, int R, int U, bool Norm> struct Linear {
  static constexpr int V = 16 / sizeof(T), Values = R * NB;
  u32 vectors, splits, part;
  const T *x, *alpha, *w;
  u32 batch;

  GPU_METHOD void load(Words4 (&a)[U][R], const T* const (&row)[R], u32 v) const {
    UNROLL for (int u = 0; u < U; u++)
      if (v + u * 32 * splits < vectors) UNROLL for (int r = 0; r < R; r++) a[u][r] = load_once(row[r] + (size_t)(v + u * 32 * splits) * V);
  }
  // The lane's part of the sums. What comes first of the first rows is on its way before x is there.
  GPU_METHOD void sums(const T* const (&row)[R], f32 (&acc)[Values], f32 (&squares)[NB], bool first) const {
    const u32 step = 32 * splits;
    UNROLL for (int i = 0; i < Values; i++) acc[i] = 0;
    UNROLL for (int b = 0; b < NB; b++) squares[b] = 0;
    u32 v = part * 32 + lane_id();
    Words4 a[U][R];
    load(a, row, v);
    if (first) wait_for_previous();
    while (v < vectors) {
      UNROLL for (int u = 0; u < U; u++)
        if (v + u * step < vectors) multiply(a[u], v + u * step, acc, squares);
      v += U * step;
      load(a, row, v);
    }
  }
  GPU_METHOD void multiply(const Words4 (&a)[R], u32 v, f32 (&acc)[Values], f32 (&squares)[NB]) const {
    Words4 weight;
    if (Norm) weight = *(const Words4*)(alpha + (size_t)v * V);
    UNROLL for (int b = 0; b < NB; b++) {
      const Words4 q = *(const Words4*)(x + ((size_t)((u32)b < batch ? b : 0) * vectors + v) * V);
      UNROLL for (int t = 0; t < 4; t++) UNROLL for (int j = 0; j < InWord<T>::Count; j++) {
        f32 xj = InWord<T>::at(q.v[t], j);
        if (Norm) {
          squares[b] += xj * xj;
          xj *= InWord<T>::at(weight.v[t], j);
        }
        UNROLL for (int r = 0; r < R; r++) acc[r * NB + b] += InWord<T>::at(a[r].v[t], j) * xj;
      }
    }
  }

  // The totals of this lane's value and, with a norm, of the squares of its row of x, over all warps that share the rows.
  GPU_METHOD void join(f32* kept, const f32 (&acc)[Values], const f32 (&squares)[NB], f32& total, f32& square) const {
    constexpr u32 Spread = 32 / Values, Apart = 32 / NB;
    const u32 value = lane_id() / Spread;
    total = WarpTotals<Values>::of(acc);
    square = Norm ? shfl(WarpTotals<NB>::of(squares), value % NB * Apart) : 0.0f;
    if (splits == 1) return;
    const u32 warp = tid_x() / 32;
    if (lane_id() % Spread == 0) {
      kept[warp * Values * 2 + value] = total;
      if (Norm) kept[warp * Values * 2 + Values + value] = square;
    }
    barrier();
    total = square = 0;
    for (u32 p = 0; p < splits; p++) {
      total += kept[(warp - part + p) * Values * 2 + value];
      if (Norm) square += kept[(warp - part + p) * Values * 2 + Values + value];
    }
    barrier();
  }
  // One value by one lane: for a row of x whose squares overflow, made small.
  GPU_METHOD f32 small(const T* from, const T* row) const {
    f32 total = 0, square = 0;
    NO_UNROLL for (u32 j = 0; j < vectors * V; j++) {
      const f32 xj = widen(from[j]) * small_scale();
      square += xj * xj;
      total += xj * widen(alpha[j]) * widen(row[j]);
    }
    return total * rms_factor(square, (u32)vectors * V, 0.0f);
  }

  GPU_METHOD void run(f32* kept, const Outputs<R, NB>& out, f64 eps) const {
    const u32 per_block = bdim_x() / 32 / splits;
    const u32 groups = out.groups();
    const size_t k = (size_t)vectors * V;
    for (u32 base = out.share.block * per_block; base < groups; base += out.share.blocks * per_block) {
      const u32 group = base + tid_x() / 32 / splits;
      const T* row[R];
      UNROLL for (int r = 0; r < R; r++) row[r] = w + (size_t)out.row(group, r) * k;
      f32 acc[Values], squares[NB], total, square;
      sums(row, acc, squares, base == out.share.block * per_block);
      join(kept, acc, squares, total, square);
      if (Norm && !is_infinite(square)) total *= rms_factor(square, (u32)k, (f32)eps);
      else if (Norm) total = small(x + (size_t)(out.value() % NB < batch ? out.value() % NB : 0) * k, w + (size_t)out.row(group, out.value() / NB) * k);
      if (part == 0) out.store(group, total);
    }
  }
};

#define LINEAR_KERNEL(name, T, NB, R, U, Norm) \
  KERNEL_EARLY(LINEAR_BLOCK, 24 / (NB + 2), name, const T* x, const T* w, const T* alpha, const T* bias, const T* residual, T* out, size_t n, \
                size_t k, f64 eps, u32 batch, u32 glu, u32 splits) { \
    typedef Linear<T, NB, R, U, Norm> L; \
    SHARED(f32, kept, LINEAR_BLOCK / 32 * L::Values * 2); \
    const L linear{(u32)(k / L::V), splits, tid_x() / 32 % splits, x, alpha, w, batch}; \
    linear.run(kept, Outputs<R, NB>(n, bias, residual, out, batch, glu, DTypeNumber<T>::value, all_blocks()), eps); \
  }
#define LINEAR_BOTH(T, NB, R, U) \
  LINEAR_KERNEL(linear_##T##_b##NB, T, NB, R, U, false) LINEAR_KERNEL(linear_norm_##T##_b##NB, T, NB, R, U, true)
#define LINEAR(T) \
  LINEAR_BOTH(T, 1, LINEAR_GROUP, 1) LINEAR_BOTH(T, 2, LINEAR_GROUP, 1) LINEAR_BOTH(T, 4, LINEAR_GROUP, 1) LINEAR_BOTH(T, 8, LINEAR_GROUP, 1)
GPU_bf16(LINEAR)
GPU_f16(LINEAR)
GPU_f32(LINEAR)

// One row of W: of each thread the first U vectors of it and of alpha are on their way before x is there.
template <class T, int U> struct Thin {
  static constexpr int V = 16 / sizeof(T);
  u32 vectors;
  const T *x, *alpha, *row;

  GPU_METHOD u32 at(u32 base, int u) const { return base + u * bdim_x() + tid_x(); }
  GPU_METHOD void load(Words4 (&a)[U], Words4 (&by)[U], u32 base) const {
    UNROLL for (int u = 0; u < U; u++) {
      const size_t v = at(base, u) < vectors ? at(base, u) : 0;
      a[u] = load_once(row + v * V);
      if (alpha) by[u] = load_once(alpha + v * V);
    }
  }
  // This thread's part of the product and of the squares of x · scale.
  GPU_METHOD void sums(f32 (&sum)[2], f32 scale) const {
    Words4 a[U], by[U], q[U];
    load(a, by, 0);
    wait_for_previous();
    sum[0] = sum[1] = 0;
    NO_UNROLL for (u32 base = 0; base < vectors; base += U * bdim_x()) {
      if (base) load(a, by, base);
      UNROLL for (int u = 0; u < U; u++) q[u] = *(const Words4*)(x + (size_t)(at(base, u) < vectors ? at(base, u) : 0) * V);
      UNROLL for (int u = 0; u < U; u++)
        if (at(base, u) < vectors) UNROLL for (int w = 0; w < 4; w++) UNROLL for (int j = 0; j < InWord<T>::Count; j++) {
          const f32 xj = InWord<T>::at(q[u].v[w], j) * scale;
          sum[1] = m_fma(xj, xj, sum[1]);
          sum[0] = m_fma(alpha ? xj * InWord<T>::at(by[u].v[w], j) : xj, InWord<T>::at(a[u].v[w], j), sum[0]);
        }
    }
  }
  // Of all threads of the block.
  GPU_METHOD void totals(f32* kept, f32 (&sum)[2]) const {
    const f32 own = WarpTotals<2>::of(sum);
    if (lane_id() % 16 == 0) kept[tid_x() / 16] = own;
    barrier();
    sum[0] = sum[1] = 0;
    for (u32 w = 0; w < bdim_x() / 32; w++) UNROLL for (int i = 0; i < 2; i++) sum[i] += kept[2 * w + i];
    barrier();
  }
  GPU_METHOD f32 run(f32* kept, f32 eps) const {
    f32 sum[2];
    // A row whose squares overflow goes again, made small. All threads see the same.
    NO_UNROLL for (u32 again = 0;; again++) {
      sums(sum, again ? small_scale() : 1.0f);
      totals(kept, sum);
      if (!alpha) return sum[0];
      if (again || !is_infinite(sum[1])) return sum[0] * rms_factor(sum[1], (u32)vectors * V, again ? 0.0f : eps);
    }
  }
};
#define LINEAR_THIN(T) \
  KERNEL_EARLY(LINEAR_BLOCK, 8, linear_thin_##T, const T* x, const T* w, const T* alpha, const T* bias, const T* residual, T* out, size_t n, \
                size_t k, f64 eps, u32 batch, u32 glu, u32 splits) { \
    typedef Thin<T, 2> Row; \
    SHARED(f32, kept, LINEAR_BLOCK / 16); \
    const u32 column = bid_x(); \
    const Row row{(u32)(k / Row::V), x, alpha, w + column * k}; \
    f32 total = row.run(kept, (f32)eps); \
    if (tid_x()) return; \
    if (bias) total += widen(bias[column]); \
    out[column] = narrow<T>(residual ? total + widen(residual[column]) : total); \
  }
GPU_bf16(LINEAR_THIN)
GPU_f16(LINEAR_THIN)
GPU_f32(LINEAR_THIN)

#define EXPERT_LINEAR(T) \
  KERNEL_EARLY(LINEAR_BLOCK, 8, expert_linear_##T, const T* x, const T* w, const u32* ids, const T* bias, T* out, size_t n, size_t k, \
                 u32 per_slot, u32 share, u32 experts, u32 glu, u32 splits, u32 early, u64* error) { \
    typedef Linear<T, 1, LINEAR_GROUP, 1, false> L; \
    SHARED(f32, kept, LINEAR_BLOCK / 32 * L::Values * 2); \
    const ExpertSlot slot(ids, per_slot, share, experts, n, early, error); \
    void* const y = slot.result(out, n, glu, DTypeNumber<T>::value); \
    if (!slot.exists) return slot.clear(y, n, glu, DTypeNumber<T>::value); \
    const L linear{(u32)(k / L::V), splits, tid_x() / 32 % splits, x + slot.row * k, nullptr, w, 1}; \
    linear.run(kept, Outputs<LINEAR_GROUP, 1>(n, bias, nullptr, y, 1, glu, DTypeNumber<T>::value, slot.share), 0); \
  }
// Warps that share rows of the result take its slots in turn.
template <class T> GPU_FN void expert_sums(f32* kept, const ExpertSum& sum, const T* x, const T* w, const Outputs<LINEAR_GROUP, 1>& out, u32 k, u32 splits) {
  typedef Linear<T, 1, LINEAR_GROUP, 1, false> L;
  const u32 per_block = bdim_x() / 32 / splits, part = tid_x() / 32 % splits, vectors = k / L::V;
  const L shared{vectors, splits, part, x, nullptr, w, 1};
  for (u32 base = out.share.block * per_block; base < out.groups(); base += out.share.blocks * per_block) {
    const u32 group = base + tid_x() / 32 / splits;
    f32 all[LINEAR_GROUP] = {}, squares[1], total, square;
    for (u32 slot = part; slot < sum.slots; slot += splits) {
      const u32 first = sum.first(slot);
      const bool exists = sum.exists(slot);
      const T* row[LINEAR_GROUP];
      UNROLL for (int r = 0; r < LINEAR_GROUP; r++) row[r] = w + (size_t)(first + out.row(group, r)) * k;
      const L own{vectors, 1, 0, x + (size_t)slot * k, nullptr, w, 1};
      f32 acc[LINEAR_GROUP];
      own.sums(row, acc, squares, slot == part && base == out.share.block * per_block);
      if (exists) UNROLL for (int r = 0; r < LINEAR_GROUP; r++) all[r] = m_fma(sum.factor(slot), acc[r], all[r]);
    }
    shared.join(kept, all, squares, total, square);
    if (part == 0) out.store(group, total);
  }
}
#define EXPERT_SUM(T) \
  KERNEL_EARLY(LINEAR_BLOCK, 8, expert_sum_##T, const T* x, const T* w, const u32* ids, const void* mix, const T* residual, T* out, size_t n, \
                 size_t k, u32 per_row, u32 slots, u32 experts, u32 splits, u32 early, u32 mix_dtype, u64* error) { \
    SHARED(f32, kept, LINEAR_BLOCK / 32 * LINEAR_GROUP * 2); \
    const ExpertSum sum(ids, per_row, slots, experts, n, mix, mix_dtype, early, error); \
    const Outputs<LINEAR_GROUP, 1> outputs(n, nullptr, residual ? residual + sum.row * n : nullptr, out + sum.row * n, 1, 0, DTypeNumber<T>::value, sum.share); \
    expert_sums<T>(kept, sum, x + (size_t)sum.row * slots * k, w, outputs, (u32)k, splits); \
  }
GPU_bf16(EXPERT_SUM)
GPU_f16(EXPERT_SUM)
GPU_f32(EXPERT_SUM)
GPU_bf16(EXPERT_LINEAR)
GPU_f16(EXPERT_LINEAR)
GPU_f32(EXPERT_LINEAR)

}  // namespace gpu
