/** A model's tensors as a GGUF file has them, made from those of a Hugging Face folder as they are asked for. */
import { sizeOf } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import { numel, type Shape } from "../../core/layout.ts";
import type { ByteRange, WeightsTensor } from "../../formats/index.ts";
import { Tensor } from "../../ops/index.ts";
import type { GgufForm } from "../architectures/architecture.ts";
import { architectureOf } from "../architectures/index.ts";
import type { ModelConfig } from "../config.ts";
import { bytesPerRow, type ModelTensors, type Rows, type Source } from "../weights/model-tensors.ts";
import { fusedName, matrixName, normName, stackNames, vectorName } from "../weights/naming.ts";
import type {
  EmbeddingRole,
  EmbeddingTable,
  NormRole,
  NormWeights,
  Part,
  Place,
  Projection,
  ProjectionStack,
  StackPart,
  VectorRole,
  Weights,
} from "../weights/weights.ts";

/** Some rows of a tensor of the folder, or columns, where the tensor is transposed. */
interface Slice extends Rows {
  readonly tensor: WeightsTensor;
  readonly transposed: boolean;
}

interface Change {
  readonly mul: number;
  readonly add: number;
}

interface Entry {
  /** Of one matrix; where there are several, a dim for them comes first. */
  readonly shape: Shape;
  /** The rows of each head are in another order. */
  readonly turned: boolean;
  /** Each weight w becomes mul · w + add. */
  readonly change: Change | null;
  readonly stacked: boolean;
  readonly slices: Slice[];
  /** How many matrices the slices make. */
  count: number;
}

/**
 * Stands in for the weights of a model that is being built, and writes down what it asks for: so no list of a model's
 * tensors is needed besides the model itself.
 */
export class GgufEntries implements Weights {
  readonly owned: Disposable[] = [];
  readonly #entries = new Map<string, Entry>();
  readonly #tensors: ModelTensors;
  readonly #config: ModelConfig;
  readonly #form: GgufForm;
  /** Rotary pairs, neighbours in GGUF's heads, lie apart in those of the folder. */
  readonly #turns: boolean;

  constructor(tensors: ModelTensors, config: ModelConfig) {
    const { gguf, huggingFace } = architectureOf(config);
    this.#tensors = tensors;
    this.#config = config;
    this.#form = gguf;
    this.#turns = gguf.interleaved && !huggingFace.interleaved;
  }

  async linear(parts: readonly Part[], inputs: number, place: Place): Promise<Projection> {
    const { weights, biases } = this.#cut(this.#tensors.matrices(parts, inputs, place), parts);
    for (const [i, part] of parts.entries()) {
      const { name, shape } = this.#target(parts, part, inputs, place);
      const turned = this.#turns && (part.role === "q" || part.role === "k");
      this.#add(`${name}.weight`, shape, weights[i]!, { turned });
      if (biases) this.#add(`${name}.bias`, shape.slice(0, 1), biases[i]!, { turned });
    }
    return this.#noLayer();
  }

