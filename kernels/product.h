// Matrix products of halves on a matrix unit: out (m, n) = a (m, k) · b (k, n), sums in f32.
//
// A block makes BM × BN of the result, each wave WM × WN of it in registers. Slices of BK pass through shared memory, which has room
// for STAGES: while one is multiplied, the next are on their way. Feeds bring them (product-feed.h): an operand's lines, rows of a or
// columns of b, lie in shared memory one by one along k, whichever way they lie outside; only NVIDIA's units, which can transpose,
// are given lines that lie side by side as they are. A sink takes the results.
// Traffic: a is read n/BN times, b m/BM times, mostly from the cache, as blocks go over the result in bands.
#ifndef WICK_PRODUCT_H
#define WICK_PRODUCT_H
#include "gpu/cluster.h"
#include "gpu/warpgroup.h"
#include "product-feed.h"
#include "tile-order.h"
namespace gpu {

// Results as they are, row by row.
template <class T> struct PlainSink {
  T* out;
  size_t m, n;
  // Whether results of a row are neighbours where they go.
  static constexpr bool IN_ROWS = true;
  // Whether R results from a multiple of R on are stored at once.
  template <int R> GPU_METHOD bool takes() const { return n % R == 0 && vector_aligned<R>(out); }
  template <int R> GPU_METHOD void put(size_t row, size_t col, const f32 (&x)[R]) const {
    if (row >= m) return;
    T* const to = out + row * n + col;
    Vec<T, R> y;
    UNROLL for (int r = 0; r < R; r++) y.v[r] = narrow<T>(x[r]);
    if (takes<R>()) {
      if (col < n) gpu::put(to, y);
    } else UNROLL for (int r = 0; r < R; r++)
      if (col + r < n) to[r] = y.v[r];
  }
};

// The 16 × 16 elements of a left operand from lines that lie side by side, which only mma.sync is given.
#if GPU_TILE == TILE_MMA
template <class Tile, int Pitch> GPU_FN typename Tile::A turned_left(typename Tile::Ref base, u32 offset) {
  typename Tile::A a;
  const u32 lane = Tile::lane();
  load_matrices_transposed(a.x, Tile::template piece_of<Pitch>(base, offset, lane % 8 + lane / 16 * 8, lane / 8 % 2));
  return a;
}
#else
template <class Tile, int Pitch> GPU_FN typename Tile::A turned_left(typename Tile::Ref base, u32 offset) { return Tile::template left<Pitch>(base, offset); }
#endif

// Which columns of a tile of results a lane has: RUN neighbours from element e on.
template <class Tile> struct ResultColumns {
  static constexpr int RUN = Tile::RUN;
  GPU_FN u32 col(int e) { return Tile::col(e); }
  // By how many lines of the right operand a lane reads beside its own.
  GPU_FN i32 aside() { return 0; }
};
// Multiply-adds leave results of columns that are no neighbours.
template <class T> struct ResultColumns<FmaTile<T>> {
  static constexpr int RUN = 1;
  GPU_FN u32 col(int e) { return FmaTile<T>::col(e); }
  GPU_FN i32 aside() { return 0; }
};
#if GPU_TILE == TILE_WMMA11
// Every other one, if lines were read in order; with line i/2 + 8·(i mod 2) in place of line i they are neighbours.
template <class T> struct ResultColumns<WmmaTile11<T>> {
  static constexpr int RUN = 8;
  GPU_FN u32 col(int e) { return WmmaTile11<T>::lane() / 16 * 8 + e; }
  GPU_FN i32 aside() {
    const i32 i = WmmaTile11<T>::lane() % 16;
    return i / 2 + i % 2 * 8 - i;
  }
};
#endif

template <class T, int BM, int BN, int BK, int WM, int WN, int STAGES, class FeedA, class FeedB> struct TileProduct {
  typedef tile_t<T> Tile;
  static constexpr int DOWN = BM / WM, ACROSS = BN / WN;
  static_assert(!Tile::ASYNC || STAGES >= 2, "a slice is written while another is read");
  static constexpr int MI = WM / 16, NI = WN / 16;
  typedef gpu::Terms<FeedA::SPLIT, BK> Terms;
  typedef typename Tile::A A;
  typedef typename Tile::B B;
  typedef typename Tile::C C;

  struct Fragments {
    A a[MI];
    B b[NI];
  };
  GPU_FN void load(Fragments& f, typename Tile::Ref a, typename Tile::Ref b, u32 down, u32 across, int term) {
    const u32 ka = Terms::a(term), kb = Terms::b(term);
    UNROLL for (int i = 0; i < MI; i++) {
      if constexpr (FeedA::KEPT) f.a[i] = turned_left<Tile, FeedA::PITCH>(a, ka * FeedA::PITCH + down + i * 16);
      else f.a[i] = Tile::template left<FeedA::PITCH>(a, i * 16 * FeedA::PITCH + ka);
    }
    UNROLL for (int j = 0; j < NI; j++) {
      if constexpr (FeedB::KEPT) f.b[j] = Tile::template cols<FeedB::PITCH>(b, kb * FeedB::PITCH + across + j * 16);
      else f.b[j] = Tile::template rows<FeedB::PITCH>(b, j * 16 * FeedB::PITCH + kb);
    }
  }
  GPU_FN void multiply(C (&c)[MI][NI], const Fragments& f) {
    UNROLL for (int i = 0; i < MI; i++)
      UNROLL for (int j = 0; j < NI; j++) Tile::template multiply<FeedB::PITCH>(c[i][j], f.a[i], f.b[j]);
  }
  // One slice: while one strip of 16 is multiplied, the next is read.
  GPU_FN void slice(C (&c)[MI][NI], const T* a, const T* b, u32 down, u32 across) {
    // Rows that lie one by one are found from the wave's first; side by side they are columns, whose places are mixed.
    const typename Tile::Ref ra = Tile::ref(a + (FeedA::KEPT ? 0 : down * WM * FeedA::PITCH));
    const typename Tile::Ref rb = Tile::ref(b + (FeedB::KEPT ? 0 : ((i32)(across * WN) + ResultColumns<Tile>::aside()) * FeedB::PITCH));
    if constexpr (!Tile::REGISTERS) {
      // Multiply-adds read shared memory themselves; unrolled, compilers begin all of these reads at once and run out of registers.
      NO_UNROLL for (int term = 0; term < Terms::COUNT; term++)
        UNROLL for (int i = 0; i < MI; i++)
          UNROLL for (int j = 0; j < NI; j++) {
            const A left = Tile::template left<FeedA::PITCH>(ra, i * 16 * FeedA::PITCH + Terms::a(term));
            Tile::template multiply<FeedB::PITCH>(c[i][j], left, Tile::template rows<FeedB::PITCH>(rb, j * 16 * FeedB::PITCH + Terms::b(term)));
            schedule_fence();
          }
    } else if constexpr (sizeof(Fragments) > 128) {
      // Registers are what WMMA runs out of: the right operand is read tile by tile.
      UNROLL for (int term = 0; term < Terms::COUNT; term++) {
        A left[MI];
        UNROLL for (int i = 0; i < MI; i++) left[i] = Tile::template left<FeedA::PITCH>(ra, i * 16 * FeedA::PITCH + Terms::a(term));
        UNROLL for (int j = 0; j < NI; j++) {
          const B right = Tile::template rows<FeedB::PITCH>(rb, j * 16 * FeedB::PITCH + Terms::b(term));
          UNROLL for (int i = 0; i < MI; i++) Tile::template multiply<FeedB::PITCH>(c[i][j], left[i], right);
        }
        schedule_fence();
      }
    } else {
      Fragments f[2];
      load(f[0], ra, rb, down * WM, across * WN, 0);
      UNROLL for (int term = 0; term < Terms::COUNT; term++) {
        if (term + 1 < Terms::COUNT) load(f[(term + 1) % 2], ra, rb, down * WM, across * WN, term + 1);
        multiply(c, f[term % 2]);
      }
    }
  }

  // Where there are no copies beside arithmetic: room for one slice, as more would keep other blocks out, and the next in registers.
  struct Way {
    const FeedA& fa;
    const FeedB& fb;
    T* sa;
    T* sb;
    typename FeedA::Held ha;
    typename FeedB::Held hb;
    template <bool LAST> GPU_METHOD void hold(u32 k0) {
      fa.template hold<LAST>(ha, k0);
      fb.template hold<LAST>(hb, k0);
    }
    template <bool LAST> GPU_METHOD void put(u32 k0) {
      fa.template put<LAST>(sa, ha, k0);
      fb.template put<LAST>(sb, hb, k0);
    }
  };
  // LAST: one of the last two slices, so that this or the next may be cut.
  template <bool LAST> GPU_FN void step(C (&c)[MI][NI], Way& way, u32 s, u32 slices, u32 down, u32 across) {
    way.template put<LAST>(s * BK);
    barrier();
    if (!LAST || s + 1 < slices) way.template hold<LAST>((s + 1) * BK);
    schedule_fence();  // loads first: they have the longest way
    slice(c, way.sa, way.sb, down, across);
    barrier();
  }

  template <class Sink> GPU_FN void run(T* shared, const FeedA& fa, const FeedB& fb, u32 depth, const Sink& sink, size_t row0, size_t col0) {
    const u32 wave = tid_x() / Tile::LANES, down = wave / ACROSS, across = wave % ACROSS;
    T* const sa = shared;
    T* const sb = shared + STAGES * FeedA::SIZE;
    C c[MI][NI];
    UNROLL for (int i = 0; i < MI; i++) UNROLL for (int j = 0; j < NI; j++) UNROLL for (int e = 0; e < Tile::ELEMENTS; e++) c[i][j].x[e] = 0;
    const u32 slices = (depth + BK - 1) / BK;
    if constexpr (Tile::ASYNC) {
      const auto send = [&](u32 s, u32 slot) {
        if (s < slices) {
          fa.copy(sa + slot * FeedA::SIZE, s * BK);
          fb.copy(sb + slot * FeedB::SIZE, s * BK);
        }
        copies_bunch();
      };
      NO_UNROLL for (u32 s = 0; s < STAGES - 1; s++) send(s, s);
      u32 now = 0, next = STAGES - 1;
      NO_UNROLL for (u32 s = 0; s < slices; s++) {
        copies_wait_but<STAGES - 2>();
        fa.land(sa + now * FeedA::SIZE, s * BK);
        fb.land(sb + now * FeedB::SIZE, s * BK);
        barrier();
        send(s + STAGES - 1, next);
        slice(c, sa + now * FeedA::SIZE, sb + now * FeedB::SIZE, down, across);
        now = now + 1 == STAGES ? 0 : now + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
      }
    } else {
      Way way{fa, fb, sa, sb};
      if (slices > 0) way.template hold<true>(0);
      u32 s = 0;
      NO_UNROLL for (; s + 2 < slices; s++) step<false>(c, way, s, slices, down, across);
      NO_UNROLL for (; s < slices; s++) step<true>(c, way, s, slices, down, across);
    }
    constexpr int R = ResultColumns<Tile>::RUN;
    UNROLL for (int i = 0; i < MI; i++)
      UNROLL for (int j = 0; j < NI; j++)
        UNROLL for (int e = 0; e < Tile::ELEMENTS; e += R) {
          f32 x[R];
          UNROLL for (int r = 0; r < R; r++) x[r] = c[i][j].x[e + r];
          sink.put(row0 + down * WM + i * 16 + Tile::row(Tile::row_of(e)), col0 + across * WN + j * 16 + ResultColumns<Tile>::col(e), x);
        }
    barrier();  // the next tile's slices go where this one's are read
  }
};

#if GPU_WARPGROUPS
// The same by warpgroups, each of which makes 64 × BN. Products are begun and waited for one slice later: meanwhile threads send
// the slice after next on its way, to where the last but one was, which all have done with at the barrier. BLOCKS of a cluster may
// share the depth out; each then adds up some columns of all.
template <class T, int BM, int BN, int STAGES, class FeedA, class FeedB, int BLOCKS = 1> struct WideProduct {
  static constexpr int BK = WIDE_ROW, AHEAD = STAGES - 2, THREADS = 2 * BM;
  static constexpr bool SHARED_OUT = GPU_CLUSTERS && BLOCKS > 1;
  typedef gpu::Terms<FeedA::SPLIT, BK> Terms;
  static_assert(STAGES >= 3, "one slice on its way, one multiplied, one not yet waited for");

  // Rows of results leave by way of shared memory, where all are done with slices: in registers they are pairs far from each other,
  // and a product of few slices would take as long to store them as to make them. Columns are those from col0 on.
  static constexpr int PITCH = BN + 8;
  static_assert(BM * PITCH * sizeof(f32) <= STAGES * (FeedA::SIZE + FeedB::SIZE) * sizeof(T), "results fit where slices were");
  template <int COLUMNS, class Sink> GPU_FN void leave(T* shared, const f32 (&c)[COLUMNS / 2], const Sink& sink, size_t row0, size_t col0) {
    barrier();
    const u32 wave = tid_x() / 32;
    f32* const rows = (f32*)shared + wave * 16 * PITCH;
    UNROLL for (int e = 0; e < COLUMNS / 2; e += 2)
      store_shared<2>(rows, (lane_id() / 4 + e / 2 % 2 * 8) * PITCH + e / 4 * 8 + lane_id() % 4 * 2, Vec<f32, 2>{{c[e], c[e + 1]}});
    wave_sync();
    row0 += wave * 16;
    if (sink.template takes<8>()) UNROLL for (u32 i = 0; i < COLUMNS / 16; i++) {
      constexpr u32 ACROSS = COLUMNS / 8;
      const u32 row = i * 32 / ACROSS + lane_id() / ACROSS, col = (i * 32 + lane_id()) % ACROSS * 8;
      sink.put(row0 + row, col0 + col, load_shared<8>(rows, row * PITCH + col).v);
    }
    else NO_UNROLL for (u32 row = 0; row < 16; row++)
      NO_UNROLL for (u32 col = lane_id(); col < COLUMNS; col += 32)
        sink.put(row0 + row, col0 + col, load_shared<1>(rows, row * PITCH + col).v);
  }
  // Sums of what the blocks have of this one's columns.
  static constexpr int PART = BN / 2 / BLOCKS;
  GPU_FN void gather(T* shared, const f32 (&c)[BN / 2], u32 rank, f32 (&sum)[PART]) {
    f32* const own = (f32*)shared + tid_x() * 4;
    const auto place = [&](u32 block, int i) { return own + (block * (PART / 4) + i / 4) * THREADS * 4; };
    cluster_barrier();
    UNROLL for (u32 to = 0; to < BLOCKS; to++)
      UNROLL for (int i = 0; i < PART; i += 4) {
        const f32* const x = c + to * PART + i;
        cluster_put(place(rank, i), Vec<f32, 4>{{x[0], x[1], x[2], x[3]}}, to);
      }
    cluster_barrier();
    UNROLL for (int i = 0; i < PART; i++) sum[i] = 0;
    UNROLL for (u32 from = 0; from < BLOCKS; from++)
      UNROLL for (int i = 0; i < PART; i += 4) {
        const Vec<f32, 4> x = *(const Vec<f32, 4>*)place(from, i);
        UNROLL for (int k = 0; k < 4; k++) sum[i + k] += x.v[k];
      }
  }

  template <class Sink> GPU_FN void run(T* shared, const FeedA& fa, const FeedB& fb, u32 depth, const Sink& sink, size_t row0, size_t col0) {
    const u32 group = tid_x() / 128;
    T* const sa = shared;
    T* const sb = shared + STAGES * FeedA::SIZE;
    f32 c[BN / 2];
    UNROLL for (int e = 0; e < BN / 2; e++) c[e] = 0;
    const u32 all = (depth + BK - 1) / BK, rank = SHARED_OUT ? bid_x() % BLOCKS : 0;
    const u32 first = SHARED_OUT ? all * rank / BLOCKS : 0, slices = SHARED_OUT ? all * (rank + 1) / BLOCKS : all;
    const auto send = [&](u32 s, u32 slot) {
      if (s < slices) {
        fa.copy(sa + slot * FeedA::SIZE, s * BK);
        fb.copy(sb + slot * FeedB::SIZE, s * BK);
      }
      copies_bunch();
    };
    NO_UNROLL for (u32 s = 0; s < AHEAD; s++) send(first + s, s);
    u32 now = 0, next = AHEAD;
    NO_UNROLL for (u32 s = first; s < slices; s++) {
      copies_wait_but<AHEAD - 1>();
      fa.land(sa + now * FeedA::SIZE, s * BK);
      fb.land(sb + now * FeedB::SIZE, s * BK);
      warpgroup_publish();
      barrier();
      // Eight rows are a group; 64 lines side by side lie in BK rows.
      const WarpgroupRef a = warpgroup_ref<SHARED_OUT>(sa + now * FeedA::SIZE + group * 64 * WIDE_ROW, 8 * WIDE_ROW, BK * WIDE_ROW);
      const WarpgroupRef b = warpgroup_ref<SHARED_OUT>(sb + now * FeedB::SIZE, 8 * WIDE_ROW, BK * WIDE_ROW);
      warpgroup_begin();
      UNROLL for (int term = 0; term < Terms::COUNT; term++)
        warpgroup_multiply<FeedA::KEPT, FeedB::KEPT>(T{}, c, a.plus(Terms::a(term) * (FeedA::KEPT ? WIDE_ROW : 1)),
                                                     b.plus(Terms::b(term) * (FeedB::KEPT ? WIDE_ROW : 1)), true);
      warpgroup_commit();
      send(s + AHEAD, next);
      warpgroup_wait<1>();
      now = now + 1 == STAGES ? 0 : now + 1;
      next = next + 1 == STAGES ? 0 : next + 1;
    }
    warpgroup_wait<0>();
    UNROLL for (int e = 0; e < BN / 2; e++) warpgroup_hold(c[e]);
    if constexpr (SHARED_OUT) {
      f32 sum[PART];
      gather(shared, c, rank, sum);
      leave<BN / BLOCKS>(shared, sum, sink, row0, col0 + rank * (BN / BLOCKS));
    } else if constexpr (Sink::IN_ROWS) leave<BN>(shared, c, sink, row0, col0);
    else {
      const size_t row = row0 + group * 64 + tid_x() % 128 / 32 * 16 + tid_x() % 32 / 4, col = col0 + tid_x() % 4 * 2;
      UNROLL for (int e = 0; e < BN / 2; e += 2) {
        const f32 x[2] = {c[e], c[e + 1]};
        sink.put(row + e / 2 % 2 * 8, col + e / 4 * 8, x);
      }
    }
    barrier();  // the next tile's slices go where this one's results are read
  }
};
#endif

// What a block makes, by size: PRODUCT_TILE on a side (LARGE); half as much (SMALL) where that would leave multiprocessors idle. By
// warpgroups twice as many columns (WIDE), as many (SQUARE), half as many rows (HALF), or these by a cluster that shares the depth out
// (PAIR of two, SPLIT of more). `Of` multiplies what two feeds bring.
enum Size { SMALL, LARGE, WIDE, SQUARE, HALF, PAIR, SPLIT };
template <class T, Size SIZE> struct Block {
  static constexpr bool GROUPS = SIZE != SMALL && SIZE != LARGE, HALVED = SIZE == SMALL || SIZE == HALF || SIZE == PAIR || SIZE == SPLIT;
  static constexpr int BM = PRODUCT_TILE / (HALVED ? 2 : 1), BN = SIZE == SMALL ? BM : PRODUCT_TILE * (SIZE == WIDE ? 2 : 1);
  static constexpr int BLOCKS = SIZE == SPLIT ? PRODUCT_SPLIT : SIZE == PAIR ? 2 : 1;
#if GPU_TILE == TILE_MMA
  static constexpr int BK = PRODUCT_ASYNC_SLICE, NARROW = 1;
  static constexpr int STAGES = SIZE == LARGE ? PRODUCT_ASYNC_STAGES : SIZE == SQUARE ? 2 * PRODUCT_ASYNC_STAGES : PRODUCT_ASYNC_STAGES + 1;
#else
  // WMMA's operands take so many registers that a wave makes half as many columns.
  static constexpr int BK = PRODUCT_SLICE, STAGES = 1, NARROW = GPU_TILE == TILE_MFMA || SIZE == SMALL ? 1 : 2;
#endif
  static constexpr int WM = BM / 2, WN = BN / (2 * NARROW), THREADS = GROUPS ? BM * 2 : 4 * NARROW * tile_t<T>::LANES;
  static constexpr bool EXISTS = GROUPS ? GPU_WARPGROUPS : tile_t<T>::REGISTERS;
  template <class A, class B, bool> struct Choice { typedef TileProduct<T, BM, BN, BK, WM, WN, STAGES, A, B> type; };
#if GPU_WARPGROUPS
  template <class A, class B> struct Choice<A, B, true> { typedef WideProduct<T, BM, BN, STAGES, A, B, BLOCKS> type; };
#endif
  template <class A, class B> using Of = typename Choice<A, B, GROUPS>::type;
  template <Lie LIE> using FeedA = DenseFeed<T, BM, BK, LIE, THREADS, GROUPS>;
  template <Lie LIE> using FeedB = DenseFeed<T, BN, BK, LIE, THREADS, GROUPS>;
};

// The products of a batch.
template <class T, Size SIZE, Lie LA, Lie LB>
GPU_FN void products(T* shared, const T* a, const T* b, T* out, size_t batch, size_t m, size_t n, size_t k, i64 a_step, i64 b_step,
                     size_t num_dims, const size_t* info) {
  typedef Block<T, SIZE> Blk;
  typedef typename Blk::template FeedA<LA> FeedA;
  typedef typename Blk::template FeedB<LB> FeedB;
  // Where there are no clusters one block does the work of all.
  if (!GPU_CLUSTERS && bid_x() % Blk::BLOCKS != 0) return;
  const size_t down = ceil_div(m, (size_t)Blk::BM), across = ceil_div(n, (size_t)Blk::BN), each = down * across;
  for (size_t i = bid_x() / Blk::BLOCKS; i < each * batch; i += gdim_x() / Blk::BLOCKS) {
    const size_t z = divide(i, each);
    const TileAt tile = tile_at(i - z * each, down, across);
    const size_t row = tile.row * Blk::BM, col = tile.column * Blk::BN;
    i64 at[2] = {0, 0};
    if (batch > 1) offsets<2>(z, num_dims, info, at);
    const FeedA fa(Operand<T>{a + at[0], m, k, a_step}, row);
    const FeedB fb(Operand<T>{b + at[1], n, k, b_step}, col);
    Blk::template Of<FeedA, FeedB>::run(shared, fa, fb, (u32)k, PlainSink<T>{out + z * m * n, m, n}, row, col);
  }
}

}  // namespace gpu
#endif
