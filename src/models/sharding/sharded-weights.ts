/** The weights of a rank: its part of each matrix, ready to run together with the other ranks. */
import type { DType } from "../../core/dtype.ts";
import type { QuantType } from "../../core/quant-types.ts";
import { Tensor } from "../../ops/index.ts";
import type { WeightsOptions } from "../load.ts";
import { sitesOf } from "../placement/sites.ts";
import { FileWeights } from "../weights/file-weights.ts";
import type { WeightsForm } from "../weights/naming.ts";
import type {
  DeviceWeights,
  EmbeddingRole,
  EmbeddingTable,
  Fusion,
  Norm,
  NormRole,
  NormWeights,
  Part,
  Place,
  Projection,
  ProjectionStack,
  StackFusion,
  StackPart,
  VectorRole,
} from "../weights/weights.ts";
import type { Stretch } from "./cuts.ts";
import type { RankFile } from "./rank-file.ts";
import type { Shard } from "./shard.ts";
import type { Padding } from "./slices.ts";

/** No row of the table: reads of it give zeros. */
const NOTHING = 0xffffffff;

export class ShardedWeights implements DeviceWeights {
  readonly shard: Shard;
  readonly #own: RankFile;
  readonly #file: FileWeights;
  readonly #options: WeightsOptions;
  readonly #made: Disposable[] = [];

  /** The file is closed with the weights. */
  constructor(own: RankFile, shard: Shard, form: WeightsForm, options: WeightsOptions) {
    this.shard = shard;
    this.#own = own;
    this.#options = options;
    this.#file = new FileWeights(own.file, own.config, form, options);
  }

  get owned(): readonly Disposable[] {
    return [...this.#file.owned, ...this.#made];
  }

  get deviceBytes(): number {
    return this.#file.deviceBytes;
  }

  get quantTypes(): readonly QuantType[] {
    return this.#file.quantTypes;
  }

  get storedTypes(): readonly DType[] {
    return this.#file.storedTypes;
  }

  get normsAreShifted(): boolean {
    return this.#file.normsAreShifted;
  }

  get hasPlainMatrices(): boolean {
    return this.#file.hasPlainMatrices;
  }

  async linear(parts: readonly Part[], inputs: number, place: Place): Promise<Projection> {
    if (parts[0]!.role === "head") {
      const own = await this.#file.linear(this.#own.partsOf(parts), inputs, place);
      return new GatheredHead(own, this.shard, this.#own.vocabularies);
    }
    const padding = this.#own.paddingOf(parts, place);
    if (!padding) return this.#file.linear(parts, inputs, place);
    return new PaddedInputs(await this.#file.linear(parts, inputs + padding.before + padding.behind, place), padding);
  }

  async stack(parts: readonly StackPart[], inputs: number, count: number, place: Place): Promise<ProjectionStack> {
    const padding = this.#own.stackPaddingOf(parts, count, place);
    if (!padding) return this.#file.stack(parts, inputs, count, place);
    const wider = await this.#file.stack(parts, inputs + padding.before + padding.behind, count, place);
    return new PaddedStack(wider, padding);
  }

  vector(role: VectorRole, size: number, place: Place): Promise<Tensor> {
    return this.#file.vector(role, size, place);
  }

  norm(role: NormRole, size: number, place: Place): Promise<NormWeights> {
    return this.#file.norm(role, size, place);
  }

  async embedding(role: EmbeddingRole, rows: number, width: number): Promise<EmbeddingTable> {
    if (role !== "token") return this.#file.embedding(role, rows, width);
    const { start, count } = this.#own.vocabulary;
    const own = await this.#file.embedding(role, count, width);
    const ids = Uint32Array.from({ length: rows }, (_, id) =>
      id >= start && id < start + count ? id - start : NOTHING,
    );
    const device = sitesOf(this.#options.device, this.#own.config.layers).input;
    const places = Tensor.from(ids, { device }).keep();
    this.#made.push(places);
    return {
      // Rows of other ranks are zeros here.
      lookup: (all) => this.shard.sum(own.lookup(places.indexSelect(all, 0))),
      head: new GatheredHead(own.head, this.shard, this.#own.vocabularies),
    };
  }

  arrival(): Promise<void> {
    return this.#file.arrival();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#file[Symbol.asyncDispose]();
  }
}

/** A rank's rows of the head; the logits of all. */
class GatheredHead implements Projection {
  readonly #own: Projection;
  readonly #shard: Shard;
  readonly #stretches: readonly Stretch[];

  constructor(own: Projection, shard: Shard, stretches: readonly Stretch[]) {
    this.#own = own;
    this.#shard = shard;
    this.#stretches = stretches;
  }

  forward(x: Tensor, fusion?: Fusion): Tensor {
    return this.#shard.gather(this.#own.forward(x, fusion), this.#stretches);
  }

  parts(x: Tensor, norm?: Norm): Tensor[] {
    return [this.forward(x, { norm })];
  }
}

/** Columns that were read in whole blocks, where a rank's own begin or end within one. */
class PaddedInputs implements Projection {
  readonly #wider: Projection;
  readonly #padding: Padding;

  constructor(wider: Projection, padding: Padding) {
    this.#wider = wider;
    this.#padding = padding;
  }

  forward(x: Tensor, fusion?: Fusion): Tensor {
    return this.#wider.forward(this.#padded(x), fusion);
  }

  parts(x: Tensor, norm?: Norm): Tensor[] {
    return this.#wider.parts(this.#padded(x), norm);
  }

  #padded(x: Tensor): Tensor {
    return x.padWithZeros(1, this.#padding.before, this.#padding.behind);
  }
}

/** The same, of experts. */
class PaddedStack implements ProjectionStack {
  readonly #wider: ProjectionStack;
  readonly #padding: Padding;

  constructor(wider: ProjectionStack, padding: Padding) {
    this.#wider = wider;
    this.#padding = padding;
  }

  forward(x: Tensor, ids: Tensor, fusion?: StackFusion): Tensor {
    return this.#wider.forward(x.padWithZeros(1, this.#padding.before, this.#padding.behind), ids, fusion);
  }

  each(x: Tensor): Tensor {
    return this.#wider.each(x.padWithZeros(2, this.#padding.before, this.#padding.behind));
  }

  dense(): Tensor {
    const all = this.#wider.dense();
    const { before, behind } = this.#padding;
    return all.narrow(2, before, all.shape[2]! - before - behind);
  }
}
