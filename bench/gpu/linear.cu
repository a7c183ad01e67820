// Times the fused linear layers of one decoded token of a Llama of 1B parameters on an NVIDIA card, launched as a graph, and
// checks each against a plain loop.
//
//   nvcc -arch=sm_90 -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90 linear gemm quant-blocks quant-matvec) -DGPU_ONLY -DGPU_ONLY_bf16 -DGPU_ONLY_f32 bench/gpu/linear.cu -o linear
//   … -DTYPE=q4_k -DGPU_ONLY_q4_k for quantized weights
//   … -DSWEEP tries launches and kernels other than those that ship, of weights that are not quantized
//
// A shape's time is that of one launch among many over different weights, so that the cache serves none of them.
#include "tile-plan.h"
#include "linear.hip"
#if defined(CUBLAS)
#include "gemm.hip"
#include <cublas_v2.h>
#endif
#if defined(TYPE)
#include "quant-blocks.hip"
#include "quant-matvec.hip"
typedef TYPE Q;
#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#endif

struct Shape {
  const char* name;
  size_t n, k;
  bool norm, glu, residual;
  int per_token;
};
static const Shape shapes[] = {
    {"qkv", 3072, 2048, true, false, false, 16}, {"o", 2048, 2048, false, false, true, 16}, {"gate_up", 16384, 2048, true, true, false, 16},
    {"down", 2048, 8192, false, false, true, 16}, {"head", 128256, 2048, true, false, false, 1}, {"14336x4096", 14336, 4096, false, false, false, 0},
};
static const Shape decode[] = {shapes[0], shapes[1], shapes[2], shapes[3]};

// y = f(norm(x) · Wᵀ) + residual, a thread per result; `x` are the products' left sides, `factor` what they are multiplied with.
template <class W> __global__ void naive(Shape s, size_t batch, const W* w, const f32* x, const f32* factor, const bf16* residual, f64* y) {
  const size_t columns = s.glu ? s.n / 2 : s.n, i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= batch * columns) return;
  const size_t b = i / columns, c = i % columns;
  f64 sum[2] = {0, 0};
  for (size_t j = 0; j < s.k; j++) {
    sum[0] += (f64)widen(w[c * s.k + j]) * x[b * s.k + j];
    if (s.glu) sum[1] += (f64)widen(w[(c + columns) * s.k + j]) * x[b * s.k + j];
  }
  f64 v = sum[0] * factor[b];
  if (s.glu) v = v / (1 + exp(-v)) * sum[1] * factor[b];
  y[i] = v + (s.residual ? (f64)widen(residual[i]) : 0);
}
// x · alpha and the factor of the norm; a thread per row.
__global__ void normalise(Shape s, const bf16* x, const bf16* alpha, f32* out, f32* factor) {
  f64 squares = 0;
  for (size_t j = 0; j < s.k; j++) {
    const f32 v = widen(x[threadIdx.x * s.k + j]);
    squares += (f64)v * v;
    out[threadIdx.x * s.k + j] = s.norm ? v * widen(alpha[j]) : v;
  }
  factor[threadIdx.x] = s.norm ? (f32)(1 / sqrt(squares / s.k + 1e-5)) : 1.0f;
}
#if defined(TYPE)
typedef u8 Weight;
typedef void (*Kernel)(const void*, const u8*, const void*, const void*, const void*, void*, size_t, size_t, f64, u32, u32, u32, u32, u32);
static size_t bytes_of(const Shape& s) { return s.n * s.k / Q::Elements * Q::Bytes; }
#else
typedef bf16 Weight;
typedef void (*Kernel)(const bf16*, const bf16*, const bf16*, const bf16*, const bf16*, bf16*, size_t, size_t, f64, u32, u32, u32);
static size_t bytes_of(const Shape& s) { return s.n * s.k * 2; }
#endif

