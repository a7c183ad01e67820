/**
 * Tensors in the order that models and GGUF files have them, made as they are read from files that have another: a matrix
 * of a stack at a time, so that none is ever whole in memory.
 */
import type { DType } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import type { Shape } from "../../core/layout.ts";
import type { ByteRange } from "../../formats/read-options.ts";
import type { StoredWeights, WeightsTensor } from "../../formats/weights-file.ts";
import { scope, Tensor } from "../../ops/index.ts";

/** A tensor that is made from others; its first dim counts what is made at a time. */
export interface MadeTensor {
  readonly tensor: WeightsTensor;
  /** The bytes of the part `index`. */
  make(index: number, signal: AbortSignal | undefined): Promise<Uint8Array>;
}

/** Parts that are kept: several pieces of one are asked for, and a few of them at a time. */
const KEPT_PARTS = 8;

/** `file` with `made` in place of the tensors named in `hidden`. */
export function rearranged(
  file: StoredWeights,
  made: readonly MadeTensor[],
  hidden: ReadonlySet<string>,
): StoredWeights {
  if (made.length === 0) return file;
  const inBytes = made.find(({ tensor }) => tensor.dtype === "f8e4m3")?.tensor;
  if (inBytes) {
    fail(
      "UnexpectedDType",
      `${file.path}: "${inBytes.name}" would be made of weights in ${inBytes.type}, whose scales belong to rows in another order; save the model in bf16`,
    );
  }
  const byName = new Map(made.map((one) => [one.tensor.name, one]));
  const parts = new Map<string, Promise<Uint8Array>>();
  const partOf = (one: MadeTensor, index: number, signal: AbortSignal | undefined): Promise<Uint8Array> => {
    const key = `${index} of ${one.tensor.name}`;
    const part = parts.get(key) ?? one.make(index, signal);
    parts.delete(key);
    parts.set(key, part);
    for (const oldest of [...parts.keys()].slice(0, -KEPT_PARTS)) parts.delete(oldest);
    return part;
  };
  const fill = async (out: Uint8Array, one: MadeTensor, start: number, signal: AbortSignal | undefined) => {
    const { shape, byteLength } = one.tensor;
    const size = byteLength / shape[0]!;
    for (let at = 0; at < out.byteLength; ) {
      const index = Math.floor((start + at) / size);
      const from = start + at - index * size;
      const part = await partOf(one, index, signal);
      const piece = part.subarray(from, from + Math.min(size - from, out.byteLength - at));
      out.set(piece, at);
      at += piece.byteLength;
    }
  };
  return {
    path: file.path,
    format: file.format,
    metadata: file.metadata,
    tensors: [
      ...file.tensors.filter(({ name }) => !hidden.has(name)),
      ...made.map(({ tensor }) => ({ ...tensor, place: undefined })),
    ],
    readBytes: async (name, signal, range) => {
      const one = byName.get(name);
      if (!one) return file.readBytes(name, signal, range);
      const { start, end }: ByteRange = range ?? { start: 0, end: one.tensor.byteLength };
      const out = new Uint8Array(end - start);
      await fill(out, one, start, signal);
      return out;
    },
    readInto: (out, name, start, signal) => {
      const one = byName.get(name);
      return one ? fill(out, one, start, signal) : file.readInto(out, name, start, signal);
    },
    [Symbol.asyncDispose]: () => file[Symbol.asyncDispose](),
  };
}

/** The bytes of the part `index` of a tensor whose first dim counts parts. */
export function readPart(
  file: StoredWeights,
  { name, shape, byteLength }: WeightsTensor,
  index: number,
  signal: AbortSignal | undefined,
): Promise<Uint8Array> {
  const size = byteLength / Math.max(shape[0]!, 1);
  return file.readBytes(name, signal, { start: index * size, end: (index + 1) * size });
}

/** The elements of a part, of shape `from`, with their dims in another order. */
export function permutedPart(
  bytes: Uint8Array,
  from: Shape,
  dtype: DType,
  order: readonly number[],
): Promise<Uint8Array> {
  return scope(() => Tensor.fromBytes(bytes, from, dtype).permute(order).contiguous().bytes());
}
