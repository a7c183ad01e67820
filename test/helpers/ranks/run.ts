/** Starts programs as several ranks, by mpirun of either MPI or by `wick launch`. */
import { execFile, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { buildCli } from "../built-cli.ts";

const root = fileURLToPath(new URL("../../..", import.meta.url));
export const program = (name: string): string => join(root, "test/helpers/ranks", name);
export const tiny = (name: string): string => join(root, "test/data/models/tiny", name);

/** The ways there are to start ranks on the CPU here: Open MPI's mpirun, MPICH's, or none. */
export const mpiruns = ["mpirun.openmpi", "mpirun.mpich"].filter(
  (name) => spawnSync(name, ["--version"], { stdio: "ignore" }).status === 0,
);
if (mpiruns.length < 2) {
  const missing = ["mpirun.openmpi", "mpirun.mpich"].filter((name) => !mpiruns.includes(name));
  console.warn(`Ranks are not tried by ${missing.join(" and ")}, not installed (sudo npm run setup)`);
}

/** The command, compiled and beside the simulator. */
export async function builtForRanks(): Promise<{ cli: string; dist: string } & Disposable> {
  const folder = mkdtempSync(join(tmpdir(), "wick-ranks-"));
  const cli = await buildCli(folder);
  await symlink(join(root, "sim"), join(folder, "sim"));
  const remove = () => rmSync(folder, { recursive: true, force: true });
  return { cli, dist: dirname(dirname(cli)), [Symbol.dispose]: remove };
}

export interface Outcome {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

const environment = {
  OMPI_ALLOW_RUN_AS_ROOT: "1",
  OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: "1",
  OMPI_MCA_rmaps_base_oversubscribe: "1",
  OMPI_MCA_hwloc_base_binding_policy: "none",
  WICK_THREADS: "1",
};

/** `start` is a command and its first arguments. */
export const runRanks = (start: readonly string[], args: readonly string[], env = {}): Promise<Outcome> =>
  new Promise((resolve) => {
    const [command, ...first] = start as [string, ...string[]];
    const options = { env: { ...process.env, ...environment, ...env }, timeout: 60_000, maxBuffer: 2 ** 24 };
    execFile(command, [...first, ...args], options, (error, stdout, stderr) =>
      resolve({ code: error ? ((error.code as unknown as number) ?? 1) : 0, stdout, stderr }),
    );
  });

export const byMpi = (mpirun: string, ranks: number): string[] => [mpirun, "-n", `${ranks}`, process.execPath];
