/** What follows a product in one pass is what its steps give: bias, activation, residual, in any combination. */
import { expect, it } from "vitest";
import type { EpilogueParams } from "../../../src/backend/fused-ops.ts";
import type { DType } from "../../../src/core/dtype.ts";
import { scope, Tensor } from "../../../src/index.ts";
import { composed } from "../../../src/ops/composed/index.ts";
import { compute } from "../../../src/ops/compute.ts";
import { describeDevices, gpuNames } from "../../helpers/devices.ts";

const activations = [null, "silu", "gelu", "geluErf", "relu"] as const;
const tolerances: Partial<Record<DType, number>> = { f16: 4e-3, bf16: 4e-2, f32: 2e-6, f64: 1e-12 };

describeDevices(
  "the epilogue",
  (device) => {
    it.each(["f32", "f16", "bf16", "f64"] as const)("of %s adds, activates and adds again", async (dtype) => {
      for (const [rows, cols] of [
        [3, 40],
        [5, 7],
        [0, 8],
      ] as const) {
        for (const [i, activation] of activations.entries()) {
          const [hasBias, hasResidual] = [i % 2 === 0, i % 3 !== 1];
          await scope(async () => {
            const make = (shape: number[], seed: number): Tensor => Tensor.randn(shape, { seed, dtype });
            const [y, bias, wide] = [make([rows, cols], 1), make([cols], 2), make([rows, 2 * cols], 3)];
            // A residual may be a view.
            const params = (on: (x: Tensor) => Tensor): EpilogueParams<Tensor> => ({
              bias: hasBias ? on(bias) : null,
              activation,
              residual: hasResidual ? on(wide).narrow(1, cols, cols) : null,
            });
            const wider = (x: Tensor): Tensor => x.toDType("f64");
            const want = composed.epilogue(wider(y), params(wider));
            const moved = [await y.toDevice(device), await bias.toDevice(device), await wide.toDevice(device)];
            const onDevice = (x: Tensor): Tensor => moved[[y, bias, wide].indexOf(x)]!;
            const got = compute(device.backend, "epilogue", y.shape, onDevice(y), params(onDevice));
            const [a, b] = [await (await got.toDevice("cpu")).toDType("f64").data(), await want.data()];
            expect(got.shape).toEqual([rows, cols]);
            for (const [at, x] of a.entries()) {
              const wanted = Number(b[at]);
              expect(Math.abs(Number(x) - wanted)).toBeLessThanOrEqual(tolerances[dtype]! * (1 + Math.abs(wanted)));
            }
          });
        }
      }
    });

    it("keeps what is not a number, and what is infinite", async () => {
      const values = [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, -40, 40];
      for (const activation of activations) {
        using y = Tensor.from([values], { device });
        using got = compute(device.backend, "epilogue", y.shape, y, { bias: null, activation, residual: null });
        using host = Tensor.from([values]);
        using want = activation ? host[activation]() : host.affine(1, 0);
        const [a, b] = [Array.from(await got.data(), Number), Array.from(await want.data(), Number)];
        for (const [i, x] of b.entries()) {
          if (Number.isFinite(x)) expect(a[i]).toBeCloseTo(x, 4);
          else expect(a[i]).toBe(x);
        }
      }
    });
  },
  gpuNames.slice(0, 1),
);
