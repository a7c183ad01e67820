/** AMD's cards as the kernel driver shows them in /sys. Serial numbers and unique ids stay there. */
import type { Root } from "./root.ts";

export interface AmdCard {
  /** "1002:744c" */
  readonly pci: string;
  readonly product?: string;
  readonly vbios?: string;
  readonly vramBytes?: number;
  /** Host memory that the GPU may map. */
  readonly gttBytes?: number;
  /** Versions of the firmware, by its name in the driver. */
  readonly firmware: Readonly<Record<string, string>>;
}

const drm = "/sys/class/drm";

export function amdCards(root: Root): AmdCard[] {
  return root.entries(drm).flatMap((name) => {
    const folder = `${drm}/${name}/device`;
    const read = (file: string): string | null => root.line(`${folder}/${file}`);
    // "card0-DP-1" is a connector.
    if (!/^card\d+$/.test(name) || read("vendor") !== "0x1002") return [];
    const text = { product: read("product_name"), vbios: read("vbios_version") };
    const bytes = { vramBytes: read("mem_info_vram_total"), gttBytes: read("mem_info_gtt_total") };
    return [
      {
        pci: `1002:${(read("device") ?? "0x").slice(2)}`,
        ...Object.fromEntries(Object.entries(text).filter(([, value]) => value)),
        ...Object.fromEntries(Object.entries(bytes).flatMap(([key, value]) => (value ? [[key, Number(value)]] : []))),
        firmware: firmwareOf(root, `${folder}/fw_version`),
      },
    ];
  });
}

/** What is zero is not loaded. */
const firmwareOf = (root: Root, folder: string): Record<string, string> =>
  Object.fromEntries(
    root.entries(folder).flatMap((file) => {
      const version = root.line(`${folder}/${file}`);
      return version && Number(version) !== 0 ? [[file.replace(/_fw_version$/, ""), version]] : [];
    }),
  );

/** Of the nodes that compute: a processor's target version is 0. */
export function kfdTargets(root: Root): string[] {
  const nodes = "/sys/class/kfd/kfd/topology/nodes";
  return root.entries(nodes).flatMap((node) => {
    const version = /^gfx_target_version (\d+)/m.exec(root.text(`${nodes}/${node}/properties`) ?? "")?.[1];
    return version && Number(version) > 0 ? [targetName(Number(version))] : [];
  });
}

/** 110003 is gfx1103, 90010 is gfx90a. */
export function targetName(version: number): string {
  const digits = [Math.floor(version / 10_000), Math.floor(version / 100) % 100, version % 100];
  return `gfx${digits[0]}${digits[1]!.toString(16)}${digits[2]!.toString(16)}`;
}
