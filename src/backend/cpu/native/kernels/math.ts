/**
 * Functions of floats, vector by vector: the formulas of wasm/math.ts, step by step, so that both give the same bits
 * where WebAssembly has fused multiply-add. Each works in place and uses the registers in `t`.
 */
import type { UnaryOp } from "../../../backend.ts";
import type { Vec } from "../operands.ts";
import type { Simd } from "../simd.ts";

/** 1.5 · 2^23: adding it rounds to an integer and leaves that integer in the low mantissa bits. */
const ROUNDER = 12582912;
const LOG2_E = Math.LOG2E;
/** ln 2 in two parts, of which the first has 15 bits. */
const LN2_HEAD = 0.693145751953125;
const LN2_REST = 1.42860682e-6;

export type Temps = readonly [Vec, Vec, Vec, Vec, Vec, Vec, Vec, Vec];

/** Horner's rule: x ↦ (…(c₀·x + c₁)·x + …) into `dst`. */
function polynomial(s: Simd, dst: Vec, x: Vec, coefficients: readonly number[]): void {
  const [first, ...rest] = coefficients as [number, ...number[]];
  s.set(dst, first);
  for (const c of rest) s.a.vfmadd213ps(dst, x, s.constant(c));
}

/** x becomes its rest r, t0 holds n as an integer in the low bits of the rounder, and t1 n as a float. */
function reduce(s: Simd, x: Vec, t0: Vec, t1: Vec): void {
  const { a } = s;
  s.set(t0, ROUNDER);
  a.vfmadd231ps(t0, x, s.constant(LOG2_E));
  a.vsubps(t1, t0, s.constant(ROUNDER));
  a.vfmadd231ps(x, t1, s.constant(-LN2_HEAD));
  a.vfmadd231ps(x, t1, s.constant(-LN2_REST));
}

/** x becomes e^x for a small one. */
function expand(s: Simd, x: Vec, [, , t2, t3, t4]: Temps): void {
  const { a } = s;
  a.vmulps(t2, x, x);
  s.set(t4, 0.041668389);
  a.vfmadd231ps(t4, x, s.constant(0.00836874545));
  s.set(t3, 0.00138145406);
  a.vfmadd213ps(t3, t2, t4);
  s.set(t4, 0.49999994);
  a.vfmadd231ps(t4, x, s.constant(0.166665211));
  a.vfmadd213ps(t3, t2, t4);
  a.vaddps(x, x, s.constant(1));
  a.vfmadd231ps(x, t3, t2);
}

function reduceAndExpand(s: Simd, x: Vec, t: Temps, correction?: Vec): void {
  reduce(s, x, t[0], t[1]);
  if (correction) s.a.vaddps(x, x, correction);
  expand(s, x, t);
}

/** No further than where results are 0 or infinite; `t` is used. */
function clamp(s: Simd, x: Vec, t: Vec): void {
  s.atLeast(x, -104.5, t);
  s.atMost(x, 89, t);
}

/** The bits of 86: up to there 2^n goes into the exponent of e^r as it is. */
const USUAL = 0x42ac0000;

/** e^x, or e^(x + correction) for a tiny one. */
export function exp(s: Simd, x: Vec, t: Temps, correction?: Vec): void {
  const { a } = s;
  const [t0, t1] = t;
  if (s.isa.masks) {
    clamp(s, x, t0);
    reduceAndExpand(s, x, t, correction);
    a.vscalefps(x, x, t1);
    return;
  }
  // Larger in magnitude, or no number.
  const [unusual, end] = [a.label(), a.label()];
  s.and(t0, x, allButSign(s));
  a.vpcmpgtd(t0, t0, s.constantInt(USUAL));
  a.vptest(t0, t0);
  a.jne(unusual);
  reduceAndExpand(s, x, t, correction);
  a.vpslld(t0, t0, 23);
  a.vpaddd(x, x, t0);
  a.jmp(end);
  a.bind(unusual);
  clamp(s, x, t0);
  reduceAndExpand(s, x, t, correction);
  // 2^n goes in as two factors, so that subnormal results round once.
  a.vpsubd(t0, t0, s.constantInt(0x4b400000 - 254));
  a.vpsrad(t1, t0, 1);
  a.vpsubd(t0, t0, t1);
  a.vpslld(t1, t1, 23);
  a.vpslld(t0, t0, 23);
  a.vmulps(x, x, t1);
  a.vmulps(x, x, t0);
  a.bind(end);
}

