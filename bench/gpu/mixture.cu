// A layer of a mixture of experts, decoding one token, as a recorded step runs it: how long it takes, how long without one of its
// kernels, and that kernel by itself; then with other numbers of warps and blocks for its products. Shape: Qwen3-30B-A3B in Q4_K.
//   mixture [KEYS]
//
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a quant-matvec quant-once quant-routed linear decode attention_decode attention_step attention_cluster experts) bench/gpu/mixture.cu -o mixture
#define GPU_ONLY
#define GPU_ONLY_q4_k
#define GPU_ONLY_bf16
#define GPU_ONLY_i64
#include "tile-plan.h"
#include "quant-matvec.hip"
#include "linear.hip"
#include "decode.hip"
#include "attention_decode.hip"
#include "attention_step.hip"
#include "attention_cluster.hip"
#include "experts.hip"
#include "quant-once.hip"
#include "quant-routed.hip"

constexpr u32 HIDDEN = 2048, HEADS = 32, KV_HEADS = 4, D = 128, EXPERTS = 128, CHOSEN = 8, WIDTH = 768, SETS = 8, LAYERS = 48, CAPACITY = 512;
constexpr u32 QKV = (HEADS + 2 * KV_HEADS) * D;
constexpr size_t Q4K(size_t n, size_t k) { return n * k / 256 * 144; }

static bool early_launches = true;
// Whether a kernel's multiprocessors have as much shared memory as they can, as Launch in src/backend/gpu/families/family.ts says it.
static bool crowds = false;
template <class... P, class... A> static void go(cudaStream_t stream, void (*kernel)(P...), u32 grid, u32 block, u32 shared, A... args) {
  if (shared > 48 * 1024) CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, crowds ? 100 : -1));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid), config.blockDim = dim3(block), config.dynamicSmemBytes = shared, config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute, config.numAttrs = early_launches ? 1 : 0;
  CHECK(cudaLaunchKernelEx(&config, kernel, (P)args...));
}

struct Weights {
  u8 *qkv, *o, *up, *down;
  bf16* router;
};
static Weights sets[SETS];
static bf16 *alpha, *x, *middle, *projected, *turned, *mixed, *keys, *values, *cosines, *scores, *gates_out;
static f32 *mix, *scratch;
static u32 *ids, *counters;
static i64* lengths;
static u64* error_word;

static u8* blocks_of(size_t bytes, u32 seed) {
  u8* p = device<u8>(bytes);
  fill_bytes<<<4096, 256>>>(p, bytes, seed);
  for (u32 offset : {0u, 2u}) fill_scales<<<(unsigned)(bytes / 144 / 256 + 1), 256>>>(p, bytes / 144, 144, offset);
  return p;
}
static bf16* floats_of(size_t count, u32 seed, f32 size) {
  bf16* p = device<bf16>(count);
  fill_floats<<<1024, 256>>>(p, count, seed, size);
  return p;
}

struct Step {
  const char* name;
  std::function<void(cudaStream_t, const Weights&)> run;
};

static TileLaunch plans[4];
static TileLaunch plan_q4k(size_t n, size_t k, u32 sms) { return plan_tiles<q4_k>(n, k, 1, sms); }

