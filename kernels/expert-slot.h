// Linear layers of a mixture of experts for few rows: slot s is row s / share of x through the matrix ids[s] of W (experts, n, k), and
// makes row s of the result. `per_slot` blocks make one slot. An id that is no expert's gives zeros (ids.h).
// `early`: the kernel before this one is of this kind and was given the same ids, so that they are there while it runs.
#ifndef WICK_EXPERT_SLOT_H
#define WICK_EXPERT_SLOT_H
#include "ids.h"
#include "stream.h"
namespace gpu {

GPU_FN size_t bytes_of_float(u32 dtype) { return dtype == DTYPE_f32 ? 4 : 2; }

struct ExpertSlot {
  u32 slot;
  bool exists;
  size_t row;
  Share share;

  GPU_METHOD ExpertSlot(const u32* ids, u32 per_slot, u32 sharing, u32 experts, size_t n, u32 early, u64* error) : slot(bid_x() / per_slot) {
    if (!early) wait_for_previous();
    let_next_begin();
    const i64 expert = resolve<u32>(ids[slot], experts, slot, error);
    exists = expert >= 0;
    row = slot / sharing;
    share = Share{bid_x() - slot * per_slot, per_slot, exists ? (u32)expert * (u32)n : 0};
  }
  GPU_FN size_t columns(size_t n, u32 glu) { return glu ? n / 2 : n; }
  GPU_METHOD void* result(void* out, size_t n, u32 glu, u32 dtype) const { return (u8*)out + slot * columns(n, glu) * bytes_of_float(dtype); }
  GPU_METHOD void clear(void* y, size_t n, u32 glu, u32 dtype) const {
    wait_for_previous();
    for (size_t i = share.block * bdim_x() + tid_x(); i < columns(n, glu); i += share.blocks * bdim_x()) store_float(y, i, 0.0f, dtype);
  }
};

}  // namespace gpu
#endif
