// Quantized weights as floats.
//
//   dequantize_block_Q_T  all blocks of a tensor
//   get_rows_Q_T          the rows named by ids (u8, u32 or i64: 1, 4 or 8 bytes each); the largest id of its type gives
//                         zeros, any other id out of range is noted in error[0 … 2] as in indexing.hip and gives zeros, too
#include "quant.h"
namespace gpu {

// 256 threads take up to 256 units: their bytes come as vectors, each thread decodes one unit, and the floats leave in order.
// Traffic: each block read once, each weight written once.
constexpr u32 CHUNK = 256 * 32;

template <class Q> struct Dequantize {
  typedef Stage<CHUNK / Q::Elements * Q::Bytes, 256> S;
  static constexpr int Scales = CHUNK / Q::Group;

  // `count` weights from byte `from` of the tensor on, which has `end` bytes.
  template <class T>
  GPU_FN void run(u32* bytes, u32* quants, Vec<f32, 2>* scales, const u16* table, const u8* w, size_t from, u32 count, size_t end,
                  T* out) {
    constexpr int V = 16 / sizeof(T), PartWords = 8 / Q::Parts;
    S stage;
    stage.load(w, from, count / Q::Elements * Q::Bytes, end, tid_x());
    stage.store(bytes, tid_x());
    barrier();
    const u32 unit = tid_x();
    if (unit < count / 32) {
      typename Q::U u;
      Q::unit(Staged<Q::Align>{bytes, S::place(w, from) + unit / Q::Units * Q::Bytes}, unit % Q::Units, table, u);
      const u32 base = unit / Q::Units * Q::Elements;
      UNROLL for (u32 j = 0; j < 8; j += 2)
        store_shared<2>(quants, (base + Q::place(unit % Q::Units, j)) / 4, Vec<u32, 2>{{u.q[j], u.q[j + 1]}});
      UNROLL for (int p = 0; p < Q::Parts; p++)
        scales[(base + Q::place(unit % Q::Units, p * PartWords)) / Q::Group] = Vec<f32, 2>{{u.scale[p], Q::HasMin ? u.min[p] : 0.0f}};
    }
    barrier();
    const bool aligned = vector_aligned<V>(out);
    for (u32 at = tid_x() * V; at < count; at += 256 * V) {
      const Vec<f32, 2> s = scales[at / Q::Group];
      const Vec<u32, V / 4> q = load_shared<V / 4>(quants, at / 4);
      Vec<T, V> y;
      UNROLL for (int j = 0; j < V; j++) {
        const f32 x = s.v[0] * (f32)((i32)(signed char)(q.v[j / 4] >> j % 4 * 8) - Q::Offset);
        y.v[j] = narrow<T>(Q::HasMin ? x + s.v[1] : x);
      }
      if (aligned) *(Vec<T, V>*)(out + at) = y;
      else UNROLL for (int j = 0; j < V; j++) out[at + j] = y.v[j];
    }
    barrier();
  }
};

template <class Q, class T>
GPU_FN void dequantize_all(u32* bytes, u32* quants, Vec<f32, 2>* scales, u16* table, size_t numel, const u8* w, T* out) {
  fill_table<Q>(table);
  for (size_t at = (size_t)bid_x() * CHUNK; at < numel; at += (size_t)gdim_x() * CHUNK)
    Dequantize<Q>::run(bytes, quants, scales, table, w, at / Q::Elements * Q::Bytes, numel - at < CHUNK ? (u32)(numel - at) : CHUNK,
                       numel / Q::Elements * Q::Bytes, out + at);
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
  if (tid_x() == 0) bad_index(error, id, position);
  return -1;
}

template <class Q, class T>
GPU_FN void get_rows(u32* bytes, u32* quants, Vec<f32, 2>* scales, u16* table, size_t count, size_t rows, size_t k, const u8* w,
                     const void* ids, u32 id_bytes, T* out, u64* error) {
  fill_table<Q>(table);
  const size_t chunks = ceil_div(k, CHUNK), row_bytes = k / Q::Elements * Q::Bytes;
  for (size_t item = bid_x(); item < count * chunks; item += gdim_x()) {
    const size_t position = divide(item, chunks), at = (item - position * chunks) * CHUNK;
    const u32 part = k - at < CHUNK ? (u32)(k - at) : CHUNK;
    T* to = out + position * k + at;
    const i64 id = row_id(ids, id_bytes, position, rows, error);
    if (id >= 0)
      Dequantize<Q>::run(bytes, quants, scales, table, w, (size_t)id * row_bytes + at / Q::Elements * Q::Bytes, part,
                         rows * row_bytes, to);
    else
      for (u32 j = tid_x(); j < part; j += 256) to[j] = T{};
  }
}

#define DEQUANTIZE_MEMORY(Q) \
  SHARED(u32, bytes, Dequantize<Q>::S::Words); \
  SHARED(u32, quants, CHUNK / 4); \
  typedef Vec<f32, 2> Pair; \
  SHARED(Pair, scales, Dequantize<Q>::Scales); \
  SHARED(u16, table, TableSize<Q>::value);
#define DEQUANTIZE(Q, T) \
  KERNEL_BOUNDS(256, dequantize_block_##Q##_##T, size_t numel, const u8* w, T* out) { \
    DEQUANTIZE_MEMORY(Q) \
    dequantize_all<Q, T>(bytes, quants, scales, table, numel, w, out); \
  } \
  KERNEL_BOUNDS(256, get_rows_##Q##_##T, size_t count, size_t rows, size_t k, const u8* w, const void* ids, T* out, \
                u32 id_bytes, u64* error) { \
    DEQUANTIZE_MEMORY(Q) \
    get_rows<Q, T>(bytes, quants, scales, table, count, rows, k, w, ids, id_bytes, out, error); \
  }
#define DEQUANTIZE_ALL(Q) DEQUANTIZE(Q, f32) DEQUANTIZE(Q, f16) DEQUANTIZE(Q, bf16)
QUANT_TYPES(DEQUANTIZE_ALL)

}  // namespace gpu
