// Warps: 32 logical lanes on every device, all of which must take part. A wave is what the hardware runs together: a warp, or two
// of them on devices of 64 lanes.
#ifndef WICK_GPU_WARP_H
#define WICK_GPU_WARP_H
#include "gpu/dtypes.h"
#include "gpu/threads.h"

namespace gpu {
#if GPU_AMD
// The logical warp has 32 lanes: on wave 64 the two halves of a wave are two warps.
GPU_FN unsigned shfl_word(unsigned x, unsigned lane) {
  const unsigned self = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
  return (unsigned)__builtin_amdgcn_ds_bpermute((int)(((self & ~31u) | (lane & 31u)) << 2), (int)x);
}
#elif GPU_NVIDIA
GPU_FN unsigned shfl_word(unsigned x, unsigned lane) { return __shfl_sync(0xffffffffu, x, (int)(lane & 31u), 32); }
#endif

GPU_FN u32 lane_id() { return tid_x() & 31u; }

#if !GPU_HOST
GPU_FN u32 shfl(u32 x, u32 lane) { return shfl_word(x, lane); }
GPU_FN i32 shfl(i32 x, u32 lane) { return (i32)shfl_word((u32)x, lane); }
GPU_FN f32 shfl(f32 x, u32 lane) { return f32_from_bits(shfl_word(f32_bits(x), lane)); }
GPU_FN u64 shfl(u64 x, u32 lane) {
  return (u64)shfl_word((u32)(x >> 32), lane) << 32 | shfl_word((u32)x, lane);
}
GPU_FN i64 shfl(i64 x, u32 lane) { return (i64)shfl((u64)x, lane); }
GPU_FN f64 shfl(f64 x, u32 lane) { return f64_from_bits(shfl(f64_bits(x), lane)); }
template <class T> GPU_FN T shfl_xor(T x, u32 mask) { return shfl(x, lane_id() ^ mask); }
// Lanes past an end get their own value.
template <class T> GPU_FN T shfl_down(T x, u32 d) { return shfl(x, lane_id() + d < 32u ? lane_id() + d : lane_id()); }
#endif
template <class T> GPU_FN T shfl_up(T x, u32 d) { return shfl(x, lane_id() >= d ? lane_id() - d : lane_id()); }

// The largest of the warp's numbers, known to each lane.
GPU_FN u32 warp_most(u32 x) {
#if GPU_NVIDIA && __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xffffffffu, x);
#else
  for (u32 mask = 16; mask; mask /= 2) {
    const u32 other = shfl_xor(x, mask);
    x = x < other ? other : x;
  }
  return x;
#endif
}

// Makes the wave's writes to shared memory visible to its lanes. They go together; on AMD this keeps the compiler from moving
// accesses across.
GPU_FN void wave_sync() {
#if GPU_NVIDIA
  __syncwarp();
#elif GPU_AMD
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
#else
  sim::wave(true);
#endif
}
// Whether x holds in a lane of the wave; a device on which the question costs more than the answer saves says yes.
GPU_FN bool wave_any(bool x) {
#if GPU_NVIDIA
  return __any_sync(0xffffffffu, x);
#else
  (void)x;
  return true;
#endif
}
}  // namespace gpu

#endif  // WICK_GPU_WARP_H
