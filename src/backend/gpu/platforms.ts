/** The GPU platforms by name, opened once: ROCm, CUDA, and the simulator, which is ROCm's binding on other libraries. */
import { spawnSync } from "node:child_process";
import { existsSync, realpathSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { fail } from "../../core/errors.ts";
import { openCuda } from "./cuda/driver.ts";
import type { GpuPlatform } from "./driver.ts";
import { type HipPlatform, openHip } from "./rocm/hip.ts";

export type PlatformName = keyof Platforms;
interface Platforms {
  readonly rocm: HipPlatform;
  readonly cuda: GpuPlatform;
  readonly sim: HipPlatform;
}

const open: { readonly [Name in PlatformName]: () => Platforms[Name] } = {
  rocm: () => openHip(),
  cuda: () => openCuda(),
  sim: openSimulator,
};
const opened = new Map<PlatformName, GpuPlatform>();

/** Throws when its libraries cannot be found or used. The compiler is opened once, too. */
export function platform<Name extends PlatformName>(name: Name): Platforms[Name] {
  let found = opened.get(name) as Platforms[Name] | undefined;
  if (!found) {
    const fresh = open[name]();
    let compiler: ReturnType<GpuPlatform["compiler"]> | undefined;
    found = {
      ...fresh,
      compiler: () => {
        compiler ??= fresh.compiler();
        return compiler;
      },
    };
    opened.set(name, found);
  }
  return found;
}

/** How many devices a platform has; 0 where it cannot be used at all. */
export function deviceCount(name: "rocm" | "cuda"): number {
  try {
    return platform(name).driver.deviceCount();
  } catch {
    return 0;
  }
}

/** The simulator's devices by wave size. */
export const simulatorOrdinals: Readonly<Record<string, number>> = { "32": 0, "64": 1 };

function openSimulator(): HipPlatform {
  const path = (file: string): string => fileURLToPath(new URL(`../../../sim/${file}`, import.meta.url));
  if (!existsSync(path("build.mjs"))) fail("LibraryNotFound", `the simulator's sources are not here (${path("")})`);
  const { status, stderr } = spawnSync(process.execPath, [path("build.mjs")], { encoding: "utf8" });
  if (status !== 0) {
    fail(
      "LibraryNotFound",
      `the simulator could not be built: ${stderr.trim()}\nIt needs g++ or clang++; \`npm run setup\` installs what is missing on Debian and Ubuntu`,
    );
  }
  // Compiled kernels are kept by the library's path, so it is the one that links lead to.
  const library = (name: string): string => realpathSync(path(`build/${name}`));
  return openHip({
    hipLibrary: library("libamdhip64_sim.so"),
    rocblasLibrary: library("librocblas_sim.so"),
    hipblasltLibrary: library("libhipblaslt_sim.so"),
    miopenLibrary: library("libMIOpen_sim.so"),
    commonArch: "host",
  });
}
