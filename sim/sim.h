// The host half of kernels/gpu.h: what a kernel sees when a C++ compiler builds it for the simulator.
//
// A kernel file becomes a shared object. It exports one descriptor per kernel (name##_sim) and one SimState, through
// which the runtime tells it who is running and through which it calls back. Kernels are compiled with
// -fsanitize=thread but without its run-time library: the hooks (module/hooks.cpp) receive every load and store, so plain
// arrays and pointers are checked (bounds, never-written shared memory, missing barriers) and no proxy types are needed.
#pragma once
#include "abi.h"

#define SIM_EXPORT __attribute__((visibility("default")))
#if defined(__clang__)
#define SIM_RAW __attribute__((noinline, disable_sanitizer_instrumentation))
#else
#define SIM_RAW __attribute__((noinline, no_sanitize_thread))
#endif

// AMD's, unless it is another card's code that is played.
#ifndef SIM_SHARED_KB
#define SIM_SHARED_KB 64
#endif

extern "C" {
SIM_EXPORT SimState wickSimState = {SIM_ABI, SIM_SHARED_KB * 1024};
}

namespace sim {

#define SIM_INDEX(name, field)                                                                                       \
  SIM_RAW inline unsigned name##_x() { return wickSimState.field[0]; }                                               \
  SIM_RAW inline unsigned name##_y() { return wickSimState.field[1]; }                                               \
  SIM_RAW inline unsigned name##_z() { return wickSimState.field[2]; }
SIM_INDEX(tid, thread)
SIM_INDEX(bid, block)
SIM_INDEX(bdim, blockDim)
SIM_INDEX(gdim, gridDim)
#undef SIM_INDEX

/** Lane within the logical warp of 32. */
SIM_RAW inline int lane_id() { return int(wickSimState.lane); }

// The defaults name the caller's source line: `using sim::barrier;` in gpu.h keeps that, a wrapper would hide it.
SIM_RAW inline void barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  wickSimState.barrier(file, line);
}

SIM_RAW inline void wave(bool orders, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  wickSimState.wave(orders, file, line);
}

// Of clusters: the same place of shared memory in another block, and meetings of all.
template <class T>
SIM_RAW T* in_block(T* shared, unsigned rank) {
  return reinterpret_cast<T*>(uintptr_t(shared) + (uintptr_t(rank) - wickSimState.rank) * wickSimState.blockBytes);
}
SIM_RAW inline unsigned thread_of_cluster() { return wickSimState.rank * bdim_x() + tid_x(); }
SIM_RAW inline void cluster_barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  wickSimState.clusterBarrier(file, line);
}
SIM_RAW inline void expect(const void* signal, size_t bytes) { wickSimState.expect(signal, bytes); }
template <class T>
SIM_RAW void send(void* to, const T& value, const void* signal) {
  wickSimState.send(to, &value, sizeof(T), signal);
}
SIM_RAW inline void await(const void* signal, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  wickSimState.await(signal, file, line);
}

// Of signals and copies that run beside everything else, and of some of a block's threads.
SIM_RAW inline void make_signal(const void* signal, uint32_t arrivals) { wickSimState.make(signal, arrivals); }
SIM_RAW inline void arrive(const void* signal, size_t bytes) { wickSimState.arrive(signal, bytes); }
SIM_RAW inline void copy(void* to, const void* from, size_t bytes, const void* signal) {
  wickSimState.copy(to, from, bytes, signal);
}
SIM_RAW inline void await_phase(const void* signal, uint32_t phase, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  wickSimState.awaitPhase(signal, phase, file, line);
}
SIM_RAW inline void crew(uint32_t threads, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  wickSimState.crew(threads, file, line);
}

[[noreturn]] SIM_RAW inline void trap(const char* why = "trap") {
  wickSimState.trap(why);
  __builtin_unreachable();
}

template <class T>
SIM_RAW T exchange(T value, int source, const char* file, int line) {
  static_assert(sizeof(T) <= 16, "a shuffle moves at most 16 bytes");
  wickSimState.shuffle(&value, sizeof(T), source, file, line);
  return value;
}

template <class T>
T shfl(T value, int lane, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return exchange(value, lane & 31, file, line);
}
template <class T>
T shfl_xor(T value, int mask, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return exchange(value, (lane_id() ^ mask) & 31, file, line);
}
/** Lanes past the edge get their own value back, as on the devices. */
template <class T>
T shfl_down(T value, int delta, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  int source = lane_id() + delta;
  return exchange(value, source > 31 ? lane_id() : source, file, line);
}
template <class T>
T shfl_up(T value, int delta, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  int source = lane_id() - delta;
  return exchange(value, source < 0 ? lane_id() : source, file, line);
}
/** Bit i is set when lane i of the logical warp is there and its predicate holds. */
SIM_RAW inline uint32_t ballot(bool predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return wickSimState.ballot(predicate, file, line);
}

