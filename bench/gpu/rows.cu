// The kernels over rows and elements on an NVIDIA GPU, with other plans for the same work beside them: checked against f64 on the
// CPU, then timed as a share of a device copy in the same run.
//   nvcc -arch=sm_90 -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90 affine cast norm rope unary) bench/gpu/rows.cu -o rows && ./rows
// Bytes count each input read once and each output written once; tables and weights not at all.
#define GPU_ONLY
#define GPU_ONLY_bf16
#define GPU_ONLY_f32
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "affine.hip"
#include "cast.hip"
#include "norm.hip"
#include "rope.hip"
#include "softmax.hip"
#include "unary.hip"

#define CHECK(call) \
  do { \
    const cudaError_t code = (call); \
    if (code != cudaSuccess) { \
      std::printf("%s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(code)); \
      std::exit(1); \
    } \
  } while (0)

namespace gpu {
// Norms: threads at most, blocks per multiprocessor, vectors per thread.
#define NORM_PLANS(T, V) V(T, 256, 2, 4) V(T, 256, 3, 4) V(T, 256, 4, 4) V(T, 512, 2, 2)
#define NORM_VARIANT(T, threads, blocks, Vectors) \
  LAYER_NORM(T, _##threads##_##blocks##_##Vectors, threads, blocks, Vectors) \
  RMS_NORM(T, _##threads##_##blocks##_##Vectors, threads, blocks, Vectors)
NORM_PLANS(f32, NORM_VARIANT)
NORM_PLANS(bf16, NORM_VARIANT)

#define MAP_VARIANT(name, A, O, Op, Unroll) \
  KERNEL_BOUNDS(256, name, const A* x, O* out, size_t numel, size_t num_dims, const size_t* info) { \
    map1<Unroll>(numel, num_dims, info, x, out, Op); \
  }
struct LibrarySine {
  GPU_METHOD f32 operator()(f32 x) const { return ::sinf(x); }
};
#define MAPS(V) \
  V(affine_1, f32, f32, (Affine<f32>{2, 1}), 1) V(affine_2, f32, f32, (Affine<f32>{2, 1}), 2) V(affine_4, f32, f32, (Affine<f32>{2, 1}), 4) \
  V(exp_1, f32, f32, op_exp<f32>{}, 1) V(exp_2, f32, f32, op_exp<f32>{}, 2) \
  V(sin_1, f32, f32, op_sin<f32>{}, 1) V(sin_2, f32, f32, op_sin<f32>{}, 2) V(sinf_1, f32, f32, LibrarySine{}, 1) V(sinf_2, f32, f32, LibrarySine{}, 2) \
  V(gelu_erf_1, f32, f32, op_gelu_erf<f32>{}, 1) V(gelu_erf_2, f32, f32, op_gelu_erf<f32>{}, 2) \
  V(gelu_1, f32, f32, op_gelu<f32>{}, 1) V(gelu_2, f32, f32, op_gelu<f32>{}, 2) \
  V(tanh_1, f32, f32, op_tanh<f32>{}, 1) V(tanh_2, f32, f32, op_tanh<f32>{}, 2) \
  V(exp_h1, bf16, bf16, op_exp<bf16>{}, 1) V(exp_h2, bf16, bf16, op_exp<bf16>{}, 2) \
  V(gelu_erf_h1, bf16, bf16, op_gelu_erf<bf16>{}, 1) V(gelu_erf_h2, bf16, bf16, op_gelu_erf<bf16>{}, 2) \
  V(sin_h1, bf16, bf16, op_sin<bf16>{}, 1) V(sin_h2, bf16, bf16, op_sin<bf16>{}, 2) \
  V(widen_1, bf16, f32, (Cast<bf16, f32>{}), 1) V(widen_2, bf16, f32, (Cast<bf16, f32>{}), 2) V(widen_4, bf16, f32, (Cast<bf16, f32>{}), 4) \
  V(narrow_1, f32, bf16, (Cast<f32, bf16>{}), 1) V(narrow_2, f32, bf16, (Cast<f32, bf16>{}), 2) V(narrow_4, f32, bf16, (Cast<f32, bf16>{}), 4)
MAPS(MAP_VARIANT)

#define ROPE_VARIANT(H) \
  KERNEL_BOUNDS(256, rope_##H##_heads, const bf16* x, const bf16* cos, const bf16* sin, bf16* out, size_t heads, size_t positions, size_t d) { \
    rope_any<bf16, false, H>(x, cos, sin, out, heads_outside(1, heads, positions, d, 0)); \
  } \
  KERNEL_BOUNDS(256, rope_i_##H##_heads, const bf16* x, const bf16* cos, const bf16* sin, bf16* out, size_t heads, size_t positions, size_t d) { \
    rope_any<bf16, true, H>(x, cos, sin, out, heads_outside(1, heads, positions, d, 0)); \
  }
// bf16 to f32 by other means: 0 nothing but that, 1 stores to be evicted first, 2 whole 16-byte loads whose halves go to
// neighbouring lanes. cast_bf16_f32 itself has larger blocks, which is what helps: one byte read for two written takes longer than a copy.
template <int Kind> __global__ void __launch_bounds__(256) widen_by(const bf16* inp, f32* out) {
  constexpr int U = 4;
  const size_t base = (size_t)bid_x() * (256 * U) + tid_x();
  if (Kind < 2) {
    Vec<u32, 2> x[U];
    UNROLL for (int u = 0; u < U; u++) x[u] = ((const Vec<u32, 2>*)inp)[base + u * 256];
    UNROLL for (int u = 0; u < U; u++) {
      const u32 a = x[u].v[0] << 16, b = x[u].v[0] & 0xffff0000u, c = x[u].v[1] << 16, d = x[u].v[1] & 0xffff0000u;
      u32* to = (u32*)out + (base + u * 256) * 4;
      if (Kind == 0) asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
      else asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
    }
  } else {
    const u32 lane = lane_id(), warp = (u32)((bid_x() * 256 + tid_x()) / 32);
    UNROLL for (int u = 0; u < U / 2; u++) {
      const size_t at = ((size_t)warp * (U / 2) + u) * 32;
      const Vec<u32, 4> x = ((const Vec<u32, 4>*)inp)[at + lane];
      UNROLL for (u32 k = 0; k < 2; k++) {
        const u32 from = k * 16 + lane / 2;
        const u32 w0 = shfl(x.v[0], from), w1 = shfl(x.v[1], from), w2 = shfl(x.v[2], from), w3 = shfl(x.v[3], from);
        const u32 p = lane % 2 ? w2 : w0, q = lane % 2 ? w3 : w1;
        u32* to = (u32*)out + (at * 2 + k * 32 + lane) * 4;
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(p << 16), "r"(p & 0xffff0000u), "r"(q << 16), "r"(q & 0xffff0000u) : "memory");
      }
    }
  }
}
ROPE_VARIANT(1)
ROPE_VARIANT(2)
ROPE_VARIANT(4)
ROPE_VARIANT(8)
}  // namespace gpu

using namespace gpu;

template <class T> __global__ void fill(T* x, size_t n, unsigned seed) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
    float sum = 0;
    for (unsigned k = 0; k < 4; k++) {
      unsigned long long h = (i * 4 + k + 1) * 0x9e3779b97f4a7c15ull ^ (unsigned long long)seed * 0xbf58476d1ce4e5b9ull;
      h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
      h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
      sum += (float)((h ^ (h >> 31)) >> 40) / (1 << 24) - 0.5f;
    }
    x[i] = gpu::narrow<T>(sum * 1.7320508f);
  }
}

static double value(float x) { return x; }
static double value(bf16 x) {
  const unsigned bits = (unsigned)x.bits << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}
static constexpr size_t BYTES = (size_t)1 << 30;
static char *source, *target;
static double ceiling;
static bool failed = false;

static double milliseconds(const std::function<void()>& run) {
  std::vector<float> times;
  cudaEvent_t start, stop;
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  run();
  CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < 7; i++) {
    CHECK(cudaEventRecord(start));
    for (int k = 0; k < 4; k++) run();
    CHECK(cudaEventRecord(stop));
    CHECK(cudaEventSynchronize(stop));
    times.push_back(0);
    CHECK(cudaEventElapsedTime(&times.back(), start, stop));
  }
  CHECK(cudaEventDestroy(start));
  CHECK(cudaEventDestroy(stop));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] / 4;
}

