// Reads and writes at places named by ids (u8, u32 or i64). The largest value of the id type means "nothing": reads give
// 0, writes are skipped. Any other id out of range is noted in error[0 … 2] (flag, id, position) and treated as nothing.
//
// Tensors are seen as (left, dim, right). Writes that may meet (scatter, index_add) differ only along dim, so each place
// (left, right) is handled by one thread, or one block, that goes through dim in order: the last write wins, sums have
// one order, and no atomics are needed.
#include "elementwise.h"
#include "ids.h"
namespace gpu {

// out[l, j, r] = inp[l, ids[j], r]. A unit U is 16 bytes where rows allow it, else one element. Launch: 256 threads, two
// units per thread, units of a row side by side. Traffic: selected rows read once, out written once.
template <class I, class U>
GPU_FN void select_units(size_t left, size_t src_dim, size_t ids_dim, size_t right, i64 left_stride, i64 dim_stride,
                         const I* ids, i64 id_stride, const U* inp, U* out, u64* error) {
  constexpr int Unroll = 2;
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
        const i64 index = resolve(id[u], src_dim, place[u], error);
        const size_t rows = place[u] + block[u] * ids_dim - j;
        if (index >= 0) x[u] = inp[(i64)(l + block[u]) * left_stride + index * dim_stride + (i64)(walk.at(r, u) - rows * right)];
      }
    }
    UNROLL for (int u = 0; u < Unroll; u++)
      if (walk.at(base, u) < n) out[walk.at(base, u)] = x[u];
  }
}
// The same for rows of one matrix and fewer than 2³¹ units, where 32 bits are enough: what comes before a load counts.
template <class I, class U>
GPU_FN void select_rows(u32 n, size_t src_dim, u32 right, i64 dim_stride, const I* ids, i64 id_stride, const U* inp, U* out, u64* error) {
  constexpr u32 Unroll = 2, Piece = ELEMENTWISE_BLOCK * Unroll;
  NO_UNROLL for (u32 base = bid_x() * Piece + tid_x(); base < n; base += gdim_x() * Piece) {
    U x[Unroll];
    I id[Unroll];
    u32 row[Unroll];
    UNROLL for (u32 u = 0; u < Unroll; u++) {
      row[u] = (base + u * ELEMENTWISE_BLOCK) / right;
      if (base + u * ELEMENTWISE_BLOCK < n) id[u] = ids[row[u] * id_stride];
    }
    UNROLL for (u32 u = 0; u < Unroll; u++) {
      x[u] = U{};
      if (base + u * ELEMENTWISE_BLOCK >= n) continue;
      const i64 index = resolve(id[u], src_dim, row[u], error);
      if (index >= 0) x[u] = inp[index * dim_stride + (base + u * ELEMENTWISE_BLOCK - row[u] * right)];
    }
    UNROLL for (u32 u = 0; u < Unroll; u++)
      if (base + u * ELEMENTWISE_BLOCK < n) out[base + u * ELEMENTWISE_BLOCK] = x[u];
  }
}
template <class I, class B>
GPU_FN void index_select(size_t num_dims, const size_t* info, const I* ids, const B* inp, B* out, size_t left, size_t src_dim,
                         size_t ids_dim, size_t right, size_t left_stride, size_t dim_stride, u64* error) {
  constexpr size_t W = 16 / sizeof(B);
  typedef Bytes16 V;
  const i64 id_stride = info ? (i64)info[2 * num_dims - 1] : 1, ls = (i64)left_stride, ds = (i64)dim_stride;
  const bool vectors = aligned_to(inp, 16) && aligned_to(out, 16) && ((i64)right | ls | ds) % (i64)W == 0;
  if (vectors && left == 1 && !(ids_dim >> 31) && ids_dim * (right / W) < 1u << 31)
    select_rows<I, V>((u32)(ids_dim * (right / W)), src_dim, (u32)(right / W), ds / (i64)W, ids, id_stride, (const V*)inp, (V*)out, error);
  else if (vectors)
    select_units<I, V>(left, src_dim, ids_dim, right / W, ls / (i64)W, ds / (i64)W, ids, id_stride, (const V*)inp, (V*)out, error);
  else select_units<I, B>(left, src_dim, ids_dim, right, ls, ds, ids, id_stride, inp, out, error);
}

