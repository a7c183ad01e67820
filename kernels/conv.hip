// Convolutions. The direct kernels compute one output per thread and take any strides; large ones are better served by
// im2col and a matrix product. Sums in f32 for halves, in T otherwise. Launch: an output per thread and round.
// info = x dims ‖ x strides ‖ w dims ‖ w strides. Neighbouring threads have neighbouring columns, so reads of x are contiguous
// for stride 1 and reads of w are broadcast.
#include "gpu.h"
namespace gpu {

template <class T> struct Accumulate { typedef compute_t<T> type; };
template <> struct Accumulate<u8> { typedef u32 type; };

struct Axis {
  size_t in, taps, out, stride, padding, dilation;
  i64 src_step, kernel_step;
  // The input that tap `tap` of output `o` meets: false where that is padding.
  GPU_METHOD bool source(size_t o, size_t tap, size_t& at) const {
    at = o * stride + tap * dilation - padding;
    return at < in;
  }
  // The same for the transposed convolution: only every stride-th output meets a tap.
  GPU_METHOD bool transposed_source(size_t o, size_t tap, size_t& at) const {
    const size_t reach = o + padding - tap * dilation;
    if ((i64)reach < 0) return false;
    at = divide(reach, stride);
    return at * stride == reach && at < in;
  }
};
struct Conv {
  size_t in_channels, out_channels, groups;
  i64 src_batch, src_channel, kernel_first, kernel_second;
  Axis y, x;
};

// dst[b, o, y, x] = Σ src[b, g·C + c, y', x'] · kernel[o, c, i, j] over c, i, j, where g is o's group of C channels; the
// transposed form reads kernel[g·C + c, o − g·O, i, j].
template <class T, bool Transposed> GPU_FN void convolve(const Conv& p, size_t n, const T* src, const T* kernel, T* dst) {
  typedef typename Accumulate<T>::type A;
  const size_t step = (size_t)gdim_x() * bdim_x();
  const size_t channels = p.in_channels / p.groups, outs = p.out_channels / p.groups;
  for (size_t at = (size_t)bid_x() * bdim_x() + tid_x(); at < n; at += step) {
    const size_t row = divide(at, p.x.out), ox = at - row * p.x.out;
    const size_t plane = divide(row, p.y.out), oy = row - plane * p.y.out;
    const size_t b = divide(plane, p.out_channels), o = plane - b * p.out_channels, g = divide(o, outs);
    const T* from = src + (i64)b * p.src_batch + (i64)(g * channels) * p.src_channel;
    const T* weights = kernel + (Transposed ? (i64)(g * channels) * p.kernel_first + (i64)(o - g * outs) * p.kernel_second
                                            : (i64)o * p.kernel_first);
    const i64 weight_step = Transposed ? p.kernel_first : p.kernel_second;
    A sum = 0;
    NO_UNROLL for (size_t i = 0; i < p.y.taps; i++) {
      size_t sy;
      if (!(Transposed ? p.y.transposed_source(oy, i, sy) : p.y.source(oy, i, sy))) continue;
      NO_UNROLL for (size_t j = 0; j < p.x.taps; j++) {
        size_t sx;
        if (!(Transposed ? p.x.transposed_source(ox, j, sx) : p.x.source(ox, j, sx))) continue;
        const T* s = from + (i64)sy * p.y.src_step + (i64)sx * p.x.src_step;
        const T* w = weights + (i64)i * p.y.kernel_step + (i64)j * p.x.kernel_step;
        NO_UNROLL for (size_t c = 0; c < channels; c++, s += p.src_channel, w += weight_step)
          sum = add(sum, mul((A)widen(*s), (A)widen(*w)));
      }
    }
    dst[at] = narrow<T>((compute_t<T>)sum);
  }
}

// The same for channels that are convolved by themselves, K × K taps, S apart, not dilated, whose columns are neighbours. Bound by
// memory: a thread makes DEPTHWISE_ROWS / S outputs one below the other and reads each row under them once; its neighbours have the
// columns beside. Sizes of an image fit 31 bits. Launch: a thread per column of outputs.
template <class T, int K, int S> GPU_FN void depthwise(const Conv& p, size_t n, const T* src, const T* kernel, T* dst) {
  typedef compute_t<T> A;
  constexpr int V = DEPTHWISE_ROWS / S;
  const size_t blocks = ceil_div(p.y.out, V), outs = p.out_channels / p.groups;
  const u32 height = (u32)p.y.in, width = (u32)p.x.in, rows = (u32)p.y.out, columns = (u32)p.x.out;
  single_loop(n, [&](size_t i) {
    const size_t rest = divide(i, p.x.out), plane = divide(rest, blocks);
    const u32 ox = (u32)(i - rest * p.x.out), oy = (u32)(rest - plane * blocks) * V;
    const size_t b = divide(plane, p.out_channels), o = plane - b * p.out_channels;
    const size_t c = outs == 1 ? o : divide(o, outs);
    const T* w = kernel + (i64)o * p.kernel_first;
    A taps[K][K], sum[V];
    UNROLL for (int y = 0; y < K; y++, w += p.y.kernel_step) UNROLL for (int x = 0; x < K; x++) taps[y][x] = widen(w[x * p.x.kernel_step]);
    UNROLL for (int v = 0; v < V; v++) sum[v] = 0;
    const u32 sx = ox * S - (u32)p.x.padding, sy = oy * S - (u32)p.y.padding;
    const T* from = src + (i64)b * p.src_batch + (i64)c * p.src_channel + (i64)(i32)sy * p.y.src_step + (i32)sx;
    UNROLL for (int r = 0; r < (V - 1) * S + K; r++, from += p.y.src_step) {
      A x[K];
      UNROLL for (int j = 0; j < K; j++) x[j] = sy + r < height && sx + j < width ? (A)widen(from[j]) : (A)0;
      UNROLL for (int v = 0; v < V; v++)
        if (r - v * S >= 0 && r - v * S < K) UNROLL for (int j = 0; j < K; j++) sum[v] += x[j] * taps[r - v * S][j];
    }
    T* to = dst + (plane * rows + oy) * columns + ox;
    UNROLL for (int v = 0; v < V; v++, to += columns)
      if (oy + v < rows) *to = narrow<T>(sum[v]);
  });
}

// The same where the result is as wide as the image, S = 1, and rows are whole vectors: a thread makes a vector of columns, and
// reads what is beside it one by one.
template <class T, int K> GPU_FN void depthwise_same(const Conv& p, size_t n, const T* src, const T* kernel, T* dst) {
  typedef compute_t<T> A;
  constexpr int V = 16 / sizeof(T), R = DEPTHWISE_ROWS / 2, H = K / 2;
  const size_t across = p.x.out / V, blocks = ceil_div(p.y.out, R), outs = p.out_channels / p.groups;
  const u32 height = (u32)p.y.in, rows = (u32)p.y.out, columns = (u32)p.x.out;
  single_loop(n, [&](size_t i) {
    const size_t rest = divide(i, across), plane = divide(rest, blocks);
    const u32 ox = (u32)(i - rest * across) * V, oy = (u32)(rest - plane * blocks) * R;
    const size_t b = divide(plane, p.out_channels), o = plane - b * p.out_channels;
    const size_t c = outs == 1 ? o : divide(o, outs);
    const T* w = kernel + (i64)o * p.kernel_first;
    A taps[K][K], sum[R][V];
    UNROLL for (int y = 0; y < K; y++, w += p.y.kernel_step) UNROLL for (int x = 0; x < K; x++) taps[y][x] = widen(w[x * p.x.kernel_step]);
    UNROLL for (int v = 0; v < R * V; v++) sum[v / V][v % V] = 0;
    const bool left = ox > 0, right = ox + V < columns;
    const u32 sy = oy - (u32)p.y.padding;
    const T* from = src + (i64)b * p.src_batch + (i64)c * p.src_channel + (i64)(i32)sy * p.y.src_step + ox;
    UNROLL for (int r = 0; r < R + K - 1; r++, from += p.y.src_step) {
      if (sy + r >= height) continue;
      A x[V + K - 1];
      const Vec<T, V> own = *(const Vec<T, V>*)from;
      UNROLL for (int e = 0; e < V; e++) x[H + e] = widen(own.v[e]);
      UNROLL for (int e = 0; e < H; e++) {
        x[e] = left ? (A)widen(from[e - H]) : (A)0;
        x[H + V + e] = right ? (A)widen(from[V + e]) : (A)0;
      }
      UNROLL for (int v = 0; v < R; v++)
        if (r - v >= 0 && r - v < K)
          UNROLL for (int j = 0; j < K; j++) UNROLL for (int e = 0; e < V; e++) sum[v][e] += x[e + j] * taps[r - v][j];
    }
    T* to = dst + (plane * rows + oy) * columns + ox;
    UNROLL for (int v = 0; v < R; v++, to += columns) {
      Vec<T, V> y;
      UNROLL for (int e = 0; e < V; e++) y.v[e] = narrow<T>(sum[v][e]);
      if (oy + v < rows) *(Vec<T, V>*)to = y;
    }
  });
}

// What the kernels are given of both dims.
#define CONV_WINDOW \
  size_t h_out, size_t w_out, size_t stride_h, size_t stride_w, size_t padding_h, size_t padding_w, size_t dilation_h, size_t dilation_w
GPU_FN Conv conv2d_of(const size_t* info, bool transposed, CONV_WINDOW, size_t groups) {
  const i64* s = (const i64*)info;
  return Conv{info[1], transposed ? info[9] * groups : info[8], groups, s[4], s[5], s[12], s[13],
              Axis{info[2], info[10], h_out, stride_h, padding_h, dilation_h, s[6], s[14]},
              Axis{info[3], info[11], w_out, stride_w, padding_w, dilation_w, s[7], s[15]}};
}

// dst[b, y, x, c, i, j] = src[b, c, y', x'] or 0 in the padding: rows of the matrix product with the kernel as (o, c·i·j).
// Traffic: dst written once; src read once per tap, mostly from cache.
template <class B> GPU_FN void im2col(const Conv& p, size_t n, const B* src, B* dst) {
  const size_t step = (size_t)gdim_x() * bdim_x();
  for (size_t at = (size_t)bid_x() * bdim_x() + tid_x(); at < n; at += step) {
    const size_t q = divide(at, p.x.taps), j = at - q * p.x.taps;
    const size_t r = divide(q, p.y.taps), i = q - r * p.y.taps;
    const size_t t = divide(r, p.in_channels), c = r - t * p.in_channels;
    const size_t v = divide(t, p.x.out), ox = t - v * p.x.out;
    const size_t b = divide(v, p.y.out), oy = v - b * p.y.out;
    size_t sy, sx;
    const bool inside = p.y.source(oy, i, sy) && p.x.source(ox, j, sx);
    dst[at] = inside ? src[(i64)b * p.src_batch + (i64)c * p.src_channel + (i64)sy * p.y.src_step + (i64)sx * p.x.src_step] : B(0);
  }
}

#define CONV(T) \
  KERNEL_BOUNDS(GPU_BLOCK, conv2d_##T, const T* x, const T* w, T* out, size_t numel, const size_t* info, CONV_WINDOW, size_t groups) { \
    convolve<T, false>(conv2d_of(info, false, h_out, w_out, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w, \
                                 groups), \
                       numel, x, w, out); \
  } \
  KERNEL_BOUNDS(GPU_BLOCK, conv_transpose2d_##T, const T* x, const T* w, T* out, size_t numel, const size_t* info, CONV_WINDOW, \
                size_t groups) { \
    convolve<T, true>(conv2d_of(info, true, h_out, w_out, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w, \
                                groups), \
                      numel, x, w, out); \
  }
GPU_NUMBERS(CONV)
#define IM2COL(T) \
  KERNEL_BOUNDS(GPU_BLOCK, im2col_##T, const T* x, T* out, size_t numel, const size_t* info, CONV_WINDOW, size_t h_k, size_t w_k) { \
    const i64* s = (const i64*)info; \
    im2col<bits_t<T>>(Conv{info[1], 0, 1, s[4], s[5], 0, 0, Axis{info[2], h_k, h_out, stride_h, padding_h, dilation_h, s[6], 0}, \
                           Axis{info[3], w_k, w_out, stride_w, padding_w, dilation_w, s[7], 0}}, \
                      numel, (const bits_t<T>*)x, (bits_t<T>*)out); \
  }
GPU_FLOATS(IM2COL)

#define DEPTHWISE(name, T, ...) \
  KERNEL_BOUNDS(GPU_BLOCK, name##_##T, const T* x, const T* w, T* out, size_t numel, const size_t* info, CONV_WINDOW, size_t groups) { \
    __VA_ARGS__(conv2d_of(info, false, h_out, w_out, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w, groups), numel, x, w, out); \
  }
#define DEPTHWISE_TAPS(K, T) \
  DEPTHWISE(conv_depthwise##K##_1, T, depthwise<T, K, 1>) DEPTHWISE(conv_depthwise##K##_2, T, depthwise<T, K, 2>) \
  DEPTHWISE(conv_depthwise##K##_same, T, depthwise_same<T, K>)
#define DEPTHWISES(T) DEPTHWISE_TAPS(3, T) DEPTHWISE_TAPS(5, T) DEPTHWISE_TAPS(7, T)
GPU_bf16(DEPTHWISES)
GPU_f16(DEPTHWISES)
GPU_f32(DEPTHWISES)

}  // namespace gpu
