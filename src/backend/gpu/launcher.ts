/**
 * Turns a kernel's name and argument values into a launch. Programs are compiled on first use, one per kernel file and
 * dtype, and found in the disk cache afterwards; argument blocks are allocated once per kernel and reused.
 */
import { type DType, encode } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import type { MatrixUnit } from "./attention-plan.ts";
import { type ArgKind, argBytes, type Kernel, kernelNamed, type Sizes } from "./catalogue.ts";
import type { ArgumentBlock, GpuContext, Handle, KernelCompiler } from "./driver.ts";
import type { KernelCache } from "./kernel-cache.ts";
import { compiledUnit } from "./matrix-unit.ts";
import { type Program, programCode, programCodeAsync, type Toolchain } from "./program.ts";

/** Values by argument name. Addresses and sizes are numbers below 2⁵³; strides may be negative. */
export type Values = Readonly<Record<string, number | bigint>>;

/** Node has four threads for such work, and files are read meanwhile. */
const COMPILING_AT_ONCE = 3;

interface Loaded {
  readonly kernel: Kernel;
  readonly fn: Handle;
  readonly args: ArgumentBlock;
}

export class Launcher {
  readonly #context: GpuContext;
  readonly #compiler: () => KernelCompiler;
  readonly #cache: KernelCache;
  readonly #loaded = new Map<string, Loaded>();
  readonly #modules = new Map<string, Handle>();
  #unit: MatrixUnit | undefined;

  constructor(context: GpuContext, compiler: () => KernelCompiler, cache: KernelCache) {
    this.#context = context;
    this.#compiler = compiler;
    this.#cache = cache;
  }

  launch(name: string, values: Values): void {
    const { kernel, fn, args } = this.#loaded.get(name) ?? this.#load(name);
    for (let i = 0; i < kernel.args.length; i++) {
      const { name: argument, kind } = kernel.args[i]!;
      const value = values[argument];
      if (value === undefined) fail("DriverError", `kernel ${name} was not given its argument ${argument}`);
      write(args.view, args.offsets[i]!, kind === "T" ? (kernel.unit as DType) : kind, value);
    }
    const { grid, block, shared } = kernel.launch(values as Sizes);
    this.#context.launch(fn, { grid: [grid, 1, 1], block: [block, 1, 1], sharedBytes: shared }, args);
  }

  /** Compiles these programs a few at a time, without blocking this thread. What fails here fails again, aloud, when used. */
  async prepare(programs: readonly Program[]): Promise<void> {
    const waiting = programs.filter(({ file, unit }) => !this.#modules.has(`${file}:${unit}`));
    const work = async (): Promise<void> => {
      for (let next = waiting.shift(); next; next = waiting.shift()) {
        const { file, unit } = next;
        const code = await programCodeAsync(file, unit, this.#toolchain()).catch(() => null);
        const id = `${file}:${unit}`;
        // Somebody may have needed it meanwhile.
        if (code && !this.#modules.has(id)) this.#modules.set(id, this.#context.loadModule(code));
      }
    };
    await Promise.all(Array.from({ length: COMPILING_AT_ONCE }, work));
  }

  /** The matrix unit that the compiler takes for halves on this device. */
  get matrixUnit(): MatrixUnit {
    this.#unit ??= compiledUnit(this.#toolchain());
    return this.#unit;
  }

  #toolchain(): Toolchain {
    return { device: this.#context.properties, compiler: this.#compiler(), cache: this.#cache };
  }

  #load(name: string): Loaded {
    const kernel = kernelNamed(name);
    const fn = this.#context.getFunction(this.#module(kernel.file, kernel.unit), name);
    const args = this.#context.argumentBlock(kernel.args.map((arg) => argBytes(kernel, arg)));
    const loaded = { kernel, fn, args };
    this.#loaded.set(name, loaded);
    return loaded;
  }

  #module(file: string, unit: string): Handle {
    const id = `${file}:${unit}`;
    let module = this.#modules.get(id);
    if (module === undefined) {
      const { code } = programCode(file, unit, this.#toolchain());
      module = this.#context.loadModule(code);
      this.#modules.set(id, module);
    }
    return module;
  }
}

function write(view: DataView, at: number, kind: Exclude<ArgKind, "T"> | DType, value: number | bigint): void {
  switch (kind) {
    case "size":
    case "ptr":
    case "u64":
    case "i64":
      if (typeof value === "number" && value >= 0) {
        // Two halves: a BigInt would be made and dropped for every argument of every launch.
        view.setUint32(at, value, true);
        view.setUint32(at + 4, value / 2 ** 32, true);
      } else {
        view.setBigInt64(at, BigInt.asIntN(64, BigInt(value)), true);
      }
      return;
    case "u32":
      view.setUint32(at, Number(value), true);
      return;
    case "i32":
      view.setInt32(at, Number(value), true);
      return;
    case "u8":
      view.setUint8(at, Number(value));
      return;
    case "f32":
      view.setFloat32(at, Number(value), true);
      return;
    case "f64":
      view.setFloat64(at, Number(value), true);
      return;
    default: {
      const bytes = encode([value], kind);
      for (let i = 0; i < bytes.length; i++) view.setUint8(at + i, bytes[i]!);
    }
  }
}
