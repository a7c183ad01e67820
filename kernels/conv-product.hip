// Convolutions of halves on a matrix unit (conv-feed.h), and what brings their operands into the order in which it reads them.
#include "conv-feed.h"
namespace gpu {

// An image per group: (image, group, row, column, channel), channels in whole pieces of 8, zeros where there is nothing: around it,
// from `top` and `left` on, and behind the last channel. Where channels are few, a column holds those under all `taps` of the
// kernel's row instead, one behind the other: columns are then those of the result, `step` apart, and the taps `dilation` apart.
// Kernels of small groups are multiplied together: each has its own `channels` of `all`, every `outs` kernels the next ones, with
// zeros for the others' channels.
struct Gather {
  size_t groups, channels, all, outs, height, width, rows, columns, pieces, taps, top, left, step, dilation;
  i64 image, block, group, channel, row, column;  // steps of x; from one group's kernels to the next `block`
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
    const size_t block = p.all == p.channels ? 0 : divide(g, p.outs), sy = row - p.top;
    const u16* const from = x + (i64)image * p.image + (i64)block * p.block + (i64)(g - block * p.outs) * p.group + (i64)sy * p.row;
    size_t tap = p.taps == 1 ? 0 : divide(piece * 8, p.all), c = piece * 8 - tap * p.all;
    Vec<u16, 8> y;
    UNROLL for (int e = 0; e < 8; e++) {
      const size_t sx = column * p.step + tap * p.dilation - p.left, own = c - block * p.channels;
      const bool there = sy < p.height && sx < p.width && tap < p.taps && own < p.channels;
      y.v[e] = there ? from[(i64)own * p.channel + (i64)sx * p.column] : (u16)0;
      if (++c == p.all && p.taps > 1) c = 0, tap++;
    }
    store_vec<u16, 8>(out, (plane * pixels + pixel) * p.pieces + piece, y);
  });
}

struct alignas(16) Piece {
  u32 words[4];
  GPU_METHOD u32& operator[](int i) { return words[i]; }
  GPU_METHOD u32 operator[](int i) const { return words[i]; }
};
// `count` elements, 8 at most, at a multiple of `unit` of them, and zeros behind.
GPU_FN Piece piece_of(const u16* from, size_t count, u32 unit) {
  Piece a = {{0, 0, 0, 0}};
  if (unit == 8) {
    if (count == 0) return a;
    const Words4 x = *(const Words4*)from;
    UNROLL for (int w = 0; w < 4; w++) a.words[w] = x.v[w];
  } else if (unit == 4) {
    UNROLL for (int half = 0; half < 2; half++)
      if ((size_t)half * 4 < count) {
        const Vec<u32, 2> x = *(const Vec<u32, 2>*)(from + half * 4);
        UNROLL for (int w = 0; w < 2; w++) a.words[half * 2 + w] = x.v[w];
      }
  } else {
    UNROLL for (int e = 0; e < 8; e++)
      if ((size_t)e < count) a.words[e / 2] |= (u32)from[e] << e % 2 * 16;
  }
  return a;
}

// The same where a channel's pixels are neighbours and no taps are folded. 32 threads move TURN_ACROSS times 8 pixels of
// 32 / TURN_ACROSS pieces: each reads 8 pixels of 8 channels and turns them. Launch: 8 of those per block; what is around the images
// comes behind.
template <int ACROSS> GPU_FN void turn(const Gather& p, size_t planes, const u16* x, u16* out) {
  constexpr int DOWN = 32 / ACROSS;
  const u32 lane = tid_x() % 32;
  const size_t pixels = p.height * p.width, across = ceil_div(p.pieces, DOWN), down = ceil_div(pixels, ACROSS * 8), each = across * down;
  const size_t step = (size_t)gdim_x() * (GPU_BLOCK / 32), multiple = pixels | (size_t)(p.image | p.group | p.channel) | (size_t)x / 2;
  const u32 unit = multiple % 8 == 0 ? 8 : multiple % 4 == 0 ? 4 : 1;
  NO_UNROLL for (size_t i = (size_t)bid_x() * (GPU_BLOCK / 32) + tid_x() / 32; i < each * planes; i += step) {
    const size_t plane = divide(i, each), in = i - plane * each, tile = divide(in, across);
    const size_t first = tile * (ACROSS * 8) + lane % ACROSS * 8, piece = (in - tile * across) * DOWN + lane / ACROSS;
    if (first >= pixels || piece >= p.pieces) continue;
    const size_t image = divide(plane, p.groups), g = plane - image * p.groups, count = pixels - first;
    const u16* const from = x + (i64)image * p.image + (i64)g * p.group + (i64)first;
    Piece a[8];
    UNROLL for (int r = 0; r < 8; r++) a[r] = piece_of(from + (i64)(piece * 8 + r) * p.channel, piece * 8 + r < p.channels ? count : 0, unit);
    size_t row = divide(first, p.width), column = first - row * p.width;
    UNROLL for (int r = 0; r < 8; r++) {
      if ((size_t)r < count) ((Piece*)out)[((plane * p.rows + row + p.top) * p.columns + column + p.left) * p.pieces + piece] = turned(a, r);
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
    ((Piece*)out)[(plane * p.rows * p.columns + at) * p.pieces + (i - rest * p.pieces)] = Piece{{0, 0, 0, 0}};
  });
}

