/** Linear layers by expert beside plain sums in f64. */
import { expect } from "vitest";
import { Device, type DType, Tensor } from "../../src/index.ts";
import { expertLinear } from "../../src/nn/index.ts";
import { QTensor, type QuantType } from "../../src/quantized/index.ts";
import { tensor } from "./reference.ts";

let state = 11;
const random = (): number => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state / 2 ** 32;
};
export const uniform = (n: number, size = 1): number[] => Array.from({ length: n }, () => (2 * random() - 1) * size);
export const values = (t: Tensor): number[] => [...(t.toDType("f32").flattenAll().toArraySync() as number[])];

const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));
export const clamped = (gate: number, up: number): number => {
  const g = Math.min(gate, 7);
  return g * sigmoid(1.702 * g) * (Math.max(-7, Math.min(7, up)) + 1);
};
const gates = {
  silu: (gate: number, up: number): number => gate * sigmoid(gate) * up,
  clampedSwiglu: clamped,
} as const;

export const NOTHING = 0xffffffff;

export interface ExpertCase {
  readonly experts: number;
  readonly outputs: number;
  readonly inputs: number;
  readonly ids: readonly (readonly number[])[];
  /** x has a row for each slot. */
  readonly bySlot?: boolean;
  readonly norm?: boolean;
  readonly bias?: boolean;
  readonly glu?: keyof typeof gates;
  /** The slots of each row are summed, and a residual added. */
  readonly mixed?: boolean;
}

const EPS = 1e-5;
function normalized(x: number[], weight: number[]): number[] {
  const width = weight.length;
  return x.map((v, i) => {
    const row = x.slice(i - (i % width), i - (i % width) + width);
    return (v * weight[i % width]!) / Math.sqrt(row.reduce((sum, u) => sum + u * u, 0) / width + EPS);
  });
}

function expected(c: ExpertCase, x: number[], w: number[], bias: number[]): number[] {
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

/** y (n · k, outputs) of each row's slots summed. */
function mixed(c: ExpertCase, y: number[], mix: number[], residual: number[]): number[] {
  const [k, n] = [c.ids[0]!.length, c.outputs];
  return residual.map((added, at) => {
    const [row, column] = [Math.floor(at / n), at % n];
    return mix.slice(row * k, (row + 1) * k).reduce((sum, f, j) => sum + f * y[(row * k + j) * n + column]!, added);
  });
}

/** The largest error, beside the largest result, that halves of x, weights, bias and results leave. */
const bounds: Partial<Record<DType, number>> = { f32: 5e-5, f16: 3e-3, bf16: 2e-2 };

/** Asks `device` for a case of random numbers, in a dtype and with weights of a type. */
export function checkExperts(device: Device, c: ExpertCase, dtype: DType, type: QuantType | null): void {
  const rows = c.bySlot ? c.ids.flat().length : c.ids.length;
  const x = tensor(uniform(rows * c.inputs), [rows, c.inputs], { device, dtype: dtype });
  const shape = [c.experts, c.outputs, c.inputs];
  const numbers = uniform(c.experts * c.outputs * c.inputs, 0.5);
  const weight = type
    ? QTensor.quantize(tensor(numbers, shape, { device: Device.from("cpu"), dtype: "f32" }), type).toDeviceSync(device)
    : tensor(numbers, shape, { device, dtype });
  const bias = c.bias ? tensor(uniform(c.experts * c.outputs), [c.experts, c.outputs], { device, dtype: dtype }) : null;
  const ids = Tensor.from(Uint32Array.from(c.ids.flat()), { device }).reshape([c.ids.length, c.ids[0]!.length]);
  const norm = c.norm ? { weight: tensor(uniform(c.inputs), [c.inputs], { device, dtype }), eps: EPS } : null;
  const mix = c.mixed ? tensor(uniform(ids.numel), ids.shape, { device, dtype: "f32" }) : null;
  const sums = [c.ids.length, c.outputs];
  const residual = c.mixed ? tensor(uniform(sums[0]! * sums[1]!), sums, { device, dtype }) : null;
  const y = expertLinear(x, weight, ids, { norm, bias, glu: c.glu, mix, residual });
  expect(y.dtype).toBe(dtype);
  const w = weight instanceof QTensor ? weight.dequantize() : weight;
  const rowsOfX = norm ? normalized(values(x), values(norm.weight)) : values(x);
  const bySlot = expected(c, rowsOfX, values(w), bias ? values(bias) : []);
  const wanted = mix ? mixed(c, bySlot, values(mix), values(residual!)) : bySlot;
  const size = Math.max(...wanted.map(Math.abs));
  const got = values(y);
  expect(got.length).toBe(wanted.length);
  for (const [i, v] of wanted.entries()) {
    if (!(Math.abs(got[i]! - v) <= bounds[dtype]! * size))
      expect.fail(`element ${i}: ${got[i]}, not ${v} (of ${size})`);
  }
}

/** Each row to k of the experts below `among`. */
export const many = (n: number, k: number, among: number): number[][] =>
  Array.from({ length: n }, (_, r) => Array.from({ length: k }, (_, j) => (r * 7 + j * 3 + (r >> 2)) % among));
