/**
 * Golden checks of an encoder: `golden.safetensors` holds the ids of padded texts, which of them are padding, the states
 * of all tokens (those of padding mean nothing), and the vectors of the texts by the mean and by the first token.
 */
import { openSafetensors } from "../formats/index.ts";
import type { Model, Pooling } from "../models/index.ts";
import { Tensor } from "../ops/index.ts";
import type { Difference } from "./compare.ts";
import { type Allowance, type Check, compareOnHost } from "./models.ts";

export function encoderChecks(path: string): Check[] {
  const read = async (name: string): Promise<Tensor> => {
    await using file = await openSafetensors(path);
    return file.read(name);
  };
  const texts = async (): Promise<number[][]> => {
    const [ids, mask] = await Promise.all(
      ["input_ids", "attention_mask"].map(async (name) => (await read(name)).toArray()),
    );
    return (ids as bigint[][]).map((row, i) => row.filter((_, t) => (mask as bigint[][])[i]![t] === 1n).map(Number));
  };
  /** The rows of `hidden` that are no padding. */
  const states = async (): Promise<Tensor> => {
    const hidden = await read("hidden");
    const mask = (await (await read("attention_mask")).data()) as BigInt64Array;
    const rows = Uint32Array.from([...mask.keys()].filter((i) => mask[i] === 1n));
    return hidden.reshape([mask.length, hidden.shape[2]!]).indexSelect(Tensor.from(rows), 0);
  };
  const compareStates = async (model: Model, allowed: Allowance, batchTokens?: number): Promise<Difference> =>
    compareOnHost(Tensor.cat(await model.hiddenStates(await texts(), { batchTokens }), 0), await states(), allowed);
  const embedding = (pooling: Pooling): Check => ({
    id: `embedding-${pooling}`,
    op: "embedding",
    run: async (model, allowed) => {
      const want = await read(`embedding_${pooling}`);
      const vectors = await model.embed(await texts(), { pooling, normalize: await isUnit(want) });
      return compareOnHost(vectors, want, allowed);
    },
  });
  return [
    { id: "hidden", op: "hidden", run: (model, allowed) => compareStates(model, allowed) },
    { id: "hidden-one-by-one", op: "hidden", run: (model, allowed) => compareStates(model, allowed, 1) },
    embedding("mean"),
    embedding("cls"),
  ];
}

/** Whether vectors were written with length 1. */
async function isUnit(vectors: Tensor): Promise<boolean> {
  const lengths = (await vectors.sqr().sum(1).data()) as Float32Array;
  return lengths.every((length) => Math.abs(length - 1) < 1e-4);
}
