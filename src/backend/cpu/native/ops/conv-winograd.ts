/** Convolutions of 3 × 3 taps by Winograd's products: when, and in what pieces. */

import { Layout } from "../../../../core/layout.ts";
import type { View } from "../../../backend.ts";
import type { ConvParams } from "../../../fused-ops.ts";
import type { CpuBackend } from "../../backend.ts";
import type { Engine } from "../../engine.ts";
import { kernels } from "../catalogue.ts";
import { tileShape } from "../kernels/tile.ts";
import { PRODUCTS, winogradArguments } from "../kernels/winograd.ts";
import { winogradWeightArguments } from "../kernels/winograd-weights.ts";
import type { Native } from "../native.ts";
import { hole, type Job, SCRATCH_BYTES } from "../pool.ts";
import { type ConvCall, convByPlan, type Plan } from "./conv-plans.ts";

/** Fewer channels do not pay for the sums, and fewer tiles not for those of the weights. */
const LEAST_CHANNELS = 16;
const LEAST_TILES = 16;

/** Lines of the cache so that rows do not share its places. */
const oddLines = (floats: number): number => 64 * (Math.ceil(floats / 16) | 1);

/** Bytes of one of the sixteen products' matrices: a place of each is in another set of the first cache. */
const planeBytes = (bytes: number): number => 4096 * Math.ceil(bytes / 4096) + 5 * 64;

const isOnes = ([a, b]: readonly [number, number]): boolean => a === 1 && b === 1;

/** It must not depend on how many images there are: each has the same bits alone. */
function isWorthwhile([outs, channels, tall, wide]: readonly number[], p: ConvParams): boolean {
  const tiles = Math.ceil(p.size[0] / 2) * Math.ceil(p.size[1] / 2);
  return (
    tall === 3 &&
    wide === 3 &&
    p.groups === 1 &&
    isOnes(p.stride) &&
    isOnes(p.dilation) &&
    Math.min(outs!, channels!) >= LEAST_CHANNELS &&
    tiles >= LEAST_TILES
  );
}

/** Which images have results that are not finite, and are not computed yet; undefined where nothing ran. */
export function convByWinograd(backend: CpuBackend, native: Native, call: ConvCall): readonly number[] | undefined {
  const { x, w, p } = call;
  if (!isWorthwhile(w.layout.shape, p)) return undefined;
  const plan = convByPlan(backend, native, call, "winograd", makePlan);
  if (!plan) return undefined;
  const marks = new Int32Array(backend.engine.memory.buffer, plan.memory, x.layout.shape[0]);
  const found: number[] = [];
  for (let i = 0; i < marks.length; i++) if (marks[i] !== 0) found.push(i);
  marks.fill(0);
  return found;
}

/** One image of a batch. */
export function imageOf({ storage, layout }: View, i: number): View {
  const [batch] = layout.strides;
  return { storage, layout: new Layout([1, ...layout.shape.slice(1)], layout.strides, layout.offset + i * batch!) };
}

/** How an image's tiles and output channels are cut. */
interface Pieces {
  /** Rows of tiles of an item. */
  readonly rows: number;
  readonly outs: number;
  /** Bytes from one channel's tiles to the next one's. */
  readonly tilesRow: number;
}

