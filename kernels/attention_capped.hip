// Prefill with a softcap of at most 64 and no mask, by warpgroups, which only Hopper has: attention_capped_<D>_T. The cap costs a
// few multiply-adds where attention_masked_<D>_T takes twice as long for its scores. Launch: as attention_<D>_T.
#include "attention-warpgroup.h"
namespace gpu {

#if GPU_WARPGROUPS
#define CAPPED_BODY(T, D, Groups, Keys, Stages) \
  DYNAMIC_SHARED(T, tiles); \
  prefill_warpgroup<WarpgroupPrefill<T, D, CAPPED, Groups, Keys, Stages>>(tiles, PREFILL_GATHER(T));
#else
#define CAPPED_BODY(T, D, Groups, Keys, Stages)
#endif
#define ATTENTION_CAPPED(T, D, Groups, Keys, Stages, Blocks) \
  KERNEL_CROWDED(Groups * 128, Blocks, attention_capped_##D##_##T, PREFILL_OPERANDS(T), PREFILL_SIZES) { CAPPED_BODY(T, D, Groups, Keys, Stages) }
#define ATTENTION_CAPPED_ALL(T) \
  ATTENTION_CAPPED(T, 64, PLAIN_GROUPS_64, PLAIN_KEYS_64, PLAIN_STAGES_64, PLAIN_BLOCKS_64) \
  ATTENTION_CAPPED(T, 96, PLAIN_GROUPS_96, PLAIN_KEYS_96, PLAIN_STAGES_96, PLAIN_BLOCKS_96) \
  ATTENTION_CAPPED(T, 128, PLAIN_GROUPS_128, PLAIN_KEYS_128, PLAIN_STAGES_128, PLAIN_BLOCKS_128) \
  ATTENTION_CAPPED(T, 256, PLAIN_GROUPS_256, PLAIN_KEYS_256, PLAIN_STAGES_256, PLAIN_BLOCKS_256)
GPU_bf16(ATTENTION_CAPPED_ALL)
GPU_f16(ATTENTION_CAPPED_ALL)

}  // namespace gpu
