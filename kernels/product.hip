// Products of halves on a matrix unit; gemm.hip has those of other dtypes and of targets without one. info = batch dims ‖ a strides ‖
// b strides; the name says how the operands lie: k along k, m or n side by side. Launch: a block per tile of PRODUCT_TILE², of half
// that on a side for _small.
#include "product.h"
namespace gpu {

#define PRODUCT_KERNEL(size, SMALL, la, LA, lb, LB, T) \
  KERNEL_BOUNDS(GPU_BLOCK, product##size##_##la##lb##_##T, const T* a, const T* b, T* out, size_t batch, size_t m, size_t n, size_t k, \
                size_t a_row_stride, size_t a_col_stride, size_t b_row_stride, size_t b_col_stride, size_t num_dims, const size_t* info) { \
    if constexpr (tile_t<T>::REGISTERS) { \
      DYNAMIC_SHARED(T, shared); \
      products<ProductOf<T, SMALL, LA, LB>>(shared, a, b, out, batch, m, n, k, (i64)a_row_stride, (i64)a_col_stride, (i64)b_row_stride, \
                                            (i64)b_col_stride, num_dims, info, PRODUCT_TILE / (SMALL ? 2 : 1)); \
    } \
  }
#define PRODUCT_LIES(size, SMALL, T) \
  PRODUCT_KERNEL(size, SMALL, k, ALONG_K, k, ALONG_K, T) \
  PRODUCT_KERNEL(size, SMALL, k, ALONG_K, n, SIDE_BY_SIDE, T) \
  PRODUCT_KERNEL(size, SMALL, m, SIDE_BY_SIDE, k, ALONG_K, T) \
  PRODUCT_KERNEL(size, SMALL, m, SIDE_BY_SIDE, n, SIDE_BY_SIDE, T)
#define PRODUCTS(T) PRODUCT_LIES(, false, T) PRODUCT_LIES(_small, true, T)
GPU_bf16(PRODUCTS)
GPU_f16(PRODUCTS)

}  // namespace gpu
