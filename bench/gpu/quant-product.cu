// Products of many rows with weights of one quantized type beside cuBLAS's in bf16 on an NVIDIA card, and their errors.
//
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a quant-product quant-blocks quant-quantize) -DTYPE=q4_k -DGPU_ONLY -DGPU_ONLY_q4_k -DGPU_ONLY_f32 bench/gpu/quant-product.cu -lcublas -o quant-product
//
// Weights are rotated through copies, so that the cache serves none of them.
#include "bench.h"
#include "quant-blocks.hip"
#include "quant-product.hip"
#include "quant-quantize.hip"
#include <cublas_v2.h>

#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
typedef TYPE Q;

// Results of rows `from` … and the plain product of dequantized weights, a thread each: {Σ difference², Σ wanted²}.
template <class T> static __global__ void compare(const T* y, const f32* w, const T* x, size_t from, size_t rows, size_t n, size_t k, double* sums) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * n) return;
  const size_t row = from + i / n, column = i % n;
  double sum = 0;
  for (size_t j = 0; j < k; j++) sum += (double)w[column * k + j] * (double)widen(x[row * k + j]);
  const double difference = (double)widen(y[row * n + column]) - sum;
  atomicAdd(sums, difference * difference);
  atomicAdd(sums + 1, sum * sum);
}

