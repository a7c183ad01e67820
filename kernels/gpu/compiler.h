// Which compiler this is, and what it has instead of keywords: attributes of functions and kernels, shared memory, hints to its
// optimizer.
#ifndef WICK_GPU_COMPILER_H
#define WICK_GPU_COMPILER_H

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
// be few enough that so many blocks share a multiprocessor; only NVIDIA's compiler needs to be told. KERNEL_EARLY is the same for
// bodies that call wait_for_previous() by themselves (gpu/entry.h), as every thread of them must. KERNEL_MATRIX is for kernels
// whose products of T a matrix unit makes.
//
// Without GPU_PICK a program has all kernels of its source. With -DGPU_PICK it has those for which -DGPU_PICK_<name> is given
// (as it stands, which defines it as 1; no other value counts). The others become templates that nobody instantiates: their
// bodies are parsed and that is all, which is why picking a few saves most of the compile time.
#define KERNEL(name, ...) KERNEL_BOUNDS(1024, name, __VA_ARGS__)
#define KERNEL_BOUNDS(threads, name, ...) GPU_CHOICE(name)(GPU_BOUNDS(threads), name, __VA_ARGS__)
#define KERNEL_MATRIX(T, threads, name, ...) GPU_CHOICE(name)(GPU_BOUNDS_MATRIX(T, threads), name, __VA_ARGS__)
#define KERNEL_CROWDED(threads, blocks, name, ...) GPU_CHOICE(name)(GPU_BOUNDS_CROWDED(threads, blocks), name, __VA_ARGS__)
#define KERNEL_EARLY(threads, blocks, name, ...) GPU_CHOICE(name)(GPU_BOUNDS_EARLY(threads, blocks), name, __VA_ARGS__)
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
// Function attributes, shared memory, loops
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
#define GPU_BOUNDS_EARLY(threads, blocks) GPU_BOUNDS(threads)
// Where a thread may have 512 registers, LLVM has MFMA leave results in the half that other instructions cannot use; two waves to a
// SIMD are given 256, in which all can. Kernels of f32 need more.
#if defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)
#define GPU_BOUNDS_MATRIX(T, threads) GPU_BOUNDS(threads), amdgpu_waves_per_eu(sizeof(T) == 2 ? 2 : 1)
#else
#define GPU_BOUNDS_MATRIX(T, threads) GPU_BOUNDS(threads)
#endif
// 16-byte alignment of all shared memory, so that load_shared/store_shared may move whole vectors.
#define SHARED(T, name, N) static __attribute__((shared, aligned(16))) T name[N]
#define DYNAMIC_SHARED(T, name) \
  extern __attribute__((shared, aligned(16))) char name##_bytes[]; \
  T* name = (T*)name##_bytes
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("nounroll")
// Where a whole loop would be scheduled at once and spill: LLVM trades registers for distance between loads and uses.
#define UNROLL_SOME _Pragma("unroll 2")


#elif GPU_NVIDIA

#define GPU_DEVICE __device__
#define GPU_FN static __device__ __forceinline__
#define GPU_METHOD __device__ __forceinline__
#define GPU_RARE static __device__ __noinline__
// How a kernel is entered, and its bounds: gpu/entry.h has the kernel itself.
#define GPU_BOUNDS(threads) gpu::wait_for_previous(), __launch_bounds__(threads)
#define GPU_BOUNDS_CROWDED(threads, blocks) gpu::wait_for_previous(), __launch_bounds__(threads, blocks)
#define GPU_BOUNDS_EARLY(threads, blocks) (void)0, __launch_bounds__(threads, blocks)
#define GPU_BOUNDS_MATRIX(T, threads) GPU_BOUNDS(threads)
#define SHARED(T, name, N) __shared__ __align__(16) T name[N]
// Warpgroups read what begins at a multiple of 1024 bytes.
#define DYNAMIC_SHARED(T, name) \
  extern __shared__ __align__(1024) char gpu_dynamic_shared[]; \
  T* name = (T*)gpu_dynamic_shared
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define UNROLL_SOME UNROLL

#else  // host: the simulator's half

// sim.h defines GPU_KERNEL, GPU_BOUNDS, SHARED, DYNAMIC_SHARED, and in namespace gpu tid_x, bid_x, bdim_x, gdim_x, barrier
// and the templates shfl, shfl_xor, shfl_down and, in its own, atomic_add. It watches every access to memory.
#include "sim.h"

#define GPU_DEVICE
#define GPU_FN static inline
#define GPU_METHOD inline
#define GPU_RARE GPU_FN
#define GPU_BOUNDS_CROWDED(threads, blocks) GPU_BOUNDS(threads)
#define GPU_BOUNDS_EARLY(threads, blocks) GPU_BOUNDS(threads)
#define GPU_BOUNDS_MATRIX(T, threads) GPU_BOUNDS(threads)
#define UNROLL
#define NO_UNROLL
#define UNROLL_SOME
#endif

// Keeps loads on their side: a compiler that gathers them all at the front of an unrolled loop runs out of registers.
#define GPU_KEEP_ORDER() asm volatile("" ::: "memory")

// In a function whose products must be rounded before anything is added to them.
#if defined(__clang__)
#define GPU_NO_FUSION _Pragma("clang fp contract(off)")
#else
#define GPU_NO_FUSION
#endif

#include "gpu/entry.h"

#endif  // WICK_GPU_COMPILER_H
