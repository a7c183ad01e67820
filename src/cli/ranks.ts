/** What the commands share that run a model over several processes: in how many parts, and that rank 0 alone prints. */
import { availableParallelism } from "node:os";
import type { Command } from "commander";
import { Device } from "../backend/device.ts";
import { variable } from "../core/environment.ts";
import { fail } from "../core/errors.ts";
import { type Group, joinGroup } from "../distributed/group.ts";
import { type Ranks, ranksHere } from "../distributed/ranks.ts";
import { isJoined, setJoined, tellError } from "./joined.ts";
import { count, deviceNamed } from "./model-options.ts";

export interface RankOptions {
  tensorParallel?: number;
  pipelineParallel?: number;
}

export const addRankOptions = (command: Command): Command =>
  command
    .option(
      "--tensor-parallel <n>",
      "split every layer over n processes, which `wick launch -n`, mpirun, srun or torchrun start",
      count(1),
    )
    .option(
      "--pipeline-parallel <n>",
      "split the layers into n stages, each of one process, or of as many as --tensor-parallel says",
      count(1),
    );

/** Joins the other ranks where a model is to be split; null where it is not. Ranks other than 0 print nothing. */
export async function joinRanks(
  options: { readonly [Key in keyof RankOptions]: RankOptions[Key] | undefined } & {
    readonly device: string;
    readonly threads?: number | undefined;
  },
): Promise<Group | null> {
  const { tensorParallel: shares = 1, pipelineParallel: stages = 1, device, threads } = options;
  const ranks = ranksHere();
  const size = shares * stages;
  if (size === 1) {
    if (options.tensorParallel !== undefined || options.pipelineParallel !== undefined) refuseStrayRanks(ranks);
    return null;
  }
  const local = ranks?.localSize ?? 1;
  if (threads === undefined && variable("WICK_THREADS") === undefined && local > 1) {
    Device.cpu({ threads: Math.max(1, Math.floor(availableParallelism() / local)) });
  }
  if (ranks) onTermination(ranks.rank);
  const own = ranks ? deviceOfRank(device, ranks.localRank) : deviceNamed(device);
  const group = await joinGroup({ device: own, size, stages, arguments: process.argv.slice(2), announces: true });
  setJoined(group);
  if (group.rank !== 0) process.stdout.write = () => true;
  group.signal.addEventListener("abort", () => {
    // Whoever waits for input, or for nothing, would not notice; whoever has failed itself has said so.
    if (!isJoined()) return;
    tellError(group.signal.reason);
    setTimeout(() => process.exit(1), 500).unref();
  });
  return group;
}

/** How long a rank that is told to end may take to notice that another is gone, which is the better reason. */
const NOTICE_MS = 300;

/** Whoever starts ranks tells the others to end when one does: they say so, as far as the command has no way of its own. */
function onTermination(rank: number): void {
  const end = (): void => {
    if (process.listenerCount("SIGTERM") > 1) return;
    setTimeout(() => {
      console.error(`wick: rank ${rank} was told to end, as another rank has or all are to (SIGTERM) [RankLost]`);
      process.exit(143);
    }, NOTICE_MS);
  };
  process.on("SIGTERM", end);
}

/** Rank 0's value, on every rank. */
export async function sameOnAll<T>(group: Group | null, value: T): Promise<T> {
  return group ? (await group.exchange(value))[0]! : value;
}

/** Several processes that each do the whole work are not what was meant. */
function refuseStrayRanks(ranks: Ranks | null): void {
  if (!ranks || ranks.size === 1) return;
  fail("RanksDiffer", `one rank was asked for, but ${ranks.source} started ${ranks.size}`);
}

/** "rocm" is each rank's own GPU; a device with a number is every rank's. */
function deviceOfRank(name: string, localRank: number): Device {
  if (name === "auto") {
    const best = Device.best();
    const [family] = best.name.split(":");
    return best.name === "cpu" ? best : Device.from(`${family}:${localRank}`);
  }
  return /^(rocm|cuda)$/.test(name) ? Device.from(`${name}:${localRank}`) : deviceNamed(name);
}
