/** Devices by name. There is no global default: a tensor lives where it was made, on "cpu" unless told otherwise. */
import { randomBytes } from "node:crypto";
import { fail } from "../core/errors.ts";
import type { Backend, MemoryStats } from "./backend.ts";
import { CpuBackend } from "./cpu/backend.ts";
import { GpuBackend } from "./gpu/backend.ts";
import { bestOf } from "./gpu/best-device.ts";
import { checkChoice, type HostMemoryChoice } from "./gpu/memory-policy.ts";
import { compiles, findCandidates, type PlatformName, platform, simulatorOrdinals } from "./gpu/platforms.ts";
import { MiopenBackend } from "./gpu/rocm/miopen/backend.ts";
import type { MiopenOps } from "./gpu/rocm/miopen/ops.ts";

const devices = new Map<string, Device>();
const ofBackend = new WeakMap<Backend, Device>();

export interface GpuOptions {
  /**
   * Whether host memory that the GPU maps may hold tensors once its own is full: "auto" (on an integrated AMD GPU),
   * "never", or "allow" (on a discrete card, too, which reads it over PCIe). Counts for what is allocated from then on.
   * Default: WICK_HOST_MEMORY, or "auto".
   */
  readonly hostMemory?: HostMemoryChoice;
}

export interface RocmOptions extends GpuOptions {
  readonly miopen?: boolean;
}

export class Device {
  readonly backend: Backend;
  #seed = randomBytes(8).readBigUInt64LE();

  private constructor(backend: Backend) {
    this.backend = backend;
    ofBackend.set(backend, this);
  }

  /** The CPU. `threads` (default: WICK_THREADS, or the number of cores) counts the main thread. */
  static cpu(options: { readonly threads?: number } = {}): Device {
    const device = Device.open("cpu", () => new CpuBackend());
    if (options.threads !== undefined) (device.backend as CpuBackend).threads = options.threads;
    return device;
  }

  /**
   * An AMD GPU through ROCm. With `miopen` it is a device of its own, "rocm:0+miopen", on which AMD's MIOpen does the
   * operations that it does as Wick would.
   */
  static rocm(ordinal = 0, options: RocmOptions = {}): Device {
    return withOptions(openGpu("rocm", `rocm:${ordinal}`, ordinal, options.miopen), options);
  }

  /** An NVIDIA GPU through CUDA. */
  static cuda(ordinal = 0, options: GpuOptions = {}): Device {
    return withOptions(openGpu("cuda", `cuda:${ordinal}`, ordinal), options);
  }

  /** The most capable GPU that can be used (discrete ones first, then those with more memory), or the CPU. */
  static best(): Device {
    const best = bestOf(findCandidates(), compiles);
    return best ? Device[best.platform](best.ordinal) : Device.cpu();
  }

  /** A device by its name, or the device itself. */
  static from(device: Device | string): Device {
    if (device instanceof Device) return device;
    if (device === "cpu") return Device.cpu();
    const [, kind, number, plus] = /^(rocm|cuda|sim)(?::(\d+))?(\+miopen)?$/.exec(device) ?? [];
    const miopen = plus !== undefined;
    if (kind === "rocm") return Device.rocm(Number(number ?? 0), { miopen });
    if (kind === "cuda" && !miopen) return Device.cuda(Number(number ?? 0));
    const ordinal = kind === "sim" ? simulatorOrdinals[number ?? "32"] : undefined;
    if (ordinal !== undefined) return openGpu("sim", `sim:${number ?? "32"}`, ordinal, miopen);
    return fail(
      "UnknownDevice",
      `unknown device "${device}"; devices are cpu, rocm:0, cuda:0 (or another number), and sim:32 and sim:64, which run the AMD path in software; on AMD's, +miopen adds MIOpen (rocm:0+miopen)`,
    );
  }

  static of(backend: Backend): Device {
    return ofBackend.get(backend)!;
  }

  /** Called once per device; the name is the key. */
  static open(name: string, make: () => Backend): Device {
    let device = devices.get(name);
    if (!device) {
      device = new Device(make());
      devices.set(name, device);
    }
    return device;
  }

  /** As users write it: "cpu", "rocm:0". */
  get name(): string {
    return this.backend.name;
  }

  /** AMD's MIOpen, on a device that was opened with it; else null. */
  get miopen(): MiopenOps | null {
    return this.backend instanceof MiopenBackend ? this.backend.miopen : null;
  }

  /** Live, cached and peak bytes. */
  memory(): MemoryStats {
    return this.backend.memory();
  }

  /** Waits for all work given to the device. */
  synchronize(): Promise<void> {
    return this.backend.synchronize();
  }

  /** Restarts the sequence of seeds used by `rand` and `randn` when they are given none. */
  setSeed(seed: number | bigint): void {
    this.#seed = seedBits(seed);
  }

  nextSeed(): bigint {
    // SplitMix64's increment: consecutive seeds differ in many bits.
    this.#seed = BigInt.asUintN(64, this.#seed + 0x9e3779b97f4a7c15n);
    return this.#seed;
  }

  toString(): string {
    return this.name;
  }
}

/** A seed as the 64 bits that generators are keyed by. */
export function seedBits(seed: number | bigint): bigint {
  if (typeof seed === "number" && !Number.isInteger(seed)) {
    fail("InvalidArgument", `the seed must be a whole number, not ${seed}`);
  }
  return BigInt.asUintN(64, BigInt(seed));
}

function withOptions(device: Device, { hostMemory }: GpuOptions): Device {
  if (hostMemory !== undefined) {
    (device.backend as GpuBackend).gpu.source.choice = checkChoice(hostMemory, "hostMemory");
  }
  return device;
}

function openGpu(kind: "rocm" | "sim", name: string, ordinal: number, miopen?: boolean): Device;
function openGpu(kind: "cuda", name: string, ordinal: number): Device;
function openGpu(kind: PlatformName, name: string, ordinal: number, miopen = false): Device {
  if (kind === "cuda" || !miopen) return Device.open(name, () => new GpuBackend(name, platform(kind), ordinal));
  return Device.open(`${name}+miopen`, () => new MiopenBackend(`${name}+miopen`, platform(kind), ordinal));
}
