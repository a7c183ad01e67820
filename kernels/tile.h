// Matrix units under one small interface: products of 16 × 16 tiles, c[i][j] += Σ a[i][k]·b[j][k], by the lanes of one wave.
// Which unit a program uses follows from the compiler and its target: mma.sync on NVIDIA from sm_80 on, WMMA on gfx11 and
// gfx12, MFMA on gfx90a and its successors where the compiler has the builtins, multiply-adds elsewhere and for f32. What it
// was is told by probe.hip. On the host GPU_HOST_TILE picks one, and the instructions themselves are played by tile_host.h, so
// that every layout below is executed by tests.
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
#include "gpu.h"

#define TILE_FMA 0
#define TILE_MMA 1
#define TILE_WMMA11 2
#define TILE_WMMA12 3
#define TILE_MFMA 4
#if GPU_HOST && defined(GPU_HOST_TILE)
#define GPU_TILE GPU_HOST_TILE
#elif GPU_NVIDIA && __CUDA_ARCH__ >= 800
#define GPU_TILE TILE_MMA
#elif defined(__GFX11__) && GPU_HAS(__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32) && \
    GPU_HAS(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32)
#define GPU_TILE TILE_WMMA11
// gfx1250 has the builtins and another instruction, by which it is known.
#elif defined(__GFX12__) && GPU_HAS(__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12) && \
    GPU_HAS(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12) && !GPU_HAS(__builtin_amdgcn_wmma_f32_16x16x32_bf16)
#define GPU_TILE TILE_WMMA12
// gfx908 has the builtins, too, but no instruction for the one with bf16.
#elif defined(__GFX9__) && !defined(__gfx908__) && GPU_HAS(__builtin_amdgcn_mfma_f32_16x16x16bf16_1k) && \
    GPU_HAS(__builtin_amdgcn_mfma_f32_16x16x16f16)
#define GPU_TILE TILE_MFMA
#else
#define GPU_TILE TILE_FMA
#endif
// Shared memory that one block may have, in KiB.
#ifndef GPU_SHARED_KB
#if GPU_NVIDIA && (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 870)
#define GPU_SHARED_KB 163
#elif GPU_NVIDIA && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
#define GPU_SHARED_KB 99
#elif GPU_NVIDIA && __CUDA_ARCH__ >= 900
#define GPU_SHARED_KB 227
#else
#define GPU_SHARED_KB 64
#endif
#endif

// ---------------------------------------------------------------------------------------------------------------------
// What differs between compilers: the matrix instructions, waves, copies that run beside arithmetic
// ---------------------------------------------------------------------------------------------------------------------
#if GPU_HOST
#include "tile_host.h"
#else
// Whether all waves of a block must take the same path through the products.
#define GPU_TILE_LOCKSTEP 0
#endif
#if GPU_NVIDIA
namespace gpu {
GPU_FN void wave_sync() { __syncwarp(); }
GPU_FN bool wave_any(bool x) { return __any_sync(0xffffffffu, x); }
GPU_FN void schedule_fence() {}
GPU_FN f32 max_fast(f32 a, f32 b) { return ::fmaxf(a, b); }
GPU_FN void keep_apart(f32&) {}
#if GPU_TILE == TILE_MMA
// A place in shared memory as the matrix loads name it.
struct MatrixRef {
  u32 at;
  GPU_METHOD MatrixRef plus(u32 elements) const { return MatrixRef{at + elements * 2}; }
};
GPU_FN MatrixRef matrix_ref(const void* p) { return MatrixRef{(u32)__cvta_generic_to_shared(p)}; }
// Four 8 × 8 matrices: lanes 8i … 8i+7 name the rows of matrix i; each lane gets two neighbours of row lane/4.
GPU_FN void load_matrices(u32 (&x)[4], MatrixRef row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(row.at));
}
// The same of the transposed matrices.
GPU_FN void load_matrices_transposed(u32 (&x)[4], MatrixRef row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(row.at));
}
#define TILE_MMA_SYNC(T) \
  GPU_FN void mma_m16n8k16(T, f32* d, const u32* a, const u32* b) { \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #T "." #T ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
  }
