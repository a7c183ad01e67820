// Fills and copies: bits only, so bodies depend on the element's size. Traffic: a copy reads and writes each element once.
#include "elementwise.h"
namespace gpu {

// out[i] = value. Launch: FILL_VECTORS 16-byte vectors per thread.
template <class B> GPU_FN void fill(size_t n, B value, B* out) {
  constexpr int W = 16 / sizeof(B), Unroll = FILL_VECTORS;
  const Walk<W, Unroll> walk(n, vector_aligned<W>(out));
  Vec<B, W> x;
  UNROLL for (int j = 0; j < W; j++) x.v[j] = value;
  for (size_t base = walk.first; base < walk.vectors; base += walk.step)
    UNROLL for (int u = 0; u < Unroll; u++)
      if (walk.at(base, u) < walk.vectors) store_vec<B, W>(out, walk.at(base, u), x);
  NO_UNROLL for (size_t i = walk.single; i < n; i += walk.single_step) out[i] = value;
}
template <class T> GPU_FN bits_t<T> bits_of(T x) { return (bits_t<T>)x; }
GPU_FN u32 bits_of(f32 x) { return f32_bits(x); }
GPU_FN u64 bits_of(f64 x) { return f64_bits(x); }
GPU_FN u16 bits_of(f16 x) { return x.bits; }
GPU_FN u16 bits_of(bf16 x) { return x.bits; }
GPU_FN u8 bits_of(f8e4m3 x) { return x.bits; }

// out[i·out_stride + j] = x[i·x_stride + j] for i < rows, j < cols.
// Launch: FILL_VECTORS units per thread; a unit is 16 bytes where rows allow it, else one element.
template <class U> GPU_FN void copy_rows(const U* src, U* dst, size_t d1, size_t d2, size_t src_stride, size_t dst_stride) {
  constexpr int Unroll = FILL_VECTORS;
  const size_t n = d1 * d2;
  const Walk<1, Unroll> walk(n, true);
  for (size_t base = walk.first; base < n; base += walk.step) {
    U x[Unroll];
    const size_t row = divide(base, d2), col = base - row * d2;
    UNROLL for (int u = 0; u < Unroll; u++) {
      const size_t down = wraps(walk.at(col, u), d2);
      if (walk.at(base, u) < n) x[u] = src[(row + down) * src_stride + walk.at(col, u) - down * d2];
    }
    UNROLL for (int u = 0; u < Unroll; u++) {
      const size_t down = wraps(walk.at(col, u), d2);
      if (walk.at(base, u) < n) dst[(row + down) * dst_stride + walk.at(col, u) - down * d2] = x[u];
    }
  }
}
template <class B>
GPU_FN void copy2d(const B* src, B* dst, size_t d1, size_t d2, size_t src_stride, size_t dst_stride) {
  constexpr size_t W = 16 / sizeof(B);
  typedef Bytes16 V;
  if (aligned_to(src, 16) && aligned_to(dst, 16) && (d2 | src_stride | dst_stride) % W == 0)
    copy_rows<V>((const V*)src, (V*)dst, d1, d2 / W, src_stride / W, dst_stride / W);
  else
    copy_rows<B>(src, dst, d1, d2, src_stride, dst_stride);
}

#define FILL(T) \
  KERNEL_BOUNDS(GPU_BLOCK, fill_##T, T* out, size_t numel, T value) { \
    fill<bits_t<T>>(numel, bits_of(value), (bits_t<T>*)out); \
  } \
  KERNEL_BOUNDS(GPU_BLOCK, copy2d_##T, const T* x, T* out, size_t rows, size_t cols, size_t x_stride, size_t out_stride) { \
    copy2d<bits_t<T>>((const bits_t<T>*)x, (bits_t<T>*)out, rows, cols, x_stride, out_stride); \
  }
GPU_DTYPES(FILL)

// Any layout to any layout. info = dims ‖ x strides ‖ out strides. Launch: FILL_VECTORS vectors of 16 bytes per
// thread where the inner dim is a multiple of them, else single elements.
template <class B> GPU_FN void copy_strided(size_t n, size_t num_dims, const size_t* info, const B* src, B* dst) {
  constexpr int W = 16 / sizeof(B), Unroll = FILL_VECTORS;
  const Operand<B, W> from(src, 0, num_dims, info), to(dst, 1, num_dims, info);
  const Walk<W, Unroll> walk(n, runs_of<W>(num_dims, info));
  i64 at[2];
  // Finding a place takes as long as reading from it: several reads must be on their way at once.
  if (from.vector && to.vector)
    for (size_t base = walk.first; base < walk.vectors; base += walk.step) {
      Bytes16 x[Unroll];
      i64 place[Unroll];
      UNROLL for (int u = 0; u < Unroll; u++)
        if (walk.at(base, u) < walk.vectors) {
          offsets<2>(walk.at(base, u) * W, num_dims, info, at);
          x[u] = *(const Bytes16*)(src + at[0]);
          place[u] = at[1];
        }
      UNROLL for (int u = 0; u < Unroll; u++)
        if (walk.at(base, u) < walk.vectors) *(Bytes16*)(dst + place[u]) = x[u];
    }
  else
    NO_UNROLL for (size_t v = walk.thread; v < walk.vectors; v += walk.single_step) {
      offsets<2>(v * W, num_dims, info, at);
      UNROLL for (int j = 0; j < W; j++) dst[at[1] + j * to.stride] = src[at[0] + j * from.stride];
    }
  NO_UNROLL for (size_t i = walk.single; i < n; i += walk.single_step) {
    offsets<2>(i, num_dims, info, at);
    dst[at[1]] = src[at[0]];
  }
}

// out[b, c, r] = x[b, r, c]: a tile is read along c, turned in shared memory and written along r, so both sides move
// whole lines. Launch: a block per tile of TRANSPOSE_TILE², half as wide for 8 bytes; tiles of all batches in one grid. Rows of the
// shared tile are padded by one bank, so that walking down a column touches 32 different banks.
template <class B, int Tile, int Pad>
GPU_FN void transpose(B* tile, size_t batch, size_t rows, size_t cols, size_t src_batch, size_t src_row,
                      size_t dst_batch, size_t dst_row, const B* src, B* dst) {
  constexpr int Step = GPU_BLOCK / Tile, Row = Tile + Pad;
  const size_t across = ceil_div(cols, Tile), down = ceil_div(rows, Tile), tiles = across * down * batch;
  const u32 x = tid_x() % Tile, y = tid_x() / Tile;
  for (size_t t = bid_x(); t < tiles; t += gdim_x()) {
    const size_t b = divide(t, across * down), in = t - b * (across * down), row = divide(in, across);
    const size_t r0 = row * Tile, c0 = (in - row * across) * Tile;
    const B* from = src + b * src_batch;
    B* to = dst + b * dst_batch;
    barrier();
    UNROLL for (int j = 0; j < Tile; j += Step)
      if (r0 + y + j < rows && c0 + x < cols) tile[(y + j) * Row + x] = from[(r0 + y + j) * src_row + c0 + x];
    barrier();
    UNROLL for (int j = 0; j < Tile; j += Step)
      if (c0 + y + j < cols && r0 + x < rows) to[(c0 + y + j) * dst_row + r0 + x] = tile[x * Row + y + j];
  }
}

// The same for pairs of 2-byte elements: half the loads and stores. A row of the shared tile has 33 words, so that rows
// start in different banks.
GPU_FN void transpose_pairs(u16* tile, size_t batch, size_t rows, size_t cols, size_t src_batch, size_t src_row,
                            size_t dst_batch, size_t dst_row, const u16* src, u16* dst) {
  constexpr int Tile = TRANSPOSE_TILE, Row = Tile + 2, Step = GPU_BLOCK / (Tile / 2);
  const size_t across = ceil_div(cols, Tile), down = ceil_div(rows, Tile), tiles = across * down * batch;
  const u32 x = tid_x() % (Tile / 2) * 2, y = tid_x() / (Tile / 2);
  for (size_t t = bid_x(); t < tiles; t += gdim_x()) {
    const size_t b = divide(t, across * down), in = t - b * (across * down), row = divide(in, across);
    const size_t r0 = row * Tile, c0 = (in - row * across) * Tile;
    const u16* from = src + b * src_batch;
    u16* to = dst + b * dst_batch;
    barrier();
    UNROLL for (int j = 0; j < Tile; j += Step)
      if (r0 + y + j < rows && c0 + x < cols) *(u32*)(tile + (y + j) * Row + x) = *(const u32*)(from + (r0 + y + j) * src_row + c0 + x);
    barrier();
    UNROLL for (int j = 0; j < Tile; j += Step)
      if (c0 + y + j < cols && r0 + x < rows)
        *(u32*)(to + (c0 + y + j) * dst_row + r0 + x) = tile[x * Row + y + j] | (u32)tile[(x + 1) * Row + y + j] << 16;
  }
}
template <class B> GPU_FN bool pairs(size_t, size_t, size_t, const B*, const B*) { return false; }
GPU_FN bool pairs(size_t sizes, size_t src_strides, size_t dst_strides, const u16* src, const u16* dst) {
  return ((sizes | src_strides | dst_strides) & 1) == 0 && aligned_to(src, 4) && aligned_to(dst, 4);
}
template <class B> GPU_FN void transpose_pairs(B*, size_t, size_t, size_t, size_t, size_t, size_t, size_t, const B*, B*) {}

// Lines that begin and end anywhere as lines of whole pieces of 16 bytes, which products read at once: out is (batch, lines, length
// rounded up to pieces), zeros behind each line. A thread makes a piece, so stores are whole; what it reads its neighbours read too,
// from the cache.
template <class B>
GPU_FN void pad_lines(const B* x, B* out, size_t batch, size_t lines, size_t length, i64 line_step, i64 step, size_t num_dims,
                      const size_t* info) {
  constexpr int V = 16 / sizeof(B);
  const size_t pieces = ceil_div(length, V);
  single_loop(batch * lines * pieces, [&](size_t i) {
    const size_t line = divide(i, pieces), z = divide(line, lines), at = (i - line * pieces) * V;
    const B* const from = x + offset(z, num_dims, info) + (i64)(line - z * lines) * line_step + (i64)at * step;
    Vec<B, V> piece;
    UNROLL for (int v = 0; v < V; v++) piece.v[v] = at + v < length ? from[v * step] : (B)0;
    put(out + i * V, piece);
  });
}
#define PAD_LINES(bytes, B) \
  KERNEL_BOUNDS(GPU_BLOCK, pad_lines_##bytes, const B* x, B* out, size_t batch, size_t lines, size_t length, size_t line_step, \
                size_t step, size_t num_dims, const size_t* info) { \
    pad_lines(x, out, batch, lines, length, (i64)line_step, (i64)step, num_dims, info); \
  }

#define COPIES(bytes, B, Tile, Pad) \
  KERNEL_BOUNDS(GPU_BLOCK, copy_strided_##bytes, const B* x, B* out, size_t numel, size_t num_dims, const size_t* info) { \
    copy_strided<B>(numel, num_dims, info, x, out); \
  } \
  KERNEL_BOUNDS(GPU_BLOCK, transpose_##bytes, const B* x, B* out, size_t batch, size_t rows, size_t cols, size_t x_batch_stride, \
                size_t x_row_stride, size_t out_batch_stride, size_t out_row_stride) { \
    SHARED(B, tile, Tile * (Tile + Pad)); \
    if (pairs(rows | cols, x_batch_stride | x_row_stride, out_batch_stride | out_row_stride, x, (const B*)out)) \
      transpose_pairs(tile, batch, rows, cols, x_batch_stride, x_row_stride, out_batch_stride, out_row_stride, x, out); \
    else \
      transpose<B, Tile, Pad>(tile, batch, rows, cols, x_batch_stride, x_row_stride, out_batch_stride, out_row_stride, x, out); \
  }
#if !defined(GPU_ONLY) || defined(GPU_ONLY_bytes)
COPIES(1, u8, TRANSPOSE_TILE, 4)
COPIES(2, u16, TRANSPOSE_TILE, 2)
COPIES(4, u32, TRANSPOSE_TILE, 1)
COPIES(8, u64, TRANSPOSE_TILE / 2, 1)
PAD_LINES(2, u16)
PAD_LINES(4, u32)
#endif

}  // namespace gpu
