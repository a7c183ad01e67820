// Linear layers of 5 to 16 rows with weights of Q8_0 or Q4_0 by boxes (quant-even) on a Hopper card: times by warps, cuts and shares, the best
// first, of x that lies in order, that blocks lift, and behind the kernel that brings it into order; and errors. At last a layer after another
// as an 8B Llama has them, each with weights of its own. In bf16: step.cu has layers in f16.
//
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a quant-even quant-blocks linear quant-matvec) -DTYPE=q4_0 -DGPU_ONLY -DGPU_ONLY_q4_0 -DGPU_ONLY_f32 -DGPU_ONLY_bf16 bench/gpu/quant-even.cu -o quant-even
//
// Weights are rotated through copies, so that the cache serves none of them; 28672 rows of them have a gate.
#include "boxes.h"
#include "quant-blocks.hip"
#include "quant-even.hip"

typedef TYPE Q;
constexpr u32 DEPTH = 256, LINES = 16, BYTES = DEPTH / Q::Elements * Q::Bytes, STEP = 61;

// x in order with its bits as they are.
static __global__ void order_bits(const bf16* x, u16* out, u32 rows, u32 k, u32 order) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x, row = i / k, column = i % k;
  if (row < rows) *OrderedRows{out, nullptr, 1, order, k, rows}.place(row, column, ordered_to(column % DEPTH, order)) = x[i].bits;
}
// Results of every STEP-th row of w and the plain product of dequantized weights, a thread each: {Σ difference², Σ wanted²}.
static __global__ void compare(const bf16* y, const f32* w, const bf16* x, size_t rows, size_t n, size_t k, double* sums) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, line = i / rows * STEP, row = i % rows;
  if (line >= n) return;
  double sum = 0;
  for (size_t j = 0; j < k; j++) sum += (double)w[line * k + j] * (double)widen(x[row * k + j]);
  const double difference = (double)widen(y[row * n + line]) - sum;
  atomicAdd(sums, difference * difference);
  atomicAdd(sums + 1, sum * sum);
}

enum Way { ORDERED, LIFTED, BEHIND, NORMED, WAYS };
static const char* const names[] = {"in order", "lifted", "ordered", "normed"};
struct Plan {
  float time;
  Way way;
  u32 warps, cuts, shares, bytes;
};
struct Shape {
  size_t n, k;
  bool glu;
};
static const Shape shapes[] = {{6144, 4096, false}, {4096, 4096, false}, {28672, 4096, true}, {4096, 14336, false}, {128256, 4096, false}};
static const u32 order_of = QuantSlice<Q>::ORDER;
static u32* counters;
static f32* parts;
static bf16 *x, *alpha, *y;
static u16 *ordered, *bits;

static void go(cudaStream_t stream, const Shape& s, const Plan& p, const u8* w, const BoxMap* map, u32 rows, bool glu, const void* residual) {
  const u32 height = rows > 8 ? 16 : 8;
  if (p.way >= BEHIND)
    early(stream, even_order_bf16, height, (u32)s.k / 8, 0, (const bf16*)x, (const bf16*)(p.way == NORMED ? alpha : nullptr), (void*)ordered, rows, (u32)s.k, order_of, 1e-5);
  early(stream, rows > 8 ? JOIN(quant_even_any_16_, TYPE, ) : JOIN(quant_even_any_8_, TYPE, ), p.shares * p.cuts, p.warps * 32, p.bytes, (const void*)(p.way == LIFTED ? bits : ordered), w, map, (const void*)nullptr,
        residual, (void*)y, parts, counters, (u16*)nullptr, (const u16*)nullptr, s.n, s.k, rows, glu ? (u32)GLU_silu : 0u, p.cuts, (u32)DTYPE_bf16, 0u, (u32)(p.way == LIFTED), 0u, 1.0, 1.0, 0.0);
}

