/**
 * Weights from a file of any format, read piece by piece: plain ones into the dtype the model computes in, quantized
 * ones as they are. Matrices for the same input are put over each other, whether or not the file has them so.
 */
import { isFloat, sizeOf } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { formatShape, numel, type Shape, sameShape } from "../core/layout.ts";
import type { WeightsFile, WeightsTensor } from "../formats/index.ts";
import { QTensor } from "../quantized/index.ts";
import { Tensor } from "../tensor/index.ts";
import type { ModelConfig } from "./config.ts";
import type { WeightsOptions } from "./load.ts";
import type { Naming, NamingOf } from "./naming.ts";
import { Joined, PlainMatrices, QuantizedMatrices } from "./projections.ts";
import type { EmbeddingTable, NormRole, Part, Place, Projection, Weights } from "./weights.ts";

/** How much of a tensor is in host memory at once. */
const CHUNK_BYTES = 16 * 2 ** 20;

/** Rows of a tensor: one or several matrices over each other. */
interface Source {
  readonly tensor: WeightsTensor;
  /** Of the first row. */
  readonly start: number;
  readonly rows: number;
  /** The rows of each matrix. */
  readonly sizes: readonly number[];
  readonly bias: WeightsTensor | null;
}

export class FileWeights implements Weights {
  readonly owned: Disposable[] = [];
  readonly #file: WeightsFile;
  readonly #tensors: ReadonlyMap<string, WeightsTensor>;
  readonly #naming: Naming;
  readonly #config: ModelConfig;
  readonly #options: WeightsOptions;
  readonly #bytesTotal: number;
  #bytesLoaded = 0;

