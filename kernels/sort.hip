// Stable argsort of rows: NaN last in both directions, −0 equal to +0. Elements become unsigned keys whose order is the
// wanted one; keys are sorted by least-significant-digit radix sort, four bits a pass.
//
//   argsort_DIR_T       rows that fit a block: x → out
//   argsort_tile_DIR_T  wider rows, first launch: tiles of a row, sorted keys and indices to scratch memory
//   argsort_merge_KEY   then log2(tiles) launches: pairs of sorted runs to runs of twice the length; the last one writes the result
#include "gpu.h"
namespace gpu {

// Key<T>: the unsigned type keys are kept in, and how many of its bits count.
template <int Bytes> struct KeyOfSize { typedef u32 type; };
template <> struct KeyOfSize<8> { typedef u64 type; };
template <class T> using key_t = typename KeyOfSize<sizeof(T)>::type;

GPU_FN u64 raw_bits(f64 x) { return f64_bits(x); }
GPU_FN u32 raw_bits(f32 x) { return f32_bits(x); }
GPU_FN u32 raw_bits(f16 x) { return x.bits; }
GPU_FN u32 raw_bits(bf16 x) { return x.bits; }
GPU_FN u32 raw_bits(u8 x) { return x; }
GPU_FN u32 raw_bits(u32 x) { return x; }
GPU_FN u32 raw_bits(i16 x) { return (u16)x; }
GPU_FN u32 raw_bits(i32 x) { return (u32)x; }
GPU_FN u64 raw_bits(i64 x) { return (u64)x; }

// Unsigned: itself. Signed: the sign bit flipped. Floats: negative values with all bits flipped, others with the sign bit
// set; NaN is the greatest key in either direction, which no number reaches.
template <class T, bool Descending> GPU_FN key_t<T> key_of(T x) {
  typedef key_t<T> K;
  constexpr int Bits = sizeof(T) * 8;
  const K mask = (K)~(K)0 >> (sizeof(K) * 8 - Bits), sign = (K)1 << (Bits - 1);
  K key = (K)raw_bits(x);
  if (IsFloat<T>::value) {
    const compute_t<T> value = widen(x);
    if (value != value) return mask;
    if (value == (compute_t<T>)0) key = 0;
    key = key & sign ? ~key & mask : key | sign;
  } else if (Limits<compute_t<T>>::lowest() < (compute_t<T>)1 && Limits<compute_t<T>>::lowest() != (compute_t<T>)0) {
    key ^= sign;
  }
  return Descending ? ~key & mask : key;
}

// Shared memory of a block's sort. Positions are padded by one per 32, so that threads which own Items consecutive
// positions reach different banks.
constexpr u32 SORT_THREADS = GPU_BLOCK;
template <class K> struct Tile {
  static constexpr int Items = sizeof(K) == 8 ? SORT_ITEMS / 2 : SORT_ITEMS;
  static constexpr u32 Size = SORT_THREADS * Items;
  static constexpr u32 Padded = Size + Size / 32;
};
GPU_FN u32 padded(u32 i) { return i + i / 32; }

// Sorts the keys that lie in `keys` at padded positions 0 … threads·Items − 1; `order` gets the old position of each.
// Per pass: every thread counts the digits of its consecutive items in counters of its own, counter[digit][thread]; the
// exclusive scan of all counters in that order is where each digit of each thread begins; items move there.
template <class K, int Bits, int Items>
GPU_FN void radix_sort(K* keys, u16* order, u16* counters, u32* warps) {
  const u32 t = tid_x(), threads = bdim_x();
  K key[Items];
  u16 from[Items];
  UNROLL for (int i = 0; i < Items; i++) {
    key[i] = keys[padded(t * Items + i)];
    from[i] = (u16)(t * Items + i);
  }
  NO_UNROLL for (int shift = 0; shift < Bits; shift += 4) {
    UNROLL for (int d = 0; d < 16; d++) counters[d * threads + t] = 0;
    u16 rank[Items];
    UNROLL for (int i = 0; i < Items; i++) {
      const u32 at = (u32)(key[i] >> shift & 15) * threads + t;
      rank[i] = counters[at];
      counters[at] = (u16)(rank[i] + 1);
    }
    barrier();
    Vec<u16, 8> low = load_shared<8>(counters, t * 16), high = load_shared<8>(counters, t * 16 + 8);
    u32 total = 0;
    UNROLL for (int j = 0; j < 8; j++) total += (u32)low.v[j] + high.v[j];
    u32 scan = total;
    UNROLL for (u32 d = 1; d < 32; d *= 2) {
      const u32 before = shfl_up(scan, d);
      if (lane_id() >= d) scan += before;
    }
    if (lane_id() == 31) warps[t / 32] = scan;
    barrier();
    u32 start = scan - total;
    NO_UNROLL for (u32 w = 0; w < t / 32; w++) start += warps[w];
    UNROLL for (int j = 0; j < 8; j++) {
      const u32 count = low.v[j];
      low.v[j] = (u16)start;
      start += count;
    }
    UNROLL for (int j = 0; j < 8; j++) {
      const u32 count = high.v[j];
      high.v[j] = (u16)start;
      start += count;
    }
    store_shared<8>(counters, t * 16, low);
    store_shared<8>(counters, t * 16 + 8, high);
    barrier();
    UNROLL for (int i = 0; i < Items; i++) {
      const u32 to = padded((u32)counters[(u32)(key[i] >> shift & 15) * threads + t] + rank[i]);
      keys[to] = key[i];
      order[to] = from[i];
    }
    barrier();
    UNROLL for (int i = 0; i < Items; i++) {
      key[i] = keys[padded(t * Items + i)];
      from[i] = order[padded(t * Items + i)];
    }
  }
  barrier();
}

// Reads elements [first, first + count) of a row as keys and fills up with the greatest key; then sorts.
template <class T, bool Descending, int Items>
GPU_FN void sort_tile(const T* x, u32 count, key_t<T>* keys, u16* order, u16* counters, u32* warps) {
  typedef key_t<T> K;
  constexpr int Bits = sizeof(T) * 8;
  const u32 threads = bdim_x();
  UNROLL for (int i = 0; i < Items; i++) {
    const u32 at = i * threads + tid_x();
    keys[padded(at)] = at < count ? key_of<T, Descending>(x[at]) : (K)~(K)0 >> (sizeof(K) * 8 - Bits);
  }
  barrier();
  radix_sort<K, Bits, Items>(keys, order, counters, warps);
}

// Launch: a block per row, as many threads as have all of it, Items each: SORT_FEW_ITEMS for short rows, else SORT_ITEMS (half for 8-byte elements).
// Traffic: x read once, out written once.
template <class T, bool Descending>
GPU_FN void sort_rows(key_t<T>* keys, u16* order, u16* counters, u32* warps, const T* x, u32* dst, u32 ncols, size_t rows) {
  const bool few = ncols <= bdim_x() * SORT_FEW_ITEMS;
  for (size_t row = bid_x(); row < rows; row += gdim_x()) {
    const T* from = x + row * ncols;
    if (few) sort_tile<T, Descending, SORT_FEW_ITEMS>(from, ncols, keys, order, counters, warps);
    else sort_tile<T, Descending, Tile<key_t<T>>::Items>(from, ncols, keys, order, counters, warps);
    for (u32 i = tid_x(); i < ncols; i += bdim_x()) dst[row * ncols + i] = order[padded(i)];
    barrier();
  }
}

// Launch: a block per tile, the tiles of all rows in one grid. Traffic: x read once, keys and indices written once.
template <class T, bool Descending>
GPU_FN void sort_tiles(key_t<T>* keys, u16* order, u16* counters, u32* warps, const T* x, key_t<T>* keys_out, u32* dst, size_t ncols, size_t rows) {
  constexpr u32 Size = Tile<key_t<T>>::Size;
  const size_t tiles = ceil_div(ncols, Size);
  for (size_t item = bid_x(); item < tiles * rows; item += gdim_x()) {
    const size_t row = divide(item, tiles), first = (item - row * tiles) * Size, at = row * ncols + first;
    const u32 count = (u32)(ncols - first < Size ? ncols - first : Size);
    sort_tile<T, Descending, Tile<key_t<T>>::Items>(x + at, count, keys, order, counters, warps);
    for (u32 i = tid_x(); i < count; i += bdim_x()) {
      keys_out[at + i] = keys[padded(i)];
      dst[at + i] = (u32)first + order[padded(i)];
    }
    barrier();
  }
}

// How many of the first `diagonal` elements of the merge of a and b come from a; on equal keys a goes first.
template <class A, class B> GPU_FN size_t merge_split(const A& a, size_t a_count, const B& b, size_t b_count, size_t diagonal) {
  size_t low = diagonal > b_count ? diagonal - b_count : 0, high = diagonal < a_count ? diagonal : a_count;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (b[diagonal - middle - 1] < a[middle]) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Merges runs [2i·run, (2i+1)·run) and [(2i+1)·run, (2i+2)·run) of each row. A block makes MERGE_SIZE neighbours of the result: it
// finds its parts of both runs by bisection, brings them to shared memory, and each thread merges MERGE_ITEMS of them there.
// Launch: a block per MERGE_SIZE elements of a row. Traffic: keys and indices read once and written once.
constexpr u32 MERGE_SIZE = SORT_THREADS * MERGE_ITEMS;
template <class K>
GPU_FN void merge_runs(K* keys, u32* indices, u64* split, size_t rows, size_t ncols, size_t run, const K* keys_in, const u32* index_in, K* keys_out, u32* index_out) {
  const size_t chunks = ceil_div(ncols, MERGE_SIZE);
  for (size_t item = bid_x(); item < chunks * rows; item += gdim_x()) {
    const size_t row = divide(item, chunks), first = (item - row * chunks) * MERGE_SIZE;
    const size_t pair = divide(first, 2 * run) * (2 * run);
    const size_t a_count = ncols - pair < run ? ncols - pair : run;
    const size_t b_count = ncols - pair - a_count < run ? ncols - pair - a_count : run;
    const size_t from = first - pair, left = a_count + b_count - from;
    const u32 count = (u32)(left < MERGE_SIZE ? left : MERGE_SIZE);
    const size_t at = row * ncols + pair;
    if (tid_x() < 2) split[tid_x()] = merge_split(keys_in + at, a_count, keys_in + at + a_count, b_count, from + tid_x() * count);
    barrier();
    const size_t a0 = split[0], b0 = from - a0;
    const u32 a_part = (u32)(split[1] - a0), b_part = count - a_part;
    for (u32 i = tid_x(); i < count; i += SORT_THREADS) {
      const size_t source = at + (i < a_part ? a0 + i : a_count + b0 + (i - a_part));
      keys[i] = keys_in[source];
      indices[i] = index_in[source];
    }
    barrier();
    const u32 begin = tid_x() * MERGE_ITEMS < count ? tid_x() * MERGE_ITEMS : count;
    u32 a = (u32)merge_split(keys, a_part, keys + a_part, b_part, begin), b = begin - a;
    K key[MERGE_ITEMS];
    u32 index[MERGE_ITEMS];
    UNROLL for (u32 i = 0; i < MERGE_ITEMS; i++) {
      if (begin + i < count) {
        const bool take_b = a >= a_part || (b < b_part && keys[a_part + b] < keys[a]);
        const u32 place = take_b ? a_part + b++ : a++;
        key[i] = keys[place];
        index[i] = indices[place];
      }
    }
    barrier();
    UNROLL for (u32 i = 0; i < MERGE_ITEMS; i++)
      if (begin + i < count) {
        keys[begin + i] = key[i];
        indices[begin + i] = index[i];
      }
    barrier();
    for (u32 i = tid_x(); i < count; i += SORT_THREADS) {
      if (keys_out) keys_out[row * ncols + first + i] = keys[i];
      index_out[row * ncols + first + i] = indices[i];
    }
    barrier();
  }
}

#define SORT_SHARED(T) \
  SHARED(key_t<T>, keys, Tile<key_t<T>>::Padded); \
  SHARED(u16, order, Tile<key_t<T>>::Padded); \
  SHARED(u16, counters, 16 * SORT_THREADS); \
  SHARED(u32, warps, SORT_THREADS / 32);
#define SORT(direction, Descending, T) \
  KERNEL_BOUNDS(GPU_BLOCK, argsort_##direction##_##T, const T* x, u32* out, size_t rows, size_t cols) { \
    SORT_SHARED(T) \
    sort_rows<T, Descending>(keys, order, counters, warps, x, out, (u32)cols, rows); \
  } \
  KERNEL_BOUNDS(GPU_BLOCK, argsort_tile_##direction##_##T, const T* x, void* keys_out, u32* index_out, size_t rows, size_t cols) { \
    SORT_SHARED(T) \
    sort_tiles<T, Descending>(keys, order, counters, warps, x, (key_t<T>*)keys_out, index_out, cols, rows); \
  }
#define SORT_ALL(T) SORT(asc, false, T) SORT(desc, true, T)
GPU_NUMBERS(SORT_ALL)

// keys_out is null in the last launch: only the indices are wanted then.
#define MERGE(K) \
  KERNEL_BOUNDS(GPU_BLOCK, argsort_merge_##K, const K* keys_in, const u32* index_in, K* keys_out, u32* index_out, size_t rows, \
                size_t cols, size_t run) { \
    SHARED(K, keys, MERGE_SIZE); \
    SHARED(u32, indices, MERGE_SIZE); \
    SHARED(u64, split, 2); \
    merge_runs<K>(keys, indices, split, rows, cols, run, keys_in, index_in, keys_out, index_out); \
  }
#if !defined(GPU_ONLY) || defined(GPU_ONLY_bytes)
MERGE(u32)
MERGE(u64)
#endif

}  // namespace gpu
