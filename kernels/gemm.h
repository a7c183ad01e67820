// Matrix products by multiply-adds: out (m, n) = a (m, k) · b (k, n) for any strides, in every dtype; halves are widened on the way
// into shared memory and summed in f32.
//
// A block makes BM × BN of the result, each thread TM × TN of it in registers, in groups of G neighbours so that shared memory is
// read as vectors. While one slice of BK is multiplied, the next is on its way: global → registers → the other half of shared
// memory; one barrier per slice. Traffic: a is read n/BN times, b m/BM times, mostly from the cache, as blocks go over the result in
// bands.
#ifndef WICK_GEMM_H
#define WICK_GEMM_H
#include "tile-order.h"
namespace gpu {

// `lines` × `depth` elements, rows of a or columns of b; each is `line_step` from the next line's and `k_step` from the next in its
// line.
template <class T> struct Lines {
  const T* at;
  size_t lines, depth;
  i64 line_step, k_step;
};

// The way of one operand into shared memory, LINES × BK of it at a time, where it lies k by k: a thread moves 16 bytes at once, along
// k or over neighbouring lines, whichever lie closer together in memory.
template <class T, int LINES, int BK, int THREADS> struct Panel {
  typedef compute_t<T> C;
  static constexpr int EACH = LINES * BK / THREADS, V = 16 / (int)sizeof(T) < EACH ? 16 / (int)sizeof(T) : EACH, ROUNDS = EACH / V;
  static constexpr int PITCH = LINES + 16 / (int)sizeof(C);  // keeps vectors aligned and spreads the banks
  static constexpr int SIZE = BK * PITCH;
  typedef Solid<T, V> Held[ROUNDS];

  Lines<T> o;
  size_t first;
  u32 thread;
  // Where each round's vector begins in the slice at hand. Lines past the end stand for the last one: nobody keeps what comes of them.
  const T* from[ROUNDS];
  bool along_k, vectors;

  GPU_METHOD Panel(const Lines<T>& operand, size_t first_, u32 thread_) : o(operand), first(first_), thread(thread_) {
    along_k = o.k_step == 1 || (o.line_step != 1 && (o.k_step < 0 ? -o.k_step : o.k_step) < (o.line_step < 0 ? -o.line_step : o.line_step));
    // Neighbouring lines may be cut by the edge in the middle of a vector.
    vectors = aligned_to(o.at, sizeof(T) * V) &&
              (along_k ? o.k_step == 1 && o.line_step % V == 0
                       : o.line_step == 1 && o.k_step % V == 0 && (o.lines % V == 0 || first + LINES <= o.lines));
    UNROLL for (int round = 0; round < ROUNDS; round++) {
      const size_t line = first + line_of(round), last = o.lines - (along_k || !vectors ? 1 : V);
      from[round] = o.at + (i64)(line < last ? line : last) * o.line_step + (i64)k_of(round) * o.k_step;
    }
  }
  GPU_METHOD u32 line_of(int round) const {
    const u32 i = thread + round * THREADS;
    return along_k ? i / (BK / V) : i % (LINES / V) * V;
  }
  GPU_METHOD u32 k_of(int round) const {
    const u32 i = thread + round * THREADS;
    return along_k ? i % (BK / V) * V : i / (LINES / V);
  }
  // The slice that begins at k0; the next call is for the next one.
  GPU_METHOD void hold(Held& x, size_t k0) {
    if (vectors && k0 + BK <= o.depth) {
      UNROLL for (int round = 0; round < ROUNDS; round++) x[round] = *(const Solid<T, V>*)from[round];
    } else {
      const i64 step = along_k ? o.k_step : o.line_step;
      UNROLL for (int round = 0; round < ROUNDS; round++) {
        const size_t line = first + line_of(round), at = k0 + k_of(round);
        Vec<T, V> y;
        UNROLL for (int v = 0; v < V; v++) {
          const bool inside = at + (along_k ? v : 0) < o.depth && line + (along_k ? 0 : v) < o.lines;
          y.v[v] = inside ? from[round][v * step] : T{};
        }
        x[round] = Solid<T, V>::of(y);
      }
    }
    UNROLL for (int round = 0; round < ROUNDS; round++) from[round] += BK * o.k_step;
  }
  GPU_METHOD void put(C* slice, const Held& x) const {
    UNROLL for (int round = 0; round < ROUNDS; round++) {
      const Vec<T, V> from = x[round].elements();
      Vec<C, V> y;
      UNROLL for (int v = 0; v < V; v++) y.v[v] = widen(from.v[v]);
      C* const to = slice + k_of(round) * PITCH + line_of(round);
      if (along_k) UNROLL for (int v = 0; v < V; v++) to[v * PITCH] = y.v[v];
      else *(Solid<C, V>*)to = Solid<C, V>::of(y);
    }
  }
};

template <class T, int BM, int BN, int BK, int TM, int TN> struct Gemm {
  typedef compute_t<T> C;
  static constexpr int THREADS = (BM / TM) * (BN / TN);
  typedef Panel<T, BM, BK, THREADS> A;
  typedef Panel<T, BN, BK, THREADS> B;
  static constexpr int SIZE = 2 * (A::SIZE + B::SIZE);
  static constexpr int W = 16 / (int)sizeof(C), GM = W < TM ? W : TM, GN = W < TN ? W : TN;
  static constexpr int SPREAD_M = BM / (TM / GM), SPREAD_N = BN / (TN / GN);

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
    UNROLL for (int i = 0; i < TM; i++) {
      const size_t row = row0 + (i / GM) * SPREAD_M + ty + i % GM;
      if (row < a.lines) UNROLL for (int g = 0; g < TN / GN; g++) {
        const size_t col = col0 + g * SPREAD_N + tx;
        T* const to = out + row * b.lines + col;
        Vec<T, GN> x;
        UNROLL for (int j = 0; j < GN; j++) x.v[j] = narrow<T>(acc[i][(g * GN + j) / 2][j % 2]);
        if (wide && col < b.lines) *(Solid<T, GN>*)to = Solid<T, GN>::of(x);
        else UNROLL for (int j = 0; j < GN; j++)
          if (col + j < b.lines) to[j] = x.v[j];
      }
    }
    barrier();  // the next tile's slices go where this one's are read
  }

