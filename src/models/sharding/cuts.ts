/** What is split over the ranks of a model, and into what: whole heads, and stretches of MLPs and of the vocabulary. */
import { fail } from "../../core/errors.ts";
import { architectureOf } from "../architectures/index.ts";
import type { ModelConfig } from "../config.ts";
import type { EmbeddingRole, HeadRole, LinearRole, NormRole, VectorRole } from "../weights/weights.ts";

export type ShardedRole = LinearRole | HeadRole | NormRole | VectorRole | EmbeddingRole;

/**
 * How a tensor is cut. "heads", "kvHeads", "width" and "vocabulary" are its rows; "headInputs" and "widthInputs" its columns:
 * what each rank has of the product is then a part of a sum. "headStack" is a matrix for each head.
 */
export type Cut = "heads" | "kvHeads" | "headInputs" | "headStack" | "width" | "widthInputs" | "vocabulary";

/** The column of an architecture: what is not named is whole on every rank. */
export type Sharding = Readonly<Partial<Record<ShardedRole, Cut>>>;

/** From `start` on. */
export interface Stretch {
  readonly start: number;
  readonly count: number;
}

/** Units of at most this many elements, so that kernels find rows of round lengths. */
const ROUND = 32;
/** Stretches of ranks differ by at most one unit in so many. */
const FINE = 8;

/** A rank's part of `total`, in whole units; the first ranks have one more where that does not come out even. */
export function stretchOf(total: number, unit: number, rank: number, ranks: number): Stretch {
  const units = total / unit;
  const [each, more] = [Math.floor(units / ranks), units % ranks];
  const first = rank * each + Math.min(rank, more);
  return { start: first * unit, count: (each + (rank < more ? 1 : 0)) * unit };
}

/** What stretches are made of: blocks of a quantized type, or else a power of two that lets ranks have about as much. */
export function unitOf(total: number, block: number, ranks: number): number {
  if (block > 1) return block;
  let unit = 1;
  while (2 * unit <= ROUND && total % (2 * unit) === 0 && total / (2 * unit) >= FINE * ranks) unit *= 2;
  return unit;
}

export interface ShareOptions {
  readonly rank: number;
  readonly ranks: number;
  /** The elements of a block of the matrices whose columns are cut into stretches of a width; 1 where they are plain. */
  readonly block: number;
}

/** A rank's part of a model. */
export class Share {
  readonly rank: number;
  readonly ranks: number;
  readonly heads: Stretch;
  /** Which of the model's kv heads each of its own is. Some are on several ranks. */
  readonly kvHeads: readonly number[];
  /** The model as this rank has it; its vocabulary is whole. */
  readonly config: ModelConfig;
  readonly #whole: ModelConfig;
  readonly #block: number;

  constructor(config: ModelConfig, { rank, ranks, block }: ShareOptions) {
    this.rank = rank;
    this.ranks = ranks;
    this.#whole = config;
    this.#block = block;
    const { heads, kvHeads, experts } = config;
    this.heads = stretchOf(heads, 1, rank, ranks);
    // Ranks that normalise keys together must have as many as each other.
    const even = architectureOf(config).sharding.kNorm !== undefined;
    this.kvHeads = kvHeadsOf(this.heads, heads / kvHeads, even);
    const widthOf = (width: number) => this.width(width).count;
    this.config = {
      ...config,
      heads: this.heads.count,
      kvHeads: this.kvHeads.length,
      intermediateSize: this.#hasMlps ? widthOf(config.intermediateSize) : config.intermediateSize,
      experts: experts && {
        ...experts,
        width: widthOf(experts.width),
        shared: experts.shared && { ...experts.shared, width: widthOf(experts.shared.width) },
      },
    };
  }

  /** The model's own heads. */
  get allHeads(): number {
    return this.#whole.heads;
  }

  get allKvHeads(): number {
    return this.#whole.kvHeads;
  }

  /** Of an MLP, or an expert, of that width. */
  width(total: number): Stretch {
    const { ranks } = this;
    if (total < ranks) {
      return fail("CannotShard", `MLPs of width ${total} can be split over at most ${total} ranks, not ${ranks}`);
    }
    // Where blocks are fewer than ranks, some are read by several.
    const unit = unitOf(total, total / this.#block >= ranks ? this.#block : 1, ranks);
    return stretchOf(total, unit, this.rank, ranks);
  }

  vocabulary(rank = this.rank): Stretch {
    const { vocabSize } = this.#whole;
    return stretchOf(vocabSize, unitOf(vocabSize, 1, this.ranks), rank, this.ranks);
  }

  get #hasMlps(): boolean {
    const { experts } = this.#whole;
    return !experts || experts.layers.includes(false);
  }
}

/** Several queries share a kv head, as many each: a rank whose queries do not come out so has some kv heads repeatedly. */
function kvHeadsOf({ start, count }: Stretch, perKvHead: number, even: boolean): number[] {
  const of = (head: number): number => Math.floor((start + head) / perKvHead);
  const fits = (together: number): boolean =>
    count % together === 0 &&
    Array.from({ length: count }, (_, head) => head).every((head) => of(head) === of(head - (head % together)));
  let together = even ? greatestCommonDivisor(count, perKvHead) : count;
  while (!fits(together)) together--;
  return Array.from({ length: count / together }, (_, i) => of(i * together));
}

const greatestCommonDivisor = (a: number, b: number): number => (b === 0 ? a : greatestCommonDivisor(b, a % b));

/** Throws `CannotShard` with the counts that work. */
export function requireShardable(config: ModelConfig, ranks: number): void {
  const { architecture, heads, kvHeads, encoder } = config;
  if (encoder) {
    fail("CannotShard", `${architecture} is an encoder, and only models that generate are split over ranks`);
  }
  if (heads % kvHeads !== 0) fail("CannotShard", `${heads} heads do not share ${kvHeads} kv heads evenly`);
  if (heads % ranks === 0) return;
  const working = Array.from({ length: heads }, (_, i) => i + 1).filter((count) => heads % count === 0);
  fail(
    "CannotShard",
    `the model's ${heads} heads cannot be split over ${ranks} ranks; ${working.join(", ")} ranks can`,
  );
}