int main() {
  int sms;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  for (const auto kernel : {JOIN(quant_even_any_16_, TYPE, ), JOIN(quant_even_any_8_, TYPE, )}) CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 226 * 1024));
  double* sums = device<double>(2);
  counters = device<u32>(65536), parts = device<f32>((size_t)16 * 16 * 28672);
  CHECK(cudaMemset(counters, 0, 65536 * 4));
  x = device<bf16>(16 * 14336), alpha = device<bf16>(14336), y = device<bf16>((size_t)16 * 128256), ordered = device<u16>(16 * 14338 + 64), bits = device<u16>(16 * 14338 + 64);
  fill_floats<bf16><<<1024, 256>>>(x, 16 * 14336, 1, 1.0f);
  fill_floats<bf16><<<64, 256>>>(alpha, 14336, 5, 1.0f);
  Plan best[5][WAYS];
  for (int si = 0; si < 5; si++) {
    const Shape& s = shapes[si];
    const size_t n = s.n, k = s.k, blocks = n * k / Q::Elements, size = blocks * Q::Bytes;
    const int copies = (int)(((size_t)150 << 20) / size) + 1;
    std::vector<u8*> w(copies);
    BoxMap* const maps = device<BoxMap>(copies + 1);
    for (int c = 0; c <= copies; c++) {
      if (c < copies) {
        w[c] = device<u8>(size);
        fill_bytes<<<4096, 256>>>(w[c], size, 17u * c + 3);
        fill_scales<<<(unsigned)(blocks / 256 + 1), 256>>>(w[c], blocks, Q::Bytes, 0);
      }
      // The last is of the first without a gate.
      const CUtensorMap map = map_of(w[c % copies], n, k / DEPTH, BYTES, s.glu && c < copies ? 2 : 1, LINES);
      CHECK(cudaMemcpy(maps + c, &map, sizeof map, cudaMemcpyHostToDevice));
    }
    f32* const dense = device<f32>(n * k);
    JOIN(dequantize_block_, TYPE, _f32)<<<(unsigned)(n * k / (QUANT_CHUNK * 8)), 256>>>(w[0], dense, n * k);
    order_bits<<<(unsigned)(k * 16 / 256), 256>>>(x, bits, 16, (u32)k, order_of);
    const u32 groups = (u32)(n / LINES), pieces = (u32)(k / DEPTH);
    printf("%s %zu x %zu:\n", TEXT(TYPE), n, k);
    for (int way = 0; way < WAYS; way++) {
      if (way >= BEHIND && k > 8 * QUANT_ORDER_BLOCK) {
        best[si][way] = best[si][LIFTED];
        continue;
      }
      std::vector<Plan> plans;
      for (u32 cuts = 1; cuts <= 8 && cuts <= pieces; cuts++)
        for (u32 warps : {8u, 12u, 16u}) {
          const u32 most = (pieces + cuts - 1) / cuts, bytes = most * (16 * DEPTH * 2 + 8) + 64 * (1 + QUANT_EVEN_WARPS) + 8 + warps * QUANT_EVEN_PLACES * (LINES * BYTES + 8);
          if (bytes > 226 * 1024 || (n > 20000 && cuts > 2)) continue;
          Plan plan{0, (Way)way, warps, cuts, std::min(groups, sms / cuts), std::max(bytes, 227u * 512)};
          plan.time = median_of_graph([&](cudaStream_t stream) {
                        for (int i = 0; i < 2 * copies; i++) go(stream, s, plan, w[i % copies], maps + i % copies, 16, s.glu, nullptr);
                      }, 5) / (2 * copies);
          plans.push_back(plan);
        }
      std::sort(plans.begin(), plans.end(), [](const Plan& a, const Plan& b) { return a.time < b.time; });
      best[si][way] = plans[0];
      printf("  %-8s", names[way]);
      for (size_t i = 0; i < plans.size() && i < 4; i++) printf("  %.1f us (%u warps, %u cuts, %u shares)", plans[i].time, plans[i].warps, plans[i].cuts, plans[i].shares);
      // What lies in order is what the kernel for it left there last.
      if (way == LIFTED || way == BEHIND) {
        CHECK(cudaMemset(y, 0xee, 16 * n * 2));
        CHECK(cudaMemset(sums, 0, 16));
        go(0, s, plans[0], w[0], maps + copies, 16, false, nullptr);
        compare<<<(unsigned)(16 * (n / STEP + 1) / 256 + 1), 256>>>(y, dense, x, 16, n, k, sums);
        double found[2];
        CHECK(cudaMemcpy(found, sums, sizeof found, cudaMemcpyDeviceToHost));
        printf("; error %.1e", std::sqrt(found[0] / found[1]));
      }
      printf("\n");
      fflush(stdout);
    }
    for (u8* p : w) CHECK(cudaFree(p));
    CHECK(cudaFree(dense));
    CHECK(cudaFree(maps));
  }
  constexpr int COUNT = 129;
  std::vector<u8*> w(COUNT);
  BoxMap* const maps = device<BoxMap>(COUNT);
  const auto shape_of = [](int i) { return i == COUNT - 1 ? 4 : i % 4; };
  for (int i = 0; i < COUNT; i++) {
    const Shape& s = shapes[shape_of(i)];
    const size_t blocks = s.n * s.k / Q::Elements, size = blocks * Q::Bytes;
    w[i] = device<u8>(size);
    fill_bytes<<<4096, 256>>>(w[i], size, 17u * i + 3);
    fill_scales<<<(unsigned)(blocks / 256 + 1), 256>>>(w[i], blocks, Q::Bytes, 0);
    const CUtensorMap map = map_of(w[i], s.n, s.k / DEPTH, BYTES, s.glu ? 2 : 1, LINES);
    CHECK(cudaMemcpy(maps + i, &map, sizeof map, cudaMemcpyHostToDevice));
  }
  // As models in f16 have them, and in bf16.
  const Way by[2][5] = {{ORDERED, ORDERED, ORDERED, ORDERED, ORDERED}, {NORMED, BEHIND, NORMED, LIFTED, NORMED}};
  for (int set = 0; set < 2; set++) {
    const float us = median_of_graph([&](cudaStream_t stream) {
      for (int i = 0; i < COUNT; i++) go(stream, shapes[shape_of(i)], best[shape_of(i)][by[set][shape_of(i)]], w[i], maps + i, 16, shapes[shape_of(i)].glu, i % 2 ? y : nullptr);
    }, 7);
    printf("%s, the products of a step%s: %.0f us\n", TEXT(TYPE), set ? " in bf16" : ", x in order", us);
  }
}
