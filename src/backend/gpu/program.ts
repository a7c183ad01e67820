/** Programs: kernels of one file and dtype that are compiled together on first use and kept in the disk cache. */
import { fail } from "../../core/errors.ts";
import { hasWarpgroups, matrixUnit, matrixUnits, sharedBudget } from "./attention-plan.ts";
import { definesOf, type Kernel, kernelNamed, kernels } from "./catalogue.ts";
import type { GpuProperties, KernelCompiler } from "./driver.ts";
import type { CacheKey, KernelCache } from "./kernel-cache.ts";
import { kernelSource } from "./source.ts";

export interface Program {
  /** For people: "attention_128_bf16", "cast_f32_bf16", "rmsnorm{wide}_f32". */
  readonly id: string;
  readonly file: string;
  readonly unit: string;
  readonly kernels: readonly Kernel[];
  /** Whether the file has more kernels of this unit. */
  readonly isPart: boolean;
}

const groupBy = (of: (kernel: Kernel) => string): Map<string, Kernel[]> => {
  const groups = new Map<string, Kernel[]>();
  for (const kernel of kernels.values()) {
    const group = groups.get(of(kernel));
    if (group) group.push(kernel);
    else groups.set(of(kernel), [kernel]);
  }
  return groups;
};

const idOf = ({ file, unit, part }: Kernel): string => `${file}/${part.replace(/\{[TQ]\}/, unit)}`;

let all: ReadonlyMap<string, Program> | undefined;

/** Every program there is, by its id. */
function programTable(): ReadonlyMap<string, Program> {
  if (all) return all;
  const units = groupBy(({ file, unit }) => `${file} ${unit}`);
  all = new Map(
    [...groupBy(idOf)].map(([id, group]) => {
      const { file, unit } = group[0]!;
      const isPart = units.get(`${file} ${unit}`)!.length > group.length;
      return [id, { id, file, unit, kernels: group, isPart }];
    }),
  );
  return all;
}

export const programs = (): Program[] => [...programTable().values()];

export const programNamed = (id: string): Program =>
  programTable().get(id) ?? fail("InvalidArgument", `there is no program ${id}; \`wick kernels\` lists the kernels`);

/** The program that holds a kernel. */
export const programOf = (kernel: Kernel): Program => programTable().get(idOf(kernel))!;

/** kernels/probe.hip is no kernel of the catalogue: its code is read, not run. */
export const probeProgram: Program = { id: "probe", file: "probe", unit: "bytes", kernels: [], isPart: false };

/** The programs that hold these kernels, each once. */
export const programsOf = (names: readonly string[]): Program[] => [
  ...new Set(names.map((name) => programOf(kernelNamed(name)))),
];

/** What compiles a program for a device, and where the results are kept. */
export interface Toolchain {
  readonly device: Pick<GpuProperties, "name" | "arch">;
  readonly compiler: KernelCompiler;
  readonly cache: KernelCache;
}

/** What makes a compiler emit just the kernels of a program. */
export const programOptions = ({ unit, kernels, isPart }: Program): string[] => [
  ...["-DGPU_ONLY", `-DGPU_ONLY_${unit}`],
  ...(isPart ? ["-DGPU_PICK", ...kernels.map(({ name }) => `-DGPU_PICK_${name}`)] : []),
];

/** What a GPU's compiler knows of the card it compiles for. The simulator's compiles for the host and is told, so that it plays the same. */
function playedOptions(arch: string, source: string): string[] {
  const unit = matrixUnit(arch, "bf16");
  const told: readonly (readonly [macro: string, value: number | null])[] = [
    ["GPU_HOST_TILE", matrixUnits.indexOf(unit)],
    ["GPU_BYTE_TILES", unit === "mma" ? 1 : null],
    ["GPU_HOST_WARPGROUPS", hasWarpgroups(arch) ? 1 : null],
  ];
  const shared = sharedBudget(arch) / 1024;
  return [
    ...told.flatMap(([macro, value]) => (value !== null && source.includes(macro) ? [`-D${macro}=${value}`] : [])),
    ...(shared > 64 ? [`-DSIM_SHARED_KB=${shared}`] : []),
  ];
}

function keyOf(program: Program, { device: { arch }, compiler }: Toolchain): CacheKey {
  const source = kernelSource(`${program.file}.hip`);
  const options = ["-std=c++17", ...definesOf(program.file, arch), ...programOptions(program)];
  const codeArch = compiler.codeArch(arch);
  if (codeArch !== arch) options.push(...playedOptions(arch, source));
  return { source, options, arch: codeArch, compiler: compiler.identity };
}

function checkArch({ device: { name, arch }, compiler }: Toolchain): void {
  if (compiler.supports(arch)) return;
  fail(
    "DeviceUnavailable",
    `${name} has the architecture ${arch}, which ${compiler.library} ${compiler.version} does not know; install a newer release`,
  );
}

export interface ProgramCode {
  readonly code: Uint8Array;
  /** Whether it came from the disk. */
  readonly cached: boolean;
}

/** A program's code for a device: from the cache, or compiled now and put there. Blocks this thread. */
export function programCode(program: Program, toolchain: Toolchain): ProgramCode {
  const { compiler, cache, device } = toolchain;
  const key = keyOf(program, toolchain);
  const cached = cache.get(key);
  if (cached) return { code: cached, cached: true };
  checkArch(toolchain);
  const code = compiler.compile(key.source, `${program.id}.hip`, device.arch, key.options);
  cache.put(key, code);
  return { code, cached: false };
}

/** As `programCode`, while this thread goes on. */
export async function programCodeAsync(program: Program, toolchain: Toolchain): Promise<ProgramCode> {
  const { compiler, cache, device } = toolchain;
  const key = keyOf(program, toolchain);
  const cached = cache.get(key);
  if (cached) return { code: cached, cached: true };
  checkArch(toolchain);
  const code = await compiler.compileAsync(key.source, `${program.id}.hip`, device.arch, key.options);
  cache.put(key, code);
  return { code, cached: false };
}
