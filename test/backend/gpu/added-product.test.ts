// A product of many rows with a residual that nobody else needs goes to where the residual lies, and to memory of its own elsewhere.
import { expect, it } from "vitest";
import type { GpuBackend } from "../../../src/backend/gpu/backend.ts";
import type { Device, DType } from "../../../src/index.ts";
import { Tensor } from "../../../src/index.ts";
import { compute } from "../../../src/ops/compute.ts";
import { QTensor } from "../../../src/quantized/index.ts";
import { describeDevices, gpuNames } from "../../helpers/devices.ts";

const [m, n, k] = [800, 32, 64];
const sizes = { f32: 1e-5, f16: 2e-3, bf16: 1.6e-2 } as const;

describeDevices(
  "a residual that is spent",
  (device: Device) => {
    const library = (device.backend as GpuBackend).blas !== null;
    const random = (shape: number[], dtype: DType): Tensor => Tensor.randn(shape, { dtype, device });
    const params = { norm: null, bias: null, glu: null };
    const far = (a: Tensor, b: Tensor): number =>
      a.toDType("f32").sub(b.toDType("f32")).abs().flattenAll().max(0).toScalarSync() as number;

    it.each(["f32", "f16", "bf16"] as const)("%s", (dtype) => {
      const [x, w, residual] = [random([m, k], dtype), random([n, k], dtype), random([m, n], dtype)];
      const wanted = residual
        .copy()
        .toDType("f32")
        .add(x.toDType("f32").matmul(w.toDType("f32").t()));
      const kept = compute(x.backend, "linear", [m, n], x, w, null, { ...params, residual });
      expect(kept.storage).not.toBe(residual.storage);
      // Another tensor views it: it is still needed.
      const view = residual.narrow(0, 0, 1);
      const shared = compute(x.backend, "linear", [m, n], x, w, null, { ...params, residual, spendsResidual: true });
      expect(shared.storage).not.toBe(residual.storage);
      view.dispose();
      const spent = compute(x.backend, "linear", [m, n], x, w, null, { ...params, residual, spendsResidual: true });
      expect(spent.storage === residual.storage).toBe(library);
      for (const y of [kept, shared, spent]) expect(far(y, wanted)).toBeLessThan(20 * sizes[dtype]);
    });

    it.each(["f16", "bf16"] as const)("with quantized weights, %s", (dtype) => {
      const [x, residual] = [random([m, k], dtype), random([m, n], dtype)];
      const w = QTensor.quantize(random([n, k], "f32"), "Q8_0");
      const wanted = residual.copy().toDType("f32").add(x.toDType("f32").matmul(w.dequantize().t()));
      const given = { ...params, residual, spendsResidual: true };
      const y = compute(x.backend, "linear", [m, n], x, w.blocks, "Q8_0", given);
      expect(y.storage === residual.storage).toBe(library);
      expect(far(y, wanted)).toBeLessThan(20 * sizes[dtype]);
    });
  },
  gpuNames,
);
