import { describe, expect, it } from "vitest";
import { dtypeNames, Tensor } from "../../src/index.ts";
import { describeInTurns } from "../helpers/devices.ts";
import { build, expectTensor, layouts, reader, sample, tensor } from "../helpers/reference.ts";

describeInTurns("Shapes and views", (device) => {
  /** 0, 1, 2, … in a shape. */
  const count = (...shape: number[]): Tensor =>
    Tensor.arange(
      shape.reduce((a, b) => a * b, 1),
      undefined,
      { device },
    ).reshape(shape);
  const flat = (t: Tensor): number[] => Array.from(t.dataSync() as ArrayLike<number>);

  describe("reshape", () => {
    it("keeps the elements in row-major order", () => {
      const t = count(2, 6);
      for (const shape of [[12], [3, 4], [2, 3, 2], [1, 12, 1], [2, 1, 2, 1, 3, 1, 1, 1]]) {
        expectTensor(t.reshape(shape), { shape, values: flat(t) });
        expect(t.reshape(shape).storage).toBe(t.storage);
      }
    });

    it("finds one size by itself", () => {
      expect(count(2, 6).reshape([3, -1]).shape).toEqual([3, 4]);
      expect(count(2, 6).reshape([-1]).shape).toEqual([12]);
      expect(Tensor.zeros([0, 3], { device }).reshape([-1, 3]).shape).toEqual([0, 3]);
    });

    it("goes to and from rank 0", () => {
      expect(count(1, 1).reshape([]).shape).toEqual([]);
      expect(Tensor.from(3, { device }).reshape([1, 1]).toArraySync()).toEqual([[3]]);
    });

    it("copies what strides cannot express and shares what they can", () => {
      const t = count(4, 6);
      const turned = t.t();
      expectTensor(turned.reshape([24]), { shape: [24], values: build([6, 4], ([i, j]) => j! * 6 + i!) });
      expect(turned.reshape([24]).storage).not.toBe(t.storage);
      expect(turned.reshape([2, 3, 4]).storage).toBe(t.storage);
      expectTensor(turned.reshape([2, 3, 4]), {
        shape: [2, 3, 4],
        values: build([2, 3, 4], ([a, b, j]) => j! * 6 + a! * 3 + b!),
      });
      const rows = t.narrow(1, 1, 4);
      expect(rows.reshape([2, 2, 2, 2]).storage).toBe(t.storage);
      expectTensor(rows.reshape([2, 2, 2, 2]), {
        shape: [2, 2, 2, 2],
        values: build([4, 4], ([i, j]) => i! * 6 + j! + 1),
      });
      const spread = count(2, 1).broadcastAs([2, 6]);
      expect(spread.reshape([2, 2, 3]).storage).toBe(spread.storage);
      expectTensor(spread.reshape([2, 2, 3]), { shape: [2, 2, 3], values: [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1] });
    });

    it("is right for every layout and every way to split", () => {
      const shape = [2, 4, 3];
      const values = sample(shape, "f32");
      for (const [what, t] of layouts(values, shape, { dtype: "f32", device })) {
        for (const to of [[24], [8, 3], [2, 12], [4, 6], [2, 2, 2, 3], [1, 2, 4, 1, 3], [3, 8], [24, 1]]) {
          expectTensor(t.reshape(to), { shape: to, values, what: `${what} to ${to}` });
        }
      }
    });

    it("flatten merges neighbouring dims", () => {
      const t = count(2, 3, 4);
      expect(t.flatten(0, 1).shape).toEqual([6, 4]);
      expect(t.flatten(1, 2).shape).toEqual([2, 12]);
      expect(t.flatten(-2, -1).shape).toEqual([2, 12]);
      expect(t.flatten(1, 1).shape).toEqual([2, 3, 4]);
      expect(t.flattenAll().shape).toEqual([24]);
      expect(t.flatten().shape).toEqual([24]);
      expect(t.flatten(1).shape).toEqual([2, 12]);
      expect(Tensor.from(1, { device }).flatten().shape).toEqual([1]);
      expect(Tensor.from(1, { device }).flattenAll().shape).toEqual([1]);
      expect(flat(t.permute([2, 0, 1]).flatten(0, 2))).toEqual(build([4, 2, 3], ([k, i, j]) => i! * 12 + j! * 4 + k!));
    });
  });

  describe("squeeze and unsqueeze", () => {
    it("add and remove dims of size 1 anywhere", () => {
      const t = count(2, 3);
      expect(t.unsqueeze(0).shape).toEqual([1, 2, 3]);
      expect(t.unsqueeze(1).shape).toEqual([2, 1, 3]);
      expect(t.unsqueeze(2).shape).toEqual([2, 3, 1]);
      expect(t.unsqueeze(-1).shape).toEqual([2, 3, 1]);
      expect(t.unsqueeze(-3).shape).toEqual([1, 2, 3]);
      expect(t.t().unsqueeze(1).squeeze(1).toArraySync()).toEqual(t.t().toArraySync());
      expect(Tensor.from(1, { device }).unsqueeze(0).shape).toEqual([1]);
    });

    it("squeeze leaves other sizes alone; squeezeDims takes several", () => {
      const t = count(1, 2, 1, 3);
      expect(t.squeeze(0).shape).toEqual([2, 1, 3]);
      expect(t.squeeze(-2).shape).toEqual([1, 2, 3]);
      expect(t.squeeze(1).shape).toEqual([1, 2, 1, 3]);
      expect(t.squeezeDims([0, 2]).shape).toEqual([2, 3]);
      expect(t.squeezeDims([]).shape).toEqual([1, 2, 1, 3]);
      expect(flat(t.squeezeDims([0, 2]))).toEqual([0, 1, 2, 3, 4, 5]);
    });
  });

  describe("transpose and permute", () => {
    it("reorder without moving", () => {
      const t = count(2, 3, 4);
      const at = (i: number, j: number, k: number) => i * 12 + j * 4 + k;
      expectTensor(t.transpose(0, 2), { shape: [4, 3, 2], values: build([4, 3, 2], ([k, j, i]) => at(i!, j!, k!)) });
      expectTensor(t.transpose(-1, 0), { shape: [4, 3, 2], values: build([4, 3, 2], ([k, j, i]) => at(i!, j!, k!)) });
      expectTensor(t.t(), { shape: [2, 4, 3], values: build([2, 4, 3], ([i, k, j]) => at(i!, j!, k!)) });
      expectTensor(t.permute([1, 2, 0]), {
        shape: [3, 4, 2],
        values: build([3, 4, 2], ([j, k, i]) => at(i!, j!, k!)),
      });
      expect(t.permute([-1, -3, -2]).shape).toEqual([4, 2, 3]);
      expect(t.transpose(1, 1).toArraySync()).toEqual(t.toArraySync());
      expect(t.permute([1, 2, 0]).storage).toBe(t.storage);
      expect(Tensor.from(1, { device }).permute([]).shape).toEqual([]);
    });

    it("permute eight dims", () => {
      const shape = [2, 1, 3, 1, 2, 1, 2, 2];
      const order = [7, 2, 0, 5, 6, 1, 4, 3];
      const values = sample(shape, "f32");
      const at = reader(values, shape);
      const turned = order.map((d) => shape[d]!);
      const want = build(turned, (index) => {
        const source = new Array<number>(8);
        for (const [i, d] of order.entries()) source[d] = index[i]!;
        return at(...source);
      });
      expectTensor(tensor(values, shape, { dtype: "f32", device }).permute(order), { shape: turned, values: want });
    });
  });

  describe("broadcastAs", () => {
    it("repeats dims of size 1 and adds leading ones", () => {
      const t = Tensor.from([[1], [2]], { device });
      expectTensor(t.broadcastAs([2, 3]), { shape: [2, 3], values: [1, 1, 1, 2, 2, 2] });
      expectTensor(t.expand([2, 2, 2]), { shape: [2, 2, 2], values: [1, 1, 2, 2, 1, 1, 2, 2] });
      expectTensor(Tensor.from(5, { device }).broadcastAs([3]), { shape: [3], values: [5, 5, 5] });
      expect(t.broadcastAs([2, 0]).shape).toEqual([2, 0]);
      expect(t.broadcastAs([2, 3]).storage).toBe(t.storage);
    });
  });

  describe("narrow, chunk, get and index", () => {
    it("narrow cuts a piece of one dim", () => {
      const t = count(3, 4);
      expect(t.narrow(0, 1, 2).toArraySync()).toEqual([
        [4, 5, 6, 7],
        [8, 9, 10, 11],
      ]);
      expect(t.narrow(-1, 1, 2).toArraySync()).toEqual([
        [1, 2],
        [5, 6],
        [9, 10],
      ]);
      expect(t.narrow(1, -2, 2).toArraySync()).toEqual([
        [2, 3],
        [6, 7],
        [10, 11],
      ]);
      expect(t.narrow(0, 3, 0).shape).toEqual([0, 4]);
      expect(t.narrow(0, 0, 3).toArraySync()).toEqual(t.toArraySync());
      expect(t.narrow(0, 1, 2).narrow(1, 1, 2).t().narrow(0, 1, 1).toArraySync()).toEqual([[6, 10]]);
    });

    it("chunk splits into parts, the first ones longer", () => {
      const sizes = (n: number, parts: number) =>
        count(n, 2)
          .chunk(parts, 0)
          .map((t) => t.shape[0]);
      expect(sizes(6, 3)).toEqual([2, 2, 2]);
      expect(sizes(7, 3)).toEqual([3, 2, 2]);
      expect(sizes(8, 3)).toEqual([3, 3, 2]);
      expect(sizes(2, 5)).toEqual([1, 1]);
      expect(sizes(5, 1)).toEqual([5]);
      const [a, b] = count(2, 4).chunk(2, -1);
      expect(a!.toArraySync()).toEqual([
        [0, 1],
        [4, 5],
      ]);
      expect(b!.toArraySync()).toEqual([
        [2, 3],
        [6, 7],
      ]);
      expect(
        Tensor.zeros([0, 2], { device })
          .chunk(3, 0)
          .map((t) => t.shape),
      ).toEqual([[0, 2]]);
    });

    it("get takes a slice of the first dim", () => {
      expect(count(2, 3).get(1).toArraySync()).toEqual([3, 4, 5]);
      expect(count(2, 3).get(-2).toArraySync()).toEqual([0, 1, 2]);
      expect(count(3).get(2).toScalarSync()).toBe(2);
    });

    it("index mixes positions, ranges and whole dims", () => {
      const t = count(2, 3, 4);
      expect(t.index(1).toArraySync()).toEqual(t.get(1).toArraySync());
      expect(t.index(1, 2, 3).toScalarSync()).toBe(23);
      expect(t.index(null, 1).toArraySync()).toEqual([
        [4, 5, 6, 7],
        [16, 17, 18, 19],
      ]);
      expect(t.index(0, [1, 3], [0, 2]).toArraySync()).toEqual([
        [4, 5],
        [8, 9],
      ]);
      expect(t.index(-1, -1, [-2, 4]).toArraySync()).toEqual([22, 23]);
      expect(t.index([0, 2], null, -1).toArraySync()).toEqual([
        [3, 7, 11],
        [15, 19, 23],
      ]);
      expect(t.index(null, [1, 1]).shape).toEqual([2, 0, 4]);
      expect(t.index().toArraySync()).toEqual(t.toArraySync());
      expect(t.index(0).storage).toBe(t.storage);
    });
  });

  describe("cat, stack and repeat", () => {
    it.each(dtypeNames)("cat joins %s along any dim, from any layout", (dtype) => {
      const shape = [2, 3, 4];
      const values = sample(shape, dtype);
      const at = reader(values, shape);
      const parts = layouts(values, shape, { dtype, device }).map(([, t]) => t);
      for (const d of [0, 1, 2]) {
        const joined = shape.with(d, shape[d]! * parts.length);
        const want = build(joined, (index) => at(...index.with(d, index[d]! % shape[d]!)));
        expectTensor(Tensor.cat(parts, d), { shape: joined, dtype, values: want, what: `dim ${d}` });
        expectTensor(Tensor.cat(parts, d - 3), { shape: joined, dtype, values: want, what: `dim ${d - 3}` });
      }
    });

    it("cat accepts one tensor, different lengths and empty ones", () => {
      const [a, b] = [count(1, 2), count(3, 2)];
      expect(Tensor.cat([a], 0).toArraySync()).toEqual(a.toArraySync());
      expectTensor(Tensor.cat([a, Tensor.zeros([0, 2], { device }), b], 0), {
        shape: [4, 2],
        values: [0, 1, 0, 1, 2, 3, 4, 5],
      });
      const none = Tensor.zeros([2, 0], { device });
      expect(Tensor.cat([none, none], 1).shape).toEqual([2, 0]);
      expect(Tensor.cat([none, none], 0).shape).toEqual([4, 0]);
      expect(Tensor.cat([a, a], 0).storage).not.toBe(a.storage);
    });

    it("stack joins along a new dim", () => {
      const [a, b] = [Tensor.from([1, 2], { device }), Tensor.from([3, 4], { device })];
      expect(Tensor.stack([a, b], 0).toArraySync()).toEqual([
        [1, 2],
        [3, 4],
      ]);
      for (const d of [1, -1]) {
        expect(Tensor.stack([a, b], d).toArraySync()).toEqual([
          [1, 3],
          [2, 4],
        ]);
      }
      expect(Tensor.stack([Tensor.from(1, { device }), Tensor.from(2, { device })], 0).toArraySync()).toEqual([1, 2]);
    });

    it("repeat tiles", () => {
      const t = count(2, 2);
      expectTensor(t.repeat([1, 2]), { shape: [2, 4], values: [0, 1, 0, 1, 2, 3, 2, 3] });
      expectTensor(t.repeat([2, 1]), { shape: [4, 2], values: [0, 1, 2, 3, 0, 1, 2, 3] });
      expectTensor(t.repeat([2, 1, 2]), {
        shape: [2, 2, 4],
        values: [0, 1, 0, 1, 2, 3, 2, 3, 0, 1, 0, 1, 2, 3, 2, 3],
      });
      expectTensor(t.repeat([3]), { shape: [2, 6], values: [0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3] });
      expect(t.repeat([0, 1]).shape).toEqual([0, 2]);
      expect(t.repeat([1, 1]).toArraySync()).toEqual(t.toArraySync());
      expectTensor(Tensor.from(3, { device }).repeat([2, 2]), { shape: [2, 2], values: [3, 3, 3, 3] });
    });
  });

  describe("roll, flip and unfold", () => {
    it("roll shifts around the end, by any amount", () => {
      const t = count(2, 4);
      expect(t.roll(1, 1).toArraySync()).toEqual([
        [3, 0, 1, 2],
        [7, 4, 5, 6],
      ]);
      expect(t.roll(-1, -1).toArraySync()).toEqual([
        [1, 2, 3, 0],
        [5, 6, 7, 4],
      ]);
      expect(t.roll(9, 1).toArraySync()).toEqual(t.roll(1, 1).toArraySync());
      expect(t.roll(-4, 1).toArraySync()).toEqual(t.toArraySync());
      expect(t.roll(1, 0).toArraySync()).toEqual([
        [4, 5, 6, 7],
        [0, 1, 2, 3],
      ]);
      expect(Tensor.zeros([0, 2], { device }).roll(3, 0).shape).toEqual([0, 2]);
    });

    it("flip reverses dims as a view", () => {
      const t = count(2, 3);
      expect(t.flip([0]).toArraySync()).toEqual([
        [3, 4, 5],
        [0, 1, 2],
      ]);
      expect(t.flip([-1]).toArraySync()).toEqual([
        [2, 1, 0],
        [5, 4, 3],
      ]);
      expect(t.flip([0, 1]).toArraySync()).toEqual([
        [5, 4, 3],
        [2, 1, 0],
      ]);
      expect(t.flip([0, 1]).flip([1, 0]).toArraySync()).toEqual(t.toArraySync());
      expect(t.flip([]).toArraySync()).toEqual(t.toArraySync());
      expect(t.flip([0]).storage).toBe(t.storage);
      expect(t.flip([1]).narrow(1, 0, 2).flip([1]).toArraySync()).toEqual([
        [1, 2],
        [4, 5],
      ]);
      expect(Tensor.zeros([0, 2], { device }).flip([0]).shape).toEqual([0, 2]);
    });

    it("unfold slides a window", () => {
      const t = count(7);
      expect(t.unfold(0, 3, 2).toArraySync()).toEqual([
        [0, 1, 2],
        [2, 3, 4],
        [4, 5, 6],
      ]);
      expect(t.unfold(0, 3, 5).toArraySync()).toEqual([[0, 1, 2]]);
      expect(t.unfold(0, 7, 1).shape).toEqual([1, 7]);
      const m = count(4, 3);
      expectTensor(m.unfold(-2, 2, 1), {
        shape: [3, 3, 2],
        values: build([3, 3, 2], ([w, c, i]) => (w! + i!) * 3 + c!),
      });
      expect(t.unfold(0, 3, 2).storage).toBe(t.storage);
    });
  });

  describe("padding", () => {
    it.each(dtypeNames)("padWithZeros adds zeros around a dim of %s", (dtype) => {
      const shape = [2, 3];
      const values = sample(shape, dtype, 2);
      const at = reader(values, shape);
      for (const [what, t] of layouts(values, shape, { dtype, device })) {
        const want = build([2, 6], ([i, j]) => (j! >= 2 && j! < 5 ? at(i!, j! - 2) : 0));
        expectTensor(t.padWithZeros(1, 2, 1), { shape: [2, 6], dtype, values: want, what });
      }
    });

    it.each(dtypeNames)("padWithSame repeats the ends of a dim of %s", (dtype) => {
      const shape = [2, 3];
      const values = sample(shape, dtype, 2);
      const at = reader(values, shape);
      for (const [what, t] of layouts(values, shape, { dtype, device })) {
        const want = build([2, 6], ([i, j]) => at(i!, Math.min(Math.max(j! - 2, 0), 2)));
        expectTensor(t.padWithSame(-1, 2, 1), { shape: [2, 6], dtype, values: want, what });
      }
    });

    it("pads one side, no side and empty dims", () => {
      const t = count(2);
      expect(flat(t.padWithZeros(0, 0, 2))).toEqual([0, 1, 0, 0]);
      expect(flat(t.padWithSame(0, 2, 0))).toEqual([0, 0, 0, 1]);
      expect(flat(t.padWithSame(0, 0, 1))).toEqual([0, 1, 1]);
      expect(flat(t.padWithZeros(0, 0, 0))).toEqual([0, 1]);
      expect(flat(t.padWithSame(0, 0, 0))).toEqual([0, 1]);
      const none = Tensor.zeros([0], { device });
      expect(flat(none.padWithZeros(0, 1, 1))).toEqual([0, 0]);
      expect(none.padWithSame(0, 0, 0).shape).toEqual([0]);
      expect(Tensor.zeros([0, 2], { device }).padWithSame(1, 1, 1).shape).toEqual([0, 4]);
    });
  });

  describe("contiguous and copy", () => {
    it.each(dtypeNames)("bring any layout of %s into order", (dtype) => {
      const shape = [3, 5, 4];
      const values = sample(shape, dtype);
      for (const [what, t] of layouts(values, shape, { dtype, device })) {
        for (const packed of [t.contiguous(), t.copy()]) {
          expect(packed.isContiguous()).toBe(true);
          expectTensor(packed, { shape, dtype, values, what });
        }
        expect(t.copy().storage).not.toBe(t.storage);
      }
      const spread = tensor([1, 2], [2, 1], { dtype, device }).broadcastAs([3, 2, 50]).copy();
      expectTensor(spread, { shape: [3, 2, 50], dtype, values: build([3, 2, 50], ([, b]) => b! + 1) });
    });

    it("contiguous shares what is in order already", () => {
      const t = count(3, 4);
      expect(t.contiguous().storage).toBe(t.storage);
      expect(t.narrow(0, 1, 2).contiguous().storage).toBe(t.storage);
      expect(t.narrow(1, 0, 4).isContiguous()).toBe(true);
      expect(t.narrow(1, 0, 2).isContiguous()).toBe(false);
      expect(t.t().isContiguous()).toBe(false);
      expect(t.flip([0]).isContiguous()).toBe(false);
      expect(Tensor.zeros([3, 0], { device }).t().isContiguous()).toBe(true);
      expect(count(1, 4).t().isContiguous()).toBe(true);
    });

    it("copies large matrices of every element size through any view", () => {
      for (const dtype of ["u8", "f16", "f32", "f64"] as const) {
        const [h, w] = [70, 130];
        const values = build([h, w], ([i, j]) => (i! * 7 + j! * 3) % 250);
        const t = tensor(values, [h, w], { dtype, device });
        expectTensor(t.t().copy(), { shape: [w, h], values: build([w, h], ([j, i]) => (i! * 7 + j! * 3) % 250) });
        const part = t.narrow(0, 3, 60).narrow(1, 5, 100).flip([1]);
        expectTensor(part.copy(), {
          shape: [60, 100],
          values: build([60, 100], ([i, j]) => ((i! + 3) * 7 + (104 - j!) * 3) % 250),
        });
      }
    });
  });

  it("every view of an empty tensor is empty", () => {
    const t = Tensor.zeros([2, 0, 3], { device });
    expect(t.reshape([0]).shape).toEqual([0]);
    expect(t.transpose(0, 2).shape).toEqual([3, 0, 2]);
    expect(t.permute([1, 0, 2]).shape).toEqual([0, 2, 3]);
    expect(t.unsqueeze(1).squeeze(1).shape).toEqual([2, 0, 3]);
    expect(t.broadcastAs([4, 2, 0, 3]).shape).toEqual([4, 2, 0, 3]);
    expect(t.narrow(0, 1, 1).shape).toEqual([1, 0, 3]);
    expect(t.index(1).shape).toEqual([0, 3]);
    expect(t.repeat([2, 1, 1]).shape).toEqual([4, 0, 3]);
    expect(t.flattenAll().shape).toEqual([0]);
    expect(t.flatten(1, 2).shape).toEqual([2, 0]);
    expect(t.copy().toArraySync()).toEqual([[], []]);
    expect(t.roll(1, 0).shape).toEqual([2, 0, 3]);
    expect(t.unfold(2, 2, 1).shape).toEqual([2, 0, 2, 2]);
  });

  it("views of one storage read the same memory", () => {
    const t = count(2, 3);
    const views = [t.t(), t.flip([0, 1]), t.narrow(1, 1, 2), t.get(1), t.broadcastAs([2, 2, 3])];
    t.sliceSet(Tensor.full([2, 3], 9, { device }), 0, 0);
    for (const v of views) expect(flat(v).every((x) => x === 9)).toBe(true);
  });
});
