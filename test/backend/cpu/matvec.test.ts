import { describe, expect, it } from "vitest";
import { Device, Tensor } from "../../../src/index.ts";
import { expectTensor, nearest } from "../../helpers/reference.ts";

/** Multiples of 1/4 up to ±2, in no regular order: a sum of their products is exact in f32 up to 2²⁰. */
function values(n: number, seed: number): Float32Array {
  let state = seed + 1;
  return Float32Array.from({ length: n }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return ((state >>> 16) % 17) / 4 - 2;
  });
}

/** (m, k) × (k, n). */
function product(a: Float32Array, b: Float32Array, m: number, k: number, n: number): number[] {
  const out = new Float64Array(m * n);
  for (let i = 0; i < m; i++) {
    for (let l = 0; l < k; l++) {
      const x = a[i * k + l]!;
      for (let j = 0; j < n; j++) out[i * n + j]! += x * b[l * n + j]!;
    }
  }
  return Array.from(out);
}

function transposed(b: Float32Array, rows: number, cols: number): Float32Array {
  const out = new Float32Array(b.length);
  for (let i = 0; i < rows; i++) for (let j = 0; j < cols; j++) out[j * rows + i] = b[i * cols + j]!;
  return out;
}

describe("Products with a thin operand on the CPU", () => {
  const device = Device.cpu();

  /** The matrix (k, n) with lines along n and along k, whole and as views with an offset, padding and reversed lines. */
  function views(b: Float32Array, k: number, n: number, dtype: "f32" | "f64" | "f16" | "bf16"): [string, Tensor][] {
    const inMemory = (v: Float32Array, rows: number, cols: number): [string, Tensor][] => {
      const whole = Tensor.from(v, { shape: [rows, cols], device }).toDType(dtype);
      const padded = Tensor.cat([Tensor.ones([rows, 3], { dtype, device }), whole, whole.narrow(1, 0, 1)], 1);
      return [
        ["whole", whole],
        ["padded", padded.narrow(1, 3, cols)],
        ["reversed", whole.flip([0]).contiguous().flip([0])],
      ];
    };
    const along = inMemory(transposed(b, k, n), n, k).map(([name, t]): [string, Tensor] => [`${name} along k`, t.t()]);
    return [...inMemory(b, k, n), ...along];
  }

  // Eight lines are read at a time, 64 bytes of each, and what is left in fours and singly.
  const lines = [1, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 65, 72, 135];
  const lengths = [1, 3, 4, 7, 8, 12, 15, 16, 17, 24, 31, 33, 64];
  it.each(["f32", "f64", "f16", "bf16"] as const)("are right around blocks of lines and tiles of %s", (dtype) => {
    for (const count of lines) {
      for (const length of lengths) {
        for (const [k, n] of [
          [count, length],
          [length, count],
        ] as const) {
          const [a, b] = [values(k, k), values(k * n, n)];
          const want = product(a, b, 1, k, n).map((v) => nearest(v, dtype));
          const x = Tensor.from(a, { shape: [1, k], device }).toDType(dtype);
          for (const [what, y] of views(b, k, n, dtype)) {
            expectTensor(x.matmul(y), { shape: [1, n], dtype, values: want, what: `(1,${k})·(${k},${n}) ${what}` });
            const column = y.t().matmul(x.t());
            expectTensor(column, { shape: [n, 1], dtype, values: want, what: `(${n},${k})·(${k},1) ${what}` });
          }
        }
      }
    }
  });

  // Large matrices are cut into parts, whose sums are added at the end; long lines into pieces.
  const large: [number, number, number][] = [
    [1, 2049, 1024],
    [1, 2057, 1039],
    [3, 2061, 1030],
    [1, 300, 8209],
    [2, 1100, 8209],
    [1, 250_003, 9],
  ];
  it.each(large)("are right in several parts: (%i × %i) · (%i)", (m, k, n) => {
    const [a, b] = [values(m * k, 1), values(k * n, 2)];
    const want = product(a, b, m, k, n);
    for (const dtype of ["f32", "f64", "bf16"] as const) {
      const rounded = want.map((v) => nearest(v, dtype));
      const x = Tensor.from(a, { shape: [m, k], device }).toDType(dtype);
      for (const [what, y] of views(b, k, n, dtype)) {
        expectTensor(x.matmul(y), { shape: [m, n], dtype, values: rounded, what: `${dtype} ${what}` });
      }
    }
  });

  it("take each matrix of a batch from its place, in several parts", () => {
    const [batch, k, n] = [3, 2051, 1025];
    const [a, b] = [values(batch * k, 3), values(batch * k * n, 4)];
    const want = Array.from({ length: batch }, (_, i) =>
      product(a.subarray(i * k, (i + 1) * k), b.subarray(i * k * n, (i + 1) * k * n), 1, k, n),
    ).flat();
    const x = Tensor.from(a, { shape: [batch, 1, k], device });
    const y = Tensor.from(b, { shape: [batch, k, n], device });
    expectTensor(x.matmul(y), { shape: [batch, 1, n], values: want });
    const turned = y.transpose(1, 2).contiguous().transpose(1, 2);
    expectTensor(x.matmul(turned), { shape: [batch, 1, n], values: want, what: "along k" });
  });

  it("take a batch whose rows follow each other as one matrix, in several parts", () => {
    const [batch, m, k] = [64, 16, 4099];
    const [a, b] = [values(batch * m * k, 7), values(k, 8)];
    const x = Tensor.from(a, { shape: [k, batch, m], device }).permute([1, 2, 0]);
    const y = Tensor.from(b, { shape: [k, 1], device });
    const want = product(b, a, 1, k, batch * m);
    expectTensor(x.matmul(y), { shape: [batch, m, 1], values: want });
  });

  it("carry NaN and infinities from any line into its column only", () => {
    const [k, n] = [2049, 1025];
    for (const line of [0, 7, 8, 1031, 2048]) {
      const b = values(k * n, 5);
      b[line * n + 3] = Number.NaN;
      b[line * n + 1024] = Number.POSITIVE_INFINITY;
      const a = values(k, 6).map((v) => v || 1);
      const want = product(a, b, 1, k, n);
      const x = Tensor.from(a, { shape: [1, k], device });
      for (const [what, y] of views(b, k, n, "f32").filter(([name]) => name.startsWith("whole"))) {
        expectTensor(x.matmul(y), { shape: [1, n], values: want, what: `${what}, line ${line}` });
      }
    }
  });

  it("do not depend on the number of threads, nor on where the matrix lies", () => {
    const [k, n] = [2051, 1024];
    const x = Tensor.randn([1, k], { seed: 1, device });
    const y = Tensor.randn([k, n], { seed: 2, device });
    const wide = Tensor.cat([Tensor.ones([k, 5], { device }), y], 1).narrow(1, 5, n);
    const shifted = Tensor.cat([Tensor.ones([1, n], { device }), y], 0).narrow(0, 1, k);
    const before = device.backend as unknown as { threads: number };
    const threads = before.threads;
    const results: Tensor[] = [];
    try {
      for (const count of [1, 2]) {
        Device.cpu({ threads: count });
        for (const m of [y, wide, shifted]) results.push(x.matmul(m));
      }
    } finally {
      Device.cpu({ threads });
    }
    for (const result of results) expect(result.dataSync()).toEqual(results[0]!.dataSync());
  });
});
