// Runs of bytes copied to shared memory by Hopper's copy engine, each by a single instruction, and counted in by barriers of their
// own: copies that are asked for one after another need not be waited for in that order. For targets with warpgroups; the host copies
// at once.
#ifndef WICK_GPU_BULK_H
#define WICK_GPU_BULK_H
#include "gpu/warpgroup.h"

#if GPU_WARPGROUPS
namespace gpu {
// Eight bytes of shared memory. A round is over when `askers` threads have asked and all they asked for is there.
#if GPU_NVIDIA
GPU_FN u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// One thread for all, before a barrier of the block.
GPU_FN void bulk_prepare(u64* arrival, u32 askers) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\nfence.proxy.async.shared::cta;" ::"r"(shared_address(arrival)), "r"(askers) : "memory");
}
// `bytes` is a multiple of 16, and both addresses are.
GPU_FN void bulk_ask(u64* arrival, void* to, const void* from, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%3], %2;\n"
               "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(arrival))
               : "memory");
}
// Until round `round` of a barrier, counted from 0, is over.
GPU_FN void bulk_wait(u64* arrival, u32 round) {
  u32 done;
  do {
    asm volatile("{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; selp.u32 %0, 1, 0, done; }"
                 : "=r"(done)
                 : "r"(shared_address(arrival)), "r"(round & 1u)
                 : "memory");
  } while (!done);
}
#else
GPU_FN void bulk_prepare(u64*, u32) {}
GPU_FN void bulk_ask(u64*, void* to, const void* from, u32 bytes) {
  for (u32 i = 0; i < bytes / 16; i++) ((Words4*)to)[i] = ((const Words4*)from)[i];
}
GPU_FN void bulk_wait(u64*, u32) {}
#endif
}  // namespace gpu
#endif

#endif  // WICK_GPU_BULK_H
