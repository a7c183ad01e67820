/** The GPU platforms by name, opened once: ROCm, CUDA, and the simulator, which is ROCm's binding on other libraries. */
import { spawnSync } from "node:child_process";
import { existsSync, realpathSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { fail } from "../../core/errors.ts";
import type { Candidate } from "./best-device.ts";
import { openCuda } from "./cuda/driver.ts";
import { openNvrtc } from "./cuda/nvrtc.ts";
import type { Boxes, GpuPlatform, KernelCompiler } from "./driver.ts";
import type { Library } from "./library.ts";
import { type HipPlatform, openHip } from "./rocm/hip.ts";
import type { SystemMemory } from "./system-memory.ts";
import type { Vendor } from "./vendor.ts";

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

/** What compiles for an arch; no device needs to be there, nor NVIDIA's driver. */
export function compilerFor(arch: string): KernelCompiler {
  if (/^gfx[0-9a-f]+(:|$)/.test(arch)) return platform("rocm").compiler();
  if (/^sm_\d+[af]?$/.test(arch)) return openNvrtc();
  return fail(
    "InvalidArgument",
    `${arch} is no architecture; they are written gfx1100 or gfx90a:xnack- (AMD), sm_90 (NVIDIA)`,
  );
}

/** Every AMD and NVIDIA device that can be asked about itself. */
export function findCandidates(): Candidate[] {
  return (["rocm", "cuda"] as const).flatMap((name) =>
    Array.from({ length: unlessBroken(() => platform(name).driver.deviceCount()) ?? 0 }, (_, ordinal) => {
      const properties = unlessBroken(() => platform(name).driver.properties(ordinal)) ?? null;
      return { platform: name, ordinal, properties };
    }),
  );
}

/** Whether a device's compiler knows its arch. One that cannot be opened says nothing: the first kernel tells why. */
export const compiles = ({ platform: name, properties }: Candidate): boolean =>
  properties !== null && (unlessBroken(() => platform(name).compiler().supports(properties.arch)) ?? true);

function unlessBroken<T>(ask: () => T): T | undefined {
  try {
    return ask();
  } catch {
    return undefined;
  }
}

/** The simulator's devices by wave size. */
export const simulatorOrdinals: Readonly<Record<string, number>> = { "32": 0, "64": 1 };

/** The simulator plays the kernel, too; the machine that it runs on has no part in its figures. */
function simulatedMemory(hip: Library): SystemMemory {
  const read = hip.func("int wickSimCardMemory(void *figures, const char *id)");
  return {
    kernel: null,
    host: () => null,
    card(busId) {
      const figures = new BigUint64Array(4);
      if (read(figures, busId) !== 0) return null;
      const [vramTotal, vramUsed, gttTotal, gttUsed] = Array.from(figures, Number) as [number, number, number, number];
      return { vramTotal, vramUsed, gttTotal, gttUsed };
    },
  };
}

/** As NVIDIA's driver makes maps, for the cards of its that are played. */
function simulatedBoxes(hip: Library): Vendor["boxMap"] {
  const names = "at, rows, halves, pieces, pieceBytes, boxRows, boxPieces".split(", ") as (keyof Boxes)[];
  const make = hip.func(`int wickSimBoxMap(void *to, ${names.map((name) => `uint64_t ${name}`).join(", ")})`);
  return (to, boxes) => make(to, ...names.map((name) => BigInt(boxes[name])));
}

/** Anew, with the settings of now. */
export function openSimulator(): HipPlatform {
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
    rcclLibrary: library("librccl_sim.so"),
    commonArch: "host",
    systemMemory: simulatedMemory,
    boxMap: simulatedBoxes,
  });
}
