/** Programs: the kernels of one file and dtype, compiled together on first use and kept in the disk cache. */
import type { DType } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import type { QuantType } from "../../core/quant-types.ts";
import { matrixUnit, matrixUnits } from "./attention-plan.ts";
import { type Kernel, kernels } from "./catalogue.ts";
import type { GpuProperties, KernelCompiler } from "./driver.ts";
import type { CacheKey, KernelCache } from "./kernel-cache.ts";
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

/** Files whose programs every transformer uses, by what a program is of. Those that take longest to compile come first. */
const ofTransformers = {
  dtype: ["attention", "attention_decode", "linear", "norm", "decode", "cast", "glu", "indexing", "binary"],
  quantized: ["quant-matvec", "quant-blocks"],
} as const;

/** The programs that a transformer needs which computes in `dtype` with weights of these types. */
export function transformerPrograms(dtype: DType, types: readonly QuantType[]): Program[] {
  const units = new Map<string, readonly string[]>([
    ...types.map((type) => [type.toLowerCase(), ofTransformers.quantized] as const),
    [dtype, ofTransformers.dtype],
  ]);
  const all = programs();
  return [...units].flatMap(([unit, files]) =>
    files.flatMap((file) => all.filter((program) => program.file === file && program.unit === unit)),
  );
}

/** What compiles a program for a device, and where the results are kept. */
export interface Toolchain {
  readonly device: Pick<GpuProperties, "name" | "arch">;
  readonly compiler: KernelCompiler;
  readonly cache: KernelCache;
}

function keyOf(file: string, unit: string, { device: { arch }, compiler }: Toolchain): CacheKey {
  const source = kernelSource(`${file}.hip`);
  const options = ["-std=c++17", "-DGPU_ONLY", `-DGPU_ONLY_${unit}`];
  // A GPU's compiler chooses the matrix unit by itself; the simulator's is told, so that it runs the same layout.
  if (source.includes("GPU_HOST_TILE"))
    options.push(`-DGPU_HOST_TILE=${matrixUnits.indexOf(matrixUnit(arch, "bf16"))}`);
  return { source, options, arch: compiler.codeArch(arch), compiler: `${compiler.library} ${compiler.version}` };
}

function checkArch({ device: { name, arch }, compiler }: Toolchain): void {
  if (compiler.supports(arch)) return;
  fail(
    "DeviceUnavailable",
    `${name} has the architecture ${arch}, which ${compiler.library} ${compiler.version} does not know; install a newer release`,
  );
}

/** A program's code for a device: from the cache, or compiled now and put there. */
export function programCode(
  file: string,
  unit: string,
  toolchain: Toolchain,
): { readonly code: Uint8Array; readonly cached: boolean } {
  const { compiler, cache } = toolchain;
  const key = keyOf(file, unit, toolchain);
  const cached = cache.get(key);
  if (cached) return { code: cached, cached: true };
  checkArch(toolchain);
  const code = compiler.compile(key.source, `${file}.hip`, toolchain.device.arch, key.options);
  cache.put(key, code);
  return { code, cached: false };
}

/** As `programCode`, on another thread. */
export async function programCodeAsync(file: string, unit: string, toolchain: Toolchain): Promise<Uint8Array> {
  const { compiler, cache } = toolchain;
  const key = keyOf(file, unit, toolchain);
  const cached = cache.get(key);
  if (cached) return cached;
  checkArch(toolchain);
  const code = await compiler.compileAsync(key.source, `${file}.hip`, toolchain.device.arch, key.options);
  cache.put(key, code);
  return code;
}
