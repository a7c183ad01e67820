// The product of up to ROWS rows with quantized weights whose rows are whole pieces (quant-pieces.h): y (batch, n) = f(x (batch, k) · W
// (n, k)ᵀ + bias) + residual; arguments as in linear.hip, x as halves of `dtype`.
//
// A warp has one piece of k to itself: what x has of it stays in its registers as mma.sync takes its right operand, so that shared
// memory is for weights alone and nothing but them is read there. x is in f16: of bf16 with other exponents, a row that is too large
// or too small for them lifted by a power of two so that its largest is near 2^15, and nothing is lost that counts beside it. `splits`
// warps have all pieces, or those of one of `parts` blocks, and take the same 16 rows of W, a box to each, while the next are on their
// way, the first before the kernel that makes x has ended. Their sums meet in shared memory, where some of them add them up, while all
// are at the next 16 rows. Of the blocks with parts of the same rows, the last adds up what all have left in `sums`.
// Only Hopper is given these products. Traffic: W once; x once for each `parts` blocks, from the cache.
#ifndef WICK_QUANT_HELD_H
#define WICK_QUANT_HELD_H
#include "gpu/boxes.h"
#include "gpu/uniform.h"
#include "gpu/warpgroup.h"
#include "quant-pieces.h"
#include "stream.h"

