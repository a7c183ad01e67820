/** Finds what a model asks for in a file, under the names of its format. */
import { type DType, sizeOf } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import { formatShape, numel, type Shape, sameShape } from "../../core/layout.ts";
import type { WeightsFile, WeightsTensor } from "../../formats/index.ts";
import { MAPPED_FROM } from "../../formats/upload.ts";
import type { ModelConfig } from "../config.ts";
import {
  fusedName,
  isUsed,
  matrixName,
  normName,
  rolesOf,
  stackNames,
  vectorName,
  type WeightsForm,
} from "./naming.ts";
import type { EmbeddingRole, NormRole, Part, Place, StackPart, VectorRole } from "./weights.ts";

/** Rows that follow each other. */
export interface Rows {
  readonly start: number;
  readonly rows: number;
}

/** Rows of a tensor: one or several matrices over each other. */
export interface Source {
  readonly tensor: WeightsTensor;
  /** Where they are, in the order that they are wanted in. */
  readonly slices: readonly Rows[];
  /** Of all slices. */
  readonly rows: number;
  /** The rows of each matrix. */
  readonly sizes: readonly number[];
  readonly bias: WeightsTensor | null;
  /** Where those rows are in the bias. */
  readonly biasSlices: readonly Rows[];
  /** The tensor holds the whole matrix as (inputs, outputs): its columns are the rows. */
  readonly transposed: boolean;
}

export interface NormTensors {
  readonly weight: WeightsTensor;
  readonly bias: WeightsTensor | null;
}

export class ModelTensors {
  readonly file: WeightsFile;
  readonly #tensors: ReadonlyMap<string, WeightsTensor>;
  readonly #form: WeightsForm;
  readonly #config: ModelConfig;

  constructor(file: WeightsFile, config: ModelConfig, form: WeightsForm) {
    this.file = file;
    this.#tensors = new Map(file.tensors.map((tensor) => [tensor.name, tensor]));
    this.#form = form;
    this.#config = config;
  }

  /** Of all that the model asks for. */
  get byteLength(): number {
    return this.#used.reduce((sum, { byteLength }) => sum + byteLength, 0);
  }

