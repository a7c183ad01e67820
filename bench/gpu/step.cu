// Attention of a recorded step for several sequences between the products of weights in Q4_0 around it, in f16: µs for each of 32 layers, each
// with caches and weights of its own, of attention behind itself, of the products, and of all, which says what attention adds to a step.
// Up to 16 sequences have all four products of a layer (quant-even), by kernels that know what comes behind them and, in turns, by those
// that do not; more those before and behind attention (quant-wide). Results of attention are compared with those of two launches, one
// that turns heads and one that attends. Shape: an 8B Llama's.
//   step bSEQUENCES… KEYS…      (b16 b64 129 160 192)
//
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a quant-matvec decode attention_decode attention_step quant-even quant-wide) bench/gpu/step.cu -o step
//
// nvrtc, which models' kernels are compiled with, has longer addresses of shared memory: -Xcicc --sharedmem32=0 gives its code.
#define GPU_ONLY
#define GPU_ONLY_f16
#define GPU_ONLY_q4_0
#include "boxes.h"
#include "decode.hip"
#include "attention_decode.hip"
#include "attention_step.hip"
#include "quant-even.hip"
#include "quant-wide.hip"

constexpr u32 HEADS = 32, KV_HEADS = 8, D = 128, LAYERS = 32, QKV = (HEADS + 2 * KV_HEADS) * D, K = 4096, WIDTH = 14336;
typedef f16 T;
static T* floats_of(size_t count, u32 seed, f32 size) {
  T* p = device<T>(count);
  fill_floats<<<1024, 256>>>(p, count, seed, size);
  return p;
}
static std::vector<float> read(const T* p, size_t count) {
  std::vector<u16> bits(count);
  CHECK(cudaMemcpy(bits.data(), p, count * 2, cudaMemcpyDeviceToHost));
  std::vector<float> x;
  for (u16 b : bits) {
    const int e = b >> 10 & 31, m = b & 1023;
    float v = e == 31 ? NAN : e ? std::ldexp(1024.0f + m, e - 25) : std::ldexp((float)m, -24);
    x.push_back(b >> 15 ? -v : v);
  }
  return x;
}
static double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double apart = 0, size = 0;
  for (size_t i = 0; i < a.size(); i++) apart += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
  return std::sqrt(apart / size);
}
template <class... P, class... A> static void go(cudaStream_t stream, void (*kernel)(P...), u32 grid, u32 block, u32 shared, A... args) {
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
  early(stream, kernel, grid, block, shared, (P)args...);
}
// What rows of x in order are multiplied with.
static __global__ void ones(f32* p, u32 n) { if (threadIdx.x < n) p[threadIdx.x] = 1; }

// As planQuantEven in src/backend/gpu/families/quant-even.ts has them for up to 16 rows on 132 multiprocessors.
struct Product {
  size_t n, k;
  bool glu;
  u32 warps, cuts, bytes;
  decltype(&quant_even_any_16_q4_0) kernel;
};
enum { OUT, GATE, DOWN, IN };
static const Product layers[] = {{K, K, false, 8, 1, 169288, quant_even_add_16_q4_0},
                                 {2 * WIDTH, K, true, 12, 1, 187784, quant_even_gate_16_q4_0},
                                 {K, WIDTH, false, 12, 4, 171384, quant_even_add_16_q4_0},
                                 {QKV, K, false, 8, 1, 169288, quant_even_plain_16_q4_0}};

