/** Where kernels must round alike, whatever their compilers would fuse. */
import { expect, it } from "vitest";
import { scope, Tensor } from "../../../src/index.ts";
import { rope, ropeI, ropeThd } from "../../../src/nn/index.ts";
import { describeDevices, gpuNames } from "../../helpers/devices.ts";

describeDevices(
  "A rotation",
  (device) => {
    // Twenty bits each: a product is exact in f64, and so is its difference from one rounded to f32.
    const numbers = (length: number, seed: number): number[] =>
      Array.from({ length }, (_, i) => (2 ** 19 + (((i + 1) * seed) % 2 ** 19)) / 2 ** 20);
    const [t, d] = [5, 8];
    const half = d / 2;
    const x = numbers(t * d, 76_543);
    const [cos, sin] = [numbers(t * half, 45_679), numbers(t * half, 98_765)];

    /** y = p·c − q·s and z = p·s + q·c: `first` rounds the first product, or leaves it exact, as a fused sum does. */
    const turned = (pairs: (i: number) => readonly [number, number], first: (x: number) => number): number[] => {
      const out = new Array<number>(t * d);
      for (let i = 0; i < t * half; i++) {
        const [p, q] = pairs(i);
        out[p] = Math.fround(first(x[p]! * cos[i]!) - Math.fround(x[q]! * sin[i]!));
        out[q] = Math.fround(first(x[p]! * sin[i]!) + Math.fround(x[q]! * cos[i]!));
      }
      return out;
    };
    const apart = (i: number) =>
      [Math.floor(i / half) * d + (i % half), Math.floor(i / half) * d + (i % half) + half] as const;
    const beside = (i: number) => [2 * i, 2 * i + 1] as const;

    it("rounds the product with the second side, and the sum, in every kernel", () => {
      scope(() => {
        const of = (data: number[], ...shape: number[]): Tensor => Tensor.from(data, { shape, dtype: "f32", device });
        const tables = [of(cos, t, half), of(sin, t, half)] as const;
        const results = (y: Tensor): number[] => Array.from(y.dataSync(), Number);
        const fused = turned(apart, (product) => product);
        expect(fused).not.toEqual(turned(apart, Math.fround));
        expect(results(rope(of(x, 1, 1, t, d), ...tables))).toEqual(fused);
        expect(results(ropeThd(of(x, 1, t, 1, d), ...tables))).toEqual(fused);
        expect(results(ropeI(of(x, 1, 1, t, d), ...tables))).toEqual(turned(beside, (product) => product));
      });
    });
  },
  gpuNames,
);
