// Products of many rows with weights of Q8_0 or Q4_0 by boxes (quant-tiles) beside those without (quant-wide) on a Hopper
// card: µs of the product alone, and errors; of the largest, at last, both for half a second each, which lowers the card's clock.
//
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a quant-wide quant-tiles quant-blocks linear quant-matvec) -DTYPE=q4_0 -DGPU_ONLY -DGPU_ONLY_q4_0 -DGPU_ONLY_bf16 -DGPU_ONLY_f32 bench/gpu/quant-tiles.cu -o quant-tiles
//
// Weights are rotated through copies, so that the cache serves none of them; 28672 rows of them have a gate, 4096 a residual.
#include "boxes.h"
#include "quant-blocks.hip"
#include "quant-wide.hip"
#include "quant-tiles.hip"
typedef TYPE Q;
// Results of some rows and what dequantized weights give, a thread each: {Σ difference², Σ wanted²}.
static __global__ void compare(const bf16* y, const f32* w, const bf16* x, const bf16* residual, size_t from, size_t rows, size_t columns, size_t k, bool gate, double* sums) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * columns) return;
  const size_t row = from + i / columns, column = i % columns;
  double sum[2] = {0, 0};
  for (int h = 0; h <= gate; h++)
    for (size_t j = 0; j < k; j++) sum[h] += (double)w[(column + h * columns) * k + j] * (double)widen(x[row * k + j]);
  double wanted = gate ? sum[0] / (1 + exp(-sum[0])) * sum[1] : sum[0];
  if (residual) wanted += widen(residual[row * columns + column]);
  const double difference = (double)widen(y[row * columns + column]) - wanted;
  atomicAdd(sums, difference * difference);
  atomicAdd(sums + 1, wanted * wanted);
}
// As planShares of src/backend/gpu/families/quant-wide.ts.
struct Plan {
  u32 alone, sharers, blocks;
};
static Plan plan_of(u32 tiles, u32 chunks, u32 wanted) {
  Plan best{tiles, 0, std::min(wanted, tiles)};
  double least = (double)((tiles + wanted - 1) / wanted) * chunks;
  for (u32 cuts : {2, 4, 8}) {
    const u32 blocks = cuts * tiles;
    if (blocks > wanted || 2 * cuts > chunks) break;
    const double joined = (double)((chunks + cuts - 1) / cuts) + 2;
    if (joined < least) least = joined, best = Plan{0, blocks, blocks};
  }
  const u32 left = tiles % wanted;
  if ((double)tiles * chunks / wanted + 3 < least) {
    const u32 sharers = std::min(wanted, std::max(left, left * chunks / 2));
    best = Plan{tiles - left, sharers, tiles > left ? wanted : sharers};
  }
  return best;
}
int main(int argc, char** argv) {
  double* sums = device<double>(2);
  const std::string name = TEXT(TYPE);
  int sms;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  const u32 way = name == "q8_0" ? QUANT_ORDER_q8_0 : QUANT_ORDER_q4_0, piece = 256 / Q::Elements * Q::Bytes;
  const int wide_bytes = 2 * 256 * QUANT_WIDE_CHUNK + 64 + 144 + 256 * 16 * ((piece + 15) / 16 | 1);
  const int tile_bytes = 2 * 256 * 256 + 2 * 128 * piece + 12 * 32 * 24 * 2 + 16 * 6 + 16;
  const auto wide = JOIN(quant_wide_, TYPE, );
  const auto tiles = JOIN(quant_tiles_, TYPE, );
  CHECK(cudaFuncSetAttribute((const void*)wide, cudaFuncAttributeMaxDynamicSharedMemorySize, wide_bytes));
  CHECK(cudaFuncSetAttribute((const void*)tiles, cudaFuncAttributeMaxDynamicSharedMemorySize, tile_bytes));
  u32* counters = device<u32>(4096);
  CHECK(cudaMemset(counters, 0, 4096 * 4));
  f32* parts = device<f32>((size_t)4 * sms * 128 * 256);
  const struct { size_t n, k; } shapes[] = {{4096, 4096}, {6144, 4096}, {4096, 14336}, {28672, 4096}};
  for (const auto& s : shapes) {
    const size_t n = s.n, k = s.k, blocks = n * k / Q::Elements, size = blocks * Q::Bytes, most = 2048;
    const u32 glu = n == 28672 ? 1 : 0;
    const size_t columns = glu ? n / 2 : n;
    const int copies = (int)(((size_t)120 << 20) / size) + 2;
    std::vector<u8*> w(copies);
    std::vector<CUtensorMap> maps;
    for (int c = 0; c < copies; c++) {
      w[c] = device<u8>(size);
      fill_bytes<<<4096, 256>>>(w[c], size, 17u * c + 3);
      fill_scales<<<(unsigned)(blocks / 256 + 1), 256>>>(w[c], blocks, Q::Bytes, 0);
      maps.push_back(map_of(w[c], n, k / 256, piece, glu ? 2 : 1, 128));
    }
    BoxMap* map = device<BoxMap>(maps.size());
    CHECK(cudaMemcpy(map, maps.data(), maps.size() * 128, cudaMemcpyHostToDevice));
    f32* dense = device<f32>(n * k);
    JOIN(dequantize_block_, TYPE, _f32)<<<(unsigned)(n * k / (QUANT_CHUNK * 8)), 256>>>(w[0], dense, n * k);
    bf16 *x = device<bf16>(most * k), *ordered = device<bf16>(most * (k + 2)), *y = device<bf16>(most * columns), *added = device<bf16>(most * columns);
    fill_floats<bf16><<<1024, 256>>>(x, most * k, 1, 0.05f);
    fill_floats<bf16><<<1024, 256>>>(added, most * columns, 5, 1.0f);
    const bf16* residual = n == 4096 ? added : nullptr;
    for (size_t rows : {1024, 512, 1000, 2048}) {
      const u32 chunks = (u32)k / 256, threads = std::max(128u, ((u32)k / 8 / std::max(2u, ((u32)k / 8 + 1023) / 1024) + 31) / 32 * 32);
      early(0, quant_order_bf16, (u32)(rows + 7) / 8 * 8, threads, 0, (const bf16*)x, (const bf16*)nullptr, (void*)ordered, (u32)rows, (u32)k, 256u, way, 0.0);
      const auto run = [&](cudaStream_t stream, int c, bool boxed) {
        const u32 across = (u32)(rows + 255) / 256;
        const Plan p = plan_of((u32)((n + 127) / 128) * across, chunks, sms);
        if (boxed)
          early(stream, tiles, p.blocks, QUANT_TILES_THREADS, tile_bytes, (const void*)ordered, (const u8*)w[c], (const BoxMap*)(map + c), (const void*)nullptr, (const void*)residual, (void*)y, parts,
                counters, n, k, (u32)rows, glu, p.alone, p.sharers, (u32)DTYPE_bf16);
        else
          early(stream, wide, p.blocks, 256, wide_bytes, (const void*)ordered, (const u8*)w[c], (const void*)nullptr, (const void*)residual, (void*)y, parts, counters, n, k, (u32)rows, glu, p.alone,
                p.sharers, (u32)DTYPE_bf16, 0u, 1.0, 0.0);
      };
      printf("%s %5zu x %5zu, %4zu rows:", TEXT(TYPE), n, k, rows);
      for (bool boxed : {false, true}) {
        CHECK(cudaMemset(y, 0xee, rows * columns * 2));
        run(0, 0, boxed);
        double found[2] = {0, 0};
        CHECK(cudaMemcpy(sums, found, sizeof found, cudaMemcpyHostToDevice));
        for (size_t from : {(size_t)0, (size_t)252, rows - 8}) compare<<<(unsigned)(8 * columns / 256), 256>>>(y, dense, x, residual, from, 8, columns, k, glu, sums);
        CHECK(cudaMemcpy(found, sums, sizeof found, cudaMemcpyDeviceToHost));
        const float us = median_of_graph([&](cudaStream_t stream) {
          for (int c = 0; c < copies; c++) run(stream, c, boxed);
        }, 5) / copies;
        printf(" %s %6.1f us %3.0f TFLOP/s (%.1e)", boxed ? "tiles" : "wide", us, 2e-6 * rows * n * k / us, std::sqrt(found[0] / found[1]));
        fflush(stdout);
      }
      if (n == 28672 && rows == 1024)
        for (bool boxed : {false, true, false, true}) {
          cudaEvent_t from, to;
          CHECK(cudaEventCreate(&from));
          CHECK(cudaEventCreate(&to));
          for (int i = 0; i < 1200; i++) {
            if (i == 600) CHECK(cudaEventRecord(from));
            run(0, i % copies, boxed);
          }
          CHECK(cudaEventRecord(to));
          CHECK(cudaEventSynchronize(to));
          float ms;
          CHECK(cudaEventElapsedTime(&ms, from, to));
          printf(" %s for long %.1f", boxed ? "tiles" : "wide", ms / 600 * 1000);
        }
      printf("\n");
      fflush(stdout);
    }
    for (u8* p : w) CHECK(cudaFree(p));
    for (bf16* p : {x, ordered, y, added}) CHECK(cudaFree(p));
    CHECK(cudaFree(dense));
  }
}
