// Products of halves on a matrix unit; gemm.hip has those of other dtypes and of targets without one. info = batch dims ‖ a strides ‖
// b strides; the name says how the operands lie: k along k, m or n side by side; steps are as in product-feed.h. Launch: a block per
// tile of the result.
#include "product.h"
namespace gpu {

#define PRODUCT_KERNEL(size, SIZE, la, LA, lb, LB, T) \
  KERNEL_MATRIX(T, GPU_BLOCK, product##size##_##la##lb##_##T, const T* a, const T* b, T* out, size_t batch, size_t m, size_t n, size_t k, \
                size_t a_step, size_t b_step, size_t num_dims, const size_t* info) { \
    if constexpr (Block<T, SIZE>::EXISTS) { \
      DYNAMIC_SHARED(T, shared); \
      products<T, SIZE, LA, LB>(shared, a, b, out, batch, m, n, k, (i64)a_step, (i64)b_step, num_dims, info); \
    } \
  }
#define PRODUCT_LIES(size, SIZE, T) \
  PRODUCT_KERNEL(size, SIZE, k, ALONG_K, k, ALONG_K, T) \
  PRODUCT_KERNEL(size, SIZE, k, ALONG_K, n, SIDE_BY_SIDE, T) \
  PRODUCT_KERNEL(size, SIZE, m, SIDE_BY_SIDE, k, ALONG_K, T) \
  PRODUCT_KERNEL(size, SIZE, m, SIDE_BY_SIDE, n, SIDE_BY_SIDE, T)
#define PRODUCTS(T) PRODUCT_LIES(_small, SMALL, T) PRODUCT_LIES(, LARGE, T) PRODUCT_LIES(_wide, WIDE, T)
GPU_bf16(PRODUCTS)
GPU_f16(PRODUCTS)

}  // namespace gpu