template <class T> struct Variant {
  void (*kernel)(const void*, const u8*, T*, f32*, u32*, size_t, size_t, size_t, u32);
  const char* name;
  int rows, lines, threads, bytes, per_sm;
};
// As src/backend/gpu/families/quantized.ts plans for warpgroups: the host's half of nvcc does not know the target.
template <class T> static Variant<T> variant(const char* name, void (*kernel)(const void*, const u8*, T*, f32*, u32*, size_t, size_t, size_t, u32), int rows) {
  const int chunk = Q::Elements == 32 && Q::Fine ? 128 : 256, stored = 16 * ((chunk / Q::Elements * Q::Bytes + 31 - Q::Align) / 16 | 1);
  const int stage = rows * ((sizeof(T) == 4 ? 4 : 2) * chunk + 32) + 128 * stored, stages = 3 * stage + 512 <= 227 * 1024 ? 3 : 2;
  Variant<T> v{kernel, name, rows, 128, 256, (rows < 256 ? stages * stage : 3 * (128 + rows) * 128 + 2 * 128 * stored) + 512, 0};
  CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, v.bytes));
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&v.per_sm, kernel, v.threads, v.bytes));
  return v;
}
#define VARIANTS(T) \
  variant<T>("few", JOIN(quant_product_few_, TYPE, _##T), 16), variant<T>("some", JOIN(quant_product_some_, TYPE, _##T), 64), \
      variant<T>("many", JOIN(quant_product_, TYPE, _##T), 256)

int main() {
  int sms;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  const double ceiling = copy_ceiling();
  cublasHandle_t blas;
  cublasCreate(&blas);
  double* sums = device<double>(2);
  u32* counters = device<u32>(4096);
  CHECK(cudaMemset(counters, 0, 4096 * 4));
  f32* parts = device<f32>((size_t)132 * 8 * 2 * 64 * 256);
  const std::string name = TEXT(TYPE);
  const Variant<bf16> halves[] = {VARIANTS(bf16)};
  const Variant<f32> floats[] = {VARIANTS(f32)};
  for (const auto& v : halves) printf("%s %s: %d x %d, %d bytes, %d blocks per multiprocessor\n", TEXT(TYPE), v.name, v.lines, v.rows, v.bytes, v.per_sm);
  const struct { size_t n, k; } shapes[] = {{14336, 4096}, {4096, 4096}, {4096, 14336}, {1024, 4096}};
  const size_t batches[] = {9, 16, 32, 64, 128, 256, 512, 1024};
  for (const auto& s : shapes) {
    const size_t n = s.n, k = s.k, blocks = n * k / Q::Elements, size = blocks * Q::Bytes;
    const int copies = n == 14336 ? (int)(((size_t)400 << 20) / size) + 1 : (int)(((size_t)120 << 20) / size) + 1;
    std::vector<u8*> w(copies);
    for (int c = 0; c < copies; c++) {
      w[c] = device<u8>(size);
      fill_bytes<<<4096, 256>>>(w[c], size, 17u * c + 3);
      std::vector<u32> scales{0};
      if (name == "q6_k") scales = {208};
      if (name == "q3_k") scales = {108};
      if (name == "q2_k") scales = {80, 82};
      if (Q::HasMin && name != "q2_k") scales = {0, 2};
      for (u32 offset : scales) fill_scales<<<(unsigned)(blocks / 256 + 1), 256>>>(w[c], blocks, Q::Bytes, offset);
    }
    f32* dense = device<f32>(n * k);
    JOIN(dequantize_block_, TYPE, _f32)<<<(unsigned)(n * k / (CHUNK * WARPS)), 256>>>(w[0], dense, n * k);
    bf16 *x = device<bf16>(1024 * k), *y = device<bf16>(1024 * n), *weights = device<bf16>(n * k), *split = device<bf16>(2048 * k);
    f32 *xf = device<f32>(1024 * k), *yf = device<f32>(1024 * n);
    fill_floats<bf16><<<1024, 256>>>(x, 1024 * k, 1, 1.0f);
    fill_floats<f32><<<1024, 256>>>(xf, 1024 * k, 1, 1.0f);
    fill_floats<bf16><<<1024, 256>>>(weights, n * k, 2, 1.0f);
    for (size_t rows : batches) {
      const float one = 1, zero = 0;
      const float library = median([&] {
        cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)n, (int)rows, (int)k, &one, weights, CUDA_R_16BF, (int)k, x, CUDA_R_16BF, (int)k, &zero, y, CUDA_R_16BF,
                     (int)n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
      }, 9);
      printf("%s %5zu x %5zu, %4zu rows: cuBLAS %6.1f us %5.0f TFLOP/s;", TEXT(TYPE), n, k, rows, library, 2e-6 * rows * n * k / library);
      const auto error = [&](auto* y, auto* x) {
        double found[2] = {0, 0};
        CHECK(cudaMemcpy(sums, found, sizeof found, cudaMemcpyHostToDevice));
        const size_t some = rows < 8 ? rows : 8;
        compare<<<(unsigned)(some * n / 256), 256>>>(y, dense, x, 0, some, n, k, sums);
        compare<<<(unsigned)(some * n / 256), 256>>>(y, dense, x, rows - some, some, n, k, sums);
        CHECK(cudaMemcpy(found, sums, sizeof found, cudaMemcpyDeviceToHost));
        return std::sqrt(found[0] / found[1]);
      };
      for (const auto& v : halves) {
        if ((size_t)v.rows * 2 < rows && v.rows < 256 || (v.rows > 64 && rows < 128)) continue;
        const u32 tiles = (u32)((n + v.lines - 1) / v.lines * ((rows + v.rows - 1) / v.rows)), at_once = (u32)(sms * v.per_sm);
        // Each tile alone; whole rounds of them alone; all shared.
        u32 last = ~0u;
        for (u32 alone : {tiles, tiles / at_once * at_once, 0u}) {
          if (alone == last) continue;
          last = alone;
          const u32 most = alone == tiles ? tiles : (u32)(tiles * ((k + 255) / 256)), grid = most < at_once ? most : at_once;
          CHECK(cudaMemset(y, 0xee, rows * n * 2));
          v.kernel<<<grid, v.threads, v.bytes>>>(x, w[0], y, parts, counters, rows, n, k, alone);
          const double e = error(y, x);
          const float time = median([&] {
            for (int c = 0; c < copies; c++) v.kernel<<<grid, v.threads, v.bytes>>>(x, w[c], y, parts, counters, rows, n, k, alone);
          }, 5) / copies;
          printf("  %s %u/%u %.1f us", v.name, alone, tiles, time);
          if (rows < 128) printf(" %.2f of copy", size / time * 1e-6 / ceiling);
          else printf(" %.0f = %.2f", 2e-6 * rows * n * k / time, library / time);
          printf(" (%.0e)", e);
        }
      }
      if (rows == 16 || rows == 64 || rows == 512) {
        const Variant<f32>& v = floats[rows == 16 ? 0 : rows == 64 ? 1 : 2];
        const float time = median([&] {
          split_f32<<<(unsigned)(rows * k / 2048), 256>>>(xf, split, rows * k);
          v.kernel<<<std::min((u32)(sms * v.per_sm), (u32)((n + v.lines - 1) / v.lines * (k / 256))), v.threads, v.bytes>>>(split, w[0], yf, parts, counters, rows, n, k, 0);
        }, 5);
        printf("  f32 %.1f us (%.1e)", time, error(yf, xf));
      }
      printf("\n");
      fflush(stdout);
    }
    for (void* p : {(void*)dense, (void*)x, (void*)y, (void*)weights, (void*)split, (void*)xf, (void*)yf}) CHECK(cudaFree(p));
    for (u8* p : w) CHECK(cudaFree(p));
  }
}