  // All tiles of a batch, and of each part of k.
  GPU_FN void all(C* shared, const T* a, const T* b, T* out, size_t batch, size_t m, size_t n, size_t k, i64 a_row, i64 a_col, i64 b_row,
                  i64 b_col, size_t num_dims, const size_t* info, size_t depth) {
    const size_t down = ceil_div(m, BM), across = ceil_div(n, BN), each = down * across, parts = ceil_div(k, depth);
    for (size_t i = bid_x(); i < each * batch * parts; i += gdim_x()) {
      const size_t z = divide(i, each), part = divide(z, batch), k0 = part * depth;
      const TileAt tile = tile_at(i - z * each, down, across);
      i64 at[2] = {0, 0};
      if (batch > 1) offsets<2>(z - part * batch, num_dims, info, at);
      const size_t here = k - k0 < depth ? k - k0 : depth;
      run(shared, Lines<T>{a + at[0] + (i64)k0 * a_col, m, here, a_row, a_col}, Lines<T>{b + at[1] + (i64)k0 * b_row, n, here, b_col, b_row},
          out + z * m * n, tile.row * BM, tile.column * BN);
    }
  }
};

// By size: 2 × 4 GEMM_TILEs with as many sums as a thread's registers hold, or one where that would leave multiprocessors idle; of
// types of 8 bytes half on a side. Integers, whose products take registers in passing, have small tiles only.
template <class T> struct GemmOf {
  static constexpr int E = sizeof(T) == 8 ? 2 : 1, TILE = GEMM_TILE / E;
  typedef Gemm<T, 2 * TILE, 4 * TILE, 8, 8 / E, 16 / E> Large;
  typedef Gemm<T, TILE, TILE, 16, 8 / E, 4 / E> Small;
};

}  // namespace gpu
#endif
