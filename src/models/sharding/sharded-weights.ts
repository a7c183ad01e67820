/** The weights of a rank: its part of each matrix, ready to run together with the other ranks. */
import type { StoredWeights } from "../../formats/weights-file.ts";
import { Tensor } from "../../ops/index.ts";
import { architectureOf } from "../architectures/index.ts";
import type { ModelConfig } from "../config.ts";
import type { WeightsOptions } from "../load.ts";
import { FileWeights } from "../weights/file-weights.ts";
import { matrixName, rolesOf, stackNames, type WeightsForm } from "../weights/naming.ts";
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
import { requireShardable, Share, type Stretch } from "./cuts.ts";
import { fingerprintOf } from "./fingerprint.ts";
import type { Shard } from "./shard.ts";
import { slicedFile } from "./sliced-file.ts";
import { namedCuts, type Padding, slicesOf, widthBlock } from "./slices.ts";

/** No row of the table: reads of it give zeros. */
const NOTHING = 0xffffffff;

export class ShardedWeights implements DeviceWeights {
  /** The model as this rank has it. */
  readonly config: ModelConfig;
  readonly shard: Shard;
  readonly #file: FileWeights;
  readonly #share: Share;
  readonly #form: WeightsForm;
  readonly #paddings: ReadonlyMap<string, Padding>;
  readonly #options: WeightsOptions;
  readonly #made: Disposable[] = [];
  readonly #whole: StoredWeights;

  /** The file is closed with the weights. */
  constructor(file: StoredWeights, config: ModelConfig, form: WeightsForm, options: WeightsOptions, shard: Shard) {
    const { rank, ranks } = shard;
    requireShardable(config, ranks);
    const named = namedCuts(config, form, architectureOf(config).sharding);
    const share = new Share(config, { rank, ranks, block: widthBlock(file, named) });
    const { slices, paddings } = slicesOf(file, named, share);
    this.config = share.config;
    this.shard = shard;
    this.#share = share;
    this.#form = form;
    this.#paddings = paddings;
    this.#options = options;
    this.#whole = file;
    this.#file = new FileWeights(slicedFile(file, slices), share.config, form, options);
  }

  get owned(): readonly Disposable[] {
    return [...this.#file.owned, ...this.#made];
  }

  get deviceBytes(): number {
    return this.#file.deviceBytes;
  }

  get quantTypes() {
    return this.#file.quantTypes;
  }

  get storedTypes() {
    return this.#file.storedTypes;
  }

  get normsAreShifted(): boolean {
    return this.#file.normsAreShifted;
  }

  get hasPlainMatrices(): boolean {
    return this.#file.hasPlainMatrices;
  }

  async linear(parts: readonly Part[], inputs: number, place: Place): Promise<Projection> {
    const [first] = parts as readonly [Part];
    if (first.role === "head") {
      const own = [{ ...first, outputs: this.#share.vocabulary().count }];
      return new GatheredHead(await this.#file.linear(own, inputs, place), this.shard, this.#stretches());
    }
    const padding = this.#paddings.get(matrixName(this.#form.names, first.role, place));
    if (!padding) return this.#file.linear(parts, inputs, place);
    return new PaddedInputs(await this.#file.linear(parts, inputs + padding.before + padding.behind, place), padding);
  }

  async stack(parts: readonly StackPart[], inputs: number, count: number, place: Place): Promise<ProjectionStack> {
    const names = stackNames(this.#form.names, rolesOf(parts), count, place).flat();
    const padding = names.map((name) => this.#paddings.get(name)).find((found) => found !== undefined);
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
    const { start, count } = this.#share.vocabulary();
    const own = await this.#file.embedding(role, count, width);
    const ids = Uint32Array.from({ length: rows }, (_, id) =>
      id >= start && id < start + count ? id - start : NOTHING,
    );
    const places = Tensor.from(ids, { device: this.#options.device }).keep();
    this.#made.push(places);
    return {
      // Rows of other ranks are zeros here.
      lookup: (all) => this.shard.sum(own.lookup(places.indexSelect(all, 0))),
      head: new GatheredHead(own.head, this.shard, this.#stretches()),
    };
  }

  /** What tells this model from another, by a little of each of some tensors. */
  fingerprint(): Promise<string> {
    return fingerprintOf(this.#whole);
  }

  arrival(): Promise<void> {
    return this.#file.arrival();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#file[Symbol.asyncDispose]();
  }

  #stretches(): Stretch[] {
    return Array.from({ length: this.shard.ranks }, (_, rank) => this.#share.vocabulary(rank));
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
