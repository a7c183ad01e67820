// Blocks of a cluster run at the same time and write to each other's shared memory (sm_90 on; on the host where Hopper's instructions
// are played, gpu/warpgroup.h). Where there are none a cluster is one block, whatever its launch says: the others have nothing to do.
#ifndef WICK_GPU_CLUSTER_H
#define WICK_GPU_CLUSTER_H
#include "gpu/memory.h"
#include "gpu/threads.h"

// KERNEL_CLUSTER is KERNEL_EARLY of clusters of `size` blocks that follow each other.
#if GPU_NVIDIA && __CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ >= 12
#define GPU_CLUSTERS 1
#define KERNEL_CLUSTER(threads, blocks, size, name, ...) GPU_CHOICE(name)(GPU_BOUNDS_CLUSTER(threads, blocks, size), name, __VA_ARGS__)
#define GPU_BOUNDS_CLUSTER(threads, blocks, size) (void)0, __cluster_dims__(size, 1, 1) __launch_bounds__(threads, blocks)
#elif GPU_HOST && defined(GPU_HOST_WARPGROUPS)
#define GPU_CLUSTERS 1
#define KERNEL_CLUSTER(threads, blocks, size, name, ...) GPU_CHOICE(name)(sim::bounds(threads, size), name, __VA_ARGS__)
#else
#define GPU_CLUSTERS 0
#define KERNEL_CLUSTER(threads, blocks, size, ...) KERNEL_EARLY(threads, blocks, __VA_ARGS__)
#endif

namespace gpu {
// Signals that others raise are made in this block; later, they are in all blocks. Both together are a barrier of the block.
GPU_FN void cluster_come() {
#if GPU_CLUSTERS && GPU_NVIDIA
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
GPU_FN void cluster_wait() {
#if GPU_CLUSTERS && GPU_NVIDIA
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#elif GPU_CLUSTERS
  sim::cluster_barrier();
#else
  barrier();
#endif
}
// A barrier of all blocks, behind which each sees what others have written to its shared memory.
GPU_FN void cluster_barrier() {
#if GPU_CLUSTERS && GPU_NVIDIA
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
#elif GPU_CLUSTERS
  sim::cluster_barrier();
#else
  barrier();
#endif
}
// Bytes that `signal` waits for; x to where `shared` is in block `rank`: to be seen behind a barrier of the cluster, or when `signal`,
// which counts its bytes, is up.
#if GPU_CLUSTERS && GPU_NVIDIA
GPU_FN u32 cluster_address(const void* shared, u32 rank) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(shared)), "r"(rank));
  return there;
}
GPU_FN void cluster_expect(Signal* signal, u32 bytes) { expect_bytes(signal, bytes); }
GPU_FN void cluster_put(f32* shared, const Vec<f32, 4>& x, u32 rank) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(cluster_address(shared, rank)), "f"(x.v[0]), "f"(x.v[1]), "f"(x.v[2]), "f"(x.v[3]) : "memory");
}
GPU_FN void cluster_send(f32* shared, const Vec<f32, 4>& x, u32 rank, Signal* signal) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(cluster_address(shared, rank)), "f"(x.v[0]), "f"(x.v[1]),
               "f"(x.v[2]), "f"(x.v[3]), "r"(cluster_address(signal, rank))
               : "memory");
}
GPU_FN void cluster_send(f32* shared, const Vec<f32, 2>& x, u32 rank, Signal* signal) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(cluster_address(shared, rank)), "f"(x.v[0]), "f"(x.v[1]),
               "r"(cluster_address(signal, rank))
               : "memory");
}
// Until all that `signal` expects has come.
GPU_FN void cluster_await(Signal* signal) {
  asm volatile("{ .reg .pred up; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 up, [%0], 0; @!up bra again; }" ::"r"(shared_address(signal)) : "memory");
}
#elif GPU_CLUSTERS
GPU_FN void cluster_expect(Signal* signal, u32 bytes) { sim::expect(signal, bytes); }
GPU_FN void cluster_put(f32* shared, const Vec<f32, 4>& x, u32 rank) { *(Vec<f32, 4>*)sim::in_block(shared, rank) = x; }
template <int N> GPU_FN void cluster_send(f32* shared, const Vec<f32, N>& x, u32 rank, Signal* signal) {
  sim::send(sim::in_block(shared, rank), x, sim::in_block(signal, rank));
}
GPU_FN void cluster_await(Signal* signal) { sim::await(signal); }
#else
GPU_FN void cluster_expect(Signal*, u32) {}
GPU_FN void cluster_put(f32* shared, const Vec<f32, 4>& x, u32) { *(Vec<f32, 4>*)shared = x; }
template <int N> GPU_FN void cluster_send(f32* shared, const Vec<f32, N>& x, u32, Signal*) { *(Vec<f32, N>*)shared = x; }
GPU_FN void cluster_await(Signal*) { barrier(); }
#endif
}  // namespace gpu

#endif  // WICK_GPU_CLUSTER_H
