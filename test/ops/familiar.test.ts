/** What people who come from NumPy or PyTorch type first. */
import { describe, expect, it } from "vitest";
import { Tensor, WickError } from "../../src/index.ts";
import { describeInTurns } from "../helpers/devices.ts";

describeInTurns("Familiar names", (device) => {
  const x = Tensor.from(
    [
      [3, 1, 2],
      [6, 5, 4],
    ],
    { device },
  );

  it("reductions without dims take everything", () => {
    expect([x.sum(), x.mean(), x.max(), x.min()].map((t) => t.toScalarSync())).toEqual([21, 3.5, 6, 1]);
    expect([x.argmax(), x.argmin()].map((t) => t.toScalarSync())).toEqual([3, 1]);
    expect(x.var().toScalarSync()).toBeCloseTo(3.5, 6);
    expect(x.std().toScalarSync()).toBeCloseTo(Math.sqrt(3.5), 6);
    expect(x.logSumExp().toScalarSync()).toBeCloseTo(6.4561934, 5);
    expect(x.sumKeepdim().shape).toEqual([1, 1]);
  });

  it("a scalar is its own sum, and its largest stands at 0", () => {
    const one = Tensor.from(7, { device });
    expect(one.sum().toScalarSync()).toBe(7);
    expect([one.argmax().dtype, one.argmax().toScalarSync()]).toEqual(["u32", 0]);
  });

  it("std is the root of var along a dim", () => {
    expect(Array.from(x.std(1).dataSync())).toEqual([1, 1]);
    expect(x.stdKeepdim(0).shape).toEqual([1, 3]);
    expect(x.toDType("f16").std(1).dtype).toBe("f16");
  });

  it("flatten without dims makes a vector", () => {
    expect(x.flatten().toArraySync()).toEqual([3, 1, 2, 6, 5, 4]);
  });

  it("booleans become u8", () => {
    const bits = Tensor.from([[true, false]], { device });
    expect([bits.dtype, bits.toArraySync()]).toEqual(["u8", [[1, 0]]]);
    expect(Tensor.from(true, { device, dtype: "f32" }).toScalarSync()).toBe(1);
  });

  it("topk gives the largest, or the smallest, in order, with their places", () => {
    const [values, places] = x.topk(2);
    expect([values.toArraySync(), places.toArraySync()]).toEqual([
      [
        [3, 2],
        [6, 5],
      ],
      [
        [0, 2],
        [0, 1],
      ],
    ]);
    const [least, where] = x.topk(1, 0, false);
    expect([least.toArraySync(), where.toArraySync()]).toEqual([[[3, 1, 2]], [[0, 0, 0]]]);
    expect(Tensor.from([1, Number.NaN, 2], { device }).topk(2)[0].toArraySync()).toEqual([2, 1]);
    expect(x.topk(0)[0].shape).toEqual([2, 0]);
  });

  it("split cuts by a size or into sizes", () => {
    expect(x.split(2, 1).map((t) => t.shape)).toEqual([
      [2, 2],
      [2, 1],
    ]);
    expect(x.split([1, 0, 2], 1).map((t) => t.toArraySync())).toEqual([
      [[3], [6]],
      [[], []],
      [
        [1, 2],
        [5, 4],
      ],
    ]);
    expect(x.split(1).map((t) => t.shape)).toEqual([
      [1, 3],
      [1, 3],
    ]);
  });

  it("size is the shape, or one of its dims", () => {
    expect([x.size(), x.size(0), x.size(-1)]).toEqual([[2, 3], 2, 3]);
  });

  it.each([
    [
      "ij,jk->ik",
      [
        [2, 3],
        [3, 4],
      ],
      [2, 4],
    ],
    [
      "bij,bjk->bik",
      [
        [5, 2, 3],
        [5, 3, 4],
      ],
      [5, 2, 4],
    ],
    [
      "...ij,...jk->...ik",
      [
        [1, 2, 2, 3],
        [5, 1, 3, 4],
      ],
      [5, 2, 2, 4],
    ],
    ["i,j->ij", [[3], [4]], [3, 4]],
    ["ij->ji", [[2, 3]], [3, 2]],
    ["ij->", [[2, 3]], []],
    ["ii->i", [[3, 3]], [3]],
    ["ii", [[3, 3]], []],
    [
      "ij,jk",
      [
        [2, 3],
        [3, 4],
      ],
      [2, 4],
    ],
    [
      "bhqd,bhkd->bhqk",
      [
        [2, 3, 4, 5],
        [2, 3, 6, 5],
      ],
      [2, 3, 4, 6],
    ],
    [
      "ij,jk,kl->il",
      [
        [2, 3],
        [3, 4],
        [4, 5],
      ],
      [2, 5],
    ],
    [
      "ij,ij->i",
      [
        [2, 3],
        [2, 3],
      ],
      [2],
    ],
    [
      "ab,cd->acdb",
      [
        [2, 3],
        [4, 5],
      ],
      [2, 4, 5, 3],
    ],
    ["ij,k->k", [[2, 3], [4]], [4]],
    ["i,i->", [[0], [0]], []],
  ] as [string, number[][], number[]][])("einsum %s", (equation, shapes, shape) => {
    const operands = shapes.map((s, i) => Tensor.rand(s, { device, seed: i + 1, low: -1, dtype: "f32" }));
    const y = Tensor.einsum(equation, operands);
    expect(y.shape).toEqual(shape);
    expect(Array.from(y.dataSync(), (v) => Math.round(v * 1e4) / 1e4 + 0)).toEqual(
      naive(equation, operands, shape).map((v) => Math.round(v * 1e4) / 1e4 + 0),
    );
  });
});