// Threads are fibers of one OS thread, so a plain read-modify-write is atomic here.
template <class T, class F>
SIM_RAW T atomic_update(T* address, F change) {
  wickSimState.access(address, sizeof(T), SIM_ATOMIC);
  T old = *address;
  *address = change(old);
  return old;
}
template <class T>
T atomic_add(T* address, T value) {
  return atomic_update(address, [=](T old) { return T(old + value); });
}
template <class T>
T atomic_max(T* address, T value) {
  return atomic_update(address, [=](T old) { return old < value ? value : old; });
}
template <class T>
T atomic_min(T* address, T value) {
  return atomic_update(address, [=](T old) { return value < old ? value : old; });
}
template <class T>
T atomic_exchange(T* address, T value) {
  return atomic_update(address, [=](T) { return value; });
}
template <class T>
T atomic_cas(T* address, T expected, T value) {
  return atomic_update(address, [=](T old) { return old == expected ? value : old; });
}

/** What the first block of a cluster has there, of the running one. */
SIM_RAW inline void* of_block(void* shared) {
  return static_cast<char*>(shared) + wickSimState.rank * wickSimState.blockBytes;
}
template <class T, size_t N>
SIM_RAW T (&shared_array(SimShared& site))[N] {
  if (site.launch != wickSimState.launch) wickSimState.placeShared(&site);
  return *static_cast<T(*)[N]>(of_block(site.address));
}
SIM_RAW inline void* dynamic_shared() { return of_block(wickSimState.dynamicShared); }

template <class T>
constexpr SimArgumentKind kind_of(T*) {
  return T(0.5) != T(0) && T(2) != T(1) ? SIM_FLOAT : SIM_INTEGER;
}
template <class T, int Class = __is_class(T) || __is_union(T)>
struct Kind {
  static constexpr SimArgumentKind value = kind_of(static_cast<T*>(nullptr));
};
template <class T>
struct Kind<T, 1> {
  static constexpr SimArgumentKind value = SIM_AGGREGATE;
};
template <class T>
struct Kind<T*, 0> {
  static constexpr SimArgumentKind value = SIM_POINTER;
};

template <class T>
struct Plain { using type = T; };
template <class T>
struct Plain<const T> { using type = T; };

template <size_t... I>
struct Indices {};
template <size_t N, size_t... I>
struct Count : Count<N - 1, N - 1, I...> {};
template <size_t... I>
struct Count<0, I...> { using type = Indices<I...>; };

constexpr SimBounds bounds(uint32_t threads, uint32_t cluster) { return {threads, cluster}; }

/** Unpacks `void** kernelParams` (addresses of the arguments) into a call of the kernel's body. */
template <auto Body>
struct Launcher;
template <class... A, void (*Body)(A...)>
struct Launcher<Body> {
  static constexpr SimArgument arguments[sizeof...(A) + 1] = {
      {sizeof(A), alignof(A), Kind<typename Plain<A>::type>::value}..., {0, 0, SIM_INTEGER}};
  static constexpr uint32_t count = sizeof...(A);

  template <size_t... I>
  SIM_RAW static void unpack([[maybe_unused]] void* const* params, Indices<I...>) {
    Body(*static_cast<typename Plain<A>::type*>(params[I])...);
  }
  SIM_RAW static void run(void* const* params) { unpack(params, typename Count<sizeof...(A)>::type{}); }
};

}  // namespace sim

namespace gpu {
using sim::barrier, sim::shfl, sim::shfl_xor, sim::shfl_down;
using sim::tid_x, sim::bid_x, sim::bdim_x, sim::gdim_x;
}  // namespace gpu

#define GPU_BOUNDS(threads) sim::bounds(threads, 1)
#define GPU_KERNEL(limits, kernel, ...)                                                                              \
  static void kernel##_body(__VA_ARGS__);                                                                            \
  extern "C" SIM_EXPORT const SimKernel kernel##_sim;                                                                \
  const SimKernel kernel##_sim = {SIM_ABI,                                                                           \
                                  #kernel,                                                                           \
                                  sim::Launcher<kernel##_body>::run,                                                 \
                                  sim::Launcher<kernel##_body>::count,                                               \
                                  sim::Launcher<kernel##_body>::arguments,                                           \
                                  limits,                                                                            \
                                  __FILE__,                                                                          \
                                  __LINE__};                                                                         \
  static void kernel##_body(__VA_ARGS__)

#define SHARED(T, array, N)                                                                                          \
  static SimShared array##_site = {#array, sizeof(T) * (N), alignof(T) < 16 ? 16 : alignof(T), 0, nullptr};          \
  T(&array)[N] = sim::shared_array<T, (N)>(array##_site)

#define DYNAMIC_SHARED(T, array) T* array = static_cast<T*>(sim::dynamic_shared())
