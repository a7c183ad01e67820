// Gates as Outputs (stream.h) has them, in the fewest instructions: where results become halves, which have eleven bits at most.
#ifndef WICK_GATE_H
#define WICK_GATE_H
#include "gpu.h"

namespace gpu {
GPU_FN f32 opened(f32 slope) { return approx_recip(1.0f + approx_exp2(-1.44269504f * slope)); }
GPU_FN f32 gated_shortly(u32 glu, f32 gate, f32 up) {
  if (glu == GLU_clampedSwiglu) {
    const f32 least = gate > 7.0f ? 7.0f : gate, u = up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up;
    return least * opened(1.702f * least) * (u + 1.0f);
  }
  const f32 slope = glu == GLU_silu ? gate : 1.59576912160573071176f * gate * (1.0f + 0.044715f * gate * gate);
  return gate * opened(slope) * up;
}
}  // namespace gpu
#endif
