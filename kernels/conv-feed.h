// Convolution as a product: out (o, pixel) = weights (o, k) · patches (k, pixel), where k runs over the taps and over the channels
// under each, and pixels over all images. Weights lie along k as conv_gather makes them. Patches are not made: pixels' channels lie
// side by side, zeros around the image included, so the channels under a tap are a run of whole pieces at one distance from those
// under the first tap, the same for every pixel.
#ifndef WICK_CONV_FEED_H
#define WICK_CONV_FEED_H
#include "product.h"
namespace gpu {

// How an image's channels lie, in pieces of 8 halves: from one image, group, row and column of the result to the next, and from
// one tap to the next, down and across. `pieces` are the channels under a tap. A channel of the result has `plane` elements; where
// only some of them are made, every so many rows and columns, `out_row` and `out_column` are from one to the next.
struct Patches {
  size_t pixels, columns, taps_across, pieces, plane, out_row, out_column;
  i64 image, group, row, column, tap_down, tap_across;
};

// n / d by a multiplication, where n · d < 2^32 − d: reciprocal is (2^32 − 1) / d.
GPU_FN u32 quotient(u32 n, u32 reciprocal) { return (u32)((u64)(n + 1) * reciprocal >> 32); }

// The patches of LINES pixels, as a feed that reads lines along k.
template <class T, int LINES, int BK, int THREADS, bool WIDE> struct PatchFeed : DenseFeed<T, LINES, BK, ALONG_K, THREADS, WIDE> {
  typedef DenseFeed<T, LINES, BK, ALONG_K, THREADS, WIDE> Base;
  using typename Base::Held;
  using typename Base::Tile;
  using Base::ROUNDS, Base::ON, Base::PITCH, Base::V;
  struct Source {
    const T* at;
    size_t lines, depth;
    const Patches& patches;
  };

  u32 pieces, by_pieces, across, by_across;
  i32 down_step, across_step;
  // Where the first taps of this thread's pixels are.
  i32 first_tap[ROUNDS];

  GPU_METHOD PatchFeed(const Source& o, size_t first) : Base(Operand<T>{o.at, o.lines, o.depth, 0}, first) {
    const Patches& p = o.patches;
    pieces = (u32)p.pieces;
    across = (u32)p.taps_across;
    by_pieces = 0xffffffffu / pieces;
    by_across = 0xffffffffu / across;
    down_step = (i32)p.tap_down;
    across_step = (i32)p.tap_across;
    UNROLL for (int round = 0; round < ROUNDS; round++) {
      const size_t line = first + Base::line_of(round), image = divide(line, p.pixels), pixel = line - image * p.pixels;
      const size_t row = divide(pixel, p.columns), column = pixel - row * p.columns;
      first_tap[round] = (i32)((i64)image * p.image + (i64)row * p.row + (i64)column * p.column);
    }
  }
  // From a pixel's first tap to this thread's piece of the slice.
  GPU_METHOD i32 piece_at(u32 k0) const {
    const u32 piece = (k0 + Base::k_of(0)) / V, tap = quotient(piece, by_pieces), down = quotient(tap, by_across);
    return (i32)down * down_step + (i32)(tap - down * across) * across_step + (i32)(piece - tap * pieces);
  }
  GPU_METHOD const T* source(int round, i32 piece) const { return Base::anywhere + (i64)(first_tap[round] + piece) * V; }

  GPU_METHOD void copy(T* slice, u32 k0) const {
    const i32 piece = piece_at(k0);
    T* const to = slice + Base::place(0, 0);
    UNROLL for (int round = 0; round < ROUNDS; round++) {
      const bool valid = Base::inside(round, k0, 0);
      if (Base::mine(round)) Tile::copy(to + round * ON * PITCH, valid ? source(round, piece) : Base::anywhere, valid, true);
    }
  }
  template <bool LAST> GPU_METHOD void hold(Held& held, u32 k0) const {
    const i32 piece = piece_at(k0);
    UNROLL for (int round = 0; round < ROUNDS; round++)
      held[round][0] = *(const Bytes16*)(Base::mine(round) && Base::inside(round, k0, 0) ? source(round, piece) : Base::anywhere);
  }
};

// Results whose columns are the pixels of all images. Those of an image's row are neighbours, and so are rows.
template <class T> struct ImageSink {
  static constexpr bool IN_ROWS = true;
  T* out;  // of the first column's image
  size_t image_step;
  u32 m, rest, pixels, pixel;
  GPU_METHOD ImageSink(T* all, u32 m, u32 n, const Patches& p, size_t image_step, u32 first)
      : image_step(image_step), m(m), rest(n - first), pixels((u32)p.pixels) {
    const u32 image = first / pixels;
    pixel = first - image * pixels;
    out = all + image * image_step;
  }
  // `col` columns behind the first: how many images on, and which pixel there.
  GPU_METHOD u32 images(u32 col) const {
    const u32 on = pixel + col;
    return on < pixels ? 0 : on < 2 * pixels ? 1 : on / pixels;
  }
  GPU_METHOD T* at(u32 row, u32 col) const {
    const u32 on = images(col);
    return out + on * image_step + ((size_t)row * pixels + (pixel + col - on * pixels));
  }
  template <int R> GPU_METHOD bool takes() const { return pixels % R == 0 && vector_aligned<R>(out); }
  template <int R> GPU_METHOD void put(u32 row, u32 col, const f32 (&x)[R]) const {
    if (row >= m) return;
    Vec<T, R> y;
    UNROLL for (int r = 0; r < R; r++) y.v[r] = narrow<T>(x[r]);
    if (takes<R>()) {
      if (col < rest) *(Vec<T, R>*)at(row, col) = y;
    } else UNROLL for (int r = 0; r < R; r++)
      if (col + r < rest) *at(row, col + r) = y.v[r];
  }
};

// The same where there are others between them.
template <class T> struct SpreadSink : ImageSink<T> {
  typedef ImageSink<T> Base;
  const Patches& p;
  GPU_METHOD SpreadSink(T* all, u32 m, u32 n, const Patches& p, size_t image_step, u32 first) : Base(all, m, n, p, image_step, first), p(p) {}
  template <int R> GPU_METHOD bool takes() const { return R == 1; }
  template <int R> GPU_METHOD void put(u32 row, u32 col, const f32 (&x)[R]) const {
    UNROLL for (int r = 0; r < R; r++) {
      if (row >= Base::m || col + r >= Base::rest) continue;
      const u32 on = Base::images(col + r), at = Base::pixel + col + r - on * Base::pixels, y = at / (u32)p.columns;
      Base::out[on * Base::image_step + row * p.plane + y * p.out_row + (at - y * (u32)p.columns) * p.out_column] = narrow<T>(x[r]);
    }
  }
};

// Blocks are as in product.h, but large ones are made by warpgroups where there are such, two at a time on a multiprocessor: while
// one of them waits for its patches, the other multiplies.
template <class T, Size SIZE> struct ConvBlock : Block<T, SIZE> {};
#if GPU_WARPGROUPS
template <class T> struct ConvBlock<T, LARGE> {
  static constexpr int BM = PRODUCT_TILE, BN = PRODUCT_TILE, BK = WIDE_ROW, THREADS = 2 * BM;
  static constexpr bool GROUPS = true, EXISTS = true;
  template <Lie LIE> using FeedA = DenseFeed<T, BM, BK, LIE, THREADS, true>;
  template <class A, class B> using Of = WideProduct<T, BM, BN, PRODUCT_ASYNC_STAGES, A, B>;
};
#endif

// The groups' products: m × depth weights each, n < 2^32 pixels of all images.
template <class T, Size SIZE, class Sink>
GPU_FN void convolutions(T* shared, const T* x, const T* w, T* out, size_t groups, size_t m, size_t n, size_t depth, const Patches& p) {
  typedef ConvBlock<T, SIZE> Blk;
  typedef typename Blk::template FeedA<ALONG_K> FeedA;
  typedef PatchFeed<T, Blk::BN, Blk::BK, Blk::THREADS, Blk::GROUPS> FeedB;
  const size_t down = ceil_div(m, (size_t)Blk::BM), across = ceil_div(n, (size_t)Blk::BN), each = down * across;
  for (size_t i = bid_x(); i < each * groups; i += gdim_x()) {
    const size_t g = divide(i, each);
    const TileAt tile = tile_at(i - g * each, down, across);
    const size_t row = tile.row * Blk::BM, col = tile.column * Blk::BN;
    const FeedA fa(Operand<T>{w + g * m * depth, m, depth, (i64)depth}, row);
    const FeedB fb(typename FeedB::Source{x + (i64)g * p.group * 8, n, depth, p}, col);
    const Sink sink(out + g * m * p.plane, (u32)m, (u32)n, p, groups * m * p.plane, (u32)col);
    Blk::template Of<FeedA, FeedB>::run(shared, fa, fb, (u32)depth, sink, row, 0);
  }
}

}  // namespace gpu
#endif
