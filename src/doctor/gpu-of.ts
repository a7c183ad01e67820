import { Device } from "../backend/device.ts";
import { GpuBackend } from "../backend/gpu/backend.ts";

/** The GPU behind a device's name; null for the CPU. */
export function gpuOf(name: string): GpuBackend | null {
  const { backend } = Device.from(name);
  return backend instanceof GpuBackend ? backend : null;
}

/** The simulator is right but slow: sizes there are as small as they can be. */
export const isSimulated = (name: string): boolean => name.startsWith("sim");
