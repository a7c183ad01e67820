/** NVIDIA's run-time compiler. It compiles to machine code, so that the driver has nothing left to compile. */
import type { KernelCompiler } from "../driver.ts";
import { type Library, type LibrarySpec, openLibrary } from "../library.ts";
import { type CompilerPrototypes, NativeCompiler } from "../native-compiler.ts";
import { cudaFiles } from "./folders.ts";

const spec = (): LibrarySpec => ({
  title: "nvrtc",
  env: "WICK_NVRTC_LIBRARY",
  ...cudaFiles("nvrtc"),
  install: "install the CUDA toolkit or the pip package nvidia-cuda-nvrtc",
});

// nvrtc.h of CUDA 12.6; the cubin calls came with 11.1, the list of archs with 11.2.
const prototypes: CompilerPrototypes = {
  version: "int nvrtcVersion(void *major, void *minor)",
  create:
    "int nvrtcCreateProgram(void *out, void *source, const char *name, int headers, void *sources, void *includeNames)",
  destroy: "int nvrtcDestroyProgram(void *program)",
  compile: "int nvrtcCompileProgram(void *program, int count, const char **options)",
  logSize: "int nvrtcGetProgramLogSize(void *program, void *size)",
  log: "int nvrtcGetProgramLog(void *program, void *log)",
  codeSize: "int nvrtcGetCUBINSize(void *program, void *size)",
  code: "int nvrtcGetCUBIN(void *program, void *code)",
  assemblySize: "int nvrtcGetPTXSize(void *program, void *size)",
  assembly: "int nvrtcGetPTX(void *program, void *code)",
};

const archPrototypes = {
  count: "int nvrtcGetNumSupportedArchs(void *count)",
  list: "int nvrtcGetSupportedArchs(void *archs)",
} as const;

export function openNvrtc(explicit?: string): KernelCompiler {
  const library = openLibrary(spec(), explicit);
  const errorString = library.func<string | null>("const char *nvrtcGetErrorString(int code)");
  const supported = supportedArchs(library);
  return new NativeCompiler({
    name: "nvrtc",
    library,
    prototypes,
    describe: (code) => errorString(code) ?? `code ${code}`,
    target: (arch) => nvrtcTarget(arch, supported),
  });
}

function supportedArchs(library: Library): readonly number[] {
  const api = library.bind(archPrototypes);
  const count = new Int32Array(1);
  if (api.count(count) !== 0) return [];
  const archs = new Int32Array(count[0]!);
  return api.list(archs) === 0 ? [...archs] : [];
}

/** Machine code where the arch is known; else, for a newer GPU, PTX of the newest arch that it can still run. */
export function nvrtcTarget(
  arch: string,
  supported: readonly number[],
): { architecture: string; output: "code" | "assembly" } | null {
  const [, digits, variant] = /^sm_(\d+)([af]?)$/.exec(arch) ?? [];
  const number = Number(digits);
  if (supported.includes(number)) return { architecture: arch, output: "code" };
  // sm_90a's instructions exist on no other arch, so nothing can stand in for it.
  const older = supported.filter((known) => known < number);
  if (older.length === 0 || variant) return null;
  return { architecture: `compute_${Math.max(...older)}`, output: "assembly" };
}
