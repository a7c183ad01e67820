// The product of up to ROWS rows, 8 or 16, with quantized weights: y (batch, n) = f(x (batch, k) · W (n, k)ᵀ + bias) + residual in halves; weights and
// x are multiplied in f16, sums are in f32. For types and rows that are whole pieces of 256 (quant-pieces.h).
//
// A block has some groups of 16 rows of W, or, of `cuts` blocks, its part of k of them, and all of x that goes with it, which lies in
// memory as the unit reads it (OrderedRow) and comes by a bulk copy for each piece. The pieces of its groups, one after another, are dealt
// out evenly to its warps, so that all end at once. A warp has the copy engine bring its pieces, 16 rows by one box, to places of its own,
// the first before the kernel ahead has ended, and decodes them straight into what mma.sync takes as its left operand. What several warps have of a group meets in shared memory when all are done.
// Of `cuts` blocks, the last to have its sum of a group in `parts` adds up what all have left there.
// Where a norm comes before x, whose squares the product that made it has told, one warp more finds what rows are multiplied with meanwhile.
// What runs once is short: it comes from memory, some cycles for each instruction.
// Traffic: W once; x once for each block, from the cache.
#ifndef WICK_QUANT_EVEN_H
#define WICK_QUANT_EVEN_H
#include "gpu/boxes.h"
#include "gpu/crews.h"
#include "gpu/uniform.h"
#include "gate.h"
#include "product.h"
#include "quant-slices.h"
#include "row.h"

