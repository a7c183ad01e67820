// The one header that knows the compiler. Kernels are written once against it and built by hiprtc or clang for AMD, by
// nvrtc or nvcc for NVIDIA, and by a host C++ compiler for the simulator. It includes no system header: run-time
// compilers have none. All names live in namespace gpu, where the kernels are, too, so that nothing collides with what
// a run-time compiler declares by itself (hiprtc's implicit header, for one).
//
// Conventions of every kernel
// - size_t and pointers are 64-bit, indices are 64-bit; strides are signed (int64 in a size_t array).
// - `info` points to dims ‖ strides (‖ strides of further operands), counted in elements; null = all contiguous.
// - Blocks are one-dimensional; a launch has at least one element. Grid sizes are capped, so kernels loop over blocks.
// - Halves are stored as 16 bits and computed in f32.
#ifndef WICK_GPU_H
#define WICK_GPU_H

#if defined(__HIP__) || defined(__AMDGCN__)
#define GPU_AMD 1
#elif defined(__CUDACC__)
#define GPU_NVIDIA 1
#else
#define GPU_HOST 1
#endif

// A part of the kernels needs a part of the functions.
#if defined(__clang__) && (defined(GPU_ONLY) || defined(GPU_PICK))
#pragma clang diagnostic ignored "-Wunused-function"
#endif

// Whether the compiler has a builtin for its target: releases of one vendor differ, as do parts of one family.
#if GPU_AMD && defined(__has_builtin)
#define GPU_HAS(builtin) __has_builtin(builtin)
#else
#define GPU_HAS(builtin) 0
#endif

// ---------------------------------------------------------------------------------------------------------------------
// Kernels, and which of them a program has
// ---------------------------------------------------------------------------------------------------------------------
// KERNEL_BOUNDS(threads, name, arguments…) { body }; KERNEL allows 1024 threads. KERNEL_CROWDED also asks for registers to
// be few enough that so many blocks share a multiprocessor; only NVIDIA's compiler needs to be told.
//
// Without GPU_PICK a program has all kernels of its source. With -DGPU_PICK it has those for which -DGPU_PICK_<name> is given
// (as it stands, which defines it as 1; no other value counts). The others become templates that nobody instantiates: their
// bodies are parsed and that is all, which is why picking a few saves most of the compile time.
#define KERNEL(name, ...) KERNEL_BOUNDS(1024, name, __VA_ARGS__)
#define KERNEL_BOUNDS(threads, name, ...) GPU_CHOICE(name)(GPU_BOUNDS(threads), name, __VA_ARGS__)
#define KERNEL_CROWDED(threads, blocks, name, ...) GPU_CHOICE(name)(GPU_BOUNDS_CROWDED(threads, blocks), name, __VA_ARGS__)
#define GPU_NO_KERNEL(bounds, name, ...) template <int> GPU_FN void name(__VA_ARGS__)
#ifdef GPU_PICK
// GPU_PICK_<name> is 1 or stands for itself; GPU_PICKED_1 brings the comma that makes GPU_KERNEL the second of the list.
#define GPU_CHOICE(name) GPU_PICKED(GPU_PICK_##name)
#define GPU_PICKED(pick) GPU_PICKED_JOIN(pick)
#define GPU_PICKED_JOIN(pick) GPU_PICKED_SECOND(GPU_PICKED_##pick GPU_KERNEL, GPU_NO_KERNEL, )
#define GPU_PICKED_SECOND(...) GPU_PICKED_TAKE(__VA_ARGS__)
#define GPU_PICKED_TAKE(first, second, ...) second
#define GPU_PICKED_1 ,
#else
#define GPU_CHOICE(name) GPU_KERNEL
#endif

// ---------------------------------------------------------------------------------------------------------------------
// What differs: function attributes, thread ids, barriers, shuffles, shared memory, atomics
// ---------------------------------------------------------------------------------------------------------------------
#if GPU_AMD

#define GPU_DEVICE __attribute__((device))
// Inlined always: calls cost registers and stack on AMD, and no kernel here recurses.
#define GPU_FN static inline __attribute__((device, always_inline))
#define GPU_METHOD inline __attribute__((device, always_inline))
// What hardly ever happens and is long.
#define GPU_RARE GPU_FN
#define GPU_KERNEL(bounds, name, ...) extern "C" __attribute__((global, bounds)) void name(__VA_ARGS__)
// A known block size lets the compiler give each thread more registers than 1024 threads could have.
#define GPU_BOUNDS(threads) amdgpu_flat_work_group_size(1, threads)
#define GPU_BOUNDS_CROWDED(threads, blocks) GPU_BOUNDS(threads)
// 16-byte alignment of all shared memory, so that load_shared/store_shared may move whole vectors.
#define SHARED(T, name, N) static __attribute__((shared, aligned(16))) T name[N]
#define DYNAMIC_SHARED(T, name) \
  extern __attribute__((shared, aligned(16))) char name##_bytes[]; \
  T* name = (T*)name##_bytes
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("nounroll")
// Where a whole loop would be scheduled at once and spill: LLVM trades registers for distance between loads and uses.
#define UNROLL_SOME _Pragma("unroll 2")

extern "C" GPU_DEVICE __attribute__((const)) decltype(sizeof 0) __ockl_get_num_groups(unsigned);

