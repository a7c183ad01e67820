// What Hopper's f8 products lose in their sums, beside the same values multiplied as halves: relative errors against f64, by
// how many products the unit adds up before they join a sum in f32.
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O2 -std=c++17 bench/gpu/f8-sums.cu -o f8-sums
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <vector>

constexpr int ROWS = 64, COLUMNS = 8, THREADS = 128;

// A tile of matrices of 8 rows by 16 bytes, 128 bytes from the next along k, 256 from the next along rows.
static __device__ uint64_t tile_at(const void* p) {
  const uint64_t at = (uint32_t)__cvta_generic_to_shared(p);
  return (at & 0x3ffff) >> 4 | (uint64_t)(128 >> 4) << 16 | (uint64_t)(256 >> 4) << 32;
}

struct Bytes {
  using T = uint8_t;
  static constexpr int K = 32;
  static __device__ T of(uint8_t f8) { return f8; }
  static __device__ void multiply(float (&d)[4], uint64_t a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0,%1,%2,%3}, %4, %5, 1, 1, 1;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(a), "l"(b));
  }
};
struct Halves {
  using T = __half;
  static constexpr int K = 16;
  static __device__ T of(uint8_t f8) {
    __nv_fp8_e4m3 x;
    x.__x = f8;
    return __float2half(float(x));
  }
  static __device__ void multiply(float (&d)[4], uint64_t a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "l"(a), "l"(b));
  }
};

template <class Unit> static __device__ void bring(typename Unit::T* to, const uint8_t* from, int rows, int k0, int k) {
  constexpr int PART = Unit::K / 2;
  for (int i = threadIdx.x; i < rows * Unit::K; i += THREADS) {
    const int r = i / Unit::K, c = i % Unit::K;
    to[(r / 8) * 16 * PART + (c / PART) * 8 * PART + (r % 8) * PART + c % PART] = Unit::of(from[r * k + k0 + c]);
  }
}

// a (64, k), b (8, k) → (64, 8), by one warpgroup.
template <class Unit> static __global__ void product(const uint8_t* a, const uint8_t* b, float* out, int k, int every) {
  __shared__ __align__(128) typename Unit::T left[ROWS * Unit::K], right[COLUMNS * Unit::K];
  float part[4] = {}, sum[4] = {};
  for (int k0 = 0; k0 < k; k0 += Unit::K) {
    __syncthreads();
    bring<Unit>(left, a, ROWS, k0, k);
    bring<Unit>(right, b, COLUMNS, k0, k);
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    Unit::multiply(part, tile_at(left), tile_at(right));
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    if ((k0 + Unit::K) % every != 0) continue;
    for (int i = 0; i < 4; i++) sum[i] += part[i], part[i] = 0;
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = 0; i < 4; i++) out[(warp * 16 + lane / 4 + i / 2 * 8) * COLUMNS + lane % 4 * 2 + i % 2] = sum[i] + part[i];
}

static double value(uint8_t bits) {
  __nv_fp8_e4m3 x;
  x.__x = bits;
  return float(x);
}

int main() {
  constexpr int WHOLE = 1 << 30;
  for (int k : {32, 512, 4096, 16384}) {
    std::vector<uint8_t> a(ROWS * k), b(COLUMNS * k);
    uint32_t state = 1;
    // About normal, a sum of four uniform ones.
    const auto fill = [&](std::vector<uint8_t>& to) {
      for (auto& v : to) {
        double u = -2;
        for (int i = 0; i < 4; i++) state = state * 1664525 + 1013904223, u += (state >> 8) / 16777216.0;
        v = __nv_fp8_e4m3(float(u * 1.7)).__x;
      }
    };
    fill(a), fill(b);
    uint8_t *left, *right;
    float* out;
    cudaMalloc(&left, a.size()), cudaMalloc(&right, b.size()), cudaMalloc(&out, ROWS * COLUMNS * sizeof(float));
    cudaMemcpy(left, a.data(), a.size(), cudaMemcpyHostToDevice);
    cudaMemcpy(right, b.data(), b.size(), cudaMemcpyHostToDevice);
    const auto error = [&]() {
      std::vector<float> got(ROWS * COLUMNS);
      if (cudaMemcpy(got.data(), out, got.size() * sizeof(float), cudaMemcpyDeviceToHost) != cudaSuccess) return NAN;
      double off = 0, all = 0;
      for (int i = 0; i < ROWS * COLUMNS; i++) {
        double want = 0;
        for (int j = 0; j < k; j++) want += value(a[i / COLUMNS * k + j]) * value(b[i % COLUMNS * k + j]);
        off += (got[i] - want) * (got[i] - want), all += want * want;
      }
      return float(sqrt(off / all));
    };
    printf("k %5d:", k);
    for (int every : {WHOLE, 512, 128, 32}) {
      product<Bytes><<<1, THREADS>>>(left, right, out, k, every);
      if (every == WHOLE) printf("  all in the unit %.1e", error());
      else printf("  by %d %.1e", every, error());
    }
    product<Halves><<<1, THREADS>>>(left, right, out, k, WHOLE);
    printf("  as halves %.1e\n", error());
    cudaFree(left), cudaFree(right), cudaFree(out);
  }
}