// out[i] = inp[the place of i in ids, with the coordinate on dim replaced by ids[i]]. `out` has the ids' shape, which may be
// smaller than inp's on the other dims: info = dims of ids ‖ strides of ids ‖ strides of inp with 0 on dim, and src_stride
// is inp's stride on dim. Null info: ids and inp are contiguous and differ on dim only.
template <class I, class B>
GPU_FN void gather(size_t n, const I* ids, const B* inp, B* out, size_t src_dim, size_t ids_dim, size_t right,
                   size_t num_dims, const size_t* info, size_t src_stride, u64* error) {
  const size_t step = (size_t)gdim_x() * bdim_x();
  for (size_t i = (size_t)bid_x() * bdim_x() + tid_x(); i < n; i += step) {
    i64 at[2] = {(i64)i, 0};
    i64 stride = (i64)right;
    if (info) {
      offsets<2>(i, num_dims, info, at);
      stride = (i64)src_stride;
    } else {
      const size_t row = divide(i, right), l = divide(row, ids_dim);
      at[1] = (i64)(l * src_dim * right + (i - row * right));
    }
    const i64 id = resolve(ids[at[0]], src_dim, i, error);
    out[i] = id >= 0 ? inp[at[1] + id * stride] : B(0);
  }
}

// The places (left, right) and how far apart their elements on dim are. With info = dims of the places ‖ ids strides ‖ src
// strides ‖ dst strides any views will do; null info: all contiguous.
struct Lanes {
  size_t count, right, src_dim, dst_dim, num_dims;
  const size_t* info;
  i64 id_step, src_step, dst_step;
  bool shared_ids;
  GPU_METHOD void locate(size_t lane, i64 (&at)[3]) const {
    if (info) {
      offsets<3>(lane, num_dims, info, at);
      return;
    }
    const size_t l = divide(lane, right), r = lane - l * right;
    at[1] = (i64)(l * src_dim * right + r);
    at[0] = shared_ids ? 0 : at[1];
    at[2] = (i64)(l * dst_dim * right + r);
  }
};

template <class T> GPU_FN T sum(T old, T x) { return narrow<T>(add(widen(old), widen(x))); }

