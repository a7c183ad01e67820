/** Which files of a vendor are in the process, whatever was asked for: the loader decides, and may mix releases. */
import { readFileSync } from "node:fs";
import { basename, dirname } from "node:path";
import { Root } from "./root.ts";

export interface LoadedLibrary {
  readonly path: string;
  /** What the ROCm installation around it says it is. */
  readonly release?: string;
}

const vendorFiles =
  /^lib(amdhip64|hiprtc|hiprtc-builtins|amd_comgr|rocblas|hipblaslt|MIOpen|hsa-runtime64|hsakmt|rocdxg|drm_amdgpu|cuda|nvrtc|nvrtc-builtins|cublas|cublasLt|nvidia-[\w-]+)(_\w+)?\.so/;
/** Those that must be of one release. */
const rocmFiles = /^lib(amdhip64|hiprtc|hiprtc-builtins|amd_comgr|rocblas|hipblaslt|MIOpen|hsa-runtime64|rocdxg)\.so/;

export function loadedLibraries(maps = ownMaps(), root = new Root()): LoadedLibrary[] {
  const paths = new Set([...maps.matchAll(/\s(\/.*)$/gm)].map(([, path]) => path!.replace(/ \(deleted\)$/, "")));
  return [...paths]
    .filter((path) => vendorFiles.test(basename(path)))
    .map((path) => {
      const release = root.line(`${dirname(dirname(path))}/.info/version`);
      return { path, ...(release && { release }) };
    });
}

/** The installations that ROCm's loaded libraries are of; one is as it should be. */
export const installationsOf = (loaded: readonly LoadedLibrary[]): string[] => [
  ...new Set(loaded.filter(({ path }) => rocmFiles.test(basename(path))).map(({ path }) => installationOf(path))),
];

/** Wheels spread one release over folders side by side. */
const installationOf = (path: string): string => dirname(path).replace(/_rocm_sdk_[^/]+\/lib.*$/, "_rocm_sdk_*");

function ownMaps(): string {
  try {
    return readFileSync("/proc/self/maps", "utf8");
  } catch {
    return "";
  }
}
