import { describe, expect, it } from "vitest";
import { collect } from "../../src/backend/storage.ts";
import { Tensor } from "../../src/index.ts";
import { Gru, Lstm } from "../../src/nn/index.ts";
import { describeInTurns } from "../helpers/devices.ts";
import { build, expectTensor, reader, sample, tensor } from "../helpers/reference.ts";

const sigmoid = (x: number) => 1 / (1 + Math.exp(-x));

describeInTurns("Recurrent layers", (device) => {
  const [batch, time, input, hidden] = [2, 4, 3, 5];
  const options = { dtype: "f64" as const, device };
  const x = sample([batch, time, input], "f64", 2);
  const at = reader(x, [batch, time, input]);

  function weights(gates: number) {
    const shrink = (v: number[]) => v.map((n) => n / 4);
    const wi = shrink(sample([gates * hidden, input], "f64", 1));
    const wh = shrink(sample([gates * hidden, hidden], "f64", 6));
    const bi = shrink(sample([gates * hidden], "f64", 3));
    const bh = shrink(sample([gates * hidden], "f64", 9));
    const tensors = {
      inputWeight: tensor(wi, [gates * hidden, input], options),
      hiddenWeight: tensor(wh, [gates * hidden, hidden], options),
      inputBias: tensor(bi, [gates * hidden], options),
      hiddenBias: tensor(bh, [gates * hidden], options),
    };
    const side = (row: number, v: readonly number[], w: readonly number[], b: readonly number[] | null) =>
      v.reduce((t, value, i) => t + value * w[row * v.length + i]!, b ? b[row]! : 0);
    const fromInput = (row: number, v: readonly number[], biased = true) => side(row, v, wi, biased ? bi : null);
    const fromHidden = (row: number, v: readonly number[], biased = true) => side(row, v, wh, biased ? bh : null);
    return { tensors, fromInput, fromHidden };
  }
  const inputAt = (b: number, t: number) => Array.from({ length: input }, (_, i) => at(b, t, i));

  describe("Lstm", () => {
    const w = weights(4);
    function run(biased: boolean, h0: number[][], c0: number[][]) {
      let [h, c] = [h0, c0];
      const outputs: number[][][] = [];
      for (let t = 0; t < time; t++) {
        const next = h.map((row, b) => {
          const gate = (g: number, j: number) =>
            w.fromInput(g * hidden + j, inputAt(b, t), biased) + w.fromHidden(g * hidden + j, row, biased);
          const cell = row.map((_, j) => sigmoid(gate(1, j)) * c[b]![j]! + sigmoid(gate(0, j)) * Math.tanh(gate(2, j)));
          return { cell, h: row.map((_, j) => sigmoid(gate(3, j)) * Math.tanh(cell[j]!)) };
        });
        [h, c] = [next.map((n) => n.h), next.map((n) => n.cell)];
        outputs.push(h);
      }
      return { outputs: build([batch, time, hidden], ([b, t, j]) => outputs[t!]![b!]![j!]!), h, c };
    }
    const zeros = () => Array.from({ length: batch }, () => new Array<number>(hidden).fill(0));

    it("follows its equations over a sequence, from a zero state", () => {
      const want = run(true, zeros(), zeros());
      const { output, state } = new Lstm(w.tensors).sequence(tensor(x, [batch, time, input], options));
      expectTensor(output, { shape: [batch, time, hidden], dtype: "f64", values: want.outputs, within: 1e-14 });
      expectTensor(state.h, { shape: [batch, hidden], values: want.h.flat(), within: 1e-14 });
      expectTensor(state.c, { shape: [batch, hidden], values: want.c.flat(), within: 1e-14 });
    });

    it("does without biases and starts from a given state, which stays", () => {
      const start = sample([batch, hidden], "f64", 4);
      const rows = [start.slice(0, hidden), start.slice(hidden)];
      const want = run(false, rows, rows);
      const { inputWeight, hiddenWeight } = w.tensors;
      const state = { h: tensor(start, [batch, hidden], options), c: tensor(start, [batch, hidden], options) };
      const got = new Lstm({ inputWeight, hiddenWeight, inputBias: null }).sequence(
        tensor(x, [batch, time, input], options),
        state,
      );
      expectTensor(got.output, { shape: [batch, time, hidden], values: want.outputs, within: 1e-14 });
      expectTensor(state.h, { shape: [batch, hidden], values: start });
      expectTensor(state.c, { shape: [batch, hidden], values: start });
    });

    it("a sequence is its steps", () => {
      const layer = new Lstm(w.tensors);
      let state = layer.zeroState(batch);
      const t = tensor(x, [batch, time, input], options);
      for (let i = 0; i < time; i++) state = layer.step(t.index(null, i), state);
      expect([...layer.output(state).dataSync()]).toEqual([...layer.sequence(t).state.h.dataSync()]);
    });
  });

  describe("Gru", () => {
    const w = weights(3);
    it("follows its equations over a sequence", () => {
      let h = Array.from({ length: batch }, () => new Array<number>(hidden).fill(0));
      const outputs: number[][][] = [];
      for (let t = 0; t < time; t++) {
        h = h.map((row, b) =>
          row.map((old, j) => {
            const both = (g: number) => w.fromInput(g * hidden + j, inputAt(b, t)) + w.fromHidden(g * hidden + j, row);
            const [reset, update] = [sigmoid(both(0)), sigmoid(both(1))];
            const fresh = Math.tanh(
              w.fromInput(2 * hidden + j, inputAt(b, t)) + reset * w.fromHidden(2 * hidden + j, row),
            );
            return (1 - update) * fresh + update * old;
          }),
        );
        outputs.push(h);
      }
      const { output, state } = new Gru(w.tensors).sequence(tensor(x, [batch, time, input], options));
      const values = build([batch, time, hidden], ([b, t, j]) => outputs[t!]![b!]![j!]!);
      expectTensor(output, { shape: [batch, time, hidden], dtype: "f64", values, within: 1e-14 });
      expectTensor(state, { shape: [batch, hidden], values: h.flat(), within: 1e-14 });
    });

    it("has a state per batch and shows it", () => {
      const layer = new Gru(w.tensors);
      const state = layer.zeroState(3);
      expect(state.shape).toEqual([3, hidden]);
      expect(state.dtype).toBe("f64");
      expect(layer.output(state)).toBe(state);
    });
  });

  it("works in f32 and leaves no tensor behind but its results", () => {
    const make = (...shape: number[]) => Tensor.full(shape, 0.25, { device });
    const layer = new Gru({ inputWeight: make(6, 2), hiddenWeight: make(6, 2) });
    const sequence = make(1, 3, 2);
    collect();
    const before = device.memory().storages;
    const start = layer.zeroState(1);
    const { output, state } = layer.sequence(sequence, start);
    expect(device.memory().storages - before).toBe(3);
    for (const t of [start, output, state]) t.dispose();
    expect(device.memory().storages).toBe(before);
  });

  it("an empty batch and an empty sequence have empty outputs", () => {
    const make = (...shape: number[]) => Tensor.full(shape, 0.25, { device });
    const layer = new Gru({ inputWeight: make(6, 2), hiddenWeight: make(6, 2) });
    expect(layer.sequence(Tensor.zeros([0, 3, 2], { device })).output.shape).toEqual([0, 3, 2]);
    expect(layer.sequence(Tensor.zeros([2, 0, 2], { device })).output.shape).toEqual([2, 0, 2]);
  });
});
