// Products of many rows with quantized weights (quant-product.h), and x in f32 split for them.
//
//   quant_product{_few,_some,}_Q_T  x in T or, for f32 on a matrix unit, split. Launch: as many blocks as share the work.
#include "quant-product.h"
namespace gpu {

#define QUANT_PRODUCT(size, ROWS, Q, T) \
  KERNEL_BOUNDS((QuantBlock<Q, T, ROWS>::THREADS), quant_product##size##_##Q##_##T, const void* x, const u8* w, T* out, f32* parts, u32* counters, \
                size_t rows, size_t n, size_t k, u32 alone) { \
    typedef QuantProduct<Q, T, ROWS> P; \
    DYNAMIC_SHARED(typename P::E, shared); \
    P{shared, (const typename P::E*)x, w, out, parts, counters, rows, n, (u32)k, (u32)ceil_div(k, QUANT_FAR), (u32)ceil_div(rows, (size_t)P::BN)}.run(alone); \
  }
#define QUANT_PRODUCT_SIZES(Q, T) QUANT_PRODUCT(_few, FEW, Q, T) QUANT_PRODUCT(_some, SOME, Q, T) QUANT_PRODUCT(, MANY, Q, T)
#define QUANT_PRODUCTS(Q) QUANT_PRODUCT_SIZES(Q, bf16) QUANT_PRODUCT_SIZES(Q, f16) QUANT_PRODUCT_SIZES(Q, f32)
QUANT_TYPES(QUANT_PRODUCTS)

}  // namespace gpu
