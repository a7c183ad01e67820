import { describe, expect, it } from "vitest";
import { type DType, dtypeNames, Tensor } from "../../src/index.ts";
import { describeDevices } from "../helpers/devices.ts";
import {
  build,
  expectTensor,
  floats,
  indices,
  ints,
  layouts,
  nearest,
  reader,
  sample,
  softmaxOf,
  tensor,
  tolerance,
  wideFloats,
  wrap,
} from "../helpers/reference.ts";

const [NAN, INF] = [Number.NaN, Number.POSITIVE_INFINITY];

/** Folds the values over some dims; `fold` gets them in row-major order. */
function reduced(
  values: readonly number[],
  shape: readonly number[],
  dims: readonly number[],
  fold: (row: number[]) => number,
): { shape: number[]; kept: number[]; values: number[] } {
  const at = reader(values, shape);
  const rest = shape.filter((_, d) => !dims.includes(d));
  const inner = indices(shape.map((n, d) => (dims.includes(d) ? n : 1)));
  const outer = indices(shape.map((n, d) => (dims.includes(d) ? 1 : n)));
  return {
    shape: rest,
    kept: shape.map((n, d) => (dims.includes(d) ? 1 : n)),
    values: outer.map((o) => fold(inner.map((i) => at(...o.map((v, d) => v + i[d]!))))),
  };
}
const sum = (row: readonly number[]) => row.reduce((a, b) => a + b, 0);