// `deep` is places of quantized weights, or vectors in flight per row.
struct Variant {
  u32 columns, rows, deep;
  Kernel plain, norm;
};
#if defined(TYPE)
#define SHIPPED(NB) Variant{NB, 16, 0, NB > 4 ? JOIN(linear_, TYPE, _b8) : JOIN(linear_, TYPE, _b4), NB > 4 ? JOIN(linear_, TYPE, _b8) : JOIN(linear_, TYPE, _b4)}
#else
#define OTHER(NB, R, Deep) LINEAR_KERNEL(other_##NB##_##R##_##Deep, bf16, NB, R, Deep, false) LINEAR_KERNEL(other_norm_##NB##_##R##_##Deep, bf16, NB, R, Deep, true)
#define VARIANT(NB, R, Deep) Variant{NB, R, Deep, other_##NB##_##R##_##Deep, other_norm_##NB##_##R##_##Deep}
#define SHIPPED(NB) Variant{NB, 4, 1, linear_bf16_b##NB, linear_norm_bf16_b##NB}
#define OTHERS \
  OTHER(1, 2, 1) OTHER(1, 2, 2) OTHER(1, 4, 1) OTHER(1, 4, 2)
#define VARIANTS \
  VARIANT(1, 2, 1), VARIANT(1, 2, 2), VARIANT(1, 4, 1), VARIANT(1, 4, 2)
#endif
#if defined(SWEEP) && !defined(TYPE)
namespace gpu {
OTHERS
}
#endif

static int sms;
static bf16 *x, *alpha, *residual, *y;
static bool fits(const Variant& v, const Launch& l, const Shape& s) {
  int fit;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, s.norm ? v.norm : v.plain, (int)l.threads, 0));
  return fit >= (int)l.per_sm && fit > 0;
}
// With `overlap`, a kernel may start while the one before it ends.
static bool overlap = false;
static void launch(const Variant& v, const Launch& l, const Shape& s, const Weight* w, cudaStream_t stream) {
  const Kernel kernel = s.norm ? v.norm : v.plain;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.blockDim = l.threads, config.stream = stream, config.attrs = &attribute, config.numAttrs = overlap;
#if defined(TYPE)
  const TileLaunch t = plan_tiles<Q>(s.n, s.k, v.columns, (u32)sms);
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)t.bytes));
  config.gridDim = t.blocks, config.dynamicSmemBytes = t.bytes;
#else
  const size_t groups = (s.n + v.rows - 1) / v.rows;
  const u32 blocks = (u32)((groups * l.splits * 32 + l.threads - 1) / l.threads), most = l.per_sm * sms;
  const u32 rounds = most ? (blocks + most - 1) / most : 1;
  config.gridDim = (blocks + rounds - 1) / rounds;
#endif
  const bf16* added = s.residual ? residual : nullptr;
#if defined(TYPE)
  CHECK(cudaLaunchKernelEx(&config, kernel, (const void*)x, w, (const void*)(s.norm ? alpha : nullptr), (const void*)nullptr,
                           (const void*)added, (void*)y, s.n, s.k, 1e-5, v.columns, (u32)s.glu, l.splits, (u32)s.k, 2u));
#else
  CHECK(cudaLaunchKernelEx(&config, kernel, (const bf16*)x, w, (const bf16*)alpha, (const bf16*)nullptr, added, y, s.n, s.k, 1e-5, v.columns,
                           (u32)s.glu, l.splits));
#endif
}

// The launch that src/backend/gpu/families/linear.ts would plan.
static Launch plan(const Variant& v, const Shape& s) {
#if defined(TYPE)
  const TileLaunch l = plan_tiles<Q>(s.n, s.k, v.columns, (u32)sms);
  return Launch{l.threads, l.splits, 0};
#else
  const u32 groups = (u32)((s.n + v.rows - 1) / v.rows);
  Launch l{128, 1, 0};
  while (l.splits < 4 && groups * l.splits < (u32)sms * (v.columns > 2 ? 10 : 20) && s.k >= 512 * l.splits) l.splits *= 2;
  return l;
#endif
}