// Elements of a result at places spread over it, against `want`.
template <class T> static double worst(size_t n, const std::function<double(size_t)>& want) {
  std::vector<T> got(n);
  CHECK(cudaMemcpy(got.data(), target, n * sizeof(T), cudaMemcpyDeviceToHost));
  double most = 0;
  for (size_t i = 0; i < 20000; i++) {
    const size_t at = (i * 2654435761u + i * 7919) % n;
    const double w = want(at), e = std::fabs(value(got[at]) - w) / (1e-2 + std::fabs(w));
    most = e > most || e != e ? e : most;
  }
  return most;
}
template <class T> static std::vector<T> download(const void* from, size_t n) {
  std::vector<T> x(n);
  CHECK(cudaMemcpy(x.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost));
  return x;
}
static void report(const std::string& name, size_t bytes, double error, double limit, const std::function<void()>& run) {
  const double ms = milliseconds(run), rate = bytes / ms / 1e9;
  CHECK(cudaGetLastError());
  const bool bad = !(error <= limit);
  failed = failed || bad;
  std::printf("%-40s %8.4f ms %6.3f TB/s  share %.3f  error %.1e%s\n", name.c_str(), ms, rate, rate / ceiling, error, bad ? "  WRONG" : "");
}
static void poison() { CHECK(cudaMemset(target, 0xff, BYTES)); }

