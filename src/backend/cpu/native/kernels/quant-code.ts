/**
 * What the kernels for quantized weights have in common: instructions by the width of the vectors, registers by their
 * role, and the form of packed activations.
 *
 * Weights are multiplied where they lie: as many neighbouring rows of w as a vector has lanes, each in its own lane.
 * Sixteen bytes of each row are loaded and transposed, so that a vector holds the same four bytes of every row; what takes
 * quants out of bytes works on them as on any. Sums within a group of weights that share a scale are exact integers, and
 * groups are added in one order in f32: a result depends on nothing but its row of x and its row of w.
 */
import type { Assembler } from "../assembler.ts";
import type { Isa } from "../isa.ts";
import {
  type Gpr,
  type Mem,
  mem,
  r8,
  r9,
  r10,
  r11,
  r12,
  r13,
  r14,
  r15,
  rax,
  rbp,
  rbx,
  rcx,
  rdi,
  rdx,
  rsi,
  type Vec,
} from "../operands.ts";

/**
 * 32 activations of a row as 16-bit integers, the even ones, then the odd: as weights come out of 16-bit words. Behind
 * them their scale, where sums of their products begin (minus their sums times the weights' offset; of all, or of each
 * half), and their sum as a float. Records of the rows that meet weights together lie beside each other.
 */
export const record = { bytes: 80, scale: 64, start: 68, secondStart: 72, sum: 76 } as const;
export const BLOCK = 32;

/** General registers by their role: `args` and `inner` are one, as the former is needed outside of loops alone. */
export const gpr = {
  args: rdi,
  inner: rdi,
  lo: rsi,
  ahead: rsi,
  hi: rdx,
  out: rdx,
  weights: rbx,
  x: rax,
  count: rcx,
  cursor: rbp,
} as const;
/** Odd multiples of the bytes of a row of w, by which every row of sixteen can be addressed. */
const multiples: readonly Gpr[] = [r8, r9, r10, r11, r12, r13, r14, r15];
export const saved: readonly Gpr[] = [rbx, rbp, r12, r13, r14, r15];

/** The frame: factors and minima of groups, upper bits of quants, then variables; a vector each 64 bytes. */
export const SLOT = 64;
export const frame = {
  scales: 0,
  minima: 16 * SLOT,
  upper: 24 * SLOT,
  variables: 40 * SLOT,
  bytes: 41 * SLOT,
} as const;

/** The most rows of x that meet weights together: what the registers hold. */
export const mostRows = ({ masks, vnni }: Isa): number => (masks ? (vnni ? 8 : 7) : 3);

export class QuantCode {
  /** Rows of w in a vector. */
  readonly lanes: 8 | 16;
  /** Vectors of 512 bits, with all that comes with them. */
  readonly wide: boolean;
  /** Sums of each row of x in floats, then integer sums; then registers for one thing after the other. */
  readonly floats: readonly Vec[];
  readonly integers: readonly Vec[];
  readonly fetched: readonly Vec[];
  readonly quants: Vec;
  /** What a dot product without VNNI needs; the same as `quants` where it needs none. */
  readonly product: Vec;

  constructor(
    readonly a: Assembler,
    readonly isa: Isa,
    rows: number,
  ) {
    this.lanes = isa.lanes;
    this.wide = isa.masks;
    const registers = Array.from({ length: isa.registers }, (_, id) => isa.v(id));
    const take = (n: number) => registers.splice(0, n);
    this.floats = take(rows);
    [this.quants, this.product] = take(2) as [Vec, Vec];
    if (isa.vnni) registers.unshift(this.product);
    this.fetched = take(5);
    this.integers = registers;
  }

  /** A constant of 32 bits in every lane. */
  splat(bits: number): Mem {
    const one = this.a.i32(...new Array<number>(this.wide ? 1 : this.lanes).fill(bits | 0));
    return this.wide ? one.each : one;
  }

