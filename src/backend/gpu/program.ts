/** Programs: the kernels of one file and dtype, compiled together on first use and kept in the disk cache. */
import { fail } from "../../core/errors.ts";
import { matrixUnit, matrixUnits } from "./attention-plan.ts";
import { type Kernel, kernels } from "./catalogue.ts";
import type { GpuProperties, KernelCompiler } from "./driver.ts";
import type { KernelCache } from "./kernel-cache.ts";
import { kernelSource } from "./source.ts";

export interface Program {
  readonly file: string;
  readonly unit: string;
  readonly kernels: readonly Kernel[];
}

/** Every program there is. */
export function programs(): Program[] {
  const found = new Map<string, Kernel[]>();
  for (const kernel of kernels.values()) {
    const id = `${kernel.file} ${kernel.unit}`;
    found.set(id, [...(found.get(id) ?? []), kernel]);
  }
  return [...found.values()].map((group) => ({ file: group[0]!.file, unit: group[0]!.unit, kernels: group }));
}

/** A program's code for a device: from the cache, or compiled now and put there. */
export function programCode(
  file: string,
  unit: string,
  device: Pick<GpuProperties, "name" | "arch">,
  compiler: KernelCompiler,
  cache: KernelCache,
): { readonly code: Uint8Array; readonly cached: boolean } {
  const { arch } = device;
  const source = kernelSource(`${file}.hip`);
  // The matrix unit is what the compiler would choose by itself; the simulator's must be told, so that it runs the same layout.
  const tile = `-DGPU_TILE=${matrixUnits.indexOf(matrixUnit(arch, "bf16"))}`;
  const options = ["-std=c++17", "-DGPU_ONLY", `-DGPU_ONLY_${unit}`, tile];
  const key = { source, options, arch, compiler: `${compiler.library} ${compiler.version}` };
  const cached = cache.get(key);
  if (cached) return { code: cached, cached: true };
  if (!compiler.supports(arch)) {
    fail(
      "DeviceUnavailable",
      `${device.name} has the architecture ${arch}, which ${compiler.library} ${compiler.version} does not know; install a newer release`,
    );
  }
  const code = compiler.compile(source, `${file}.hip`, arch, options);
  cache.put(key, code);
  return { code, cached: false };
}
