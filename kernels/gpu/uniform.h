// What the compiler must know to be the same in all lanes, or to be of one lane: NVIDIA's bulk copies take their operands from registers
// of the whole warp, and where it does not know, each copy is a loop over lanes.
#ifndef WICK_GPU_UNIFORM_H
#define WICK_GPU_UNIFORM_H
#include "gpu/warp.h"

namespace gpu {
#if GPU_NVIDIA && __CUDA_ARCH__ >= 900
// A value that is the same in all lanes.
GPU_FN u32 uniform(u32 x) { return warp_most(x); }
// True in one lane of a warp that is all here.
GPU_FN bool one_lane() {
  u32 chosen;
  asm volatile("{ .reg .pred chosen; elect.sync _|chosen, 0xffffffff; selp.u32 %0, 1, 0, chosen; }" : "=r"(chosen));
  return chosen;
}
#else
GPU_FN u32 uniform(u32 x) { return x; }
GPU_FN bool one_lane() { return lane_id() == 0; }
#endif
}  // namespace gpu

#endif  // WICK_GPU_UNIFORM_H
