/** The variables by which the vendors' own libraries hide devices. Wick only tells that they are set. */
import { environment, type VariableName } from "../../core/environment.ts";

export const maskVariables = {
  rocm: ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"],
  cuda: ["CUDA_VISIBLE_DEVICES"],
} as const satisfies Readonly<Record<string, readonly VariableName[]>>;

/** Those that are set, with their values; an empty one hides everything. */
export function visibilityMasks(vendor: "rocm" | "cuda"): string[] {
  return maskVariables[vendor].flatMap((name) => {
    const value = environment()[name];
    return value === undefined ? [] : [`${name}=${value}`];
  });
}
