/** The package as users have it, with the simulator and stand-ins for libraries that are broken in one way each. */
import { execFile, spawnSync } from "node:child_process";
import { symlink } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { buildSim } from "../../sim/build.mjs";
import { buildCli } from "./built-cli.ts";

const root = fileURLToPath(new URL("../..", import.meta.url));

export interface Run {
  readonly code: number | null;
  readonly out: string;
  readonly err: string;
}

export interface Package {
  /** The compiled entry of the doctor's child processes. */
  readonly entry: string;
  readonly program: string;
  wick(args: string[], env?: Record<string, string>): Promise<Run>;
}

export async function buildPackage(folder: string): Promise<Package> {
  const program = await buildCli(folder);
  for (const name of ["sim", "golden"]) await symlink(join(root, name), join(folder, name));
  const wick: Package["wick"] = (args, env = {}) =>
    new Promise((done) => {
      const options = { env: { ...process.env, ...env }, timeout: 50_000 };
      execFile(process.execPath, [program, ...args], options, (error, out, err) =>
        done({ code: error ? (typeof error.code === "number" ? error.code : null) : 0, out, err }),
      );
    });
  return { program, entry: join(folder, "dist/doctor/child-main.js"), wick };
}

export const sim = await buildSim();
const simFolder = dirname(sim.hip);
const linkSim = [`-L${simFolder}`, "-Wl,--no-as-needed", "-lamdhip64_sim", "-lrocblas_sim", `-Wl,-rpath,${simFolder}`];

/** A library of `source` alone, or with all else of the simulator's. */
export function stubLibrary(path: string, source: string, overSim = true): string {
  const args = ["-x", "c++", "-std=c++17", "-fPIC", "-shared", "-o", path, "-", ...(overSim ? linkSim : [])];
  const compiler = process.env.CXX || "g++";
  const { status, stderr } = spawnSync(compiler, args, { input: source, encoding: "utf8" });
  if (status !== 0) throw new Error(`${compiler} failed on ${path}:\n${stderr}`);
  return path;
}

export const stubs = {
  /** Has one call of many. */
  tooOld: 'extern "C" int hipGetDeviceCount(int* n) { return *n = 0, 0; }',
  crashing: '#include <cstdlib>\nextern "C" int hipGetDeviceCount(int*) { std::abort(); }',
  hanging: '#include <unistd.h>\nextern "C" int hipGetDeviceCount(int*) { for (;;) sleep(1); }',
  ending:
    '#include <cstdio>\n#include <cstdlib>\nextern "C" int hipGetDeviceCount(int*) { fputs("LLVM ERROR: no\\n", stderr); exit(7); }',
  crashingBlas: '#include <cstdlib>\nextern "C" int rocblas_create_handle(void**) { std::abort(); }',
  crashingCompiler:
    '#include <cstdlib>\nextern "C" int hiprtcCompileProgram(void*, int, const char**) { std::abort(); }',
} as const;
