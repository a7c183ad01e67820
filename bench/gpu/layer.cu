// The four products of a Llama's layer with quantized weights, decoding one text or eight, as a recorded step runs them: how long all
// take behind each other, and each by itself.
//
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a quant-matvec) -DTYPE=q4_k -DGPU_ONLY -DGPU_ONLY_q4_k bench/gpu/layer.cu -o layer
//
// Weights are rotated through as many layers as models have, so that the cache serves none of them.
#include "tile-plan.h"
#include "quant-matvec.hip"

#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c) JOIN_(a, b, c)
typedef TYPE Q;
typedef void (*Kernel)(const void*, const u8*, const void*, const void*, const void*, void*, size_t, size_t, f64, u32, u32, u32, u32, u32);

constexpr size_t POOL = (size_t)2400 << 20;
constexpr u32 ROOM = 1 << 18, LAYERS = 16;

struct Model {
  const char* name;
  u32 hidden, heads, kv, wide;
};
struct Product {
  u32 n, k, glu;
  const bf16 *x, *alpha, *residual;
  bf16* y;
  size_t at;
};

int main() {
  int sms;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  u8* w = device<u8>(POOL);
  fill_bytes<<<4096, 256>>>(w, POOL, 17);
  for (u32 offset = 0; offset <= (Q::HasMin ? 2 : 0); offset += 2)
    fill_scales<<<(unsigned)(POOL / Q::Bytes / 256), 256>>>(w, POOL / Q::Bytes, Q::Bytes, offset);
  bf16 *mixed = device<bf16>(ROOM), *stream = device<bf16>(ROOM), *middle = device<bf16>(ROOM), *opened = device<bf16>(ROOM), *heads = device<bf16>(ROOM);
  bf16* alpha = device<bf16>(ROOM);
  for (bf16* p : {mixed, stream, alpha}) fill_floats<<<64, 256>>>(p, ROOM, 1, 2.0f);
  CHECK(cudaDeviceSynchronize());
  for (const Model m : {Model{"1B", 2048, 2048, 1024, 8192}, Model{"8B", 4096, 4096, 2048, 14336}})
    for (const u32 rows : {1u, 8u}) {
      Product products[4] = {{m.hidden, m.heads, 0, mixed, nullptr, stream, middle, 0},
                             {2 * m.wide, m.hidden, GLU_silu, middle, alpha, nullptr, opened, 0},
                             {m.hidden, m.wide, 0, opened, nullptr, middle, stream, 0},
                             {m.heads + m.kv, m.hidden, 0, stream, alpha, nullptr, heads, 0}};
      TileLaunch plans[4];
      size_t bytes = 0;
      bool fits = true;
      for (int i = 0; i < 4; i++) {
        products[i].at = bytes;
        bytes += (size_t)products[i].n * products[i].k / Q::Elements * Q::Bytes;
        plans[i] = plan_tiles<Q>(products[i].n, products[i].k, rows, (u32)sms);
        fits = fits && plans[i].blocks;
      }
      if (!fits) continue;
      const Kernel kernel = rows > 4 ? JOIN(linear_, TYPE, _b8) : JOIN(linear_, TYPE, _b1);
      const u32 sets = (u32)std::min<size_t>(POOL / bytes, LAYERS);
      const auto go = [&](cudaStream_t s, u32 set, int i) {
        const Product& p = products[i];
        CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)plans[i].bytes));
        cudaLaunchConfig_t config{};
        config.gridDim = dim3(plans[i].blocks), config.blockDim = dim3(plans[i].threads), config.dynamicSmemBytes = plans[i].bytes, config.stream = s;
        cudaLaunchAttribute early{};
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
        config.attrs = &early, config.numAttrs = 1;
        CHECK(cudaLaunchKernelEx(&config, kernel, (const void*)p.x, (const u8*)(w + set * bytes + p.at), (const void*)p.alpha, (const void*)nullptr, (const void*)p.residual,
                                 (void*)p.y, (size_t)p.n, (size_t)p.k, (f64)1e-5, rows, p.glu, plans[i].splits, p.k, (u32)DTYPE_bf16));
      };
      const auto time = [&](int first, int end) {
        return median_of_graph([&](cudaStream_t s) {
                 for (u32 set = 0; set < 2 * sets; set++) for (int i = first; i < end; i++) go(s, set % sets, i);
               }, 7) / (2 * sets);
      };
      const float layer = time(0, 4);
      printf("%s, %u rows: %.1f MB in %.2f us, %.2f TB/s;", m.name, rows, bytes * 1e-6, layer, bytes / layer * 1e-6);
      for (int i = 0; i < 4; i++)
        printf(" %ux%u by %u blocks of %u warps, %u to a row %.2f us%s", products[i].n, products[i].k, plans[i].blocks, plans[i].threads / 32, plans[i].splits, time(i, i + 1), i < 3 ? "," : "\n");
    }
  return 0;
}
