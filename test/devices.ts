/** Suites run once over every device that is present, from one definition. */
import { describe } from "vitest";
import { Device } from "../src/index.ts";

export const deviceNames: readonly string[] = ["cpu"];

export function describeDevices(name: string, body: (device: Device) => void): void {
  describe.each(deviceNames.map((d) => [d]))(`${name} on %s`, (d) => body(Device.from(d)));
}
