// The host half of matrix.h: matrix instructions as the vendors' manuals describe them, over the registers of all
// lanes of a wave, which meet for it.
// Sources: PTX ISA (ldmatrix, mma.m16n8k16); AMD's matrix instruction calculator for WMMA and MFMA.
#pragma once

namespace gpu {
GPU_FN void schedule_fence() {}
GPU_FN void keep_apart(f32&) {}

// The registers of every thread of the block, or of all blocks of a cluster, published for one exchange.
struct HostRegisters { u64 x[16]; };
static HostRegisters host_registers[1024];
template <class X> SIM_RAW static void host_publish(int at, const X* x, int n) {
  for (int i = 0; i < n; i++) host_registers[sim::thread_of_cluster()].x[at + i] = (u64)x[i];
}
template <int Lanes> SIM_RAW static u64 host_register(u32 lane, int at) {
  return host_registers[sim::thread_of_cluster() / Lanes * Lanes + lane].x[at];
}

#if GPU_TILE == TILE_MMA
struct MatrixRef {
  const u16* at;
  MatrixRef plus(u32 elements) const { return MatrixRef{at + elements}; }
};
GPU_FN MatrixRef matrix_ref(const void* p) { return MatrixRef{(const u16*)p}; }
static inline u16 matrix_element(u32 matrix, u32 row, u32 col) { return ((const u16*)host_register<32>(matrix * 8 + row, 0))[col]; }
static inline void load_matrices(u32 (&x)[4], MatrixRef row) {
  const u32 lane = lane_id();
  if ((u64)row.at % 16) sim::trap("ldmatrix of a row that is not aligned to 16 bytes");
  host_publish(0, &row.at, 1);
  sim::wave(false);
  for (u32 i = 0; i < 4; i++)
    x[i] = matrix_element(i, lane / 4, lane % 4 * 2) | (u32)matrix_element(i, lane / 4, lane % 4 * 2 + 1) << 16;
  sim::wave(false);
}
static inline void load_matrices_transposed(u32 (&x)[4], MatrixRef row) {
  const u32 lane = lane_id();
  if ((u64)row.at % 16) sim::trap("ldmatrix of a row that is not aligned to 16 bytes");
  host_publish(0, &row.at, 1);
  sim::wave(false);
  for (u32 i = 0; i < 4; i++)
    x[i] = matrix_element(i, lane % 4 * 2, lane / 4) | (u32)matrix_element(i, lane % 4 * 2 + 1, lane / 4) << 16;
  sim::wave(false);
}
#endif

// d[m][n] += Σ a[m][k]·b[n][k], where A::at(m, k) and B::at(n, k) tell the lane and the element of its registers that hold a place.
// Halves are widened when they are published, and places are looked up: lanes read each of them up to 16 times.
static f32 host_halves[1024][32];
template <class T> SIM_RAW static void host_publish_halves(int at, const u32* x, int words) {
  f32* to = host_halves[sim::thread_of_cluster()] + at;
  for (int i = 0; i < words; i++) to[2 * i] = widen(T{(u16)x[i]}), to[2 * i + 1] = widen(T{(u16)(x[i] >> 16)});
}
struct HostPlace { u32 lane, at; };
struct HostResult { u32 m, n; };
template <class Operand, int First> struct HostTable {
  u16 at[16][16];
  constexpr HostTable() : at() {
    for (u32 row = 0; row < 16; row++)
      for (u32 k = 0; k < 16; k++) at[row][k] = (u16)(Operand::at(row, k).lane * 32 + First + Operand::at(row, k).at);
  }
};
template <class A, class B, int Lanes, int Results, class T, class Where>
SIM_RAW static void host_multiply(T, f32* d, const u32* a, const u32* b, Where where) {
  static constexpr HostTable<A, 0> a_table;
  static constexpr HostTable<B, 16> b_table;
  host_publish_halves<T>(0, a, A::words);
  host_publish_halves<T>(16, b, B::words);
  sim::wave(false);
  const f32* wave = host_halves[sim::thread_of_cluster() / Lanes * Lanes];
  for (int e = 0; e < Results; e++) {
    const HostResult result = where(e);
    const u16 *x = a_table.at[result.m], *y = b_table.at[result.n];
    f32 sum = d[e];
    for (int k = 0; k < 16; k++) sum += wave[x[k]] * wave[y[k]];
    d[e] = sum;
  }
  sim::wave(false);
}
#define HOST_OPERAND(name, count, ...) \
  struct name { \
    static constexpr int words = count; \
    static constexpr HostPlace at(u32 row, u32 k) { return HostPlace{__VA_ARGS__}; } \
  }

#if GPU_TILE == TILE_MMA
HOST_OPERAND(HostLeft, 4, row % 8 * 4 + k % 8 / 2, (row / 8 + k / 8 * 2) * 2 + k % 2);
HOST_OPERAND(HostRight, 2, row * 4 + k % 8 / 2, k / 8 * 2 + k % 2);
template <class T> SIM_RAW static void mma_m16n8k16(T type, f32* d, const u32* a, const u32* b) {
  host_multiply<HostLeft, HostRight, 32, 4>(
      type, d, a, b, [](u32 e) { return HostResult{lane_id() / 4 + e / 2 * 8, lane_id() % 4 * 2 + e % 2}; });
}
#elif GPU_TILE == TILE_WMMA11
// Lanes l and l + 16 must hold the same operands; taking them in turns shows when they do not.
HOST_OPERAND(HostEither, 8, row + k % 2 * 16, k);
template <class T> SIM_RAW static void wmma_gfx11(T type, f32 (&d)[8], const u32 (&a)[8], const u32 (&b)[8]) {
  host_multiply<HostEither, HostEither, 32, 8>(
      type, d, a, b, [](u32 e) { return HostResult{2 * e + lane_id() / 16, (u32)lane_id() % 16}; });
}
#elif GPU_TILE == TILE_WMMA12
HOST_OPERAND(HostEither, 4, row + k / 4 % 2 * 16, k / 8 * 4 + k % 4);
template <class T> SIM_RAW static void wmma_gfx12(T type, f32 (&d)[8], const u32 (&a)[4], const u32 (&b)[4]) {
  host_multiply<HostEither, HostEither, 32, 8>(
      type, d, a, b, [](u32 e) { return HostResult{lane_id() / 16 * 8 + e, (u32)lane_id() % 16}; });
}
#elif GPU_TILE == TILE_MFMA
HOST_OPERAND(HostEither, 2, row + k / 4 * 16, k % 4);
template <class T> SIM_RAW static void mfma_16x16x16(T type, f32 (&d)[4], const u32 (&a)[2], const u32 (&b)[2]) {
  host_multiply<HostEither, HostEither, 64, 4>(
      type, d, a, b, [](u32 e) { return HostResult{tid_x() % 64 / 16 * 4 + e, tid_x() % 16}; });
}
GPU_FN f32 wave_xor(f32 x, u32 mask) {
  const u32 bits = f32_bits(x);
  host_publish(0, &bits, 1);
  sim::wave(false);
  const u32 other = (u32)host_register<64>(tid_x() % 64 ^ mask, 0);
  sim::wave(false);
  return f32_from_bits(other);
}
#endif
#undef HOST_OPERAND
}  // namespace gpu