  async stack(parts: readonly StackPart[], inputs: number, count: number, place: Place): Promise<ProjectionStack> {
    for (const sources of this.#tensors.stack(parts, inputs, count, place)) {
      const { weights, biases } = this.#cut(sources, parts);
      for (const [i, { role, outputs }] of parts.entries()) {
        const name = stackNames(this.#form.names, role, count, place)[0] as string;
        this.#add(`${name}.weight`, [outputs, inputs], weights[i]!, { stacked: true });
        if (biases) this.#add(`${name}.bias`, [outputs], biases[i]!, { stacked: true });
      }
    }
    return { forward: () => this.#nothing(), each: () => this.#nothing(), dense: () => this.#nothing() };
  }

  async vector(role: VectorRole, size: number, place: Place): Promise<Tensor> {
    const tensor = this.#tensors.vector(role, size, place);
    const all = { start: 0, rows: size, transposed: false };
    this.#add(vectorName(this.#form.names, role, place), [size], [{ ...all, tensor }], {});
    return this.#nothing();
  }

  async norm(role: NormRole, size: number, place: Place): Promise<NormWeights> {
    const { weight, bias } = this.#tensors.norm(role, size, place);
    const name = normName(this.#form.names, role, place);
    const all = { start: 0, rows: size, transposed: false };
    this.#add(`${name}.weight`, [size], [{ ...all, tensor: weight }], { change: this.#normChange(role) });
    if (bias) this.#add(`${name}.bias`, [size], [{ ...all, tensor: bias }], {});
    return { weight: this.#nothing(), bias: null };
  }

  async embedding(role: EmbeddingRole, rows: number, width: number): Promise<EmbeddingTable> {
    const { tensor } = this.#tensors.embedding(role, rows, width);
    const name = `${this.#form.names.embedding[role]}.weight`;
    // GGUF's positions begin at 0.
    const start = role === "position" ? (this.#config.encoder?.positionOffset ?? 0) : 0;
    this.#add(name, [rows - start, width], [{ tensor, start, rows: rows - start, transposed: false }], {});
    return { lookup: () => this.#nothing(), head: this.#noLayer() };
  }

  get list(): WeightsTensor[] {
    return [...this.#entries].map(([name, { shape, slices, stacked, count, change }]) => {
      const { dtype, quant, type } = slices[0]!.tensor;
      if (!(dtype ?? quant) || slices.some((slice) => slice.tensor.type !== type)) {
        const types = [...new Set(slices.map((slice) => slice.tensor.type))].join(", ");
        return fail(
          "UnexpectedDType",
          `${this.#tensors.file.path}: the parts of "${name}" have ${types}; they must be floats of one dtype`,
        );
      }
      const own = shape.length === 2 && shape[0] === 1 ? shape.slice(1) : shape;
      const whole = stacked ? [count, ...shape] : own;
      const rows = slices.reduce((sum, slice) => sum + slice.rows, 0);
      const byteLength = rows * this.#rowBytes(shape, slices[0]!);
      if (change === null) return { name, shape: whole, byteLength, type, dtype, quant };
      return { name, shape: whole, byteLength: numel(whole) * sizeOf("f32"), type: "F32", dtype: "f32" };
    });
  }

  /** Of a row of an entry, whose slices are rows, or columns of as many elements. */
  #rowBytes(shape: Shape, { tensor }: Slice): number {
    return tensor.quant ? bytesPerRow(tensor) : numel(shape.slice(1)) * sizeOf(tensor.dtype!);
  }

  async readBytes(name: string, signal?: AbortSignal, range?: ByteRange): Promise<Uint8Array> {
    const { shape, slices, turned, change } = this.#entries.get(name)!;
    if (change) return this.#readChanged(slices[0]!, change, signal, range);
    const rowBytes = this.#rowBytes(shape, slices[0]!);
    const pieces: Uint8Array[] = [];
    let at = 0;
    for (const slice of slices) {
      const length = slice.rows * rowBytes;
      const from = Math.max((range?.start ?? 0) - at, 0);
      const to = Math.min((range?.end ?? Number.MAX_SAFE_INTEGER) - at, length);
      if (from < to) pieces.push(await this.#readSlice(slice, rowBytes, turned, { start: from, end: to }, signal));
      at += length;
    }
    return pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#tensors.file[Symbol.asyncDispose]();
  }

  /** What the parts are made of. */
  #cut(sources: readonly Source[], parts: readonly StackPart[]): { weights: Slice[][]; biases: Slice[][] | null } {
    const rows = parts.map((part) => part.outputs);
    const weights = cut(
      sources.flatMap(({ tensor, slices, transposed }) => slices.map((slice) => ({ ...slice, tensor, transposed }))),
      rows,
    );
    if (sources.every(({ bias }) => bias === null)) return { weights, biases: null };
    const biases = sources.flatMap((source) => {
      const tensor = this.#needBias(source);
      return source.biasSlices.map((slice) => ({ ...slice, tensor, transposed: false }));
    });
    return { weights, biases: cut(biases, rows) };
  }

  /** Norms are written complete, and that of q with what readers leave out of the scores' scale. */
  #normChange(role: NormRole): Change | null {
    const { normOffset } = this.#tensors;
    const scale = this.#form.fixedScale?.(this.#config);
    const missing = role === "qNorm" && scale !== undefined ? this.#config.attentionScale / scale : 1;
    const mul = Math.abs(missing - 1) < 1e-6 ? 1 : missing;
    return mul === 1 && normOffset === 0 ? null : { mul, add: normOffset * mul };
  }

  #noLayer(): Projection {
    return { forward: () => this.#nothing(), parts: () => [] };
  }

  /** A tensor for a model that will never run. */
  #nothing(): Tensor {
    const tensor = Tensor.empty([0]).keep();
    this.owned.push(tensor);
    return tensor;
  }

  #needBias({ tensor, bias }: { tensor: WeightsTensor; bias: WeightsTensor | null }): WeightsTensor {
    const { path } = this.#tensors.file;
    return bias ?? fail("InvalidFile", `${path}: "${tensor.name}" has no bias, but those beside it have one`);
  }

  /** Where GGUF has a matrix: by itself, or over its neighbour; a single row is a vector there. */
  #target(parts: readonly Part[], { role, outputs }: Part, inputs: number, place: Place) {
    const { names, writesFused } = this.#form;
    const fused = writesFused ? fusedName(names, parts, place) : undefined;
    if (fused !== undefined) return { name: fused, shape: [parts.reduce((n, p) => n + p.outputs, 0), inputs] };
    return { name: matrixName(names, role, place), shape: [outputs, inputs] };
  }

