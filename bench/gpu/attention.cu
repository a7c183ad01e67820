// Fused attention on an NVIDIA GPU: checked against a plain f32 kernel, then timed at the shapes of interest.
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a attention attention_decode attention_capped attention_batch) bench/gpu/attention.cu -o attention && ./attention
// On Hopper sm_90 in place of sm_90a has prefill by mma.sync, as the cards before it.
// With -DPREFILL_TIMES only bf16 prefill is built and timed, in a fifth of the time.
// TFLOP/s count 4·B·H·tq·tk·D, half of it when causal; TB/s count keys and values once.
#define GPU_ONLY
#define GPU_ONLY_bf16
#ifndef PREFILL_TIMES
#define GPU_ONLY_f16
#define GPU_ONLY_f32
#endif
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#include "attention.hip"
#include "attention_capped.hip"
#include "attention_batch.hip"
#ifndef PREFILL_TIMES
#include "attention_decode.hip"
#endif

#define CHECK(call) \
  do { \
    const cudaError_t code = (call); \
    if (code != cudaSuccess) { \
      std::printf("%s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(code)); \
      std::exit(1); \
    } \
  } while (0)

using gpu::bf16;
using gpu::f16;

// Other plans for the same work, to see whether the choice in attention.hip is the best one: by mma.sync, and by warpgroups.
namespace gpu {
#define VARIANT(name, T, D, Keys, KeepQ, Block) \
  KERNEL_BOUNDS(Block, name, PREFILL_OPERANDS(T), PREFILL_SIZES) { \
    DYNAMIC_SHARED(T, tiles); \
    prefill<Prefill<T, D, Keys, KeepQ, Block>, T, false>(tiles, PREFILL_GATHER(T)); \
  }
VARIANT(variant_128_64, bf16, 128, 64, false, 128)
VARIANT(variant_128_64_256, bf16, 128, 64, false, 256)
VARIANT(variant_64_64_kept, bf16, 64, 64, true, 128)
VARIANT(variant_64_64_256, bf16, 64, 64, true, 256)
#if GPU_WARPGROUPS
#define WARPGROUP_BODY(...) \
  DYNAMIC_SHARED(bf16, tiles); \
  prefill_warpgroup<WarpgroupPrefill<__VA_ARGS__>>(tiles, PREFILL_GATHER(bf16));
#else
#define WARPGROUP_BODY(...)
#endif
#define WARPGROUP_VARIANT(name, D, Groups, Keys, Stages) \
  KERNEL_BOUNDS(Groups * 128, name, PREFILL_OPERANDS(bf16), PREFILL_SIZES) { \
    WARPGROUP_BODY(bf16, D, PLAIN, Groups, Keys, Stages) \
  }
WARPGROUP_VARIANT(warpgroups_128_2_stages, 128, 2, 128, 2)
WARPGROUP_VARIANT(warpgroups_128_64_keys, 128, 3, 64, 3)
WARPGROUP_VARIANT(warpgroups_64_3_stages, 64, 3, 128, 3)
WARPGROUP_VARIANT(warpgroups_64_2_groups, 64, 2, 128, 3)
}  // namespace gpu

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

#ifndef PREFILL_TIMES
// Rows in 8 bits of x, which becomes what they say.
template <class T> __global__ void encode_rows(T* x, unsigned char* rows, size_t count, int d) {
  for (size_t r = blockIdx.x * (size_t)blockDim.x + threadIdx.x; r < count; r += (size_t)gridDim.x * blockDim.x) {
    float most = 0;
    for (int i = 0; i < d; i++) most = fmaxf(most, fabsf(gpu::widen(x[r * d + i])));
    const float scale = gpu::row_scale(most), inverse = gpu::inverse_scale(scale);
    unsigned char* row = rows + r * (d + 8);
    for (int i = 0; i < d; i++) {
      row[i] = gpu::to_row(gpu::widen(x[r * d + i]), inverse);
      x[r * d + i] = gpu::narrow<T>(gpu::f8e4m3_to_f32(row[i]) * scale);
    }
    *(float*)(row + d) = scale;
  }
}
#endif

struct Problem {
  int b, hq, hk, tq, tk, d;
  bool causal;
  int window;
  float softcap;
  bool mask;
  const long long* lengths;
  bool sinks = false;
  // Ends of sequences one behind the other, in tq = tk rows; b is 1 then.
  const long long* offsets = nullptr;
  int sequences = 0;
  // Keys and values in 8 bits, for decodes.
  bool bytes = false;
};

// One block per row; scores in dynamic shared memory.
template <class T>
__global__ void naive(Problem p, const T* q, const T* k, const T* v, const T* mask, const T* sinks, float* out, float scale) {
  extern __shared__ __align__(16) char naive_scores[];
  float* s = (float*)naive_scores;
  __shared__ float total, top;
  const int row = blockIdx.x, t = row % p.tq, h = row / p.tq % p.hq, b = row / p.tq / p.hq, kv = b * p.hk + h / (p.hq / p.hk);
  int start = 0, n = p.lengths ? (int)p.lengths[b] : p.tk, past = t + n - p.tq;
  for (int i = 0; i < p.sequences; i++)
    if (p.offsets[i] <= t && t < p.offsets[i + 1]) start = (int)p.offsets[i], n = (int)p.offsets[i + 1], past = t;
  const int end = p.causal ? min(n, past + 1) : p.window ? min(n, past + 1 + p.window) : n;
  const int first = p.window ? max(start, past + (p.causal ? 1 : 0) - p.window) : start;
  for (int j = first + threadIdx.x; j < end; j += blockDim.x) {
    float x = 0;
    for (int i = 0; i < p.d; i++) x += gpu::widen(q[(size_t)row * p.d + i]) * gpu::widen(k[((size_t)kv * p.tk + j) * p.d + i]);
    x *= scale;
    if (p.softcap != 0) x = tanhf(x / p.softcap) * p.softcap;
    if (p.mask) x += gpu::widen(mask[((size_t)b * p.tq + t) * p.tk + j]);
    s[j] = x;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    top = -INFINITY, total = 0;
    for (int j = first; j < end; j++) top = fmaxf(top, s[j]);
    if (p.sinks) top = fmaxf(top, gpu::widen(sinks[h])), total = expf(gpu::widen(sinks[h]) - top);
    for (int j = first; j < end; j++) total += expf(s[j] - top);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < p.d; i += blockDim.x) {
    float x = 0;
    for (int j = first; j < end; j++) x += expf(s[j] - top) * gpu::widen(v[((size_t)kv * p.tk + j) * p.d + i]);
    out[(size_t)row * p.d + i] = first < end ? x / total : 0;
  }
}

static int head_dim(int d) { return d <= 32 ? 32 : d <= 64 ? 64 : d <= 96 ? 96 : d <= 128 ? 128 : 256; }
// As in src/backend/gpu/attention-plan.ts, for mma.sync, or multiply-adds in f32.
struct Plan { int threads, rows, shared; };
static Plan plan_warpgroups(int groups, int D, int keys, int stages) {
  return {groups * 128, groups * 64, (groups * 64 + 2 * stages * keys) * ((D + 63) / 64) * 128 + 40};
}
#define WARPGROUP_PLAN(D) \
  (masked ? plan_warpgroups(MASKED_GROUPS_##D, D, MASKED_KEYS_##D, MASKED_STAGES_##D) : plan_warpgroups(PLAIN_GROUPS_##D, D, PLAIN_KEYS_##D, PLAIN_STAGES_##D))
static Plan plan_warpgroups(int D, bool masked) {
  return D == 64 ? WARPGROUP_PLAN(64) : D == 96 ? WARPGROUP_PLAN(96) : D == 128 ? WARPGROUP_PLAN(128) : WARPGROUP_PLAN(256);
}
static Plan plan_prefill(int bytes, int D, int keys, bool keep, int budget, int block = 128) {
  int waves = block / 32;
  const int row = (D * bytes / 16 | 1) * 16, strips = bytes == 2 && D <= 128 ? 2 : 1;
  const auto size = [&] {
    const int q = waves * strips * 16 * row, kv = (bytes == 2 ? 2 : 1) * 2 * keys * row;
    return keep ? std::max(q, kv) : q + kv;
  };
  while (keys > 16 && size() > budget) keys /= 2;
  while (waves > 1 && size() > budget) waves /= 2;
  return {block, waves * strips * 16, size()};
}
static Plan plan_decode(int bytes, int D, int budget, bool f8) {
  const int row = bytes == 2 ? (D == 96 ? 128 : D < 64 ? 64 : D) * 2 : (D * bytes / 16 | 1) * 16;
  const int stages = std::max((bytes == 2 && !f8 ? 2 : 1) * 32 * row, 4 * (16 * (D + 4) + 32)), fit = (budget - 16 * row) / stages, waves = fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
  return {waves * 32, 16, 16 * row + waves * stages};
}
static int plan_splits(int bytes, int D, int shared, int budget, int multiprocessors, int blocks, int keys, bool f8) {
  const int crowd = bytes == 2 && !f8 ? std::min({256 / D, budget / shared, 4}) : 3;
  return std::max(1, std::min((keys + 255) / 256, (int)std::lround((double)crowd * multiprocessors / blocks)));
}

static int budget, multiprocessors;

template <class T> struct Kernels;
#define BY_HEAD_DIM(name, T) \
  (const void*)(D == 32 ? name##_32_##T : D == 64 ? name##_64_##T : D == 96 ? name##_96_##T : D == 128 ? name##_128_##T : name##_256_##T)
#ifdef PREFILL_TIMES
#define DECODES(T)
#else
#define DECODES(T) \
  static const void* decode(int D, bool masked, bool bytes) { \
    return bytes ? BY_HEAD_DIM(attention_decode_f8, T) : masked ? BY_HEAD_DIM(attention_decode_masked, T) : BY_HEAD_DIM(attention_decode, T); \
  }
#endif
#define KERNELS(T, CAPPED_OF, BATCH_OF) \
  template <> struct Kernels<T> { \
    static const void* batch(int D) { return BATCH_OF(T); } \
    static const void* prefill(int D, Kind kind) { \
      return kind == CAPPED ? CAPPED_OF(T) : kind == SHAPED ? BY_HEAD_DIM(attention_masked, T) : BY_HEAD_DIM(attention, T); \
    } \
    DECODES(T) \
  };
using namespace gpu;
#define CAPPED_HALVES(T) (const void*)(D == 64 ? attention_capped_64_##T : D == 96 ? attention_capped_96_##T : D == 128 ? attention_capped_128_##T : attention_capped_256_##T)
#define BATCH_HALVES(T) (const void*)(D == 64 ? attention_batch_64_##T : D == 96 ? attention_batch_96_##T : D == 128 ? attention_batch_128_##T : nullptr)
#define NO_FLOATS(T) nullptr
KERNELS(bf16, CAPPED_HALVES, BATCH_HALVES)
#ifndef PREFILL_TIMES
KERNELS(f16, CAPPED_HALVES, BATCH_HALVES)
KERNELS(f32, NO_FLOATS, NO_FLOATS)
#endif

// The bounds of the device's code tell what it was compiled for.
static bool has_warpgroups() {
  cudaFuncAttributes attributes;
  CHECK(cudaFuncGetAttributes(&attributes, Kernels<bf16>::prefill(128, PLAIN)));
  return attributes.maxThreadsPerBlock > 128;
}

template <class T> struct Run {
  Problem p;
  T *q, *k, *v, *mask, *sinks, *out;
  unsigned char *k8 = nullptr, *v8 = nullptr;
  float* scratch = nullptr;
  u32* counters = nullptr;
  float scale;
  unsigned long long sq, sk;
  int splits = 1;

  explicit Run(const Problem& problem) : p(problem), mask(nullptr), scale(1 / std::sqrt((float)problem.d)) {
    sq = (size_t)p.b * p.hq * p.tq * p.d, sk = (size_t)p.b * p.hk * p.tk * p.d;
    CHECK(cudaMalloc(&q, sq * sizeof(T)));
    CHECK(cudaMalloc(&k, std::max(sk, 1ull) * sizeof(T)));
    CHECK(cudaMalloc(&v, std::max(sk, 1ull) * sizeof(T)));
    CHECK(cudaMalloc(&out, sq * sizeof(T)));
    CHECK(cudaMalloc(&sinks, p.hq * sizeof(T)));
    fill<<<1024, 256>>>(sinks, p.hq, 5);
    fill<<<1024, 256>>>(q, sq, 1);
    fill<<<1024, 256>>>(k, sk, 2);
    fill<<<1024, 256>>>(v, sk, 3);
#ifndef PREFILL_TIMES
    if (p.bytes) {
      const size_t rows = sk / p.d;
      CHECK(cudaMalloc(&k8, rows * (p.d + 8)));
      CHECK(cudaMalloc(&v8, rows * (p.d + 8)));
      encode_rows<<<1024, 256>>>(k, k8, rows, p.d);
      encode_rows<<<1024, 256>>>(v, v8, rows, p.d);
    }
#endif
    CHECK(cudaMemset(out, 0x7f, sq * sizeof(T)));
    if (p.mask) {
      CHECK(cudaMalloc(&mask, (size_t)p.b * p.tq * p.tk * sizeof(T)));
      fill<<<1024, 256>>>(mask, (size_t)p.b * p.tq * p.tk, 4);
    }
    CHECK(cudaGetLastError());
  }
  ~Run() {
    for (void* x : {(void*)q, (void*)k, (void*)v, (void*)mask, (void*)sinks, (void*)out, (void*)scratch, (void*)counters, (void*)k8, (void*)v8}) CHECK(cudaFree(x));
  }
  bool masked() const { return p.mask || p.softcap != 0; }
  Kind kind() const { return p.mask ? SHAPED : p.softcap == 0 ? PLAIN : sizeof(T) == 2 && head_dim(p.d) > 32 && has_warpgroups() ? CAPPED : SHAPED; }

  void launch(const void* kernel, unsigned grid, unsigned block, int shared, bool decode) {
    size_t dims[] = {(size_t)(p.offsets ? p.sequences : p.b), (size_t)p.hq, (size_t)p.hk, (size_t)p.tq, (size_t)p.tk, (size_t)p.d, (size_t)p.d};
    const bool bytes = p.bytes && decode;
    const size_t qt = p.d, qh = qt * p.tq, qb = qh * p.hq, kt = p.d + (bytes ? 8 : 0), kh = kt * p.tk, kb = kh * p.hk;
    size_t strides[] = {qb, qh, qt, kb, kh, kt, kb, kh, kt, (size_t)p.tq * p.tk, 0, (size_t)p.tk, 1};
    double numbers[] = {scale, p.softcap};
    u32 causal = p.causal, parts = splits;
    size_t window = p.window;
    const long long *lengths = p.lengths, *tables = nullptr, *plan = nullptr, *offsets = p.offsets;
    T* own_sinks = p.sinks ? sinks : nullptr;
    size_t out_b = qb, out_h = qh, out_t = qt;
    void *keys = bytes ? (void*)k8 : k, *values = bytes ? (void*)v8 : v;
    std::vector<void*> args = {&q, &keys, &values, &mask, &own_sinks, &lengths, &tables, &out};
    if (decode) args.push_back(&scratch), args.push_back(&counters), args.push_back(&plan);
    else args.push_back(&offsets);
    for (size_t& n : dims) args.push_back(&n);
    for (size_t& n : strides) args.push_back(&n);
    args.push_back(&window);
    for (double& n : numbers) args.push_back(&n);
    args.push_back(&causal);
    if (decode) args.push_back(&parts);
    else for (size_t* n : {&out_b, &out_h, &out_t}) args.push_back(n);
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    CHECK(cudaLaunchKernel(kernel, dim3(grid), dim3(block), args.data(), shared, 0));
  }
  void prefill(const void* kernel, const Plan& plan) {
    const int blocks = p.offsets ? p.tq / plan.rows + p.sequences : p.b * ((p.tq + plan.rows - 1) / plan.rows);
    launch(kernel, (unsigned)(p.hq * blocks), plan.threads, plan.shared, false);
  }
  void prefill() {
    const int D = head_dim(p.d);
    const bool simple = has_warpgroups() && kind() == PLAIN && !p.offsets && !p.sinks && Kernels<T>::batch(D);
    const void* kernel = simple ? Kernels<T>::batch(D) : Kernels<T>::prefill(D, kind());
    if (has_warpgroups() && sizeof(T) == 2 && D > 32) prefill(kernel, plan_warpgroups(D, kind() == SHAPED));
    else prefill(kernel, plan_prefill(sizeof(T), D, sizeof(T) == 2 && D > 32 && D <= 128 && !masked() ? 64 : 32, sizeof(T) == 2 && D <= 64, budget));
  }
  void decode(int parts) {
    const Plan plan = plan_decode(sizeof(T), head_dim(p.d), budget, p.bytes);
    const unsigned blocks = p.b * p.hk * ((p.hq / p.hk * p.tq + 15) / 16);
    splits = parts ? parts : plan_splits(sizeof(T), head_dim(p.d), plan.shared, budget, multiprocessors, blocks, p.tk, p.bytes);
    if (splits > 1 && !scratch) {
      CHECK(cudaMalloc(&scratch, (size_t)p.b * p.hq * p.tq * 64 * (p.d + 2) * sizeof(float)));
      CHECK(cudaMalloc(&counters, blocks * sizeof(u32)));
      CHECK(cudaMemset(counters, 0, blocks * sizeof(u32)));
    }
    launch(Kernels<T>::decode(head_dim(p.d), masked(), p.bytes), blocks * splits, plan.threads, plan.shared, true);
  }
  // ‖out − ref‖ / ‖ref‖, NaN where they differ in being finite.
  double error() {
    float* reference;
    CHECK(cudaMalloc(&reference, sq * sizeof(float)));
    CHECK(cudaFuncSetAttribute(naive<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024));
    naive<T><<<(unsigned)(p.b * p.hq * p.tq), 128, (p.tk + 1) * 4>>>(p, q, k, v, mask, sinks, reference, scale);
    CHECK(cudaDeviceSynchronize());
    std::vector<float> want(sq);
    std::vector<T> got(sq);
    CHECK(cudaMemcpy(want.data(), reference, sq * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(got.data(), out, sq * sizeof(T), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(reference));
    double difference = 0, norm = 0;
    for (size_t i = 0; i < sq; i++) {
      double x;
      if constexpr (std::is_same<T, f32>::value) x = got[i];
      else if constexpr (std::is_same<T, bf16>::value) {
        const unsigned bits = (unsigned)got[i].bits << 16;
        float y;
        std::memcpy(&y, &bits, 4);
        x = y;
      } else {
        const int e = got[i].bits >> 10 & 31, m = got[i].bits & 1023;
        x = (got[i].bits >> 15 ? -1 : 1) * (e == 31 ? NAN : e ? std::ldexp(1024 + m, e - 25) : std::ldexp(m, -24));
      }
      difference += (x - want[i]) * (x - want[i]), norm += (double)want[i] * want[i];
    }
    return std::sqrt(difference / norm);
  }
};

// Median of the repeats, each of several calls in a row, which hides the host's part of a launch.
template <class F> static double milliseconds(F f, int repeats, int calls = 1) {
  std::vector<float> times;
  cudaEvent_t start, stop;
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  f();
  CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < repeats; i++) {
    CHECK(cudaEventRecord(start));
    for (int call = 0; call < calls; call++) f();
    CHECK(cudaEventRecord(stop));
    CHECK(cudaEventSynchronize(stop));
    times.push_back(0);
    CHECK(cudaEventElapsedTime(&times.back(), start, stop));
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] / calls;
}

static bool failed = false;
#ifndef PREFILL_TIMES
template <class T> static void check(const char* name, const Problem& p, double limit) {
  double errors[3];
  {
    Run<T> run(p);
    run.prefill();
    errors[0] = errors[1] = errors[2] = run.error();
  }
  for (int parts : {1, 3}) {
    if (p.offsets) break;
    Run<T> run(p);
    run.decode(parts);
    errors[parts == 1 ? 1 : 2] = run.error();
  }
  const bool bad = !(errors[0] < limit && errors[1] < limit && errors[2] < limit);
  failed = failed || bad;
  std::printf("%-4s b %d h %d/%d tq %d tk %d d %3d%s%s%s%s%s%s%s: prefill %.1e decode %.1e in parts %.1e%s\n", name, p.b, p.hq, p.hk, p.tq,
              p.tk, p.d, p.causal ? " causal" : "", p.window ? " window" : "", p.softcap != 0 ? " softcap" : "", p.bytes ? " f8" : p.mask ? " mask" : "",
              p.lengths ? " lengths" : "", p.sinks ? " sinks" : "", p.offsets ? " offsets" : "", errors[0], errors[1], errors[2], bad ? "  WRONG" : "");
}
template <class T> static void check_all(const char* name, double limit, const long long* lengths, const long long* offsets) {
  for (int d : {32, 64, 80, 96, 128, 256}) {
    check<T>(name, {2, 8, 2, 300, 300, d, false, 0, 0, false, nullptr}, limit);
    check<T>(name, {2, 8, 2, 257, 411, d, true, 0, 0, false, nullptr}, limit);
    check<T>(name, {2, 4, 4, 130, 1000, d, true, 100, 0, false, nullptr}, limit);
    check<T>(name, {2, 4, 1, 70, 333, d, true, 0, 5, true, lengths}, limit);
    check<T>(name, {2, 8, 2, 3, 1999, d, true, 0, 0, false, lengths}, limit);
    check<T>(name, {2, 8, 2, 3, 1999, d, true, 0, 5, false, lengths, true, nullptr, 0, true}, limit);
    check<T>(name, {2, 8, 2, 257, 411, d, false, 50, 0, false, nullptr, true}, limit);
    check<T>(name, {1, 4, 2, 1000, 1000, d, true, 0, 0, false, nullptr, false, offsets, 5}, limit);
    check<T>(name, {1, 4, 2, 1000, 1000, d, false, 64, 20, false, nullptr, true, offsets, 5}, limit);
  }
}

#endif

static double flops(const Problem& p) {
  const double seen = p.window && !p.causal ? 2.0 * p.window + 1 : p.window ? p.window - (double)p.window * p.window / (2.0 * p.tk) : p.causal ? p.tk / 2.0 : p.tk;
  return 4.0 * p.b * p.hq * p.tq * seen * p.d;
}
template <class T> static void time_prefill(const char* name, const Problem& p, int repeats) {
  Run<T> run(p);
  const double ms = milliseconds([&] { run.prefill(); }, repeats);
  std::printf("prefill %s %dx%d/%dx%dx%d%s%s%s%s: %.3f ms, %.0f TFLOP/s\n", name, p.b, p.hq, p.hk, p.tq, p.d, p.causal ? " causal" : "",
              p.window ? " window" : "", p.softcap != 0 ? " softcap" : "", p.mask ? " mask" : "", ms, flops(p) / ms / 1e9);
}
// What shapes scores beside plain attention over as many keys, in turns: a cap, windows as wide as all keys, a mask of each query.
template <class T> static void time_shaped(const char* name, int heads, int d) {
  const Problem plain{4, heads, heads / 4, 4096, 4096, d, true, 0, 0, false, nullptr};
  Problem capped = plain, windowed = plain, whole = plain, masked = plain;
  capped.softcap = 50, windowed.window = 1 << 20, whole.causal = masked.causal = false, masked.mask = true;
  Run<T> runs[]{Run<T>(plain), Run<T>(capped), Run<T>(windowed), Run<T>(whole), Run<T>(masked)};
  double ms[5] = {1e9, 1e9, 1e9, 1e9, 1e9};
  for (int round = 0; round < 5; round++)
    for (int i = 0; i < 5; i++) ms[i] = std::min(ms[i], milliseconds([&] { runs[i].prefill(); }, 3));
  std::printf("prefill %s 4x%d/%dx4096x%d: causal %.3f ms, %.0f TFLOP/s; of its speed: softcap %.2f, window %.2f; mask %.2f of what sees all\n", name,
              heads, heads / 4, d, ms[0], flops(plain) / ms[0] / 1e9, ms[0] / ms[1], ms[0] / ms[2], ms[3] / ms[4]);
}
static void time_variant(const char* name, const void* kernel, const Plan& plan, const Problem& p) {
  Run<bf16> run(p);
  const double ms = milliseconds([&] { run.prefill(kernel, plan); }, 20);
  std::printf("  variant %s: %.3f ms, %.0f TFLOP/s\n", name, ms, flops(p) / ms / 1e9);
}
template <class T> static void time_decode(const char* name, const Problem& p, std::vector<int> parts) {
  Run<T> run(p);
  for (int n : parts) {
    const double ms = milliseconds([&] { run.decode(n); }, 15, 20);
    std::printf("decode %s%s %dx%d/%d, %d queries, kv %d, d %d, %d parts: %.1f us, %.2f TB/s\n", name, p.bytes ? " over f8" : "", p.b, p.hq, p.hk, p.tq, p.tk, p.d,
                run.splits, ms * 1e3, 2.0 * run.sk * (p.bytes ? (p.d + 8.0) / p.d : sizeof(T)) / ms / 1e9);
  }
}
// Sequences of equal lengths side by side, one behind the other, and one behind the other with every second one a quarter as long.
static void time_sequences(int count, int length, int heads, int d) {
  std::vector<long long> equal(count + 1), uneven(count + 1);
  for (int i = 0; i < count; i++) equal[i + 1] = equal[i] + length, uneven[i + 1] = uneven[i] + (i % 2 ? length / 4 : length);
  long long* offsets;
  CHECK(cudaMalloc(&offsets, (count + 1) * sizeof(long long)));
  const auto behind = [&](const std::vector<long long>& ends) {
    CHECK(cudaMemcpy(offsets, ends.data(), ends.size() * sizeof(long long), cudaMemcpyHostToDevice));
    const int rows = (int)ends.back();
    Run<bf16> run({1, heads, heads, rows, rows, d, false, 0, 0, false, nullptr, false, offsets, count});
    return milliseconds([&] { run.prefill(); }, 10, 5) * 1e3;
  };
  Run<bf16> side({count, heads, heads, length, length, d, false, 0, 0, false, nullptr});
  const double dense = milliseconds([&] { side.prefill(); }, 10, 5) * 1e3;
  std::printf("%d sequences of %d, %d heads of %d: side by side %.1f us, behind each other %.1f us", count, length, heads, d, dense, behind(equal));
  std::printf(", uneven %.1f us\n", behind(uneven));
  CHECK(cudaFree(offsets));
}
#ifndef PREFILL_TIMES
// One query of one sequence whose cache has room for more keys than there are, as in a captured step.
static void time_growing(int capacity, long long* length) {
  Run<bf16> run({1, 32, 8, 1, capacity, 128, true, 0, 0, false, length});
  std::printf("decode of a cache for %d keys:", capacity);
  for (const long long keys : {16, 128, 192, 256, 512, 1024, 2048, 4096, 8192}) {
    if (keys > capacity) break;
    CHECK(cudaMemcpy(length, &keys, sizeof keys, cudaMemcpyHostToDevice));
    std::printf(" %lld keys %.1f us", keys, milliseconds([&] { run.decode(0); }, 15, 20) * 1e3);
  }
  std::printf("\n");
}
#endif

int main() {
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  budget = (int)device.sharedMemPerBlockOptin, multiprocessors = device.multiProcessorCount;
  std::printf("%s, %d multiprocessors, %d bytes of shared memory per block\n", device.name, multiprocessors, budget);
  long long* lengths;
  const long long values[] = {200, 333};
  CHECK(cudaMalloc(&lengths, sizeof values));
  CHECK(cudaMemcpy(lengths, values, sizeof values, cudaMemcpyHostToDevice));
#ifndef PREFILL_TIMES
  const long long ends[] = {0, 1, 300, 300, 817, 1000};
  long long* offsets;
  CHECK(cudaMalloc(&offsets, sizeof ends));
  CHECK(cudaMemcpy(offsets, ends, sizeof ends, cudaMemcpyHostToDevice));
  check_all<bf16>("bf16", 6e-3, lengths, offsets);
  check_all<f16>("f16", 1e-3, lengths, offsets);
  check_all<f32>("f32", 1e-5, lengths, offsets);
#endif
  for (int length : {32, 128, 512, 2048}) time_sequences(131072 / length, length, 12, 32);
  for (int length : {32, 128, 512, 2048}) time_sequences(131072 / length, length, 12, 64);
  for (bool sinks : {false, true}) time_prefill<bf16>(sinks ? "bf16 sinks" : "bf16", {4, 64, 8, 4096, 4096, 64, true, 128, 0, false, nullptr, sinks}, 10);
  time_prefill<bf16>("bf16 to both sides", {1, 12, 12, 16384, 16384, 64, false, 64, 0, false, nullptr}, 10);
  const Problem d128{4, 32, 8, 4096, 4096, 128, true, 0, 0, false, nullptr};
  const Problem d64{4, 32, 8, 4096, 4096, 64, true, 0, 0, false, nullptr};
  time_prefill<bf16>("bf16", d128, 20);
  time_variant("mma, 64 keys", (const void*)variant_128_64, plan_prefill(2, 128, 64, false, budget), d128);
  time_variant("mma, 64 keys, 256 threads", (const void*)variant_128_64_256, plan_prefill(2, 128, 64, false, budget, 256), d128);
  if (has_warpgroups()) {
    time_variant("that may have pages", Kernels<bf16>::prefill(128, PLAIN), plan_warpgroups(128, false), d128);
    time_variant("2 warpgroups, 128 keys, 2 deep", (const void*)warpgroups_128_2_stages, plan_warpgroups(2, 128, 128, 2), d128);
    time_variant("3 warpgroups, 64 keys, 3 deep", (const void*)warpgroups_128_64_keys, plan_warpgroups(3, 128, 64, 3), d128);
  }
  time_prefill<bf16>("bf16", d64, 20);
  time_variant("mma, 64 keys", (const void*)variant_64_64_kept, plan_prefill(2, 64, 64, true, budget), d64);
  time_variant("mma, 64 keys, 256 threads", (const void*)variant_64_64_256, plan_prefill(2, 64, 64, true, budget, 256), d64);
  if (has_warpgroups()) {
    time_variant("that may have pages", Kernels<bf16>::prefill(64, PLAIN), plan_warpgroups(64, false), d64);
    time_variant("3 warpgroups, 128 keys, 3 deep", (const void*)warpgroups_64_3_stages, plan_warpgroups(3, 64, 128, 3), d64);
    time_variant("2 warpgroups, 128 keys, 3 deep", (const void*)warpgroups_64_2_groups, plan_warpgroups(2, 64, 128, 3), d64);
  }
  time_prefill<bf16>("bf16", {4, 32, 8, 4096, 4096, 128, false, 0, 0, false, nullptr}, 20);
  time_prefill<bf16>("bf16", {1, 32, 8, 16384, 16384, 128, true, 0, 0, false, nullptr}, 10);
  time_prefill<bf16>("bf16", {1, 32, 8, 16384, 16384, 128, true, 1024, 0, false, nullptr}, 10);
  for (int d : {64, 96, 128}) time_shaped<bf16>("bf16", 32, d);
  time_shaped<bf16>("bf16", 16, 256);
  time_prefill<bf16>("bf16", {1, 32, 32, 65536, 65536, 128, true, 0, 0, false, nullptr}, 2);
#ifndef PREFILL_TIMES
  time_prefill<f16>("f16", d128, 20);
  time_shaped<f16>("f16", 32, 128);
  time_prefill<bf16>("bf16", {4, 16, 4, 4096, 4096, 256, true, 0, 0, false, nullptr}, 10);
  time_prefill<bf16>("bf16", {4, 32, 8, 4096, 4096, 96, true, 0, 0, false, nullptr}, 10);
  time_prefill<f32>("f32", {1, 32, 8, 4096, 4096, 128, true, 0, 0, false, nullptr}, 5);
  time_decode<bf16>("bf16", {8, 32, 8, 1, 8192, 128, false, 0, 0, false, nullptr}, {0, 2, 3, 6, 8});
  for (int d : {64, 128}) time_decode<bf16>("bf16", {8, 32, 8, 1, 8192, d, false, 0, 0, false, nullptr, false, nullptr, 0, true}, {0, 3, 4, 6, 8});
  time_decode<f16>("f16", {8, 32, 8, 1, 8192, 128, false, 0, 0, false, nullptr, false, nullptr, 0, true}, {0});
  time_decode<bf16>("bf16", {8, 16, 4, 1, 8192, 256, false, 0, 0, false, nullptr, false, nullptr, 0, true}, {0, 8});
  time_decode<bf16>("bf16", {32, 32, 8, 1, 8192, 128, false, 0, 0, false, nullptr, false, nullptr, 0, true}, {0, 2});
  time_decode<bf16>("bf16", {1, 32, 8, 1, 32768, 128, false, 0, 0, false, nullptr, false, nullptr, 0, true}, {0});
  time_decode<bf16>("bf16", {8, 32, 8, 1, 8192, 64, false, 0, 0, false, nullptr}, {0, 4, 6});
  time_decode<bf16>("bf16", {8, 32, 8, 1, 8192, 96, false, 0, 0, false, nullptr}, {0, 4, 6});
  time_decode<bf16>("bf16", {8, 16, 4, 1, 8192, 256, false, 0, 0, false, nullptr}, {0, 8});
  time_decode<bf16>("bf16", {32, 32, 8, 1, 8192, 128, false, 0, 0, false, nullptr}, {0, 2});
  time_decode<bf16>("bf16", {8, 32, 8, 4, 8192, 128, true, 0, 0, false, nullptr}, {0});
  time_decode<bf16>("bf16", {1, 32, 8, 1, 32768, 128, false, 0, 0, false, nullptr}, {0});
  time_decode<f32>("f32", {8, 32, 8, 1, 8192, 128, false, 0, 0, false, nullptr}, {0});
  for (int capacity : {1024, 8192}) time_growing(capacity, lengths);
#endif
  std::printf(failed ? "WRONG RESULTS above\n" : "all results right\n");
  return failed;
}
