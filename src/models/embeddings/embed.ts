/** Vectors of texts, and scores of pairs: texts are sorted by length, run in batches without padding, and given back in order. */
import { setImmediate } from "node:timers/promises";
import type { Device } from "../../backend/device.ts";
import { fail } from "../../core/errors.ts";
import { scope, Tensor } from "../../ops/index.ts";
import { Packed } from "../packed.ts";
import { batchesOf } from "./batches.ts";
import type { Pooling } from "./settings.ts";

export interface BatchOptions {
  /** Tokens that run at once: more keep a GPU busier and take more memory. Default 2,048 on the CPU, 32,768 elsewhere. */
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

export interface EmbedProgress {
  readonly textsDone: number;
  readonly textsTotal: number;
}

/** Token ids of a sequence, and the segments they belong to, where the model tells them apart. */
export interface Sequence {
  readonly ids: readonly number[];
  readonly types?: readonly number[];
}

const batchTokensOf = ({ name }: Device): number => (name === "cpu" ? 2048 : 32_768);

/** What `run` gives for each batch, (sequences of the batch, width), in the order of the sequences. */
export async function inBatches(
  sequences: readonly Sequence[],
  device: Device,
  { batchTokens = batchTokensOf(device), signal, onProgress }: BatchOptions,
  run: (packed: Packed) => Tensor,
): Promise<Tensor> {
  if (!Number.isSafeInteger(batchTokens) || batchTokens < 1) {
    fail("InvalidArgument", `batchTokens must be a whole number from 1 up, not ${batchTokens}`);
  }
  signal?.throwIfAborted();
  const batches = batchesOf(
    sequences.map(({ ids }) => ids.length),
    batchTokens,
  );
  return scope(async () => {
    const results: Tensor[] = [];
    let textsDone = 0;
    for (const { members } of batches) {
      const packed = new Packed(members.map((i) => sequences[i]!));
      results.push(scope(() => run(packed)));
      // Lets timers and signals in; on GPUs the next batch is launched while this one runs.
      await setImmediate();
      signal?.throwIfAborted();
      textsDone += members.length;
      if (onProgress) {
        await device.synchronize();
        onProgress({ textsDone, textsTotal: sequences.length });
      }
    }
    const places = new Uint32Array(sequences.length);
    for (const [at, i] of batches.flatMap(({ members }) => members).entries()) places[i] = at;
    const all = results.length === 1 ? results[0]! : Tensor.cat(results, 0);
    return all.indexSelect(Tensor.from(places, { device }), 0);
  });
}
