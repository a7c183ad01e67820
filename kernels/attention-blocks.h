// Which queries each block of a prefill has, of a batch side by side or of sequences one behind the other, and where results go.
#ifndef WICK_ATTENTION_BLOCKS_H
#define WICK_ATTENTION_BLOCKS_H
#include "attention.h"
namespace gpu {

// Sequences whose rows lie one behind the other, `total` of them in all: sequence b has those from offsets[b] to offsets[b + 1],
// the first begins at 0, the last ends with the rows. Those whose keys lie in pages may begin behind other rows.
struct Sequences {
  const i64* offsets;
  u32 count, total;
  // Before the first: of those in front of it others take care.
  i64 before;

  GPU_METHOD u32 offset(u32 b) const {
    if (b == 0) return 0;
    if (b >= count) return total;
    const i64 n = offsets[b] - before;
    return n < 0 ? 0 : n < (i64)total ? (u32)n : total;
  }
};
// The sequence that has block `block` of `rows` rows: b begins with block offset(b) / rows + b, as those before it take no more. The
// lanes of a warp look for it together. A call, as what is inlined here would take registers from attention itself.
GPU_RARE u32 sequence_of(const Sequences s, u32 rows, u32 block) {
  u32 first = 0, count = s.count;
  NO_UNROLL while (count > 1) {
    const u32 step = (count + 31) / 32, b = first + lane_id() * step;
    u32 begun = lane_id() * step < count && s.offset(b) / rows + b <= block;
    UNROLL for (u32 mask = 16; mask; mask /= 2) begun += shfl_xor(begun, mask);
    const u32 passed = begun ? (begun - 1) * step : 0;
    first += passed;
    count = count - passed < step ? count - passed : step;
  }
  return first;
}

// With `offsets` all rows are sequences, tq of them: as many as there are keys, or, with `tables`, each has its own.
template <class T> struct Prefilling : Attention<T> {
  const i64* offsets;
  i64 out_b, out_h, out_t;
};

#define PREFILL_OPERANDS(T) ATTENTION_OPERANDS(T), const i64 *offsets
#define PREFILL_SIZES ATTENTION_SIZES, size_t out_b, size_t out_h, size_t out_t
#define PREFILL_GATHER(T) \
  Prefilling<T> { ATTENTION_GATHER(T), offsets, (i64)out_b, (i64)out_h, (i64)out_t }

// Queries row0 … of a head: `tq` is how many its sequence has, `start` where that lies among rows behind each other.
struct Place {
  u32 b, head, row0, tq, start;
  i32 length;

  template <class T> GPU_METHOD const T* queries(const Prefilling<T>& a) const { return a.q + b * a.q_b + start * a.q_t; }
  template <class T> GPU_METHOD Rows<T> keys(const Prefilling<T>& a) const {
    const T* const own = a.k + (a.tables ? 0 : start * a.k_t) + (i64)(head / (a.heads / a.kv_heads)) * a.k_h;
    return Rows<T>(a, own, b, a.k_b, a.k_t, a.d);
  }
  template <class T> GPU_METHOD Rows<T> values(const Prefilling<T>& a) const {
    const T* const own = a.v + (a.tables ? 0 : start * a.v_t) + (i64)(head / (a.heads / a.kv_heads)) * a.v_h;
    return Rows<T>(a, own, b, a.v_b, a.v_t, a.dv);
  }
  template <class T> GPU_METHOD T* results(const Prefilling<T>& a) const {
    return a.out + b * a.out_b + head * a.out_h + (i64)(start + row0) * a.out_t;
  }
};

// Blocks of Rows queries that a head has in a launch, some of them empty where sequences lie behind each other.
template <int Rows, class T> GPU_FN u32 blocks_of_head(const Prefilling<T>& a) {
  return a.offsets ? a.tq / Rows + a.batch : (a.tq + Rows - 1) / Rows;
}
// Block `item` of sequences behind each other; where it has no queries row0 is behind them. The heads of a block are neighbours.
template <int Rows, class T> GPU_FN Place place_in_rows(const Prefilling<T>& a, u32 item) {
  const u32 block = item / a.heads;
  Place p;
  p.head = item - block * a.heads;
  const Sequences sequences{a.offsets, a.batch, a.tq, a.tables ? a.offsets[0] : 0};
  const u32 sequence = sequence_of(sequences, Rows, block), end = sequences.offset(sequence + 1);
  p.b = a.tables ? sequence : 0;
  p.start = sequences.offset(sequence);
  p.tq = end > p.start ? end - p.start : 0;
  p.length = a.tables ? a.length(sequence) : (i32)p.tq;
  p.row0 = (block - (p.start / Rows + sequence)) * Rows;
  return p;
}

}  // namespace gpu
#endif
