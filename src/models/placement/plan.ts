/**
 * What a model would take on devices that need not be there, and how fast it would be: placed by the code that loads, from
 * the config or the header of a file alone.
 */
import { type DType, sizeOf } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import type { QuantType } from "../../core/quant-types.ts";
import { bytesPerPosition } from "../cache.ts";
import type { ModelConfig } from "../config.ts";
import { Share as RankShare, requireShardable } from "../sharding/cuts.ts";
import { configSizes, type WeightSizes } from "../weights/weight-sizes.ts";
import {
  allReduceTime,
  loadOf,
  type Network,
  networkAllReduceTime,
  type Reach,
  type StepShape,
  transferTime,
  usualReach,
  workTime,
} from "./estimate.ts";
import { type ModelSizes, measureModel, type Tally, weightBytes } from "./model-sizes.ts";
import { type Demand, fits, place, type Room, type Share, shareBytes, sharesOf } from "./place.ts";
import type { PlanDevice } from "./plan-devices.ts";

export interface PlanOptions {
  readonly config: ModelConfig;
  /** Where a file tells the sizes; else they follow from the config. */
  readonly sizesIn?: ((dtype: DType) => WeightSizes) | undefined;
  readonly devices: readonly PlanDevice[];
  /** Default: what the weights were saved in, or bf16; f32 on the CPU alone. */
  readonly dtype?: DType | undefined;
  /** What matrices would be quantized to. Default: as the file has them, or not at all. */
  readonly quantize?: QuantType | undefined;
  /** Processes that share every layer, each with a device. Default 1: the devices share the layers. */
  readonly tensorParallel?: number | undefined;
  /** Positions of each sequence. Default 4096, or what the model can hold. */
  readonly context?: number | undefined;
  /** Default 1. */
  readonly sequences?: number | undefined;
  /** Tokens of the prompt whose first answer is waited for. Default: half of the context. */
  readonly prompt?: number | undefined;
  /** How ranks are joined. Default: by the slowest of their devices' links. */
  readonly network?: Network | undefined;
  readonly reach?: Reach | undefined;
}

export interface PlannedDevice {
  readonly name: string;
  readonly memory: number;
  /** The first of its layers and how many; with tensor parallelism, a part of each. */
  readonly first: number;
  readonly layers: number;
  readonly embedding: boolean;
  readonly head: boolean;
  readonly weights: number;
  /** Keys and values of all sequences at the context, with the tables that turn them. */
  readonly cache: number;
  readonly work: number;
  readonly total: number;
}

/** Seconds; all of them estimates. */
export interface PlannedTimes {
  readonly tokensPerSecond: number;
  /** Of one sequence. */
  readonly tokensPerSecondEach: number;
  readonly step: number;
  readonly stepLinks: number;
  readonly firstToken: number;
  readonly promptTokens: number;
}

export interface Plan {
  readonly fits: boolean;
  readonly dtype: DType;
  readonly quantize: QuantType | null;
  readonly context: number;
  readonly sequences: number;
  readonly tensorParallel: number;
  readonly weights: number;
  /** Of one sequence, and of one position of it. */
  readonly cachePerSequence: number;
  readonly cachePerToken: number;
  readonly devices: readonly PlannedDevice[];
  /** How many of the first kind of device would hold it, where these do not; null where no number would. */
  readonly wouldTake: number | null;
  readonly estimate: PlannedTimes | null;
}

const CONTEXT = 4096;
const MOST_TRIED = 4096;

