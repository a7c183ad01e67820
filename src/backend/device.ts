/** Devices by name. There is no global default: a tensor lives where it was made, on "cpu" unless told otherwise. */
import { randomBytes } from "node:crypto";
import { fail } from "../core/errors.ts";
import type { Backend, MemoryStats } from "./backend.ts";
import { CpuBackend } from "./cpu/backend.ts";

const devices = new Map<string, Device>();
const ofBackend = new WeakMap<Backend, Device>();

export class Device {
  readonly backend: Backend;
  #seed = randomBytes(8).readBigUInt64LE();

  private constructor(backend: Backend) {
    this.backend = backend;
    ofBackend.set(backend, this);
  }

  /** The CPU. `threads` (default: WICK_THREADS, or the number of cores) counts the main thread. */
  static cpu(options: { readonly threads?: number } = {}): Device {
    const device = open("cpu", () => new CpuBackend());
    if (options.threads !== undefined) (device.backend as CpuBackend).threads = options.threads;
    return device;
  }

  /** The best device that is present. */
  static best(): Device {
    return Device.cpu();
  }

  /** A device by its name, or the device itself. */
  static from(device: Device | string): Device {
    if (device instanceof Device) return device;
    if (device === "cpu") return Device.cpu();
    return fail("UnknownDevice", `unknown device "${device}"; known are: cpu`);
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
    this.#seed = BigInt.asUintN(64, BigInt(seed));
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

const open = (name: string, make: () => Backend): Device => Device.open(name, make);
