/** What the operating system tells of a vendor's GPUs without any of the vendor's libraries. */
import { type Environment, environment } from "../core/environment.ts";
import { type AmdCard, amdCards, kfdTargets } from "./cards.ts";
import { type Access, Root } from "./root.ts";

export interface DeviceNode {
  readonly path: string;
  readonly access: Access;
  /** Permissions and group of a file that is there. */
  readonly mode?: string;
  readonly group?: string;
}

export interface Hardware {
  /** GPUs on the bus, as "1002:744c". */
  readonly pci: readonly string[];
  /** The kernel driver's version, "loaded" where it does not tell, or null. */
  readonly driver: string | null;
  /** Whether the driver came with the kernel or was built beside it (DKMS). */
  readonly driverOrigin?: "kernel" | "DKMS";
  /** The files through which the driver is used. */
  readonly nodes: readonly DeviceNode[];
  /** Variables that choose or hide devices and libraries. */
  readonly environment: Readonly<Record<string, string>>;
  readonly cards?: readonly AmdCard[];
  /** The compiler's names of the GPUs that the kernel driver offers for computing. */
  readonly targets?: readonly string[];
}

export type GpuVendor = "rocm" | "cuda";

const vendors = {
  rocm: {
    pci: "0x1002",
    module: "amdgpu",
    version: "/sys/module/amdgpu/version",
    nodes: ["/dev/kfd", "/dev/dri/renderD*"],
    environment:
      /^(HIP_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|CUDA_VISIBLE_DEVICES|HSA_\w+|HIP_PATH|HIP_LAUNCH_BLOCKING|ROCM_PATH|ROCM_HOME|(?:ROCBLAS|HIPBLASLT)_\w+|GPU_MAX_HW_QUEUES|AMD_LOG_LEVEL|LD_LIBRARY_PATH|LD_PRELOAD|WICK_\w+)$/,
  },
  cuda: {
    pci: "0x10de",
    module: "nvidia",
    version: "/proc/driver/nvidia/version",
    nodes: ["/dev/nvidiactl", "/dev/nvidia-uvm"],
    environment:
      /^(CUDA_VISIBLE_DEVICES|CUDA_HOME|CUDA_PATH|CUDA_LAUNCH_BLOCKING|NVIDIA_VISIBLE_DEVICES|NVIDIA_DRIVER_CAPABILITIES|LD_LIBRARY_PATH|LD_PRELOAD|WICK_\w+)$/,
  },
} as const;

export function hardwareOf(platform: GpuVendor, root = new Root(), env: Environment = environment()): Hardware {
  const vendor = vendors[platform];
  const module = `/sys/module/${vendor.module}`;
  const driver = root.line(vendor.version) ?? (root.has(module) ? "loaded" : null);
  return {
    pci: pciGpus(root, vendor.pci),
    driver,
    // The kernel marks modules that were built outside of it.
    ...(driver !== null && { driverOrigin: root.line(`${module}/taint`)?.includes("O") ? "DKMS" : "kernel" }),
    nodes: vendor.nodes.flatMap((pattern) => describeNodes(pattern, root)),
    environment: Object.fromEntries(
      Object.entries(env).flatMap(([name, value]) =>
        value !== undefined && vendor.environment.test(name) ? [[name, value]] : [],
      ),
    ),
    ...(platform === "rocm" && { cards: amdCards(root), targets: kfdTargets(root) }),
  };
}

/** Display controllers and processing accelerators of the vendor. */
function pciGpus(root: Root, vendor: string): string[] {
  const folder = "/sys/bus/pci/devices";
  return root.entries(folder).flatMap((name) => {
    const read = (file: string): string => root.line(`${folder}/${name}/${file}`) ?? "";
    const isGpu = /^0x(03|12)/.test(read("class"));
    return isGpu && read("vendor") === vendor ? [`${vendor.slice(2)}:${read("device").slice(2)}`] : [];
  });
}

/** Where no file is, the pattern itself stays and is missing. */
function describeNodes(pattern: string, root: Root): DeviceNode[] {
  const found = root.matching(pattern);
  return (found.length > 0 ? found : [pattern]).map((path) => {
    const owner = root.owner(path);
    const access = root.access(path);
    return { path, access, ...(owner && { mode: owner.mode, group: groupName(root, owner.gid) }) };
  });
}

/** The name of a group, or its number where the system has none for it, as in containers. */
export const groupName = (root: Root, gid: number): string =>
  new RegExp(`^([^:\n]+):[^:\n]*:${gid}:`, "m").exec(root.text("/etc/group") ?? "")?.[1] ?? `${gid}`;
