/**
 * Which layers go to which device, by the memory that each has: pure, so that what loads a model and what only plans one
 * place it alike. Layers go to the devices in the order these are named in; GPUs share them by their free memory, and the
 * CPU takes what GPUs have no room for.
 */
import type { DType } from "../../core/dtype.ts";
import { capacityFor } from "../../nn/kv-cache.ts";
import { layerCacheBytes } from "../cache.ts";
import type { ModelConfig } from "../config.ts";
import { tableBytes } from "../rotary.ts";
import { type ModelSizes, tallyBytes } from "./model-sizes.ts";

/** A device, as far as placing depends on it. */
export interface Room {
  readonly name: string;
  /** What the model may take there. */
  readonly bytes: number;
  /** It takes only what others have no room for: the CPU. */
  readonly spare: boolean;
  /** It shows weights from their file where they are as it needs them. */
  readonly maps: boolean;
  /** Its caches keep all of a text in layers with a window, too. */
  readonly keepsAll: boolean;
}

export interface Demand {
  readonly config: ModelConfig;
  readonly sizes: ModelSizes;
  readonly dtype: DType;
  /** What keys and values are kept as. Default: what is computed in. */
  readonly stored?: DType;
  /** Positions of each sequence. */
  readonly positions: number;
  readonly sequences: number;
}

/** What lies on a device. */
export interface Share {
  /** Of the rooms. */
  readonly room: number;
  readonly first: number;
  readonly layers: number;
  readonly hasInput: boolean;
  readonly hasOutput: boolean;
  readonly weights: number;
  /** Keys and values at the context, with the tables that turn them. */
  readonly cache: number;
  /** Pieces of weights on their way, and what a step computes; an estimate. */
  readonly work: number;
}

type Bytes = Pick<Share, "weights" | "cache" | "work">;

/** What a share takes of a device's memory: what stays in its file takes none. */
export const neededBytes = (
  share: Bytes,
  { maps }: Pick<Room, "maps">,
  { stored }: Pick<ModelSizes, "stored">,
): number => shareBytes(share) - (maps ? stored * share.weights : 0);

export const shareBytes = ({ weights, cache, work }: Bytes): number => weights + cache + work;

/** Small models need no more to work with than their own size. */
const WORK = 64 * 2 ** 20;

/** What each room gets; null where they have no room. */
export function place(demand: Demand, rooms: readonly Room[]): Share[] | null {
  const { layers } = demand.config;
  const costs = costsOf(demand);
  const hasSpare = rooms.some((room) => room.spare);
  for (let spared = 0; spared <= (hasSpare ? layers : 0); spared++) {
    const counts = spread(demand, rooms, spared, costs);
    const shares = counts && sharesOf(demand, rooms, counts, costs);
    if (shares && fits(shares, rooms, demand)) return shares;
  }
  return null;
}

export const fits = (shares: readonly Share[], rooms: readonly Room[], { sizes }: Demand): boolean =>
  shares.every((share) => neededBytes(share, rooms[share.room]!, sizes) <= rooms[share.room]!.bytes);

/** All layers but the `spared` ones of the spare room, over the others: each filled to the same part of its memory. */
export function spread(
  demand: Demand,
  rooms: readonly Room[],
  spared: number,
  costs = costsOf(demand),
): number[] | null {
  const filled = (level: number): number[] | null => {
    let [next, left] = [0, demand.config.layers - spared];
    const counts = rooms.map((room) => {
      const { spare } = room;
      let count = spare ? spared : 0;
      const mayHave = (more: number): boolean =>
        more <= left && neededBytes(costs(room, next, more), room, demand.sizes) <= level * room.bytes;
      while (!spare && mayHave(count + 1)) count++;
      next += count;
      if (!spare) left -= count;
      return count;
    });
    return left === 0 ? counts : null;
  };
  let best = filled(1);
  let [low, high] = [0, 1];
  for (let i = 0; best && i < 20; i++) {
    const level = (low + high) / 2;
    const counts = filled(level);
    if (counts) [best, high] = [counts, level];
    else low = level;
  }
  return best;
}

/** What lies where, if each room has so many layers, one after the other. */
export function sharesOf(
  demand: Demand,
  rooms: readonly Room[],
  counts: readonly number[],
  costs = costsOf(demand),
): Share[] {
  let next = 0;
  const shares = counts.map((layers, room) => {
    const first = next;
    next += layers;
    return { room, first, layers, ...costs(rooms[room]!, first, layers) };
  });
  return shares.filter(({ layers }) => layers > 0);
}

/** Bytes of `layers` layers from `first` on, with what a model has once before or behind them. */
type Costs = (
  room: Room,
  first: number,
  layers: number,
) => Pick<Share, "hasInput" | "hasOutput" | "weights" | "cache" | "work">;

function costsOf({ config, sizes, dtype, stored = dtype, positions, sequences }: Demand): Costs {
  const { encoder, tiedEmbeddings, ropes } = config;
  const weightsUpTo = running(sizes.layers.map(tallyBytes));
  const cacheOf = (keepsAll: boolean) =>
    running(ropes.map((_, i) => (encoder ? 0 : sequences * layerCacheBytes(config, i, stored, positions, keepsAll))));
  const [cachesWhole, cachesWindowed] = [cacheOf(true), cacheOf(false)];
  const turning = [...new Set(ropes)].map((rope) => ({
    upTo: running(ropes.map((own) => (own === rope ? 1 : 0))),
    bytes: tableBytes(rope, capacityFor(positions), dtype),
  }));
  return ({ keepsAll }, first, layers) => {
    const end = first + layers;
    const hasOutput = end === ropes.length;
    // A table that is the head, too, lies where that is.
    const hasInput = tiedEmbeddings && !encoder ? hasOutput : first === 0;
    const ends = (hasInput ? tallyBytes(sizes.input) : 0) + (hasOutput ? tallyBytes(sizes.output) : 0);
    const weights = weightsUpTo[end]! - weightsUpTo[first]! + ends;
    const caches = keepsAll ? cachesWhole : cachesWindowed;
    const tables = turning.reduce((sum, { upTo, bytes }) => sum + (upTo[end]! > upTo[first]! ? bytes : 0), 0);
    const cache = caches[end]! - caches[first]! + tables;
    return { hasInput, hasOutput, weights, cache, work: Math.min(WORK, weights) };
  };
}

/** The sums of the first 0, 1, 2, … numbers. */
function running(numbers: readonly number[]): number[] {
  const sums = [0];
  for (const number of numbers) sums.push(sums.at(-1)! + number);
  return sums;
}
