// Wick's own products of halves beside cuBLAS on an NVIDIA card, and how far they differ.
//
//   nvcc -arch=sm_90 -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90 product linear) -DGPU_ONLY -DGPU_ONLY_bf16 bench/gpu/gemm.cu -lcublas -o gemm
//
// N: rows lie one behind the other; T: columns do (of weights, usually).
#include "bench.h"
#include "product.hip"
#include <cublas_v2.h>

typedef void (*Kernel)(const bf16*, const bf16*, bf16*, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, const size_t*);
struct Variant {
  Kernel kernel;
  int tile, bytes;
};
#define VARIANTS(lies) \
  {{product_##lies##_bf16, PRODUCT_TILE, PRODUCT_ASYNC_STAGES * 4 * PRODUCT_TILE * PRODUCT_ASYNC_SLICE}, \
   {product_small_##lies##_bf16, PRODUCT_TILE / 2, (PRODUCT_ASYNC_STAGES + 1) * 2 * PRODUCT_TILE * PRODUCT_ASYNC_SLICE}}
// By whether a, and b, lies in columns; the large tiles, then the small ones.
static const Variant variants[2][2][2] = {{VARIANTS(kn), VARIANTS(kk)}, {VARIANTS(mn), VARIANTS(mk)}};

int main() {
  cublasHandle_t blas;
  cublasCreate(&blas);
  const struct { size_t m, n, k; } shapes[] = {{8192, 8192, 8192}, {4096, 14336, 4096}, {4096, 4096, 14336}, {2048, 2048, 2048}, {512, 14336, 4096}, {512, 4096, 4096}, {1000, 1000, 1000}, {333, 777, 555}, {64, 4096, 4096}};
  for (const auto& s : shapes) {
    bf16 *a = device<bf16>(s.m * s.k), *b = device<bf16>(s.n * s.k), *own = device<bf16>(s.m * s.n), *theirs = device<bf16>(s.m * s.n);
    fill_floats<bf16><<<1024, 256>>>(a, s.m * s.k, 1, 1.0f);
    fill_floats<bf16><<<1024, 256>>>(b, s.n * s.k, 2, 1.0f);
    const float one = 1, zero = 0;
    for (int ta = 0; ta < 2; ta++)
      for (int tb = 0; tb < 2; tb++) {
        const float library = median([&] {
          cublasGemmEx(blas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, (int)s.n, (int)s.m, (int)s.k, &one, b,
                       CUDA_R_16BF, (int)(tb ? s.k : s.n), a, CUDA_R_16BF, (int)(ta ? s.m : s.k), &zero, theirs, CUDA_R_16BF, (int)s.n,
                       CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
        }, 9);
        printf("%5zu x %5zu x %5zu %c%c  cuBLAS %6.1f TFLOP/s;", s.m, s.n, s.k, ta ? 'T' : 'N', tb ? 'T' : 'N', 2e-6 * s.m * s.n * s.k / library);
        for (int small = 0; small < 2; small++) {
          const Variant& v = variants[ta][tb][small];
          CHECK(cudaFuncSetAttribute((const void*)v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, v.bytes));
          CHECK(cudaMemset(own, 0xee, s.m * s.n * 2));
          const unsigned grid = (unsigned)((s.m + v.tile - 1) / v.tile * ((s.n + v.tile - 1) / v.tile));
          const float time = median([&] {
            v.kernel<<<grid, 128, v.bytes>>>(a, b, own, 1, s.m, s.n, s.k, ta ? 1 : s.k, ta ? s.m : 1, tb ? 1 : s.n, tb ? s.k : 1, 0, nullptr);
          }, 9);
          std::vector<u16> x(s.m * s.n), y(s.m * s.n);
          CHECK(cudaMemcpy(x.data(), own, x.size() * 2, cudaMemcpyDeviceToHost));
          CHECK(cudaMemcpy(y.data(), theirs, y.size() * 2, cudaMemcpyDeviceToHost));
          double difference = 0, norm = 0;
          for (size_t i = 0; i < x.size(); i++) {
            const u32 bits[2] = {(u32)x[i] << 16, (u32)y[i] << 16};
            float values[2];
            memcpy(values, bits, 8);
            difference += (double)(values[0] - values[1]) * (values[0] - values[1]);
            norm += (double)values[1] * values[1];
          }
          printf("  %s %6.1f = %.2f (error %.0e)", small ? "small" : "large", 2e-6 * s.m * s.n * s.k / time, library / time, sqrt(difference / norm));
        }
        printf("\n");
        fflush(stdout);
      }
    for (bf16* p : {a, b, own, theirs}) CHECK(cudaFree(p));
  }
}
