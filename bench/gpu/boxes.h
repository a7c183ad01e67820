// What benches of kernels that take weights by boxes have in common: their type by its name, maps, and launches that begin early.
#ifndef WICK_BENCH_BOXES_H
#define WICK_BENCH_BOXES_H
#include <cuda.h>

#include "bench.h"

#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

// The map of a matrix of n lines, or of two halves of them, `pieces` of `piece` bytes each, as src/backend/gpu/cuda/box-map.ts makes it.
static CUtensorMap map_of(const u8* w, size_t n, size_t pieces, u32 piece, u32 halves, u32 lines) {
  static decltype(&cuTensorMapEncodeTiled) encode = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (!encode) CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void**)&encode, 12000, cudaEnableDefault, &found));
  const cuuint64_t row = pieces * piece, sizes[4] = {piece / 4, n / halves, halves, pieces}, strides[3] = {row, n / halves * row, piece};
  const cuuint32_t box[4] = {piece / 4, lines / halves, halves, 1}, steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 4, (void*)w, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)) {
    printf("no map\n");
    exit(1);
  }
  return map;
}

#endif
