// Products of many rows with quantized weights by warpgroups: out (rows, n) = x (rows, k) · W (n, k)ᵀ in halves, sums in f32.
//
// A block makes 16 lines of W per warp, 128 in all, by BN rows of x. A warp brings the stored bytes of its lines to its own part of
// shared memory, chunk by chunk of k, and decodes them straight into the registers that the product takes its left operand from: no
// other warp waits for it, and nothing is stored twice. While one slice of a chunk is multiplied, the next is decoded. x lies in
// memory as the unit reads it (order_of below), so that one thread sends a whole slice by one copy; warps do not wait for each
// other at barriers, but for what has landed, and that one thread for what is free.
//
// Blocks make `alone` tiles each by itself, and of the others equal shares, whatever tiles those begin and end in; what each has made
// of a tile goes to `parts`, and the last of those that share it adds it up, in their order. A block's pieces follow each other
// without a pause: the first chunk of the next is on its way while the last of this one is multiplied.
// Traffic: W is read rows/BN times, x n/128 times, mostly from the cache.
#ifndef WICK_QUANT_WIDE_H
#define WICK_QUANT_WIDE_H
#include "product.h"
#include "quant.h"

namespace gpu {

// x as the kernels want it: tiles of TILE rows one after another (the last has a multiple of 8), in each the slices of 64 along k, of
// which there are whole chunks, and in a slice rows whose pieces of 8 elements are mixed as warpgroups read them. Of each 16
// elements, places 2t, 2t + 1, 8 + 2t, 9 + 2t hold elements 4t … 4t + 3: in that order a lane finds weights in words of four.
// There are zeros behind k and behind the last row. Piece p of a row, of which neighbouring threads write neighbours:
template <class T> GPU_FN void order_of(const T* x, T* out, u32 rows, u32 k, u32 tile_rows, u32 row, u32 p) {
  const u32 deep = (k + QUANT_WIDE_CHUNK - 1) / QUANT_WIDE_CHUNK * QUANT_WIDE_CHUNK;
  const u32 tile = row / tile_rows, local = row % tile_rows, left = (rows + 7) / 8 * 8 - (row - local);
  const u32 height = left < tile_rows ? left : tile_rows;
  Words4 to{};
  if (row < rows && 8 * p < k) {
    const Words4* const from = (const Words4*)(x + (size_t)row * k + p / 2 * 16);
    const Words4 a = from[0], b = from[1];
    to = p % 2 ? Words4{{a.v[1], a.v[3], b.v[1], b.v[3]}} : Words4{{a.v[0], a.v[2], b.v[0], b.v[2]}};
  }
  T* const line = out + (size_t)tile * tile_rows * deep + ((size_t)(p / 8) * height + local) * 64;
  *(Words4*)(line + (p % 8 ^ local % 8) * 8) = to;
}

#if GPU_WARPGROUPS
// Four signed bytes as scale · q + min, in two words of halves. A byte behind 0x47000000 is 32768 more than it.
struct ByteScale {
  f32 scale, bias;
  GPU_METHOD ByteScale(f32 scale_, f32 min) : scale(scale_), bias(m_fma(scale_, -32896.0f, min)) {}
  template <class T> GPU_METHOD void decode(T, u32 q, u32& low, u32& high) const {
    const u32 u = q ^ 0x80808080u;
    f32 x[4];
    UNROLL for (u32 i = 0; i < 4; i++) x[i] = m_fma(scale, f32_from_bits(byte_in_second(u, 0x47000000u, i)), bias);
    low = pack2(T{}, x[0], x[1]);
    high = pack2(T{}, x[2], x[3]);
  }
};

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

template <class Q, class T, int BN> struct QuantWide {
  static constexpr int LINES = 128, THREADS = 256, BK = WIDE_ROW;
  static constexpr u32 CHUNK = QUANT_WIDE_CHUNK, SLICES = CHUNK / BK, AHEAD = 2, X_SIZE = BN * BK;
  static_assert(SLICES == 4, "a slice of a chunk has its place in shared memory");
  // Groups that share words, of which a slice has whole ones or half of one.
  static constexpr u32 RUN = 32 * Q::Parts, RUNS = RUN > BK ? 1 : BK / RUN, PARTS = RUN > BK ? BK / 32 : Q::Parts;
  // Stored bytes lie in vectors around those of a line, an odd number of them, so that eight lines hit all banks.
  static constexpr u32 PLACES = 2, BYTES = CHUNK / Q::Elements * Q::Bytes;
  static constexpr u32 VECTORS = (BYTES + 16 - Q::Align + 15) / 16, PITCH = (VECTORS | 1) * 4, PLACE_WORDS = 16 * PITCH;
  // The left operand of a slice's four products.
  typedef u32 Fragments[4][4];
  // Results leave by way of a place: 32 rows of 16 lines at a time, in which stores and loads hit all banks.
  static constexpr u32 OUT_ROWS = 32, OUT_PITCH = 24;
  static_assert(OUT_ROWS * OUT_PITCH * 2 <= PLACE_WORDS * 4, "");

  T* sx;
  Signal *full, *free;
  u32* raw;
  const T* x;
  const u8* w;
  u32 rows, n, row_bytes, k, down, across;

  // A chunk of a tile.
  struct Chunk {
    u32 line, row, at, place;
  };
  GPU_METHOD Chunk chunk_of(const WideWork::Piece& p, u32 at, u32 place) const {
    if (BN <= 64) return Chunk{p.tile * LINES, 0, at, place};  // there are no more rows than one tile has
    const TileAt tile = tile_at(p.tile, down, across);
    return Chunk{(u32)tile.row * LINES, (u32)tile.column * BN, at, place};
  }
  GPU_METHOD size_t start_of(const Chunk& c, u32 line) const {
    const u32 l = c.line + tid_x() / 32 * 16 + line;
    return (size_t)(l < n ? l : n - 1) * row_bytes + c.at * BYTES;
  }
  GPU_FN u32 skew(size_t at) { return Q::Align == 16 ? 0 : (u32)at & 15u; }

  // Eight lanes send eight neighbouring vectors of a line.
  GPU_METHOD void send(const Chunk& c) const {
    const u32 begin = c.at * BYTES, there = row_bytes - begin, lane = lane_id();
    UNROLL for (u32 q = 0; q < 4; q++) {
      const u32 line = lane / 8 + 4 * q;
      const size_t at = start_of(c, line);
      const u32 bytes = skew(at) + (there < BYTES ? there : BYTES);
      const u8* const from = w + (at - skew(at)) + lane % 8 * 16;
      u32* const to = raw + c.place * PLACE_WORDS + line * PITCH + lane % 8 * 4;
      UNROLL for (u32 v = 0; v < VECTORS; v += 8) copy16_async(to + 4 * v, from + 16 * v, 16 * (v + lane % 8) < bytes);
      // Zeros behind the end of a row, which is decoded as well.
      if (Q::Elements < CHUNK && there < BYTES)
        NO_UNROLL for (u32 v = lane % 8; v < VECTORS; v += 8)
          if (16 * v >= bytes) store_shared<4>(to, 4 * (v - lane % 8), Words4{});
    }
    copies_bunch();
  }
  // Sends slice J of x, for which its place must have been free `turns` times; one thread.
  GPU_METHOD void fetch(const Chunk& c, u32 j, u32 turns) const {
    if constexpr (BULK_COPIES) {
      const u32 height = height_of(c), bytes = height * BK * (u32)sizeof(T);
      if (turns > 0) await_signal(free + j, (turns - 1) & 1);
      expect_bytes(full + j, bytes);
      copy_bulk((u32*)(sx + j * X_SIZE), slice_of(c, j, height), bytes, full + j);
    }
  }
  GPU_METHOD u32 height_of(const Chunk& c) const {
    const u32 left = (rows - c.row + 7) / 8 * 8;
    return left < BN ? left : BN;
  }
  GPU_METHOD const T* slice_of(const Chunk& c, u32 j, u32 height) const {
    const u32 deep = (k + CHUNK - 1) / CHUNK * CHUNK;
    return x + (size_t)c.row * deep + (size_t)(c.at * SLICES + j) * height * BK;
  }
  // Where the device has no such copies, all threads bring it.
  GPU_METHOD void await(const Chunk& c, u32 j, u32 turns) const {
    if constexpr (BULK_COPIES) await_signal(full + j, turns & 1);
    else {
      const u32 height = height_of(c);
      const T* const from = slice_of(c, j, height);
      barrier();
      for (u32 i = tid_x(); i < height * BK; i += THREADS) sx[j * X_SIZE + i] = from[i];
      barrier();
    }
  }

  // Of slice J of a chunk, what this lane gives the unit: of lines lane/4 and lane/4 + 8 the words lane % 4 and 4 + that of each group.
  struct Stored {
    typename Q::Frag q[2][RUNS];
    bool there[RUNS];
  };
  template <u32 J> GPU_METHOD void load(Stored& stored, const Chunk& c) const {
    constexpr u32 PER_BLOCK = Q::Elements / RUN;
    UNROLL for (u32 h = 0; h < 2; h++) {
      const u32 line = lane_id() / 4 + 8 * h, skewed = skew(start_of(c, line));
      // In the pointer, where words may begin anywhere in it: what is constant then goes with the loads.
      constexpr bool ANYWHERE = Q::Align > 1;
      const u32* const from = (const u32*)((const u8*)(raw + c.place * PLACE_WORDS + line * PITCH) + (ANYWHERE ? skewed : 0));
      const u32 at = ANYWHERE ? 0 : skewed;
      UNROLL for (u32 r = 0; r < RUNS; r++) {
        const u32 run = J * BK / RUN + r;
        // A vector at the end may hold something of the next line; there x is zero, and so must be the weights.
        stored.there[r] = Q::Elements == CHUNK || c.at * CHUNK + run * RUN < k;
        Q::fragment(Staged<Q::Align>{from, at + run / PER_BLOCK * Q::Bytes}, run % PER_BLOCK, lane_id() % 4, stored.q[h][r]);
      }
    }
  }
  // The left operand of product I of a slice's four.
  template <u32 J, u32 I> GPU_METHOD void decode(u32 (&words)[4], const Stored& stored) const {
    constexpr u32 r = I / 2 / PARTS, part = I / 2 % PARTS + J * BK % RUN / 32, half = I % 2, s = Q::Halves == 1 ? 0 : half;
    UNROLL for (u32 h = 0; h < 2; h++) {
      const typename Q::Frag& q = stored.q[h][r];
      const ByteScale scale(stored.there[r] ? q.scale[s][part] : 0.0f, Q::HasMin && stored.there[r] ? q.min[s][part] : 0.0f);
      scale.decode(T{}, q.q[part][half], words[h], words[2 + h]);
    }
    UNROLL for (int i = 0; i < 4; i++) warpgroup_hold(words[i]);
  }

  // Multiplies slice J, which is decoded in f, and meanwhile decodes the next one, of chunk `then` behind the last, to g. A warp waits
  // where it begins a product until the one before has begun: so a quarter is decoded behind each of the four.
  template <u32 J> GPU_METHOD void step(f32 (&c)[BN / 2], Fragments& f, Fragments& g, const Chunk& now, const Chunk& then, bool more, u32 turns) const {
    constexpr u32 NEXT = (J + 1) % SLICES;
    constexpr bool FAR = J + AHEAD >= SLICES;
    await(now, J, turns);
    const WarpgroupRef b = warpgroup_ref(sx + J * X_SIZE, 8 * WIDE_ROW, BK * WIDE_ROW);
    multiply(c, f[0], b);
    if (NEXT == 0) {
      copies_wait();
      wave_sync();
    }
    Stored stored;
    load<NEXT>(stored, NEXT == 0 ? then : now);
    // Products of the slice before have ended: they read g, and x at its place.
    warpgroup_wait<1>();
    UNROLL for (int i = 0; i < 16; i++) warpgroup_hold(g[i / 4][i % 4]);
    if (BULK_COPIES && (J > 0 || turns > 0)) meeting_come(free + (J + SLICES - 1) % SLICES);
    if (tid_x() == 0 && (!FAR || more)) fetch(FAR ? then : now, (J + AHEAD) % SLICES, FAR ? turns + 1 : turns);
    decode<NEXT, 0>(g[0], stored);
    multiply(c, f[1], b.plus(16 + nothing(g[0])));
    decode<NEXT, 1>(g[1], stored);
    multiply(c, f[2], b.plus(32 + nothing(g[1])));
    decode<NEXT, 2>(g[2], stored);
    multiply(c, f[3], b.plus(48 + nothing(g[2])));
    decode<NEXT, 3>(g[3], stored);
  }
  // 0, which NVIDIA's assembler does not know: else it moves what makes these words behind the product that is to run beside it.
  GPU_METHOD u32 nothing(const u32 (&words)[4]) const { return (words[0] | words[1] | words[2] | words[3]) & k >> 31; }
  GPU_FN void multiply(f32 (&c)[BN / 2], const u32 (&f)[4], const WarpgroupRef& b) {
    warpgroup_begin();
    warpgroup_multiply<0>(T{}, c, f, b, true);
    warpgroup_commit();
  }

  // What the blocks of one tile share: their sums, a zero to count with, and a word of shared memory.
  struct Shares {
    f32* parts;
    u32* counters;
    u32 alone, sharers, tiles;
    u32* word;
  };
  GPU_METHOD void run(T* out, const Shares& shares) const {
    const u32 units = (k + CHUNK - 1) / CHUNK;
    WideWork work(shares.tiles, shares.alone, units, shares.sharers);
    WideWork::Piece piece, after;
    bool more = work.next(piece);
    Chunk now = chunk_of(piece, piece.from, 0);
    if (more) send(now);
    wait_for_previous();
    if (!more) return;
    if (tid_x() == 0) UNROLL for (u32 j = 0; j < AHEAD; j++) fetch(now, j, 0);
    f32 c[BN / 2];
    UNROLL for (int e = 0; e < BN / 2; e++) c[e] = 0;
    copies_wait();
    wave_sync();
    Fragments f, g;
    UNROLL for (int i = 0; i < 16; i++) g[i / 4][i % 4] = 0;
    Stored stored;
    load<0>(stored, now);
    decode<0, 0>(f[0], stored);
    decode<0, 1>(f[1], stored);
    decode<0, 2>(f[2], stored);
    decode<0, 3>(f[3], stored);
    u32 turns = 0;
    while (more) {
      Chunk first = now;
      NO_UNROLL for (u32 at = piece.from; at < piece.to; at++) {
        Chunk then{now.line, now.row, at + 1, now.place ^ 1};
        if (at + 1 == piece.to) {
          after = piece;
          more = work.next(after);
          then = chunk_of(after, after.from, now.place ^ 1);
        }
        if (at + 1 < piece.to || more) send(then);
        const bool goes_on = at + 1 < piece.to || more;
        step<0>(c, f, g, now, then, goes_on, turns);
        step<1>(c, g, f, now, then, goes_on, turns);
        step<2>(c, f, g, now, then, goes_on, turns);
        step<3>(c, g, f, now, then, goes_on, turns);
        now = then;
        turns++;
      }
      warpgroup_wait<0>();
      UNROLL for (int e = 0; e < BN / 2; e++) warpgroup_hold(c[e]);
      first.place = now.place ^ 1;
      if (piece.to - piece.from == units || add_up(c, shares, piece.tile - shares.alone, units)) store(c, out, first);
      UNROLL for (int e = 0; e < BN / 2; e++) c[e] = 0;
      piece = after;
    }
  }

  // Whether this block is the last of those that share a tile: then c has the sum of all, in their order.
  GPU_METHOD bool add_up(f32 (&c)[BN / 2], const Shares& s, u32 tile, u32 units) const {
    constexpr u32 SIZE = THREADS * BN / 2;
    const u32 all = (s.tiles - s.alone) * units;
    const u32 first = WideWork::owner(tile * units, all, s.sharers), last = WideWork::owner((tile + 1) * units - 1, all, s.sharers);
    // Blocks and tiles follow each other, so that every part has a place.
    f32* const parts = s.parts + (size_t)tile * SIZE + tid_x();
    UNROLL for (u32 e = 0; e < BN / 2; e++) parts[(size_t)bid_x() * SIZE + e * THREADS] = c[e];
    device_fence();
    barrier();
    if (tid_x() == 0) {
      *s.word = atomic_add(s.counters + tile, 1u) == last - first;
      if (*s.word) s.counters[tile] = 0;
    }
    barrier();
    const bool is_last = *s.word;
    barrier();  // what is read is written next
    if (!is_last) return false;
    device_fence();
    UNROLL for (u32 e = 0; e < BN / 2; e++) c[e] = 0;
    NO_UNROLL for (u32 b = first; b <= last; b++)
      UNROLL for (u32 e = 0; e < BN / 2; e++) c[e] += parts[(size_t)b * SIZE + e * THREADS];
    return true;
  }

  // Results by way of the warp's place, where they are turned: a row of x has neighbouring lines.
  GPU_METHOD void store(const f32 (&c)[BN / 2], T* out, const Chunk& now) const {
    T* const staged = (T*)(raw + now.place * PLACE_WORDS);
    const u32 t = lane_id() % 4, line = lane_id() / 4;
    const u32 first = now.line + tid_x() / 32 * 16 + lane_id() % 2 * 8;
    const bool vectors = n % 8 == 0 && vector_aligned<8>(out);
    UNROLL for (u32 part = 0; part < BN / OUT_ROWS; part++) {
      wave_sync();
      UNROLL for (u32 e = 0; e < 16; e++) staged[(e / 4 * 8 + t * 2 + e % 2) * OUT_PITCH + line + e / 2 % 2 * 8] = narrow<T>(c[part * 16 + e]);
      wave_sync();
      UNROLL for (u32 i = 0; i < 2; i++) {
        const u32 local = lane_id() / 2 + 16 * i;
        const u32 row = now.row + part * OUT_ROWS + local;
        const Vec<T, 8> y = load_shared<8>(staged, local * OUT_PITCH + lane_id() % 2 * 8);
        T* const to = out + (size_t)row * n + first;
        if (row < rows && vectors) {
          if (first < n) put(to, y);
        } else if (row < rows) UNROLL for (u32 j = 0; j < 8; j++)
          if (first + j < n) to[j] = y.v[j];
      }
    }
    wave_sync();  // what comes next goes where this was
  }
};
#endif

}  // namespace gpu
#endif
