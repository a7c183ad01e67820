// Linear layers of many rows with quantized weights by warpgroups, as the simulator plays them, against products of dequantized weights.
import { expect, it } from "vitest";
import type { GpuBackend } from "../../../src/backend/gpu/backend.ts";
import { planQuantTiles } from "../../../src/backend/gpu/families/quant-tiles.ts";
import { gluNumbers } from "../../../src/backend/gpu/families/quantized.ts";
import { at } from "../../../src/backend/gpu/gpu.ts";
import { multiplyBoxes } from "../../../src/backend/gpu/ops/quant-many.ts";
import { multiplyWide } from "../../../src/backend/gpu/ops/quant-wide.ts";
import { Tensor } from "../../../src/index.ts";
import { rmsNorm } from "../../../src/nn/index.ts";
import { QTensor } from "../../../src/quantized/index.ts";
import { deviceWith, inBoxes } from "../../helpers/matrix-units.ts";

const bounds = { f16: 1e-3, bf16: 4e-3 } as const;

/**
 * Types that come by boxes, and others; results that leave as vectors and one by one; tiles that are made alone and shared, by the number
 * of multiprocessors.
 */
it.each([
  ["Q8_0", 70, 84, "all and a gate", "f16", 2],
  ["Q4_0", 261, 544, "all", "bf16", 4],
  ["Q4_0", 70, 96, "a gate", "f16", 1],
  ["Q8_0", 300, 264, "nothing", "bf16", 2],
  ["Q4_K", 70, 84, "all", "f16", 2],
  ["Q4_K", 261, 96, "a gate", "bf16", 2],
  ["Q5_0", 70, 96, "a residual", "f16", 1],
  ["Q6_K", 70, 48, "nothing", "bf16", 1],
] as const)("%s by %i rows (%i lines) with %s in %s", (type, rows, n, adds, dtype, multiprocessors) => {
  const device = deviceWith("sm_90a", 0, multiprocessors);
  const gpu = device.backend as GpuBackend;
  const k = 1536;
  const isGated = adds.endsWith("gate");
  const columns = isGated ? n / 2 : n;
  const random = (shape: number[], seed: number) =>
    Array.from(
      { length: shape.reduce((a, b) => a * b) },
      (_, i) => ((Math.imul(i + seed, 2654435761) >>> 8) % 1001) / 500 - 1,
    );
  // So small that no gated product overflows f16.
  const q = QTensor.quantize(Tensor.from(random([n, k], 7).map((v) => v / 4)).reshape([n, k]), type);
  const given = (shape: number[], seed: number) => Tensor.from(random(shape, seed), { device, dtype }).reshape(shape);
  const x = given([rows, k], 91);
  const hasAll = adds.startsWith("all");
  const [alpha, bias] = hasAll ? [given([k], 3), given([n], 5)] : [null, null];
  const residual = hasAll || adds === "a residual" ? given([rows, columns], 11) : null;
  const y = Tensor.full([rows, columns], Number.NaN, { device, dtype });
  const blocks = q.toDeviceSync(device).blocks;
  const address = (t: Tensor | null): number => (t ? at(t) : 0);
  const added = {
    ...{ alpha: address(alpha), eps: 1e-5, bias: address(bias), residual: address(residual) },
    glu: isGated ? gluNumbers.silu : 0,
  };
  const shape = { rows, n, k };
  const plan = planQuantTiles(shape, type, multiprocessors);
  if (plan) {
    const weights = inBoxes(device, blocks, plan, isGated);
    multiplyBoxes(gpu, plan, dtype, at(x), weights, shape, at(y), added);
  } else multiplyWide(gpu, type, dtype, at(x), at(blocks), shape, at(y), added);

  const plain = (t: Tensor): Tensor => Tensor.from(t.dataSync() as Float32Array).reshape([...t.shape]);
  const normed = alpha ? rmsNorm(plain(x), plain(alpha), 1e-5) : plain(x);
  let wanted = normed.matmul(q.dequantize().transpose(0, 1));
  if (bias) wanted = wanted.add(plain(bias));
  if (isGated) {
    const [gate, up] = wanted.chunk(2, 1) as [Tensor, Tensor];
    wanted = gate.silu().mul(up);
  }
  if (residual) wanted = wanted.add(plain(residual));
  const [found, right] = [plain(y).dataSync() as Float32Array, wanted.dataSync() as Float32Array];
  let [difference, norm] = [0, 0];
  for (let i = 0; i < found.length; i++) {
    difference += (found[i]! - right[i]!) ** 2;
    norm += right[i]! ** 2;
  }
  expect(Math.sqrt(difference / norm)).toBeLessThan(bounds[dtype]);
});