export async function planModel(options: PlanOptions): Promise<Plan> {
  const { config, quantize = null, sequences = 1, tensorParallel: ranks = 1, devices } = options;
  const dtype = options.dtype ?? (devices.every(({ isCpu }) => isCpu) ? "f32" : halfOr(config.dtype));
  const context = checkedContext(options.context ?? Math.min(CONTEXT, config.contextLength), config);
  const fromFile = quantize === null ? options.sizesIn?.(dtype) : undefined;
  const sizes = await measureModel(config, fromFile ?? configSizes(dtype, quantize));
  const elements = await elementsOf(config);
  const split = ranks > 1 ? await splitOver(config, sizes, elements, ranks) : { config, sizes, elements };
  const demand: Demand = { config: split.config, sizes: split.sizes, dtype, positions: context, sequences };
  if (ranks > devices.length) {
    fail("InvalidArgument", `plan: ${ranks} ranks need a device each, and ${devices.length} are there`);
  }
  const used = ranks > 1 ? devices.slice(0, ranks) : devices;
  const rooms = used.map(roomOf);
  const shares = ranks > 1 ? onEvery(demand, rooms) : place(demand, rooms);
  const shape: StepShape = { ...split, dtype, rows: sequences, sequences, context };
  const promptTokens = options.prompt ?? Math.max(1, Math.floor(context / 2));
  const whole = sharesOf({ ...demand, config, sizes }, [roomOf(used[0]!)], [config.layers])[0]!;
  const cachePerSequence = whole.cache / sequences;
  return {
    fits: shares !== null,
    dtype,
    quantize,
    context,
    sequences,
    tensorParallel: ranks,
    weights: weightBytes(sizes),
    cachePerSequence,
    cachePerToken: config.layers * bytesPerPosition(config, dtype),
    devices: (shares ?? []).map((share) => planned(share, used)),
    wouldTake: shares ? null : await enough(options, dtype, sizes, elements, context),
    estimate: shares && times(shape, shares, used, ranks, promptTokens, options),
  };
}

const halfOr = (dtype: DType | null): DType => (dtype && dtype !== "f32" ? dtype : "bf16");

function checkedContext(context: number, { contextLength }: ModelConfig): number {
  if (Number.isInteger(context) && context > 0 && context <= contextLength) return context;
  return fail("InvalidArgument", `plan: context must be a whole number from 1 to the model's ${contextLength}`);
}

const roomOf = ({ name, memory: bytes, isCpu }: PlanDevice): Room => ({
  name,
  bytes,
  spare: isCpu,
  maps: false,
  keepsAll: !isCpu,
});

const planned = (share: Share, devices: readonly PlanDevice[]): PlannedDevice => {
  const { room, first, layers, hasInput, hasOutput, weights, cache, work } = share;
  const { name, memory } = devices[room]!;
  const total = shareBytes(share);
  return { name, memory, first, layers, embedding: hasInput, head: hasOutput, weights, cache, work, total };
};

/** How many numbers the weights are. */
async function elementsOf(config: ModelConfig): Promise<ModelSizes> {
  const bytes = await measureModel(config, configSizes("f16", null));
  return scaled(bytes, () => 0.5);
}

const scaleTally = ({ matrices, experts, rest }: Tally, by: (kind: keyof Tally) => number): Tally => ({
  matrices: matrices * by("matrices"),
  experts: experts * by("experts"),
  rest: rest * by("rest"),
});

const scaled = (
  sizes: ModelSizes,
  by: (kind: keyof Tally, layer: number | "input" | "output") => number,
): ModelSizes => ({
  ...sizes,
  input: scaleTally(sizes.input, (kind) => by(kind, "input")),
  layers: sizes.layers.map((layer, i) => scaleTally(layer, (kind) => by(kind, i))),
  output: scaleTally(sizes.output, (kind) => by(kind, "output")),
});

/** What the first rank has: by the cuts that ranks load by. */
async function splitOver(config: ModelConfig, sizes: ModelSizes, elements: ModelSizes, ranks: number) {
  requireShardable(config, ranks);
  const share = new RankShare(config, { rank: 0, ranks, block: 1 });
  const own = await elementsOf(share.config);
  const vocabulary = share.vocabulary().count / config.vocabSize;
  const part = (of: Tally, whole: Tally, kind: keyof Tally): number => (whole[kind] > 0 ? of[kind] / whole[kind] : 0);
  const by = (kind: keyof Tally, layer: number | "input" | "output"): number => {
    if (layer === "input" || layer === "output") return kind === "matrices" ? vocabulary : 1;
    return part(own.layers[layer]!, elements.layers[layer]!, kind);
  };
  return { config: share.config, sizes: scaled(sizes, by), elements: scaled(elements, by) };
}

