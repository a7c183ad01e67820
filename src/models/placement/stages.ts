/** How a model's layers are shared out among the stages of a pipeline. */
import { fail } from "../../core/errors.ts";
import type { ModelConfig } from "../config.ts";
import type { ModelSizes } from "./model-sizes.ts";
import { type Demand, type Room, type Share, shareBytes, sharesOf, spread } from "./place.ts";

/** Throws `CannotShard` with the numbers of stages that work. */
export function requireStages({ architecture, encoder, layers }: ModelConfig, stages: number): void {
  if (encoder) {
    fail("CannotShard", `${architecture} is an encoder, and only models that generate are split into stages`);
  }
  if (stages <= layers) return;
  fail("CannotShard", `the model's ${layers} layers cannot be split into ${stages} stages; 1 to ${layers} stages can`);
}

/** A table that is the head, too, lies on both ends of a pipeline. */
export function untied(demand: Demand): Demand {
  const { config, sizes } = demand;
  if (!config.tiedEmbeddings) return demand;
  const { input, output } = sizes;
  const own: ModelSizes = { ...sizes, output: { ...output, matrices: output.matrices + input.matrices } };
  return { ...demand, config: { ...config, tiedEmbeddings: false }, sizes: own };
}

/** What lies in each stage: layers by the memory that it has beside the others, whether or not it holds them, and at least one. */
export function stageShares(demand: Demand, rooms: readonly Room[]): Share[] {
  requireStages(demand.config, rooms.length);
  const own = untied(demand);
  const counts = relativeCounts(own, rooms);
  for (const [i, count] of counts.entries()) {
    if (count > 0) continue;
    counts[counts.indexOf(Math.max(...counts))]!--;
    counts[i] = 1;
  }
  return sharesOf(own, rooms, counts);
}

/** Rooms of several times what the model takes, in the proportion of theirs. */
const PLENTY = 4;

function relativeCounts(demand: Demand, rooms: readonly Room[]): number[] {
  const { layers } = demand.config;
  const [whole] = sharesOf(demand, [rooms[0]!], [layers]) as [Share];
  const total = rooms.reduce((sum, { bytes }) => sum + bytes, 0);
  const wide = rooms.map((room) => {
    const part = total > 0 ? room.bytes / total : 1 / rooms.length;
    return { ...room, bytes: PLENTY * rooms.length * part * shareBytes(whole), spare: false, maps: false };
  });
  const even = rooms.map(
    (_, i) => Math.floor(((i + 1) * layers) / rooms.length) - Math.floor((i * layers) / rooms.length),
  );
  return spread(demand, wide, 0) ?? even;
}
