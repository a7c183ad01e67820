// Hopper's ways for threads to share out their work: blocks that count, meetings of some warps of a block, registers that go from warps
// which need few to others. On the host blocks go one after another.
#ifndef WICK_GPU_CREWS_H
#define WICK_GPU_CREWS_H
#include "gpu/warpgroup.h"

#if GPU_WARPGROUPS
namespace gpu {
#if GPU_NVIDIA
// One more, behind `most` from zero again, for which nobody waits.
GPU_FN void count_on(u32* counter, u32 most) { asm volatile("red.relaxed.gpu.global.inc.u32 [%0], %1;" ::"l"(counter), "r"(most) : "memory"); }
// A meeting of the block's first THREADS.
template <u32 THREADS> GPU_FN void barrier_of() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }
// What each thread then has; four warps go together.
template <u32 EACH> GPU_FN void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(EACH)); }
template <u32 EACH> GPU_FN void leave_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(EACH)); }
// Lets the next kernel begin before this one waits (gpu/entry.h): only where this is small, and the next has much to bring before it waits in turn.
GPU_FN void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;"); }
// What lies there is brought into the cache.
GPU_FN void expect(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
#else
GPU_FN void count_on(u32*, u32) {}
template <u32 THREADS> GPU_FN void barrier_of() { sim::crew(THREADS); }
template <u32> GPU_FN void take_registers() {}
template <u32> GPU_FN void leave_registers() {}
GPU_FN void let_next_begin() {}
GPU_FN void expect(const void*) {}
#endif
}  // namespace gpu
#endif

#endif  // WICK_GPU_CREWS_H
