// A rotation as every kernel does it: (p·cos − q·sin, p·sin + q·cos) in f32 for halves. The fused products are written out:
// left to compilers, one kernel fuses the first of them and another the second, and their last bits differ.
#ifndef WICK_TURN_H
#define WICK_TURN_H
#include "gpu.h"

namespace gpu {
template <class T> GPU_FN void turn(T& x, T& y, T cos, T sin) {
  const compute_t<T> p = widen(x), q = widen(y), c = widen(cos), s = widen(sin);
  x = narrow<T>(m_fma(p, c, -(q * s)));
  y = narrow<T>(m_fma(p, s, q * c));
}
}  // namespace gpu

#endif  // WICK_TURN_H