namespace gpu {
GPU_FN unsigned tid_x() { return __builtin_amdgcn_workitem_id_x(); }
GPU_FN unsigned bid_x() { return __builtin_amdgcn_workgroup_id_x(); }
GPU_FN unsigned bdim_x() { return __builtin_amdgcn_workgroup_size_x(); }
GPU_FN unsigned gdim_x() { return (unsigned)__ockl_get_num_groups(0); }
// Release and acquire at workgroup scope around the barrier make shared and global writes of the block visible to it.
GPU_FN void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
// Orders a thread's accesses to memory before and after an operation that other blocks see.
GPU_FN void device_fence() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "agent"); }
// The logical warp has 32 lanes: on wave 64 the two halves of a wave are two warps.
GPU_FN unsigned shfl_word(unsigned x, unsigned lane) {
  const unsigned self = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
  return (unsigned)__builtin_amdgcn_ds_bpermute((int)(((self & ~31u) | (lane & 31u)) << 2), (int)x);
}
GPU_FN unsigned long long atomic_cas(unsigned long long* at, unsigned long long expected, unsigned long long value) {
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <class T> GPU_FN T atomic_add(T* at, T value) {
  return __hip_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
GPU_FN unsigned f32_bits(float x) { return __builtin_bit_cast(unsigned, x); }
GPU_FN float f32_from_bits(unsigned x) { return __builtin_bit_cast(float, x); }
GPU_FN unsigned long long f64_bits(double x) { return __builtin_bit_cast(unsigned long long, x); }
GPU_FN double f64_from_bits(unsigned long long x) { return __builtin_bit_cast(double, x); }
GPU_FN float f16_to_f32(unsigned short x) { return (float)__builtin_bit_cast(_Float16, x); }
// LLVM 19 and its neighbours make one instruction of a product and its conversion, a·b + 0, which turns −0 into +0; so the
// product is hidden from the conversion.
GPU_FN unsigned short f32_to_f16(float x) {
  asm("" : "+v"(x));
  return __builtin_bit_cast(unsigned short, (_Float16)x);
}
// One instruction each, a few units in the last place off; subnormal results may be 0.
#if GPU_HAS(__builtin_amdgcn_exp2f)
GPU_FN float approx_exp2(float x) { return __builtin_amdgcn_exp2f(x); }
#else
// Until LLVM had that builtin (mid 2023) this one was the bare instruction; since then it cares for subnormals.
GPU_FN float approx_exp2(float x) { return __builtin_exp2f(x); }
#endif
GPU_FN float approx_recip(float x) { return __builtin_amdgcn_rcpf(x); }
GPU_FN float approx_rsqrt(float x) { return __builtin_amdgcn_rsqf(x); }
}  // namespace gpu

#elif GPU_NVIDIA

#define GPU_DEVICE __device__
#define GPU_FN static __device__ __forceinline__
#define GPU_METHOD __device__ __forceinline__
#define GPU_RARE static __device__ __noinline__
#define GPU_KERNEL(bounds, name, ...) extern "C" __global__ void bounds name(__VA_ARGS__)
#define GPU_BOUNDS(threads) __launch_bounds__(threads)
#define GPU_BOUNDS_CROWDED(threads, blocks) __launch_bounds__(threads, blocks)
#define SHARED(T, name, N) __shared__ __align__(16) T name[N]
#define DYNAMIC_SHARED(T, name) \
  extern __shared__ __align__(16) char gpu_dynamic_shared[]; \
  T* name = (T*)gpu_dynamic_shared
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define UNROLL_SOME UNROLL

namespace gpu {
GPU_FN unsigned tid_x() { return threadIdx.x; }
GPU_FN unsigned bid_x() { return blockIdx.x; }
GPU_FN unsigned bdim_x() { return blockDim.x; }
GPU_FN unsigned gdim_x() { return gridDim.x; }
GPU_FN void barrier() { __syncthreads(); }
GPU_FN void device_fence() { __threadfence(); }
GPU_FN unsigned shfl_word(unsigned x, unsigned lane) { return __shfl_sync(0xffffffffu, x, (int)(lane & 31u), 32); }
GPU_FN unsigned long long atomic_cas(unsigned long long* at, unsigned long long expected, unsigned long long value) {
  return atomicCAS(at, expected, value);
}
template <class T> GPU_FN T atomic_add(T* at, T value) { return atomicAdd(at, value); }
GPU_FN unsigned f32_bits(float x) { return __float_as_uint(x); }
GPU_FN float f32_from_bits(unsigned x) { return __uint_as_float(x); }
GPU_FN unsigned long long f64_bits(double x) { return (unsigned long long)__double_as_longlong(x); }
GPU_FN double f64_from_bits(unsigned long long x) { return __longlong_as_double((long long)x); }
// nvrtc has no cuda_fp16.h; the instructions themselves are everywhere.
GPU_FN float f16_to_f32(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
GPU_FN unsigned short f32_to_f16(float x) {
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
GPU_FN float approx_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
GPU_FN float approx_recip(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
GPU_FN float approx_rsqrt(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
}  // namespace gpu

#else  // host: the simulator's half of this header

// sim.h defines GPU_KERNEL, GPU_BOUNDS, SHARED, DYNAMIC_SHARED, and in namespace gpu tid_x, bid_x, bdim_x, gdim_x, barrier
// and the templates shfl, shfl_xor, shfl_down and, in its own, atomic_add. It watches every access to memory.
#include "sim.h"

#define GPU_DEVICE
#define GPU_FN static inline
#define GPU_METHOD inline
#define GPU_RARE GPU_FN
#define GPU_BOUNDS_CROWDED(threads, blocks) GPU_BOUNDS(threads)
#define UNROLL
#define NO_UNROLL
#define UNROLL_SOME

namespace gpu {
using sim::atomic_add;
// Blocks run one after another.
GPU_FN void device_fence() {}
GPU_FN unsigned long long atomic_cas(unsigned long long* at, unsigned long long expected, unsigned long long value) {
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <class To, class From> static inline To host_bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "");
  To y;
  __builtin_memcpy(&y, &x, sizeof y);
  return y;
}
GPU_FN unsigned f32_bits(float x) { return host_bits<unsigned>(x); }
GPU_FN float f32_from_bits(unsigned x) { return host_bits<float>(x); }
GPU_FN unsigned long long f64_bits(double x) { return host_bits<unsigned long long>(x); }
GPU_FN double f64_from_bits(unsigned long long x) { return host_bits<double>(x); }
GPU_FN float approx_exp2(float x) { return __builtin_exp2f(x); }
GPU_FN float approx_recip(float x) { return 1.0f / x; }
GPU_FN float approx_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
// Multiplying by 2^112 moves the exponent and normalises subnormals.
GPU_FN float f16_to_f32(unsigned short h) {
  const unsigned magnitude = (h & 0x7fffu) << 13;
  unsigned bits = f32_bits(f32_from_bits(magnitude) * f32_from_bits(0x77800000u));
  if (magnitude >= 0x0f800000u) bits |= 0x7f800000u;
  return f32_from_bits(bits | (h & 0x8000u) << 16);
}
GPU_FN unsigned short f32_to_f16(float x) {
  const unsigned sign = (f32_bits(x) >> 16) & 0x8000u, m = f32_bits(x) & 0x7fffffffu;
  if (m > 0x7f800000u) return (unsigned short)(sign | 0x7e00u);
  if (m >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u);
  if (m < 0x38800000u) return (unsigned short)(sign | (f32_bits(f32_from_bits(m) + 0.5f) - 0x3f000000u));
  return (unsigned short)(sign | ((m - 0x38000000u + 0xfffu + ((m >> 13) & 1u)) >> 13));
}
}  // namespace gpu

#endif

// ---------------------------------------------------------------------------------------------------------------------
// Types: the dtypes of the catalogue under the catalogue's names, so that one macro argument is both type and suffix
// ---------------------------------------------------------------------------------------------------------------------
namespace gpu {
typedef decltype(sizeof 0) size_t;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct f8e4m3 { u8 bits; };

GPU_FN f32 bf16_to_f32(u16 x) { return f32_from_bits((u32)x << 16); }
#if GPU_NVIDIA && __CUDA_ARCH__ >= 800
GPU_FN u16 f32_to_bf16(f32 x) {
  u16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
#else
GPU_FN u16 f32_to_bf16(f32 x) {
  const u32 b = f32_bits(x);
  return (u16)(x != x ? (b >> 16) | 0x40u : (b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
}
#endif
// e4m3fn: no infinities, beyond 464 there is only NaN, subnormals count units of 2^-9.
GPU_FN f32 f8e4m3_to_f32(u8 x) {
  const u32 m = x & 0x7fu, sign = (x & 0x80u) << 24;
  if (m == 0x7fu) return f32_from_bits(sign | 0x7fc00000u);
  return f32_from_bits(sign | f32_bits(f32_from_bits(m << 20) * f32_from_bits(0x7b800000u)));
}
GPU_FN u8 f32_to_f8e4m3(f32 x) {
  const u32 b = f32_bits(x), m = b & 0x7fffffffu, sign = (b >> 24) & 0x80u;
  if (m > 0x43e80000u) return (u8)(sign | 0x7fu);
  if (m < 0x3c800000u) return (u8)(sign | (f32_bits(f32_from_bits(m) + 16384.0f) - 0x46800000u));
  return (u8)(sign | ((m - 0x3c000000u + 0x7ffffu + ((m >> 20) & 1u)) >> 20));
}

// Compute<T>::type is what arithmetic on T happens in: f32 for the small floats, T itself otherwise.
template <class T> struct Compute { typedef T type; };
template <> struct Compute<f16> { typedef f32 type; };
template <> struct Compute<bf16> { typedef f32 type; };
template <> struct Compute<f8e4m3> { typedef f32 type; };
template <class T> using compute_t = typename Compute<T>::type;

template <class T> struct IsFloat { static constexpr bool value = false; };
template <> struct IsFloat<f32> { static constexpr bool value = true; };
template <> struct IsFloat<f64> { static constexpr bool value = true; };
template <> struct IsFloat<f16> { static constexpr bool value = true; };
template <> struct IsFloat<bf16> { static constexpr bool value = true; };
template <> struct IsFloat<f8e4m3> { static constexpr bool value = true; };

// The unsigned integer of a type's size: kernels that only move elements are written over it.
template <int Bytes> struct BitsOfSize;
template <> struct BitsOfSize<1> { typedef u8 type; };
template <> struct BitsOfSize<2> { typedef u16 type; };
template <> struct BitsOfSize<4> { typedef u32 type; };
template <> struct BitsOfSize<8> { typedef u64 type; };
template <class T> using bits_t = typename BitsOfSize<sizeof(T)>::type;

template <class T> GPU_FN T widen(T x) { return x; }
GPU_FN f32 widen(f16 x) { return f16_to_f32(x.bits); }
GPU_FN f32 widen(bf16 x) { return bf16_to_f32(x.bits); }
GPU_FN f32 widen(f8e4m3 x) { return f8e4m3_to_f32(x.bits); }

// Narrow<T>::from rounds a compute value to T (nearest even).
template <class T> struct Narrow { GPU_FN T from(T x) { return x; } };
template <> struct Narrow<f16> { GPU_FN f16 from(f32 x) { return f16{f32_to_f16(x)}; } };
template <> struct Narrow<bf16> { GPU_FN bf16 from(f32 x) { return bf16{f32_to_bf16(x)}; } };
template <> struct Narrow<f8e4m3> { GPU_FN f8e4m3 from(f32 x) { return f8e4m3{f32_to_f8e4m3(x)}; } };
template <class T> GPU_FN T narrow(compute_t<T> x) { return Narrow<T>::from(x); }

template <class T> struct Limits;
#define GPU_LIMITS(T, least, greatest) \
  template <> struct Limits<T> { \
    GPU_FN T lowest() { return least; } \
    GPU_FN T highest() { return greatest; } \
  };
GPU_LIMITS(u8, 0, 255)
GPU_LIMITS(u32, 0, 0xffffffffu)
GPU_LIMITS(i16, -32768, 32767)
GPU_LIMITS(i32, (-0x7fffffff - 1), 0x7fffffff)
GPU_LIMITS(i64, (-0x7fffffffffffffffll - 1), 0x7fffffffffffffffll)
GPU_LIMITS(f32, f32_from_bits(0xff800000u), f32_from_bits(0x7f800000u))
GPU_LIMITS(f64, f64_from_bits(0xfff0000000000000ull), f64_from_bits(0x7ff0000000000000ull))
#undef GPU_LIMITS

// Lists of dtypes: GPU_FLOATS(M) is M(bf16) M(f16) M(f32) M(f64), and so on. A program that needs kernels of one dtype only
// defines GPU_ONLY and GPU_ONLY_<dtype>, which drops the others and most of the compile time. Kernels without a dtype belong to GPU_ONLY_bytes.
#if !defined(GPU_ONLY) || defined(GPU_ONLY_u8)
#define GPU_u8(M) M(u8)
#else
#define GPU_u8(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_u32)
#define GPU_u32(M) M(u32)
#else
#define GPU_u32(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_i16)
#define GPU_i16(M) M(i16)
#else
#define GPU_i16(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_i32)
#define GPU_i32(M) M(i32)
#else
#define GPU_i32(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_i64)
#define GPU_i64(M) M(i64)
#else
#define GPU_i64(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_bf16)
#define GPU_bf16(M) M(bf16)
#else
#define GPU_bf16(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_f16)
#define GPU_f16(M) M(f16)
#else
#define GPU_f16(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_f32)
#define GPU_f32(M) M(f32)
#else
#define GPU_f32(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_f64)
#define GPU_f64(M) M(f64)
#else
#define GPU_f64(M)
#endif
#if !defined(GPU_ONLY) || defined(GPU_ONLY_f8e4m3)
#define GPU_f8e4m3(M) M(f8e4m3)
#else
#define GPU_f8e4m3(M)
#endif
#define GPU_FLOATS(M) GPU_bf16(M) GPU_f16(M) GPU_f32(M) GPU_f64(M)
#define GPU_INTS(M) GPU_u8(M) GPU_u32(M) GPU_i16(M) GPU_i32(M) GPU_i64(M)
#define GPU_NUMBERS(M) GPU_FLOATS(M) GPU_INTS(M)
#define GPU_DTYPES(M) GPU_NUMBERS(M) GPU_f8e4m3(M)

// 16 bytes that are only moved: a type that compilers keep in registers, whatever is done to it.
#if GPU_NVIDIA
typedef uint4 Bytes16;
#else
typedef u32 Bytes16 __attribute__((vector_size(16)));
#endif
// N elements moved by one instruction where they fill 16 bytes; larger ones by several.
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec { T v[N]; };

// Stores a vector whole. NVIDIA's compilers take one apart that is stored in branches and make many stores of it; LLVM does
// not, and its older releases keep the union below in memory.
#if GPU_NVIDIA
GPU_FN void put(void* to, Bytes16 x) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
template <class T, int N> GPU_FN void put(T* to, const Vec<T, N>& x) {
  if constexpr (sizeof(x) == 16) {
    union { Vec<T, N> elements; Bytes16 bytes; } both{x};
    put((void*)to, both.bytes);
  } else if constexpr (sizeof(x) == 8) {
    union { Vec<T, N> elements; u64 bytes; } both{x};
    *(u64*)to = both.bytes;
  } else {
    *(Vec<T, N>*)to = x;
  }
}
#else
template <class T, int N> GPU_FN void put(T* to, const Vec<T, N>& x) { *(Vec<T, N>*)to = x; }
#endif

GPU_FN bool aligned_to(const void* p, unsigned bytes) { return ((u64)p & (bytes - 1)) == 0; }

// ---------------------------------------------------------------------------------------------------------------------
// Warps: 32 logical lanes on every device. All lanes of the warp must take part.
// ---------------------------------------------------------------------------------------------------------------------
GPU_FN u32 lane_id() { return tid_x() & 31u; }

#if !GPU_HOST
GPU_FN u32 shfl(u32 x, u32 lane) { return shfl_word(x, lane); }
GPU_FN i32 shfl(i32 x, u32 lane) { return (i32)shfl_word((u32)x, lane); }
GPU_FN f32 shfl(f32 x, u32 lane) { return f32_from_bits(shfl_word(f32_bits(x), lane)); }
GPU_FN u64 shfl(u64 x, u32 lane) {
  return (u64)shfl_word((u32)(x >> 32), lane) << 32 | shfl_word((u32)x, lane);
}
GPU_FN i64 shfl(i64 x, u32 lane) { return (i64)shfl((u64)x, lane); }
GPU_FN f64 shfl(f64 x, u32 lane) { return f64_from_bits(shfl(f64_bits(x), lane)); }
template <class T> GPU_FN T shfl_xor(T x, u32 mask) { return shfl(x, lane_id() ^ mask); }
// Lanes past an end get their own value.
template <class T> GPU_FN T shfl_down(T x, u32 d) { return shfl(x, lane_id() + d < 32u ? lane_id() + d : lane_id()); }
#endif
template <class T> GPU_FN T shfl_up(T x, u32 d) { return shfl(x, lane_id() >= d ? lane_id() - d : lane_id()); }

// a·b + c over four signed bytes: one instruction where the device has it.
#if (defined(__GFX11__) || defined(__GFX12__)) && GPU_HAS(__builtin_amdgcn_sudot4)
GPU_FN i32 dot4(u32 a, u32 b, i32 c) { return __builtin_amdgcn_sudot4(true, (i32)a, true, (i32)b, c, false); }
#elif (defined(__GFX9__) || defined(__GFX10__)) && GPU_HAS(__builtin_amdgcn_sdot4)
GPU_FN i32 dot4(u32 a, u32 b, i32 c) { return __builtin_amdgcn_sdot4((i32)a, (i32)b, c, false); }
#elif GPU_NVIDIA
GPU_FN i32 dot4(u32 a, u32 b, i32 c) { return __dp4a((i32)a, (i32)b, c); }
#else
GPU_FN i32 dot4(u32 a, u32 b, i32 c) {
  UNROLL for (int j = 0; j < 32; j += 8) c += (i32)(signed char)(a >> j) * (i32)(signed char)(b >> j);
  return c;
}
#endif

// Keeps loads on their side: a compiler that gathers them all at the front of an unrolled loop runs out of registers.
#define GPU_KEEP_ORDER() asm volatile("" ::: "memory")

// Shared memory as vectors: all of it is aligned to 16 bytes, so N consecutive elements at a multiple of N are one access.
template <int N, class T> GPU_FN Vec<T, N> load_shared(const T* a, u32 i) { return *(const Vec<T, N>*)(a + i); }
template <int N, class T> GPU_FN void store_shared(T* a, u32 i, const Vec<T, N>& x) { *(Vec<T, N>*)(a + i) = x; }

// ---------------------------------------------------------------------------------------------------------------------
// Strided layouts
// ---------------------------------------------------------------------------------------------------------------------
// Almost no index needs a 64-bit division, which GPUs do not have: compilers emit a call, or a hundred instructions, and keep
// registers free for it. So what does not fit 32 bits is divided bit by bit: rare, and slow there only.
GPU_FN u64 divide(u64 a, u64 b) {
  if (!((a | b) >> 32)) return (u32)a / (u32)b;
  u64 quotient = 0, part = b, bit = 1;
  NO_UNROLL while (part <= a && !(part >> 63)) part <<= 1, bit <<= 1;
  NO_UNROLL for (; bit; part >>= 1, bit >>= 1)
    if (part <= a) a -= part, quotient |= bit;
  return quotient;
}
template <class A, class B> GPU_FN size_t ceil_div(A a, B b) { return divide((u64)a + (u64)b - 1, (u64)b); }
// x / size where x has grown past size by less than 2^31: how often an advanced coordinate wrapped.
GPU_FN u64 wraps(u64 x, u64 size) {
  if (x < size) return 0;
  return size >> 31 || x < 2 * size ? 1 : (u32)x / (u32)size;
}

// Offsets of the linear index `i` for K operands that share the dims: info = dims ‖ K arrays of strides. What is left of `i`
// after the inner dims is the outermost coordinate: one division less.
template <int K> GPU_FN void offsets(size_t i, size_t num_dims, const size_t* info, i64 (&at)[K]) {
  UNROLL for (int k = 0; k < K; k++) at[k] = 0;
  if (num_dims == 0) return;
  NO_UNROLL for (size_t d = num_dims; --d > 0;) {
    const size_t next = divide(i, info[d]);
    const i64 c = (i64)(i - next * info[d]);
    UNROLL for (int k = 0; k < K; k++) at[k] += c * (i64)info[num_dims * (k + 1) + d];
    i = next;
  }
  UNROLL for (int k = 0; k < K; k++) at[k] += (i64)i * (i64)info[num_dims * (k + 1)];
}
// The same for one operand; null info = contiguous.
GPU_FN i64 offset(size_t i, size_t num_dims, const size_t* info) {
  if (!info) return (i64)i;
  i64 at[1];
  offsets<1>(i, num_dims, info, at);
  return at[0];
}

// ---------------------------------------------------------------------------------------------------------------------
// Math: the accurate library of each compiler, under one name per function for f32 and f64
// ---------------------------------------------------------------------------------------------------------------------
}  // namespace gpu
#if GPU_AMD
#define GPU_MATH1(name, lib) \
  extern "C" GPU_DEVICE float __ocml_##lib##_f32(float); \
  extern "C" GPU_DEVICE double __ocml_##lib##_f64(double); \
  namespace gpu { \
  GPU_FN f32 name(f32 x) { return __ocml_##lib##_f32(x); } \
  GPU_FN f64 name(f64 x) { return __ocml_##lib##_f64(x); } \
  }
#define GPU_MATH2(name, lib) \
  extern "C" GPU_DEVICE float __ocml_##lib##_f32(float, float); \
  extern "C" GPU_DEVICE double __ocml_##lib##_f64(double, double); \
  namespace gpu { \
  GPU_FN f32 name(f32 x, f32 y) { return __ocml_##lib##_f32(x, y); } \
  GPU_FN f64 name(f64 x, f64 y) { return __ocml_##lib##_f64(x, y); } \
  }
#elif GPU_NVIDIA
#define GPU_MATH1(name, lib) \
  namespace gpu { \
  GPU_FN f32 name(f32 x) { return ::lib##f(x); } \
  GPU_FN f64 name(f64 x) { return ::lib(x); } \
  }
#define GPU_MATH2(name, lib) \
  namespace gpu { \
  GPU_FN f32 name(f32 x, f32 y) { return ::lib##f(x, y); } \
  GPU_FN f64 name(f64 x, f64 y) { return ::lib(x, y); } \
  }
#else
#define GPU_MATH1(name, lib) \
  namespace gpu { \
  GPU_FN f32 name(f32 x) { return __builtin_##lib##f(x); } \
  GPU_FN f64 name(f64 x) { return __builtin_##lib(x); } \
  }
#define GPU_MATH2(name, lib) \
  namespace gpu { \
  GPU_FN f32 name(f32 x, f32 y) { return __builtin_##lib##f(x, y); } \
  GPU_FN f64 name(f64 x, f64 y) { return __builtin_##lib(x, y); } \
  }
#endif
GPU_MATH1(m_exp, exp)
GPU_MATH1(m_expm1, expm1)
GPU_MATH1(m_log, log)
GPU_MATH1(m_sin, sin)
GPU_MATH1(m_cos, cos)
GPU_MATH1(m_tanh, tanh)
GPU_MATH1(m_erf, erf)
GPU_MATH1(m_erfc, erfc)
GPU_MATH1(m_sqrt, sqrt)
GPU_MATH1(m_ceil, ceil)
GPU_MATH1(m_floor, floor)
GPU_MATH1(m_round, round)
GPU_MATH1(m_abs, fabs)
GPU_MATH2(m_pow, pow)
namespace gpu {
#if GPU_NVIDIA
GPU_FN f32 m_fma(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
GPU_FN f64 m_fma(f64 a, f64 b, f64 c) { return __fma_rn(a, b, c); }
#else
GPU_FN f32 m_fma(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
GPU_FN f64 m_fma(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
#endif
}  // namespace gpu
#undef GPU_MATH1
#undef GPU_MATH2

namespace gpu {
// Functions for results of type T: what is rounded to 11 or 8 bits needs no more than the hardware's approximations, and
// with the accurate functions kernels over halves would wait for arithmetic, not for memory.
template <class T> struct Rounded {
  typedef compute_t<T> C;
  GPU_FN C exp(C x) { return m_exp(x); }
  GPU_FN C quotient(C a, C b) { return a / b; }
  GPU_FN C tanh(C x) { return m_tanh(x); }
};
struct RoundedToHalf {
  GPU_FN f32 exp(f32 x) { return approx_exp2(x * 1.44269504088896341f); }
  GPU_FN f32 quotient(f32 a, f32 b) { return a * approx_recip(b); }
  // 1 − 2/(1 + e^2x), or its Taylor series where that cancels.
  GPU_FN f32 tanh(f32 x) {
    const f32 z = x * x;
    if (z < 0.0625f) return x + x * z * (-0.333333333f + z * (0.133333333f - z * 0.0539682540f));
    return 1.0f - quotient(2.0f, 1.0f + exp(2.0f * x));
  }
};
template <> struct Rounded<f16> : RoundedToHalf {};
template <> struct Rounded<bf16> : RoundedToHalf {};

// ---------------------------------------------------------------------------------------------------------------------
// Arithmetic with the rules that hold on every device
// ---------------------------------------------------------------------------------------------------------------------
// C++ leaves these conversions undefined; here they saturate and NaN becomes 0.
template <class I, class F> GPU_FN I float_to_int(F x) {
  // The bounds are powers of two or small, hence exact in F; highest + 1 is the first value that does not fit.
  const F low = (F)Limits<I>::lowest(), past = (F)(Limits<I>::highest() / 2 + 1) * (F)2;
  if (x != x) return (I)0;
  if (x <= low) return Limits<I>::lowest();
  if (x >= past) return Limits<I>::highest();
  return (I)x;
}
template <class D, bool FromFloat, bool ToFloat> struct Convert;
template <class D> struct Convert<D, true, true> {
  template <class S> GPU_FN D from(S x) { return narrow<D>((compute_t<D>)x); }
};
template <class D> struct Convert<D, false, true> {
  template <class S> GPU_FN D from(S x) { return narrow<D>((compute_t<D>)x); }
};
template <class D> struct Convert<D, true, false> {
  template <class S> GPU_FN D from(S x) { return float_to_int<D>(x); }
};
template <class D> struct Convert<D, false, false> {
  template <class S> GPU_FN D from(S x) { return (D)x; }
};
// Any dtype to any other: floats round to nearest even, float → integer saturates, integer → integer wraps.
template <class D, class S> GPU_FN D convert(S x) {
  return Convert<D, IsFloat<S>::value, IsFloat<D>::value>::from(widen(x));
}

// NaN wins in both; comparisons alone would drop it on one side.
template <class T> GPU_FN T maximum(T a, T b) { return a > b || a != a ? a : b; }
template <class T> GPU_FN T minimum(T a, T b) { return a < b || a != a ? a : b; }
#if GPU_NVIDIA && __CUDA_ARCH__ >= 800
GPU_FN f32 maximum(f32 a, f32 b) {
  f32 y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
GPU_FN f32 minimum(f32 a, f32 b) {
  f32 y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
#endif

// Integer arithmetic wraps; signed overflow is undefined in C++, so it happens in the unsigned type.
template <class T> struct Wrap { typedef T type; };
template <> struct Wrap<i32> { typedef u32 type; };
template <> struct Wrap<i64> { typedef u64 type; };
template <class T> GPU_FN T add(T a, T b) { return (T)((typename Wrap<T>::type)a + (typename Wrap<T>::type)b); }
template <class T> GPU_FN T sub(T a, T b) { return (T)((typename Wrap<T>::type)a - (typename Wrap<T>::type)b); }
template <class T> GPU_FN T mul(T a, T b) { return (T)((typename Wrap<T>::type)a * (typename Wrap<T>::type)b); }

// One operation, one rounding: for results that must be the same bits everywhere, whatever a compiler likes to fuse.
#if GPU_NVIDIA
GPU_FN f64 exact_add(f64 a, f64 b) { return __dadd_rn(a, b); }
GPU_FN f64 exact_sub(f64 a, f64 b) { return __dsub_rn(a, b); }
GPU_FN f64 exact_mul(f64 a, f64 b) { return __dmul_rn(a, b); }
GPU_FN f64 exact_div(f64 a, f64 b) { return __ddiv_rn(a, b); }
#else
#if defined(__clang__)
#define GPU_NO_FUSION _Pragma("clang fp contract(off)")
#else
#define GPU_NO_FUSION
#endif
GPU_FN f64 exact_add(f64 a, f64 b) { GPU_NO_FUSION return a + b; }
GPU_FN f64 exact_sub(f64 a, f64 b) { GPU_NO_FUSION return a - b; }
GPU_FN f64 exact_mul(f64 a, f64 b) { GPU_NO_FUSION return a * b; }
GPU_FN f64 exact_div(f64 a, f64 b) { GPU_NO_FUSION return a / b; }
#endif

// ---------------------------------------------------------------------------------------------------------------------
// Elementwise loops: the one shape of every kernel that maps element i of its inputs to element i of its output
// ---------------------------------------------------------------------------------------------------------------------
constexpr int ELEMENTWISE_BLOCK = 256;

// Elements per vector from A to O: stores of more than 16 bytes per thread would leave gaps between the lanes of each
// store, so a wider O fills 16 bytes; a narrower one may be read from 32.
template <class A, class O> struct VectorWidth {
  static constexpr int value = sizeof(O) >= sizeof(A) ? 16 / sizeof(O) : (16 / sizeof(O) * sizeof(A) > 32 ? 32 / sizeof(A) : 16 / sizeof(O));
};
template <class T, int N> GPU_FN Vec<T, N> load_vec(const T* p, size_t at) { return ((const Vec<T, N>*)p)[at]; }
template <class T, int N> GPU_FN void store_vec(T* p, size_t at, const Vec<T, N>& x) { ((Vec<T, N>*)p)[at] = x; }
template <int N, class T> GPU_FN bool vector_aligned(const T* p) { return aligned_to(p, alignof(Vec<T, N>)); }

// A thread's places in [0, n): rounds of Unroll vectors of Width, then single elements. The vectors of a round lie a
// block apart, so that each access of a warp is one contiguous piece; all loads of a round come before its first use,
// which keeps enough bytes in flight to fill the memory system. Without vectors every element is a single one.
template <int Width, int Unroll, int Threads = ELEMENTWISE_BLOCK> struct Walk {
  size_t vectors, thread, first, step, single, single_step;
  GPU_METHOD Walk(size_t n, bool vectorized) {
    thread = (size_t)bid_x() * Threads + tid_x();
    vectors = vectorized ? n / Width : 0;
    first = (size_t)bid_x() * (Threads * Unroll) + tid_x();
    step = (size_t)gdim_x() * (Threads * Unroll);
    single = vectors * Width + thread;
    single_step = (size_t)gdim_x() * Threads;
  }
  GPU_METHOD size_t at(size_t base, int u) const { return base + (size_t)u * Threads; }
};

// One operand of an elementwise kernel, read W consecutive indices at a time. That works for any layout whose inner dim is a
// multiple of W: such a run has one stride, and is one vector where the stride is 1 and every run is aligned.
template <class A, int W> struct Operand {
  const A* p;
  i64 stride;
  bool vector;
  GPU_METHOD Operand(const A* base, int k, size_t num_dims, const size_t* info) : p(base), stride(1), vector(vector_aligned<W>(base)) {
    if (!info) return;
    const size_t* strides = info + num_dims * (k + 1);
    stride = (i64)strides[num_dims - 1];
    vector = vector && stride == 1;
    NO_UNROLL for (size_t d = 0; d + 1 < num_dims; d++) vector = vector && (i64)strides[d] % W == 0;
  }
  GPU_METHOD Vec<A, W> load(i64 at) const {
    if (vector) return *(const Vec<A, W>*)(p + at);
    Vec<A, W> x;
    UNROLL for (int j = 0; j < W; j++) x.v[j] = p[at + j * stride];
    return x;
  }
};
template <int W> GPU_FN bool runs_of(size_t num_dims, const size_t* info) { return !info || info[num_dims - 1] % W == 0; }

// y = op(x), element by element; an operation may have its own.
template <class Op, class A, class O, int W> GPU_FN void apply(const Op& op, const Vec<A, W>& x, Vec<O, W>& y) {
  UNROLL for (int j = 0; j < W; j++) y.v[j] = op(x.v[j]);
}

// out[i] = op(a[i]) where both are contiguous and aligned. A thread does so little that what comes before its load counts: no
// look at layouts here. All loads of a round come before its first use.
template <int W, int Unroll, int Threads, class A, class O, class Op> GPU_FN void map1_contiguous(size_t n, const A* a, O* out, Op op) {
  const size_t vectors = n / W, step = (size_t)gdim_x() * (Threads * Unroll);
  NO_UNROLL for (size_t base = (size_t)bid_x() * (Threads * Unroll) + tid_x(); base < vectors; base += step) {
    Vec<A, W> x[Unroll];
    UNROLL for (int u = 0; u < Unroll; u++)
      if (u == 0 || base + u * Threads < vectors) x[u] = load_vec<A, W>(a, base + u * Threads);
    UNROLL for (int u = 0; u < Unroll; u++)
      if (u == 0 || base + u * Threads < vectors) {
        Vec<O, W> y;
        apply(op, x[u], y);
        store_vec<O, W>(out, base + u * Threads, y);
      }
  }
  const u32 rest = (u32)(n - vectors * W);
  if (bid_x() == 0 && tid_x() < rest) out[vectors * W + tid_x()] = op(a[vectors * W + tid_x()]);
}

// As above, of two inputs.
template <int W, int Unroll, class A, class O, class Op> GPU_FN void map2_contiguous(size_t n, const A* a, const A* b, O* out, Op op) {
  const size_t vectors = n / W, step = (size_t)gdim_x() * (ELEMENTWISE_BLOCK * Unroll);
  NO_UNROLL for (size_t base = (size_t)bid_x() * (ELEMENTWISE_BLOCK * Unroll) + tid_x(); base < vectors; base += step) {
    Vec<A, W> x[Unroll], y[Unroll];
    UNROLL for (int u = 0; u < Unroll; u++)
      if (u == 0 || base + u * ELEMENTWISE_BLOCK < vectors) {
        x[u] = load_vec<A, W>(a, base + u * ELEMENTWISE_BLOCK);
        y[u] = load_vec<A, W>(b, base + u * ELEMENTWISE_BLOCK);
      }
    UNROLL for (int u = 0; u < Unroll; u++)
      if (u == 0 || base + u * ELEMENTWISE_BLOCK < vectors) {
        Vec<O, W> z;
        UNROLL for (int j = 0; j < W; j++) z.v[j] = op(x[u].v[j], y[u].v[j]);
        store_vec<O, W>(out, base + u * ELEMENTWISE_BLOCK, z);
      }
  }
  const u32 rest = (u32)(n - vectors * W);
  if (bid_x() == 0 && tid_x() < rest) out[vectors * W + tid_x()] = op(a[vectors * W + tid_x()], b[vectors * W + tid_x()]);
}

// out[i] = op(a[i]) in any layout. Traffic: each element read once and written once. A thread has Unroll vectors of what is
// contiguous, and one of anything else.
template <int Unroll, int Threads = ELEMENTWISE_BLOCK, class A, class O, class Op>
GPU_FN void map1(size_t n, size_t num_dims, const size_t* info, const A* a, O* out, Op op) {
  constexpr int W = VectorWidth<A, O>::value;
  if (!info && vector_aligned<W>(a) && vector_aligned<W>(out)) return map1_contiguous<W, Unroll, Threads>(n, a, out, op);
  const Operand<A, W> from(a, 0, num_dims, info);
  const Walk<W, 1, Threads> walk(n, vector_aligned<W>(out) && runs_of<W>(num_dims, info));
  NO_UNROLL for (size_t v = walk.thread; v < walk.vectors; v += walk.single_step) {
    i64 at[1] = {(i64)(v * W)};
    if (info) offsets<1>(v * W, num_dims, info, at);
    const Vec<A, W> x = from.load(at[0]);
    Vec<O, W> y;
    UNROLL for (int j = 0; j < W; j++) y.v[j] = op(x.v[j]);
    store_vec<O, W>(out, v, y);
  }
  NO_UNROLL for (size_t i = walk.single; i < n; i += walk.single_step) out[i] = op(a[offset(i, num_dims, info)]);
}

// out[i] = op(a[i], b[i]); info = dims ‖ strides of a ‖ strides of b. Without Vectors every element is a single one: for
// operations so long that sixteen copies of them would be slower than narrow loads.
template <bool Vectors, class A, class O, class Op>
GPU_FN void map2(size_t n, size_t num_dims, const size_t* info, const A* a, const A* b, O* out, Op op) {
  constexpr int W = 16 / sizeof(A);
  if (Vectors && !info && vector_aligned<W>(a) && vector_aligned<W>(b) && vector_aligned<W>(out))
    return map2_contiguous<W, 1>(n, a, b, out, op);
  const Operand<A, W> lhs(a, 0, num_dims, info), rhs(b, 1, num_dims, info);
  const Walk<W, 1> walk(n, Vectors && vector_aligned<W>(out) && runs_of<W>(num_dims, info));
  NO_UNROLL for (size_t v = walk.thread; Vectors && v < walk.vectors; v += walk.single_step) {
    i64 at[2] = {(i64)(v * W), (i64)(v * W)};
    if (info) offsets<2>(v * W, num_dims, info, at);
    const Vec<A, W> x = lhs.load(at[0]), y = rhs.load(at[1]);
    Vec<O, W> z;
    UNROLL for (int j = 0; j < W; j++) z.v[j] = op(x.v[j], y.v[j]);
    store_vec<O, W>(out, v, z);
  }
  NO_UNROLL for (size_t i = walk.single; i < n; i += walk.single_step) {
    i64 at[2] = {(i64)i, (i64)i};
    if (info) offsets<2>(i, num_dims, info, at);
    out[i] = op(a[at[0]], b[at[1]]);
  }
}

// Every element once, a block's threads side by side.
template <class Single> GPU_FN void single_loop(size_t n, Single single) {
  const size_t step = (size_t)gdim_x() * bdim_x();
  NO_UNROLL for (size_t i = (size_t)bid_x() * bdim_x() + tid_x(); i < n; i += step) single(i);
}

// The first bad id of a launch: error[0] = 1, then the id and its position. Nothing else happens, so that the device
// stays usable; the host looks at the flag when it next reads and throws.
GPU_FN void bad_index(u64* error, i64 id, size_t position) {
  if (error && atomic_cas((unsigned long long*)error, 0, 1) == 0) {
    error[1] = (u64)id;
    error[2] = (u64)position;
  }
}
}  // namespace gpu

#endif  // WICK_GPU_H
