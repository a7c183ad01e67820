/** What a platform has: its libraries and devices. A vendor's broken library may end this process at any step of it. */
import type { KernelCompiler } from "../backend/gpu/driver.ts";
import { type PlatformName, platform, simulatorOrdinals } from "../backend/gpu/platforms.ts";
import { type ErrorCode, WickError } from "../core/errors.ts";
import { describeError } from "./check.ts";
import { gpuOf } from "./gpu-of.ts";
import type { LoadedLibrary } from "./loaded.ts";

/** A library with its version and why it is this one, or why there is none. */
export type Found =
  | { readonly path: string; readonly version: string; readonly why?: string }
  | { readonly problem: string };

export interface DeviceFacts {
  /** "rocm:0" */
  readonly name: string;
  product?: string;
  arch?: string;
  waveSize?: number;
  multiprocessors?: number;
  totalBytes?: number;
  freeBytes?: number;
  integrated?: boolean;
  busId?: string | null;
  /** Which memory it uses, and why. */
  memoryUse?: string;
  driverVersion?: string;
  runtimeVersion?: string;
  /** Why decoding is not recorded; absent where it is. */
  recordingProblem?: string;
  /** Whether the run-time compiler knows the arch. */
  compiles?: boolean;
  blas?: Found;
  /** Why it cannot be used. */
  problem?: string;
}

/** Filled step by step: what is there was found out, whatever came afterwards. */
export interface PlatformFacts {
  readonly platform: PlatformName;
  /** The path of the driver's library. */
  library?: string;
  /** The driver's release, and the oldest that is supported. */
  release?: string;
  compiler?: Found;
  /** AMD's, which a device has to be asked for with. */
  miopen?: Found;
  devices: DeviceFacts[];
  /** The vendor's libraries that are in the process. */
  loaded?: LoadedLibrary[];
  /** Why nothing of the platform can be used, as text and as code. */
  problem?: string;
  code?: ErrorCode;
}

export type SayFacts = (doing: string, facts: PlatformFacts) => void;

const titles: Record<PlatformName, { driver: string; compiler: string; blas: string }> = {
  rocm: { driver: "the HIP runtime", compiler: "hiprtc", blas: "rocBLAS" },
  cuda: { driver: "the CUDA driver", compiler: "nvrtc", blas: "cuBLAS" },
  sim: { driver: "the simulator", compiler: "the simulator's compiler", blas: "the simulator's rocBLAS" },
};

export function probe(name: PlatformName, say: SayFacts): PlatformFacts {
  const facts: PlatformFacts = { platform: name, devices: [] };
  const title = titles[name];
  try {
    say(`loading ${title.driver}`, facts);
    const { driver } = platform(name);
    facts.library = driver.library;
    facts.release = driver.release;
    say("counting devices", facts);
    const names = namesOf(name, driver.deviceCount());
    for (const device of names) facts.devices.push({ name: device });
    if (names.length === 0) return facts;
    facts.devices.forEach((device, ordinal) => {
      attempt(device, () => {
        say(`reading the properties of ${device.name}`, facts);
        const { name: product, ...properties } = driver.properties(ordinal);
        const { maxThreadsPerBlock: _, sharedBytesPerBlock: __, ...shown } = properties;
        Object.assign(device, { product, ...shown });
      });
    });
  } catch (error) {
    facts.problem = error instanceof Error ? error.message : String(error);
    if (error instanceof WickError) facts.code = error.code;
    return facts;
  }

  say(`opening ${title.compiler}`, facts);
  let compiler: KernelCompiler | undefined;
  try {
    compiler = platform(name).compiler();
    facts.compiler = { path: compiler.library, version: compiler.version };
  } catch (error) {
    facts.compiler = { problem: describeError(error) };
  }
  if (name !== "cuda") {
    say("opening MIOpen", facts);
    try {
      const { library, version } = platform(name).miopen();
      facts.miopen = { path: library, version: `MIOpen ${version}` };
    } catch (error) {
      facts.miopen = { problem: describeError(error) };
    }
  }
  for (const device of facts.devices) {
    if (device.problem !== undefined) continue;
    attempt(device, () => {
      if (compiler) {
        say(`asking ${title.compiler} whether it knows ${device.arch}`, facts);
        device.compiles = compiler.supports(device.arch!);
      }
      say(`opening ${device.name}`, facts);
      const gpu = gpuOf(device.name)!;
      device.freeBytes = gpu.context.memoryInfo().free;
      device.memoryUse = gpu.source.text;
      const { problem: recordingProblem } = gpu.recorder;
      if (recordingProblem !== null) device.recordingProblem = recordingProblem;
      say(`opening ${title.blas} on ${device.name}`, facts);
      const { blas, blasChoice: why } = gpu;
      device.blas = blas
        ? { path: blas.library, version: blas.version, ...(why && { why }) }
        : { problem: gpu.blasProblem };
    });
  }
  return facts;
}

function attempt(device: DeviceFacts, run: () => void): void {
  try {
    run();
  } catch (error) {
    device.problem = describeError(error);
  }
}

const namesOf = (name: PlatformName, count: number): string[] =>
  name === "sim"
    ? Object.keys(simulatorOrdinals)
        .slice(0, count)
        .map((wave) => `sim:${wave}`)
    : Array.from({ length: count }, (_, i) => `${name}:${i}`);
