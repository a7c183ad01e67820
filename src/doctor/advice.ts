/** From what was found to a verdict on a platform and what its owner can do. */
import type { PlatformName } from "../backend/gpu/platforms.ts";
import { maskVariables } from "../backend/gpu/visible-devices.ts";
import type { Check } from "./check.ts";
import type { Outcome } from "./child.ts";
import type { Hardware } from "./hardware.ts";
import type { DeviceFacts, Found, PlatformFacts } from "./probe.ts";
import type { SystemFacts } from "./system.ts";

interface Vendor {
  readonly title: string;
  readonly maker: string;
  /** The variable that names its driver library. */
  readonly variable: string;
  readonly kernelDriver: string;
  readonly install: string;
  readonly permission: string;
  readonly container: string;
  readonly hiding: readonly string[];
}

const vendors: Readonly<Record<PlatformName, Vendor>> = {
  rocm: {
    title: "AMD ROCm",
    maker: "AMD",
    variable: "WICK_HIP_LIBRARY",
    kernelDriver: "amdgpu",
    install: "install ROCm: https://rocm.docs.amd.com/projects/install-on-linux",
    permission: "let this user use the GPU: ",
    container: "pass --device /dev/kfd --device /dev/dri",
    hiding: maskVariables.rocm,
  },
  cuda: {
    title: "NVIDIA CUDA",
    maker: "NVIDIA",
    variable: "WICK_CUDA_LIBRARY",
    kernelDriver: "nvidia",
    install: "install NVIDIA's driver: https://www.nvidia.com/drivers",
    permission: "let this user read and write NVIDIA's device files: ",
    container: "pass --gpus all (NVIDIA Container Toolkit)",
    hiding: maskVariables.cuda,
  },
  sim: {
    title: "simulator",
    maker: "simulated",
    variable: "",
    kernelDriver: "",
    install: "the simulator is part of Wick's repository, not of its package; it needs g++ or clang++",
    permission: "",
    container: "",
    hiding: ["WICK_SIM_DEVICES"],
  },
};

/**
 * The verdict on a platform, then what is worth saying of each library. What is not there is no problem, unless the user
 * named it (`isWanted`) or the bus has a GPU that it is for.
 */
export function judgePlatform(
  platform: PlatformName,
  outcome: Outcome<PlatformFacts>,
  hardware: Hardware,
  isWanted: boolean,
  system?: SystemFacts,
): { readonly checks: Check[]; readonly advice: string[] } {
  const vendor = vendors[platform];
  const facts = outcome.ok ? outcome.value : (outcome.part ?? { platform, devices: [] });
  const name = vendor.title;
  const isAsked = vendor.variable in hardware.environment;
  const isThere = isWanted || hardware.pci.length > 0;

  if (!outcome.ok) {
    const advice = [`its libraries are damaged or do not fit the kernel driver: ${vendor.install}`];
    if (isAsked) advice.unshift(`correct or unset ${vendor.variable}`);
    return { checks: [{ name, verdict: "problem", detail: outcome.problem }, ...libraryChecks(facts)], advice };
  }
  if (facts.problem !== undefined) {
    if (!isThere && !isAsked) {
      return {
        checks: [{ name, verdict: "skipped", detail: `no ${vendor.maker} GPU here: ${facts.problem}` }],
        advice: [],
      };
    }
    const advice = [
      isAsked ? `correct or unset ${vendor.variable}` : vendor.install,
      ...driverAdvice(vendor, hardware, system),
    ];
    return { checks: [{ name, verdict: "problem", detail: facts.problem }], advice };
  }
  if (facts.devices.length === 0) {
    const detail = `${facts.library} finds no device`;
    // Under WSL the bus shows nothing, but who has installed the library there wants a GPU.
    const isExpected = isThere || Boolean(system?.wsl);
    if (!isExpected && hardware.driver === null) return { checks: [{ name, verdict: "skipped", detail }], advice: [] };
    const on = hardware.pci.length > 0 ? `the bus has ${hardware.pci.join(", ")}` : "";
    const loaded = hardware.driver === null ? "" : `the kernel driver ${vendor.kernelDriver} is loaded`;
    const found = [detail, on || loaded].filter(Boolean).join(", although ");
    const advice = driverAdvice(vendor, hardware, system);
    return {
      // A driver without a card on the bus is a machine whose card was taken out or is kept from this container.
      checks: [{ name, verdict: isExpected ? "problem" : "skipped", detail: found }],
      advice:
        advice.length > 0 || !vendor.kernelDriver
          ? advice
          : [`see what the kernel says of ${vendor.kernelDriver}: dmesg`],
    };
  }
  const { driverVersion, runtimeVersion } = facts.devices[0]!;
  const detail = `${facts.library}, driver ${driverVersion}, runtime ${runtimeVersion}`;
  const checks: Check[] = [{ name, verdict: "ok", detail }, ...libraryChecks(facts), ...facts.devices.map(judgeDevice)];
  const advice = facts.devices.some((d) => d.compiles === false)
    ? ["the run-time compiler is older than the GPU: install a newer release of it"]
    : [];
  return { checks, advice };
}

