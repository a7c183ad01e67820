/** Simulated devices that play other cards than their own. */
import type { MatrixUnit } from "../../src/backend/gpu/attention-plan.ts";
import { GpuBackend } from "../../src/backend/gpu/backend.ts";
import type { GpuContext, GpuProperties } from "../../src/backend/gpu/driver.ts";
import { at } from "../../src/backend/gpu/gpu.ts";
import { mapOf } from "../../src/backend/gpu/ops/quant-wide.ts";
import { platform } from "../../src/backend/gpu/platforms.ts";
import { Device, type Tensor } from "../../src/index.ts";

/** Units with an arch that has them; lanes are the wave's of that ordinal. */
export const units: readonly (readonly [Exclude<MatrixUnit, "fma">, arch: string, ordinal: number])[] = [
  ["mma", "sm_90", 0],
  ["mma", "sm_90a", 0],
  ["wmma11", "gfx1100", 0],
  ["wmma12", "gfx1200", 0],
  ["mfma", "gfx90a", 1],
];

/** A context of the simulator's that says it is of another card. */
export function openAs(ordinal: number, card: Partial<GpuProperties>): GpuContext {
  const context = platform("sim").driver.open(ordinal);
  Object.defineProperty(context, "properties", { value: { ...context.properties, ...card } });
  return context;
}

/** Quantized weights, and the map by which a plan's boxes of them are found. */
export function inBoxes(
  device: Device,
  blocks: Tensor,
  { boxes }: { readonly boxes: Parameters<typeof mapOf>[2] },
  isGated: boolean,
): { readonly w: number; readonly map: number } {
  const map = mapOf(device.backend as GpuBackend, blocks, boxes, isGated ? 2 : 1);
  if (map === 0) throw new Error("no map of these weights could be made");
  return { w: at(blocks), map };
}

export function deviceWith(arch: string, ordinal: number, multiprocessors: number): Device {
  const sim = platform("sim");
  const open = (which: number) => openAs(which, { arch, multiprocessors });
  const driver = Object.assign(Object.create(sim.driver) as typeof sim.driver, { open });
  const name = `${arch}:${ordinal}:${multiprocessors}`;
  return Device.open(name, () => new GpuBackend(name, { ...sim, driver }, ordinal));
}
