// What will be read soon, on its way into the cache that all multiprocessors share, where one lane can ask for much of it: multiples of
// 16 bytes, aligned to them. Elsewhere it comes when it is read.
#ifndef WICK_GPU_AHEAD_H
#define WICK_GPU_AHEAD_H
#include "gpu/dtypes.h"
namespace gpu {
GPU_FN void bring_ahead(const void* from, u32 bytes) {
#if GPU_NVIDIA && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#else
  (void)from, (void)bytes;
#endif
}
}  // namespace gpu
#endif