int main() {
  int failures = 0;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  const double ceiling = copy_ceiling();
  size_t total = 0;
  for (const Shape& s : shapes) total += s.per_token * bytes_of(s);
  total = std::max(total, (size_t)1 << 30);
  u8* weights = device<u8>(total + (1 << 20));
#if defined(TYPE)
  const std::string name = TEXT(TYPE);
  fill_bytes<<<8192, 256>>>(weights, total, 3);
  std::vector<u32> scales{0};
  if (name == "q6_k") scales = {208};
  if (name == "q4_k") scales = {0, 2};
  for (u32 offset : scales) fill_scales<<<(unsigned)(total / Q::Bytes / 256 + 1), 256>>>(weights, total / Q::Bytes, Q::Bytes, offset);
  f32* dense = device<f32>((size_t)128256 * 2048);
#else
  const std::string name = "bf16";
  fill_floats<<<8192, 256>>>((bf16*)weights, total / 2, 3, 0.05f);
#endif
  x = device<bf16>(8 * 8192), alpha = device<bf16>(8192), residual = device<bf16>(8 * 128256), y = device<bf16>(8 * 128256);
  fill_floats<<<64, 256>>>(x, 8 * 8192, 1, 2.0f);
  fill_floats<<<64, 256>>>(alpha, 8192, 2, 1.0f);
  fill_floats<<<1024, 256>>>(residual, 8 * 128256, 4, 1.0f);
  f32 *left = device<f32>(8 * 8192), *factor = device<f32>(8);
  f64* wanted = device<f64>((size_t)8 * 128256);
  CHECK(cudaDeviceSynchronize());
  printf("%s: %.2f GB of weights per token, %.3f ms at the ceiling\n", name.c_str(), total * 1e-9, total / ceiling * 1e-9);

  const auto check = [&](const Variant& v, const Launch& l, const Shape& s) {
    const size_t columns = s.glu ? s.n / 2 : s.n;
    normalise<<<1, v.columns>>>(s, x, alpha, left, factor);
#if defined(TYPE)
    JOIN(dequantize_block_, TYPE, _f32)<<<(unsigned)(s.n * s.k / 8192), 256>>>(weights, dense, s.n * s.k);
    const f32* w = dense;
#else
    const bf16* w = (bf16*)weights;
#endif
    naive<<<(unsigned)(v.columns * columns / 256 + 1), 256>>>(s, v.columns, w, left, factor, residual, wanted);
    CHECK(cudaMemset(y, 0xff, (size_t)8 * 128256 * 2));
    launch(v, l, s, (Weight*)weights, 0);
    CHECK(cudaDeviceSynchronize());
    return error_of(y, 2, wanted, v.columns * columns);
  };
  const auto time = [&](const Variant& v, const Launch& l, const Shape& s) {
    const int copies = (int)std::min<size_t>(total / bytes_of(s), std::max<size_t>(8, ((size_t)500 << 20) / bytes_of(s)));
    return median_of_graph([&](cudaStream_t stream) {
             for (int c = 0; c < copies; c++) launch(v, l, s, (Weight*)(weights + c * bytes_of(s)), stream);
           }, 9) / copies;
  };
  const auto report = [&](const char* mark, const Variant& v, const Launch& l, const Shape& s, float us, double error) {
    const bool wrong = !(error < 4e-3);
    failures += wrong;
    printf("  %-10s batch %u, %u rows x %u, %3u threads, %u splits, %2u per SM%s: %7.2f us  %.2f TB/s  %.2f of copy  error %.1e%s\n", s.name, v.columns, v.rows, v.deep,
           l.threads, l.splits, l.per_sm, mark, us, bytes_of(s) / us * 1e-6, bytes_of(s) / us * 1e-6 / ceiling, error, wrong ? " WRONG" : "");
  };
  for (const Shape& s : shapes) {
    for (const Variant& v : {SHIPPED(1), SHIPPED(2), SHIPPED(4), SHIPPED(8)}) {
      const Launch l = plan(v, s);
      if (!fits(v, l, s)) continue;
      const double error = check(v, l, s);
      report(" *", v, l, s, time(v, l, s), error);
    }
#if defined(SWEEP) && !defined(TYPE)
    struct Result { float us; Launch l; };
    for (const Variant& v : {VARIANTS}) {
      std::vector<Result> results;
      for (u32 threads : {64, 128})
        for (u32 splits : {1, 2, 4, 8}) {
          const Launch l{threads, splits, 0};
          if (threads / 32 % splits || !fits(v, l, s)) continue;
          results.push_back({time(v, l, s), l});
        }
      std::sort(results.begin(), results.end(), [](const Result& a, const Result& b) { return a.us < b.us; });
      for (size_t i = 0; i < results.size() && i < 6; i++) report("", v, results[i].l, s, results[i].us, check(v, results[i].l, s));
    }
#endif
  }

#if defined(CUBLAS)
  // The plain product of one row, by cuBLAS and by gemv, with W's rows or its columns contiguous.
  cublasHandle_t handle;
  if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) return printf("no cuBLAS\n"), 1;
  const float one = 1, zero = 0;
  for (const Shape& s : shapes)
    for (const bool columns : {false, true}) {
      const int copies = (int)std::min<size_t>(total / bytes_of(s), std::max<size_t>(8, ((size_t)500 << 20) / bytes_of(s)));
      const auto each = [&](const std::function<void(cudaStream_t, bf16*)>& run) {
        return median_of_graph([&](cudaStream_t stream) {
                 for (int c = 0; c < copies; c++) run(stream, (bf16*)(weights + c * bytes_of(s)));
               }, 9) / copies;
      };
      const float blas = each([&](cudaStream_t stream, bf16* w) {
        cublasSetStream(handle, stream);
        const cublasStatus_t status = cublasGemmEx(handle, columns ? CUBLAS_OP_N : CUBLAS_OP_T, CUBLAS_OP_N, (int)s.n, 1, (int)s.k, &one, w, CUDA_R_16BF,
                                                   (int)(columns ? s.n : s.k), x, CUDA_R_16BF, (int)s.k, &zero, y, CUDA_R_16BF, (int)s.n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
        if (status != CUBLAS_STATUS_SUCCESS) exit((printf("cuBLAS: %d\n", (int)status), 1));
      });
      printf("  %-10s one row, %s: cuBLAS %7.2f us", s.name, columns ? "columns" : "rows", blas);
      for (u32 row_threads : {32, 64, 128, 256}) {
        if (columns && row_threads > 32) continue;
        const unsigned grid = (unsigned)(columns ? (s.n + 15) / 16 : s.n * row_threads / 256);
        const float own = each([&](cudaStream_t stream, bf16* w) {
          gemv_bf16<<<grid, 256, 0, stream>>>(w, x, y, 1, s.n, s.k, columns ? 1 : s.k, columns ? s.n : 1, 1, 0, nullptr, row_threads);
        });
        printf(", gemv %u %7.2f us", row_threads, own);
      }
      printf("\n");
    }
#endif

  const Variant v = SHIPPED(1);
  for (const bool early : {false, true}) {
    overlap = early;
    const float us = median_of_graph([&](cudaStream_t stream) {
    u8* w = weights;
    const auto next = [&](const Shape& s) {
      launch(v, plan(v, s), s, (Weight*)w, stream);
      w += bytes_of(s);
    };
    for (int layer = 0; layer < 16; layer++) for (const Shape& s : decode) next(s);
    next(shapes[4]);
    });
    printf("  all linear layers of a token%s: %.3f ms\n", early ? ", starting early" : "", us * 1e-3);
  }
  printf(failures ? "%d FAILED\n" : "all right\n", failures);
  return failures != 0;
}
