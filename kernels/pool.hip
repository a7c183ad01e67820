// Pooling and resizing of the last two dims of (batch, channels, height, width). Launch: an output per thread and
// round, neighbouring threads on neighbouring columns. info = x dims ‖ x strides. Traffic: out written once, x read once per
// window, from cache where windows overlap.
#include "gpu.h"
namespace gpu {

template <class T> struct Accumulate { typedef compute_t<T> type; };
template <> struct Accumulate<u8> { typedef u32 type; };

struct Output { size_t plane, y, x; };
GPU_FN Output output_at(size_t i, size_t h_out, size_t w_out) {
  const size_t row = divide(i, w_out), plane = divide(row, h_out);
  return Output{plane, row - plane * h_out, i - row * w_out};
}
GPU_FN i64 plane_offset(size_t plane, const size_t* info) {
  const size_t b = divide(plane, info[1]);
  return (i64)b * (i64)info[4] + (i64)(plane - b * info[1]) * (i64)info[5];
}

// The mean or the maximum of each window; no padding. Integer means round toward zero; NaN wins the maximum.
template <class T, bool Max>
GPU_FN void pool2d(size_t n, size_t h_k, size_t w_k, size_t h_stride, size_t w_stride, const size_t* info, const T* src, T* dst) {
  typedef typename Accumulate<T>::type A;
  const size_t h_out = (info[2] - h_k) / h_stride + 1, w_out = (info[3] - w_k) / w_stride + 1;
  const size_t step = (size_t)gdim_x() * bdim_x();
  const i64 row = (i64)info[6], col = (i64)info[7];
  for (size_t i = (size_t)bid_x() * bdim_x() + tid_x(); i < n; i += step) {
    const Output o = output_at(i, h_out, w_out);
    const T* window = src + plane_offset(o.plane, info) + (i64)(o.y * h_stride) * row + (i64)(o.x * w_stride) * col;
    A acc = Max ? (A)widen(*window) : (A)0;
    NO_UNROLL for (size_t y = 0; y < h_k; y++)
      NO_UNROLL for (size_t x = 0; x < w_k; x++) {
        const A v = (A)widen(window[(i64)y * row + (i64)x * col]);
        acc = Max ? maximum(acc, v) : add(acc, v);
      }
    dst[i] = narrow<T>((compute_t<T>)(Max ? acc : acc / (A)(h_k * w_k)));
  }
}

// Output i takes input ⌊i·scale⌋, with the scale rounded to f32 as PyTorch does.
GPU_FN size_t nearest(size_t i, f32 scale, size_t size) {
  const size_t at = (size_t)m_floor((f32)i * scale);
  return at < size ? at : size - 1;
}
template <class B>
GPU_FN void upsample_nearest(size_t n, size_t h_out, size_t w_out, f64 h_scale, f64 w_scale, const size_t* info, const B* src, B* dst) {
  const size_t step = (size_t)gdim_x() * bdim_x();
  for (size_t i = (size_t)bid_x() * bdim_x() + tid_x(); i < n; i += step) {
    const Output o = output_at(i, h_out, w_out);
    const size_t y = nearest(o.y, (f32)h_scale, info[2]), x = nearest(o.x, (f32)w_scale, info[3]);
    dst[i] = src[plane_offset(o.plane, info) + (i64)y * (i64)info[6] + (i64)x * (i64)info[7]];
  }
}

// Output i reads between inputs at i·scale with aligned corners, else at max(0, (i + ½)·scale − ½). The scale is (in − 1) /
// (out − 1) or in / out, or 1 / the user's scale factor where there is one: it is 0 where there is none.
template <class C> GPU_FN C step_of(bool align_corners, f64 scale, size_t in, size_t out) {
  if (align_corners) return out > 1 ? (C)((f64)(in - 1) / (f64)(out - 1)) : (C)0;
  return (C)(scale != 0 ? 1.0 / scale : (f64)in / (f64)out);
}
template <class C> GPU_FN C position(size_t i, C step, size_t size, bool align_corners) {
  const C at = align_corners ? step * (C)i : maximum((C)0, step * ((C)i + (C)0.5) - (C)0.5);
  return minimum(at, (C)(size - 1));
}
template <class T> struct Weights { typedef f32 type; };
template <> struct Weights<f64> { typedef f64 type; };
template <> struct Weights<u32> { typedef f64 type; };
template <class T>
GPU_FN void upsample_bilinear(size_t n, size_t h_out, size_t w_out, f64 scale_h, f64 scale_w, bool align_corners, const size_t* info, const T* src, T* dst) {
  typedef typename Weights<T>::type C;
  const size_t step = (size_t)gdim_x() * bdim_x(), h = info[2], w = info[3];
  const C step_h = step_of<C>(align_corners, scale_h, h, h_out);
  const C step_w = step_of<C>(align_corners, scale_w, w, w_out);
  const i64 row = (i64)info[6], col = (i64)info[7];
  for (size_t i = (size_t)bid_x() * bdim_x() + tid_x(); i < n; i += step) {
    const Output o = output_at(i, h_out, w_out);
    const C y = position(o.y, step_h, h, align_corners), x = position(o.x, step_w, w, align_corners);
    const size_t top = (size_t)y, left = (size_t)x;
    const i64 down = top + 1 < h ? row : 0, right = left + 1 < w ? col : 0;
    const C below = y - (C)top, after = x - (C)left;
    const T* at = src + plane_offset(o.plane, info) + (i64)top * row + (i64)left * col;
    const C upper = ((C)1 - after) * (C)widen(at[0]) + after * (C)widen(at[right]);
    const C lower = ((C)1 - after) * (C)widen(at[down]) + after * (C)widen(at[down + right]);
    dst[i] = convert<T>(((C)1 - below) * upper + below * lower);
  }
}

#define POOL2D(kind, T, Max) \
  KERNEL_BOUNDS(GPU_BLOCK, kind##_pool2d_##T, const T* x, T* out, size_t numel, const size_t* info, size_t h_k, size_t w_k, \
                size_t stride_h, size_t stride_w) { \
    pool2d<T, Max>(numel, h_k, w_k, stride_h, stride_w, info, x, out); \
  }
#define POOL(T) \
  POOL2D(avg, T, false) POOL2D(max, T, true) \
  KERNEL_BOUNDS(GPU_BLOCK, upsample_nearest2d_##T, const T* x, T* out, size_t numel, const size_t* info, size_t h_out, size_t w_out, \
                f64 scale_h, f64 scale_w) { \
    upsample_nearest<bits_t<T>>(numel, h_out, w_out, scale_h, scale_w, info, (const bits_t<T>*)x, (bits_t<T>*)out); \
  } \
  KERNEL_BOUNDS(GPU_BLOCK, upsample_bilinear2d_##T, const T* x, T* out, size_t numel, const size_t* info, size_t h_out, size_t w_out, \
                f64 scale_h, f64 scale_w, u8 align_corners) { \
    upsample_bilinear<T>(numel, h_out, w_out, scale_h, scale_w, align_corners, info, x, out); \
  }
GPU_NUMBERS(POOL)

}  // namespace gpu
