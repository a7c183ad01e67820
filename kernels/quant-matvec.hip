// Linear layers of up to eight activation rows with quantized weights, bound by reading the weights once.
//
//   linear_Q_bN  for N/2 < batch ≤ N; dtype of x, y and what is added: 0 f32, 1 f16, 2 bf16
#include "quant-matvec.h"
namespace gpu {

#if GPU_NVIDIA
constexpr int PLACES = 2;
#else
constexpr int PLACES = 1;
#endif
// Rows of a warp share what it reads of the activations.
#define MAT_VEC(Q) \
  MAT_VEC_KERNEL(linear_##Q##_b1, Q, 1, 4, PLACES) \
  MAT_VEC_KERNEL(linear_##Q##_b2, Q, 2, 4, PLACES) \
  MAT_VEC_KERNEL(linear_##Q##_b4, Q, 4, 4, PLACES) \
  MAT_VEC_KERNEL(linear_##Q##_b8, Q, 8, 4, PLACES)
QUANT_TYPES(MAT_VEC)

}  // namespace gpu