// dst[l, ids[l, j, r], r] = or += src[l, j, r], j in order: a thread per lane.
template <class I, class T, bool Add>
GPU_FN void scatter_thread(const Lanes& lanes, const i64 (&at)[3], const I* ids, const T* src, T* dst, u64* error) {
  NO_UNROLL for (size_t j = 0; j < lanes.src_dim; j++) {
    const i64 id = resolve(ids[at[0] + (i64)j * lanes.id_step], lanes.dst_dim, j, error);
    if (id < 0) continue;
    T* to = dst + at[2] + id * lanes.dst_step;
    const T x = src[at[1] + (i64)j * lanes.src_step];
    *to = Add ? sum(*to, x) : x;
  }
}
// For few and long lanes: a block takes 256 elements at a time. Of those with one id, the last one writes, or the first one
// adds them all in order; so the result is the same as one thread's.
template <class I, class T, bool Add>
GPU_FN void scatter_block(i64* seen, const Lanes& lanes, const i64 (&at)[3], const I* ids, const T* src, T* dst, u64* error) {
  for (size_t first = 0; first < lanes.src_dim; first += 256) {
    const size_t j = first + tid_x();
    const u32 count = (u32)(lanes.src_dim - first < 256 ? lanes.src_dim - first : 256);
    i64 id = -1;
    if (j < lanes.src_dim) id = resolve(ids[at[0] + (i64)j * lanes.id_step], lanes.dst_dim, j, error);
    seen[tid_x()] = id;
    barrier();
    bool mine = id >= 0;
    NO_UNROLL for (u32 t = Add ? 0 : tid_x() + 1; t < (Add ? tid_x() : count); t++) mine = mine && seen[t] != id;
    if (mine) {
      T* to = dst + at[2] + id * lanes.dst_step;
      T x = src[at[1] + (i64)j * lanes.src_step];
      if (Add) {
        x = sum(*to, x);
        NO_UNROLL for (u32 t = tid_x() + 1; t < count; t++)
          if (seen[t] == id) x = sum(x, src[at[1] + (i64)(first + t) * lanes.src_step]);
      }
      *to = x;
    }
    barrier();
  }
}
template <class I, class T, bool Add>
GPU_FN void scatter(i64* seen, const Lanes& lanes, u32 blocks, const I* ids, const T* src, T* dst, u64* error) {
  const u32 width = blocks ? 1 : bdim_x();
  for (size_t lane = (size_t)bid_x() * width + (blocks ? 0 : tid_x()); lane < lanes.count; lane += (size_t)gdim_x() * width) {
    i64 at[3];
    lanes.locate(lane, at);
    if (blocks) scatter_block<I, T, Add>(seen, lanes, at, ids, src, dst, error);
    else scatter_thread<I, T, Add>(lanes, at, ids, src, dst, error);
  }
}

// Appended: the layout of views (see Lanes), `blocks` = 1 for a block per lane instead of a thread, and the error words.
#define SCATTER(name, I, T, B, Add, shared_ids, ...) \
  KERNEL_BOUNDS(256, name##_##I##_##T, __VA_ARGS__, const T* inp, T* out, size_t left, size_t src_dim, size_t dst_dim, \
                size_t right, size_t num_dims, const size_t* info, size_t ids_stride, size_t src_stride, size_t dst_stride, \
                u32 blocks, u64* error) { \
    SHARED(i64, seen, 256); \
    const Lanes lanes = {left * right, right, src_dim, dst_dim, num_dims, info, \
                         (i64)(info || shared_ids ? ids_stride : right), (i64)(info ? src_stride : right), \
                         (i64)(info ? dst_stride : right), shared_ids}; \
    scatter<I, B, Add>(seen, lanes, blocks, ids, (const B*)inp, (B*)out, error); \
  }

#define INDEXING(I, T) \
  KERNEL_CROWDED(256, 8, is_##I##_##T, size_t numel, size_t num_dims, const size_t* info, const I* ids, const T* inp, T* out, \
                size_t left, size_t src_dim, size_t ids_dim, size_t right, size_t left_stride, size_t dim_stride, \
                u64* error) { \
    (void)numel; \
    index_select<I, bits_t<T>>(num_dims, info, ids, (const bits_t<T>*)inp, (bits_t<T>*)out, left, src_dim, ids_dim, right, \
                               left_stride, dim_stride, error); \
  } \
  KERNEL_BOUNDS(256, gather_##I##_##T, size_t numel, const I* ids, const T* inp, T* out, size_t left, size_t src_dim, \
                size_t ids_dim, size_t right, size_t num_dims, const size_t* info, size_t src_stride, u64* error) { \
    (void)left; \
    gather<I, bits_t<T>>(numel, ids, (const bits_t<T>*)inp, (bits_t<T>*)out, src_dim, ids_dim, right, num_dims, info, \
                         src_stride, error); \
  } \
  SCATTER(s, I, T, bits_t<T>, false, false, const I* ids) \
  SCATTER(sa, I, T, T, true, false, const I* ids) \
  SCATTER(ia, I, T, T, true, true, const I* ids, size_t)
#define INDEXING_ALL(T) INDEXING(u8, T) INDEXING(u32, T) INDEXING(i64, T)
GPU_DTYPES(INDEXING_ALL)

}  // namespace gpu