template <class T, class K> static void norm(const std::string& name, K kernel, bool layer, unsigned vectors) {
  const size_t rows = 65536 * 4 / sizeof(T) / 2, cols = 4096, n = rows * cols;
  const T *src = (const T*)source, *alpha = src + n - 2 * cols, *beta = alpha + cols;
  T* dst = (T*)target;
  const unsigned block = (unsigned)(cols * sizeof(T) / 16) / vectors;
  auto run = [&] {
    if constexpr (std::is_invocable<K, const T*, const T*, const T*, T*, size_t, size_t, f64, u32>::value)
      kernel<<<(unsigned)rows, block>>>(src, alpha, beta, dst, rows, cols, 1e-5, block);
    else
      kernel<<<(unsigned)rows, block>>>(src, alpha, dst, rows, cols, 1e-5, block);
  };
  poison();
  run();
  const size_t checked = 300;
  const std::vector<T> x = download<T>(src, checked * cols), a = download<T>(alpha, cols), b = download<T>(beta, cols);
  std::vector<double> mean(checked, 0), scale(checked, 0);
  for (size_t r = 0; r < checked; r++) {
    if (layer) for (size_t c = 0; c < cols; c++) mean[r] += value(x[r * cols + c]) / cols;
    for (size_t c = 0; c < cols; c++) scale[r] += std::pow(value(x[r * cols + c]) - mean[r], 2) / cols;
    scale[r] = 1 / std::sqrt(scale[r] + 1e-5);
  }
  const double error = worst<T>(checked * cols, [&](size_t i) {
    const size_t r = i / cols, c = i % cols;
    return (value(x[i]) - mean[r]) * scale[r] * value(a[c]) + (layer ? value(b[c]) : 0);
  });
  report(name, 2 * n * sizeof(T), error, sizeof(T) == 4 ? 1e-5 : 2e-2, run);
}

template <class T> static void softmaxes(const char* type, void (*kernel)(const T*, T*, size_t, size_t, u32), unsigned block) {
  const size_t rows = 65536 * 4 / sizeof(T) / 2, cols = 4096, n = rows * cols;
  report(std::string("softmax ") + type + " block " + std::to_string(block), 2 * n * sizeof(T), 0, 0,
         [&] { kernel<<<(unsigned)rows, block>>>((const T*)source, (T*)target, rows, cols, block); });
}

