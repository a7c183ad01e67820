// Prefill with a softcap of at most 64 and no mask, by warpgroups, which only Hopper has: attention_capped_<D>_T. The cap costs a
// few multiply-adds where attention_masked_<D>_T takes twice as long for its scores. Launch: as attention_<D>_T.
#include "attention-warpgroup.h"
namespace gpu {

#if GPU_WARPGROUPS
#define CAPPED_BODY(T, D) \
  DYNAMIC_SHARED(T, tiles); \
  prefill_warpgroup<WarpgroupPrefill<T, D, CAPPED, WARPGROUPS_##D, WARPGROUP_KEYS_##D, WARPGROUP_STAGES_##D>>(tiles, PREFILL_GATHER(T));
#else
#define CAPPED_BODY(T, D)
#endif
#define ATTENTION_CAPPED(T, D) \
  KERNEL_MATRIX(T, WARPGROUPS_##D * 128, attention_capped_##D##_##T, PREFILL_OPERANDS(T), PREFILL_SIZES) { CAPPED_BODY(T, D) }
#define ATTENTION_CAPPED_ALL(T) ATTENTION_CAPPED(T, 64) ATTENTION_CAPPED(T, 96) ATTENTION_CAPPED(T, 128) ATTENTION_CAPPED(T, 256)
GPU_bf16(ATTENTION_CAPPED_ALL)
GPU_f16(ATTENTION_CAPPED_ALL)

}  // namespace gpu
