// Linear layers of up to eight activation rows with quantized weights, bound by reading the weights once.
//
//   expert_linear_Q, expert_sum_Q  a row of x each through one of the matrices of W (experts, n, k), see expert-slot.h
//   linear_Q_bN  for N/2 < batch ≤ N; dtype of x, out and what is added: DTYPE_f32, DTYPE_f16, DTYPE_bf16
#include "quant-matvec.h"
#include "quant-tile.h"
namespace gpu {

// A matrix unit multiplies four rows or eight at the cost of one.
#if GPU_BYTE_TILES
#define MAT_VEC_ROWS(Q, NB) \
  MAT_VEC_LAUNCH(TILE_WARPS * 32, 1, linear_##Q##_b##NB) { MAT_VEC_BODY(Q, TileVec<Q, (NB > 4 ? 8 : 4)>) }
#define EXPERT_VEC(Q) EXPERT_MAT_VEC(TILE_WARPS * 32, 1, Q, TileVec<Q, 4>)
#else
#define EXPERT_VEC(Q) EXPERT_MAT_VEC(MATVEC_WARPS * 32, MATVEC_CROWD, Q, MatVec<Q, 1, MATVEC_ROWS, MATVEC_PLACES>)
#define MAT_VEC_ROWS(Q, NB) MAT_VEC_KERNEL(linear_##Q##_b##NB, Q, NB, MATVEC_ROWS, MATVEC_PLACES)
#endif
#define MAT_VEC(Q) MAT_VEC_ROWS(Q, 1) MAT_VEC_ROWS(Q, 2) MAT_VEC_ROWS(Q, 4) MAT_VEC_ROWS(Q, 8)
QUANT_TYPES(MAT_VEC)
QUANT_TYPES(EXPERT_VEC)

}  // namespace gpu
