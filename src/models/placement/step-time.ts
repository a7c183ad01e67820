/** How long steps take over devices that have layers one after the other, over ranks that have a part of each, or both. */
import { sizeOf } from "../../core/dtype.ts";
import type { Link } from "./cards.ts";
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
import type { Share } from "./place.ts";
import type { PlanDevice } from "./plan-devices.ts";

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

/** Devices that have the same layers. */
export interface Stage extends Pick<Share, "first" | "layers" | "hasOutput"> {
  readonly devices: readonly PlanDevice[];
}

export interface Joined {
  /** How ranks are joined. Default: by the slowest of their devices' links. */
  readonly network?: Network | undefined;
  readonly reach?: Reach | undefined;
  /** Whether the stages are processes, all of which have the logits. */
  readonly shares: boolean;
}

/** Rows of a prompt that are computed at once. */
const CHUNK = 2048;

export function plannedTimes(
  shape: StepShape,
  stages: readonly Stage[],
  promptTokens: number,
  joined: Joined,
): PlannedTimes {
  const { sequences } = shape;
  const decode = stepTime(shape, stages, joined);
  const chunks = Math.ceil(promptTokens / CHUNK);
  const rows = Math.ceil(promptTokens / chunks);
  const prompt = stepTime({ ...shape, rows, sequences: 1, context: promptTokens }, stages, joined);
  // Chunks follow each other through the stages: one is as long as all, the others as the slowest of them.
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

/** Seconds of a step, of what is between devices in it, and of the slowest stage. */
export function stepTime(
  shape: StepShape,
  stages: readonly Stage[],
  { reach = usualReach, network, shares }: Joined,
): { readonly total: number; readonly links: number; readonly slowest: number } {
  const { config, dtype, rows, sequences } = shape;
  const bytes = rows * config.hiddenSize * sizeOf(dtype);
  const logits = sequences * config.vocabSize * 4;
  const timed = stages.map(({ devices, first, layers, hasOutput }) => {
    const load = loadOf(shape, first, layers, hasOutput);
    const work = Math.max(...devices.map((device) => workTime(device, load, reach)));
    const { length: ranks } = devices;
    if (ranks === 1) return { work, links: 0 };
    const link = slowestLink(devices);
    const reduce = network ? networkAllReduceTime(bytes, ranks, network) : allReduceTime(bytes, ranks, link);
    // After attention and after the MLP of each layer, and once for the embedding.
    const sums = (2 * layers + (first === 0 ? 1 : 0)) * reduce;
    return { work, links: sums + (hasOutput ? transferTime(logits / ranks, link) : 0) };
  });
  const hops = stages.slice(1).map(({ devices }, i) => {
    const link = linkBetween(stages[i]!.devices, devices, i + 1, network);
    return transferTime(bytes, link) + (shares && i === stages.length - 2 ? transferTime(logits, link) : 0);
  });
  const links = sum(timed.map((stage) => stage.links)) + sum(hops);
  return {
    total: sum(timed.map((stage) => stage.work)) + links,
    links,
    slowest: Math.max(...timed.map((stage) => stage.work + stage.links)),
  };
}

/** Stages whose ranks fill whole machines are in different ones. */
function linkBetween(
  one: readonly PlanDevice[],
  other: readonly PlanDevice[],
  before: number,
  network: Network | undefined,
): Link {
  if (!network) return slowestLink([...one, ...other]);
  return (before * one.length) % network.perMachine === 0 ? network.outer : network.inner;
}

const sum = (numbers: readonly number[]): number => numbers.reduce((a, b) => a + b, 0);

const slowestLink = (devices: readonly PlanDevice[]): Link =>
  devices.map(({ link }) => link).reduce((a, b) => (a.bytesPerSecond <= b.bytesPerSecond ? a : b));
