/** The block types, for users of quantized tensors; backends know them from core. */
export { asQuantType, type QuantType, type QuantTypeInfo, quantTypeNames, quantTypes } from "../core/quant-types.ts";
