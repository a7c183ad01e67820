// Products of many rows with quantized weights by warpgroups: y (rows, n) = f(x (rows, k) · W (n, k)ᵀ + bias) + residual in halves; weights
// and x are multiplied in f16, sums are in f32.
//
// A block makes 16 lines of W per warp, 128 in all, by BN rows of x. A warp brings the stored bytes of its lines to its own part of
// shared memory, chunk by chunk of k, and decodes them straight into the registers that the product takes its left operand from: no
// other warp waits for it, and nothing is stored twice. While one slice of a chunk is multiplied, the next is decoded. x lies in
// memory as the unit reads it (OrderedRow below), so that one thread sends a whole slice by one copy; warps do not wait for each
// other at barriers, but for what has landed, and that one thread for what is free.
//
// Blocks make `alone` tiles each by itself, and of the others equal shares, whatever tiles those begin and end in; what they have made
// of a tile goes to `parts`, and the one that began it adds it up, in their order. Where shares are halves, quarters or eighths of tiles,
// all that share one add up some of its rows. A block's pieces follow each other without a pause: the first chunk of the next is on
// its way while the last of this one is multiplied.
// Traffic: W is read rows/BN times, x n/128 times, mostly from the cache.
#ifndef WICK_QUANT_WIDE_H
#define WICK_QUANT_WIDE_H
#include "product.h"
#include "gpu/crews.h"
#include "gpu/turned.h"
#include "gpu/uniform.h"
#include "quant-slices.h"
#include "row.h"

