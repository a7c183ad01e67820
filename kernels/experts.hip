// Around the experts of a mixture: which of them a row goes through, and the sum of what they make of it.
//
//   topk_T   a warp per row: the k ≤ 32 largest of `cols` ≤ TOPK_COLUMNS scores in order with their places, the first of equal ones
//            before the others, NaN behind all else; with `softmax` the softmax of these k, in f32. Traffic: scores once.
//   expert_order  slots sorted by expert, and the tiles of up to `tile_rows` of them that products are made of (expert-product.h); rows of
//            `row_halves` times two bytes of out whose slots have no expert become zeros. Launch: one block.
//   mix_T    out (rows, width) = residual + Σ_j mix[r, j] · y[r · k + j], in f32; mix is of `dtype`, residual may be null.
//            Launch: a vector each. Traffic: y and residual once in, out once.
#include "ids.h"
#include "row.h"
#include "stream.h"
namespace gpu {

// Larger for what comes first; 0 for what is not there.
GPU_FN u32 key_of(f32 x) {
  const u32 bits = x == 0.0f ? 0 : f32_bits(x);
  return x != x ? 1 : bits >> 31 ? ~bits : bits | 0x80000000u;
}
GPU_FN f32 of_key(u32 key) { return f32_from_bits(key == 1 ? 0x7fc00000u : key >> 31 ? key & 0x7fffffffu : ~key); }

template <class T, int Items> GPU_FN void topk(const T* x, void* values, u32* ids, size_t rows, u32 cols, u32 k, bool softmax) {
  const u32 lane = lane_id();
  const size_t per_block = bdim_x() / 32;
  for (size_t base = bid_x() * per_block; base < rows; base += gdim_x() * per_block) {
    const size_t row = base + tid_x() / 32;
    const bool there = row < rows;
    u32 keys[Items];
    UNROLL for (int i = 0; i < Items; i++) keys[i] = there && lane + 32 * i < cols ? key_of(widen(x[row * cols + lane + 32 * i])) : 0;
    // Lane j keeps what comes in place j. Places count down, so that of equal scores the first is the most.
    u32 own = 0, own_key = 0;
    NO_UNROLL for (u32 j = 0; j < k; j++) {
      u32 best = 0;
      UNROLL for (int i = 0; i < Items; i++) best = best < keys[i] ? keys[i] : best;
      const u32 most = warp_most(best);
      u32 from = 0;
      UNROLL for (int i = Items - 1; i >= 0; i--) from = keys[i] == most ? ~(lane + 32 * i) : from;
      const u32 place = ~warp_most(from);
      UNROLL for (int i = 0; i < Items; i++) keys[i] = lane + 32 * i == place ? 0 : keys[i];
      own = lane == j ? place : own;
      own_key = lane == j ? most : own_key;
    }
    const bool mine = there && lane < k;
    f32 value = 0;
    if (softmax) {
      const f32 score = of_key(own_key), most = shfl(score, 0), power = mine ? m_exp(score - most) : 0.0f;
      value = power / warp_all<SumOf>(power);
    }
    if (!mine) continue;
    if (softmax) ((f32*)values)[row * k + lane] = value;
    else ((T*)values)[row * k + lane] = x[row * cols + own];
    ids[row * k + lane] = own;
  }
}

template <class T, int W> GPU_FN void mix_experts(const T* y, const void* mix, const T* residual, T* out, size_t rows, size_t width, u32 k, u32 dtype) {
  const size_t per_row = width / W;
  single_loop(rows * per_row, [&](size_t i) {
    const size_t row = rows == 1 ? 0 : divide(i, per_row), at = i - row * per_row;
    f32 sum[W] = {};
    if (residual) {
      const Vec<T, W> v = load_vec<T, W>(residual, i);
      UNROLL for (int e = 0; e < W; e++) sum[e] = widen(v.v[e]);
    }
    UNROLL_SOME for (u32 j = 0; j < k; j++) {
      const f32 factor = load_float(mix, row * k + j, dtype);
      const Vec<T, W> v = load_vec<T, W>(y, (row * k + j) * per_row + at);
      UNROLL for (int e = 0; e < W; e++) sum[e] = m_fma(factor, widen(v.v[e]), sum[e]);
    }
    Vec<T, W> z;
    UNROLL for (int e = 0; e < W; e++) z.v[e] = narrow<T>(sum[e]);
    store_vec<T, W>(out, i, z);
  });
}

// counts and starts: shared memory for a number per expert, and one for no expert.
GPU_FN void expert_order(u32* counts, u32* starts, const u32* ids, u32* order, u32* tiles, u16* out, u32 slots, u32 experts, u32 tile_rows, size_t row_halves,
                         u64* error) {
  for (u32 e = tid_x(); e <= experts; e += bdim_x()) counts[e] = 0;
  barrier();
  const auto expert_of = [&](u32 slot, u64* noted) {
    const i64 expert = resolve<u32>(ids[slot], experts, slot, noted);
    return expert < 0 ? experts : (u32)expert;
  };
  for (u32 s = tid_x(); s < slots; s += bdim_x()) atomic_add(counts + expert_of(s, error), 1u);
  barrier();
  // Each lane has some neighbouring experts; every warp adds all up, and the first writes.
  const u32 each = (experts + 31) / 32, begin = lane_id() * each, end = begin + each < experts ? begin + each : experts;
  u32 rows = 0, made = 0;
  for (u32 e = begin; e < end; e++) {
    rows += counts[e];
    made += (counts[e] + tile_rows - 1) / tile_rows;
  }
  const u32 own_rows = rows, own_tiles = made;
  UNROLL for (u32 step = 1; step < 32; step *= 2) {
    const u32 more_rows = shfl_up(rows, step), more_tiles = shfl_up(made, step);
    rows += lane_id() >= step ? more_rows : 0;
    made += lane_id() >= step ? more_tiles : 0;
  }
  const u32 all = shfl(rows, 31), all_tiles = shfl(made, 31);
  if (tid_x() < 32) {
    u32 at = rows - own_rows, tile = made - own_tiles;
    for (u32 e = begin; e < end; e++) {
      starts[e] = at;
      for (u32 first = at; first < at + counts[e]; first += tile_rows, tile++)
        ((Words4*)tiles)[1 + tile] = Words4{{e, first, first + tile_rows < at + counts[e] ? first + tile_rows : at + counts[e], 0}};
      at += counts[e];
    }
    if (tid_x() == 0) {
      starts[experts] = all;
      tiles[0] = all_tiles;
    }
  }
  barrier();
  for (u32 s = tid_x(); s < slots; s += bdim_x()) order[atomic_add(starts + expert_of(s, nullptr), 1u)] = s;
  barrier();
  for (u32 r = all; r < slots; r++)
    for (size_t i = tid_x(); i < row_halves; i += bdim_x()) out[order[r] * row_halves + i] = 0;
}

#if !defined(GPU_ONLY) || defined(GPU_ONLY_bytes)
KERNEL_BOUNDS(WIDE_BLOCK, expert_order, const u32* ids, u32* order, u32* tiles, u16* out, size_t slots, size_t row_halves, u32 experts, u32 tile_rows,
              u64* error) {
  DYNAMIC_SHARED(u32, shared);
  expert_order(shared, shared + experts + 1, ids, order, tiles, out, (u32)slots, experts, tile_rows, row_halves, error);
}
#endif

#define TOPK(T) \
  KERNEL_BOUNDS(GPU_BLOCK, topk_##T, const T* x, void* values, u32* ids, size_t rows, size_t cols, u32 k, u32 softmax) { \
    if (cols <= 128) topk<T, 4>(x, values, ids, rows, (u32)cols, k, softmax); \
    else topk<T, TOPK_COLUMNS / 32>(x, values, ids, rows, (u32)cols, k, softmax); \
  }
#define MIX(T) \
  KERNEL_BOUNDS(GPU_BLOCK, mix_##T, const T* y, const void* mix, const T* residual, T* out, size_t rows, size_t width, u32 k, u32 dtype) { \
    constexpr int W = 16 / sizeof(T); \
    const bool aligned = aligned_to((const void*)((u64)y | (u64)residual | (u64)out), 16); \
    if (aligned && width % W == 0) mix_experts<T, W>(y, mix, residual, out, rows, width, k, dtype); \
    else mix_experts<T, 1>(y, mix, residual, out, rows, width, k, dtype); \
  }
#define EXPERTS(T) TOPK(T) MIX(T)
GPU_bf16(EXPERTS)
GPU_f16(EXPERTS)
GPU_f32(EXPERTS)

}  // namespace gpu
