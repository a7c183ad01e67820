// Matrix units under one small interface: products of 16 × 16 tiles, c[i][j] += Σ a[i][k]·b[j][k], by the lanes of one wave.
// gpu/matrix.h has the unit and its instructions; there are multiply-adds where there is none, and for f32. Tests run every layout
// below on the host, which plays the instructions.
//
// A tile class has
// - LANES of a wave; STRIPS, how many rows of tiles one wave can keep results of; ROWS, the rows a lane has results of, with
//   row(r) their numbers; ELEMENTS results per lane in C, element e in row row(row_of(e)) and column col(e) (out_col(e)
//   after a product of an operand made from results);
// - A, B: operands in registers (or, with multiply-adds, places in shared memory); rows<Pitch>: from rows of shared memory
//   that run along k; cols<Pitch>: from rows that run along j, or, where TRANSPOSED, from rows that run along k again, as the
//   unit cannot transpose; P = operand(c): results as the left operand of the next product, no memory between them;
// - place<Pitch>: where a 16-byte piece of a row lies in the shared memory that these read.
#ifndef WICK_TILE_H
#define WICK_TILE_H
#include "gpu/matrix.h"

namespace gpu {
// Rows of shared memory have an odd number of 16-byte pieces, so that one piece of eight rows lies in all banks.
template <class T> GPU_FN constexpr int tile_pitch(int elements) {
  return (elements * (int)sizeof(T) / 16 | 1) * (16 / (int)sizeof(T));
}
// For mma.sync there is another way: rows of 64, 128 or 256 elements, in which piece p of row r lies where p ^ r mod 8 would. Each
// address takes an instruction more, but copies from memory keep 32-byte sectors together; to rows of odd length they read
// half of them twice, which costs a kernel that does little but read a sixth of its speed.
template <class T> GPU_FN constexpr int swizzled_pitch(int elements) {
#if GPU_TILE == TILE_MMA
  if (sizeof(T) == 2) return elements <= 64 ? 64 : elements <= 128 ? 128 : 256;
#endif
  return tile_pitch<T>(elements);
}

// ---------------------------------------------------------------------------------------------------------------------
// Multiply-adds. Lane 4y + x has rows y and y + 8; its columns of scores are x, x + 4 …, of outputs 4x … 4x + 3: both ways
// the lanes of a wave read shared memory without bank conflicts.
// ---------------------------------------------------------------------------------------------------------------------
template <class T> struct FmaTile {
  static constexpr int LANES = 32, STRIPS = 1, ROWS = 2, ELEMENTS = 8, RUN = 4;
  static constexpr bool TRANSPOSED = false, ASYNC = false, REGISTERS = false;
  typedef const T* Ref;
  struct A { Ref at; };
  struct B { Ref at; };
  struct C { f32 x[8]; };
  struct P { f32 x[2][16]; };

  GPU_FN u32 lane() { return lane_id(); }
  GPU_FN u32 row(int r) { return lane() / 4 + 8 * r; }
  GPU_FN constexpr int row_of(int e) { return e / 4; }
  GPU_FN u32 col(int e) { return lane() % 4 + 4 * (e % 4); }
  GPU_FN u32 out_col(int e) { return lane() % 4 * 4 + e % 4; }
  GPU_FN Ref ref(const T* shared) { return shared; }
  GPU_FN f32 row_max(f32 x) {
    x = max_fast(x, shfl_xor(x, 1));
    return max_fast(x, shfl_xor(x, 2));
  }
  GPU_FN f32 row_sum(f32 x) {
    x += shfl_xor(x, 1);
    return x + shfl_xor(x, 2);
  }

  template <int Pitch> GPU_FN u32 place(u32 row, u32 piece) { return row * Pitch + piece * (16 / sizeof(T)); }
  template <int Pitch> GPU_FN A left(Ref base, u32 offset) { return A{base + offset + row(0) * Pitch}; }
  template <int Pitch> GPU_FN B rows(Ref base, u32 offset) { return B{base + offset + lane() % 4 * Pitch}; }
  template <int Pitch> GPU_FN B cols(Ref base, u32 offset) { return B{base + offset + lane() % 4 * 4}; }
  template <int Pitch> GPU_FN void multiply(C& c, const A& a, const B& b) {
    constexpr int W = 16 / sizeof(T);
    UNROLL for (int k = 0; k < 16; k += W) {
      Vec<T, W> x[2], y[4];
      UNROLL for (int r = 0; r < 2; r++) x[r] = *(const Vec<T, W>*)(a.at + 8 * r * Pitch + k);
      UNROLL for (int j = 0; j < 4; j++) y[j] = *(const Vec<T, W>*)(b.at + 4 * j * Pitch + k);
      UNROLL for (int w = 0; w < W; w++)
        UNROLL for (int e = 0; e < 8; e++) c.x[e] += widen(x[e / 4].v[w]) * widen(y[e % 4].v[w]);
      UNROLL for (int e = 0; e < 8; e++) keep_apart(c.x[e]);
    }
  }
  GPU_FN P operand(const C& c) {
    P p;
    UNROLL for (int k = 0; k < 16; k++)
      UNROLL for (int r = 0; r < 2; r++) p.x[r][k] = shfl(c.x[4 * r + k / 4], (lane() & ~3u) | k % 4);
    return p;
  }
  template <int Pitch> GPU_FN void multiply(C& c, const P& p, const B& b) {
    UNROLL for (int k = 0; k < 16; k++) {
      const Vec<T, 4> y = *(const Vec<T, 4>*)(b.at + k * Pitch);
      UNROLL for (int e = 0; e < 8; e++) c.x[e] += p.x[e / 4][k] * widen(y.v[e % 4]);
      UNROLL for (int e = 0; e < 8; e++) keep_apart(c.x[e]);
    }
    schedule_fence();
  }
};

// ---------------------------------------------------------------------------------------------------------------------
// mma.sync m16n8k16, two side by side (PTX ISA, "Matrix Fragments for mma.m16n8k16"): lane 4y + x has rows y and y + 8,
// columns 2x, 2x + 1 of each eight. A result is laid out as the left operand of the next product.
// ---------------------------------------------------------------------------------------------------------------------
#if GPU_TILE == TILE_MMA
template <class T> struct MmaTile {
  static constexpr int LANES = 32, STRIPS = 2, ROWS = 2, ELEMENTS = 8, RUN = 2;
  static constexpr bool TRANSPOSED = false, ASYNC = true, REGISTERS = true;
  typedef MatrixRef Ref;
  struct A { u32 x[4]; };
  struct B { u32 x[4]; };
  struct C { f32 x[8]; };
  typedef A P;

  GPU_FN u32 lane() { return lane_id(); }
  GPU_FN u32 row(int r) { return lane() / 4 + 8 * r; }
  GPU_FN constexpr int row_of(int e) { return e / 2 % 2; }
  GPU_FN u32 col(int e) { return lane() % 4 * 2 + e % 2 + e / 4 * 8; }
  GPU_FN u32 out_col(int e) { return col(e); }
  GPU_FN Ref ref(const T* shared) { return matrix_ref(shared); }
  GPU_FN f32 row_max(f32 x) {
    x = max_fast(x, shfl_xor(x, 1));
    return max_fast(x, shfl_xor(x, 2));
  }
  GPU_FN f32 row_sum(f32 x) {
    x += shfl_xor(x, 1);
    return x + shfl_xor(x, 2);
  }

  GPU_FN void copy(void* shared, const void* from, bool valid, bool wanted) { copy16_async(shared, from, valid, wanted); }
  GPU_FN void copies_arrive() { copies_wait(); }
  // Which pitch it is tells how its rows are laid out.
  GPU_FN constexpr bool swizzled(int pitch) { return pitch % 64 == 0; }
  template <int Pitch> GPU_FN u32 place(u32 row, u32 piece) {
    return row * Pitch + (swizzled(Pitch) ? piece ^ row % 8 : piece) * 8;
  }
  // Piece 0 or 1 of a row of the 16 × 16 elements that begin at `offset` = row · Pitch + column.
  template <int Pitch> GPU_FN Ref piece_of(Ref base, u32 offset, u32 row, u32 piece) {
    if constexpr (swizzled(Pitch)) return base.plus(place<Pitch>(row, piece) ^ offset % Pitch).plus(offset / Pitch * Pitch);
    else return base.plus(place<Pitch>(row, piece)).plus(offset);
  }
  template <int Pitch> GPU_FN A left(Ref base, u32 offset) {
    A a;
    load_matrices(a.x, piece_of<Pitch>(base, offset, lane() % 16, lane() / 16));
    return a;
  }
  template <int Pitch> GPU_FN B rows(Ref base, u32 offset) {
    B b;
    load_matrices(b.x, piece_of<Pitch>(base, offset, lane() % 8 + lane() / 16 * 8, lane() / 8 % 2));
    return b;
  }
  template <int Pitch> GPU_FN B cols(Ref base, u32 offset) {
    B b;
    load_matrices_transposed(b.x, piece_of<Pitch>(base, offset, lane() % 16, lane() / 16));
    return b;
  }
  template <int Pitch> GPU_FN void multiply(C& c, const A& a, const B& b) {
    mma_m16n8k16(T{}, c.x, a.x, b.x);
    mma_m16n8k16(T{}, c.x + 4, a.x, b.x + 2);
  }
  GPU_FN P operand(const C& c) {
    P p;
    UNROLL for (int i = 0; i < 4; i++) p.x[i] = pack2(T{}, c.x[2 * i], c.x[2 * i + 1]);
    return p;
  }
};
#endif

// ---------------------------------------------------------------------------------------------------------------------
// AMD's units give lane l the results of column l mod 16 of a·bᵀ. With the operands exchanged that is row l mod 16 of ours:
// a lane then has one row, and its results already lie as the next product's operand wants them (gfx12, MFMA; on gfx11 two
// lanes swap halves). Layouts as printed by AMD's matrix instruction calculator (github.com/ROCm/amd_matrix_instruction_calculator).
// ---------------------------------------------------------------------------------------------------------------------
#if GPU_TILE == TILE_WMMA11 || GPU_TILE == TILE_WMMA12 || GPU_TILE == TILE_MFMA
template <class T, int Lanes, int Elements, int Halves> struct AmdTile {
  static constexpr int LANES = Lanes, ROWS = 1, ELEMENTS = Elements;
  static constexpr bool TRANSPOSED = true, ASYNC = false, REGISTERS = true;
  typedef const T* Ref;
  // Row l mod 16, `Halves` consecutive elements of k.
  struct A { u32 x[Halves / 2]; };
  typedef A B;
  typedef A P;
  struct C { f32 x[Elements]; };

  GPU_FN u32 lane() { return tid_x() % Lanes; }
  GPU_FN u32 row(int) { return lane() % 16; }
  GPU_FN constexpr int row_of(int) { return 0; }
  GPU_FN Ref ref(const T* shared) { return shared; }
  template <int Pitch> GPU_FN u32 place(u32 row, u32 piece) { return row * Pitch + piece * 8; }
  // The k that a lane's elements start at. gfx12 numbers k otherwise inside, but the same way for both operands.
  GPU_FN u32 first_k() { return Halves == 16 ? 0 : lane() / 16 * Halves; }
  template <int Pitch> GPU_FN A left(Ref base, u32 offset) {
    A a;
    constexpr int W = Halves < 8 ? Halves : 8;
    const T* from = base + lane() % 16 * Pitch + first_k() + offset;
    UNROLL for (int i = 0; i < Halves / W; i++) {
      const Vec<u32, W / 2> x = *(const Vec<u32, W / 2>*)(from + i * W);
      UNROLL for (int j = 0; j < W / 2; j++) a.x[i * W / 2 + j] = x.v[j];
    }
    return a;
  }
  template <int Pitch> GPU_FN B rows(Ref base, u32 offset) { return left<Pitch>(base, offset); }
  template <int Pitch> GPU_FN B cols(Ref base, u32 offset) { return left<Pitch>(base, offset); }
};
#endif

#if GPU_TILE == TILE_WMMA11
// Both halves of the wave hold the operands, all of k in each lane; lane l has columns 2e + l/16.
template <class T> struct WmmaTile11 : AmdTile<T, 32, 8, 16> {
  typedef AmdTile<T, 32, 8, 16> Base;
  using typename Base::A;
  using typename Base::B;
  using typename Base::C;
  using typename Base::P;
  static constexpr int STRIPS = 1, RUN = 1;
  GPU_FN u32 col(int e) { return 2 * e + Base::lane() / 16; }
  GPU_FN u32 out_col(int e) { return col(e); }
  GPU_FN f32 row_max(f32 x) { return max_fast(x, shfl_xor(x, 16)); }
  GPU_FN f32 row_sum(f32 x) { return x + shfl_xor(x, 16); }
  template <int Pitch> GPU_FN void multiply(C& c, const A& a, const B& b) { wmma_gfx11(T{}, c.x, b.x, a.x); }
  GPU_FN P operand(const C& c) {
    P p;
    const bool upper = Base::lane() / 16;
    UNROLL for (int i = 0; i < 4; i++) {
      const u32 own = pack2(T{}, c.x[2 * i], c.x[2 * i + 1]), other = shfl_xor(own, 16);
      const u32 even = upper ? other : own, odd = upper ? own : other;
      p.x[2 * i] = (even & 0xffffu) | odd << 16;
      p.x[2 * i + 1] = even >> 16 | (odd & 0xffff0000u);
    }
    return p;
  }
};
#elif GPU_TILE == TILE_WMMA12
// Lane l has columns 8·(l/16) + e.
template <class T> struct WmmaTile12 : AmdTile<T, 32, 8, 8> {
  typedef AmdTile<T, 32, 8, 8> Base;
  using typename Base::A;
  using typename Base::B;
  using typename Base::C;
  using typename Base::P;
  static constexpr int STRIPS = 1, RUN = 8;
  GPU_FN u32 col(int e) { return Base::lane() / 16 * 8 + e; }
  GPU_FN u32 out_col(int e) { return col(e); }
  GPU_FN f32 row_max(f32 x) { return max_fast(x, shfl_xor(x, 16)); }
  GPU_FN f32 row_sum(f32 x) { return x + shfl_xor(x, 16); }
  template <int Pitch> GPU_FN void multiply(C& c, const A& a, const B& b) { wmma_gfx12(T{}, c.x, b.x, a.x); }
  GPU_FN P operand(const C& c) {
    P p;
    UNROLL for (int i = 0; i < 4; i++) p.x[i] = pack2(T{}, c.x[2 * i], c.x[2 * i + 1]);
    return p;
  }
};
#elif GPU_TILE == TILE_MFMA
// 64 lanes; lane l has columns 4·(l/16) + e.
template <class T> struct MfmaTile : AmdTile<T, 64, 4, 4> {
  typedef AmdTile<T, 64, 4, 4> Base;
  using typename Base::A;
  using typename Base::B;
  using typename Base::C;
  using typename Base::P;
  static constexpr int STRIPS = 2, RUN = 4;
  GPU_FN u32 col(int e) { return Base::lane() / 16 * 4 + e; }
  GPU_FN u32 out_col(int e) { return col(e); }
  GPU_FN f32 row_max(f32 x) {
    x = max_fast(x, wave_xor(x, 16));
    return max_fast(x, wave_xor(x, 32));
  }
  GPU_FN f32 row_sum(f32 x) {
    x += wave_xor(x, 16);
    return x + wave_xor(x, 32);
  }
  template <int Pitch> GPU_FN void multiply(C& c, const A& a, const B& b) { mfma_16x16x16(T{}, c.x, b.x, a.x); }
  GPU_FN P operand(const C& c) {
    P p;
    UNROLL for (int i = 0; i < 2; i++) p.x[i] = pack2(T{}, c.x[2 * i], c.x[2 * i + 1]);
    return p;
  }
};
#endif

template <class T> struct TileOf { typedef FmaTile<T> type; };
#if GPU_TILE == TILE_MMA
#define TILE_OF(T) template <> struct TileOf<T> { typedef MmaTile<T> type; };
#elif GPU_TILE == TILE_WMMA11
#define TILE_OF(T) template <> struct TileOf<T> { typedef WmmaTile11<T> type; };
#elif GPU_TILE == TILE_WMMA12
#define TILE_OF(T) template <> struct TileOf<T> { typedef WmmaTile12<T> type; };
#elif GPU_TILE == TILE_MFMA
#define TILE_OF(T) template <> struct TileOf<T> { typedef MfmaTile<T> type; };
#else
#define TILE_OF(T)
#endif
TILE_OF(bf16)
TILE_OF(f16)
#undef TILE_OF
template <class T> using tile_t = typename TileOf<T>::type;

}  // namespace gpu
#endif
