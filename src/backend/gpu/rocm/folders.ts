import { under } from "../library.ts";

/** Where ROCm's libraries are when the loader does not know them. */
export const rocmFolders = (): string[] => [
  ...under("ROCM_PATH", "lib", "lib64"),
  "/opt/rocm/lib",
  "/opt/rocm/lib64",
  "/opt/rocm-*/lib",
  "/usr/lib/wsl/lib",
];
