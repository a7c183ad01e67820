// Times the quantized kernels on an NVIDIA card and checks them against plain loops.
//
//   nvcc -arch=sm_90 -O3 -std=c++17 -Ikernels bench/gpu/quant.cu -o quant && ./quant
//   … -DCUBLAS -lcublas adds the bf16 product of the same shape, which the batch of 512 is measured against
//
// Weights are rotated through many copies, so that the cache serves none of them. A time is the median of 20 samples, a
// sample one launch per copy between two events, divided by the copies.
#define GPU_ONLY
#define GPU_ONLY_q8_0
#define GPU_ONLY_q6_k
#define GPU_ONLY_q4_0
#define GPU_ONLY_q4_k
#define GPU_ONLY_f32
#include "quant-blocks.hip"
#include "quant-matmul.hip"
#include "quant-matvec.hip"
#include "quant-quantize.hip"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>
#if defined(CUBLAS)
#include <cublas_v2.h>
#endif

using namespace gpu;

#define CHECK(call) \
  do { \
    const cudaError_t error = (call); \
    if (error != cudaSuccess) { \
      printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error)); \
      exit(1); \
    } \
  } while (0)

constexpr size_t N = 14336, K = 4096, MAX_BATCH = 512;

__global__ void fill_bytes(u8* p, size_t n, u32 seed) {
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
    u32 h = (u32)i * 2654435761u + (u32)(i >> 32) * 97u + seed;
    h = (h ^ h >> 15) * 0x2c1b3c6du;
    h = (h ^ h >> 12) * 0x297a2d39u;
    p[i] = (u8)(h >> 11);
  }
}
// Random bytes are no sensible halves: scales become 0.01 … 0.02.
__global__ void fill_scales(u8* p, size_t blocks, u32 bytes, u32 offset) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < blocks) *(u16*)(p + i * bytes + offset) = f32_to_f16(0.01f + 0.01f * (float)(i % 97) / 97);
}
__global__ void fill_floats(f32* p, size_t n) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) p[i] = sinf((float)i * 0.37f) + 0.5f * cosf((float)i * 1.93f);
}
__global__ void copy_vectors(const uint4* a, uint4* b, size_t n) {
  const size_t i = (size_t)blockIdx.x * 1024 + threadIdx.x;
  uint4 x[4];
#pragma unroll
  for (int j = 0; j < 4; j++) if (i + j * 256 < n) x[j] = a[i + j * 256];
#pragma unroll
  for (int j = 0; j < 4; j++) if (i + j * 256 < n) b[i + j * 256] = x[j];
}
// The plain product of dequantized weights and activations; a thread per result.
__global__ void naive(size_t batch, const f32* w, const u8* xq, const ScaleSum* xs, f64* y) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= batch * N) return;
  const size_t b = i / N, r = i % N;
  f64 sum = 0;
  for (size_t j = 0; j < K; j++) sum += (f64)w[r * K + j] * (signed char)xq[b * K + j] * xs[(b * K + j) / 32].v[0];
  y[i] = sum;
}