  /** The file is closed with the weights. */
  constructor(file: WeightsFile, config: ModelConfig, naming: NamingOf, options: WeightsOptions) {
    this.#file = file;
    this.#tensors = new Map(file.tensors.map((tensor) => [tensor.name, tensor]));
    this.#naming = naming(config);
    this.#config = config;
    this.#options = options;
    const used = file.tensors.filter(({ name }) => this.#naming.isUsed(name));
    this.#bytesTotal = used.reduce((sum, { byteLength }) => sum + byteLength, 0);
  }

  async linear(parts: readonly Part[], inputs: number, place: Place): Promise<Projection> {
    const stacks: Source[][] = [];
    for (const source of this.#sources(parts, inputs, place)) {
      const last = stacks.at(-1);
      if (last && last[0]!.tensor.quant === source.tensor.quant) last.push(source);
      else stacks.push([source]);
    }
    const projections: Projection[] = [];
    for (const stack of stacks) projections.push(await this.#readStack(stack, inputs));
    return projections.length === 1 ? projections[0]! : new Joined(projections);
  }

  async norm(role: NormRole, size: number, place: Place): Promise<Tensor> {
    const { normOffset } = this.#naming;
    const weight = this.#empty([size]);
    // 1 + w is formed before the rounding to the computing dtype.
    const prepare = (w: Tensor): Tensor => {
      if (normOffset === 0) return w.view(w.layout);
      using wide = w.toDType("f32");
      return wide.affine(1, normOffset);
    };
    await this.#readVector(weight, 0, this.#shaped(this.#naming.norm(role, place), [size]), prepare);
    return weight;
  }

  async embedding(rows: number, width: number): Promise<EmbeddingTable> {
    const tensor = this.#shaped(this.#naming.embedding, [rows, width]);
    const { quant } = tensor;
    const source = { tensor, start: 0, rows, sizes: [rows], bias: null };
    if (quant) {
      const table = await this.#readBlocks([source], width);
      const head = new QuantizedMatrices(table, null, [rows]);
      return { lookup: (ids) => table.rows(ids, this.#options.dtype), project: (x) => head.forward(x)[0]! };
    }
    const table = await this.#readPlain([source], width);
    const head = new PlainMatrices(table, null, [rows], this.owned);
    return { lookup: (ids) => table.indexSelect(ids, 0), project: (x) => head.forward(x)[0]! };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#file[Symbol.asyncDispose]();
  }

  get #tensorOptions() {
    const { device, dtype } = this.#options;
    return { device, dtype };
  }

  #empty(shape: Shape): Tensor {
    const tensor = Tensor.empty(shape, this.#tensorOptions).keep();
    this.owned.push(tensor);
    return tensor;
  }

  /** Where the parts are: in one tensor for all of them, or in one for each. */
  #sources(parts: readonly Part[], inputs: number, place: Place): Source[] {
    const fused = this.#naming.fused(parts.map((part) => part.role).join(), place);
    if (fused !== undefined && this.#tensors.has(`${fused}.weight`)) {
      const sizes = parts.map((part) => part.outputs);
      const rows = sizes.reduce((a, b) => a + b, 0);
      const tensor = this.#shaped(`${fused}.weight`, [rows, inputs]);
      const needsBias = parts.some((part) => part.needsBias);
      return [{ tensor, start: 0, rows, sizes, bias: this.#bias(fused, rows, needsBias) }];
    }
    return parts.map(({ role, outputs, needsBias }) => {
      const places = this.#naming.linear(role, place);
      const { name, index } = places.find((p) => this.#tensors.has(`${p.name}.weight`)) ?? places[0]!;
      const shape = index === undefined ? [outputs, inputs] : [this.#config.experts!.count, outputs, inputs];
      const tensor = this.#shaped(`${name}.weight`, shape);
      const bias = this.#bias(name, outputs, needsBias ?? false);
      return { tensor, start: (index ?? 0) * outputs, rows: outputs, sizes: [outputs], bias };
    });
  }

  #bias(name: string, size: number, needed: boolean): WeightsTensor | null {
    const own = `${name}.bias`;
    return needed || this.#tensors.has(own) ? this.#shaped(own, [size]) : null;
  }

  /** The tensor, if it is there and has this shape. */
  #shaped(name: string, shape: Shape): WeightsTensor {
    const { path } = this.#file;
    const tensor = this.#tensors.get(name);
    if (!tensor) {
      return fail("MissingTensor", `${path} has no tensor "${name}", which a ${this.#config.architecture} needs`);
    }
    if (sameShape(tensor.shape, shape)) return tensor;
    return fail(
      "ShapeMismatch",
      `${path}: tensor "${name}" has shape ${formatShape(tensor.shape)}, but the config asks for ${formatShape(shape)}`,
    );
  }

  /** Sources that are all plain, or all of one quantized type. */
  async #readStack(stack: readonly Source[], inputs: number): Promise<Projection> {
    const sizes = stack.flatMap((source) => source.sizes);
    if (stack[0]!.tensor.quant) {
      const weight = await this.#readBlocks(stack, inputs);
      return new QuantizedMatrices(weight, await this.#readBias(stack), sizes);
    }
    const weight = await this.#readPlain(stack, inputs);
    return new PlainMatrices(weight, await this.#readBias(stack), sizes, this.owned);
  }

  async #readBlocks(stack: readonly Source[], width: number): Promise<QTensor> {
    const { device } = this.#options;
    const quant = stack[0]!.tensor.quant!;
    const rows = totalRows(stack);
    const rowBytes = bytesPerRow(stack[0]!.tensor);
    using blocks = Tensor.empty([rows * rowBytes], { dtype: "u8", device });
    let at = 0;
    for (const { tensor, start, rows: count } of stack) {
      for await (const bytes of this.#read(tensor, start, count)) {
        blocks.backend.write(blocks.storage, at, bytes);
        at += bytes.byteLength;
      }
    }
    const weight = QTensor.fromBlocks(blocks, [rows, width], quant).keep();
    this.owned.push(weight);
    return weight;
  }

  async #readPlain(stack: readonly Source[], width: number): Promise<Tensor> {
    const weight = this.#empty([totalRows(stack), width]);
    let at = 0;
    for (const { tensor, start, rows } of stack) {
      for await (const bytes of this.#read(tensor, start, rows)) {
        at += this.#convertInto(weight, at, tensor, bytes, width);
      }
    }
    return weight;
  }

  /** Sources without a bias among others that have one get zeros. */
  async #readBias(stack: readonly Source[]): Promise<Tensor | null> {
    if (stack.every((source) => source.bias === null)) return null;
    const bias = Tensor.zeros([totalRows(stack)], this.#tensorOptions).keep();
    this.owned.push(bias);
    let at = 0;
    for (const source of stack) {
      if (source.bias) await this.#readVector(bias, at, source.bias);
      at += source.rows;
    }
    return bias;
  }

  async #readVector(target: Tensor, at: number, tensor: WeightsTensor, prepare?: (w: Tensor) => Tensor): Promise<void> {
    let to = at;
    for await (const bytes of this.#read(tensor, 0, tensor.shape[0]!)) {
      to += this.#convertInto(target, to, tensor, bytes, null, prepare);
    }
  }

  /** Rows of `width`, or of single elements where it is null; says how many were set. */
  #convertInto(
    target: Tensor,
    row: number,
    { name, dtype: stored, type }: WeightsTensor,
    bytes: Uint8Array,
    width: number | null,
    prepare: (part: Tensor) => Tensor = (part) => part.view(part.layout),
  ): number {
    const { device, dtype } = this.#options;
    if (!stored || !isFloat(stored)) {
      return fail("UnexpectedDType", `${this.#file.path}: tensor "${name}" has dtype ${type}; weights must be floats`);
    }
    const rows = bytes.byteLength / sizeOf(stored) / (width ?? 1);
    using part = Tensor.fromBytes(bytes, width === null ? [rows] : [rows, width], stored, device);
    using prepared = prepare(part);
    using converted = prepared.toDType(dtype);
    target.sliceSet(converted, 0, row);
    return rows;
  }

  /** The bytes of some rows, in pieces that are whole rows. */
  async *#read(tensor: WeightsTensor, start: number, rows: number): AsyncGenerator<Uint8Array> {
    const { signal, onProgress } = this.#options;
    const { name } = tensor;
    const rowBytes = bytesPerRow(tensor);
    const step = Math.max(1, Math.floor(CHUNK_BYTES / Math.max(rowBytes, 1)));
    for (let from = start; from < start + rows; from += step) {
      const to = Math.min(from + step, start + rows);
      const bytes = await this.#file.readBytes(name, signal, { start: from * rowBytes, end: to * rowBytes });
      yield bytes;
      this.#bytesLoaded += bytes.byteLength;
      onProgress?.({ name, bytesLoaded: this.#bytesLoaded, bytesTotal: this.#bytesTotal });
    }
  }
}

const totalRows = (stack: readonly Source[]): number => stack.reduce((sum, { rows }) => sum + rows, 0);

/** A vector's rows are its elements. */
function bytesPerRow({ shape, byteLength }: WeightsTensor): number {
  const rows = numel(shape.length > 1 ? shape.slice(0, -1) : shape);
  return byteLength / Math.max(rows, 1);
}
