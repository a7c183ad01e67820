// One row of x through the experts that a router's scores choose, in two launches: kernels/quant-routed.hip.
#ifndef WICK_QUANT_ROUTED_H
#define WICK_QUANT_ROUTED_H
#include "gate.h"
#include "quant-whole.h"
#include "row.h"

#if GPU_BYTE_TILES
namespace gpu {

// The `slots` largest of up to 128 scores of 16 bits, four to a lane, in order, found by the first warp of every block: as topk_T has it, of
// equal ones the first before the others, NaN behind all else. A score and its place are one word, of which no two are equal; 0 is for
// what is not there.
struct Choice {
  u32* keys;
  u32 slots, dtype;

  GPU_FN u32 key_of(u32 bits, u32 place, u32 dtype) {
    const u32 size = bits & 0x7fffu, infinite = dtype == DTYPE_f16 ? 0x7c00u : 0x7f80u;
    const u32 key = size > infinite ? 1 : size == 0 ? 0x8000u : bits >> 15 ? bits ^ 0xffffu : bits | 0x8000u;
    return key << 16 | (0xffffu - place);
  }
  GPU_METHOD Choice(u32* shared, const void* scores, u32 experts, u32 slots, u32 dtype) : keys(shared), slots(slots), dtype(dtype) {
    if (tid_x() < 32) {
      const u32 lane = lane_id();
      const bool is = 4 * lane < experts;
      const Words2 raw = ((const Words2*)scores)[is ? lane : 0];
      u32 own[4], chosen = 0;
      UNROLL for (u32 i = 0; i < 4; i++) own[i] = is ? key_of(raw.v[i / 2] >> 16 * (i % 2) & 0xffffu, 4 * lane + i, dtype) : 0;
      NO_UNROLL for (u32 j = 0; j < slots; j++) {
        const u32 one = own[0] > own[1] ? own[0] : own[1], other = own[2] > own[3] ? own[2] : own[3], most = warp_most(one > other ? one : other);
        UNROLL for (u32 i = 0; i < 4; i++) own[i] = own[i] == most ? 0 : own[i];
        chosen = lane == j ? most : chosen;
      }
      if (lane < slots) keys[lane] = chosen;
    }
    barrier();
  }
  GPU_METHOD u32 expert(u32 slot) const { return 0xffffu - (keys[slot] & 0xffffu); }
  // What each counts, the softmax of their scores: by one warp, for all to read behind a barrier.
  GPU_METHOD f32* mix() const { return (f32*)(keys + ROUTED_SLOTS); }
  GPU_METHOD void weigh() const {
    const bool mine = lane_id() < slots;
    const u32 key = keys[mine ? lane_id() : 0] >> 16, bits = key == 1 ? 0x7fffu : key >> 15 ? key & 0x7fffu : key ^ 0xffffu;
    const f32 score = dtype == DTYPE_f16 ? f16_to_f32((u16)bits) : f32_from_bits(bits << 16);
    const f32 most = shfl(score, 0), power = mine ? m_exp(score - most) : 0.0f;
    f32 sum = power;
    UNROLL for (u32 mask = 16; mask; mask /= 2) sum += shfl_xor(sum, mask);
    if (mine) mix()[lane_id()] = power * inverse(sum);
  }
};

// Gates and what they open: `per_slot` blocks for each of the chosen experts, `splits` warps for each eight columns, the weights of
// ROUTED_AHEAD of which are on their way at once. What comes out, times what the expert counts, is rounded as routed_down takes it.
template <class Q> struct RoutedOpen : WholeRows<Q> {
  typedef WholeRows<Q> Base;
  typedef typename Base::Unit Unit;

  GPU_FN void run(u32* shared, Signal* signals, const void* x, const u8* w, const void* alpha, const void* scores, u8* out, u32 width, u32 k, f32 eps, u32 per_slot,
                  u32 slots, u32 experts, u32 glu, u32 splits, u32 early, u32 dtype) {
    const u32 warps = bdim_x() / 32, warp = uniform(tid_x() / 32), lane = lane_id(), own = warp / splits, part = warp - own * splits, groups = warps / splits;
    const u32 slot = bid_x() / per_slot, block = bid_x() - slot * per_slot, columns = 8 * groups, row_bytes = k / Q::Elements * Q::Bytes;
    // Shared memory: x, weights, what warps tell each other, the choice.
    const typename Base::Rows rows(shared, 1, 1, k);
    u32* const all_weights = shared + Unit::words(1, k);
    u32* const weights = all_weights + own * 4 * row_bytes;
    f32* const totals = (f32*)(all_weights + groups * 4 * row_bytes);
    f32* const values = totals + 16 * warps;
    f32* const squares = values + columns;
    Base::make_signals(signals, groups);
    // x may have been made before the scores were, and is there then.
    bool large = false;
    if (early) large = Base::round_row(rows, squares, k, x, alpha, dtype);
    wait_for_previous();
    const Choice chosen((u32*)(squares + (warps + 3) / 4 * 4), scores, experts, slots, dtype);
    const u8* const gates = w + ((size_t)uniform(chosen.expert(slot)) * 2 * width + block * columns + own * 8) * row_bytes;
    if (part == 0) {
      // The first groups are multiplied while the last are still on their way.
      if (BULK_COPIES && own >= ROUTED_AHEAD) await_signal(signals + own - ROUTED_AHEAD, 0);
      Base::expect(signals + own, 16 * row_bytes);
      Base::send(weights, gates, 8 * row_bytes, signals + own);
      Base::send(weights + 2 * row_bytes, gates + (size_t)width * row_bytes, 8 * row_bytes, signals + own);
    }
    if (!early) large = Base::round_row(rows, squares, k, x, alpha, dtype);
    if (warp == 0) chosen.weigh();
    // While weights are on their way.
    f32 factor = 1;
    if (alpha && tid_x() < columns) {
      f32 square = 0;
      for (u32 i = 0; i < warps; i++) square += squares[i];
      factor = rms_factor(square, k, large ? 0.0f : eps);
    }
    Base::arrived(signals + own);
    f32 acc[2] = {};
    const typename Base::Pair lines{weights, row_bytes};
    const u32 steps = k / Base::STEP, each = (steps + splits - 1) / splits, end = part * each + each < steps ? part * each + each : steps;
    // Two at a time, so that one's weights are read while the other's are multiplied.
    u32 s = part * each;
    NO_UNROLL for (; s + 2 <= end; s += 2) UNROLL for (u32 i = 0; i < 2; i++) Base::step(acc, lines, rows, s + i);
    if (s < end) Base::step(acc, lines, rows, s);
    Unit::finish(acc);
    if (lane % 4 == 0) UNROLL for (int e = 0; e < 2; e++) totals[16 * warp + 8 * e + lane / 4] = acc[e];
    barrier();
    if (tid_x() < columns) {
      const u32 column = tid_x();
      f32 both[2] = {};
      for (u32 p = 0; p < splits; p++) UNROLL for (int e = 0; e < 2; e++) both[e] += totals[16 * (column / 8 * splits + p) + 8 * e + column % 8];
      values[column] = gated_shortly(glu, both[0] * factor, both[1] * factor) * chosen.mix()[slot];
    }
    barrier();
    if (warp) return;
    // Four lanes to sixteen columns, of which two have the same as the others: their sum is twice that of the sixteen.
    const u32 first = lane / 4 * 16 + lane % 2 * 8;
    f32 eight[8];
    UNROLL for (int j = 0; j < 8; j++) eight[j] = values[(first < columns ? first : 0) + j];
    ScaleSum scale;
    const Planes<2> q = round_group<2>(eight, scale);
    const u32 whole = slots * width, at = slot * width + block * columns + first;
    if (first >= columns || lane % 4 > 1) return;
    UNROLL for (int p = 0; p < 2; p++) *(Words2*)(out + p * whole + at) = q.v[p];
    if (lane % 4 == 0) ((ScaleSum*)(out + 2 * whole))[at / 16] = ScaleSum{{scale.v[0], scale.v[1] / 2}};
  }
};

// Rows of which each sixteen elements of x have a scale and a sum of their own.
template <class Q> struct Routed : WholeRows<Q> {
  typedef WholeRows<Q> Base;
  typedef typename Base::Unit Unit;
  using Base::PER_BLOCK;
  // acc += step s of two rows and of x from group `first` of 32 on.
  GPU_FN void step(f32 (&acc)[2], const typename Base::Pair& rows, const typename Base::Rows& x, const f32* sums, u32 s, u32 first) {
    const u32 t = lane_id() % 4, run = 4 * s + t, group = first + run * Q::Parts;
    Staged<Q::Align> block[2];
    rows.block(block, run);
    f32 scale[2][Q::Halves][Q::Parts], min[2][Q::Halves][Q::Parts];
    u32 q[2][2][4 * Q::Fields];
    UNROLL for (int h = 0; h < 2; h++) {
      UNROLL for (int half = 0; half < Q::Halves; half++) LaneType<Q>::scales(block[h], run % PER_BLOCK, half, scale[h][half], min[h][half]);
      UNROLL for (int i = 0; i < Unit::STORED; i += 4) LaneType<Q>::template words<4>(block[h], run % PER_BLOCK, i, q[h][i / 4]);
    }
    const typename Unit::Sight sight(x, group);
    UNROLL for (int p = 0; p < Q::Parts; p++) {
      const Vec<f32, 4> s = load_shared<4>(sums, 4 * (group + p));
      UNROLL for (int half = 0; half < 2; half++) {
        const int own = Q::Halves > 1 ? half : 0, word = Q::Fields > Q::Parts ? 0 : half, field = Q::Fields > Q::Parts ? half : p;
        typename Unit::Sums4 d;
        d.add(q[0][word] + 4 * field, q[1][word] + 4 * field, sight, 8 * p + 4 * half);
        UNROLL for (int h = 0; h < 2; h++) {
          acc[h] = m_fma(scale[h][own][p], s.v[2 * half] * d.of(h), acc[h]);
          if (Q::HasMin) acc[h] = m_fma(min[h][own][p], s.v[2 * half + 1], acc[h]);
        }
      }
    }
  }
};

// y (n) = Σ over slots of x (slots, k) · W[expert]ᵀ, and a residual; a block for each 16 rows. The chosen experts are known before the kernel
// that makes x has ended, and their weights on the way.
template <class Q> struct RoutedDown : Routed<Q> {
  typedef Routed<Q> Base;
  typedef typename Base::Unit Unit;

  GPU_FN void run(u32* shared, Signal* signals, const u8* x, const u8* w, const void* scores, const void* residual, void* out, u32 n, u32 k, u32 slots, u32 experts,
                  u32 dtype) {
    constexpr u32 warps = ROUTED_DOWN_WARPS;
    const u32 warp = uniform(tid_x() / 32), lane = lane_id(), row_bytes = k / Q::Elements * Q::Bytes, whole = slots * k;
    // Shared memory: x, its scales and sums, weights, what warps tell each other, the choice.
    const typename Base::Rows rows(shared, 1, 1, whole);
    f32* const sums = (f32*)(rows.quants + 2 * rows.between);
    u32* const weights = (u32*)sums + whole / 8;
    f32* const totals = (f32*)(weights + slots * 4 * row_bytes);
    Base::make_signals(signals, slots + 1);
    const Choice chosen((u32*)(totals + 16 * warps), scores, experts, slots, dtype);
    NO_UNROLL for (u32 slot = warp; slot < slots; slot += warps) {
      Base::expect(signals + slot, 16 * row_bytes);
      Base::send(weights + slot * 4 * row_bytes, w + ((size_t)uniform(chosen.expert(slot)) * n + 16 * bid_x()) * row_bytes, 16 * row_bytes, signals + slot);
    }
    wait_for_previous();
    if (warp == 0) {
      Signal* const signal = signals + slots;
      Base::expect(signal, 2 * whole + whole / 2);
      UNROLL for (u32 p = 0; p < 2; p++) Base::send(rows.quants + p * rows.between, x + p * whole, whole, signal);
      Base::send((u32*)sums, x + 2 * whole, whole / 2, signal);
    }
    f32 added = 0;
    if (warp == 0 && residual && lane % 2 == 0) added = load_float(residual, 16 * bid_x() + lane / 2, dtype);
    const u32 own = k / Base::STEP, steps = slots * own, each = (steps + warps - 1) / warps, end = warp * each + each < steps ? warp * each + each : steps;
    u32 s = warp * each;
    if (BULK_COPIES) for (u32 slot = s / own; slot * own < end; slot++) await_signal(signals + slot, 0);
    Base::arrived(signals + slots);
    f32 acc[2] = {};
    const auto step = [&](u32 s) {
      const u32 slot = s / own;
      Base::step(acc, typename Base::Pair{weights + slot * 4 * row_bytes, row_bytes}, rows, sums, s - slot * own, slot * (k / 32));
    };
    NO_UNROLL for (; s + 3 <= end; s += 3) UNROLL for (u32 i = 0; i < 3; i++) step(s + i);
    NO_UNROLL for (; s < end; s++) step(s);
    Unit::finish(acc);
    if (lane % 4 == 0) UNROLL for (int e = 0; e < 2; e++) totals[16 * warp + 8 * e + lane / 4] = acc[e];
    barrier();
    if (warp) return;
    f32 sum = 0;
    UNROLL for (u32 i = 0; i < warps; i += 2) sum += totals[16 * (i + lane % 2) + lane / 2];
    sum += shfl_xor(sum, 1);
    if (lane % 2 == 0) store_float(out, 16 * bid_x() + lane / 2, sum + added, dtype);
  }
};

}  // namespace gpu
#endif  // GPU_BYTE_TILES
#endif  // WICK_QUANT_ROUTED_H
