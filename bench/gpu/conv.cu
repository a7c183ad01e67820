// The parts of a convolution of halves on an NVIDIA card: bringing the image into order, the weights, and the product by each size of
// block. conv.mjs has whole convolutions beside PyTorch's.
//
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -Ikernels -Ibench/gpu $(node scripts/kernels/defines.mjs sm_90a conv-product conv linear) -DGPU_ONLY -DGPU_ONLY_f16 bench/gpu/conv.cu -o conv
#include "bench.h"
#include "conv-product.hip"
#include "conv.hip"

typedef void (*Kernel)(const f16*, const f16*, f16*, size_t, size_t, size_t, size_t, const size_t*);
struct Variant {
  const char* name;
  Kernel kernel;
  int rows, cols, threads, bytes;
};
// As src/backend/gpu/families/conv.ts plans them with warpgroups: the host's pass of the compiler does not know of those.
static const Variant variants[] = {{"large", conv_product_f16, 128, 128, 256, 3 * 256 * 128},
                                   {"small", conv_product_small_f16, 64, 64, 128, 4 * 128 * 128}};

// Without the host's share, and without that of the first launch.
static float time(const std::function<void(cudaStream_t)>& work) {
  return median_of_graph([&](cudaStream_t on) { for (int i = 0; i < 10; i++) work(on); }) / 10;
}

// Square images and kernels, channels in whole pieces.
struct Shape {
  size_t images, channels, outs, size, taps, stride;
};
static size_t* words(const std::vector<i64>& numbers) {
  size_t* at = device<size_t>(numbers.size());
  CHECK(cudaMemcpy(at, numbers.data(), numbers.size() * 8, cudaMemcpyHostToDevice));
  return at;
}

int main() {
  copy_ceiling();
  for (const Shape& s : {Shape{16, 256, 256, 64, 3, 1}, Shape{16, 256, 256, 64, 3, 2}, Shape{2, 320, 320, 64, 3, 1}, Shape{32, 512, 512, 7, 3, 1}, Shape{32, 256, 512, 56, 1, 2}}) {
    const i64 pad = s.taps / 2, c = s.channels, w = s.size, p = w + 2 * pad, o = (w + 2 * pad - s.taps) / s.stride + 1, k = s.taps, pieces = c / 8;
    f16 *x = device<f16>(s.images * c * w * w), *kernel = device<f16>(s.outs * c * k * k), *laid = device<f16>(s.images * c * p * p);
    f16 *weights = device<f16>(s.outs * c * k * k), *out = device<f16>(s.images * s.outs * o * o);
    fill_floats<f16><<<1024, 256>>>(x, s.images * c * w * w, 1, 1.0f);
    fill_floats<f16><<<1024, 256>>>(kernel, s.outs * c * k * k, 2, 0.05f);
    const size_t* of_x = words({1, c, c, 1, w, w, p, p, pieces, 1, pad, pad, 1, 1, c * w * w, 0, 0, w * w, w, 1});
    const size_t* of_w = words({(i64)s.outs, c, c, (i64)s.outs, k, k, k, k, pieces, 1, 0, 0, 1, 1, 0, 0, c * k * k, k * k, k, 1});
    const size_t* patches = words({o * o, o, k, pieces, o * o, o, 1, p * p * pieces, 0, (i64)s.stride * p * pieces, (i64)s.stride * pieces, p * pieces, pieces});
    const size_t warps = s.images * ((pieces + 32 / TURN_ACROSS - 1) / (32 / TURN_ACROSS)) * ((w * w + 8 * TURN_ACROSS - 1) / (8 * TURN_ACROSS));
    const size_t all = s.images * ((p * p + 15) / 16) * ((pieces + 1) / 2) * 32;
    const auto turned = [&](cudaStream_t on) { conv_turn_f16<<<(unsigned)((warps + 7) / 8), 256, 0, on>>>(x, laid, s.images, of_x); };
    const auto gathered = [&](cudaStream_t on) { conv_gather_f16<<<(unsigned)((all + 255) / 256), 256, 0, on>>>(x, laid, all, of_x); };
    const auto weighed = [&](cudaStream_t on) { conv_turn_taps_f16<<<(unsigned)s.outs, 256, 0, on>>>(kernel, weights, s.outs, of_w); };
    const double bytes = 2.0 * s.images * c * (w * w + p * p), n = s.images * o * o, flops = 2.0 * n * s.outs * c * k * k;
    const float by_gather = time(gathered), by_turn = time(turned), by_weights = time(weighed);
    printf("%zu x %zu > %zu, %zu^2, %zu taps, stride %zu: turn %.1f us %.2f TB/s, gather %.1f us %.2f TB/s, weights %.1f us;", s.images, s.channels, s.outs,
           s.size, s.taps, s.stride, by_turn, bytes / by_turn * 1e-6, by_gather, bytes / by_gather * 1e-6, by_weights);
    for (const Variant& v : variants) {
      CHECK(cudaFuncSetAttribute((const void*)v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, v.bytes));
      const unsigned grid = (unsigned)((s.outs + v.rows - 1) / v.rows * (((size_t)n + v.cols - 1) / v.cols));
      const float us = time([&](cudaStream_t on) { v.kernel<<<grid, v.threads, v.bytes, on>>>(laid, weights, out, 1, s.outs, (size_t)n, c * k * k, patches); });
      printf("  %s %.1f us %.1f TFLOP/s", v.name, us, flops / us * 1e-6);
    }
    printf("\n");
    for (f16* at : {x, kernel, laid, weights, out}) CHECK(cudaFree(at));
  }
  for (int form = 0; form < 3; form++) {
    const int stride = form == 2 ? 2 : 1;
    const size_t planes = 16 * 256, w = 64, o = w / stride;
    f16 *x = device<f16>(planes * w * w), *kernel = device<f16>(256 * 9), *out = device<f16>(planes * o * o);
    const size_t* info = words({16, 256, 64, 64, 256 * 64 * 64, 64 * 64, 64, 1, 256, 1, 3, 3, 9, 9, 3, 1});
    const size_t each = DEPTHWISE_ROWS / (form == 0 ? 1 : 2), n = planes * (o / each) * (form == 1 ? o / 8 : o);
    const auto run = form == 0 ? conv_depthwise3_1_f16 : form == 1 ? conv_depthwise3_same_f16 : conv_depthwise3_2_f16;
    const float us = time([&](cudaStream_t on) { run<<<(unsigned)((n + 255) / 256), 256, 0, on>>>(x, kernel, out, n, info, o, o, stride, stride, 1, 1, 1, 1, 256); });
    printf("depthwise %s: %.1f us %.2f TB/s\n", form == 0 ? "by columns" : form == 1 ? "by vectors" : "stride 2", us, 2.0 * planes * (w * w + o * o) / us * 1e-6);
  }
}
