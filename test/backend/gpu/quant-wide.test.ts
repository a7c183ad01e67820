// Products of many rows with quantized weights by warpgroups, as the simulator plays them, against sums of dequantized weights.
import { expect, it } from "vitest";
import type { GpuBackend } from "../../../src/backend/gpu/backend.ts";
import { planQuantFlow } from "../../../src/backend/gpu/families/quant-flow.ts";
import { orderOf } from "../../../src/backend/gpu/families/quant-wide.ts";
import { gluNumbers } from "../../../src/backend/gpu/families/quantized.ts";
import { at } from "../../../src/backend/gpu/gpu.ts";
import { multiplyFlow, multiplyWide } from "../../../src/backend/gpu/ops/quant-wide.ts";
import type { QuantType } from "../../../src/core/quant-types.ts";
import { Tensor } from "../../../src/index.ts";
import { rmsNorm } from "../../../src/nn/index.ts";
import { QTensor } from "../../../src/quantized/index.ts";
import { deviceWith, inBoxes } from "../../helpers/matrix-units.ts";

/** Of a type of each order of words; sizes cut tiles, chunks and steps, and a tile in two, four or eight. The last number is of multiprocessors: one makes tiles alone first. */
it.each([
  ["Q8_0", 136, 512, 70, "bf16"],
  ["Q4_0", 40, 1280, 12, "f16"],
  ["Q5_0", 40, 352, 18, "bf16"],
  ["Q4_K", 40, 1280, 40, "f16"],
  ["Q4_K", 264, 3072, 34, "bf16", 1],
  ["Q6_K", 24, 512, 70, "bf16"],
  ["Q8_0", 24, 4096, 33, "f16"],
  ["Q4_0", 150, 1024, 50, "bf16"],
  ["Q8_0", 40, 512, 41, "f16", 1],
] as const)("%s (%i, %i) by %i rows in %s", (type, n, k, rows, dtype, multiprocessors: number = 16) => {
  const error = errorOf({ type, n, k, rows, dtype, multiprocessors }, (gpu, x, w, y) =>
    multiplyWide(gpu, type, dtype, x, at(w), { rows, n, k }, y),
  );
  expect(error).toBeLessThan(bounds[dtype]);
});

/** By boxes. The last two are cut: by a pair of blocks, and by four. */
it.each([
  ["Q4_0", 264, 1536, 64, "bf16"],
  ["Q8_0", 300, 3072, 18, "f16"],
  ["Q8_0", 40, 4096, 41, "bf16", 1],
  ["Q4_0", 150, 3072, 12, "f16"],
  ["Q4_0", 300, 2048, 64, "f16", 8],
  ["Q8_0", 200, 4096, 33, "bf16", 8],
] as const)("%s (%i, %i) by %i rows in %s, by boxes", (type, n, k, rows, dtype, multiprocessors: number = 2) => {
  const shape = { rows, n, k };
  const plan = planQuantFlow(shape, type, multiprocessors)!;
  const error = errorOf({ type, ...shape, dtype, multiprocessors }, (gpu, x, w, y) =>
    multiplyFlow(gpu, plan, dtype, x, inBoxes(w.device, w, plan, false), shape, y),
  );
  expect(error).toBeLessThan(bounds[dtype]);
});

it.each([
  ["Q8_0", true],
  ["Q4_0", false],
] as const)("%s by boxes with all that a layer adds, a gate: %s", (type, isGated) => {
  const device = deviceWith("sm_90a", 0, 1);
  const gpu = device.backend as GpuBackend;
  const [rows, n, k] = [19, 84, 1536];
  const columns = isGated ? n / 2 : n;
  const random = (count: number, seed: number) =>
    Array.from({ length: count }, (_, i) => ((Math.imul(i + seed, 2654435761) >>> 8) % 1001) / 500 - 1);
  const q = QTensor.quantize(Tensor.from(random(n * k, 7)).reshape([n, k]), type);
  const given = (count: number, seed: number) => Tensor.from(random(count, seed), { device, dtype: "f16" });
  const x = given(rows * k, 91).reshape([rows, k]);
  const [alpha, bias, residual] = [given(k, 3), given(n, 5), given(rows * columns, 11).reshape([rows, columns])];
  const y = Tensor.full([rows, columns], Number.NaN, { device, dtype: "f16" });
  const shape = { rows, n, k };
  const plan = planQuantFlow(shape, type, 1)!;
  const weights = inBoxes(device, q.toDeviceSync(device).blocks, plan, isGated);
  const added = {
    alpha: at(alpha),
    eps: 1e-5,
    bias: at(bias),
    residual: at(residual),
    glu: isGated ? gluNumbers.silu : 0,
  };
  multiplyFlow(gpu, plan, "f16", at(x), weights, shape, at(y), added);
  const plain = (t: Tensor): Tensor => Tensor.from(t.dataSync() as Float32Array).reshape([...t.shape]);
  const normed = rmsNorm(plain(x), plain(alpha), 1e-5);
  const product = normed.matmul(q.dequantize().transpose(0, 1)).add(plain(bias));
  const [gate, up] = isGated ? (product.chunk(2, 1) as [Tensor, Tensor]) : [product, null];
  const wanted = (up ? gate.silu().mul(up) : gate).add(plain(residual)).dataSync() as Float32Array;
  const found = plain(y).dataSync() as Float32Array;
  let [difference, norm] = [0, 0];
  for (let i = 0; i < found.length; i++) {
    difference += (found[i]! - wanted[i]!) ** 2;
    norm += wanted[i]! ** 2;
  }
  expect(Math.sqrt(difference / norm)).toBeLessThan(bounds.f16);
});

