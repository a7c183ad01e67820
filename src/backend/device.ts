/**
 * Devices by name. There is no global default: a tensor lives where it was made, on "cpu" unless told otherwise. Those that
 * come with Wick are made known by src/devices.ts.
 */
import { fail } from "../core/errors.ts";
import type { Available, Backend, MemoryStats } from "./backend.ts";
import { locate, presentNames } from "./registry.ts";
import { formatBytes } from "./usage.ts";

const devices = new Map<string, Device>();
const ofBackend = new WeakMap<Backend, Device>();

export class Device {
  readonly backend: Backend;
  #seed: bigint;

  private constructor(backend: Backend) {
    this.backend = backend;
    this.#seed = crypto.getRandomValues(new BigUint64Array(1))[0]!;
    ofBackend.set(backend, this);
  }

  /** A device by its name, or the device itself. */
  static from(device: Device | string): Device {
    if (device instanceof Device) return device;
    const known = devices.get(device);
    if (known) return known;
    const { address, open } = locate(device);
    const found = Device.open(address.name, open);
    devices.set(device, found);
    return found;
  }

  /** The device over a backend that is made once; the name is the key. */
  static open(name: string, make: () => Backend): Device {
    let device = devices.get(name);
    if (!device) {
      device = new Device(make());
      devices.set(name, device);
    }
    return device;
  }

  /** The most capable GPU that can be used (discrete ones first, then those with more memory), or the CPU. */
  static best(): Device {
    const { value } = presentNames().next();
    return Device.from(value ?? "cpu");
  }

  /** Every GPU that can be used, the best first, and at last the CPU. */
  static present(): Device[] {
    return [...presentNames(), "cpu"].map((name) => Device.from(name));
  }

  static of(backend: Backend): Device {
    return ofBackend.get(backend)!;
  }

  /** As users write it: "cpu", "rocm:0". */
  get name(): string {
    return this.backend.name;
  }

  /** Live, cached and peak bytes. */
  memory(): MemoryStats {
    return this.backend.memory();
  }

  /** What new tensors can have, and where that is. */
  available(): Available {
    return this.backend.available();
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

  /** Which device it is and what is used of it. */
  [Symbol.for("nodejs.util.inspect.custom")](): string {
    const what = this.backend.describe?.();
    const { live, cached, peak } = this.memory();
    const memory = [live, cached, peak].map(formatBytes);
    return `Device(${this.name}${what ? `, ${what}` : ""}: ${memory[0]} in use, ${memory[1]} cached, ${memory[2]} at most)`;
  }
}

/** A seed as the 64 bits that generators are keyed by. */
export function seedBits(seed: number | bigint): bigint {
  if (typeof seed !== "bigint" && !Number.isInteger(seed)) {
    fail("InvalidArgument", `the seed must be a whole number, not ${seed}`);
  }
  return BigInt.asUintN(64, BigInt(seed));
}