/**
 * The same in two parts, with n in between (AVX-512): each step waits for the one before, and the processor looks no further
 * ahead than some four vectors, so that the first part of the next one has to stand before the second of this one.
 */
export const expInTwo = {
  begin(s: Simd, x: Vec, n: Vec, t: Vec): void {
    clamp(s, x, t);
    reduce(s, x, t, n);
  },
  end(s: Simd, x: Vec, n: Vec, t: Temps): void {
    expand(s, x, t);
    s.a.vscalefps(x, x, n);
  },
};

/** e^x for x ≤ 0 in fewer steps, within 2e-7 of itself; results below the smallest normal number are 0. */
export function expNegative(s: Simd, x: Vec, t: Temps): void {
  const { a } = s;
  const [n, t2, t3, t4] = t;
  s.atLeast(x, -88.02969, n);
  // The bias of exponents is in the rounder: the low bits are those of 2^n already.
  s.set(n, ROUNDER + 127);
  a.vfmadd231ps(n, x, s.constant(LOG2_E));
  a.vsubps(t2, n, s.constant(ROUNDER + 127));
  a.vfmadd231ps(x, t2, s.constant(-Math.LN2));
  a.vmulps(t2, x, x);
  s.set(t4, 0.49999228);
  a.vfmadd231ps(t4, x, s.constant(0.166671157));
  s.set(t3, 0.0418905504);
  a.vfmadd231ps(t3, x, s.constant(0.00831247773));
  a.vfmadd213ps(t3, t2, t4);
  a.vaddps(x, x, s.constant(1));
  a.vfmadd231ps(x, t3, t2);
  a.vpslld(n, n, 23);
  a.vmulps(x, x, n);
}

const signBit = (s: Simd) => s.constantInt(-0x80000000);
const allButSign = (s: Simd) => s.constantInt(0x7fffffff);

/** x = x / (1 + e^−z), from e^−|z| so that nothing overflows; z is used up. */
function logistic(s: Simd, x: Vec, z: Vec, t: Temps): void {
  const { a } = s;
  const [, , , , , e, top, was] = t;
  if (!s.isa.masks) a.vmovaps(was, z);
  a.vmovaps(e, z);
  s.or(e, e, signBit(s));
  exp(s, e, t);
  a.vmulps(top, x, e);
  s.whereLess(x, s.isa.masks ? z : was, s.constant(0), top, t[0]);
  a.vaddps(e, e, s.constant(1));
  a.vdivps(x, x, e);
}

function tanh(s: Simd, x: Vec, t: Temps): void {
  const { a } = s;
  const [, , , , , near, far, magnitude] = t;
  a.vmulps(far, x, x);
  const series = [0.0025263906, -0.00852633268, 0.0218184497, -0.0539647005, 0.133333236, -0.333333343];
  polynomial(s, near, far, series);
  a.vmulps(near, near, far);
  a.vfmadd213ps(near, x, x);
  s.and(magnitude, x, allButSign(s));
  a.vaddps(far, magnitude, magnitude);
  exp(s, far, t);
  a.vaddps(far, far, s.constant(1));
  s.set(t[0], 2);
  a.vdivps(far, t[0], far);
  s.set(t[0], 1);
  a.vsubps(far, t[0], far);
  copySign(s, x, far);
  s.whereLess(x, magnitude, s.constant(0.55), near, t[0]);
}

/** x keeps its sign and takes the magnitude of y, which is used up. */
function copySign(s: Simd, x: Vec, y: Vec): void {
  s.and(x, x, signBit(s));
  s.and(y, y, allButSign(s));
  s.or(x, x, y);
}

/** The upper tail 1 − Φ(x) for x ≥ 0.65, in place. */
function normalTail(s: Simd, x: Vec, t: Temps): void {
  const { a } = s;
  const [t0, t1, , , , p, scale, rest] = t;
  s.atMost(x, 15, t0);
  a.vaddps(t0, x, s.constant(2.5));
  s.set(scale, 1);
  a.vdivps(scale, scale, t0);
  a.vsubps(t1, x, s.constant(2.5));
  a.vmulps(t1, t1, scale);
  polynomial(
    s,
    p,
    t1,
    [
      -0.000188456805, -0.000324156805, 0.000723707082, 0.00253533316, -0.00161765295, -0.0163892861, 0.00923856255,
      0.131987229, -0.433692127, 0.706656635,
    ],
  );
  a.vmulps(p, p, scale);
  // x² would round: the square of its head is exact, and the rest corrects the exponent.
  s.and(t0, x, s.constantInt(-4096));
  a.vsubps(rest, x, t0);
  a.vaddps(x, x, t0);
  a.vmulps(rest, rest, x);
  a.vmulps(rest, rest, s.constant(-0.5));
  a.vmulps(x, t0, t0);
  a.vmulps(x, x, s.constant(-0.5));
  exp(s, x, t, rest);
  a.vmulps(x, x, p);
}

