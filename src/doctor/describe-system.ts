/** The system as lines of the report. */
import { formatBytes } from "../backend/usage.ts";
import type { AmdCard } from "./cards.ts";
import type { Check } from "./check.ts";
import type { GpuVendor, Hardware } from "./hardware.ts";
import type { Surroundings } from "./system.ts";

const drivers: Readonly<Record<GpuVendor, { readonly maker: string; readonly module: string }>> = {
  rocm: { maker: "AMD", module: "amdgpu" },
  cuda: { maker: "NVIDIA", module: "nvidia" },
};

export function systemChecks({ system, hardware }: Surroundings): Check[] {
  const { rocm, cuda } = hardware;
  const lines: [string, string][] = [
    ["machine", `${system.distribution}, ${system.system}, Node ${system.node}`],
    ["processor", `${system.processor}, ${system.memory}`],
  ];
  if (system.container) lines.push(["container", system.container]);
  if (system.wsl) lines.push(["WSL", `/dev/dxg ${isThere(system.wsl.dxg)}, librocdxg ${isThere(system.wsl.rocdxg)}`]);
  for (const vendor of ["rocm", "cuda"] as const) lines.push(...hardwareLines(vendor, hardware[vendor]));
  if (rocm.driver !== null || rocm.pci.length > 0)
    lines.push(["groups", system.groups.join(", ") || "neither render nor video"]);
  const releases = Object.entries(system.rocm).map(([folder, version]) => `${version} in ${folder}`);
  if (releases.length > 0) lines.push(["ROCm", releases.join(", ")]);
  const variables = Object.entries({ ...rocm.environment, ...cuda.environment });
  if (variables.length > 0) lines.push(["environment", variables.map(([name, value]) => `${name}=${value}`).join(" ")]);
  return lines.map(([name, detail]) => ({ name, verdict: "ok", detail }));
}

function hardwareLines(
  vendor: GpuVendor,
  { pci, driver, driverOrigin, nodes, cards, targets }: Hardware,
): [string, string][] {
  if (pci.length === 0 && driver === null) return [];
  const { maker, module } = drivers[vendor];
  const described = cards?.length ? cards.map(describeCard) : pci;
  const names = targets?.length ? ` (${targets.join(", ")})` : "";
  return [
    [`${maker} GPUs`, `${described.join("; ") || "none on the bus"}${names}`],
    [
      `${module}`,
      driver === null ? "not loaded" : `${driver}, of the ${driverOrigin === "DKMS" ? "DKMS package" : "kernel"}`,
    ],
    ["files", nodes.map((n) => `${n.path} ${n.mode ? `${n.mode} ${n.group} ` : ""}${n.access}`).join(", ")],
  ];
}

function describeCard({ pci, product, vbios, vramBytes, gttBytes, firmware }: AmdCard): string {
  const memory =
    vramBytes === undefined
      ? []
      : [`${formatBytes(vramBytes)} of its own, ${formatBytes(gttBytes ?? 0)} of the host's`];
  const count = Object.keys(firmware).length;
  const parts = [product, ...memory, vbios && `VBIOS ${vbios}`, count > 0 && `${count} firmwares`];
  return [pci, ...parts.filter(Boolean)].join(", ");
}

const isThere = (yes: boolean): string => (yes ? "is there" : "is missing");
