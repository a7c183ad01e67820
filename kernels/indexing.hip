// Reads and writes at places named by ids (u8, u32 or i64). The largest value of the id type means "nothing": reads give
// 0, writes are skipped. Any other id out of range is noted in error[0 … 2] (flag, id, position) and treated as nothing.
//
// Writes that may meet differ only along dim, so each place on the other dims is handled by one thread, or one block, that goes
// through dim in order: the last write wins, sums have one order, and no atomics are needed. index_add is scatter_add whose ids
// have the stride 0 on the other dims.
#include "elementwise.h"
#include "ids.h"
namespace gpu {

// out[l, j, r] = x[l, ids[j], r]. A unit U is 16 bytes where rows allow it, else one element. Launch:
// SELECT_VECTORS units per thread, units of a row side by side. Traffic: selected rows read once, out written once.
template <class I, class U>
GPU_FN void select_units(size_t left, size_t x_dim, size_t ids_dim, size_t right, i64 left_stride, i64 dim_stride,
                         const I* ids, i64 id_stride, const U* from, U* out, u64* error) {
  constexpr int Unroll = SELECT_VECTORS;
  const size_t n = left * ids_dim * right;
  const Walk<1, Unroll> walk(n, true);
  for (size_t base = walk.first; base < n; base += walk.step) {
    U x[Unroll];
    const size_t row = divide(base, right), r = base - row * right;
    const size_t l = left == 1 ? 0 : divide(row, ids_dim), j = row - l * ids_dim;
    I id[Unroll];
    size_t place[Unroll], block[Unroll];
    // All ids are on their way before the first is looked at.
    UNROLL for (int u = 0; u < Unroll; u++) {
      const size_t rows = wraps(walk.at(r, u), right);
      block[u] = left == 1 ? 0 : wraps(j + rows, ids_dim);
      place[u] = j + rows - block[u] * ids_dim;
      if (walk.at(base, u) < n) id[u] = ids[(i64)place[u] * id_stride];
    }
    UNROLL for (int u = 0; u < Unroll; u++) {
      x[u] = U{};
      if (walk.at(base, u) < n) {
        const i64 index = resolve(id[u], x_dim, place[u], error);
        const size_t rows = place[u] + block[u] * ids_dim - j;
        if (index >= 0) x[u] = from[(i64)(l + block[u]) * left_stride + index * dim_stride + (i64)(walk.at(r, u) - rows * right)];
      }
    }
    UNROLL for (int u = 0; u < Unroll; u++)
      if (walk.at(base, u) < n) out[walk.at(base, u)] = x[u];
  }
}
// The same for rows of one matrix and fewer than 2³¹ units, where 32 bits are enough: what comes before a load counts.
template <class I, class U>
GPU_FN void select_rows(u32 n, size_t x_dim, u32 right, i64 dim_stride, const I* ids, i64 id_stride, const U* from, U* out, u64* error) {
  constexpr u32 Unroll = SELECT_VECTORS, Piece = GPU_BLOCK * Unroll;
  NO_UNROLL for (u32 base = bid_x() * Piece + tid_x(); base < n; base += gdim_x() * Piece) {
    U x[Unroll];
    I id[Unroll];
    u32 row[Unroll];
    UNROLL for (u32 u = 0; u < Unroll; u++) {
      row[u] = (base + u * GPU_BLOCK) / right;
      if (base + u * GPU_BLOCK < n) id[u] = ids[row[u] * id_stride];
    }
    UNROLL for (u32 u = 0; u < Unroll; u++) {
      x[u] = U{};
      if (base + u * GPU_BLOCK >= n) continue;
      const i64 index = resolve(id[u], x_dim, row[u], error);
      if (index >= 0) x[u] = from[index * dim_stride + (base + u * GPU_BLOCK - row[u] * right)];
    }
    UNROLL for (u32 u = 0; u < Unroll; u++)
      if (base + u * GPU_BLOCK < n) out[base + u * GPU_BLOCK] = x[u];
  }
}
template <class I, class B>
GPU_FN void index_select(const B* x, const I* ids, B* out, size_t left, size_t x_dim, size_t ids_dim, size_t right, i64 ids_stride,
                         i64 left_stride, i64 dim_stride, u64* error) {
  constexpr size_t W = 16 / sizeof(B);
  typedef Bytes16 V;
  const bool vectors = aligned_to(x, 16) && aligned_to(out, 16) && ((i64)right | left_stride | dim_stride) % (i64)W == 0;
  if (vectors && left == 1 && !(ids_dim >> 31) && ids_dim * (right / W) < 1u << 31)
    select_rows<I, V>((u32)(ids_dim * (right / W)), x_dim, (u32)(right / W), dim_stride / (i64)W, ids, ids_stride, (const V*)x, (V*)out, error);
  else if (vectors)
    select_units<I, V>(left, x_dim, ids_dim, right / W, left_stride / (i64)W, dim_stride / (i64)W, ids, ids_stride, (const V*)x, (V*)out, error);
  else select_units<I, B>(left, x_dim, ids_dim, right, left_stride, dim_stride, ids, ids_stride, x, out, error);
}

// out[i] = x[the place of i in ids, with the coordinate on dim replaced by ids[i]]. `out` has the ids' shape, which may be
// smaller than x's on the other dims: info = dims of ids ‖ strides of ids ‖ strides of x with 0 on dim, and x_stride is x's
// stride on dim.
template <class I, class B>
GPU_FN void gather(const B* x, const I* ids, B* out, size_t n, size_t num_dims, const size_t* info, size_t x_dim, i64 x_stride, u64* error) {
  single_loop(n, [&](size_t i) {
    i64 at[2];
    offsets<2>(i, num_dims, info, at);
    const i64 id = resolve(ids[at[0]], x_dim, i, error);
    out[i] = id >= 0 ? x[at[1] + id * x_stride] : B(0);
  });
}

// The places on the other dims, and how far apart their elements on dim are. info = dims of the places ‖ ids strides ‖ x strides ‖
// out strides.
struct Lanes {
  size_t count, x_dim, out_dim, num_dims;
  const size_t* info;
  i64 id_step, x_step, out_step;
};

template <class T> GPU_FN T sum(T old, T x) { return narrow<T>(add(widen(old), widen(x))); }

// out[…, ids[…, j, …], …] = or += x[…, j, …], j in order: a thread per lane.
template <class I, class T, bool Add>
GPU_FN void scatter_thread(const Lanes& lanes, const i64 (&at)[3], const I* ids, const T* x, T* out, u64* error) {
  NO_UNROLL for (size_t j = 0; j < lanes.x_dim; j++) {
    const i64 id = resolve(ids[at[0] + (i64)j * lanes.id_step], lanes.out_dim, j, error);
    if (id < 0) continue;
    T* to = out + at[2] + id * lanes.out_step;
    const T value = x[at[1] + (i64)j * lanes.x_step];
    *to = Add ? sum(*to, value) : value;
  }
}
// For few and long lanes: a block takes as many elements at a time as it has threads. Of those with one id, the last one writes, or the first one
// adds them all in order; so the result is the same as one thread's.
template <class I, class T, bool Add>
GPU_FN void scatter_block(i64* seen, const Lanes& lanes, const i64 (&at)[3], const I* ids, const T* x, T* out, u64* error) {
  for (size_t first = 0; first < lanes.x_dim; first += GPU_BLOCK) {
    const size_t j = first + tid_x();
    const u32 count = (u32)(lanes.x_dim - first < GPU_BLOCK ? lanes.x_dim - first : GPU_BLOCK);
    i64 id = -1;
    if (j < lanes.x_dim) id = resolve(ids[at[0] + (i64)j * lanes.id_step], lanes.out_dim, j, error);
    seen[tid_x()] = id;
    barrier();
    bool mine = id >= 0;
    NO_UNROLL for (u32 t = Add ? 0 : tid_x() + 1; t < (Add ? tid_x() : count); t++) mine = mine && seen[t] != id;
    if (mine) {
      T* to = out + at[2] + id * lanes.out_step;
      T value = x[at[1] + (i64)j * lanes.x_step];
      if (Add) {
        value = sum(*to, value);
        NO_UNROLL for (u32 t = tid_x() + 1; t < count; t++)
          if (seen[t] == id) value = sum(value, x[at[1] + (i64)(first + t) * lanes.x_step]);
      }
      *to = value;
    }
    barrier();
  }
}
template <class I, class T, bool Add>
GPU_FN void scatter(i64* seen, const Lanes& lanes, u32 blocks, const I* ids, const T* x, T* out, u64* error) {
  const u32 width = blocks ? 1 : bdim_x();
  for (size_t lane = (size_t)bid_x() * width + (blocks ? 0 : tid_x()); lane < lanes.count; lane += (size_t)gdim_x() * width) {
    i64 at[3];
    offsets<3>(lane, lanes.num_dims, lanes.info, at);
    if (blocks) scatter_block<I, T, Add>(seen, lanes, at, ids, x, out, error);
    else scatter_thread<I, T, Add>(lanes, at, ids, x, out, error);
  }
}

// `blocks` = 1 for a block per lane instead of a thread.
#define SCATTER(name, I, T, B, Add) \
  KERNEL_BOUNDS(GPU_BLOCK, name##_##I##_##T, const T* x, const I* ids, T* out, size_t lanes, size_t x_dim, size_t out_dim, \
                size_t num_dims, const size_t* info, size_t ids_stride, size_t x_stride, size_t out_stride, u32 blocks, \
                u64* error) { \
    SHARED(i64, seen, GPU_BLOCK); \
    const Lanes all = {lanes, x_dim, out_dim, num_dims, info, (i64)ids_stride, (i64)x_stride, (i64)out_stride}; \
    scatter<I, B, Add>(seen, all, blocks, ids, (const B*)x, (B*)out, error); \
  }

#define INDEXING(I, T) \
  KERNEL_CROWDED(GPU_BLOCK, 8, index_select_##I##_##T, const T* x, const I* ids, T* out, size_t left, size_t x_dim, size_t ids_dim, \
                 size_t right, size_t ids_stride, size_t left_stride, size_t dim_stride, u64* error) { \
    index_select<I, bits_t<T>>((const bits_t<T>*)x, ids, (bits_t<T>*)out, left, x_dim, ids_dim, right, (i64)ids_stride, \
                               (i64)left_stride, (i64)dim_stride, error); \
  } \
  KERNEL_BOUNDS(GPU_BLOCK, gather_##I##_##T, const T* x, const I* ids, T* out, size_t numel, size_t num_dims, const size_t* info, \
                size_t x_dim, size_t x_stride, u64* error) { \
    gather<I, bits_t<T>>((const bits_t<T>*)x, ids, (bits_t<T>*)out, numel, num_dims, info, x_dim, (i64)x_stride, error); \
  } \
  SCATTER(scatter, I, T, bits_t<T>, false) \
  SCATTER(scatter_add, I, T, T, true)
#define INDEXING_ALL(T) INDEXING(u8, T) INDEXING(u32, T) INDEXING(i64, T)
GPU_DTYPES(INDEXING_ALL)

}  // namespace gpu