describeDevices("Reductions", (device) => {
  const shape = [3, 4, 5];
  const subsets = [[0], [1], [2], [-1], [0, 1], [1, 2], [0, 2], [2, 0], [0, 1, 2]];

  describe("sum", () => {
    it.each(dtypeNames)("adds over any dims of %s in any layout", (dtype) => {
      const x = sample(shape, dtype);
      for (const [what, t] of layouts(x, shape, { dtype, device })) {
        for (const dims of subsets) {
          const want = reduced(
            x,
            shape,
            dims.map((d) => (d + 3) % 3),
            (row) => nearest(sum(row), dtype),
          );
          expectTensor(t.sum(dims), { shape: want.shape, dtype, values: want.values, what: `${what} ${dims}` });
          expectTensor(t.sumKeepdim(dims), { shape: want.kept, dtype, values: want.values, what });
        }
        expectTensor(t.sumAll(), { shape: [], dtype, values: [nearest(sum(x), dtype)], what });
      }
    });

    it("over no dims is the tensor itself, and over an empty dim is 0", () => {
      const t = tensor([1, 2], [2], { dtype: "f32", device });
      expectTensor(t.sum([]), { shape: [2], values: [1, 2] });
      for (const dtype of dtypeNames) {
        const none = Tensor.zeros([2, 0, 3], { dtype, device });
        expectTensor(none.sum(1), { shape: [2, 3], dtype, values: [0, 0, 0, 0, 0, 0] });
        expectTensor(none.sum(0), { shape: [0, 3], values: [] });
        expectTensor(none.sumAll(), { shape: [], dtype, values: [0] });
      }
    });

    it("of a scalar and of rank 8", () => {
      expectTensor(tensor([3], [], { dtype: "f32", device }).sumAll(), { shape: [], values: [3] });
      const eight = [2, 1, 2, 1, 2, 1, 2, 2];
      const x = sample(eight, "f32");
      const want = reduced(x, eight, [0, 2, 4, 6], sum);
      expectTensor(tensor(x, eight, { dtype: "f32", device }).sum([6, 0, 4, 2]), want);
    });

    it.each(ints.filter((d) => d !== "i64"))("of %s wraps", (dtype) => {
      const top = { u8: 255, u32: 2 ** 32 - 1, i16: 32767, i32: 2 ** 31 - 1 }[dtype as "u8"];
      const t = Tensor.full([33], top, { dtype, device });
      expect(t.sumAll().toScalarSync()).toBe(wrap(33n * BigInt(top), dtype));
    });

    it("of 64-bit integers is exact", () => {
      expect(
        Tensor.full([3], 2n ** 60n + 1n, { dtype: "i64", device })
          .sumAll()
          .toScalarSync(),
      ).toBe(3n * (2n ** 60n + 1n));
    });

    it("of halves is accumulated in f32", () => {
      for (const dtype of ["f16", "bf16"] as const) {
        // In its own precision a sum of ones would stop at 2048 (f16) or 256 (bf16).
        expect(Tensor.ones([8192], { dtype, device }).sumAll().toScalarSync()).toBe(8192);
        expect(Tensor.ones([8192, 2], { dtype, device }).sum(0).toArraySync()).toEqual([8192, 8192]);
      }
    });

    it("of many f32 values keeps its precision", () => {
      const n = 1 << 20;
      const t = Tensor.full([n], 0.1, { device });
      const want = n * Math.fround(0.1);
      expect(Math.abs(Number(t.sumAll().toScalarSync()) - want) / want).toBeLessThan(1e-6);
    });

    it("carries NaN and infinities", () => {
      const t = tensor([1, INF, NAN, -INF, INF, 1], [3, 2], { dtype: "f32", device });
      expectTensor(t.sum(1), { shape: [3], values: [INF, NAN, INF] });
      expectTensor(tensor([INF, -INF], [2], { dtype: "f32", device }).sumAll(), { shape: [], values: [NAN] });
    });
  });

  describe.each(["max", "min"] as const)("%s and its index", (name) => {
    const pick = (row: number[]) => Math[name](...row);
    it.each(dtypeNames)("over one dim of %s in any layout", (dtype) => {
      const x = sample(shape, dtype, 5);
      for (const [what, t] of layouts(x, shape, { dtype, device })) {
        for (const dim of [0, 1, 2, -1, -3]) {
          const d = (dim + 3) % 3;
          const value = reduced(x, shape, [d], pick);
          const index = reduced(x, shape, [d], (row) => row.indexOf(pick(row)));
          expectTensor(t[name](dim), { shape: value.shape, dtype, values: value.values, what });
          expectTensor(t[`${name}Keepdim`](dim), { shape: value.kept, dtype, values: value.values, what });
          expectTensor(t[`arg${name}`](dim), { shape: index.shape, dtype: "u32", values: index.values, what });
          expectTensor(t[`arg${name}Keepdim`](dim), { shape: index.kept, dtype: "u32", values: index.values, what });
        }
        expectTensor(t[`${name}All`](), { shape: [], dtype, values: [pick(x)], what });
        expectTensor(t[`arg${name}All`](), { shape: [], dtype: "u32", values: [x.indexOf(pick(x))], what });
      }
    });

    it("the first index wins a tie, however long the row", () => {
      for (const dtype of dtypeNames) {
        for (const n of [1, 2, 5, 16, 17, 33, 100, 1000]) {
          expect(Tensor.ones([n], { dtype, device })[`arg${name}`](0).toScalarSync(), `${dtype} ${n}`).toBe(0);
          const values = new Array<number>(n).fill(5);
          const extreme = name === "max" ? 7 : 2;
          for (const at of [Math.floor(n / 2), n - 1]) values[at] = extreme;
          const t = tensor(values, [n], { dtype, device });
          expect(t[`arg${name}`](0).toScalarSync(), `${dtype} ${n}`).toBe(values.indexOf(extreme));
          expect(Number(t[name](0).toScalarSync()), `${dtype} ${n}`).toBe(extreme);
        }
      }
    });

    it.each(wideFloats)("NaN is what a row with NaN has, and infinities count, in %s", (dtype) => {
      for (const n of [3, 40]) {
        const values = Array.from({ length: n }, (_, i) => i);
        values[n - 2] = NAN;
        const t = tensor(values, [n], { dtype, device });
        expect(t[name](0).toScalarSync()).toBeNaN();
        expect(t[`arg${name}`](0).toScalarSync()).toBe(n - 2);
        const many = tensor([...values, ...values], [2, n], { dtype, device }).t();
        expectTensor(many[name](0), { shape: [2], values: [NAN, NAN] });
      }
      const t = tensor([1, -INF, INF, 2], [4], { dtype, device });
      expect(t[name](0).toScalarSync()).toBe(name === "max" ? INF : -INF);
      const only = Tensor.full([3], name === "max" ? -INF : INF, { dtype, device });
      expect(only[name](0).toScalarSync()).toBe(name === "max" ? -INF : INF);
      expect(only[`arg${name}`](0).toScalarSync()).toBe(0);
    });

    it("sees the extremes of its integer type", () => {
      const t = Tensor.from([2n ** 63n - 1n, -(2n ** 63n), 0n], { device });
      expect(t[name](0).toScalarSync()).toBe(name === "max" ? 2n ** 63n - 1n : -(2n ** 63n));
      const u = tensor([0, 2 ** 32 - 1], [2], { dtype: "u32", device });
      expect(u[name](0).toScalarSync()).toBe(name === "max" ? 2 ** 32 - 1 : 0);
    });

    it("of a scalar is the scalar, at 0", () => {
      const t = tensor([4], [], { dtype: "f32", device });
      expectTensor(t[`${name}All`](), { shape: [], values: [4] });
      expectTensor(t[`arg${name}All`](), { shape: [], dtype: "u32", values: [0] });
    });

    it("over a dim that is not empty of a tensor that is", () => {
      const t = Tensor.zeros([0, 3], { device });
      expect(t[name](1).shape).toEqual([0]);
      expect(t[`arg${name}`](1).shape).toEqual([0]);
    });
  });

  describe("mean and var", () => {
    it.each(floats)("mean over any dims of %s", (dtype) => {
      const x = sample(shape, dtype, 2);
      for (const [what, t] of layouts(x, shape, { dtype, device })) {
        for (const dims of subsets.filter((s) => !s.includes(-1))) {
          const want = reduced(x, shape, dims, (row) => sum(row) / row.length);
          const within = tolerance(dtype);
          expectTensor(t.mean(dims), { shape: want.shape, dtype, values: want.values, within, what });
          expectTensor(t.meanKeepdim(dims), { shape: want.kept, dtype, values: want.values, within, what });
        }
        expectTensor(t.meanAll(), { shape: [], dtype, values: [sum(x) / x.length], within: tolerance(dtype), what });
      }
    });

    it("of halves does not overflow on the way", () => {
      expect(Tensor.full([100], 60000, { dtype: "f16", device }).meanAll().toScalarSync()).toBe(60000 - (60000 % 32));
    });

    it("the mean of nothing is NaN", () => {
      expect(Tensor.zeros([0], { device }).meanAll().toScalarSync()).toBeNaN();
      expectTensor(Tensor.zeros([2, 0], { device }).mean(1), { shape: [2], values: [NAN, NAN] });
      expectTensor(Tensor.zeros([2, 0], { device }).mean(0), { shape: [0], values: [] });
    });

    it.each(wideFloats)("var is unbiased, over one dim or all, in %s", (dtype) => {
      const variance = (row: number[]) => {
        const mean = sum(row) / row.length;
        return sum(row.map((v) => (v - mean) ** 2)) / (row.length - 1);
      };
      const x = sample(shape, dtype, 7);
      const within = tolerance(dtype, 4);
      for (const [what, t] of layouts(x, shape, { dtype, device })) {
        for (const d of [0, 1, 2]) {
          const want = reduced(x, shape, [d], variance);
          expectTensor(t.var(d), { shape: want.shape, dtype, values: want.values, within, what });
          expectTensor(t.varKeepdim(d - 3), { shape: want.kept, dtype, values: want.values, within, what });
        }
        expectTensor(t.varAll(), { shape: [], dtype, values: [variance(x)], within, what });
      }
    });

    it("var does not suffer from a large mean", () => {
      const x = tensor([1e6 + 1, 1e6 + 2, 1e6 + 3], [3], { dtype: "f32", device });
      expect(x.var(0).toScalarSync()).toBeCloseTo(1, 5);
    });

    it("the variance of fewer than two values is NaN", () => {
      expect(Tensor.ones([1], { device }).var(0).toScalarSync()).toBeNaN();
      expect(Tensor.ones([], { device }).varAll().toScalarSync()).toBeNaN();
      expect(Tensor.ones([0], { device }).var(0).toScalarSync()).toBeNaN();
    });
  });

  describe("norm", () => {
    it.each(wideFloats)("is the root of the sum of squares in %s", (dtype) => {
      const x = [3, 4, 12];
      expectTensor(tensor(x, [3], { dtype, device }).norm(), { shape: [], dtype, values: [13] });
      expectTensor(tensor(x, [3, 1], { dtype, device }).t().norm(), { shape: [], dtype, values: [13] });
      expectTensor(Tensor.zeros([0], { dtype, device }).norm(), { shape: [], dtype, values: [0] });
      expectTensor(tensor([-2], [], { dtype, device }).norm(), { shape: [], dtype, values: [2] });
    });

    it("of halves does not overflow on the way", () => {
      expect(Tensor.full([4], 1000, { dtype: "f16", device }).norm().toScalarSync()).toBe(2000);
    });
  });

  describe("logSumExp", () => {
    const of = (row: number[]) => {
      const top = Math.max(...row);
      return top + Math.log(sum(row.map((v) => Math.exp(v - top))));
    };
    it.each(wideFloats)("over any dims of %s", (dtype) => {
      const x = sample(shape, dtype);
      const within = { f32: 2e-6, f64: 1e-14 }[dtype as "f32"] ?? tolerance(dtype, 3);
      for (const [what, t] of layouts(x, shape, { dtype, device })) {
        for (const dims of [[0], [2], [0, 2], [0, 1, 2]]) {
          const want = reduced(x, shape, dims, of);
          expectTensor(t.logSumExp(dims), { shape: want.shape, dtype, values: want.values, within, what });
        }
      }
      expectTensor(tensor(x, shape, { dtype, device }).logSumExp(-1), {
        ...reduced(x, shape, [2], of),
        dtype,
        within,
      });
    });

    it("neither overflows nor turns infinities into NaN", () => {
      const t = tensor([1000, 1000, -INF, -INF, INF, 1, -INF, 2, NAN, 1], [5, 2], { dtype: "f32", device });
      expectTensor(t.logSumExp(1), { shape: [5], values: [1000 + Math.log(2), -INF, INF, 2, NAN], within: 1e-6 });
    });
  });

  describe("cumsum", () => {
    it.each(dtypeNames)("adds up along each dim of %s", (dtype) => {
      const x = sample(shape, dtype, 4).map((v) => (dtype === "f8e4m3" ? Math.trunc(v) : v));
      const at = reader(x, shape);
      for (const [what, t] of layouts(x, shape, { dtype, device })) {
        for (const dim of [0, 1, 2, -1]) {
          const d = (dim + 3) % 3;
          const values = build(shape, (index) => {
            const terms = Array.from({ length: index[d]! + 1 }, (_, i) => at(...index.with(d, i)));
            return nearest(sum(terms), dtype);
          });
          expectTensor(t.cumsum(dim), { shape, dtype, values, what: `${what} dim ${dim}` });
        }
      }
    });

    it("of nothing is nothing", () => {
      expect(Tensor.zeros([2, 0], { device }).cumsum(1).shape).toEqual([2, 0]);
      expect(Tensor.zeros([2, 0], { device }).cumsum(0).shape).toEqual([2, 0]);
    });

    it("of halves is accumulated in f32", () => {
      const got = Tensor.ones([4096], { dtype: "f16", device }).cumsum(0).dataSync();
      expect(got[4095]).toBe(4096);
      expect(got[2999]).toBe(3000);
    });

    it("NaN stays from where it comes", () => {
      const t = tensor([1, NAN, 1], [3], { dtype: "f32", device });
      expectTensor(t.cumsum(0), { shape: [3], values: [1, NAN, NAN] });
    });
  });

  describe("softmax", () => {
    const alongDim = (x: readonly number[], d: number, f: (row: number[]) => number[]): number[] => {
      const at = reader(x, shape);
      return build(
        shape,
        (index) => f(Array.from({ length: shape[d]! }, (_, i) => at(...index.with(d, i))))[index[d]!]!,
      );
    };
    const within = (dtype: DType) => ({ f32: 2e-6, f64: 1e-14 })[dtype as "f32"] ?? tolerance(dtype, 2);

    it.each(floats)("and its logarithm along each dim of %s", (dtype) => {
      const x = sample(shape, dtype, 1);
      for (const [what, t] of layouts(x, shape, { dtype, device })) {
        for (const d of [0, 1, 2]) {
          const values = alongDim(x, d, softmaxOf);
          expectTensor(t.softmax(d), { shape, dtype, values, within: within(dtype), what });
          const logs = alongDim(x, d, (row) => softmaxOf(row).map(Math.log));
          expectTensor(t.logSoftmax(d - 3), { shape, dtype, values: logs, within: within(dtype), what });
        }
      }
    });

    it("is stable for large and infinite scores", () => {
      for (const dtype of ["f32", "f64"] as const) {
        const t = tensor([1e4, 1e4, -1e4, -INF, 0, 0], [2, 3], { dtype, device });
        expectTensor(t.softmax(1), { shape: [2, 3], values: [0.5, 0.5, 0, 0, 0.5, 0.5], within: 1e-6 });
        const logs = [-Math.LN2, -Math.LN2, -2e4 - Math.LN2, -INF, -Math.LN2, -Math.LN2];
        expectTensor(t.logSoftmax(1), { shape: [2, 3], values: logs, within: 1e-6 });
      }
    });

    it("a row of −∞ has no softmax, and NaN stays in its row", () => {
      const t = tensor([-INF, -INF, NAN, 1, 0, 0], [3, 2], { dtype: "f32", device });
      expectTensor(t.softmax(1), { shape: [3, 2], values: [NAN, NAN, NAN, NAN, 0.5, 0.5] });
    });

    it("sums to 1 at every width", () => {
      for (const n of [1, 2, 3, 4, 7, 16, 31, 64, 257, 1000, 5003]) {
        const x = sample([n], "f32");
        expectTensor(tensor(x, [n], { dtype: "f32", device }).softmax(0), {
          shape: [n],
          values: softmaxOf(x),
          within: 2e-6,
          what: `width ${n}`,
        });
      }
    });

    it("of nothing is nothing", () => {
      for (const [s, d] of [
        [[0, 3], 1],
        [[3, 0], 1],
        [[0], 0],
      ] as const) {
        expect(Tensor.zeros(s, { device }).softmax(d).shape).toEqual(s);
        expect(Tensor.zeros(s, { device }).logSoftmax(d).shape).toEqual(s);
      }
    });
  });
});