int main(int argc, char** argv) {
  int sms;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  const u32 length = argc > 1 ? (u32)atoi(argv[1]) : 320;
  for (u32 s = 0; s < SETS; s++) {
    sets[s] = Weights{blocks_of(Q4K(QKV, HIDDEN), s), blocks_of(Q4K(HIDDEN, HEADS * D), s + 10), blocks_of(Q4K((size_t)EXPERTS * 2 * WIDTH, HIDDEN), s + 20),
                      blocks_of(Q4K((size_t)EXPERTS * HIDDEN, WIDTH), s + 30), floats_of(EXPERTS * HIDDEN, s + 40, 0.05f)};
  }
  alpha = floats_of(HIDDEN, 1, 1.0f), x = floats_of(HIDDEN, 2, 1.0f), middle = floats_of(HIDDEN, 3, 1.0f), projected = floats_of(QKV, 4, 1.0f);
  turned = floats_of(HEADS * D, 7, 1), mixed = floats_of(HEADS * D, 8, 1);
  keys = floats_of(KV_HEADS * CAPACITY * D, 9, 1), values = floats_of(KV_HEADS * CAPACITY * D, 10, 1), cosines = floats_of(CAPACITY * D, 11, 1);
  scores = floats_of(EXPERTS, 12, 1), gates_out = floats_of(CHOSEN * WIDTH, 13, 1);
  mix = device<f32>(CHOSEN), scratch = device<f32>(HEADS * 66 * (D + 2)), ids = device<u32>(CHOSEN), counters = device<u32>(4096);
  CHECK(cudaMemset(counters, 0, 4096 * 4));
  CHECK(cudaMemset(ids, 0, CHOSEN * 4));
  lengths = device<i64>(1), error_word = device<u64>(4);
  const i64 wide_length = length;
  CHECK(cudaMemcpy(lengths, &wide_length, 8, cudaMemcpyHostToDevice));
  bf16* out = floats_of(HIDDEN, 15, 1);

  TileLaunch &q = plans[0] = plan_q4k(QKV, HIDDEN, sms), &o = plans[1] = plan_q4k(HIDDEN, HEADS * D, sms);
  // Of the gates as planSlots in src/backend/gpu/families/experts.ts has it: two blocks to a multiprocessor.
  TileLaunch &up = plans[2] = TileLaunch{256, 2, 24, 85296}, &sum = plans[3] = plan_q4k(HIDDEN, CHOSEN * 1024, sms);
  const auto tell = [](const char* name, const TileLaunch& l) { printf("%s: %u threads, %u splits, %u blocks, %u bytes\n", name, l.threads, l.splits, l.blocks, l.bytes); };
  tell("qkv", q), tell("o", o), tell("up", up), tell("down", sum);
  const u32 splits = std::min(CAPACITY / 64, 66u);

  const u32 parts = (CAPACITY + 16 * STEP_WAVES - 1) / (16 * STEP_WAVES), step_bytes = 2 * StepPlan<D>::SHARED + STEP_WAVES * 4 * StepPlan<D>::LEFT + STEP_STAGED * STEP_WAVES * 64 * D;
  // What the kernel of a step does in one launch, in two.
  const std::vector<Step> apart{
      {"rope", [&](cudaStream_t s, const Weights&) {
         go(s, rope_append_bf16, (QKV + 2047) / 2048, 256, 0, projected, projected + HEADS * D, projected + (HEADS + KV_HEADS) * D, cosines, cosines, alpha, alpha, lengths,
            nullptr, nullptr, nullptr, turned, keys, values, 1, 1, HEADS, KV_HEADS, D, D, 0, QKV, QKV, QKV, KV_HEADS * CAPACITY * D, CAPACITY * D, 0, 0, 0, 1e-6);
       }},
      {"attention", [&](cudaStream_t s, const Weights&) {
         go(s, attention_decode_128_bf16, KV_HEADS * splits, 128, 69632, turned, keys, values, nullptr, nullptr, lengths, nullptr, mixed, scratch, counters, nullptr, 1, HEADS, KV_HEADS, 1,
            CAPACITY, D, D, HEADS * D, D, HEADS * D, KV_HEADS * CAPACITY * D, CAPACITY * D, D, KV_HEADS * CAPACITY * D, CAPACITY * D, D, 0, 0, 0, 0, 0, 0.088, 0.0, 1, splits);
       }},
  };
  const std::vector<Step> steps{
      {"qkv", [&](cudaStream_t s, const Weights& w) {
         go(s, linear_q4_k_b1, q.blocks, q.threads, q.bytes, x, w.qkv, alpha, nullptr, nullptr, projected, QKV, HIDDEN, 1e-6, 1, 0, q.splits, HIDDEN, DTYPE_bf16);
       }},
      {"step", [&](cudaStream_t s, const Weights&) {
         go(s, attention_step_128_bf16, KV_HEADS * parts, 32 * STEP_WAVES, step_bytes, projected, projected + HEADS * D, projected + (HEADS + KV_HEADS) * D, cosines, cosines, alpha,
            alpha, nullptr, lengths, nullptr, mixed, nullptr, keys, values, scratch, counters, 1, HEADS, KV_HEADS, CAPACITY, QKV, QKV, QKV, KV_HEADS * CAPACITY * D, CAPACITY * D, 0, 1e-6, 0.088,
            0, parts, 0);
       }},
      {"o", [&](cudaStream_t s, const Weights& w) {
         go(s, linear_q4_k_b1, o.blocks, o.threads, o.bytes, mixed, w.o, nullptr, nullptr, x, middle, HIDDEN, HEADS * D, 0.0, 1, 0, o.splits, HEADS * D, DTYPE_bf16);
       }},
      {"router", [&](cudaStream_t s, const Weights& w) {
         go(s, linear_thin_bf16, EXPERTS, LINEAR_BLOCK, 0, middle, w.router, alpha, nullptr, nullptr, scores, EXPERTS, HIDDEN, 1e-6, 1, 0, 1);
       }},
      {"topk", [&](cudaStream_t s, const Weights&) { go(s, topk_bf16, 1, 256, 0, scores, mix, ids, 1, EXPERTS, CHOSEN, 1); }},
      {"up", [&](cudaStream_t s, const Weights& w) {
         go(s, expert_linear_q4_k, up.blocks * CHOSEN, up.threads, up.bytes, middle, w.up, alpha, ids, nullptr, gates_out, 2 * WIDTH, HIDDEN, 1e-6, up.blocks, CHOSEN, EXPERTS,
            GLU_silu, up.splits, 0, HIDDEN, DTYPE_bf16, error_word);
       }},
      {"down+mix", [&](cudaStream_t s, const Weights& w) {
         go(s, expert_sum_q4_k, sum.blocks, sum.threads, sum.bytes, gates_out, w.down, ids, mix, middle, out, HIDDEN, WIDTH, sum.blocks, CHOSEN, EXPERTS,
            sum.splits, 1, 8192, DTYPE_bf16, DTYPE_f32, error_word);
       }},
  };
  // The last three in two launches, as planRouted in src/backend/gpu/families/experts.ts has it, and projections with all weights on their way at once.
  const u32 open_bytes = 4 * (2 * (HIDDEN / 4 + 4) + HIDDEN / 16 + 128) + 6 * 16 * (HIDDEN / 256 * 144) + 4 * (16 * 12 + 48 + 12) + 4 * 64;
  const u32 down_bytes = 4 * (2 * (CHOSEN * WIDTH / 4 + 4) + 128) + CHOSEN * WIDTH / 2 + CHOSEN * 16 * (WIDTH / 256 * 144) + 4 * 16 * 8 + 4 * 64;
  // As clusterShared in src/backend/gpu/attention-plan.ts has it.
  const u32 cluster_bytes = 2 * (8 * (D + 32) + 2 * D) + 32 * (CLUSTER_WAVES * (D + 6) + D + 2 * STEP_CLUSTER) + 16;
  u8* packed = device<u8>(CHOSEN * WIDTH * 5 / 2);
  const auto once_bytes = [](u32 k, u32 groups, u32 warps) { return 2 * (k + 16) + k / 4 + 512 + groups * 16 * (k / 256 * 144 + 4 * ONCE_PITCH) + 4 * warps; };
  const std::vector<Step> routed{
      {"qkv once", [&](cudaStream_t s, const Weights& w) {
         crowds = true;
         go(s, linear_once_norm_q4_k, (QKV / 16 + 2) / 3, 384, once_bytes(HIDDEN, 3, 12), x, w.qkv, alpha, nullptr, nullptr, projected, QKV, HIDDEN, 1e-6, 4, DTYPE_bf16);
         crowds = false;
       }},
      {"cluster", [&](cudaStream_t s, const Weights&) {
         go(s, attention_cluster_128_bf16, KV_HEADS * STEP_CLUSTER, 32 * CLUSTER_WAVES, cluster_bytes, projected, projected + HEADS * D, projected + (HEADS + KV_HEADS) * D, cosines,
            cosines, alpha, alpha, nullptr, lengths, nullptr, mixed, nullptr, keys, values, nullptr, nullptr, 1, HEADS, KV_HEADS, CAPACITY, QKV, QKV, QKV, KV_HEADS * CAPACITY * D,
            CAPACITY * D, 0, 1e-6, 0.088, 0, 1, 0);
       }},
      {"o once", [&](cudaStream_t s, const Weights& w) {
         crowds = true;
         go(s, linear_once_q4_k, HIDDEN / 16, 512, once_bytes(HEADS * D, 1, 16), mixed, w.o, nullptr, nullptr, x, middle, HIDDEN, HEADS * D, 0.0, 16, DTYPE_bf16);
         crowds = false;
       }},
      {"open", [&](cudaStream_t s, const Weights& w) {
         go(s, routed_open_q4_k, 16 * CHOSEN, 384, open_bytes, middle, w.up, alpha, scores, packed, WIDTH, HIDDEN, 1e-6, 16, CHOSEN, EXPERTS, GLU_silu, 2, 1, DTYPE_bf16);
       }},
      {"down", [&](cudaStream_t s, const Weights& w) {
         go(s, routed_down_q4_k, HIDDEN / 16, 256, down_bytes, packed, w.down, scores, middle, out, HIDDEN, WIDTH, CHOSEN, EXPERTS, DTYPE_bf16);
       }},
  };
  CHECK(cudaDeviceSynchronize());
  const auto read = [](const bf16* p, size_t count) {
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
  };
  const auto difference = [](const std::vector<float>& a, const std::vector<float>& b) {
    double apart = 0, size = 0;
    for (size_t i = 0; i < a.size(); i++) apart += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
    return std::sqrt(apart / size);
  };
  for (const Step& step : apart) step.run(0, sets[0]);
  CHECK(cudaDeviceSynchronize());
  const std::vector<float> wanted = read(mixed, HEADS * D), row = read(keys + (length - 1) * D, D);
  CHECK(cudaMemset(mixed, 0xff, HEADS * D * 2));
  CHECK(cudaMemset(keys + (length - 1) * D, 0xff, D * 2));
  steps[1].run(0, sets[0]);
  CHECK(cudaDeviceSynchronize());
  printf("a step in one launch differs by %.1e, its key by %.1e\n", difference(read(mixed, HEADS * D), wanted), difference(read(keys + (length - 1) * D, D), row));
  CHECK(cudaMemset(mixed, 0xff, HEADS * D * 2));
  routed[1].run(0, sets[0]);
  CHECK(cudaDeviceSynchronize());
  printf("by clusters it differs by %.1e\n", difference(read(mixed, HEADS * D), wanted));
  for (const Step& step : steps) step.run(0, sets[0]);
  CHECK(cudaDeviceSynchronize());
  const std::vector<float> summed = read(out, HIDDEN);
  CHECK(cudaMemset(out, 0xff, HIDDEN * 2));
  const std::vector<float> attended = read(middle, HIDDEN), first = read(projected, QKV);
  CHECK(cudaMemset(middle, 0xff, HIDDEN * 2));
  CHECK(cudaMemset(projected, 0xff, QKV * 2));
  for (const Step& step : routed) step.run(0, sets[0]);
  CHECK(cudaDeviceSynchronize());
  printf("weights on their way at once: %.1e, %.1e\n", difference(read(projected, QKV), first), difference(read(middle, HIDDEN), attended));
  printf("experts in two launches differ by %.1e\n", difference(read(out, HIDDEN), summed));
  const auto time = [&](const std::function<bool(size_t)>& wanted) {
    return median_of_graph([&](cudaStream_t s) {
             for (u32 layer = 0; layer < LAYERS; layer++)
               for (size_t i = 0; i < steps.size(); i++) if (wanted(i)) steps[i].run(s, sets[layer % SETS]);
           }, 7) / LAYERS;
  };
  const float all_us = time([](size_t) { return true; });
  early_launches = false;
  const float waiting = time([](size_t) { return true; });
  early_launches = true;
  const float two_us = median_of_graph([&](cudaStream_t s) {
    for (u32 layer = 0; layer < LAYERS; layer++) for (const Step& step : apart) step.run(s, sets[layer % SETS]);
  }, 7) / LAYERS;
  printf("turning, appending and attention in two launches %.2f us\n", two_us);
  printf("%u keys: a layer %.2f us, without early launches %.2f us\n", length, all_us, waiting);
  for (size_t k = 0; k < steps.size(); k++)
    printf("  %-10s alone %5.2f us, gone %5.2f us\n", steps[k].name, time([&](size_t i) { return i == k; }), all_us - time([&](size_t i) { return i != k; }));
  const Step* const as_now[6] = {&routed[0], &routed[1], &routed[2], &steps[3], &routed[3], &routed[4]};
  const auto time_routed = [&](const std::function<bool(size_t)>& wanted) {
    return median_of_graph([&](cudaStream_t s) {
             for (u32 layer = 0; layer < LAYERS; layer++) {
               const Weights& w = sets[layer % SETS];
               for (size_t i = 0; i < 6; i++) if (wanted(i)) as_now[i]->run(s, w);
             }
           }, 7) / LAYERS;
  };
  const float now_us = time_routed([](size_t) { return true; });
  printf("as steps are recorded now: layer %.2f us\n", now_us);
  for (size_t k = 0; k < 6; k++)
    printf("  %-10s alone %5.2f us, gone %5.2f us\n", as_now[k]->name, time_routed([&](size_t i) { return i == k; }), now_us - time_routed([&](size_t i) { return i != k; }));
  for (size_t k = 1; k < steps.size(); k++) printf("  first %zu: %.2f us\n", k, time([&](size_t i) { return i < k; }));
  const u32 widths[4] = {HIDDEN, HEADS * D, HIDDEN, CHOSEN * 1024}, groups[4] = {QKV / 16, HIDDEN / 16, 2 * WIDTH / 16, HIDDEN / 16};
  const size_t places[4] = {0, 2, 5, 6};
  const auto need = [&](int p, u32 warps) { return widths[p] * 2 + widths[p] / 4 + 1024 + warps * (2 * 4864 + 4 * (64 + 8)); };
  for (int p = 0; p < 4; p++) plans[p].bytes = need(p, plans[p].threads / 32);
  printf("shared memory as needed: layer %.2f us\n", time([](size_t) { return true; }));
  for (int p = 0; p < 4; p++) {
    const TileLaunch before = plans[p];
    TileLaunch best = before;
    float least = 1e9;
    const u32 over = p == 2 ? 16 : 132, chunks = widths[p] / 512;
    for (u32 spread = 1; spread <= 2; spread++)
      for (u32 splits = 1; splits <= chunks && splits <= TILE_WARPS; splits *= 2)
        for (u32 together = 1; together * splits <= TILE_WARPS; together++) {
          const u32 warps = splits * together, all = (groups[p] + together - 1) / together, rounds = (all + over * spread - 1) / (over * spread);
          if (need(p, warps) * spread > 224 * 1024 || rounds > 3 || warps < 4) continue;
          plans[p] = TileLaunch{32 * warps, splits, (all + rounds - 1) / rounds, need(p, warps)};
          const float us = time([](size_t) { return true; });
          if (us < least) least = us, best = plans[p];
          if (us < all_us - 0.5f) printf("  %s: %u warps, %u splits, %u blocks, %u kB: layer %.2f us, alone %.2f\n", steps[places[p]].name, warps, splits, plans[p].blocks, plans[p].bytes / 1024,
                 us, time([&](size_t i) { return i == places[p]; }));
        }
    printf("%s best: %u threads, %u splits, %u blocks: %.2f us\n", steps[places[p]].name, best.threads, best.splits, best.blocks, least);
    plans[p] = best;
  }
  printf("all best: layer %.2f us\n", time([](size_t) { return true; }));
  for (int p = 0; p < 4; p++) plans[p].bytes = std::max(plans[p].bytes, 227u * 512);
  printf("all best, half of the memory each: layer %.2f us\n", time([](size_t) { return true; }));
  return 0;
}
