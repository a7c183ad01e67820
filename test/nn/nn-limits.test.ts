/** The NN ops at the ends of what they take: empty, single, very long and very many rows, −∞ and NaN, every block size. */
import { describe, expect, it } from "vitest";
import type { GpuBackend } from "../../src/backend/gpu/backend.ts";
import { at } from "../../src/backend/gpu/gpu.ts";
import { type DType, type ErrorCode, Tensor } from "../../src/index.ts";
import * as nn from "../../src/nn/index.ts";
import { describeDevices, describeInTurns, gpuNames, inTurns } from "../helpers/devices.ts";
import {
  expectClose,
  expectTensor,
  layouts,
  nearest,
  sample,
  tensor,
  tolerance,
  wideFloats,
} from "../helpers/reference.ts";

const [NAN, INF] = [Number.NaN, Number.POSITIVE_INFINITY];
const within = (dtype: DType): number => ({ f32: 4e-6, f64: 1e-12 })[dtype as string] ?? tolerance(dtype, 2);

const sum = (row: readonly number[]): number => row.reduce((a, v) => a + v, 0);
const highest = (row: readonly number[]): number => row.reduce((a, v) => (v > a || Number.isNaN(v) ? v : a), -INF);
const EPS = 1e-5;
const formulas: Record<string, [(x: Tensor) => Tensor, (row: readonly number[]) => number[]]> = {
  softmax: [
    (x) => nn.softmax(x, -1),
    (row) => {
      const top = highest(row);
      const powers = row.map((v) => Math.exp(v - top));
      const total = sum(powers);
      return powers.map((v) => v / total);
    },
  ],
  logSoftmax: [
    (x) => nn.logSoftmax(x, -1),
    (row) => {
      const top = highest(row);
      const total = Math.log(sum(row.map((v) => Math.exp(v - top))));
      return row.map((v) => v - top - total);
    },
  ],
  rmsNorm: [
    (x) => nn.rmsNorm(x, null, EPS),
    (row) => {
      const scale = Math.sqrt(sum(row.map((v) => v * v)) / row.length + EPS);
      return row.map((v) => v / scale);
    },
  ],
  layerNorm: [
    (x) => nn.layerNorm(x, null, null, EPS),
    (row) => {
      const mean = sum(row) / row.length;
      const scale = Math.sqrt(sum(row.map((v) => (v - mean) ** 2)) / row.length + EPS);
      return row.map((v) => (v - mean) / scale);
    },
  ],
};
const byRows = (x: readonly number[], columns: number, of: (row: readonly number[]) => number[]): number[] =>
  Array.from({ length: x.length / columns }, (_, i) => of(x.slice(i * columns, (i + 1) * columns))).flat();

