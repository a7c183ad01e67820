// Quantized weights as floats.
//
//   dequantize_block_Q_T  all blocks of a tensor
//   get_rows_Q_T          the rows named by ids (u8, u32 or i64: 1, 4 or 8 bytes each); the largest id of its type gives
//                         zeros, any other id out of range is noted in error[0 … 2] as in indexing.hip and gives zeros, too
#include "ids.h"
#include "quant.h"
namespace gpu {

// A warp takes CHUNK weights, a unit per lane: their bytes come as vectors, and the floats go to shared memory first, so that
// they, too, leave as vectors side by side. Traffic: each block read once, each weight written once.
constexpr u32 CHUNK = QUANT_CHUNK, WARPS = GPU_BLOCK / 32;

template <class Q, class T> struct Dequantize {
  typedef Stage<CHUNK / Q::Elements * Q::Bytes, Q::Align> S;
  static constexpr u32 V = 16 / sizeof(T), Words = CHUNK * sizeof(T) / 4;

  // Where vector v lies: eight lanes write, and read, all banks at once.
  GPU_FN u32 slot(u32 v) { return (v ^ (v / 8 & 7u)) * 4; }

  // `count` weights from byte `from` of the tensor on. All warps of a block come here together.
  GPU_FN void run(u32* bytes, u32* floats, const u8* w, size_t from, u32 count, T* out) {
    const u32 lane = lane_id(), byte_count = count / Q::Elements * Q::Bytes;
    S stage;
    if (count) stage.load(bytes, w, from, byte_count);
    if (count) stage.land(bytes, from, byte_count);
    copies_wait();
    wave_sync();
    if (lane < count / 32) {
      typename Q::U u;
      Q::unit(staged_block<Q>(bytes, S::place(from), lane), lane % Q::Units, u);
      UNROLL for (u32 word = 0; word < 8; word += V / 4) {
        Vec<T, V> y;
        UNROLL for (u32 j = 0; j < V; j++) {
          const u32 part = word / (8 / Q::Parts);
          const f32 x = u.scale[part] * (f32)(signed char)byte_of(u.q[word + j / 4], j % 4);
          y.v[j] = narrow<T>(Q::HasMin ? x + u.min[part] : x);
        }
        *(Vec<T, V>*)(floats + slot((lane / Q::Units * Q::Elements + Q::place(lane % Q::Units, word)) / V)) = y;
      }
    }
    wave_sync();
    if (vector_aligned<V>(out))
      for (u32 v = lane; v < count / V; v += 32) store_vec<T, V>(out, v, *(const Vec<T, V>*)(floats + slot(v)));
    else
      NO_UNROLL for (u32 i = lane; i < count; i += 32) out[i] = ((const T*)(floats + slot(i / V)))[i % V];
    wave_sync();
  }
};

GPU_FN u32 length_of(size_t at, size_t numel) { return at >= numel ? 0 : numel - at < CHUNK ? (u32)(numel - at) : CHUNK; }

template <class Q, class T> GPU_FN void dequantize_all(u32* bytes, u32* floats, size_t numel, const u8* w, T* out) {
  for (size_t base = (size_t)bid_x() * WARPS * CHUNK; base < numel; base += (size_t)gdim_x() * WARPS * CHUNK) {
    const size_t at = base + tid_x() / 32 * CHUNK;
    Dequantize<Q, T>::run(bytes, floats, w, at / Q::Elements * Q::Bytes, length_of(at, numel), out + at);
  }
}

// The id at a position, or −1 for "nothing".
GPU_FN i64 row_id(const void* ids, u32 id_bytes, size_t position, size_t rows, u64* error) {
  i64 id, nothing;
  if (id_bytes == 1) {
    id = ((const u8*)ids)[position];
    nothing = Limits<u8>::highest();
  } else if (id_bytes == 4) {
    id = ((const u32*)ids)[position];
    nothing = Limits<u32>::highest();
  } else {
    id = ((const i64*)ids)[position];
    nothing = Limits<i64>::highest();
  }
  if (id == nothing) return -1;
  if ((u64)id < (u64)rows) return id;
  if (lane_id() == 0) bad_index(error, id, position);
  return -1;
}

template <class Q, class T>
GPU_FN void get_rows(u32* bytes, u32* floats, size_t count, size_t rows, size_t k, const u8* w, const void* ids,
                     u32 id_bytes, T* out, u64* error) {
  const size_t chunks = ceil_div(k, CHUNK), row_bytes = k / Q::Elements * Q::Bytes;
  for (size_t base = (size_t)bid_x() * WARPS; base < count * chunks; base += (size_t)gdim_x() * WARPS) {
    const size_t item = base + tid_x() / 32, position = divide(item, chunks), at = (item - position * chunks) * CHUNK;
    const u32 part = position < count ? length_of(at, k) : 0;
    T* to = out + position * k + at;
    const i64 id = part ? row_id(ids, id_bytes, position, rows, error) : -1;
    if (id < 0) for (u32 j = lane_id(); j < part; j += 32) to[j] = T{};
    Dequantize<Q, T>::run(bytes, floats, w, (size_t)(id < 0 ? 0 : id) * row_bytes + at / Q::Elements * Q::Bytes, id < 0 ? 0 : part, to);
  }
}

#define DEQUANTIZE_MEMORY(Q, T) \
  typedef Dequantize<Q, T> D; \
  SHARED(u32, all_bytes, WARPS * D::S::Words); \
  SHARED(u32, all_floats, WARPS * D::Words); \
  u32 *bytes = all_bytes + tid_x() / 32 * D::S::Words, *floats = all_floats + tid_x() / 32 * D::Words;
#define DEQUANTIZE(Q, T) \
  KERNEL_BOUNDS(GPU_BLOCK, dequantize_block_##Q##_##T, const u8* w, T* out, size_t numel) { \
    DEQUANTIZE_MEMORY(Q, T) \
    dequantize_all<Q, T>(bytes, floats, numel, w, out); \
  } \
  KERNEL_BOUNDS(GPU_BLOCK, get_rows_##Q##_##T, const u8* w, const void* ids, T* out, size_t count, size_t rows, size_t k, \
                u32 id_bytes, u64* error) { \
    DEQUANTIZE_MEMORY(Q, T) \
    get_rows<Q, T>(bytes, floats, count, rows, k, w, ids, id_bytes, out, error); \
  }
#define DEQUANTIZE_ALL(Q) DEQUANTIZE(Q, f32) DEQUANTIZE(Q, f16) DEQUANTIZE(Q, bf16)
QUANT_TYPES(DEQUANTIZE_ALL)

}  // namespace gpu