/** Rows of f16 in order beside give the sums that they give when they are brought into order; with a norm between, nearly. */
it.each([
  ["Q4_0", "Q4_0", true, false],
  ["Q8_0", "Q4_0", true, false],
  ["Q4_0", "Q8_0", false, true],
  ["Q8_0", "Q6_K", true, false],
  ["Q4_0", "Q4_0", false, true],
] as const)("%s by boxes to the order of %s, a gate: %s, a norm: %s", (type, next, isGated, isNormed) => {
  const device = deviceWith("sm_90a", 0, 1);
  const gpu = device.backend as GpuBackend;
  const [rows, n, k] = [19, 512 * (isGated ? 2 : 1), 1536];
  const quantized = (lines: number, columns: number, of: QuantType) => {
    const w = Tensor.from(small(lines * columns, 7)).reshape([lines, columns]);
    return QTensor.quantize(w, of).toDeviceSync(device).blocks;
  };
  const given = (count: number, seed: number, times = 1) =>
    Tensor.from(
      small(count, seed).map((x) => x * times),
      { device, dtype: "f16" },
    );
  const [x, alpha] = [given(rows * k, 91), given(512, 17, 70)];
  const [y, ordered] = [512, 1024].map((columns) => Tensor.full([24, columns], Number.NaN, { device, dtype: "f16" }));
  const shape = { rows, n, k };
  const added = { alpha: 0, eps: 0, bias: 0, residual: 0, glu: isGated ? gluNumbers.silu : 0 };
  const between = isNormed ? { next_alpha: at(alpha), lower: 1 / 8 } : { next_alpha: 0, lower: 1 };
  const to = { ordered: at(ordered!), order: orderOf(next), ...between };
  const flow = planQuantFlow(shape, type, 1)!;
  const weights = inBoxes(device, quantized(n, k, type), flow, isGated);
  multiplyFlow(gpu, flow, "f16", at(x), weights, shape, at(y!), added, to);
  const down = quantized(40, 512, next);
  const came = { x: to.ordered, told: isNormed ? 4 : 0, raise: 1 / between.lower };
  const small512 = { rows, n: 40, k: 512 };
  const behind = { ...added, glu: 0, alpha: isNormed ? at(alpha) : 0, eps: 1e-3 };
  const run = (own: typeof came | null, byBoxes: boolean) => {
    const out = Tensor.full([rows, 40], Number.NaN, { device, dtype: "f16" });
    const all = { ...behind, came: own };
    if (!byBoxes) multiplyWide(gpu, next, "f16", at(y!), at(down), small512, at(out), all);
    else {
      const plan = planQuantFlow({ ...small512, k: 1536 }, next, 1)!;
      const boxes = { ...plan.boxes, pieces: plan.boxes.pieces / 3 };
      multiplyFlow(gpu, plan, "f16", at(y!), inBoxes(device, down, { boxes }, false), small512, at(out), all);
    }
    return Array.from(out.dataSync() as Float32Array);
  };
  const wanted = run(null, false);
  expect(wanted.every(Number.isFinite)).toBe(true);
  for (const byBoxes of next === "Q6_K" ? [false] : [false, true]) {
    const found = run(came, byBoxes);
    if (!isNormed) expect(found).toEqual(wanted);
    else expect(apart(found, wanted)).toBeLessThan(bounds.f16);
  }
});

const small = (count: number, seed: number) =>
  Array.from({ length: count }, (_, i) => ((Math.imul(i + seed, 2654435761) >>> 8) % 1001) / 5000 - 0.1);
function apart(found: readonly number[], wanted: readonly number[]): number {
  let [difference, norm] = [0, 0];
  for (const [i, x] of found.entries()) {
    difference += (x - wanted[i]!) ** 2;
    norm += wanted[i]! ** 2;
  }
  return Math.sqrt(difference / norm);
}
const bounds = { f16: 1e-3, bf16: 4e-3 } as const;
interface Product {
  readonly type: QuantType;
  readonly n: number;
  readonly k: number;
  readonly rows: number;
  readonly dtype: "bf16" | "f16";
  readonly multiprocessors: number;
}
/** Relative error of what `multiply` makes of x (rows, k) and w (n, k), by addresses. */
function errorOf(
  { type, n, k, rows, dtype, multiprocessors }: Product,
  multiply: (gpu: GpuBackend, x: number, w: Tensor, y: number) => void,
): number {
  const device = deviceWith("sm_90a", 0, multiprocessors);
  const gpu = device.backend as GpuBackend;
  const random = (of: number, seed: number) =>
    Array.from({ length: of * k }, (_, i) => ((Math.imul(i + seed, 2654435761) >>> 8) % 1001) / 500 - 1);
  // Some lines have scales that the quick way of decoding does not reach.
  const lines = random(n, 7).map((v, i) => v * (Math.floor(i / k) % 48 === 3 ? 8 : 0.2));
  const q = QTensor.quantize(Tensor.from(lines).reshape([n, k]), type);
  const w = q.dequantize().dataSync() as Float32Array;
  const x = Tensor.from(random(rows, 91), { device, dtype });
  const given = x.dataSync() as Float32Array;
  const y = Tensor.full([rows, n], Number.NaN, { device, dtype });
  const blocks = q.toDeviceSync(device).blocks;
  multiply(gpu, at(x), blocks, at(y));
  const found = y.dataSync() as Float32Array;
  let [difference, norm] = [0, 0];
  for (let i = 0; i < rows; i++)
    for (let j = 0; j < n; j++) {
      let sum = 0;
      for (let l = 0; l < k; l++) sum += given[i * k + l]! * w[j * k + l]!;
      difference += (found[i * n + j]! - sum) ** 2;
      norm += sum ** 2;
    }
  return Math.sqrt(difference / norm);
}
