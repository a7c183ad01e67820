// Wick's own products of halves beside cuBLAS, on one NVIDIA card.
#include "bench.h"
#include "product.h"
#include <cublas_v2.h>
#include <cuda_fp16.h>
static float f16_to_f32_host(u16 x) { __half_raw r; r.x = x; return __half2float(__half(r)); }

typedef HALF T;
#ifndef P_BM
#define P_BM 128
#define P_BN 256
#define P_BK 64
#define P_WM 64
#define P_WN 64
#define P_STAGES 3
#endif
#ifndef P_BAND
#define P_BAND 8
#endif

template <Lie LA, Lie LB>
__global__ void __launch_bounds__(Product<T, P_BM, P_BN, P_BK, P_WM, P_WN, P_STAGES, LA, LB>::THREADS)
product(Operand<T> a, Operand<T> b, T* out) {
  typedef Product<T, P_BM, P_BN, P_BK, P_WM, P_WN, P_STAGES, LA, LB> P;
  extern __shared__ __align__(16) char bytes[];
  const u32 down = ceil_div(a.lines, P_BM), across = ceil_div(b.lines, P_BN);
  // Bands of P_BAND tiles: neighbours in time share rows and columns.
  const u32 tile = blockIdx.x, band = tile / (P_BAND * across), in = tile % (P_BAND * across);
  const u32 height = band * P_BAND + P_BAND <= down ? P_BAND : down - band * P_BAND;
  P::run((T*)bytes, a, b, out, (size_t)(band * P_BAND + in % height) * P_BM, (size_t)(in / height) * P_BN);
}

template <Lie LA, Lie LB> float ours(Operand<T> a, Operand<T> b, T* out) {
  typedef Product<T, P_BM, P_BN, P_BK, P_WM, P_WN, P_STAGES, LA, LB> P;
  const int bytes = P::SHARED_ELEMENTS * sizeof(T);
  CHECK(cudaFuncSetAttribute((const void*)product<LA, LB>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const unsigned grid = (unsigned)((a.lines + P_BM - 1) / P_BM * ((b.lines + P_BN - 1) / P_BN));
  return median([&] { product<LA, LB><<<grid, P::THREADS, bytes>>>(a, b, out); }, 9);
}

int main() {
  cublasHandle_t blas;
  cublasCreate(&blas);
  struct { size_t m, n, k; } shapes[] = {{8192, 8192, 8192}, {4096, 14336, 4096}, {4096, 4096, 14336}, {2048, 2048, 2048}, {512, 4096, 4096}, {1000, 1000, 1000}, {333, 777, 555}, {64, 4096, 4096}};
  const cudaDataType type = sizeof(T) == 2 && BF ? CUDA_R_16BF : CUDA_R_16F;
  for (auto s : shapes) {
    T* a = device<T>(s.m * s.k);
    T* b = device<T>(s.n * s.k);
    T* c = device<T>(s.m * s.n);
    T* d = device<T>(s.m * s.n);
    fill_floats<T><<<1024, 256>>>(a, s.m * s.k, 1, 1.0f);
    fill_floats<T><<<1024, 256>>>(b, s.n * s.k, 2, 1.0f);
    const float one = 1, zero = 0;
    for (int ta = 0; ta < 2; ta++) for (int tb = 0; tb < 2; tb++) {
      // ta: a is stored (k, m); tb: b is stored (n, k), as weights are.
      const Operand<T> oa{a, s.m, s.k, ta ? 1 : (i64)s.k, ta ? (i64)s.m : 1};
      const Operand<T> ob{b, s.n, s.k, tb ? (i64)s.k : 1, tb ? 1 : (i64)s.n};
      CHECK(cudaMemset(c, 0xee, s.m * s.n * 2));
      const float own = ta ? tb ? ours<SIDE_BY_SIDE, ALONG_K>(oa, ob, c) : ours<SIDE_BY_SIDE, SIDE_BY_SIDE>(oa, ob, c)
                           : tb ? ours<ALONG_K, ALONG_K>(oa, ob, c) : ours<ALONG_K, SIDE_BY_SIDE>(oa, ob, c);
      const float theirs = median([&] {
        cublasGemmEx(blas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, (int)s.n, (int)s.m, (int)s.k, &one, b, type, (int)(tb ? s.k : s.n), a, type,
                     (int)(ta ? s.m : s.k), &zero, d, type, (int)s.n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
      }, 9);
      std::vector<u16> x(s.m * s.n), y(s.m * s.n);
      CHECK(cudaMemcpy(x.data(), c, x.size() * 2, cudaMemcpyDeviceToHost));
      CHECK(cudaMemcpy(y.data(), d, y.size() * 2, cudaMemcpyDeviceToHost));
      double diff = 0, norm = 0;
      for (size_t i = 0; i < x.size(); i++) {
        float p, q;
        if (BF) { u32 u = (u32)x[i] << 16, v = (u32)y[i] << 16; memcpy(&p, &u, 4); memcpy(&q, &v, 4); }
        else { p = f16_to_f32_host(x[i]); q = f16_to_f32_host(y[i]); }
        diff += (double)(p - q) * (p - q); norm += (double)q * q;
      }
      const double flops = 2.0 * s.m * s.n * s.k;
      printf("%5zu x %5zu x %5zu %c%c  own %7.1f TF  cublas %7.1f TF  %.3f  err %.1e\n", s.m, s.n, s.k, ta ? 'T' : 'N', tb ? 'T' : 'N', flops / own * 1e-6, flops / theirs * 1e-6, theirs / own, sqrt(diff / norm));
      fflush(stdout);
    }
    cudaFree(a); cudaFree(b); cudaFree(c); cudaFree(d);
  }
}
