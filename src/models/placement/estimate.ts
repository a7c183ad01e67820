/**
 * How long steps take, from bytes, operations and links: what every step must read at the memory's rate, what it must
 * multiply at the processor's, what each layer costs besides, and what passes between devices. Estimates: the shares of
 * the makers' figures that are reached, and the times of layers, were measured on one H200 (docs/benchmarks.md).
 */

import type { DType } from "../../core/dtype.ts";
import { bytesPerPosition } from "../cache.ts";
import type { ModelConfig } from "../config.ts";
import type { Link } from "./cards.ts";
import { type ModelSizes, type Tally, tallyBytes } from "./model-sizes.ts";

/** What is reached of a card's figures. */
export interface Reach {
  /** Of the memory's bandwidth, where weights are plain and where they are in blocks, and of products of halves. */
  readonly memory: number;
  readonly blocks: number;
  readonly products: number;
  /** Seconds that a layer takes beyond reading its weights, and more where it has experts. */
  readonly layer: number;
  readonly experts: number;
}

export const usualReach: Reach = { memory: 0.85, blocks: 0.6, products: 0.5, layer: 15e-6, experts: 20e-6 };

/** One of the devices that compute a part of a step, one after the other or each its share. */
export interface Worker {
  readonly bytesPerSecond: number;
  readonly flops: number;
}

/** What a device has to do for one step of `rows` rows. */
export interface Load {
  /** Read of memory: weights, and keys and values. */
  readonly bytes: number;
  /** Whether most of them are quantized. */
  readonly inBlocks: boolean;
  readonly operations: number;
  readonly layers: number;
  readonly mixtures: number;
}

/** Seconds of a device's part of a step. */
export const workTime = ({ bytesPerSecond, flops }: Worker, load: Load, reach: Reach = usualReach): number =>
  Math.max(
    load.bytes / (bytesPerSecond * (load.inBlocks ? reach.blocks : reach.memory)),
    load.operations / (flops * reach.products),
  ) +
  load.layers * reach.layer +
  load.mixtures * reach.experts;

/** Seconds until bytes that one device sends have arrived. */
export const transferTime = (bytes: number, link: Link): number => link.seconds + bytes / link.bytesPerSecond;

/**
 * Seconds of an all-reduce: the faster of a ring, 2(n − 1) steps of an n-th of the bytes, and of recursive doubling,
 * log₂ n steps of all of them (Thakur, Rabenseifner and Gropp, 2005).
 */
export function allReduceTime(bytes: number, ranks: number, link: Link): number {
  if (ranks === 1) return 0;
  const ring = 2 * (ranks - 1) * transferTime(bytes / ranks, link);
  const doubling = Math.ceil(Math.log2(ranks)) * transferTime(bytes, link);
  return Math.min(ring, doubling);
}

/** Ranks in machines of several: within each machine by its own link, then each rank with its fellows of the others. */
export interface Network {
  readonly inner: Link;
  readonly outer: Link;
  /** Ranks of a machine. */
  readonly perMachine: number;
}

export function networkAllReduceTime(bytes: number, ranks: number, { inner, outer, perMachine }: Network): number {
  const near = Math.min(ranks, perMachine);
  const far = Math.ceil(ranks / perMachine);
  return allReduceTime(bytes, near, inner) + allReduceTime(bytes / near, far, outer);
}

/** Of experts, how many of `count` are read when `rows` rows choose some each. */
export const expertsRead = (count: number, perToken: number, rows: number): number =>
  count * (1 - (1 - perToken / count) ** rows);

export interface StepShape {
  readonly config: ModelConfig;
  readonly dtype: DType;
  /** Bytes of the weights, and how many elements they are. */
  readonly sizes: ModelSizes;
  readonly elements: ModelSizes;
  /** New rows of the step, and of how many sequences. */
  readonly rows: number;
  readonly sequences: number;
  /** Positions that each sequence has. */
  readonly context: number;
}

/** Of some layers of a model, with the head where that is there. */
export function loadOf(shape: StepShape, first: number, layers: number, hasOutput: boolean): Load {
  const { config, dtype, sizes, elements, rows, sequences, context } = shape;
  const { experts, tiedEmbeddings } = config;
  const read = experts ? expertsRead(experts.count, experts.perToken, rows) / experts.count : 0;
  const used = experts ? experts.perToken / experts.count : 0;
  const weighed = ({ matrices, rest, experts: own }: Tally, share: number): number => matrices + rest + own * share;
  const own = (of: ModelSizes, share: number): number =>
    of.layers.slice(first, first + layers).reduce((sum, layer) => sum + weighed(layer, share), 0);
  const output = (of: ModelSizes): number =>
    hasOutput ? tallyBytes(of.output) + (tiedEmbeddings ? of.input.matrices : 0) : 0;
  const kept = config.windows
    .slice(first, first + layers)
    .reduce((sum, window) => sum + (window > 0 ? Math.min(window, context) : context), 0);
  const { heads, headDim, latent, rope } = config;
  const width = latent ? latent.rank + rope.dims : headDim;
  // Scores and sums: two products of two operations per key, of which a prompt's rows see half of their own.
  const seen = rows > sequences ? kept - ((rows / sequences - 1) / 2) * layers : kept;
  return {
    bytes: own(sizes, read) + output(sizes) + sequences * kept * bytesPerPosition(config, dtype),
    inBlocks: own(sizes, 1) < 1.5 * own(elements, 1),
    operations:
      2 * rows * own(elements, used) + 2 * sequences * output(elements) + 4 * rows * Math.max(0, seen) * heads * width,
    layers,
    mixtures: experts ? experts.layers.slice(first, first + layers).filter(Boolean).length : 0,
  };
}
