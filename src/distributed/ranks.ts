/** Which of the processes that run a model together this one is, as whoever started it says. */
import { hostname } from "node:os";
import { type VariableName, variable } from "../core/environment.ts";
import { fail } from "../core/errors.ts";

export type RankSource = "wick launch" | "Open MPI's mpirun" | "MPICH's mpirun" | "torchrun" | "srun";

export interface Ranks {
  readonly rank: number;
  readonly size: number;
  /** Its number on this machine, and how many are there. */
  readonly localRank: number;
  readonly localSize: number;
  readonly source: RankSource;
  /** Where rank 0 waits; null where MPI has to tell. */
  readonly master: { readonly host: string; readonly port: number } | null;
  /** A word that only ranks of this job know; null where MPI has to tell. */
  readonly job: string | null;
}

type Names = readonly [rank: VariableName, size: VariableName, localRank: VariableName, localSize: VariableName];

/** The first whose first two are set counts: some set their variables inside others. */
const sources: Readonly<Record<RankSource, Names>> = {
  "wick launch": ["WICK_RANK", "WICK_WORLD_SIZE", "WICK_LOCAL_RANK", "WICK_LOCAL_SIZE"],
  "Open MPI's mpirun": [
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
  ],
  "MPICH's mpirun": ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
  torchrun: ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
  srun: ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"],
};

/** Null where this process was started by itself. */
export function ranksHere(): Ranks | null {
  for (const [source, names] of Object.entries(sources) as [RankSource, Names][]) {
    if (variable(names[0]) === undefined || variable(names[1]) === undefined) continue;
    const [rankName, sizeName, localRankName, localSizeName] = names;
    const size = whole(sizeName, 1);
    const rank = whole(rankName, 0, size);
    // srun writes "2(x3)" for three machines with two each.
    const localSize = Number(/^\d+/.exec(variable(localSizeName) ?? "")?.[0] ?? size);
    const localRank = variable(localRankName) === undefined ? rank : whole(localRankName, 0, size);
    return { rank, size, localRank, localSize, source, master: masterOf(source), job: jobOf(source) };
  }
  return null;
}

function whole(name: VariableName, least: number, below = Number.POSITIVE_INFINITY): number {
  const number = Number(variable(name));
  if (Number.isInteger(number) && number >= least && number < below) return number;
  const range = below === Number.POSITIVE_INFINITY ? `from ${least} up` : `from ${least} to ${below - 1}`;
  return fail("InvalidArgument", `${name}=${variable(name)} must be a whole number ${range}`);
}

function masterOf(source: RankSource): Ranks["master"] {
  const own = variable("WICK_MASTER");
  if (own !== undefined) {
    const [, host, port] = /^(.*):(\d+)$/.exec(own) ?? [];
    if (host === undefined) return fail("InvalidArgument", `WICK_MASTER=${own} must be host:port`);
    return { host, port: Number(port) };
  }
  const host = variable("MASTER_ADDR");
  if (host !== undefined && variable("MASTER_PORT") !== undefined) {
    const busy = source === "torchrun" && variable("TORCHELASTIC_USE_AGENT_STORE") === "True";
    return { host, port: whole("MASTER_PORT", 1, 65535) + (busy ? 1 : 0) };
  }
  if (source === "torchrun") return fail("InvalidArgument", "torchrun's MASTER_ADDR and MASTER_PORT are not set");
  if (source !== "srun") return null;
  const nodes = variable("SLURM_STEP_NODELIST");
  return { host: nodes === undefined ? hostname() : firstNode(nodes), port: slurmPort() };
}

/** "node[03-07,9],other" begins with node03. */
export const firstNode = (nodes: string): string => {
  const [, before, first, after] = /^([^,[]*)(?:\[([^\],-]+)[^\]]*\])?([^,]*)/.exec(nodes) as RegExpExecArray;
  return `${before}${first ?? ""}${after ?? ""}`;
};

/** A port that all ranks of a job think of, and that other jobs rarely do. */
const slurmPort = (): number => 20_000 + (Number(variable("SLURM_JOB_ID") ?? 0) % 20_000);

function jobOf(source: RankSource): string | null {
  const own = variable("WICK_JOB");
  if (own !== undefined) return own;
  if (source === "torchrun") return variable("TORCHELASTIC_RUN_ID") ?? "torchrun";
  return source === "srun" ? (variable("SLURM_JOB_ID") ?? "srun") : null;
}
