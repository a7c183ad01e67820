/** Laws that hold for any shape: views against plain index arithmetic, strided ops against their contiguous copies. */
import fc from "fast-check";
import { expect, it } from "vitest";
import { type DType, dtypeNames, isInt, Tensor } from "../../src/index.ts";
import { layerNorm, rmsNorm } from "../../src/nn/index.ts";
import { describeInTurns } from "../helpers/devices.ts";

/** A reference tensor: a shape and a function from indices to values. */
interface Plain {
  readonly shape: number[];
  at(index: number[]): number;
}

function flatten({ shape, at }: Plain): number[] {
  const out: number[] = [];
  const walk = (index: number[]) => {
    if (index.length === shape.length) out.push(at(index));
    else for (let i = 0; i < shape[index.length]!; i++) walk([...index, i]);
  };
  walk([]);
  return out;
}

const fromFlat = (shape: number[], values: number[]): Plain => ({
  shape,
  at: (index) => values[index.reduce((n, i, d) => n * shape[d]! + i, 0)]!,
});

/** One random view step, as it acts on a tensor and on the reference. `r` are numbers in [0, 1) to choose with. */
function step(kind: number, r: number[], t: Tensor, p: Plain): [Tensor, Plain] {
  const rank = p.shape.length;
  const pick = (n: number, k: number) => Math.floor(r[k]! * n);
  const [d, e] = [pick(Math.max(rank, 1), 0), pick(Math.max(rank, 1), 1)];
  switch (rank === 0 ? 5 : kind) {
    case 0: {
      const swap = (i: number[]) => i.map((_, k) => i[k === d ? e : k === e ? d : k]!);
      return [t.transpose(d, e), { shape: swap(p.shape), at: (i) => p.at(swap(i)) }];
    }
    case 1: {
      const start = pick(p.shape[d]! + 1, 1);
      const length = pick(p.shape[d]! - start + 1, 2);
      return [
        t.narrow(d, start, length),
        { shape: p.shape.with(d, length), at: (i) => p.at(i.with(d, i[d]! + start)) },
      ];
    }
    case 2:
      return [t.flip([d]), { shape: p.shape, at: (i) => p.at(i.with(d, p.shape[d]! - 1 - i[d]!)) }];
    case 3: {
      const shape = [2, ...p.shape.map((n, k) => (n === 1 && k === d ? 3 : n))];
      if (shape.length > 8) return [t, p];
      return [t.broadcastAs(shape), { shape, at: (i) => p.at(i.slice(1).map((x, k) => (p.shape[k] === 1 ? 0 : x))) }];
    }
    case 4: {
      const order = p.shape.map((_, k) => (k + d) % rank);
      const at = (i: number[]) =>
        p.at(order.reduce<number[]>((acc, from, to) => acc.with(from, i[to]!), new Array(rank).fill(0)));
      return [t.permute(order), { shape: order.map((k) => p.shape[k]!), at }];
    }
    case 5: {
      if (rank === 8) return [t, p];
      const at = pick(rank + 1, 1);
      return [t.unsqueeze(at), { shape: p.shape.toSpliced(at, 0, 1), at: (i) => p.at(i.toSpliced(at, 1)) }];
    }
    case 6: {
      const merged = d + 1 < rank ? p.shape.toSpliced(d, 2, p.shape[d]! * p.shape[d + 1]!) : p.shape;
      return [t.reshape(merged), fromFlat(merged, flatten(p))];
    }
    case 7: {
      if (p.shape[d] === 0) return [t, p];
      const i0 = pick(p.shape[d]!, 1);
      return [
        t.index(...new Array<null>(d).fill(null), i0),
        { shape: p.shape.toSpliced(d, 1), at: (i) => p.at(i.toSpliced(d, 0, i0)) },
      ];
    }
    default: {
      if (p.shape[d]! < 2 || rank === 8) return [t, p];
      const size = 1 + pick(p.shape[d]!, 1);
      const by = 1 + pick(3, 2);
      const count = Math.floor((p.shape[d]! - size) / by) + 1;
      const at = (i: number[]) => p.at(i.slice(0, -1).with(d, i[d]! * by + i.at(-1)!));
      return [t.unfold(d, size, by), { shape: [...p.shape.with(d, count), size], at }];
    }
  }
}

const shapes = fc.array(fc.integer({ min: 0, max: 5 }), { maxLength: 4 });
const steps = fc.array(
  fc.tuple(
    fc.integer({ min: 0, max: 8 }),
    fc.array(fc.double({ min: 0, max: 0.999, noNaN: true }), { minLength: 3, maxLength: 3 }),
  ),
  { maxLength: 6 },
);

function chain(shape: number[], path: [number, number[]][], source: Tensor): [Tensor, Plain] {
  const n = shape.reduce((a, b) => a * b, 1);
  let p = fromFlat(
    shape,
    Array.from({ length: n }, (_, i) => i),
  );
  let t = source.reshape(shape);
  for (const [kind, r] of path) [t, p] = step(kind, r, t, p);
  return [t, p];
}

