/** A model's tensors as a GGUF file has them, made from those of a Hugging Face folder as they are asked for. */
import { sizeOf } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import { numel, type Shape } from "../../core/layout.ts";
import type { ByteRange, WeightsTensor } from "../../formats/index.ts";
import { Tensor } from "../../ops/index.ts";
import type { GgufForm } from "../architectures/architecture.ts";
import { architectureOf } from "../architectures/index.ts";
import type { ModelConfig } from "../config.ts";
import type { ModelTensors, Rows } from "../weights/model-tensors.ts";
import { fusedName, matrixNames, normName } from "../weights/naming.ts";
import type {
  EmbeddingRole,
  EmbeddingTable,
  NormRole,
  NormWeights,
  Part,
  Place,
  Projection,
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
    const sources = this.#tensors.matrices(parts, inputs, place);
    const rows = parts.map((part) => part.outputs);
    const weights = cut(
      sources.flatMap(({ tensor, slices, transposed }) => slices.map((slice) => ({ ...slice, tensor, transposed }))),
      rows,
    );
    const biased = sources.some(({ bias }) => bias !== null) ? sources : [];
    const biases = cut(
      biased.flatMap((source) => {
        const tensor = this.#needBias(source);
        return source.biasSlices.map((slice) => ({ ...slice, tensor, transposed: false }));
      }),
      rows,
    );
    for (const [i, part] of parts.entries()) {
      const { name, stacked, shape } = this.#target(parts, part, inputs, place);
      const turned = this.#turns && (part.role === "q" || part.role === "k");
      this.#add(`${name}.weight`, shape, weights[i]!, { turned, stacked });
      if (biased.length > 0) this.#add(`${name}.bias`, shape.slice(0, 1), biases[i]!, { turned });
    }
    return this.#noLayer();
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
      const { dtype, type } = slices[0]!.tensor;
      if (!dtype || slices.some((slice) => slice.tensor.dtype !== dtype)) {
        const types = [...new Set(slices.map((slice) => slice.tensor.type))].join(", ");
        return fail(
          "UnexpectedDType",
          `${this.#tensors.file.path}: the parts of "${name}" have ${types}; they must be floats of one dtype`,
        );
      }
      const whole = stacked ? [count, ...shape] : shape;
      const to = change === null ? { type, dtype } : { type: "F32", dtype: "f32" as const };
      return { name, shape: whole, byteLength: numel(whole) * sizeOf(to.dtype), ...to };
    });
  }

  async readBytes(name: string, signal?: AbortSignal, range?: ByteRange): Promise<Uint8Array> {
    const { shape, slices, turned, change } = this.#entries.get(name)!;
    if (change) return this.#readChanged(slices[0]!, change, signal, range);
    const rowBytes = numel(shape.slice(1)) * sizeOf(slices[0]!.tensor.dtype!);
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

  /** Where GGUF has a matrix: by itself, among those of the other experts, or over its neighbour. */
  #target(parts: readonly Part[], { role, outputs }: Part, inputs: number, place: Place) {
    const { names, writesFused } = this.#form;
    const fused = writesFused ? fusedName(names, parts, place) : undefined;
    if (fused !== undefined)
      return { name: fused, stacked: false, shape: [parts.reduce((n, p) => n + p.outputs, 0), inputs] };
    const { name, index } = matrixNames(names, role, place)[0]!;
    return { name, stacked: index !== undefined, shape: [outputs, inputs] };
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
