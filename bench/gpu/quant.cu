// Times the kernels over one quantized type on an NVIDIA card and checks them against plain loops.
//
//   nvcc -arch=sm_90 -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90 quant-blocks quant-matvec) -DTYPE=q4_k -DGPU_ONLY -DGPU_ONLY_q4_k -DGPU_ONLY_f32 bench/gpu/quant.cu -o quant
//   … -DSWEEP tries launches and kernels other than those that ship
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

typedef void (*Kernel)(const void*, const void*, const u8*, const void*, const void*, const void*, void*, size_t, size_t, f64, u32, u32, u32, u32);
struct Variant {
  u32 columns, rows, places;
  Kernel kernel;
  u32 threads, splits, per_sm;
  bool shipped;
};
// Rounded rows that make up a row of x, as in MatVec.
static u32 planes(u32 batch) { return Q::Fine && batch <= 4 ? 2 : 1; }
// Shared memory of a warp on matrix units, as in TileVec.
static u32 tile_bytes() {
  const u32 stage = 256 * (((256 / Q::Elements * Q::Bytes + 31 - Q::Align) / 16) | 1), fit = 12800 / stage;
  return stage * (fit < 2 ? 2 : fit > 4 ? 4 : fit) + 4 * 8 * 17;
}
static u32 shared_bytes(const Variant& v, size_t k) {
  if (v.rows == 16) return (u32)(8 * (k + k / 4)) + v.threads / 32 * tile_bytes();
  const u32 warps = v.threads / 32, padded = (u32)(k + 1023) / 1024 * 1024, words = (1024 / Q::Elements * Q::Bytes + 30) / 16 * 4;
  return planes(v.columns) * v.columns * (padded + padded / 4) + warps * v.places * v.rows * words * 4 + 4 * (warps * v.columns * (v.rows + 1) + v.columns);
}

#define SHIPPED(NB) Variant{NB, MATVEC_ROWS, MATVEC_PLACES, JOIN(linear_, TYPE, _b##NB), 0, 0, 0, true}
#define OTHER(NB, R, Places) MAT_VEC_KERNEL(other_##NB##_##R##_##Places, Q, NB, R, Places)
#define VARIANT(NB, R, Places) Variant{NB, R, Places, other_##NB##_##R##_##Places, 0, 0, 0, false}
#if defined(SWEEP)
namespace gpu {
OTHER(1, 2, 2) OTHER(1, 4, 2) OTHER(4, 2, 2) OTHER(4, 4, 2)
}
#endif