describeDevices("limits of rows", (device) => {
  describe.each(Object.keys(formulas).map((name, index) => ({ name, index })))("$name", ({ name, index }) => {
    const [run, of] = formulas[name]!;

    it("of no columns, no rows, or one column", () => {
      for (const dtype of wideFloats) {
        const options = { dtype, device };
        for (const shape of [[0], [3, 0], [0, 5], [2, 0, 3]])
          expect(run(Tensor.zeros(shape, options)).shape).toEqual(shape);
        const x = sample([7, 1], dtype, 3);
        const values = byRows(x, 1, of);
        expectTensor(run(tensor(x, [7, 1], options)), { shape: [7, 1], dtype, values, within: within(dtype) });
      }
    });

    it.each(inTurns(["f32", "bf16", "f64"] as const, device, index))("of 131,072 columns of %s", (dtype) => {
      const shape = [2, 131_072];
      const x = sample(shape, dtype, 5);
      const values = byRows(x, shape[1]!, of);
      const y = run(tensor(x, shape, { dtype, device }));
      expectTensor(y, { shape, dtype, values, within: within(dtype) });
      // Relative errors count, too, where all values are small.
      if (name === "softmax")
        expect(Number(y.toDType("f64").sumAll().toScalarSync())).toBeCloseTo(2, dtype === "bf16" ? 1 : 5);
    });

    // More than a grid has in its second dimension: the launch's matter, so on one of the GPUs.
    it.each(inTurns(["f32"] as const, device, index))("of 70,000 rows of %s", (dtype) => {
      const shape = [70_000, 3];
      const x = sample(shape, dtype, 1);
      expectTensor(run(tensor(x, shape, { dtype, device })), {
        ...{ shape, dtype, values: byRows(x, 3, of), within: within(dtype) },
      });
    });

    // One warp, several, and a block of 1024 threads.
    it.each([5, 300, 9000])("a NaN stays in its row of %i", (columns) => {
      for (const dtype of wideFloats) {
        const x = sample([3, columns], dtype, 2);
        x[columns + Math.floor(columns / 2)] = NAN;
        expectTensor(run(tensor(x, [3, columns], { dtype, device })), {
          ...{ shape: [3, columns], dtype, values: byRows(x, columns, of), within: within(dtype) },
        });
      }
    });
  });

  it.each([1, 4, 33, 300, 9000])("softmax of rows of −∞ in %i columns", (columns) => {
    for (const dtype of wideFloats) {
      const x = sample([4, columns], dtype, 2).map((v, i) => {
        const row = Math.floor(i / columns);
        return row === 1 || (row === 2 && i % columns !== columns - 1) ? -INF : v;
      });
      const t = tensor(x, [4, columns], { dtype, device });
      for (const name of ["softmax", "logSoftmax"]) {
        const [run, of] = formulas[name]!;
        const values = byRows(x, columns, of);
        expect(values.slice(columns, 2 * columns).every(Number.isNaN)).toBe(true);
        expectTensor(run(t), { shape: [4, columns], dtype, values, within: within(dtype), what: `${name} ${dtype}` });
      }
    }
  });
});

describeInTurns("addRmsNorm", (device) => {
  const reference = (s: readonly number[], width: number, w: readonly number[] | null): number[] =>
    byRows(s, width, formulas.rmsNorm![1]).map((v, i) => v * (w ? w[i % width]! : 1));

  it.each(wideFloats)("gives the rounded sum and its norm in %s, in any layout", (dtype) => {
    const shape = [2, 3, 8];
    const options = { dtype, device };
    const [x, r, w] = [sample(shape, dtype, 3), sample(shape, dtype, 6).map((v) => v / 3), sample([8], dtype, 5)];
    const rounded = r.map((v) => nearest(v, dtype));
    const want = x.map((v, i) => nearest(v + rounded[i]!, dtype));
    const others = layouts(r, shape, options);
    for (const [i, [what, t]] of layouts(x, shape, options).entries()) {
      for (const weight of [null, w]) {
        const [, residual] = others[(i + 1) % others.length]!;
        const { sum: s, normed } = nn.addRmsNorm(t, residual, weight && tensor(weight, [8], options), EPS);
        expectTensor(s, { shape, dtype, values: want, what });
        expectTensor(normed, { shape, dtype, values: reference(want, 8, weight), within: within(dtype), what });
      }
    }
  });

  it.each([1, 31, 1024, 5000, 40_000])("rows of %i", (columns) => {
    for (const dtype of ["f32", "bf16"] as const) {
      const shape = [3, columns];
      const [x, r] = [sample(shape, dtype, 3), sample(shape, dtype, 7)];
      const want = x.map((v, i) => v + r[i]!);
      const options = { dtype, device };
      const { sum: s, normed } = nn.addRmsNorm(tensor(x, shape, options), tensor(r, shape, options), null, EPS);
      expectTensor(s, { shape, dtype, values: want });
      expectTensor(normed, { shape, dtype, values: reference(want, columns, null), within: within(dtype) });
    }
  });

  it("of f8e4m3, and of nothing", () => {
    const options = { dtype: "f8e4m3" as const, device };
    const { sum: s, normed } = nn.addRmsNorm(tensor([1, 2], [2], options), tensor([1, 2], [2], options), null, 0);
    expectTensor(s, { shape: [2], dtype: "f8e4m3", values: [2, 4] });
    expectTensor(normed, { shape: [2], dtype: "f8e4m3", values: reference([2, 4], 2, null), within: 0.0625 });
    const none = Tensor.zeros([3, 0], { device });
    expect(nn.addRmsNorm(none, none, null).normed.shape).toEqual([3, 0]);
  });
});