/** Every rank has all layers, a part of each. */
function onEvery(demand: Demand, rooms: readonly Room[]): Share[] | null {
  const shares = rooms.map((room, i) => ({
    ...sharesOf(demand, [room], [demand.config.layers])[0]!,
    room: i,
  }));
  return fits(shares, rooms, demand) ? shares : null;
}

/** The smallest number of devices like the first that holds the model; layers cannot be cut without ranks. */
async function enough(
  { config, devices, sequences = 1, tensorParallel: ranks = 1 }: PlanOptions,
  dtype: DType,
  sizes: ModelSizes,
  elements: ModelSizes,
  context: number,
): Promise<number | null> {
  const gpu = devices.find(({ isCpu }) => !isCpu) ?? devices[0]!;
  for (let count = 1; count <= (ranks > 1 ? config.heads : Math.min(config.layers, MOST_TRIED)); count++) {
    if (ranks > 1 && config.heads % count !== 0) continue;
    const rooms = Array.from({ length: count }, () => roomOf(gpu));
    const split = ranks > 1 && count > 1 ? await splitOver(config, sizes, elements, count) : { config, sizes };
    const demand = { ...split, dtype, positions: context, sequences };
    if (ranks > 1 ? onEvery(demand, rooms) : place(demand, rooms)) return count;
  }
  return null;
}

/** Rows of a prompt that are computed at once. */
const CHUNK = 2048;

function times(
  shape: StepShape,
  shares: readonly Share[],
  devices: readonly PlanDevice[],
  ranks: number,
  promptTokens: number,
  options: Pick<PlanOptions, "reach" | "network">,
): PlannedTimes {
  const { sequences } = shape;
  const decode = stepTime(shape, shares, devices, ranks, options);
  const chunks = Math.ceil(promptTokens / CHUNK);
  const rows = Math.ceil(promptTokens / chunks);
  const chunk: StepShape = { ...shape, rows, sequences: 1, context: promptTokens };
  const prompt = stepTime(chunk, shares, devices, ranks, options);
  // Chunks follow each other through the devices: one is as long as all, the others as the slowest of them.
  const firstToken = prompt.total + (chunks - 1) * prompt.slowest;
  return {
    tokensPerSecond: sequences / decode.total,
    tokensPerSecondEach: 1 / decode.total,
    step: decode.total,
    stepLinks: decode.links,
    firstToken,
    promptTokens,
  };
}

/** A step over devices that have layers one after the other, or over ranks that have a part of each. */
export function stepTime(
  shape: StepShape,
  shares: readonly Pick<Share, "room" | "first" | "layers" | "hasOutput">[],
  devices: readonly PlanDevice[],
  ranks: number,
  { reach = usualReach, network }: Pick<PlanOptions, "reach" | "network"> = {},
): { readonly total: number; readonly links: number; readonly slowest: number } {
  const { config, dtype, rows, sequences } = shape;
  const bytes = rows * config.hiddenSize * sizeOf(dtype);
  const work = shares.map(({ room, first, layers, hasOutput }) =>
    workTime(devices[room]!, loadOf(shape, first, layers, hasOutput), reach),
  );
  if (ranks > 1) {
    const link = slowestLink(devices.slice(0, ranks));
    const logits = transferTime((sequences * config.vocabSize * 4) / ranks, link);
    const reduce = network ? networkAllReduceTime(bytes, ranks, network) : allReduceTime(bytes, ranks, link);
    // After attention and after the MLP of each layer, and once for the embedding.
    const links = (2 * config.layers + 1) * reduce + logits;
    const total = Math.max(...work) + links;
    return { total, links, slowest: total };
  }
  const hops = shares
    .slice(1)
    .map(({ room }, i) => transferTime(bytes, slowestLink([devices[room]!, devices[shares[i]!.room]!])));
  const links = hops.reduce((a, b) => a + b, 0);
  return { total: work.reduce((a, b) => a + b, 0) + links, links, slowest: Math.max(...work) };
}

const slowestLink = (devices: readonly PlanDevice[]) =>
  devices.map(({ link }) => link).reduce((a, b) => (a.bytesPerSecond <= b.bytesPerSecond ? a : b));
