/** Copies between devices: by the source where it reaches the other, through page-locked memory, through the host. */
import { afterEach, describe, expect, it, vi } from "vitest";
import { copyBetween, type Side } from "../../../src/backend/gpu/peer-copy.ts";
import { openSimulator } from "../../../src/backend/gpu/platforms.ts";
import { Staging } from "../../../src/backend/gpu/staging.ts";
import { Tensor } from "../../../src/index.ts";
import { gpuNames } from "../../helpers/devices.ts";

afterEach(() => vi.unstubAllEnvs());

describe.skipIf(gpuNames.length < 2)("copies between devices", () => {
  const [first, second] = gpuNames as [string, string];

  it.each([
    [first, second],
    [second, "cpu"],
    ["cpu", first],
  ])("keep a view's values from %s to %s", async (from, to) => {
    const x = Tensor.from(
      Float32Array.from({ length: 24 }, (_, i) => i),
      { shape: [4, 6], device: from },
    );
    const view = x.transpose(0, 1).narrow(0, 1, 3);
    for (const copy of [await view.toDevice(to), view.toDeviceSync(to), view.toDeviceLater(to)()]) {
      expect(copy.device.name).toBe(to);
      expect(await copy.toArray()).toEqual(await view.toArray());
    }
    expect((await Tensor.zeros([0, 3], { device: from }).toDevice(to)).shape).toEqual([0, 3]);
  });

  it("are in the order of both devices' work, though nobody waits", async () => {
    vi.stubEnv("WICK_SIM_LAZY", "1");
    const sums: Tensor[] = [];
    for (let i = 0; i < 4; i++) {
      const x = Tensor.full([64], i, { device: first });
      const moved = x.add(1).toDeviceSync(second);
      x.dispose(); // what is made next may lie where it lay
      const back = moved.mul(10).toDeviceSync(first);
      moved.dispose();
      sums.push(back.sumAll());
    }
    expect(await Promise.all(sums.map((sum) => sum.toScalar()))).toEqual([640, 1280, 1920, 2560]);
  });

  it("tell the reader of a bad id on the device before", async () => {
    const ids = Tensor.from(Uint32Array.of(9), { device: first });
    const rows = Tensor.zeros([2, 2], { device: first }).indexSelect(ids, 0);
    await expect(rows.toDeviceSync(second).data()).rejects.toThrow(/id 9/);
  });

  it.each(["0", "1"])("go by either way of the driver (WICK_SIM_PEER=%s)", async (peer) => {
    vi.stubEnv("WICK_SIM_PEER", peer);
    vi.stubEnv("WICK_SIM_LAZY", "1");
    const { driver } = openSimulator();
    const [a, b] = [driver.open(0), driver.open(1)];
    expect(a.reaches(b)).toBe(peer === "1");
    const bytes = 9 * 2 ** 20; // more than one buffer of staging
    const sides = [a, b].map(
      (context): Side => ({ context, staging: new Staging(context), at: context.malloc(bytes) }),
    );
    const [from, to] = sides as [Side, Side];
    const data = Uint8Array.from({ length: bytes }, (_, i) => i % 251);
    from.staging.upload(from.at, data);
    expect(copyBetween(from, to, bytes)).toBe(true);
    a.memset(from.at, 0, bytes);
    expect(Buffer.compare(await to.staging.download(to.at, bytes), data)).toBe(0);
    expect((await from.staging.download(from.at, 4)).join()).toBe("0,0,0,0");
    for (const { context, at } of sides) context.free(at);
  });
});
