// Products of many rows with quantized weights by warpgroups: out (rows, n) = x (rows, k) · W (n, k)ᵀ in halves, sums in f32.
//
// A block makes 16 lines of W per warp, 128 in all, by BN rows of x. A warp brings the stored bytes of its lines to its own part of
// shared memory, and decodes them straight into the registers that the product takes its left operand from: no other warp waits for
// it, and nothing is stored twice. x is stored in the order in which a lane
// finds weights in words of four: of each 16, places 2t, 2t + 1, 8 + 2t, 9 + 2t hold elements 4t … 4t + 3.
// Where there are few tiles, `splits` blocks share the depth of one; what each has made goes to `parts`, and the last adds it up.
// Traffic: W is read rows/BN times, x n/128 times, mostly from the cache.
#ifndef WICK_QUANT_WIDE_H
#define WICK_QUANT_WIDE_H
#include "product.h"
#include "quant.h"

#if GPU_WARPGROUPS
namespace gpu {

// Four signed bytes as scale · q + min, in two words of halves. A byte behind 0x47000000 is 32768 more than it.
struct ByteScale {
  f32 scale, bias;
  GPU_METHOD ByteScale() {}
  GPU_METHOD ByteScale(f32 scale_, f32 min) : scale(scale_), bias(m_fma(scale_, -32896.0f, min)) {}
  template <class T> GPU_METHOD void decode(T, u32 q, u32& low, u32& high) const {
    const u32 u = q ^ 0x80808080u;
    f32 x[4];
    UNROLL for (u32 i = 0; i < 4; i++) x[i] = m_fma(scale, f32_from_bits(byte_in_second(u, 0x47000000u, i)), bias);
    low = pack2(T{}, x[0], x[1]);
    high = pack2(T{}, x[2], x[3]);
  }
};

template <class Q, class T, int BN> struct QuantWide {
  static constexpr int LINES = 128, THREADS = 256, BK = WIDE_ROW, STAGES = QUANT_WIDE_STAGES, AHEAD = STAGES - 1;
  // What is decoded at once, as whole groups that share words: of STEP weights, in slices of BK.
  static constexpr u32 RUN = 32 * Q::Parts, STEP = RUN > BK ? RUN : BK, SLICES = STEP / BK, RUNS = STEP / RUN;
  // Stored bytes come in chunks: vectors around those of a line, an odd number of them, so that eight lines hit all banks.
  static constexpr u32 CHUNK = QUANT_WIDE_CHUNK, PLACES = 2, BYTES = CHUNK / Q::Elements * Q::Bytes;
  static constexpr u32 VECTORS = (BYTES + 16 - Q::Align + 15) / 16, PITCH = (VECTORS | 1) * 4, PLACE_WORDS = 16 * PITCH;
  static constexpr u32 ROUNDS = (16 * VECTORS + 31) / 32, PER = CHUNK / STEP;
  typedef DenseFeed<T, BN, BK, ALONG_K, THREADS, true> FeedX;
  // The left operand of SLICES · 4 products.
  struct Fragments {
    u32 x[SLICES * 4][4];
  };

  const u8* w;
  u32* raw;
  const u16* table;
  size_t row_bytes, first, last;
  u32 k;

  GPU_METHOD size_t line_start(u32 line) const { return (first + line < last ? first + line : last) * row_bytes; }
  GPU_FN u32 skew(size_t at) { return Q::Align == 16 ? 0 : (u32)at & 15u; }
  GPU_METHOD void send(u32 chunk) const {
    if (chunk * CHUNK >= k) return;
    const u32 begin = chunk * BYTES, there = (u32)row_bytes - begin, count = there < BYTES ? there : BYTES;
    const auto round = [&](u32 r) {
      const u32 i = lane_id() + 32 * r, line = i / VECTORS, v = i % VECTORS;
      const size_t at = line_start(line) + begin;
      copy16_async(raw + chunk % PLACES * PLACE_WORDS + line * PITCH + 4 * v, w + (at - skew(at)) + 16 * v,
                   i < 16 * VECTORS && 16 * v < skew(at) + count);
    };
    // Two blocks to a multiprocessor have no registers for rounds side by side.
    if constexpr (BN > 64) UNROLL for (u32 r = 0; r < ROUNDS; r++) round(r);
    else NO_UNROLL for (u32 r = 0; r < ROUNDS; r++) round(r);
  }
  // Of the weights from STEP · step on, what this lane gives the unit: of lines lane/4 and lane/4 + 8 the words lane % 4 and 4 + that
  // of each group.
  GPU_METHOD void decode(Fragments& f, u32 step) const {
    const u32 chunk = step / PER, t = lane_id() % 4;
    UNROLL for (u32 h = 0; h < 2; h++) {
      const u32 line = lane_id() / 4 + 8 * h, at = skew(line_start(line) + chunk * BYTES);
      const u32* const from = raw + chunk % PLACES * PLACE_WORDS + line * PITCH;
      UNROLL for (u32 r = 0; r < RUNS; r++) {
        constexpr u32 PER_BLOCK = Q::Elements / RUN;
        // Groups past the end are zeros under the chunk's first, and so are those of x.
        const bool there = step * STEP + r * RUN < k;
        const u32 run = there ? step % PER * RUNS + r : 0;
        typename Q::Frag q;
        Q::fragment(Staged<Q::Align>{from, at + run / PER_BLOCK * Q::Bytes}, run % PER_BLOCK, t, table, q);
        UNROLL for (int p = 0; p < Q::Parts; p++)
          UNROLL for (int half = 0; half < 2; half++) {
            const int s = Q::Halves == 1 ? 0 : half;
            const ByteScale scale(there ? q.scale[s][p] : 0.0f, Q::HasMin && there ? q.min[s][p] : 0.0f);
            u32(&x)[4] = f.x[(r * Q::Parts + p) * 2 + half];
            scale.decode(T{}, q.q[p][half], x[h], x[2 + h]);
          }
      }
    }
  }

  // What the blocks of one tile share: how many they are, their sums, and a zero to count with.
  struct Shares {
    u32 count, own;
    f32* parts;
    u32* counter;
  };
  GPU_FN void run(T* shared, const u16* table, const u8* w, const Operand<T>& x, T* out, size_t n, size_t line0, size_t row0, const Shares& shares) {
    const u32 warp = tid_x() / 32, k = (u32)x.depth, all = (k + STEP - 1) / STEP, chunks = (k + CHUNK - 1) / CHUNK;
    // Shares begin at whole chunks.
    const u32 from = chunks * shares.own / shares.count * PER, end = chunks * (shares.own + 1) / shares.count * PER;
    const u32 steps = end < all ? end : all, slices = steps * SLICES;
    const FeedX fx(x, row0);
    T* const sx = shared;
    QuantWide weights{w, (u32*)(shared + STAGES * FeedX::SIZE) + warp * PLACES * PLACE_WORDS, table, (size_t)(k / Q::Elements) * Q::Bytes,
                      line0 + warp * 16, n - 1, k};
    f32 c[BN / 2];
    UNROLL for (int e = 0; e < BN / 2; e++) c[e] = 0;
    weights.send(from / PER);
    wait_for_previous();  // once a block has waited, this takes no time
    copies_bunch();
    NO_UNROLL for (u32 s = 0; s < AHEAD; s++) {
      if (from * SLICES + s < slices) fx.copy(sx + s * FeedX::SIZE, (from * SLICES + s) * BK);
      copies_bunch();
    }
    copies_wait_but<AHEAD>();
    wave_sync();
    u32 now = 0, next = AHEAD;
    Fragments f;
    NO_UNROLL for (u32 step = from; step < steps; step++) {
      weights.decode(f, step);
      // All of it is made before the products that are to read it begin.
      UNROLL for (u32 j = 0; j < SLICES * 4; j++) UNROLL for (int i = 0; i < 4; i++) warpgroup_hold(f.x[j][i]);
      UNROLL for (u32 j = 0; j < SLICES; j++) {
        const u32 s = step * SLICES + j;
        copies_wait_but<AHEAD - 1>();
        warpgroup_publish();
        barrier();
        const WarpgroupRef b = warpgroup_ref(sx + now * FeedX::SIZE, 8 * WIDE_ROW, BK * WIDE_ROW);
        warpgroup_begin();
        UNROLL for (int kk = 0; kk < 4; kk++) warpgroup_multiply<0>(T{}, c, f.x[j * 4 + kk], b.plus(kk * 16), true);
        warpgroup_commit();
        if (s + AHEAD < slices) fx.copy(sx + next * FeedX::SIZE, (s + AHEAD) * BK);
        // The chunk before this one is decoded: its place is free.
        if (j == 0 && step % PER == 0 && step + PER < steps) weights.send(step / PER + 1);
        copies_bunch();
        // Registers of the left operand may only be written again when the products have ended: nvcc's assembler does not see to it.
        warpgroup_wait<0>();
        now = now + 1 == STAGES ? 0 : now + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
      }
    }
    UNROLL for (int e = 0; e < BN / 2; e++) warpgroup_hold(c[e]);
    if (shares.count > 1 && !add_up((u32*)shared, c, shares)) return;
    store(shared, c, out, n, x.lines, line0, row0);
  }

  // Whether this block is the last of its tile: then c has the sum of all, in their order.
  GPU_FN bool add_up(u32* shared, f32 (&c)[BN / 2], const Shares& shares) {
    constexpr u32 SIZE = THREADS * BN / 2;
    UNROLL for (u32 e = 0; e < BN / 2; e++) shares.parts[shares.own * SIZE + e * THREADS + tid_x()] = c[e];
    device_fence();
    copies_wait();
    barrier();
    if (tid_x() == 0) {
      *shared = atomic_add(shares.counter, 1u) == shares.count - 1;
      if (*shared) *shares.counter = 0;
    }
    barrier();
    const bool last = *shared;
    barrier();  // what is read is written next
    if (!last) return false;
    device_fence();
    UNROLL for (u32 e = 0; e < BN / 2; e++) c[e] = 0;
    if constexpr (BN <= 64) {
      // Two blocks' sums are on their way at once, where registers allow.
      NO_UNROLL for (u32 s = 0; s < shares.count; s += 2) {
        f32 add[2][BN / 2];
        UNROLL for (u32 j = 0; j < 2; j++)
          UNROLL for (u32 e = 0; e < BN / 2; e++) add[j][e] = shares.parts[(s + j < shares.count ? s + j : s) * SIZE + e * THREADS + tid_x()];
        UNROLL for (u32 j = 0; j < 2; j++)
          UNROLL for (u32 e = 0; e < BN / 2; e++) c[e] += s + j < shares.count ? add[j][e] : 0.0f;
      }
    } else {
      for (u32 s = 0; s < shares.count; s++)
        UNROLL for (u32 e = 0; e < BN / 2; e++) c[e] += shares.parts[s * SIZE + e * THREADS + tid_x()];
    }
    return true;
  }

  // Results by way of shared memory, where they are turned: a row of x has neighbouring lines.
  GPU_FN void store(T* shared, const f32 (&c)[BN / 2], T* out, size_t n, size_t rows, size_t line0, size_t row0) {
    constexpr u32 ROW = LINES + 8, V = 8;
    copies_wait();
    barrier();
    const u32 line = tid_x() / 32 * 16 + lane_id() / 4;
    UNROLL for (u32 e = 0; e < BN / 2; e++) shared[(e / 4 * 8 + lane_id() % 4 * 2 + e % 2) * ROW + line + e / 2 % 2 * 8] = narrow<T>(c[e]);
    barrier();
    const bool vectors = n % V == 0 && vector_aligned<V>(out);
    NO_UNROLL for (u32 i = tid_x(); i < BN * (LINES / V); i += THREADS) {
      const size_t row = row0 + i / (LINES / V), at = line0 + i % (LINES / V) * V;
      const Vec<T, V> x = load_shared<V>(shared, i / (LINES / V) * ROW + i % (LINES / V) * V);
      if (row >= rows) continue;
      T* const to = out + row * n + at;
      if (vectors) {
        if (at < n) *(Vec<T, V>*)to = x;
      } else UNROLL for (u32 j = 0; j < V; j++)
        if (at + j < n) to[j] = x.v[j];
    }
    barrier();  // the next tile's slices go where this one's results are
  }
};

}  // namespace gpu
#endif
#endif
