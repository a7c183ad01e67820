// Times the kernels over one quantized type on an NVIDIA card and checks them against plain loops.
//
//   nvcc -arch=sm_90 -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90 quant-blocks quant-matvec) -DTYPE=q4_k -DGPU_ONLY -DGPU_ONLY_q4_k -DGPU_ONLY_f32 bench/gpu/quant.cu -o quant
//
// Weights are rotated through many copies, so that the cache serves none of them. A time is the median of some samples, a
// sample one launch per copy between two events, divided by the copies.
#include "bench.h"
#include "quant-blocks.hip"
#include "quant-matvec.hip"
#include "quant-quantize.hip"

#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

constexpr size_t N = 14336, K = 4096, MAX_BATCH = 8;
typedef TYPE Q;

// The plain product of dequantized weights and activations, rounded to bytes or, with x, as they are; a thread per result.
__global__ void naive(size_t batch, const f32* w, const f32* x, const u8* xq, const ScaleSum* xs, f64* y) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= batch * N) return;
  const size_t b = i / N, r = i % N;
  f64 sum = 0;
  for (size_t j = 0; j < K; j++) sum += (f64)w[r * K + j] * (x ? x[b * K + j] : (signed char)xq[b * K + j] * xs[(b * K + j) / 32].v[0]);
  y[i] = sum;
}

typedef void (*Kernel)(const void*, const u8*, const void*, const void*, const void*, void*, size_t, size_t, f64, u32, u32, u32, u32, u32);

int main() {
  int failures = 0, sms;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  const double ceiling = copy_ceiling(), target = Q::Bytes * 32 / Q::Elements > 24 ? 0.55 : 0.45;
  const std::string name = TEXT(TYPE);

  f32* x = device<f32>(MAX_BATCH * K);
  fill_floats<<<4096, 256>>>(x, MAX_BATCH * K, 1, 2.0f);
  f32* dense = device<f32>(N * K);
  bf16* halves = device<bf16>(N * K);
  f32* y = device<f32>(MAX_BATCH * N);
  f64* wanted = device<f64>(MAX_BATCH * N);

  const size_t blocks = N * K / Q::Elements, size = blocks * Q::Bytes;
  const int copies = (int)(((size_t)640 << 20) / size) + 1;
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
  CHECK(cudaDeviceSynchronize());
  printf("%s: %.1f MB of weights, %d copies\n", name.c_str(), size * 1e-6, copies);
  const unsigned chunks = (unsigned)(N * K / (CHUNK * WARPS));
  JOIN(dequantize_block_, TYPE, _f32)<<<chunks, 256>>>(w[0], dense, N * K);
  f64* exact = device<f64>(8 * N);
  naive<<<(unsigned)(MAX_BATCH * N / 256), 256>>>(MAX_BATCH, dense, nullptr, xq, xs, wanted);
  naive<<<(unsigned)(8 * N / 256), 256>>>(8, dense, x, xq, xs, exact);
  CHECK(cudaDeviceSynchronize());

  float one_us = 0;
  for (const u32 columns : {1u, 2u, 4u, 8u}) {
    const Kernel kernel = columns > 4 ? JOIN(linear_, TYPE, _b8) : JOIN(linear_, TYPE, _b4);
    const TileLaunch l = plan_tiles<Q>(N, K, columns, (u32)sms);
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)l.bytes));
    const auto launch = [&](int c) {
      kernel<<<l.blocks, l.threads, l.bytes>>>(x, w[c], nullptr, nullptr, nullptr, y, N, K, 0, columns, 0, l.splits, (u32)K, DTYPE_f32);
    };
    CHECK(cudaMemset(y, 0xff, MAX_BATCH * N * 4));
    launch(0);
    CHECK(cudaDeviceSynchronize());
    const double error = error_of(y, 0, exact, columns * N);
    const float us = median([&] { for (int c = 0; c < copies; c++) launch(c); }) / copies;
    const double rate = size / us * 1e-6;
    if (columns == 1) one_us = us;
    // x keeps sixteen bits.
    const bool wrong = !(error < 3e-5), slow = (columns == 1 && rate / ceiling < target) || (columns == 8 && us > 2 * one_us);
    failures += wrong + slow;
    printf("  batch %u, %u threads, %u splits: %6.2f us  %.2f TB/s  %.2f of copy  %.2fx batch 1  error %.1e%s%s\n", columns, l.threads, l.splits, us, rate,
           rate / ceiling, us / one_us, error, wrong ? " WRONG" : "", slow ? " SLOW" : "");
  }

  const float dequantize_us = median([&] { for (int c = 0; c < copies; c++) JOIN(dequantize_block_, TYPE, _bf16)<<<chunks, 256>>>(w[c], halves, N * K); }) / copies;
  printf("  dequantize to bf16: %.1f us, %.2f TB/s\n", dequantize_us, (size + N * K * 2) / dequantize_us * 1e-6);
  printf(failures ? "%d FAILED\n" : "all within targets\n", failures);
  return failures != 0;
}
