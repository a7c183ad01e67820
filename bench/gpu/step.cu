// Attention of a recorded step for several sequences between the products of weights in Q4_0 that are before and behind it, in f16: µs for
// each of 32 layers, each with caches and weights of its own, of attention behind itself, of both products, and of all, which says what
// attention adds to a step. Results are compared with those of two launches, one that turns heads and one that attends. Shape: an 8B Llama's.
//   step bSEQUENCES… KEYS…      (b16 b64 129 160 192)
//
//   nvcc -arch=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a quant-matvec decode attention_decode attention_step quant-even quant-wide) bench/gpu/step.cu -o step
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

constexpr u32 HEADS = 32, KV_HEADS = 8, D = 128, LAYERS = 32, QKV = (HEADS + 2 * KV_HEADS) * D, K = 4096;
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

int main(int argc, char** argv) {
  int sms;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  std::vector<u32> batches, keys_asked;
  for (int i = 1; i < argc; i++) (argv[i][0] == 'b' ? batches : keys_asked).push_back((u32)atoi(argv[i] + (argv[i][0] == 'b')));
  const size_t qkv_bytes = (size_t)QKV * K / 32 * 18, o_bytes = (size_t)K * K / 32 * 18;
  u8* weights = device<u8>((qkv_bytes + o_bytes) * LAYERS);
  fill_bytes<<<4096, 256>>>(weights, (qkv_bytes + o_bytes) * LAYERS, 3);
  fill_scales<<<(unsigned)((qkv_bytes + o_bytes) * LAYERS / 18 / 256 + 1), 256>>>(weights, (qkv_bytes + o_bytes) * LAYERS / 18, 18, 0);
  BoxMap* maps = device<BoxMap>(2 * LAYERS);
  for (u32 l = 0; l < LAYERS; l++) {
    const CUtensorMap a = map_of(weights + l * (qkv_bytes + o_bytes), QKV, 16, 144, 1, 16), b = map_of(weights + l * (qkv_bytes + o_bytes) + qkv_bytes, K, 16, 144, 1, 16);
    CHECK(cudaMemcpy(maps + 2 * l, &a, sizeof a, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(maps + 2 * l + 1, &b, sizeof b, cudaMemcpyHostToDevice));
  }
  for (u32 batch : batches) for (u32 length : keys_asked) {
    const u32 capacity = (length + 63) / 64 * 64 + 64;
    const size_t line = (size_t)capacity * D, own = batch * KV_HEADS * line;
    if (own * LAYERS * 4 > 60e9) continue;
    T *keys = floats_of(own * LAYERS, 9, 1), *values = floats_of(own * LAYERS, 10, 1), *cosines = floats_of((size_t)capacity * D, 11, 1);
    T *projected = floats_of((size_t)batch * QKV, 5, 1), *turned = floats_of((size_t)batch * HEADS * D, 7, 1), *other = floats_of((size_t)batch * QKV, 5, 1);
    T *mixed = floats_of((size_t)batch * HEADS * D, 8, 1), *y = floats_of((size_t)batch * K, 8, 1);
    u16 *x = (u16*)floats_of(64 * (K + 64), 4, 0.02f), *ordered = (u16*)floats_of(64 * (K + 64), 4, 0.02f);
    ones<<<1, 64>>>((f32*)(x + (size_t)((batch + 7) / 8 * 8) * K), 64);
    f32 *scratch = device<f32>((size_t)batch * HEADS * 66 * (D + 2)), *parts = device<f32>((size_t)600 * 128 * 64);
    u32* counters = device<u32>(4096);
    CHECK(cudaMemset(counters, 0, 4096 * 4));
    i64* lengths = device<i64>(batch);
    const std::vector<i64> same(batch, (i64)length);
    CHECK(cudaMemcpy(lengths, same.data(), batch * 8, cudaMemcpyHostToDevice));
    const u32 decode_blocks = batch * KV_HEADS, decode_splits = std::max(1u, std::min((capacity + 63) / 64, (u32)std::lround(2.0 * sms / decode_blocks)));
    // As their plans have them for these shapes.
    const auto product = [&](cudaStream_t s, u32 l, bool second) {
      const u8* w = weights + l * (qkv_bytes + o_bytes) + (second ? qkv_bytes : 0);
      const size_t n = second ? K : QKV;
      T* to = second ? y : projected;
      if (batch <= 16) go(s, quant_even_16_q4_0, sms, 256, 168512, second ? ordered : x, w, maps + 2 * l + second, nullptr, nullptr, to, parts, counters, nullptr, n, K, batch, 0, 1, DTYPE_f16, 0, second);
      else {
        const u32 height = batch > 32 ? 64 : 32, blocks = second ? 256 : 192;
        go(s, batch > 32 ? quant_wide_64_q4_0 : quant_wide_32_q4_0, blocks, 256, 2 * (2 * height * 256 + 64) + 144 + 36864 + 256, second ? ordered : x, w, nullptr, nullptr, to, parts, counters, n, K, batch, 0, 0, blocks,
           DTYPE_f16, 0, 1.0, 0.0);
      }
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
         from, from + HEADS * D, from + (HEADS + KV_HEADS) * D, cosines, cosines, nullptr, nullptr, nullptr, lengths, nullptr, mixed, (T*)ordered, keys + l * own, values + l * own, scratch,
         counters, batch, HEADS, KV_HEADS, capacity, QKV, QKV, QKV, KV_HEADS * line, line, 0, 1e-6, 0.088, 0, splits, QUANT_ORDER_q4_0);
    };
    const auto time = [&](bool products, bool attention) {
      return median_of_graph([&](cudaStream_t s) {
        for (u32 l = 0; l < LAYERS; l++) {
          if (products) product(s, l, false);
          if (attention) step(s, l, projected);
          if (products) product(s, l, true);
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
    for (void* p : {(void*)keys, (void*)values, (void*)cosines, (void*)projected, (void*)turned, (void*)other, (void*)mixed, (void*)y, (void*)x, (void*)ordered, (void*)scratch, (void*)parts, (void*)counters, (void*)lengths}) CHECK(cudaFree(p));
  }
}
