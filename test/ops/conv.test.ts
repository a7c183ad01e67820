import { describe, expect, it } from "vitest";
import { type DType, dtypeNames, isInt, Tensor } from "../../src/index.ts";
import { describeInTurns } from "../helpers/devices.ts";
import {
  build,
  expectTensor,
  floats,
  layouts,
  nearest,
  reader,
  sample,
  size,
  tensor,
  wideFloats,
} from "../helpers/reference.ts";

type Two = readonly [number, number];
interface Window {
  readonly stride?: Two;
  readonly padding?: Two;
  readonly dilation?: Two;
  readonly groups?: number;
}
interface Result {
  readonly shape: number[];
  readonly values: number[];
}

/** The definition of a convolution, in f64. */
function conv(
  x: readonly number[],
  xs: readonly number[],
  w: readonly number[],
  ws: readonly number[],
  o: Window,
): Result {
  const { stride = [1, 1], padding = [0, 0], dilation = [1, 1], groups = 1 } = o;
  const [b, , h, width] = xs as [number, number, number, number];
  const [out, inner, kh, kw] = ws as [number, number, number, number];
  const [atX, atW] = [reader(x, xs), reader(w, ws)];
  const length = (n: number, k: number, i: 0 | 1) =>
    Math.floor((n + 2 * padding[i] - dilation[i] * (k - 1) - 1) / stride[i]) + 1;
  const shape = [b, out, length(h, kh, 0), length(width, kw, 1)];
  const values = build(shape, ([n, f, i, j]) => {
    let total = 0;
    const first = Math.floor(f! / (out / groups)) * inner;
    for (let c = 0; c < inner; c++)
      for (let p = 0; p < kh; p++)
        for (let q = 0; q < kw; q++) {
          const [r, s] = [i! * stride[0] + p * dilation[0] - padding[0], j! * stride[1] + q * dilation[1] - padding[1]];
          if (r >= 0 && r < h && s >= 0 && s < width) total += atX(n!, first + c, r, s) * atW(f!, c, p, q);
        }
    return total;
  });
  return { shape, values };
}

/** The definition of a transposed convolution: every input element spreads the kernel. */
function convTranspose(
  x: readonly number[],
  xs: readonly number[],
  w: readonly number[],
  ws: readonly number[],
  o: Window & { readonly outputPadding?: Two },
): Result {
  const { stride = [1, 1], padding = [0, 0], dilation = [1, 1], groups = 1, outputPadding = [0, 0] } = o;
  const [b, c, h, width] = xs as [number, number, number, number];
  const [, perGroup, kh, kw] = ws as [number, number, number, number];
  const [atX, atW] = [reader(x, xs), reader(w, ws)];
  const length = (n: number, k: number, i: 0 | 1) =>
    (n - 1) * stride[i] - 2 * padding[i] + dilation[i] * (k - 1) + outputPadding[i] + 1;
  const shape = [b, perGroup * groups, length(h, kh, 0), length(width, kw, 1)];
  const values = new Array<number>(size(shape)).fill(0);
  for (let n = 0; n < b; n++)
    for (let ch = 0; ch < c; ch++)
      for (let i = 0; i < h; i++)
        for (let j = 0; j < width; j++)
          for (let f = 0; f < perGroup; f++)
            for (let p = 0; p < kh; p++)
              for (let q = 0; q < kw; q++) {
                const [r, s] = [
                  i * stride[0] + p * dilation[0] - padding[0],
                  j * stride[1] + q * dilation[1] - padding[1],
                ];
                if (r < 0 || s < 0 || r >= shape[2]! || s >= shape[3]!) continue;
                const to = Math.floor(ch / (c / groups)) * perGroup + f;
                values[((n * shape[1]! + to) * shape[2]! + r) * shape[3]! + s]! += atX(n, ch, i, j) * atW(ch, f, p, q);
              }
  return { shape, values };
}

