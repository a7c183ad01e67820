// Products of nine rows and more of halves with quantized weights by warpgroups: out (rows, n) = x (rows, k) · W (n, k)ᵀ, sums in f32.
//
// A block makes 128 lines of W by BN rows of x, in slices of 64 along k. Its last warpgroup decodes weights into shared memory, where
// slices have places; the others bring x and multiply. They say when they have done with a slice: decoding goes on beside products
// and waits for them only there.
// Where there are few tiles, `splits` blocks share the depth of one; what each has made goes to `parts`, and the last adds it up.
// Traffic: W is read rows/BN times, x n/128 times, mostly from the cache.
#ifndef WICK_QUANT_WIDE_H
#define WICK_QUANT_WIDE_H
#include "product.h"
#include "quant-chunks.h"

#if GPU_WARPGROUPS
namespace gpu {

// Weights of a line that come at once: types of small blocks are given less where several blocks share a multiprocessor.
template <class Q, int BN> struct WideChunk {
  static constexpr u32 value = BN > 64 || Q::Elements > QUANT_NEAR ? QUANT_FAR : QUANT_NEAR;
};

template <class Q, class T, int BN, u32 CHUNK, int STAGES, int X_STAGES> struct QuantWide {
  static constexpr u32 LINES = 128, GROUP = 128, BK = WIDE_ROW, PER = CHUNK / BK, RUN = 32 * Q::Parts, PER_BLOCK = Q::Elements / RUN;
  // Warpgroups that multiply, and how often 64 lines each.
  static constexpr u32 GROUPS = BN > 64 ? 2 : 1, TIMES = 2 / GROUPS, MULTIPLIERS = GROUPS * GROUP, THREADS = MULTIPLIERS + GROUP;
  static constexpr u32 W_SIZE = LINES * BK, AHEAD = X_STAGES - 2;
  typedef DenseFeed<T, BN, BK, ALONG_K, MULTIPLIERS, true> FeedX;
  // A warp decodes 32 lines.
  typedef LineChunks<Q, CHUNK, 4, 2> Stored;
  static constexpr u32 BYTES = 2 * (X_STAGES * FeedX::SIZE + STAGES * W_SIZE) + 4 * 4 * 2 * Stored::PLACE_WORDS;
  typedef f32 Sums[TIMES][BN / 2];

  // Slices `from` … `to` of lines `line` … by rows `row` … of x.
  struct Work {
    Blocks weights;
    Operand<T> x;
    size_t line, row;
    u32 from, to;
  };
  // Shared memory, and the meetings about places of weights: filled and freed; `done` slices went before.
  struct Places {
    T* x;
    u64* filled;
    u64* freed;
    u32 done;
    GPU_METHOD void open() const {
      if (tid_x() == 0) UNROLL for (u32 i = 0; i < STAGES; i++) {
        meeting_open(filled + i, GROUP / 32);
        meeting_open(freed + i, MULTIPLIERS / 32);
      }
    }
    GPU_METHOD T* w() const { return x + X_STAGES * FeedX::SIZE; }
    GPU_METHOD u32* raw() const { return (u32*)(w() + STAGES * W_SIZE); }
  };

  // Four neighbouring weights.
  GPU_FN void put_four(T* to, u32 q, f32 scale, f32 min) {
    u32 low, high;
    if constexpr (IsF16<T>::value) {
      scaled_halves<Q::HasMin>(q, pack2(T{}, 16 * scale, 16 * scale), Q::HasMin ? pack2(T{}, min, min) : 0, low, high);
    } else {
      f32 x[4];
      scaled_bytes<Q::HasMin>(q, scale, min, x);
      low = pack2(T{}, x[0], x[1]);
      high = pack2(T{}, x[2], x[3]);
    }
    *(u64*)to = (u64)high << 32 | low;
  }
  // What a lane decodes of a slice, as it is stored: words 0 and 4 on from its own of the two groups of each of four lines.
  struct Held {
    u32 q[4][2][2];
    f32 scale[4][2][Q::Halves], min[4][2][Q::Halves];
    // Parts FIRST … FIRST + COUNT - 1 of each run.
    template <int FIRST, int COUNT> GPU_METHOD void load_parts(const Stored& stored, u32 s, u32 depth, const u16* table) {
      UNROLL for (u32 h = 0; h < 4; h++) {
        const Staged<Q::Align> chunk = stored.staged(s / PER, h);
        UNROLL for (u32 g = 0; g < 2 / COUNT; g++) {
          // Groups past the end are zeros under the slice's first.
          const bool there = Q::Elements > 32 || s * BK + g * RUN < depth;
          const u32 run = (s % PER * BK + (there ? g * RUN : 0)) / RUN;
          typename Q::Frag f;
          Q::fragment(Staged<Q::Align>{chunk.words, chunk.at + run / PER_BLOCK * Q::Bytes}, run % PER_BLOCK, lane_id() % 4, table, f);
          UNROLL for (int p = 0; p < COUNT; p++) {
            UNROLL for (int half = 0; half < 2; half++) q[h][g * COUNT + p][half] = f.q[FIRST + p][half];
            UNROLL for (int half = 0; half < Q::Halves; half++) {
              scale[h][g * COUNT + p][half] = there ? f.scale[half][FIRST + p] : 0.0f;
              min[h][g * COUNT + p][half] = Q::HasMin && there ? f.min[half][FIRST + p] : 0.0f;
            }
          }
        }
      }
    }
    GPU_METHOD void load(const Stored& stored, u32 s, u32 depth, const u16* table) {
      if constexpr (RUN <= BK) load_parts<0, Q::Parts>(stored, s, depth, table);
      else if (s % 2 == 0) load_parts<0, 2>(stored, s, depth, table);
      else load_parts<2, 2>(stored, s, depth, table);
    }
    // Pieces of a row are mixed by its number.
    GPU_METHOD void put(T* slice, u32 own) const {
      const u32 t = lane_id() % 4, place = ((tid_x() - MULTIPLIERS) / 32 * 32 + own) * BK + ((t / 2 ^ own) * 8 | t % 2 * 4);
      UNROLL for (u32 h = 0; h < 4; h++)
        UNROLL for (u32 g = 0; g < 2; g++)
          UNROLL for (int half = 0; half < 2; half++)
            put_four(slice + 8 * h * BK + (place ^ (32 * g + 16 * half)), q[h][g][half], scale[h][g][Q::Halves == 1 ? 0 : half], min[h][g][Q::Halves == 1 ? 0 : half]);
    }
  };

  // What the next slice is made of is read before this one's weights are seen by others: compilers do not know that these are different
  // memory, and a warp has little else to do meanwhile.
  GPU_FN void fill(const Work& work, const Places& places, const u16* table) {
    const u32 warp = (tid_x() - MULTIPLIERS) / 32, depth = work.weights.k;
    // Lanes that store together have lines whose pieces lie in different banks.
    const Stored stored(work.weights, places.raw() + warp * 2 * Stored::PLACE_WORDS, work.line + warp * 32, lane_id() / 4 % 4 * 2 + lane_id() / 16);
    Held held;
    const auto read = [&](u32 s) {
      if (s % PER == 0) copies_wait();
      meeting_of_warp(true);
      if (s >= work.to) return;
      // The chunk before this one is read: its place is free.
      if (s % PER == 0 && s + PER < work.to) stored.send(s / PER + 1);
      held.load(stored, s, depth, table);
    };
    stored.send(work.from / PER);
    if (places.done == 0) wait_for_previous();
    read(work.from);
    u32 done = places.done;
    NO_UNROLL for (u32 s = work.from; s < work.to; s++, done++) {
      const u32 slot = done % STAGES, use = done / STAGES;
      if (use) meeting_wait(places.freed + slot, use - 1);
      else meeting_pass();
      held.put(places.w() + slot * W_SIZE, stored.own);
      read(s + 1);
      warpgroup_publish();
      meeting_come(places.filled + slot);
      meeting_pass();
    }
  }
  GPU_FN void multiply(const Work& work, const Places& places, Sums& c) {
    const u32 group = tid_x() / GROUP;
    if (places.done == 0) wait_for_previous();
    UNROLL for (u32 m = 0; m < TIMES; m++) UNROLL for (int e = 0; e < BN / 2; e++) c[m][e] = 0;
    const FeedX feed(work.x, work.row);
    NO_UNROLL for (u32 i = 0; i < AHEAD; i++) {
      if (work.from + i < work.to) feed.copy(places.x + i * FeedX::SIZE, (work.from + i) * BK);
      copies_bunch();
    }
    meeting_of_warp(false);
    u32 done = places.done, last = 0, now = 0, next = AHEAD;
    NO_UNROLL for (u32 s = work.from; s < work.to; s++, done++) {
      const u32 slot = done % STAGES;
      copies_wait_but<AHEAD - 1>();
      warpgroup_publish();
      meeting_of_first<MULTIPLIERS>();
      meeting_of_warp(false);
      meeting_wait(places.filled + slot, done / STAGES);
      const WarpgroupRef b = warpgroup_ref(places.x + now * FeedX::SIZE, 8 * BK, 0);
      warpgroup_begin();
      UNROLL for (u32 m = 0; m < TIMES; m++) {
        const WarpgroupRef a = warpgroup_ref(places.w() + slot * W_SIZE + (group * TIMES + m) * 64 * BK, 8 * BK, 0);
        UNROLL for (u32 kk = 0; kk < BK; kk += 16) warpgroup_multiply<0, 0>(T{}, c[m], a.plus(kk), b.plus(kk), true);
      }
      warpgroup_commit();
      if (s + AHEAD < work.to) feed.copy(places.x + next * FeedX::SIZE, (s + AHEAD) * BK);
      copies_bunch();
      // The slice before is multiplied.
      warpgroup_wait<1>();
      if (s > work.from) meeting_come(places.freed + last);
      last = slot;
      now = now + 1 == X_STAGES ? 0 : now + 1;
      next = next + 1 == X_STAGES ? 0 : next + 1;
    }
    warpgroup_wait<0>();
    UNROLL for (u32 m = 0; m < TIMES; m++) UNROLL for (int e = 0; e < BN / 2; e++) warpgroup_hold(c[m][e]);
    meeting_come(places.freed + last);
  }

  // What the blocks of one tile share: how many they are, their sums, and a zero to count with.
  struct Shares {
    u32 count, own;
    f32* parts;
    u32* counter;
  };
  GPU_FN void run(const Work& work, Places& places, const u16* table, T* out, const Shares& shares) {
    constexpr u32 ROW = LINES + 8, V = 8;
    T* const staged = places.x;
    if (tid_x() < MULTIPLIERS) {
      Sums c;
      multiply(work, places, c);
      meeting_of_first<MULTIPLIERS>();
      meeting_pass();
      // A row of x has neighbouring lines: results are turned in shared memory.
      UNROLL for (u32 m = 0; m < TIMES; m++)
        UNROLL for (u32 e = 0; e < BN / 2; e++) {
          const u32 row = e / 4 * 8 + lane_id() % 4 * 2 + e % 2, line = (tid_x() / GROUP * TIMES + m) * 64 + tid_x() % GROUP / 32 * 16 + lane_id() / 4 + e / 2 % 2 * 8;
          if (shares.count > 1) shares.parts[(size_t)shares.own * (LINES * BN) + row * LINES + line] = c[m][e];
          else staged[row * ROW + line] = narrow<T>(c[m][e]);
        }
    } else {
      fill(work, places, table);
      meeting_pass();
      meeting_pass();
    }
    places.done += work.to - work.from;
    if (shares.count > 1) {
      join(places.raw(), work, out, shares);
    } else {
      barrier();
      NO_UNROLL for (u32 i = tid_x(); i < BN * (LINES / V); i += THREADS) {
        const u32 row = i / (LINES / V), line = i % (LINES / V) * V;
        put<V>(work, out, row, line, load_shared<V>(staged, row * ROW + line));
      }
    }
    warpgroup_publish();
    barrier();  // the next tile's slices go where this one's results are
  }
  // N neighbouring results, where there are such.
  template <int N> GPU_FN void put(const Work& work, T* out, u32 row, u32 line, const Vec<T, N>& x) {
    const size_t n = work.weights.lines, at = work.line + line;
    if (work.row + row >= work.x.lines) return;
    T* const to = out + (work.row + row) * n + at;
    if (n % N == 0 && vector_aligned<N>(out)) {
      if (at < n) *(Vec<T, N>*)to = x;
    } else UNROLL for (int j = 0; j < N; j++)
      if (at + j < n) to[j] = x.v[j];
  }
  // The last of the blocks of a tile adds up what all have made, in their order. Several sums are on their way at once.
  GPU_FN void join(u32* shared, const Work& work, T* out, const Shares& shares) {
    constexpr u32 SIZE = LINES * BN, TOGETHER = 8;
    device_fence();
    barrier();
    if (tid_x() == 0) {
      *shared = atomic_add(shares.counter, 1u) == shares.count - 1;
      if (*shared) *shares.counter = 0;
    }
    barrier();
    if (!*shared) return;
    device_fence();
    NO_UNROLL for (u32 i = tid_x() * 4; i < SIZE; i += THREADS * 4) {
      if (work.row + i / LINES >= work.x.lines) break;
      f32 sum[4] = {0, 0, 0, 0};
      NO_UNROLL for (u32 s = 0; s < shares.count; s += TOGETHER) {
        Vec<f32, 4> add[TOGETHER];
        UNROLL for (u32 j = 0; j < TOGETHER; j++) add[j] = *(const Vec<f32, 4>*)(shares.parts + (size_t)(s + j < shares.count ? s + j : s) * SIZE + i);
        UNROLL for (u32 j = 0; j < TOGETHER; j++) UNROLL for (int r = 0; r < 4; r++) sum[r] += s + j < shares.count ? add[j].v[r] : 0.0f;
      }
      Vec<T, 4> y;
      UNROLL for (int r = 0; r < 4; r++) y.v[r] = narrow<T>(sum[r]);
      put<4>(work, out, i / LINES, i % LINES, y);
    }
  }
};

}  // namespace gpu
#endif
#endif
