import { describe, expect, it } from "vitest";
import { type DType, dtypeNames, isInt, Tensor } from "../../src/index.ts";
import { describeInTurns } from "../helpers/devices.ts";
import {
  build,
  erf,
  expectTensor,
  floats,
  ints,
  layouts,
  nearest,
  reader,
  sample,
  size,
  tensor,
  tolerance,
  wideFloats,
  wrap,
} from "../helpers/reference.ts";

const [NAN, INF] = [Number.NaN, Number.POSITIVE_INFINITY];
const normcdf = (x: number) => (x < -4 ? tail(-x) : 0.5 * (1 + erf(x / Math.SQRT2)));
/** Φ(−x) for x > 4 by its continued fraction, where 1 + erf cancels. */
function tail(x: number): number {
  let fraction = 0;
  for (let n = 100; n > 0; n--) fraction = n / (x + fraction);
  return Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI) / (x + fraction);
}
const roundAway = (x: number) => Math.sign(x) * Math.floor(Math.abs(x) + 0.5);
const sigmoid = (x: number) => 1 / (1 + Math.exp(-x));

const unary: Record<string, { run: (x: Tensor) => Tensor; of: (x: number) => number; positive?: boolean }> = {
  neg: { run: (x) => x.neg(), of: (x) => -x },
  recip: { run: (x) => x.recip(), of: (x) => 1 / x, positive: true },
  exp: { run: (x) => x.exp(), of: Math.exp },
  log: { run: (x) => x.log(), of: Math.log, positive: true },
  sin: { run: (x) => x.sin(), of: Math.sin },
  cos: { run: (x) => x.cos(), of: Math.cos },
  tanh: { run: (x) => x.tanh(), of: Math.tanh },
  erf: { run: (x) => x.erf(), of: erf },
  ceil: { run: (x) => x.ceil(), of: Math.ceil },
  floor: { run: (x) => x.floor(), of: Math.floor },
  round: { run: (x) => x.round(), of: roundAway },
  normcdf: { run: (x) => x.normcdf(), of: normcdf },
  abs: { run: (x) => x.abs(), of: Math.abs },
  sqr: { run: (x) => x.sqr(), of: (x) => x * x },
  sqrt: { run: (x) => x.sqrt(), of: Math.sqrt, positive: true },
  gelu: {
    run: (x) => x.gelu(),
    of: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  },
  geluErf: { run: (x) => x.geluErf(), of: (x) => x * normcdf(x) },
  relu: { run: (x) => x.relu(), of: (x) => Math.max(x, 0) },
  silu: { run: (x) => x.silu(), of: (x) => x * sigmoid(x) },
  sign: { run: (x) => x.sign(), of: Math.sign },
  sigmoid: { run: (x) => x.sigmoid(), of: sigmoid },
  elu: { run: (x) => x.elu(1.5), of: (x) => (x > 0 ? x : 1.5 * Math.expm1(x)) },
  "powf(2.5)": { run: (x) => x.powf(2.5), of: (x) => x ** 2.5, positive: true },
  "powf(3)": { run: (x) => x.powf(3), of: (x) => x ** 3 },
  "powf(-1)": { run: (x) => x.powf(-1), of: (x) => 1 / x, positive: true },
  "powf(0.5)": { run: (x) => x.powf(0.5), of: Math.sqrt, positive: true },
};

const onIntegers: Record<string, (x: bigint) => bigint> = {
  neg: (x) => -x,
  abs: (x) => (x < 0n ? -x : x),
  sqr: (x) => x * x,
  sign: (x) => (x > 0n ? 1n : x < 0n ? -1n : 0n),
  relu: (x) => (x < 0n ? 0n : x),
};

/** Tolerances of the transcendental functions: a few units in the last place. */
const close = (dtype: DType): number => ({ f32: 2e-6, f64: 1e-13 })[dtype as string] ?? tolerance(dtype);

