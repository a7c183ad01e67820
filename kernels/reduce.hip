// Reductions over the last `length` elements of each row, and over strided columns. No atomics: the order of every sum
// depends on the sizes alone. Halves accumulate in f32; NaN wins min and max; of equal extremes (and of NaNs) the first
// index wins. Traffic: each element read once.
//
//   OP_T       element j of row i is number i·length + j of the layout; row_threads threads (1 … GPU_BLOCK) per row
//   OP_cols_T  element j of row (o, c) is x[o·outer_stride + j·length_stride + c]: reads run along c
//   OP_join_T  second launch where rows were cut into pieces: joins the partial results in order
#include "gpu.h"
namespace gpu {

constexpr u32 BLOCK = GPU_BLOCK;

template <class T> struct Accumulator { typedef compute_t<T> type; };
template <> struct Accumulator<u8> { typedef u32 type; };
template <> struct Accumulator<i16> { typedef i32 type; };

// An operation folds values into an Acc: identity, the value of one element, and the order-independent join of two.
template <class T> struct Sum {
  static constexpr bool Places = false;
  typedef typename Accumulator<T>::type Acc;
  typedef T Out;
  GPU_FN Acc identity() { return 0; }
  GPU_FN Acc of(T x, u32) { return (Acc)widen(x); }
  GPU_FN Acc join(Acc a, Acc b) { return add(a, b); }
  GPU_FN Acc shuffle(Acc a, u32 mask) { return shfl_xor(a, mask); }
  GPU_FN Out result(Acc a) { return narrow<T>((compute_t<T>)a); }
};
template <class T, bool Greatest> struct Extreme {
  static constexpr bool Places = false;
  typedef typename Accumulator<T>::type Acc;
  typedef T Out;
  GPU_FN Acc identity() {
    return Greatest ? (Acc)Limits<compute_t<T>>::lowest() : (Acc)Limits<compute_t<T>>::highest();
  }
  GPU_FN Acc of(T x, u32) { return (Acc)widen(x); }
  GPU_FN Acc join(Acc a, Acc b) { return Greatest ? maximum(a, b) : minimum(a, b); }
  GPU_FN Acc shuffle(Acc a, u32 mask) { return shfl_xor(a, mask); }
  GPU_FN Out result(Acc a) { return narrow<T>((compute_t<T>)a); }
};
template <class T> struct Max : Extreme<T, true> {};
template <class T> struct Min : Extreme<T, false> {};

// The index is as wide as the value: no padding, whose bytes nobody would have written.
template <class V> struct Place {
  typedef bits_t<V> Index;
  V value;
  Index index;
};
template <class T, bool Greatest_> struct ArgExtreme {
  static constexpr bool Greatest = Greatest_, Places = true;
  typedef typename Accumulator<T>::type V;
  typedef Place<V> Acc;
  typedef u32 Out;
  // Loses every tie: its index is the last one there is.
  GPU_FN Acc identity() { return Acc{Extreme<T, Greatest>::identity(), (typename Acc::Index)~0ull}; }
  GPU_FN Acc of(T x, u32 index) { return Acc{(V)widen(x), index}; }
  GPU_FN Acc join(Acc a, Acc b) {
    const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
    const bool tie = a.value == b.value || (nan_a && nan_b);
    const bool better = nan_b ? !nan_a : !nan_a && (Greatest ? b.value > a.value : b.value < a.value);
    return (tie ? b.index < a.index : better) ? b : a;
  }
  GPU_FN Acc shuffle(Acc a, u32 mask) { return Acc{shfl_xor(a.value, mask), shfl_xor(a.index, mask)}; }
  GPU_FN Out result(Acc a) { return (u32)a.index; }
};
template <class T> struct ArgMax : ArgExtreme<T, true> {};
template <class T> struct ArgMin : ArgExtreme<T, false> {};

// Folding elements in increasing index: an index comparison is never needed, a few instructions less than join.
template <class Op, class Acc, class T> GPU_FN void take(Acc& acc, T x, u32 index, const Op&) {
  acc = Op::join(acc, Op::of(x, index));
}
template <class T, bool Greatest> GPU_FN void take_place(Place<typename Accumulator<T>::type>& acc, T raw, u32 index) {
  typedef typename Accumulator<T>::type V;
  const V x = (V)widen(raw);
  const bool beats = Greatest ? !(x <= acc.value) : !(x >= acc.value);
  // NaN stays once it is there. A first element equal to the identity's value must still replace its index.
  if ((beats && acc.value == acc.value) || (acc.index == (bits_t<V>)~0ull && x == acc.value)) {
    acc.value = x;
    acc.index = index;
  }
}
template <class T> GPU_FN void take(typename ArgMax<T>::Acc& acc, T x, u32 i, const ArgMax<T>&) { take_place<T, true>(acc, x, i); }
template <class T> GPU_FN void take(typename ArgMin<T>::Acc& acc, T x, u32 i, const ArgMin<T>&) { take_place<T, false>(acc, x, i); }

// A vector at once. Sums add its elements as a tree first: shorter chains, smaller errors.
template <class Op, class Acc, class T, int N>
GPU_FN void take_vector(Acc& acc, const Vec<T, N>& x, u32 index, const Op& op) {
  UNROLL for (int j = 0; j < N; j++) take(acc, x.v[j], index + j, op);
}
template <class T, int N>
GPU_FN void take_vector(typename Sum<T>::Acc& acc, const Vec<T, N>& x, u32, const Sum<T>&) {
  typename Sum<T>::Acc s[N];
  UNROLL for (int j = 0; j < N; j++) s[j] = Sum<T>::of(x.v[j], 0);
  UNROLL for (int d = 1; d < N; d *= 2)
    UNROLL for (int j = 0; j + d < N; j += 2 * d) s[j] = add(s[j], s[j + d]);
  acc = add(acc, s[0]);
}

// Elements lo, lo + step, … < hi of one row; four loads in flight where rows have one stride.
template <class Op, class T>
GPU_FN typename Op::Acc fold_strided(size_t lo, size_t hi, size_t step, const T* row, i64 stride) {
  typename Op::Acc acc[4];
  UNROLL for (int u = 0; u < 4; u++) acc[u] = Op::identity();
  size_t j = lo;
  for (; j + 3 * step < hi; j += 4 * step) {
    T x[4];
    UNROLL for (int u = 0; u < 4; u++) x[u] = row[(i64)(j + u * step) * stride];
    UNROLL for (int u = 0; u < 4; u++) take(acc[u], x[u], (u32)(j + u * step), Op());
  }
  NO_UNROLL for (; j < hi; j += step) take(acc[0], row[(i64)j * stride], (u32)j, Op());
  return Op::join(Op::join(acc[0], acc[1]), Op::join(acc[2], acc[3]));
}
template <class Op, class T>
GPU_FN typename Op::Acc fold_layout(size_t lo, size_t hi, size_t step, size_t first, size_t num_dims, const size_t* info, const T* src) {
  typename Op::Acc acc = Op::identity();
  NO_UNROLL for (size_t j = lo; j < hi; j += step) take(acc, src[offset(first + j, num_dims, info)], (u32)j, Op());
  return acc;
}
template <class Op, class T> GPU_FN typename Op::Acc fold_vectors(const T* row, size_t lo, size_t hi, size_t step) {
  constexpr int V = 16 / sizeof(T), U = V > 8 ? 2 : 4;
  typename Op::Acc acc[U];
  UNROLL for (int u = 0; u < U; u++) acc[u] = Op::identity();
  for (size_t j = lo; j < hi; j += U * step) {
    Vec<T, V> x[U];
    UNROLL for (int u = 0; u < U; u++)
      if (j + u * step < hi) x[u] = load_vec<T, V>(row, j + u * step);
    UNROLL for (int u = 0; u < U; u++)
      if (j + u * step < hi) take_vector(acc[u], x[u], (u32)((j + u * step) * V), Op());
  }
  UNROLL for (int d = 1; d < U; d *= 2)
    UNROLL for (int u = 0; u + d < U; u += 2 * d) acc[u] = Op::join(acc[u], acc[u + d]);
  return acc[0];
}

// Places by vectors: first only which vector holds the extreme, one comparison per vector, then that vector once more for
// the element. Every thread's vectors come in increasing order, so the first one stays on ties.
template <class Op, class T> GPU_FN typename Op::Acc fold_places(const T* row, size_t lo, size_t hi, size_t step) {
  typedef typename Op::Acc Acc;
  typedef typename Op::V Value;
  typedef Extreme<T, Op::Greatest> Value_op;
  constexpr int V = 16 / sizeof(T), U = V > 8 ? 2 : 4;
  if (lo >= hi) return Op::identity();
  Acc acc[U];
  UNROLL for (int u = 0; u < U; u++) acc[u] = Acc{Value_op::identity(), (typename Acc::Index)(lo + u * step)};
  for (size_t j = lo; j < hi; j += U * step) {
    Vec<T, V> x[U];
    UNROLL for (int u = 0; u < U; u++)
      if (j + u * step < hi) x[u] = load_vec<T, V>(row, j + u * step);
    UNROLL for (int u = 0; u < U; u++)
      if (j + u * step < hi) {
        Value most = (Value)widen(x[u].v[0]);
        UNROLL for (int k = 1; k < V; k++) most = Value_op::join(most, (Value)widen(x[u].v[k]));
        const bool beats = Op::Greatest ? !(most <= acc[u].value) : !(most >= acc[u].value);
        if (beats && acc[u].value == acc[u].value) acc[u] = Acc{most, (typename Acc::Index)(j + u * step)};
      }
  }
  UNROLL for (int u = 1; u < U; u++) acc[0] = Op::join(acc[0], acc[u]);
  const Value value = acc[0].value;
  const Vec<T, V> x = load_vec<T, V>(row, acc[0].index);
  u32 place = 0;
  UNROLL for (int k = V - 1; k >= 0; k--) {
    const Value v = (Value)widen(x.v[k]);
    if (v == value || (v != v && value != value)) place = k;
  }
  return Acc{value, (typename Acc::Index)(acc[0].index * V + place)};
}
template <bool Places> struct FoldVectors {
  template <class Op, class T> GPU_FN typename Op::Acc run(const T* row, size_t lo, size_t hi, size_t step) { return fold_vectors<Op, T>(row, lo, hi, step); }
};
template <> struct FoldVectors<true> {
  template <class Op, class T> GPU_FN typename Op::Acc run(const T* row, size_t lo, size_t hi, size_t step) { return fold_places<Op, T>(row, lo, hi, step); }
};

// Pieces of a row end on vector boundaries.
template <class T> GPU_FN size_t piece_length(size_t el, u32 pieces) {
  constexpr size_t V = 16 / sizeof(T);
  return ((pieces == 1 ? el : ceil_div(el, pieces)) + V - 1) / V * V;
}

template <class Op, class T>
GPU_FN void reduce_rows(typename Op::Acc* shared, size_t rows, size_t el, size_t num_dims, const size_t* info,
                        const T* src, typename Op::Out* dst, u32 row_threads, u32 pieces, typename Op::Acc* partial) {
  typedef typename Op::Acc Acc;
  constexpr size_t V = 16 / sizeof(T);
  const size_t items = rows * pieces, piece = piece_length<T>(el, pieces);
  const u32 groups = BLOCK / row_threads, group = tid_x() / row_threads, t = tid_x() % row_threads;
  const bool vectors = !info && el % V == 0 && aligned_to(src, 16);
  const bool one_stride = !info || info[num_dims - 1] == el;
  for (size_t base = (size_t)bid_x() * groups; base < items; base += (size_t)gdim_x() * groups) {
    const size_t item = base + group;
    Acc acc = Op::identity();
    if (item < items) {
      const size_t row = pieces == 1 ? item : divide(item, pieces), lo = (item - row * pieces) * piece, hi = lo + piece < el ? lo + piece : el;
      if (vectors) acc = FoldVectors<Op::Places>::template run<Op, T>(src + row * el, lo / V + t, hi / V, row_threads);
      else if (one_stride)
        acc = fold_strided<Op, T>(lo + t, hi, row_threads, src + offset(row * el, num_dims, info),
                                  info ? (i64)info[2 * num_dims - 1] : 1);
      else acc = fold_layout<Op, T>(lo + t, hi, row_threads, row * el, num_dims, info, src);
    }
    for (u32 mask = row_threads < 32 ? row_threads / 2 : 16; mask; mask /= 2) acc = Op::join(acc, Op::shuffle(acc, mask));
    if (row_threads > 32) {
      if (lane_id() == 0) shared[tid_x() / 32] = acc;
      barrier();
      if (t == 0)
        for (u32 w = 1; w < row_threads / 32; w++) acc = Op::join(acc, shared[tid_x() / 32 + w]);
      barrier();
    }
    if (t == 0 && item < items) {
      if (partial) partial[item] = acc;
      else dst[item] = Op::result(acc);
    }
  }
}

// As many columns as fill a vector, up to REDUCE_COLUMNS: each has an accumulator of its own.
template <class T> struct ColumnsPerThread { static constexpr int value = 16 / sizeof(T) > REDUCE_COLUMNS ? REDUCE_COLUMNS : 16 / sizeof(T); };

// Thread (x, y) of a block folds rows y, y + Y, … of W neighbouring columns; the Y results of a column meet in shared
// memory. Tiles are (o, piece, column block).
template <class Op, class T, int W>
GPU_FN void reduce_cols(typename Op::Acc* shared, size_t outer, size_t el, size_t inner, i64 outer_stride, i64 el_stride,
                        const T* src, typename Op::Out* dst, u32 col_threads, u32 pieces, typename Op::Acc* partial) {
  typedef typename Op::Acc Acc;
  const u32 x = tid_x() % col_threads, y = tid_x() / col_threads, Y = BLOCK / col_threads;
  const size_t across = ceil_div(inner, (size_t)col_threads * W), tiles = across * pieces * outer;
  const size_t piece = ceil_div(el, pieces);
  for (size_t tile = bid_x(); tile < tiles; tile += gdim_x()) {
    const size_t line = divide(tile, across), o = divide(line, pieces), p = line - o * pieces;
    const size_t c = ((tile - line * across) * col_threads + x) * W;
    const size_t lo = p * piece, hi = lo + piece < el ? lo + piece : el;
    Acc acc[W];
    UNROLL for (int w = 0; w < W; w++) acc[w] = Op::identity();
    if (c < inner) {
      const T* from = src + (i64)o * outer_stride + (i64)c;
      size_t j = lo + y;
      for (; j + 3 * Y < hi; j += 4 * Y) {
        Vec<T, W> v[4];
        UNROLL for (int u = 0; u < 4; u++) v[u] = *(const Vec<T, W>*)(from + (i64)(j + u * Y) * el_stride);
        UNROLL for (int u = 0; u < 4; u++)
          UNROLL for (int w = 0; w < W; w++) take(acc[w], v[u].v[w], (u32)(j + u * Y), Op());
      }
      NO_UNROLL for (; j < hi; j += Y) {
        const Vec<T, W> v = *(const Vec<T, W>*)(from + (i64)j * el_stride);
        UNROLL for (int w = 0; w < W; w++) take(acc[w], v.v[w], (u32)j, Op());
      }
    }
    UNROLL for (int w = 0; w < W; w++) shared[w * BLOCK + tid_x()] = acc[w];
    barrier();
    for (u32 half = Y / 2; half; half /= 2) {
      if (y < half)
        UNROLL for (int w = 0; w < W; w++)
          shared[w * BLOCK + tid_x()] = Op::join(shared[w * BLOCK + tid_x()], shared[w * BLOCK + tid_x() + half * col_threads]);
      barrier();
    }
    if (y == 0 && c < inner)
      UNROLL for (int w = 0; w < W; w++) {
        const Acc total = shared[w * BLOCK + x];
        if (partial) partial[(o * pieces + p) * inner + c + w] = total;
        else dst[o * inner + c + w] = Op::result(total);
      }
    barrier();
  }
}
template <class Op, class T>
GPU_FN void reduce_columns(typename Op::Acc* shared, size_t outer, size_t el, size_t inner, i64 outer_stride, i64 el_stride,
                           const T* src, typename Op::Out* dst, u32 col_threads, u32 pieces, typename Op::Acc* partial) {
  constexpr int W = ColumnsPerThread<T>::value;
  if (vector_aligned<W>(src) && ((i64)inner | outer_stride | el_stride) % W == 0)
    reduce_cols<Op, T, W>(shared, outer, el, inner, outer_stride, el_stride, src, dst, col_threads, pieces, partial);
  else reduce_cols<Op, T, 1>(shared, outer, el, inner, outer_stride, el_stride, src, dst, col_threads, pieces, partial);
}

// partial[(o·pieces + p)·inner + c] → dst[o·inner + c], a warp per result.
template <class Op> GPU_FN void join_pieces(size_t rows, size_t inner, u32 pieces, const typename Op::Acc* partial, typename Op::Out* dst) {
  for (size_t base = (size_t)bid_x() * (BLOCK / 32); base < rows; base += (size_t)gdim_x() * (BLOCK / 32)) {
    const size_t row = base + tid_x() / 32;
    typename Op::Acc acc = Op::identity();
    if (row < rows) {
      const size_t o = divide(row, inner), c = row - o * inner;
      for (u32 p = lane_id(); p < pieces; p += 32) acc = Op::join(acc, partial[(o * pieces + p) * inner + c]);
    }
    for (u32 mask = 16; mask; mask /= 2) acc = Op::join(acc, Op::shuffle(acc, mask));
    if (lane_id() == 0 && row < rows) dst[row] = Op::result(acc);
  }
}

// row_threads and col_threads are powers of two. `partial` takes rows × pieces accumulators where pieces > 1 (then `out` is
// left to the join) and is null otherwise.
#define REDUCE(name, T, Op) \
  KERNEL_BOUNDS(GPU_BLOCK, name##_##T, const T* x, Op<T>::Out* out, void* partial, size_t rows, size_t length, \
                size_t num_dims, const size_t* info, u32 row_threads, u32 pieces) { \
    SHARED(Op<T>::Acc, shared, BLOCK / 32); \
    reduce_rows<Op<T>, T>(shared, rows, length, num_dims, info, x, out, row_threads, pieces, (Op<T>::Acc*)partial); \
  } \
  KERNEL_BOUNDS(GPU_BLOCK, name##_cols_##T, const T* x, Op<T>::Out* out, void* partial, size_t outer, size_t length, \
                size_t inner, size_t outer_stride, size_t length_stride, u32 col_threads, u32 pieces) { \
    SHARED(Op<T>::Acc, shared, BLOCK * ColumnsPerThread<T>::value); \
    reduce_columns<Op<T>, T>(shared, outer, length, inner, (i64)outer_stride, (i64)length_stride, x, out, col_threads, \
                             pieces, (Op<T>::Acc*)partial); \
  } \
  KERNEL_BOUNDS(GPU_BLOCK, name##_join_##T, const void* partial, Op<T>::Out* out, size_t rows, size_t inner, u32 pieces) { \
    join_pieces<Op<T>>(rows, inner, pieces, (const Op<T>::Acc*)partial, out); \
  }
#define REDUCE_ALL(T) \
  REDUCE(sum, T, Sum) REDUCE(min, T, Min) REDUCE(max, T, Max) REDUCE(argmin, T, ArgMin) REDUCE(argmax, T, ArgMax)
GPU_NUMBERS(REDUCE_ALL)

// Running sums of contiguous rows: out[r, c] = Σ x[r, 0 … c]. A block walks one row: each thread
// sums four, warps scan by shuffles, warps meet in shared memory, and the tile's total is carried on.
template <class T> GPU_FN void cumsum(typename Accumulator<T>::type* warps, size_t rows, size_t cols, const T* src, T* dst) {
  typedef typename Accumulator<T>::type A;
  for (size_t row = bid_x(); row < rows; row += gdim_x()) {
    A carry = 0;
    for (size_t first = 0; first < cols; first += BLOCK * 4) {
      const size_t at = first + tid_x() * 4;
      A x[4];
      UNROLL for (int j = 0; j < 4; j++) {
        x[j] = at + j < cols ? (A)widen(src[row * cols + at + j]) : (A)0;
        if (j) x[j] = add(x[j], x[j - 1]);
      }
      A scan = x[3];
      for (u32 d = 1; d < 32; d *= 2) {
        const A before = shfl_up(scan, d);
        if (lane_id() >= d) scan = add(scan, before);
      }
      if (lane_id() == 31) warps[tid_x() / 32] = scan;
      barrier();
      A before = carry;
      for (u32 w = 0; w < BLOCK / 32; w++) {
        if (w < tid_x() / 32) before = add(before, warps[w]);
        carry = add(carry, warps[w]);
      }
      const A left = shfl_up(scan, 1);
      if (lane_id() > 0) before = add(before, left);
      UNROLL for (int j = 0; j < 4; j++)
        if (at + j < cols) dst[row * cols + at + j] = narrow<T>((compute_t<T>)add(before, x[j]));
      barrier();
    }
  }
}
#define CUMSUM(T) \
  KERNEL_BOUNDS(GPU_BLOCK, cumsum_##T, const T* x, T* out, size_t rows, size_t cols) { \
    SHARED(Accumulator<T>::type, warps, BLOCK / 32); \
    cumsum<T>(warps, rows, cols, x, out); \
  }
GPU_NUMBERS(CUMSUM)

}  // namespace gpu