TILE_MMA_SYNC(bf16)
TILE_MMA_SYNC(f16)
#undef TILE_MMA_SYNC
// 16 bytes on their way to shared memory where `wanted`, zeros where not `valid`: then `from` may be anywhere.
GPU_FN void copy_async(void* shared, const void* from, bool valid, bool wanted) {
  asm volatile("{ .reg .pred wanted; setp.ne.b32 wanted, %3, 0; @wanted cp.async.cg.shared.global [%0], [%1], 16, %2; }" ::"r"(
                   (u32)__cvta_generic_to_shared(shared)),
               "l"(from), "r"(valid ? 16 : 0), "r"((u32)wanted)
               : "memory");
}
GPU_FN void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#endif
GPU_FN u32 pack2(bf16, f32 low, f32 high) {
#if __CUDA_ARCH__ >= 800
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
#else
  return f32_to_bf16(low) | (u32)f32_to_bf16(high) << 16;
#endif
}
GPU_FN u32 pack2(f16, f32 low, f32 high) {
#if __CUDA_ARCH__ >= 800
  u32 y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
#else
  return f32_to_f16(low) | (u32)f32_to_f16(high) << 16;
#endif
}
}  // namespace gpu
#elif GPU_AMD
namespace gpu {
// The lanes of a wave go together; this keeps the compiler from moving shared memory accesses across.
GPU_FN void wave_sync() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
GPU_FN bool wave_any(bool) { return true; }
// Nothing moves across: where the scheduler would start so many loads that registers run out.
#if GPU_HAS(__builtin_amdgcn_sched_barrier)
GPU_FN void schedule_fence() { __builtin_amdgcn_sched_barrier(0); }
#else
GPU_FN void schedule_fence() { GPU_KEEP_ORDER(); }
#endif
GPU_FN f32 max_fast(f32 a, f32 b) { return __builtin_fmaxf(a, b); }
// LLVM's vectorizer makes vectors of neighbouring sums, and some releases run out of registers by it (22, and those up to 16);
// it does not look through this. Beside MFMA only f32 is multiplied so, and packed multiply-adds are worth it there.
#if GPU_TILE == TILE_MFMA
GPU_FN void keep_apart(f32&) {}
#else
GPU_FN void keep_apart(f32& x) { asm("" : "+v"(x)); }
#endif
// Rounded without a look at NaN: the sum beside it carries that. Values are at most 1.
GPU_FN u32 pack2(bf16, f32 low, f32 high) {
  const u32 a = f32_bits(low), b = f32_bits(high);
  return (a + 0x7fffu + ((a >> 16) & 1u)) >> 16 | ((b + 0x7fffu + ((b >> 16) & 1u)) & 0xffff0000u);
}
GPU_FN u32 pack2(f16, f32 low, f32 high) { return f32_to_f16(low) | (u32)f32_to_f16(high) << 16; }

#define TILE_VECTOR(name, T, n) typedef T name __attribute__((ext_vector_type(n)))
template <int N> struct Registers { u32 x[N]; };
template <class V, int N> GPU_FN V as_vector(const u32 (&x)[N]) {
  Registers<N> r;
  UNROLL for (int i = 0; i < N; i++) r.x[i] = x[i];
  return __builtin_bit_cast(V, r);
}
#define TILE_AMD(name, instruction, T, H, width, results, ...) \
  GPU_FN void name(T, f32 (&d)[results], const u32 (&a)[width / 2], const u32 (&b)[width / 2]) { \
    TILE_VECTOR(In, H, width); \
    TILE_VECTOR(Out, float, results); \
    Out c; \
    UNROLL for (int i = 0; i < results; i++) c[i] = d[i]; \
    c = instruction(as_vector<In>(a), as_vector<In>(b), c __VA_ARGS__); \
    UNROLL for (int i = 0; i < results; i++) d[i] = c[i]; \
  }
#define TILE_COMMA ,
#if GPU_TILE == TILE_WMMA11
TILE_AMD(wmma_gfx11, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32, bf16, short, 16, 8)
TILE_AMD(wmma_gfx11, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32, f16, _Float16, 16, 8)
#elif GPU_TILE == TILE_WMMA12
TILE_AMD(wmma_gfx12, __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12, bf16, short, 8, 8)
TILE_AMD(wmma_gfx12, __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12, f16, _Float16, 8, 8)
#elif GPU_TILE == TILE_MFMA
TILE_AMD(mfma_16x16x16, __builtin_amdgcn_mfma_f32_16x16x16bf16_1k, bf16, short, 4, 4, TILE_COMMA 0 TILE_COMMA 0 TILE_COMMA 0)
TILE_AMD(mfma_16x16x16, __builtin_amdgcn_mfma_f32_16x16x16f16, f16, _Float16, 4, 4, TILE_COMMA 0 TILE_COMMA 0 TILE_COMMA 0)
// Over all 64 lanes of the wave.
GPU_FN f32 wave_xor(f32 x, u32 mask) {
  const u32 self = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
  return f32_from_bits((u32)__builtin_amdgcn_ds_bpermute((int)((self ^ mask) << 2), (int)f32_bits(x)));
}
#endif
#undef TILE_AMD
#undef TILE_COMMA
#undef TILE_VECTOR
}  // namespace gpu
#endif

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
  static constexpr bool TRANSPOSED = false, ASYNC = false, REGISTERS = false, INDEPENDENT = true;
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
  static constexpr bool TRANSPOSED = false, ASYNC = true, REGISTERS = true, INDEPENDENT = !GPU_TILE_LOCKSTEP;
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

  GPU_FN void copy(void* shared, const void* from, bool valid, bool wanted) { copy_async(shared, from, valid, wanted); }
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
  static constexpr bool TRANSPOSED = true, ASYNC = false, REGISTERS = true, INDEPENDENT = !GPU_TILE_LOCKSTEP;
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
