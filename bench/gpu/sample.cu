// Choosing tokens on an NVIDIA GPU: checked against the CPU, then timed beside one read of the logits.
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a sample quant-matvec) bench/gpu/sample.cu -o sample && ./sample
#define GPU_ONLY
#define GPU_ONLY_bytes
#include "sample.hip"
#include "bench.h"

static __global__ void fill_logits(f32* p, size_t n) {
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
    f32 x = 0;
    for (u32 j = 0; j < 4; j++) x += (f32)(hash(i, 77 + j) >> 8) / 8388608.0f - 1.0f;
    p[i] = x * 2.5f + (hash(i, 5) % 5000 == 0 ? 6.0f : 0.0f);
  }
}
static __global__ void read_floats(const float4* p, size_t n, float* out) {
  float sum = 0;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) sum += p[i].x + p[i].y + p[i].z + p[i].w;
  if (sum == 1e30f) *out = sum;
}

struct Setting {
  const char* name;
  f64 temperature, top_p, min_p;
  u64 top_k, told;
  bool marks, mask;
};

static u64 stir(u64 x) {
  u64 z = x + 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// As row-sampler.ts chooses; no marks, no mask.
static u32 wanted(const f32* logits, size_t vocab, const Setting& s, u64 seed, u64 step) {
  const u32 best = (u32)(std::max_element(logits, logits + vocab) - logits);
  if (s.temperature == 0) return best;
  std::vector<f64> shares(vocab);
  std::vector<u32> order(vocab);
  for (size_t i = 0; i < vocab; i++) shares[i] = std::exp(((f64)logits[i] - logits[best]) / s.temperature), order[i] = (u32)i;
  size_t count = vocab;
  if (s.top_k || s.top_p < 1) {
    std::sort(order.begin(), order.end(), [&](u32 a, u32 b) { return shares[a] > shares[b] || (shares[a] == shares[b] && a < b); });
    const size_t most = s.top_k ? std::min((size_t)s.top_k, vocab) : vocab;
    f64 total = 0;
    for (size_t r = 0; r < most; r++) total += shares[order[r]];
    f64 missing = s.top_p < 1 ? total * s.top_p : INFINITY;
    for (count = 0; count < most && missing > 0; count++) missing -= shares[order[count]];
  }
  f64 left = 0;
  for (size_t r = 0; r < count; r++) left += shares[order[r]] >= s.min_p ? shares[order[r]] : 0;
  left *= (f64)(stir(seed + step * 0x9e3779b97f4a7c15ull) >> 11) * 1.1102230246251565e-16;
  for (size_t r = 0; r < count; r++) {
    left -= shares[order[r]] >= s.min_p ? shares[order[r]] : 0;
    if (left < 0) return order[r];
  }
  return order[count - 1];
}

int main() {
  const Setting settings[] = {
      {"greedy", 0, 1, 0, 0, 0, false, false},
      {"greedy, penalties", 0, 1, 0, 0, 0, true, false},
      {"greedy, mask", 0, 1, 0, 0, 0, false, true},
      {"greedy, logprob", 0, 1, 0, 0, 1, false, false},
      {"greedy, 20 logprobs", 0, 1, 0, 0, 21, false, false},
      {"temperature", 0.8, 1, 0, 0, 0, false, false},
      {"min-p", 0.8, 1, 0.05, 0, 0, false, false},
      {"top-k", 0.8, 1, 0, 40, 0, false, false},
      {"top-p", 0.8, 0.95, 0, 0, 0, false, false},
      {"top-k, top-p", 0.8, 0.95, 0, 40, 0, false, false},
      {"top-k, top-p, penalties", 0.8, 0.95, 0, 40, 0, true, false},
  };
  setvbuf(stdout, nullptr, _IONBF, 0);
  size_t vocab = 128256;
  const size_t most = 128, pieces = (vocab + SAMPLE_PIECE - 1) / SAMPLE_PIECE, checked = 8;
  const int steps = 3;
  f32* logits = device<f32>(most * vocab);
  fill_logits<<<4096, 256>>>(logits, most * vocab);
  std::vector<f32> first(checked * vocab);
  CHECK(cudaMemcpy(first.data(), logits, first.size() * 4, cudaMemcpyDeviceToHost));
  Slot* slots = device<Slot>(most);
  u32 *rows = device<u32>(most), *counts = device<u32>(most * SAMPLE_BINS), *tokens = device<u32>(most), *told = device<u32>(most * TOLD);
  u64 *best = device<u64>(most * pieces), *kept = device<u64>(most * pieces), *totals = device<u64>(most * pieces);
  u64 *sums = device<u64>(most * SAMPLE_BINS), *tops = device<u64>(most * pieces * SAMPLE_TOPS);
  u16* bins = device<u16>(most * pieces * SAMPLE_PIECE);
  u32 *marks = device<u32>(most * vocab), *mask = device<u32>(most * ((vocab + 31) / 32));
  CHECK(cudaMemset(marks, 0, most * vocab * 4));
  f64 scale = std::ldexp(1.0, 63 - 17);
  std::vector<u32> ids(most);
  for (u32 i = 0; i < most; i++) ids[i] = most - 1 - i;
  CHECK(cudaMemcpy(rows, ids.data(), most * 4, cudaMemcpyHostToDevice));
  printf("%-26s", "us, rows of 128256");
  for (const u32 n : {1u, 8u, 64u, 128u}) printf("%8u", n);
  printf("    best   weigh    draw of 64   wrong\n%-26s", "one read of the logits");
  for (const u32 n : {1u, 8u, 64u, 128u})
    printf("%8.1f", median_of_graph([&](cudaStream_t st) { read_floats<<<528, 512, 0, st>>>((float4*)logits, n * vocab / 4, (float*)told); }));
  printf("\n");
  for (const Setting& s : settings) {
    std::vector<Slot> host(most);
    for (u32 i = 0; i < most; i++)
      host[i] = Slot{s.temperature, s.top_p, s.min_p, s.marks ? 1.1 : 1.0, 0, 0, s.top_k, 1000 + i, 0,
                     s.marks ? marks + i * vocab : nullptr, nullptr, s.mask ? mask + i * ((vocab + 31) / 32) : nullptr, s.told};
    CHECK(cudaMemcpy(slots, host.data(), most * sizeof(Slot), cudaMemcpyHostToDevice));
    u32 dtype = DTYPE_f32;
    const auto choose = [&](u32 n, cudaStream_t stream, u32 only = 7) {
      size_t stride = vocab;
      u32 each = n < 8 ? 1 : GPU_BLOCK / 32;
      void* a[] = {&logits, &slots, &rows, &best, &sums, &counts, &tops, &totals, &vocab, &stride, &dtype, &each};
      void* b[] = {&logits, &slots, &rows, &best, &sums, &counts, &bins, &kept, &vocab, &stride, &scale, &dtype};
      void* c[] = {&logits, &slots, &rows, &best, &sums, &counts, &bins, &kept, &tops, &totals, &tokens, &told, &vocab, &stride, &scale, &dtype};
      const unsigned blocks = (unsigned)(n * pieces), best_blocks = (unsigned)(n * ((pieces + each - 1) / each));
      if (only & 1) CHECK(cudaLaunchKernel((const void*)sample_best, dim3(best_blocks), dim3(GPU_BLOCK), a, 0, stream));
      if (only & 2) CHECK(cudaLaunchKernel((const void*)sample_weigh, dim3(blocks), dim3(GPU_BLOCK), b, 0, stream));
      if (only & 4) CHECK(cudaLaunchKernel((const void*)sample_draw, dim3(n), dim3(DRAW_BLOCK), c, 0, stream));
    };
    int wrong = 0;
    for (int step = 0; step < steps && !s.marks && !s.mask; step++) {
      choose(most, 0);
      std::vector<u32> got(most);
      CHECK(cudaMemcpy(got.data(), tokens, most * 4, cudaMemcpyDeviceToHost));
      for (size_t row = 0; row < checked; row++) {
        const u32 slot = ids[row];
        wrong += got[slot] != wanted(first.data() + row * vocab, vocab, s, 1000 + slot, step);
      }
    }
    printf("%-26s", s.name);
    for (const u32 n : {1u, 8u, 64u, 128u}) printf("%8.1f", median_of_graph([&](cudaStream_t stream) { choose(n, stream); }));
    for (const u32 only : {1u, 2u, 4u}) printf("%8.1f", median_of_graph([&](cudaStream_t stream) { choose(64, stream, only); }));
    printf("   %d of %d", wrong, (int)checked * steps);
    dtype = DTYPE_bf16;
    printf("   in bf16:%8.1f best of 64\n", median_of_graph([&](cudaStream_t stream) { choose(64, stream, 1); }));
  }
}
