// Hopper's pairs of blocks, which see each other's shared memory: what both need comes by one copy to both. On the host, where there are no
// such copies, blocks that belong together know only which of them they are.
#ifndef WICK_GPU_PAIRS_H
#define WICK_GPU_PAIRS_H
#include "gpu/warpgroup.h"

#if GPU_WARPGROUPS
namespace gpu {
#if GPU_NVIDIA
// A meeting of all threads of both blocks.
GPU_FN void pair_barrier() { asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory"); }
// As meeting_come, to the words of both blocks.
GPU_FN void pair_come(Signal* word) {
  wave_sync();
  if (lane_id() < 2)
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }" ::"r"(shared_address(word)),
                 "r"(lane_id())
                 : "memory");
}
// As copy_bulk, to both blocks, each of which is told by its own signal.
GPU_FN void pair_copy(u32* shared, const void* from, u32 bytes, Signal* signal) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)), "l"(from),
               "r"(bytes), "r"(shared_address(signal)), "h"((u16)3)
               : "memory");
}
#else
GPU_FN void pair_barrier() {}
GPU_FN void pair_come(Signal*) {}
GPU_FN void pair_copy(u32*, const void*, u32, Signal*) {}
#endif
}  // namespace gpu
#endif

// As KERNEL_EARLY, of blocks that come two by two.
#if GPU_WARPGROUPS && GPU_NVIDIA
#define GPU_BOUNDS_PAIRED(threads) (void)0, __launch_bounds__(threads, 1) __cluster_dims__(2, 1, 1)
#else
#define GPU_BOUNDS_PAIRED(threads) GPU_BOUNDS_EARLY(threads, 1)
#endif
#define KERNEL_PAIRED(threads, name, ...) GPU_CHOICE(name)(GPU_BOUNDS_PAIRED(threads), name, __VA_ARGS__)

#endif  // WICK_GPU_PAIRS_H
