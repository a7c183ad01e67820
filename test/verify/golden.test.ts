/** Every case computed by PyTorch, and by gguf's reference for quantized blocks, passes, on every device; on the CPU with one thread and with two. */
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, describe, expect, it, vi } from "vitest";
import { Device } from "../../src/index.ts";
import { verify } from "../../src/verify/runner.ts";
import { describeDevices, gpuNames, oneIn } from "../helpers/devices.ts";
import { deviceWith } from "../helpers/matrix-units.ts";

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

/** Cards that the simulator plays by Wick's own kernels: Hopper, and where all is tried those whose matrix units or shared memory differ. */
const cards = [
  ["sm_90a", 0],
  ["sm_80", 0],
  ["sm_89", 0],
  ["gfx1100", 0],
  ["gfx1200", 0],
  ["gfx942", 1],
] as const;
describe.runIf(gpuNames.includes("sim:32"))("golden cases without a library", () => {
  afterEach(() => vi.unstubAllEnvs());
  it.each(oneIn(cards.length, cards))("pass on the simulator as %s", { timeout: 300_000 }, async (arch, ordinal) => {
    vi.stubEnv("WICK_BLAS", "none");
    await expectAllPass(deviceWith(arch, ordinal, 4));
  });
});
