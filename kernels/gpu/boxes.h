// Boxes of weights that lie in rows: one lane has an engine bring some rows' pieces of some length to shared memory, side by side and
// row after row, and those of the next pieces behind them.
#ifndef WICK_GPU_BOXES_H
#define WICK_GPU_BOXES_H
#include "gpu/memory.h"

namespace gpu {
// What the host has the driver make of a matrix: where it lies, what its pieces and boxes are.
struct alignas(64) BoxMap {
  u64 words[16];
};
#if GPU_NVIDIA && __CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ >= 12
constexpr bool BOX_COPIES = true;
// The map is read before it is needed.
GPU_FN void expect_boxes(const BoxMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
// To a multiple of 128 bytes. All bytes of a box count towards the signal, also those of rows that the matrix does not have, which are zeros.
GPU_FN void copy_box(void* shared, const BoxMap* map, u32 row, u32 piece, Signal* signal) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %2, %4}], [%5];" ::"r"(
                   shared_address(shared)),
               "l"(map), "r"(0), "r"(row), "r"(piece), "r"(shared_address(signal))
               : "memory");
}
// The same of weights that nobody reads again: they should not push out of the cache what is.
GPU_FN void copy_box_once(void* shared, const BoxMap* map, u32 row, u32 piece, Signal* signal) {
  constexpr u64 EVICT_FIRST = 0x12f0000000000000ull;  // as createpolicy.fractional.L2::evict_first makes it for all
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %2, %4}], [%5], %6;" ::"r"(
                   shared_address(shared)),
               "l"(map), "r"(0), "r"(row), "r"(piece), "r"(shared_address(signal)), "l"(EVICT_FIRST)
               : "memory");
}
#else
constexpr bool BOX_COPIES = false;
GPU_FN void expect_boxes(const BoxMap*) {}
GPU_FN void copy_box(void*, const BoxMap*, u32, u32, Signal*) {}
GPU_FN void copy_box_once(void*, const BoxMap*, u32, u32, Signal*) {}
#endif
}  // namespace gpu

#endif  // WICK_GPU_BOXES_H
