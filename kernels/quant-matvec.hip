// Linear layers of up to eight activation rows with quantized weights, bound by reading the weights once.
//
//   linear_Q_bN  for N/2 < batch ≤ N; dtype of x, y and what is added: 0 f32, 1 f16, 2 bf16
#include "quant-matvec.h"
#include "quant-tile.h"
namespace gpu {

// Rows of a warp share what it reads of the activations; where chunks go through registers, those are too few for four.
constexpr int ROWS = ASYNC_COPIES ? 4 : 2, PLACES = ASYNC_COPIES ? 2 : 1;
// Five rows and more are worth a matrix unit, where there is one.
#if GPU_BYTE_TILES
#define MAT_VEC_8(Q) \
  MAT_VEC_LAUNCH(512, 1, linear_##Q##_b8) { MAT_VEC_BODY(Q, TileVec<Q>) }
#else
#define MAT_VEC_8(Q) MAT_VEC_KERNEL(linear_##Q##_b8, Q, 8, ROWS, PLACES)
#endif
#define MAT_VEC(Q) \
  MAT_VEC_KERNEL(linear_##Q##_b1, Q, 1, ROWS, PLACES) \
  MAT_VEC_KERNEL(linear_##Q##_b2, Q, 2, ROWS, PLACES) \
  MAT_VEC_KERNEL(linear_##Q##_b4, Q, 4, ROWS, PLACES) \
  MAT_VEC_8(Q)
QUANT_TYPES(MAT_VEC)

}  // namespace gpu
