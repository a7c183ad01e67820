/** `wick launch`: starts the ranks of a command that a model runs over, and ends all of them when one fails. */
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { randomUUID } from "node:crypto";
import { createServer } from "node:net";
import { availableParallelism } from "node:os";
import type { Readable } from "node:stream";
import { fileURLToPath } from "node:url";
import { Command, Option } from "commander";
import { Device } from "../backend/device.ts";
import { environment } from "../core/environment.ts";
import { fail } from "../core/errors.ts";
import { count } from "./model-options.ts";

interface Options {
  ranks: number;
  by: "auto" | "processes" | "mpirun";
}

const MAIN = fileURLToPath(new URL("./main.js", import.meta.url));
/** Ranks notice by themselves that another is gone; whoever has not is told, and then ended. */
const NOTICE_MS = 2000;
const KILL_MS = 4000;
const LAST_SIGNAL = 64;

/** `own` are Wick's commands; anything else is a program. */
export function launchCommand(own: readonly string[]): Command {
  return new Command("launch")
    .description("Start several processes that run a model together")
    .argument("<command...>", "a command of wick with its options, or a program")
    .requiredOption("-n, --ranks <n>", "how many", count(1))
    .addOption(
      new Option("--by <how>", "processes of its own, which GPUs need, or MPI's mpirun, which the CPU needs")
        .choices(["auto", "processes", "mpirun"])
        .default("auto"),
    )
    .passThroughOptions()
    .addHelpText(
      "after",
      `
Examples:
  wick launch -n 2 generate --model ./Llama-3.2-1B --tensor-parallel 2
  wick launch -n 2 verify models/tiny/llama --device cpu --tensor-parallel 2
  wick launch -n 4 generate --model ./Llama-3.2-1B --pipeline-parallel 2 --tensor-parallel 2
  wick launch -n 4 node program.mjs

Rank 0 reads stdin and writes to stdout; what the others say has their number before it.`,
    )
    .action(async (command: string[], options: Options) => {
      const [program, args] = own.includes(command[0]!)
        ? [process.execPath, [MAIN, ...command]]
        : [command[0]!, command.slice(1)];
      const byMpi = options.by === "mpirun" || (options.by === "auto" && isForCpu(command, own));
      process.exitCode = byMpi
        ? await underMpirun(options.ranks, program, args)
        : await asProcesses(options.ranks, program, args);
    });
}

/** Whether one of Wick's commands would run on the CPU. */
function isForCpu([name, ...args]: readonly string[], own: readonly string[]): boolean {
  if (!own.includes(name!)) return false;
  const at = args.findIndex((arg) => arg === "--device" || arg.startsWith("--device="));
  const device = at < 0 ? undefined : (args[at]!.split("=")[1] ?? args[at + 1]);
  return device === undefined || device === "auto"
    ? name === "verify" || Device.best().name === "cpu"
    : device === "cpu";
}

async function underMpirun(ranks: number, program: string, args: readonly string[]): Promise<number> {
  const { status, stdout } = spawnSync("mpirun", ["--version"], { encoding: "utf8" });
  if (status !== 0) {
    fail(
      "LibraryNotFound",
      "ranks on the CPU are started by mpirun, which is not here; install Open MPI (openmpi-bin) or MPICH (mpich)",
    );
  }
  // Open MPI's words for: as any user, more ranks than cores, and none of them bound to one.
  const env = {
    OMPI_ALLOW_RUN_AS_ROOT: "1",
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: "1",
    OMPI_MCA_rmaps_base_oversubscribe: "1",
    OMPI_MCA_hwloc_base_binding_policy: "none",
    ...environment(),
  };
  // MPICH's would kill the others at once where one fails, before they can say why.
  const isHydra = stdout.includes("HYDRA");
  const patience = isHydra ? ["-disable-auto-cleanup"] : [];
  const child = spawn("mpirun", [...patience, "-n", `${ranks}`, program, ...args], { stdio: "inherit", env });
  using _ = forwarding([child]);
  const code = codeOf(await ended(child));
  // It kills them all the same where one was ended by a signal, whose number it gives.
  if (isHydra && code > 1 && code <= LAST_SIGNAL) {
    console.error(`wick: a rank was ended by signal ${code}; MPICH's mpirun has ended the others [RankLost]`);
  }
  return code;
}

