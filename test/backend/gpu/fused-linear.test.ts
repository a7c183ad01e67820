// Linear layers of few rows in one kernel, against plain sums in f64.
import { expect, it } from "vitest";
import type { LinearParams } from "../../../src/backend/fused-ops.ts";
import { type Device, type DType, Tensor } from "../../../src/index.ts";
import { QTensor, type QuantType, quantTypeNames, quantTypes } from "../../../src/quantized/index.ts";
import { result } from "../../../src/tensor/tensor.ts";
import { describeDevices, gpuNames, inTurns } from "../../helpers/devices.ts";
import { tensor } from "../../helpers/reference.ts";

let state = 7;
const random = (): number => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state / 2 ** 32;
};
const uniform = (n: number, size: number): number[] => Array.from({ length: n }, () => (2 * random() - 1) * size);
const values = (t: Tensor): number[] => [...(t.toDType("f32").flattenAll().toArraySync() as number[])];

interface Case {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly norm?: boolean;
  readonly bias?: boolean;
  readonly glu?: "silu" | "gelu";
  readonly residual?: boolean;
  /** What x is multiplied with. */
  readonly size?: number;
}

const acts = {
  silu: (x: number) => x / (1 + Math.exp(-x)),
  gelu: (x: number) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
};
const EPS = 1e-5;
const units: Partial<Record<DType, number>> = { f32: 2 ** -22, f16: 2 ** -10, bf16: 2 ** -7 };

interface Operands {
  readonly x: number[];
  readonly w: number[];
  readonly alpha: number[];
  readonly bias: number[];
  readonly residual: number[];
}

/** Each result and how far from it rounding of sums, and of x to 16 bits where weights are quantized, may lead. */
function reference(c: Case, o: Operands, type: QuantType | null): { y: number; slack: number }[] {
  const columns = c.glu ? c.n / 2 : c.n;
  const out: { y: number; slack: number }[] = [];
  for (let b = 0; b < c.m; b++) {
    const row = o.x.slice(b * c.k, (b + 1) * c.k);
    const factor = c.norm ? 1 / Math.sqrt(row.reduce((s, v) => s + v * v, 0) / c.k + EPS) : 1;
    const scaled = c.norm ? row.map((v, j) => v * o.alpha[j]!) : row;
    const dot = (r: number): { y: number; slack: number } => {
      let [y, size] = [c.bias ? o.bias[r]! : 0, 0];
      for (let j = 0; j < c.k; j++) {
        const term = o.w[r * c.k + j]! * scaled[j]! * factor;
        y += term;
        size += Math.abs(term);
      }
      return { y, slack: (type ? 4e-6 + 1 / 2 ** 15 : 4e-6) * size };
    };
    for (let i = 0; i < columns; i++) {
      let { y, slack } = dot(i);
      if (c.glu) {
        const up = dot(i + columns);
        slack = slack * 1.2 * Math.abs(up.y) + up.slack * Math.abs(acts[c.glu](y)) + 1e-6 * Math.abs(y * up.y);
        y = acts[c.glu](y) * up.y;
      }
      out.push({ y: y + (c.residual ? o.residual[b * columns + i]! : 0), slack });
    }
  }
  return out;
}

function operands(c: Case, dtype: DType, device: Device): Record<"x" | "alpha" | "bias" | "residual", Tensor> {
  const columns = c.glu ? c.n / 2 : c.n;
  const make = (shape: number[], size: number): Tensor =>
    tensor(
      uniform(
        shape.reduce((a, b) => a * b, 1),
        size,
      ),
      shape,
      { device, dtype },
    );
  return {
    x: make([c.m, c.k], c.size ?? 1),
    alpha: make([c.k], 2),
    bias: make([c.n], 1),
    residual: make([c.m, columns], 1),
  };
}

function check(c: Case, dtype: DType, device: Device, w: Tensor, dense: Tensor, type: QuantType | null): void {
  const t = operands(c, dtype, device);
  const params: LinearParams = {
    norm: c.norm ? { weight: t.alpha, eps: EPS } : null,
    bias: c.bias ? t.bias : null,
    glu: c.glu ?? null,
    residual: c.residual ? t.residual : null,
  };
  const y = device.backend.linear!(t.x, w, type, params);
  const what = `${type ?? dtype} ${JSON.stringify(c)}`;
  expect(y, what).not.toBeNull();
  const got = values(result(y!, [c.m, c.glu ? c.n / 2 : c.n]));
  const numbers = {
    ...{ x: values(t.x), w: values(dense), alpha: values(t.alpha) },
    ...{ bias: values(t.bias), residual: values(t.residual) },
  };
  const want = reference(c, numbers, type);
  const wrong = want.flatMap(({ y, slack }, i) =>
    Math.abs(got[i]! - y) <= slack + units[dtype]! * Math.abs(y)
      ? []
      : [`${what}: y[${i}] is ${got[i]}, expected ${y}`],
  );
  expect(got.length).toBe(want.length);
  expect(wrong.slice(0, 3)).toEqual([]);
}

