// Mixtures of experts against plain sums in f64.
import { expect, it } from "vitest";
import { Device, type DType, Tensor } from "../../src/index.ts";
import { clampedSwiglu, expertLinear, mixExperts, routeExperts } from "../../src/nn/index.ts";
import { QTensor, type QuantType } from "../../src/quantized/index.ts";
import { describeDevices } from "../helpers/devices.ts";
import { tensor } from "../helpers/reference.ts";

let state = 11;
const random = (): number => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state / 2 ** 32;
};
const uniform = (n: number, size = 1): number[] => Array.from({ length: n }, () => (2 * random() - 1) * size);
const values = (t: Tensor): number[] => [...(t.toDType("f32").flattenAll().toArraySync() as number[])];

const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));
const clamped = (gate: number, up: number): number => {
  const g = Math.min(gate, 7);
  return g * sigmoid(1.702 * g) * (Math.max(-7, Math.min(7, up)) + 1);
};
const gates = {
  silu: (gate: number, up: number): number => gate * sigmoid(gate) * up,
  clampedSwiglu: clamped,
} as const;

const NOTHING = 0xffffffff;

interface Case {
  readonly experts: number;
  readonly outputs: number;
  readonly inputs: number;
  readonly ids: readonly (readonly number[])[];
  /** x has a row for each slot. */
  readonly bySlot?: boolean;
  readonly bias?: boolean;
  readonly glu?: keyof typeof gates;
}

function expected(c: Case, x: number[], w: number[], bias: number[]): number[] {
  const flat = c.ids.flat();
  const share = c.bySlot ? 1 : c.ids[0]!.length;
  return flat.flatMap((id, slot) => {
    if (id === NOTHING) return Array.from({ length: c.glu ? c.outputs / 2 : c.outputs }, () => 0);
    const row = Math.floor(slot / share) * c.inputs;
    const sums = Array.from({ length: c.outputs }, (_, o) => {
      let sum = c.bias ? bias[id * c.outputs + o]! : 0;
      for (let i = 0; i < c.inputs; i++) sum += x[row + i]! * w[(id * c.outputs + o) * c.inputs + i]!;
      return sum;
    });
    const half = c.outputs / 2;
    return c.glu ? sums.slice(0, half).map((gate, i) => gates[c.glu!](gate, sums[half + i]!)) : sums;
  });
}

/** The largest error, beside the largest result, that halves of x, weights, bias and results leave. */
const bounds: Partial<Record<DType, number>> = { f32: 5e-5, f16: 3e-3, bf16: 2e-2 };

function check(device: Device, c: Case, dtype: DType, type: QuantType | null): void {
  const rows = c.bySlot ? c.ids.flat().length : c.ids.length;
  const x = tensor(uniform(rows * c.inputs), [rows, c.inputs], { device, dtype: dtype });
  const shape = [c.experts, c.outputs, c.inputs];
  const numbers = uniform(c.experts * c.outputs * c.inputs, 0.5);
  const weight = type
    ? QTensor.quantize(tensor(numbers, shape, { device: Device.from("cpu"), dtype: "f32" }), type).toDeviceSync(device)
    : tensor(numbers, shape, { device, dtype });
  const bias = c.bias ? tensor(uniform(c.experts * c.outputs), [c.experts, c.outputs], { device, dtype: dtype }) : null;
  const ids = Tensor.from(Uint32Array.from(c.ids.flat()), { device }).reshape([c.ids.length, c.ids[0]!.length]);
  const y = expertLinear(x, weight, ids, { bias, glu: c.glu });
  expect(y.dtype).toBe(dtype);
  const w = weight instanceof QTensor ? weight.dequantize() : weight;
  const wanted = expected(c, values(x), values(w), bias ? values(bias) : []);
  const size = Math.max(...wanted.map(Math.abs));
  const got = values(y);
  expect(got.length).toBe(wanted.length);
  for (const [i, v] of wanted.entries()) {
    if (!(Math.abs(got[i]! - v) <= bounds[dtype]! * size))
      expect.fail(`element ${i}: ${got[i]}, not ${v} (of ${size})`);
  }
}

