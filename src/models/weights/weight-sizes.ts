/** What weights take in device memory, told from a file's header or from a config alone, before any is read. */
import { type DType, sizeOf } from "../../core/dtype.ts";
import { numel } from "../../core/layout.ts";
import { type QuantType, quantTypes } from "../../core/quant-types.ts";
import type { WeightsTensor } from "../../formats/index.ts";
import { bytesPerRow, type ModelTensors, type Source } from "./model-tensors.ts";
import type { EmbeddingRole, NormRole, Part, Place, StackPart, VectorRole } from "./weights.ts";

/** Bytes of what a model asks for by role, as `Weights` has it. */
export interface WeightSizes {
  /** The part of all bytes that are as the file has them: a device may show them from there, and needs no memory then. */
  readonly stored: number;
  linear(parts: readonly Part[], inputs: number, place: Place): number;
  stack(parts: readonly StackPart[], inputs: number, count: number, place: Place): number;
  vector(role: VectorRole, size: number, place: Place): number;
  norm(role: NormRole, size: number, place: Place): number;
  embedding(role: EmbeddingRole, rows: number, width: number): number;
}

const sum = (numbers: readonly number[]): number => numbers.reduce((a, b) => a + b, 0);

/** As a file has them; what is not quantized is computed in `dtype`. */
export function fileSizes(tensors: ModelTensors, dtype: DType): WeightSizes {
  const size = sizeOf(dtype);
  const plain = ({ shape }: WeightsTensor): number => numel(shape) * size;
  const matrices = (sources: readonly Source[], inputs: number): number => {
    const biased = sources.some(({ bias }) => bias !== null);
    return sum(
      sources.map(({ tensor, rows }) => {
        const bytes = tensor.quant ? rows * bytesPerRow(tensor) : rows * inputs * size;
        return bytes + (biased ? rows * size : 0);
      }),
    );
  };
  return {
    stored: tensors.byteLengthAsStored(dtype) / Math.max(1, tensors.byteLengthAs(dtype)),
    linear: (parts, inputs, place) => matrices(tensors.matrices(parts, inputs, place), inputs),
    stack: (parts, inputs, count, place) => matrices(tensors.stack(parts, inputs, count, place).flat(), inputs),
    vector: (role, count) => count * vectorSize(role, dtype),
    norm: (role, count, place) => {
      const { weight, bias } = tensors.norm(role, count, place);
      return plain(weight) + (bias ? plain(bias) : 0);
    },
    embedding: (role, rows, width) => matrices([tensors.embedding(role, rows, width)], width),
  };
}

/** As a config says they must be: matrices in `quant`, where rows are whole blocks of it, all else in `dtype`. */
export function configSizes(dtype: DType, quant: QuantType | null): WeightSizes {
  const size = sizeOf(dtype);
  const matrix = (rows: number, inputs: number): number => {
    const type = quant && quantTypes[quant];
    return type && inputs % type.size === 0 ? (rows * inputs * type.bytes) / type.size : rows * inputs * size;
  };
  const biases = (parts: readonly StackPart[]): number =>
    sum(parts.map(({ outputs, needsBias }) => (needsBias ? outputs * size : 0)));
  const rowsOf = (parts: readonly StackPart[]): number => sum(parts.map(({ outputs }) => outputs));
  return {
    stored: 0,
    linear: (parts, inputs) => matrix(rowsOf(parts), inputs) + biases(parts),
    stack: (parts, inputs, count) => count * matrix(rowsOf(parts), inputs),
    vector: (role, count) => count * vectorSize(role, dtype),
    norm: (_, count) => count * size,
    embedding: (_, rows, width) => matrix(rows, width),
  };
}

/** What experts are chosen by is not rounded. */
const vectorSize = (role: VectorRole, dtype: DType): number => sizeOf(role === "routerBias" ? "f32" : dtype);
