import "../core/globals.ts";

export type { Activation as MiopenActivation } from "../backend/gpu/rocm/miopen/dnn.ts";
export { type SdpaOptions, sdpa, sdpaVarlen } from "./attention.ts";
export {
  type ExpertLinearOptions,
  expertLinear,
  mixExperts,
  type QuantizedStack,
  type Route,
  routeExperts,
} from "./experts.ts";
export * from "./functional.ts";
export { KvCache, type KvPair, LatentCache, RotatingKvCache } from "./kv-cache.ts";
export * from "./layers.ts";
export * from "./losses.ts";
export { miopen } from "./miopen.ts";
export { addRmsNorm, type BatchStatistics, batchNorm, groupNorm, layerNorm, rmsNorm, type SumAndNorm } from "./norm.ts";
export { Gru, Lstm, type LstmState, type RnnWeights } from "./rnn.ts";
export { rope, ropeI, ropeThd } from "./rope.ts";
