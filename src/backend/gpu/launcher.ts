/**
 * Turns a kernel's name and argument values into a launch. Programs are compiled on first use, a few kernels each, and
 * found in the disk cache afterwards; argument blocks are allocated once per kernel and reused.
 */
import { setImmediate as nextTurn } from "node:timers/promises";
import { type DType, encode } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import type { MatrixUnit } from "./attention-plan.ts";
import {
  type ArgKind,
  argBytes,
  type Kernel,
  type KernelName,
  kernelNamed,
  type Sizes,
  type ValuesFor,
} from "./catalogue.ts";
import type { ArgumentBlock, GpuContext, Handle, KernelCompiler } from "./driver.ts";
import type { KernelCache } from "./kernel-cache.ts";
import { compiledUnit, prepareUnit } from "./matrix-unit.ts";
import { type Program, programCode, programCodeAsync, programOf, programsOf, type Toolchain } from "./program.ts";

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
  readonly #modules = new Map<Program, Handle>();
  #unit: MatrixUnit | undefined;
  /** In a rehearsal: what would have been launched. */
  #rehearsed: Set<KernelName> | null = null;

  constructor(context: GpuContext, compiler: () => KernelCompiler, cache: KernelCache) {
    this.#context = context;
    this.#compiler = compiler;
    this.#cache = cache;
  }

  launch<Name extends KernelName>(name: Name, given: ValuesFor<Name>): void {
    if (this.#rehearsed) {
      this.#rehearsed.add(name);
      return;
    }
    const values = given as Readonly<Record<string, number | bigint>>;
    const { kernel, fn, args } = this.#loaded.get(name) ?? this.#load(name);
    for (let i = 0; i < kernel.args.length; i++) {
      const { name: argument, kind } = kernel.args[i]!;
      const value = values[argument];
      if (value === undefined) fail("DriverError", `kernel ${name} was not given its argument ${argument}`);
      write(args.view, args.offsets[i]!, kind === "T" ? (kernel.unit as DType) : kind, value);
    }
    const { grid, block, shared, crowds } = kernel.launch(values as Sizes);
    this.#context.launch(fn, { grid: [grid, 1, 1], block: [block, 1, 1], sharedBytes: shared, crowds }, args);
  }

  /**
   * Compiles the programs of these kernels side by side, without blocking this thread. What fails here fails again, aloud,
   * when it is used.
   */
  async prepare(names: readonly KernelName[]): Promise<void> {
    const toolchain = this.#toolchain();
    const waiting = programsOf(names).filter((program) => !this.#modules.has(program));
    const compiled = [prepareUnit(toolchain).catch(() => {})];
    for (const program of waiting) {
      // Reading and hashing all sources at once would be a pause that users notice.
      await nextTurn();
      compiled.push(this.#compileAhead(program, toolchain));
    }
    await Promise.all(compiled);
  }

  /** Compiles side by side the programs of the kernels that `run` would launch: none is, so its results are not to be used. */
  async rehearse(run: () => Promise<void>): Promise<void> {
    const names = new Set<KernelName>();
    this.#rehearsed = names;
    try {
      await run();
    } finally {
      this.#rehearsed = null;
    }
    await this.prepare([...names]);
  }

  async #compileAhead(program: Program, toolchain: Toolchain): Promise<void> {
    const found = await programCodeAsync(program, toolchain).catch(() => null);
    // Somebody may have needed it meanwhile.
    if (found && !this.#modules.has(program)) this.#modules.set(program, this.#context.loadModule(found.code));
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
    const fn = this.#context.getFunction(this.#module(programOf(kernel)), name);
    const args = this.#context.argumentBlock(kernel.args.map((arg) => argBytes(kernel, arg)));
    const loaded = { kernel, fn, args };
    this.#loaded.set(name, loaded);
    return loaded;
  }

  #module(program: Program): Handle {
    let module = this.#modules.get(program);
    if (module === undefined) {
      const { code } = programCode(program, this.#toolchain());
      module = this.#context.loadModule(code);
      this.#modules.set(program, module);
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
