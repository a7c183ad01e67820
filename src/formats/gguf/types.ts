/** GGUF's tensor types by number. */
import { type DType, sizeOf } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import { formatShape, numel, type Shape } from "../../core/layout.ts";
import { type QuantType, quantTypeNames, quantTypes } from "../../quantized/types.ts";

export interface GgufTensorType {
  readonly id: number;
  readonly name: string;
  /** Elements per block; a row is a whole number of blocks. */
  readonly size: number;
  /** Bytes per block. */
  readonly bytes: number;
  /** A `Tensor` of this dtype. */
  readonly dtype?: DType;
  /** A `QTensor` of this type. With neither, the bytes are all that can be read. */
  readonly quant?: QuantType;
}

const element = (id: number, name: string, dtype: DType): GgufTensorType => {
  return { id, name, size: 1, bytes: sizeOf(dtype), dtype };
};
const foreign = (id: number, name: string, size: number, bytes: number): GgufTensorType => ({ id, name, size, bytes });

const types: readonly GgufTensorType[] = [
  element(0, "F32", "f32"),
  element(1, "F16", "f16"),
  element(30, "BF16", "bf16"),
  element(28, "F64", "f64"),
  element(25, "I16", "i16"),
  element(26, "I32", "i32"),
  element(27, "I64", "i64"),
  ...quantTypeNames.map((name) => {
    const { id, size, bytes } = quantTypes[name];
    return { id, name, size, bytes, quant: name };
  }),
  foreign(24, "I8", 1, 1),
  foreign(16, "IQ2_XXS", 256, 66),
  foreign(17, "IQ2_XS", 256, 74),
  foreign(18, "IQ3_XXS", 256, 98),
  foreign(19, "IQ1_S", 256, 50),
  foreign(21, "IQ3_S", 256, 110),
  foreign(22, "IQ2_S", 256, 82),
  foreign(29, "IQ1_M", 256, 56),
  foreign(34, "TQ1_0", 256, 54),
  foreign(35, "TQ2_0", 256, 66),
];

const byId = new Map(types.map((type) => [type.id, type]));
const byName = new Map(types.map((type) => [type.name, type]));
const byDType = new Map(types.flatMap((type) => (type.dtype ? [[type.dtype, type] as const] : [])));

export const tensorType = (id: number): GgufTensorType | undefined => byId.get(id);

/** By the name that GGUF gives it, in any case. */
export const tensorTypeNamed = (name: string): GgufTensorType | undefined => byName.get(name.toUpperCase());

/** `what` opens the error message. */
export function typeOfDType(dtype: DType, what: string): GgufTensorType {
  const known = [...byDType.keys()].join(", ");
  return (
    byDType.get(dtype) ??
    fail(
      "UnexpectedDType",
      `${what} has dtype ${dtype}, which GGUF lacks; convert it with toDType() to one of ${known}`,
    )
  );
}

/** Whether each row is a whole number of blocks. */
export const fitsRows = ({ size }: GgufTensorType, shape: Shape): boolean => (shape.at(-1) ?? 1) % size === 0;

export const bytesOfType = (type: GgufTensorType, shape: Shape): number => (numel(shape) / type.size) * type.bytes;

/** The problem with a shape whose rows do not fit. */
export const unfitRows = ({ name, size }: GgufTensorType, shape: Shape): string =>
  `has shape ${formatShape(shape)} of type ${name}, but rows of ${shape.at(-1) ?? 1} are not whole blocks of ${size}`;
