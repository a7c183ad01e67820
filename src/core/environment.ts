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
  WICK_CPU: {
    what: "the instructions that the CPU device computes with; `wasm` emits no machine code",
    values: ["wasm", "avx2", "avx512"],
    otherwise: "the best that the processor has",
  },
  WICK_ACTIVATIONS: {
    what: "`8bit` rounds activations to 8 bits where the CPU device multiplies quantized weights by VNNI: faster, with errors of 5e-3 instead of 2e-5",
    values: ["8bit"],
    otherwise: "16 bits",
  },
  WICK_SIMD: {
    what: "`plain` takes the CPU's kernels without relaxed SIMD",
    values: ["plain"],
    otherwise: "relaxed SIMD where the runtime has it",
  },
  WICK_MMAP: {
    what: "with `0` the CPU device copies weights into memory and does not show them where they lie in their file",
    values: ["0", "1"],
    otherwise: "large weights are the file's pages, which processes share",
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
    otherwise: "recorded where the device can",
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

const hub = {
  HF_HUB_CACHE: {
    what: "the folder of downloaded models, which other tools share",
    otherwise: "`$HF_HOME/hub`",
  },
  HF_HOME: { what: "where that folder and the token are", otherwise: "`$XDG_CACHE_HOME/huggingface`" },
  HUGGINGFACE_HUB_CACHE: { what: "an older name of `HF_HUB_CACHE`" },
  HF_TOKEN: { what: "the token for private and gated models", otherwise: "what the file of `HF_TOKEN_PATH` holds" },
  HUGGING_FACE_HUB_TOKEN: { what: "an older name of `HF_TOKEN`" },
  HF_TOKEN_PATH: { what: "the file with the token", otherwise: "`$HF_HOME/token`" },
  HF_HUB_DISABLE_IMPLICIT_TOKEN: { what: "`1`: no token is sent" },
  HF_ENDPOINT: { what: "the hub, or a mirror of it", otherwise: "`https://huggingface.co`" },
  HF_HUB_OFFLINE: { what: "`1`: nothing is asked of the network; models are those in the folder" },
  TRANSFORMERS_OFFLINE: { what: "the same" },
  HF_HUB_ETAG_TIMEOUT: { what: "how many seconds the hub may take to answer", otherwise: "10" },
  HF_HUB_DOWNLOAD_TIMEOUT: {
    what: "after how many seconds without a byte a download is taken up anew",
    otherwise: "10",
  },
} as const satisfies Table;

const serving = {
  WICK_API_KEY: {
    what: "the keys that clients of `wick serve` must have one of, separated by commas",
    otherwise: "`--api-key`",
  },
} as const satisfies Table;

const rank = "the number of this process among those that run a model together";
const size = "how many they are";
const localRank = "its number on this machine, and so which of its GPUs it takes";
const localSize = "how many of them are on this machine";
const ranks = {
  WICK_RANK: { what: `${rank}; \`wick launch\` sets it and the next five` },
  WICK_WORLD_SIZE: { what: size },
  WICK_LOCAL_RANK: { what: localRank },
  WICK_LOCAL_SIZE: { what: localSize },
  WICK_MASTER: { what: "where rank 0 waits for the others: `host:port`" },
  WICK_JOB: { what: "a word that only ranks of the same job know" },
  WICK_RENDEZVOUS_SECONDS: {
    what: "how long ranks wait for each other at the start",
    otherwise: "60; 9 where MPI has brought them together",
  },
  WICK_RANK_SECONDS: {
    what: "after how long without a sign of its main thread a rank counts as hanging",
    otherwise: "60",
  },
  WICK_MPI_LIBRARY: { what: "MPI: its file, or the folder it is in", otherwise: "that of the mpirun in use" },
  WICK_NCCL_LIBRARY: { what: "NCCL: its file, or the folder it is in", otherwise: "looked for" },
  WICK_RCCL_LIBRARY: { what: "RCCL: its file, or the folder it is in", otherwise: "looked for" },
  OMPI_COMM_WORLD_RANK: { what: `${rank}, by Open MPI's mpirun` },
  OMPI_COMM_WORLD_SIZE: { what: size },
  OMPI_COMM_WORLD_LOCAL_RANK: { what: localRank },
  OMPI_COMM_WORLD_LOCAL_SIZE: { what: localSize },
  PMI_RANK: { what: `${rank}, by MPICH's mpirun` },
  PMI_SIZE: { what: size },
  MPI_LOCALRANKID: { what: localRank },
  MPI_LOCALNRANKS: { what: localSize },
  RANK: { what: `${rank}, by torchrun` },
  WORLD_SIZE: { what: size },
  LOCAL_RANK: { what: localRank },
  LOCAL_WORLD_SIZE: { what: localSize },
  MASTER_ADDR: { what: "the machine of rank 0" },
  MASTER_PORT: { what: "where rank 0 waits there; the next port, where torchrun itself uses this one" },
  TORCHELASTIC_USE_AGENT_STORE: { what: "`True`: torchrun uses that port itself" },
  TORCHELASTIC_RUN_ID: { what: "torchrun's name of the job" },
  SLURM_PROCID: { what: `${rank}, by srun` },
  SLURM_NTASKS: { what: size },
  SLURM_LOCALID: { what: localRank },
  SLURM_STEP_TASKS_PER_NODE: { what: localSize },
  SLURM_STEP_NODELIST: { what: "the machines of the job, of which the first has rank 0" },
  SLURM_JOB_ID: { what: "the number of the job, which the port follows from" },
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
  "Models by name: the variables of Hugging Face's own tools": hub,
  "The server": serving,
  "Models over several processes": ranks,
  "The vendors' libraries: each its file, or the folder it is in": libraries,
  "Variables of others": others,
};

type Choices = typeof computing;
type ChoiceName = { [Name in keyof Choices]: Choices[Name] extends { values: object } ? Name : never }[keyof Choices];
export type VariableName =
  | keyof Choices
  | keyof typeof kernels
  | keyof typeof hub
  | keyof typeof serving
  | keyof typeof ranks
  | keyof typeof libraries
  | keyof typeof others;
export type Environment = Readonly<Record<string, string | undefined>>;

/** As it is now. */
export const environment = (): Environment => process.env;

/** Tells a library that is about to be loaded how to be, unless whoever started the process has. */
export function suggest(variables: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(variables)) process.env[name] ??= value;
}

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

/** Whether a variable that says yes or no says yes, in any of the ways in use. */
export const isOn = (name: VariableName): boolean => /^(1|on|yes|true)$/i.test(variable(name) ?? "");

/** A variable that is a number above 0. */
export function positive(name: VariableName, unit: string, otherwise: number): number {
  const given = variable(name);
  const number = given === undefined ? otherwise : Number(given);
  return number > 0 ? number : fail("InvalidArgument", `${name}=${given} must be a number of ${unit} above 0`);
}
