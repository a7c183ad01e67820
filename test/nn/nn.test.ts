import { describe, expect, it } from "vitest";
import { type DType, dtypeNames, Tensor } from "../../src/index.ts";
import * as nn from "../../src/nn/index.ts";
import { composed } from "../../src/ops/composed/index.ts";
import { describeInTurns } from "../helpers/devices.ts";
import {
  build,
  erf,
  expectTensor,
  floats,
  layouts,
  nearest,
  reader,
  sample,
  softmaxOf,
  tensor,
  tolerance,
  wideFloats,
} from "../helpers/reference.ts";

const [NAN, INF] = [Number.NaN, Number.POSITIVE_INFINITY];
const sigmoid = (x: number) => 1 / (1 + Math.exp(-x));
/** A few units in the last place, for formulas of several steps. */
const close = (dtype: DType): number => ({ f32: 4e-6, f64: 1e-13 })[dtype as string] ?? tolerance(dtype, 2);

describeInTurns("nn", (device) => {
  describe("activations", () => {
    const activations: Record<string, [(x: Tensor) => Tensor, (x: number) => number]> = {
      sigmoid: [nn.sigmoid, sigmoid],
      silu: [nn.silu, (x) => x * sigmoid(x)],
      gelu: [nn.gelu, (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)))],
      geluErf: [nn.geluErf, (x) => 0.5 * x * (1 + erf(x / Math.SQRT2))],
      hardSigmoid: [nn.hardSigmoid, (x) => Math.min(Math.max(x / 6 + 0.5, 0), 1)],
      mish: [nn.mish, (x) => x * Math.tanh(Math.log1p(Math.exp(x)))],
      leakyRelu: [nn.leakyRelu, (x) => (x >= 0 ? x : 0.01 * x)],
      "leakyRelu with a slope": [(x) => nn.leakyRelu(x, 0.25), (x) => (x >= 0 ? x : 0.25 * x)],
      selu: [nn.selu, (x) => 1.0507009873554805 * (x > 0 ? x : 1.6732632423543772 * Math.expm1(x))],
    };
    it.each(Object.keys(activations))("%s follows its formula in every float dtype and layout", (name) => {
      const [run, of] = activations[name]!;
      const shape = [3, 4, 5];
      for (const dtype of wideFloats) {
        const x = sample(shape, dtype).map((v) => v * 4);
        // Halves round between the steps of a composite.
        const within = name === "mish" ? close(dtype) * 4 : close(dtype);
        for (const [what, t] of layouts(x, shape, { dtype, device })) {
          expectTensor(run(t), { shape, dtype, values: x.map(of), within, what: `${dtype} ${what}` });
        }
        expect(run(Tensor.zeros([2, 0], { dtype, device })).shape).toEqual([2, 0]);
        expectTensor(run(tensor([1.5], [], { dtype, device })), { shape: [], values: [of(1.5)], within });
      }
    });

    it("stays finite or infinite as it should for large inputs", () => {
      const x = tensor([100, -100, INF], [3], { dtype: "f32", device });
      expectTensor(nn.mish(x), { shape: [3], values: [100, 0, INF], within: 1e-6 });
      expectTensor(nn.hardSigmoid(x), { shape: [3], values: [1, 0, 1] });
      expectTensor(nn.leakyRelu(x), { shape: [3], values: [100, -1, INF], within: 1e-6 });
      expectTensor(nn.sigmoid(x), { shape: [3], values: [1, 0, 1], within: 1e-6 });
      expectTensor(nn.selu(x), { shape: [3], values: [105.0700987, -1.7580993, INF], within: 1e-6 });
    });

    it("mish of a large negative number is small, not zero or NaN", () => {
      expectTensor(nn.mish(tensor([-30], [1], { dtype: "f64", device })), {
        shape: [1],
        values: [-30 * Math.tanh(Math.log1p(Math.exp(-30)))],
        within: 1e-20,
      });
    });

    it("swiglu gates the second half with the first", () => {
      const shape = [2, 3, 6];
      for (const dtype of wideFloats) {
        const x = sample(shape, dtype, 2);
        const at = reader(x, shape);
        const values = build([2, 3, 3], ([a, b, c]) => {
          const gate = at(a!, b!, c!);
          return gate * sigmoid(gate) * at(a!, b!, c! + 3);
        });
        for (const [what, t] of layouts(x, shape, { dtype, device })) {
          expectTensor(nn.swiglu(t), { shape: [2, 3, 3], dtype, values, within: close(dtype), what });
        }
      }
      expect(nn.swiglu(Tensor.zeros([2, 0], { device })).shape).toEqual([2, 0]);
    });

    it("softmax and logSoftmax are those of the tensor", () => {
      const x = [1, 2, 3];
      const t = tensor(x, [3], { dtype: "f32", device });
      expectTensor(nn.softmax(t, -1), { shape: [3], values: softmaxOf(x), within: 1e-6 });
      expectTensor(nn.logSoftmax(t, 0), { shape: [3], values: softmaxOf(x).map(Math.log), within: 1e-6 });
    });
  });

  describe("dropout", () => {
    it("zeroes about p of the elements and scales the others", () => {
      const x = Tensor.full([10000], 3, { device });
      const got = Array.from(nn.dropout(x, 0.25, { seed: 3 }).dataSync() as Float32Array);
      const kept = got.filter((v) => v !== 0);
      expect(kept.every((v) => v === 4)).toBe(true);
      expect(kept.length / 10000).toBeCloseTo(0.75, 1);
      expect([...nn.dropout(x, 0.25, { seed: 3 }).dataSync()]).toEqual(got);
    });

    it("with p = 0 changes nothing, whatever the dtype", () => {
      for (const dtype of wideFloats) {
        const x = tensor([1, -2, NAN], [3], { dtype, device });
        expectTensor(nn.dropout(x, 0), { shape: [3], dtype, values: [1, -2, NAN] });
      }
      expect(nn.dropout(Tensor.zeros([0], { device }), 0.5).shape).toEqual([0]);
    });
  });

  describe("pixelShuffle", () => {
    it("moves channels into space, and pixelUnshuffle back", () => {
      const shape = [2, 8, 2, 3];
      const x = sample(shape, "f32");
      const at = reader(x, shape);
      const t = tensor(x, shape, { dtype: "f32", device });
      const y = nn.pixelShuffle(t, 2);
      expectTensor(y, {
        shape: [2, 2, 4, 6],
        values: build([2, 2, 4, 6], ([b, c, i, j]) =>
          at(b!, c! * 4 + (i! % 2) * 2 + (j! % 2), Math.floor(i! / 2), Math.floor(j! / 2)),
        ),
      });
      expectTensor(nn.pixelUnshuffle(y, 2), { shape, values: x });
      expectTensor(nn.pixelShuffle(t, 1), { shape, values: x });
      expect(nn.pixelShuffle(Tensor.zeros([0, 4, 1, 1], { device }), 2).shape).toEqual([0, 1, 2, 2]);
    });
  });

  describe("oneHot", () => {
    it.each(["u8", "u32", "i64"] as const)("puts a 1 at each id of %s", (idType) => {
      const ids = Tensor.from([2, 0, 1, 2], { shape: [2, 2], dtype: idType, device });
      for (const dtype of ["f32", "f64", "f16", "bf16", "u8", "u32", "i64"] as const) {
        expectTensor(nn.oneHot(ids, 3, dtype), {
          shape: [2, 2, 3],
          dtype,
          values: [0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1],
        });
      }
      expect(nn.oneHot(Tensor.from(1, { dtype: idType, device }), 2).toArraySync()).toEqual([0, 1]);
      expect(nn.oneHot(Tensor.zeros([0], { dtype: idType, device }), 3).shape).toEqual([0, 3]);
    });

    it("the largest id means none", () => {
      expect(nn.oneHot(Tensor.from([255, 1], { dtype: "u8", device }), 2).toArraySync()).toEqual([
        [0, 0],
        [0, 1],
      ]);
    });

    it("an id past the depth is an error", () => {
      expect(() => nn.oneHot(Tensor.from([3], { dtype: "u8", device }), 3).dataSync()).toThrow(/id 3/);
    });
  });

  describe("norms", () => {
    const rms = (row: number[], eps: number) => {
      const scale = Math.sqrt(row.reduce((a, v) => a + v * v, 0) / row.length + eps);
      return row.map((v) => v / scale);
    };
    const layer = (row: number[], eps: number) => {
      const mean = row.reduce((a, v) => a + v, 0) / row.length;
      const variance = row.reduce((a, v) => a + (v - mean) ** 2, 0) / row.length;
      return row.map((v) => (v - mean) / Math.sqrt(variance + eps));
    };
    const rows = (x: readonly number[], width: number, f: (row: number[]) => number[]) =>
      Array.from({ length: x.length / width }, (_, i) => f(x.slice(i * width, (i + 1) * width))).flat();

    it.each(floats)("rmsNorm and layerNorm over the last dim of %s, with and without weights", (dtype) => {
      const shape = [2, 3, 8];
      const x = sample(shape, dtype, 3);
      const [w, b] = [sample([8], dtype, 5), sample([8], dtype, 9)];
      const options = { dtype, device };
      const [weight, bias] = [tensor(w, [8], options), tensor(b, [8], options)];
      const within = close(dtype);
      for (const [what, t] of layouts(x, shape, options)) {
        const r = rows(x, 8, (row) => rms(row, 1e-5));
        expectTensor(nn.rmsNorm(t, null), { shape, dtype, values: r, within, what });
        expectTensor(nn.rmsNorm(t, weight), { shape, dtype, values: r.map((v, i) => v * w[i % 8]!), within, what });
        const l = rows(x, 8, (row) => layer(row, 1e-2));
        const scaled = l.map((v, i) => v * w[i % 8]!);
        expectTensor(nn.layerNorm(t, null, null, 1e-2), { shape, dtype, values: l, within, what });
        expectTensor(nn.layerNorm(t, weight, null, 1e-2), { shape, dtype, values: scaled, within, what });
        expectTensor(nn.layerNorm(t, null, bias, 1e-2), {
          shape,
          dtype,
          values: l.map((v, i) => v + b[i % 8]!),
          within,
          what,
        });
        expectTensor(nn.layerNorm(t, weight, bias, 1e-2), {
          shape,
          dtype,
          values: scaled.map((v, i) => v + b[i % 8]!),
          within: within * 2,
          what,
        });
      }
    });

    it.each([1, 2, 3, 5, 16, 31, 33, 100, 1024, 1500])("rows of %i elements", (n) => {
      for (const dtype of ["f32", "f64"] as const) {
        const x = sample([3, n], dtype, 1).map((v, i) => v + (i % 3));
        const t = tensor(x, [3, n], { dtype, device });
        const [within, what] = [close(dtype), dtype];
        expectTensor(nn.rmsNorm(t, null), { shape: [3, n], values: rows(x, n, (r) => rms(r, 1e-5)), within, what });
        expectTensor(nn.layerNorm(t, null, null), {
          shape: [3, n],
          values: rows(x, n, (r) => layer(r, 1e-5)),
          within,
          what,
        });
      }
    });

    it("weights may be views", () => {
      const weight = tensor([3, 9, 2, 9, 1, 9], [3, 2], { dtype: "f32", device }).narrow(1, 0, 1).squeeze(1);
      const bias = tensor([3, 2, 1], [3], { dtype: "f32", device }).flip([0]);
      const x = [1, 2, 4];
      const t = tensor(x, [3], { dtype: "f32", device });
      const l = layer(x, 1e-5);
      expectTensor(nn.layerNorm(t, weight, bias), {
        shape: [3],
        values: [l[0]! * 3 + 1, l[1]! * 2 + 2, l[2]! + 3],
        within: 1e-5,
      });
      expectTensor(nn.rmsNorm(t, weight), {
        shape: [3],
        values: rms(x, 1e-5).map((v, i) => v * (3 - i)),
        within: 1e-6,
      });
    });

    it("large magnitudes neither overflow nor cancel", () => {
      for (const dtype of ["f16", "bf16", "f32"] as const) {
        const x = [30000, -20000, 10000, 40000].map((v) => nearest(v, dtype));
        const t = tensor(x, [4], { dtype, device });
        expectTensor(nn.rmsNorm(t, null), { shape: [4], values: rms(x, 1e-5), within: close(dtype), what: dtype });
        expectTensor(nn.layerNorm(t, null, null), { shape: [4], values: layer(x, 1e-5), within: close(dtype) });
      }
      const x = [1e6 + 1, 1e6 + 2, 1e6 + 3, 1e6 + 6];
      expectTensor(nn.layerNorm(tensor(x, [4], { dtype: "f32", device }), null, null), {
        shape: [4],
        values: layer(x, 1e-5),
        within: 1e-5,
      });
    });

    it("a row of zeros stays zero, a constant row becomes zero", () => {
      const zero = Tensor.zeros([2, 5], { device });
      expectTensor(nn.rmsNorm(zero, null), { shape: [2, 5], values: new Array(10).fill(0) });
      expectTensor(nn.layerNorm(Tensor.full([2, 5], 7, { device }), null, null), {
        shape: [2, 5],
        values: new Array(10).fill(0),
      });
    });

    it("NaN stays in its row", () => {
      const t = tensor([NAN, 1, 1, 1], [2, 2], { dtype: "f32", device });
      expectTensor(nn.rmsNorm(t, null, 0), { shape: [2, 2], values: [NAN, NAN, 1, 1], within: 1e-6 });
      expectTensor(nn.layerNorm(t, null, null), { shape: [2, 2], values: [NAN, NAN, 0, 0] });
    });

    it("of nothing is nothing", () => {
      for (const shape of [[0, 4], [3, 0], [0]]) {
        const t = Tensor.zeros(shape, { device });
        expect(nn.rmsNorm(t, null).shape).toEqual(shape);
        expect(nn.layerNorm(t, null, null).shape).toEqual(shape);
      }
      expect(nn.groupNorm(Tensor.zeros([0, 4, 3], { device }), 2, null, null).shape).toEqual([0, 4, 3]);
      expect(nn.groupNorm(Tensor.zeros([2, 4, 0], { device }), 2, null, null).shape).toEqual([2, 4, 0]);
    });

    it("groupNorm normalises groups of channels, then scales per channel", () => {
      const shape = [2, 6, 2, 2];
      for (const dtype of wideFloats) {
        const x = sample(shape, dtype, 4);
        const [w, b] = [sample([6], dtype, 1), sample([6], dtype, 2)];
        const options = { dtype, device };
        for (const groups of [1, 2, 3, 6]) {
          const normal = rows(x, 24 / groups, (row) => layer(row, 1e-5));
          const channel = (i: number) => Math.floor(i / 4) % 6;
          const values = normal.map((v, i) => v * w[channel(i)]! + b[channel(i)]!);
          for (const [what, t] of layouts(x, shape, options)) {
            expectTensor(nn.groupNorm(t, groups, tensor(w, [6], options), tensor(b, [6], options)), {
              shape,
              dtype,
              values,
              within: close(dtype) * 3,
              what,
            });
            expectTensor(nn.groupNorm(t, groups, null, null), { shape, dtype, values: normal, within: close(dtype) });
          }
        }
      }
    });

    it("batchNorm uses the statistics it is given", () => {
      const shape = [2, 3, 2];
      const x = sample(shape, "f32");
      const [mean, variance, w, b] = [
        [0.5, -1, 2],
        [1, 4, 0.25],
        [1, 2, -1],
        [0, 1, 3],
      ] as const;
      const vector = (v: readonly number[]) => tensor(v, [3], { dtype: "f32", device });
      const statistics = { mean: vector(mean), variance: vector(variance) };
      const of = (eps: number) =>
        x.map((v, i) => {
          const c = Math.floor(i / 2) % 3;
          return ((v - mean[c]!) / Math.sqrt(variance[c]! + eps)) * w[c]! + b[c]!;
        });
      for (const [what, t] of layouts(x, shape, { dtype: "f32", device })) {
        expectTensor(nn.batchNorm(t, statistics, vector(w), vector(b), 1e-3), {
          shape,
          values: of(1e-3),
          within: 1e-6,
          what,
        });
        const plain = x.map((v, i) => {
          const c = Math.floor(i / 2) % 3;
          return (v - mean[c]!) / Math.sqrt(variance[c]! + 1e-5);
        });
        expectTensor(nn.batchNorm(t, statistics, null, null), { shape, values: plain, within: 1e-6, what });
      }
      expect(nn.batchNorm(Tensor.zeros([0, 3], { device }), statistics, null, null).shape).toEqual([0, 3]);
    });
  });

  describe("rope", () => {
    const tables = (shape: readonly number[], dtype: DType) => {
      const angles = build(shape, (index) => 0.1 + index.reduce((a, i) => a * 3 + i, 0) * 0.37);
      const [c, s] = [angles.map(Math.cos), angles.map(Math.sin)].map((v) => v.map((x) => nearest(x, dtype)));
      return { c: c!, s: s! };
    };
    const kinds = {
      rope: { run: nn.rope, thd: false, pair: (i: number, half: number) => [i % half, (i % half) + half] },
      ropeI: { run: nn.ropeI, thd: false, pair: (i: number) => [i - (i % 2), i - (i % 2) + 1] },
      ropeThd: { run: nn.ropeThd, thd: true, pair: (i: number, half: number) => [i % half, (i % half) + half] },
    } as const;

    describe.each(Object.keys(kinds) as (keyof typeof kinds)[])("%s", (name) => {
      const { run, thd, pair } = kinds[name];
      const [b, h, t, d] = [2, 3, 5, 8];
      const shape = thd ? [b, t, h, d] : [b, h, t, d];
      const want = (
        x: readonly number[],
        c: readonly number[],
        s: readonly number[],
        rowsPerBatch: number,
        batched: boolean,
      ) => {
        const at = reader(x, shape);
        return build(shape, ([n, y, z, i]) => {
          const time = thd ? y! : z!;
          const [first, second] = pair(i!, d / 2) as [number, number];
          const k = name === "ropeI" ? first / 2 : first;
          const row = ((batched ? n! * rowsPerBatch : 0) + time) * (d / 2) + k;
          const [u, v] = [at(n!, y!, z!, first), at(n!, y!, z!, second)];
          return i === first ? u * c[row]! - v * s[row]! : u * s[row]! + v * c[row]!;
        });
      };

      it.each(floats)("rotates pairs of %s in any layout", (dtype) => {
        const x = sample(shape, dtype, 2);
        const { c, s } = tables([t, d / 2], dtype);
        const options = { dtype, device };
        const values = want(x, c, s, t, false);
        const cosines = layouts(c, [t, d / 2], options);
        for (const [what, q] of layouts(x, shape, options)) {
          for (const [, cos] of cosines) {
            const y = run(q, cos, tensor(s, [t, d / 2], options));
            expectTensor(y, { shape, dtype, values, within: close(dtype) * 2, what });
          }
        }
      });

      it.each(floats)("of %s may begin at any element of a tensor", (dtype) => {
        const x = sample(shape, dtype, 2);
        const { c, s } = tables([t, d / 2], dtype);
        const options = { dtype, device };
        // Contiguous, but so many elements behind where vectors begin.
        const behind = (skipped: number, values: readonly number[], of: readonly number[]) =>
          tensor([...Array(skipped).fill(9), ...values], [skipped + values.length], options)
            .narrow(0, skipped, values.length)
            .reshape([...of]);
        for (const [atX, atTable] of [
          [1, 0],
          [3, 1],
          [2, 3],
        ] as const) {
          const y = run(behind(atX, x, shape), behind(atTable, c, [t, d / 2]), tensor(s, [t, d / 2], options));
          expectTensor(y, { shape, dtype, values: want(x, c, s, t, false), within: close(dtype) * 2, what: `${atX}` });
        }
      });

      it("tables may be longer than the sequence, and per batch", () => {
        const x = sample(shape, "f32", 1);
        const options = { dtype: "f32" as const, device };
        for (const rows of [t, t + 3]) {
          const shared = tables([rows, d / 2], "f32");
          expectTensor(
            run(
              tensor(x, shape, options),
              tensor(shared.c, [rows, d / 2], options),
              tensor(shared.s, [rows, d / 2], options),
            ),
            { shape, values: want(x, shared.c, shared.s, rows, false), within: 1e-6 },
          );
          const own = tables([b, rows, d / 2], "f32");
          const [cos, sin] = [tensor(own.c, [b, rows, d / 2], options), tensor(own.s, [b, rows, d / 2], options)];
          expectTensor(run(tensor(x, shape, options), cos, sin), {
            shape,
            values: want(x, own.c, own.s, rows, true),
            within: 1e-6,
            what: `${rows} rows per batch`,
          });
        }
      });

      it("keeps the length of each pair and leaves position 0 alone", () => {
        const x = tensor(sample(shape, "f64", 3), shape, { dtype: "f64", device });
        const one = Tensor.ones([t, d / 2], { dtype: "f64", device });
        const zero = Tensor.zeros([t, d / 2], { dtype: "f64", device });
        expectTensor(run(x, one, zero), { shape, values: sample(shape, "f64", 3) });
        const { c, s } = tables([t, d / 2], "f64");
        const options = { dtype: "f64" as const, device };
        const y = run(x, tensor(c, [t, d / 2], options), tensor(s, [t, d / 2], options));
        expect(Number(y.norm().toScalarSync())).toBeCloseTo(Number(x.norm().toScalarSync()), 10);
      });

      it("accepts every size of zero", () => {
        const table = Tensor.zeros([t, d / 2], { device });
        for (const s of [
          [0, ...shape.slice(1)],
          thd ? [b, t, 0, d] : [b, 0, t, d],
          thd ? [b, 0, h, d] : [b, h, 0, d],
        ]) {
          expect(run(Tensor.zeros(s, { device }), table, table).shape).toEqual(s);
        }
        const none = Tensor.zeros([t, 0], { device });
        expect(run(Tensor.zeros([...shape.slice(0, 3), 0], { device }), none, none).shape).toEqual([
          ...shape.slice(0, 3),
          0,
        ]);
      });
    });
  });

  describe("sdpa", () => {
    interface Setup {
      readonly b?: number;
      readonly hq?: number;
      readonly hk?: number;
      readonly tq: number;
      readonly tk: number;
      readonly d?: number;
      readonly dv?: number;
    }
    interface Options {
      readonly scale?: number;
      readonly causal?: boolean;
      readonly softcap?: number;
      readonly window?: number;
      /** Of head h it is this + h. */
      readonly sink?: number;
      readonly mask?: (b: number, h: number, i: number, j: number) => number;
    }
    const sizes = ({ b = 2, hq = 4, hk = 2, tq, tk, d = 8, dv = 6 }: Setup) => ({
      q: [b, hq, tq, d],
      k: [b, hk, tk, d],
      v: [b, hk, tk, dv],
    });

    function reference(q: number[], k: number[], v: number[], s: Setup, o: Options): number[] {
      const shapes = sizes(s);
      const [b, hq, tq, d] = shapes.q as [number, number, number, number];
      const [, hk, tk, dv] = shapes.v as [number, number, number, number];
      const [atQ, atK, atV] = [reader(q, shapes.q), reader(k, shapes.k), reader(v, shapes.v)];
      return build([b, hq, tq], () => 0).flatMap((_, row) => {
        const [n, h, i] = [Math.floor(row / (hq * tq)), Math.floor(row / tq) % hq, row % tq];
        const head = Math.floor(h / (hq / hk));
        const scores = Array.from({ length: tk }, (_, j) => {
          const last = i + tk - tq;
          if (o.causal && (j > last || (o.window && j <= last - o.window))) return -INF;
          if (!o.causal && o.window && Math.abs(j - last) > o.window) return -INF;
          let dot = 0;
          for (let c = 0; c < d; c++) dot += atQ(n, h, i, c) * atK(n, head, j, c);
          dot *= o.scale ?? 1 / Math.sqrt(d);
          if (o.softcap) dot = Math.tanh(dot / o.softcap) * o.softcap;
          return dot + (o.mask?.(n, h, i, j) ?? 0);
        });
        const p = softmaxOf(o.sink === undefined ? scores : [...scores, o.sink + h]).slice(0, tk);
        return Array.from({ length: dv }, (_, c) =>
          p.reduce((t, w, j) => t + (w === 0 ? 0 : w * atV(n, head, j, c)), 0),
        );
      });
    }

    function check(s: Setup, o: Options, dtypes: readonly DType[] = ["f32"], what = ""): void {
      const shapes = sizes(s);
      const shape = [shapes.q[0]!, shapes.q[1]!, s.tq, shapes.v[3]!];
      for (const dtype of dtypes) {
        const [q, k, v] = [sample(shapes.q, dtype, 1), sample(shapes.k, dtype, 5), sample(shapes.v, dtype, 9)];
        const options = { dtype, device };
        const { mask, sink, ...rest } = o;
        const maskShape = [shapes.q[0]!, shapes.q[1]!, s.tq, s.tk];
        const values = reference(q, k, v, s, o);
        const qkv = [tensor(q, shapes.q, options), tensor(k, shapes.k, options), tensor(v, shapes.v, options)] as const;
        const m = mask
          ? tensor(
              build(maskShape, (i) => mask(...(i as [number, number, number, number]))),
              maskShape,
              options,
            )
          : null;
        const heads = shapes.q[1]!;
        const sinks =
          sink === undefined
            ? null
            : tensor(
                Array.from({ length: heads }, (_, h) => sink + h),
                [heads],
                options,
              );
        const name = `${what} ${dtype} ${JSON.stringify(s)}`;
        const fused = nn.sdpa(...qkv, { ...rest, ...(sinks && { sinks }), ...(m && { mask: m }) });
        expectTensor(fused, { shape, dtype, values, within: close(dtype), what: name });
        const { scale = 1 / Math.sqrt(shapes.q[3]!), causal = false, softcap = 0, window = 0 } = rest;
        const want = composed.sdpa(...qkv, m, { scale, causal, softcap, window, sinks });
        expectTensor(want, { shape, dtype, values, within: close(dtype), what: `${name} op by op` });
      }
    }

    // One query, a few, and many: each takes another path. 70 keys span more than one block.
    const lengths: Setup[] = [
      { tq: 1, tk: 1 },
      { tq: 1, tk: 70 },
      { tq: 3, tk: 9 },
      { tq: 5, tk: 5 },
      { tq: 6, tk: 33 },
      { tq: 40, tk: 70 },
      { tq: 130, tk: 130, b: 1, hq: 2 },
    ];
    it.each(lengths)("attends to everything: %j", (s) => check(s, {}, floats));
    it.each(lengths)("causal, aligned to the end: %j", (s) => check(s, { causal: true }, wideFloats));
    it.each(lengths)("causal with a window of 4: %j", (s) => check(s, { causal: true, window: 4 }, wideFloats));
    it.each(lengths)("with a window of 4 to both sides: %j", (s) => check(s, { window: 4 }, wideFloats));
    it.each(lengths)("with sinks: %j", (s) => check(s, { causal: true, sink: -1 }, floats));
    it.each(lengths)("with a soft cap: %j", (s) => check(s, { softcap: 2, scale: 0.7 }, wideFloats));
    it.each(lengths)("with an additive mask: %j", (s) =>
      check(s, { mask: (b, h, i, j) => ((b + h + i + j) % 3 === 0 && j > 0 ? -INF : ((i + j) % 5) / 4) }, wideFloats),
    );
    it.each(lengths)("with everything at once: %j", (s) =>
      check(s, { causal: true, window: 5, softcap: 3, scale: 0.5, mask: (_b, _h, i, j) => (i * j) % 2 }, wideFloats),
    );

    it.each([
      [1, 1],
      [4, 4],
      [6, 2],
      [8, 1],
      [5, 5],
    ])("%i query heads on %i key heads", (hq, hk) => {
      for (const tq of [1, 7]) check({ b: 1, hq, hk, tq, tk: 11 }, { causal: true }, ["f32", "f16"]);
    });

    it.each([1, 3, 16, 31, 64, 96, 128, 256])("heads of size %i", (d) => {
      for (const tq of [1, 6]) check({ b: 1, tq, tk: 10, d, dv: d }, {}, ["f32", "bf16", "f64"]);
      check({ b: 1, tq: 3, tk: 4, d, dv: 5 }, {}, ["f32"]);
    });

    it("queries may be more than keys where it is not causal", () => check({ tq: 9, tk: 4 }, {}, wideFloats));

    it("takes q, k, v and the mask in any layout", () => {
      for (const tq of [2, 7]) {
        const s = { tq, tk: 9 };
        const shapes = sizes(s);
        const [q, k, v] = [sample(shapes.q, "f32", 1), sample(shapes.k, "f32", 5), sample(shapes.v, "f32", 9)];
        const m = sample([tq, 9], "f32", 4);
        const values = reference(q, k, v, s, { mask: (_b, _h, i, j) => m[i * 9 + j]! });
        const options = { dtype: "f32" as const, device };
        const [ks, vs, ms] = [
          layouts(k, shapes.k, options),
          layouts(v, shapes.v, options),
          layouts(m, [tq, 9], options),
        ];
        for (const [n, [what, t]] of layouts(q, shapes.q, options).entries()) {
          for (const shift of [0, 1, 2, 3]) {
            const [kk, vv, mm] = [ks[(n + shift) % 4]!, vs[(n + 2 * shift) % 4]!, ms[(n + 3 * shift) % 4]!];
            const y = nn.sdpa(t, kk[1], vv[1], { mask: mm[1] });
            const shape = [2, 4, tq, 6];
            expectTensor(y, { shape, values, within: 4e-6, what: `${what} ${kk[0]} ${vv[0]} ${mm[0]}` });
          }
        }
      }
    });

    it("the mask broadcasts over batch and heads", () => {
      const s = { tq: 5, tk: 6 };
      const shapes = sizes(s);
      const [q, k, v] = [sample(shapes.q, "f32", 1), sample(shapes.k, "f32", 5), sample(shapes.v, "f32", 9)];
      const options = { dtype: "f32" as const, device };
      const qkv = [tensor(q, shapes.q, options), tensor(k, shapes.k, options), tensor(v, shapes.v, options)] as const;
      const keys = sample([6], "f32", 2);
      const wantKeys = reference(q, k, v, s, { mask: (_b, _h, _i, j) => keys[j]! });
      expectTensor(nn.sdpa(...qkv, { mask: tensor(keys, [6], options) }), {
        shape: [2, 4, 5, 6],
        values: wantKeys,
        within: 4e-6,
      });
      const batch = sample([2, 1, 1, 6], "f32", 2);
      const wantBatch = reference(q, k, v, s, { mask: (b, _h, _i, j) => batch[b * 6 + j]! });
      expectTensor(nn.sdpa(...qkv, { mask: tensor(batch, [2, 1, 1, 6], options) }), {
        shape: [2, 4, 5, 6],
        values: wantBatch,
        within: 4e-6,
      });
    });

    it("a row that may see nothing is NaN, its neighbours are not", () => {
      for (const tq of [2, 8]) {
        check(
          { tq, tk: 8 },
          { mask: (_b, _h, i) => (i === 1 ? -INF : 0) },
          ["f32", "f64", "f16"],
          "one row masked away",
        );
      }
    });

    it("scores far apart do not overflow", () => {
      for (const tq of [1, 6]) {
        const q = Tensor.full([1, 1, tq, 4], 100, { device });
        const k = tensor([100, 100, 100, 100, -100, -100, -100, -100], [1, 1, 2, 4], { dtype: "f32", device });
        const v = tensor([1, 2], [1, 1, 2, 1], { dtype: "f32", device });
        expectTensor(nn.sdpa(q, k, v), { shape: [1, 1, tq, 1], values: new Array(tq).fill(1) });
      }
    });

    it("accepts zero sizes; without keys the result is 0", () => {
      const z = (...shape: number[]) => Tensor.zeros(shape, { device });
      expect(nn.sdpa(z(0, 2, 3, 4), z(0, 2, 3, 4), z(0, 2, 3, 4)).shape).toEqual([0, 2, 3, 4]);
      expect(nn.sdpa(z(1, 0, 3, 4), z(1, 0, 3, 4), z(1, 0, 3, 4)).shape).toEqual([1, 0, 3, 4]);
      expect(nn.sdpa(z(1, 2, 0, 4), z(1, 2, 3, 4), z(1, 2, 3, 4)).shape).toEqual([1, 2, 0, 4]);
      expect(nn.sdpa(z(1, 2, 3, 4), z(1, 2, 3, 4), z(1, 2, 3, 0)).shape).toEqual([1, 2, 3, 0]);
      expectTensor(nn.sdpa(z(1, 1, 2, 4), z(1, 1, 0, 4), z(1, 1, 0, 3)), {
        shape: [1, 1, 2, 3],
        values: [0, 0, 0, 0, 0, 0],
      });
      for (const tq of [1, 6]) {
        // Without a head size all scores are equal, so the result is the mean of the values.
        const v = tensor([1, 2, 3, 6], [1, 1, 4, 1], { dtype: "f32", device });
        expectTensor(nn.sdpa(z(1, 1, tq, 0), z(1, 1, 4, 0), v), {
          shape: [1, 1, tq, 1],
          values: new Array(tq).fill(3),
          within: 1e-6,
        });
      }
    });
  });

  describe("layers", () => {
    const options = { dtype: "f32" as const, device };
    it("Linear multiplies by the transposed weight over any leading dims", () => {
      const [w, b] = [sample([3, 4], "f32", 1), sample([3], "f32", 2)];
      const plain = new nn.Linear(tensor(w, [3, 4], options));
      const biased = new nn.Linear(tensor(w, [3, 4], options), tensor(b, [3], options));
      for (const lead of [[], [1], [5], [2, 3], [2, 1, 3, 2]]) {
        const shape = [...lead, 4];
        const x = sample(shape, "f32", 3);
        const at = reader(x, shape);
        const out = [...lead, 3];
        const values = build(out, (index) => {
          let total = 0;
          for (let i = 0; i < 4; i++) total += at(...index.slice(0, -1), i) * w[index.at(-1)! * 4 + i]!;
          return total;
        });
        for (const [what, t] of layouts(x, shape, options)) {
          expectTensor(plain.forward(t), { shape: out, values, what });
          expectTensor(biased.forward(t), { shape: out, values: values.map((v, i) => v + b[i % 3]!), what });
        }
      }
      expect(plain.forward(Tensor.zeros([0, 4], { device })).shape).toEqual([0, 3]);
    });

    it("Linear without inputs gives its bias", () => {
      const layer = new nn.Linear(Tensor.zeros([2, 0], { device }), tensor([1, 2], [2], options));
      expectTensor(layer.forward(Tensor.zeros([3, 0], { device })), { shape: [3, 2], values: [1, 2, 1, 2, 1, 2] });
    });

    it("Embedding looks rows up", () => {
      const layer = new nn.Embedding(tensor([1, 2, 3, 4], [2, 2], options));
      const ids = Tensor.from([[1], [0]], { dtype: "u32", device });
      expect(layer.forward(ids).toArraySync()).toEqual([[[3, 4]], [[1, 2]]]);
      expect(nn.embedding(layer.table, ids).toArraySync()).toEqual([[[3, 4]], [[1, 2]]]);
    });

    it("convolutions add their bias per channel", () => {
      const bias = tensor([10, 20], [2], options);
      const ones = (...shape: number[]) => Tensor.ones(shape, { device });
      const one = new nn.Conv1d(ones(2, 1, 2), bias, { padding: 1 });
      expect(one.forward(ones(1, 1, 2)).toArraySync()).toEqual([
        [
          [11, 12, 11],
          [21, 22, 21],
        ],
      ]);
      expect(new nn.Conv1d(ones(1, 1, 2)).forward(ones(1, 1, 2)).toArraySync()).toEqual([[[2]]]);
      const two = new nn.Conv2d(ones(2, 3, 1, 1), bias);
      expectTensor(two.forward(ones(1, 3, 1, 2)), { shape: [1, 2, 1, 2], values: [13, 13, 23, 23] });
      expectTensor(new nn.Conv2d(ones(1, 1, 1, 1), null, { stride: 2 }).forward(ones(1, 1, 3, 3)), {
        shape: [1, 1, 2, 2],
        values: [1, 1, 1, 1],
      });
      const back = new nn.ConvTranspose1d(ones(1, 2, 2), bias, { stride: 2 });
      expectTensor(back.forward(ones(1, 1, 2)), { shape: [1, 2, 4], values: [11, 11, 11, 11, 21, 21, 21, 21] });
      expect(new nn.ConvTranspose1d(ones(1, 2, 2)).forward(ones(1, 1, 2)).shape).toEqual([1, 2, 3]);
      const plane = new nn.ConvTranspose2d(ones(1, 2, 1, 1), bias);
      expectTensor(plane.forward(ones(1, 1, 1, 1)), { shape: [1, 2, 1, 1], values: [11, 21] });
      expect(new nn.ConvTranspose2d(ones(1, 2, 2, 2), null, { stride: 2 }).forward(ones(1, 1, 2, 2)).shape).toEqual([
        1, 2, 4, 4,
      ]);
    });

    it("norm layers hold their weights", () => {
      const x = tensor([1, 3, 2, 6], [2, 2], options);
      const w = tensor([2, 3], [2], options);
      const b = tensor([1, 1], [2], options);
      expectTensor(new nn.LayerNorm(w, b, 0).forward(x), { shape: [2, 2], values: [-1, 4, -1, 4], within: 1e-6 });
      expectTensor(new nn.LayerNorm(null).forward(x), { shape: [2, 2], values: [-1, 1, -1, 1], within: 1e-4 });
      const rms = [1 / Math.sqrt(5), 3 / Math.sqrt(5), 2 / Math.sqrt(20), 6 / Math.sqrt(20)];
      expectTensor(new nn.RmsNorm(null, 0).forward(x), { shape: [2, 2], values: rms, within: 1e-6 });
      expectTensor(new nn.RmsNorm(w).forward(x), {
        shape: [2, 2],
        values: rms.map((v, i) => v * (2 + (i % 2))),
        within: 1e-4,
      });
      expectTensor(new nn.GroupNorm(1).forward(x), { shape: [2, 2], values: [-1, 1, -1, 1], within: 1e-4 });
      expectTensor(new nn.GroupNorm(1, w, b, 0).forward(x), { shape: [2, 2], values: [-1, 4, -1, 4], within: 1e-6 });
      const batch = new nn.BatchNorm(tensor([1, 3], [2], options), tensor([4, 9], [2], options), w, b, 0);
      expectTensor(batch.forward(x), { shape: [2, 2], values: [1, 1, 2, 4], within: 1e-6 });
      const bare = new nn.BatchNorm(tensor([1, 3], [2], options), tensor([4, 9], [2], options));
      expectTensor(bare.forward(x), { shape: [2, 2], values: [0, 0, 0.5, 1], within: 1e-5 });
    });

    it("every dtype can be embedded", () => {
      for (const dtype of dtypeNames) {
        const values = sample([4, 3], dtype);
        const got = new nn.Embedding(tensor(values, [4, 3], { dtype, device })).forward(
          Tensor.from([3, 1], { dtype: "u8", device }),
        );
        expectTensor(got, { shape: [2, 3], dtype, values: [...values.slice(9), ...values.slice(3, 6)] });
      }
    });
  });
});