describeInTurns("Elementwise", (device) => {
  describe.each(Object.keys(unary))("%s", (name) => {
    const { run, of, positive } = unary[name]!;
    const values = Array.from({ length: 77 }, (_, i) => (positive ? 0.05 + i * 0.13 : (i - 38) * 0.19));

    it.each(floats)("follows its formula in %s", (dtype) => {
      const x = values.map((v) => nearest(v, dtype));
      const want = x.map((v) => nearest(of(v), dtype));
      const y = run(tensor(x, [7, 11], { dtype, device }));
      // f8 has few digits: a value near a tie may round to the neighbour.
      expectTensor(y, { shape: [7, 11], dtype, values: want, within: close(dtype) * 2 });
    });

    it("reads every layout and keeps the sizes, empty ones too", () => {
      const [shape, dtype] = [[2, 3, 5], "f32"] as const;
      const x = build(shape, ([a, b, c]) => 0.5 + a! + b! * 0.25 + c! * 0.125);
      for (const [what, t] of layouts(x, shape, { dtype, device })) {
        expectTensor(run(t), { shape, values: x.map(of), within: 4e-6, what });
      }
      expect(run(Tensor.zeros([2, 0, 3], { device })).shape).toEqual([2, 0, 3]);
      expectTensor(run(tensor([1.5], [], { dtype, device })), { shape: [], values: [of(1.5)], within: 4e-6 });
      expectTensor(run(tensor([1.5], [1, 1, 1, 1, 1, 1, 1, 1], { dtype, device })), {
        shape: [1, 1, 1, 1, 1, 1, 1, 1],
        values: [of(1.5)],
        within: 4e-6,
      });
      const spread = tensor([0.5, 1.5], [2, 1], { dtype, device }).broadcastAs([3, 2, 4]);
      const want = build([3, 2, 4], ([, b]) => of(b === 0 ? 0.5 : 1.5));
      expectTensor(run(spread), { shape: [3, 2, 4], values: want, within: 4e-6 });
    });

    it("agrees with itself at every length around the vector width", () => {
      const all = Array.from({ length: 40 }, (_, i) => 0.25 + i / 16);
      const whole = [...run(tensor(all, [40], { dtype: "f32", device })).dataSync()];
      for (let n = 1; n < 40; n++) {
        expect([...run(tensor(all.slice(0, n), [n], { dtype: "f32", device })).dataSync()]).toEqual(whole.slice(0, n));
      }
    });

    // What the sign of NaN is, is left open.
    it.each(name === "sign" ? [] : wideFloats)("keeps NaN in %s", (dtype) => {
      expect(run(tensor([NAN], [1], { dtype, device })).toScalarSync()).toBeNaN();
    });
  });

  it.each(wideFloats)("goes to its limits at the infinities and at zero in %s", (dtype) => {
    const cases: [string, (x: Tensor) => Tensor, number, number][] = [
      ["exp(-inf)", (x) => x.exp(), -INF, 0],
      ["exp(inf)", (x) => x.exp(), INF, INF],
      ["exp(1000)", (x) => x.exp(), 1000, INF],
      ["exp(-1000)", (x) => x.exp(), -1000, 0],
      ["log(0)", (x) => x.log(), 0, -INF],
      ["log(-0)", (x) => x.log(), -0, -INF],
      ["log(-1)", (x) => x.log(), -1, NAN],
      ["log(inf)", (x) => x.log(), INF, INF],
      ["log(1)", (x) => x.log(), 1, 0],
      ["sqrt(-1)", (x) => x.sqrt(), -1, NAN],
      ["sqrt(inf)", (x) => x.sqrt(), INF, INF],
      ["recip(0)", (x) => x.recip(), 0, INF],
      ["recip(-0)", (x) => x.recip(), -0, -INF],
      ["recip(-inf)", (x) => x.recip(), -INF, -0],
      ["sin(inf)", (x) => x.sin(), INF, NAN],
      ["cos(-inf)", (x) => x.cos(), -INF, NAN],
      ["sin(-0)", (x) => x.sin(), -0, -0],
      ["tanh(inf)", (x) => x.tanh(), INF, 1],
      ["tanh(-inf)", (x) => x.tanh(), -INF, -1],
      ["tanh(100)", (x) => x.tanh(), 100, 1],
      ["erf(inf)", (x) => x.erf(), INF, 1],
      ["erf(-inf)", (x) => x.erf(), -INF, -1],
      ["sigmoid(inf)", (x) => x.sigmoid(), INF, 1],
      ["sigmoid(-inf)", (x) => x.sigmoid(), -INF, 0],
      ["sigmoid(-2000)", (x) => x.sigmoid(), -2000, 0],
      ["silu(inf)", (x) => x.silu(), INF, INF],
      ["silu(-2000)", (x) => x.silu(), -2000, -0],
      ["gelu(inf)", (x) => x.gelu(), INF, INF],
      ["gelu(-100)", (x) => x.gelu(), -100, -0],
      ["geluErf(100)", (x) => x.geluErf(), 100, 100],
      ["geluErf(-100)", (x) => x.geluErf(), -100, -0],
      ["normcdf(inf)", (x) => x.normcdf(), INF, 1],
      ["normcdf(-inf)", (x) => x.normcdf(), -INF, 0],
      ["relu(-inf)", (x) => x.relu(), -INF, 0],
      ["relu(inf)", (x) => x.relu(), INF, INF],
      ["sign(-inf)", (x) => x.sign(), -INF, -1],
      ["sign(0)", (x) => x.sign(), 0, 0],
      ["neg(0)", (x) => x.neg(), 0, -0],
      ["abs(-inf)", (x) => x.abs(), -INF, INF],
      ["abs(-0)", (x) => x.abs(), -0, 0],
      ["floor(-inf)", (x) => x.floor(), -INF, -INF],
      ["round(0.5)", (x) => x.round(), 0.5, 1],
      ["round(-0.5)", (x) => x.round(), -0.5, -1],
      ["round(2.5)", (x) => x.round(), 2.5, 3],
      ["round(-2.5)", (x) => x.round(), -2.5, -3],
      ["round(inf)", (x) => x.round(), INF, INF],
      ["round(1024)", (x) => x.round(), 1024, 1024],
      ["elu(-inf)", (x) => x.elu(2), -INF, -2],
      ["elu(0)", (x) => x.elu(), 0, 0],
      ["powf(0): 0", (x) => x.powf(0), 0, 1],
      ["powf(0): NaN", (x) => x.powf(0), NAN, 1],
      ["powf(0.5): -1", (x) => x.powf(0.5), -1, NAN],
      ["powf(3): -2", (x) => x.powf(3), -2, -8],
      ["powf(-2): 0", (x) => x.powf(-2), 0, INF],
      ["powf(0.5): inf", (x) => x.powf(0.5), INF, INF],
    ];
    for (const [name, run, input, want] of cases) {
      const got = run(tensor([input], [1], { dtype, device })).toScalarSync();
      if (want === 0 && !name.startsWith("neg") && !name.startsWith("abs") && !name.startsWith("recip")) {
        expect(Math.abs(Number(got)), name).toBe(0);
      } else expect(got, name).toBe(want);
    }
  });

  it("is exact where the argument is large", () => {
    const x = [100, -100, 1000.5, -31415.926, 1e5];
    const f64 = tensor(x, [5], { dtype: "f64", device });
    expectTensor(f64.sin(), { shape: [5], values: x.map(Math.sin), within: 1e-13 });
    expectTensor(f64.cos(), { shape: [5], values: x.map(Math.cos), within: 1e-13 });
    const single = x.map(Math.fround);
    const f32 = tensor(single, [5], { dtype: "f32", device });
    expectTensor(f32.sin(), { shape: [5], values: single.map(Math.sin), within: 2e-6 });
    expectTensor(f32.cos(), { shape: [5], values: single.map(Math.cos), within: 2e-6 });
  });

  it.each(["bf16", "f16"] as const)("turns large %s angles, near multiples of π/2 and among small ones", (dtype) => {
    // A unit in the last place of the result: what is next to a zero of the sine must keep its leading bits.
    const unit = dtype === "bf16" ? 2 ** -7 : 2 ** -10;
    const some = [0.3, 1.5703125, 3.140625, -6.28125, 355, 10005, -31408, 60000];
    const far = dtype === "bf16" ? [99840, 1e5, -2e5, 3.3e8, 1e20, -3e38] : [];
    const x = [...some, ...far, ...some].map((v) => nearest(v, dtype));
    const t = tensor(x, [x.length], { dtype, device });
    for (const [name, of] of [
      ["sin", Math.sin],
      ["cos", Math.cos],
    ] as const) {
      const got = Array.from(t[name]().toDType("f32").dataSync() as Float32Array);
      const off = got.map((y, i) => Math.abs(y - of(x[i]!)) / Math.max(Math.abs(of(x[i]!)), 2 ** -14));
      expect(
        off.map((o, i) => (o <= unit ? "" : `${name}(${x[i]}) is ${got[i]}, off by ${o}`)).filter(Boolean),
      ).toEqual([]);
    }
  });

  it("is exact for tiny arguments, where 1 + x would lose them", () => {
    for (const [dtype, x, within] of [
      ["f32", Math.fround(1e-6), 1e-12],
      ["f64", 1e-12, 1e-26],
    ] as const) {
      const t = tensor([x, -x], [2], { dtype, device });
      const small = (got: Tensor, slope: number) => {
        const [a, b] = got.dataSync() as Float64Array;
        expect(Math.abs(a! - slope * x)).toBeLessThan(within);
        expect(Math.abs(b! + slope * x)).toBeLessThan(within);
      };
      small(t.sin(), 1);
      small(t.tanh(), 1);
      small(t.erf(), 2 / Math.sqrt(Math.PI));
    }
  });

  describe.each(ints)("unary operations on %s", (dtype) => {
    const extremes: Record<string, bigint[]> = {
      u8: [0n, 1n, 127n, 128n, 255n],
      u32: [0n, 1n, 65537n, 2n ** 31n, 2n ** 32n - 1n],
      i16: [0n, -1n, 32767n, -32768n, 181n],
      i32: [0n, -1n, 2n ** 31n - 1n, -(2n ** 31n), 46341n],
      i64: [0n, -1n, 2n ** 63n - 1n, -(2n ** 63n), 3037000500n],
    };
    const bits = { u8: 8, u32: 32, i16: 16, i32: 32, i64: 64 }[dtype as "u8"];
    const fold = (x: bigint) => (dtype.startsWith("u") ? BigInt.asUintN(bits, x) : BigInt.asIntN(bits, x));
    it.each(Object.keys(onIntegers))("%s wraps as integers do", (name) => {
      const x = Tensor.from(extremes[dtype]!, { dtype, device });
      const got = Array.from(unary[name]!.run(x).dataSync() as ArrayLike<number | bigint>, BigInt);
      expect(got).toEqual(extremes[dtype]!.map((v) => fold(onIntegers[name]!(v))));
    });
  });

  describe("affine, clamp and roundTo", () => {
    it.each(dtypeNames)("affine multiplies and adds in %s", (dtype) => {
      const shape = [3, 7];
      const x = sample(shape, dtype);
      for (const [what, t] of layouts(x, shape, { dtype, device })) {
        expectTensor(t.affine(3, 1), { shape, dtype, values: x.map((v) => nearest(v * 3 + 1, dtype)), what });
      }
    });

    it("affine takes fractions for floats only, and -1 for signed integers", () => {
      expectTensor(tensor([1, 2], [2], { dtype: "f64", device }).affine(0.1, 0.2), {
        shape: [2],
        values: [0.1 + 0.2, 0.2 + 0.2],
        within: 1e-15,
      });
      expect([...tensor([1, 2], [2], { dtype: "i32", device }).affine(-1, -5).dataSync()]).toEqual([-6, -7]);
      expect([...tensor([250], [1], { dtype: "u8", device }).affine(1, 10).dataSync()]).toEqual([4]);
    });

    it.each(dtypeNames)("clamp limits both ends in %s", (dtype) => {
      const x = isInt(dtype) ? [0, 1, 5, 9, 100] : [-3, 1, 5, 9, 100];
      expectTensor(tensor(x, [5], { dtype, device }).clamp(1, 9), { shape: [5], dtype, values: [1, 1, 5, 9, 9] });
    });

    it("clamp keeps NaN, takes tensors as limits, and prefers the upper one", () => {
      const x = tensor([NAN, -5, 5], [3], { dtype: "f32", device });
      expectTensor(x.clamp(-1, 1), { shape: [3], values: [NAN, -1, 1] });
      expectTensor(x.clamp(tensor([0, -9, 0], [3], { dtype: "f32", device }), 3), { shape: [3], values: [NAN, -5, 3] });
      expectTensor(x.clamp(2, 1), { shape: [3], values: [NAN, 1, 1] });
    });

    it("roundTo keeps the digits asked for, also left of the point", () => {
      const x = tensor([1.2345, -1.2355, 1250, 0.005], [4], { dtype: "f64", device });
      expectTensor(x.roundTo(2), { shape: [4], values: [1.23, -1.24, 1250, 0.01], within: 1e-15 });
      expectTensor(x.roundTo(-2), { shape: [4], values: [0, -0, 1300, 0], within: 1e-15 });
      expectTensor(x.roundTo(0), { shape: [4], values: [1, -1, 1250, 0] });
    });
  });

  const floatDiv = (a: number, b: number) => a / b;
  const intDiv = (a: number, b: number) => Math.trunc(a / b);
  const binary: Record<string, (a: number, b: number) => number> = {
    add: (a, b) => a + b,
    sub: (a, b) => a - b,
    mul: (a, b) => a * b,
    div: floatDiv,
    maximum: Math.max,
    minimum: Math.min,
  };
  type Binary = "add" | "sub" | "mul" | "div" | "maximum" | "minimum";

  describe.each(Object.keys(binary) as Binary[])("%s", (name) => {
    it.each(dtypeNames)("computes in %s over every pair of layouts", (dtype) => {
      const of = name === "div" && isInt(dtype) ? intDiv : binary[name]!;
      const shape = [2, 3, 7];
      const a = sample(shape, dtype, 3);
      // Divisors stay away from zero, which has its own test.
      const b = sample(shape, dtype, 8).map((v) => (name === "div" && v === 0 ? 1 : v));
      const want = a.map((v, i) => nearest(of(v, b[i]!), dtype));
      const right = layouts(b, shape, { dtype, device });
      for (const [left, x] of layouts(a, shape, { dtype, device })) {
        for (const [r, y] of right) {
          expectTensor(x[name](y), { shape, dtype, values: want, what: `${left} ${name} ${r}` });
        }
      }
    });

    it("broadcasts by NumPy's rule", () => {
      const shapes: [number[], number[], number[]][] = [
        [[], [], []],
        [[3, 4], [], [3, 4]],
        [[], [2], [2]],
        [
          [3, 1],
          [1, 4],
          [3, 4],
        ],
        [[4], [3, 4], [3, 4]],
        [
          [2, 1, 4],
          [3, 1],
          [2, 3, 4],
        ],
        [
          [5, 1],
          [1, 70],
          [5, 70],
        ],
        [[70], [5, 1], [5, 70]],
        [
          [1, 2, 1, 2, 1, 2, 1, 2],
          [2, 1, 2, 1, 2, 1, 2, 1],
          [2, 2, 2, 2, 2, 2, 2, 2],
        ],
        [[0], [1], [0]],
        [
          [3, 0],
          [1, 1],
          [3, 0],
        ],
        [
          [2, 3],
          [2, 3],
          [2, 3],
        ],
      ];
      for (const [sa, sb, shape] of shapes) {
        const [a, b] = [sample(sa, "f32", 1), sample(sb, "f32", 5).map((v) => v || 1)];
        const pick = (values: number[], own: number[]) => {
          const at = reader(values, own);
          return (index: number[]) => at(...own.map((n, d) => (n === 1 ? 0 : index[shape.length - own.length + d]!)));
        };
        const [left, right] = [pick(a, sa), pick(b, sb)];
        const values = build(shape, (index) => Math.fround(binary[name]!(left(index), right(index))));
        const y = tensor(a, sa, { dtype: "f32", device })[name](tensor(b, sb, { dtype: "f32", device }));
        expectTensor(y, { shape, values, what: `[${sa}] ${name} [${sb}]` });
      }
    });

    it.each(dtypeNames)("takes a number in the tensor's dtype %s", (dtype) => {
      const of = name === "div" && isInt(dtype) ? intDiv : binary[name]!;
      const x = sample([2, 9], dtype);
      const want = x.map((v) => nearest(of(v, 2), dtype));
      expectTensor(tensor(x, [2, 9], { dtype, device })[name](2), { shape: [2, 9], dtype, values: want });
      if (dtype === "i64") {
        expectTensor(tensor(x, [2, 9], { dtype, device })[name](2n), { shape: [2, 9], dtype, values: want });
      }
    });

    it("agrees with itself at every length around the vector width", () => {
      for (const dtype of dtypeNames) {
        const of = name === "div" && isInt(dtype) ? intDiv : binary[name]!;
        for (const n of [1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 65, 129]) {
          const [a, b] = [sample([n], dtype, 2), sample([n], dtype, 11).map((v) => v || 1)];
          const values = a.map((v, i) => nearest(of(v, b[i]!), dtype));
          const options = { dtype, device };
          expectTensor(tensor(a, [n], options)[name](tensor(b, [n], options)), { shape: [n], values, what: dtype });
        }
      }
    });
  });

  it.each(["u8", "u32", "i16", "i32"] as const)("add, sub and mul wrap in %s", (dtype) => {
    const x = { u8: 255, u32: 2 ** 32 - 1, i16: 32767, i32: 2 ** 31 - 1 }[dtype];
    const t = tensor([x], [1], { dtype, device });
    expect(t.add(1).toScalarSync()).toBe(wrap(BigInt(x) + 1n, dtype));
    expect(t.mul(t).toScalarSync()).toBe(wrap(BigInt(x) ** 2n, dtype));
    expect(tensor([0], [1], { dtype, device }).sub(t).toScalarSync()).toBe(wrap(-BigInt(x), dtype));
  });

  it("64-bit integers are computed in 64 bits", () => {
    const big = 2n ** 53n + 1n;
    const t = Tensor.from([big, 2n ** 63n - 1n], { device });
    expect(t.add(1).toArraySync()).toEqual([big + 1n, -(2n ** 63n)]);
    expect(t.mul(3n).toArraySync()).toEqual([big * 3n, BigInt.asIntN(64, (2n ** 63n - 1n) * 3n)]);
    expect(t.maximum(big + 1n).toArraySync()).toEqual([big + 1n, 2n ** 63n - 1n]);
    expect(t.div(big).toArraySync()).toEqual([1n, 1023n]);
    expect(t.eq(big).toArraySync()).toEqual([1, 0]);
    expect(t.gt(2n ** 53n).toArraySync()).toEqual([1, 1]);
  });

  it("division by zero gives infinities and NaN for floats and does not end an integer computation", () => {
    for (const dtype of wideFloats) {
      const t = tensor([1, -1, 0], [3], { dtype, device });
      expectTensor(t.div(0), { shape: [3], values: [INF, -INF, NAN] });
    }
    for (const dtype of ints) {
      expectTensor(tensor([7, 0], [2], { dtype, device }).div(0), { shape: [2], dtype, values: [0, 0] });
    }
    const least = Tensor.from([-(2n ** 63n)], { device });
    expect(least.div(-1).toScalarSync()).toBe(-(2n ** 63n));
  });

  it("integer division truncates toward zero", () => {
    expect([...tensor([7, -7, 7, -7], [4], { dtype: "i32", device }).div(2).dataSync()]).toEqual([3, -3, 3, -3]);
    expect([...tensor([-7], [1], { dtype: "i16", device }).div(-2).dataSync()]).toEqual([3]);
    expect([
      ...tensor([2 ** 32 - 1], [1], { dtype: "u32", device })
        .div(2)
        .dataSync(),
    ]).toEqual([2 ** 31 - 1]);
  });

  it.each(wideFloats)("maximum and minimum propagate NaN from either side in %s", (dtype) => {
    const a = tensor([NAN, 1, NAN, INF], [4], { dtype, device });
    const b = tensor([1, NAN, NAN, 1], [4], { dtype, device });
    expectTensor(a.maximum(b), { shape: [4], values: [NAN, NAN, NAN, INF] });
    expectTensor(a.minimum(b), { shape: [4], values: [NAN, NAN, NAN, 1] });
  });

  describe("pow", () => {
    it.each(floats)("raises floats in %s", (dtype) => {
      const a = [0.5, 1, 2, 3, 1.5, -2, -1, 0];
      const b = [2, 5, 3, 2, 0.5, 3, 2, 0];
      const y = tensor(a, [8], { dtype, device }).pow(tensor(b, [8], { dtype, device }));
      const values = a.map((v, i) => nearest(v ** b[i]!, dtype));
      expectTensor(y, { shape: [8], dtype, values, within: tolerance(dtype, 2) });
    });

    it("follows IEEE at the edges", () => {
      const cases: [number, number, number][] = [
        [NAN, 0, 1],
        [1, NAN, 1],
        [1, INF, 1],
        [-8, 1 / 3, NAN],
        [0, -1, INF],
        [INF, -1, 0],
        [-INF, 3, -INF],
        [0.5, INF, 0],
        [2, INF, INF],
        [2, -INF, 0],
      ];
      for (const dtype of ["f32", "f64"] as const) {
        for (const [a, b, want] of cases) {
          const y = tensor([a], [1], { dtype, device }).pow(tensor([b], [1], { dtype, device }));
          expect(y.toScalarSync(), `${a} ** ${b} in ${dtype}`).toBe(want);
        }
      }
    });

    it.each(ints)("raises integers exactly in %s", (dtype) => {
      const a = [0, 1, 2, 3, 5, 2];
      const b = [0, 7, 6, 4, 3, 0];
      const y = tensor(a, [6], { dtype, device }).pow(tensor(b, [6], { dtype, device }));
      expectTensor(y, { shape: [6], dtype, values: [1, 1, 64, 81, 125, 1] });
      expectTensor(tensor([7], [1], { dtype, device }).pow(10), {
        shape: [1],
        dtype,
        values: [wrap(7n ** 10n, dtype)],
      });
    });

    it("with a negative exponent leaves only 1 and −1", () => {
      const y = tensor([2, 1, -1, -1], [4], { dtype: "i32", device }).pow(
        tensor([-1, -3, -3, -2], [4], { dtype: "i32", device }),
      );
      expect([...y.dataSync()]).toEqual([0, 1, -1, 1]);
    });
  });

  const compare = {
    eq: (a: number, b: number) => a === b,
    ne: (a: number, b: number) => a !== b,
    lt: (a: number, b: number) => a < b,
    le: (a: number, b: number) => a <= b,
    gt: (a: number, b: number) => a > b,
    ge: (a: number, b: number) => a >= b,
  };
  describe.each(Object.keys(compare) as (keyof typeof compare)[])("%s", (name) => {
    const of = compare[name];
    it.each(dtypeNames)("compares %s to u8", (dtype) => {
      const shape = [3, 2, 9];
      const [a, b] = [sample(shape, dtype, 1), sample(shape, dtype, 4).map((v, i) => (i % 3 ? v : 1))];
      const values = a.map((v, i) => Number(of(v, b[i]!)));
      const right = layouts(b, shape, { dtype, device });
      for (const [what, x] of layouts(a, shape, { dtype, device })) {
        for (const [, y] of right) expectTensor(x[name](y), { shape, dtype: "u8", values, what });
      }
      expectTensor(tensor(a, shape, { dtype, device })[name](2), {
        shape,
        dtype: "u8",
        values: a.map((v) => Number(of(v, 2))),
      });
      expect(Tensor.zeros([0, 4], { dtype, device })[name](1).shape).toEqual([0, 4]);
    });

    it("says nothing true of NaN but that it differs; zeros are equal", () => {
      for (const dtype of wideFloats) {
        const a = tensor([NAN, 1, NAN, 0, INF], [5], { dtype, device });
        const b = tensor([1, NAN, NAN, -0, INF], [5], { dtype, device });
        const want = [of(NAN, 1), of(1, NAN), of(NAN, NAN), of(0, -0), of(INF, INF)].map(Number);
        expectTensor(a[name](b), { shape: [5], dtype: "u8", values: want, what: dtype });
      }
    });

    it("broadcasts, also over long rows", () => {
      const a = sample([40], "f32", 2);
      const b = sample([3, 1], "f32", 5);
      const y = tensor(a, [40], { dtype: "f32", device })[name](tensor(b, [3, 1], { dtype: "f32", device }));
      expectTensor(y, { shape: [3, 40], values: build([3, 40], ([i, j]) => Number(of(a[j!]!, b[i!]!))) });
    });
  });

  it("compares the extremes of unsigned integers as unsigned", () => {
    const t = tensor([0, 2 ** 31, 2 ** 32 - 1], [3], { dtype: "u32", device });
    expect([...t.gt(1).dataSync()]).toEqual([0, 1, 1]);
    expect([...t.maximum(5).dataSync()]).toEqual([5, 2 ** 31, 2 ** 32 - 1]);
    expect([...tensor([200], [1], { dtype: "u8", device }).gt(100).dataSync()]).toEqual([1]);
  });

  describe("whereCond", () => {
    it.each(["u8", "u32", "i64"] as const)("selects by any condition that is not 0, of %s", (condType) => {
      for (const dtype of dtypeNames) {
        const shape = [2, 3, 5];
        const [a, b] = [sample(shape, dtype, 1), sample(shape, dtype, 9)];
        const c = build(shape, ([i, j, k]) => (i! + j! + k!) % 3);
        const values = c.map((v, i) => (v ? a[i]! : b[i]!));
        const [t, f] = [layouts(a, shape, { dtype, device }), layouts(b, shape, { dtype, device })];
        for (const [i, [what, cond]] of layouts(c, shape, { dtype: condType, device }).entries()) {
          expectTensor(cond.whereCond(t[i]![1], f[3 - i]![1]), { shape, dtype, values, what });
        }
      }
    });

    it("broadcasts all three", () => {
      const cond = tensor([1, 0], [2, 1, 1], { dtype: "u8", device });
      const a = tensor([1, 2, 3], [3, 1], { dtype: "f32", device });
      const b = tensor([-1, -2, -3, -4], [4], { dtype: "f32", device });
      const values = build([2, 3, 4], ([i, j, k]) => (i === 0 ? j! + 1 : -k! - 1));
      expectTensor(cond.whereCond(a, b), { shape: [2, 3, 4], values });
    });

    it("does not mix NaN from the side that is not taken", () => {
      const cond = tensor([1, 0], [2], { dtype: "u8", device });
      const one = Tensor.ones([2], { device });
      const bad = Tensor.full([2], NAN, { device });
      expectTensor(cond.whereCond(one, bad), { shape: [2], values: [1, NAN] });
    });

    it("selects nothing from nothing", () => {
      const none = Tensor.zeros([0, 3], { device });
      expect(Tensor.zeros([0, 3], { dtype: "u8", device }).whereCond(none, none).shape).toEqual([0, 3]);
    });
  });

  describe("toDType", () => {
    it("converts every dtype to every other, in every layout", () => {
      const shape = [2, 3, 5];
      for (const from of dtypeNames) {
        const x = sample(shape, isInt(from) ? "u8" : from);
        for (const to of dtypeNames) {
          // Negative floats to unsigned integers saturate, and have a test of their own.
          const values = x.map((v) => (isInt(to) ? Math.max(Math.trunc(v), to.startsWith("u") ? 0 : -9) : v));
          for (const [what, t] of layouts(x, shape, { dtype: from, device })) {
            expectTensor(t.toDType(to), { shape, dtype: to, values, what: `${from} to ${to}, ${what}` });
          }
        }
      }
    });

    it("is a view where the dtype stays", () => {
      const t = tensor([1, 2], [2], { dtype: "f16", device });
      expect(t.toDType("f16").storage).toBe(t.storage);
    });

    const ranges: Record<string, [bigint, bigint]> = {
      u8: [0n, 255n],
      u32: [0n, 2n ** 32n - 1n],
      i16: [-32768n, 32767n],
      i32: [-(2n ** 31n), 2n ** 31n - 1n],
      i64: [-(2n ** 63n), 2n ** 63n - 1n],
    };
    it.each(ints)("floats saturate in %s, fractions are cut off and NaN gives 0", (to) => {
      const [low, high] = ranges[to]!;
      for (const dtype of wideFloats) {
        const x = tensor([INF, -INF, NAN, 2.75, -0.75, dtype === "f16" ? INF : 1e30], [6], { dtype, device });
        const got = Array.from(x.toDType(to).dataSync() as ArrayLike<number | bigint>, BigInt);
        expect(got, dtype).toEqual([high, low, 0n, 2n, 0n, high]);
      }
      const negative = tensor([-5.5], [1], { dtype: "f32", device }).toDType(to).toScalarSync();
      expect(Number(negative)).toBe(low === 0n ? 0 : -5);
    });

    it("integers wrap", () => {
      const x = tensor([300, -1, 65537, -32769], [4], { dtype: "i32", device });
      expect([...x.toDType("u8").dataSync()]).toEqual([44, 255, 1, 255]);
      expect([...x.toDType("i16").dataSync()]).toEqual([300, -1, 1, 32767]);
      expect([...x.toDType("u32").dataSync()]).toEqual([300, 2 ** 32 - 1, 65537, 2 ** 32 - 32769]);
      expect(x.toDType("i64").toArraySync()).toEqual([300n, -1n, 65537n, -32769n]);
      expect(
        Tensor.from([2n ** 40n + 7n, -1n], { device })
          .toDType("i32")
          .toArraySync(),
      ).toEqual([7, -1]);
      expect(
        tensor([2 ** 32 - 1], [1], { dtype: "u32", device })
          .toDType("i64")
          .toScalarSync(),
      ).toBe(2n ** 32n - 1n);
    });

    it("rounds to the nearest smaller float, ties to even", () => {
      const x = [1 + 2 ** -8, 1 + 3 * 2 ** -8, 1 / 3, 65519, 70000, 1e-7, 6e-8, -0, 1e39, 447, 449, 500, 0.0009765625];
      for (const from of ["f32", "f64"] as const) {
        for (const to of ["bf16", "f16", "f8e4m3"] as const) {
          const t = tensor(x, [x.length], { dtype: from, device });
          const values = x.map((v) => nearest(Math.fround(v), to));
          expectTensor(t.toDType(to), { shape: [x.length], dtype: to, values, what: `${from} to ${to}` });
        }
      }
    });

    it("every f16, bf16 and f8e4m3 survives the way to f32 and back", () => {
      for (const [dtype, count] of [
        ["f16", 65536],
        ["bf16", 65536],
        ["f8e4m3", 256],
      ] as const) {
        const bytes =
          dtype === "f8e4m3"
            ? Uint8Array.from({ length: count }, (_, i) => i)
            : new Uint8Array(Uint16Array.from({ length: count }, (_, i) => i).buffer);
        const t = Tensor.fromBytes(bytes, [count], dtype, device);
        const wide = t.toDType("f32");
        const numbers = wide.dataSync() as Float32Array;
        expect(numbers).toEqual(t.dataSync());
        const back = wide.toDType(dtype).bytesSync();
        const step = bytes.length / count;
        for (let i = 0; i < count; i++) {
          if (Number.isNaN(numbers[i]!)) continue;
          for (let b = 0; b < step; b++) if (back[i * step + b] !== bytes[i * step + b]) expect.fail(`${dtype} ${i}`);
        }
      }
    });

    it("converts nothing to nothing", () => {
      for (const dtype of dtypeNames) expect(Tensor.zeros([2, 0], { device }).toDType(dtype).shape).toEqual([2, 0]);
    });
  });

  it("splits long operations among threads with the same result", () => {
    const shape = [300, 1000];
    const n = size(shape);
    const x = Tensor.arange(n, undefined, { dtype: "f64", device }).reshape(shape);
    const y = x.affine(2, 1).sqrt().add(x.t().contiguous().reshape(shape));
    const got = y.dataSync() as Float64Array;
    for (let i = 0; i < n; i += 997) {
      const transposed = (i % 300) * 1000 + Math.floor(i / 300);
      expect(got[i]).toBe(Math.sqrt(2 * i + 1) + transposed);
    }
  });
});