  /** The same once plain ones are in `dtype`. */
  byteLengthAs(dtype: DType): number {
    return this.#used.reduce(
      (sum, { quant, byteLength, shape }) => sum + (quant ? byteLength : numel(shape) * sizeOf(dtype)),
      0,
    );
  }

  /** Of those that can be taken as the file has them. */
  byteLengthAsStored(dtype: DType): number {
    return this.#used.reduce((sum, tensor) => sum + (isAsStored(tensor, dtype) ? tensor.byteLength : 0), 0);
  }

  get #used(): WeightsTensor[] {
    return this.file.tensors.filter(({ name }) => isUsed(this.#form.names, name, this.#config));
  }

  /** The file holds norm weights minus this. */
  get normOffset(): 0 | 1 {
    return this.#form.normOffset;
  }

  norm(role: NormRole, size: number, place: Place): NormTensors {
    const name = normName(this.#form.names, role, place);
    return { weight: this.#shaped(`${name}.weight`, [size]), bias: this.#bias(name, [size], false) };
  }

  embedding(role: EmbeddingRole, rows: number, width: number): Source {
    const tensor = this.#matrix(`${this.#form.names.embedding[role]}.weight`, [rows, width]);
    return { ...whole(rows), tensor, sizes: [rows], bias: null, transposed: false };
  }

  /** Where the parts are: in one tensor for all of them, or in one for each. */
  matrices(parts: readonly Part[], inputs: number, place: Place): Source[] {
    const { names } = this.#form;
    // What a model has once is never stored so.
    const transposed = (this.#form.transposed ?? false) && place.layer !== undefined;
    const shapeOf = (rows: number): Shape => (transposed ? [inputs, rows] : [rows, inputs]);
    const fused = fusedName(names, parts, place);
    if (fused !== undefined && this.#tensors.has(`${fused}.weight`)) {
      const sizes = parts.map((part) => part.outputs);
      const rows = sizes.reduce((a, b) => a + b, 0);
      const tensor = this.#shaped(`${fused}.weight`, shapeOf(rows));
      const bias = this.#bias(
        fused,
        [rows],
        parts.some((part) => part.needsBias),
      );
      const order = this.#form.fusedByHead ? byHead(sizes, this.#config.headDim) : whole(rows);
      return [{ ...order, tensor, sizes, bias, transposed }];
    }
    return parts.map(({ role, outputs, needsBias }) => {
      const name = matrixName(names, role, place);
      const tensor = this.#matrix(`${name}.weight`, shapeOf(outputs));
      const bias = this.#bias(name, [outputs], needsBias ?? false);
      return { ...whole(outputs), tensor, sizes: [outputs], bias, transposed };
    });
  }

  /** The same for each of `count` experts, or heads. */
  stack(parts: readonly StackPart[], inputs: number, count: number, place: Place): Source[][] {
    const fused = parts.length > 1 ? this.#stacked(parts, rolesOf(parts), inputs, count, place) : undefined;
    if (fused) return fused.map((source) => [source]);
    const each = parts.map((part) => this.#stacked([part], part.role, inputs, count, place)!);
    return Array.from({ length: count }, (_, i) => each.map((sources) => sources[i]!));
  }

  /** All parts of each expert in one piece, which need not be there if they are more than one. */
  #stacked(
    parts: readonly StackPart[],
    roles: string,
    inputs: number,
    count: number,
    place: Place,
  ): Source[] | undefined {
    const places = stackNames(this.#form.names, roles, count, place);
    const found = places.find((names) => this.#find([names].flat()[0]!));
    if (!found && parts.length > 1) return undefined;
    const names = found ?? places[0]!;
    const sizes = parts.map((part) => part.outputs);
    const rows = sizes.reduce((a, b) => a + b, 0);
    const more = { sizes, transposed: false };
    if (typeof names === "string") {
      const tensor = this.#shaped(this.#find(names) ?? `${names}.weight`, [count, rows, inputs]);
      const stored = this.#bias(names, [count, rows], false);
      const bias = stored && { ...stored, shape: [count * rows] };
      return Array.from({ length: count }, (_, i) => {
        const slices = [{ start: i * rows, rows }];
        return { ...more, tensor, bias, rows, slices, biasSlices: slices };
      });
    }
    return names.map((name) => {
      const tensor = this.#shaped(`${name}.weight`, [rows, inputs]);
      return { ...more, ...whole(rows), tensor, bias: this.#bias(name, [rows], false) };
    });
  }

  vector(role: VectorRole, size: number, place: Place): WeightsTensor {
    return this.#shaped(vectorName(this.#form.names, role, place), [size]);
  }

  /** The whole name of a matrix, if it is there; a stack of them may have no ".weight". */
  #find(name: string): string | undefined {
    return [`${name}.weight`, name].find((whole) => this.#tensors.has(whole));
  }

  #bias(name: string, shape: Shape, needed: boolean): WeightsTensor | null {
    const own = `${name}.bias`;
    return needed || this.#tensors.has(own) ? this.#shaped(own, shape) : null;
  }

  /** As below; a single row may be a vector in the file. */
  #matrix(name: string, shape: Shape): WeightsTensor {
    const isVector = shape[0] === 1 && this.#tensors.get(name)?.shape.length === 1;
    return isVector ? { ...this.#shaped(name, shape.slice(1)), shape } : this.#shaped(name, shape);
  }

  /** The tensor, if it is there and has this shape. */
  #shaped(name: string, shape: Shape): WeightsTensor {
    const { path } = this.file;
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
}

type Order = Pick<Source, "slices" | "rows" | "biasSlices">;

/** All rows as they are. */
function whole(rows: number): Order {
  const slices = [{ start: 0, rows }];
  return { slices, rows, biasSlices: slices };
}

/** Matrices whose heads are interleaved in the file, one after the other. */
function byHead(sizes: readonly number[], headDim: number): Order {
  const slices = sizes.flatMap((size, i) =>
    Array.from({ length: size / headDim }, (_, head) => ({
      start: (head * sizes.length + i) * headDim,
      rows: headDim,
    })),
  );
  return { slices, rows: sizes.reduce((a, b) => a + b, 0), biasSlices: slices };
}

/** Whether a tensor could be taken as it lies there, by a model that computes in `dtype`. */
export const isAsStored = (tensor: WeightsTensor, dtype: DType): boolean =>
  tensor.place !== undefined && tensor.byteLength >= MAPPED_FROM && (tensor.quant ? true : tensor.dtype === dtype);

/** A vector's rows are its elements. */
export function bytesPerRow({ shape, byteLength }: WeightsTensor): number {
  const rows = numel(shape.length > 1 ? shape.slice(0, -1) : shape);
  return byteLength / Math.max(rows, 1);
}

/** Neighbours in one tensor as one source, so that they are read in one go. */
export function joinedSources(sources: readonly Source[]): Source[] {
  const runs: Source[] = [];
  for (const source of sources) {
    const last = runs.at(-1);
    const [before, next] = [last?.slices.at(-1), source.slices[0]!];
    if (last && before && last.tensor === source.tensor && before.start + before.rows === next.start) {
      const slices = [{ start: before.start, rows: before.rows + next.rows }, ...source.slices.slice(1)];
      const rows = last.rows + source.rows;
      runs[runs.length - 1] = { ...last, rows, slices: [...last.slices.slice(0, -1), ...slices] };
    } else runs.push(source);
  }
  return runs;
}
