export { type SdpaOptions, sdpa } from "./attention.ts";
export * from "./functional.ts";
export { KvCache, type KvPair, RotatingKvCache } from "./kv-cache.ts";
export * from "./layers.ts";
export * from "./losses.ts";
export { type BatchStatistics, batchNorm, groupNorm, layerNorm, rmsNorm } from "./norm.ts";
export { Gru, Lstm, type LstmState, type RnnWeights } from "./rnn.ts";
export { rope, ropeI, ropeThd } from "./rope.ts";
