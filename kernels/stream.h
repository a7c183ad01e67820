// What kernels need whose work is to read weights once: loads past the caches, shared memory of a single warp, sums over its
// lanes, and what a linear layer does to its results before it stores them.
#ifndef WICK_STREAM_H
#define WICK_STREAM_H
#include "gpu.h"
namespace gpu {

typedef Vec<u32, 4> Words4;

// 16 aligned bytes that nobody reads again: they should not push out of the cache what is.
GPU_FN Words4 load_once(const void* p) {
#if GPU_NVIDIA && __CUDA_ARCH__ >= 800
  Words4 x;
  asm("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(x.v[0]), "=r"(x.v[1]), "=r"(x.v[2]), "=r"(x.v[3])
      : "l"(p));
  return x;
#elif GPU_AMD
  const Bytes16 bytes = __builtin_nontemporal_load((const Bytes16*)p);
  return Words4{{bytes[0], bytes[1], bytes[2], bytes[3]}};
#else
  return *(const Words4*)p;
#endif
}

// Copies to shared memory that run beside arithmetic, where the device has them.
#if GPU_NVIDIA && __CUDA_ARCH__ >= 800
constexpr bool ASYNC_COPIES = true;
GPU_FN void copy16_async(u32* shared, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(shared)), "l"(from) : "memory");
}
// The same where `wanted`, without a branch.
GPU_FN void copy16_async(u32* shared, const void* from, bool wanted) {
  asm volatile("{ .reg .pred wanted; setp.ne.b32 wanted, %2, 0; @wanted cp.async.cg.shared.global.L2::256B [%0], [%1], 16; }" ::"r"(
                   (u32)__cvta_generic_to_shared(shared)),
               "l"(from), "r"((u32)wanted)
               : "memory");
}
GPU_FN void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Copies since the last call are one bunch; waits until no more than the N latest bunches are on their way.
GPU_FN void copies_bunch() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> GPU_FN void copies_wait_but() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
#else
constexpr bool ASYNC_COPIES = false;
GPU_FN void copy16_async(u32* shared, const void* from) { store_shared<4>(shared, 0, *(const Words4*)from); }
GPU_FN void copy16_async(u32* shared, const void* from, bool wanted) {
  if (wanted) copy16_async(shared, from);
}
GPU_FN void copies_wait() {}
GPU_FN void copies_bunch() {}
template <int N> GPU_FN void copies_wait_but() {}
#endif

// The low word of high ‖ low shifted right, by shift modulo 32.
GPU_FN u32 funnel_shift(u32 low, u32 high, u32 shift) {
#if GPU_NVIDIA
  return __funnelshift_r(low, high, shift);
#elif GPU_AMD
  return __builtin_amdgcn_alignbit(high, low, shift);
#else
  return (u32)(((u64)high << 32 | low) >> (shift & 31u));
#endif
}

// x & mask ^ turned. NVIDIA's compiler makes two instructions of it where both are constants.
GPU_FN u32 and_xor(u32 x, u32 mask, u32 turned) {
#if GPU_NVIDIA
  u32 y;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(y) : "r"(x), "r"(mask), "r"(turned));
  return y;
#else
  return (x & mask) ^ turned;
#endif
}

// The lowest bytes of four words.
GPU_FN u32 pack_bytes(u32 a, u32 b, u32 c, u32 d) {
#if GPU_NVIDIA
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
#elif GPU_AMD
  return __builtin_amdgcn_perm(__builtin_amdgcn_perm(d, c, 0x0c0c0400u), __builtin_amdgcn_perm(b, a, 0x0c0c0400u), 0x05040100u);
#else
  return (a & 0xffu) | (b & 0xffu) << 8 | (c & 0xffu) << 16 | d << 24;
#endif
}

// Makes the warp's writes to shared memory visible to its lanes. The simulator only knows barriers of whole blocks, so all
// warps of a block must come here equally often.
GPU_FN void warp_sync() {
#if GPU_NVIDIA
  __syncwarp();
#elif GPU_AMD
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
#else
  barrier();
#endif
}

// Element j of a word of T.
template <class T> struct InWord;
template <> struct InWord<f32> {
  static constexpr int Count = 1;
  GPU_FN f32 at(u32 word, int) { return f32_from_bits(word); }
};
template <> struct InWord<f16> {
  static constexpr int Count = 2;
  GPU_FN f32 at(u32 word, int j) { return f16_to_f32((u16)(word >> 16 * j)); }
};
template <> struct InWord<bf16> {
  static constexpr int Count = 2;
  GPU_FN f32 at(u32 word, int j) { return f32_from_bits(j ? word & 0xffff0000u : word << 16); }
};

