// Attention through the backend of a device with warpgroups, which launches other sizes for halves than for f32, against the CPU.
import { describe, expect, it } from "vitest";
import { type Device, Tensor } from "../../../src/index.ts";
import { sdpa } from "../../../src/nn/index.ts";
import { deviceWith } from "../../helpers/matrix-units.ts";

describe("Attention on a device with warpgroups", () => {
  const device = deviceWith("sm_90a", 0, 16);
  const cases = (["bf16", "f16"] as const).flatMap((dtype) =>
    [64, 96, 128, 256].flatMap((d) => [false, true].map((masked) => [dtype, d, masked] as const)),
  );
  it.each(cases)("in %s with d %i, mask: %s", async (dtype, d, masked) => {
    const draw = (seed: number, ...shape: number[]): [values: Float32Array, shape: number[]] => {
      const size = shape.reduce((x, y) => x * y, 1);
      // What either half holds exactly.
      return [Float32Array.from({ length: size }, (_, i) => (((i * 37 + seed * 11) % 97) - 48) / 32), shape];
    };
    const [q, k, v] = [draw(1, 1, 2, 70, d), draw(2, 1, 1, 90, d), draw(3, 1, 1, 90, d)];
    const mask = draw(4, 1, 1, 70, 90);
    const on = (where: Device | string, as: "f32" | typeof dtype) => {
      const put = ([values, shape]: typeof q) => Tensor.from(values, { device: where, dtype: as }).reshape(shape);
      return sdpa(put(q), put(k), put(v), masked ? { mask: put(mask) } : { causal: true });
    };
    const got = (await on(device, dtype).flatten().toArray()) as number[];
    const wanted = (await on("cpu", "f32").flatten().toArray()) as number[];
    const worst = got.reduce((most, x, i) => Math.max(most, Math.abs(x - wanted[i]!)), 0);
    expect(worst).toBeLessThanOrEqual(dtype === "bf16" ? 1.2e-2 : 2e-3);
  });
});
