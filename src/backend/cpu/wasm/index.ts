/** What TypeScript calls. Each op of the backend is one exported function; see the files for their arguments. */
export { sdpa } from "./attention";
export { cast } from "./cast";
export { conv2d, conv2dTmp, convTranspose2d, convTranspose2dTmp } from "./conv";
export { copy, fill } from "./copy";
export { affine, binary, compare, unary, whereCond } from "./elementwise";
export { matmul, matmulTmp } from "./gemm";
export { gather, scatter } from "./indexing";
export { layerNorm, rmsNorm } from "./norm";
export { enter, heapBase, scratchBytes, setThreads, work } from "./pool";
export { pool2d, upsampleBilinear2d, upsampleNearest2d } from "./pool2d";
export { random } from "./random";
export { reduce } from "./reduce";
export { rope } from "./rope";
export { cumsum } from "./scan";
export { softmax } from "./softmax";
export { argsort, argsortTmp } from "./sort";
