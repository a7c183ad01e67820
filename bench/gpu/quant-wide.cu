// Products of many rows with weights of one quantized type by warpgroups beside cuBLAS's in bf16 on a Hopper card, and their errors.
//
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a quant-wide quant-blocks linear quant-matvec) -DTYPE=q4_k -DGPU_ONLY -DGPU_ONLY_q4_k bench/gpu/quant-wide.cu -lcublas -o quant-wide
//
// Weights are rotated through copies, so that the cache serves none of them.
#include "bench.h"
#include "quant-blocks.hip"
#include "quant-wide.hip"
#include <cublas_v2.h>

#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
typedef TYPE Q;

// Results of some rows and the plain product of dequantized weights, a thread each: {Σ difference², Σ wanted²}.
static __global__ void compare(const bf16* y, const f32* w, const bf16* x, size_t from, size_t rows, size_t n, size_t k, double* sums) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * n) return;
  const size_t row = from + i / n, column = i % n;
  double sum = 0;
  for (size_t j = 0; j < k; j++) sum += (double)w[column * k + j] * (double)widen(x[row * k + j]);
  const double difference = (double)widen(y[row * n + column]) - sum;
  atomicAdd(sums, difference * difference);
  atomicAdd(sums + 1, sum * sum);
}

int main() {
  cublasHandle_t blas;
  cublasCreate(&blas);
  double* sums = device<double>(2);
  const std::string name = TEXT(TYPE);
  int sms;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  const double ceiling = copy_ceiling();
  // As src/backend/gpu/families/quant-wide.ts plans: the host's half of nvcc does not know the target.
  const struct { decltype(&JOIN(quant_wide_, TYPE, _bf16)) kernel; size_t rows; u32 together; } kernels[] = {
      {JOIN(quant_wide_64_, TYPE, _bf16), 64, 2}, {JOIN(quant_wide_, TYPE, _bf16), QUANT_WIDE_ROWS, 1}};
  const int pitch = 16 * ((QUANT_WIDE_CHUNK / Q::Elements * Q::Bytes + 31 - Q::Align) / 16 | 1);
  u32* counters = device<u32>(4096);
  CHECK(cudaMemset(counters, 0, 4096 * 4));
  f32* parts = device<f32>((size_t)4 * sms * 128 * 256);
  const struct { size_t n, k; } shapes[] = {{14336, 4096}, {28672, 4096}, {4096, 4096}, {4096, 14336}, {6144, 4096}};
  for (const auto& s : shapes) {
    const size_t n = s.n, k = s.k, blocks = n * k / Q::Elements, size = blocks * Q::Bytes;
    const int copies = (int)(((size_t)120 << 20) / size) + 1;
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
    const size_t most = 2048;
    f32* dense = device<f32>(n * k);
    JOIN(dequantize_block_, TYPE, _f32)<<<(unsigned)(n * k / (QUANT_CHUNK * 8)), 256>>>(w[0], dense, n * k);
    bf16 *x = device<bf16>(most * k), *ordered = device<bf16>(most * k), *y = device<bf16>(most * n), *weights = device<bf16>(n * k);
    fill_floats<bf16><<<1024, 256>>>(x, most * k, 1, 1.0f);
    fill_floats<bf16><<<1024, 256>>>(weights, n * k, 2, 1.0f);
    for (size_t rows : {32, 64, 128, 256, 512, 1024, 2048}) {
      const float one = 1, zero = 0;
      const float library = median([&] {
        cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)n, (int)rows, (int)k, &one, weights, CUDA_R_16BF, (int)k, x, CUDA_R_16BF, (int)k, &zero, y, CUDA_R_16BF,
                     (int)n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
      }, 9);
      const auto& v = kernels[rows <= 64 ? 0 : 1];
      const int bytes = (int)(2 * v.rows * QUANT_WIDE_CHUNK) + 80 + 2 * 128 * pitch;
      CHECK(cudaFuncSetAttribute((const void*)v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
      const u32 tiles = (u32)((n + 127) / 128 * ((rows + v.rows - 1) / v.rows)), chunks = (u32)(k / QUANT_WIDE_CHUNK), wanted = v.together * sms;
      const auto left_of = [&](bool shares) { return shares ? tiles % wanted : 0; };
      const auto sharers_of = [&](bool shares) { return std::min(wanted, std::max(left_of(shares), left_of(shares) * chunks / 2)); };
      const bool shares = (tiles + wanted - 1) / wanted * chunks > (double)tiles * chunks / wanted + 5;
      const auto order = [&] { quant_order_bf16<<<(unsigned)((rows * k / 8 + 255) / 256), 256>>>(x, ordered, (u32)rows, (u32)k, (u32)v.rows); };
      CHECK(cudaMemset(y, 0xee, rows * n * 2));
      order();
      const auto run = [&](const u8* w, bool shares) {
        const u32 alone = tiles - left_of(shares), sharers = sharers_of(shares), grid = alone ? std::min(wanted, tiles) : sharers;
        v.kernel<<<grid, 256, bytes>>>(ordered, w, y, parts, counters, rows, n, k, alone, sharers);
      };
      run(w[0], shares);
      double found[2] = {0, 0};
      CHECK(cudaMemcpy(sums, found, sizeof found, cudaMemcpyHostToDevice));
      compare<<<(unsigned)(8 * n / 256), 256>>>(y, dense, x, 0, 8, n, k, sums);
      compare<<<(unsigned)(8 * n / 256), 256>>>(y, dense, x, rows - 8, 8, n, k, sums);
      CHECK(cudaMemcpy(found, sums, sizeof found, cudaMemcpyDeviceToHost));
      const auto timed = [&](bool ordering, bool shares) {
        return median([&] {
          for (int c = 0; c < copies; c++) {
            if (ordering) order();
            run(w[c], shares);
          }
        }, 5) / copies;
      };
      // With x brought into order; without, and each tile alone, or those of the last round shared.
      const float whole = timed(true, shares), alone = timed(false, false), shared = timed(false, true);
      printf("%s %5zu x %5zu, %4zu rows: cuBLAS %6.1f us %4.0f TFLOP/s; own %6.1f us %4.0f = %.2f, %.2f of copy; in order, alone %.1f, shared %.1f (%.0e)\n", TEXT(TYPE), n, k, rows,
             library, 2e-6 * rows * n * k / library, whole, 2e-6 * rows * n * k / whole, library / whole, size / whole * 1e-6 / ceiling, alone, shared,
             std::sqrt(found[0] / found[1]));
      fflush(stdout);
    }
    for (u8* p : w) CHECK(cudaFree(p));
    for (bf16* p : {x, ordered, y, weights}) CHECK(cudaFree(p));
    CHECK(cudaFree(dense));
  }
}
