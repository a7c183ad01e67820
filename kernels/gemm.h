// Matrix products by multiply-adds: out (m, n) = a (m, k) · b (k, n) for any strides, in every dtype; halves are widened on the way
// into shared memory and summed in f32.
//
// A block makes BM × BN of the result, each thread TM × TN of it in registers, in groups of G neighbours so that shared memory is
// read as vectors. While one slice of BK is multiplied, the next is on its way: global → registers → the other half of shared
// memory; one barrier per slice. Traffic: a is read n/BN times, b m/BM times, mostly from the cache, as blocks go over the result in
// bands.
#ifndef WICK_GEMM_H
#define WICK_GEMM_H
#include "gpu/cluster.h"
#include "tile-order.h"
namespace gpu {

// `lines` × `depth` elements, rows of a or columns of b; each is `line_step` from the next line's and `k_step` from the next in its
// line.
template <class T> struct Lines {
  const T* at;
  size_t lines, depth;
  i64 line_step, k_step;
};

// The way of one operand into shared memory, LINES × BK of it at a time, where it lies k by k. A thread moves 16 bytes at once, along
// k or over neighbouring lines, whichever lie closer together in memory; what is not made of such pieces goes element by element, where
// registers suffice (APART) those of neighbouring threads side by side.
template <class T, int LINES, int BK, int THREADS, bool APART> struct Panel {
  typedef compute_t<T> C;
  static constexpr int EACH = LINES * BK / THREADS, V = 16 / (int)sizeof(T) < EACH ? 16 / (int)sizeof(T) : EACH, ROUNDS = EACH / V;
  static constexpr int PITCH = LINES + 16 / (int)sizeof(C);  // keeps vectors aligned and spreads the banks
  static constexpr int SIZE = BK * PITCH;
  static_assert(THREADS % LINES == 0 && THREADS % BK == 0, "a thread's elements lie one step apart");
  typedef Solid<T, V> Held[ROUNDS];

  Lines<T> o;
  size_t first;
  u32 thread;
  // Where each round begins in the slice at hand. Lines of vectors past the end stand for the last one: nobody keeps what comes of them.
  const T* from[ROUNDS];
  bool along_k, vectors;

  GPU_METHOD Panel(const Lines<T>& operand, size_t first_, u32 thread_) : o(operand), first(first_), thread(thread_) {
    along_k = o.k_step == 1 || (o.line_step != 1 && (o.k_step < 0 ? -o.k_step : o.k_step) < (o.line_step < 0 ? -o.line_step : o.line_step));
    // Neighbouring lines may be cut by the edge in the middle of a vector.
    vectors = aligned_to(o.at, sizeof(T) * V) &&
              (along_k ? o.k_step == 1 && o.line_step % V == 0
                       : o.line_step == 1 && o.k_step % V == 0 && (o.lines % V == 0 || first + LINES <= o.lines));
    UNROLL for (int round = 0; round < ROUNDS; round++) {
      const size_t line = first + (vectors ? line_of<true>(round, 0) : line_of<false>(round, 0)), last = o.lines - (along_k ? 1 : V);
      from[round] = o.at + (i64)(!vectors || line < last ? line : last) * o.line_step +
                    (i64)(vectors ? k_of<true>(round, 0) : k_of<false>(round, 0)) * o.k_step;
    }
  }
  template <bool VECTORS> GPU_METHOD u32 line_of(int round, int v) const {
    if (!VECTORS && APART) return along_k ? thread / BK + (round * V + v) * (THREADS / BK) : thread % LINES;
    const u32 i = thread + round * THREADS;
    return along_k ? i / (BK / V) : i % (LINES / V) * V + v;
  }
  template <bool VECTORS> GPU_METHOD u32 k_of(int round, int v) const {
    if (!VECTORS && APART) return along_k ? thread % BK : thread / LINES + (round * V + v) * (THREADS / LINES);
    const u32 i = thread + round * THREADS;
    return along_k ? i % (BK / V) * V + v : i / (LINES / V);
  }
  // The slice that begins at k0, element by element, with zeros past the ends.
  template <bool VECTORS> GPU_METHOD void hold_each(Held& x, size_t k0) {
    const u32 lines = o.lines - first < (size_t)LINES ? (u32)(o.lines - first) : (u32)LINES;
    const u32 depth = o.depth - k0 < (size_t)BK ? (u32)(o.depth - k0) : (u32)BK;
    const i64 near = along_k ? o.k_step : o.line_step, apart = along_k ? THREADS / BK * o.line_step : THREADS / LINES * o.k_step;
    const i64 step = !VECTORS && APART ? apart : near;
    UNROLL for (int round = 0; round < ROUNDS; round++) {
      Vec<T, V> y;
      UNROLL for (int v = 0; v < V; v++)
        y.v[v] = line_of<VECTORS>(round, v) < lines && k_of<VECTORS>(round, v) < depth ? from[round][v * step] : T{};
      x[round] = Solid<T, V>::of(y);
    }
  }
  // The slice that begins at k0; the next call is for the next one.
  GPU_METHOD void hold(Held& x, size_t k0) {
    if (APART && !vectors) hold_each<false>(x, k0);
    else if (!vectors || k0 + BK > o.depth) hold_each<true>(x, k0);
    else UNROLL for (int round = 0; round < ROUNDS; round++) x[round] = *(const Solid<T, V>*)from[round];
    UNROLL for (int round = 0; round < ROUNDS; round++) from[round] += BK * o.k_step;
  }
  GPU_METHOD void put(C* slice, const Held& x) const {
    UNROLL for (int round = 0; round < ROUNDS; round++) {
      const Vec<T, V> from = x[round].elements();
      Vec<C, V> y;
      UNROLL for (int v = 0; v < V; v++) y.v[v] = widen(from.v[v]);
      if (APART && !vectors) {
        UNROLL for (int v = 0; v < V; v++) slice[k_of<false>(round, v) * PITCH + line_of<false>(round, v)] = y.v[v];
        continue;
      }
      C* const to = slice + k_of<true>(round, 0) * PITCH + line_of<true>(round, 0);
      if (along_k) UNROLL for (int v = 0; v < V; v++) to[v * PITCH] = y.v[v];
      else *(Solid<C, V>*)to = Solid<C, V>::of(y);
    }
  }
};

// BLOCKS of a cluster may share the depth out; each then adds up some of the TM rows that every thread has.
template <class T, int BM, int BN, int BK, int TM, int TN, int BLOCKS = 1> struct Gemm {
  typedef compute_t<T> C;
  static constexpr bool SHARED_OUT = BLOCKS > 1;
  static constexpr int THREADS = (BM / TM) * (BN / TN);
  static constexpr bool APART = TM * TN <= 64;
  typedef Panel<T, BM, BK, THREADS, APART> A;
  typedef Panel<T, BN, BK, THREADS, APART> B;
  static constexpr int SIZE = 2 * (A::SIZE + B::SIZE);
  static constexpr int W = 16 / (int)sizeof(C), GM = W < TM ? W : TM, GN = W < TN ? W : TN;
  static constexpr int SPREAD_M = BM / (TM / GM), SPREAD_N = BN / (TN / GN);

  // Of each thread's results a block adds up SHARE rows.
  static constexpr int SHARE = TM / BLOCKS, ROOM = SHARED_OUT && BM * BN > SIZE ? BM * BN : SIZE;
  GPU_FN void gather(C* shared, const Pair<C> (&acc)[TM][TN / 2], u32 thread, u32 rank, C (&sum)[SHARE][TN]) {
    static_assert(TM % BLOCKS == 0 && TN % 4 == 0, "rows for each block, of vectors");
    const auto place = [&](u32 block, int i, int j) { return shared + (((block * SHARE + i) * (TN / 4) + j / 4) * THREADS + thread) * 4; };
    cluster_barrier();
    UNROLL for (int to = 0; to < BLOCKS; to++)
      UNROLL for (int i = 0; i < SHARE; i++)
        UNROLL for (int j = 0; j < TN; j += 4) {
          const Pair<C>* const x = acc[to * SHARE + i] + j / 2;
          cluster_put(place(rank, i, j), Vec<C, 4>{{x[0][0], x[0][1], x[1][0], x[1][1]}}, to);
        }
    cluster_barrier();
    UNROLL for (int i = 0; i < SHARE; i++) UNROLL for (int j = 0; j < TN; j++) sum[i][j] = 0;
    UNROLL for (u32 from = 0; from < BLOCKS; from++)
      UNROLL for (int i = 0; i < SHARE; i++)
        UNROLL for (int j = 0; j < TN; j += 4) {
          const Vec<C, 4> x = load_shared<4>(place(from, i, j), 0);
          UNROLL for (int v = 0; v < 4; v++) sum[i][j + v] += x.v[v];
        }
  }
  // A row of a thread's results, of which GN are neighbours.
  GPU_FN void store(T* out, const Lines<T>& a, const Lines<T>& b, const C (&sum)[TN], size_t row, size_t col0, bool wide) {
    if (row < a.lines) UNROLL for (int g = 0; g < TN / GN; g++) {
      const size_t col = col0 + g * SPREAD_N;
      T* const to = out + row * b.lines + col;
      Vec<T, GN> x;
      UNROLL for (int j = 0; j < GN; j++) x.v[j] = narrow<T>(sum[g * GN + j]);
      if (wide && col < b.lines) *(Solid<T, GN>*)to = Solid<T, GN>::of(x);
      else UNROLL for (int j = 0; j < GN; j++)
        if (col + j < b.lines) to[j] = x.v[j];
    }
  }

  GPU_FN void run(C* shared, const Lines<T>& a, const Lines<T>& b, T* out, size_t row0, size_t col0) {
    // Anew for each tile: what follows from it for the results would else be kept in registers over all of them.
    u32 thread = tid_x();
    forget(thread);
    // A warp is 4 × 8 threads, neighbouring lanes one above the other: each quarter of it, which shared memory serves at once, reads
    // two groups of rows and four of columns.
    const u32 lane = thread % 32, warp = thread / 32;
    const u32 ty = (warp / (BN / TN / 8) * 4 + lane / 16 * 2 + lane % 2) * GM, tx = (warp % (BN / TN / 8) * 8 + lane % 16 / 2) * GN;
    A pa(a, row0, thread);
    B pb(b, col0, thread);
    Pair<C> acc[TM][TN / 2];
    UNROLL for (int i = 0; i < TM; i++) UNROLL for (int j = 0; j < TN / 2; j++) acc[i][j] = Pair<C>{0, 0};
    typename A::Held ha;
    typename B::Held hb;
    pa.hold(ha, 0);
    pb.hold(hb, 0);
    pa.put(shared, ha);
    pb.put(shared + 2 * A::SIZE, hb);
    barrier();
    u32 half = 0;
    for (size_t k0 = 0; k0 < a.depth; k0 += BK) {
      const bool more = k0 + BK < a.depth;
      if (more) pa.hold(ha, k0 + BK), pb.hold(hb, k0 + BK);
      const C* const sa = shared + half * A::SIZE + ty;
      const C* const sb = shared + 2 * A::SIZE + half * B::SIZE + tx;
      UNROLL_SOME for (int k = 0; k < BK; k++) {
        Vec<C, GM> x[TM / GM];
        Vec<C, GN> y[TN / GN];
        UNROLL for (int g = 0; g < TM / GM; g++) x[g] = load_shared<GM>(sa, k * A::PITCH + g * SPREAD_M);
        UNROLL for (int g = 0; g < TN / GN; g++) y[g] = load_shared<GN>(sb, k * B::PITCH + g * SPREAD_N);
        UNROLL for (int i = 0; i < TM; i++)
          UNROLL for (int j = 0; j < TN; j += 2)
            add_product(acc[i][j / 2], x[i / GM].v[i % GM], Pair<C>{y[j / GN].v[j % GN], y[j / GN].v[j % GN + 1]});
      }
      if (more) {
        half ^= 1;
        pa.put(shared + half * A::SIZE, ha);
        pb.put(shared + 2 * A::SIZE + half * B::SIZE, hb);
        barrier();
      }
    }
    const bool wide = b.lines % GN == 0 && vector_aligned<GN>(out);
    const auto row = [&](int i) { return row0 + (i / GM) * SPREAD_M + ty + i % GM; };
    if constexpr (SHARED_OUT) {
      const u32 rank = bid_x() % BLOCKS;
      C sum[SHARE][TN];
      gather(shared, acc, thread, rank, sum);
      UNROLL for (int i = 0; i < SHARE; i++) store(out, a, b, sum[i], row(rank * SHARE + i), col0 + tx, wide);
    } else UNROLL for (int i = 0; i < TM; i++) {
      C sum[TN];
      UNROLL for (int j = 0; j < TN; j++) sum[j] = acc[i][j / 2][j % 2];
      store(out, a, b, sum, row(i), col0 + tx, wide);
    }
    barrier();  // the next tile's slices go where this one's are read
  }

  // All tiles of a batch, and of each part of k, which are added up here where blocks share them.
  GPU_FN void all(C* shared, const T* a, const T* b, T* out, size_t batch, size_t m, size_t n, size_t k, i64 a_row, i64 a_col, i64 b_row,
                  i64 b_col, size_t num_dims, const size_t* info, size_t depth) {
    const size_t down = ceil_div(m, BM), across = ceil_div(n, BN), each = down * across, parts = SHARED_OUT ? 1 : ceil_div(k, depth);
    for (size_t i = bid_x() / BLOCKS; i < each * batch * parts; i += gdim_x() / BLOCKS) {
      const size_t z = divide(i, each), part = divide(z, batch), k0 = (SHARED_OUT ? bid_x() % BLOCKS : part) * depth;
      const TileAt tile = tile_at(i - z * each, down, across);
      i64 at[2] = {0, 0};
      if (batch > 1) offsets<2>(z - part * batch, num_dims, info, at);
      const size_t here = k0 >= k ? 0 : k - k0 < depth ? k - k0 : depth;
      run(shared, Lines<T>{a + at[0] + (i64)k0 * a_col, m, here, a_row, a_col}, Lines<T>{b + at[1] + (i64)k0 * b_row, n, here, b_col, b_row},
          out + z * m * n, tile.row * BM, tile.column * BN);
    }
  }
};

// By size: 2 × 4 GEMM_TILEs with as many sums as a thread's registers hold, or one where that would leave multiprocessors idle; of
// types of 8 bytes half on a side. Integers, whose products take registers in passing, have small tiles only. Where there are clusters,
// two blocks share a pair of tiles out, or GEMM_SPLIT a small one.
template <class T> struct GemmOf {
  static constexpr int E = sizeof(T) == 8 ? 2 : 1, TILE = GEMM_TILE / E;
  typedef Gemm<T, 2 * TILE, 4 * TILE, 8, 8 / E, 16 / E> Large;
  typedef Gemm<T, TILE, TILE, 16, 8 / E, 4 / E> Small;
  typedef Gemm<T, TILE, 2 * TILE, 16, 8 / E, 8 / E, 2> Pair;
  typedef Gemm<T, TILE, TILE, 16, 8 / E, 4 / E, GEMM_SPLIT> Split;
};

}  // namespace gpu
#endif