function libraryChecks({ compiler, devices, miopen, loaded = [] }: PlatformFacts): Check[] {
  const checks: Check[] = [];
  if (compiler) checks.push(judgeLibrary("compiler", compiler, null));
  // Wick's own kernels multiply without it, so its absence is no fault.
  const blas = devices.find((d) => d.blas)?.blas;
  if (blas) checks.push(judgeLibrary("BLAS", blas, "Wick's own kernels multiply"));
  if (miopen) checks.push(judgeLibrary("MIOpen", miopen, "optional"));
  const files = loaded.map(({ path, release }) => (release ? `${path} (ROCm ${release})` : path));
  if (files.length > 0) checks.push({ name: "loaded", verdict: "ok", detail: files.join(", ") });
  return checks;
}

/** `without` is what happens where the library is missing; null where that is a fault. */
function judgeLibrary(name: string, found: Found, without: string | null): Check {
  if (!("problem" in found)) {
    const detail = [found.version, found.path, found.why].filter(Boolean).join(", ");
    return { name, verdict: "ok", detail };
  }
  if (without === null) return { name, verdict: "problem", detail: found.problem };
  const isSaid = found.problem.endsWith(without);
  return { name, verdict: "skipped", detail: isSaid ? found.problem : `${without}: ${found.problem}` };
}

function judgeDevice(device: DeviceFacts): Check {
  const { name, problem, product, arch, waveSize, totalBytes = 0 } = device;
  if (problem !== undefined) return { name, verdict: "problem", detail: problem };
  const detail = `${product}, ${arch}, wave ${waveSize}, ${(totalBytes / 2 ** 30).toFixed(1)} GiB`;
  if (device.compiles === false) {
    return { name, verdict: "problem", detail: `${detail}: the run-time compiler does not know ${arch}` };
  }
  return { name, verdict: "ok", detail };
}

function driverAdvice(vendor: Vendor, hardware: Hardware, system?: SystemFacts): string[] {
  const advice: string[] = [];
  const hiding = vendor.hiding.filter((name) => name in hardware.environment);
  for (const name of hiding) advice.push(`${name}=${hardware.environment[name]} may hide devices: unset it`);
  // There the driver is Windows' own, and none of its files are the usual ones.
  if (system?.wsl) return [...advice, ...wslAdvice(vendor, system.wsl)];
  const files = (access: "denied" | "missing"): string =>
    hardware.nodes
      .filter((node) => node.access === access)
      .map((node) => node.path)
      .join(", ");
  if (hardware.driver === null && vendor.kernelDriver && !system?.container)
    advice.push(`the kernel driver ${vendor.kernelDriver} is not loaded: load or install it`);
  if (files("denied"))
    advice.push(`${files("denied")} may not be used by this user; ${vendor.permission}${membership(hardware, system)}`);
  if (files("missing"))
    advice.push(
      system?.container
        ? `${files("missing")} are missing in this container (${system.container}); ${vendor.container}`
        : `${files("missing")} are missing; in a container, ${vendor.container}`,
    );
  return advice;
}

/** How a user comes into the groups of the files that are denied. A group without a name is one of a container's host. */
function membership({ nodes }: Hardware, system?: SystemFacts): string {
  const groups = [...new Set(nodes.flatMap((node) => (node.access === "denied" && node.group ? [node.group] : [])))];
  const numbers = groups.filter((group) => /^\d+$/.test(group));
  if (numbers.length > 0 || system?.container) {
    return `pass ${(numbers.length > 0 ? numbers : ["render", "video"]).map((group) => `--group-add ${group}`).join(" ")}`;
  }
  const named = groups.filter((group) => group !== "root");
  return `sudo usermod -aG ${(named.length > 0 ? named : ["render", "video"]).join(",")} $USER, then log in anew`;
}

function wslAdvice({ maker, kernelDriver }: Vendor, { dxg, rocdxg }: NonNullable<SystemFacts["wsl"]>): string[] {
  if (!dxg) return [`/dev/dxg is missing: update WSL (wsl --update) and ${maker}'s driver for Windows`];
  if (kernelDriver === "amdgpu" && !rocdxg)
    return ["ROCm reaches the GPU through librocdxg here: install it, and set HSA_ENABLE_DXG_DETECTION=1"];
  return [`update ${maker}'s driver for Windows`];
}
