// Products of up to 64 rows with quantized weights by warpgroups: y (rows, n) = f(x (rows, k) · W (n, k)ᵀ + bias) + residual in halves;
// weights and x are multiplied in f16, sums are in f32. For types and rows that are whole pieces of 256 (quant-pieces.h).
//
// A block makes LINES lines of W by all rows, or, of `cuts` blocks, its part of k of them. Warps that multiply do nothing else. Of four
// others, from which they have registers, one has the copy engine bring boxes of weights, a piece of each line at a time and the first
// before the kernel ahead has ended, and one x, which lies in memory as the unit reads it (OrderedRow). A warp that multiplies has 16
// lines and decodes them straight into the registers that the product takes its left operand from; while one slice of a piece is
// multiplied, the next is decoded. With a gate the first half of the lines are gates, and the second what they open.
//
// Blocks that share a tile write their sums to `parts`, and when all have, each adds up some of its rows; PAIR are two of a cluster, which
// send each other theirs.
// Traffic: W once; x once for each tile, from the cache.
#ifndef WICK_QUANT_FLOW_H
#define WICK_QUANT_FLOW_H
#include "gpu/boxes.h"
#include "gpu/cluster.h"
#include "gpu/crews.h"
#include "gpu/uniform.h"
#include "gate.h"
#include "product.h"
#include "quant-quick.h"

