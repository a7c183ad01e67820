/** The kernels that AMD's BLAS libraries read from files, without which they abort (rocBLAS) or refuse (hipBLASLt). */

import { existsSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { type VariableName, variable } from "../../../core/environment.ts";
import { fileIdentity } from "../library-identity.ts";

export interface KernelFilesSpec {
  /** "rocblas" or "hipblaslt". */
  readonly name: string;
  /** Names the folder instead of the places beside the library. */
  readonly env: VariableName;
}

export interface KernelFiles {
  /** Whether there are files for the GPU; undefined where that is not known. */
  readonly areThere: boolean | undefined;
  /** Changes when files are added or removed. */
  readonly identity: string;
}

/**
 * The places are those that tensile_host.cpp of ROCm/rocBLAS and ROCm/hipBLASLt looks in (AMD's packages and Fedora's have
 * lib/rocblas/library); a folder per GPU may lie within. Debian's and Ubuntu's rocBLAS has lib/rocblas/2.47.0/library, and
 * takes the files of a compatible GPU (gfx1030's on gfx1036), so that what is missing there says nothing.
 */
export function kernelFiles({ name, env }: KernelFilesSpec, libraryFile: string, arch: string): KernelFiles {
  const gpu = arch.split(":")[0]!;
  const lib = dirname(libraryFile);
  const asked = variable(env);
  const present = (all: readonly string[]): string[] => all.filter((folder) => existsSync(folder));
  const exact = asked ? [asked] : present(places(name, lib));
  const versioned = namesIn(join(lib, name)).map((version) => join(lib, name, version, "library"));
  const folders = asked ? exact : [...exact, ...present(versioned)];
  // Not in the name of another GPU that begins alike.
  const isFor = new RegExp(`${gpu}(?![0-9a-f])`);
  const areThere = folders.some((folder) => namesIn(folder).some((file) => isFor.test(file)));
  return {
    areThere: areThere || (exact.length > 0 ? false : undefined),
    identity: folders.map((folder) => `${folder} ${fileIdentity(folder)}`).join(" "),
  };
}

const places = (name: string, lib: string): string[] => [
  join(lib, name, "library"),
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