  #add(
    name: string,
    shape: Shape,
    slices: readonly Slice[],
    { turned = false, stacked = false, change = null as Change | null },
  ): void {
    const entry = this.#entries.get(name) ?? { shape, turned, stacked, change, slices: [], count: 0 };
    entry.slices.push(...slices);
    entry.count++;
    this.#entries.set(name, entry);
  }

  async #readSlice(slice: Slice, rowBytes: number, turned: boolean, range: ByteRange, signal?: AbortSignal) {
    const { tensor, start, transposed } = slice;
    const { file } = this.#tensors;
    if (transposed) return this.#readColumns(slice, range, signal);
    const first = start * rowBytes;
    if (!turned) return file.readBytes(tensor.name, signal, { start: first + range.start, end: first + range.end });
    // Rows move within their head only, so whole heads are read around the range.
    const headBytes = this.#config.headDim * rowBytes;
    const from = Math.floor(range.start / headBytes) * headBytes;
    const to = Math.ceil(range.end / headBytes) * headBytes;
    const bytes = await file.readBytes(tensor.name, signal, { start: first + from, end: first + to });
    return this.#turn(bytes, rowBytes).subarray(range.start - from, range.end - from);
  }

  /** Rotary pairs (i, i + d/2) become neighbours. */
  #turn(bytes: Uint8Array, rowBytes: number): Uint8Array {
    const { headDim, rope } = this.#config;
    const half = rope.dims / 2;
    const out = new Uint8Array(bytes.byteLength);
    for (let row = 0; row * rowBytes < bytes.byteLength; row++) {
      const own = row % headDim;
      const from = own < rope.dims ? row - own + (own % 2) * half + (own >> 1) : row;
      out.set(bytes.subarray(from * rowBytes, (from + 1) * rowBytes), row * rowBytes);
    }
    return out;
  }

  /** A range of the bytes that the columns of a tensor are as rows. */
  async #readColumns({ tensor, start, rows }: Slice, range: ByteRange, signal?: AbortSignal) {
    const bytes = await this.#tensors.file.readBytes(tensor.name, signal);
    using stored = Tensor.fromBytes(bytes, tensor.shape, tensor.dtype!);
    using columns = stored.narrow(1, start, rows);
    using turned = columns.t();
    return (await turned.bytes()).subarray(range.start, range.end);
  }

  async #readChanged({ tensor, rows }: Slice, { mul, add }: Change, signal?: AbortSignal, range?: ByteRange) {
    const bytes = await this.#tensors.file.readBytes(tensor.name, signal);
    using stored = Tensor.fromBytes(bytes, [rows], tensor.dtype!);
    using wide = stored.toDType("f32");
    using whole = wide.affine(mul, add);
    return (await whole.bytes()).subarray(range?.start ?? 0, range?.end);
  }
}

/** Slices that follow each other, cut at other places: those of the first `sizes[0]` rows, of the next ones, and so on. */
function cut(slices: readonly Slice[], sizes: readonly number[]): Slice[][] {
  const rest = [...slices];
  return sizes.map((rows) => {
    const own: Slice[] = [];
    for (let missing = rows; missing > 0 && rest.length > 0; ) {
      const slice = rest.shift()!;
      const taken = Math.min(slice.rows, missing);
      own.push({ ...slice, rows: taken });
      if (taken < slice.rows) rest.unshift({ ...slice, start: slice.start + taken, rows: slice.rows - taken });
      missing -= taken;
    }
    return own;
  });
}
