// Wick's own products of halves beside cuBLAS on an NVIDIA card, and how far they differ.
//
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a product linear) -DTYPE=bf16 -DGPU_ONLY -DGPU_ONLY_bf16 bench/gpu/gemm.cu -lcublas -o gemm
//
// N: rows lie one behind the other; T: columns do (of weights, usually).
#include "bench.h"
#include "product.hip"
#include <cublas_v2.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
typedef TYPE T;
const cudaDataType LIBRARY_TYPE = std::is_same<T, bf16>::value ? CUDA_R_16BF : CUDA_R_16F;
typedef void (*Kernel)(const T*, const T*, T*, size_t, size_t, size_t, size_t, size_t, size_t, size_t, const size_t*);
struct Variant {
  const char* name;
  Kernel kernel;
  int rows, cols, threads, stages, blocks;
  int bytes() const { return stages * 2 * (rows + cols) * PRODUCT_ASYNC_SLICE; }
};
// What src/backend/gpu/families/product.ts plans: sizes are only known where the device's code is compiled.
#define VARIANTS(lies) { \
  {"wide", JOIN(product_wide_##lies##_, TYPE), PRODUCT_TILE, 2 * PRODUCT_TILE, 256, PRODUCT_ASYNC_STAGES + 1, 1}, \
  {"square", JOIN(product_square_##lies##_, TYPE), PRODUCT_TILE, PRODUCT_TILE, 256, 2 * PRODUCT_ASYNC_STAGES, 1}, \
  {"half", JOIN(product_half_##lies##_, TYPE), PRODUCT_TILE / 2, PRODUCT_TILE, 128, PRODUCT_ASYNC_STAGES + 1, 1}, \
  {"pair", JOIN(product_pair_##lies##_, TYPE), PRODUCT_TILE / 2, PRODUCT_TILE, 128, PRODUCT_ASYNC_STAGES + 1, 2}, \
  {"split", JOIN(product_split_##lies##_, TYPE), PRODUCT_TILE / 2, PRODUCT_TILE, 128, PRODUCT_ASYNC_STAGES + 1, PRODUCT_SPLIT}, \
  {"large", JOIN(product_##lies##_, TYPE), PRODUCT_TILE, PRODUCT_TILE, 128, PRODUCT_ASYNC_STAGES, 1}, \
  {"small", JOIN(product_small_##lies##_, TYPE), PRODUCT_TILE / 2, PRODUCT_TILE / 2, 128, PRODUCT_ASYNC_STAGES + 1, 1}}
// By whether a, and b, lies in columns.
static const Variant variants[2][2][7] = {{VARIANTS(kn), VARIANTS(kk)}, {VARIANTS(mn), VARIANTS(mk)}};

static __global__ void compare(const T* x, const T* y, size_t n, double* sums) {
  double difference = 0, norm = 0;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
    const double a = widen(x[i]), b = widen(y[i]);
    difference += (a - b) * (a - b);
    norm += b * b;
  }
  atomicAdd(sums, difference);
  atomicAdd(sums + 1, norm);
}

int main() {
  cublasHandle_t blas;
  cublasCreate(&blas);
  const size_t workspace = 64 << 20;
  cublasSetWorkspace(blas, device<u8>(workspace), workspace);
  double* sums = device<double>(2);
  const struct { size_t m, n, k; } shapes[] = {{8192, 8192, 8192}, {4096, 14336, 4096}, {4096, 4096, 14336}, {2048, 2048, 2048}, {512, 14336, 4096}, {512, 4096, 4096}, {1536, 1536, 1536}, {1024, 1024, 1024}, {1000, 1000, 1000}, {512, 512, 512}, {264, 776, 552}, {512, 768, 3072}, {256, 2048, 4096}, {128, 4096, 4096}, {64, 4096, 4096}};
  for (const auto& s : shapes) {
    T *a = device<T>(s.m * s.k), *b = device<T>(s.n * s.k), *own = device<T>(s.m * s.n), *theirs = device<T>(s.m * s.n);
    fill_floats<T><<<1024, 256>>>(a, s.m * s.k, 1, 1.0f);
    fill_floats<T><<<1024, 256>>>(b, s.n * s.k, 2, 1.0f);
    const float one = 1, zero = 0;
    for (int ta = 0; ta < 2; ta++)
      for (int tb = 0; tb < 2; tb++) {
        const float library = recorded([&](cudaStream_t stream) {
          cublasSetStream(blas, stream);
          cublasGemmEx(blas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, (int)s.n, (int)s.m, (int)s.k, &one, b,
                       LIBRARY_TYPE, (int)(tb ? s.k : s.n), a, LIBRARY_TYPE, (int)(ta ? s.m : s.k), &zero, theirs, LIBRARY_TYPE, (int)s.n,
                       CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
        });
        printf("%5zu x %5zu x %5zu %c%c  cuBLAS %6.1f TFLOP/s;", s.m, s.n, s.k, ta ? 'T' : 'N', tb ? 'T' : 'N', 2e-6 * s.m * s.n * s.k / library);
        for (const Variant& v : variants[ta][tb]) {
          CHECK(cudaFuncSetAttribute((const void*)v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, v.bytes()));
          CHECK(cudaMemset(own, 0xee, s.m * s.n * 2));
          const unsigned grid = (unsigned)((s.m + v.rows - 1) / v.rows * ((s.n + v.cols - 1) / v.cols) * v.blocks);
          const float time = recorded([&](cudaStream_t stream) {
            v.kernel<<<grid, v.threads, v.bytes(), stream>>>(a, b, own, 1, s.m, s.n, s.k, ta ? s.m : s.k, tb ? s.k : s.n, 0, nullptr);
          });
          double found[2] = {0, 0};
          CHECK(cudaMemcpy(sums, found, sizeof found, cudaMemcpyHostToDevice));
          compare<<<264, 256>>>(own, theirs, s.m * s.n, sums);
          CHECK(cudaMemcpy(found, sums, sizeof found, cudaMemcpyDeviceToHost));
          printf("  %s %6.1f = %.2f (error %.0e)", v.name, 2e-6 * s.m * s.n * s.k / time, library / time, sqrt(found[0] / found[1]));
        }
        printf("\n");
        fflush(stdout);
      }
    for (T* p : {a, b, own, theirs}) CHECK(cudaFree(p));
  }
}
