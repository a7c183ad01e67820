/** Every case computed by PyTorch passes, on every device; on the CPU with one thread and with two. */
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, it } from "vitest";
import { Device } from "../src/index.ts";
import { readCases } from "../src/verify/cases.ts";
import { verify } from "../src/verify/runner.ts";
import { describeDevices, gpuNames } from "./devices.ts";

const folder = fileURLToPath(new URL("golden", import.meta.url));
const quantized = new Set(["quantize", "dequantize", "qmatmul"]);
const ops = [...new Set((await readCases(folder)).map((c) => c.op))].filter((op) => !quantized.has(op));

async function expectAllPass(device: Device): Promise<void> {
  const report = await verify(folder, device, { only: ops });
  expect(report.cases.filter((c) => !c.ok).map((c) => `${c.id}: ${c.error}`)).toEqual([]);
  expect(report.passed).toBe(806);
}

describe("golden cases on the CPU", () => {
  const { threads } = Device.cpu().backend as unknown as { threads: number };
  afterAll(() => {
    Device.cpu({ threads });
  });
  it.each([1, 2])("pass with %i threads", (n) => expectAllPass(Device.cpu({ threads: n })));
});

const onGpu = (device: Device): void => {
  it("pass", { timeout: 300_000 }, () => expectAllPass(device));
};
if (gpuNames.length > 0) describeDevices("golden cases", onGpu, gpuNames);
