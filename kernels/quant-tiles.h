// Products of many rows with quantized weights by warpgroups: y (rows, n) = f(x (rows, k) · W (n, k)ᵀ + bias) + residual in halves; weights
// and x are multiplied in f16, sums are in f32. For types and rows that are whole pieces of 256 (quant-pieces.h).
//
// As quant-wide.h, with 128 lines of W by 256 rows of x to a block, but warps that multiply do nothing else: of four others, from which they
// have registers, one has the copy engine bring boxes of weights, a piece of each line at a time, and one x, which lies in memory as the
// unit reads it (OrderedRow). A warp that multiplies has 16 lines and decodes them straight into the registers that the product takes its
// left operand from; while one slice of a piece is multiplied, the next is decoded.
// Traffic: W is read rows/256 times, x n/128 times, mostly from the cache.
#ifndef WICK_QUANT_TILES_H
#define WICK_QUANT_TILES_H
#include "gpu/boxes.h"
#include "quant-wide.h"

#if GPU_WARPGROUPS
namespace gpu {
template <class Q> struct QuantTiles {
  static constexpr int BN = QUANT_WIDE_ROWS;
  static constexpr u32 LINES = 128, WARPS = LINES / 16, MULTIPLIERS = 32 * WARPS;
  static constexpr u32 SLICE = WIDE_ROW, SLICES = PIECE / SLICE, X_SLICE = BN * SLICE, PLACES = 2;
  static_assert(SLICES == 4, "a slice of a piece has its place in shared memory");
  // Pieces of lines lie one by one, an odd number of vectors each, so that eight hit all banks.
  static constexpr u32 BYTES = PIECE / Q::Elements * Q::Bytes, PITCH = BYTES / 4, PLACE = LINES * PITCH;
  static_assert(BYTES / 16 % 2 == 1 && BYTES % 16 == 0, "");
  typedef QuantWide<Q, BN> Wide;
  typedef TurnedRows<BN> Turned;
  typedef Outputs<16, BN> Out;
  // The left operand of a slice's four products, and what it is decoded from: block after block of two lines.
  typedef u32 Fragments[4][4];
  typedef PieceBlock<Q> Blocks[2];

  const Out& out;
  const u16* x;
  const u8* w;
  const BoxMap* map;
  u32 k;
  u16* sx;
  u32* weights;
  u16* staged;
  Signal *full, *free, *x_full, *x_free;
  u32 down, across;
  typename Wide::Shares shares;

  GPU_METHOD QuantTiles(u16* shared, const Out& out, const u16* x, const u8* w, const BoxMap* map, f32* parts, u32* counters, u32 k, u32 alone, u32 sharers)
      : out(out), x(x), w(w), map(map), k(k), sx(shared), weights((u32*)(shared + SLICES * X_SLICE)),
        staged((u16*)(weights + PLACES * PLACE)), full((Signal*)(staged + QUANT_TILES_THREADS / 32 * Turned::SIZE)), free(full + PLACES), x_full(free + PLACES), x_free(x_full + SLICES),
        down((out.groups() + WARPS - 1) / WARPS), across((out.batch + BN - 1) / BN), shares{parts, counters, alone, sharers, down * across, (u32*)(x_free + SLICES)} {
    if (tid_x() == 0) {
      UNROLL for (u32 i = 0; i < PLACES; i++) make_signal(full + i, 1), make_signal(free + i, WARPS);
      UNROLL for (u32 i = 0; i < SLICES; i++) make_signal(x_full + i, 1), make_signal(x_free + i, WARPS);
    }
    signals_made();
    barrier();
  }
  GPU_METHOD u32 units() const { return k / PIECE; }
  GPU_METHOD WideWork work() const { return WideWork(shares.tiles, shares.alone, units(), shares.sharers); }
  // A tile: this block's first group of 16 lines, the first row and how many there are, in eights.
  struct Tile {
    u32 group, row, height;
  };
  GPU_METHOD Tile tile_of(u32 i) const {
    const TileAt at = tile_at(i, down, across);
    const u32 row = (u32)at.column * BN, left = (out.batch - row + 7) / 8 * 8;
    return Tile{(u32)at.row * WARPS, row, left < BN ? left : BN};
  }
  GPU_METHOD const u16* slice_of(const Tile& t, u32 at, u32 j) const { return x + (size_t)t.row * k + (size_t)(at * SLICES + j) * t.height * SLICE; }

  GPU_METHOD void bring_weights() const {
    if (one_lane()) {
      WideWork todo = work();
      WideWork::Piece piece;
      u32 turns = 0;
      while (todo.next(piece)) {
        const u32 line = tile_of(piece.tile).group * out.per_group();
        NO_UNROLL for (u32 at = piece.from; at < piece.to; at++, turns++) {
          const u32 place = turns % PLACES;
          if (turns >= PLACES) await_signal(free + place, (turns / PLACES - 1) & 1);
          expect_bytes(full + place, 4 * PLACE);
          copy_box(weights + place * PLACE, map, line, at, full + place);
        }
      }
    }
    wave_sync();
    wait_for_previous();
  }
  GPU_METHOD void bring_x() const {
    wait_for_previous();
    if (one_lane()) {
      WideWork todo = work();
      WideWork::Piece piece;
      u32 turns = 0;
      while (todo.next(piece)) {
        const Tile tile = tile_of(piece.tile);
        const u32 bytes = tile.height * SLICE * 2;
        NO_UNROLL for (u32 at = piece.from; at < piece.to; at++, turns++)
          UNROLL for (u32 j = 0; j < SLICES; j++) {
            if (turns > 0) await_signal(x_free + j, (turns - 1) & 1);
            expect_bytes(x_full + j, bytes);
            copy_bulk((u32*)(sx + j * X_SLICE), slice_of(tile, at, j), bytes, x_full + j);
          }
      }
    }
    wave_sync();
  }

  // Slice J of the piece at a place; an even one begins with other blocks. Lines are as Outputs has them.
  template <u32 J> GPU_METHOD void load(Blocks& blocks, u32 place) const {
    const u32* const line = weights + place * PLACE + (tid_x() / 32 % WARPS * out.per_group() + lane_id() / 4) * PITCH;
    if (J % 2 == 0) UNROLL for (u32 h = 0; h < 2; h++) blocks[h].template load<J / 2>(line + h * (out.glu ? LINES / 2 : 8) * PITCH);
  }
  template <u32 J, u32 I> GPU_METHOD void decode(u32 (&words)[4], const Blocks& blocks) const {
    UNROLL for (u32 h = 0; h < 2; h++) blocks[h].template decode<J % 2 * 4 + I>(words[h], words[2 + h]);
    UNROLL for (int i = 0; i < 4; i++) warpgroup_hold(words[i]);
  }
  // 0, which NVIDIA's assembler does not know: else it moves what makes these words behind the product that is to run beside it.
  GPU_METHOD u32 nothing(const u32 (&words)[4]) const { return (words[0] | words[1] | words[2] | words[3]) & k >> 31; }
  GPU_FN void multiply(f32 (&c)[BN / 2], const u32 (&f)[4], const WarpgroupRef& b) {
    warpgroup_begin();
    warpgroup_multiply<0>(f16{}, c, f, b, true);
    warpgroup_commit();
  }
  // Multiplies slice J, which is decoded in f, and meanwhile decodes the next one to g. A warp waits where it begins a product until the
  // one before has begun: so a quarter is decoded behind each of the four.
  template <u32 J> GPU_METHOD void step(f32 (&c)[BN / 2], Fragments& f, Fragments& g, Blocks& blocks, const WarpgroupRef& ref, bool more, u32 turns) const {
    constexpr u32 NEXT = (J + 1) % SLICES;
    await_signal(x_full + J, turns & 1);
    const WarpgroupRef b = ref.plus(J * X_SLICE);
    multiply(c, f[0], b);
    const u32 next = NEXT == 0 && more ? turns + 1 : turns;
    if (NEXT == 0 && more) await_signal(full + next % PLACES, next / PLACES & 1);
    // Behind the last, what lies there is decoded, and goes nowhere.
    load<NEXT>(blocks, next % PLACES);
    // Products of the slice before have ended: they read g, and x at its place.
    warpgroup_wait<1>();
    UNROLL for (int i = 0; i < 16; i++) warpgroup_hold(g[i / 4][i % 4]);
    if (J > 0 || turns > 0) meeting_come(x_free + (J + SLICES - 1) % SLICES);
    decode<NEXT, 0>(g[0], blocks);
    multiply(c, f[1], b.plus(16 + nothing(g[0])));
    decode<NEXT, 1>(g[1], blocks);
    multiply(c, f[2], b.plus(32 + nothing(g[1])));
    decode<NEXT, 2>(g[2], blocks);
    multiply(c, f[3], b.plus(48 + nothing(g[2])));
    decode<NEXT, 3>(g[3], blocks);
    // All of the piece is in registers.
    if (NEXT == 3) meeting_come(free + turns % PLACES);
  }
  GPU_METHOD void first(Fragments& f, Blocks& blocks) const {
    load<0>(blocks, 0);
    decode<0, 0>(f[0], blocks);
    decode<0, 1>(f[1], blocks);
    decode<0, 2>(f[2], blocks);
    decode<0, 3>(f[3], blocks);
  }
  GPU_METHOD void multiply() const {
    const WarpgroupRef ref = uniform_ref(warpgroup_ref(sx, 8 * WIDE_ROW, SLICE * WIDE_ROW));
    const f32* const factors = (const f32*)(x + (size_t)((out.batch + 7) / 8 * 8) * k);
    WideWork todo = work();
    WideWork::Piece piece, after;
    bool more = todo.next(piece);
    f32 c[BN / 2];
    Fragments f, g;
    UNROLL for (int i = 0; i < 16; i++) g[i / 4][i % 4] = 0;
    Blocks blocks;
    if (more) {
      await_signal(full, 0);
      first(f, blocks);
    }
    wait_for_previous();
    u32 turns = 0;
    while (more) {
      UNROLL for (int e = 0; e < BN / 2; e++) c[e] = 0;
      more = todo.next(after = piece);
      const Tile tile = tile_of(piece.tile);
      NO_UNROLL for (u32 at = piece.from; at < piece.to; at++, turns++) {
        const bool goes_on = at + 1 < piece.to || more;
        step<0>(c, f, g, blocks, ref, goes_on, turns);
        step<1>(c, g, f, blocks, ref, goes_on, turns);
        step<2>(c, f, g, blocks, ref, goes_on, turns);
        step<3>(c, g, f, blocks, ref, goes_on, turns);
      }
      warpgroup_wait<0>();
      UNROLL for (int e = 0; e < BN / 2; e++) warpgroup_hold(c[e]);
      const bool ends = piece.to - piece.from == units() || Wide::join(c, shares, piece.tile - shares.alone, units(), piece.from == 0);
      if (ends) Turned{out, tile.group + tid_x() / 32 % WARPS, staged + tid_x() / 32 * Turned::SIZE}.store(c, factors, tile.row);
      piece = after;
    }
  }

  GPU_METHOD void run() const {
    const u32 warp = uniform(tid_x() / 32);
    if (warp < WARPS) {
      take_registers<240>();
      multiply();
    } else {
      leave_registers<24>();
      if (warp == WARPS) bring_weights();
      else if (warp == WARPS + 1) bring_x();
      else wait_for_previous();
    }
  }
};

}  // namespace gpu
#endif
#endif
