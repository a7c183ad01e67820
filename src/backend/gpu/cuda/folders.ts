import { under } from "../library.ts";

/** Where the toolkit's libraries are; pip and conda environments that are active count, too. */
export const toolkitFolders = (): string[] => [
  ...under("CUDA_HOME", "lib64", "lib"),
  ...under("CUDA_PATH", "lib64", "lib"),
  ...under("VIRTUAL_ENV", "lib/python3*/site-packages/nvidia/*/lib"),
  ...under("CONDA_PREFIX", "lib", "lib/python3*/site-packages/nvidia/*/lib"),
  "/usr/local/cuda/lib64",
  "/usr/local/cuda-*/lib64",
  "/opt/cuda/lib64",
];
