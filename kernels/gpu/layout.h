// Strided layouts: from the number of an element to its place.
#ifndef WICK_GPU_LAYOUT_H
#define WICK_GPU_LAYOUT_H
#include "gpu/dtypes.h"

namespace gpu {
// Almost no index needs a 64-bit division, which GPUs do not have: compilers emit a call, or a hundred instructions, and keep
// registers free for it. So what does not fit 32 bits is divided bit by bit: rare, and slow there only.
GPU_FN u64 divide(u64 a, u64 b) {
  if (!((a | b) >> 32)) return (u32)a / (u32)b;
  u64 quotient = 0, part = b, bit = 1;
  NO_UNROLL while (part <= a && !(part >> 63)) part <<= 1, bit <<= 1;
  NO_UNROLL for (; bit; part >>= 1, bit >>= 1)
    if (part <= a) a -= part, quotient |= bit;
  return quotient;
}
template <class A, class B> GPU_FN size_t ceil_div(A a, B b) { return divide((u64)a + (u64)b - 1, (u64)b); }
// x / size where x has grown past size by less than 2^31: how often an advanced coordinate wrapped.
GPU_FN u64 wraps(u64 x, u64 size) {
  if (x < size) return 0;
  return size >> 31 || x < 2 * size ? 1 : (u32)x / (u32)size;
}

// Offsets of the linear index `i` for K operands that share the dims: info = dims ‖ K arrays of strides. What is left of `i`
// after the inner dims is the outermost coordinate: one division less.
template <int K> GPU_FN void offsets(size_t i, size_t num_dims, const size_t* info, i64 (&at)[K]) {
  UNROLL for (int k = 0; k < K; k++) at[k] = 0;
  if (num_dims == 0) return;
  NO_UNROLL for (size_t d = num_dims; --d > 0;) {
    const size_t next = divide(i, info[d]);
    const i64 c = (i64)(i - next * info[d]);
    UNROLL for (int k = 0; k < K; k++) at[k] += c * (i64)info[num_dims * (k + 1) + d];
    i = next;
  }
  UNROLL for (int k = 0; k < K; k++) at[k] += (i64)i * (i64)info[num_dims * (k + 1)];
}
// The same for one operand; null info = contiguous.
GPU_FN i64 offset(size_t i, size_t num_dims, const size_t* info) {
  if (!info) return (i64)i;
  i64 at[1];
  offsets<1>(i, num_dims, info, at);
  return at[0];
}
}  // namespace gpu

#endif  // WICK_GPU_LAYOUT_H
