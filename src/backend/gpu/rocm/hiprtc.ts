/** AMD's run-time compiler. An arch that it does not know kills the process, so that is asked before. */
import { variable } from "../../../core/environment.ts";
import { CompilePool } from "../compile-pool.ts";
import type { KernelCompiler } from "../driver.ts";
import { type Library, type LibrarySpec, openBeside, openLibrary, symbolOf, textAt } from "../library.ts";
import { type CompilerPrototypes, NativeCompiler } from "../native-compiler.ts";
import { rocmFiles } from "./folders.ts";

const spec = (): LibrarySpec => ({
  title: "hiprtc",
  env: "WICK_HIPRTC_LIBRARY",
  ...rocmFiles("hiprtc"),
  install: "install ROCm's package hip-runtime-amd",
});

const comgrSpec = (): LibrarySpec => ({
  title: "AMD's code object manager",
  env: "WICK_COMGR_LIBRARY",
  ...rocmFiles("comgr"),
  install: "install ROCm's package comgr",
});

// ROCm/HIP include/hip/hiprtc.h. Code objects need no driver to finish them, so assembly is not asked for.
const prototypes: CompilerPrototypes = {
  version: "int hiprtcVersion(void *major, void *minor)",
  create:
    "int hiprtcCreateProgram(void *out, void *source, const char *name, int headers, void *sources, void *includeNames)",
  destroy: "int hiprtcDestroyProgram(void *program)",
  compile: "int hiprtcCompileProgram(void *program, int count, const char **options)",
  logSize: "int hiprtcGetProgramLogSize(void *program, void *size)",
  log: "int hiprtcGetProgramLog(void *program, void *log)",
  codeSize: "int hiprtcGetCodeSize(void *program, void *size)",
  code: "int hiprtcGetCode(void *program, void *code)",
  assemblySize: "int hiprtcGetCodeSize(void *program, void *size)",
  assembly: "int hiprtcGetCode(void *program, void *code)",
};

// ROCm/llvm-project amd/comgr/include/amd_comgr.h.in
const comgrPrototypes = {
  isaCount: "int amd_comgr_get_isa_count(void *count)",
  isaName: "int amd_comgr_get_isa_name(size_t index, void *name)",
} as const;

/** hiprtcVersion answers 9.0 in every release, so the runtime beside it tells which one it is. */
function releaseOf(hip: Library): string {
  const version = new Int32Array(1);
  hip.func("int hipRuntimeGetVersion(void *version)")(version);
  return `HIP ${version[0]}`;
}

/** `hip` is asked first: up to ROCm 6 it holds the compiler, and then the two are of one release. */
export function openHiprtc(hip: Library, explicit?: string, comgr?: string, commonArch?: string): KernelCompiler {
  const isInside = !explicit && !variable(spec().env) && hip.has(symbolOf(prototypes.compile));
  const library = isInside ? hip : openLibrary(spec(), explicit, hip);
  const errorString = library.func<string | null>("const char *hiprtcGetErrorString(int code)");
  const known = commonArch ? () => true : knownArchs(library, comgr);
  return new NativeCompiler({
    name: "hiprtc",
    library,
    prototypes,
    release: releaseOf(hip),
    describe: (code) => errorString(code) ?? `code ${code}`,
    target: (arch) => (known(arch) ? { architecture: arch, output: "code" } : null),
    commonArch,
  });
}

/** Whether the compiler knows an arch: by comgr's list, or by a trial in a child process. */
function knownArchs(hiprtc: Library, comgrPath: string | undefined): (arch: string) => boolean {
  let listed: ReadonlySet<string> | null | undefined;
  return (arch) => {
    if (listed === undefined) listed = listedProcessors(hiprtc, comgrPath);
    return listed ? listed.has(processorOf(arch)) : compilesInChild(hiprtc.path, arch);
  };
}

/** "amdgcn-amd-amdhsa--gfx90a:xnack+" and "gfx90a:xnack+" are of the processor gfx90a. */
const processorOf = (isa: string): string => isa.slice(isa.lastIndexOf("-gfx") + 1).split(":")[0]!;

function listedProcessors(hiprtc: Library, comgrPath: string | undefined): ReadonlySet<string> | null {
  const library = openComgr(hiprtc, comgrPath);
  if (!library) return null;
  const api = library.bind(comgrPrototypes);
  const cell = new BigUint64Array(1);
  if (api.isaCount(cell) !== 0) return null;
  const count = Number(cell[0]);
  const names = new Set<string>();
  for (let i = 0; i < count; i++) if (api.isaName(i, cell) === 0) names.add(processorOf(textAt(cell[0]!)));
  return names;
}

/** Only the one that hiprtc itself uses: another release's, found on the way, knows other archs. */
function openComgr(hiprtc: Library, comgrPath: string | undefined): Library | null {
  if (comgrPath || variable(comgrSpec().env)) return openLibrary(comgrSpec(), comgrPath);
  if (hiprtc.has(symbolOf(comgrPrototypes.isaCount))) return hiprtc;
  return openBeside(comgrSpec(), hiprtc);
}

const trials = new Map<string, boolean>();

/** A crash there means no. A process is dear, so its answer is kept however often the library is opened. */
function compilesInChild(path: string, arch: string): boolean {
  const known = trials.get(`${path} ${arch}`);
  if (known !== undefined) return known;
  const answer = new CompilePool(path, prototypes).compileSync({
    source: "typedef int trial;",
    name: "trial",
    options: [`--gpu-architecture=${arch}`],
    output: "code",
  });
  const compiles = !("problem" in answer) && answer.code === 0;
  trials.set(`${path} ${arch}`, compiles);
  return compiles;
}