describeInTurns("masks of sdpa", (device) => {
  // Few queries and many: each takes another kernel.
  it.each([2, 20])("−∞ and NaN stay in their rows of %i", (tq) => {
    const [tk, d] = [40, 16];
    for (const dtype of ["bf16", "f16", "f32", "f64"] as const) {
      const options = { dtype, device };
      const [q, k] = [
        tensor(sample([1, 2, tq, d], dtype, 1), [1, 2, tq, d], options),
        Tensor.ones([1, 2, tk, d], options),
      ];
      const v = Tensor.ones([1, 2, tk, d], options);
      // Whatever the weights, a mean of ones is 1.
      for (const [causal, hidden, bad] of [
        [false, 0, 1],
        [true, 1, 0],
      ] as const) {
        const mask = Array.from({ length: tq * tk }, (_, i) => {
          const [row, key] = [Math.floor(i / tk), i % tk];
          if (row === hidden) return -INF;
          if (row === bad) return key === 3 ? NAN : 0;
          // The keys before the last 20 are hidden from the others.
          return key < 20 ? -INF : 0;
        });
        const y = nn.sdpa(q, k, v, { causal, mask: tensor(mask, [tq, tk], options) });
        const values = Array.from({ length: 2 * tq * d }, (_, i) => {
          const row = Math.floor(i / d) % tq;
          return row === hidden || row === bad ? NAN : 1;
        });
        expectTensor(y, {
          shape: [1, 2, tq, d],
          dtype,
          values,
          within: within(dtype),
          what: `${dtype} causal ${causal}`,
        });
      }
    }
  });

  it.each([2, 20])("what a hidden key would score does not matter: %i queries", (tq) => {
    const options = { dtype: "f32" as const, device };
    const mask = Array.from({ length: tq * tq }, (_, i) => (i % tq > Math.floor(i / tq) ? NAN : 0));
    const ones = Tensor.ones([1, 1, tq, 8], options);
    const y = nn.sdpa(ones, ones, ones, { causal: true, mask: tensor(mask, [tq, tq], options) });
    expectTensor(y, { shape: [1, 1, tq, 8], values: new Array(8 * tq).fill(1), within: 1e-6 });
  });
});