namespace gpu {

// x as the kernels want it: tiles of `tile_rows` rows one after another (the last has a multiple of 8), in each the slices of 64 along k,
// of which there are whole chunks, and in a slice rows whose pieces of 8 elements are mixed as warpgroups read them. A row is in f16,
// lifted by a power of two so that its largest is near 2^15: of bf16 nothing is lost that counts beside it. Behind it all is what the
// products of each row are to be multiplied with. There are zeros behind k and behind the last row.
//
// A block makes a row, with a norm x / √(mean(x²) + eps) · alpha where there is an alpha. It is short, as code that runs once is slow
// to come, and asks for all it needs at once: alpha before the kernel that makes x has ended.
template <class T> struct OrderedRow {
  static constexpr u32 HELD = 2;  // vectors of a thread that are read once
  const T *x, *alpha;
  u32 k;
  bool there;
  typedef Vec<T, 8> V;
  Whole<T, 8> held[HELD], factors[HELD];

  GPU_METHOD V vector(u32 p) const { return there && 8 * p < k ? *(const V*)(x + 8 * p) : V{}; }
  GPU_METHOD V factor(u32 p) const {
    V v;
    UNROLL for (int j = 0; j < 8; j++) v.v[j] = narrow<T>(1.0f);
    if (alpha && 8 * p < k) v = *(const V*)(alpha + 8 * p);
    return v;
  }
  GPU_METHOD OrderedRow(const T* x_, const T* alpha, u32 row, u32 rows, u32 k) : x(x_ + (size_t)row * k), alpha(alpha), k(k), there(row < rows) {
    UNROLL for (u32 h = 0; h < HELD; h++) factors[h].set(factor(h * bdim_x() + tid_x()));
  }
  // take(vector, factors, number) for those of this thread; all threads take as many.
  template <class Take> GPU_METHOD void each(u32 vectors, Take take) const {
    UNROLL for (u32 h = 0; h < HELD; h++)
      if (h * bdim_x() < vectors) take(held[h].get(), factors[h].get(), h * bdim_x() + tid_x());
    NO_UNROLL for (u32 p = HELD * bdim_x() + tid_x(); p - tid_x() < vectors; p += bdim_x()) take(vector(p), factor(p), p);
  }
  // The largest of x and of x · scale · alpha, and the sum of the squares of x · scale; by way of three words of shared memory for each warp.
  struct Seen {
    f32 most, largest, squares;
    GPU_METHOD void with(const Seen& o) {
      most = maximum(most, o.most), largest = maximum(largest, o.largest);
      squares += o.squares;
    }
    GPU_METHOD void meet() { UNROLL for (u32 mask = 16; mask; mask /= 2) with(Seen{shfl_xor(most, mask), shfl_xor(largest, mask), shfl_xor(squares, mask)}); }
  };
  GPU_METHOD Seen look(f32* shared, f32 scale) const {
    Seen seen{0, 0, 0};
    each(k / 8, [&](const V& v, const V& a, u32) {
      UNROLL for (int j = 0; j < 8; j++) {
        const f32 y = widen(v.v[j]) * scale;
        seen.with(Seen{m_abs(widen(v.v[j])), m_abs(y * widen(a.v[j])), y * y});
      }
    });
    seen.meet();
    if (lane_id() == 0) shared[tid_x() / 32] = seen.most, shared[32 + tid_x() / 32] = seen.largest, shared[64 + tid_x() / 32] = seen.squares;
    barrier();
    const bool exists = lane_id() < bdim_x() / 32;
    seen = exists ? Seen{shared[lane_id()], shared[32 + lane_id()], shared[64 + lane_id()]} : Seen{0, 0, 0};
    seen.meet();
    return seen;
  }
  GPU_FN u32 exponent_of(f32 x, u32 least, u32 most) {
    const u32 exponent = f32_bits(x) >> 23;
    return exponent < least ? least : exponent > most ? most : exponent;
  }
  GPU_METHOD void write(f32* shared, u16* out, u32 row, u32 rows, u32 tile_rows, u32 order, f32 eps) {
    const u32 deep = (k + QUANT_WIDE_CHUNK - 1) / QUANT_WIDE_CHUNK * QUANT_WIDE_CHUNK, all = (rows + 7) / 8 * 8;
    const u32 tile = row / tile_rows, local = row % tile_rows, left = all - (row - local), height = left < tile_rows ? left : tile_rows;
    u16* const line = out + (size_t)tile * tile_rows * deep + local * 64;
    // A warp brings four slices to shared memory and takes them from there in order.
    u16* const staged = (u16*)(shared + 96) + tid_x() / 32 * 256;
    u32 places[2] = {0, 0};
    UNROLL for (u32 j = 0; j < 8; j++) places[j / 4] |= ordered_from(lane_id() * 8 + j, order) << j % 4 * 8;
    wait_for_previous();
    UNROLL for (u32 h = 0; h < HELD; h++) held[h].set(vector(h * bdim_x() + tid_x()));
    f32 scale = 1;
    Seen seen;
    NO_UNROLL for (bool again = false;; again = true) {
      seen = look(shared, scale);
      const bool fine = seen.squares < 1e36f && seen.squares > 1e-20f && seen.largest < 1e36f && seen.largest > 1e-30f;
      if (!alpha || again || fine) break;
      // Hardly ever: squares have overflown or vanished. As powers of two: squares of what is near 1 do neither.
      scale = f32_from_bits((254 - exponent_of(seen.most, 77, 253)) << 23);
      barrier();  // what is told next goes where what was told is read
    }
    if (alpha) {
      const f32 factor = rms_factor(seen.squares, k, eps * scale * scale);
      scale *= factor, seen.largest *= factor;
    }
    const u32 near = exponent_of(seen.largest, 15, 254);
    scale *= f32_from_bits((268 - near) << 23);
    each(deep / 8, [&](const V& v, const V& a, u32 p) {
      Words4 to;
      UNROLL for (int j = 0; j < 4; j++)
        to.v[j] = pack2(f16{}, widen(v.v[2 * j]) * scale * widen(a.v[2 * j]), widen(v.v[2 * j + 1]) * scale * widen(a.v[2 * j + 1]));
      store_shared<4>((u32*)staged, lane_id() * 4, to);
      wave_sync();
      UNROLL for (u32 j = 0; j < 4; j++) to.v[j] = staged[places[j / 2] >> j % 2 * 16 & 255u] | (u32)staged[places[j / 2] >> (j % 2 * 16 + 8) & 255u] << 16;
      wave_sync();
      if (8 * p < deep) put((u32*)(line + (size_t)(p / 8) * height * 64 + (p % 8 ^ local % 8) * 8), to);
    });
    if (tid_x() == 0) ((f32*)(out + (size_t)all * deep))[row] = f32_from_bits((near - 14) << 23);
  }
};

#if GPU_WARPGROUPS
// What a block makes: tiles of its own, then a share of those that are left. Units are chunks of k.
struct WideWork {
  u32 tile, unit, end, alone, units;
  GPU_METHOD WideWork(u32 tiles, u32 alone_, u32 units_, u32 sharers)
      : tile(bid_x()), unit(begin(bid_x(), (tiles - alone_) * units_, sharers)), end(begin(bid_x() + 1, (tiles - alone_) * units_, sharers)),
        alone(alone_), units(units_) {}
  // Where the share of a block begins, and whose a unit is.
  GPU_FN u32 begin(u32 block, u32 all, u32 sharers) { return block < sharers ? (u32)divide((u64)all * block, sharers) : all; }
  GPU_FN u32 owner(u32 unit, u32 all, u32 sharers) { return (u32)divide((u64)(unit + 1) * sharers - 1, all); }
  // Chunks `from` … `to` of a tile.
  struct Piece {
    u32 tile, from, to;
  };
  GPU_METHOD bool next(Piece& p) {
    if (tile < alone) {
      p = Piece{tile, 0, units};
      tile += gdim_x();
      return true;
    }
    if (unit >= end) return false;
    const u32 whole = unit / units, from = unit - whole * units, left = end - unit;
    p = Piece{alone + whole, from, left < units - from ? from + left : units};
    unit += p.to - from;
    return true;
  }
};

// A warp's sums of 16 lines by many rows, made results where they are and turned in shared memory, some rows of x at a time: a row then has
// neighbouring lines, which leave as vectors. What is added to them comes so, too, and is turned the other way.
template <int BN> struct TurnedRows {
  typedef Outputs<16, BN> Out;
  // Rows at a time; stores and loads hit all banks.
  static constexpr u32 ROWS = 32, PARTS = BN / ROWS, PITCH = 24, SIZE = ROWS * PITCH;
  const Out& out;
  u32 group;
  u16* staged;

  // Two halves of a word, of either kind: both are found, which is sooner than a branch.
  GPU_METHOD u32 packed(f32 low, f32 high) const {
    const u32 a = pack2(f16{}, low, high), b = pack2(bf16{}, low, high);
    return out.dtype == DTYPE_f16 ? a : b;
  }
  GPU_METHOD f32 half_of(u32 word, u32 i) const {
    const f32 a = f16_to_f32((u16)(word >> 16 * i)), b = f32_from_bits(i ? word & 0xffff0000u : word << 16);
    return out.dtype == DTYPE_f16 ? a : b;
  }
  // Right to some units in the last place, of which halves show none.
  GPU_FN f32 sigmoid(f32 x) { return approx_recip(1.0f + approx_exp2(x * -1.44269504088896340736f)); }

  // GLU: the gate, or 0. What is known goes with the code, which has no branches: code that runs once is slow to come, and slower where it jumps.
  template <u32 GLU, bool ADDED> GPU_METHOD void turn(const f32 (&c)[BN / 2], const f32* factors, u32 from) const {
    constexpr bool GATED = GLU != 0;
    constexpr u32 ACROSS = GATED ? 1 : 2;
    const u32 t = lane_id() % 4, line = lane_id() / 4, n = out.columns;
    // A lane's vectors of eight columns: ACROSS of them to a part, 16 rows apart.
    const u32 column = (group * ACROSS + lane_id() % ACROSS) * 8, row = from + lane_id() / ACROSS, place = lane_id() / ACROSS * PITCH + lane_id() % ACROSS * 8;
    const u32 rows = column < n ? out.batch : 0;
    const size_t first = (size_t)row * n + column, step = (size_t)16 * n;
    u16* to = (u16*)out.y + first;
    const u16* residual = (const u16*)out.residual + first;
    // All at once: each would be waited for.
    f32 factor[PARTS], bias[2];
    UNROLL for (u32 part = 0; part < PARTS; part++) {
      const u32 at = from + part * ROWS + lane_id();
      factor[part] = at < out.batch ? factors[at] : 0.0f;
    }
    UNROLL for (u32 h = 0; h < 2; h++) bias[h] = out.biased(group, line + 8 * h, 0.0f);
    Vec<u16, 8> added[ACROSS];
    const auto load = [&](u32 part) {
      UNROLL for (u32 i = 0; i < ACROSS; i++, residual += step) added[i] = row + part * ROWS + 16 * i < rows ? *(const Vec<u16, 8>*)residual : Vec<u16, 8>{};
    };
    if (ADDED) load(0);
    UNROLL for (u32 part = 0; part < PARTS; part++) {
      wave_sync();
      if (ADDED) {
        UNROLL for (u32 i = 0; i < ACROSS; i++) store_shared<8>(staged, place + 16 * PITCH * i, added[i]);
        if (part + 1 < PARTS) load(part + 1);
        wave_sync();
      }
      UNROLL for (u32 q = 0; q < ACROSS; q++) {
        // Four tiles of 8 × 8: 32 rows, or 16 of both halves of the lines.
        u32 words[4], old[4];
        if (ADDED) get_turned(old, staged + q * 16 * PITCH, ACROSS, PITCH);
        UNROLL for (u32 m = 0; m < 4; m++) {
          const u32 j = GATED ? m : q * 2 + m / 2;
          f32 y[2];
          UNROLL for (u32 i = 0; i < 2; i++) {
            const f32 lifted = shfl(factor[part], j * 8 + t * 2 + i);
            f32 sums[2];
            UNROLL for (u32 h = 0; h < 2; h++) sums[h] = c[part * 16 + j * 4 + h * 2 + i] * lifted + bias[h];
            const f32 slope = GLU == GLU_gelu ? 1.59576912160573071176f * (1.0f + 0.044715f * sums[0] * sums[0]) : 1.0f;
            y[i] = GATED ? sums[0] * sigmoid(sums[0] * slope) * sums[1] : sums[m % 2];
            if (ADDED) y[i] += half_of(old[m], i);
          }
          words[m] = packed(y[0], y[1]);
        }
        put_turned(staged + q * 16 * PITCH, ACROSS, PITCH, words);
      }
      wave_sync();
      UNROLL for (u32 i = 0; i < ACROSS; i++) {
        if (row + part * ROWS + 16 * i < rows) put(to, load_shared<8>(staged, place + 16 * PITCH * i));
        to += GATED ? 2 * step : step;
      }
    }
  }
  // Whatever else there may be, one by one: 16 rows at a time as they are, by one piece of code.
  GPU_METHOD void each(const f32 (&c)[BN / 2], const f32* factors, u32 from) const {
    constexpr u32 AT_ONCE = 16, SUM_PITCH = 20;
    static_assert(AT_ONCE * SUM_PITCH * 2 <= SIZE, "");
    f32* const sums = (f32*)staged;
    NO_UNROLL for (u32 part = 0; part < BN / AT_ONCE; part++) {
      wave_sync();
      UNROLL for (u32 p = 0; p < BN / AT_ONCE; p++)
        if (p == part)
          UNROLL for (u32 e = 0; e < AT_ONCE / 2; e++)
            sums[(e / 4 * 8 + lane_id() % 4 * 2 + e % 2) * SUM_PITCH + lane_id() / 4 + e / 2 % 2 * 8] = c[p * (AT_ONCE / 2) + e];
      wave_sync();
      NO_UNROLL for (u32 i = lane_id(); i < AT_ONCE * out.per_group(); i += 32) {
        const u32 local = i / out.per_group(), line = i % out.per_group(), row = from + part * AT_ONCE + local;
        if (!out.exists(group, line, row)) continue;
        const f32* const at = sums + local * SUM_PITCH + line;
        const f32 y = out.biased(group, line, at[0] * factors[row]);
        out.keep(group, line, row, (out.glu ? out.gated(y, out.biased(group, line + 8, at[8] * factors[row])) : y) + out.added(group, line, row));
      }
    }
  }
  // Sums of rows from `from` on, which are multiplied with their factors.
  GPU_METHOD void store(const f32 (&c)[BN / 2], const f32* factors, u32 from) const {
    const bool vectors = out.columns % 8 == 0 && vector_aligned<8>((const u16*)out.y) && vector_aligned<8>((const u16*)out.residual);
    if (!vectors || (out.glu && out.residual) || out.glu == GLU_clampedSwiglu) each(c, factors, from);
    else if (out.glu == GLU_silu) turn<GLU_silu, false>(c, factors, from);
    else if (out.glu) turn<GLU_gelu, false>(c, factors, from);
    else if (out.residual) turn<0, true>(c, factors, from);
    else turn<0, false>(c, factors, from);
  }
};

template <class Q, int BN> struct QuantWide {
  static constexpr int LINES = 128, THREADS = 256, BK = WIDE_ROW;
  static constexpr u32 CHUNK = QUANT_WIDE_CHUNK, SLICES = CHUNK / BK, X_SIZE = BN * BK;
  static_assert(SLICES == 4, "a slice of a chunk has its place in shared memory");
  typedef QuantSlice<Q> Slice;
  typedef Outputs<16, BN> Out;
  static constexpr bool MANY = BN > 64;
  // Stored bytes lie in vectors around those of a line, an odd number of them, so that eight lines hit all banks.
  static constexpr u32 PLACES = 2, BYTES = CHUNK / Q::Elements * Q::Bytes, ALIGN = Slice::WORDS ? 16 : Q::Align;
  static constexpr u32 VECTORS = (BYTES + 16 - ALIGN + 15) / 16, PITCH = (VECTORS | 1) * 4, PLACE_WORDS = 16 * PITCH;
  // Lines of few bytes come sooner by copies of 16 bytes, unless there is much else to do.
  static constexpr bool BULK = MANY || BYTES > 160;
  // x has places for two chunks, where two blocks with them fit on a multiprocessor, and comes a chunk ahead; or for one, and comes
  // three slices ahead.
  static constexpr u32 RING = 4 * SLICES * X_SIZE + PLACES * 8 * 4 * PLACE_WORDS <= QUANT_WIDE_SHARED ? 2 * SLICES : SLICES;
  static constexpr u32 AHEAD = RING == SLICES ? SLICES - 1 : SLICES;
  // The left operand of a slice's four products.
  typedef u32 Fragments[4][4];
  // Results of many rows leave by way of a place.
  typedef TurnedRows<BN> Turned;
  static_assert(!MANY || Turned::SIZE <= 2 * PLACE_WORDS, "");

  u16* sx;
  Signal *full, *free, *landed;
  u32* raw;
  const u16* x;
  const u8* w;
  u32 rows, row_bytes, k, down, across;
  WarpgroupRef ref;  // of sx, as one lane has it
  // Of few rows: what they are multiplied with, and where that is known when their squares are told.
  RowFactors given;
  f32* known;

  // A chunk of a tile.
  struct Chunk {
    u32 group, row, at, place;  // group: of 16 lines, the first warp's
  };
  GPU_METHOD Chunk chunk_of(const WideWork::Piece& p, u32 at, u32 place) const {
    if (!MANY) return Chunk{p.tile * (LINES / 16), 0, at, place};  // there are no more rows than one tile has
    const TileAt tile = tile_at(p.tile, down, across);
    return Chunk{(u32)tile.row * (LINES / 16), (u32)tile.column * BN, at, place};
  }
  GPU_METHOD size_t start_of(const Out& out, const Chunk& c, u32 line) const {
    return (size_t)out.row(c.group + tid_x() / 32, line) * row_bytes + c.at * BYTES;
  }
  GPU_FN u32 skew(size_t at) { return ALIGN == 16 ? 0 : (u32)at & 15u; }

  // The bytes of a chunk, to one of the warp's places.
  GPU_METHOD void send(const Out& out, const Chunk& c) const {
    const u32 begin = c.at * BYTES, there = row_bytes - begin, lane = lane_id(), count = there < BYTES ? there : BYTES;
    u32* const place = raw + c.place * PLACE_WORDS;
    if (BULK) {
      // By one lane, where lines lie evenly; else a line to each of sixteen.
      const u32 group = c.group + uniform(tid_x() / 32);
      const bool even = BYTES % 16 == 0 && row_bytes % 16 == 0 && (group + 1) * out.per_group() <= out.columns;
      const size_t at = start_of(out, c, lane % 16);
      const u32 bytes = (skew(at) + count + 15) / 16 * 16;
      if (lane < 16) expect_bytes(landed + c.place, bytes);
      if (even) {
        const u8* const half[2] = {w + (size_t)out.row(group, 0) * row_bytes + begin, w + (size_t)out.row(group, 8) * row_bytes + begin};
        if (one_lane())
          UNROLL for (u32 r = 0; r < 16; r++) copy_bulk(place + r * PITCH, half[r / 8] + r % 8 * row_bytes, count, landed + c.place);
      } else if (lane < 16) copy_bulk(place + lane * PITCH, w + (at - skew(at)), bytes, landed + c.place);
    }
    UNROLL for (u32 q = 0; q < 4; q++) {
      // Eight lanes to eight neighbouring vectors of a line.
      const u32 line = lane / 8 + 4 * q;
      const size_t at = start_of(out, c, line);
      const u32 bytes = skew(at) + count;
      const u8* const from = w + (at - skew(at)) + lane % 8 * 16;
      u32* const to = place + line * PITCH + lane % 8 * 4;
      if (!BULK) UNROLL for (u32 v = 0; v < VECTORS; v += 8) copy16_async(to + 4 * v, from + 16 * v, 16 * (v + lane % 8) < bytes);
      // Zeros behind the end of a row, which is decoded as well.
      if (!Slice::WORDS && Q::Elements < CHUNK && there < BYTES)
        NO_UNROLL for (u32 v = lane % 8; v < VECTORS; v += 8)
          if (16 * v >= bytes) store_shared<4>(to, 4 * (v - lane % 8), Words4{});
    }
  }
  // Until what was sent for chunk `turn` is there.
  template <u32 ODD> GPU_METHOD void land(u32 turn) const {
    if (BULK) await_signal(landed + ODD, turn / PLACES & 1);
    else copies_wait();
    wave_sync();
  }
  // The place of slice J of chunk `turn`, and how often it was used before.
  GPU_FN u32 place_of(u32 j, u32 turn) { return RING == SLICES ? j : turn % 2 * SLICES + j; }
  GPU_FN u32 uses(u32 turn) { return RING == SLICES ? turn : turn / 2; }
  // Sends slice J of x; one thread.
  template <u32 ODD> GPU_METHOD void fetch(const Chunk& c, u32 j, u32 turn) const {
    const u32 height = height_of(c), bytes = height * BK * 2, place = place_of(j, ODD);
    if (uses(turn) > 0) await_signal(free + place, (uses(turn) - 1) & 1);
    expect_bytes(full + place, bytes);
    copy_bulk((u32*)(sx + place * X_SIZE), slice_of(c, j, height), bytes, full + place);
  }
  GPU_METHOD u32 height_of(const Chunk& c) const {
    const u32 left = (rows - c.row + 7) / 8 * 8;
    return left < BN ? left : BN;
  }
  GPU_METHOD const u16* slice_of(const Chunk& c, u32 j, u32 height) const {
    const u32 deep = (k + CHUNK - 1) / CHUNK * CHUNK;
    return x + (size_t)c.row * deep + (size_t)(c.at * SLICES + j) * height * BK;
  }

  // Of slice J of a chunk, what this lane gives the unit: of lines lane/4 and lane/4 + 8.
  typedef Slice Stored[2];
  template <u32 J> GPU_METHOD void load(Stored& stored, const Out& out, const Chunk& c, u32 place) const {
    UNROLL for (u32 h = 0; h < 2; h++) {
      const u32 line = lane_id() / 4 + 8 * h, skewed = ALIGN == 16 ? 0 : skew(start_of(out, c, line));
      // In the pointer, where words may begin anywhere in it: what is constant then goes with the loads.
      constexpr bool ANYWHERE = Q::Align > 1;
      const u32* const from = (const u32*)((const u8*)(raw + place * PLACE_WORDS + line * PITCH) + (ANYWHERE ? skewed : 0));
      stored[h].template load<J>(Staged<Q::Align>{from, ANYWHERE ? 0 : skewed}, k - c.at * CHUNK);
    }
  }
  // The left operand of product I of a slice's four.
  template <u32 J, u32 I> GPU_METHOD void decode(u32 (&words)[4], const Stored& stored) const {
    UNROLL for (u32 h = 0; h < 2; h++) stored[h].template decode<J, I>(words[h], words[2 + h]);
    UNROLL for (int i = 0; i < 4; i++) warpgroup_hold(words[i]);
  }

  // Multiplies slice J, which is decoded in f, and meanwhile decodes the next one, of chunk `then` behind the last, to g; ODD is that of
  // `turns`, so that the compiler knows all places. A warp waits
  // where it begins a product until the one before has begun: so of many rows a quarter is decoded behind each of the four.
  template <u32 ODD, u32 J> GPU_METHOD void step(f32 (&c)[BN / 2], Fragments& f, Fragments& g, Stored& stored, const Out& out, const Chunk& now, const Chunk& then, bool more, bool fetches, u32 turns) const {
    constexpr u32 NEXT = (J + 1) % SLICES;
    constexpr bool FAR = J + AHEAD >= SLICES;
    await_signal(full + place_of(J, ODD), uses(turns) & 1);
    // Where no bulk copies bring weights, the compiler does not see that the place of x is the same for all lanes.
    const WarpgroupRef b = (BULK ? warpgroup_ref(sx, 8 * WIDE_ROW, BK * WIDE_ROW) : ref).plus(place_of(J, ODD) * X_SIZE);
    if (MANY) multiply(c, f[0], b);
    else {
      warpgroup_begin();
      UNROLL for (u32 i = 0; i < 4; i++) warpgroup_multiply<0>(f16{}, c, f[i], b.plus(16 * i), true);
      warpgroup_commit();
    }
    if (NEXT == 0 && more) land<1 - ODD>(turns + 1);
    // Behind the last, what lies there is decoded, and goes nowhere.
    load<NEXT>(stored, out, NEXT == 0 ? then : now, NEXT == 0 && (more || READS_ANYTHING) ? 1 - ODD : ODD);
    // Products of the slice before have ended: they read g, and x at its place.
    warpgroup_wait<1>();
    UNROLL for (int i = 0; i < 16; i++) warpgroup_hold(g[i / 4][i % 4]);
    if (J > 0 || turns > 0) meeting_come(free + (J > 0 ? place_of(J - 1, ODD) : place_of(SLICES - 1, 1 - ODD)));
    if (tid_x() == 0 && (!FAR || fetches)) fetch<FAR ? 1 - ODD : ODD>(FAR ? then : now, (J + AHEAD) % SLICES, FAR ? turns + 1 : turns);
    decode<NEXT, 0>(g[0], stored);
    if (MANY) multiply(c, f[1], b.plus(16 + nothing(g[0])));
    decode<NEXT, 1>(g[1], stored);
    if (MANY) multiply(c, f[2], b.plus(32 + nothing(g[1])));
    decode<NEXT, 2>(g[2], stored);
    if (MANY) multiply(c, f[3], b.plus(48 + nothing(g[2])));
    decode<NEXT, 3>(g[3], stored);
  }
  // 0, which NVIDIA's assembler does not know: else it moves what makes these words behind the product that is to run beside it.
  GPU_METHOD u32 nothing(const u32 (&words)[4]) const { return (words[0] | words[1] | words[2] | words[3]) & k >> 31; }
  GPU_FN void multiply(f32 (&c)[BN / 2], const u32 (&f)[4], const WarpgroupRef& b) {
    warpgroup_begin();
    warpgroup_multiply<0>(f16{}, c, f, b, true);
    warpgroup_commit();
  }

  // What the blocks of one tile share: their sums, a zero to count with, and a word of shared memory.
  struct Shares {
    f32* parts;
    u32* counters;
    u32 alone, sharers, tiles;
    u32* word;
  };
  GPU_METHOD void run(const Out& out, const Shares& shares) const {
    const u32 units = (k + CHUNK - 1) / CHUNK;
    WideWork work(shares.tiles, shares.alone, units, shares.sharers);
    const u32 cuts = cuts_of(shares);
    WideWork::Piece piece, after;
    bool more = work.next(piece);
    Chunk now = chunk_of(piece, piece.from, 0);
    if (more) send(out, now);
    // Of few rows two chunks, of which a block often has no more, are on their way at once.
    const bool both = !MANY && RING > SLICES && piece.from + 1 < piece.to;
    const Chunk second{now.group, now.row, piece.from + 1, 1};
    if (both) copies_bunch(), send(out, second);
    wait_for_previous();
    if (!more) return;
    if (tid_x() == 0) {
      UNROLL for (u32 j = 0; j < AHEAD; j++) fetch<0>(now, j, 0);
      if (both) UNROLL for (u32 j = 0; j < SLICES; j++) fetch<1>(second, j, 1);
    }
    f32 told[8];
    if (!MANY && given.parts) ask_squares(told);
    f32 c[BN / 2];
    UNROLL for (int e = 0; e < BN / 2; e++) c[e] = 0;
    if (BULK || !both) land<0>(0);
    else copies_wait_but<0>(), wave_sync();
    Fragments f, g;
    UNROLL for (int i = 0; i < 16; i++) g[i / 4][i % 4] = 0;
    Stored stored;
    load<0>(stored, out, now, 0);
    decode<0, 0>(f[0], stored);
    decode<0, 1>(f[1], stored);
    decode<0, 2>(f[2], stored);
    decode<0, 3>(f[3], stored);
    if (!MANY && given.parts) find_factors(told);
    u32 turns = 0;
    while (more) {
      Chunk first = now;
      NO_UNROLL for (u32 at = piece.from; at < piece.to; at++) {
        Chunk then{now.group, now.row, at + 1, now.place ^ 1};
        if (at + 1 == piece.to) {
          after = piece;
          more = work.next(after);
          then = more ? chunk_of(after, after.from, now.place ^ 1) : now;
        }
        const bool goes_on = at + 1 < piece.to || more, sends = goes_on && !(both && turns == 0);
        if (sends) send(out, then);
        if (turns % 2) steps<1>(c, f, g, stored, out, now, then, goes_on, sends, turns);
        else steps<0>(c, f, g, stored, out, now, then, goes_on, sends, turns);
        now = then;
        turns++;
      }
      warpgroup_wait<0>();
      UNROLL for (int e = 0; e < BN / 2; e++) warpgroup_hold(c[e]);
      first.place = more ? now.place ^ 1 : now.place;
      // All warps know the factors that others have found.
      if (!MANY && given.parts && !cuts) barrier();
      if (cuts) join_all(out, c, shares, first, cuts);
      else if (piece.to - piece.from == units || join(c, shares, piece.tile - shares.alone, units, piece.from == 0)) keep(out, c, first);
      UNROLL for (int e = 0; e < BN / 2; e++) c[e] = 0;
      piece = after;
    }
  }
  template <u32 ODD> GPU_METHOD void steps(f32 (&c)[BN / 2], Fragments& f, Fragments& g, Stored& stored, const Out& out, const Chunk& now, const Chunk& then, bool more, bool fetches, u32 turns) const {
    step<ODD, 0>(c, f, g, stored, out, now, then, more, fetches, turns);
    step<ODD, 1>(c, g, f, stored, out, now, then, more, fetches, turns);
    step<ODD, 2>(c, f, g, stored, out, now, then, more, fetches, turns);
    step<ODD, 3>(c, g, f, stored, out, now, then, more, fetches, turns);
  }
  // Squares of rows, of which a warp has eight, four lanes each: asked for when x is, and added up when the first weights are decoded.
  GPU_METHOD void ask_squares(f32 (&told)[8]) const {
    const u32 row = tid_x() / 32 * 8 + lane_id() / 4;
    const auto part = [&](u32 p) { return row < given.height() && p < given.parts ? given.told(p, row) : 0.0f; };
    UNROLL for (u32 i = 0; i < 8; i++) told[i] = part(lane_id() % 4 + 4 * i);
    NO_UNROLL for (u32 first = 32; first < given.parts; first += 32)
      UNROLL for (u32 i = 0; i < 8; i++) told[i] += part(first + lane_id() % 4 + 4 * i);
  }
  GPU_METHOD void find_factors(const f32 (&told)[8]) const {
    f32 sum = 0;
    UNROLL for (u32 i = 0; i < 8; i++) sum += told[i];
    sum += shfl_xor(sum, 1);
    sum += shfl_xor(sum, 2);
    if (lane_id() % 4 == 0) known[tid_x() / 32 * 8 + lane_id() / 4] = given.of(sum);
  }
  // How many blocks have an even part of each tile.
  GPU_FN u32 cuts_of(const Shares& s) {
    UNROLL for (u32 cuts = 2; cuts <= 8; cuts *= 2)
      if (!MANY && s.alone == 0 && s.sharers == cuts * s.tiles) return cuts;
    return 0;
  }

  // What this block has of a tile, behind what those before it have: blocks and tiles follow each other, so that every part has a place.
  static constexpr u32 PART = THREADS * BN / 2;
  GPU_FN f32* part_of(const Shares& s, u32 tile, u32 block) { return s.parts + (size_t)(tile + block) * PART + tid_x() % THREADS * 4; }
  GPU_FN void tell(const f32 (&c)[BN / 2], const Shares& s, u32 tile) {
    f32* const part = part_of(s, tile, (u32)bid_x());
    UNROLL for (u32 j = 0; j < BN / 8; j++) *(Vec<f32, 4>*)(part + j * 4 * THREADS) = Vec<f32, 4>{c[4 * j], c[4 * j + 1], c[4 * j + 2], c[4 * j + 3]};
    barrier_of<THREADS>();
    if (tid_x() == 0) device_fence();  // for all: they met
  }
  // Whether this block ends a tile that several share: then c has the sum of all, in their order. It is the one that has its first chunks,
  // which are its own last ones: the others have begun with theirs. Where blocks cannot wait for each other it is the last that comes.
  GPU_FN bool join(f32 (&c)[BN / 2], const Shares& s, u32 tile, u32 units, bool is_first) {
    const u32 all = (s.tiles - s.alone) * units;
    const u32 first = WideWork::owner(tile * units, all, s.sharers), last = WideWork::owner((tile + 1) * units - 1, all, s.sharers);
    u32* const counter = s.counters + tile;
    if (!WAITING_BLOCKS || !is_first) tell(c, s, tile);
    if (tid_x() == 0) {
      if (!WAITING_BLOCKS) is_first = atomic_add(counter, 1u) == last - first;
      else if (is_first) await_count(counter, last - first);
      else count_on(counter, ~0u);
      if (is_first) *counter = 0;
      *s.word = is_first;
    }
    barrier_of<THREADS>();
    const bool ends = *s.word;
    barrier_of<THREADS>();  // what is read is written next
    if (!ends) return false;
    if (!WAITING_BLOCKS) UNROLL for (u32 e = 0; e < BN / 2; e++) c[e] = 0;
    // As many loads on their way as there are registers for.
    constexpr u32 AT_ONCE = MANY ? 16 : BN / 8;
    NO_UNROLL for (u32 b = WAITING_BLOCKS ? first + 1 : first; b <= last; b++)
      UNROLL for (u32 j = 0; j < BN / 8; j += AT_ONCE) {
        Vec<f32, 4> told[AT_ONCE];
        UNROLL for (u32 i = 0; i < AT_ONCE; i++) told[i] = load_fresh(part_of(s, tile, b) + (j + i) * 4 * THREADS);
        UNROLL for (u32 e = 0; e < 4 * AT_ONCE; e++) c[4 * j + e] += told[e / 4].v[e % 4];
      }
    return true;
  }
  // Where every tile is cut in two, four or eight, all that share one add it up when all have told, each some of its rows: of the
  // groups of eight, every so many'th. On devices where blocks cannot wait for each other the last does it for all.
  GPU_METHOD void join_all(const Out& out, const f32 (&c)[BN / 2], const Shares& s, const Chunk& now, u32 cuts) const {
    const u32 tile = (u32)bid_x() / cuts;
    u32* const counter = s.counters + tile;
    tell(c, s, tile);
    Kept kept = kept_of(out, now);
    if (WAITING_BLOCKS) {
      const u32 own = (u32)bid_x() % cuts;
      if (own < BN / 8) bring_residual(kept, out, now, (BN / 8 - own + cuts - 1) / cuts, 8 * own, 8 * cuts);
    }
    // All count once more when they have waited, which makes it a zero again.
    if (tid_x() == 0) {
      if (WAITING_BLOCKS) count_on(counter, 2 * cuts - 1), await_count(counter, cuts), count_on(counter, 2 * cuts - 1);
      else if ((*s.word = atomic_add(counter, 1u) + 1 == cuts)) *counter = 0;
    }
    barrier();
    const u32 first = WAITING_BLOCKS ? (u32)bid_x() % cuts : 0, end = WAITING_BLOCKS ? first + 1 : *s.word ? cuts : 0;
    NO_UNROLL for (u32 own = first; own < end && own < BN / 8; own++) {
      // What of the eight parts that are loaded at once belongs together is added up two by two.
      Vec<f32, 4> told[8];
      UNROLL for (u32 i = 0; i < 8; i++) {
        const u32 j = i / cuts * cuts + own;
        told[i] = j < BN / 8 ? load_fresh(part_of(s, tile, tile * cuts + i % cuts) + j * 4 * THREADS) : Vec<f32, 4>{};
      }
      UNROLL for (u32 v = 0; v < 4; v++) {
        UNROLL for (u32 i = 0; i < 4; i++) told[i].v[v] = told[2 * i].v[v] + told[2 * i + 1].v[v];
        UNROLL for (u32 i = 0; i < 2; i++) if (cuts > 2) told[i].v[v] = told[2 * i].v[v] + told[2 * i + 1].v[v];
        if (cuts > 4) told[0].v[v] += told[1].v[v];
      }
      UNROLL for (u32 i = 0; i < 4; i++) if (i * cuts < BN / 8) stage((f32*)raw, i, told[i]);
      store_rows(out, now, kept, (f32*)raw, (BN / 8 - own + cuts - 1) / cuts, 8 * own, 8 * cuts);
    }
  }

  GPU_METHOD void keep(const Out& out, const f32 (&c)[BN / 2], const Chunk& now) const {
    if constexpr (MANY) {
      Turned{out, now.group + tid_x() / 32, (u16*)(raw + now.place * PLACE_WORDS)}.store(c, factors(), now.row);
      // What comes next goes where this was.
      warpgroup_publish();
      wave_sync();
    } else store(out, c, now);
  }
  GPU_METHOD const f32* factors() const { return (const f32*)(x + (size_t)((rows + 7) / 8 * 8) * ((k + CHUNK - 1) / CHUNK * CHUNK)); }
  // Turned at the warp's place, some rows of x at a time: there a lane takes eight lines of a row.
  static constexpr u32 SUM_PITCH = 20, SUM_MOST = PLACE_WORDS / (8 * SUM_PITCH), SUM_PARTS = (BN / 8 + SUM_MOST - 1) / SUM_MOST;
  static constexpr u32 SUM_GROUPS = (BN / 8 + SUM_PARTS - 1) / SUM_PARTS;  // of eight rows, at a time
  GPU_METHOD void store(const Out& out, const f32 (&c)[BN / 2], const Chunk& now) const {
    f32* const staged = (f32*)(raw + now.place * PLACE_WORDS);
    const Kept kept = kept_of(out, now);
    wave_sync();
    UNROLL for (u32 part = 0; part < BN / 8; part += SUM_GROUPS) {
      const u32 left = BN / 8 - part, count = left < SUM_GROUPS ? left : SUM_GROUPS;
      UNROLL for (u32 j = 0; j < count; j++) {
        const f32* const sums = c + (part + j) * 4;
        stage(staged, j, Vec<f32, 4>{sums[0], sums[1], sums[2], sums[3]});
      }
      store_rows(out, now, kept, staged, count, part * 8, 8);
    }
    // What comes next goes where this was.
    warpgroup_publish();
    wave_sync();
  }
  // Where a lane's sums of eight rows lie: of two rows, on lines lane/4 and lane/4 + 8.
  GPU_FN f32* sums_of(f32* staged, u32 j) { return staged + (j * 8 + lane_id() % 4 * 2) * SUM_PITCH + lane_id() / 4; }
  GPU_FN void stage(f32* staged, u32 j, const Vec<f32, 4>& sums) {
    UNROLL for (u32 i = 0; i < 4; i++) sums_of(staged, j)[i % 2 * SUM_PITCH + i / 2 * 8] = sums.v[i];
  }
  // What goes into results and would be waited for: of the rows of x, lane by lane, and of this lane's lines.
  struct Kept {
    f32 factors[(BN + 31) / 32], bias[2];
    // Of the one vector that a lane has of those it stores, where it has no more.
    bool has_residual;
    Vec<u16, 8> residual;
  };
  GPU_METHOD Kept kept_of(const Out& out, const Chunk& now) const {
    Kept kept;
    kept.has_residual = false;
    UNROLL for (u32 i = 0; i < (BN + 31) / 32; i++) kept.factors[i] = i * 32 + lane_id() < rows ? (!MANY && given.parts ? known : factors())[i * 32 + lane_id()] : 0.0f;
    UNROLL for (u32 i = 0; i < 2; i++) kept.bias[i] = out.biased(now.group + tid_x() / 32, lane_id() / 4 + 8 * i, 0.0f);
    return kept;
  }
  GPU_METHOD bool in_vectors(const Out& out) const {
    return out.columns % 8 == 0 && vector_aligned<8>((const u16*)out.y) && vector_aligned<8>((const u16*)out.residual);
  }
  // Which eight columns of which row are number i of those that are stored below.
  struct Eight {
    u32 local, first, b;
    GPU_METHOD Eight(u32 i, u32 per_row, u32 row, u32 stride) : local(i / per_row), first(i % per_row * 8), b(row + local / 8 * stride + local % 8) {}
  };
  // Asked for while other blocks are waited for.
  GPU_METHOD void bring_residual(Kept& kept, const Out& out, const Chunk& now, u32 count, u32 row, u32 stride) const {
    const u32 group = now.group + tid_x() / 32, per_row = out.per_group() / 8, all = count * 8 * per_row;
    const Eight eight(lane_id(), per_row, row, stride);
    kept.has_residual = out.residual && in_vectors(out) && all <= 32;
    if (kept.has_residual && lane_id() < all && out.exists(group, eight.first, eight.b))
      kept.residual = *(const Vec<u16, 8>*)((const u16*)out.residual + out.at(group, eight.first, eight.b));
  }
  // `count` times eight rows of those staged, every `stride` rows of x from `row` on. Loops stay loops: code that runs once is slow to come.
  GPU_METHOD void store_rows(const Out& out, const Chunk& now, const Kept& kept, f32* staged, u32 count, u32 row, u32 stride) const {
    const u32 group = now.group + tid_x() / 32;
    NO_UNROLL for (u32 j = 0; j < count; j++)
      UNROLL for (u32 i = 0; i < 2; i++) {
        const u32 b = row + j * stride + lane_id() % 4 * 2 + i;
        f32 factor = shfl(kept.factors[0], b % 32);
        if (BN > 32) factor = b < 32 ? factor : shfl(kept.factors[(BN - 1) / 32], b % 32);
        f32* const at = sums_of(staged, j) + i * SUM_PITCH;
        const f32 y[2] = {at[0] * factor + kept.bias[0], at[8] * factor + kept.bias[1]};
        at[0] = out.glu ? out.gated(y[0], y[1]) : y[0];
        at[8] = y[1];
      }
    wave_sync();
    const u32 per_row = out.per_group() / 8;
    const bool vectors = in_vectors(out);
    NO_UNROLL for (u32 i = lane_id(); i < count * 8 * per_row; i += 32) {
      const Eight eight(i, per_row, row, stride);
      const u32 first = eight.first, b = eight.b;
      const f32* const sums = staged + eight.local * SUM_PITCH + first;
      const size_t at = out.at(group, first, b);
      if (!vectors) NO_UNROLL for (u32 e = 0; e < 8; e++) out.keep(group, first + e, b, sums[e] + out.added(group, first + e, b));
      else if (out.exists(group, first, b)) {
        Vec<u16, 8> y{};
        if (out.residual) y = kept.has_residual ? kept.residual : *(const Vec<u16, 8>*)((const u16*)out.residual + at);
        UNROLL for (u32 e = 0; e < 8; e++) y.v[e] = out.dtype == DTYPE_f16 ? f32_to_f16(sums[e] + f16_to_f32(y.v[e])) : f32_to_bf16(sums[e] + bf16_to_f32(y.v[e]));
        put((u16*)out.y + at, y);
      }
    }
    wave_sync();
  }
};
#endif

}  // namespace gpu
#endif
