// Linear layers of a mixture of experts for few rows: slot s is row s / share of x through the matrix ids[s] of W (experts, n, k), and
// makes row s of the result. `per_slot` blocks make one slot. An id that is no expert's gives zeros (ids.h).
// Or the slots of a row are summed: row r of the result is Σ mix · (x · W[id]ᵀ) over its `slots` slots, and a residual. Then
// `per_row` blocks make one row, and the rows of x that meet one of W lie behind each other, as one with pieces in several matrices.
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

// A product with one matrix, for those that may have pieces in several.
struct OneMatrix {
  static constexpr bool SUMS = false;
  static constexpr u32 slots = 1;
  GPU_METHOD bool exists(u32) const { return true; }
  GPU_METHOD u32 first(u32) const { return 0; }
  GPU_METHOD f32 factor(u32) const { return 1.0f; }
};

struct ExpertSum {
  static constexpr bool SUMS = true;
  static constexpr u32 NONE = ~0u;
  u32 row, slots, n;
  u32 own;  // the expert of slot `lane`
  const void* mix;
  u32 mix_dtype;
  Share share;

  GPU_METHOD ExpertSum(const u32* ids, u32 per_row, u32 slots, u32 experts, size_t n, const void* mix, u32 mix_dtype, u32 early, u64* error)
      : row(bid_x() / per_row), slots(slots), n((u32)n), own(NONE), mix(mix), mix_dtype(mix_dtype),
        share{bid_x() - bid_x() / per_row * per_row, per_row, 0} {
    if (!early) wait_for_previous();
    if (lane_id() >= slots) return;
    const i64 expert = resolve<u32>(ids[row * slots + lane_id()], experts, row * slots + lane_id(), error);
    if (expert >= 0) own = (u32)expert;
  }
  // Of a slot, the same for all lanes: whether it has an expert, and the first row of W that is that one's.
  GPU_METHOD bool exists(u32 slot) const { return shfl(own, slot) != NONE; }
  GPU_METHOD u32 first(u32 slot) const {
    const u32 expert = shfl(own, slot);
    return expert == NONE ? 0 : expert * n;
  }
  // What a slot counts, for each lane of its own; once what came before has ended.
  GPU_METHOD f32 factor(u32 slot) const { return load_float(mix, row * slots + slot, mix_dtype); }
};

}  // namespace gpu
#endif