describeInTurns("Convolution", (device) => {
  const rounded = (r: Result, dtype: DType) => ({
    shape: r.shape,
    dtype,
    values: r.values.map((v) => nearest(v, dtype)),
  });

  describe("conv2d", () => {
    const cases: [string, number[], number[], Window][] = [
      ["3×3", [2, 3, 7, 8], [4, 3, 3, 3], {}],
      ["1×1", [1, 5, 4, 3], [2, 5, 1, 1], {}],
      ["1×1 with stride", [2, 3, 5, 7], [4, 3, 1, 1], { stride: [2, 2] }],
      ["not square", [1, 2, 5, 9], [3, 2, 2, 4], { stride: [1, 2], padding: [1, 3] }],
      ["padded", [1, 2, 4, 4], [2, 2, 3, 3], { padding: [1, 1] }],
      ["stride 2", [1, 2, 7, 7], [2, 2, 3, 3], { stride: [2, 2], padding: [1, 1] }],
      ["stride 3 that leaves a rest", [1, 1, 8, 11], [1, 1, 2, 3], { stride: [3, 3] }],
      ["dilated", [1, 2, 9, 9], [2, 2, 3, 3], { dilation: [2, 3], padding: [2, 1] }],
      ["dilated with stride", [1, 2, 11, 10], [2, 2, 3, 2], { dilation: [2, 2], stride: [2, 3], padding: [1, 2] }],
      ["groups", [2, 4, 5, 5], [6, 2, 3, 3], { groups: 2, padding: [1, 1] }],
      ["depthwise", [1, 6, 6, 6], [6, 1, 3, 3], { groups: 6, padding: [1, 1] }],
      ["depthwise with a multiplier", [1, 3, 5, 6], [6, 1, 3, 3], { groups: 3, stride: [2, 1] }],
      ["depthwise 5×5", [2, 3, 11, 7], [3, 1, 5, 5], { groups: 3, padding: [2, 1] }],
      ["depthwise 3×3 with stride", [1, 3, 21, 6], [6, 1, 3, 3], { groups: 3, stride: [2, 2], padding: [1, 0] }],
      ["depthwise 7×7 with stride", [1, 2, 17, 12], [2, 1, 7, 7], { groups: 2, stride: [2, 2], padding: [3, 4] }],
      ["depthwise 3×3 as wide", [2, 2, 9, 16], [4, 1, 3, 3], { groups: 2, padding: [1, 1] }],
      ["depthwise 7×7 as wide", [1, 3, 6, 24], [3, 1, 7, 7], { groups: 3, padding: [2, 3] }],
      ["depthwise and dilated", [1, 2, 9, 8], [2, 1, 3, 3], { groups: 2, dilation: [2, 2], padding: [1, 1] }],
      ["c = h = w", [1, 4, 4, 4], [4, 4, 4, 4], { padding: [2, 2] }],
      ["a kernel as large as the input", [2, 3, 4, 5], [2, 3, 4, 5], {}],
      ["padding larger than the kernel", [1, 1, 2, 2], [1, 1, 2, 2], { padding: [3, 4] }],
      ["one pixel", [1, 1, 1, 1], [1, 1, 1, 1], {}],
      ["many channels", [1, 33, 5, 5], [17, 33, 3, 3], { padding: [1, 1] }],
      ["a wide row", [1, 2, 3, 70], [3, 2, 3, 5], { padding: [1, 2] }],
    ];
    it.each(cases)("%s in every dtype", (_, xs, ws, options) => {
      for (const dtype of dtypeNames) {
        const [x, w] = [sample(xs, dtype, 2), sample(ws, dtype, 7)];
        const y = tensor(x, xs, { dtype, device }).conv2d(tensor(w, ws, { dtype, device }), options);
        expectTensor(y, { ...rounded(conv(x, xs, w, ws, options), dtype), what: dtype });
      }
    });

    it("takes input and kernel in any layout", () => {
      for (const [, xs, ws, options] of cases.slice(0, 13)) {
        const [x, w] = [sample(xs, "f32", 1), sample(ws, "f32", 3)];
        const want = conv(x, xs, w, ws, options);
        const kernels = layouts(w, ws, { dtype: "f32", device });
        for (const [what, t] of layouts(x, xs, { dtype: "f32", device })) {
          for (const [k, kernel] of kernels) {
            expectTensor(t.conv2d(kernel, options), { ...want, what: `${what} with ${k} kernel` });
          }
        }
      }
    });

    it("takes one number for both directions", () => {
      const [xs, ws] = [
        [1, 2, 6, 6],
        [2, 2, 3, 3],
      ];
      const [x, w] = [sample(xs!, "f32"), sample(ws!, "f32", 3)];
      const y = tensor(x, xs!, { dtype: "f32", device }).conv2d(tensor(w, ws!, { dtype: "f32", device }), {
        stride: 2,
        padding: 2,
        dilation: 2,
      });
      expectTensor(y, conv(x, xs!, w, ws!, { stride: [2, 2], padding: [2, 2], dilation: [2, 2] }));
    });

    it("accumulates halves in f32", () => {
      for (const dtype of ["f16", "bf16"] as const) {
        const y = Tensor.ones([1, 512, 3, 3], { dtype, device }).conv2d(
          Tensor.ones([1, 512, 3, 3], { dtype, device }),
          {},
        );
        expectTensor(y, { shape: [1, 1, 1, 1], dtype, values: [4608] });
      }
    });

    it("accepts zero sizes: no batch, no outputs, no channels", () => {
      const z = (...shape: number[]) => Tensor.zeros(shape, { device });
      expect(z(0, 2, 4, 4).conv2d(z(3, 2, 3, 3)).shape).toEqual([0, 3, 2, 2]);
      expect(z(1, 2, 4, 4).conv2d(z(0, 2, 3, 3)).shape).toEqual([1, 0, 2, 2]);
      expectTensor(z(1, 0, 4, 4).conv2d(z(1, 0, 3, 3)), { shape: [1, 1, 2, 2], values: [0, 0, 0, 0] });
    });

    it("carries NaN to the outputs that see it, and no further", () => {
      const x = Tensor.ones([1, 1, 1, 5], { device }).sliceScatter(
        Tensor.full([1, 1, 1, 1], Number.NaN, { device }),
        3,
        0,
      );
      expectTensor(x.conv2d(Tensor.ones([1, 1, 1, 2], { device })), {
        shape: [1, 1, 1, 4],
        values: [Number.NaN, 2, 2, 2],
      });
    });

    it("shares large images among threads", () => {
      const [xs, ws] = [
        [2, 8, 40, 41],
        [9, 8, 3, 3],
      ] as const;
      const [x, w] = [sample(xs, "f32"), sample(ws, "f32", 5)];
      const options = { padding: [1, 1] as const };
      const y = tensor(x, xs, { dtype: "f32", device }).conv2d(tensor(w, ws, { dtype: "f32", device }), options);
      expectTensor(y, conv(x, xs, w, ws, options));
    });
  });

  describe("conv1d", () => {
    const line = (n: readonly number[]) => [n[0]!, n[1]!, 1, n[2]!];
    const cases: [number[], number[], { stride?: number; padding?: number; dilation?: number; groups?: number }][] = [
      [[2, 3, 9], [4, 3, 3], {}],
      [[1, 4, 5], [2, 4, 3], { padding: 1 }],
      [[1, 2, 13], [3, 2, 3], { stride: 2, padding: 2, dilation: 3 }],
      [[2, 4, 8], [4, 1, 3], { groups: 4, padding: 1 }],
      [[3, 6, 10], [4, 3, 5], { groups: 2, stride: 3 }],
      [[1, 1, 1], [1, 1, 1], {}],
      [[1, 80, 50], [16, 80, 3], { padding: 1, stride: 2 }],
    ];
    it.each(cases)("input %j, kernel %j, %j", (xs, ws, options) => {
      const wide: Window = {
        stride: [1, options.stride ?? 1],
        padding: [0, options.padding ?? 0],
        dilation: [1, options.dilation ?? 1],
        groups: options.groups ?? 1,
      };
      for (const dtype of floats) {
        const [x, w] = [sample(xs, dtype, 2), sample(ws, dtype, 7)];
        const want = rounded(conv(x, line(xs), w, line(ws), wide), dtype);
        const shape = want.shape.toSpliced(2, 1);
        for (const [what, t] of layouts(x, xs, { dtype, device })) {
          for (const [, k] of layouts(w, ws, { dtype, device })) {
            expectTensor(t.conv1d(k, options), { ...want, shape, what: `${dtype} ${what}` });
          }
        }
      }
    });

    it("follows an example by hand", () => {
      const x = tensor([1, 2, 3, 4], [1, 1, 4], { dtype: "f32", device });
      const w = tensor([1, 0, -1], [1, 1, 3], { dtype: "f32", device });
      expect(x.conv1d(w).toArraySync()).toEqual([[[-2, -2]]]);
      expect(x.conv1d(w, { padding: 1 }).toArraySync()).toEqual([[[-2, -2, -2, 3]]]);
      expect(Tensor.zeros([0, 1, 4], { device }).conv1d(w).shape).toEqual([0, 1, 2]);
    });
  });

  describe("transposed convolution", () => {
    const cases: [string, number[], number[], Window & { outputPadding?: Two }][] = [
      ["3×3", [2, 3, 4, 5], [3, 4, 3, 3], {}],
      ["stride 2", [1, 2, 3, 4], [2, 3, 3, 3], { stride: [2, 2] }],
      [
        "stride and output padding",
        [2, 2, 3, 3],
        [2, 2, 3, 3],
        { stride: [2, 3], padding: [1, 1], outputPadding: [1, 2] },
      ],
      ["dilated", [1, 2, 4, 3], [2, 2, 3, 2], { dilation: [2, 3], padding: [1, 0] }],
      ["groups", [2, 4, 3, 3], [4, 3, 2, 2], { groups: 2, stride: [2, 2] }],
      ["depthwise", [1, 3, 4, 4], [3, 1, 3, 3], { groups: 3, padding: [1, 1] }],
      ["1×1", [1, 3, 2, 5], [3, 2, 1, 1], {}],
      ["not square", [1, 1, 2, 5], [1, 2, 4, 1], { stride: [3, 1] }],
      ["stride past the kernel", [1, 1, 3, 3], [1, 1, 2, 2], { stride: [4, 4], outputPadding: [3, 0] }],
    ];
    it.each(cases)("%s", (_, xs, ws, options) => {
      for (const dtype of wideFloats) {
        const [x, w] = [sample(xs, dtype, 2), sample(ws, dtype, 7)];
        const want = rounded(convTranspose(x, xs, w, ws, options), dtype);
        const kernels = layouts(w, ws, { dtype, device });
        for (const [what, t] of layouts(x, xs, { dtype, device })) {
          for (const [k, kernel] of kernels) {
            expectTensor(t.convTranspose2d(kernel, options), { ...want, what: `${dtype} ${what}, ${k} kernel` });
          }
        }
      }
    });

    it("in one dimension, with more than one batch", () => {
      const [xs, ws] = [
        [3, 4, 5],
        [4, 2, 3],
      ] as const;
      const [x, w] = [sample(xs, "f32"), sample(ws, "f32", 5)];
      const options = { stride: 2, padding: 1, outputPadding: 1, dilation: 2, groups: 2 };
      const want = convTranspose(x, [3, 4, 1, 5], w, [4, 2, 1, 3], {
        stride: [1, 2],
        padding: [0, 1],
        dilation: [1, 2],
        outputPadding: [0, 1],
        groups: 2,
      });
      const y = tensor(x, xs, { dtype: "f32", device }).convTranspose1d(
        tensor(w, ws, { dtype: "f32", device }),
        options,
      );
      expectTensor(y, { shape: want.shape.toSpliced(2, 1), values: want.values });
      const plain = tensor(x, xs, { dtype: "f32", device }).convTranspose1d(tensor(w, ws, { dtype: "f32", device }));
      const wantPlain = convTranspose(x, [3, 4, 1, 5], w, [4, 2, 1, 3], {});
      expectTensor(plain, { shape: wantPlain.shape.toSpliced(2, 1), values: wantPlain.values });
    });

    it("undoes the shape of a convolution", () => {
      const x = Tensor.zeros([1, 3, 8, 9], { device });
      const y = x.conv2d(Tensor.zeros([5, 3, 3, 3], { device }), { stride: [1, 2], padding: 1 });
      expect(y.convTranspose2d(Tensor.zeros([5, 3, 3, 3], { device }), { stride: [1, 2], padding: 1 }).shape).toEqual(
        x.shape,
      );
    });

    it("accepts an empty batch and no outputs", () => {
      const z = (...shape: number[]) => Tensor.zeros(shape, { device });
      expect(z(0, 2, 3, 3).convTranspose2d(z(2, 4, 2, 2)).shape).toEqual([0, 4, 4, 4]);
      expect(z(1, 2, 3, 3).convTranspose2d(z(2, 0, 2, 2)).shape).toEqual([1, 0, 4, 4]);
      expectTensor(z(1, 0, 1, 1).convTranspose2d(z(0, 1, 1, 2)), { shape: [1, 1, 1, 2], values: [0, 0] });
    });
  });

  describe("pooling", () => {
    const cases: [number[], Two, Two][] = [
      [
        [2, 3, 6, 8],
        [2, 2],
        [2, 2],
      ],
      [
        [1, 2, 7, 9],
        [3, 2],
        [2, 3],
      ],
      [
        [1, 1, 5, 5],
        [3, 3],
        [1, 1],
      ],
      [
        [2, 2, 4, 5],
        [4, 5],
        [1, 1],
      ],
      [
        [1, 3, 5, 70],
        [1, 4],
        [1, 2],
      ],
      [
        [1, 1, 3, 3],
        [1, 1],
        [2, 2],
      ],
    ];
    const pooled = (
      x: readonly number[],
      xs: readonly number[],
      k: Two,
      s: Two,
      f: (v: number[]) => number,
    ): Result => {
      const at = reader(x, xs);
      const shape = [xs[0]!, xs[1]!, Math.floor((xs[2]! - k[0]) / s[0]) + 1, Math.floor((xs[3]! - k[1]) / s[1]) + 1];
      const values = build(shape, ([n, c, i, j]) =>
        f(build(k, ([p, q]) => at(n!, c!, i! * s[0] + p!, j! * s[1] + q!))),
      );
      return { shape, values };
    };
    it.each(cases)("max and mean of %j by windows %j every %j", (xs, k, s) => {
      for (const dtype of dtypeNames) {
        const x = sample(xs, dtype, 3);
        const max = pooled(x, xs, k, s, (v) => Math.max(...v));
        const mean = pooled(x, xs, k, s, (v) => v.reduce((a, b) => a + b, 0) / v.length);
        for (const [what, t] of layouts(x, xs, { dtype, device })) {
          expectTensor(t.maxPool2d(k, s), { ...max, dtype, what: `max ${dtype} ${what}` });
          if (isInt(dtype)) continue;
          const within = { f32: 2e-7, f64: 1e-15, f16: 2 ** -11, bf16: 2 ** -8, f8e4m3: 2 ** -4 }[dtype as "f32"];
          expectTensor(t.avgPool2d(k, s), { ...mean, dtype, within, what: `mean ${dtype} ${what}` });
        }
      }
    });

    it("the stride is the kernel unless given, and both may be one number", () => {
      const x = Tensor.arange(16, undefined, { device }).reshape([1, 1, 4, 4]);
      expect(x.maxPool2d(2).toArraySync()).toEqual([
        [
          [
            [5, 7],
            [13, 15],
          ],
        ],
      ]);
      expect(x.avgPool2d(2).toArraySync()).toEqual([
        [
          [
            [2.5, 4.5],
            [10.5, 12.5],
          ],
        ],
      ]);
      expect(x.maxPool2d(2, 1).shape).toEqual([1, 1, 3, 3]);
      expect(x.avgPool2d([4, 2]).shape).toEqual([1, 1, 1, 2]);
    });

    it("the mean of integers whose sum divides is exact", () => {
      for (const dtype of ["u8", "u32"] as const) {
        const x = Tensor.full([1, 1, 2, 2], 200, { dtype, device });
        expectTensor(x.avgPool2d(2), { shape: [1, 1, 1, 1], dtype, values: [200] });
      }
    });

    it("NaN wins, and −∞ is a value", () => {
      const x = tensor([Number.NaN, 1, 2, 3, ...new Array<number>(4).fill(Number.NEGATIVE_INFINITY)], [1, 1, 2, 4], {
        dtype: "f32",
        device,
      });
      expectTensor(x.maxPool2d([1, 4]), { shape: [1, 1, 2, 1], values: [Number.NaN, Number.NEGATIVE_INFINITY] });
    });

    it("accepts an empty batch", () => {
      expect(Tensor.zeros([0, 2, 4, 4], { device }).maxPool2d(2).shape).toEqual([0, 2, 2, 2]);
      expect(Tensor.zeros([1, 0, 4, 4], { device }).avgPool2d(2).shape).toEqual([1, 0, 2, 2]);
    });
  });

  describe("upsampling", () => {
    it.each(dtypeNames)("nearest takes floor(i · in / out) in %s", (dtype) => {
      const cases: [xs: [number, number, number, number], out: Two][] = [
        [
          [2, 3, 4, 5],
          [8, 10],
        ],
        [
          [1, 2, 3, 4],
          [7, 5],
        ],
        [
          [1, 1, 5, 6],
          [2, 3],
        ],
        [
          [1, 1, 1, 1],
          [3, 3],
        ],
        [
          [1, 2, 3, 40],
          [3, 80],
        ],
      ];
      for (const [xs, out] of cases) {
        const x = sample(xs, dtype, 2);
        const at = reader(x, xs);
        const shape = [xs[0], xs[1], ...out];
        const values = build(shape, ([n, c, i, j]) =>
          at(n!, c!, Math.floor((i! * xs[2]) / out[0]), Math.floor((j! * xs[3]) / out[1])),
        );
        for (const [what, t] of layouts(x, xs, { dtype, device })) {
          expectTensor(t.upsampleNearest2d(...out), { shape, dtype, values, what });
          expectTensor(t.interpolate2d(...out), { shape, dtype, values, what });
        }
      }
    });

    it("nearest in one dimension", () => {
      const x = tensor([1, 2, 3, 4, 5, 6], [1, 2, 3], { dtype: "f32", device });
      expect(x.upsampleNearest1d(6).toArraySync()).toEqual([
        [
          [1, 1, 2, 2, 3, 3],
          [4, 4, 5, 5, 6, 6],
        ],
      ]);
      expect(x.interpolate1d(2).toArraySync()).toEqual([
        [
          [1, 2],
          [4, 5],
        ],
      ]);
    });

    /** PyTorch's rule: half-pixel centres clamped at 0, or corners on corners. */
    function bilinear(x: readonly number[], xs: readonly number[], out: Two, corners: boolean, step?: Two): Result {
      const at = reader(x, xs);
      const [h, w] = [xs[2]!, xs[3]!];
      const source = (i: number, from: number, to: number, given: number | undefined) => {
        if (corners) return to > 1 ? (i * (from - 1)) / (to - 1) : 0;
        return Math.max((i + 0.5) * (given ?? from / to) - 0.5, 0);
      };
      const shape = [xs[0]!, xs[1]!, ...out];
      const values = build(shape, ([n, c, i, j]) => {
        const [r, s] = [source(i!, h, out[0], step?.[0]), source(j!, w, out[1], step?.[1])];
        const [r0, s0] = [Math.min(Math.floor(r), h - 1), Math.min(Math.floor(s), w - 1)];
        const [r1, s1] = [Math.min(r0 + 1, h - 1), Math.min(s0 + 1, w - 1)];
        const [fr, fs] = [Math.min(r - r0, 1), Math.min(s - s0, 1)];
        const row = (k: number) => at(n!, c!, k, s0) * (1 - fs) + at(n!, c!, k, s1) * fs;
        return row(r0) * (1 - fr) + row(r1) * fr;
      });
      return { shape, values };
    }

    const sizes: [number[], Two][] = [
      [
        [1, 1, 2, 2],
        [4, 4],
      ],
      [
        [2, 3, 4, 5],
        [8, 10],
      ],
      [
        [1, 2, 4, 4],
        [8, 12],
      ],
      [
        [1, 1, 6, 8],
        [3, 4],
      ],
      [
        [1, 1, 5, 7],
        [9, 3],
      ],
      [
        [1, 2, 4, 4],
        [4, 4],
      ],
      [
        [1, 1, 1, 1],
        [3, 2],
      ],
      [
        [1, 1, 1, 6],
        [5, 1],
      ],
      [
        [1, 1, 3, 50],
        [6, 100],
      ],
    ];
    it.each(sizes)("bilinear from %j to %j", (xs, out) => {
      for (const dtype of floats) {
        const x = sample(xs, dtype, 4);
        // Source positions are computed in f32, as PyTorch does: their rounding times the steepest slope here, 4.
        const position = Math.max(...xs) * 2 ** -22;
        const within = { f32: position, f64: 1e-13, f16: 2 ** -11, bf16: 2 ** -8, f8e4m3: 2 ** -4 }[dtype as "f32"];
        for (const corners of [false, true]) {
          const want = bilinear(x, xs, out, corners);
          for (const [what, t] of layouts(x, xs, { dtype, device })) {
            expectTensor(t.upsampleBilinear2d(...out, corners), { ...want, dtype, within, what: `${dtype} ${what}` });
          }
        }
      }
    });

    it("bilinear follows PyTorch's example", () => {
      const x = tensor([1, 2, 3, 4], [1, 1, 2, 2], { dtype: "f32", device });
      expectTensor(x.upsampleBilinear2d(4, 4), {
        shape: [1, 1, 4, 4],
        values: [1, 1.25, 1.75, 2, 1.5, 1.75, 2.25, 2.5, 2.5, 2.75, 3.25, 3.5, 3, 3.25, 3.75, 4],
        within: 1e-6,
      });
      const third = [1, 4 / 3, 5 / 3, 2];
      expectTensor(x.upsampleBilinear2d(4, 4, true), {
        shape: [1, 1, 4, 4],
        values: [0, 2 / 3, 4 / 3, 2].flatMap((d) => third.map((v) => v + d)),
        within: 1e-6,
      });
    });

    it("bilinear by a factor steps by the factor itself, also where the size is rounded down", () => {
      const xs = [1, 2, 5, 5];
      const x = sample(xs, "f32", 1);
      const t = tensor(x, xs, { dtype: "f32", device });
      for (const [fh, fw] of [
        [2, 2],
        [1.5, 2.5],
        [0.5, 0.7],
        [1, 3],
      ] as const) {
        const out = [Math.floor(5 * fh), Math.floor(5 * fw)] as const;
        const want = bilinear(x, xs, out, false, [1 / fh, 1 / fw]);
        expectTensor(t.upsampleBilinear2dWithScale(fh, fw), { ...want, within: 2e-6, what: `${fh} ${fw}` });
        const cornered = bilinear(x, xs, out, true);
        expectTensor(t.upsampleBilinear2dWithScale(fh, fw, true), { ...cornered, within: 2e-6, what: `${fh} ${fw}` });
      }
    });

    it("accepts an empty batch", () => {
      expect(Tensor.zeros([0, 2, 3, 3], { device }).upsampleNearest2d(6, 6).shape).toEqual([0, 2, 6, 6]);
      expect(Tensor.zeros([1, 0, 3, 3], { device }).upsampleBilinear2d(6, 6).shape).toEqual([1, 0, 6, 6]);
    });
  });
});