// Totals of N values over the warp (N a power of two up to 32): lane l gets that of value l / (32 / N). Each step sends away
// the half of the values that the other lane keeps: N − 1 shuffles and a few more, not 5 N.
template <int N, int Bit = 16> struct WarpTotals {
  GPU_FN f32 of(const f32 (&v)[N]) {
    const bool upper = lane_id() & Bit;
    f32 kept[N / 2];
    UNROLL for (int i = 0; i < N / 2; i++) {
      // As values: of a choice between places older compilers make an address, and keep the array in memory for it.
      const f32 low = v[i], high = v[i + N / 2];
      kept[i] = (upper ? high : low) + shfl_xor(upper ? low : high, Bit);
    }
    return WarpTotals<N / 2, Bit / 2>::of(kept);
  }
};
template <int Bit> struct WarpTotals<1, Bit> {
  GPU_FN f32 of(const f32 (&v)[1]) {
    f32 total = v[0];
    UNROLL for (int bit = Bit; bit; bit /= 2) total += shfl_xor(total, bit);
    return total;
  }
};

// Floats whose type is known by number only: 0 f32, 1 f16, 2 bf16.
template <class T> struct DTypeNumber;
template <> struct DTypeNumber<f32> { static constexpr u32 value = 0; };
template <> struct DTypeNumber<f16> { static constexpr u32 value = 1; };
template <> struct DTypeNumber<bf16> { static constexpr u32 value = 2; };
GPU_FN void store_float(void* y, size_t at, f32 x, u32 dtype) {
  if (dtype == 0) ((f32*)y)[at] = x;
  else if (dtype == 1) ((f16*)y)[at] = narrow<f16>(x);
  else ((bf16*)y)[at] = narrow<bf16>(x);
}
GPU_FN f32 load_float(const void* x, size_t at, u32 dtype) {
  if (dtype == 0) return ((const f32*)x)[at];
  if (dtype == 1) return widen(((const f16*)x)[at]);
  return widen(((const bf16*)x)[at]);
}

GPU_FN bool is_infinite(f32 x) { return x > 3.402823466e+38f; }
// What makes rows small whose squares overflow; eps is nothing beside them.
GPU_FN f32 small_scale() { return f32_from_bits(0x1c800000u); }  // 2^-70
// What a row's products are multiplied with, by its sum of squares.
GPU_FN f32 norm_factor(f32 squares, size_t k, f32 eps) { return 1.0f / m_sqrt(squares / (f32)k + eps); }

// The rows of W that a warp takes together, R of them, and what becomes of their products. With a gate, the first half of them
// are gates and the second what they open, half of W apart.
template <int R, int NB> struct Outputs {
  static constexpr int Values = R * NB, Spread = 32 / Values;
  u32 columns;  // of y; rows of W are as many, or twice with a gate
  const void *bias, *residual;
  void* y;
  u32 batch, glu, dtype;  // glu: 0 none, 1 silu, 2 gelu

  GPU_METHOD Outputs(size_t n, const void* bias, const void* residual, void* y, u32 batch, u32 glu, u32 dtype)
      : columns((u32)(glu ? n / 2 : n)), bias(bias), residual(residual), y(y), batch(batch), glu(glu), dtype(dtype) {}

  GPU_METHOD u32 per_group() const { return glu ? R / 2 : R; }
  GPU_METHOD u32 groups() const { return (columns + per_group() - 1) / per_group(); }
  // Past the last column it is taken again, and not stored.
  GPU_METHOD u32 row(u32 group, u32 r) const {
    const u32 column = group * per_group() + (glu ? r % (R / 2) : r);
    return (column < columns ? column : columns - 1) + (glu && r >= R / 2 ? columns : 0);
  }
  GPU_METHOD f32 biased(u32 group, u32 r, f32 total) const { return bias ? total + load_float(bias, row(group, r), dtype) : total; }
  GPU_METHOD f32 gated(f32 gate, f32 total) const {
    const f32 slope = glu == 1 ? gate : 1.59576912160573071176f * gate * (1.0f + 0.044715f * gate * gate);
    return gate / (1.0f + m_exp(-slope)) * total;
  }
  // Row r of the group with row b of x, where there are such.
  GPU_METHOD void put(u32 group, u32 r, u32 b, f32 total) const {
    const u32 column = group * per_group() + r;
    if (r >= per_group() || column >= columns || b >= batch) return;
    const size_t at = (size_t)b * columns + column;
    if (residual) total += load_float(residual, at, dtype);
    store_float(y, at, total, dtype);
  }
  // The value of this lane, counted r · NB + b; one lane in Spread stores.
  GPU_METHOD u32 value() const { return lane_id() / Spread; }
  GPU_METHOD void store(u32 group, f32 total) const {
    const u32 r = value() / NB, b = value() % NB;
    total = biased(group, r, total);
    if (glu) total = gated(total, shfl_xor(total, 16));
    if (lane_id() % Spread == 0) put(group, r, b, total);
  }
};

}  // namespace gpu
#endif