// The same for images of a few pixels all of whose channels are neighbours, with nothing around: kernels. They pass through
// shared memory, as many channels at a time as fit. Launch: a block per image and such a part of it.
GPU_FN void turn_taps(u16* tile, const Gather& p, size_t planes, const u16* x, u16* out) {
  const u32 taps = (u32)(p.height * p.width), most = TURN_ELEMENTS / taps / 8 * 8;
  const size_t parts = ceil_div(p.channels, most);
  for (size_t i = bid_x(); i < planes * parts; i += gdim_x()) {
    const size_t plane = divide(i, parts), first = (i - plane * parts) * most;
    const size_t image = divide(plane, p.groups), g = plane - image * p.groups;
    const u16* const from = x + (i64)image * p.image + (i64)g * p.group + (i64)(first * taps);
    const u32 count = (u32)(p.channels - first < most ? p.channels - first : most), pieces = (count + 7) / 8;
    barrier();
    for (u32 e = tid_x(); e < count * taps; e += GPU_BLOCK) tile[e] = from[e];
    barrier();
    for (u32 t = tid_x(); t < taps * pieces; t += GPU_BLOCK) {
      const u32 tap = t / pieces, piece = t - tap * pieces;
      Vec<u16, 8> y;
      UNROLL for (u32 e = 0; e < 8; e++) y.v[e] = piece * 8 + e < count ? tile[(piece * 8 + e) * taps + tap] : (u16)0;
      store_vec<u16, 8>(out, (plane * taps + tap) * p.pieces + first / 8 + piece, y);
    }
  }
}

// conv_product makes whole images, conv_spread every so many rows and columns of them: a transposed convolution is one of those for
// each place that an output can have between inputs.
#define CONV_PRODUCT(name, SIZE, SINK, T) \
  KERNEL_BOUNDS(GPU_BLOCK, name##_##T, const T* x, const T* w, T* out, size_t groups, size_t m, size_t n, size_t depth, const size_t* info) { \
    if constexpr (ConvBlock<T, SIZE>::EXISTS) { \
      DYNAMIC_SHARED(T, shared); \
      convolutions<T, SIZE, SINK<T>>(shared, x, w, out, groups, m, n, depth, *(const Patches*)info); \
    } \
  }
#define CONV_PRODUCTS(T) \
  CONV_PRODUCT(conv_product_small, SMALL, ImageSink, T) CONV_PRODUCT(conv_spread_small, SMALL, SpreadSink, T) \
  CONV_PRODUCT(conv_product, LARGE, ImageSink, T) CONV_PRODUCT(conv_spread, LARGE, SpreadSink, T) \
  KERNEL_BOUNDS(GPU_BLOCK, conv_gather_##T, const T* x, T* out, size_t numel, const size_t* info) { \
    gather(*(const Gather*)info, numel, (const u16*)x, (u16*)out); \
  } \
  KERNEL_BOUNDS(GPU_BLOCK, conv_turn_##T, const T* x, T* out, size_t planes, const size_t* info) { \
    turn<TURN_ACROSS>(*(const Gather*)info, planes, (const u16*)x, (u16*)out); \
  } \
  KERNEL_BOUNDS(GPU_BLOCK, conv_turn_taps_##T, const T* x, T* out, size_t planes, const size_t* info) { \
    SHARED(u16, tile, TURN_ELEMENTS); \
    turn_taps(tile, *(const Gather*)info, planes, (const u16*)x, (u16*)out); \
  }
GPU_bf16(CONV_PRODUCTS)
GPU_f16(CONV_PRODUCTS)

}  // namespace gpu