#if GPU_WARPGROUPS
namespace gpu {
template <class Q, u32 LINES, u32 BN, bool PAIR> struct QuantFlow {
  static constexpr u32 WARPS = LINES / 16, MULTIPLIERS = 32 * WARPS;
  static constexpr u32 SLICE = WIDE_ROW, SLICES = PIECE / SLICE, X_SLICE = BN * SLICE, X_PLACE = BN * PIECE;
  static_assert(SLICES == 4, "two blocks of a lane, of two slices each");
  // Pieces of lines lie one by one, an odd number of vectors each, so that eight hit all banks.
  static constexpr u32 BYTES = PIECE / Q::Elements * Q::Bytes, PITCH = BYTES / 4, PLACE = LINES * PITCH;
  static_assert(BYTES / 16 % 2 == 1 && BYTES % 16 == 0, "");
  // Shared memory for as many as fit: three pieces of x, or two.
  static constexpr u32 X_PLACES = 3 * 2 * X_PLACE + 2 * 4 * PLACE <= QUANT_FLOW_SHARED ? 3 : 2;
  // What a pair sends: sums of eight rows by eights of them, of which each block has every other.
  static constexpr u32 GROUPS = BN / 8, TOLD = PAIR ? 2 * ((GROUPS + 1) / 2) * 4 * MULTIPLIERS : 0;
  static constexpr u32 FIT = (QUANT_FLOW_SHARED - X_PLACES * 2 * X_PLACE - 4 * TOLD) / (4 * PLACE), PLACES = FIT < 4 ? FIT : 4;
  // Sums lie where weights were, and are read four lines at a time.
  static constexpr u32 SUM_PITCH = LINES + 4;
  static_assert(PLACES >= 2 && BN * SUM_PITCH <= PLACES * PLACE, "");
  // Two warpgroups wait for products, and not for instructions: the quick way has fewer, but does not run beside products that are begun.
  static constexpr bool QUICK = LINES > 128;
  // Where blocks of a tile cannot wait for each other one does the work of all.
  static constexpr bool SHARED_OUT = PAIR ? GPU_CLUSTERS : WAITING_BLOCKS;
  // The left operand of a slice's four products, and what it is decoded from: block after block of two lines.
  typedef u32 Fragments[4][4];
  typedef QuickBlock<Q> Blocks[2];

  // Where a piece goes: places in turn, and how often all were used before, modulo 2.
  template <u32 COUNT> struct Turn {
    u32 place, phase;
    GPU_METHOD Turn next() const { return place + 1 == COUNT ? Turn{0, phase ^ 1} : Turn{place + 1, phase}; }
    GPU_METHOD u32 before() const { return place ? place - 1 : COUNT - 1; }
  };
  struct Given {
    const u16* x;
    const u8* w;
    const BoxMap* map;
    const void *bias, *residual;
    void* y;
    f32* parts;
    u32* counters;
    u32 n, k, rows, glu, cuts, dtype;
    OrderedRows next;  // where results go in the order of what they are multiplied with next, too, or nowhere
    RowFactors factors;
  };

  const Given& g;
  u16* sx;
  u32* weights;
  f32* told;
  Signal *full, *free, *x_full, *x_free, *counted, *joined;
  f32* known;  // the factors of rows whose squares are told
  u32 tile, part, from, to;

  GPU_METHOD QuantFlow(u16* shared, const Given& g)
      : g(g), sx(shared), weights((u32*)(shared + X_PLACES * X_PLACE)), told((f32*)(weights + PLACES * PLACE)), full((Signal*)(told + TOLD)), free(full + PLACES), x_full(free + PLACES),
        x_free(x_full + X_PLACES), counted(x_free + X_PLACES), joined(counted + 1), known((f32*)(joined + 1)), tile((u32)bid_x() / g.cuts), part((u32)bid_x() - tile * g.cuts) {
    const u32 pieces = g.k / PIECE;
    from = SHARED_OUT ? pieces * part / g.cuts : 0, to = SHARED_OUT ? pieces * (part + 1) / g.cuts : part ? 0 : pieces;
    if (tid_x() == 0) {
      UNROLL for (u32 i = 0; i < PLACES; i++) make_signal(full + i, 1), make_signal(free + i, WARPS);
      UNROLL for (u32 i = 0; i < X_PLACES; i++) make_signal(x_full + i, 1), make_signal(x_free + i, WARPS);
      make_signal(counted, 2);
      if (PAIR) make_signal(joined, 1), cluster_expect(joined, (GROUPS + 1 - part) / 2 * 2 * 16 * MULTIPLIERS);
    }
    signals_made();
    if (PAIR) cluster_come(), cluster_wait();
    else barrier();
  }
  GPU_METHOD u32 height() const { return (g.rows + 7) / 8 * 8; }
  GPU_METHOD u32 columns() const { return g.glu ? g.n / 2 : g.n; }
  GPU_METHOD const u16* slice_of(u32 at, u32 j) const { return g.x + (size_t)(at * SLICES + j) * height() * SLICE; }

  GPU_METHOD void bring_weights() const {
    if (one_lane()) {
      Turn<PLACES> turn{0, 1};
      NO_UNROLL for (u32 at = from; at < to; at++, turn = turn.next()) {
        if (at - from >= PLACES) await_signal(free + turn.place, turn.phase);
        expect_bytes(full + turn.place, 4 * PLACE);
        copy_box(weights + turn.place * PLACE, g.map, tile * (g.glu ? LINES / 2 : LINES), at, full + turn.place);
      }
    }
    wave_sync();
    wait_for_previous();
  }
  GPU_METHOD void bring_x() const {
    wait_for_previous();
    if (!one_lane()) return;
    Turn<X_PLACES> turn{0, 1};
    NO_UNROLL for (u32 at = from; at < to; at++, turn = turn.next()) {
      Signal* const signal = x_full + turn.place;
      u16* const place = sx + turn.place * X_PLACE;
      if (at - from >= X_PLACES) await_signal(x_free + turn.place, turn.phase);
      expect_bytes(signal, height() * PIECE * 2);
      // Slices of fewer rows than a tile has lie closer together in memory.
      if (height() == BN) copy_bulk((u32*)place, slice_of(at, 0), BN * PIECE * 2, signal);
      else NO_UNROLL for (u32 j = 0; j < SLICES; j++) copy_bulk((u32*)(place + j * X_SLICE), slice_of(at, j), height() * SLICE * 2, signal);
    }
  }
  // One thread for each row.
  GPU_METHOD void find_factor(u32 row) const {
    f32 sum = 0;
    if (row < height()) NO_UNROLL for (u32 p = 0; p < g.factors.parts; p += 8) {
      f32 told[8];
      UNROLL for (u32 i = 0; i < 8; i++) told[i] = p + i < g.factors.parts ? g.factors.told(p + i, row) : 0.0f;
      UNROLL for (u32 i = 0; i < 8; i++) sum += told[i];
    }
    known[row] = g.factors.of(sum);
  }

  // What is multiplied now.
  struct Now {
    u32 at;
    bool more;
    Turn<PLACES> turn;
    Turn<X_PLACES> x_turn;
  };
  // What slice J of the piece at a place is decoded from, which an odd one shares with the one before; whether a scale of the warp's is large.
  template <u32 J> GPU_METHOD void load(Blocks& blocks, bool& large, u32 place) const {
    if (J % 2) return;
    const u32* const line = weights + place * PLACE + (tid_x() / 32 % WARPS * 8 + lane_id() / 4) * PITCH;
    UNROLL for (u32 h = 0; h < 2; h++) blocks[h].template load<J / 2>(line + h * (LINES / 2 * PITCH)), blocks[h].prepare();
    large = !QUICK || wave_any(blocks[0].is_large() || blocks[1].is_large());
  }
  template <u32 J> GPU_METHOD void decode(Fragments& f, const Blocks& blocks, bool large) const {
    if (large) decode_as<J, true>(f, blocks);
    else decode_as<J, false>(f, blocks);
  }
  template <u32 J, bool LARGE> GPU_METHOD void decode_as(Fragments& f, const Blocks& blocks) const {
    decode_for<J % 2 * 4, LARGE>(f[0], blocks);
    decode_for<J % 2 * 4 + 1, LARGE>(f[1], blocks);
    decode_for<J % 2 * 4 + 2, LARGE>(f[2], blocks);
    decode_for<J % 2 * 4 + 3, LARGE>(f[3], blocks);
    UNROLL for (int i = 0; i < 16; i++) warpgroup_hold(f[i / 4][i % 4]);
  }
  // The left operand of a product.
  template <u32 I, bool LARGE> GPU_METHOD void decode_for(u32 (&f)[4], const Blocks& blocks) const {
    UNROLL for (u32 h = 0; h < 2; h++)
      if (LARGE) blocks[h].template decode<I>(f[h], f[2 + h]);
      else blocks[h].template decode_quickly<I>(f[h], f[2 + h]);
  }
  // Multiplies slice J, which is decoded in f, and meanwhile decodes the next one to e.
  template <u32 J> GPU_METHOD void step(f32 (&c)[BN / 2], Fragments& f, Fragments& e, Blocks& blocks, bool& large, const WarpgroupRef& x, const Now& now) const {
    constexpr u32 NEXT = (J + 1) % SLICES;
    const WarpgroupRef b = x.plus(now.x_turn.place * X_PLACE + J * X_SLICE);
    warpgroup_begin();
    UNROLL for (u32 i = 0; i < 4; i++) warpgroup_multiply<0>(f16{}, c, f[i], b.plus(16 * i), true);
    warpgroup_commit();
    const Turn<PLACES> turn = NEXT == 0 && now.more ? now.turn.next() : now.turn;
    if (NEXT == 0 && now.more) await_signal(full + turn.place, turn.phase);
    // Behind the last, what lies there is decoded, and goes nowhere.
    load<NEXT>(blocks, large, turn.place);
    // Products of the slice before have ended: they read e, and x at its place.
    warpgroup_wait<1>();
    UNROLL for (int i = 0; i < 16; i++) warpgroup_hold(e[i / 4][i % 4]);
    if (J == 0 && now.at > from) meeting_come(x_free + now.x_turn.before());
    decode<NEXT>(e, blocks, large);
    // All of the piece is in registers.
    if (NEXT == 3) meeting_come(free + now.turn.place);
  }
  GPU_METHOD void multiply() const {
    f32 c[BN / 2];
    UNROLL for (u32 i = 0; i < BN / 2; i++) c[i] = 0;
    Fragments f, e;
    UNROLL for (int i = 0; i < 16; i++) e[i / 4][i % 4] = 0;
    Blocks blocks;
    bool large = false;
    const WarpgroupRef x = uniform_ref(warpgroup_ref(sx, 8 * WIDE_ROW, SLICE * WIDE_ROW));
    Now now{from, false, {0, 0}, {0, 0}};
    if (SHARED_OUT || from < to) {
      await_signal(full, 0);
      load<0>(blocks, large, 0);
      decode<0>(f, blocks, large);
    }
    wait_for_previous();
    NO_UNROLL for (; now.at < to; now.at++) {
      now.more = now.at + 1 < to;
      await_signal(x_full + now.x_turn.place, now.x_turn.phase);
      step<0>(c, f, e, blocks, large, x, now);
      step<1>(c, e, f, blocks, large, x, now);
      step<2>(c, f, e, blocks, large, x, now);
      step<3>(c, e, f, blocks, large, x, now);
      now.turn = now.turn.next(), now.x_turn = now.x_turn.next();
    }
    warpgroup_wait<0>();
    UNROLL for (u32 i = 0; i < BN / 2; i++) warpgroup_hold(c[i]);
    if (SHARED_OUT && PAIR) join_pair(c);
    else if (SHARED_OUT && g.cuts > 1) join(c);
    else {
      barrier_of<MULTIPLIERS>();  // all have decoded what lies where sums go
      if (tid_x() < MULTIPLIERS) UNROLL for (u32 j = 0; j < BN / 8; j++) stage(j, Vec<f32, 4>{c[4 * j], c[4 * j + 1], c[4 * j + 2], c[4 * j + 3]});
      barrier_of<MULTIPLIERS>();
      if (from < to) store(g.rows, 0, 1, false, Vec<u16, 4>{}, weights_behind());
    }
  }
  // A lane's sums of eight rows: of two, on two lines.
  GPU_METHOD void stage(u32 j, const Vec<f32, 4>& sums) const {
    f32* const to = (f32*)weights + (j * 8 + lane_id() % 4 * 2) * SUM_PITCH + tid_x() / 32 * 8 + lane_id() / 4;
    UNROLL for (u32 i = 0; i < 4; i++) to[i % 2 * SUM_PITCH + i / 2 * (LINES / 2)] = sums.v[i];
  }
  // A block of two has every other eight rows.
  GPU_METHOD void join_pair(const f32 (&c)[BN / 2]) const {
    const auto of = [&](u32 from, u32 j) { return told + ((from * ((GROUPS + 1) / 2) + j) * MULTIPLIERS + tid_x()) * 4; };
    UNROLL for (u32 j = 0; j < GROUPS; j++) cluster_send(of(part, j / 2), Vec<f32, 4>{c[4 * j], c[4 * j + 1], c[4 * j + 2], c[4 * j + 3]}, j % 2, joined);
    const Vec<u16, 4> behind = weights_behind();
    const u32 rows = (GROUPS + 1 - part) / 2 * 8;
    const Vec<u16, 4> residual = first_residual(rows, 2);
    barrier_of<MULTIPLIERS>();  // all have decoded what lies where sums go
    cluster_await(joined);
    UNROLL for (u32 j = 0; j < (GROUPS + 1) / 2; j++) {
      if (j * 8 >= rows) continue;
      const Vec<f32, 4> a = load_shared<4>(of(0, j), 0), b = load_shared<4>(of(1, j), 0);
      stage(j, Vec<f32, 4>{a.v[0] + b.v[0], a.v[1] + b.v[1], a.v[2] + b.v[2], a.v[3] + b.v[3]});
    }
    barrier_of<MULTIPLIERS>();
    store(rows, part, 2, true, residual, behind);
  }
  // Of the first four columns that this thread stores of `rows` rows: it comes while others are waited for.
  GPU_METHOD Vec<u16, 4> first_residual(u32 rows, u32 stride) const {
    const Four four(*this, tid_x(), part, stride);
    const bool exists = g.residual && in_vectors() && tid_x() < rows * four.per_row && four.row < g.rows && four.column < columns();
    return exists ? *(const Vec<u16, 4>*)((const u16*)g.residual + four.at) : Vec<u16, 4>{};
  }
  // When all blocks of a tile have told their sums, each adds up some of its rows: of the groups of eight, every so many'th.
  GPU_METHOD void join(const f32 (&c)[BN / 2]) const {
    const u32 cuts = g.cuts;
    f32* const told_by = g.parts + (size_t)tile * cuts * (MULTIPLIERS * BN / 2) + tid_x() * 4;
    const auto of = [&](u32 b, u32 j) { return told_by + (size_t)b * (MULTIPLIERS * BN / 2) + j * 4 * MULTIPLIERS; };
    UNROLL for (u32 j = 0; j < GROUPS; j++) *(Vec<f32, 4>*)of(part, j) = Vec<f32, 4>{c[4 * j], c[4 * j + 1], c[4 * j + 2], c[4 * j + 3]};
    barrier_of<MULTIPLIERS>();
    // What is behind comes while the others are waited for, too.
    const Vec<u16, 4> behind = weights_behind();
    const u32 rows = part < GROUPS ? (GROUPS - part + cuts - 1) / cuts * 8 : 0;
    const Vec<u16, 4> residual = first_residual(rows, cuts);
    // All count once more when they have waited, which makes it a zero again.
    if (tid_x() == 0) {
      u32* const counter = g.counters + tile;
      device_fence();  // for all: they met
      count_on(counter, 2 * cuts - 1), await_count(counter, cuts), count_on(counter, 2 * cuts - 1);
    }
    barrier_of<MULTIPLIERS>();
    if (part >= GROUPS) return;
    // Of the eight that are loaded at once, what belongs together is added up two by two.
    Vec<f32, 4> told[8];
    UNROLL for (u32 i = 0; i < 8; i++) {
      const u32 j = i / cuts * cuts + part;
      told[i] = j < GROUPS ? load_fresh(of(i % cuts, j)) : Vec<f32, 4>{};
    }
    UNROLL for (u32 v = 0; v < 4; v++) {
      UNROLL for (u32 i = 0; i < 4; i++) told[i].v[v] = told[2 * i].v[v] + told[2 * i + 1].v[v];
      UNROLL for (u32 i = 0; i < 2; i++) if (cuts > 2) told[i].v[v] = told[2 * i].v[v] + told[2 * i + 1].v[v];
      if (cuts > 4) told[0].v[v] += told[1].v[v];
    }
    UNROLL for (u32 i = 0; i < 4; i++) if (i * cuts < GROUPS) stage(i, told[i]);
    barrier_of<MULTIPLIERS>();
    store(rows, part, cuts, true, residual, behind);
  }
  GPU_METHOD bool in_vectors() const { return columns() % 4 == 0 && vector_aligned<4>((const u16*)g.y) && vector_aligned<4>((const u16*)g.residual); }
  // Which four columns of which row are number i of those that are stored below.
  struct Four {
    u32 per_row, local, row, line, column;
    size_t at;
    GPU_METHOD Four(const QuantFlow& f, u32 i, u32 first, u32 stride) {
      const u32 half = f.g.glu ? LINES / 2 : LINES;
      per_row = half / 4, local = i / per_row, row = (local / 8 * stride + first) * 8 + local % 8;
      line = i % per_row * 4, column = f.tile * half + line, at = (size_t)row * f.columns() + column;
    }
  };
  // Of the norm behind: a thread always has the same columns.
  GPU_METHOD Vec<u16, 4> weights_behind() const {
    const Four four(*this, tid_x(), 0, 1);
    return g.next.to && four.column < columns() ? g.next.template weights<4>(four.column) : Vec<u16, 4>{};
  }
  // `count` of the rows staged: of groups of eight rows of x every `stride`'th from `first` on. Four columns to a thread, the first with
  // the residual that came before, where one has; loops stay loops, as code that runs once is slow to come.
  GPU_METHOD void store(u32 count, u32 first, u32 stride, bool came, const Vec<u16, 4>& residual, const Vec<u16, 4>& behind) const {
    const u32 n = columns(), per_row = (g.glu ? LINES / 2 : LINES) / 4;
    const bool vectors = in_vectors();
    if (g.factors.parts) await_signal(counted, 0);
    NO_UNROLL for (u32 i = tid_x(); i < count * per_row; i += MULTIPLIERS) {
      const Four four(*this, i, first, stride);
      const u32 local = four.local, row = four.row, line = four.line, column = four.column;
      if (row >= g.rows || column >= n) continue;
      const f32 factor = g.factors.parts ? known[row] : g.factors.told(0, row);
      const f32* const sums = (const f32*)weights + local * SUM_PITCH + line;
      f32 v[4], up[4];
      scaled(v, sums, factor, column);
      if (g.glu) {
        scaled(up, sums + LINES / 2, factor, n + column);
        UNROLL for (u32 e = 0; e < 4; e++) v[e] = gated_shortly(g.glu, v[e], up[e]);
      }
      if (!vectors) {
        UNROLL for (u32 e = 0; e < 4; e++)
          if (column + e < n) store_float(g.y, four.at + e, v[e] + (g.residual ? load_float(g.residual, four.at + e, g.dtype) : 0.0f), g.dtype);
        continue;
      }
      if (g.residual) {
        const Vec<u16, 4> kept = came && i == tid_x() ? residual : *(const Vec<u16, 4>*)((const u16*)g.residual + four.at);
        UNROLL for (u32 e = 0; e < 4; e++) v[e] += g.dtype == DTYPE_f16 ? f16_to_f32(kept.v[e]) : bf16_to_f32(kept.v[e]);
      }
      Vec<u16, 4> made;
      UNROLL for (u32 e = 0; e < 4; e++) made.v[e] = g.dtype == DTYPE_f16 ? f32_to_f16(v[e]) : f32_to_bf16(v[e]);
      put((u16*)g.y + four.at, made);
      if (g.next.to) g.next.put128(made, behind, row, column - lane_id() * 4);
    }
  }
  // Sums of four columns of a row, with their bias where there is one.
  GPU_METHOD void scaled(f32 (&v)[4], const f32* sums, f32 factor, u32 column) const {
    const Vec<f32, 4> sum = load_shared<4>(sums, 0);
    UNROLL for (u32 e = 0; e < 4; e++) v[e] = sum.v[e] * factor;
    if (g.bias) UNROLL for (u32 e = 0; e < 4; e++)
      if (column + e < g.n) v[e] += load_float(g.bias, column + e, g.dtype);
  }

  GPU_METHOD void run() const {
    const u32 warp = uniform(tid_x() / 32);
    if (warp < WARPS) {
      take_registers<LINES == 256 ? 112 : 224>();
      multiply();
    } else {
      leave_registers<32>();
      if (warp == WARPS) bring_weights();
      else if (warp == WARPS + 1) bring_x();
      else {
        wait_for_previous();
        if (g.factors.parts) find_factor((warp - WARPS - 2) * 32 + lane_id()), meeting_come(counted);
      }
    }
  }
};

}  // namespace gpu
#endif
#endif
