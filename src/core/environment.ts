/**
 * The environment variables that Wick reads, in one table: docs/environment.md is made from it, and nothing else in src/
 * reads the environment. A variable is read when it is needed, so a program may set it before its first use of a device.
 */
import { fail } from "./errors.ts";

interface Variable {
  readonly what: string;
  /** What it may be, where that is a choice. */
  readonly values?: readonly string[];
  /** What holds without it. */
  readonly otherwise?: string;
}
type Table = Readonly<Record<string, Variable>>;

const computing = {
  WICK_THREADS: {
    what: "how many threads the CPU device uses, the main thread among them; 1 to 64",
    otherwise: "the number of cores",
  },
  WICK_SIMD: {
    what: "`plain` takes the CPU's kernels without relaxed SIMD",
    values: ["plain"],
    otherwise: "relaxed SIMD where the runtime has it",
  },
  WICK_HOST_MEMORY: {
    what: "whether host memory that a GPU maps may hold tensors; `allow` also for a discrete card, which reads it over PCIe",
    values: ["auto", "never", "allow"],
    otherwise: "`auto`: on an integrated GPU",
  },
  WICK_BLAS: {
    what: "the library that multiplies matrices on a GPU, taken without a trial; with `none` Wick's own kernels do",
    values: ["none", "rocblas", "hipblaslt", "cublas"],
    otherwise: "the best one that passes its trial",
  },
  WICK_GRAPHS: {
    what: "with `none` decoding goes step by step and is not recorded as a graph",
    values: ["none"],
    otherwise: "recorded where the driver can",
  },
} as const satisfies Table;

const kernels = {
  WICK_CACHE: {
    what: "the folder of compiled kernels and of what was found out about BLAS libraries",
    otherwise: "`$XDG_CACHE_HOME/wick/kernels`, `~/.cache/wick/kernels`",
  },
  WICK_CACHE_MB: { what: "how much that folder may hold, in MiB", otherwise: "512" },
  WICK_COMPILE_SECONDS: { what: "how long one program may take to compile", otherwise: "300" },
} as const satisfies Table;

const found = "looked for";
const libraries = {
  WICK_HIP_LIBRARY: { what: "AMD's HIP runtime", otherwise: found },
  WICK_HIPRTC_LIBRARY: { what: "AMD's compiler, hiprtc", otherwise: found },
  WICK_COMGR_LIBRARY: { what: "the library that hiprtc compiles with, comgr", otherwise: found },
  WICK_ROCBLAS_LIBRARY: { what: "rocBLAS", otherwise: found },
  WICK_HIPBLASLT_LIBRARY: { what: "hipBLASLt", otherwise: found },
  WICK_MIOPEN_LIBRARY: { what: "MIOpen", otherwise: found },
  WICK_CUDA_LIBRARY: { what: "NVIDIA's driver", otherwise: found },
  WICK_NVRTC_LIBRARY: { what: "NVIDIA's compiler, nvrtc", otherwise: found },
  WICK_CUBLAS_LIBRARY: { what: "cuBLAS", otherwise: found },
} as const satisfies Table;

const hides = "hides GPUs, by the vendor's own libraries; `wick devices` tells that it is set";
const python = "libraries in the environment that is active";
const windows = "Windows: where libraries are looked for";
const others = {
  ROCM_PATH: { what: "where ROCm is" },
  ROCM_HOME: { what: "the same" },
  HIP_PATH: { what: "the same, by AMD's installer for Windows" },
  CUDA_HOME: { what: "where CUDA's toolkit is" },
  CUDA_PATH: { what: "the same" },
  ROCBLAS_TENSILE_LIBPATH: { what: "where rocBLAS has its kernels" },
  HIPBLASLT_TENSILE_LIBPATH: { what: "where hipBLASLt has its kernels" },
  ROCR_VISIBLE_DEVICES: { what: hides },
  HIP_VISIBLE_DEVICES: { what: hides },
  CUDA_VISIBLE_DEVICES: { what: hides },
  GPU_DEVICE_ORDINAL: { what: hides },
  VIRTUAL_ENV: { what: python },
  CONDA_PREFIX: { what: python },
  SPACK_ENV: { what: python },
  XDG_CACHE_HOME: { what: "where caches are kept; `~/.cache` without it" },
  SystemRoot: { what: windows },
  ProgramFiles: { what: windows },
  PATH: { what: windows },
} as const satisfies Table;

/** Every variable, by what it is about. */
export const environmentTable: Readonly<Record<string, Table>> = {
  "What computes": computing,
  "Compiled kernels": kernels,
  "The vendors' libraries: each its file, or the folder it is in": libraries,
  "Variables of others": others,
};

type Choices = typeof computing;
type ChoiceName = { [Name in keyof Choices]: Choices[Name] extends { values: object } ? Name : never }[keyof Choices];
export type VariableName = keyof Choices | keyof typeof kernels | keyof typeof libraries | keyof typeof others;
export type Environment = Readonly<Record<string, string | undefined>>;

/** As it is now. */
export const environment = (): Environment => process.env;

/** What a variable is set to; one that is empty counts as not set. */
export const variable = (name: VariableName): string | undefined => environment()[name] || undefined;

/** What a variable chooses, if it is set. */
export function chosen<Name extends ChoiceName>(name: Name): Choices[Name]["values"][number] | undefined {
  const given = variable(name);
  const values: readonly Choices[Name]["values"][number][] = computing[name].values;
  const found = values.find((value) => value === given);
  if (given !== undefined && found === undefined) {
    fail("InvalidArgument", `${name} must be one of ${values.join(", ")}, not "${given}"`);
  }
  return found;
}

/** A variable that is a number above 0. */
export function positive(name: VariableName, unit: string, otherwise: number): number {
  const given = variable(name);
  const number = given === undefined ? otherwise : Number(given);
  return number > 0 ? number : fail("InvalidArgument", `${name}=${given} must be a number of ${unit} above 0`);
}
