/** Vectors of texts, and scores of pairs: texts are sorted by length, run in batches without padding, and given back in order. */
import { setImmediate } from "node:timers/promises";
import type { Device } from "../../backend/device.ts";
import { fail } from "../../core/errors.ts";
import { scope, Tensor } from "../../ops/index.ts";
import type { ModelConfig } from "../config.ts";
import { Packed } from "../packed.ts";
import { batchesOf } from "./batches.ts";
import type { Pooling } from "./settings.ts";

export interface BatchOptions {
  /**
   * Tokens that run at once: more keep a GPU busier and take more memory. Default 2,048 on the CPU, elsewhere 4,096 to
   * 65,536, by the model's width.
   */
  readonly batchTokens?: number | undefined;
  /** Cuts texts that are too long; false refuses them. Default true. */
  readonly truncate?: boolean | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Called as batches are done. */
  readonly onProgress?: ((progress: EmbedProgress) => void) | undefined;
}

export interface EmbedOptions extends BatchOptions {
  /** Default: as the model's files say; else the mean of encoders, and the last token of decoders. */
  readonly pooling?: Pooling | undefined;
  /** Scales vectors to length 1, so that their dot product is their cosine. Default: as the model's files say. */
  readonly normalize?: boolean | undefined;
  /** What the texts are for, by a name that the model's files give ("query", "document"): put before each. */
  readonly prompt?: string | undefined;
}

export interface ScoreOptions extends BatchOptions {
  /** "sigmoid" puts scores between 0 and 1. Default "none": as the model gives them. */
  readonly activation?: "none" | "sigmoid" | undefined;
}

export interface EmbedProgress {
  readonly textsDone: number;
  readonly textsTotal: number;
}

/** Token ids of a sequence, and the segments they belong to, where the model tells them apart. */
export interface Sequence {
  readonly ids: readonly number[];
  readonly types?: readonly number[];
}

/** Numbers of a state that are worth a launch, over all tokens. */
const WORTH_A_LAUNCH = 2 ** 25;

const batchTokensOf = ({ config, device }: Runner): number =>
  device.name === "cpu" ? 2048 : Math.min(Math.max(Math.floor(WORTH_A_LAUNCH / config.hiddenSize), 4096), 65_536);

/** The model, as far as batches depend on it. */
interface Runner {
  readonly config: ModelConfig;
  readonly device: Device;
}

/** What `run` gives for each batch, (sequences of the batch, width), in the order of the sequences. */
export async function inBatches(
  sequences: readonly Sequence[],
  runner: Runner,
  options: BatchOptions,
  run: (packed: Packed) => Tensor,
): Promise<Tensor> {
  return scope(async () => {
    const results: Tensor[] = [];
    const places = new Uint32Array(sequences.length);
    let done = 0;
    await eachBatch(sequences, runner, options, (packed, members) => {
      for (const member of members) places[member] = done++;
      results.push(scope(() => run(packed)));
    });
    const all = results.length === 1 ? results[0]! : Tensor.cat(results, 0);
    return all.indexSelect(Tensor.from(places, { device: runner.device }), 0);
  });
}

/** The rows of each sequence, of what `run` gives for all rows of a batch. */
export async function rowsInBatches(
  sequences: readonly Sequence[],
  runner: Runner,
  options: BatchOptions,
  run: (packed: Packed) => Tensor,
): Promise<Tensor[]> {
  return scope(async () => {
    const results: Tensor[] = [];
    await eachBatch(sequences, runner, options, (packed, members) => {
      using rows = scope(() => run(packed));
      let start = 0;
      for (const [i, member] of members.entries()) {
        using own = rows.narrow(0, start, packed.lengths[i]!);
        results[member] = own.copy();
        start += packed.lengths[i]!;
      }
    });
    return results;
  });
}

async function eachBatch(
  sequences: readonly Sequence[],
  runner: Runner,
  { batchTokens = batchTokensOf(runner), signal, onProgress }: BatchOptions,
  run: (packed: Packed, members: readonly number[]) => void,
): Promise<void> {
  if (!Number.isSafeInteger(batchTokens) || batchTokens < 1) {
    fail("InvalidArgument", `batchTokens must be a whole number from 1 up, not ${batchTokens}`);
  }
  signal?.throwIfAborted();
  const lengths = sequences.map(({ ids }) => ids.length);
  let textsDone = 0;
  for (const members of batchesOf(lengths, batchTokens)) {
    run(new Packed(members.map((i) => sequences[i]!)), members);
    // Lets timers and signals in; on GPUs the next batch is launched while this one runs.
    await setImmediate();
    signal?.throwIfAborted();
    textsDone += members.length;
    if (!onProgress) continue;
    await runner.device.synchronize();
    onProgress({ textsDone, textsTotal: sequences.length });
  }
}
