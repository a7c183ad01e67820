import { describe, expect, it } from "vitest";
import { Tensor } from "../../src/index.ts";
import { bceWithLogits, crossEntropy, huber, mse, nll } from "../../src/nn/index.ts";
import { describeInTurns } from "../helpers/devices.ts";
import { expectTensor, layouts, sample, softmaxOf, tensor, tolerance, wideFloats } from "../helpers/reference.ts";

const mean = (v: readonly number[]) => v.reduce((a, b) => a + b, 0) / v.length;

describeInTurns("Losses", (device) => {
  const [n, classes] = [5, 4];
  const targets = [2, 0, 3, 3, 1];

  it.each(["u8", "u32", "i64"] as const)("nll and crossEntropy pick the target's probability, ids of %s", (idType) => {
    const target = Tensor.from(targets, { dtype: idType, device });
    for (const dtype of wideFloats) {
      const logits = sample([n, classes], dtype, 3);
      const rows = targets.map((_, i) => logits.slice(i * classes, (i + 1) * classes));
      const picked = mean(rows.map((row, i) => -row[targets[i]!]!));
      const entropy = mean(rows.map((row, i) => -Math.log(softmaxOf(row)[targets[i]!]!)));
      for (const [what, t] of layouts(logits, [n, classes], { dtype, device })) {
        const within = Math.max(tolerance(dtype, 3), dtype === "f32" ? 2e-6 : 0);
        expectTensor(nll(t, target), { shape: [], dtype, values: [picked], within, what });
        expectTensor(crossEntropy(t, target), { shape: [], dtype, values: [entropy], within: within * 2, what });
      }
    }
  });

  it("crossEntropy of huge logits is finite", () => {
    const logits = tensor([1000, -1000, -1000, 1000], [2, 2], { dtype: "f32", device });
    const right = Tensor.from([0, 1], { dtype: "u32", device });
    const wrong = Tensor.from([1, 0], { dtype: "u32", device });
    expect(crossEntropy(logits, right).toScalarSync()).toBe(-0);
    expect(crossEntropy(logits, wrong).toScalarSync()).toBe(2000);
  });

  it("crossEntropy of uniform logits is log(classes)", () => {
    const y = crossEntropy(Tensor.zeros([3, 10], { device }), Tensor.zeros([3], { dtype: "u8", device }));
    expect(y.toScalarSync()).toBeCloseTo(Math.log(10), 6);
  });

  it("mse is the mean of the squared differences, and broadcasts", () => {
    const x = tensor([1, 2, 3, 4], [2, 2], { dtype: "f32", device });
    expectTensor(mse(x, tensor([1, 0, 3, 0], [2, 2], { dtype: "f32", device })), { shape: [], values: [5] });
    expectTensor(mse(x, tensor([1, 2], [2], { dtype: "f32", device })), { shape: [], values: [2] });
    expectTensor(mse(x, x), { shape: [], values: [0] });
  });

  it("bceWithLogits is the binary cross-entropy of the sigmoid, without overflow", () => {
    const x = [0, 1, -2, 3.5];
    const target = [1, 0, 0.5, 1];
    const want = mean(
      x.map((v, i) => {
        const p = 1 / (1 + Math.exp(-v));
        return -(target[i]! * Math.log(p) + (1 - target[i]!) * Math.log(1 - p));
      }),
    );
    for (const dtype of wideFloats) {
      const options = { dtype, device };
      const within = { f32: 1e-6, f64: 1e-14, f16: 2e-3, bf16: 1e-2 }[dtype as "f32"];
      expectTensor(bceWithLogits(tensor(x, [4], options), tensor(target, [4], options)), {
        shape: [],
        dtype,
        values: [want],
        within,
      });
    }
    const far = bceWithLogits(
      tensor([500, -500], [2], { dtype: "f32", device }),
      tensor([0, 1], [2], { dtype: "f32", device }),
    );
    expect(far.toScalarSync()).toBe(500);
  });

  it("huber is quadratic near and linear far", () => {
    const of = (d: number, delta: number) => (Math.abs(d) <= delta ? 0.5 * d * d : delta * (Math.abs(d) - delta / 2));
    const x = [0, 0.5, -0.5, 1, 2, -3];
    const t = tensor(x, [6], { dtype: "f64", device });
    const zero = Tensor.zeros([6], { dtype: "f64", device });
    expectTensor(huber(t, zero), { shape: [], values: [mean(x.map((v) => of(v, 1)))], within: 1e-15 });
    expectTensor(huber(t, zero, 2.5), { shape: [], values: [mean(x.map((v) => of(v, 2.5)))], within: 1e-15 });
    expectTensor(huber(zero, t, 0.25), { shape: [], values: [mean(x.map((v) => of(v, 0.25)))], within: 1e-15 });
  });

  describe("over nothing", () => {
    it("is NaN, as a mean of nothing is", () => {
      const none = Tensor.zeros([0], { device });
      expect(mse(none, none).toScalarSync()).toBeNaN();
      expect(huber(none, none).toScalarSync()).toBeNaN();
      expect(bceWithLogits(none, none).toScalarSync()).toBeNaN();
      expect(
        nll(Tensor.zeros([0, 3], { device }), Tensor.zeros([0], { dtype: "u32", device })).toScalarSync(),
      ).toBeNaN();
    });
  });
});