/** Every number of rows, and every extra alone and with the others. */
const cases = (k: number): Case[] => [
  ...[1, 2, 3, 4, 5, 6, 7, 8].map((m) => ({ m, n: 2 * m + 1, k })),
  { m: 1, n: 1, k, norm: true },
  { m: 1, n: 6, k, norm: true, glu: "silu" },
  { m: 3, n: 10, k, norm: true, bias: true, glu: "gelu", residual: true },
  { m: 8, n: 34, k, norm: true, bias: true, residual: true },
  { m: 2, n: 5, k, bias: true },
  { m: 4, n: 7, k, residual: true },
  { m: 5, n: 2, k, glu: "gelu" },
];

describeDevices(
  "Fused linear layers",
  (device) => {
    it.each(["f32", "f16", "bf16"] as const)("of %s", (dtype) => {
      for (const k of [16, 264, 2056]) {
        for (const c of cases(k)) {
          const w = tensor(uniform(c.n * k, 0.5), [c.n, k], { device, dtype });
          check(c, dtype, device, w, w, null);
        }
      }
    });

    it.each(inTurns(quantTypeNames, device))("of %s", async (type) => {
      const { size, bytes } = quantTypes[type];
      const random8 = (n: number): Uint8Array => Uint8Array.from({ length: n }, () => Math.floor(random() * 256));
      /** Those that cannot be written are random bytes under small scales. */
      const weights = async (n: number, k: number): Promise<QTensor> => {
        const writable = quantTypes[type].writable;
        if (writable) {
          const floats = Tensor.from(uniform(n * k, 0.5), { dtype: "f32", device: "cpu", shape: [n, k] });
          return QTensor.quantize(floats, type).toDevice(device);
        }
        const blocks = random8(((n * k) / size) * bytes);
        for (let at = 0; at < blocks.length; at += bytes) {
          if (type === "MXFP4") blocks[at] = 120 + (at % 4);
          else blocks.set([0x1f, type === "IQ4_XS" ? 0x09 : 0x19], at);
        }
        return QTensor.fromBytes(blocks, [n, k], type, device);
      };
      for (const [k, dtype] of [
        // f32 has kernels of its own, which take long to compile: one type of each layout of scales.
        [size, ["Q8_0", "Q4_K", "Q2_K"].includes(type) ? "f32" : "f16"],
        [3 * size, "bf16"],
        [2048 + size, "f16"],
      ] as const) {
        for (const c of cases(k)) {
          const w = await weights(c.n, k);
          check(c, dtype, device, w.blocks, w.dequantize(), type);
        }
      }
    });

    it("normalises rows whose squares overflow, beside rows whose squares are hardly there", () => {
      const [m, n, k] = [2, 6, 64];
      const x = tensor([...uniform(k, 1e30), ...uniform(k, 1e-17)], [m, k], { device, dtype: "f32" });
      const ones = Tensor.ones([k], { device, dtype: "f32" });
      const params: LinearParams = { norm: { weight: ones, eps: 0 }, bias: null, glu: null, residual: null };
      const near = tensor(
        values(x).map((v, i) => v * (i < k ? 1e-30 : 1e17)),
        [m, k],
        { device, dtype: "f32" },
      );
      const dense = tensor(uniform(n * k, 0.5), [n, k], { device, dtype: "f32" });
      const blocks = QTensor.quantize(dense, "Q8_0").blocks;
      for (const [w, type] of [
        [dense, null],
        [blocks, "Q8_0"],
      ] as const) {
        const [a, b] = [x, near].map((rows) => values(result(device.backend.linear!(rows, w, type, params)!, [m, n])));
        for (let i = 0; i < m * n; i++) expect(a![i]).toBeCloseTo(b![i]!, 3);
      }
    });

    it("takes strided views of x, and leaves what it cannot do to others", () => {
      const none: LinearParams = { norm: null, bias: null, glu: null, residual: null };
      const w = tensor(uniform(5 * 32, 1), [5, 32], { device, dtype: "f32" });
      const x = tensor(uniform(32 * 3, 1), [32, 3], { device, dtype: "f32" }).t();
      const y = values(result(device.backend.linear!(x, w, null, none)!, [3, 5]));
      values(x.matmul(w.t())).forEach((v, i) => {
        expect(y[i]).toBeCloseTo(v, 4);
      });
      const linear = (m: number, k: number, dtype: DType = "f32", from = 0): unknown =>
        device.backend.linear!(
          Tensor.ones([m, k], { device, dtype }),
          Tensor.ones([8, k], { device, dtype }).narrow(0, from, 8 - from),
          null,
          none,
        );
      expect(linear(9, 32)).toBeNull();
      expect(linear(1, 31)).toBeNull();
      expect(linear(1, 12, "bf16")).toBeNull();
      expect(linear(1, 32, "f64")).toBeNull();
      expect(linear(0, 32)).toBeNull();
      expect(linear(1, 32)).not.toBeNull();
      expect(device.backend.linear!(x, w.toDType("f16"), null, none)).toBeNull();
    });
  },
  gpuNames,
);