const some = [
  [3, 0],
  [3, 5],
  [1, 3],
];
/** Each row to k of the experts below `among`. */
const many = (n: number, k: number, among: number): number[][] =>
  Array.from({ length: n }, (_, r) => Array.from({ length: k }, (_, j) => (r * 7 + j * 3 + (r >> 2)) % among));

describeDevices("experts", (device) => {
  it("routes each row to its best, ties to the lower number and NaN last", () => {
    const scores = tensor([1, 3, 3, Number.NaN, Number.NaN, 2, Number.NEGATIVE_INFINITY, 2], [2, 4], {
      device,
      dtype: "f32",
    });
    const { ids, mix } = routeExperts(scores, 3);
    expect(ids.toArraySync()).toEqual([
      [1, 2, 0],
      [1, 3, 2],
    ]);
    const e = Math.exp(-2);
    const wanted = [1 / (2 + e), 1 / (2 + e), e / (2 + e), 0.5, 0.5, 0];
    for (const [i, v] of values(mix).entries()) expect(v).toBeCloseTo(wanted[i]!, 6);
    const [best, places] = scores.topk(4);
    expect(places.toArraySync()).toEqual([
      [1, 2, 0, 3],
      [1, 3, 2, 0],
    ]);
    expect(values(best).slice(0, 3)).toEqual([3, 3, 1]);
  });

  it("finds the best of many, in every float dtype", () => {
    const all = uniform(3 * 130);
    for (const dtype of ["f32", "f16", "bf16"] as const) {
      const scores = tensor(all, [3, 130], { device, dtype: dtype });
      const rows = scores.toDType("f32").toArraySync() as number[][];
      const { ids, mix } = routeExperts(scores, 17);
      expect(ids.toArraySync()).toEqual(
        rows.map((row) => [...row.keys()].sort((a, b) => row[b]! - row[a]! || a - b).slice(0, 17)),
      );
      expect(mix.dtype).toBe(dtype);
      for (const row of mix.toDType("f32").toArraySync() as number[][]) {
        expect(row.reduce((a, b) => a + b)).toBeCloseTo(1, dtype === "f32" ? 5 : 1);
      }
    }
  });

  it.each(["f32", "f16", "bf16"] as const)("sends rows of %s through plain experts", (dtype) => {
    check(device, { experts: 6, outputs: 34, inputs: 40, ids: some, bias: true }, dtype, null);
    check(device, { experts: 6, outputs: 10, inputs: 64, ids: some, bySlot: true, glu: "silu" }, dtype, null);
  });

  it("sends rows through quantized experts", () => {
    check(device, { experts: 6, outputs: 36, inputs: 96, ids: some, bias: true, glu: "clampedSwiglu" }, "f32", "Q4_0");
    check(device, { experts: 6, outputs: 37, inputs: 256, ids: some, bySlot: true }, "f16", "Q4_K");
  });

  it("sends many rows through experts, of which some have none", () => {
    const plain = { experts: 9, outputs: 70, inputs: 72, ids: many(90, 2, 5), bias: true };
    for (const dtype of ["f32", "f16"] as const) check(device, plain, dtype, null);
    const quantized = { experts: 5, outputs: 66, inputs: 96, ids: many(70, 3, 4), glu: "clampedSwiglu" } as const;
    for (const dtype of ["f32", "bf16"] as const) check(device, quantized, dtype, "Q5_1");
    check(device, { experts: 3, outputs: 40, inputs: 256, ids: many(80, 1, 1), bySlot: true }, "f16", "Q6_K");
  });

  it("gives zeros for no expert, and takes no rows", () => {
    check(device, { experts: 2, outputs: 8, inputs: 16, ids: [[1, NOTHING]] }, "f32", null);
    const ids = Tensor.zeros([0, 2], { dtype: "u32", device });
    const x = Tensor.zeros([0, 8], { device });
    const w = Tensor.zeros([3, 4, 8], { device });
    expect(expertLinear(x, w, ids).shape).toEqual([0, 4]);
    expect(mixExperts(Tensor.zeros([0, 4], { device }), Tensor.zeros([0, 2], { device })).shape).toEqual([0, 4]);
  });

  it("says which id names no expert", async () => {
    const w = Tensor.ones([3, 4, 8], { device });
    for (const rows of [1, 70]) {
      const ids = Tensor.from(new Uint32Array(rows).fill(3), { device }).reshape([rows, 1]);
      expect(() => expertLinear(Tensor.ones([rows, 8], { device }), w, ids).dataSync()).toThrow(/id 3 at position \d/);
    }
  });

  it("mixes what experts made, with a residual", () => {
    for (const dtype of ["f32", "f16"] as const) {
      const y = tensor(uniform(6 * 21), [6, 21], { device, dtype: dtype });
      const mix = tensor(uniform(6), [2, 3], { device, dtype: "f32" });
      const residual = tensor(uniform(2 * 21), [2, 21], { device, dtype: dtype });
      const [ys, ms, rs] = [values(y), values(mix), values(residual)];
      const sum = (n: number, h: number): number =>
        [0, 1, 2].reduce((total, j) => total + ms[n * 3 + j]! * ys[(n * 3 + j) * 21 + h]!, 0);
      const wanted = Array.from({ length: 42 }, (_, i) => sum(Math.floor(i / 21), i % 21));
      const near = (got: number[], to: number[]): void => {
        for (const [i, v] of to.entries()) expect(Math.abs(got[i]! - v)).toBeLessThan(dtype === "f32" ? 1e-6 : 2e-3);
      };
      near(values(mixExperts(y, mix)), wanted);
      near(
        values(mixExperts(y, mix, residual)),
        wanted.map((v, i) => v + rs[i]!),
      );
    }
  });

  it("has gpt-oss's gate", () => {
    const gate = [-9, -1, 0, 0.5, 7.5, 20, Number.NaN, 1];
    const up = [1, -8, 9, 0.25, 3, -30, 1, Number.NaN];
    for (const dtype of ["f64", "f32", "f16"] as const) {
      const got = values(
        clampedSwiglu(tensor(gate, [2, 4], { device, dtype: dtype }), tensor(up, [2, 4], { device, dtype: dtype })),
      );
      for (const [i, g] of gate.entries()) {
        const wanted = clamped(g, up[i]!);
        if (Number.isNaN(wanted)) expect(got[i]).toBeNaN();
        else expect(Math.abs(got[i]! - wanted)).toBeLessThan(dtype === "f16" ? 0.05 : 1e-5);
      }
    }
  });

  it("refuses what does not fit", () => {
    const x = Tensor.zeros([2, 8], { device });
    const w = Tensor.zeros([3, 4, 8], { device });
    const ids = Tensor.zeros([2, 2], { dtype: "u32", device });
    expect(() => expertLinear(x, w.narrow(2, 0, 4), ids)).toThrow(/the last dim of x must be 4/);
    expect(() => expertLinear(x.narrow(0, 0, 1), w, ids)).toThrow(/2 rows of x, or 4/);
    expect(() => expertLinear(x, w, ids.toDType("i64"))).toThrow(/ids must be u32, not i64/);
    expect(() => expertLinear(x, w.narrow(1, 0, 3), ids, { glu: "silu" })).toThrow(/3 is odd/);
    expect(() => routeExperts(x, 9)).toThrow(/9 of the 8 experts/);
    expect(() => mixExperts(x, x)).toThrow(/a row for each of the 16/);
  });
});
