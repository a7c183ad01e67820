/**
 * HIP's and CUDA's driver APIs are the same calls under different names. This is the one implementation of `GpuDriver`
 * over both, and native-context.ts that of `GpuContext`: a vendor gives its prototypes, its numbers and the few steps that
 * differ (vendor.ts).
 */
import { fail } from "../../core/errors.ts";
import type { GpuDriver, GpuProperties } from "./driver.ts";
import { type Bound, symbolOf } from "./library.ts";
import { NativeContext } from "./native-context.ts";
import { type DriverCall, type DriverPrototypes, OUT_OF_MEMORY, type Vendor } from "./vendor.ts";
import { visibilityMasks } from "./visible-devices.ts";

const wayOut: Readonly<Record<number, string>> = {
  35: "the installed GPU driver is older than the library needs: update the driver",
  100: "no GPU is visible to this process",
  200: "the module is damaged or not made for this driver: clear the kernel cache",
  209: "the module was compiled for another GPU: clear the kernel cache",
  222: "the module needs a newer driver: update it",
  701: "use fewer threads or less shared memory per block",
  709: "a stream, event or graph was used that is not alive",
  719: "the device goes on, so the launch was refused: the block may be larger than what the kernel was compiled for",
  999: "see what the kernel driver says: dmesg",
  1052: "the runtime got no memory from the system: check the host's free memory and `ulimit -l`",
  1053: "see what the kernel driver says: dmesg",
};

/** The context that is current on this thread: one per library, however often that is opened. */
export interface Current {
  context: NativeContext | null;
}
const currents = new Map<string, Current>();

export class NativeDriver implements GpuDriver {
  readonly vendor: "rocm" | "cuda";
  readonly library: string;
  readonly spec: Vendor;
  readonly api: Bound<DriverPrototypes>;
  readonly current: Current;
  readonly #properties = new Map<number, GpuProperties>();
  #count: number | undefined;

  constructor(spec: Vendor) {
    this.vendor = spec.vendor;
    this.library = spec.library.path;
    this.spec = spec;
    this.api = spec.library.bind(spec.prototypes);
    this.current = currents.get(this.library) ?? { context: null };
    currents.set(this.library, this.current);
  }

  get release(): string {
    return this.spec.describeRelease();
  }

  deviceCount(): number {
    if (this.#count !== undefined) return this.#count;
    const count = new Int32Array(1);
    const code = this.spec.initialize() || this.api.count(count);
    if (code !== 0 && !this.spec.none.has(code)) this.raise(symbolOf(this.spec.prototypes.count), code);
    this.#count = code === 0 ? count[0]! : 0;
    return this.#count;
  }

  properties(ordinal: number): GpuProperties {
    const known = this.#properties.get(ordinal);
    if (known) return known;
    this.#requireDevice(ordinal);
    const { api, spec } = this;
    const name = new Uint8Array(256);
    this.check(api.name(name, name.length, ordinal), "name");
    const total = new BigUint64Array(1);
    this.check(api.totalBytes(total, ordinal), "totalBytes");
    const attribute = (number: number): number => {
      const value = new Int32Array(1);
      this.check(api.attribute(value, number, ordinal), "attribute");
      return value[0]!;
    };
    const busId = new Uint8Array(32);
    const hasBusId = api.busId(busId, busId.length, ordinal) === 0;
    const { driver, runtime } = spec.versions();
    const properties: GpuProperties = {
      name: cString(name),
      arch: spec.arch(ordinal, (code, call) => code === 0 || this.raise(call, code)),
      waveSize: attribute(spec.attributes.waveSize),
      multiprocessors: attribute(spec.attributes.multiprocessors),
      maxThreadsPerBlock: attribute(spec.attributes.maxThreadsPerBlock),
      sharedBytesPerBlock: attribute(spec.attributes.sharedBytes),
      totalBytes: Number(total[0]),
      integrated: attribute(spec.attributes.integrated) !== 0,
      busId: hasBusId ? cString(busId) : null,
      driverVersion: driver,
      runtimeVersion: runtime,
    };
    this.#properties.set(ordinal, properties);
    return properties;
  }

  open(ordinal: number): NativeContext {
    return new NativeContext(this, ordinal, this.properties(ordinal));
  }

  check(code: number, call: DriverCall, context?: NativeContext): void {
    if (code !== 0) this.raise(symbolOf(this.spec.prototypes[call]), code, "", context);
  }

  /** `context` is where the call was made, if it was on an open device. */
  raise(symbol: string, code: number, detail = "", context?: NativeContext): never {
    const what = `${symbol}${detail && ` (${detail})`} failed: ${this.spec.describe(code)}`;
    if (this.spec.lost.has(code) && (this.spec.isLostCertain || context?.isLost())) {
      return fail(
        "DeviceLost",
        `${what}; the ${this.spec.maker} device faulted, perhaps in a kernel launched earlier, and its memory is gone: restart the process`,
      );
    }
    if (code === OUT_OF_MEMORY) return fail("OutOfMemory", `${what}; free tensors or use a smaller batch`);
    return fail("DriverError", wayOut[code] ? `${what}; ${wayOut[code]}` : what);
  }

  #requireDevice(ordinal: number): void {
    const count = this.deviceCount();
    if (Number.isInteger(ordinal) && ordinal >= 0 && ordinal < count) return;
    const masks = visibilityMasks(this.vendor);
    const hidden = masks.length > 0 ? `; ${masks.join(" and ")} may hide what there is` : "";
    const asked = `${this.vendor}:${ordinal} was asked for, but ${this.library}`;
    fail(
      "DeviceUnavailable",
      count === 0
        ? `${asked} finds no ${this.spec.maker} GPU; check that its driver is loaded and that this user may use it, or use the device cpu${hidden}`
        : `${asked} finds ${count} device${count === 1 ? "" : "s"}: ${this.vendor}:0 to ${this.vendor}:${count - 1}${hidden}`,
    );
  }
}

export const cString = (bytes: Uint8Array): string => {
  const end = bytes.indexOf(0);
  return new TextDecoder().decode(end < 0 ? bytes : bytes.subarray(0, end));
};
