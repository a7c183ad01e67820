/** Compiles programs for a device, loads them and looks their kernels up. One call does one program: it may be the last. */
import type { Gpu } from "../backend/gpu/gpu.ts";
import { KernelCache } from "../backend/gpu/kernel-cache.ts";
import { platform } from "../backend/gpu/platforms.ts";
import { programCodeAsync, programNamed } from "../backend/gpu/program.ts";
import type { Say } from "./check.ts";
import { gpuOf } from "./gpu-of.ts";

export interface Compilation {
  readonly device: string;
  /** The program's id. */
  readonly program: string;
}

export interface Compiled {
  readonly cached: boolean;
  readonly seconds: number;
  readonly bytes: number;
  readonly kernels: number;
}

export async function compileProgram({ device, program: id }: Compilation, say: Say): Promise<Compiled> {
  say(`opening ${device}`);
  const { context } = gpuOf(device) as Gpu;
  const compiler = platform(device.split(":")[0] as "rocm" | "cuda" | "sim").compiler();
  const program = programNamed(id);
  say(`compiling ${id}`);
  const start = performance.now();
  const toolchain = { device: context.properties, compiler, cache: new KernelCache() };
  const { code, cached } = await programCodeAsync(program, toolchain);
  const seconds = (performance.now() - start) / 1000;
  say(`loading ${id}`);
  const module = context.loadModule(code);
  try {
    for (const { name } of program.kernels) context.getFunction(module, name);
  } finally {
    context.unloadModule(module);
  }
  return { cached, seconds, bytes: code.length, kernels: program.kernels.length };
}
