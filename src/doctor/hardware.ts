/** What the operating system tells of a vendor's GPUs without any of the vendor's libraries. */
import { accessSync, constants, existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";

export interface Hardware {
  /** GPUs on the bus, as "1002:744c". */
  readonly pci: readonly string[];
  /** The kernel driver's version, "loaded" where it does not tell, or null. */
  readonly driver: string | null;
  /** The files through which the driver is used. */
  readonly nodes: readonly { readonly path: string; readonly access: "ok" | "denied" | "missing" }[];
  /** Variables that choose or hide devices. */
  readonly environment: Readonly<Record<string, string>>;
}

export type GpuVendor = "rocm" | "cuda";

const vendors = {
  rocm: {
    pci: "0x1002",
    module: "amdgpu",
    version: "/sys/module/amdgpu/version",
    nodes: ["/dev/kfd", "/dev/dri/renderD*"],
    environment: [
      ...["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HSA_OVERRIDE_GFX_VERSION"],
      ...["ROCM_PATH", "WICK_HIP_LIBRARY", "WICK_HIPRTC_LIBRARY", "WICK_COMGR_LIBRARY", "WICK_ROCBLAS_LIBRARY"],
      ...["WICK_HIPBLASLT_LIBRARY", "WICK_BLAS", "ROCBLAS_TENSILE_LIBPATH", "HIPBLASLT_TENSILE_LIBPATH"],
    ],
  },
  cuda: {
    pci: "0x10de",
    module: "nvidia",
    version: "/proc/driver/nvidia/version",
    nodes: ["/dev/nvidiactl", "/dev/nvidia-uvm"],
    environment: [
      ...["CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH", "WICK_CUDA_LIBRARY", "WICK_NVRTC_LIBRARY"],
      "WICK_CUBLAS_LIBRARY",
    ],
  },
} as const;

/** `root` is where the system's folders are. */
export function hardwareOf(platform: GpuVendor, root = "/"): Hardware {
  const vendor = vendors[platform];
  const at = (path: string): string => join(root, path);
  return {
    pci: pciGpus(at("/sys/bus/pci/devices"), vendor.pci),
    driver: firstLine(at(vendor.version)) ?? (existsSync(at(`/sys/module/${vendor.module}`)) ? "loaded" : null),
    nodes: vendor.nodes.flatMap((path) => expand(path, root)).map((path) => ({ path, access: accessTo(at(path)) })),
    environment: Object.fromEntries(
      vendor.environment.flatMap((name) => (process.env[name] === undefined ? [] : [[name, process.env[name]]])),
    ),
  };
}

/** Display controllers and processing accelerators of the vendor. */
function pciGpus(folder: string, vendor: string): string[] {
  return entriesOf(folder).flatMap((name) => {
    const read = (file: string): string => firstLine(join(folder, name, file)) ?? "";
    const isGpu = /^0x(03|12)/.test(read("class"));
    return isGpu && read("vendor") === vendor ? [`${vendor.slice(2)}:${read("device").slice(2)}`] : [];
  });
}

function firstLine(path: string): string | null {
  try {
    return readFileSync(path, "utf8").split("\n")[0]!.trim();
  } catch {
    return null;
  }
}

/** A trailing * stands for what is there; where nothing is, the pattern itself stays and is missing. */
function expand(path: string, root: string): string[] {
  if (!path.endsWith("*")) return [path];
  const found = entriesOf(join(root, dirname(path)))
    .map((name) => join(dirname(path), name))
    .filter((file) => file.startsWith(path.slice(0, -1)));
  return found.length > 0 ? found : [path];
}

function entriesOf(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

function accessTo(path: string): "ok" | "denied" | "missing" {
  if (!existsSync(path)) return "missing";
  try {
    accessSync(path, constants.R_OK | constants.W_OK);
    return "ok";
  } catch {
    return "denied";
  }
}
