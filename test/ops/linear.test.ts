import { describe, expect, it } from "vitest";
import { dtypeNames, Tensor } from "../../src/index.ts";
import { describeInTurns } from "../helpers/devices.ts";
import {
  build,
  expectTensor,
  floats,
  layouts,
  nearest,
  reader,
  sample,
  tensor,
  tolerance,
  wrap,
} from "../helpers/reference.ts";

/** (m, k) × (k, n) in f64. */
function product(a: readonly number[], b: readonly number[], m: number, k: number, n: number): number[] {
  return build([m, n], ([i, j]) => {
    let total = 0;
    for (let l = 0; l < k; l++) total += a[i! * k + l]! * b[l * n + j!]!;
    return total;
  });
}

describeInTurns("Linear algebra", (device) => {
  describe("matmul", () => {
    it.each(dtypeNames)("multiplies matrices of %s in every pair of layouts", (dtype) => {
      const [m, k, n] = [5, 7, 6];
      const [a, b] = [sample([m, k], dtype, 1), sample([k, n], dtype, 6)];
      const values = product(a, b, m, k, n).map((v) => nearest(v, dtype));
      const right = layouts(b, [k, n], { dtype, device });
      for (const [left, x] of layouts(a, [m, k], { dtype, device })) {
        for (const [r, y] of right) {
          expectTensor(x.matmul(y), { shape: [m, n], dtype, values, what: `${left} × ${r}` });
        }
      }
    });

    it("multiplies a small example by hand", () => {
      const a = tensor([1, 2, 3, 4], [2, 2], { dtype: "f32", device });
      const b = tensor([5, 6, 7, 8], [2, 2], { dtype: "f32", device });
      expect(a.matmul(b).toArraySync()).toEqual([
        [19, 22],
        [43, 50],
      ]);
      expect(a.t().matmul(b).toArraySync()).toEqual([
        [26, 30],
        [38, 44],
      ]);
      expect(a.matmul(b.t()).toArraySync()).toEqual([
        [17, 23],
        [39, 53],
      ]);
    });

    // Each size meets another path: vectors, narrow tiles, tiles with edges, several blocks of k.
    const sizes: [number, number, number][] = [
      [1, 1, 1],
      [1, 300, 1],
      [1, 64, 65],
      [65, 64, 1],
      [2, 3, 257],
      [3, 129, 5],
      [4, 4, 4],
      [7, 31, 9],
      [8, 16, 16],
      [33, 17, 31],
      [64, 100, 48],
      [70, 600, 37],
    ];
    it.each(sizes)("is right at the edges of its tiles: (%i × %i) · (%i)", (m, k, n) => {
      for (const dtype of floats) {
        const [a, b] = [sample([m, k], dtype, 2), sample([k, n], dtype, 3)];
        // Multiples of 1/16 below 2²⁰ are exact in f32, so only the last rounding is left.
        const values = product(a, b, m, k, n).map((v) => nearest(v, dtype));
        const options = { dtype, device };
        const x = tensor(a, [m, k], options);
        const y = tensor(b, [k, n], options);
        expectTensor(x.matmul(y), { shape: [m, n], dtype, values, what: dtype });
        const turned = (v: number[], r: number, c: number) =>
          tensor(
            build([c, r], ([i, j]) => v[j! * c + i!]!),
            [c, r],
            options,
          ).t();
        expectTensor(turned(a, m, k).matmul(turned(b, k, n)), { shape: [m, n], dtype, values, what: dtype });
        expectTensor(x.matmul(turned(b, k, n)), { shape: [m, n], dtype, values, what: dtype });
      }
    });

    it("broadcasts the leading dims", () => {
      const cases: [number[], number[], number[]][] = [
        [[2, 3, 4], [2, 4, 5], [2]],
        [[3, 4], [2, 4, 5], [2]],
        [[2, 3, 4], [4, 5], [2]],
        [
          [2, 1, 3, 4],
          [3, 4, 5],
          [2, 3],
        ],
        [[1, 3, 4], [2, 4, 5], [2]],
        [
          [2, 1, 1, 2, 1, 1, 3, 4],
          [1, 2, 1, 1, 2, 1, 4, 5],
          [2, 2, 1, 2, 2, 1],
        ],
      ];
      for (const [sa, sb, batch] of cases) {
        const [a, b] = [sample(sa, "f32", 1), sample(sb, "f32", 2)];
        const [x, y] = [reader(a, sa), reader(b, sb)];
        const lead = (shape: number[], index: number[]) =>
          shape.slice(0, -2).map((n, d) => (n === 1 ? 0 : index[batch.length - (shape.length - 2) + d]!));
        const shape = [...batch, 3, 5];
        const values = build(shape, (index) => {
          const [i, j] = index.slice(-2) as [number, number];
          let total = 0;
          for (let l = 0; l < 4; l++) total += x(...lead(sa, index), i, l) * y(...lead(sb, index), l, j);
          return total;
        });
        const z = tensor(a, sa, { dtype: "f32", device }).matmul(tensor(b, sb, { dtype: "f32", device }));
        expectTensor(z, { shape, values, what: `[${sa}] × [${sb}]` });
      }
    });

    it("reads batches through any strides", () => {
      const shape = [3, 2, 4, 5];
      const [a, b] = [sample(shape, "f32"), sample([3, 2, 5, 3], "f32", 4)];
      const [x, y] = [reader(a, shape), reader(b, [3, 2, 5, 3])];
      const values = build([3, 2, 4, 3], ([p, q, i, j]) => {
        let total = 0;
        for (let l = 0; l < 5; l++) total += x(p!, q!, i!, l) * y(p!, q!, l, j!);
        return total;
      });
      const right = layouts(b, [3, 2, 5, 3], { dtype: "f32", device });
      for (const [what, left] of layouts(a, shape, { dtype: "f32", device })) {
        for (const [, r] of right) expectTensor(left.matmul(r), { shape: [3, 2, 4, 3], values, what });
      }
    });

    it("heads swapped by a transpose multiply without a copy being asked for", () => {
      const [b, t, h, d] = [2, 3, 4, 5];
      const q = sample([b, t, h, d], "f32", 1);
      const at = reader(q, [b, t, h, d]);
      const x = tensor(q, [b, t, h, d], { dtype: "f32", device }).transpose(1, 2);
      const values = build([b, h, t, t], ([n, m, i, j]) => {
        let total = 0;
        for (let l = 0; l < d; l++) total += at(n!, i!, m!, l) * at(n!, j!, m!, l);
        return total;
      });
      expectTensor(x.matmul(x.t()), { shape: [b, h, t, t], values });
    });

    it("accepts sizes of zero: an empty result, or zeros where nothing is summed", () => {
      for (const dtype of dtypeNames) {
        const z = (...shape: number[]) => Tensor.zeros(shape, { dtype, device });
        expect(z(0, 3).matmul(z(3, 4)).shape).toEqual([0, 4]);
        expect(z(2, 3).matmul(z(3, 0)).shape).toEqual([2, 0]);
        expect(z(0, 2, 3).matmul(z(3, 4)).shape).toEqual([0, 2, 4]);
        expectTensor(z(2, 0).matmul(z(0, 3)), { shape: [2, 3], dtype, values: [0, 0, 0, 0, 0, 0] });
        expectTensor(z(1, 0).matmul(z(0, 1)), { shape: [1, 1], dtype, values: [0] });
        expectTensor(z(2, 1, 0).matmul(z(2, 0, 1)), { shape: [2, 1, 1], dtype, values: [0, 0] });
      }
    });

    it("accumulates halves in f32", () => {
      for (const dtype of ["f16", "bf16"] as const) {
        for (const [m, n] of [
          [1, 1],
          [1, 9],
          [9, 9],
        ] as const) {
          const y = Tensor.ones([m, 4096], { dtype, device }).matmul(Tensor.ones([4096, n], { dtype, device }));
          expectTensor(y, { shape: [m, n], dtype, values: new Array(m * n).fill(4096) });
        }
      }
    });

    it("computes f64 in f64", () => {
      const a = tensor([1, 1e-12, 1, 2], [2, 2], { dtype: "f64", device });
      const b = tensor([1, 0, 1, 1], [2, 2], { dtype: "f64", device });
      expectTensor(a.matmul(b), { shape: [2, 2], values: [1 + 1e-12, 1e-12, 3, 2] });
    });

    it("wraps integers and keeps all 64 bits", () => {
      const big = 2n ** 53n + 1n;
      const a = Tensor.from([[big, 1n]], { device });
      const b = Tensor.from([[3n], [4n]], { device });
      expect(a.matmul(b).toScalarSync()).toBe(big * 3n + 4n);
      for (const dtype of ["u8", "u32", "i16", "i32"] as const) {
        const x = Tensor.full([2, 9], 120, { dtype, device });
        const y = Tensor.full([9, 2], 110, { dtype, device });
        const want = wrap(9n * 120n * 110n, dtype);
        expectTensor(x.matmul(y), { shape: [2, 2], dtype, values: [want, want, want, want] });
      }
    });

    it("carries NaN and infinities, also past zeros", () => {
      const a = tensor([0, 1, 1, 0], [2, 2], { dtype: "f32", device });
      const b = tensor([Number.NaN, 1, 1, Number.POSITIVE_INFINITY], [2, 2], { dtype: "f32", device });
      expectTensor(a.matmul(b), {
        shape: [2, 2],
        values: [Number.NaN, Number.POSITIVE_INFINITY, Number.NaN, Number.NaN],
      });
    });

    it("shares large products among threads", () => {
      const n = 192;
      const [a, b] = [sample([n, n], "f32"), sample([n, n], "f32", 9)];
      const y = tensor(a, [n, n], { dtype: "f32", device }).matmul(tensor(b, [n, n], { dtype: "f32", device }));
      expectTensor(y, { shape: [n, n], values: product(a, b, n, n, n) });
    });
  });

  describe("dot and mv", () => {
    const all = dtypeNames;
    it.each(all)("the inner product of vectors of %s", (dtype) => {
      for (const n of [0, 1, 3, 16, 37]) {
        const [a, b] = [sample([n], dtype), sample([n], dtype, 5)];
        const want = nearest(
          a.reduce((t, v, i) => t + v * b[i]!, 0),
          dtype,
        );
        const options = { dtype, device };
        expectTensor(tensor(a, [n], options).dot(tensor(b, [n], options)), { shape: [], dtype, values: [want] });
        expectTensor(
          tensor(a, [n], options)
            .flip([0])
            .dot(tensor([...b].reverse(), [n], options)),
          {
            shape: [],
            dtype,
            values: [want],
          },
        );
      }
    });

    it.each(all)("a matrix times a vector of %s", (dtype) => {
      const [a, v] = [sample([5, 9], dtype), sample([9], dtype, 5)];
      const values = product(a, v, 5, 9, 1).map((x) => nearest(x, dtype));
      for (const [what, m] of layouts(a, [5, 9], { dtype, device })) {
        for (const [, x] of layouts(v, [9], { dtype, device })) {
          expectTensor(m.mv(x), { shape: [5], dtype, values, what });
        }
      }
      expectTensor(Tensor.zeros([2, 0], { dtype, device }).mv(Tensor.zeros([0], { dtype, device })), {
        shape: [2],
        dtype,
        values: [0, 0],
      });
      expect(Tensor.zeros([0, 2], { dtype, device }).mv(Tensor.zeros([2], { dtype, device })).shape).toEqual([0]);
    });

    it("stays within half a unit for long vectors", () => {
      const n = 10007;
      const values = Array.from({ length: n }, (_, i) => Math.sin(i));
      for (const dtype of ["f32", "f16", "bf16"] as const) {
        const x = values.map((v) => nearest(v, dtype));
        const want = x.reduce((t, v) => t + v * v, 0);
        const t = tensor(x, [n], { dtype, device });
        expectTensor(t.dot(t), { shape: [], values: [want], within: tolerance(dtype, 2) });
      }
    });
  });
});
