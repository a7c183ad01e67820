/** ROCm's libraries by name, and where distributions, AMD's installers and Python's wheels put them. */
import { here, type LibraryFiles, pathFolders, type Surroundings, under } from "../search.ts";

type Name = "hip" | "hiprtc" | "comgr" | "rocblas" | "hipblaslt" | "miopen" | "rccl";

/** A name without a version is of a development package; the loader is asked for those with one as well. */
const versions = (name: string, ...numbers: readonly number[]): string[] => [
  name,
  ...numbers.map((number) => `${name}.${number}`),
  `${name}.*`,
];

const linux: Readonly<Record<Name, readonly string[]>> = {
  hip: versions("libamdhip64.so", 10, 9, 8, 7, 6, 5),
  hiprtc: versions("libhiprtc.so", 10, 9, 8, 7, 6, 5),
  comgr: versions("libamd_comgr.so", 4, 3, 2),
  // 0 is what 5.0, 5.4 and 5.5 called it.
  rocblas: versions("librocblas.so", 6, 5, 4, 3, 0),
  hipblaslt: versions("libhipblaslt.so", 2, 1, 0),
  miopen: versions("libMIOpen.so", 1),
  rccl: versions("librccl.so", 1),
};

// hiprtc and comgr carry the release in their names: hiprtc0602.dll.
const windows: Readonly<Record<Name, readonly string[]>> = {
  hip: ["amdhip64_10.dll", "amdhip64_9.dll", "amdhip64_8.dll", "amdhip64_7.dll", "amdhip64_6.dll", "amdhip64.dll"],
  hiprtc: ["hiprtc*.dll", "hiprtc.dll"],
  comgr: ["amd_comgr*.dll", "amd_comgr.dll", "amd_comgr_3.dll", "amd_comgr_2.dll"],
  rocblas: ["rocblas.dll", "librocblas.dll"],
  hipblaslt: ["libhipblaslt.dll", "hipblaslt.dll"],
  miopen: ["MIOpen.dll", "libMIOpen.dll"],
  rccl: ["rccl.dll", "librccl.dll"],
};

/** The file names and the folders of a library on this machine. */
export function rocmFiles(name: Name, where: Surroundings = here()): LibraryFiles {
  const chosen = chosenFolders(where);
  if (where.platform !== "win32") return { names: linux[name], named: chosen, folders: rocmFolders(where) };
  // The runtime that the kernel driver installed fits it; a development kit may bring an older one.
  const driver = under(where, "SystemRoot", "System32");
  return {
    names: windows[name],
    named: name === "hip" ? [...driver, ...chosen] : chosen,
    folders: rocmFolders(where),
  };
}

/** Spack and module files set these, and AMD's installer for Windows sets HIP_PATH. */
const chosenFolders = (where: Surroundings): string[] =>
  (["ROCM_PATH", "ROCM_HOME", "HIP_PATH"] as const).flatMap((variable) =>
    under(where, variable, ...(where.platform === "win32" ? ["bin"] : ["lib", "lib64"])),
  );

/** Where ROCm's libraries are when the loader does not know them. */
export const rocmFolders = (where: Surroundings = here()): string[] =>
  where.platform === "win32"
    ? [
        ...under(where, "VIRTUAL_ENV", "Lib\\site-packages\\_rocm_sdk_*\\bin"),
        ...under(where, "CONDA_PREFIX", "Library\\bin", "Lib\\site-packages\\_rocm_sdk_*\\bin"),
        ...under(where, "ProgramFiles", "AMD\\ROCm\\*\\bin"),
        ...under(where, "SystemRoot", "System32"),
        ...pathFolders(where),
      ]
    : [
        ...under(where, "VIRTUAL_ENV", "lib/python3*/site-packages/_rocm_sdk_*/lib"),
        ...under(where, "CONDA_PREFIX", "lib", "lib/python3*/site-packages/_rocm_sdk_*/lib"),
        ...under(where, "SPACK_ENV", ".spack-env/view/lib"),
        ...["/opt/rocm/lib", "/opt/rocm/lib64", "/opt/rocm/core-*/lib", "/opt/rocm-*/lib"],
        ...["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib"],
      ];
