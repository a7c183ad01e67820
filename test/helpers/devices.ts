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

/** `npm run test:all`, and real devices: nothing is left out, and nobody takes turns. */
export const tryAll: boolean = asked !== undefined || process.env.WICK_TEST_ALL === "1";

const numberOf = (text: string): number => [...text].reduce((sum, letter) => sum + letter.charCodeAt(0), 0);

/**
 * On the CPU and one simulator, which take turns by the suite's name: for what is the host's work above all, and for ops
 * whose kernels the golden cases try with both widths of waves.
 */
export function describeInTurns(name: string, body: (device: Device) => void): void {
  const taken = gpuNames[numberOf(name) % gpuNames.length];
  describeDevices(name, body, tryAll ? deviceNames : deviceNames.filter((d) => !gpuNames.includes(d) || d === taken));
}

/** Of kernels alike, as those of a dtype or a matrix unit: one in so many, from the first on. */
export function oneIn<T>(many: number, all: readonly T[], first = 0): T[] {
  return all.filter((_, i) => tryAll || i % many === first % many);
}

/**
 * Those of a list that a device takes: on the CPU all, among several GPUs each its turn. For what is the host's work, as an
 * architecture is; kernels are tested on every device.
 */
export function inTurns<T>(all: readonly T[], { name }: Device, first = 0): T[] {
  const at = gpuNames.indexOf(name);
  return at < 0 || tryAll ? [...all] : all.filter((_, i) => (i + first) % gpuNames.length === at);
}
