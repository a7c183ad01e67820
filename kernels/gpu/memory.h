// Moving bytes: vectors, loads past the caches, copies to shared memory that run beside arithmetic.
#ifndef WICK_GPU_MEMORY_H
#define WICK_GPU_MEMORY_H
#include "gpu/dtypes.h"

namespace gpu {
// 16 bytes that are only moved: a type that compilers keep in registers, whatever is done to it.
#if GPU_NVIDIA
typedef uint4 Bytes16;
#else
typedef u32 Bytes16 __attribute__((vector_size(16)));
#endif
// N elements moved by one instruction where they fill 16 bytes; larger ones by several.
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec { T v[N]; };

// Stores a vector whole. NVIDIA's compilers take one apart that is stored in branches and make many stores of it; LLVM, whose older
// releases keep the union below in memory, only shares the store of its last element with a branch that stores elements.
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
#elif GPU_AMD
template <class T, int N> GPU_FN void put(T* to, const Vec<T, N>& x) {
  if constexpr (sizeof(x) == 16) *(Bytes16*)to = __builtin_bit_cast(Bytes16, x);
  else *(Vec<T, N>*)to = x;
}
#else
template <class T, int N> GPU_FN void put(T* to, const Vec<T, N>& x) { *(Vec<T, N>*)to = x; }
#endif

// A vector that stays one where another path moves its elements one by one. LLVM moves what both paths have out of them, and takes
// apart what is left, unless it takes 16 bytes for one value; of halves its older releases keep such a one in memory.
template <class T, int N, bool = sizeof(T) >= 4 && sizeof(T) * N == 16> struct Solid {
  Vec<T, N> x;
  GPU_FN Solid of(const Vec<T, N>& y) { return Solid{y}; }
  GPU_METHOD Vec<T, N> elements() const { return x; }
};
#if GPU_AMD
template <class T, int N> struct Solid<T, N, true> {
  Bytes16 x;
  GPU_FN Solid of(const Vec<T, N>& y) { return Solid{__builtin_bit_cast(Bytes16, y)}; }
  GPU_METHOD Vec<T, N> elements() const { return __builtin_bit_cast(Vec<T, N>, x); }
};
#endif

GPU_FN bool aligned_to(const void* p, unsigned bytes) { return ((u64)p & (bytes - 1)) == 0; }
template <class T, int N> GPU_FN Vec<T, N> load_vec(const T* p, size_t at) { return ((const Vec<T, N>*)p)[at]; }
template <class T, int N> GPU_FN void store_vec(T* p, size_t at, const Vec<T, N>& x) { ((Vec<T, N>*)p)[at] = x; }
template <int N, class T> GPU_FN bool vector_aligned(const T* p) { return aligned_to(p, alignof(Vec<T, N>)); }

// Shared memory as vectors: all of it is aligned to 16 bytes, so N consecutive elements at a multiple of N are one access.
template <int N, class T> GPU_FN Vec<T, N> load_shared(const T* a, u32 i) { return *(const Vec<T, N>*)(a + i); }
template <int N, class T> GPU_FN void store_shared(T* a, u32 i, const Vec<T, N>& x) { *(Vec<T, N>*)(a + i) = x; }

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
// Zeros where not `valid`: then `from` may be anywhere.
GPU_FN void copy16_async(void* shared, const void* from, bool valid, bool wanted) {
  asm volatile("{ .reg .pred wanted; setp.ne.b32 wanted, %3, 0; @wanted cp.async.cg.shared.global [%0], [%1], 16, %2; }" ::"r"(
                   (u32)__cvta_generic_to_shared(shared)),
               "l"(from), "r"(valid ? 16 : 0), "r"((u32)wanted)
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
GPU_FN void copy16_async(void* shared, const void* from, bool valid, bool wanted) {
  if (wanted) *(Words4*)shared = valid ? *(const Words4*)from : Words4{};
}
GPU_FN void copies_wait() {}
GPU_FN void copies_bunch() {}
template <int N> GPU_FN void copies_wait_but() {}
#endif

// Copies of many bytes by one lane, where the device has an engine for them: multiples of 16 bytes, aligned to them. They count
// towards a signal in shared memory, which is up when as many lanes as it was made for have said what they expect, and all
// of that is there; `phase` is how often it was up before, modulo 2.
#if GPU_NVIDIA && __CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ >= 12
constexpr bool BULK_COPIES = true;
typedef u64 Signal;
GPU_FN u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
GPU_FN void make_signal(Signal* signal, u32 lanes) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(signal)), "r"(lanes) : "memory");
}
// Signals made before are seen by the engine.
GPU_FN void signals_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
GPU_FN void expect_bytes(Signal* signal, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(signal)), "r"(bytes) : "memory");
}
GPU_FN void copy_bulk(u32* shared, const void* from, u32 bytes, Signal* signal) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
               "l"(from), "r"(bytes), "r"(shared_address(signal))
               : "memory");
}
GPU_FN void await_signal(Signal* signal, u32 phase) {
  asm volatile(
      "{ .reg .pred up; again: mbarrier.try_wait.parity.shared::cta.b64 up, [%0], %1; @!up bra again; }" ::"r"(shared_address(signal)), "r"(phase)
      : "memory");
}
#elif GPU_HOST && defined(GPU_HOST_WARPGROUPS)
constexpr bool BULK_COPIES = true;
typedef u64 Signal;
GPU_FN void make_signal(Signal* signal, u32 lanes) { sim::make_signal(signal, lanes); }
GPU_FN void signals_made() {}
GPU_FN void expect_bytes(Signal* signal, u32 bytes) { sim::arrive(signal, bytes); }
GPU_FN void copy_bulk(u32* shared, const void* from, u32 bytes, Signal* signal) { sim::copy(shared, from, bytes, signal); }
GPU_FN void await_signal(Signal* signal, u32 phase, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  sim::await_phase(signal, phase, file, line);
}
#else
constexpr bool BULK_COPIES = false;
typedef u64 Signal;
GPU_FN void make_signal(Signal*, u32) {}
GPU_FN void signals_made() {}
GPU_FN void expect_bytes(Signal*, u32) {}
GPU_FN void copy_bulk(u32*, const void*, u32, Signal*) {}
GPU_FN void await_signal(Signal*, u32) {}
#endif
}  // namespace gpu

#endif  // WICK_GPU_MEMORY_H
