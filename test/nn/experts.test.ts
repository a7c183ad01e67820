// Mixtures of experts against plain sums in f64.
import { expect, it } from "vitest";
import { Tensor } from "../../src/index.ts";
import { clampedSwiglu, expertLinear, mixExperts, routeExperts } from "../../src/nn/index.ts";
import { describeInTurns } from "../helpers/devices.ts";
import { checkExperts, clamped, many, NOTHING, uniform, values } from "../helpers/experts.ts";
import { tensor } from "../helpers/reference.ts";

const some = [
  [3, 0],
  [3, 5],
  [1, 3],
];
describeInTurns("experts", (device) => {
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
      expect(mix.dtype).toBe("f32");
      for (const row of mix.toDType("f32").toArraySync() as number[][]) {
        expect(row.reduce((a, b) => a + b)).toBeCloseTo(1, 5);
      }
    }
  });

  it.each(["f32", "f16", "bf16"] as const)("sends rows of %s through plain experts", (dtype) => {
    checkExperts(device, { experts: 6, outputs: 34, inputs: 40, ids: some, bias: true }, dtype, null);
    checkExperts(
      device,
      { experts: 6, outputs: 10, inputs: 64, ids: some, bySlot: true, norm: true, glu: "silu" },
      dtype,
      null,
    );
  });

  it("sends rows through quantized experts", () => {
    checkExperts(
      device,
      { experts: 6, outputs: 36, inputs: 96, ids: some, norm: true, bias: true, glu: "clampedSwiglu" },
      "f32",
      "Q4_0",
    );
    checkExperts(device, { experts: 6, outputs: 37, inputs: 256, ids: some, bySlot: true }, "f16", "Q4_K");
  });

  it("sends many rows through experts, of which some have none", () => {
    const plain = { experts: 9, outputs: 70, inputs: 72, ids: many(90, 2, 5), bias: true };
    for (const dtype of ["f32", "f16"] as const) checkExperts(device, plain, dtype, null);
    const quantized = { experts: 5, outputs: 66, inputs: 96, ids: many(70, 3, 4), glu: "clampedSwiglu" } as const;
    for (const dtype of ["f32", "bf16"] as const) checkExperts(device, quantized, dtype, "Q5_1");
    checkExperts(device, { experts: 3, outputs: 40, inputs: 256, ids: many(80, 1, 1), bySlot: true }, "f16", "Q6_K");
  });

  it("sums what the experts of a row make, with a residual", () => {
    const own = { experts: 6, bySlot: true, mixed: true };
    const none = [
      [3, 0, NOTHING],
      [3, 5, 4],
    ];
    for (const dtype of ["f32", "bf16"] as const)
      checkExperts(device, { ...own, outputs: 34, inputs: 40, ids: none }, dtype, null);
    checkExperts(device, { ...own, outputs: 37, inputs: 256, ids: none }, "f16", "Q4_K");
    checkExperts(device, { ...own, outputs: 20, inputs: 96, ids: [[2], [5]] }, "f32", "Q4_0");
    // Rows that share x's, with a bias, and many.
    checkExperts(device, { ...own, bySlot: false, outputs: 10, inputs: 32, ids: none, bias: true }, "f32", null);
    checkExperts(device, { ...own, outputs: 12, inputs: 32, ids: many(60, 2, 5) }, "f32", null);
    const [x, w] = [Tensor.ones([2, 8], { device }), Tensor.ones([3, 4, 8], { device })];
    const ids = Tensor.zeros([1, 2], { dtype: "u32", device });
    const mix = Tensor.ones([2, 1], { device });
    expect(() => expertLinear(x, w, ids, { mix })).toThrow(/mix must be \[1, 2\]/);
    expect(() => expertLinear(x, w, ids, { mix: mix.reshape([1, 2]), glu: "silu" })).toThrow(/without a gate/);
    expect(() => expertLinear(x, w, ids, { residual: x })).toThrow(/take a mix/);
  });

  it("gives zeros for no expert, and takes no rows", () => {
    checkExperts(device, { experts: 2, outputs: 8, inputs: 16, ids: [[1, NOTHING]] }, "f32", null);
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