template <class A, class O>
static void map(const char* name, void (*kernel)(const A*, O*, size_t, size_t, const size_t*), int unroll, double (*of)(double), double limit) {
  const size_t n = (size_t)1 << 28, per_block = 256 * (size_t)VectorWidth<A, O>::value * unroll;
  const unsigned grid = (unsigned)((n + per_block - 1) / per_block);
  auto run = [&] { kernel<<<grid, 256>>>((const A*)source, (O*)target, n, 0, nullptr); };
  poison();
  run();
  const size_t checked = 1 << 20;
  const std::vector<A> x = download<A>(source, checked);
  const double error = worst<O>(checked, [&](size_t i) { return of(value(x[i])); });
  report(name, n * (sizeof(A) + sizeof(O)), error, limit, run);
}

static void streams(int kind) {
  const size_t n = (size_t)1 << 28;
  const unsigned grid = (unsigned)(n / (256 * 16));
  auto run = [&] {
    if (kind == 0) widen_by<0><<<grid, 256>>>((const bf16*)source, (f32*)target);
    else if (kind == 1) widen_by<1><<<grid, 256>>>((const bf16*)source, (f32*)target);
    else widen_by<2><<<grid, 256>>>((const bf16*)source, (f32*)target);
  };
  poison();
  run();
  const size_t checked = 1 << 20;
  const std::vector<bf16> x = download<bf16>(source, checked);
  const double error = worst<f32>(checked, [&](size_t i) { return value(x[i]); });
  report("cast bf16 to f32 by hand, kind " + std::to_string(kind), n * 6, error, 0, run);
}

template <class K> static void ropes(const std::string& name, K kernel, bool interleaved, int heads) {
  const size_t bh = 256, t = 2048, d = 128, td = t * d, n = bh * td;
  const bf16 *src = (const bf16*)source, *cos = src + n, *sin = cos + t * d;
  bf16* dst = (bf16*)target;
  const size_t threads = (bh + heads - 1) / heads * t * (d / 2) / (interleaved ? 4 : 8);
  auto run = [&] {
    kernel<<<(unsigned)((threads + 255) / 256), 256>>>(src, cos, sin, dst, bh, t, d);
  };
  poison();
  run();
  const std::vector<bf16> x = download<bf16>(src, n), c = download<bf16>(cos, t * d / 2), s = download<bf16>(sin, t * d / 2);
  const double error = worst<bf16>(n, [&](size_t i) {
    const size_t at = i % d, row = i - at, p = i / d % t, k = interleaved ? at / 2 : at % (d / 2);
    const double a = value(x[row + (interleaved ? 2 * k : k)]), b = value(x[row + (interleaved ? 2 * k + 1 : k + d / 2)]);
    const double cosine = value(c[p * d / 2 + k]), sine = value(s[p * d / 2 + k]);
    return (interleaved ? at % 2 == 0 : at < d / 2) ? a * cosine - b * sine : a * sine + b * cosine;
  });
  report(name, 2 * n * 2, error, 2e-2, run);
}

