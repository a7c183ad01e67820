// Wick's own products in f32 beside cuBLAS (without TF32) on an NVIDIA card, both recorded in graphs, and how far they differ: tiles of
// both sizes, those whose k a cluster shares out, and small ones with sums of parts of k added up afterwards. Where rows are not made of
// 16 bytes, each also after copies of both operands that are.
//
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels $(node scripts/kernels/defines.mjs sm_90a gemm reduce linear fill) -DGPU_ONLY -DGPU_ONLY_f32 -DGPU_ONLY_bytes bench/gpu/gemm32.cu -lcublas -o gemm32
//
// N: rows lie one behind the other; T: columns do (of weights, usually).
#include "bench.h"
#include "fill.hip"
#include "gemm.hip"
#include "reduce.hip"
#include <cublas_v2.h>

// A matrix of f32, where it lies.
struct Matrix { const f32* at; size_t row, col; };

int main() {
  cublasHandle_t blas;
  cublasCreate(&blas);
  const size_t workspace = 64 << 20;
  cublasSetWorkspace(blas, device<u8>(workspace), workspace);
  const struct { size_t m, n, k; } shapes[] = {{8192, 8192, 8192}, {2048, 2048, 2048}, {3000, 3000, 3000}, {1536, 1536, 1536}, {1024, 1024, 1024}, {1000, 1000, 1000}, {1001, 1003, 1005}, {768, 768, 768}, {701, 703, 705}, {512, 512, 512}, {256, 256, 256}, {333, 777, 555}, {1999, 4001, 4095}, {512, 512, 4096}, {100, 1000, 300}, {256, 2048, 4096}, {64, 4096, 4096}, {2000, 4000, 4096}};
  for (const auto& s : shapes) {
    const size_t numbers = s.m * s.n;
    f32 *a = device<f32>(s.m * s.k), *b = device<f32>(s.n * s.k), *own = device<f32>(numbers), *theirs = device<f32>(numbers), *parts = device<f32>(8 * numbers), *whole_a = device<f32>((s.m + 4) * (s.k + 4)), *whole_b = device<f32>((s.n + 4) * (s.k + 4));
    fill_floats<f32><<<1024, 256>>>(a, s.m * s.k, 1, 1.0f);
    fill_floats<f32><<<1024, 256>>>(b, s.n * s.k, 2, 1.0f);
    const float one = 1, zero = 0;
    const bool large = numbers * s.k > (size_t)1 << 32;
    for (int ta = 0; ta < 2; ta++)
      for (int tb = 0; tb < 2; tb++) {
        const auto time_of = [&](const std::function<void(cudaStream_t)>& run) { return large ? median([&] { run(0); }, 3) : recorded(run); };
        const float library = time_of([&](cudaStream_t stream) {
          cublasSetStream(blas, stream);
          cublasGemmEx(blas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, (int)s.n, (int)s.m, (int)s.k, &one, b,
                       CUDA_R_32F, (int)(tb ? s.k : s.n), a, CUDA_R_32F, (int)(ta ? s.m : s.k), &zero, theirs, CUDA_R_32F, (int)s.n,
                       CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
        });
        printf("%5zu x %5zu x %5zu %c%c  cuBLAS %5.1f TFLOP/s (%.1f us);", s.m, s.n, s.k, ta ? 'T' : 'N', tb ? 'T' : 'N', 2e-6 * numbers * s.k / library, library);
        typedef std::function<void(cudaStream_t, Matrix, Matrix)> Product;
        const auto tiles = [&](size_t down, size_t across) { return (unsigned)((s.m + down - 1) / down * ((s.n + across - 1) / across)); };
        const auto depth_of = [&](size_t blocks) { return (s.k + 16 * blocks - 1) / (16 * blocks) * 16; };
        const auto small = [&](size_t wanted) {
          return [&, wanted](cudaStream_t stream, Matrix x, Matrix y) {
            const size_t depth = depth_of(wanted), count = (s.k + depth - 1) / depth;
            gemm_small_f32<<<(unsigned)count * tiles(GEMM_TILE, GEMM_TILE), 128, 0, stream>>>(x.at, y.at, wanted == 1 ? own : parts, 1, s.m, s.n, s.k, x.row, x.col, y.row, y.col, 0, nullptr, depth);
            if (wanted > 1)
              sum_cols_f32<<<(unsigned)((numbers + 127) / 128), 256, 0, stream>>>(parts, own, nullptr, 1, count, numbers, 0, numbers, 32, 1);
          };
        };
        const struct { const char* name; Product run; } products[] = {
          {"large", [&](cudaStream_t stream, Matrix x, Matrix y) {
            gemm_f32<<<tiles(2 * GEMM_TILE, 4 * GEMM_TILE), 256, 0, stream>>>(x.at, y.at, own, 1, s.m, s.n, s.k, x.row, x.col, y.row, y.col, 0, nullptr, s.k);
          }},
          {"small", small(1)}, {"in 4", small(4)}, {"in 8", small(8)},
          {"pair", [&](cudaStream_t stream, Matrix x, Matrix y) {
            gemm_pair_f32<<<2 * tiles(GEMM_TILE, 2 * GEMM_TILE), 128, 0, stream>>>(x.at, y.at, own, 1, s.m, s.n, s.k, x.row, x.col, y.row, y.col, 0, nullptr, depth_of(2));
          }},
          {"split", [&](cudaStream_t stream, Matrix x, Matrix y) {
            gemm_split_f32<<<GEMM_SPLIT * tiles(GEMM_TILE, GEMM_TILE), 128, 0, stream>>>(x.at, y.at, own, 1, s.m, s.n, s.k, x.row, x.col, y.row, y.col, 0, nullptr, depth_of(GEMM_SPLIT));
          }},
        };
        // By rows, or by columns.
        const auto lies = [](const f32* at, bool t, size_t pitch) { return Matrix{at, t ? 1 : pitch, t ? pitch : 1}; };
        const auto padded = [&](cudaStream_t stream, const f32* x, bool t, size_t rows, size_t cols, f32* to) {
          const size_t length = t ? rows : cols, lines = t ? cols : rows, pieces = (length + 3) / 4;
          if (length % 4 == 0) return lies(x, t, length);
          pad_lines_4<<<(unsigned)((lines * pieces + 255) / 256), 256, 0, stream>>>((const u32*)x, (u32*)to, 1, lines, length, length, 1, 0, nullptr);
          return lies(to, t, 4 * pieces);
        };
        const bool whole = (ta ? s.m : s.k) % 4 == 0 && (tb ? s.k : s.n) % 4 == 0;
        for (int copied = 0; copied < (whole ? 1 : 2); copied++)
          for (const auto& product : products) {
            CHECK(cudaMemset(own, 0xee, numbers * 4));
            const float time = time_of([&](cudaStream_t stream) {
              if (copied) product.run(stream, padded(stream, a, ta, s.m, s.k, whole_a), padded(stream, b, tb, s.k, s.n, whole_b));
              else product.run(stream, lies(a, ta, ta ? s.m : s.k), lies(b, tb, tb ? s.k : s.n));
            });
            std::vector<f32> x(numbers), y(numbers);
            CHECK(cudaMemcpy(x.data(), own, numbers * 4, cudaMemcpyDeviceToHost));
            CHECK(cudaMemcpy(y.data(), theirs, numbers * 4, cudaMemcpyDeviceToHost));
            double difference = 0, norm = 0;
            for (size_t i = 0; i < numbers; i += large ? 97 : 1) difference += (double)(x[i] - y[i]) * (x[i] - y[i]), norm += (double)y[i] * y[i];
            printf("  %s%s %.1f = %.2f%s", copied ? "copied, " : "", product.name, 2e-6 * numbers * s.k / time, library / time, sqrt(difference / norm) < 1e-5 ? "" : " WRONG");
          }
        printf("\n");
        fflush(stdout);
      }
    for (void* p : {(void*)a, (void*)b, (void*)own, (void*)theirs, (void*)parts, (void*)whole_a, (void*)whole_b}) CHECK(cudaFree(p));
  }
}