/** erf x = x + x·P(x²) for |x| ≤ 0.9, into `dst`. */
function erfNear0(s: Simd, dst: Vec, x: Vec, z: Vec): void {
  const { a } = s;
  a.vmulps(z, x, x);
  polynomial(
    s,
    dst,
    z,
    [8.52940138e-5, -0.000817963213, 0.00520422682, -0.0268606655, 0.11283718, -0.376126349, 0.128379167],
  );
  a.vfmadd213ps(dst, x, x);
}

/** Registers besides the temporaries, for functions that need more at once. */
type Extra = readonly [Vec, Vec];

function erf(s: Simd, x: Vec, t: Temps, [far]: Extra): void {
  const { a } = s;
  s.and(far, x, allButSign(s));
  a.vmulps(far, far, s.constant(Math.SQRT2));
  normalTail(s, far, t);
  a.vaddps(far, far, far);
  s.set(t[0], 1);
  a.vsubps(far, t[0], far);
  erfNear0(s, t[1], x, t[0]);
  s.and(t[2], x, allButSign(s));
  copySign(s, x, far);
  s.whereLess(x, t[2], s.constant(0.9), t[1], t[0]);
}

/** Φ(x) into `far`: ½ + ½·erf(x/√2) near 0; the tail or its complement beyond. */
function normcdf(s: Simd, x: Vec, t: Temps, [far]: Extra): void {
  const { a } = s;
  s.and(far, x, allButSign(s));
  normalTail(s, far, t);
  // The complement, but for negative x the tail itself.
  s.set(t[1], 1);
  a.vsubps(t[1], t[1], far);
  s.whereLess(t[1], x, s.constant(0), far, t[0]);
  a.vmulps(t[2], x, s.constant(Math.SQRT1_2));
  erfNear0(s, t[3], t[2], t[0]);
  s.set(t[4], 0.5);
  a.vfmadd213ps(t[3], t[4], t[4]);
  s.and(t[2], x, allButSign(s));
  a.vmovaps(far, t[1]);
  s.whereLess(far, t[2], s.constant(0.7), t[3], t[0]);
}

type Formula = (s: Simd, x: Vec, t: Temps, extra: Extra) => void;

/** The unary ops that have machine code. */
export const formulas: Partial<Record<UnaryOp, Formula>> = {
  neg: (s, x) => (s.isa.masks ? s.a.vpxord(x, x, signBit(s)) : s.a.vpxor(x, x, signBit(s))),
  abs: (s, x) => s.and(x, x, allButSign(s)),
  sqr: (s, x) => s.a.vmulps(x, x, x),
  sqrt: (s, x) => s.a.vsqrtps(x, x),
  recip: (s, x, [t]) => {
    s.set(t, 1);
    s.a.vdivps(x, t, x);
  },
  relu: (s, x, [t]) => s.atLeast(x, 0, t),
  exp: (s, x, t) => exp(s, x, t),
  tanh,
  erf,
  normcdf: (s, x, t, extra) => {
    normcdf(s, x, t, extra);
    s.a.vmovaps(x, extra[0]);
  },
  gelu_erf: (s, x, t, extra) => {
    normcdf(s, x, t, extra);
    s.a.vmulps(x, x, extra[0]);
  },
  sigmoid: (s, x, t, [z]) => {
    s.a.vmovaps(z, x);
    s.set(x, 1);
    logistic(s, x, z, t);
  },
  silu: (s, x, t, [z]) => {
    s.a.vmovaps(z, x);
    logistic(s, x, z, t);
  },
  gelu: (s, x, t, [z]) => {
    s.a.vmulps(z, x, x);
    s.set(t[0], 1.59576912161);
    s.a.vfmadd132ps(z, t[0], s.constant(0.0713548162726));
    s.a.vmulps(z, z, x);
    logistic(s, x, z, t);
  },
};