static double affine_of(double x) { return 2 * x + 1; }
static double exp_of(double x) { return std::exp(x); }
static double sin_of(double x) { return std::sin(x); }
static double tanh_of(double x) { return std::tanh(x); }
static double gelu_erf_of(double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); }
static double gelu_of(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
static double same(double x) { return x; }

int main() {
  CHECK(cudaMalloc(&source, BYTES));
  CHECK(cudaMalloc(&target, BYTES));
  const double copy = milliseconds([] { CHECK(cudaMemcpyAsync(target, source, BYTES, cudaMemcpyDeviceToDevice)); });
  ceiling = 2.0 * BYTES / copy / 1e9;
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  const double write = milliseconds([] { CHECK(cudaMemsetAsync(target, 0, BYTES)); });
  std::printf("%s: copy %.3f TB/s, write alone %.3f TB/s\n", device.name, ceiling, BYTES / write / 1e9);
  fill<<<4096, 256>>>((f32*)source, BYTES / 4, 1);
  map("affine f32, 1 vector", affine_1, 1, affine_of, 1e-5);
  map("affine f32, 2 vectors", affine_2, 2, affine_of, 1e-5);
  map("affine f32, 4 vectors", affine_4, 4, affine_of, 1e-5);
  map("exp f32, 1 vector", exp_1, 1, exp_of, 1e-5);
  map("exp f32, 2 vectors", exp_2, 2, exp_of, 1e-5);
  map("sin f32, 1 vector", sin_1, 1, sin_of, 1e-5);
  map("sin f32, 2 vectors", sin_2, 2, sin_of, 1e-5);
  map("library sin f32, 1 vector", sinf_1, 1, sin_of, 1e-5);
  map("library sin f32, 2 vectors", sinf_2, 2, sin_of, 1e-5);
  map("gelu_erf f32, 1 vector", gelu_erf_1, 1, gelu_erf_of, 1e-5);
  map("gelu_erf f32, 2 vectors", gelu_erf_2, 2, gelu_erf_of, 1e-5);
  map("gelu f32, 1 vector", gelu_1, 1, gelu_of, 1e-5);
  map("gelu f32, 2 vectors", gelu_2, 2, gelu_of, 1e-5);
  map("tanh f32, 1 vector", tanh_1, 1, tanh_of, 1e-5);
  map("tanh f32, 2 vectors", tanh_2, 2, tanh_of, 1e-5);
  map("cast f32 to bf16, 1 vector", narrow_1, 1, same, 5e-3);
  map("cast f32 to bf16, 2 vectors", narrow_2, 2, same, 5e-3);
  map("cast f32 to bf16, 4 vectors", narrow_4, 4, same, 5e-3);
#define NORM_RUN(T, threads, blocks, Vectors) \
  norm<T>("layernorm " #T ", " #blocks " blocks, " #Vectors " vectors", layernorm_##threads##_##blocks##_##Vectors##_##T, true, Vectors); \
  norm<T>("rmsnorm " #T ", " #blocks " blocks, " #Vectors " vectors", rmsnorm_##threads##_##blocks##_##Vectors##_##T, false, Vectors);
  NORM_PLANS(f32, NORM_RUN)
  softmaxes<f32>("f32", softmax_f32, 256);
  fill<<<4096, 256>>>((bf16*)source, BYTES / 2, 2);
  map("cast bf16 to f32, 1 vector", widen_1, 1, same, 0);
  map("cast bf16 to f32, 2 vectors", widen_2, 2, same, 0);
  map("cast bf16 to f32, 4 vectors", widen_4, 4, same, 0);
  for (int kind = 0; kind < 3; kind++) streams(kind);
  map("exp bf16, 1 vector", exp_h1, 1, exp_of, 5e-3);
  map("exp bf16, 2 vectors", exp_h2, 2, exp_of, 5e-3);
  map("sin bf16, 1 vector", sin_h1, 1, sin_of, 5e-3);
  map("sin bf16, 2 vectors", sin_h2, 2, sin_of, 5e-3);
  map("gelu_erf bf16, 1 vector", gelu_erf_h1, 1, gelu_erf_of, 5e-3);
  map("gelu_erf bf16, 2 vectors", gelu_erf_h2, 2, gelu_erf_of, 5e-3);
  NORM_PLANS(bf16, NORM_RUN)
  softmaxes<bf16>("bf16", softmax_bf16, 128);
  softmaxes<bf16>("bf16", softmax_bf16, 256);
  ropes("rope bf16, 1 head", rope_1_heads, false, 1);
  ropes("rope bf16, 2 heads", rope_2_heads, false, 2);
  ropes("rope bf16, 4 heads", rope_4_heads, false, 4);
  ropes("rope bf16, 8 heads", rope_8_heads, false, 8);
  ropes("rope_i bf16, 1 head", rope_i_1_heads, true, 1);
  ropes("rope_i bf16, 2 heads", rope_i_2_heads, true, 2);
  ropes("rope_i bf16, 4 heads", rope_i_4_heads, true, 4);
  ropes("rope_i bf16, 8 heads", rope_i_8_heads, true, 8);
  std::printf(failed ? "WRONG\n" : "all right\n");
  return failed;
}