#if GPU_WARPGROUPS
namespace gpu {
// n / d of numbers below 2^21, by 1 / d: divisions are long code, which runs once.
GPU_FN u32 quotient(u32 n, f32 inverse) { return (u32)(((f32)n + 0.5f) * inverse); }
template <class Q, u32 ROWS> struct QuantEven {
  static constexpr u32 N = ROWS / 8, LINES = 16, PLACES = QUANT_EVEN_PLACES, SLICE = WIDE_ROW, SLICES = PIECE / SLICE, VALUES = ROWS * LINES / 32;
  // Pieces of lines lie one by one, an odd number of vectors each, so that eight hit all banks.
  static constexpr u32 BYTES = PIECE / Q::Elements * Q::Bytes, PITCH = BYTES / 4, PLACE = LINES * PITCH;
  static_assert(BYTES / 16 % 2 == 1 && BYTES % 16 == 0, "");
  // Where results are turned; and what a warp has of two groups that others have, too, and that beside them.
  static constexpr u32 TURNED = LINES + 4, SLOT = 32 * VALUES;
  static_assert(ROWS * TURNED <= PLACE && 2 * SLOT + ROWS * TURNED <= PLACES * PLACE, "");
  typedef Outputs<LINES, ROWS> Out;
  typedef f32 Sums[N][4];

  struct Given {
    const u16* x;
    const u8* w;
    const BoxMap* map;
    f32* parts;
    u32* counters;
    u32 k, cuts, part;
    // Whether x is in order with its bits as they were, or as a norm leaves it whose squares are told; and where y goes in the order of what it
    // is multiplied with next, too, with the squares of each 16 columns where a norm comes between.
    u32 raw;
    RowFactors norm;
    OrderedRows next;
  };

  // x of two steps, of all eights of rows: lanes name rows of 8 × 8 halves, whose vectors are mixed.
  typedef MatrixRef Refs[2 * N];
  struct Right {
    u32 v[N][4];
    GPU_FN void refs(Refs& at, const u16* x) {
      const u32 m = lane_id() / 8, r = lane_id() % 8;
      UNROLL for (u32 i = 0; i < 2 * N; i++) at[i] = matrix_ref(x).plus((N == 2 ? m / 2 * 8 + r : r) * SLICE + ((N == 2 ? 2 * i + m % 2 : 4 * i + m) ^ r) * 8);
    }
    template <u32 PAIR> GPU_METHOD void load(const Refs& at) {
      UNROLL for (u32 i = 0; i < N; i++) load_matrices(v[i], at[PAIR % 2 * N + i].plus(PAIR / 2 * ROWS * SLICE));
    }
    GPU_METHOD const u32* of(u32 step, u32 tile) const { return N == 2 ? v[step] + 2 * tile : v[0] + 2 * step; }
  };
  // A piece of 16 lines, two blocks to each lane.
  struct Piece {
    PieceBlock<Q> w[2][2];
    GPU_METHOD void load(const u32* place) {
      UNROLL for (u32 h = 0; h < 2; h++) {
        const u32* const line = place + (lane_id() / 4 + 8 * h) * PITCH;
        w[0][h].template load<0>(line);
        w[1][h].template load<1>(line);
      }
    }
    template <u32 B, u32 I> GPU_METHOD void step(Sums& acc, const Right& right) const {
      u32 left[4];
      UNROLL for (u32 h = 0; h < 2; h++) w[B][h].template decode<I>(left[h], left[2 + h]);
      UNROLL for (u32 j = 0; j < N; j++) mma_m16n8k16(f16{}, acc[j], left, right.of(I % 2, j));
    }
    // Steps of both blocks in turns, with sums of their own, whose products need not wait for each other.
    template <u32 I> GPU_METHOD void steps(Sums& acc, Sums& others, const Refs& x) const {
      if constexpr (I < 8) {
        Right right[2];
        right[0].template load<I / 2>(x);
        right[1].template load<4 + I / 2>(x);
        step<0, I>(acc, right[0]);
        step<1, I>(others, right[1]);
        step<0, I + 1>(acc, right[0]);
        step<1, I + 1>(others, right[1]);
        steps<I + 2>(acc, others, x);
      }
    }
    // acc += the piece, with that of x from `x` on.
    GPU_METHOD void multiply(Sums& acc, const u16* x) const {
      Refs refs;
      Right::refs(refs, x);
      Sums others = {};
      steps<0>(acc, others, refs);
      UNROLL for (u32 e = 0; e < VALUES; e++) acc[e / 4][e % 4] += others[e / 4][e % 4];
    }
  };

  // What becomes of a group's sums, which a lane has of one row of x by eight lines side by side, or with a gate by four and four.
  struct Turned {
    const Out& out;
    u32 row, first;
    bool vectors;
    GPU_METHOD explicit Turned(const Out& out)
        : out(out), row(lane_id() / 2), first(lane_id() % 2 * (out.glu ? 4 : 8)),
          vectors(out.columns % 8 == 0 && vector_aligned<8>((const u16*)out.y) && vector_aligned<8>((const u16*)out.residual)) {}
    GPU_METHOD u32 column(u32 group) const { return group * out.per_group() + first; }
    GPU_METHOD size_t at(u32 group) const { return (size_t)row * out.columns + column(group); }
    GPU_METHOD bool has(u32 group) const { return row < out.batch && column(group) < out.columns; }
    // What is added to them. It is asked for before they are there.
    GPU_METHOD Vec<u16, 8> added(u32 group, bool there) const {
      Vec<u16, 8> x{};
      const u16* const from = (const u16*)out.residual + at(group);
      if (!there || !out.residual || !has(group)) return x;
      if (!vectors) UNROLL for (u32 e = 0; e < 8; e++) x.v[e] = e < out.per_group() / 2 && column(group) + e < out.columns ? from[e] : (u16)0;
      else if (!out.glu) x = *(const Vec<u16, 8>*)from;
      else {
        const Vec<u16, 4> half = *(const Vec<u16, 4>*)from;
        UNROLL for (u32 e = 0; e < 4; e++) x.v[e] = half.v[e];
      }
      return x;
    }
    // And what they are multiplied with by the norm behind.
    GPU_METHOD Vec<u16, 8> weights(const OrderedRows& next, u32 group, bool there) const { return there && has(group) ? next.template weights<8>(column(group)) : Vec<u16, 8>{}; }
    // `sums` are where they are turned. Gives the sum of squares of what is kept.
    GPU_METHOD f32 store(const OrderedRows& next, const Vec<u16, 8>& weights, u32 group, f32* sums, const Vec<u16, 8>& added, bool there) const {
      const u32 c = column(group), half = out.per_group() / 2;
      const bool kept = there && has(group);
      const Vec<f32, 4> one = load_shared<4>(sums, row % ROWS * TURNED + first), two = load_shared<4>(sums, row % ROWS * TURNED + first + (out.glu ? LINES / 2 : 4));
      f32 v[8];
      UNROLL for (u32 e = 0; e < 8; e++) v[e] = e < 4 ? one.v[e] : two.v[e - 4];
      if (out.bias && kept) UNROLL for (u32 e = 0; e < 8; e++) {
        const u32 i = out.glu ? c + e % 4 + e / 4 * out.columns : c + e;
        if (vectors || c + e % half < out.columns) v[e] += load_float(out.bias, i, out.dtype);
      }
      if (out.glu) UNROLL for (u32 e = 0; e < 4; e++) v[e] = gated_shortly(out.glu, v[e], v[e + 4]);
      Vec<u16, 8> y;
      UNROLL for (u32 e = 0; e < 8; e++) {
        v[e] += out.dtype == DTYPE_f16 ? f16_to_f32(added.v[e]) : bf16_to_f32(added.v[e]);
        y.v[e] = out.dtype == DTYPE_f16 ? f32_to_f16(v[e]) : f32_to_bf16(v[e]);
      }
      u16* const to = (u16*)out.y + at(group);
      if (kept && !vectors) UNROLL for (u32 e = 0; e < 8; e++) { if (e < half && c + e < out.columns) to[e] = y.v[e]; }
      else if (kept && out.glu) put(to, Vec<u16, 4>{{y.v[0], y.v[1], y.v[2], y.v[3]}});
      else if (kept) put(to, y);
      if (!next.to) return 0;
      const Vec<u16, 8> x = next.normed(y, weights);
      if (next.order == QUANT_ORDER_q4_0) put_words(next, group, (u16*)sums, x, kept);
      else if (kept) {
        // Of two neighbours the second is eight places behind, which are another vector: the one beside it, as vectors are mixed.
        UNROLL for (u32 e = 0; e < 8; e += 2) {
          if (e >= half) continue;
          const u32 at = next.within(row, ordered_to((c + e) % PIECE, next.order));
          next.piece(row, c)[at] = x.v[e];
          next.piece(row, c)[at ^ 8] = x.v[e + 1];
        }
      }
      return kept && next.alpha ? OrderedRows::squares(y) : 0.0f;
    }
    // Four neighbouring columns are a word of weights of Q4_0, which begins two before those of the first block of two and ends with its first: the
    // first of both its pairs are neighbours in x in order, and the second (as ordered_to has it). Two lanes have a row, and fill what they have of
    // 32 bytes of it together.
    GPU_METHOD void put_words(const OrderedRows& next, u32 group, u16* turned, const Vec<u16, 8>& x, bool kept) const {
      constexpr u32 PITCH = 24;
      Vec<u32, 2> words[2];
      UNROLL for (u32 j = 0; j < 4; j++) words[j / 2].v[j % 2] = x.v[2 * j] | (u32)x.v[2 * j + 1] << 16;
      wave_sync();
      if (row < ROWS) UNROLL for (u32 j = 0; j < 2; j++) { if (j == 0 || !out.glu) store_shared<2>((u32*)turned, (row * PITCH + first) / 2 + 2 * j, words[j]); }
      wave_sync();
      if (!kept) return;
      const u32 c = group * out.per_group(), odd = lane_id() % 2, block = c / 32 % 2, half = c / 8 % 2;
      const u16* const values = turned + row * PITCH + odd;
      u16* const piece = next.piece(row, c);
      const auto at = [&](u32 word) { return next.within(row, (block * 8 + 2 * word + c / 16 % 2) * 16 + odd * 8 + c % PIECE / 64 * 2); };
      const auto put_pair = [&](u32 word, u32 one, u32 other) { *(u32*)(piece + at(word)) = values[one] | (u32)values[other] << 16; };
      if (!out.glu) UNROLL for (u32 word = 0; word < 4; word++) {
        const u32 one = block ? 4 * word : word ? 4 * word - 2 : 0;
        put_pair(word, one, block || word ? one + 2 : 14);
      }
      else if (block) put_pair(2 * half, 0, 2), put_pair(2 * half + 1, 4, 6);
      else {
        put_pair(2 * half + 1, 2, 4);
        piece[at(2 * half) + half] = values[0];
        piece[at((2 * half + 2) % 4) + half] = values[6];
      }
    }
  };
  // A group's sums are there, of this part of k.
  GPU_FN void finish(const Given& g, const Turned& turned, u32 group, Sums& acc, const Vec<u16, 8>& added, const Vec<u16, 8>& weights, const f32* factors, Signal* counted, f32* scratch, bool there) {
    if (g.norm.parts) await_signal(counted, 0);
    UNROLL for (u32 e = 0; e < VALUES; e++) acc[e / 4][e % 4] *= factors[e / 4 * 8 + lane_id() % 4 * 2 + e % 2];
    if (g.cuts > 1) {
      f32* const parts = g.parts + (size_t)group * g.cuts * SLOT + lane_id() * 4;
      if (there) UNROLL for (u32 j = 0; j < N; j++) *(Vec<f32, 4>*)(parts + g.part * SLOT + j * 128) = Vec<f32, 4>{acc[j][0], acc[j][1], acc[j][2], acc[j][3]};
      device_fence();
      wave_sync();
      u32 last = 0;
      if (there && lane_id() == 0) {
        last = atomic_add(g.counters + group, 1u) == g.cuts - 1;
        if (last) g.counters[group] = 0;
      }
      there = shfl(last, 0);
      if (!there) return;
      device_fence();
      UNROLL for (u32 e = 0; e < VALUES; e++) acc[e / 4][e % 4] = 0;
      // In the order of parts, several at once.
      constexpr u32 ONCE = 4;
      NO_UNROLL for (u32 first = 0; there && first < g.cuts; first += ONCE) {
        Vec<f32, 4> told[ONCE][N];
        UNROLL for (u32 p = 0; p < ONCE; p++)
          UNROLL for (u32 j = 0; j < N; j++) told[p][j] = first + p < g.cuts ? load_fresh(parts + (first + p) * SLOT + j * 128) : Vec<f32, 4>{};
        UNROLL for (u32 p = 0; p < ONCE; p++) UNROLL for (u32 e = 0; e < VALUES; e++) acc[e / 4][e % 4] += told[p][e / 4].v[e % 4];
      }
    }
    UNROLL for (u32 e = 0; e < VALUES; e++) scratch[(e / 4 * 8 + lane_id() % 4 * 2 + e % 2) * TURNED + lane_id() / 4 + e % 4 / 2 * 8] = acc[e / 4][e % 4];
    wave_sync();
    f32 squares = turned.store(g.next, weights, group, scratch, added, there);
    wave_sync();
    if (g.next.alpha) {
      squares += shfl_xor(squares, 1);
      if (there && lane_id() % 2 == 0 && turned.has(group)) g.next.tell(turned.row, group, squares);
    }
  }
  // What rows are multiplied with where their squares are told, by one warp, whose lanes have four rows each.
  GPU_FN void find_factors(const RowFactors& norm, f32* factors) {
    constexpr u32 FOURS = ROWS / 4, ONCE = 8, STRIDE = 32 / FOURS;
    const u32 row = lane_id() % FOURS * 4;
    Vec<f32, 4> sum{};
    NO_UNROLL for (u32 p = lane_id() / FOURS; p < norm.parts; p += ONCE * STRIDE) {
      Vec<f32, 4> told[ONCE];
      UNROLL for (u32 i = 0; i < ONCE; i++) told[i] = p + i * STRIDE < norm.parts ? norm.told4(p + i * STRIDE, row) : Vec<f32, 4>{};
      UNROLL for (u32 i = 0; i < ONCE; i++) UNROLL for (u32 e = 0; e < 4; e++) sum.v[e] += told[i].v[e];
    }
    UNROLL for (u32 mask = 16; mask >= FOURS; mask /= 2) UNROLL for (u32 e = 0; e < 4; e++) sum.v[e] += shfl_xor(sum.v[e], mask);
    if (lane_id() < FOURS) UNROLL for (u32 e = 0; e < 4; e++) factors[row + e] = norm.of(sum.v[e]);
  }
  // x in order with the bits of bf16 becomes f16 where it lies: with other exponents, a row that is too large or too small for them lifted by a
  // power of two so that its largest is near 2^15. Exponents of bf16 from `near` down become those of f16 from 29 down. Most rows can have
  // those of up to 2^12: f16 has as many bits as bf16 of what is above 2^-20.
  static constexpr u32 PLAIN = 137;
  GPU_FN void lift(u32* x, Signal* x_there, const u16* source, u32 pieces, f32* factors, u32* largest) {
    constexpr u32 VECTORS = ROWS * PIECE / 8, ONCE = 4;
    // All vectors of a thread are of one row.
    const u32 row = tid_x() / 8 % ROWS, count = pieces * VECTORS;
    u32 near = PLAIN;
    // Twice where that is not so, from where it came from.
    NO_UNROLL for (u32 pass = 0; pass < 2; pass++) {
      const u32 least = (near - 29) * 0x00800080u;
      u32 most = 0;
      NO_UNROLL for (u32 first = tid_x(); first < count; first += ONCE * bdim_x()) {
        Words4 v[ONCE];
        UNROLL for (u32 n = 0; n < ONCE; n++) {
          const u32 i = first + n * bdim_x();
          if (pass == 0 && i < count) await_signal(x_there + i / VECTORS, 0);
          v[n] = i >= count ? Words4{} : pass ? *(const Words4*)(source + 8 * i) : load_shared<4>(x, 4 * i);
        }
        UNROLL for (u32 n = 0; n < ONCE; n++) {
          UNROLL for (u32 j = 0; j < 4; j++) {
            const u32 raw = v[n].v[j], magnitude = raw & 0x7fff7fffu;
            most = larger_of_pairs(most, magnitude);
            v[n].v[j] = (larger_of_pairs(magnitude, least) - least) << 3 | (raw & 0x80008000u);
          }
          if (first + n * bdim_x() < count) store_shared<4>(x, 4 * (first + n * bdim_x()), v[n]);
        }
      }
      if (pass) break;
      most = most > most << 16 ? most >> 16 : most & 0xffffu;
      UNROLL for (u32 mask = 4; mask; mask /= 2) {
        const u32 other = shfl_xor(most, mask);
        most = other > most ? other : most;
      }
      if (lane_id() % 8 == 0) largest[tid_x() / 8] = most;
      barrier();
      for (u32 i = row; i < bdim_x() / 8; i += ROWS) most = largest[i] > most ? largest[i] : most;
      const u32 exponent = most >> 7;
      const bool odd = exponent && (exponent < PLAIN - 24 || exponent > PLAIN + 1);
      if (odd) near = exponent < 30 ? 30 : exponent > 253 ? 253 : exponent;
      if (tid_x() < 8 * ROWS && tid_x() % 8 == 0) factors[row] = f32_from_bits((near - 14) << 23);
      if (!odd) break;
    }
    barrier();
  }

  // Which piece of which group; groups and pieces are counted from the block's first.
  struct Cursor {
    u32 at, group, piece;
    GPU_METHOD void advance(u32 pieces) {
      at++;
      if (++piece == pieces) piece = 0, group++;
    }
  };

  GPU_FN void run(u32* shared, const Given& g, const Out& out) {
    const bool apart = g.norm.parts;
    const u32 warps = bdim_x() / 32 - apart, warp = uniform(tid_x() / 32), lane = lane_id();
    const f32 a_cut = approx_recip((f32)g.cuts), a_warp = approx_recip((f32)warps), a_block = approx_recip((f32)out.share.blocks);
    const u32 all = g.k / PIECE, first = quotient(all * g.part, a_cut), pieces = quotient(all * (g.part + 1), a_cut) - first, most = quotient(all + g.cuts - 1, a_cut);
    const u32 groups = out.glu ? (out.columns + LINES / 2 - 1) / (LINES / 2) : (out.columns + LINES - 1) / LINES;
    const u32 begin = quotient(out.share.block * groups, a_block), end = out.share.block + 1 == out.share.blocks ? groups : quotient((out.share.block + 1) * groups, a_block);
    const u32 units = (end - begin) * pieces;
    const f32 a_unit = approx_recip((f32)units), a_piece = approx_recip((f32)pieces);
    const auto begin_of = [&](u32 w) { return quotient(w * units, a_warp); };
    const u32 from = uniform(begin_of(warp)), to = uniform(warp < warps ? begin_of(warp + 1) : begin_of(warp));
    // Shared memory: x, the places of each warp (boxes begin at multiples of 128 bytes), and their signals.
    constexpr u32 X_WORDS = ROWS * PIECE / 2;
    u32* const all_places = shared + most * X_WORDS;
    u32* const places = all_places + warp * PLACES * PLACE;
    Signal* const x_there = (Signal*)(all_places + warps * PLACES * PLACE);
    Signal* const landed = x_there + most + warp * PLACES;
    Signal* const counted = x_there + most + warps * PLACES;
    f32* const factors = (f32*)(counted + 1);
    u32* const largest = (u32*)(factors + ROWS);

    const u32 from_group = quotient(from, a_piece), from_piece = from - from_group * pieces;
    Cursor sent{from, from_group, from_piece};
    u32 next = 0;
    const auto send = [&] {
      if (sent.at >= to) return;
      if (one_lane()) {
        expect_bytes(landed + next, LINES * BYTES);
        copy_box_once(places + next * PLACE, g.map, (begin + sent.group) * out.per_group(), first + sent.piece, landed + next);
      }
      sent.advance(pieces);
      next = next + 1 == PLACES ? 0 : next + 1;
    };
    if (warp == 0 && one_lane()) expect_boxes(g.map);
    for (u32 c = warp; warp < warps && c < pieces; c += warps) if (lane == 0) make_signal(x_there + c, 1);
    if (warp < warps && lane < PLACES) make_signal(landed + lane, 1);
    if (warp == 0 && lane == 0) make_signal(counted, 1);
    signals_made();
    wave_sync();
    NO_UNROLL for (u32 i = 0; i < PLACES; i++) send();
    wait_for_previous();
    if (tid_x() < ROWS && !apart) factors[tid_x()] = g.raw ? 1.0f : ((const f32*)(g.x + (size_t)ROWS * g.k))[tid_x()];
    NO_UNROLL for (u32 c = warp; warp < warps && c < pieces; c += warps)
      if (one_lane()) {
        expect_bytes(x_there + c, 4 * X_WORDS);
        copy_bulk(shared + c * X_WORDS, g.x + (size_t)(first + c) * 2 * X_WORDS, 4 * X_WORDS, x_there + c);
      }
    const Turned turned(out);
    // What is added was made long ago, and lies in the cache no longer.
    if (out.residual && lane < out.batch)
      for (u32 i = warp; i < end - begin; i += warps) expect((const u16*)out.residual + (size_t)lane * out.columns + (begin + i) * out.per_group());
    if (g.next.alpha)
      for (u32 i = tid_x(); i < end - begin; i += bdim_x()) expect(g.next.alpha + (begin + i) * out.per_group());
    barrier();
    if (apart && warp == warps) {
      find_factors(g.norm, factors);
      meeting_come(counted);
      barrier();
      return;
    }
    if (g.raw && out.dtype == DTYPE_bf16) lift(shared, x_there, g.x + (size_t)first * 2 * X_WORDS, pieces, factors, largest);

    const auto warp_of = [&](u32 unit) { return quotient((unit + 1) * warps - 1, a_unit); };
    // Whether several warps have a group.
    const auto shared_by = [&](u32 group) { return group < end - begin && warp_of(group * pieces) != warp_of(group * pieces + pieces - 1); };
    // What is added to the first that this one adds up, asked for long before.
    const bool adds = shared_by(warp);
    Vec<u16, 8> joined_added = turned.added(begin + warp, adds), joined_weights = turned.weights(g.next, begin + warp, adds);
    Sums acc = {}, head = {};
    Cursor c{from, from_group, from_piece};
    u32 place = 0, phase = 0;
    bool whole = c.piece == 0, headed = false;
    NO_UNROLL for (u32 round = 0; round < to - from; round++) {
      const bool ends = c.piece + 1 == pieces, alone = ends && whole;
      u32* const words = places + place * PLACE;
      await_signal(landed + place, phase);
      Piece piece;
      piece.load(words);
      const Vec<u16, 8> added = turned.added(begin + c.group, alone), weights = turned.weights(g.next, begin + c.group, alone);
      await_signal(x_there + c.piece, 0);
      const u16* const x = (const u16*)(shared + c.piece * X_WORDS);
      piece.multiply(acc, x);
      wave_sync();
      if (alone) {
        Sums total;
        UNROLL for (u32 e = 0; e < VALUES; e++) total[e / 4][e % 4] = acc[e / 4][e % 4];
        finish(g, turned, begin + c.group, total, added, weights, factors, counted, (f32*)words, alone);
        warpgroup_publish();
      }
      if (ends) {
        if (!whole) UNROLL for (u32 e = 0; e < VALUES; e++) head[e / 4][e % 4] = acc[e / 4][e % 4];
        headed |= !whole;
        whole = true;
        UNROLL for (u32 e = 0; e < VALUES; e++) acc[e / 4][e % 4] = 0;
      }
      c.advance(pieces);
      send();
      if (++place == PLACES) place = 0, phase ^= 1;
    }
    // A group that several warps have: the first that a warp takes in the first of its slots, the last in the other.
    f32* const slots = (f32*)places;
    const auto tell = [&](const Sums& sums, u32 slot) { UNROLL for (u32 e = 0; e < VALUES; e++) slots[slot * SLOT + e * 32 + lane] = sums[e / 4][e % 4]; };
    if (headed) tell(head, 0);
    if (c.piece != 0) tell(acc, c.group * pieces > from);
    barrier();
    NO_UNROLL for (u32 base = 0; base < end - begin; base += warps) {
      const u32 group = base + warp, start = group * pieces, one = warp_of(start), last = warp_of(start + pieces - 1);
      const bool there = group < end - begin && one != last;
      if (!there) continue;
      if (base) joined_added = turned.added(begin + group, there), joined_weights = turned.weights(g.next, begin + group, there);
      Sums total = {};
      for (u32 w = one; there && w <= last; w++) {
        const f32* const slot = (f32*)all_places + w * PLACES * PLACE + (begin_of(w) < start ? SLOT : 0) + lane;
        UNROLL for (u32 e = 0; e < VALUES; e++) total[e / 4][e % 4] += slot[e * 32];
      }
      finish(g, turned, begin + group, total, joined_added, joined_weights, factors, counted, slots + 2 * SLOT, there);
    }
  }
};

GPU_FN u32 exponent_within(f32 x, u32 least, u32 most) {
  const u32 exponent = f32_bits(x) >> 23;
  return exponent < least ? least : exponent > most ? most : exponent;
}
// A row of x as QuantEven wants it, with a norm where there is an alpha: as OrderedRow (quant-wide.h) does it, with one vector to a thread and
// so few registers that blocks find room beside those of products, which may begin at once.
template <class T> GPU_FN void order_row(f32* shared, const T* x, const T* alpha, u16* out, u32 row, u32 rows, u32 k, u32 order, f32 eps) {
  typedef Vec<T, 8> V;
  let_next_begin();
  const u32 warps = bdim_x() / 32, warp = tid_x() / 32, lane = lane_id(), height = (rows + 7) / 8 * 8;
  u16* const staged = (u16*)(shared + 64) + warp * PIECE;
  V ones;
  UNROLL for (u32 j = 0; j < 8; j++) ones.v[j] = narrow<T>(1.0f);
  Whole<T, 8> held, factors;
  held.set(V{}), factors.set(ones);
  if (alpha) factors.load(alpha, tid_x());
  u32 places[2] = {0, 0};
  UNROLL for (u32 j = 0; j < 8; j++) places[j / 4] |= ordered_from(lane * 8 + j, order) << j % 4 * 8;
  wait_for_previous();
  if (row < rows) held.load(x + (size_t)row * k, tid_x());
  f32 scale = 1, squares, largest;
  // Hardly ever more than once: where squares have overflown or vanished, the largest of x tells what it is to be scaled by.
  NO_UNROLL for (u32 pass = 0; pass < 3; pass++) {
    squares = 0, largest = 0;
    const V v = held.get(), a = factors.get();
    UNROLL for (u32 j = 0; j < 8; j++) {
      const f32 y = widen(v.v[j]) * scale;
      squares += y * y;
      largest = maximum(largest, m_abs(pass == 1 ? y : y * widen(a.v[j])));
    }
    u32 bits = warp_most(f32_bits(largest));
    UNROLL for (u32 mask = 16; mask; mask /= 2) squares += shfl_xor(squares, mask);
    if (lane == 0) shared[warp] = squares, shared[32 + warp] = f32_from_bits(bits);
    barrier();
    squares = lane < warps ? shared[lane] : 0.0f;
    largest = f32_from_bits(warp_most(lane < warps ? f32_bits(shared[32 + lane]) : 0));
    UNROLL for (u32 mask = 16; mask; mask /= 2) squares += shfl_xor(squares, mask);
    if (!alpha || pass == 2 || (pass == 0 && squares < 1e36f && squares > 1e-20f && largest < 1e36f && largest > 1e-30f)) break;
    if (pass == 1) scale = f32_from_bits((254 - exponent_within(largest, 77, 253)) << 23);
    barrier();  // what is told next goes where what was told is read
  }
  if (alpha) {
    const f32 factor = rms_factor(squares, k, eps * scale * scale);
    scale *= factor, largest *= factor;
  }
  const u32 near = exponent_within(largest, 15, 254);
  scale *= f32_from_bits((268 - near) << 23);
  const V v = held.get(), a = factors.get();
  Words4 to;
  UNROLL for (u32 j = 0; j < 4; j++) to.v[j] = pack2(f16{}, widen(v.v[2 * j]) * scale * widen(a.v[2 * j]), widen(v.v[2 * j + 1]) * scale * widen(a.v[2 * j + 1]));
  store_shared<4>((u32*)staged, lane * 4, to);
  wave_sync();
  UNROLL for (u32 j = 0; j < 4; j++) to.v[j] = staged[places[j / 2] >> j % 2 * 16 & 255u] | (u32)staged[places[j / 2] >> (j % 2 * 16 + 8) & 255u] << 16;
  put((u32*)(out + ((size_t)(tid_x() / 8) * height + row) * WIDE_ROW + (tid_x() % 8 ^ row % 8) * 8), to);
  if (tid_x() == 0) ((f32*)(out + (size_t)height * k))[row] = f32_from_bits((near - 14) << 23);
}

}  // namespace gpu
#endif
#endif
