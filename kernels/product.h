// Matrix products of halves on a matrix unit: out (m, n) = a (m, k) · b (k, n), sums in f32.
//
// A block makes BM × BN of the result, each wave WM × WN of it in registers. Slices of BK pass through shared memory, STAGES of
// them: while one is multiplied, the next are on their way, by copies that run beside arithmetic where the device has them, else by
// way of registers. An operand's lines, rows of a or columns of b, lie in shared memory one by one along k, whichever way they lie
// outside; only mma.sync, which can transpose, is given lines that lie side by side as they are.
// Traffic: a is read n/BN times, b m/BM times, mostly from the cache, as blocks go over the result in bands.
#ifndef WICK_PRODUCT_H
#define WICK_PRODUCT_H
#include "tile.h"
namespace gpu {

// `lines` × `depth` elements; each is `line_step` from the next line's and `k_step` from the next in its line.
template <class T> struct Operand {
  const T* at;
  size_t lines, depth;
  i64 line_step, k_step;
};

// How an operand lies: lines along k, lines side by side, or (read element by element) any way.
enum Lie { ALONG_K, SIDE_BY_SIDE };

// Of 8 pieces of 8 halves: what piece r is when they are turned, element r of each.
template <class Piece> GPU_FN Piece turned(const Piece (&x)[8], int r) {
  Piece y;
  UNROLL for (int w = 0; w < 4; w++) {
    const u32 low = x[2 * w][r / 2], high = x[2 * w + 1][r / 2];
    y[w] = r % 2 ? (low >> 16) | (high & 0xffff0000u) : (low & 0xffffu) | high << 16;
  }
  return y;
}

// The way of one operand into shared memory: LINES × BK of it at a time, by THREADS threads.
template <class T, int LINES, int BK, Lie LIE, int THREADS> struct Feed {
  typedef tile_t<T> Tile;
  static constexpr int V = 8;  // halves in 16 bytes
  // Side by side as they are, for a unit that can transpose; turned on the way for the others.
  static constexpr bool KEPT = LIE == SIDE_BY_SIDE && Tile::ASYNC, TURNED = LIE == SIDE_BY_SIDE && !KEPT;
  static constexpr int PITCH = swizzled_pitch<T>(KEPT ? LINES : BK), SIZE = (KEPT ? BK : LINES) * PITCH;
  // What a thread moves at once is one piece, or eight of neighbouring k to be turned.
  static constexpr int GROUP = TURNED ? 8 : 1, ITEMS = LINES * BK / V / GROUP, ROUNDS = (ITEMS + THREADS - 1) / THREADS;
  // From one round to the next a thread goes so many lines on, or so many k.
  static constexpr int ON = LIE == ALONG_K ? THREADS / (BK / V) : THREADS / (LINES / V) * GROUP;
  typedef Bytes16 Held[ROUNDS][GROUP];

  Operand<T> o;
  size_t first;
  const T* start;
  i64 round_step;
  // Which rounds have their lines inside of the operand; whether 16 bytes can be read at once.
  u32 there;
  bool vectors;

  GPU_METHOD Feed(const Operand<T>& operand, size_t first_) : o(operand), first(first_) {
    const i64 together = LIE == ALONG_K ? o.k_step : o.line_step, step = LIE == ALONG_K ? o.line_step : o.k_step;
    vectors = together == 1 && step % V == 0 && aligned_to(o.at, 16);
    start = o.at + (i64)(first + line_of(0)) * o.line_step + (i64)k_of(0) * o.k_step;
    round_step = ON * step;
    there = 0;
    UNROLL for (int round = 0; round < ROUNDS; round++) {
      const size_t line = first + line_of(round);
      if (line + (LIE == ALONG_K ? 1 : V) <= o.lines) there |= 1u << round;
    }
    // Lines side by side may be cut by the edge in the middle of a piece.
    if (LIE == SIDE_BY_SIDE && o.lines % V != 0 && first + LINES > o.lines) vectors = false;
  }
  GPU_METHOD bool mine(int round) const { return ITEMS % THREADS == 0 || tid_x() + round * THREADS < ITEMS; }
  // Of an item: its first line and its first k, inside of the slice.
  GPU_METHOD u32 line_of(int round) const {
    const u32 i = tid_x() + round * THREADS;
    return LIE == ALONG_K ? i / (BK / V) : i % (LINES / V) * V;
  }
  GPU_METHOD u32 k_of(int round) const {
    const u32 i = tid_x() + round * THREADS;
    return LIE == ALONG_K ? i % (BK / V) * V : i / (LINES / V) * GROUP;
  }
  // Where piece g of an item lies in a slice.
  GPU_METHOD u32 place(int round, int g) const {
    if constexpr (KEPT) return Tile::template place<PITCH>(k_of(round), line_of(round) / V);
    else return Tile::template place<PITCH>(line_of(round) + g, k_of(round) / V);
  }
  // Whether a slice can be moved in pieces: the last one, and odd layouts, may not.
  GPU_METHOD bool whole(size_t k0) const { return vectors && k0 + BK <= o.depth; }
  // Element by element, zeros beyond the edges: seldom, and out of the way of the rest.
  GPU_RARE void edge(const Feed& f, T* slice, size_t k0) {
    const Operand<T>& o = f.o;
    const size_t first = f.first;
    NO_UNROLL for (u32 i = tid_x(); i < LINES * BK; i += THREADS) {
      const u32 line = LIE == ALONG_K ? i / BK : i % LINES, k = LIE == ALONG_K ? i % BK : i / LINES;
      const bool inside = first + line < o.lines && k0 + k < o.depth;
      const T x = inside ? o.at[(i64)(first + line) * o.line_step + (i64)(k0 + k) * o.k_step] : T{};
      if constexpr (KEPT) slice[Tile::template place<PITCH>(k, line / V) + line % V] = x;
      else slice[Tile::template place<PITCH>(line, k / V) + k % V] = x;
    }
  }

  // By copies that run beside arithmetic.
  GPU_METHOD void copy(T* slice, size_t k0) const {
    if (!whole(k0)) {
      edge(*this, slice, k0);
      return;
    }
    const T* at = start + (i64)k0 * o.k_step;
    T* const to = slice + place(0, 0);
    UNROLL for (int round = 0; round < ROUNDS; round++) {
      const bool valid = there >> round & 1;
      if (mine(round)) Tile::copy(to + round * ON * PITCH, valid ? at : o.at, valid, true);
      at += round_step;
    }
  }
  // By way of registers; what cannot be moved in pieces is moved when it is put.
  GPU_METHOD void hold(Held& held, size_t k0) const {
    if (!whole(k0)) return;
    const T* at = start + (i64)k0 * o.k_step;
    UNROLL for (int round = 0; round < ROUNDS; round++) {
      const bool valid = mine(round) && (there >> round & 1);
      UNROLL for (int g = 0; g < GROUP; g++) held[round][g] = valid ? *(const Bytes16*)(at + g * o.k_step) : Bytes16{};
      at += round_step;
    }
  }
  GPU_METHOD void put(T* slice, Held& held, size_t k0) const {
    if (!whole(k0)) {
      edge(*this, slice, k0);
      return;
    }
    UNROLL for (int round = 0; round < ROUNDS; round++) {
      if (!mine(round)) continue;
      if constexpr (TURNED) UNROLL for (int g = 0; g < GROUP; g++) *(Bytes16*)(slice + place(round, g)) = turned(held[round], g);
      else *(Bytes16*)(slice + place(round, 0)) = held[round][0];
    }
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

template <class T, int BM, int BN, int BK, int WM, int WN, int STAGES, Lie LA, Lie LB> struct Product {
  typedef tile_t<T> Tile;
  static constexpr int DOWN = BM / WM, ACROSS = BN / WN, THREADS = DOWN * ACROSS * Tile::LANES;
  typedef Feed<T, BM, BK, LA, THREADS> FeedA;
  typedef Feed<T, BN, BK, LB, THREADS> FeedB;
  static_assert(STAGES >= 2, "a slice is written while another is read");
  static constexpr int MI = WM / 16, NI = WN / 16;
  typedef typename Tile::A A;
  typedef typename Tile::B B;
  typedef typename Tile::C C;

  struct Fragments {
    A a[MI];
    B b[NI];
  };
  GPU_FN void load(Fragments& f, typename Tile::Ref a, typename Tile::Ref b, u32 down, u32 across, u32 kk) {
    UNROLL for (int i = 0; i < MI; i++) {
      if constexpr (FeedA::KEPT) f.a[i] = turned_left<Tile, FeedA::PITCH>(a, kk * FeedA::PITCH + down + i * 16);
      else f.a[i] = Tile::template left<FeedA::PITCH>(a, i * 16 * FeedA::PITCH + kk);
    }
    UNROLL for (int j = 0; j < NI; j++) {
      if constexpr (FeedB::KEPT) f.b[j] = Tile::template cols<FeedB::PITCH>(b, kk * FeedB::PITCH + across + j * 16);
      else f.b[j] = Tile::template rows<FeedB::PITCH>(b, j * 16 * FeedB::PITCH + kk);
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
    const typename Tile::Ref rb = Tile::ref(b + (FeedB::KEPT ? 0 : across * WN * FeedB::PITCH));
    if constexpr (!Tile::ASYNC) {
      // Registers are what these units run out of: the right operand is read strip by strip.
      UNROLL for (int kk = 0; kk < BK; kk += 16) {
        A left[MI];
        UNROLL for (int i = 0; i < MI; i++) left[i] = Tile::template left<FeedA::PITCH>(ra, i * 16 * FeedA::PITCH + kk);
        UNROLL for (int j = 0; j < NI; j++) {
          const B right = Tile::template rows<FeedB::PITCH>(rb, j * 16 * FeedB::PITCH + kk);
          UNROLL for (int i = 0; i < MI; i++) Tile::template multiply<FeedB::PITCH>(c[i][j], left[i], right);
        }
        schedule_fence();
      }
    } else {
      Fragments f[2];
      load(f[0], ra, rb, down * WM, across * WN, 0);
      UNROLL for (int kk = 0; kk < BK; kk += 16) {
        if (kk + 16 < BK) load(f[(kk / 16 + 1) % 2], ra, rb, down * WM, across * WN, kk + 16);
        multiply(c, f[kk / 16 % 2]);
      }
    }
  }

  GPU_FN void run(T* shared, const Operand<T>& a, const Operand<T>& b, T* out, size_t row0, size_t col0) {
    const u32 wave = tid_x() / Tile::LANES, down = wave / ACROSS, across = wave % ACROSS;
    const FeedA fa(a, row0);
    const FeedB fb(b, col0);
    T* const sa = shared;
    T* const sb = shared + STAGES * FeedA::SIZE;
    C c[MI][NI];
    UNROLL for (int i = 0; i < MI; i++) UNROLL for (int j = 0; j < NI; j++) UNROLL for (int e = 0; e < Tile::ELEMENTS; e++) c[i][j].x[e] = 0;
    const u32 slices = (u32)ceil_div(a.depth, BK);
    if constexpr (Tile::ASYNC) {
      NO_UNROLL for (u32 s = 0; s < STAGES - 1; s++) {
        if (s < slices) {
          fa.copy(sa + s * FeedA::SIZE, (size_t)s * BK);
          fb.copy(sb + s * FeedB::SIZE, (size_t)s * BK);
        }
        copies_bunch();
      }
      u32 now = 0, next = STAGES - 1;
      for (u32 s = 0; s < slices; s++) {
        copies_wait_but<STAGES - 2>();
        barrier();
        if (s + STAGES - 1 < slices) {
          fa.copy(sa + next * FeedA::SIZE, (size_t)(s + STAGES - 1) * BK);
          fb.copy(sb + next * FeedB::SIZE, (size_t)(s + STAGES - 1) * BK);
        }
        copies_bunch();
        slice(c, sa + now * FeedA::SIZE, sb + now * FeedB::SIZE, down, across);
        now = now + 1 == STAGES ? 0 : now + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
      }
    } else {
      typename FeedA::Held ha;
      typename FeedB::Held hb;
      fa.hold(ha, 0);
      fb.hold(hb, 0);
      for (u32 s = 0; s < slices; s++) {
        T* const ta = sa + s % STAGES * FeedA::SIZE;
        T* const tb = sb + s % STAGES * FeedB::SIZE;
        fa.put(ta, ha, (size_t)s * BK);
        fb.put(tb, hb, (size_t)s * BK);
        barrier();
        if (s + 1 < slices) {
          fa.hold(ha, (size_t)(s + 1) * BK);
          fb.hold(hb, (size_t)(s + 1) * BK);
        }
        slice(c, ta, tb, down, across);
      }
    }
    store(c, out, a.lines, b.lines, row0 + down * WM, col0 + across * WN);
    barrier();  // the next tile's slices go where this one's are read
  }

  GPU_FN void store(const C (&c)[MI][NI], T* out, size_t m, size_t n, size_t row0, size_t col0) {
    constexpr int R = Tile::RUN;
    const bool wide = n % R == 0 && vector_aligned<R>(out);
    UNROLL for (int i = 0; i < MI; i++)
      UNROLL for (int j = 0; j < NI; j++)
        UNROLL for (int e = 0; e < Tile::ELEMENTS; e += R) {
          const size_t row = row0 + i * 16 + Tile::row(Tile::row_of(e)), col = col0 + j * 16 + Tile::col(e);
          Vec<T, R> x;
          UNROLL for (int r = 0; r < R; r++) x.v[r] = narrow<T>(c[i][j].x[e + r]);
          T* const to = out + row * n + col;
          if (row >= m) continue;
          if (wide && col < n) *(Vec<T, R>*)to = x;
          else UNROLL for (int r = 0; r < R; r++)
            if (col + r < n) to[r] = x.v[r];
        }
  }
};

// The sizes of a unit: PRODUCT_TILE of the result on a side, half as much where that would leave multiprocessors idle.
#if GPU_TILE == TILE_MMA
constexpr int SLICE = PRODUCT_ASYNC_SLICE, STAGES_OF[2] = {PRODUCT_ASYNC_STAGES, PRODUCT_ASYNC_STAGES + 1}, NARROW = 1;
#else
// WMMA's operands take so many registers that a wave makes half as many columns.
constexpr int SLICE = PRODUCT_SLICE, STAGES_OF[2] = {PRODUCT_STAGES, PRODUCT_STAGES}, NARROW = GPU_TILE == TILE_MFMA ? 1 : 2;
#endif
template <class T, bool SMALL, Lie LA, Lie LB>
using ProductOf = Product<T, PRODUCT_TILE / (SMALL ? 2 : 1), PRODUCT_TILE / (SMALL ? 2 : 1), SLICE, PRODUCT_TILE / (SMALL ? 4 : 2),
                          PRODUCT_TILE / (SMALL ? 4 : 2 * NARROW), STAGES_OF[SMALL], LA, LB>;

// All tiles of a batch, in bands of so many rows of tiles: neighbours in time share lines of both operands.
template <class P, class T>
GPU_FN void products(T* shared, const T* a, const T* b, T* out, size_t batch, size_t m, size_t n, size_t k, i64 a_row, i64 a_col, i64 b_row,
                     i64 b_col, size_t num_dims, const size_t* info, int tile) {
  constexpr size_t BAND = 8;
  const size_t down = ceil_div(m, (size_t)tile), across = ceil_div(n, (size_t)tile), each = down * across;
  for (size_t i = bid_x(); i < each * batch; i += gdim_x()) {
    const size_t z = divide(i, each), in_batch = i - z * each;
    const size_t band = divide(in_batch, BAND * across), in = in_batch - band * BAND * across;
    const size_t height = band * BAND + BAND <= down ? BAND : down - band * BAND, column = divide(in, height);
    i64 at[2] = {0, 0};
    if (batch > 1) offsets<2>(z, num_dims, info, at);
    P::run(shared, Operand<T>{a + at[0], m, k, a_row, a_col}, Operand<T>{b + at[1], n, k, b_col, b_row}, out + z * m * n,
           (band * BAND + in - column * height) * tile, column * tile);
  }
}

}  // namespace gpu
#endif
