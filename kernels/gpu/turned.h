// A warp's tiles of 8 × 8 halves, turned on their way to shared memory and back; only where there are warpgroups.
#ifndef WICK_GPU_TURNED_H
#define WICK_GPU_TURNED_H
#include "gpu/warpgroup.h"

#if GPU_WARPGROUPS
namespace gpu {
// Four of them, `across` side by side, in rows that are `pitch` apart: of each, a lane has columns lane/4 of rows 2t and 2t + 1, t being
// lane mod 4, in a word.
GPU_FN u32 turned_row(u32 matrix, u32 row, u32 across, u32 pitch) { return (matrix / across * 8 + row) * pitch + matrix % across * 8; }
#if GPU_NVIDIA
GPU_FN u32 turned_address(const u16* staged, u32 across, u32 pitch) {
  return (u32)__cvta_generic_to_shared(staged + turned_row(lane_id() / 8, lane_id() % 8, across, pitch));
}
GPU_FN void put_turned(u16* staged, u32 across, u32 pitch, const u32 (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(turned_address(staged, across, pitch)), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}
GPU_FN void get_turned(u32 (&words)[4], const u16* staged, u32 across, u32 pitch) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(turned_address(staged, across, pitch))
               : "memory");
}
#else
GPU_FN void put_turned(u16* staged, u32 across, u32 pitch, const u32 (&words)[4]) {
  for (u32 i = 0; i < 8; i++) staged[turned_row(i / 2, lane_id() % 4 * 2 + i % 2, across, pitch) + lane_id() / 4] = (u16)(words[i / 2] >> i % 2 * 16);
}
GPU_FN void get_turned(u32 (&words)[4], const u16* staged, u32 across, u32 pitch) {
  for (u32 m = 0; m < 4; m++) {
    const u16* const at = staged + turned_row(m, lane_id() % 4 * 2, across, pitch) + lane_id() / 4;
    words[m] = at[0] | (u32)at[pitch] << 16;
  }
}
#endif
}  // namespace gpu
#endif

#endif  // WICK_GPU_TURNED_H
