// Reads and writes at places named by ids (u8, u32 or i64). The largest value of the id type means "nothing": reads give
// 0, writes are skipped. Any other id out of range is noted in error[0 … 2] (flag, id, position) and treated as nothing.
//
// Tensors are seen as (left, dim, right). Writes that may meet (scatter, index_add) differ only along dim, so each place
// (left, right) is handled by one thread, or one block, that goes through dim in order: the last write wins, sums have
// one order, and no atomics are needed.
#include "gpu.h"
namespace gpu {

template <class I> GPU_FN i64 nothing() { return (i64)Limits<I>::highest(); }

// The id as an index below `size`, or −1.
template <class I> GPU_FN i64 resolve(I raw, size_t size, size_t position, u64* error) {
  const i64 id = (i64)raw;
  if ((u64)id < (u64)size) return raw == Limits<I>::highest() ? -1 : id;
  if (id != nothing<I>()) bad_index(error, id, position);
  return -1;
}

// out[l, j, r] = inp[l, ids[j], r]. A unit U is 16 bytes where rows allow it, else one element. Launch: 256 threads, four
// units per thread, units of a row side by side. Traffic: selected rows read once, out written once.
template <class I, class U>
GPU_FN void select_units(size_t left, size_t src_dim, size_t ids_dim, size_t right, i64 left_stride, i64 dim_stride,
                         const I* ids, i64 id_stride, const U* inp, U* out, u64* error) {
  constexpr int Unroll = 4;
  const size_t n = left * ids_dim * right;
  const bool small = !(n >> 32);
  const Walk<1, Unroll> walk(n, true);
  for (size_t base = walk.first; base < n; base += walk.step) {
    U x[Unroll];
    UNROLL for (int u = 0; u < Unroll; u++) {
      const size_t i = walk.at(base, u);
      x[u] = U{};
      if (i < n) {
        const size_t row = small ? (u32)i / (u32)right : i / right;
        const size_t l = left == 1 ? 0 : small ? (u32)row / (u32)ids_dim : row / ids_dim;
        const size_t j = row - l * ids_dim;
        const i64 id = resolve(ids[(i64)j * id_stride], src_dim, j, error);
        if (id >= 0) x[u] = inp[(i64)l * left_stride + id * dim_stride + (i64)(i - row * right)];
      }
    }
    UNROLL for (int u = 0; u < Unroll; u++)
      if (walk.at(base, u) < n) out[walk.at(base, u)] = x[u];
  }
}
template <class I, class B>
GPU_FN void index_select(size_t num_dims, const size_t* info, const I* ids, const B* inp, B* out, size_t left, size_t src_dim,
                         size_t ids_dim, size_t right, size_t left_stride, size_t dim_stride, u64* error) {
  constexpr size_t W = 16 / sizeof(B);
  typedef Vec<B, (int)W> V;
  const i64 id_stride = info ? (i64)info[2 * num_dims - 1] : 1, ls = (i64)left_stride, ds = (i64)dim_stride;
  if (aligned_to(inp, 16) && aligned_to(out, 16) && ((i64)right | ls | ds) % (i64)W == 0)
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
  const bool small = !(n >> 32);
  for (size_t i = (size_t)bid_x() * bdim_x() + tid_x(); i < n; i += step) {
    i64 at[2] = {(i64)i, 0};
    i64 stride = (i64)right;
    if (info) {
      offsets<2>(i, num_dims, info, at);
      stride = (i64)src_stride;
    } else {
      const size_t row = small ? (u32)i / (u32)right : i / right;
      const size_t l = small ? (u32)row / (u32)ids_dim : row / ids_dim;
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
    const size_t l = lane / right, r = lane - l * right;
    at[1] = (i64)(l * src_dim * right + r);
    at[0] = shared_ids ? 0 : at[1];
    at[2] = (i64)(l * dst_dim * right + r);
  }
};

template <class T> struct PutSum { GPU_FN T apply(T old, T x) { return narrow<T>(add(widen(old), widen(x))); } };

// dst[l, ids[l, j, r], r] = or += src[l, j, r], j in order.
template <class I, class T, bool Add> GPU_FN void scatter_threads(const Lanes& lanes, const I* ids, const T* src, T* dst, u64* error) {
  const size_t step = (size_t)gdim_x() * bdim_x();
  for (size_t lane = (size_t)bid_x() * bdim_x() + tid_x(); lane < lanes.count; lane += step) {
    i64 at[3];
    lanes.locate(lane, at);
    NO_UNROLL for (size_t j = 0; j < lanes.src_dim; j++) {
      const i64 id = resolve(ids[at[0] + (i64)j * lanes.id_step], lanes.dst_dim, j, error);
      if (id < 0) continue;
      T* to = dst + at[2] + id * lanes.dst_step;
      const T x = src[at[1] + (i64)j * lanes.src_step];
      *to = Add ? PutSum<T>::apply(*to, x) : x;
    }
  }
}
// For few and long lanes: a block takes 256 elements at a time. Of those with one id, the last one writes, or the first one
// adds them all in order; so the result is the same as one thread's.
template <class I, class T, bool Add>
GPU_FN void scatter_blocks(i64* seen, const Lanes& lanes, const I* ids, const T* src, T* dst, u64* error) {
  for (size_t lane = bid_x(); lane < lanes.count; lane += gdim_x()) {
    i64 at[3];
    lanes.locate(lane, at);
    for (size_t first = 0; first < lanes.src_dim; first += 256) {
      const size_t j = first + tid_x();
      const u32 count = (u32)(lanes.src_dim - first < 256 ? lanes.src_dim - first : 256);
      i64 id = -1;
      if (j < lanes.src_dim) id = resolve(ids[at[0] + (i64)j * lanes.id_step], lanes.dst_dim, j, error);
      seen[tid_x()] = id;
      barrier();
      if (id >= 0) {
        bool mine = true;
        if (Add) for (u32 t = 0; t < tid_x(); t++) mine = mine && seen[t] != id;
        else for (u32 t = tid_x() + 1; t < count; t++) mine = mine && seen[t] != id;
        if (mine) {
          T* to = dst + at[2] + id * lanes.dst_step;
          T x = src[at[1] + (i64)j * lanes.src_step];
          if (Add) {
            x = PutSum<T>::apply(*to, x);
            for (u32 t = tid_x() + 1; t < count; t++)
              if (seen[t] == id) x = PutSum<T>::apply(x, src[at[1] + (i64)(first + t) * lanes.src_step]);
          }
          *to = x;
        }
      }
      barrier();
    }
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
    if (blocks) scatter_blocks<I, B, Add>(seen, lanes, ids, (const B*)inp, (B*)out, error); \
    else scatter_threads<I, B, Add>(lanes, ids, (const B*)inp, (B*)out, error); \
  }

#define INDEXING(I, T) \
  KERNEL_BOUNDS(256, is_##I##_##T, size_t numel, size_t num_dims, const size_t* info, const I* ids, const T* inp, T* out, \
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
  SCATTER(ia, I, T, T, true, true, const I* ids, size_t ids_dim)
#define INDEXING_ALL(T) INDEXING(u8, T) INDEXING(u32, T) INDEXING(i64, T)
GPU_DTYPES(INDEXING_ALL)

}  // namespace gpu
