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
#elif GPU_HOST && defined(GPU_HOST_WARPGROUPS)
GPU_FN void expect_boxes(const BoxMap*) {}
// As the simulator's runtime writes maps (sim/runtime/boxes.cpp).
SIM_RAW static void copy_box(void* shared, const BoxMap* map, u32 row, u32 piece, Signal* signal) {
  const u64 *w = map->words, at = w[0], rows = w[1], halves = w[2], pieces = w[3], bytes = w[4], box_rows = w[5], box_pieces = w[6];
  u8* to = (u8*)shared;
  if ((u64)shared % 128) sim::trap("a box of weights to what is no multiple of 128");
  for (u64 p = piece; p < piece + box_pieces; p++)
    for (u64 half = 0; half < halves; half++)
      for (u64 r = row; r < row + box_rows; r++, to += bytes)
        sim::copy(to, r < rows && p < pieces ? (const void*)(at + ((half * rows + r) * pieces + p) * bytes) : nullptr, bytes, signal);
}
GPU_FN void copy_box_once(void* shared, const BoxMap* map, u32 row, u32 piece, Signal* signal) { copy_box(shared, map, row, piece, signal); }
#endif
}  // namespace gpu

#endif  // WICK_GPU_BOXES_H
