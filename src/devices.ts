/** The devices that come with Wick, and the short ways to them: `Device.cpu()`, `Device.rocm(0)`, `Device.cuda(0)`. */
import { CpuBackend } from "./backend/cpu/backend.ts";
import { Device } from "./backend/device.ts";
import { GpuBackend } from "./backend/gpu/backend.ts";
import { ranked } from "./backend/gpu/best-device.ts";
import { checkChoice, type HostMemoryChoice } from "./backend/gpu/memory-policy.ts";
import { compiles, findCandidates, platform, simulatorOrdinals } from "./backend/gpu/platforms.ts";
import { MiopenBackend } from "./backend/gpu/rocm/miopen/backend.ts";
import type { MiopenOps } from "./backend/gpu/rocm/miopen/ops.ts";
import { type DeviceAddress, registerDevice, registerSearch } from "./backend/registry.ts";

export interface CpuOptions {
  /** How many threads compute, the main one included. Default: WICK_THREADS, or the number of cores. */
  readonly threads?: number;
}

export interface GpuOptions {
  /**
   * Whether host memory that the GPU maps may hold tensors once its own is full: "auto" (on an integrated AMD GPU),
   * "never", or "allow" (on a discrete card, too, which reads it over PCIe). Counts for what is allocated from then on.
   * Default: WICK_HOST_MEMORY, or "auto".
   */
  readonly hostMemory?: HostMemoryChoice;
}

export interface RocmOptions extends GpuOptions {
  /** A device of its own, "rocm:0+miopen", on which AMD's MIOpen does the operations that it does as Wick would. */
  readonly miopen?: boolean;
}

const amd =
  (kind: "rocm" | "sim", ordinalOf: (id: string) => number) =>
  ({ name, id, extras }: DeviceAddress): GpuBackend =>
    new (extras.includes("miopen") ? MiopenBackend : GpuBackend)(name, platform(kind), ordinalOf(id));

registerDevice("cpu", () => new CpuBackend());
registerDevice("rocm", amd("rocm", Number), {
  ids: /^\d+$/,
  first: "0",
  extras: ["miopen"],
  about: "rocm:0 (or another number; rocm:0+miopen adds MIOpen)",
});
registerDevice("cuda", ({ name, id }) => new GpuBackend(name, platform("cuda"), Number(id)), {
  ids: /^\d+$/,
  first: "0",
  about: "cuda:0 (likewise)",
});
registerDevice(
  "sim",
  amd("sim", (id) => simulatorOrdinals[id]!),
  { ids: /^(32|64)$/, first: "32", extras: ["miopen"], about: "sim:32 and sim:64, which run the AMD path in software" },
);
registerSearch(function* () {
  for (const { platform, ordinal } of ranked(findCandidates(), compiles)) yield `${platform}:${ordinal}`;
});

function withOptions(device: Device, { hostMemory }: GpuOptions): Device {
  if (hostMemory !== undefined) {
    (device.backend as GpuBackend).source.choice = checkChoice(hostMemory, "hostMemory");
  }
  return device;
}

const shortcuts = {
  /** The CPU. */
  cpu(options: CpuOptions = {}): Device {
    const device = Device.from("cpu");
    if (options.threads !== undefined) (device.backend as CpuBackend).threads = options.threads;
    return device;
  },

  /** An AMD GPU through ROCm. */
  rocm(ordinal = 0, options: RocmOptions = {}): Device {
    return withOptions(Device.from(`rocm:${ordinal}${options.miopen ? "+miopen" : ""}`), options);
  },

  /** An NVIDIA GPU through CUDA. */
  cuda(ordinal = 0, options: GpuOptions = {}): Device {
    return withOptions(Device.from(`cuda:${ordinal}`), options);
  },
};

declare module "./backend/device.ts" {
  interface Device {
    /** AMD's MIOpen, on a device that was opened with it; else null. */
    readonly miopen: MiopenOps | null;
  }
  namespace Device {
    const cpu: (typeof shortcuts)["cpu"];
    const rocm: (typeof shortcuts)["rocm"];
    const cuda: (typeof shortcuts)["cuda"];
  }
}

Object.assign(Device, shortcuts);
Object.defineProperty(Device.prototype, "miopen", {
  get(this: Device): MiopenOps | null {
    return this.backend instanceof MiopenBackend ? this.backend.miopen : null;
  },
});
