// Linear layers of up to eight activation rows with quantized weights, bound by reading the weights once.
//
//   linear_Q_bN  for N/2 < batch ≤ N; dtype of x, y and what is added: 0 f32, 1 f16, 2 bf16
#include "quant-matvec.h"
namespace gpu {

// Rows of a warp share what it reads of the activations; where chunks go through registers, those are too few for four.
#if GPU_NVIDIA
constexpr int ROWS = 4, PLACES = 2;
#else
constexpr int ROWS = 2, PLACES = 1;
#endif
#define MAT_VEC(Q) \
  MAT_VEC_KERNEL(linear_##Q##_b1, Q, 1, ROWS, PLACES) \
  MAT_VEC_KERNEL(linear_##Q##_b2, Q, 2, ROWS, PLACES) \
  MAT_VEC_KERNEL(linear_##Q##_b4, Q, 4, ROWS, PLACES) \
  MAT_VEC_KERNEL(linear_##Q##_b8, Q, 8, ROWS, PLACES)
QUANT_TYPES(MAT_VEC)

}  // namespace gpu
