/** Puts the groups of methods on `Tensor`; import tensors from here. */
import { convolution } from "./conv.ts";
import { elementwise } from "./elementwise.ts";
import { indexing } from "./indexing.ts";
import { linear } from "./linear.ts";
import { reductions } from "./reduce.ts";
import { shaping } from "./shape.ts";
import { Tensor } from "./tensor.ts";

for (const group of [elementwise, reductions, linear, shaping, indexing, convolution]) {
  for (const [name, method] of Object.entries(group)) {
    Object.defineProperty(Tensor.prototype, name, { value: method, writable: true, configurable: true });
  }
}

export type { ConvOptions, ConvTransposeOptions, Pair } from "./conv.ts";
export type { RandomOptions, TensorOptions } from "./create.ts";
export type { Operand } from "./elementwise.ts";
export type { Dims } from "./reduce.ts";
export { scope } from "./scope.ts";
export type { IndexSpec } from "./shape.ts";
export type { NestedArray } from "./tensor.ts";
export { Tensor };
