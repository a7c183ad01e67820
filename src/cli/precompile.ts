/** `wick kernels --precompile`: fills the kernel cache, so that a first run on the GPU compiles nothing. */
import { Device } from "../backend/device.ts";
import { KernelCache } from "../backend/gpu/kernel-cache.ts";
import { compilerFor, platform } from "../backend/gpu/platforms.ts";
import {
  type Program,
  probeProgram,
  programCodeAsync,
  programs,
  programsOf,
  type Toolchain,
} from "../backend/gpu/program.ts";
import {
  batchKernels,
  loadingKernels,
  productKernels,
  quantProductKernels,
  transformerKernels,
} from "../backend/gpu/transformer-kernels.ts";
import { fail } from "../core/errors.ts";
import { gpuOf } from "../doctor/gpu-of.ts";
import { type ComputeType, needsOf, openModel } from "../models/load.ts";
import { located } from "./model-options.ts";
import { ProgressBar } from "./progress.ts";

export interface PrecompileOptions {
  arch?: string;
  device?: string;
  model?: string;
  dtype?: ComputeType;
  only?: string;
}

export async function precompile(options: PrecompileOptions): Promise<void> {
  const toolchain = toolchainOf(options);
  const model = options.model === undefined ? undefined : await located(options.model);
  if (options.model !== undefined && model === undefined) return;
  const named = { ...options, ...(model !== undefined && { model }) };
  const wanted = await wantedPrograms(named, toolchain.device.arch);
  const start = performance.now();
  const bar = new ProgressBar(`compiling for ${toolchain.device.arch}`, process.stderr, (n) => `${n}`);
  let done = 0;
  let compiled = 0;
  const problems: Error[] = [];
  await Promise.all(
    wanted.map(async (program) => {
      try {
        if (!(await programCodeAsync(program, toolchain)).cached) compiled++;
      } catch (error) {
        problems.push(error as Error);
      }
      bar.update(++done, wanted.length);
    }),
  );
  bar.clear();
  const { cache, compiler } = toolchain;
  if (problems.length > 0) {
    fail(
      "CompileFailed",
      `${problems.length} of ${wanted.length} programs do not compile for ${toolchain.device.arch}; the first: ${problems[0]!.message}`,
    );
  }
  if (cache.problem !== undefined) fail("InvalidArgument", `${cache.folder} cannot be written: ${cache.problem}`);
  const seconds = ((performance.now() - start) / 1000).toFixed(1);
  const there = wanted.length - compiled;
  console.log(
    `${wanted.length} programs for ${toolchain.device.arch} in ${cache.folder}: ${compiled} compiled, ${there} were there, ${seconds} s, ${compiler.version} (${compiler.library})`,
  );
}

function toolchainOf({ arch, device }: PrecompileOptions): Toolchain {
  const cache = new KernelCache();
  if (arch !== undefined) {
    if (device !== undefined) fail("InvalidArgument", "kernels: --arch and --device are two ways to say one thing");
    return { device: { name: arch, arch }, compiler: compilerFor(arch), cache };
  }
  const name = device ?? Device.best().name;
  const gpu = gpuOf(name);
  if (!gpu) {
    return fail(
      "DeviceUnavailable",
      `kernels: ${name} has no kernels to compile; give --arch gfx1100 (or another) to compile without a GPU`,
    );
  }
  const compiler = platform(name.split(":")[0] as "rocm" | "cuda" | "sim").compiler();
  return { device: gpu.context.properties, compiler, cache };
}

async function wantedPrograms({ model, dtype, only }: PrecompileOptions, arch: string): Promise<Program[]> {
  const all = model === undefined ? programs() : await programsOfModel(model, dtype, arch);
  if (only === undefined) return [probeProgram, ...all];
  const files = only.split(",");
  const known = new Set(programs().map(({ file }) => file));
  const unknown = files.find((file) => !known.has(file));
  if (unknown !== undefined) {
    fail("InvalidArgument", `kernels: there is no file ${unknown}; there are ${[...known].join(", ")}`);
  }
  return all.filter(({ file }) => files.includes(file));
}

/** Everything that it may run: with a BLAS library or without, alone or in batches. */
async function programsOfModel(path: string, dtype: ComputeType | undefined, arch: string): Promise<Program[]> {
  await using source = await openModel(path);
  const type = dtype ?? source.config.dtype ?? "f32";
  await using weights = await source.openWeights({ device: Device.cpu(), dtype: type });
  const needs = needsOf(source.config, weights, type);
  // Whichever unit the card turns out to have.
  const products = (["fma", "mma"] as const).flatMap((unit) => productKernels(needs, unit, arch));
  const others = [loadingKernels, transformerKernels, batchKernels, quantProductKernels].flatMap((of) =>
    of(needs, arch),
  );
  return programsOf([...products, ...others]);
}
