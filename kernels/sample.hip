// The next token of each row of logits, chosen as models/generation/row-sampler.ts does: penalties, bias, mask, temperature,
// top-k, top-p, min-p, draw. A row belongs to a slot, where a request's settings and what it has said are kept; which row has
// which slot is read from memory, so that one recording serves all who come and go.
//
//   share  = exp((logit − best) / temperature) in f64: 1 for the likeliest token
//   weight = round(share · scale), scale being the power of two with which the weights of a row just fit 64 bits. Sums of
//            integers do not depend on their order, so atomics leave the result the same every time.
//
// Nothing is sorted. A token's place by falling share is its `fall` = bits(1.0) − bits(share), then its id. The upper bits of
// falls number bins, sixteen to an octave, and the count and weight of every bin are known; so the token at which a running
// count or weight reaches a goal is in the first bin to reach it, and digits of ten bits lead to it there. top-k, top-p
// and the draw are three such goals.
//
//   sample_best   first launch: the best of each piece of a row; for log-probabilities its sum and its likeliest tokens,
//                 by the logits as they are; empties the bins
//   sample_weigh  second, where a row may have a temperature: bins and the weight of each piece
//   sample_draw   last, a block per row: the token, its log-probability, the count of it, the step
#include "stream.h"
#if !defined(GPU_ONLY) || defined(GPU_ONLY_bytes)
namespace gpu {

constexpr u32 PIECE = SAMPLE_PIECE, PIECE_THREADS = GPU_BLOCK, ITEMS = PIECE / PIECE_THREADS, BINS = SAMPLE_BINS, DRAW_THREADS = DRAW_BLOCK;
constexpr u32 BIN_SHIFT = 48, DIGIT = 10, DIGITS = 1u << DIGIT;
constexpr u16 NO_BIN = 0xffff;
constexpr u64 ONE = 0x3ff0000000000000ull;
constexpr u64 GOLDEN = 0x9e3779b97f4a7c15ull;

constexpr u32 NOBODY = 0xffffffffu;
// A mark of a token: whether the prompt has it, and how often the answer does.
constexpr u32 IN_PROMPT = 0x80000000u;
// What is told of a slot: the token's log-probability, the ids of the likeliest, their log-probabilities.
constexpr u32 TOLD = 1 + 2 * SAMPLE_TOPS;
constexpr f64 TOLD_SCALE = 1099511627776.0;  // 2^40: the sum of a piece's shares fits 64 bits

// What the host wrote of a request; the step counts tokens drawn. A pointer is null where there is nothing of its kind.
struct Slot {
  f64 temperature, top_p, min_p, repetition, presence, frequency;
  u64 top_k, seed, step;
  u32* marks;
  const f32* bias;
  const u32* mask;
  u64 told;  // likeliest tokens whose log-probabilities are asked for, plus one for that of the token itself
  GPU_METHOD bool truncated() const { return top_k > 0 || top_p < 1.0; }
};

// SplitMix64.
GPU_FN u64 mix(u64 x) {
  u64 z = x + GOLDEN;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
GPU_FN f64 uniform(u64 seed, u64 step) { return (f64)(mix(seed + step * GOLDEN) >> 11) * 1.1102230246251565e-16; }

// A token's logit with penalties, bias and mask. Sums are made in f64 and rounded once.
GPU_FN f32 shaped(const Slot& s, f32 x, size_t i) {
  const u32 mark = s.marks ? s.marks[i] : 0, count = mark & ~IN_PROMPT;
  if (mark && s.repetition != 1.0) x = (f32)(x < 0.0f ? exact_mul((f64)x, s.repetition) : exact_div((f64)x, s.repetition));
  f64 by = s.bias ? (f64)s.bias[i] : 0.0;
  if (count) by = exact_sub(by, exact_add(s.presence, exact_mul(s.frequency, (f64)count)));
  if (by != 0.0) x = (f32)exact_add((f64)x, by);
  return s.mask && !(s.mask[i / 32] >> (i % 32) & 1) ? Limits<f32>::lowest() : x;
}
// A row's logits, as the model computes them.
struct Logits {
  const void* all;
  size_t first;
  u32 dtype;
  GPU_METHOD f32 operator[](size_t i) const { return load_float(all, first + i, dtype); }
};
GPU_FN Logits row_of(const void* logits, u32 row, size_t stride, u32 dtype) { return Logits{logits, (size_t)((i64)row * (i64)stride), dtype}; }
// A thread's items of a piece; −∞ past the end. All are on their way at once.
template <class T> GPU_FN void read_logits(const T* logits, size_t first, size_t vocab, f32 (&x)[ITEMS]) {
  T own[ITEMS];
  UNROLL for (u32 j = 0; j < ITEMS; j++) {
    const size_t i = first + j * PIECE_THREADS;
    own[j] = logits[i < vocab ? i : vocab - 1];
  }
  UNROLL for (u32 j = 0; j < ITEMS; j++) x[j] = first + j * PIECE_THREADS < vocab ? widen(own[j]) : Limits<f32>::lowest();
}
GPU_FN void read_logits(const Logits& logits, size_t first, size_t vocab, f32 (&x)[ITEMS]) {
  if (logits.dtype == DTYPE_f32) read_logits((const f32*)logits.all + logits.first, first, vocab, x);
  else if (logits.dtype == DTYPE_f16) read_logits((const f16*)logits.all + logits.first, first, vocab, x);
  else read_logits((const bf16*)logits.all + logits.first, first, vocab, x);
}
GPU_FN void shape_logits(const Slot& s, size_t first, size_t vocab, f32 (&x)[ITEMS]) {
  if (!s.marks && !s.bias && !s.mask) return;
  UNROLL for (u32 j = 0; j < ITEMS; j++) {
    const size_t i = first + j * PIECE_THREADS;
    if (i < vocab) x[j] = shaped(s, x[j], i);
  }
}

// A logit and its id as one number, greater for a greater logit and, of equal ones, for a lower id. NaN is no logit, but as
// the very first it would be what the host compares all others with, so there it is as bad as an infinity.
GPU_FN u64 place_of(f32 x, u32 id) {
  if (x != x) x = id == 0 ? Limits<f32>::highest() : Limits<f32>::lowest();
  const u32 bits = f32_bits(x + 0.0f);  // −0 equals 0
  return (u64)(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | (u32)~id;
}
GPU_FN f32 logit_at(u64 place) {
  const u32 key = (u32)(place >> 32);
  return f32_from_bits(key >> 31 ? key & 0x7fffffffu : ~key);
}
GPU_FN bool is_finite(f32 x) { return (f32_bits(x) & 0x7f800000u) != 0x7f800000u; }

// The largest, or the sum, of all threads' numbers, in every thread.
template <bool Largest> GPU_FN u64 fold(u64 a, u64 b) { return Largest ? (a > b ? a : b) : a + b; }
template <bool Largest> GPU_FN u64 block_fold(u64 x, u64* warps) {
  UNROLL for (u32 mask = 16; mask; mask /= 2) x = fold<Largest>(x, shfl_xor(x, mask));
  if (lane_id() == 0) warps[tid_x() / 32] = x;
  barrier();
  x = warps[0];
  for (u32 w = 1; w < bdim_x() / 32; w++) x = fold<Largest>(x, warps[w]);
  barrier();
  return x;
}
GPU_FN u64 best_of_row(const u64* best, u32 pieces, u64* warps) {
  u64 place = 0;
  for (u32 p = tid_x(); p < pieces; p += bdim_x()) place = fold<true>(place, best[p]);
  return block_fold<true>(place, warps);
}

// exp(x − most) to a temperature; NaN, too, has no share.
GPU_FN f64 share_from(f32 x, f64 most, f64 temperature) {
  const f64 share = m_exp(exact_div(exact_sub((f64)x, most), temperature));
  return share > 0.0 ? (share < 1.0 ? share : 1.0) : 0.0;
}
GPU_FN u64 fall_from(f32 x, f64 most, f64 temperature) { return ONE - f64_bits(share_from(x, most, temperature)); }
GPU_FN f64 share_of(u64 fall) { return f64_from_bits(ONE - fall); }
// The product is exact: a compiler may fuse it with the sum or not.
GPU_FN u64 weight_of(u64 fall, f64 scale) { return (u64)(share_of(fall) * scale + 0.5); }

// Of a piece, by the logits as they are: the likeliest tokens' places, and the sum of the shares, of which the likeliest's is 1.
GPU_FN void tell_piece(const f32 (&x)[ITEMS], u32 first, size_t vocab, u32 count, u64* tops, u64* total, u64* warps) {
  u64 places[ITEMS];
  UNROLL for (u32 j = 0; j < ITEMS; j++) {
    const u32 id = first + j * PIECE_THREADS;
    places[j] = id < vocab ? place_of(x[j] == x[j] ? x[j] : Limits<f32>::lowest(), id) : 0;
  }
  u64 bound = ~0ull;
  f64 most = 0.0;
  NO_UNROLL for (u32 r = 0; r < count; r++) {
    u64 place = 0;
    UNROLL for (u32 j = 0; j < ITEMS; j++)
      if (places[j] < bound) place = fold<true>(place, places[j]);
    bound = block_fold<true>(place, warps);
    if (r == 0) most = (f64)logit_at(bound);
    if (tid_x() == 0) tops[r] = bound;
  }
  u64 sum = 0;
  NO_UNROLL for (u32 j = 0; j < ITEMS; j++) sum += (u64)(share_from(x[j], most, 1.0) * TOLD_SCALE + 0.5);
  sum = block_fold<false>(sum, warps);
  if (tid_x() == 0) *total = sum;
}

// The best of a piece by one warp, of logits as they are; lanes have ids in rising order, so that of equal ones the first stays.
template <class T> GPU_FN u64 warp_best(const T* row, u32 first, u32 vocab) {
  constexpr u32 W = 16 / sizeof(T), VECTORS = PIECE / 32 / W;
  f32 best = Limits<f32>::lowest();
  u32 id = first + lane_id();
  const auto see = [&](f32 x, u32 i) {
    if (i == 0 && x != x) x = Limits<f32>::highest();  // as in place_of
    if (x > best) best = x, id = i;
  };
  if (aligned_to(row + first, 16) && first + PIECE <= vocab) {
    Vec<T, W> x[VECTORS];
    UNROLL for (u32 u = 0; u < VECTORS; u++) x[u] = load_vec<T, W>(row + first, u * 32 + lane_id());
    UNROLL for (u32 u = 0; u < VECTORS; u++) UNROLL for (u32 j = 0; j < W; j++) see(widen(x[u].v[j]), first + (u * 32 + lane_id()) * W + j);
  } else NO_UNROLL for (u32 i = first + lane_id(); i < first + PIECE && i < vocab; i += 32) see(widen(row[i]), i);
  u64 place = id < vocab ? place_of(best, id) : 0;
  UNROLL for (u32 mask = 16; mask; mask /= 2) place = fold<true>(place, shfl_xor(place, mask));
  return place;
}
GPU_FN u64 warp_best(const Logits& logits, u32 first, u32 vocab) {
  if (logits.dtype == DTYPE_f32) return warp_best((const f32*)logits.all + logits.first, first, vocab);
  if (logits.dtype == DTYPE_f16) return warp_best((const f16*)logits.all + logits.first, first, vocab);
  return warp_best((const bf16*)logits.all + logits.first, first, vocab);
}

// Launch: a block for each `each` pieces of a row: of one it has a thread for four tokens, of several a warp for each where nothing is
// asked or changed of the logits. Traffic: logits read once; with penalties, bias or a mask, what these have per token.
KERNEL_BOUNDS(GPU_BLOCK, sample_best, const void* logits, const Slot* slots, const u32* rows, u64* best, u64* sums, u32* counts, u64* tops,
              u64* totals, size_t vocab, size_t stride, u32 dtype, u32 each) {
  SHARED(u64, warps, PIECE_THREADS / 32);
  const u32 pieces = (u32)ceil_div(vocab, PIECE), groups = (pieces + each - 1) / each, row = bid_x() / groups, group = bid_x() - row * groups;
  const u32 piece0 = group * each, end = piece0 + each < pieces ? piece0 + each : pieces;
  const Logits own = row_of(logits, row, stride, dtype);
  const size_t first_piece = (size_t)row * pieces;
  // While logits are on their way it is found out what to do with them.
  f32 x[ITEMS];
  if (each == 1) read_logits(own, (size_t)piece0 * PIECE + tid_x(), vocab, x);
  if (rows[row] == NOBODY) return;
  const Slot& s = slots[rows[row]];
  if (each > 1 && !s.told && !s.marks && !s.bias && !s.mask) {
    for (u32 p = piece0 + tid_x() / 32; p < end; p += PIECE_THREADS / 32) {
      const u64 place = warp_best(own, p * PIECE, (u32)vocab);
      if (lane_id() == 0) best[first_piece + p] = place;
    }
  } else NO_UNROLL for (u32 p = piece0; p < end; p++) {
    const size_t first = (size_t)p * PIECE + tid_x();
    if (each > 1) read_logits(own, first, vocab, x);
    if (s.told) tell_piece(x, (u32)first, vocab, (u32)s.told, tops + (first_piece + p) * SAMPLE_TOPS, totals + first_piece + p, warps);
    shape_logits(s, first, vocab, x);
    u64 place = 0;
    UNROLL for (u32 j = 0; j < ITEMS; j++) place = fold<true>(place, place_of(x[j], (u32)first + j * PIECE_THREADS));
    place = block_fold<true>(place, warps);
    if (tid_x() == 0) best[first_piece + p] = place;
  }
  if (s.temperature != 0.0 && s.truncated())
    for (u32 b = group * PIECE_THREADS + tid_x(); b < BINS; b += groups * PIECE_THREADS) {
      sums[row * BINS + b] = 0;
      counts[row * BINS + b] = 0;
    }
}

// Launch: a block per piece of a row. Traffic: logits read once more; where tokens are cut off two bytes per token written, and two atomics for
// each bin that a piece has tokens in, one without top-k.
KERNEL_BOUNDS(GPU_BLOCK, sample_weigh, const void* logits, const Slot* slots, const u32* rows, const u64* best, u64* sums, u32* counts, u16* bins,
              u64* kept, size_t vocab, size_t stride, f64 scale, u32 dtype) {
  SHARED(u64, warps, PIECE_THREADS / 32);
  SHARED(u64, bin_sums, BINS);
  SHARED(u32, bin_counts, BINS);
  const u32 pieces = (u32)ceil_div(vocab, PIECE), row = bid_x() / pieces, piece = bid_x() - row * pieces;
  if (rows[row] == NOBODY) return;
  const Slot& s = slots[rows[row]];
  if (s.temperature == 0.0) return;
  const size_t first = (size_t)piece * PIECE + tid_x();
  f32 x[ITEMS];
  read_logits(row_of(logits, row, stride, dtype), first, vocab, x);
  shape_logits(s, first, vocab, x);
  const f64 most = (f64)logit_at(best_of_row(best + (size_t)row * pieces, pieces, warps));
  const bool truncated = s.truncated(), counted = s.top_k > 0;
  u64 sum = 0;
  if (truncated)
    for (u32 b = tid_x(); b < BINS; b += PIECE_THREADS) {
      bin_sums[b] = 0;
      bin_counts[b] = 0;
    }
  barrier();
  NO_UNROLL for (u32 j = 0; j < ITEMS; j++) {
    const size_t at = (size_t)bid_x() * PIECE + j * PIECE_THREADS + tid_x();
    const u64 fall = fall_from(x[0], most, s.temperature), weight = weight_of(fall, scale);
    UNROLL for (u32 k = 1; k < ITEMS; k++) x[k - 1] = x[k];
    const u32 bin = (u32)(fall >> BIN_SHIFT);
    if (truncated) {
      bins[at] = weight ? (u16)bin : NO_BIN;
      if (weight) atomic_add(bin_sums + bin, weight);
      if (weight && counted) atomic_add(bin_counts + bin, 1u);
    }
    if (share_of(fall) >= s.min_p) sum += weight;
  }
  sum = block_fold<false>(sum, warps);
  if (tid_x() == 0) kept[bid_x()] = sum;
  if (!truncated) return;
  for (u32 b = tid_x(); b < BINS; b += PIECE_THREADS) {
    if (bin_sums[b]) atomic_add(sums + row * BINS + b, bin_sums[b]);
    if (bin_counts[b]) atomic_add(counts + row * BINS + b, bin_counts[b]);
  }
}

struct Found {
  u32 id;
  u64 weight;  // of all tokens up to this one
};

// The walk through a row's tokens by a block of DRAW_BLOCK threads, one per bin and one per value of a digit.
struct Search {
  u64 *warps, *chosen, *list_falls, *digit_weights;
  u32 *list_ids, *list_length, *digit_counts, *digit_ids;
  const Slot& slot;
  const Logits& logits;
  const u64* sums;
  const u32* counts;
  const u16* bins;
  u32 places;
  f64 most, scale;

  // As it was when it was weighed.
  GPU_METHOD u64 fall_at(u32 i) const { return fall_from(shaped(slot, logits[i], i), most, slot.temperature); }

  // Running sums over the block's threads.
  GPU_METHOD u64 scan_warp(u64 x) const {
    UNROLL for (u32 d = 1; d < 32; d *= 2) {
      const u64 before = shfl_up(x, d);
      if (lane_id() >= d) x += before;
    }
    return x;
  }
  GPU_METHOD u64 scan(u64 x) const {
    x = scan_warp(x);
    if (lane_id() == 31) warps[tid_x() / 32] = x;
    barrier();
    if (tid_x() < 32) warps[tid_x()] = scan_warp(warps[tid_x()]);
    barrier();
    if (tid_x() >= 32) x += warps[tid_x() / 32 - 1];
    barrier();
    return x;
  }

  // The thread at whose `value` the running sum reaches `goal`; what comes before it is taken off the goal, and its weight
  // added to `before`.
  GPU_METHOD u32 pick(u64 value, u64 weight, bool by_count, u64& goal, u64& before) const {
    const u64 reached = scan(value), passed = by_count ? scan(weight) : reached;
    // A weight that is computed anew may be one less: the last thread takes what nobody else does.
    if ((reached >= goal && reached - value < goal) || (reached < goal && tid_x() == DRAW_THREADS - 1)) {
      chosen[0] = tid_x();
      chosen[1] = reached - value;
      chosen[2] = passed - weight;
    }
    barrier();
    goal -= chosen[1];
    before += chosen[2];
    return (u32)chosen[0];
  }

  // fn(i) for every token of a bin. Two vectors at a time: more would not fit the registers of the smallest devices.
  template <class Fn> GPU_METHOD void each_in(u32 bin, Fn fn) const {
    const u32 vectors = places / 8;
    for (u32 v = tid_x(); v < vectors; v += 2 * DRAW_THREADS) {
      Vec<u16, 8> x[2];
      UNROLL for (u32 u = 0; u < 2; u++)
        if (v + u * DRAW_THREADS < vectors) x[u] = load_vec<u16, 8>(bins, v + u * DRAW_THREADS);
      u32 hits = 0;
      UNROLL for (u32 u = 0; u < 2; u++)
        if (v + u * DRAW_THREADS < vectors)
          UNROLL for (u32 j = 0; j < 8; j++) hits |= (x[u].v[j] == bin ? 1u : 0u) << (u * 8 + j);
      NO_UNROLL for (u32 b = 0; hits; b++, hits >>= 1)
        if (hits & 1) fn((v + b / 8 * DRAW_THREADS) * 8 + b % 8);
    }
  }

  // The first token, by falling share, at which the running count or weight reaches `goal`. Within the bin, level by level:
  // the weights of all tokens that agree with the digits found so far, by their next digit. The first level lists the bin's
  // tokens; where they are more than the list holds, the others read them from memory again.
  GPU_METHOD Found find(u64 goal, bool by_count) const {
    const u32 t = tid_x();
    u64 before = 0;
    const u32 bin = pick(by_count ? counts[t] : sums[t], sums[t], by_count, goal, before);
    if (t == 0) *list_length = 0;
    u64 fall = (u64)bin << BIN_SHIFT;
    u32 id = 0;
    NO_UNROLL for (u32 level = 0;; level++) {
      // Five digits of a fall, the last of which begins within the one before, then two of an id.
      const bool by_fall = level < 5;
      const u32 shift = by_fall ? (level < 4 ? BIN_SHIFT - DIGIT * (level + 1) : 0) : DIGIT * (6 - level);
      digit_weights[t] = 0;
      digit_counts[t] = digit_ids[t] = 0;
      barrier();
      const auto add = [&](u64 f, u32 i) {
        if (by_fall ? (f ^ fall) >> shift >> DIGIT : f != fall || (i ^ id) >> shift >> DIGIT) return;
        const u32 digit = (by_fall ? (u32)(f >> shift) : i >> shift) % DIGITS;
        atomic_add(digit_weights + digit, weight_of(f, scale));
        atomic_add(digit_counts + digit, 1u);
        atomic_add(digit_ids + digit, i);
      };
      if (level == 0 || *list_length > DRAW_THREADS) {
        each_in(bin, [&](u32 i) {
          const u64 f = fall_at(i);
          add(f, i);
          const u32 end = level == 0 ? atomic_add(list_length, 1u) : DRAW_THREADS;
          if (end >= DRAW_THREADS) return;
          list_falls[end] = f;
          list_ids[end] = i;
        });
      } else if (t < *list_length) {
        add(list_falls[t], list_ids[t]);
      }
      barrier();
      const u64 weight = digit_weights[t];
      const u32 digit = pick(by_count ? digit_counts[t] : weight, weight, by_count, goal, before);
      const Found found{digit_ids[digit], before + digit_weights[digit]};
      if (digit_counts[digit] == 1 || level == 6) return found;
      if (by_fall) fall |= (u64)digit << shift;
      else id |= digit << shift;
      barrier();
    }
  }
};

// The least whole weight that is at least, or more than, this part of a weight.
GPU_FN u64 part_of(u64 weight, f64 part, bool more) {
  const f64 product = exact_mul((f64)weight, part);
  u64 goal = (u64)product;
  if (more || (f64)goal < product) goal++;
  return goal < weight ? (goal ? goal : 1) : weight;
}

// The log-probabilities of a token and of the likeliest of its row, from what was found of the pieces; a thread for each.
GPU_FN void tell_row(f32 logit, u32 count, const u64* tops, const u64* totals, u32 pieces, u32* told, u64* warps) {
  const u32 t = tid_x();
  const u64* own = tops + (size_t)t * SAMPLE_TOPS;
  const u64 first = t < pieces ? own[0] : 0;
  const f64 most = (f64)logit_at(block_fold<true>(first, warps));
  u64 sum = t < pieces ? (u64)((f64)totals[t] * share_from(logit_at(first), most, 1.0)) : 0;
  sum = block_fold<false>(sum, warps);
  const f64 whole = most + m_log((f64)sum / TOLD_SCALE);
  if (t == 0) told[0] = f32_bits((f32)((f64)logit - whole));
  u32 taken = 0;
  NO_UNROLL for (u32 r = 0; r < count; r++) {
    const u64 place = t < pieces && taken < count ? own[taken] : 0, winner = block_fold<true>(place, warps);
    if (place == winner) taken++;
    if (t != 0) continue;
    told[1 + r] = ~(u32)winner;
    told[1 + SAMPLE_TOPS + r] = f32_bits((f32)((f64)logit_at(winner) - whole));
  }
}

// Launch: DRAW_BLOCK threads per row; a row has at most as many pieces. Traffic: two bytes per token for each of top-k, top-p and
// the draw; without top-k and top-p only the logits of the piece that holds the token.
KERNEL_BOUNDS(DRAW_BLOCK, sample_draw, const void* logits, Slot* slots, const u32* rows, const u64* best, const u64* sums, const u32* counts,
              const u16* bins, const u64* kept, const u64* tops, const u64* totals, u32* tokens, u32* told, size_t vocab, size_t stride,
              f64 scale, u32 dtype) {
  SHARED(u64, warps, DRAW_THREADS / 32);
  SHARED(u64, chosen, 3);
  SHARED(u64, list_falls, DRAW_THREADS);
  SHARED(u64, digit_weights, DIGITS);
  SHARED(u32, list_ids, DRAW_THREADS);
  SHARED(u32, list_length, 1);
  SHARED(u32, digit_counts, DIGITS);
  SHARED(u32, digit_ids, DIGITS);
  const u32 row = bid_x(), t = tid_x(), pieces = (u32)ceil_div(vocab, PIECE), at = rows[row];
  if (at == NOBODY) return;
  const size_t first_piece = (size_t)row * pieces;
  Slot* s = slots + at;
  const Logits own = row_of(logits, row, stride, dtype);
  const u64 place = best_of_row(best + first_piece, pieces, warps);
  u32 token = ~(u32)place;
  if (!is_finite(logit_at(place))) {
    if (t == 0) tokens[at] = NOBODY;
    return;
  }
  if (s->temperature != 0.0) {
    const Search search{warps, chosen, list_falls, digit_weights, list_ids, list_length, digit_counts, digit_ids, *s, own,
                        sums + (size_t)row * BINS, counts + (size_t)row * BINS, bins + first_piece * PIECE, pieces * PIECE,
                        (f64)logit_at(place), scale};
    const u64 piece_weight = t < pieces ? kept[first_piece + t] : 0;
    u64 left = block_fold<false>(piece_weight, warps);
    const f64 u = uniform(s->seed, s->step);
    if (s->truncated()) {
      u64 whole = block_fold<false>(search.sums[t], warps);
      const bool counted = s->top_k > 0 && block_fold<false>(search.counts[t], warps) > s->top_k;
      // top-k, top-p, the draw: one loop, for the search is long when it is inlined.
      NO_UNROLL for (u32 stage = 0; stage < 3; stage++) {
        if ((stage == 0 && !counted) || (stage == 1 && s->top_p >= 1.0)) continue;
        // What min-p leaves is a beginning of the order, too.
        if (stage == 2 && left < whole) whole = left;
        const u64 goal = stage == 0 ? s->top_k : part_of(whole, stage == 1 ? s->top_p : u, stage == 2);
        const Found found = search.find(goal, stage == 0);
        whole = found.weight;
        token = found.id;
      }
    } else {
      u64 goal = part_of(left, u, true), before = 0;
      const u32 piece = search.pick(piece_weight, piece_weight, false, goal, before), id = piece * PIECE + t;
      const u64 fall = id < vocab ? search.fall_at(id) : ONE;
      const u64 weight = share_of(fall) >= s->min_p ? weight_of(fall, scale) : 0;
      token = piece * PIECE + search.pick(weight, weight, false, goal, before);
    }
  }
  if (s->told) tell_row(own[token], (u32)s->told - 1, tops + first_piece * SAMPLE_TOPS, totals + first_piece, pieces, told + at * TOLD, warps);
  if (t == 0) {
    tokens[at] = token;
    if (s->marks) s->marks[token]++;
    s->step++;
  }
}

}  // namespace gpu
#endif