describeInTurns("bad input", (device) => {
  const f = (...shape: number[]) => Tensor.ones(shape, { device });
  const cases: [what: string, run: () => unknown, code: ErrorCode, message: RegExp][] = [
    [
      "cos and sin of mixed rank",
      () => nn.rope(f(2, 1, 3, 4), f(3, 2), f(2, 3, 2)),
      "ShapeMismatch",
      /\[3, 2\].*\[2, 3, 2\].*one shape/,
    ],
    [
      "per-batch tables shorter than t",
      () => nn.ropeI(f(2, 1, 3, 4), f(2, 2, 2), f(2, 2, 2)),
      "ShapeMismatch",
      /\(2, t, 2\).*t ≥ 3/,
    ],
    [
      "tables shorter than t in rows",
      () => nn.ropeThd(f(1, 3, 1, 4), f(2, 2), f(2, 2)),
      "ShapeMismatch",
      /t ≥ 3.*\[2, 2\]/,
    ],
    [
      "a residual of another shape",
      () => nn.addRmsNorm(f(2, 4), f(4), null),
      "ShapeMismatch",
      /addRmsNorm.*\[2, 4\].*\[4\].*one shape/,
    ],
    ["a residual of another dtype", () => nn.addRmsNorm(f(4), f(4).toDType("f16"), null), "DTypeMismatch", /f32.*f16/],
    [
      "a weight that is too short",
      () => nn.addRmsNorm(f(2, 4), f(2, 4), f(3)),
      "ShapeMismatch",
      /weight must have shape \[4\].*\[3\]/,
    ],
    [
      "a sum of integers",
      () => nn.addRmsNorm(f(2).toDType("i32"), f(2).toDType("i32"), null),
      "UnsupportedDTypeForOp",
      /float dtype.*i32/,
    ],
    ["a negative eps", () => nn.addRmsNorm(f(2), f(2), null, -1), "InvalidArgument", /eps must be 0 or more.*-1/],
    [
      "gates of another shape",
      () => nn.siluMul(f(2, 4), f(2, 3)),
      "ShapeMismatch",
      /siluMul.*\[2, 4\].*\[2, 3\].*one shape/,
    ],
    ["an odd geglu", () => nn.geglu(f(2, 3)), "ShapeMismatch", /geglu.*\[2, 3\].*even/],
    ["softmax of integers", () => nn.softmax(f(2).toDType("u8"), 0), "UnsupportedDTypeForOp", /float dtype.*u8/],
    [
      "heads that do not divide",
      () => nn.sdpa(f(1, 5, 2, 64), f(1, 2, 2, 64), f(1, 2, 2, 64)),
      "ShapeMismatch",
      /5 query heads.*multiple of 2/,
    ],
    [
      "more queries than keys, causal",
      () => nn.sdpa(f(1, 1, 9, 64), f(1, 1, 8, 64), f(1, 1, 8, 64), { causal: true }),
      "ShapeMismatch",
      /tq ≤ tk.*9.*8/,
    ],
    [
      "a mask of too many keys",
      () => nn.sdpa(f(1, 1, 2, 64), f(1, 1, 8, 64), f(1, 1, 8, 64), { mask: f(2, 9) }),
      "BroadcastIncompatible",
      /mask.*\[2, 9\].*\[1, 1, 2, 8\]/,
    ],
    [
      "integer heads",
      () =>
        nn.sdpa(
          ...([f(1, 1, 2, 8), f(1, 1, 2, 8), f(1, 1, 2, 8)].map((x) => x.toDType("u32")) as [Tensor, Tensor, Tensor]),
        ),
      "UnsupportedDTypeForOp",
      /sdpa needs a float dtype.*u32/,
    ],
  ];
  it.each(cases)("%s", (_, run, code, message) => {
    expect(run).toThrow(message);
    expect(run).toThrow(expect.objectContaining({ code }) as Error);
  });
});

describeDevices(
  "every block size",
  (device) => {
    const gpu = device.backend as GpuBackend;
    const kernels = {
      softmax: { name: "softmax", of: formulas.softmax![1] },
      log_softmax: { name: "log_softmax", of: formulas.logSoftmax![1] },
      rmsnorm: { name: "rmsnorm", of: formulas.rmsNorm![1] },
      layernorm: { name: "layernorm", of: formulas.layerNorm![1] },
      add_rmsnorm: { name: "add_rmsnorm", of: formulas.rmsNorm![1] },
    };
    describe.each(["f32", "bf16", "f64"] as const)("%s", (dtype) => {
      it.each(Object.values(kernels))("$name gives the same from 32 to 1024 threads", ({ name, of }) => {
        // Shorter than a warp, not a multiple of a vector, and longer than small blocks keep in registers.
        for (const columns of [3, 77, 2500]) {
          const rows = 2;
          const x = sample([rows, columns], dtype, columns);
          const values = byRows(x, columns, of);
          const options = { dtype, device };
          using src = tensor(x, [rows, columns], options);
          using zero = Tensor.zeros([rows, columns], options);
          for (let block = 32; block <= 1024; block += 32) {
            for (const suffix of block <= 256 ? (["", "_wide"] as const) : (["_wide"] as const)) {
              using dst = Tensor.full([rows, columns], 7, options);
              using total = Tensor.full([rows, columns], 7, options);
              const operands = { x: at(src), residual: at(zero), alpha: 0, beta: 0, sum: at(total), out: at(dst) };
              const sizes = { rows, cols: columns, eps: EPS, row_threads: block };
              // Together these are all arguments of any of the kernels.
              gpu.launch(`${name}${suffix}_${dtype}` as `add_rmsnorm${typeof suffix}_${typeof dtype}`, {
                ...operands,
                ...sizes,
              });
              const got = Array.from(dst.toDType("f64").dataSync() as Float64Array);
              expectClose(got, values, within(dtype), `${columns} columns, ${block} threads${suffix}`);
            }
          }
        }
      });
    });
  },
  gpuNames,
);