#if GPU_WARPGROUPS
namespace gpu {

template <class Q, u32 ROWS> struct QuantHeld {
  static constexpr u32 TILES = ROWS / 8, LINES = 16, BYTES = PIECE / Q::Elements * Q::Bytes, LINE = BYTES / 4, PLACE_WORDS = LINES * LINE;
  // Boxes that are on their way to a warp; bytes of eight rows of x on their way to its registers, and words of its sums, which are
  // there later, twice. Those of two rows of x are side by side, so far from the next two that sixteen lanes hit all banks.
  static constexpr u32 PLACES = BYTES > PIECE ? QUANT_HELD_WIDE_PLACES : QUANT_HELD_PLACES, STAGE = 4096, PITCH = 40, ROOM = PITCH * ROWS / 2;
  static constexpr u32 OUTPUTS = LINES * ROWS / 2;  // of a group, in twos
  typedef Outputs<LINES, ROWS> Out;
  typedef Vec<f32, 2> Two;
  static_assert(2 * ROOM * 4 <= STAGE, "sums lie where x was");

  // What the blocks of one share have in common: how many they are, their sums, and a zero to count with.
  struct Parts {
    u32 count, own;
    f32* sums;
    u32* counter;
  };
  // Exponents of bf16 from `near` down become those of f16 from 29 down. Most rows can have these, of up to 2^12: f16 has as many bits as
  // bf16 of what is above 2^-20.
  static constexpr u32 PLAIN = 137, AS_IT_IS = 141;

  // A piece of 8 N rows of x, and what the products of this lane's rows are to be multiplied with.
  template <u32 N> struct Held {
    u32 steps[16][N][2];
    f32 factors[N][2];

    GPU_METHOD void fetch(u8* stage, const u16* x, u32 k, u32 batch, u32 dtype) {
      const u32 lane = lane_id(), t = lane % 4, n = lane / 4;
      // A lane's 64 of a row are eight vectors, which lie so that eight lanes read theirs from all banks.
      const auto bring = [&](u32 j) {
        UNROLL for (u32 i = 0; i < 8; i++) {
          const u32 b = j * 8 + i, owner = lane / 8;
          copy16_async((void*)(stage + i * 512 + owner * 128 + (lane % 8 ^ (owner * 2 + i % 2)) * 16), x + (b < batch ? (size_t)b * k : 0) + 8 * lane, b < batch, true);
        }
      };
      bring(0);
      UNROLL for (u32 j = 0; j < N; j++) {
        copies_wait();
        wave_sync();
        u32 pairs[32];
        UNROLL for (u32 i = 0; i < 8; i++) {
          const Words4 four = *(const Words4*)(stage + n * 512 + t * 128 + (i ^ (t * 2 + n % 2)) * 16);
          UNROLL for (u32 e = 0; e < 4; e++) pairs[4 * i + e] = four.v[e];
        }
        wave_sync();
        if (j + 1 < N) bring(j + 1);
        const u32 near = dtype == DTYPE_f16 ? AS_IT_IS : as_f16(pairs);
        const f32 factor = f32_from_bits((near - 14) << 23);
        UNROLL for (u32 e = 0; e < 2; e++) factors[j][e] = shfl(factor, (2 * t + e) * 4);
        UNROLL for (u32 s = 0; s < 16; s++) {
          const u32 a = pairs[piece_from<Q>(s, 0) / 2], b = pairs[piece_from<Q>(s, 1) / 2];
          steps[s][j][0] = (a & 0xffffu) | b << 16;
          steps[s][j][1] = a >> 16 | (b & 0xffff0000u);
        }
      }
    }
    // Four lanes have a row of bf16.
    GPU_FN u32 as_f16(u32 (&pairs)[32]) {
      u32 largest = 0;
      UNROLL for (u32 i = 0; i < 32; i++) largest = larger_of_pairs(largest, pairs[i] & 0x7fff7fffu);
      largest = larger_of_pairs(largest, shfl_xor(largest, 1));
      largest = larger_of_pairs(largest, shfl_xor(largest, 2));
      const u32 exponent = (largest > largest << 16 ? largest >> 16 : largest & 0xffffu) >> 7;
      const bool plain = !exponent || (exponent >= PLAIN - 24 && exponent <= PLAIN + 1);
      const u32 near = plain ? PLAIN : exponent < 30 ? 30 : exponent > 253 ? 253 : exponent, least = (near - 29) * 0x00800080u;
      UNROLL for (u32 i = 0; i < 32; i++) pairs[i] = (larger_of_pairs(pairs[i] & 0x7fff7fffu, least) - least) << 3 | (pairs[i] & 0x80008000u);
      return near;
    }
  };

  template <u32 P, u32 I, u32 N> GPU_FN void step(f32 (&acc)[N][4], const PieceBlock<Q> (&w)[2], const Held<N>& x) {
    if constexpr (I < 8) {
      u32 left[4];
      UNROLL for (u32 h = 0; h < 2; h++) w[h].template decode<I>(left[h], left[2 + h]);
      UNROLL for (u32 j = 0; j < N; j++) mma_m16n8k16(f16{}, acc[j], left, x.steps[P * 8 + I][j]);
      step<P, I + 1>(acc, w, x);
    }
  }
  // acc += a piece of 16 lines that are `line` words apart. Both blocks are on their way to registers before the first is multiplied.
  template <u32 N> GPU_FN void multiply(f32 (&acc)[N][4], const u32* lines, u32 line, const Held<N>& x) {
    PieceBlock<Q> first[2], second[2];
    UNROLL for (u32 h = 0; h < 2; h++) first[h].template load<0>(lines + (lane_id() / 4 + 8 * h) * line);
    UNROLL for (u32 h = 0; h < 2; h++) second[h].template load<1>(lines + (lane_id() / 4 + 8 * h) * line);
    step<0, 0>(acc, first, x);
    step<1, 0>(acc, second, x);
  }

  template <u32 N> GPU_FN void run(u32* shared, Signal* signals, u64* meetings, const Out& out, u32 k, const u8* w, const BoxMap* map, const void* x, u32 splits,
                                   const Parts& parts) {
    const u32 warps = bdim_x() / 32, warp = uniform(tid_x() / 32), lane = lane_id(), split = warp % splits, own = warp / splits, together = warps / splits;
    const u32 piece = parts.own * splits + split, groups = out.groups(), begin = out.share.block * together, step = out.share.blocks * together;
    const size_t row_bytes = (size_t)(k / PIECE) * BYTES;
    const bool busy = piece < k / PIECE;
    // Shared memory: x and later sums of each warp, weights of each (boxes begin at multiples of 128 bytes).
    u32* const weights = shared + warps * STAGE / 4 + warp * PLACES * PLACE_WORDS;
    Signal* const own_signals = signals + warp * PLACES;
    if (BULK_COPIES) {
      if (lane < PLACES) make_signal(own_signals + lane, 1);
      signals_made();
      wave_sync();
    }
    const auto send = [&](u32 group, u32 place) {
      if (group >= groups || !busy) return;
      u32* const to = weights + place * PLACE_WORDS;
      const auto from = [&](u32 r) { return w + out.row(group, r) * row_bytes + piece * BYTES; };
      if (!BULK_COPIES) {
        for (u32 v = lane; v < LINES * BYTES / 16; v += 32) copy16_async(to + 4 * v, from(v / (BYTES / 16)) + v % (BYTES / 16) * 16);
      } else if (one_lane()) {
        expect_bytes(own_signals + place, LINES * BYTES);
        if (map) copy_box(to, map, group * out.per_group(), piece, own_signals + place);
        else NO_UNROLL for (u32 r = 0; r < LINES; r++) copy_bulk(to + r * LINE, from(r), BYTES, own_signals + place);
      }
    };
    NO_UNROLL for (u32 i = 0; i < PLACES; i++) send(begin + i * step + own, i);
    wait_for_previous();
    if (split == 0 && lane == 0) meeting_open(meetings + own, splits);
    Held<N> held;
    held.fetch((u8*)shared + warp * STAGE, (const u16*)x + (busy ? piece : 0) * PIECE, k, out.batch, out.dtype);
    barrier();

    // The sums of a round of all warps with these lines; the next round's are beside them.
    f32* const sums = (f32*)shared + own * splits * 2 * ROOM;
    const u32 helpers = splits < 4 ? splits : 4, turns = splits / helpers;
    u32 turn = 0;
    const auto add = [&](u32 round, u32 group) {
      meeting_wait(meetings + own, round);
      // By four warps, in turns.
      const u32 helper = split - turn * helpers;
      turn = turn + 1 == turns ? 0 : turn + 1;
      if (helper >= helpers || group >= groups) return;
      NO_UNROLL for (u32 i = helper * 32 + lane; i < OUTPUTS; i += 32 * helpers) {
        const f32* from = sums + round % 2 * splits * ROOM + i / LINES * PITCH + i % LINES * 2;
        Two total = {};
        UNROLL_SOME for (u32 s = 0; s < splits; s++, from += ROOM) {
          const Two two = *(const Two*)from;
          UNROLL for (u32 b = 0; b < 2; b++) total.v[b] += two.v[b];
        }
        if (parts.count == 1) keep(out, group, i, total);
        else *(Two*)(parts.sums + (((size_t)parts.own * groups + group) * OUTPUTS + i) * 2) = total;
      }
    };
    u32 round = 0, place = 0, phase = 0;
    NO_UNROLL for (u32 base = begin; base < groups; base += step, round++) {
      f32 acc[N][4] = {};
      const bool there = busy && base + own < groups;
      if (BULK_COPIES && there) await_signal(own_signals + place, phase);
      // Where warps go in step all multiply; what is not there goes nowhere.
      if (there || GPU_TILE_LOCKSTEP) multiply(acc, there ? weights + place * PLACE_WORDS : shared, there ? LINE : 0, held);
      if (!there) UNROLL for (u32 e = 0; e < 4 * N; e++) acc[e / 4][e % 4] = 0;
      wave_sync();
      send(base + PLACES * step + own, place);
      place = place + 1 == PLACES ? 0 : place + 1;
      phase ^= place == 0;
      if (round) add(round - 1, base - step + own);
      f32* const to = sums + (round % 2 * splits + split) * ROOM + lane % 4 * PITCH + lane / 4 * 2;
      UNROLL for (u32 e = 0; e < 2 * N; e++) {
        const f32* const two = acc[e / 2] + e % 2 * 2;
        *(Two*)(to + e / 2 * 4 * PITCH + e % 2 * 16) = Two{{two[0] * held.factors[e / 2][0], two[1] * held.factors[e / 2][1]}};
      }
      meeting_come(meetings + own);
    }
    if (round) add(round - 1, begin + (round - 1) * step + own);
    if (parts.count > 1) add_up(out, groups, parts, round, begin, step, own, splits, split, (u32*)(meetings + QUANT_HELD_WARPS));
  }

  // Two rows of x with a line of a group, in the order of sums.
  GPU_RARE void keep(const Out& out, u32 group, u32 i, Two total) {
    const u32 line = i % LINES;
    UNROLL for (u32 b = 0; b < 2; b++) total.v[b] = out.biased(group, line, total.v[b]);
    if (out.glu) {
      const Two other = {{shfl_xor(total.v[0], LINES / 2), shfl_xor(total.v[1], LINES / 2)}};
      UNROLL for (u32 b = 0; b < 2; b++) total.v[b] = out.gated(total.v[b], other.v[b]);
    }
    UNROLL for (u32 b = 0; b < 2; b++) {
      const u32 row = i / LINES * 2 + b;
      out.keep(group, line, row, total.v[b] + out.added(group, line, row));
    }
  }

  // Of the blocks that have parts of the same sums, the last to come here adds them up, in their order.
  GPU_FN void add_up(const Out& out, u32 groups, const Parts& parts, u32 rounds, u32 begin, u32 step, u32 own, u32 splits, u32 split, u32* last) {
    device_fence();
    barrier();
    if (tid_x() == 0) {
      *last = atomic_add(parts.counter, 1u) == parts.count - 1;
      if (*last) *parts.counter = 0;
    }
    barrier();
    if (!*last) return;
    device_fence();
    for (u32 at = split * 32 + lane_id(); at < rounds * OUTPUTS; at += splits * 32) {
      const u32 group = begin + at / OUTPUTS * step + own, i = at % OUTPUTS;
      if (group >= groups) break;
      Two total = {};
      for (u32 p = 0; p < parts.count; p++) {
        const Two part = *(const Two*)(parts.sums + (((size_t)p * groups + group) * OUTPUTS + i) * 2);
        UNROLL for (u32 b = 0; b < 2; b++) total.v[b] += part.v[b];
      }
      keep(out, group, i, total);
    }
  }
};

}  // namespace gpu
#endif
#endif
