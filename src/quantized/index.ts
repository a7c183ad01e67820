import "../core/globals.ts";

export { QMatMul, qmatmul } from "./qmatmul.ts";
export { QTensor } from "./qtensor.ts";
export { asQuantType, type QuantType, type QuantTypeInfo, quantTypeNames, quantTypes } from "./types.ts";
