/** Turns a file of weights into a GGUF file of another type, a piece of a tensor at a time. */
import { readdir, realpath, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { isFloat } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import { numel, type Shape } from "../../core/layout.ts";
import { Tensor } from "../../ops/index.ts";
import { QTensor } from "../../quantized/index.ts";
import { quantTypeNames, quantTypes } from "../../quantized/types.ts";
import { quoted } from "../named-tensors.ts";
import { openWeights, type WeightsFile, type WeightsTensor } from "../weights-file.ts";
import { bytesOfType, fitsRows, type GgufTensorType, tensorTypeNamed, typeOfDType } from "./types.ts";
import type { GgufTyped } from "./values.ts";
import { writeGguf } from "./writer.ts";

/** Elements in work at once; a multiple of every block. */
const PIECE = 4 * 2 ** 20;

/** What the format's `general.file_type` calls a file of mostly this type; not all types have a number. */
const fileTypes: Readonly<Record<string, number>> = {
  F32: 0,
  F16: 1,
  Q4_0: 2,
  Q4_1: 3,
  Q8_0: 7,
  Q5_0: 8,
  Q5_1: 9,
  Q2_K: 10,
  Q3_K: 12,
  Q4_K: 15,
  Q5_K: 17,
  Q6_K: 18,
  BF16: 32,
};
/** The version of the block layouts. */
const QUANTIZATION_VERSION = 2;

/** What `quantizeFile` can write. */
export const quantizeTargets: readonly string[] = [
  "F32",
  "F16",
  "BF16",
  ...quantTypeNames.filter((name) => quantTypes[name].writable),
];

export interface QuantizedTensorReport {
  readonly name: string;
  readonly shape: Shape;
  readonly from: string;
  readonly to: string;
  readonly bytesBefore: number;
  readonly bytesAfter: number;
  /** Of the written values against the read ones: the root of the mean square, and the largest, of the differences. */
  readonly rmse: number;
  readonly maxError: number;
}

export interface QuantizeProgress {
  /** The tensor in work. */
  readonly name: string;
  /** Of the input. */
  readonly bytesDone: number;
  readonly bytesTotal: number;
}

export interface QuantizeOptions {
  /** One of `quantizeTargets`. */
  readonly type: string;
  readonly onProgress?: ((progress: QuantizeProgress) => void) | undefined;
  /** Called with each tensor's report when its bytes are written. */
  readonly onTensor?: ((report: QuantizedTensorReport) => void) | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** Matrices so small and so decisive that every type keeps them in F32: routers and biases of experts, vectors of positions. */
const KEPT = /(\.ffn_gate_inp|^position_embd)\.weight$|\.bias$/;

/**
 * Writes the tensors of `input` (what `openWeights` takes) to the GGUF file `output`, those of two or more dims whose
 * rows are whole blocks as `type`. Others keep their precision: vectors become F32, and so do matrices that do not
 * fit, or stay F16; integers and types that cannot be computed with are copied. `open` may show the input in another
 * form than the file has.
 */
export async function quantizeFile(
  input: string,
  output: string,
  { type: typeName, onProgress, onTensor, signal }: QuantizeOptions,
  open: (path: string) => Promise<WeightsFile> = openWeights,
): Promise<QuantizedTensorReport[]> {
  const target = tensorTypeNamed(typeName);
  if (!target || !quantizeTargets.includes(target.name)) {
    return fail("InvalidArgument", `cannot quantize to ${quoted(typeName)}; known are ${quantizeTargets.join(", ")}`);
  }
  await refuseInput(input, output);
  await using source = await open(input);
  const bytesTotal = source.tensors.reduce((sum, { byteLength }) => sum + byteLength, 0);
  const reports: QuantizedTensorReport[] = [];
  let bytesDone = 0;
  await writeGguf(output, {
    metadata: metadataOf(source, target),
    alignment: source.gguf?.alignment,
    signal,
    tensors: source.tensors.map((tensor) => {
      const to = targetOf(tensor, target, source.path);
      const { name, shape } = tensor;
      const data = async function* () {
        const conversion = new Conversion(source, tensor, to, (bytes) => {
          bytesDone += bytes;
          onProgress?.({ name, bytesDone, bytesTotal });
        });
        yield* conversion.run(signal);
        const report = conversion.report();
        reports.push(report);
        onTensor?.(report);
      };
      return { name, shape, type: to.name, data };
    }),
  });
  return reports;
}

function targetOf(tensor: WeightsTensor, target: GgufTensorType, path: string): GgufTensorType {
  const { name, dtype, quant, shape, type } = tensor;
  const what = `${path}: tensor ${quoted(name)}`;
  if (quant || (dtype && isFloat(dtype))) {
    const matrix = shape.length >= 2 && !KEPT.test(name);
    if (matrix && fitsRows(target, shape)) return target;
    if (matrix && (quant || dtype === "f16")) return tensorTypeNamed(type)!;
    return tensorTypeNamed("F32")!;
  }
  if (dtype) return typeOfDType(dtype, what);
  return tensorTypeNamed(type) ?? fail("UnexpectedDType", `${what} has ${type}, which cannot be written to GGUF`);
}

function metadataOf(source: WeightsFile, { name }: GgufTensorType): Map<string, GgufTyped> {
  // Metadata of safetensors describes that file ("format": "pt"), not the model.
  const metadata = new Map(source.format === "gguf" ? source.metadata : []);
  const fileType = fileTypes[name];
  if (fileType === undefined) metadata.delete("general.file_type");
  else metadata.set("general.file_type", { type: "u32", value: fileType });
  return metadata.set("general.quantization_version", { type: "u32", value: QUANTIZATION_VERSION });
}

/** One tensor on its way from one type to another. */
class Conversion {
  readonly #source: WeightsFile;
  readonly #tensor: WeightsTensor;
  readonly #to: GgufTensorType;
  readonly #onBytes: (bytes: number) => void;
  #squares = 0;
  #maxError = 0;

  constructor(source: WeightsFile, tensor: WeightsTensor, to: GgufTensorType, onBytes: (bytes: number) => void) {
    this.#source = source;
    this.#tensor = tensor;
    this.#to = to;
    this.#onBytes = onBytes;
  }

  async *run(signal?: AbortSignal): AsyncGenerator<Uint8Array> {
    const { name, shape, byteLength } = this.#tensor;
    const elements = numel(shape);
    const bytesPerElement = byteLength / Math.max(elements, 1);
    for (let at = 0; at < elements; at += PIECE) {
      const end = Math.min(elements, at + PIECE);
      const range = { start: at * bytesPerElement, end: end * bytesPerElement };
      const bytes = await this.#source.readBytes(name, signal, range);
      yield this.#isCopy ? bytes : await this.#convert(bytes, end - at);
      this.#onBytes(bytes.byteLength);
    }
  }

  report(): QuantizedTensorReport {
    const { name, shape, type, byteLength } = this.#tensor;
    const rmse = Math.sqrt(this.#squares / Math.max(numel(shape), 1));
    const bytesAfter = bytesOfType(this.#to, shape);
    return {
      ...{ name, shape, from: type, to: this.#to.name },
      ...{ bytesBefore: byteLength, bytesAfter, rmse, maxError: this.#maxError },
    };
  }

  /** Also true for types known by their size only. */
  get #isCopy(): boolean {
    const { dtype, quant } = this.#tensor;
    return dtype ? dtype === this.#to.dtype : (quant ?? this.#to.name) === this.#to.name;
  }

  async #convert(bytes: Uint8Array, elements: number): Promise<Uint8Array> {
    using before = this.#decode(bytes, elements);
    const { quant, dtype } = this.#to;
    using made = quant ? QTensor.quantize(before, quant) : before.toDType(dtype!);
    using after = made instanceof Tensor ? made.toDType("f32") : made.dequantize();
    using difference = after.sub(before);
    using squares = difference.sqr();
    using sum = squares.sumAll();
    using sizes = difference.abs();
    using largest = sizes.maxAll();
    this.#squares += Number(await sum.toScalar());
    this.#maxError = Math.max(this.#maxError, Number(await largest.toScalar()));
    return made.bytes();
  }

  #decode(bytes: Uint8Array, elements: number): Tensor {
    const { dtype, quant } = this.#tensor;
    using raw = quant ? QTensor.fromBytes(bytes, [1, elements], quant) : Tensor.fromBytes(bytes, [1, elements], dtype!);
    return raw instanceof Tensor ? raw.toDType("f32") : raw.dequantize();
  }
}

/** Whatever links lie between the two names, the output must not be one of the files that are read. */
async function refuseInput(input: string, output: string): Promise<void> {
  const target = await stat(output).catch(() => null);
  if (!target) return;
  if (!target.isFile()) fail("InvalidArgument", `${output} exists and is not a file; name another output`);
  const isFolder = (await stat(input).catch(() => null))?.isDirectory() ?? false;
  // An index names files beside it.
  const folder = isFolder ? input : input.endsWith(".json") ? dirname(input) : null;
  const inputs = folder ? (await readdir(folder)).map((name) => join(folder, name)) : [input];
  for (const path of inputs) {
    const found = await stat(path).catch(() => null);
    if (found && found.ino === target.ino && found.dev === target.dev) {
      const real = await realpath(path);
      fail("InvalidArgument", `${output} is ${real}, which is read from; name another output`);
    }
  }
}
