/**
 * What a model would take on devices that need not be there, and how fast it would be: placed by the code that loads, from
 * the config or the header of a file alone.
 */
import type { DType } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import type { QuantType } from "../../core/quant-types.ts";
import { bytesPerPosition } from "../cache.ts";
import type { ModelConfig } from "../config.ts";
import { Share as RankShare, requireShardable } from "../sharding/cuts.ts";
import { configSizes, type WeightSizes } from "../weights/weight-sizes.ts";
import type { Network, Reach, StepShape } from "./estimate.ts";
import { type ModelSizes, measureModel, type Tally, weightBytes } from "./model-sizes.ts";
import { type Demand, fits, place, type Room, type Share, shareBytes, sharesOf } from "./place.ts";
import type { PlanDevice } from "./plan-devices.ts";
import { requireStages, stageShares, untied } from "./stages.ts";
import { type PlannedTimes, plannedTimes, type Stage } from "./step-time.ts";

export type { PlannedTimes } from "./step-time.ts";

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
  /** Stages of processes that have the layers one after the other, each of as many as share a layer. Default 1. */
  readonly pipelineParallel?: number | undefined;
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

export interface Plan {
  readonly fits: boolean;
  readonly dtype: DType;
  readonly quantize: QuantType | null;
  readonly context: number;
  readonly sequences: number;
  readonly tensorParallel: number;
  readonly pipelineParallel: number;
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
  const { config, quantize = null, sequences = 1, devices } = options;
  const { tensorParallel: ranks = 1, pipelineParallel: stages = 1 } = options;
  const dtype = options.dtype ?? (devices.every(({ isCpu }) => isCpu) ? "f32" : halfOr(config.dtype));
  const context = checkedContext(options.context ?? Math.min(CONTEXT, config.contextLength), config);
  const fromFile = quantize === null ? options.sizesIn?.(dtype) : undefined;
  const sizes = await measureModel(config, fromFile ?? configSizes(dtype, quantize));
  const elements = await elementsOf(config);
  const split = ranks > 1 ? await splitOver(config, sizes, elements, ranks) : { config, sizes, elements };
  const demand: Demand = { config: split.config, sizes: split.sizes, dtype, positions: context, sequences };
  requireStages(config, stages);
  if (ranks * stages > devices.length) {
    const each = stages > 1 ? `${stages} stages of ${ranks} rank${ranks === 1 ? "" : "s"}` : `${ranks} ranks`;
    fail("InvalidArgument", `plan: ${each} need a device each, and ${devices.length} are there`);
  }
  const used = ranks * stages > 1 ? devices.slice(0, ranks * stages) : devices;
  const placed = stages > 1 ? inStages(demand, used, stages) : ranks > 1 ? onEvery(demand, used) : onSome(demand, used);
  const shape: StepShape = { ...split, dtype, rows: sequences, sequences, context };
  const promptTokens = options.prompt ?? Math.max(1, Math.floor(context / 2));
  const whole = sharesOf({ ...demand, config, sizes }, [roomOf(used[0]!)], [config.layers])[0]!;
  const cachePerSequence = whole.cache / sequences;
  return {
    fits: placed !== null,
    dtype,
    quantize,
    context,
    sequences,
    tensorParallel: ranks,
    pipelineParallel: stages,
    weights: weightBytes(sizes),
    cachePerSequence,
    cachePerToken: config.layers * bytesPerPosition(config, dtype),
    devices: (placed ?? []).flatMap(({ devices, ...share }) => devices.map((device) => planned(share, device))),
    wouldTake: placed ? null : await enough(options, dtype, sizes, elements, context),
    estimate: placed && plannedTimes(shape, placed, promptTokens, { ...options, shares: stages > 1 }),
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

const planned = (share: Share, { name, memory }: PlanDevice): PlannedDevice => {
  const { first, layers, hasInput, hasOutput, weights, cache, work } = share;
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

/** What lies on devices that have the same. */
type Placed = Share & Stage;

/** Each device has some layers. */
function onSome(demand: Demand, devices: readonly PlanDevice[]): Placed[] | null {
  const shares = place(demand, devices.map(roomOf));
  return shares?.map((share) => ({ ...share, devices: [devices[share.room]!] })) ?? null;
}

/** Every rank has all layers, a part of each. */
function onEvery(demand: Demand, devices: readonly PlanDevice[]): Placed[] | null {
  const room = leastRoom(devices);
  const shares = sharesOf(demand, [room], [demand.config.layers]);
  return fits(shares, [room], demand) ? shares.map((share) => ({ ...share, devices })) : null;
}

/** Neighbouring ranks have some layers, or a part of each of these. */
function inStages(demand: Demand, devices: readonly PlanDevice[], stages: number): Placed[] | null {
  const each = devices.length / stages;
  const groups = Array.from({ length: stages }, (_, i) => devices.slice(i * each, (i + 1) * each));
  // Stages keep all of a text, so that they can go back alike.
  const rooms = groups.map((group): Room => ({ ...leastRoom(group), keepsAll: true }));
  const shares = stageShares(demand, rooms);
  if (!fits(shares, rooms, untied(demand))) return null;
  return shares.map((share) => ({ ...share, devices: groups[share.room]! }));
}

const leastRoom = (devices: readonly PlanDevice[]): Room =>
  devices.map(roomOf).reduce((a, b) => (a.bytes <= b.bytes ? a : b));

/** The smallest number of devices like the first that holds the model; layers cannot be cut without ranks. */
async function enough(
  { config, devices, sequences = 1, tensorParallel: ranks = 1, pipelineParallel: stages = 1 }: PlanOptions,
  dtype: DType,
  sizes: ModelSizes,
  elements: ModelSizes,
  context: number,
): Promise<number | null> {
  const gpu = devices.find(({ isCpu }) => !isCpu) ?? devices[0]!;
  const demandOf = async (parts: number): Promise<Demand> => {
    const split = parts > 1 ? await splitOver(config, sizes, elements, parts) : { config, sizes };
    return { ...split, dtype, positions: context, sequences };
  };
  const byRanks = ranks > 1 && stages === 1;
  const fixed = byRanks ? null : await demandOf(ranks);
  for (let count = 1; count <= (byRanks ? config.heads : Math.min(config.layers, MOST_TRIED)); count++) {
    if (byRanks && config.heads % count !== 0) continue;
    const demand = fixed ?? (await demandOf(count));
    const these = new Array<PlanDevice>(stages > 1 ? count * ranks : count).fill(gpu);
    const placed =
      stages > 1 ? inStages(demand, these, count) : byRanks ? onEvery(demand, these) : onSome(demand, these);
    if (placed) return these.length;
  }
  return null;
}
