// What a recorded step does between the projections and what its heads see, for many sequences: queries and keys turned, caches
// filled, attention. In two launches, and in one by both kernels for it; µs for each of 32 layers that follow each other.
// Shape: an 8B Llama's heads. TB/s count keys and values once.
//   step [KEYS…]
//
//   nvcc -arch=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a quant-matvec decode attention_decode attention_step) bench/gpu/step.cu -o step
#define GPU_ONLY
#define GPU_ONLY_bf16
#include "bench.h"
#include "decode.hip"
#include "attention_decode.hip"
#include "attention_step.hip"

constexpr u32 HEADS = 32, KV_HEADS = 8, D = 128, LAYERS = 32, QKV = (HEADS + 2 * KV_HEADS) * D;

// In place of a projection: what comes before writes q, k and v.
KERNEL_BOUNDS(256, project, const bf16* from, bf16* to, size_t count) {
  single_loop(count, [&](size_t i) { to[i] = from[i]; });
}

template <class... P, class... A> static void go(cudaStream_t stream, void (*kernel)(P...), u32 grid, u32 block, u32 shared, A... args) {
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid), config.blockDim = dim3(block), config.dynamicSmemBytes = shared, config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute, config.numAttrs = 1;
  CHECK(cudaLaunchKernelEx(&config, kernel, (P)args...));
}
static bf16* floats_of(size_t count, u32 seed, f32 size) {
  bf16* p = device<bf16>(count);
  fill_floats<<<1024, 256>>>(p, count, seed, size);
  return p;
}
static std::vector<float> read(const bf16* p, size_t count) {
  std::vector<u16> bits(count);
  CHECK(cudaMemcpy(bits.data(), p, count * 2, cudaMemcpyDeviceToHost));
  std::vector<float> x;
  for (u16 b : bits) {
    const u32 word = (u32)b << 16;
    float v;
    memcpy(&v, &word, 4);
    x.push_back(v);
  }
  return x;
}
static double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double apart = 0, size = 0;
  for (size_t i = 0; i < a.size(); i++) apart += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
  return std::sqrt(apart / size);
}

