/** hiprtc and nvrtc have one API under two prefixes; this drives both, in child processes. */
import { fail } from "../../core/errors.ts";
import { type CompileAnswer, CompilePool, type CompileRequest } from "./compile-pool.ts";
import type { KernelCompiler } from "./driver.ts";
import { type Library, symbolOf } from "./library.ts";
import { libraryIdentity } from "./library-identity.ts";

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
  /** What tells releases apart besides the library and its version: hiprtc answers 9.0 in all of them. */
  readonly release?: string;
  /** The text of a result code. */
  describe(code: number): string;
  /** What to compile for to run on an arch, or null when it cannot: code, or assembly that the driver finishes. */
  target(arch: string): { readonly architecture: string; readonly output: "code" | "assembly" } | null;
  /** Where the code runs on every device alike: what it is kept under. */
  readonly commonArch?: string | undefined;
}

const elfMagic = [0x7f, 0x45, 0x4c, 0x46];

export class NativeCompiler implements KernelCompiler {
  readonly library: string;
  readonly version: string;
  readonly identity: string;
  readonly #vendor: CompilerVendor;
  readonly #pool: CompilePool;

  constructor(vendor: CompilerVendor) {
    this.#vendor = vendor;
    this.library = vendor.library.path;
    const api = vendor.library.bind(vendor.prototypes);
    const major = new Int32Array(1);
    const minor = new Int32Array(1);
    const code = api.version(major, minor);
    if (code !== 0) fail("DriverError", `${symbolOf(vendor.prototypes.version)} failed: ${vendor.describe(code)}`);
    this.version = `${vendor.name} ${major[0]}.${minor[0]}`;
    this.identity = [this.version, vendor.release ?? "", libraryIdentity(this.library)].join(" ");
    this.#pool = new CompilePool(this.library, vendor.prototypes);
  }

  supports(arch: string): boolean {
    return this.#vendor.target(arch) !== null;
  }

  codeArch(arch: string): string {
    return this.#vendor.commonArch ?? arch;
  }

  compile(source: string, name: string, arch: string, options: readonly string[]): Uint8Array {
    const request = this.#request(source, name, arch, options);
    return this.#code(request, arch, this.#pool.compileSync(request));
  }

  async compileAsync(source: string, name: string, arch: string, options: readonly string[]): Promise<Uint8Array> {
    const request = this.#request(source, name, arch, options);
    return this.#code(request, arch, await this.#pool.compile(request));
  }

  #request(source: string, name: string, arch: string, options: readonly string[]): CompileRequest {
    const target = this.#vendor.target(arch);
    if (target === null) {
      return fail(
        "CompileFailed",
        `${this.version} (${this.library}) cannot compile for ${arch}; install a release that knows this GPU`,
      );
    }
    const flags = [`--gpu-architecture=${target.architecture}`, "-std=c++17", ...options];
    return { source, name, options: flags, output: target.output };
  }

  #code({ name, output }: CompileRequest, arch: string, answer: CompileAnswer): Uint8Array {
    const what = `${name} for ${arch}`;
    if ("problem" in answer) {
      return fail(
        "CompileFailed",
        `${this.version} (${this.library}) ${answer.problem}, while it compiled ${what} in a process of its own; \`wick doctor\` examines the installation`,
      );
    }
    const { call, code, bytes } = answer;
    const log = answer.log.trim();
    if (code !== 0) {
      const text = `${symbolOf(this.#vendor.prototypes[call])}: ${this.#vendor.describe(code)}`;
      return fail("CompileFailed", `${this.version} could not compile ${what} (${text})${log && `:\n${log}`}`);
    }
    if (output === "code" && !elfMagic.every((byte, i) => bytes[i] === byte)) {
      return fail(
        "CompileFailed",
        `${this.version} (${this.library}) gave ${bytes.length} bytes for ${what} that are no code object; \`wick doctor\` examines the installation`,
      );
    }
    return bytes;
  }
}
