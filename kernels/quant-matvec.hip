// Linear layers of up to eight activation rows with quantized weights, bound by reading the weights once.
//
//   expert_linear_Q, expert_sum_Q  a row of x each through one of the matrices of W (experts, n, k), see expert-slot.h
//   linear_Q_bN  for N/2 < batch ≤ N; dtype of x, out and what is added: DTYPE_f32, DTYPE_f16, DTYPE_bf16
//   …_fine_…  the same with 24 bits of each activation in place of 16, for f32
#include "quant-matvec.h"
#include "quant-tile.h"
namespace gpu {

// A matrix unit multiplies four rows or eight at the cost of two.
#if GPU_BYTE_TILES
#define MAT_VEC_ROWS(fine, Q, NB, P) \
  MAT_VEC_LAUNCH(TILE_WARPS * 32, 1, linear##fine##_##Q##_b##NB) { MAT_VEC_BODY(Q, TileVec<Q, (NB > 4 ? 8 : NB > 1 ? 4 : 1), P>) }
#define EXPERT_VEC(fine, Q, P) EXPERT_MAT_VEC(TILE_WARPS * 32, 1, fine, Q, TileVec<Q, 1, P>)
#else
#define EXPERT_VEC(fine, Q, P) EXPERT_MAT_VEC(MATVEC_WARPS * 32, MATVEC_CROWD, fine, Q, MatVec<Q, 1, MATVEC_ROWS, MATVEC_PLACES, P>)
#define MAT_VEC_ROWS(fine, Q, NB, P) MAT_VEC_KERNEL(linear##fine##_##Q##_b##NB, Q, NB, MATVEC_ROWS, MATVEC_PLACES, P)
#endif
#define MAT_VEC_ALL(fine, Q, P) \
  MAT_VEC_ROWS(fine, Q, 1, P) MAT_VEC_ROWS(fine, Q, 2, P) MAT_VEC_ROWS(fine, Q, 4, P) MAT_VEC_ROWS(fine, Q, 8, P) EXPERT_VEC(fine, Q, P)
#define MAT_VEC(Q) MAT_VEC_ALL(, Q, 2) MAT_VEC_ALL(_fine, Q, 3)
QUANT_TYPES(MAT_VEC)

}  // namespace gpu