int main(int argc, char** argv) {
  int sms;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  std::vector<u32> lengths_asked;
  for (int i = 1; i < argc; i++) lengths_asked.push_back((u32)atoi(argv[i]));
  if (lengths_asked.empty()) lengths_asked = {190};
  for (u32 length : lengths_asked) for (u32 batch : {1u, 8u, 16u, 24u, 32u, 48u, 64u, 128u}) {
    const u32 capacity = (length + 255) / 256 * 256 + 128;
    const size_t line = (size_t)capacity * D, own = batch * KV_HEADS * line;
    if (own * LAYERS * 4 > 60e9) continue;
    bf16 *keys = floats_of(own * LAYERS, 9, 1), *values = floats_of(own * LAYERS, 10, 1), *cosines = floats_of((size_t)capacity * D, 11, 1);
    bf16 *source = floats_of((size_t)batch * QKV, 4, 1), *projected = floats_of((size_t)batch * QKV, 5, 1), *turned = floats_of((size_t)batch * HEADS * D, 7, 1);
    bf16* mixed = floats_of((size_t)batch * HEADS * D, 8, 1);
    f32* scratch = device<f32>((size_t)batch * HEADS * 66 * (D + 2));
    u32* counters = device<u32>(4096);
    CHECK(cudaMemset(counters, 0, 4096 * 4));
    i64* lengths = device<i64>(batch);
    const std::vector<i64> same(batch, (i64)length);
    CHECK(cudaMemcpy(lengths, same.data(), batch * 8, cudaMemcpyHostToDevice));
    const u32 decode_blocks = batch * KV_HEADS, decode_splits = std::max(1u, std::min((capacity + 63) / 64, (u32)std::lround(2.0 * sms / decode_blocks)));
    const auto project_all = [&](cudaStream_t s) { go(s, project, (batch * QKV + 255) / 256, 256, 0, source, projected, (size_t)batch * QKV); };
    const auto rope = [&](cudaStream_t s, u32 l) {
      go(s, rope_append_bf16, (batch * QKV + 2047) / 2048, 256, 0, projected, projected + HEADS * D, projected + (HEADS + KV_HEADS) * D, cosines, cosines, nullptr, nullptr, lengths, nullptr,
         nullptr, nullptr, turned, keys + l * own, values + l * own, batch, 1, HEADS, KV_HEADS, D, D, 0, QKV, QKV, QKV, KV_HEADS * line, line, 0, 0, 0, 1e-6);
    };
    const auto decode = [&](cudaStream_t s, u32 l) {
      go(s, attention_decode_128_bf16, decode_blocks * decode_splits, 128, 69632, turned, keys + l * own, values + l * own, nullptr, nullptr, lengths, nullptr, mixed, scratch, counters, nullptr,
         batch, HEADS, KV_HEADS, 1, capacity, D, D, HEADS * D, D, HEADS * D, KV_HEADS * line, line, D, KV_HEADS * line, line, D, 0, 0, 0, 0, 0, 0.088, 0.0, 1, decode_splits);
    };
    const u32 items = batch * KV_HEADS, item_bytes = 2 * StepPlan<D>::SHARED, wave_bytes = (HEADS / KV_HEADS) * 4 * (D + 4);
    const auto step = [&](cudaStream_t s, u32 l, bool several) {
      const u32 splits = several ? 1 : std::max(1u, std::min((capacity + 16 * STEP_WAVES - 1) / (16 * STEP_WAVES), sms / items));
      const u32 shared = several ? STEPS_WAVES * 4 * D + 2 * (item_bytes + STEPS_WAVES * wave_bytes) : item_bytes + STEP_WAVES * wave_bytes;
      go(s, several ? attention_steps_128_bf16 : attention_step_128_bf16, several ? std::min(items, (u32)sms * STEPS_CROWD) : items * splits, 32 * (several ? STEPS_WAVES : STEP_WAVES), shared,
         projected, projected + HEADS * D, projected + (HEADS + KV_HEADS) * D, cosines, cosines, nullptr, nullptr, nullptr, lengths, nullptr, mixed, nullptr, keys + l * own, values + l * own, scratch,
         counters, batch, HEADS, KV_HEADS, capacity, QKV, QKV, QKV, KV_HEADS * line, line, 0, 1e-6, 0.088, 0, splits, 0);
    };
    const double bytes = 4.0 * batch * KV_HEADS * length * D;
    // Beside what comes before: the time of both less that of the projection alone.
    const auto time = [&](const std::function<void(cudaStream_t, u32)>& run, bool behind) {
      return median_of_graph([&](cudaStream_t s) {
        for (u32 l = 0; l < LAYERS; l++) {
          if (behind) project_all(s);
          if (run) run(s, l);
        }
      }, 7) / LAYERS;
    };
    project_all(0), rope(0, 0), decode(0, 0);
    CHECK(cudaDeviceSynchronize());
    const std::vector<float> wanted = read(mixed, (size_t)batch * HEADS * D), row = read(keys + (length - 1) * D, D);
    const float before = time(nullptr, true);
    const float two = time([&](cudaStream_t s, u32 l) { rope(s, l), decode(s, l); }, true) - before;
    printf("%3u sequences of %u: rope %.2f, decode %.2f alone; both behind the projection %.2f (%.2f TB/s), projection %.2f\n", batch, length, time(rope, false), time(decode, false), two,
           bytes / two * 1e-6, before);
    for (const bool several : {false, true}) {
      CHECK(cudaMemset(mixed, 0xff, (size_t)batch * HEADS * D * 2));
      CHECK(cudaMemset(keys + (length - 1) * D, 0xff, D * 2));
      step(0, 0, several);
      CHECK(cudaDeviceSynchronize());
      const double wrong = difference(read(mixed, (size_t)batch * HEADS * D), wanted), wrong_key = difference(read(keys + (length - 1) * D, D), row);
      const auto run = [&](cudaStream_t s, u32 l) { step(s, l, several); };
      const float alone = time(run, false), behind = time(run, true) - before;
      printf("      %s: alone %.2f, behind the projection %.2f (%.2f TB/s)  %s%.0e %.0e\n", several ? "several kv heads to a block" : "one", alone, behind, bytes / behind * 1e-6,
             wrong < 6e-3 && wrong_key == 0 ? "" : "WRONG ", wrong, wrong_key);
    }
    for (void* p : {(void*)keys, (void*)values, (void*)cosines, (void*)source, (void*)projected, (void*)turned, (void*)mixed, (void*)scratch, (void*)counters, (void*)lengths}) CHECK(cudaFree(p));
  }
}
