/** Suites run once over every device that is present, from one definition. */
import { describe } from "vitest";
import { Device, WickError } from "../../src/index.ts";

/** Real GPUs are added by naming them: WICK_TEST_DEVICES=cpu,rocm:0 npm test. */
const asked = process.env.WICK_TEST_DEVICES?.split(",");

function available(): string[] {
  if (asked) return asked;
  try {
    Device.from("sim:32");
    return ["cpu", "sim:32", "sim:64"];
  } catch (error) {
    if (process.env.CI === "true" || !(error instanceof WickError)) throw error;
    console.warn(`The AMD path is not tested on the simulator: ${error.message}`);
    return ["cpu"];
  }
}

export const deviceNames: readonly string[] = available();
export const gpuNames: readonly string[] = deviceNames.filter((name) => name !== "cpu");

export function describeDevices(name: string, body: (device: Device) => void, names = deviceNames): void {
  describe.each(names.map((d) => [d]))(`${name} on %s`, (d) => body(Device.from(d)));
}

/**
 * Those of a list that a device takes: on the CPU all, among several GPUs each its turn. For what is the host's work, as an
 * architecture is; kernels are tested on every device.
 */
export function inTurns<T>(all: readonly T[], { name }: Device, first = 0): T[] {
  const at = gpuNames.indexOf(name);
  return at < 0 ? [...all] : all.filter((_, i) => (i + first) % gpuNames.length === at);
}