int main(int argc, char** argv) {
  int sms;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  std::vector<u32> batches, keys_asked;
  for (int i = 1; i < argc; i++) (argv[i][0] == 'b' ? batches : keys_asked).push_back((u32)atoi(argv[i] + (argv[i][0] == 'b')));
  // In the order of a layer from attention on.
  size_t offsets[5] = {0};
  for (int i = 0; i < 4; i++) offsets[i + 1] = offsets[i] + layers[i].n * layers[i].k / 32 * 18;
  const size_t layer_bytes = offsets[4];
  u8* weights = device<u8>(layer_bytes * LAYERS);
  fill_bytes<<<4096, 256>>>(weights, layer_bytes * LAYERS, 3);
  fill_scales<<<(unsigned)(layer_bytes * LAYERS / 18 / 256 + 1), 256>>>(weights, layer_bytes * LAYERS / 18, 18, 0);
  BoxMap* maps = device<BoxMap>(4 * LAYERS);
  for (u32 i = 0; i < 4 * LAYERS; i++) {
    const Product& p = layers[i % 4];
    const CUtensorMap map = map_of(weights + i / 4 * layer_bytes + offsets[i % 4], p.n, p.k / 256, 144, p.glu ? 2 : 1, 16);
    CHECK(cudaMemcpy(maps + i, &map, sizeof map, cudaMemcpyHostToDevice));
  }
  for (u32 batch : batches) for (u32 length : keys_asked) {
    const u32 capacity = (length + 63) / 64 * 64 + 64;
    const size_t line = (size_t)capacity * D, own = batch * KV_HEADS * line;
    if (own * LAYERS * 4 > 60e9) continue;
    T *keys = floats_of(own * LAYERS, 9, 1), *values = floats_of(own * LAYERS, 10, 1), *cosines = floats_of((size_t)capacity * D, 11, 1);
    T *projected = floats_of((size_t)batch * QKV, 5, 1), *turned = floats_of((size_t)batch * HEADS * D, 7, 1), *other = floats_of((size_t)batch * QKV, 5, 1);
    T *mixed = floats_of((size_t)batch * HEADS * D, 8, 1), *y = floats_of((size_t)batch * K, 8, 1);
    // What each product takes, in order, with squares of each 16 columns behind it where a norm comes before.
    u16* x[5] = {};
    for (int i = 0; i < 4; i++) x[i] = (u16*)floats_of(64 * (layers[i].k + 64), 4, 0.02f);
    ones<<<1, 64>>>((f32*)(x[IN] + (size_t)((batch + 7) / 8 * 8) * K), 64);
    T *before = floats_of((size_t)batch * K, 8, 1), *middle = floats_of((size_t)batch * K, 8, 1), *opened = floats_of((size_t)batch * WIDTH, 8, 1), *alpha = floats_of(K, 21, 1);
    const std::vector<T*> outs{middle, opened, y, projected}, residuals{before, nullptr, middle, nullptr};
    f32 *scratch = device<f32>((size_t)batch * HEADS * 66 * (D + 2)), *parts = device<f32>((size_t)600 * 128 * 64);
    u32* counters = device<u32>(4096);
    CHECK(cudaMemset(counters, 0, 4096 * 4));
    i64* lengths = device<i64>(batch);
    const std::vector<i64> same(batch, (i64)length);
    CHECK(cudaMemcpy(lengths, same.data(), batch * 8, cudaMemcpyHostToDevice));
    const u32 decode_blocks = batch * KV_HEADS, decode_splits = std::max(1u, std::min((capacity + 63) / 64, (u32)std::lround(2.0 * sms / decode_blocks)));
    // As their plans have them for these shapes.
    bool knows = true;
    const auto product = [&](cudaStream_t s, u32 l, int i) {
      const Product& p = layers[i];
      const u8* w = weights + l * layer_bytes + offsets[i];
      const bool told = i == GATE || i == IN, tells = i == OUT || i == DOWN;
      if (batch <= 16)
        return go(s, knows ? p.kernel : quant_even_any_16_q4_0, sms / p.cuts * p.cuts, 32 * (p.warps + told), p.bytes, x[i], w, maps + 4 * l + i, nullptr, residuals[i], outs[i], parts, counters, x[i + 1],
                  tells ? alpha : nullptr, p.n, p.k, batch, p.glu ? GLU_silu : 0, p.cuts, DTYPE_f16, QUANT_ORDER_q4_0, 1, told ? K / 16 : 0, 1.0, 1.0, 1e-5);
      if (i == GATE || i == DOWN) return;
      const u32 height = batch > 32 ? 64 : 32, blocks = i == OUT ? 256 : 192;
      go(s, batch > 32 ? quant_wide_64_q4_0 : quant_wide_32_q4_0, blocks, 256, 2 * (2 * height * 256 + 64) + 144 + 36864 + 256, x[i], w, nullptr, nullptr, i == OUT ? y : projected, parts, counters, p.n, p.k,
         batch, 0, 0, blocks, DTYPE_f16, 0, 1.0, 0.0);
    };
    const auto rope = [&](cudaStream_t s, u32 l) {
      go(s, rope_append_f16, (batch * QKV + 2047) / 2048, 256, 0, other, other + HEADS * D, other + (HEADS + KV_HEADS) * D, cosines, cosines, nullptr, nullptr, lengths, nullptr,
         nullptr, nullptr, turned, keys + l * own, values + l * own, batch, 1, HEADS, KV_HEADS, D, D, 0, QKV, QKV, QKV, KV_HEADS * line, line, 0, 0, 0, 1e-6);
    };
    const auto decode = [&](cudaStream_t s, u32 l) {
      go(s, attention_decode_128_f16, decode_blocks * decode_splits, 128, 69632, turned, keys + l * own, values + l * own, nullptr, nullptr, lengths, nullptr, mixed, scratch, counters, nullptr,
         batch, HEADS, KV_HEADS, 1, capacity, D, D, HEADS * D, D, HEADS * D, KV_HEADS * line, line, D, KV_HEADS * line, line, D, 0, 0, 0, 0, 0, 0.088, 0.0, 1, decode_splits);
    };
    const u32 items = batch * KV_HEADS, heads = HEADS / KV_HEADS;
    const auto step = [&](cudaStream_t s, u32 l, T* from) {
      const bool several = items > (u32)sms;
      const u32 item = 2 * StepPlan<D>::SHARED, wave = 4 * StepPlan<D>::LEFT, splits = several ? 1 : std::max(1u, std::min((capacity + 16 * STEP_WAVES - 1) / (16 * STEP_WAVES), sms / items));
      const u32 blocks = several ? std::min(items, (u32)sms * STEPS_CROWD / KV_HEADS * KV_HEADS) : items * splits, threads = 32 * (several ? STEPS_WAVES : STEP_WAVES);
      const u32 shared = several ? STEPS_WAVES * (4 * D + 16) + 256 + STEPS_WAVES * 2 * 16 * D * 2 + 2 * (item + STEPS_WAVES * wave) : item + STEP_WAVES * wave + (capacity > 16 * STEP_WAVES ? STEP_WAVES * 2 * 16 * D * 2 : 0);
      go(s, several ? attention_steps_128_f16 : attention_step_128_f16, blocks, threads, shared,
         from, from + HEADS * D, from + (HEADS + KV_HEADS) * D, cosines, cosines, nullptr, nullptr, nullptr, lengths, nullptr, mixed, (T*)x[OUT], keys + l * own, values + l * own, scratch,
         counters, batch, HEADS, KV_HEADS, capacity, QKV, QKV, QKV, KV_HEADS * line, line, 0, 1e-6, 0.088, 0, splits, QUANT_ORDER_q4_0);
    };
    const auto time = [&](bool products, bool attention) {
      return median_of_graph([&](cudaStream_t s) {
        for (u32 l = 0; l < LAYERS; l++) {
          if (attention) step(s, l, projected);
          for (int i = 0; products && i < 4; i++) product(s, l, i);
        }
      }, 9) / LAYERS;
    };
    rope(0, 0), decode(0, 0);
    CHECK(cudaDeviceSynchronize());
    const std::vector<float> wanted = read(mixed, (size_t)batch * HEADS * D), row = read(keys + (length - 1) * D, D);
    CHECK(cudaMemset(mixed, 0xff, (size_t)batch * HEADS * D * 2));
    CHECK(cudaMemset(keys + (length - 1) * D, 0xff, D * 2));
    step(0, 0, other);
    CHECK(cudaDeviceSynchronize());
    const double wrong = difference(read(mixed, (size_t)batch * HEADS * D), wanted), wrong_key = difference(read(keys + (length - 1) * D, D), row);
    const float alone = time(false, true), products = time(true, false), both = time(true, true);
    printf("%3u x %4u: alone %.2f  products %.2f  all %.2f  added %.2f  (copy %.2f)  %s%.0e %.0e\n", batch, length, alone, products, both, both - products, 4.0 * batch * KV_HEADS * length * D / 4.1e6,
           wrong < 3e-3 && wrong_key == 0 ? "" : "WRONG ", wrong, wrong_key);
    if (batch <= 16) {
      // Those that know what comes behind them, and those that do not.
      for (const bool known : {true, false}) {
        knows = known;
        printf("     %s: all %.2f ", known ? "known  " : "unknown", time(true, true));
        for (int i = 0; i < 4; i++)
          printf(" %zux%zu %.2f", layers[i].n, layers[i].k, median_of_graph([&](cudaStream_t s) { for (u32 l = 0; l < LAYERS; l++) product(s, l, i); }, 9) / LAYERS);
        printf("\n");
      }
      knows = true;
    }
    for (u16* p : {x[0], x[1], x[2], x[3]}) CHECK(cudaFree(p));
    for (void* p : {(void*)keys, (void*)values, (void*)cosines, (void*)projected, (void*)turned, (void*)other, (void*)mixed, (void*)y, (void*)before, (void*)middle, (void*)opened, (void*)alpha, (void*)scratch, (void*)parts, (void*)counters, (void*)lengths}) CHECK(cudaFree(p));
  }
}
