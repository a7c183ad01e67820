// Keys cut into parts, each by another block: what those leave behind and how the one that ends last joins it.
#ifndef WICK_ATTENTION_PARTS_H
#define WICK_ATTENTION_PARTS_H
#include "attention.h"
namespace gpu {

// Parts of a row joined one by one: each weighs 2^(its greatest − the greatest of all). A sink is a part of its own.
struct Joined {
  f32 top, total;
  Vec<f32, 4> sum;
  GPU_METHOD Joined() : top(Limits<f32>::lowest()), total(0) { UNROLL for (int i = 0; i < 4; i++) sum.v[i] = 0; }
  template <class T> GPU_METHOD void add_sink(const Attention<T>& a, u32 head) {
    if (a.sinks) add({{widen(a.sinks[head]) * LOG2_E, 1}}, {{0, 0, 0, 0}});
  }
  GPU_METHOD void add(const Vec<f32, 2>& pair, const Vec<f32, 4>& x) {
    const f32 greatest = max_fast(top, pair.v[0]), shift = greatest == Limits<f32>::lowest() ? 0 : greatest;
    const f32 old = approx_exp2(top - shift), now = approx_exp2(pair.v[0] - shift);
    top = greatest;
    total = total * old + pair.v[1] * now;
    UNROLL for (int i = 0; i < 4; i++) sum.v[i] = sum.v[i] * old + x.v[i] * now;
  }
  // `count` parts in memory, several on their way at once.
  GPU_METHOD void add_all(const f32* pairs, const f32* results, u32 count, u32 stride) {
    constexpr u32 G = 8;
    NO_UNROLL for (u32 s = 0; s < count; s += G) {
      Vec<f32, 2> pair[G];
      Vec<f32, 4> x[G];
      UNROLL for (u32 i = 0; i < G; i++) {
        const u32 at = s + i < count ? s + i : s;
        pair[i] = *(const Vec<f32, 2>*)(pairs + at * 2);
        x[i] = *(const Vec<f32, 4>*)(results + (size_t)at * stride);
      }
      UNROLL for (u32 i = 0; i < G; i++) if (s + i < count) add(pair[i], x[i]);
    }
  }
  template <class T> GPU_METHOD void store(T* out) const {
    const f32 by = 1 / total;
    UNROLL for (int i = 0; i < 4; i++) out[i] = narrow<T>(sum.v[i] * by);
  }
};

// Four columns of each of `rows` rows to each thread: f(row, the row's place in the output, first column).
template <class T, class F> GPU_FN void each_quad(const Attention<T>& a, const Group& group, u32 row0, u32 rows, F f) {
  const u32 quads = a.dv / 4;
  for (u32 i = tid_x(); i < rows * quads; i += bdim_x()) {
    const u32 row = i / quads, r = row0 + row;
    f(row, ((size_t)group.b * a.heads + group.head(r)) * a.tq + (u32)group.query(r), (i - row * quads) * 4);
  }
}

// Whether this block of `parts` is the last; what the others wrote before they counted is there for it. `word` is in shared memory.
// It leaves a zero.
GPU_FN bool ends_last(u32* word, u32* counter, u32 parts) {
  device_fence();
  barrier();
  if (tid_x() == 0) {
    *word = atomic_add(counter, 1u) == parts - 1;
    if (*word) *counter = 0;
  }
  barrier();
  if (*word) device_fence();
  return *word != 0;
}

// The rows from row0 on of a group, from `splits` places each in `scratch`, of which `parts` are used.
template <class T>
GPU_FN void join_parts(const Attention<T>& a, const Group& group, u32 row0, u32 rows, const f32* scratch, const f32* pairs, u32 splits, u32 parts) {
  each_quad(a, group, row0, rows, [&](u32 row, size_t at, u32 col) {
    Joined sum;
    sum.add_all(pairs + at * splits * 2, scratch + at * splits * a.dv + col, parts, a.dv);
    sum.add_sink(a, group.head(row0 + row));
    sum.store(a.out + at * a.dv + col);
  });
}

}  // namespace gpu
#endif
