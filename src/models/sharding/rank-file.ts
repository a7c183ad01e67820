/** A rank's part of a model's file, and how what a model asks for differs there from what it asks for elsewhere. */
import type { StoredWeights } from "../../formats/weights-file.ts";
import { architectureOf } from "../architectures/index.ts";
import type { ModelConfig } from "../config.ts";
import { matrixName, rolesOf, stackNames, type WeightsForm } from "../weights/naming.ts";
import type { WeightSizes } from "../weights/weight-sizes.ts";
import type { Part, Place, StackPart } from "../weights/weights.ts";
import { requireShardable, Share, type Stretch } from "./cuts.ts";
import type { Shard } from "./shard.ts";
import { slicedFile } from "./sliced-file.ts";
import { namedCuts, type Padding, slicesOf, widthBlock } from "./slices.ts";

const widened = (inputs: number, padding: Padding | undefined): number =>
  inputs + (padding?.before ?? 0) + (padding?.behind ?? 0);

export class RankFile {
  readonly file: StoredWeights;
  /** The model as this rank has it; its vocabulary is whole. */
  readonly config: ModelConfig;
  readonly #share: Share;
  readonly #form: WeightsForm;
  readonly #paddings: ReadonlyMap<string, Padding>;

  /** Throws `CannotShard` with the counts that work. */
  constructor(file: StoredWeights, config: ModelConfig, form: WeightsForm, { rank, ranks }: Shard) {
    requireShardable(config, ranks);
    const named = namedCuts(config, form, architectureOf(config).sharding);
    const share = new Share(config, { rank, ranks, block: widthBlock(file, named) });
    const { slices, paddings } = slicesOf(file, named, share);
    this.file = slicedFile(file, slices);
    this.config = share.config;
    this.#share = share;
    this.#form = form;
    this.#paddings = paddings;
  }

  /** The tokens of this rank, and of each. */
  get vocabulary(): Stretch {
    return this.#share.vocabulary();
  }

  get vocabularies(): Stretch[] {
    return Array.from({ length: this.#share.ranks }, (_, rank) => this.#share.vocabulary(rank));
  }

  /** The parts as they are in its file: of the head, its own rows. */
  partsOf(parts: readonly Part[]): readonly Part[] {
    return parts[0]!.role === "head" ? [{ ...parts[0]!, outputs: this.vocabulary.count }] : parts;
  }

  /** What the inputs of a matrix are padded by. */
  paddingOf(parts: readonly Part[], place: Place): Padding | undefined {
    return this.#paddings.get(matrixName(this.#form.names, parts[0]!.role, place));
  }

  stackPaddingOf(parts: readonly StackPart[], count: number, place: Place): Padding | undefined {
    const names = stackNames(this.#form.names, rolesOf(parts), count, place).flat();
    return names.map((name) => this.#paddings.get(name)).find((found) => found !== undefined);
  }

  /** As a model asks for them. */
  sizes(own: WeightSizes): WeightSizes {
    return {
      ...own,
      linear: (parts, inputs, place) =>
        own.linear(this.partsOf(parts), widened(inputs, this.paddingOf(parts, place)), place),
      stack: (parts, inputs, count, place) =>
        own.stack(parts, widened(inputs, this.stackPaddingOf(parts, count, place)), count, place),
      embedding: (role, rows, width) => own.embedding(role, role === "token" ? this.vocabulary.count : rows, width),
    };
  }
}
