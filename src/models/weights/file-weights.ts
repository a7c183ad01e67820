/**
 * Weights from a file of any format, read piece by piece: plain ones into the dtype the model computes in, quantized
 * ones as they are. Matrices for the same input are put over each other, whether or not the file has them so.
 */
import type { Device } from "../../backend/device.ts";
import { type DType, isFloat } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import type { Shape } from "../../core/layout.ts";
import type { QuantType } from "../../core/quant-types.ts";
import type { StoredWeights, WeightsTensor } from "../../formats/index.ts";
import type { ByteRange } from "../../formats/read-options.ts";
import { piecesOf, Transfers } from "../../formats/upload.ts";
import { Tensor } from "../../ops/index.ts";
import { QTensor } from "../../quantized/index.ts";
import type { ModelConfig } from "../config.ts";
import type { WeightsOptions } from "../load.ts";
import { type Sites, siteOf, sitesOf } from "../placement/sites.ts";
import { Joined, Matrices } from "../projections.ts";
import { JoinedStacks, Stack } from "../stacks.ts";
import { scaled, scalesOf } from "./f8-scales.ts";
import { lieApart, liesApart, mappedRows } from "./mapped-rows.ts";
import { bytesPerRow, joinedSources, ModelTensors, type Rows, type Source } from "./model-tensors.ts";
import type { WeightsForm } from "./naming.ts";
import type {
  DeviceWeights,
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
} from "./weights.ts";

export class FileWeights implements DeviceWeights {
  readonly owned: Disposable[] = [];
  readonly quantTypes: readonly QuantType[];
  readonly storedTypes: readonly DType[];
  readonly normsAreShifted: boolean;
  readonly hasPlainMatrices: boolean;
  readonly #file: StoredWeights;
  readonly #tensors: ModelTensors;
  readonly #transfers = new Transfers();
  readonly #options: WeightsOptions;
  readonly #sites: Sites;
  readonly #bytesTotal: number;
  #bytesLoaded = 0;

  get deviceBytes(): number {
    return this.#tensors.byteLengthAs(this.#options.dtype);
  }

  /** The file is closed with the weights. */
  constructor(file: StoredWeights, config: ModelConfig, form: WeightsForm, options: WeightsOptions) {
    this.#file = file;
    this.#tensors = new ModelTensors(file, config, form);
    this.quantTypes = [...new Set(file.tensors.flatMap(({ quant }) => quant ?? []))];
    this.storedTypes = [...new Set(file.tensors.flatMap(({ dtype }) => dtype ?? []))];
    this.normsAreShifted = this.#tensors.normOffset !== 0;
    this.hasPlainMatrices = file.tensors.some(({ quant, shape }) => !quant && shape.length > 1);
    this.#options = options;
    this.#sites = sitesOf(options.device, config.layers);
    this.#bytesTotal = this.#tensors.byteLength;
  }

