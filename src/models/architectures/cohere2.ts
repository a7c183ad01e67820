import type { Architecture } from "./architecture.ts";
import { cohere } from "./cohere.ts";

/** Of so many layers the last attends to everything, and its heads are not turned. */
const PERIOD = 4;

/** Command R7B and Command A. */
export const cohere2: Architecture = {
  ...cohere,
  huggingFace: {
    ...cohere.huggingFace,
    hasWindow: (layer, fields) => (layer + 1) % fields.countOr("sliding_window_pattern", PERIOD) !== 0,
    hasRope: (_, isLocal) => isLocal,
  },
  gguf: { ...cohere.gguf, name: "cohere2", windowPeriod: PERIOD, hasRope: (_, isLocal) => isLocal },
};
