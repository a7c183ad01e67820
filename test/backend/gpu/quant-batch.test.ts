// Linear layers of up to 64 rows with quantized weights, as the simulator plays Hopper's, against sums of dequantized weights.
import { expect, it, vi } from "vitest";
import type { GpuBackend } from "../../../src/backend/gpu/backend.ts";
import { planQuantBatch } from "../../../src/backend/gpu/families/quant-batch.ts";
import { planQuantEven } from "../../../src/backend/gpu/families/quant-even.ts";
import { orderOf } from "../../../src/backend/gpu/families/quant-wide.ts";
import { gluNumbers } from "../../../src/backend/gpu/families/quantized.ts";
import { at } from "../../../src/backend/gpu/gpu.ts";
import { multiplyEven } from "../../../src/backend/gpu/ops/quant-even.ts";
import { nothing } from "../../../src/backend/gpu/ops/quant-wide.ts";
import { nowhere } from "../../../src/backend/gpu/ops/x-order.ts";
import { type DType, Tensor } from "../../../src/index.ts";
import { compute } from "../../../src/ops/compute.ts";
import { QTensor } from "../../../src/quantized/index.ts";
import { deviceWith, inBoxes } from "../../helpers/matrix-units.ts";

const multiprocessors = 16;
const device = deviceWith("sm_90a", 0, multiprocessors);

const random = (count: number, seed: number): number[] =>
  Array.from({ length: count }, (_, i) => ((Math.imul(i + seed, 2654435761) >>> 8) % 1001) / 500 - 1);
const given = (values: readonly number[], shape: readonly number[], dtype: DType): Tensor =>
  Tensor.from([...values], { device, dtype }).reshape([...shape]);
const read = (x: Tensor): number[] => [...(x.dataSync() as Float32Array)];

function product(x: readonly number[], w: Float32Array, rows: number, n: number, k: number): number[] {
  return Array.from({ length: rows * n }, (_, i) => {
    const [from, line] = [Math.floor(i / n) * k, (i % n) * k];
    let sum = 0;
    for (let l = 0; l < k; l++) sum += x[from + l]! * w[line + l]!;
    return sum;
  });
}
function error(found: readonly number[], wanted: readonly number[]): number {
  const square = (values: readonly number[]) => values.reduce((sum, value) => sum + value * value, 0);
  return Math.sqrt(square(found.map((value, i) => value - wanted[i]!)) / square(wanted));
}
const bound = { f16: 1e-3, bf16: 4e-3 } as const;
const plain = { norm: null, bias: null, glu: null, residual: null };

/** Of a type of each order of words; sizes cut groups, chunks and parts. */
it.each([
  ["Q8_0", 24, 1120, 9, "bf16"],
  ["Q8_0", 1032, 288, 12, "f16"],
  ["Q8_0", 24, 768, 10, "bf16"],
  ["Q4_0", 40, 1280, 7, "f16"],
  ["Q4_K", 280, 1280, 16, "f16"],
  ["Q8_0", 40, 512, 29, "f16"],
  ["Q2_K", 24, 1280, 16, "bf16"],
] as const)("%s (%i, %i) by %i rows in %s", (type, n, k, rows, dtype) => {
  const q = QTensor.quantize(Tensor.from(random(n * k, 7)).reshape([n, k]), type);
  const values = random(rows * k, 91);
  // A row of what halves cannot hold, and one of nothing.
  if (dtype === "bf16") for (let i = 0; i < k; i++) values[k + i]! *= 1e30;
  for (let i = 0; i < k; i++) values[2 * k + i] = 0;
  const x = given(values, [rows, k], dtype);
  const y = compute(device.backend as GpuBackend, "linear", [rows, n], x, q.toDeviceSync(device).blocks, type, plain);
  const wanted = product(read(x), q.dequantize().dataSync() as Float32Array, rows, n, k);
  const found = read(y);
  for (let row = 0; row < rows; row++) {
    const [a, b] = [found, wanted].map((all) => all.slice(row * n, (row + 1) * n)) as [number[], number[]];
    if (row === 2) expect(a).toEqual(a.map(() => 0));
    else expect(error(a, b), `row ${row}`).toBeLessThan(bound[dtype]);
  }
});

