/** Simulated devices whose compiler takes a certain matrix unit. */
import type { MatrixUnit } from "../../src/backend/gpu/attention-plan.ts";
import { GpuBackend } from "../../src/backend/gpu/backend.ts";
import { platform } from "../../src/backend/gpu/platforms.ts";
import { Device } from "../../src/index.ts";

/** Units with an arch that has them; lanes are the wave's of that ordinal. */
export const units: readonly (readonly [Exclude<MatrixUnit, "fma">, arch: string, ordinal: number])[] = [
  ["mma", "sm_90", 0],
  ["mma", "sm_90a", 0],
  ["wmma11", "gfx1100", 0],
  ["wmma12", "gfx1200", 0],
  ["mfma", "gfx90a", 1],
];

export function deviceWith(arch: string, ordinal: number, multiprocessors: number): Device {
  const sim = platform("sim");
  const open = (which: number) => {
    const context = sim.driver.open(which);
    Object.defineProperty(context, "properties", { value: { ...context.properties, arch, multiprocessors } });
    return context;
  };
  const driver = Object.assign(Object.create(sim.driver) as typeof sim.driver, { open });
  const name = `${arch}:${multiprocessors}`;
  return Device.open(name, () => new GpuBackend(name, { ...sim, driver }, ordinal));
}
