// Products of 9 and 16 rows with weights of one quantized type in halves beside cuBLAS's in bf16 on an NVIDIA card, and their errors.
//
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a quant-batch quant-blocks quant-matvec) -DTYPE=q4_0 -DGPU_ONLY -DGPU_ONLY_q4_0 bench/gpu/quant-batch.cu -lcublas -o quant-batch
//
// Weights are rotated through copies, so that the cache serves none of them.
#include "bench.h"
#include "quant-blocks.hip"
#include "quant-batch.hip"
#include <cublas_v2.h>

#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
typedef TYPE Q;

// Results of some rows and the plain product of dequantized weights, a thread each: {Σ difference², Σ wanted²}.
template <class T> static __global__ void compare(const T* y, const f32* w, const T* x, size_t rows, size_t n, size_t k, double* sums) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * n) return;
  double sum = 0;
  for (size_t j = 0; j < k; j++) sum += (double)w[i % n * k + j] * (double)widen(x[i / n * k + j]);
  const double difference = (double)widen(y[i]) - sum;
  atomicAdd(sums, difference * difference);
  atomicAdd(sums + 1, sum * sum);
}

int main() {
  cublasHandle_t blas;
  cublasCreate(&blas);
  double* sums = device<double>(2);
  int sms;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  const double ceiling = copy_ceiling();
  // As src/backend/gpu/families/quant-batch.ts plans: the host's half of nvcc does not know the target.
  const u32 warps = QUANT_BATCH_WARPS;
  std::vector<u32> chunks{QUANT_FAR};
  if (Q::Elements < QUANT_NEAR && Q::Fine) chunks.push_back(QUANT_NEAR);
  const auto bytes_for = [&](u32 chunk, u32 splits) {
    const u32 pitch = 16 * ((chunk / Q::Elements * Q::Bytes + 31 - Q::Align) / 16 | 1);
    return std::max(2 * 16 * 2 * (splits * chunk + 16) + warps * 2 * 16 * pitch, warps * 1024);
  };
  const auto kernel = JOIN(quant_batch_, TYPE, _bf16);
  const auto halves = JOIN(quant_batch_, TYPE, _f16);
  CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024 - 1024));
  CHECK(cudaFuncSetAttribute((const void*)halves, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024 - 1024));
  const struct { size_t n, k; } shapes[] = {{28672, 4096}, {6144, 4096}, {4096, 4096}, {4096, 14336}, {128256, 4096}};
  for (const auto& s : shapes) {
    const size_t n = s.n, k = s.k, blocks = n * k / Q::Elements, size = blocks * Q::Bytes;
    const int copies = (int)(((size_t)150 << 20) / size) + 1;
    std::vector<u8*> w(copies);
    for (int c = 0; c < copies; c++) {
      w[c] = device<u8>(size);
      fill_bytes<<<4096, 256>>>(w[c], size, 17u * c + 3);
      std::vector<u32> scales{0};
      if (Q::HasMin) scales = {0, 2};
      for (u32 offset : scales) fill_scales<<<(unsigned)(blocks / 256 + 1), 256>>>(w[c], blocks, Q::Bytes, offset);
    }
    f32* dense = device<f32>(n * k);
    JOIN(dequantize_block_, TYPE, _f32)<<<(unsigned)(n * k / (QUANT_CHUNK * 8)), 256>>>(w[0], dense, n * k);
    bf16 *x = device<bf16>(16 * k), *y = device<bf16>(16 * n), *weights = device<bf16>(n * k);
    f16 *xh = device<f16>(16 * k), *yh = device<f16>(16 * n);
    fill_floats<bf16><<<1024, 256>>>(x, 16 * k, 1, 1.0f);
    fill_floats<f16><<<1024, 256>>>(xh, 16 * k, 1, 1.0f);
    fill_floats<bf16><<<1024, 256>>>(weights, n * k, 2, 1.0f);
    for (size_t rows : {9, 16}) {
      const float one = 1, zero = 0;
      const float library = median([&] {
        cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)n, (int)rows, (int)k, &one, weights, CUDA_R_16BF, (int)k, x, CUDA_R_16BF, (int)k, &zero, y, CUDA_R_16BF,
                     (int)n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
      }, 9);
      printf("%s %6zu x %5zu, %2zu rows: cuBLAS %6.1f us;", TEXT(TYPE), n, k, rows, library);
      for (u32 chunk : chunks) for (u32 splits : {1, 2, 4, 8, 16}) {
        const u32 bytes = bytes_for(chunk, splits), tiles = (u32)((n + 16 * (warps / splits) - 1) / (16 * (warps / splits)));
        if (splits > warps || bytes > 227 * 1024 - 1024 || splits * chunk > k) continue;
        const u32 grid = std::min(tiles, (u32)sms);
        const auto error = [&](auto* out, auto* in, auto kernel) {
          CHECK(cudaMemset(out, 0xee, rows * n * 2));
          CHECK(cudaMemset(sums, 0, 16));
          kernel<<<grid, warps * 32, bytes>>>(in, w[0], out, rows, n, k, splits, chunk);
          compare<<<(unsigned)(rows * n / 256 + 1), 256>>>(out, dense, in, rows, n, k, sums);
          double found[2];
          CHECK(cudaMemcpy(found, sums, sizeof found, cudaMemcpyDeviceToHost));
          return std::sqrt(found[0] / found[1]);
        };
        const double e = n > 50000 ? 0 : error(y, x, kernel), eh = n > 50000 ? 0 : error(yh, xh, halves);
        const float time = median_of_graph([&](cudaStream_t stream) {
          for (u8* p : w) kernel<<<grid, warps * 32, bytes, stream>>>(x, p, y, rows, n, k, splits, chunk);
        }, 5) / copies;
        printf("  by %u of %u %6.1f us %.2f (%.0e %.0e)", splits, chunk, time, size / time * 1e-6 / ceiling, e, eh);
      }
      printf("\n");
      fflush(stdout);
    }
    for (u8* p : w) CHECK(cudaFree(p));
    for (void* p : {(void*)x, (void*)y, (void*)xh, (void*)yh, (void*)weights, (void*)dense}) CHECK(cudaFree(p));
  }
}
