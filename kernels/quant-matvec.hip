// Products of up to eight activation rows with quantized weights, bound by reading the weights once.
//
//   mul_mat_vec_Q_q8_bN  for N/2 < batch ≤ N; dtype of y: 0 f32, 1 f16, 2 bf16
#include "quant-matvec.h"
namespace gpu {

// Rows per warp share what is read of the activations, so more columns want more rows; rows × depth is what a warp stages.
#define MAT_VEC(Q) \
  MAT_VEC_KERNEL(mul_mat_vec_##Q##_q8_b1, Q, 1, 1, 4096, 4) \
  MAT_VEC_KERNEL(mul_mat_vec_##Q##_q8_b2, Q, 2, 1, 2048, 8) \
  MAT_VEC_KERNEL(mul_mat_vec_##Q##_q8_b4, Q, 4, 2, 2048, 4) \
  MAT_VEC_KERNEL(mul_mat_vec_##Q##_q8_b8, Q, 8, 2, 1024, 8)
QUANT_TYPES(MAT_VEC)

}  // namespace gpu