static float median(const std::function<void()>& sample, int count = 20) {
  cudaEvent_t a, b;
  CHECK(cudaEventCreate(&a));
  CHECK(cudaEventCreate(&b));
  std::vector<float> times;
  for (int i = -3; i < count; i++) {
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

typedef void (*MatVecKernel)(size_t, size_t, const u8*, const u8*, const void*, void*, u32, u32);
typedef void (*MatMulKernel)(size_t, size_t, size_t, const u8*, const u8*, const void*, void*, u32);
template <class T> using DequantizeKernel = void (*)(size_t, const u8*, T*);
struct Variant {
  int columns, rows, depth, warps;
  MatVecKernel kernel;
  bool shipped;
};
struct Type {
  const char* name;
  size_t elements, bytes;
  std::vector<u32> scales;
  double target;
  std::vector<Variant> variants;
  MatMulKernel mat_mul;
  DequantizeKernel<f32> to_f32;
  DequantizeKernel<bf16> to_bf16;
};

#define OTHER(Q, NB, R, Depth, Warps) MAT_VEC_KERNEL(other_##Q##_##NB##_##R##_##Depth##_##Warps, Q, NB, R, Depth, Warps)
#define OTHERS(Q) \
  OTHER(Q, 1, 1, 2048, 4) OTHER(Q, 1, 2, 2048, 4) OTHER(Q, 1, 2, 4096, 4) OTHER(Q, 1, 1, 4096, 8) OTHER(Q, 1, 1, 4096, 2) \
  OTHER(Q, 2, 2, 2048, 4) OTHER(Q, 4, 1, 2048, 8) OTHER(Q, 4, 2, 1024, 8) OTHER(Q, 8, 4, 1024, 4) OTHER(Q, 8, 2, 1024, 4) \
  OTHER(Q, 8, 2, 2048, 4) OTHER(Q, 8, 1, 1024, 8)
namespace gpu {
OTHERS(q8_0) OTHERS(q6_k) OTHERS(q4_0) OTHERS(q4_k)
}
#define VARIANT(Q, NB, R, Depth, Warps) {NB, R, Depth, Warps, other_##Q##_##NB##_##R##_##Depth##_##Warps, false}
#define TYPE(Q, target, ...) \
  {#Q, Q::Elements, Q::Bytes, {__VA_ARGS__}, target, \
   {{1, 1, 4096, 4, mul_mat_vec_##Q##_q8_b1, true}, VARIANT(Q, 1, 1, 2048, 4), VARIANT(Q, 1, 2, 2048, 4), VARIANT(Q, 1, 2, 4096, 4), \
    VARIANT(Q, 1, 1, 4096, 8), VARIANT(Q, 1, 1, 4096, 2), \
    {2, 1, 2048, 8, mul_mat_vec_##Q##_q8_b2, true}, VARIANT(Q, 2, 2, 2048, 4), \
    {4, 2, 2048, 4, mul_mat_vec_##Q##_q8_b4, true}, VARIANT(Q, 4, 1, 2048, 8), VARIANT(Q, 4, 2, 1024, 8), \
    {8, 2, 1024, 8, mul_mat_vec_##Q##_q8_b8, true}, VARIANT(Q, 8, 4, 1024, 4), VARIANT(Q, 8, 2, 1024, 4), VARIANT(Q, 8, 2, 2048, 4), \
    VARIANT(Q, 8, 1, 1024, 8)}, \
   mul_mat_##Q##_q8, dequantize_block_##Q##_f32, dequantize_block_##Q##_bf16}

template <class T> static T* device(size_t count) {
  void* p;
  CHECK(cudaMalloc(&p, count * sizeof(T)));
  CHECK(cudaMemset(p, 0xee, count * sizeof(T)));
  return (T*)p;
}
static double error_of(const f32* y, const f64* wanted, size_t count) {
  std::vector<f32> a(count);
  std::vector<f64> b(count);
  CHECK(cudaMemcpy(a.data(), y, count * 4, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(b.data(), wanted, count * 8, cudaMemcpyDeviceToHost));
  double difference = 0, norm = 0;
  for (size_t i = 0; i < count; i++) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

int main() {
  Type types[] = {
      TYPE(q8_0, 0.55, 0),
      TYPE(q6_k, 0.55, 208),
      TYPE(q4_0, 0.45, 0),
      TYPE(q4_k, 0.45, 0, 2),
  };
  int failures = 0;

  const size_t big = (size_t)1 << 31;
  u8* from = device<u8>(big);
  u8* to = device<u8>(big);
  const float copy_us = median([&] { copy_vectors<<<(unsigned)(big / 16 / 1024), 256>>>((uint4*)from, (uint4*)to, big / 16); });
  const float memcpy_us = median([&] { CHECK(cudaMemcpyAsync(to, from, big, cudaMemcpyDeviceToDevice)); });
  const double ceiling = 2.0 * big / std::min(copy_us, memcpy_us) * 1e-6;
  printf("copy ceiling %.2f TB/s\n\n", ceiling);
  CHECK(cudaFree(from));
  CHECK(cudaFree(to));

  f32* x = device<f32>(MAX_BATCH * K);
  fill_floats<<<(unsigned)(MAX_BATCH * K / 256), 256>>>(x, MAX_BATCH * K);
  u8* xq = device<u8>(MAX_BATCH * K);
  ScaleSum* xs = device<ScaleSum>(MAX_BATCH * K / 32);
  for (size_t batch : {(size_t)1, MAX_BATCH}) {
    const float us = median([&] { quantize_q8_f32<<<(unsigned)(batch * K / 1024), 256>>>(batch * K, x, xq, xs); });
    printf("quantize_q8 of %zu rows: %.2f us\n", batch, us);
  }
  f32* dense = device<f32>(N * K);
  bf16* halves = device<bf16>(N * K);
  f32* y = device<f32>(MAX_BATCH * N);
  f64* wanted = device<f64>(MAX_BATCH * N);

#if defined(CUBLAS)
  float blas_us = 0;
  bf16* xb = device<bf16>(MAX_BATCH * K);
  bf16* yb = device<bf16>(MAX_BATCH * N);
  fill_bytes<<<4096, 256>>>((u8*)xb, MAX_BATCH * K * 2, 5);
  cublasHandle_t handle;
  if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) return printf("no cuBLAS\n"), 1;
  const float one = 1, zero = 0;
  const auto gemm = [&] {
    const cublasStatus_t status =
        cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, (int)N, (int)MAX_BATCH, (int)K, &one, halves, CUDA_R_16BF, (int)K, xb, CUDA_R_16BF,
                     (int)K, &zero, yb, CUDA_R_16BF, (int)N, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (status != CUBLAS_STATUS_SUCCESS) exit((printf("cuBLAS: %d\n", (int)status), 1));
  };
#endif

  for (Type& t : types) {
    const size_t blocks = N * K / t.elements, size = blocks * t.bytes;
    const int copies = (int)(((size_t)640 << 20) / size) + 1;
    std::vector<u8*> w(copies);
    for (int c = 0; c < copies; c++) {
      w[c] = device<u8>(size);
      fill_bytes<<<4096, 256>>>(w[c], size, 17u * c + 3);
      for (u32 offset : t.scales) fill_scales<<<(unsigned)(blocks / 256 + 1), 256>>>(w[c], blocks, (u32)t.bytes, offset);
    }
    CHECK(cudaDeviceSynchronize());
    printf("\n%s: %.1f MB of weights, %d copies\n", t.name, size * 1e-6, copies);

    const unsigned chunks = (unsigned)(N * K / CHUNK);
    t.to_f32<<<chunks, 256>>>(N * K, w[0], dense);
    naive<<<(unsigned)(MAX_BATCH * N / 256), 256>>>(MAX_BATCH, dense, xq, xs, wanted);

    float one_us = 0;
    for (const Variant& v : t.variants) {
      const unsigned grid = (unsigned)((N + v.warps * v.rows - 1) / (v.warps * v.rows));
      const auto launch = [&](int c) { v.kernel<<<grid, v.warps * 32>>>(N, K, w[c], xq, xs, y, v.columns, 0); };
      CHECK(cudaMemset(y, 0xff, MAX_BATCH * N * 4));
      launch(0);
      CHECK(cudaDeviceSynchronize());
      const double error = error_of(y, wanted, v.columns * N);
      const float us = median([&] { for (int c = 0; c < copies; c++) launch(c); }) / copies;
      int next = 0;
      const float alone_us = median([&] { launch(next++ % copies); });
      const double rate = size / us * 1e-6;
      if (v.shipped && v.columns == 1) one_us = us;
      const bool wrong = !(error < 1e-5);
      const bool slow = v.shipped && ((v.columns == 1 && rate / ceiling < t.target) || (v.columns == 8 && us > 2 * one_us));
      failures += wrong + slow;
      printf("  batch %d, %d rows x %4d deep x %d warps%s: %6.2f us (%6.2f alone)  %.2f TB/s  %.2f of copy  %.2fx batch 1  error %.1e%s%s\n",
             v.columns, v.rows, v.depth, v.warps, v.shipped ? " *" : "  ", us, alone_us, rate, rate / ceiling, us / one_us, error,
             wrong ? " WRONG" : "", slow ? " SLOW" : "");
    }

    const float dequantize_us = median([&] { for (int c = 0; c < copies; c++) t.to_bf16<<<chunks, 256>>>(N * K, w[c], halves); }) / copies;
    printf("  dequantize to bf16: %.1f us, %.2f TB/s\n", dequantize_us, (size + N * K * 2) / dequantize_us * 1e-6);
    for (size_t batch : {(size_t)16, (size_t)64, MAX_BATCH}) {
      const unsigned grid = (unsigned)((N + 127) / 128 * ((batch + 63) / 64));
      CHECK(cudaMemset(y, 0xff, MAX_BATCH * N * 4));
      const auto launch = [&] { t.mat_mul<<<grid, 256>>>(batch, N, K, w[0], xq, xs, y, 0); };
      launch();
      CHECK(cudaDeviceSynchronize());
      const double error = error_of(y, wanted, batch * N);
      const float us = median(launch);
      failures += !(error < 1e-5);
      printf("  mat-mat of %zu rows: %.1f us, %.0f TOP/s, error %.1e%s\n", batch, us, 2.0 * N * K * batch / us * 1e-6, error,
             error < 1e-5 ? "" : " WRONG");
    }
#if defined(CUBLAS)
    if (!blas_us) {
      blas_us = median([&] { gemm(); });
      printf("  bf16 cuBLAS, 512 rows: %.1f us, %.0f TFLOP/s\n", blas_us, 2.0 * N * K * MAX_BATCH / blas_us * 1e-6);
    }
    const float both_us = median([&] {
      for (int c = 0; c < copies; c++) {
        t.to_bf16<<<chunks, 256>>>(N * K, w[c], halves);
        gemm();
      }
    }) / copies;
    const bool slow = blas_us / both_us < 0.4;
    failures += slow;
    printf("  dequantize + cuBLAS, 512 rows: %.1f us, %.2f of bf16%s\n", both_us, blas_us / both_us, slow ? " SLOW" : "");
#endif
    for (u8* p : w) CHECK(cudaFree(p));
  }
  printf(failures ? "\n%d FAILED\n" : "\nall within targets\n", failures);
  return failures != 0;
}