async function asProcesses(ranks: number, program: string, args: readonly string[]): Promise<number> {
  const port = await freePort();
  const job = randomUUID();
  const threads = `${Math.max(1, Math.floor(availableParallelism() / ranks))}`;
  const children = Array.from({ length: ranks }, (_, rank) => {
    const env = {
      WICK_THREADS: threads,
      ...environment(),
      WICK_RANK: `${rank}`,
      WICK_WORLD_SIZE: `${ranks}`,
      WICK_LOCAL_RANK: `${rank}`,
      WICK_LOCAL_SIZE: `${ranks}`,
      WICK_MASTER: `127.0.0.1:${port}`,
      WICK_JOB: job,
    };
    if (rank === 0) return spawn(program, args, { stdio: "inherit", env });
    const child = spawn(program, args, { stdio: ["ignore", "pipe", "pipe"], env });
    prefixed(child.stdout, process.stdout, rank);
    prefixed(child.stderr, process.stderr, rank);
    return child;
  });
  using _ = forwarding(children);
  let first = 0;
  const timers: NodeJS.Timeout[] = [];
  await Promise.all(
    children.map(async (child, rank) => {
      const end = await ended(child);
      const code = codeOf(end);
      if (code === 0 || first !== 0) return;
      first = code;
      if (end.signal)
        console.error(`wick: rank ${rank} was ended by ${end.signal}; the others are ended, too [RankLost]`);
      timers.push(setTimeout(() => endAll(children, "SIGTERM"), NOTICE_MS));
      timers.push(setTimeout(() => endAll(children, "SIGKILL"), NOTICE_MS + KILL_MS));
    }),
  );
  for (const timer of timers) clearTimeout(timer);
  return first;
}

function endAll(children: readonly ChildProcess[], signal: NodeJS.Signals): void {
  for (const child of children) if (child.exitCode === null && child.signalCode === null) child.kill(signal);
}

/** Signals that end this process end its children; a terminal sends Ctrl-C to all of them itself. */
function forwarding(children: readonly ChildProcess[]): Disposable {
  const signals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
  const forward = (signal: NodeJS.Signals): void => {
    if (signal !== "SIGINT" || !process.stdin.isTTY) endAll(children, signal);
  };
  for (const signal of signals) process.on(signal, forward);
  return {
    [Symbol.dispose]: () => {
      for (const signal of signals) process.off(signal, forward);
    },
  };
}

interface End {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

const ended = (child: ChildProcess): Promise<End> =>
  new Promise((resolve, reject) => {
    child.once("error", reject).once("close", (code, signal) => resolve({ code, signal }));
  });

const codeOf = ({ code, signal }: End): number =>
  code ?? (signal === "SIGINT" ? 130 : signal === "SIGTERM" ? 143 : 137);

/** Whole lines, so that those of several ranks do not mix. */
function prefixed(from: Readable, to: NodeJS.WritableStream, rank: number): void {
  let rest = "";
  const write = (line: string) => to.write(`[${rank}] ${line}\n`);
  from.setEncoding("utf8");
  from.on("data", (text: string) => {
    const lines = (rest + text).split("\n");
    rest = lines.pop()!;
    for (const line of lines) write(line);
  });
  from.on("end", () => {
    if (rest !== "") write(rest);
  });
}

const freePort = (): Promise<number> =>
  new Promise((resolve, reject) => {
    const server = createServer().once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address() as { port: number };
      server.close(() => resolve(port));
    });
  });