  async linear(parts: readonly Part[], inputs: number, place: Place): Promise<Projection> {
    const stacks: Source[][] = [];
    for (const source of this.#tensors.matrices(parts, inputs, place)) {
      const last = stacks.at(-1);
      if (last && last[0]!.tensor.quant === source.tensor.quant) last.push(source);
      else stacks.push([source]);
    }
    const projections: Projection[] = [];
    const { dtype } = this.#options;
    const device = siteOf(this.#sites, place);
    for (const stack of stacks) {
      const apart = liesApart(stack, dtype, device) ? stack.map((source) => [source]) : [stack];
      for (const own of apart) projections.push(await this.#readStack(own, inputs, device));
    }
    return projections.length === 1 ? projections[0]! : new Joined(projections);
  }

  async stack(parts: readonly StackPart[], inputs: number, count: number, place: Place): Promise<ProjectionStack> {
    const all = this.#tensors.stack(parts, inputs, count, place);
    const types = new Set(all.flat().map(({ tensor }) => tensor.quant));
    const { dtype } = this.#options;
    const device = siteOf(this.#sites, place);
    if (types.size === 1 && !lieApart(all, dtype, device)) {
      return this.#readMatrices(all.flat(), inputs, count, device);
    }
    const stacks: ProjectionStack[] = [];
    for (const i of all[0]!.keys()) {
      stacks.push(
        await this.#readMatrices(
          all.map((sources) => sources[i]!),
          inputs,
          count,
          device,
        ),
      );
    }
    return stacks.length === 1 ? stacks[0]! : new JoinedStacks(stacks);
  }

  async vector(role: VectorRole, size: number, place: Place): Promise<Tensor> {
    // What experts are chosen by is not rounded.
    const { dtype } = this.#options;
    const device = siteOf(this.#sites, place);
    const vector = this.#own(Tensor.empty([size], { device, dtype: role === "routerBias" ? "f32" : dtype }));
    await this.#readRows(vector, 0, this.#tensors.vector(role, size, place), { start: 0, rows: size }, null);
    return vector;
  }

  async norm(role: NormRole, size: number, place: Place): Promise<NormWeights> {
    const { normOffset } = this.#tensors;
    const stored = this.#tensors.norm(role, size, place);
    const device = role === "embeddingNorm" ? this.#sites.input : siteOf(this.#sites, place);
    const weight = this.#empty([size], device);
    const bias = stored.bias && this.#empty([size], device);
    // 1 + w is formed before the rounding to the computing dtype.
    const prepare = (w: Tensor): Tensor => {
      if (normOffset === 0) return w.view(w.layout);
      using wide = w.toDType("f32");
      return wide.affine(1, normOffset);
    };
    const all = { start: 0, rows: size };
    await this.#readRows(weight, 0, stored.weight, all, null, prepare);
    if (bias) await this.#readRows(bias, 0, stored.bias!, all, null);
    return { weight, bias };
  }

  async embedding(role: EmbeddingRole, rows: number, width: number): Promise<EmbeddingTable> {
    const source = this.#tensors.embedding(role, rows, width);
    const { input } = this.#sites;
    if (source.tensor.quant) {
      const table = await this.#readBlocks([source], [rows, width], input);
      const head = Matrices.quantized(table, null, [rows]);
      return { lookup: (ids) => table.rows(ids, this.#options.dtype), head };
    }
    const table = await this.#readPlain([source], width, input);
    const head = Matrices.plain(table, null, [rows]);
    return { lookup: (ids) => table.indexSelect(ids, 0), head };
  }

  arrival(): Promise<void> {
    return this.#transfers.end();
  }

  /** What is under way still needs the file; that it failed has been told where it was waited for. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#transfers.end().catch(() => {});
    await this.#file[Symbol.asyncDispose]();
  }

  #empty(shape: Shape, device: Device): Tensor {
    const { dtype } = this.#options;
    const tensor = Tensor.empty(shape, { device, dtype }).keep();
    this.owned.push(tensor);
    return tensor;
  }

  /** Sources that are all plain, or all of one quantized type. */
  async #readStack(stack: readonly Source[], inputs: number, device: Device): Promise<Projection> {
    const sizes = stack.flatMap((source) => source.sizes);
    if (stack[0]!.tensor.quant) {
      const weight = await this.#readBlocks(stack, [totalRows(stack), inputs], device);
      return Matrices.quantized(weight, await this.#readBias(stack, device), sizes);
    }
    const weight = await this.#readPlain(stack, inputs, device);
    return Matrices.plain(weight, await this.#readBias(stack, device), sizes);
  }

  /** The matrices of `count` experts one after the other, in sources as above. */
  async #readMatrices(all: readonly Source[], inputs: number, count: number, device: Device): Promise<ProjectionStack> {
    const other = all.find(({ tensor }) => tensor.quant !== all[0]!.tensor.quant)?.tensor;
    if (other) {
      const [{ tensor }] = all as [Source];
      const { path } = this.#file;
      fail(
        "UnexpectedDType",
        `${path}: "${tensor.name}" is ${tensor.type} and "${other.name}" ${other.type}; a layer's experts must be of one type`,
      );
    }
    const rows = totalRows(all) / count;
    const shape = [count, rows, inputs];
    const runs = joinedSources(all);
    const flat = await this.#readBias(all, device);
    const bias = flat && this.#own(flat.reshape([count, rows]));
    if (all[0]!.tensor.quant)
      return this.#own(new Stack(await this.#readBlocks(runs, shape, device), bias, this.#options.dtype));
    const weight = await this.#readPlain(runs, inputs, device);
    return this.#own(new Stack(this.#own(weight.reshape(shape)), bias, this.#options.dtype));
  }

  #own<T extends Disposable>(resource: T): T {
    this.owned.push(resource instanceof Tensor ? resource.keep() : resource);
    return resource;
  }

  async #readBlocks(stack: readonly Source[], shape: Shape, device: Device): Promise<QTensor> {
    const bytes = [totalRows(stack) * bytesPerRow(stack[0]!.tensor)];
    using shown = this.#mapped(stack, bytes, "u8", device);
    if (shown) return this.#own(QTensor.fromBlocks(shown, shape, stack[0]!.tensor.quant!).keep());
    using blocks = Tensor.empty(bytes, { dtype: "u8", device });
    const weight = QTensor.fromBlocks(blocks, shape, stack[0]!.tensor.quant!).keep();
    this.owned.push(weight);
    let at = 0;
    for (const { tensor, slices } of stack) {
      for (const slice of slices) {
        await this.#transfer(tensor, slice, this.#copyTo(weight.blocks, at, tensor));
        at += slice.rows * bytesPerRow(tensor);
      }
    }
    return weight;
  }

  async #readPlain(stack: readonly Source[], width: number, device: Device): Promise<Tensor> {
    const shown = this.#mapped(stack, [totalRows(stack), width], this.#options.dtype, device);
    if (shown) return this.#own(shown);
    const weight = this.#empty([totalRows(stack), width], device);
    let at = 0;
    for (const { tensor, slices, rows, transposed } of stack) {
      const scale = await this.#scaling(tensor, device);
      if (transposed) {
        if (scale)
          fail("UnexpectedDType", `${this.#file.path}: "${tensor.name}" is stored by columns, and in f8 with scales`);
        await this.#readTransposed(weight, at, tensor);
        at += rows;
        continue;
      }
      for (const slice of slices) {
        await this.#readRows(weight, at, tensor, slice, width, scale);
        at += slice.rows;
      }
    }
    return weight;
  }

  /** What makes weights of a matrix in f8, where it has scales. */
  async #scaling(matrix: WeightsTensor, device: Device): Promise<Prepare | undefined> {
    const { path, tensors } = this.#file;
    const found = scalesOf(tensors, matrix, path);
    if (!found) return undefined;
    const { signal } = this.#options;
    const { tensor, shape, block } = found;
    const bytes = await this.#file.readBytes(tensor.name, signal);
    using stored = Tensor.fromBytes(bytes, shape, this.#floatType(tensor), device);
    const scales = this.#own(stored.toDType("f32"));
    return (part, first) => scaled(part, first, scales, block);
  }

  /** A single source where it lies in the file, and there at once. */
  #mapped(stack: readonly Source[], shape: Shape, dtype: DType, device: Device): Tensor | null {
    const { signal } = this.#options;
    const [source] = stack as [Source];
    const tensor = stack.length === 1 ? mappedRows(source, shape, dtype, device) : null;
    if (!tensor) return null;
    if (signal?.aborted) tensor.dispose();
    signal?.throwIfAborted();
    this.#arrived(source.tensor, source.rows * bytesPerRow(source.tensor));
    return tensor;
  }

  /** Sources without a bias among others that have one get zeros. */
  async #readBias(stack: readonly Source[], device: Device): Promise<Tensor | null> {
    if (stack.every((source) => source.bias === null)) return null;
    const bias = Tensor.zeros([totalRows(stack)], { device, dtype: this.#options.dtype }).keep();
    this.owned.push(bias);
    let at = 0;
    for (const source of stack) {
      for (const slice of source.biasSlices) {
        if (source.bias) await this.#readRows(bias, at, source.bias, slice, null);
        at += slice.rows;
      }
    }
    return bias;
  }

  /** Rows of `width`, or of single elements where it is null, from row `at` of the target on. */
  #readRows(
    target: Tensor,
    at: number,
    tensor: WeightsTensor,
    slice: Rows,
    width: number | null,
    prepare?: Prepare,
  ): Promise<void> {
    const { dtype, device } = target;
    const stored = this.#floatType(tensor);
    const rowBytes = bytesPerRow(tensor);
    if (stored === dtype && !prepare) {
      return this.#transfer(tensor, slice, this.#copyTo(target, at * rowBytes, tensor));
    }
    return this.#transfer(tensor, slice, async (piece, done) => {
      const count = (piece.end - piece.start) / rowBytes;
      using part = Tensor.empty(width === null ? [count] : [count, width], { dtype: stored, device });
      await this.#copyTo(part, 0, tensor)(piece, 0);
      using prepared = prepare ? prepare(part, slice.start + done / rowBytes) : part.view(part.layout);
      using converted = prepared.toDType(dtype);
      target.sliceSet(converted, 0, at + done / rowBytes);
    });
  }

  /** The columns of the tensor are rows of the target, from row `at` on. */
  #readTransposed(target: Tensor, at: number, tensor: WeightsTensor): Promise<void> {
    const { dtype, device } = target;
    const [rows, width] = tensor.shape as [number, number];
    const stored = this.#floatType(tensor);
    const rowBytes = bytesPerRow(tensor);
    return this.#transfer(tensor, { start: 0, rows }, async (piece, done) => {
      const count = (piece.end - piece.start) / rowBytes;
      using part = Tensor.empty([count, width], { dtype: stored, device });
      await this.#copyTo(part, 0, tensor)(piece, 0);
      using converted = part.toDType(dtype);
      using turned = converted.t();
      using place = target.narrow(0, at, width);
      place.sliceSet(turned, 1, done / rowBytes);
    });
  }

  #floatType({ name, dtype, type }: WeightsTensor): DType {
    if (dtype && isFloat(dtype)) return dtype;
    const { path } = this.#file;
    return fail("UnexpectedDType", `${path}: tensor "${name}" has dtype ${type}; weights must be floats`);
  }

  /** Puts pieces of a tensor where they belong in a contiguous one, the first at byte `at`. */
  #copyTo(target: Tensor, at: number, { name }: WeightsTensor): Take {
    const { signal } = this.#options;
    return ({ start, end }, done) =>
      target.storage.receive(at + done, end - start, (out) => this.#file.readInto(out, name, start, signal));
  }

  /** Begins to read some rows, in pieces that are whole rows. */
  async #transfer(tensor: WeightsTensor, { start, rows }: Rows, take: Take): Promise<void> {
    const { signal } = this.#options;
    const rowBytes = bytesPerRow(tensor);
    const first = start * rowBytes;
    for (const piece of piecesOf({ start: first, end: first + rows * rowBytes }, rowBytes)) {
      await this.#transfers.begin(async () => {
        await take(piece, piece.start - first);
        signal?.throwIfAborted();
        this.#arrived(tensor, piece.end - piece.start);
      });
    }
  }

  #arrived({ name }: WeightsTensor, bytes: number): void {
    this.#bytesLoaded += bytes;
    this.#options.onProgress?.({ name, bytesLoaded: this.#bytesLoaded, bytesTotal: this.#bytesTotal });
  }
}

/** Makes of rows as they are stored, from row `first` on, what they mean. */
type Prepare = (part: Tensor, first: number) => Tensor;

/** Takes a piece of a tensor; `done` bytes lie before it. */
type Take = (piece: ByteRange, done: number) => Promise<void>;

const totalRows = (stack: readonly Source[]): number => stack.reduce((sum, { rows }) => sum + rows, 0);
