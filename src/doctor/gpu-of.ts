import { Device } from "../backend/device.ts";
import { GpuBackend } from "../backend/gpu/backend.ts";
import type { Gpu } from "../backend/gpu/gpu.ts";

/** The GPU behind a device's name; null for the CPU. */
export function gpuOf(name: string): Gpu | null {
  const { backend } = Device.from(name);
  return backend instanceof GpuBackend ? backend.gpu : null;
}

/** The simulator is right but slow: sizes there are as small as they can be. */
export const isSimulated = (name: string): boolean => name.startsWith("sim");
