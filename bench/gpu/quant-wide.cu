// Products of many rows with weights of one quantized type by warpgroups beside cuBLAS's in bf16 on a Hopper card, and their errors.
//
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a quant-wide quant-blocks linear quant-matvec) -DTYPE=q4_k -DGPU_ONLY -DGPU_ONLY_q4_k -DGPU_ONLY_bf16 -DGPU_ONLY_f32 bench/gpu/quant-wide.cu -lcublas -o quant-wide
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
  const struct { decltype(&JOIN(quant_wide_, TYPE, )) kernel; size_t rows; u32 together; } kernels[] = {
      {JOIN(quant_wide_24_, TYPE, ), 24, 2}, {JOIN(quant_wide_32_, TYPE, ), 32, 2}, {JOIN(quant_wide_40_, TYPE, ), 40, 2}, {JOIN(quant_wide_48_, TYPE, ), 48, 2},
      {JOIN(quant_wide_56_, TYPE, ), 56, 2}, {JOIN(quant_wide_64_, TYPE, ), 64, 2}, {JOIN(quant_wide_, TYPE, ), QUANT_WIDE_ROWS, 1}};
  const u32 way = name == "q8_0" ? QUANT_ORDER_q8_0 : name == "q4_0" ? QUANT_ORDER_q4_0 : QUANT_ORDER_ANY;
  const int pitch = 16 * ((QUANT_WIDE_CHUNK / Q::Elements * Q::Bytes + 31 - (way == QUANT_ORDER_ANY ? Q::Align : 16)) / 16 | 1);
  u32* counters = device<u32>(4096);
  CHECK(cudaMemset(counters, 0, 4096 * 4));
  f32* parts = device<f32>((size_t)4 * sms * 128 * 256);
  const struct { size_t n, k; } shapes[] = {{14336, 4096}, {28672, 4096}, {4096, 4096}, {4096, 14336}, {6144, 4096}, {128256, 4096}};
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
    const size_t most = 1024;
    f32* dense = device<f32>(n * k);
    JOIN(dequantize_block_, TYPE, _f32)<<<(unsigned)(n * k / (QUANT_CHUNK * 8)), 256>>>(w[0], dense, n * k);
    bf16 *x = device<bf16>(most * k), *ordered = device<bf16>(most * (k + 2)), *y = device<bf16>(most * n), *weights = device<bf16>(n * k);
    fill_floats<bf16><<<1024, 256>>>(x, most * k, 1, 1.0f);
    fill_floats<bf16><<<1024, 256>>>(weights, n * k, 2, 1.0f);
    for (size_t rows : {24, 32, 40, 48, 56, 64, 128, 512, 1024}) {
      if (n > 100000 && rows > 64) continue;
      const float one = 1, zero = 0;
      const float library = median([&] {
        cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)n, (int)rows, (int)k, &one, weights, CUDA_R_16BF, (int)k, x, CUDA_R_16BF, (int)k, &zero, y, CUDA_R_16BF,
                     (int)n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
      }, 9);
      const auto& v = kernels[rows <= 64 ? (rows + 7) / 8 - 3 : 6];
      const int part = (int)(2 * v.rows * QUANT_WIDE_CHUNK), bytes = (2 * part + 256 * pitch <= QUANT_WIDE_SHARED ? 2 : 1) * (part + 64) + 144 + 256 * pitch + (v.rows > 64 ? 0 : 256);
      CHECK(cudaFuncSetAttribute((const void*)v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
      const u32 tiles = (u32)((n + 127) / 128 * ((rows + v.rows - 1) / v.rows)), chunks = (u32)(k / QUANT_WIDE_CHUNK), wanted = v.together * sms;
      // As each tile is cut in so many parts, or (0) those of the last round are shared by all.
      const auto left_of = [&](u32 cut) { return cut ? (cut > 1 ? tiles : 0) : tiles % wanted; };
      const auto sharers_of = [&](u32 cut) { return cut > 1 ? cut * tiles : std::min(wanted, std::max(left_of(cut), left_of(cut) * chunks / 2)); };
      const u32 most_threads = rows <= 64 ? QUANT_ORDER_BLOCK : 256, rounds = ((u32)k / 8 + most_threads - 1) / most_threads, threads = std::max(128u, ((u32)k / 8 / rounds + 31) / 32 * 32);
      const auto order = [&](cudaStream_t stream) { early(stream, quant_order_bf16, (u32)(rows + 7) / 8 * 8, threads, 0, (const bf16*)x, (const bf16*)nullptr, (void*)ordered, (u32)rows,
              (u32)k, (u32)v.rows, way, 0.0); };
      CHECK(cudaMemset(y, 0xee, rows * n * 2));
      order(0);
      const auto run = [&](cudaStream_t stream, const u8* w, u32 cut) {
        const u32 alone = tiles - left_of(cut), sharers = sharers_of(cut), grid = alone ? std::min(wanted, tiles) : sharers;
        early(stream, v.kernel, grid, 256, bytes, (const void*)ordered, w, (const void*)nullptr, (const void*)nullptr, (void*)y, parts, counters, n, k, (u32)rows, 0u, alone, sharers, (u32)DTYPE_bf16, 0u, 1.0, 0.0);
      };
      const auto timed = [&](bool ordering, u32 cut) {
        return median_of_graph([&](cudaStream_t stream) {
          for (int c = 0; c < copies; c++) {
            if (ordering) order(stream);
            run(stream, w[c], cut);
          }
        }, 5) / copies;
      };
      float best = 1e9f, times[9] = {};
      u32 cut = 0;
      for (u32 c : {0, 1, 2, 4, 8}) {
        if (c > 1 && (c * tiles > wanted || c * 2 > chunks)) continue;
        times[c] = timed(false, c);
        if (times[c] < best) best = times[c], cut = c;
      }
      CHECK(cudaMemset(y, 0xee, rows * n * 2));
      run(0, w[0], cut);
      double found[2] = {0, 0};
      CHECK(cudaMemcpy(sums, found, sizeof found, cudaMemcpyHostToDevice));
      compare<<<(unsigned)(8 * n / 256), 256>>>(y, dense, x, 0, 8, n, k, sums);
      compare<<<(unsigned)(8 * n / 256), 256>>>(y, dense, x, rows - 8, 8, n, k, sums);
      CHECK(cudaMemcpy(found, sums, sizeof found, cudaMemcpyDeviceToHost));
      const float whole = timed(true, cut);
      printf("%s %5zu x %5zu, %4zu rows: cuBLAS %6.1f us %4.0f TFLOP/s; own %6.1f us %4.0f = %.2f, %.2f of copy (%.0e); in order, by cuts:", TEXT(TYPE), n, k, rows,
             library, 2e-6 * rows * n * k / library, whole, 2e-6 * rows * n * k / whole, library / whole, size / whole * 1e-6 / ceiling, std::sqrt(found[0] / found[1]));
      for (u32 c = 0; c <= 8; c++) if (times[c]) printf(" %u: %.1f", c, times[c]);
      printf("\n");
      fflush(stdout);
    }
    for (u8* p : w) CHECK(cudaFree(p));
    for (bf16* p : {x, ordered, y, weights}) CHECK(cudaFree(p));
    CHECK(cudaFree(dense));
  }
}
