/** hiprtc and nvrtc have one API under two prefixes; this drives both. */
import { fail } from "../../core/errors.ts";
import type { KernelCompiler } from "./driver.ts";
import { type Bound, callAsync, type Library, symbolOf } from "./library.ts";
import { cString } from "./native-driver.ts";

type CompilerCall =
  | "version"
  | "create"
  | "destroy"
  | "compile"
  | "logSize"
  | "log"
  | "codeSize"
  | "code"
  | "assemblySize"
  | "assembly";
export type CompilerPrototypes = Readonly<Record<CompilerCall, string>>;

export interface CompilerVendor {
  /** "hiprtc" or "nvrtc". */
  readonly name: string;
  readonly library: Library;
  readonly prototypes: CompilerPrototypes;
  /** The text of a result code. */
  describe(code: number): string;
  /** What to compile for to run on an arch, or null when it cannot: code, or assembly that the driver finishes. */
  target(arch: string): { readonly architecture: string; readonly output: "code" | "assembly" } | null;
  /** Where the code runs on every device alike: what it is kept under. */
  readonly commonArch?: string | undefined;
}

interface Program {
  /** The program's handle, passed by address to the call that destroys it. */
  readonly cell: BigUint64Array;
  readonly name: string;
  readonly arch: string;
  readonly output: "code" | "assembly";
  readonly options: readonly string[];
}

export class NativeCompiler implements KernelCompiler {
  readonly library: string;
  readonly version: string;
  readonly #vendor: CompilerVendor;
  readonly #api: Bound<CompilerPrototypes>;

  constructor(vendor: CompilerVendor) {
    this.#vendor = vendor;
    this.library = vendor.library.path;
    this.#api = vendor.library.bind(vendor.prototypes);
    const major = new Int32Array(1);
    const minor = new Int32Array(1);
    this.#check(this.#api.version(major, minor), "version");
    this.version = `${vendor.name} ${major[0]}.${minor[0]}`;
  }

  supports(arch: string): boolean {
    return this.#vendor.target(arch) !== null;
  }

  codeArch(arch: string): string {
    return this.#vendor.commonArch ?? arch;
  }

  compile(source: string, name: string, arch: string, options: readonly string[]): Uint8Array {
    const program = this.#create(source, name, arch, options);
    return this.#finish(program, this.#api.compile(program.cell[0]!, program.options.length, program.options));
  }

  async compileAsync(source: string, name: string, arch: string, options: readonly string[]): Promise<Uint8Array> {
    const program = this.#create(source, name, arch, options);
    const code = await callAsync(this.#api.compile, program.cell[0]!, program.options.length, program.options);
    return this.#finish(program, code);
  }

  #create(source: string, name: string, arch: string, options: readonly string[]): Program {
    const target = this.#vendor.target(arch);
    if (target === null) {
      return fail(
        "CompileFailed",
        `${this.version} (${this.library}) cannot compile for ${arch}; install a release that knows this GPU`,
      );
    }
    const cell = new BigUint64Array(1);
    // As bytes: a string argument would have to fit the FFI's fixed stack.
    const text = Buffer.from(`${source}\0`);
    this.#check(this.#api.create(cell, text, name, 0, 0n, 0n), "create");
    const flags = [`--gpu-architecture=${target.architecture}`, "-std=c++17", ...options];
    return { cell, name, arch, output: target.output, options: flags };
  }

  #finish(program: Program, code: number): Uint8Array {
    const handle = program.cell[0]!;
    try {
      if (code !== 0) {
        const log = cString(this.#read(handle, "logSize", "log")).trim();
        fail(
          "CompileFailed",
          `${this.version} could not compile ${program.name} for ${program.arch} (${this.#vendor.describe(code)})${log && `:\n${log}`}`,
        );
      }
      return program.output === "code"
        ? this.#read(handle, "codeSize", "code")
        : this.#read(handle, "assemblySize", "assembly");
    } finally {
      this.#api.destroy(program.cell);
    }
  }

  #read(
    program: bigint,
    sizeCall: "logSize" | "codeSize" | "assemblySize",
    readCall: "log" | "code" | "assembly",
  ): Uint8Array {
    const size = new BigUint64Array(1);
    this.#check(this.#api[sizeCall](program, size), sizeCall);
    const bytes = new Uint8Array(Number(size[0]));
    if (bytes.length > 0) this.#check(this.#api[readCall](program, bytes), readCall);
    return bytes;
  }

  #check(code: number, call: CompilerCall): void {
    if (code === 0) return;
    fail("DriverError", `${symbolOf(this.#vendor.prototypes[call])} failed: ${this.#vendor.describe(code)}`);
  }
}
