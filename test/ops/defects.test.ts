/** Defects known from Candle's kernels, each with a case that would show it. Numbers follow the list in docs. */
import { expect, it } from "vitest";
import { type Device, type DType, Tensor } from "../../src/index.ts";
import { layerNorm, rmsNorm, rope, ropeI, ropeThd } from "../../src/nn/index.ts";
import { describeDevices, describeInTurns, deviceNames } from "../helpers/devices.ts";

describeInTurns("Candle defects", (device) => {
  const f = (values: Parameters<typeof Tensor.from>[0], dtype: DType = "f32") => Tensor.from(values, { dtype, device });
  const flat = (t: Tensor) => Array.from(t.dataSync() as Float32Array, Number);
  const close = (got: Tensor, want: number[], tolerance: number) => {
    const values = flat(got);
    expect(values).toHaveLength(want.length);
    values.forEach((v, i) => {
      expect(Math.abs(v - want[i]!), `element ${i}: ${v} and ${want[i]}`).toBeLessThanOrEqual(tolerance);
    });
  };
  const normalized = (row: number[], eps: number) => {
    const mean = row.reduce((a, b) => a + b, 0) / row.length;
    const variance = row.reduce((a, b) => a + (b - mean) ** 2, 0) / row.length;
    return row.map((v) => (v - mean) / Math.sqrt(variance + eps));
  };

  it("1: norms are right for any row length, not only for 32 and 1024", () => {
    for (const n of [1, 2, 31, 33, 64, 96, 100, 255, 257, 511, 1000, 1025, 3000]) {
      const row = Array.from({ length: n }, (_, i) => Math.sin(i) * 3 + 1);
      const rms = Math.sqrt(row.reduce((a, b) => a + b * b, 0) / n + 1e-5);
      close(layerNorm(f([row, row]), null, null), [...normalized(row, 1e-5), ...normalized(row, 1e-5)], 2e-5);
      close(
        rmsNorm(f([row]), null),
        row.map((v) => v / rms),
        2e-6,
      );
    }
  });

  it("2: a large mean does not spoil layerNorm, and f64 norms compute in f64", () => {
    const row = Array.from({ length: 256 }, (_, i) => 4096 + (i % 7) * 0.125);
    close(layerNorm(f([row]), null, null), normalized(row, 1e-5), 1e-4);
    const fine = Array.from({ length: 100 }, (_, i) => 1e6 + i * 1e-4);
    close(layerNorm(f([fine], "f64"), null, null, 0), normalized(fine, 0), 1e-5);
    const huge = [1e30, -2e30, 3e30, 4e30];
    close(
      rmsNorm(f([huge]), null, 0),
      huge.map((v) => v / Math.sqrt(7.5) / 1e30),
      1e-6,
    );
  });

  it("3: softmax of halves keeps f32 until the store; infinities are right", () => {
    for (const dtype of ["f16", "bf16"] as const) {
      const row = f([Array.from({ length: 4096 }, (_, i) => (i % 5) * 0.5)], dtype);
      const total = row.softmax(-1).toDType("f64").sumAll().toScalarSync() as number;
      expect(Math.abs(total - 1)).toBeLessThan(dtype === "f16" ? 2e-3 : 8e-3);
    }
    const inf = Number.NEGATIVE_INFINITY;
    expect(flat(f([[inf, inf, inf]]).softmax(-1)).every(Number.isNaN)).toBe(true);
    expect(flat(f([[inf, 0, 0]]).softmax(-1))).toEqual([0, 0.5, 0.5]);
  });

  it("5: index_select takes strided ids, gather smaller ids, index_add a view with an offset", () => {
    const x = Tensor.arange(0, 12, { device }).reshape([4, 3]);
    const ids = f(
      [
        [3, 9],
        [0, 9],
        [2, 9],
      ],
      "u32",
    )
      .narrow(1, 0, 1)
      .squeeze(1);
    expect(x.indexSelect(ids, 0).toArraySync()).toEqual([
      [9, 10, 11],
      [0, 1, 2],
      [6, 7, 8],
    ]);
    expect(x.gather(f([[1, 0]], "i64"), 0).toArraySync()).toEqual([[3, 1]]);
    const view = x.narrow(0, 2, 2);
    expect(view.indexAdd(f([1], "u8"), f([[1, 1, 1]]), 0).toArraySync()).toEqual([
      [6, 7, 8],
      [10, 11, 12],
    ]);
    expect(x.toArraySync()).toEqual([
      [0, 1, 2],
      [3, 4, 5],
      [6, 7, 8],
      [9, 10, 11],
    ]);
  });

  it("6: a copy into a sub-view leaves what lies behind it", () => {
    const x = Tensor.zeros([4, 3], { device });
    x.sliceSet(Tensor.ones([2, 3], { device }), 0, 1);
    expect(x.toArraySync()).toEqual([
      [0, 0, 0],
      [1, 1, 1],
      [1, 1, 1],
      [0, 0, 0],
    ]);
    const y = Tensor.zeros([2, 4], { device });
    y.sliceSet(
      f([
        [5, 6],
        [7, 8],
      ]).t(),
      1,
      1,
    );
    expect(y.toArraySync()).toEqual([
      [0, 5, 7, 0],
      [0, 6, 8, 0],
    ]);
  });

  it("7: dilation is no stride, kernels may be strided, transposed convolution knows batches", () => {
    const x = Tensor.arange(0, 10, { device }).reshape([1, 1, 10]);
    const w = f([[[1, 10, 100]]]);
    expect(flat(x.conv1d(w, { dilation: 2 }))).toEqual([0, 1, 2, 3, 4, 5].map((i) => i + 10 * (i + 2) + 100 * (i + 4)));
    const reversed = f([[[100, 10, 1]]]).flip([2]);
    expect(flat(x.conv1d(reversed, { dilation: 2 }))).toEqual(flat(x.conv1d(w, { dilation: 2 })));
    const two = f([[[1, 2]], [[3, 4]]]);
    expect(two.convTranspose1d(f([[[1, 1]]])).toArraySync()).toEqual([[[1, 3, 2]], [[3, 7, 4]]]);
  });

  it("8: argsort takes any width, is stable, and puts NaN last", () => {
    const n = 20_000;
    const values = Float32Array.from({ length: n }, (_, i) => (i * 7919) % 1000);
    const want = Array.from(values.keys()).sort((a, b) => values[a]! - values[b]! || a - b);
    expect(flat(f(values).argSortLastDim())).toEqual(want);
    const down = Array.from(values.keys()).sort((a, b) => values[b]! - values[a]! || a - b);
    expect(flat(f(values).argSortLastDim(false))).toEqual(down);
    for (const dtype of ["f16", "bf16", "f32", "f64"] as const) {
      const mixed = f([Number.NaN, 1, Number.NEGATIVE_INFINITY, Number.NaN, Number.POSITIVE_INFINITY, -0, 0], dtype);
      expect(flat(mixed.argSortLastDim())).toEqual([2, 5, 6, 1, 4, 0, 3]);
      expect(flat(mixed.argSortLastDim(false))).toEqual([4, 1, 5, 6, 2, 0, 3]);
    }
  });

  it("9: tensors without elements pass through every kind of op", () => {
    const e = Tensor.zeros([0, 3], { device });
    const ids = Tensor.zeros([0], { dtype: "u32", device });
    const results: [Tensor, number[]][] = [
      [e.exp(), [0, 3]],
      [e.add(e), [0, 3]],
      [e.lt(1), [0, 3]],
      [e.toDType("u8"), [0, 3]],
      [e.t().contiguous(), [3, 0]],
      [e.sum(0), [3]],
      [e.sum(1), [0]],
      [e.max(1), [0]],
      [e.softmax(-1), [0, 3]],
      [e.softmax(0), [0, 3]],
      [e.cumsum(0), [0, 3]],
      [e.argSortLastDim(), [0, 3]],
      [layerNorm(e, null, null), [0, 3]],
      [e.matmul(Tensor.ones([3, 2], { device })), [0, 2]],
      [e.t().matmul(Tensor.ones([0, 2], { device })), [3, 2]],
      [Tensor.ones([2, 3], { device }).indexSelect(ids, 0), [0, 3]],
      [Tensor.cat([e, e], 0), [0, 3]],
      [Tensor.zeros([0, 1, 5, 5], { device }).conv2d(Tensor.ones([2, 1, 3, 3], { device })), [0, 2, 3, 3]],
      [Tensor.rand([0], { device }), [0]],
    ];
    for (const [t, shape] of results) {
      expect(t.shape).toEqual(shape);
      expect(t.dataSync()).toHaveLength(t.numel);
    }
    expect(e.sum(0).toArraySync()).toEqual([0, 0, 0]);
    expect(flat(e.t().matmul(Tensor.ones([0, 2], { device })))).toEqual([0, 0, 0, 0, 0, 0]);
  });

  it("10: floats become integers by saturation, NaN becomes 0", () => {
    const wild = [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 3.9, -3.9, 1e30, 300, -1];
    const want: Record<string, (number | bigint)[]> = {
      u8: [0, 255, 0, 3, 0, 255, 255, 0],
      i16: [0, 32767, -32768, 3, -3, 32767, 300, -1],
      i32: [0, 2147483647, -2147483648, 3, -3, 2147483647, 300, -1],
      u32: [0, 4294967295, 0, 3, 0, 4294967295, 300, 0],
      i64: [0n, 2n ** 63n - 1n, -(2n ** 63n), 3n, -3n, 2n ** 63n - 1n, 300n, -1n],
    };
    for (const [to, expected] of Object.entries(want)) {
      for (const from of ["f32", "f64", "bf16"] as const) {
        const got = Array.from(
          f(wild, from)
            .toDType(to as DType)
            .dataSync() as ArrayLike<number | bigint>,
        );
        expect(got.filter((_, i) => from !== "bf16" || (i !== 3 && i !== 4))).toEqual(
          expected.filter((_, i) => from !== "bf16" || (i !== 3 && i !== 4)),
        );
      }
    }
  });

  it("11: sums of halves accumulate in f32", () => {
    expect(Tensor.ones([5000], { dtype: "f16", device }).sumAll().toScalarSync()).toBe(5000);
    expect(Tensor.full([4096], 0.5, { dtype: "bf16", device }).sumAll().toScalarSync()).toBe(2048);
    expect(Tensor.full([60_000], 10, { dtype: "f16", device }).meanAll().toScalarSync()).toBe(10);
  });

  it("12: NaN propagates through max, min and relu in every float dtype", () => {
    for (const dtype of ["f16", "bf16", "f32", "f64"] as const) {
      const x = f([1, Number.NaN, 3], dtype);
      const one = Tensor.ones([3], { dtype, device });
      for (const t of [x.relu(), x.maximum(one), one.maximum(x), x.minimum(one), one.minimum(x)]) {
        expect(flat(t).map(Number.isNaN)).toEqual([false, true, false]);
      }
      for (const t of [x.max(0), x.min(0), x.reshape([3, 1]).max(0), x.reshape([1, 1, 1, 3]).maxPool2d([1, 3])]) {
        expect(flat(t).every(Number.isNaN)).toBe(true);
      }
      expect([x.argmax(0).toScalarSync(), x.argmin(0).toScalarSync()]).toEqual([1, 1]);
    }
  });

  it("argmax and argmin: the first index wins a tie, however the row is cut", () => {
    for (const n of [7, 64, 1000, 5000, 100_000]) {
      const x = Tensor.zeros([3, n], { device });
      expect(flat(x.argmax(1))).toEqual([0, 0, 0]);
      expect(flat(x.argmin(1))).toEqual([0, 0, 0]);
      const late = Tensor.cat([x.narrow(1, 0, n - 2), Tensor.ones([3, 2], { device })], 1);
      expect(flat(late.argmax(1))).toEqual([n - 2, n - 2, n - 2]);
    }
  });

  it("14: rope takes the right rows of per-batch tables longer than the sequence", () => {
    const [b, h, t, d, rows] = [2, 3, 4, 6, 9];
    const x = Tensor.randn([b, h, t, d], { seed: 1, device });
    const angle = Tensor.rand([b, rows, d / 2], { seed: 2, high: 6, device });
    const [cos, sin] = [angle.cos(), angle.sin()];
    for (const fn of [rope, ropeI]) {
      const whole = fn(x, cos, sin);
      for (let i = 0; i < b; i++) {
        const alone = fn(x.narrow(0, i, 1), cos.get(i).narrow(0, 0, t), sin.get(i).narrow(0, 0, t));
        expect(whole.narrow(0, i, 1).toArraySync()).toEqual(alone.toArraySync());
      }
    }
    const thd = ropeThd(x.transpose(1, 2), cos, sin).transpose(1, 2);
    expect(thd.toArraySync()).toEqual(rope(x, cos, sin).toArraySync());
  });

  it("15: f8e4m3 tensors compute", () => {
    const x = f([1, 2, 3.5, -448], "f8e4m3");
    expect(flat(x.add(x))).toEqual([2, 4, 7, Number.NaN]);
    expect(flat(x.toDType("f16"))).toEqual([1, 2, 3.5, -448]);
    expect(flat(x.neg().maximum(0))).toEqual([0, 0, 0, 448]);
  });
});

// The simulator's memory and speed end far below that; bench/gpu/large.mjs checks real GPUs.
const large = deviceNames.filter((name) => !name.startsWith("sim"));
const manyElements = (device: Device): void => {
  it("are filled, narrowed, indexed and reduced", () => {
    const n = 2 ** 31 + 7;
    using x = Tensor.zeros([n], { dtype: "u8", device });
    using tail = x.narrow(0, n - 3, 3);
    using mark = Tensor.from([1, 2, 3], { dtype: "u8", device });
    x.sliceSet(mark, 0, n - 3);
    expect(tail.toArraySync()).toEqual([1, 2, 3]);
    using largest = x.argmax(0);
    expect(largest.toScalarSync()).toBe(n - 1);
    using total = x.sumAll();
    expect(total.toScalarSync()).toBe(6);
    using ids = Tensor.from([n - 2, 0], { dtype: "i64", device });
    using picked = x.indexSelect(ids, 0);
    expect(picked.toArraySync()).toEqual([2, 0]);
  });
};
describeDevices("Candle defect 4: more than 2³¹ elements", manyElements, large);
