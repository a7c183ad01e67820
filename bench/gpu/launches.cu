// What kernels that do next to nothing cost behind each other in a graph, a barrier across the device within one, and how fast bulk
// copies stream by the size of each. CUDA only.
//
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a quant-matvec) bench/gpu/launches.cu -o launches
#include "bench.h"

constexpr u32 THREADS = 512;

__global__ void __launch_bounds__(THREADS, 1) nothing(const u32*, u32*) { wait_for_previous(); }
// Each block reads what others wrote before.
__global__ void __launch_bounds__(THREADS, 1) pass_on(const u32* x, u32* y) {
  wait_for_previous();
  const u32 v = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < 16) y[blockIdx.x * 16 + threadIdx.x] = v + 1;
}
__global__ void __launch_bounds__(THREADS, 1) meetings(u32* counter, u32* x, u32* y, u32 rounds) {
  u32 v = 0;
  for (u32 i = 0; i < rounds; i++) {
    v += *(volatile u32*)(x + threadIdx.x);
    if (threadIdx.x < 16) (i % 2 ? x : y)[blockIdx.x * 16 + threadIdx.x] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
      u32 seen;
      do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
      while (seen < (i + 1) * gridDim.x);
    }
    __syncthreads();
  }
}
// Sixteen pieces to each warp at a time, one such bunch on its way while the other is looked at.
__global__ void __launch_bounds__(THREADS, 1) stream(const u8* w, size_t bytes, u32 piece, u32* out) {
#if GPU_NVIDIA && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) u8 shared[];
  __shared__ Signal signals[THREADS / 32 * 2];
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, bunch = 16 * piece;
  u8* own = shared + warp * 2 * bunch;
  if (lane < 2) make_signal(signals + warp * 2 + lane, 16);
  signals_made();
  __syncwarp();
  const size_t all = bytes / bunch, first = blockIdx.x * (THREADS / 32) + warp, step = gridDim.x * (THREADS / 32);
  const auto send = [&](size_t at, u32 place) {
    if (at >= all || lane >= 16) return;
    expect_bytes(signals + warp * 2 + place, piece);
    copy_bulk((u32*)(own + place * bunch + lane * piece), w + at * bunch + lane * piece, piece, signals + warp * 2 + place);
  };
  send(first, 0);
  u32 sum = 0, place = 0, phase = 0;
  for (size_t at = first; at < all; at += step) {
    await_signal(signals + warp * 2 + place, phase);
    __syncwarp();
    send(at + step, place ^ 1);
    sum += ((const u32*)(own + place * bunch))[lane];
    place ^= 1;
    phase ^= place == 0;
  }
  if (sum == 1) *out = 1;  // so that reading is not left away
#endif
}

int main() {
  int sms;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  u32 *x = device<u32>(1 << 16), *y = device<u32>(1 << 16), *counter = device<u32>(1);
  for (u32 early = 0; early < 2; early++) {
    const auto time = [&](void (*kernel)(const u32*, u32*)) {
      return median_of_graph([&](cudaStream_t s) {
               for (int i = 0; i < 100; i++) {
                 cudaLaunchConfig_t config{};
                 config.gridDim = dim3(sms), config.blockDim = dim3(THREADS), config.stream = s;
                 cudaLaunchAttribute attribute{};
                 attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
                 attribute.val.programmaticStreamSerializationAllowed = 1;
                 config.attrs = &attribute, config.numAttrs = early;
                 CHECK(cudaLaunchKernelEx(&config, kernel, (const u32*)(i % 2 ? x : y), i % 2 ? y : x));
               }
             }, 7) / 100;
    };
    printf("%s: a kernel that does nothing %.2f us, one that reads and writes %.2f us\n", early ? "early launches" : "no early launches", time(nothing), time(pass_on));
  }
  constexpr u32 ROUNDS = 200;
  const float met = median([&] {
    CHECK(cudaMemsetAsync(counter, 0, 4));
    meetings<<<sms, THREADS>>>(counter, x, y, ROUNDS);
  }, 7) / ROUNDS;
  printf("a barrier across the device, with the same reading and writing: %.2f us\n", met);
  const size_t bytes = (size_t)512 << 20;
  u8* w = device<u8>(bytes);
  CHECK(cudaFuncSetAttribute(stream, cudaFuncAttributeMaxDynamicSharedMemorySize, 220 * 1024));
  for (const u32 piece : {144u, 288u, 400u}) {
    const float us = median([&] { stream<<<sms, THREADS, THREADS / 32 * 32 * piece>>>(w, bytes, piece, x); }, 7);
    printf("bulk copies of %u bytes: %.2f TB/s\n", piece, bytes / us * 1e-6);
  }
  return 0;
}
