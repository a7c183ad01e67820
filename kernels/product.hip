// Products of halves on a matrix unit; gemm.hip has those of other dtypes and of targets without one. info = batch dims ‖ a strides ‖
// b strides; the name says how the operands lie: k along k, m or n side by side; steps are as in product-feed.h. Launch: a block per
// tile of the result, of product_pair and _split a cluster.
#include "product.h"
namespace gpu {

#define PRODUCT_ARGUMENTS(T) \
  const T *a, const T *b, T *out, size_t batch, size_t m, size_t n, size_t k, size_t a_step, size_t b_step, size_t num_dims, const size_t *info
#define PRODUCT_BODY(SIZE, LA, LB, T) \
  if constexpr (Block<T, SIZE>::EXISTS) { \
    DYNAMIC_SHARED(T, shared); \
    products<T, SIZE, LA, LB>(shared, a, b, out, batch, m, n, k, (i64)a_step, (i64)b_step, num_dims, info); \
  }
#define PRODUCT_KERNEL(size, SIZE, lies, LA, LB, T) \
  KERNEL_MATRIX(T, GPU_BLOCK, product##size##_##lies##_##T, PRODUCT_ARGUMENTS(T)) { PRODUCT_BODY(SIZE, LA, LB, T) }
#define CLUSTER_KERNEL(size, SIZE, lies, LA, LB, T) \
  KERNEL_CLUSTER(PRODUCT_TILE, 1, (Block<T, SIZE>::BLOCKS), product##size##_##lies##_##T, PRODUCT_ARGUMENTS(T)) { \
    wait_for_previous(); \
    PRODUCT_BODY(SIZE, LA, LB, T) \
  }
#define PRODUCT_LIES(KERNEL, size, SIZE, T) \
  KERNEL(size, SIZE, kk, ALONG_K, ALONG_K, T) \
  KERNEL(size, SIZE, kn, ALONG_K, SIDE_BY_SIDE, T) \
  KERNEL(size, SIZE, mk, SIDE_BY_SIDE, ALONG_K, T) \
  KERNEL(size, SIZE, mn, SIDE_BY_SIDE, SIDE_BY_SIDE, T)
#define PRODUCTS(T) \
  PRODUCT_LIES(PRODUCT_KERNEL, _small, SMALL, T) PRODUCT_LIES(PRODUCT_KERNEL, , LARGE, T) PRODUCT_LIES(PRODUCT_KERNEL, _wide, WIDE, T) \
  PRODUCT_LIES(PRODUCT_KERNEL, _square, SQUARE, T) PRODUCT_LIES(PRODUCT_KERNEL, _half, HALF, T) \
  PRODUCT_LIES(CLUSTER_KERNEL, _pair, PAIR, T) PRODUCT_LIES(CLUSTER_KERNEL, _split, SPLIT, T)
GPU_bf16(PRODUCTS)
GPU_f16(PRODUCTS)

}  // namespace gpu
