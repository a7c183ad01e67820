/** Every case computed by PyTorch, and by gguf's reference for quantized blocks, passes, on every device; on the CPU with one thread and with two. */
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, it } from "vitest";
import { Device } from "../../src/index.ts";
import { verify } from "../../src/verify/runner.ts";
import { describeDevices, gpuNames } from "../helpers/devices.ts";

const folder = fileURLToPath(new URL("../data/golden", import.meta.url));

async function expectAllPass(device: Device): Promise<void> {
  const report = await verify(folder, device);
  expect(report.cases.filter((c) => !c.ok).map((c) => `${c.id}: ${c.error}`)).toEqual([]);
  expect(report.passed).toBe(863);
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
