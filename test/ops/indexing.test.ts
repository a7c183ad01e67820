import { describe, expect, it } from "vitest";
import { type DType, dtypeNames, IndexError, Tensor } from "../../src/index.ts";
import { describeInTurns } from "../helpers/devices.ts";
import {
  build,
  expectTensor,
  indices,
  layouts,
  nearest,
  reader,
  sample,
  tensor,
  wideFloats,
} from "../helpers/reference.ts";

const idTypes = ["u8", "u32", "i64"] as const;
const nothing = { u8: 255, u32: 2 ** 32 - 1, i64: 2n ** 63n - 1n } as const;
const [NAN, INF] = [Number.NaN, Number.POSITIVE_INFINITY];

describeInTurns("Indexing", (device) => {
  const idsOf = (values: readonly (number | bigint)[], shape: readonly number[], dtype: DType): Tensor =>
    Tensor.from([...values] as number[], { shape, dtype, device });

  describe("indexSelect", () => {
    it.each(dtypeNames)("takes slices of any dim of %s, by any id type, in any layout", (dtype) => {
      const shape = [3, 4, 5];
      const values = sample(shape, dtype);
      const at = reader(values, shape);
      const ids = [2, 0, 2, 1];
      for (const [what, t] of layouts(values, shape, { dtype, device })) {
        for (const d of [0, 1, 2]) {
          for (const idType of idTypes) {
            const out = shape.with(d, ids.length);
            const want = build(out, (index) => at(...index.with(d, ids[index[d]!]!)));
            for (const [, i] of layouts(ids, [4], { dtype: idType, device })) {
              expectTensor(t.indexSelect(i, d), { shape: out, dtype, values: want, what: `${what} dim ${d}` });
            }
          }
        }
        expect(t.indexSelect(idsOf([1], [1], "u8"), -1).shape).toEqual([3, 4, 1]);
      }
    });

    it.each(idTypes)("the largest %s means nothing and reads 0", (idType) => {
      for (const width of [1, 3, 40]) {
        const t = Tensor.ones([2, width], { device });
        const got = t.indexSelect(idsOf([1, nothing[idType], 0], [3], idType), 0);
        expectTensor(got, { shape: [3, width], values: build([3, width], ([i]) => (i === 1 ? 0 : 1)) });
      }
    });

    it.each(idTypes)("any other %s out of range is an error that names it, and does no harm", (idType) => {
      const t = Tensor.from([[1, 2, 3]], { device });
      const bad = idType === "i64" ? -1n : 3;
      // A device that works asynchronously reports a bad id when the result is read.
      const call = () => t.indexSelect(idsOf([0, 2, bad], [3], idType), 1).dataSync();
      expect(call).toThrow(IndexError);
      expect(call).toThrow(new RegExp(`${bad} at position 2\\b.*dim 1 of size 3`));
      expect(t.toArraySync()).toEqual([[1, 2, 3]]);
      expect(t.indexSelect(idsOf([2], [1], idType), 1).toArraySync()).toEqual([[3]]);
    });

    it("repeated ids of a broadcast view and ids with strides are read in their own order", () => {
      const t = Tensor.arange(10, undefined, { device });
      const ids = idsOf([0, 9, 1, 9, 2, 9], [3, 2], "u32");
      expect(t.indexSelect(ids.narrow(1, 0, 1).squeeze(1), 0).toArraySync()).toEqual([0, 1, 2]);
      expect(t.indexSelect(idsOf([4], [1], "u32").broadcastAs([3]), 0).toArraySync()).toEqual([4, 4, 4]);
    });

    it("selects nothing, and from nothing when nothing is asked", () => {
      const none = Tensor.zeros([0], { dtype: "u32", device });
      expect(Tensor.ones([3, 2], { device }).indexSelect(none, 0).shape).toEqual([0, 2]);
      expect(Tensor.ones([0, 2], { device }).indexSelect(none, 0).shape).toEqual([0, 2]);
      expect(Tensor.ones([3, 0], { device }).indexSelect(idsOf([1], [1], "u32"), 0).shape).toEqual([1, 0]);
    });

    it("works at rank 8", () => {
      const shape = [1, 2, 1, 2, 1, 3, 1, 2];
      const values = sample(shape, "f32");
      const at = reader(values, shape);
      const got = tensor(values, shape, { dtype: "f32", device }).indexSelect(idsOf([2, 0], [2], "u8"), 5);
      const out = shape.with(5, 2);
      expectTensor(got, { shape: out, values: build(out, (i) => at(...i.with(5, i[5] === 0 ? 2 : 0))) });
    });
  });

  describe("embedding", () => {
    it("looks rows up for ids of any shape", () => {
      const table = tensor([1, 2, 3, 4, 5, 6], [3, 2], { dtype: "f32", device });
      expect(table.embedding(idsOf([2, 0, 1, 2], [2, 2], "u32")).toArraySync()).toEqual([
        [
          [5, 6],
          [1, 2],
        ],
        [
          [3, 4],
          [5, 6],
        ],
      ]);
      expect(table.embedding(idsOf([1], [], "u8")).toArraySync()).toEqual([3, 4]);
      expect(table.embedding(Tensor.zeros([2, 0], { dtype: "i64", device })).shape).toEqual([2, 0, 2]);
      const turned = tensor([1, 3, 5, 2, 4, 6], [2, 3], { dtype: "f32", device }).t();
      expect(turned.embedding(idsOf([2, 1], [2], "i64")).toArraySync()).toEqual([
        [5, 6],
        [3, 4],
      ]);
    });

    it("copies whole rows of any width and dtype", () => {
      for (const dtype of dtypeNames) {
        for (const width of [1, 7, 16, 33, 130]) {
          const values = sample([5, width], dtype);
          const at = reader(values, [5, width]);
          const rows = [4, 0, 3, 4];
          const got = tensor(values, [5, width], { dtype, device }).embedding(idsOf(rows, [4], "u32"));
          expectTensor(got, { shape: [4, width], dtype, values: build([4, width], ([i, j]) => at(rows[i!]!, j!)) });
        }
      }
    });
  });

  describe("gather", () => {
    it.each(dtypeNames)("picks along any dim of %s, ids smaller elsewhere included", (dtype) => {
      const shape = [3, 4, 5];
      const values = sample(shape, dtype, 2);
      const at = reader(values, shape);
      for (const [d, idShape] of [
        [0, [7, 4, 5]],
        [0, [2, 3, 4]],
        [1, [3, 2, 5]],
        [1, [2, 6, 1]],
        [2, [3, 4, 9]],
        [2, [1, 2, 3]],
      ] as const) {
        const ids = build(idShape, (index) => (index[0]! * 3 + index[1]! * 5 + index[2]! * 2) % shape[d]!);
        const pick = reader(ids, idShape);
        const want = build(idShape, (index) => at(...index.with(d, pick(...index))));
        for (const [what, t] of layouts(values, shape, { dtype, device })) {
          for (const [idLayout, i] of layouts(ids, idShape, { dtype: "u32", device })) {
            expectTensor(t.gather(i, d), { shape: idShape, dtype, values: want, what: `${what}, ids ${idLayout}` });
          }
        }
      }
    });

    it.each(idTypes)("the largest %s reads 0 and other bad ids are an error", (idType) => {
      const t = tensor([1, 2, 3, 4], [2, 2], { dtype: "f32", device });
      expect(t.gather(idsOf([1, nothing[idType]], [2, 1], idType), 1).toArraySync()).toEqual([[2], [0]]);
      expect(() => t.gather(idsOf([0, 2], [2, 1], idType), 1).dataSync()).toThrow(/id 2 at position 1/);
      expect(t.gather(idsOf([0, 1], [2, 1], idType), 1).toArraySync()).toEqual([[1], [4]]);
    });

    it("gathers nothing", () => {
      const none = Tensor.zeros([2, 0], { dtype: "u32", device });
      expect(Tensor.ones([2, 3], { device }).gather(none, 1).shape).toEqual([2, 0]);
    });
  });

  describe("scatter, scatterAdd and indexAdd", () => {
    const shape = [3, 4, 5];
    const cases = [
      [0, [3, 4, 5]],
      [0, [2, 3, 4]],
      [1, [3, 4, 5]],
      [1, [2, 3, 1]],
      [2, [3, 4, 5]],
      [2, [1, 4, 2]],
    ] as const;

    it.each(dtypeNames)("scatter writes and scatterAdd adds %s along any dim", (dtype) => {
      const base = sample(shape, dtype, 3);
      for (const [d, idShape] of cases) {
        // A permutation along the dim, so that no place is written twice.
        const ids = build(idShape, (index) => (index[d]! + index[(d + 1) % 3]!) % shape[d]!);
        const src = sample(idShape, dtype, 8);
        const [written, added] = [[...base], [...base]];
        for (const [n, index] of indices(idShape).entries()) {
          const to = index.with(d, ids[n]!).reduce((acc, i, k) => acc * shape[k]! + i, 0);
          written[to] = src[n]!;
          added[to] = nearest(added[to]! + src[n]!, dtype);
        }
        const sources = layouts(src, idShape, { dtype, device });
        const tables = layouts(ids, idShape, { dtype: "i64", device });
        for (const [n, [what, t]] of layouts(base, shape, { dtype, device }).entries()) {
          const [s, i] = [sources[(n + 1) % sources.length]![1], tables[(n + 2) % tables.length]![1]];
          expectTensor(t.scatter(i, s, d), { shape, dtype, values: written, what });
          expectTensor(t.scatterAdd(i, s, d), { shape, dtype, values: added, what });
          expectTensor(t, { shape, values: base, what: "the original stays" });
        }
      }
    });

    it("of several writes to one place the last stays, and several additions all count", () => {
      const t = Tensor.zeros([3], { device });
      const ids = idsOf([1, 1, 1], [3], "u32");
      const src = tensor([1, 2, 4], [3], { dtype: "f32", device });
      expect(t.scatter(ids, src, 0).toArraySync()).toEqual([0, 4, 0]);
      expect(t.scatterAdd(ids, src, 0).toArraySync()).toEqual([0, 7, 0]);
    });

    it("adds thousands of values to one place, halves in f32", () => {
      const n = 49152;
      for (const dtype of ["f16", "bf16", "f32", "i32", "u32"] as const) {
        const ids = Tensor.zeros([n], { dtype: "u32", device });
        const got = Tensor.zeros([2], { dtype, device }).scatterAdd(ids, Tensor.ones([n], { dtype, device }), 0);
        expectTensor(got, { shape: [2], dtype, values: [n, 0] });
      }
    });

    it.each(idTypes)("the largest %s is skipped, other bad ids are an error", (idType) => {
      const t = Tensor.zeros([2], { device });
      const src = tensor([5, 6], [2], { dtype: "f32", device });
      const skip = idsOf([nothing[idType], 1], [2], idType);
      expect(t.scatter(skip, src, 0).toArraySync()).toEqual([0, 6]);
      expect(t.scatterAdd(skip, src, 0).toArraySync()).toEqual([0, 6]);
      expect(t.indexAdd(skip, src, 0).toArraySync()).toEqual([0, 6]);
      const bad = idsOf([0, 2], [2], idType);
      for (const run of [
        () => t.scatter(bad, src, 0),
        () => t.scatterAdd(bad, src, 0),
        () => t.indexAdd(bad, src, 0),
      ]) {
        expect(() => run().dataSync()).toThrow(IndexError);
        expect(() => run().dataSync()).toThrow(/id 2 at position 1\b.*dim 0 of size 2/);
      }
      expect(t.toArraySync()).toEqual([0, 0]);
    });

    it.each(dtypeNames)("indexAdd adds slices of %s along any dim", (dtype) => {
      const base = sample(shape, dtype, 1);
      for (const d of [0, 1, 2]) {
        const ids = [1, 0, 1];
        const srcShape = shape.with(d, 3);
        const src = sample(srcShape, dtype, 4);
        const want = [...base];
        for (const [n, index] of indices(srcShape).entries()) {
          const to = index.with(d, ids[index[d]!]!).reduce((acc, i, k) => acc * shape[k]! + i, 0);
          want[to]! += src[n]!;
        }
        // However many terms there are, a sum is rounded once.
        const values = want.map((v) => nearest(v, dtype));
        const sources = layouts(src, srcShape, { dtype, device });
        for (const [n, [what, t]] of layouts(base, shape, { dtype, device }).entries()) {
          const got = t.indexAdd(idsOf(ids, [3], "u8"), sources[3 - n]![1], d - 3);
          expectTensor(got, { shape, dtype, values, what });
        }
      }
    });

    it("writing nothing changes nothing", () => {
      const t = Tensor.ones([2, 3], { device });
      const none = Tensor.zeros([2, 0], { dtype: "u32", device });
      const src = Tensor.zeros([2, 0], { device });
      for (const got of [t.scatter(none, src, 1), t.scatterAdd(none, src, 1)]) {
        expectTensor(got, { shape: [2, 3], values: [1, 1, 1, 1, 1, 1] });
      }
      expectTensor(t.indexAdd(Tensor.zeros([0], { dtype: "u32", device }), src, 1), {
        shape: [2, 3],
        values: [1, 1, 1, 1, 1, 1],
      });
    });
  });

  describe("writing slices", () => {
    it.each(dtypeNames)("sliceSet writes %s in place, into any layout", (dtype) => {
      const shape = [3, 4];
      const base = sample(shape, dtype, 1);
      const src = sample([3, 2], dtype, 6);
      const at = reader(base, shape);
      const from = reader(src, [3, 2]);
      const want = build(shape, ([i, j]) => (j! >= 1 && j! < 3 ? from(i!, j! - 1) : at(i!, j!)));
      for (const [what, t] of layouts(base, shape, { dtype, device })) {
        for (const [, s] of layouts(src, [3, 2], { dtype, device })) {
          t.sliceSet(s, 1, 1);
          expectTensor(t, { shape, dtype, values: want, what });
        }
      }
    });

    it("sliceSet leaves its neighbours alone", () => {
      const whole = Tensor.zeros([4, 3], { device });
      whole.narrow(0, 1, 2).sliceSet(Tensor.ones([1, 3], { device }), 0, 0);
      expect(whole.toArraySync()).toEqual([
        [0, 0, 0],
        [1, 1, 1],
        [0, 0, 0],
        [0, 0, 0],
      ]);
      whole.sliceSet(Tensor.zeros([0, 3], { device }), 0, 4);
      whole.sliceSet(Tensor.full([1, 3], 2, { device }), -2, -1);
      expect(whole.get(3).toArraySync()).toEqual([2, 2, 2]);
    });

    it("sliceScatter is the same on a copy", () => {
      const t = Tensor.zeros([2, 3], { device });
      const got = t.sliceScatter(tensor([7, 8], [2, 1], { dtype: "f32", device }), 1, 2);
      expect(got.toArraySync()).toEqual([
        [0, 0, 7],
        [0, 0, 8],
      ]);
      expect(t.toArraySync()).toEqual([
        [0, 0, 0],
        [0, 0, 0],
      ]);
    });

    it("sliceAssign writes into a range of every dim of a copy", () => {
      const shape = [3, 4];
      const src = tensor([1, 2, 3, 4], [2, 2], { dtype: "f32", device });
      for (const [what, t] of layouts(new Array(12).fill(0), shape, { dtype: "f32", device })) {
        for (const s of [src, src.t().contiguous().t()]) {
          expectTensor(
            t.sliceAssign(
              [
                [1, 3],
                [0, 2],
              ],
              s,
            ),
            { shape, values: [0, 0, 0, 0, 1, 2, 0, 0, 3, 4, 0, 0], what },
          );
        }
      }
      const all = Tensor.zeros([2], { device }).sliceAssign([[0, 2]], Tensor.ones([2], { device }));
      expect(all.toArraySync()).toEqual([1, 1]);
      const none = Tensor.zeros([2], { device }).sliceAssign([[1, 1]], Tensor.ones([0], { device }));
      expect(none.toArraySync()).toEqual([0, 0]);
    });

    it("sliceAssign of a scalar replaces it", () => {
      const got = Tensor.from(1, { device }).sliceAssign([], Tensor.from(2, { device }));
      expect(got.toScalarSync()).toBe(2);
    });
  });

  describe("sorting", () => {
    const order = (row: readonly number[], ascending: boolean): number[] =>
      row
        .map((_, i) => i)
        .sort((a, b) => {
          const [x, y] = [row[a]!, row[b]!];
          if (Number.isNaN(x) || Number.isNaN(y)) return Number(Number.isNaN(x)) - Number(Number.isNaN(y)) || a - b;
          return (ascending ? x - y : y - x) || a - b;
        });

    it.each(dtypeNames)("sorts rows of %s both ways, stably, in any layout", (dtype) => {
      const shape = [2, 3, 19];
      const values = sample(shape, dtype, 5);
      for (const ascending of [true, false]) {
        const want = indices([2, 3]).flatMap(([i, j]) => {
          const start = (i! * 3 + j!) * 19;
          return order(values.slice(start, start + 19), ascending);
        });
        const sorted = want.map((o, n) => values[Math.floor(n / 19) * 19 + o]!);
        for (const [what, t] of layouts(values, shape, { dtype, device })) {
          expectTensor(t.argSortLastDim(ascending), { shape, dtype: "u32", values: want, what });
          const [v, o] = t.sortLastDim(ascending);
          expectTensor(v, { shape, dtype, values: sorted, what });
          expectTensor(o, { shape, dtype: "u32", values: want, what });
        }
      }
    });

    it.each(wideFloats)("puts NaN last in both directions, infinities at the ends, in %s", (dtype) => {
      const row = [3, NAN, -INF, 0, INF, NAN, -0, -1];
      const t = tensor(row, [8], { dtype, device });
      expectTensor(t.sortLastDim(true)[0], { shape: [8], values: [-INF, -1, 0, 0, 3, INF, NAN, NAN] });
      expectTensor(t.sortLastDim(false)[0], { shape: [8], values: [INF, 3, 0, 0, -1, -INF, NAN, NAN] });
      // Zeros of both signs are equal, so they keep their order, and so do the NaNs.
      expect(t.argSortLastDim().toArraySync()).toEqual([2, 7, 3, 6, 0, 4, 1, 5]);
      expect(t.argSortLastDim(false).toArraySync()).toEqual([4, 0, 3, 6, 7, 2, 1, 5]);
    });

    it("sorts the extremes of integers", () => {
      const t = Tensor.from([0n, -1n, 2n ** 63n - 1n, -(2n ** 63n), 2n ** 53n + 1n, 2n ** 53n], { device });
      expect(t.sortLastDim()[0].toArraySync()).toEqual([
        -(2n ** 63n),
        -1n,
        0n,
        2n ** 53n,
        2n ** 53n + 1n,
        2n ** 63n - 1n,
      ]);
      const u = tensor([2 ** 31, 1, 2 ** 32 - 1, 0], [4], { dtype: "u32", device });
      expect(u.argSortLastDim().toArraySync()).toEqual([3, 1, 0, 2]);
    });

    it.each([1, 2, 3, 5, 31, 64, 100, 1025, 9001, 40000])("sorts rows of %i elements", (n) => {
      for (const dtype of ["f32", "i64", "u8"] as const) {
        const modulus = dtype === "u8" ? 251 : 10007;
        const row = Array.from({ length: n }, (_, i) => (i * 7919 + 13) % modulus);
        const both = [...row, ...[...row].reverse()];
        const t = tensor(both, [2, n], { dtype, device });
        const want = [...order(row, true), ...order([...row].reverse(), true)];
        expectTensor(t.argSortLastDim(), { shape: [2, n], values: want, what: dtype });
        expectTensor(t.argSortLastDim(false), {
          shape: [2, n],
          values: [...order(row, false), ...order([...row].reverse(), false)],
          what: dtype,
        });
      }
    });

    it("sorts nothing", () => {
      for (const shape of [[0], [3, 0], [0, 3]]) {
        expect(Tensor.zeros(shape, { device }).argSortLastDim().shape).toEqual(shape);
        expect(Tensor.zeros(shape, { device }).sortLastDim()[0].shape).toEqual(shape);
      }
    });
  });
});
