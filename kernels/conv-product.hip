// Convolutions of halves on a matrix unit (conv-feed.h), and what brings their operands into the order in which it reads them.
#include "conv-feed.h"
namespace gpu {

// An image per group: (image, group, row, column, channel), channels in whole pieces of 8, zeros where there is nothing: around it,
// from `top` and `left` on, and behind the last channel. Where channels are few, a column holds those under all `taps` of the
// kernel's row instead, one behind the other: columns are then those of the result, `step` apart, and the taps `dilation` apart.
struct Gather {
  size_t groups, channels, height, width, rows, columns, pieces, taps, top, left, step, dilation;
  i64 image, group, channel, row, column;  // steps of x
};

// Any layout of x. 32 threads make two pieces of 16 pixels: what they read, and what they write, are 32 bytes side by side.
// Launch: a thread per piece, of an even number of them and whole sixteens of pixels.
GPU_FN void gather(const Gather& p, size_t n, const u16* x, u16* out) {
  const size_t pairs = (p.pieces + 1) / 2, pixels = p.rows * p.columns, sixteens = ceil_div(pixels, 16);
  single_loop(n, [&](size_t i) {
    const size_t rest = divide(i / 32, pairs), piece = (i / 32 - rest * pairs) * 2 + i % 32 / 16;
    const size_t plane = divide(rest, sixteens), pixel = (rest - plane * sixteens) * 16 + i % 16;
    if (pixel >= pixels || piece >= p.pieces) return;
    const size_t row = divide(pixel, p.columns), column = pixel - row * p.columns;
    const size_t image = divide(plane, p.groups), g = plane - image * p.groups;
    const size_t sy = row - p.top;
    const u16* const from = x + (i64)image * p.image + (i64)g * p.group + (i64)sy * p.row;
    size_t tap = p.taps == 1 ? 0 : divide(piece * 8, p.channels), c = piece * 8 - tap * p.channels;
    Vec<u16, 8> y;
    UNROLL for (int e = 0; e < 8; e++) {
      const size_t sx = column * p.step + tap * p.dilation - p.left;
      const bool there = sy < p.height && sx < p.width && tap < p.taps && c < p.channels;
      y.v[e] = there ? from[(i64)c * p.channel + (i64)sx * p.column] : (u16)0;
      if (++c == p.channels && p.taps > 1) c = 0, tap++;
    }
    store_vec<u16, 8>(out, (plane * pixels + pixel) * p.pieces + piece, y);
  });
}

// The same where a channel's pixels are neighbours, all channels begin at multiples of 8 elements and have multiples of 8 pixels,
// and no taps are folded. 32 threads move 32 channels of 64 pixels: they read 128 bytes of four channels at a
// time and write 64 bytes of eight pixels. Launch: 8 of those per block; what is around the images comes behind.
struct alignas(16) Piece {
  u32 words[4];
  GPU_METHOD u32& operator[](int i) { return words[i]; }
  GPU_METHOD u32 operator[](int i) const { return words[i]; }
};
GPU_FN void turn(const Gather& p, size_t planes, const u16* x, u16* out) {
  const u32 lane = tid_x() % 32;
  const size_t pixels = p.height * p.width, across = ceil_div(p.pieces, 4), down = ceil_div(pixels, 64), each = across * down;
  const size_t step = (size_t)gdim_x() * (GPU_BLOCK / 32);
  const Piece none = {{0, 0, 0, 0}};
  NO_UNROLL for (size_t i = (size_t)bid_x() * (GPU_BLOCK / 32) + tid_x() / 32; i < each * planes; i += step) {
    const size_t plane = divide(i, each), in = i - plane * each, tile = divide(in, across);
    const size_t first = tile * 64 + lane % 8 * 8, piece = (in - tile * across) * 4 + lane / 8;
    if (first >= pixels || piece >= p.pieces) continue;
    const size_t image = divide(plane, p.groups), g = plane - image * p.groups;
    const u16* const from = x + (i64)image * p.image + (i64)g * p.group + (i64)first;
    Piece a[8];
    UNROLL for (int r = 0; r < 8; r++) {
      const size_t c = piece * 8 + r;
      const u32 there = c < p.channels ? ~0u : 0;
      const Words4 words = *(const Words4*)(from + (there ? (i64)c * p.channel : 0));
      UNROLL for (int w = 0; w < 4; w++) a[r].words[w] = words.v[w] & there;
    }
    size_t row = divide(first, p.width), column = first - row * p.width;
    UNROLL for (int r = 0; r < 8; r++) {
      ((Piece*)out)[((plane * p.rows + row + p.top) * p.columns + column + p.left) * p.pieces + piece] = turned(a, r);
      if (++column == p.width) column = 0, row++;
    }
  }
  // What is around: whole rows above, what is beside the image's rows, whole rows below.
  const size_t above = p.top * p.columns, beside = p.columns - p.width, around = p.rows * p.columns - pixels;
  single_loop(planes * around * p.pieces, [&](size_t i) {
    const size_t rest = divide(i, p.pieces), plane = divide(rest, around);
    size_t at = rest - plane * around;
    if (at >= above + p.height * beside) at += pixels;
    else if (at >= above) {
      const size_t row = divide(at - above, beside), column = at - above - row * beside;
      at = above + row * p.columns + column + (column >= p.left ? p.width : 0);
    }
    ((Piece*)out)[(plane * p.rows * p.columns + at) * p.pieces + (i - rest * p.pieces)] = none;
  });
}

// conv_product makes whole images, conv_spread every so many rows and columns of them: a transposed convolution is one of those for
// each place that an output can have between inputs.
#define CONV_PRODUCT(name, SIZE, SINK, T) \
  KERNEL_BOUNDS(GPU_BLOCK, name##_##T, const T* x, const T* w, T* out, size_t groups, size_t m, size_t n, size_t depth, const size_t* info) { \
    if constexpr (Block<T, SIZE>::EXISTS) { \
      DYNAMIC_SHARED(T, shared); \
      convolutions<T, SIZE, SINK<T>>(shared, x, w, out, groups, m, n, depth, *(const Patches*)info); \
    } \
  }
#define CONV_PRODUCTS(T) \
  CONV_PRODUCT(conv_product_small, SMALL, ImageSink, T) CONV_PRODUCT(conv_spread_small, SMALL, SpreadSink, T) \
  CONV_PRODUCT(conv_product, LARGE, ImageSink, T) CONV_PRODUCT(conv_spread, LARGE, SpreadSink, T) \
  CONV_PRODUCT(conv_product_wide, WIDE, ImageSink, T) CONV_PRODUCT(conv_spread_wide, WIDE, SpreadSink, T) \
  KERNEL_BOUNDS(GPU_BLOCK, conv_gather_##T, const T* x, T* out, size_t numel, const size_t* info) { \
    gather(*(const Gather*)info, numel, (const u16*)x, (u16*)out); \
  } \
  KERNEL_BOUNDS(GPU_BLOCK, conv_turn_##T, const T* x, T* out, size_t planes, const size_t* info) { \
    turn(*(const Gather*)info, planes, (const u16*)x, (u16*)out); \
  }
GPU_bf16(CONV_PRODUCTS)
GPU_f16(CONV_PRODUCTS)

}  // namespace gpu
