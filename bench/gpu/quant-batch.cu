// Linear layers of 5 to 16 rows with weights of one quantized type on an NVIDIA card: times by warps, splits and parts, the best first,
// and errors.
//
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a quant-batch quant-blocks linear quant-matvec) -DTYPE=q4_k -DGPU_ONLY -DGPU_ONLY_q4_k -DGPU_ONLY_f32 bench/gpu/quant-batch.cu -o quant-batch
//
// Weights are rotated through copies, so that the cache serves none of them.
#include "bench.h"
#include "quant-blocks.hip"
#include "quant-batch.hip"

#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
typedef TYPE Q;
constexpr u32 DEPTH = Q::Fine ? QUANT_BATCH_FINE : QUANT_BATCH_CHUNK, LINES = 16, BYTES = DEPTH / Q::Elements * Q::Bytes, SHOWN = 5, STEP = 61;

// Results of every STEP-th row of w and the plain product of dequantized weights, a thread each: {Σ difference², Σ wanted²}.
template <class T> static __global__ void compare(const T* y, const f32* w, const T* x, size_t rows, size_t n, size_t k, double* sums) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, line = i / rows * STEP, row = i % rows;
  if (line >= n) return;
  double sum = 0;
  for (size_t j = 0; j < k; j++) sum += (double)w[line * k + j] * (double)widen(x[row * k + j]);
  const double difference = (double)widen(y[row * n + line]) - sum;
  atomicAdd(sums, difference * difference);
  atomicAdd(sums + 1, sum * sum);
}

struct Plan {
  float time;
  u32 warps, splits, parts, shares, bytes;
};

int main() {
  double* sums = device<double>(2);
  u32* counters = device<u32>(4096);
  CHECK(cudaMemset(counters, 0, 4096 * 4));
  int sms;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  const auto kernel = JOIN(quant_batch_, TYPE, );
  CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 225 * 1024));
  const u32 stage = 256 * ((BYTES + 31 - Q::Align) / 16 | 1);
  const struct { size_t n, k; bool glu; } shapes[] = {{28672, 4096, true}, {6144, 4096, false}, {4096, 4096, false}, {4096, 14336, false}, {128256, 4096, false}};
  for (const auto& s : shapes) {
    const size_t n = s.n, k = s.k, blocks = n * k / Q::Elements, size = blocks * Q::Bytes;
    const int copies = (int)(((size_t)150 << 20) / size) + 1;
    std::vector<u8*> w(copies);
    for (int c = 0; c < copies; c++) {
      w[c] = device<u8>(size);
      fill_bytes<<<4096, 256>>>(w[c], size, 17u * c + 3);
      for (u32 offset = 0; offset <= (Q::HasMin ? 2 : 0); offset += 2) fill_scales<<<(unsigned)(blocks / 256 + 1), 256>>>(w[c], blocks, Q::Bytes, offset);
    }
    f32 *dense = device<f32>(n * k), *parts_of = device<f32>(8 * 16 * n);
    JOIN(dequantize_block_, TYPE, _f32)<<<(unsigned)(n * k / (QUANT_CHUNK * 8)), 256>>>(w[0], dense, n * k);
    bf16 *x = device<bf16>(16 * k), *y = device<bf16>(16 * n);
    f16 *xh = device<f16>(16 * k), *yh = device<f16>(16 * n);
    fill_floats<bf16><<<1024, 256>>>(x, 16 * k, 1, 1.0f);
    fill_floats<f16><<<1024, 256>>>(xh, 16 * k, 1, 1.0f);
    const auto go = [&](cudaStream_t stream, const u8* p, const Plan& plan, u32 rows, bool glu, const void* in, void* out, u32 dtype) {
      cudaLaunchConfig_t config{};
      config.gridDim = dim3(plan.shares * plan.parts), config.blockDim = dim3(32 * plan.warps), config.dynamicSmemBytes = plan.bytes, config.stream = stream;
      cudaLaunchAttribute early{};
      early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      early.val.programmaticStreamSerializationAllowed = 1;
      config.attrs = &early, config.numAttrs = 1;
      CHECK(cudaLaunchKernelEx(&config, kernel, in, p, (const void*)nullptr, (const void*)nullptr, out, parts_of, counters, n, k, rows, glu ? (u32)GLU_silu : 0u, plan.splits, plan.parts, dtype));
    };
    const auto time = [&](const Plan& plan, u32 rows) {
      return median_of_graph([&](cudaStream_t stream) {
               for (int i = 0; i < 2 * copies; i++) go(stream, w[i % copies], plan, rows, s.glu, x, y, DTYPE_bf16);
             }, 5) / (2 * copies);
    };
    std::vector<Plan> plans;
    const u32 groups = (u32)(n / LINES), chunks = (u32)((k + DEPTH - 1) / DEPTH);
    for (u32 parts = 1; parts <= 8 && parts <= chunks; parts++)
      for (u32 splits = 1; splits <= 4 && splits * parts <= chunks; splits *= 2)
        for (u32 together = 1; together * splits <= QUANT_BATCH_WARPS; together++) {
          const u32 warps = together * splits, width = (chunks + parts - 1) / parts * DEPTH, sets = (groups + together - 1) / together;
          const u32 bytes = 32 * (width + 32) + 128 + warps * (QUANT_BATCH_PLACES * stage + (splits > 1 ? 64 * LINES : 0)), rounds = (sets + sms / parts - 1) / (sms / parts);
          if (bytes > 225 * 1024 || warps < 7 || (n > 20000 && (parts > 4 || splits > 1))) continue;
          Plan plan{0, warps, splits, parts, (sets + rounds - 1) / rounds, std::max(bytes, 227u * 512)};
          plan.time = time(plan, 16);
          plans.push_back(plan);
        }
    std::sort(plans.begin(), plans.end(), [](const Plan& a, const Plan& b) { return a.time < b.time; });
    printf("%s %6zu x %5zu%s:", TEXT(TYPE), n, k, s.glu ? " gated" : "");
    for (size_t i = 0; i < plans.size() && i < SHOWN; i++)
      printf("  %.1f us %.2f TB/s (%u warps, %u splits, %u parts, %u shares)", plans[i].time, size / plans[i].time * 1e-6, plans[i].warps, plans[i].splits, plans[i].parts, plans[i].shares);
    const auto error = [&](auto* in, auto* out, u32 rows, u32 dtype) {
      CHECK(cudaMemset(out, 0xee, rows * n * 2));
      CHECK(cudaMemset(sums, 0, 16));
      go(0, w[0], plans[0], rows, false, in, out, dtype);
      compare<<<(unsigned)(rows * (n / STEP + 1) / 256 + 1), 256>>>(out, dense, in, rows, n, k, sums);
      double found[2];
      CHECK(cudaMemcpy(found, sums, sizeof found, cudaMemcpyDeviceToHost));
      return std::sqrt(found[0] / found[1]);
    };
    printf("; errors bf16 %.1e f16 %.1e", error(x, y, 16, DTYPE_bf16), error(xh, yh, 16, DTYPE_f16));
    for (const u32 rows : {5u, 8u, 9u}) printf("; %u rows %.1f us, f16 %.1e", rows, time(plans[0], rows), error(xh, yh, rows, DTYPE_f16));
    printf("\n");
    fflush(stdout);
    for (u8* p : w) CHECK(cudaFree(p));
    for (void* p : {(void*)x, (void*)y, (void*)xh, (void*)yh, (void*)dense, (void*)parts_of}) CHECK(cudaFree(p));
  }
}
