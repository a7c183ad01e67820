// Kills a rank of a model that is split, at a random moment of its start, load or work, again and again: the others must end
// with an error that says so, in under ten seconds, and leave no process and no port behind.
// Usage: node scripts/rank-faults.mjs [--times 50] [--ranks 3] [--by mpirun.openmpi|mpirun.mpich|launch] [--device cpu]
//        [--signal SIGKILL|SIGSTOP] [--seed 1]
import { spawn, spawnSync } from "node:child_process";
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const { values: options } = parseArgs({
  options: {
    times: { type: "string", default: "50" },
    ranks: { type: "string", default: "4" },
    by: { type: "string", default: "mpirun.openmpi" },
    device: { type: "string", default: "cpu" },
    signal: { type: "string", default: "SIGKILL" },
    seed: { type: "string", default: "1" },
    most: { type: "string", default: "4000" },
    cli: { type: "string", default: join(root, "dist/cli/main.js") },
    verbose: { type: "boolean", default: false },
    json: { type: "boolean", default: false },
  },
});
const [times, ranks, most] = [options.times, options.ranks, options.most].map(Number);
const LIMIT_MS = 10_000;
const TYPED = /\[(RankLost|RendezvousFailed|CollectiveFailed)\]/;

/** MPICH's may kill the others at once, before they can say anything. */
const isHydra =
  options.by !== "launch" && spawnSync(options.by, ["--version"], { encoding: "utf8" }).stdout?.includes("HYDRA");

let state = Number(options.seed);
const random = () => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state / 2 ** 32;
};
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

/** The ranks that are alive, by their number: processes of this round that whoever started them has given one. */
function ranksOf(marker) {
  const found = new Map();
  for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const variables = readFileSync(`/proc/${pid}/environ`, "utf8");
      if (!variables.includes(`WICK_FAULT_ROUND=${marker}\0`)) continue;
      const [, rank] = /(?:^|\0)(?:WICK_RANK|OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)\0/.exec(variables) ?? [];
      const command = readFileSync(`/proc/${pid}/cmdline`, "utf8");
      const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
      const gone = stat.slice(stat.lastIndexOf(")") + 2).startsWith("Z");
      if (rank !== undefined && !gone && command.includes("bench")) found.set(Number(rank), Number(pid));
    } catch {
      // It has ended meanwhile.
    }
  }
  return found;
}

/** Whether every rank has a connection to rank 0: before that MPI may end them by itself, and nobody can say why. */
function haveMet(alive) {
  const owner = new Map();
  for (const [rank, pid] of alive) {
    try {
      for (const fd of readdirSync(`/proc/${pid}/fd`)) {
        const [, inode] = /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/${pid}/fd/${fd}`)) ?? [];
        if (inode) owner.set(inode, rank);
      }
    } catch {
      // It has ended meanwhile.
    }
  }
  const ends = new Map();
  for (const line of readFileSync("/proc/net/tcp", "utf8").split("\n").slice(1)) {
    const [, local, remote, connected, , , , , , inode] = line.trim().split(/\s+/);
    if (connected === "01" && owner.has(inode)) ends.set(`${local} ${remote}`, owner.get(inode));
  }
  const met = new Set();
  for (const [pair, rank] of ends) if (ends.get(pair.split(" ").reverse().join(" ")) === 0) met.add(rank);
  return alive.size === ranks && [...alive.keys()].every((rank) => rank === 0 || met.has(rank));
}

/** One round: what happened, and how long the others took. */
async function round(number) {
  const marker = `${process.pid}-${number}`;
  const work = ["bench", "--device", options.device, "--runs", "100000", "--tokens", "32", "--prompt-tokens", "16"];
  const command = [options.cli, ...work, "--tensor-parallel", `${ranks}`];
  const [program, args] =
    options.by === "launch"
      ? [process.execPath, [options.cli, "launch", "-n", `${ranks}`, "--by", "processes", ...command.slice(1)]]
      : [options.by, [...(isHydra ? ["-disable-auto-cleanup"] : []), "-n", `${ranks}`, process.execPath, ...command]];
  const env = {
    ...process.env,
    WICK_FAULT_ROUND: marker,
    OMPI_ALLOW_RUN_AS_ROOT: "1",
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: "1",
    OMPI_MCA_rmaps_base_oversubscribe: "1",
    OMPI_MCA_hwloc_base_binding_policy: "none",
  };
  const child = spawn(program, args, { env, stdio: ["ignore", "ignore", "pipe"] });
  let said = "";
  child.stderr.setEncoding("utf8").on("data", (text) => (said += text));
  const ended = new Promise((done) => child.on("close", (code) => done(code)));
  for (let i = 0; i < 400 && ranksOf(marker).size < ranks; i++) await sleep(25);
  // Before its code runs a process can say nothing. Most rounds begin where the ranks have met.
  if (random() < 0.75) for (let i = 0; i < 400 && !haveMet(ranksOf(marker)); i++) await sleep(50);
  const moment = 250 + Math.round(random() * most);
  await sleep(moment);
  const alive = ranksOf(marker);
  const victim = Math.floor(random() * ranks);
  const pid = alive.get(victim);
  if (pid === undefined) return { number, moment, victim, error: `rank ${victim} was not there: ${said.slice(-300)}` };
  const met = haveMet(alive);
  const begin = Date.now();
  process.kill(pid, options.signal);
  // The program does not wait for it once the others have ended.
  const patience = new Promise((done) => setTimeout(done, 2 * LIMIT_MS, "still running").unref());
  const code = await Promise.race([ended, patience]);
  const milliseconds = Date.now() - begin;
  if (options.signal !== "SIGKILL" && ranksOf(marker).has(victim)) process.kill(pid, "SIGKILL");
  const left = ranksOf(marker);
  for (const other of left.values()) process.kill(other, "SIGKILL");
  if (code === "still running") child.kill("SIGKILL");
  const error =
    left.size > 0 || code === "still running"
      ? `${left.size} ranks went on`
      : milliseconds > LIMIT_MS
        ? `it took ${milliseconds} ms`
        : met && !isHydra && !TYPED.test(said)
          ? `no rank said why: ${said.slice(-300)}`
          : code === 0
            ? "the exit code was 0"
            : null;
  if (options.verbose) console.log(said);
  return { number, moment, victim, met, milliseconds, typed: (said.match(new RegExp(TYPED, "g")) ?? []).length, error };
}

const rounds = [];
for (let i = 0; i < times; i++) {
  const result = await round(i);
  rounds.push(result);
  const { moment, victim, met, milliseconds, typed, error } = result;
  const when = met ? "" : ", before the ranks had met";
  if (!options.json)
    console.log(
      `${i}: rank ${victim} after ${moment} ms${when}: ${error ?? `the others ended in ${milliseconds} ms, ${typed} said why`}`,
    );
}
const failed = rounds.filter(({ error }) => error);
const longest = Math.max(...rounds.map(({ milliseconds = 0 }) => milliseconds));
if (options.json) console.log(JSON.stringify({ rounds: rounds.length, failed, longest }));
else
  console.log(
    `${rounds.length - failed.length} of ${rounds.length} rounds as they should be; the longest took ${longest} ms`,
  );
process.exitCode = failed.length > 0 ? 1 : 0;
