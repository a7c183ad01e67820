// Wick's own products in f32 beside cuBLAS (without TF32) on an NVIDIA card, and how far they differ: tiles of both sizes, and small
// ones with k in parts.
//
//   nvcc -arch=sm_90 -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90 gemm reduce linear) -DGPU_ONLY -DGPU_ONLY_f32 bench/gpu/gemm32.cu -lcublas -o gemm32
//
// N: rows lie one behind the other; T: columns do (of weights, usually).
#include "bench.h"
#include "gemm.hip"
#include "reduce.hip"
#include <cublas_v2.h>

int main() {
  cublasHandle_t blas;
  cublasCreate(&blas);
  const struct { size_t m, n, k; } shapes[] = {{8192, 8192, 8192}, {4096, 14336, 4096}, {4096, 4096, 14336}, {2048, 2048, 2048}, {3000, 3000, 3000}, {1024, 1024, 1024}, {1000, 1000, 1000}, {333, 777, 555}, {1999, 4001, 4095}, {512, 512, 4096}, {64, 4096, 4096}, {16, 4096, 4096}};
  for (const auto& s : shapes) {
    const size_t numbers = s.m * s.n;
    f32 *a = device<f32>(s.m * s.k), *b = device<f32>(s.n * s.k), *own = device<f32>(numbers), *theirs = device<f32>(numbers), *parts = device<f32>(8 * numbers);
    fill_floats<f32><<<1024, 256>>>(a, s.m * s.k, 1, 1.0f);
    fill_floats<f32><<<1024, 256>>>(b, s.n * s.k, 2, 1.0f);
    const float one = 1, zero = 0;
    const bool large = numbers * s.k > (size_t)1 << 36;
    for (int ta = 0; ta < 2; ta++)
      for (int tb = 0; tb < 2; tb++) {
        const size_t a_row = ta ? 1 : s.k, a_col = ta ? s.m : 1, b_row = tb ? 1 : s.n, b_col = tb ? s.k : 1;
        const int count = large ? 3 : 9;
        const float library = median([&] {
          cublasGemmEx(blas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, (int)s.n, (int)s.m, (int)s.k, &one, b,
                       CUDA_R_32F, (int)(tb ? s.k : s.n), a, CUDA_R_32F, (int)(ta ? s.m : s.k), &zero, theirs, CUDA_R_32F, (int)s.n,
                       CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
        }, count);
        printf("%5zu x %5zu x %5zu %c%c  cuBLAS %5.1f TFLOP/s;", s.m, s.n, s.k, ta ? 'T' : 'N', tb ? 'T' : 'N', 2e-6 * numbers * s.k / library);
        const auto report = [&](const char* name, const std::function<void()>& run) {
          CHECK(cudaMemset(own, 0xee, numbers * 4));
          const float time = median(run, count);
          std::vector<f32> x(numbers), y(numbers);
          CHECK(cudaMemcpy(x.data(), own, numbers * 4, cudaMemcpyDeviceToHost));
          CHECK(cudaMemcpy(y.data(), theirs, numbers * 4, cudaMemcpyDeviceToHost));
          double difference = 0, norm = 0;
          for (size_t i = 0; i < numbers; i += large ? 97 : 1) difference += (double)(x[i] - y[i]) * (x[i] - y[i]), norm += (double)y[i] * y[i];
          printf("  %s %.1f = %.2f%s", name, 2e-6 * numbers * s.k / time, library / time, sqrt(difference / norm) < 1e-5 ? "" : " WRONG");
        };
        const auto tiles = [&](size_t down, size_t across) { return (unsigned)((s.m + down - 1) / down * ((s.n + across - 1) / across)); };
        report("large", [&] {
          gemm_f32<<<tiles(2 * GEMM_TILE, 4 * GEMM_TILE), 256>>>(a, b, own, 1, s.m, s.n, s.k, a_row, a_col, b_row, b_col, 0, nullptr, s.k);
        });
        for (size_t splits = 1; splits <= (large ? 1 : 8); splits *= 2) {
          const size_t depth = (s.k + 16 * splits - 1) / (16 * splits) * 16, count = (s.k + depth - 1) / depth;
          const char* const names[] = {"", "small", "in 2", "", "in 4", "", "", "", "in 8"};
          report(names[splits], [&] {
            gemm_small_f32<<<(unsigned)count * tiles(GEMM_TILE, GEMM_TILE), 128>>>(a, b, splits == 1 ? own : parts, 1, s.m, s.n, s.k, a_row, a_col, b_row, b_col, 0, nullptr, depth);
            if (splits > 1)
              sum_cols_f32<<<(unsigned)((numbers + 127) / 128), 256>>>(parts, own, nullptr, 1, count, numbers, 0, numbers, 32, 1);
          });
        }
        printf("\n");
        fflush(stdout);
      }
    for (void* p : {(void*)a, (void*)b, (void*)own, (void*)theirs, (void*)parts}) CHECK(cudaFree(p));
  }
}
