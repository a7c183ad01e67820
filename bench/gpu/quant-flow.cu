// Products of 32 and 64 rows with weights of Q8_0 or Q4_0 by boxes (quant-flow, in each of its forms) beside those without (quant-wide) on a
// Hopper card, by how many blocks share a tile: the product alone, behind x brought into order, and that with a norm; and their errors.
//
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a quant-wide quant-flow quant-blocks linear quant-matvec) -DTYPE=q4_0 -DGPU_ONLY -DGPU_ONLY_q4_0 -DGPU_ONLY_bf16 -DGPU_ONLY_f32 bench/gpu/quant-flow.cu -o quant-flow
//
// Weights are rotated through copies, so that the cache serves none of them; 28672 rows of them have a gate.
#include "boxes.h"
#include "quant-blocks.hip"
#include "quant-wide.hip"
#include "quant-flow.hip"
typedef TYPE Q;
// Results of some rows and the plain product of dequantized weights, a thread each: {Σ difference², Σ wanted²}.
static __global__ void compare(const bf16* y, const f32* w, const bf16* x, size_t from, size_t rows, size_t n, size_t k, double* sums) {
  const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * n) return;
  const size_t row = from + i / n, column = i % n;
  double sum = 0;
  for (size_t j = 0; j < k; j++) sum += (double)w[column * k + j] * (double)widen(x[row * k + j]);
  const double difference = (double)widen(y[row * n + column]) - sum;
  atomicAdd(sums, difference * difference);
  atomicAdd(sums + 1, sum * sum);
}
int main() {
  double* sums = device<double>(2);
  const std::string name = TEXT(TYPE);
  int sms;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  const u32 way = name == "q8_0" ? QUANT_ORDER_q8_0 : QUANT_ORDER_q4_0;
  const int pitch = 16 * ((QUANT_WIDE_CHUNK / Q::Elements * Q::Bytes + 31 - 16) / 16 | 1);
  u32* counters = device<u32>(4096);
  CHECK(cudaMemset(counters, 0, 4096 * 4));
  f32* parts = device<f32>((size_t)4 * sms * 128 * 256);
  const struct { size_t n, k; } shapes[] = {{28672, 4096}, {4096, 4096}, {4096, 14336}, {6144, 4096}, {128256, 4096}};
  for (const auto& s : shapes) {
    const size_t n = s.n, k = s.k, blocks = n * k / Q::Elements, size = blocks * Q::Bytes;
    const u32 glu = n == 28672 ? 1 : 0;
    const int copies = (int)(((size_t)120 << 20) / size) + 2;
    std::vector<u8*> w(copies);
    for (int c = 0; c < copies; c++) {
      w[c] = device<u8>(size);
      fill_bytes<<<4096, 256>>>(w[c], size, 17u * c + 3);
      fill_scales<<<(unsigned)(blocks / 256 + 1), 256>>>(w[c], blocks, Q::Bytes, 0);
    }
    std::vector<CUtensorMap> maps;
    for (u32 lines : {128, 256})
      for (u32 halves = 1; halves <= 2; halves++) for (u8* p : w) maps.push_back(map_of(p, n, k / 256, 256 / Q::Elements * Q::Bytes, halves, lines));
    BoxMap* map = device<BoxMap>(maps.size());
    CHECK(cudaMemcpy(map, maps.data(), maps.size() * 128, cudaMemcpyHostToDevice));
    f32* dense = device<f32>(n * k);
    JOIN(dequantize_block_, TYPE, _f32)<<<(unsigned)(n * k / (QUANT_CHUNK * 8)), 256>>>(w[0], dense, n * k);
    bf16 *x = device<bf16>(64 * k), *ordered = device<bf16>(64 * (k + 2)), *y = device<bf16>(64 * n), *weight = device<bf16>(k);
    fill_floats<bf16><<<1024, 256>>>(x, 64 * k, 1, 1.0f);
    fill_floats<bf16><<<64, 256>>>(weight, k, 5, 1.0f);
    for (size_t rows : {64, 32}) {
      const auto wide = rows == 64 ? JOIN(quant_wide_64_, TYPE, ) : JOIN(quant_wide_32_, TYPE, );
      // As src/backend/gpu/families/quant-flow.ts plans.
      struct Form { const char* name; decltype(&JOIN(quant_flow_256_64_, TYPE, )) kernel; u32 lines; bool pair; int bytes; };
      Form forms[] = {{"256", rows == 64 ? JOIN(quant_flow_256_64_, TYPE, ) : JOIN(quant_flow_256_32_, TYPE, ), 256, false, 0},
                      {"128", rows == 64 ? JOIN(quant_flow_128_64_, TYPE, ) : JOIN(quant_flow_128_32_, TYPE, ), 128, false, 0},
                      {"pair", rows == 64 ? JOIN(quant_flow_pair_64_, TYPE, ) : JOIN(quant_flow_pair_32_, TYPE, ), 128, true, 0}};
      const int part = (int)(2 * rows * QUANT_WIDE_CHUNK), bytes = (2 * part + 256 * pitch <= QUANT_WIDE_SHARED ? 2 : 1) * (part + 64) + 144 + 256 * pitch + 256;
      for (Form& f : forms) {
        const int place = f.lines * (256 / Q::Elements * Q::Bytes), xs = 3 * part + 2 * place <= QUANT_FLOW_SHARED ? 3 : 2, sent = f.pair ? 2 * (int)((rows + 15) / 16) * 8 * f.lines * 4 : 0;
        const int places = std::min(4, (QUANT_FLOW_SHARED - xs * part - sent) / place);
        f.bytes = xs * part + places * place + sent + 16 * (places + xs) + 272;
        CHECK(cudaFuncSetAttribute((const void*)f.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, f.bytes));
      }
      CHECK(cudaFuncSetAttribute((const void*)wide, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
      const u32 threads = k == 4096 ? 512 : 896;
      const auto order = [&](cudaStream_t stream, const bf16* alpha) {
        early(stream, quant_order_bf16, (u32)rows, threads, 0, (const bf16*)x, alpha, (void*)ordered, (u32)rows, (u32)k, (u32)rows, way, 1e-5);
      };
      const auto run_wide = [&](cudaStream_t stream, int c, u32 cut, u32 gate) {
        const u32 tiles = (u32)((n + 127) / 128), left = cut ? (cut > 1 ? tiles : 0) : tiles % (2 * sms), sharers = cut > 1 ? cut * tiles : cut ? 0 : std::min(2u * sms, std::max(left, left * (u32)(k / 256) / 2));
        const u32 alone = tiles - left, grid = alone ? std::min(2u * sms, tiles) : sharers;
        early(stream, wide, grid, 256, bytes, (const void*)ordered, (const u8*)w[c], (const void*)nullptr, (const void*)nullptr, (void*)y, parts, counters, n, k, (u32)rows, gate, alone, sharers,
              (u32)DTYPE_bf16, 0u, 1.0, 0.0);
      };
      const auto run_flow = [&](const Form& f, cudaStream_t stream, int c, u32 cut, u32 gate) {
        const u32 tiles = (u32)((n + f.lines - 1) / f.lines);
        early(stream, f.kernel, tiles * cut, 2 * f.lines + 128, f.bytes, (const void*)ordered, (const u8*)w[c], (const BoxMap*)(map + (f.lines / 128 * 2 - 2 + (gate ? 1 : 0)) * copies + c),
              (const void*)nullptr, (const void*)nullptr, (void*)y, parts, counters, (u16*)nullptr, (const u16*)nullptr, n, k, (u32)rows, gate, cut, (u32)DTYPE_bf16, 0u, 0u, 1.0, 1.0, 0.0);
      };
      const auto each = [&](const char* what, const std::function<void(cudaStream_t, int, u32, u32)>& run, u32 lines, u32 most, bool pair) {
        printf("%-5s %s %6zu x %5zu, %zu rows:", what, TEXT(TYPE), n, k, rows);
        for (u32 cut : {1, 2, 4, 8}) {
          const u32 tiles = (u32)(n / lines);
          if (pair ? cut != 2 : cut > 1 && tiles * cut > most) continue;
          if (cut == 1 && tiles < 40) continue;
          order(0, nullptr);
          CHECK(cudaMemset(y, 0xee, rows * n * 2));
          run(0, 0, cut, 0);
          double found[2] = {0, 0};
          CHECK(cudaMemcpy(sums, found, sizeof found, cudaMemcpyHostToDevice));
          compare<<<(unsigned)(8 * n / 256), 256>>>(y, dense, x, 0, 8, n, k, sums);
          compare<<<(unsigned)(8 * n / 256), 256>>>(y, dense, x, rows - 8, 8, n, k, sums);
          CHECK(cudaMemcpy(found, sums, sizeof found, cudaMemcpyDeviceToHost));
          float t[3];
          for (int o = 0; o < 3; o++)
            t[o] = median_of_graph([&](cudaStream_t stream) { for (int c = 0; c < copies; c++) { if (o) order(stream, o > 1 ? weight : nullptr); run(stream, c, cut, glu); } }, 7) / copies;
          printf("  /%u (%.0e) %.1f ordered %.1f normed %.1f", cut, std::sqrt(found[0] / found[1]), t[0], t[1], t[2]);
        }
        printf("\n");
        fflush(stdout);
      };
      each("wide", run_wide, 128, 2 * sms, false);
      for (const Form& f : forms) each(f.name, [&](cudaStream_t stream, int c, u32 cut, u32 gate) { run_flow(f, stream, c, cut, gate); }, f.lines, sms, f.pair);
    }
    for (u8* p : w) CHECK(cudaFree(p));
    for (bf16* p : {x, ordered, y, weight}) CHECK(cudaFree(p));
    CHECK(cudaFree(dense));
  }
}
