// RMS norms of few rows as a recorded step has them: µs for each of 65 that follow each other, by threads to a row.
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a quant-matvec norm) bench/gpu/norm.cu -o norm
#define GPU_ONLY
#define GPU_ONLY_bf16
#include "bench.h"
#ifndef NORM_SOURCE
#define NORM_SOURCE "norm.hip"
#endif
#include NORM_SOURCE

template <class... P, class... A> static void go(cudaStream_t stream, void (*kernel)(P...), u32 grid, u32 block, A... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid), config.blockDim = dim3(block), config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute, config.numAttrs = 1;
  CHECK(cudaLaunchKernelEx(&config, kernel, (P)args...));
}

int main() {
  constexpr u32 COLS = 4096, LAYERS = 65;
  for (u32 rows : {1u, 5u, 16u, 64u}) {
    bf16 *x = device<bf16>(rows * COLS), *y = device<bf16>(rows * COLS), *alpha = device<bf16>(COLS * LAYERS);
    fill_floats<<<1024, 256>>>(x, rows * COLS, 1, 1.0f);
    fill_floats<<<1024, 256>>>(alpha, COLS * LAYERS, 2, 1.0f);
    printf("%2u rows:", rows);
    for (u32 threads : {128u, 256u})
      printf("  %u threads %.2f", threads, median_of_graph([&](cudaStream_t s) {
               for (u32 l = 0; l < LAYERS; l++) go(s, rmsnorm_bf16, rows, threads, l % 2 ? y : x, alpha + l * COLS, l % 2 ? x : y, rows, COLS, 1e-5, threads);
             }) / LAYERS);
    std::vector<u16> bits(rows * COLS);
    CHECK(cudaMemcpy(bits.data(), x, bits.size() * 2, cudaMemcpyDeviceToHost));
    u64 sum = 0;
    for (u16 b : bits) sum = sum * 31 + b;
    printf("  (%016llx)\n", (unsigned long long)sum);
  }
}
