/**
 * The block types of GGUF files: `size` weights share `bytes` bytes of scales and small integers. `id` is the number by
 * which files and kernels know the type; names are GGUF's own.
 */
import { fail } from "./errors.ts";

export interface QuantTypeInfo {
  readonly id: number;
  /** Weights per block; a row is a whole number of blocks. */
  readonly size: 32 | 256;
  /** Bytes per block. */
  readonly bytes: number;
  /** Whether tensors can be quantized to it; the others are read, dequantized and multiplied. */
  readonly writable: boolean;
}

const block = (id: number, size: QuantTypeInfo["size"], bytes: number, writable = true): QuantTypeInfo => ({
  id,
  size,
  bytes,
  writable,
});

export const quantTypes = {
  Q4_0: block(2, 32, 18),
  Q4_1: block(3, 32, 20),
  Q5_0: block(6, 32, 22),
  Q5_1: block(7, 32, 24),
  Q8_0: block(8, 32, 34),
  Q8_1: block(9, 32, 36),
  Q2_K: block(10, 256, 84),
  Q3_K: block(11, 256, 110),
  Q4_K: block(12, 256, 144),
  Q5_K: block(13, 256, 176),
  Q6_K: block(14, 256, 210),
  Q8_K: block(15, 256, 292),
  IQ4_NL: block(20, 32, 18, false),
  IQ4_XS: block(23, 256, 136, false),
  MXFP4: block(39, 32, 17, false),
} as const satisfies Record<string, QuantTypeInfo>;

export type QuantType = keyof typeof quantTypes;
export const quantTypeNames = Object.keys(quantTypes) as QuantType[];

/** Types that files may name and Wick does not read, so that errors can name them, too. */
const otherTypes: Readonly<Record<number, string>> = {
  16: "IQ2_XXS",
  17: "IQ2_XS",
  18: "IQ3_XXS",
  19: "IQ1_S",
  21: "IQ3_S",
  22: "IQ2_S",
  29: "IQ1_M",
  34: "TQ1_0",
  35: "TQ2_0",
};

/** A block type by its name or its number in GGUF files. */
export function asQuantType(type: string | number): QuantType {
  const found = quantTypeNames.find((name) => name === type || quantTypes[name].id === type);
  if (found) return found;
  const id =
    typeof type === "number" ? type : Number(Object.entries(otherTypes).find(([, name]) => name === type)?.[0]);
  const name = otherTypes[id];
  const known = quantTypeNames.map((n) => `${n} (${quantTypes[n].id})`).join(", ");
  const what = name ? `quantized type ${name} (number ${id}) is not supported` : `unknown quantized type ${type}`;
  return fail("UnexpectedDType", `${what}; supported are ${known}`);
}
