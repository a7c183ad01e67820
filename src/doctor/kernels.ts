/** Compiles programs for a device, loads them and looks their kernels up. One call does one program: it may be the last. */
import type { Gpu } from "../backend/gpu/gpu.ts";
import { KernelCache } from "../backend/gpu/kernel-cache.ts";
import { platform } from "../backend/gpu/platforms.ts";
import { programCode, programs } from "../backend/gpu/program.ts";
import type { Say } from "./check.ts";
import { gpuOf } from "./gpu-of.ts";

export interface Compilation {
  readonly device: string;
  readonly file: string;
  readonly unit: string;
}

export interface Compiled {
  readonly cached: boolean;
  readonly seconds: number;
  readonly bytes: number;
  readonly kernels: number;
}

export async function compileProgram({ device, file, unit }: Compilation, say: Say): Promise<Compiled> {
  say(`opening ${device}`);
  const { context } = gpuOf(device) as Gpu;
  const compiler = platform(device.split(":")[0] as "rocm" | "cuda" | "sim").compiler();
  const program = programs().find((p) => p.file === file && p.unit === unit)!;
  say(`compiling ${file} for ${unit}`);
  const start = performance.now();
  const { code, cached } = programCode(file, unit, { device: context.properties, compiler, cache: new KernelCache() });
  const seconds = (performance.now() - start) / 1000;
  say(`loading ${file} for ${unit}`);
  const module = context.loadModule(code);
  try {
    for (const { name } of program.kernels) context.getFunction(module, name);
  } finally {
    context.unloadModule(module);
  }
  return { cached, seconds, bytes: code.length, kernels: program.kernels.length };
}