/** By boxes. Groups are dealt out whole, in halves, and to several warps; blocks share them. */
it.each([
  ["Q8_0", 24, 1024, 9, "bf16", 1],
  ["Q4_0", 300, 1280, 16, "f16", 2],
  ["Q4_0", 20, 1792, 5, "bf16", 8],
  ["Q8_0", 200, 512, 8, "f16", 1],
] as const)("%s (%i, %i) by %i rows in %s, by boxes", (type, n, k, rows, dtype, multiprocessors) => {
  const q = QTensor.quantize(Tensor.from(random(n * k, 7)).reshape([n, k]), type);
  const values = random(rows * k, 91);
  if (dtype === "bf16") for (let i = 0; i < k; i++) values[k + i]! *= 1e30;
  for (let i = 0; i < k; i++) values[2 * k + i] = 0;
  const [x, y] = [given(values, [rows, k], dtype), given(new Array(rows * n).fill(Number.NaN), [rows, n], dtype)];
  const plan = planQuantEven({ rows, n, k }, type, multiprocessors)!;
  const weights = inBoxes(device, q.toDeviceSync(device).blocks, plan, false);
  multiplyEven(device.backend as GpuBackend, plan, dtype, at(x), weights, { rows, n, k }, at(y));
  const wanted = product(read(x), q.dequantize().dataSync() as Float32Array, rows, n, k);
  const found = read(y);
  for (let row = 0; row < rows; row++) {
    const [a, b] = [found, wanted].map((all) => all.slice(row * n, (row + 1) * n)) as [number[], number[]];
    if (row === 2) expect(a).toEqual(a.map(() => 0));
    else expect(error(a, b), `row ${row}`).toBeLessThan(bound[dtype]);
  }
});

/** Results that come in the order of the next product, with a gate and without. */
it.each([
  ["Q4_0", 9, "bf16", true],
  ["Q8_0", 6, "bf16", false],
  ["Q8_0", 16, "f16", true],
] as const)("%s, two layers of %i rows in %s, a gate: %s", (type, rows, dtype, isGated) => {
  const gpu = device.backend as GpuBackend;
  const [k, between, n] = [256, 768, 40];
  const weights = (lines: number, width: number, seed: number) =>
    QTensor.quantize(Tensor.from(random(lines * width, seed)).reshape([lines, width]), type);
  const values = random(rows * k, 91);
  // Gates of what is large are large squares.
  if (dtype === "bf16") for (let i = 0; i < k; i++) values[k + i]! *= 1e13;
  for (let i = 0; i < k; i++) values[2 * k + i] = 0;
  const x = given(values, [rows, k], dtype);
  const first = weights(isGated ? 2 * between : between, k, 7);
  const second = weights(n, between, 17);
  const layer = (
    q: QTensor,
    from: number,
    width: number,
    added: Partial<typeof nothing>,
    y: Tensor,
    to = nowhere,
  ): void => {
    const shape = { rows, n: q.shape[0]!, k: width };
    const plan = planQuantEven(shape, type, 2)!;
    const given = inBoxes(device, q.toDeviceSync(device).blocks, plan, (added.glu ?? 0) > 0);
    multiplyEven(gpu, plan, dtype, from, given, shape, at(y), { ...nothing, ...added }, to);
  };
  // In order behind the rows, as filledInOrder has it.
  const height = Math.ceil(rows / 8) * 8;
  const all = Tensor.full([rows * between + height * (between + 2)], Number.NaN, { device, dtype });
  const ordered = at(all) + 2 * rows * between;
  layer(first, at(x), k, { glu: isGated ? gluNumbers.silu : 0 }, all, { ...nowhere, ordered, order: orderOf(type) });
  const y = Tensor.full([rows, n], Number.NaN, { device, dtype });
  layer(second, 0, between, { came: { x: ordered, told: 0, raise: 1 } }, y);
  const wanted = product(read(all), second.dequantize().dataSync() as Float32Array, rows, n, between);
  const found = read(y);
  for (let row = 0; row < rows; row++) {
    const [a, b] = [found, wanted].map((of) => of.slice(row * n, (row + 1) * n)) as [number[], number[]];
    if (row === 2) expect(a).toEqual(a.map(() => 0));
    else expect(error(a, b), `row ${row}`).toBeLessThan(bound[dtype]);
  }
});