describeInTurns("properties", (device) => {
  const runs = { numRuns: device.name === "cpu" ? 300 : 60 };
  const iota = (n: number, dtype: DType) =>
    Tensor.arange(0, n, { dtype: "f64", device }).affine(0.37, -3).toDType(dtype);

  it("any chain of views equals the same chain on plain arrays", () => {
    fc.assert(
      fc.property(shapes, steps, (shape, path) => {
        const n = shape.reduce((a, b) => a * b, 1);
        const [t, p] = chain(shape, path, Tensor.arange(0, n, { dtype: "u32", device }));
        expect(t.shape).toEqual(p.shape);
        expect(Array.from(t.dataSync() as Uint32Array)).toEqual(flatten(p));
      }),
      runs,
    );
  });

  type Op = (x: Tensor) => Tensor;
  const last = (x: Tensor) => (x.rank > 0 ? x : x.unsqueeze(0));
  const nonEmpty = (x: Tensor) => (x.shape.includes(0) ? Tensor.ones([2, 3], { dtype: x.dtype, device }) : last(x));
  const anyDType: Record<string, Op> = {
    copy: (x) => x.copy(),
    neg: (x) => x.neg(),
    affine: (x) => x.affine(2, 1),
    "add to itself reversed": (x) => x.add(x.flip(x.shape.map((_, i) => i))),
    compare: (x) => x.lt(x.flip(x.shape.map((_, i) => i))),
    where: (x) => x.gt(1).whereCond(x, x.neg()),
    cast: (x) => x.toDType("f32"),
    sum: (x) => last(x).sum(0),
    "sum of all": (x) => x.sumAll(),
    max: (x) => nonEmpty(x).max(-1),
    argmin: (x) => nonEmpty(x).argmin(0),
    argsort: (x) => last(x).argSortLastDim(),
    cumsum: (x) => last(x).cumsum(0),
    gather: (x) => nonEmpty(x).gather(nonEmpty(x).argSortLastDim(false), -1),
    "index select": (x) => nonEmpty(x).indexSelect(Tensor.zeros([3], { dtype: "u8", device }), -1),
    matmul: (x) => x.reshape([x.numel, 1]).matmul(x.reshape([1, x.numel])),
    cat: (x) => Tensor.cat([last(x), last(x)], 0),
  };
  const floatOnly: Record<string, Op> = {
    exp: (x) => x.exp(),
    gelu: (x) => x.gelu(),
    softmax: (x) => last(x).softmax(0),
    logSoftmax: (x) => last(x).logSoftmax(-1),
    layerNorm: (x) => layerNorm(last(x), null, null),
    rmsNorm: (x) => rmsNorm(last(x), null),
    var: (x) => nonEmpty(x).var(0),
  };

  /** Sums may be taken in another order over other strides; the rest must be equal to the bit. */
  const summing = new Set([
    "sum",
    "sum of all",
    "cumsum",
    "matmul",
    "softmax",
    "logSoftmax",
    "layerNorm",
    "rmsNorm",
    "var",
  ]);
  // Small floats are rounded once from f32, so they may differ by one unit in the last place.
  const slack = { f64: 64 * 2 ** -52, f32: 64 * 2 ** -23, f16: 2 ** -10, bf16: 2 ** -7, f8e4m3: 2 ** -3 };
  const expectClose = (got: Tensor, want: Tensor) => {
    const [a, b] = [got, want].map((t) => Array.from(t.toDType("f64").dataSync() as Float64Array)) as [
      number[],
      number[],
    ];
    // Results may be longer than an argument list.
    const scale = b.filter(Number.isFinite).reduce((most, x) => Math.max(most, Math.abs(x)), 1);
    const bound = slack[got.dtype as keyof typeof slack] * scale;
    for (const [i, v] of a.entries()) {
      if (!Object.is(v, b[i])) expect(Math.abs(v - b[i]!), `${v} and ${b[i]}`).toBeLessThanOrEqual(bound);
    }
  };

  it.each(Object.keys({ ...anyDType, ...floatOnly }))(
    "%s on a strided view equals it on the contiguous copy",
    (name) => {
      const op = (anyDType[name] ?? floatOnly[name])!;
      const dtypes = name in anyDType ? dtypeNames : dtypeNames.filter((d) => !isInt(d));
      fc.assert(
        fc.property(fc.constantFrom(...dtypes), shapes, steps, (dtype, shape, path) => {
          const n = shape.reduce((a, b) => a * b, 1);
          const source = isInt(dtype) ? Tensor.arange(0, n, { dtype: "i32", device }).toDType(dtype) : iota(n, dtype);
          const [view] = chain(shape, path, source);
          const expected = op(Tensor.fromBytes(view.bytesSync(), view.shape, dtype, device));
          const got = op(view);
          expect(got.shape).toEqual(expected.shape);
          expect(got.dtype).toBe(expected.dtype);
          if (summing.has(name) && !isInt(got.dtype)) expectClose(got, expected);
          else expect(got.dataSync()).toEqual(expected.dataSync());
        }),
        { numRuns: Math.ceil(runs.numRuns / 5) },
      );
    },
  );

  it("casting to a wider dtype and back changes nothing", () => {
    const widenings: [DType, DType][] = [
      ["u8", "i16"],
      ["u8", "f16"],
      ["u8", "bf16"],
      ["i16", "i32"],
      ["i16", "f32"],
      ["i32", "i64"],
      ["i32", "f64"],
      ["u32", "i64"],
      ["u32", "f64"],
      ["f8e4m3", "f16"],
      ["f8e4m3", "bf16"],
      ["f16", "f32"],
      ["bf16", "f32"],
      ["f32", "f64"],
    ];
    fc.assert(
      fc.property(
        fc.constantFrom(...widenings),
        fc.uint8Array({ minLength: 8, maxLength: 64 }),
        ([narrow, wide], bytes) => {
          const whole = bytes.slice(0, bytes.length & ~7);
          const size = Tensor.zeros([1], { dtype: narrow }).bytesSync().length;
          const x = Tensor.fromBytes(whole, [whole.length / size], narrow, device);
          expect(x.toDType(wide).toDType(narrow).dataSync()).toEqual(x.dataSync());
        },
      ),
      runs,
    );
  });
});
