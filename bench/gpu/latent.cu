// Latent attention on an NVIDIA GPU: checked against a plain f32 kernel, then timed at DeepSeek's shapes.
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a attention_latent quant-matvec) bench/gpu/latent.cu -o latent && ./latent
// TB/s count the cache once.
#define GPU_ONLY
#define GPU_ONLY_bf16
#include "attention_latent.hip"
#include "bench.h"

using gpu::bf16;
typedef gpu::Latent<bf16> Plan;

// One block for each row of queries (batch, t, heads); scores in dynamic shared memory.
__global__ void naive(int heads, int t, int keys, int d, int dv, const bf16* q, const bf16* k, float* out, float scale) {
  extern __shared__ float s[];
  __shared__ float top, total;
  const int row = blockIdx.x, head = row % heads, i = row / heads % t, b = row / heads / t, end = keys - t + i + 1;
  for (int j = threadIdx.x; j < end; j += blockDim.x) {
    float x = 0;
    for (int c = 0; c < d; c++) x += gpu::widen(q[(size_t)row * Plan::Q_PITCH + c]) * gpu::widen(k[((size_t)b * keys + j) * d + c]);
    s[j] = x * scale;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    top = -INFINITY, total = 0;
    for (int j = 0; j < end; j++) top = fmaxf(top, s[j]);
    for (int j = 0; j < end; j++) total += expf(s[j] - top);
  }
  __syncthreads();
  for (int c = threadIdx.x; c < dv; c += blockDim.x) {
    float x = 0;
    for (int j = 0; j < end; j++) x += expf(s[j] - top) * gpu::widen(k[((size_t)b * keys + j) * d + c]);
    out[(((size_t)b * heads + head) * t + i) * dv + c] = x / total;
  }
}

static int multiprocessors;

static void run(size_t batch, size_t heads, size_t t, size_t keys, size_t rank, size_t rope, bool check) {
  size_t d = rank + rope;
  const size_t rows = batch * heads * t, blocks = batch * ((heads * t + 15) / 16);
  const int shared = 2 * Plan::STAGE * 2 + Plan::WAVES * 16 * Plan::SCORE_PITCH * 4 + 16 * Plan::WEIGHT_PITCH * 2 + 128;
  gpu::u32 splits = (gpu::u32)std::max(1l, std::min({64l, (long)(keys + 63) / 64, std::lround((double)LATENT_CROWD * multiprocessors / blocks)}));
  bf16 *q, *k, *out;
  const bf16* mask = nullptr;
  const gpu::i64 *lengths = nullptr, *tables = nullptr;
  float *scratch, *wanted;
  gpu::u32* counters;
  CHECK(cudaMalloc(&q, (rows + 15) * Plan::Q_PITCH * 2));
  CHECK(cudaMalloc(&k, batch * keys * d * 2));
  CHECK(cudaMalloc(&out, rows * rank * 2));
  CHECK(cudaMalloc(&scratch, rows * splits * (rank + 2) * 4));
  CHECK(cudaMalloc(&counters, blocks * LATENT_COUNTERS * 4));
  CHECK(cudaMemset(counters, 0, blocks * LATENT_COUNTERS * 4));
  fill_floats<<<1024, 256>>>(q, (rows + 15) * Plan::Q_PITCH, 1, 1.5f);
  fill_floats<<<1024, 256>>>(k, batch * keys * d, 2, 1.5f);
  size_t k_b = keys * d, zero = 0;
  double scale = 1 / std::sqrt((double)d);
  void* args[] = {&q, &k, &mask, &lengths, &tables, &out, &scratch, &counters, &batch, &heads, &t, &keys, &d, &rank, &k_b, &d, &zero, &zero, &zero, &zero, &scale, &splits};
  const void* kernel = (const void*)gpu::attention_latent_bf16;
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  const auto launch = [&] { CHECK(cudaLaunchKernel(kernel, dim3((unsigned)(blocks * splits)), dim3(ATTENTION_BLOCK), args, shared, 0)); };
  launch();
  CHECK(cudaDeviceSynchronize());
  std::printf("latent %zu x %zu heads, %zu queries, %zu keys of %zu + %zu, %u parts: ", batch, heads, t, keys, rank, rope, splits);
  if (check) {
    CHECK(cudaMalloc(&wanted, rows * rank * 4));
    CHECK(cudaFuncSetAttribute(naive, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
    naive<<<(unsigned)rows, 128, keys * 4>>>((int)heads, (int)t, (int)keys, (int)d, (int)rank, q, k, wanted, (float)scale);
    CHECK(cudaDeviceSynchronize());
    std::vector<float> want(rows * rank);
    std::vector<unsigned short> got(rows * rank);
    CHECK(cudaMemcpy(want.data(), wanted, want.size() * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(got.data(), out, got.size() * 2, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(wanted));
    double difference = 0, norm = 0;
    for (size_t i = 0; i < want.size(); i++) {
      union { unsigned bits; float x; } y{(unsigned)got[i] << 16};
      difference += (y.x - want[i]) * (y.x - want[i]), norm += (double)want[i] * want[i];
    }
    const double error = std::sqrt(difference / norm);
    std::printf("error %.1e%s\n", error, error < 6e-3 ? "" : "  WRONG");
  } else {
    cudaEvent_t start, stop;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&stop));
    std::vector<float> times(9);
    for (float& ms : times) {
      CHECK(cudaEventRecord(start));
      for (int i = 0; i < 20; i++) launch();
      CHECK(cudaEventRecord(stop));
      CHECK(cudaEventSynchronize(stop));
      CHECK(cudaEventElapsedTime(&ms, start, stop));
    }
    std::sort(times.begin(), times.end());
    const double us = times[4] / 20 * 1e3;
    std::printf("%.1f us, %.2f TB/s\n", us, batch * keys * d * 2 / us / 1e6);
  }
  for (void* x : {(void*)q, (void*)k, (void*)out, (void*)scratch, (void*)counters}) CHECK(cudaFree(x));
}

int main() {
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  multiprocessors = device.multiProcessorCount;
  run(1, 16, 1, 1000, 512, 64, true);
  run(3, 20, 5, 301, 32, 16, true);
  run(2, 128, 1, 2049, 512, 64, true);
  run(1, 16, 200, 333, 512, 64, true);
  for (size_t keys : {128, 1024, 4096, 16384}) run(1, 16, 1, keys, 512, 64, false);
  run(32, 16, 1, 4096, 512, 64, false);
  run(1, 128, 1, 4096, 512, 64, false);
  run(32, 128, 1, 4096, 512, 64, false);
  run(1, 16, 512, 512, 512, 64, false);
}