  and(to: Vec, from: Vec, other: Vec | Mem): void {
    if (this.wide) this.a.vpandd(to, from, other);
    else this.a.vpand(to, from, other);
  }

  or(to: Vec, from: Vec, other: Vec | Mem): void {
    if (this.wide) this.a.vpord(to, from, other);
    else this.a.vpor(to, from, other);
  }

  zero(to: Vec): void {
    // The shorter form clears the whole register.
    if (to.id < 16) this.a.vpxor(to.x, to.x, to.x);
    else this.a.vpxord(to, to, to);
  }

  load(to: Vec, from: Mem): void {
    this.a.vmovups(to, from);
  }

  store(to: Mem, from: Vec): void {
    this.a.vmovups(to, from);
  }

  /** A row of the current rows of w, `offset` bytes from where they stand. */
  row(i: number, offset: number): Mem {
    if (i === 0) return mem(gpr.weights, offset);
    const scale = (i & -i) as 1 | 2 | 4 | 8;
    return mem(gpr.weights, { index: multiples[(i / scale - 1) / 2]!, scale, disp: offset });
  }

  /** Fills the registers that `row` reads; `line` is the first of them. */
  multiply(line: Mem): void {
    const { a } = this;
    const [one, three] = multiples as [Gpr, Gpr];
    a.mov(one, line);
    a.lea(three, mem(one, { index: one, scale: 2 }));
    for (let i = 2; i < this.lanes / 2; i++) a.lea(multiples[i]!, mem(multiples[i - 1]!, { index: one, scale: 2 }));
  }

  /** Sixteen bytes of each row: four vectors with four of them each, and a register that is free. */
  fetch(offset: number): { readonly words: readonly [Vec, Vec, Vec, Vec]; readonly free: Vec } {
    const { a } = this;
    const [r0, r1, r2, r3, t] = this.fetched as [Vec, Vec, Vec, Vec, Vec];
    for (const [i, to] of [r0, r1, r2, r3].entries()) {
      a.vmovups(to.x, this.row(i, offset));
      for (let part = 1; part < this.lanes / 4; part++) {
        const from = this.row(4 * part + i, offset);
        if (this.wide) a.vinserti32x4(to, to, from, part);
        else a.vinserti128(to, to, from, part);
      }
    }
    a.vpunpckldq(t, r0, r1);
    a.vpunpckhdq(r0, r0, r1);
    a.vpunpckldq(r1, r2, r3);
    a.vpunpckhdq(r2, r2, r3);
    a.vpunpcklqdq(r3, t, r1);
    a.vpunpckhqdq(t, t, r1);
    a.vpunpcklqdq(r1, r0, r2);
    a.vpunpckhqdq(r0, r0, r2);
    return { words: [r3, t, r1, r0], free: r2 };
  }

  /** An f16 of each row as floats. */
  halves(to: Vec, offset: number): void {
    const { a } = this;
    const [low, high] = this.fetched as [Vec, Vec];
    for (const [part, half] of [low, high].slice(0, this.lanes / 8).entries()) {
      a.vpxor(half.x, half.x, half.x);
      for (let i = 0; i < 8; i++) a.vpinsrw(half.x, half.x, this.row(8 * part + i, offset), i);
    }
    if (this.wide) a.vinserti128(low.y, low.y, high.x, 1);
    a.vcvtph2ps(to, this.wide ? low.y : low.x);
  }

  /** The low 16 bits of each lane, an f16, as floats; `from` is used up. */
  lowHalves(to: Vec, from: Vec): void {
    const { a } = this;
    if (this.wide) {
      a.vpmovdw(from.y, from);
      a.vcvtph2ps(to, from.y);
      return;
    }
    this.and(from, from, this.splat(0xffff));
    a.vpackusdw(from, from, from);
    a.vpermq(from, from, 0b1000);
    a.vcvtph2ps(to, from.x);
  }
}
