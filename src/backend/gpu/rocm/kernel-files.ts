/** The kernels that AMD's BLAS libraries read from files, without which they abort (rocBLAS) or refuse (hipBLASLt). */
import { existsSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileIdentity } from "../library-identity.ts";

export interface KernelFilesSpec {
  /** "rocblas" or "hipblaslt". */
  readonly name: string;
  /** Names the folder instead of the places beside the library. */
  readonly env: string;
}

export interface KernelFiles {
  /** Whether there are files for the GPU; undefined where no folder was found. */
  readonly areThere: boolean | undefined;
  /** Changes when files are added or removed. */
  readonly identity: string;
}

/**
 * The places are those that tensile_host.cpp of ROCm/rocBLAS and ROCm/hipBLASLt looks in (AMD's packages and Fedora's have
 * lib/rocblas/library) and Debian's (lib/rocblas/2.47.0/library); a folder per GPU may lie within.
 */
export function kernelFiles({ name, env }: KernelFilesSpec, libraryFile: string, arch: string): KernelFiles {
  const gpu = arch.split(":")[0]!;
  const asked = process.env[env];
  const folders = asked ? [asked] : places(name, dirname(libraryFile)).filter((folder) => existsSync(folder));
  // Not in the name of another GPU that begins alike.
  const isFor = new RegExp(`${gpu}(?![0-9a-f])`);
  const areThere = folders.some((folder) => namesIn(folder).some((file) => isFor.test(file)));
  return {
    areThere: folders.length === 0 ? undefined : areThere,
    identity: folders.map((folder) => `${folder} ${fileIdentity(folder)}`).join(" "),
  };
}

const places = (name: string, lib: string): string[] => [
  join(lib, name, "library"),
  ...namesIn(join(lib, name)).map((version) => join(lib, name, version, "library")),
  join(lib, "library"),
  join(lib, "..", name, "library"),
  join(lib, "../../Tensile/library"),
];

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}
