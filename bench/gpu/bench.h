// What the benchmarks of single kernels share: memory, random data, times, the copy ceiling. CUDA only.
#pragma once
#include "stream.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

using namespace gpu;

#define CHECK(call) \
  do { \
    const cudaError_t error = (call); \
    if (error != cudaSuccess) { \
      printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error)); \
      exit(1); \
    } \
  } while (0)

template <class T> static T* device(size_t count) {
  void* p;
  CHECK(cudaMalloc(&p, count * sizeof(T)));
  CHECK(cudaMemset(p, 0xee, count * sizeof(T)));
  return (T*)p;
}

static __device__ u32 hash(size_t i, u32 seed) {
  u32 h = (u32)i * 2654435761u + (u32)(i >> 32) * 97u + seed;
  h = (h ^ h >> 15) * 0x2c1b3c6du;
  h = (h ^ h >> 12) * 0x297a2d39u;
  return h ^ h >> 15;
}
static __global__ void fill_bytes(u8* p, size_t n, u32 seed) {
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) p[i] = (u8)(hash(i, seed) >> 11);
}
// Random bytes are no sensible halves: scales become 0.01 … 0.02.
static __global__ void fill_scales(u8* p, size_t blocks, u32 bytes, u32 offset) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < blocks) *(u16*)(p + i * bytes + offset) = f32_to_f16(0.01f + 0.01f * (float)(i % 97) / 97);
}
// Uniform in ±size.
template <class T> static __global__ void fill_floats(T* p, size_t n, u32 seed, f32 size) {
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
    p[i] = narrow<T>(((f32)(hash(i, seed) >> 8) / 8388608.0f - 1.0f) * size);
}
static __global__ void copy_vectors(const uint4* a, uint4* b, size_t n) {
  const size_t i = (size_t)blockIdx.x * 1024 + threadIdx.x;
  uint4 x[4];
#pragma unroll
  for (int j = 0; j < 4; j++) if (i + j * 256 < n) x[j] = a[i + j * 256];
#pragma unroll
  for (int j = 0; j < 4; j++) if (i + j * 256 < n) b[i + j * 256] = x[j];
}

// With the leave to begin before the kernel before it ends.
template <class K, class... A> static void early(cudaStream_t stream, K kernel, u32 grid, u32 threads, u32 bytes, A... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid), config.blockDim = dim3(threads), config.dynamicSmemBytes = bytes, config.stream = stream;
  cudaLaunchAttribute leave{};
  leave.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  leave.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &leave, config.numAttrs = 1;
  CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

// Microseconds.
static float median(const std::function<void()>& sample, int count = 15) {
  cudaEvent_t a, b;
  CHECK(cudaEventCreate(&a));
  CHECK(cudaEventCreate(&b));
  std::vector<float> times;
  for (int i = -2; i < count; i++) {
    CHECK(cudaEventRecord(a));
    sample();
    CHECK(cudaEventRecord(b));
    CHECK(cudaEventSynchronize(b));
    CHECK(cudaGetLastError());
    float ms;
    CHECK(cudaEventElapsedTime(&ms, a, b));
    if (i >= 0) times.push_back(ms * 1000);
  }
  std::sort(times.begin(), times.end());
  CHECK(cudaEventDestroy(a));
  CHECK(cudaEventDestroy(b));
  return times[times.size() / 2];
}

// The same for what `work` enqueues on a stream, replayed as a graph: without the host's share of launches.
static float median_of_graph(const std::function<void(cudaStream_t)>& work, int count = 15) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t ready;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  work(stream);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&ready, graph, 0));
  const float us = median([&] { CHECK(cudaGraphLaunch(ready, 0)); }, count);
  CHECK(cudaGraphExecDestroy(ready));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaStreamDestroy(stream));
  return us;
}

// Of one of many of them.
static float recorded(const std::function<void(cudaStream_t)>& work, int count = 9) {
  const int calls = 20;
  return median_of_graph([&](cudaStream_t stream) {
    for (int i = 0; i < calls; i++) work(stream);
  }, count) / calls;
}

// TB/s of a large copy, reads and writes counted.
static double copy_ceiling() {
  const size_t big = (size_t)1 << 31;
  u8* from = device<u8>(big);
  u8* to = device<u8>(big);
  const float own = median([&] { copy_vectors<<<(unsigned)(big / 16 / 1024), 256>>>((uint4*)from, (uint4*)to, big / 16); });
  const float theirs = median([&] { CHECK(cudaMemcpyAsync(to, from, big, cudaMemcpyDeviceToDevice)); });
  CHECK(cudaFree(from));
  CHECK(cudaFree(to));
  const double ceiling = 2.0 * big / std::min(own, theirs) * 1e-6;
  printf("copy ceiling %.2f TB/s\n", ceiling);
  return ceiling;
}

// ‖y − wanted‖ / ‖wanted‖
static double error_of(const void* y, u32 dtype, const f64* wanted, size_t count) {
  std::vector<u8> a(count * (dtype ? 2 : 4));
  std::vector<f64> b(count);
  CHECK(cudaMemcpy(a.data(), y, a.size(), cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(b.data(), wanted, count * 8, cudaMemcpyDeviceToHost));
  double difference = 0, norm = 0;
  for (size_t i = 0; i < count; i++) {
    float v;
    if (dtype == 0) v = ((float*)a.data())[i];
    else {
      u32 bits = (u32)((u16*)a.data())[i] << 16;
      memcpy(&v, &bits, 4);
    }
    difference += (v - b[i]) * (v - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

// How a linear layer is launched; per_sm 0: as many blocks as there is work.
struct Launch {
  u32 threads, splits, per_sm;
};
