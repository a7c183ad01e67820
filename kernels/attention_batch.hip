// Prefill of a batch whose sequences lie side by side, in rows that 16 bytes at a time can be copied of, without mask, softcap, sinks or
// pages, by warpgroups, which only Hopper has: attention_batch_<D>_T. What attention_<D>_T does besides takes registers and instructions
// of every tile from it. Heads of 256 have no registers to spare either way. Launch: as attention_<D>_T.
#include "attention-warpgroup.h"
namespace gpu {

#if GPU_WARPGROUPS
#define BATCH_BODY(T, D, Groups, Keys, Stages) \
  DYNAMIC_SHARED(T, tiles); \
  Prefilling<T> all = PREFILL_GATHER(T); \
  all.mask = nullptr, all.sinks = nullptr, all.tables = nullptr, all.offsets = nullptr, all.softcap = 0; \
  prefill_warpgroup<WarpgroupPrefill<T, D, PLAIN, Groups, Keys, Stages, true>>(tiles, all);
#else
#define BATCH_BODY(T, D, Groups, Keys, Stages)
#endif
#define ATTENTION_BATCH(T, D, Groups, Keys, Stages, Blocks) \
  KERNEL_CROWDED(Groups * 128, Blocks, attention_batch_##D##_##T, PREFILL_OPERANDS(T), PREFILL_SIZES) { BATCH_BODY(T, D, Groups, Keys, Stages) }
#define ATTENTION_BATCH_ALL(T) \
  ATTENTION_BATCH(T, 64, PLAIN_GROUPS_64, PLAIN_KEYS_64, PLAIN_STAGES_64, PLAIN_BLOCKS_64) \
  ATTENTION_BATCH(T, 96, PLAIN_GROUPS_96, PLAIN_KEYS_96, PLAIN_STAGES_96, PLAIN_BLOCKS_96) \
  ATTENTION_BATCH(T, 128, PLAIN_GROUPS_128, PLAIN_KEYS_128, PLAIN_STAGES_128, PLAIN_BLOCKS_128)
GPU_bf16(ATTENTION_BATCH_ALL)
GPU_f16(ATTENTION_BATCH_ALL)

}  // namespace gpu
