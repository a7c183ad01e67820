/** NVIDIA's libraries by name, and where the driver, the toolkit and Python's wheels put them. */
import { here, type LibraryFiles, pathFolders, type Surroundings, under } from "../search.ts";

type Name = "driver" | "nvrtc" | "cublas" | "nccl";

const linux: Readonly<Record<Name, readonly string[]>> = {
  driver: ["libcuda.so.1", "libcuda.so"],
  nvrtc: ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so", "libnvrtc.so.*"],
  cublas: ["libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so", "libcublas.so.*"],
  nccl: ["libnccl.so.2", "libnccl.so", "libnccl.so.*"],
};

const windows: Readonly<Record<Name, readonly string[]>> = {
  driver: ["nvcuda.dll"],
  nvrtc: ["nvrtc64_*.dll", "nvrtc64_130_0.dll", "nvrtc64_120_0.dll", "nvrtc64_112_0.dll"],
  cublas: ["cublas64_*.dll", "cublas64_13.dll", "cublas64_12.dll", "cublas64_11.dll"],
  nccl: ["nccl64_*.dll", "nccl.dll"],
};

/** The file names and the folders of a library on this machine. */
export function cudaFiles(name: Name, where: Surroundings = here()): LibraryFiles {
  const isWindows = where.platform === "win32";
  const names = (isWindows ? windows : linux)[name];
  if (name !== "driver") return { names, named: chosenFolders(where), folders: toolkitFolders(where) };
  const folders = isWindows
    ? under(where, "SystemRoot", "System32")
    : ["/usr/lib/wsl/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];
  return { names, folders };
}

const chosenFolders = (where: Surroundings): string[] =>
  (["CUDA_HOME", "CUDA_PATH"] as const).flatMap((variable) =>
    // CUDA 13 for Windows has its libraries one folder deeper.
    under(where, variable, ...(where.platform === "win32" ? ["bin\\x64", "bin"] : ["lib64", "lib"])),
  );

/** Where the toolkit's libraries are; pip and conda environments that are active count, too. */
export const toolkitFolders = (where: Surroundings = here()): string[] =>
  where.platform === "win32"
    ? [
        ...["bin", "bin\\x86_64"].flatMap((bin) => [
          ...under(where, "VIRTUAL_ENV", `Lib\\site-packages\\nvidia\\*\\${bin}`),
          ...under(where, "CONDA_PREFIX", `Lib\\site-packages\\nvidia\\*\\${bin}`),
        ]),
        ...under(where, "CONDA_PREFIX", "Library\\bin"),
        ...under(where, "ProgramFiles", "NVIDIA GPU Computing Toolkit\\CUDA\\v*\\bin\\x64"),
        ...under(where, "ProgramFiles", "NVIDIA GPU Computing Toolkit\\CUDA\\v*\\bin"),
        ...pathFolders(where),
      ]
    : [
        ...under(where, "VIRTUAL_ENV", "lib/python3*/site-packages/nvidia/*/lib"),
        ...under(where, "CONDA_PREFIX", "lib", "lib/python3*/site-packages/nvidia/*/lib"),
        ...["/usr/local/cuda/lib64", "/usr/local/cuda-*/lib64", "/opt/cuda/lib64"],
        ...["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"],
      ];