it.each([
  ["Q4_0", 9],
  ["Q8_0", 7],
] as const)("%s, a norm between two layers of %i rows whose squares the first tells", (type, rows) => {
  const gpu = device.backend as GpuBackend;
  const [k, between, n] = [512, 768, 40];
  const quantized = (lines: number, width: number, seed: number) =>
    QTensor.quantize(Tensor.from(random(lines * width, seed)).reshape([lines, width]), type);
  const [first, second] = [quantized(between, k, 7), quantized(n, between, 17)];
  const x = given(random(rows * k, 91), [rows, k], "f16");
  const alpha = given(
    random(between, 5).map((value) => 3 * value),
    [between],
    "f16",
  );
  const layer = (q: QTensor, width: number, y: number, from: number, added: object, to = nowhere): void => {
    const shape = { rows, n: q.shape[0]!, k: width };
    const plan = planQuantEven(shape, type, 4)!;
    const weights = inBoxes(device, q.toDeviceSync(device).blocks, plan, false);
    multiplyEven(gpu, plan, "f16", from, weights, shape, y, { ...nothing, ...added }, to);
  };
  const height = Math.ceil(rows / 8) * 8;
  const told = between / 16;
  const all = Tensor.full([rows * between + height * (between + 2 * told)], Number.NaN, { device, dtype: "f16" });
  const ordered = at(all) + 2 * rows * between;
  layer(first, k, at(all), at(x), {}, { ordered, order: orderOf(type), next_alpha: at(alpha), lower: 1 / 4 });
  const results = [{ came: { x: ordered, told, raise: 4 } }, {}].map((added) => {
    const y = Tensor.full([rows, n], Number.NaN, { device, dtype: "f16" });
    layer(second, between, at(y), at(all), { alpha: at(alpha), eps: 1e-5, ...added });
    return read(y);
  }) as [number[], number[]];
  expect(error(...results)).toBeLessThan(bound.f16);
});

/** Kernels that know what comes behind a product do what the one does that does not, bit by bit: of few multiprocessors a block has many groups, of many several have one. */
it.each([
  ["plain", "Q4_0", 16, 2],
  ["plain", "Q8_0", 7, 3],
  ["gate", "Q4_0", 13, 3],
  ["gate", "Q8_0", 8, 2],
  ["add", "Q4_0", 16, 3],
  ["add", "Q4_0", 11, 80],
  ["add", "Q8_0", 5, 2],
] as const)("%s products of %s by %i rows, on %i multiprocessors, are those of any", (kind, type, rows, blocks) => {
  const gpu = device.backend as GpuBackend;
  // So long that on many multiprocessors blocks share it.
  const [n, k] = [768, blocks > 48 ? 6656 : 512];
  const columns = kind === "gate" ? n / 2 : n;
  const q = QTensor.quantize(Tensor.from(random(n * k, 3)).reshape([n, k]), type).toDeviceSync(device);
  const [x, residual, alpha] = [
    given(random(rows * k, 5), [rows, k], "f16"),
    given(random(rows * columns, 9), [rows, columns], "f16"),
    given(random(columns, 6), [columns], "f16"),
  ];
  const height = Math.ceil(rows / 8) * 8;
  const size = rows * columns + height * (columns + columns / 8);
  const plan = planQuantEven({ rows, n, k }, type, blocks)!;
  expect(plan.launch.cuts > 1).toBe(blocks > 48);
  const run = (named: (name: string) => string) => {
    const names: string[] = [];
    const { launch } = gpu;
    const spied = vi.spyOn(gpu, "launch").mockImplementation((name, values) => {
      names.push(name);
      launch.call(gpu, named(name) as never, values as never);
    });
    const y = Tensor.full([size], 0, { device, dtype: "f16" });
    const ordered = at(y) + 2 * rows * columns;
    const tells = kind === "add" ? { next_alpha: at(alpha), lower: 0.5 } : {};
    const to = kind === "plain" ? nowhere : { ...nowhere, ordered, order: orderOf(type), ...tells };
    const added = { residual: kind === "add" ? at(residual) : 0, glu: kind === "gate" ? gluNumbers.silu : 0 };
    const weights = inBoxes(device, q.blocks, plan, kind === "gate");
    multiplyEven(gpu, plan, "f16", at(x), weights, { rows, n, k }, at(y), { ...nothing, ...added }, to);
    spied.mockRestore();
    return { name: names.at(-1), bits: read(y) };
  };
  const [known, any] = [run((name) => name), run((name) => name.replace(`_${kind}_`, "_any_"))];
  expect(known.name).toBe(`quant_even_${kind}_${plan.name}`);
  expect(known.bits).toEqual(any.bits);
  expect(known.bits.some((value) => value !== 0 && Number.isFinite(value))).toBe(true);
});

