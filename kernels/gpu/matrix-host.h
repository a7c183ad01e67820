// The host half of matrix.h: matrix instructions as the vendors' manuals describe them, over the registers of all
// lanes. A wave meets at the block's barrier, so all waves of a block must take the same path (GPU_TILE_LOCKSTEP).
// Sources: PTX ISA (ldmatrix, mma.m16n8k16); AMD's matrix instruction calculator for WMMA and MFMA.
#pragma once
#define GPU_TILE_LOCKSTEP 1

namespace gpu {
GPU_FN void schedule_fence() {}
GPU_FN void keep_apart(f32&) {}

// The registers of every thread of the block, published for one exchange.
struct HostRegisters { u64 x[16]; };
static HostRegisters host_registers[1024];
template <class X> SIM_RAW static void host_publish(int at, const X* x, int n) {
  for (int i = 0; i < n; i++) host_registers[tid_x()].x[at + i] = (u64)x[i];
}
template <int Lanes> SIM_RAW static u64 host_register(u32 lane, int at) {
  return host_registers[tid_x() / Lanes * Lanes + lane].x[at];
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
  barrier();
  for (u32 i = 0; i < 4; i++)
    x[i] = matrix_element(i, lane / 4, lane % 4 * 2) | (u32)matrix_element(i, lane / 4, lane % 4 * 2 + 1) << 16;
  barrier();
}
static inline void load_matrices_transposed(u32 (&x)[4], MatrixRef row) {
  const u32 lane = lane_id();
  if ((u64)row.at % 16) sim::trap("ldmatrix of a row that is not aligned to 16 bytes");
  host_publish(0, &row.at, 1);
  barrier();
  for (u32 i = 0; i < 4; i++)
    x[i] = matrix_element(i, lane % 4 * 2, lane / 4) | (u32)matrix_element(i, lane % 4 * 2 + 1, lane / 4) << 16;
  barrier();
}
#endif

// d[m][n] += Σ a[m][k]·b[n][k] where at(m, k) tells the lane and the 16-bit element that hold a place of either operand.
template <class T, int Lanes, int Results, class Place, class Where>
SIM_RAW static void host_multiply(f32* d, const u32* a, int a_words, const u32* b, int b_words, Place a_at, Place b_at, Where where) {
  host_publish(0, a, a_words);
  host_publish(a_words, b, b_words);
  barrier();
  for (int e = 0; e < Results; e++) {
    u32 m, n;
    where(e, m, n);
    for (u32 k = 0; k < 16; k++) {
      u32 lane_a, at_a, lane_b, at_b;
      a_at(m, k, lane_a, at_a);
      b_at(n, k, lane_b, at_b);
      const u64 x = host_register<Lanes>(lane_a, at_a / 2) >> 16 * (at_a % 2);
      const u64 y = host_register<Lanes>(lane_b, a_words + at_b / 2) >> 16 * (at_b % 2);
      d[e] += widen(T{(u16)x}) * widen(T{(u16)y});
    }
  }
  barrier();
}
typedef void (*HostPlace)(u32 row, u32 k, u32& lane, u32& at);

#if GPU_TILE == TILE_MMA
template <class T> SIM_RAW static void mma_m16n8k16(T, f32* d, const u32* a, const u32* b) {
  host_multiply<T, 32, 4, HostPlace>(
      d, a, 4, b, 2,
      [](u32 m, u32 k, u32& lane, u32& at) { lane = m % 8 * 4 + k % 8 / 2, at = (m / 8 + k / 8 * 2) * 2 + k % 2; },
      [](u32 n, u32 k, u32& lane, u32& at) { lane = n * 4 + k % 8 / 2, at = k / 8 * 2 + k % 2; },
      [](int e, u32& m, u32& n) { m = lane_id() / 4 + e / 2 * 8, n = lane_id() % 4 * 2 + e % 2; });
}
#elif GPU_TILE == TILE_WMMA11
template <class T> SIM_RAW static void wmma_gfx11(T, f32 (&d)[8], const u32 (&a)[8], const u32 (&b)[8]) {
  // Lanes l and l + 16 must hold the same operands; taking them in turns shows when they do not.
  const HostPlace at = [](u32 row, u32 k, u32& lane, u32& at) { lane = row + k % 2 * 16, at = k; };
  host_multiply<T, 32, 8, HostPlace>(d, a, 8, b, 8, at, at, [](int e, u32& m, u32& n) {
    m = 2 * e + lane_id() / 16, n = lane_id() % 16;
  });
}
#elif GPU_TILE == TILE_WMMA12
template <class T> SIM_RAW static void wmma_gfx12(T, f32 (&d)[8], const u32 (&a)[4], const u32 (&b)[4]) {
  const HostPlace at = [](u32 row, u32 k, u32& lane, u32& at) { lane = row + k / 4 % 2 * 16, at = k / 8 * 4 + k % 4; };
  host_multiply<T, 32, 8, HostPlace>(d, a, 4, b, 4, at, at, [](int e, u32& m, u32& n) {
    m = lane_id() / 16 * 8 + e, n = lane_id() % 16;
  });
}
#elif GPU_TILE == TILE_MFMA
template <class T> SIM_RAW static void mfma_16x16x16(T, f32 (&d)[4], const u32 (&a)[2], const u32 (&b)[2]) {
  const HostPlace at = [](u32 row, u32 k, u32& lane, u32& at) { lane = row + k / 4 * 16, at = k % 4; };
  host_multiply<T, 64, 4, HostPlace>(d, a, 2, b, 2, at, at, [](int e, u32& m, u32& n) {
    m = tid_x() % 64 / 16 * 4 + e, n = tid_x() % 16;
  });
}
GPU_FN f32 wave_xor(f32 x, u32 mask) {
  const u32 bits = f32_bits(x);
  host_publish(0, &bits, 1);
  barrier();
  const u32 other = (u32)host_register<64>(tid_x() % 64 ^ mask, 0);
  barrier();
  return f32_from_bits(other);
}
#endif
}  // namespace gpu