int main() {
  int failures = 0, sms;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  const double ceiling = copy_ceiling(), target = Q::Bytes * 32 / Q::Elements > 24 ? 0.55 : 0.45;
  const std::string name = TEXT(TYPE);

  f32* x = device<f32>(MAX_BATCH * K);
  fill_floats<<<4096, 256>>>(x, MAX_BATCH * K, 1, 2.0f);
  u8* xq = device<u8>(MAX_BATCH * K);
  ScaleSum* xs = device<ScaleSum>(MAX_BATCH * K / 32);
  for (size_t batch : {(size_t)1, MAX_BATCH}) {
    const float us = median([&] { quantize_q8_f32<<<(unsigned)(batch * K / 2048), 256>>>(x, xq, xs, batch * K); });
    printf("quantize_q8 of %zu rows: %.2f us\n", batch, us);
  }
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

  std::vector<Variant> variants{SHIPPED(1), SHIPPED(2), SHIPPED(4), Variant{8, 16, 0, JOIN(linear_, TYPE, _b8), 0, 0, 0, true}};
  for (Variant& v : variants) {
    const u32 groups = (u32)(N + v.rows - 1) / v.rows;
    const Launch l = v.rows == 16 ? plan_tiles(groups, K / 256, tile_bytes(), 227 * 1024 - 512 - 10 * K, (u32)sms)
                                  : plan_quantized(groups, K / 1024, v.columns, (u32)sms);
    v.threads = l.threads, v.splits = l.splits, v.per_sm = l.per_sm;
  }
#if defined(SWEEP)
  for (const Variant& v : {VARIANT(1, 2, 2), VARIANT(1, 4, 2), VARIANT(4, 2, 2), VARIANT(4, 4, 2)})
    for (u32 threads : {192, 224, 256})
      for (u32 splits : {1, 2, 4})
        for (u32 warps : {0, 8, 16, 24, 32}) {
          Variant t = v;
          t.threads = threads, t.splits = splits, t.per_sm = warps / (threads / 32);
          if (threads / 32 % splits == 0) variants.push_back(t);
        }
#endif
  float one_us = 0;
  struct Result { float us; std::string line; };
  std::vector<Result> results;
  for (const Variant& v : variants) {
    const u32 shared = shared_bytes(v, K);
    CHECK(cudaFuncSetAttribute(v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    int fit;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, v.kernel, (int)v.threads, shared));
    if (!v.shipped && fit < (int)v.per_sm) continue;
    const u32 items = (u32)((N + v.rows - 1) / v.rows * v.splits * 32 + v.threads - 1) / v.threads;
    const u32 rounds = v.per_sm ? (items + v.per_sm * sms - 1) / (v.per_sm * sms) : 1, grid = (items + rounds - 1) / rounds;
    for (const bool rounded : {false, true}) {
      if (rounded && planes(v.columns) > 1) continue;
      const auto launch = [&](int c) {
        v.kernel<<<grid, v.threads, shared>>>(rounded ? (void*)xq : (void*)x, rounded ? xs : nullptr, w[c], nullptr, nullptr, nullptr, y, N, K, 0, v.columns, 0, v.splits, 0);
      };
      CHECK(cudaMemset(y, 0xff, MAX_BATCH * N * 4));
      launch(0);
      CHECK(cudaDeviceSynchronize());
      const double error = error_of(y, 0, planes(v.columns) > 1 ? exact : wanted, v.columns * N);
      const float us = median([&] { for (int c = 0; c < copies; c++) launch(c); }) / copies;
      const double rate = size / us * 1e-6;
      if (v.shipped && v.columns == 1 && !rounded) one_us = us;
      // In two planes x keeps some 15 bits.
      const bool wrong = !(error < (planes(v.columns) > 1 ? 3e-5 : 1e-5));
      const bool slow = v.shipped && !rounded && ((v.columns == 1 && rate / ceiling < target) || (v.columns == 8 && us > 2 * one_us));
      failures += wrong + slow;
      char line[300];
      snprintf(line, sizeof line, "  batch %u%s, %u rows, %u places, %u threads, %u splits, %u (%d) per SM%s: %6.2f us  %.2f TB/s  %.2f of copy  %.2fx batch 1  error %.1e%s%s", v.columns,
               rounded ? " bytes" : "", v.rows, v.places, v.threads, v.splits, v.per_sm, fit, v.shipped ? " *" : "", us, rate, rate / ceiling, us / one_us, error,
               wrong ? " WRONG" : "", slow ? " SLOW" : "");
      if (v.shipped || wrong) printf("%s\n", line);
      else results.push_back({us + v.columns * 1000 + rounded * 500, line});
    }
  }
  std::sort(results.begin(), results.end(), [](const Result& a, const Result& b) { return a.us < b.us; });
  std::string last;
  int shown = 0;
  for (const Result& r : results) {
    const std::string kind = r.line.substr(0, r.line.find(','));
    shown = kind == last ? shown + 1 : 0;
    last = kind;
    if (shown < 10) printf("%s\n", r.line.c_str());
  }

  const float dequantize_us = median([&] { for (int c = 0; c < copies; c++) JOIN(dequantize_block_, TYPE, _bf16)<<<chunks, 256>>>(w[c], halves, N * K); }) / copies;
  printf("  dequantize to bf16: %.1f us, %.2f TB/s\n", dequantize_us, (size + N * K * 2) / dequantize_us * 1e-6);
  printf(failures ? "%d FAILED\n" : "all within targets\n", failures);
  return failures != 0;
}