/** By the definition: every assignment of numbers to letters. */
function naive(equation: string, operands: readonly Tensor[], shape: readonly number[]): number[] {
  const dots = (text: string, rank: number): string =>
    text.replace("...", "XYZ".slice(3 - (rank - text.replace("...", "").length)));
  const [left, right] = equation.split("->") as [string, string | undefined];
  const inputs = left.split(",").map((text, i) => dots(text, operands[i]!.rank));
  const letters = [...new Set(inputs.join(""))];
  const once = letters
    .filter((l) => inputs.join("").split(l).length === 2)
    .sort()
    .join("");
  const output = right === undefined ? once : dots(right, shape.length);
  const sizeOf = (l: string): number => Math.max(...inputs.map((t, i) => operands[i]!.shape[t.indexOf(l)] ?? 0));
  const out = new Array<number>(shape.reduce((a, b) => a * b, 1)).fill(0);
  const at = (text: string, sizes: readonly number[], index: ReadonlyMap<string, number>): number =>
    [...text].reduce((sum, l, d) => sum * sizes[d]! + (sizes[d] === 1 ? 0 : index.get(l)!), 0);
  const data = operands.map((x) => x.dataSync() as Float32Array);
  const walk = (rest: readonly string[], index: Map<string, number>): void => {
    const [letter, ...others] = rest;
    if (letter === undefined) {
      const product = inputs.reduce((p, text, i) => p * data[i]![at(text, operands[i]!.shape, index)]!, 1);
      out[at(output, shape, index)]! += product;
      return;
    }
    for (let i = 0; i < sizeOf(letter); i++) walk(others, index.set(letter, i));
  };
  walk(letters, new Map());
  return out;
}

describe("Wrong calls from plain JavaScript", () => {
  const x = Tensor.ones([2, 3, 4]) as unknown as Record<string, (...args: unknown[]) => unknown>;
  it.each<[string, () => unknown, RegExp]>([
    ["sizes one by one", () => x.reshape!(6, 4), /reshape\(\[6, 4\]\)/],
    ["dims one by one", () => x.permute!(2, 0, 1), /permute\(\[2, 0, 1\]\)/],
    ["a size for a shape", () => x.broadcastAs!(4), /\[2, 3\].*not 4/],
    ["no shape at all", () => (Tensor.zeros as (...a: unknown[]) => unknown)(), /array of sizes.*not undefined/],
    ["a number for a tensor", () => x.matmul!(5), /matmul.*Tensor.*5/],
    ["an array for a tensor", () => x.gather!([0], 0), /gather.*Tensor.*\[0\]/],
    ["a string for a dim", () => x.softmax!("last"), /softmax.*last/],
    ["dims where one is meant", () => x.max!(0, 1), /max\(dim\?\) takes 1/],
    ["an operand that is none", () => x.add!({}), /add.*Tensor.*object/],
    [
      "one tensor to join",
      () => (Tensor.cat as (...a: unknown[]) => unknown)(Tensor.ones([1]), 0),
      /cat\(\[a, b\], 0\)/,
    ],
    ["einsum without its array", () => (Tensor.einsum as (...a: unknown[]) => unknown)("i->i"), /einsum\(/],
    ["no kernel", () => x.conv2d!(), /conv2d/],
  ])("%s: says what was meant", (_, run, message) => {
    let error: unknown;
    try {
      run();
    } catch (thrown) {
      error = thrown;
    }
    expect(error).toBeInstanceOf(WickError);
    expect((error as Error).message).toMatch(message);
  });

  it.each<[string, () => unknown]>([
    ["einsum of other sizes", () => Tensor.einsum("ij,jk->ik", [Tensor.ones([2, 3]), Tensor.ones([4, 5])])],
    ["einsum of other operands", () => Tensor.einsum("ij->i", [Tensor.ones([2, 3]), Tensor.ones([2, 3])])],
    ["einsum of a dim too many", () => Tensor.einsum("ijk->i", [Tensor.ones([2, 3])])],
    ["einsum to a dim from nowhere", () => Tensor.einsum("ij->k", [Tensor.ones([2, 3])])],
    ["einsum over no square", () => Tensor.einsum("ii->i", [Tensor.ones([2, 3])])],
    ["topk of more than there are", () => Tensor.ones([2]).topk(3)],
    ["split that does not add up", () => Tensor.ones([3]).split([1, 1])],
  ])("%s is an error of Wick's", (_, run) => {
    expect(run).toThrow(WickError);
  });
});