/** Through the op, which has no boxes on the simulator, and by boxes. */
it.each([
  [11, 88, 288, false, true],
  [27, 88, 256, false, true],
  [11, 88, 512, true, true],
  [7, 40, 1024, true, false],
])(
  "normalises, adds biases, opens gates and adds a residual: %i rows (%i, %i), boxes %s, gate %s",
  (rows, n, k, byBoxes, isGated) => {
    const q = QTensor.quantize(Tensor.from(random(n * k, 3)).reshape([n, k]), "Q8_0");
    const columns = isGated ? n / 2 : n;
    const [x, weight, bias] = [
      given(random(rows * k, 5), [rows, k], "f16"),
      given(random(k, 6), [k], "f16"),
      given(random(n, 8), [n], "f16"),
    ];
    const residual = given(random(rows * columns, 9), [rows, columns], "f16");
    const blocks = q.toDeviceSync(device).blocks;
    const gpu = device.backend as GpuBackend;
    const layer = (): Tensor => {
      if (!byBoxes) {
        const params = { norm: { weight, eps: 1e-5 }, bias, glu: "silu", residual } as const;
        return compute(gpu, "linear", [rows, columns], x, blocks, "Q8_0", params);
      }
      const y = given(new Array(rows * columns).fill(Number.NaN), [rows, columns], "f16");
      const plan = planQuantEven({ rows, n, k }, "Q8_0", 3)!;
      const glu = isGated ? gluNumbers.silu : 0;
      const added = { alpha: at(weight), eps: 1e-5, bias: at(bias), residual: at(residual), glu };
      multiplyEven(gpu, plan, "f16", at(x), inBoxes(device, blocks, plan, glu > 0), { rows, n, k }, at(y), added);
      return y;
    };
    const from = read(x);
    const scaled = from.map((value, i) => {
      const row = from.slice(Math.floor(i / k) * k, Math.floor(i / k) * k + k);
      const mean = row.reduce((sum, v) => sum + v * v, 0) / k;
      return (value / Math.sqrt(mean + 1e-5)) * read(weight)[i % k]!;
    });
    const all = product(scaled, q.dequantize().dataSync() as Float32Array, rows, n, k);
    const biases = read(bias);
    const wanted = read(residual).map((value, i) => {
      const [row, column] = [Math.floor(i / columns), i % columns];
      const gate = all[row * n + column]! + biases[column]!;
      if (!isGated) return value + gate;
      return value + (gate / (1 + Math.exp(-gate))) * (all[row * n + n / 2 + column]! + biases[n / 2 + column]!);
    });
    expect(error(read(layer()), wanted)).toBeLessThan(2e-3);
  },
);

it.each([
  ["Q4_K", 6],
  ["Q5_K", 6],
  ["Q4_K", 20],
  ["Q5_K", 20],
] as const)("%s, which has minima, by %i rows is as right as types without", (type, rows) => {
  const [n, k] = [64, 1024];
  const q = QTensor.quantize(Tensor.randn([n, k], { seed: 5 }), type);
  const x = given([...(Tensor.randn([rows * k], { seed: 6 }).dataSync() as Float32Array)], [rows, k], "f16");
  const y = compute(device.backend as GpuBackend, "linear", [rows, n], x, q.toDeviceSync(device).blocks, type, plain);
  // Minima that are rounded to halves as they are make it 6e-4.
  expect(error(read(y), product(read(x), q.dequantize().dataSync() as Float32Array, rows, n, k))).toBeLessThan(4.5e-4);
});

it("lets no row through whose sum is not a number, and shares deep rows among blocks", () => {
  const [rows, n, k] = [9, 24, 1120];
  const q = QTensor.quantize(Tensor.from(random(n * k, 7)).reshape([n, k]), "Q8_0");
  const values = random(rows * k, 4);
  values[3 * k + 700] = Number.NaN;
  values[4 * k + 5] = Number.POSITIVE_INFINITY;
  const y = compute(
    device.backend as GpuBackend,
    "linear",
    [rows, n],
    given(values, [rows, k], "bf16"),
    q.toDeviceSync(device).blocks,
    "Q8_0",
    plain,
  );
  read(y).forEach((value, i) => {
    const row = Math.floor(i / n);
    if (row === 3) expect(value).toBeNaN();
    else expect(Number.isFinite(value)).toBe(row !== 4);
  });
  const { launch } = planQuantBatch({ n, k }, "Q8_0", { multiprocessors, arch: "sm_90a" });
  expect(launch.parts).toBeGreaterThan(1);
});