function makePlan(engine: Engine, native: Native, x: Layout, w: readonly number[], p: ConvParams): Plan | null {
  const { isa } = native;
  const { lanes } = isa;
  const [batch, channels, height, width] = x.shape as [number, number, number, number];
  const outs = w[0]!;
  const [outHeight, outWidth] = p.size;
  const [top, left] = p.padding;
  const [tileRows, columns] = [Math.ceil(outHeight / 2), Math.ceil(outWidth / 2)];
  const chunks = Math.ceil(columns / lanes);
  const half = 4 * lanes * (chunks + 2);
  const paddedBytes = (rows: number) => 2 * half * (2 * rows + 2);
  const pieces = cut(native, engine.threads, batch * tileRows, tileRows, columns, channels, outs, paddedBytes);
  if (!pieces) return null;
  const { rows, tilesRow } = pieces;
  const weightsRow = oddLines(channels);
  const weightsPlane = planeBytes(outs * weightsRow);
  const [blocks, parts] = [Math.ceil(tileRows / rows), Math.ceil(outs / pieces.outs)];
  const inputs = paddedBytes(rows);
  const inputsPlane = planeBytes(channels * tilesRow);
  const [imageBatch, imageChannel, imageRow] = x.strides.map((stride) => 4 * stride) as [number, number, number];
  const marks = engine.alloc(4 * batch);
  new Int32Array(engine.memory.buffer, marks, batch).fill(0);
  const vectors = Math.ceil(width / lanes);
  const outVectors = Math.ceil(outWidth / lanes);
  const isOdd = left % 2 === 1;
  const pack: Job = {
    kernel: native.kernel(kernels.winogradWeights),
    args: winogradWeightArguments.words({
      w: hole(0),
      channels,
      weights: hole(1),
      plane: weightsPlane,
      row: weightsRow,
    }),
    total: outs,
    grain: Math.max(1, Math.floor(4096 / channels)),
  };
  const product: Job = {
    kernel: native.kernel(kernels.winograd),
    args: winogradArguments.words({
      tiles: native.kernel(kernels.tiles()),
      image: hole(0),
      imageBatch,
      imageChannel,
      imageRow,
      channels,
      height,
      top,
      pairs: Math.floor((vectors - 1) / 2),
      isPair: Number(vectors % 2 === 0),
      rest: width - (vectors - 1) * lanes,
      paddedRow: 2 * half,
      half,
      evenTo: isOdd ? half + 2 * (left - 1) : 2 * left,
      oddTo: isOdd ? 2 * (left + 1) : half + 2 * left,
      paddedBytes: inputs,
      weights: hole(1),
      weightsPlane,
      weightsRow,
      out: hole(2),
      outs,
      outHeight,
      outRow: 4 * outWidth,
      outPlane: 4 * outWidth * outHeight,
      isLong: Number(outVectors % 2 === 0),
      outRest: outWidth - (outVectors - 1) * lanes,
      tileRows,
      rows,
      columns,
      chunks,
      blocks,
      parts,
      outsOfPart: pieces.outs,
      tilesRow,
      inputs,
      inputsPlane,
      products: inputs + PRODUCTS * inputsPlane,
      productsPlane: planeBytes(pieces.outs * tilesRow),
      marks: engine.base + marks,
    }),
    total: batch * blocks * parts,
    grain: 1,
  };
  return {
    weightBytes: PRODUCTS * weightsPlane,
    memory: marks,
    pack: native.list(engine.threads, [pack]),
    product: native.list(engine.threads, [product]),
  };
}

/**
 * Items have whole rows of tiles: the more of them, the fuller are vectors and the more often weights that are read are used;
 * the fewer, the sooner the last thread is done. Items of other output channels make the same sums of inputs again.
 */
function cut(
  native: Native,
  threads: number,
  allRows: number,
  tileRows: number,
  columns: number,
  channels: number,
  outs: number,
  paddedBytes: (rows: number) => number,
): Pieces | undefined {
  const { lanes } = native.isa;
  const chunks = Math.ceil(columns / lanes);
  const height = tileShape(native.isa).rows;
  let best: Pieces | undefined;
  let least = Number.POSITIVE_INFINITY;
  for (let rows = 1; rows <= tileRows; rows++) {
    const tilesRow = oddLines((rows - 1) * columns + lanes * chunks);
    const blocks = Math.ceil(allRows / rows);
    for (let part = Math.ceil(outs / height) * height; part >= height; part = height * Math.floor(part / 2 / height)) {
      const sums = PRODUCTS * (planeBytes(channels * tilesRow) + planeBytes(part * tilesRow));
      if (paddedBytes(rows) + sums > SCRATCH_BYTES) continue;
      // In steps of the processor: one for each product of vectors, and some for a line of weights and for sums of a vector.
      const vectors = Math.ceil((rows * columns) / lanes);
      const products = channels * part * (PRODUCTS * vectors + 4);
      const transforms = rows * chunks * (90 * channels + 60 * part) + sums / 64;
      const rounds = Math.ceil((blocks * Math.ceil(outs / part)) / threads);
      // Threads that do not run alike wait for one item at the end.
      const total = (rounds + (threads > 1 ? 0.3 : 0)) * (products + transforms);
      if (total >= least) continue;
      least = total;
      best = { rows, outs: Math.min(part, outs), tilesRow };
    }
  }
  return best;
}
