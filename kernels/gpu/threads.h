// Who a thread is, and how those of a block and of a device meet.
#ifndef WICK_GPU_THREADS_H
#define WICK_GPU_THREADS_H
#include "gpu/dtypes.h"

#if GPU_AMD
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
GPU_FN unsigned long long atomic_cas(unsigned long long* at, unsigned long long expected, unsigned long long value) {
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <class T> GPU_FN T atomic_add(T* at, T value) {
  return __hip_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
}  // namespace gpu
#elif GPU_NVIDIA
namespace gpu {
GPU_FN unsigned tid_x() { return threadIdx.x; }
GPU_FN unsigned bid_x() { return blockIdx.x; }
GPU_FN unsigned bdim_x() { return blockDim.x; }
GPU_FN unsigned gdim_x() { return gridDim.x; }
GPU_FN void barrier() { __syncthreads(); }
GPU_FN void device_fence() { __threadfence(); }
GPU_FN unsigned long long atomic_cas(unsigned long long* at, unsigned long long expected, unsigned long long value) {
  return atomicCAS(at, expected, value);
}
template <class T> GPU_FN T atomic_add(T* at, T value) { return atomicAdd(at, value); }
}  // namespace gpu
#else
namespace gpu {
using sim::atomic_add;
// Blocks run one after another.
GPU_FN void device_fence() {}
GPU_FN unsigned long long atomic_cas(unsigned long long* at, unsigned long long expected, unsigned long long value) {
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
}  // namespace gpu
#endif

namespace gpu {
// Every element once, a block's threads side by side.
template <class Single> GPU_FN void single_loop(size_t n, Single single) {
  const size_t step = (size_t)gdim_x() * bdim_x();
  NO_UNROLL for (size_t i = (size_t)bid_x() * bdim_x() + tid_x(); i < n; i += step) single(i);
}
}  // namespace gpu

#endif  // WICK_GPU_THREADS_H
