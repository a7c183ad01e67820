/**
 * What the kernels for quantized weights have in common: registers by their role, how weights are loaded, and the form of
 * packed activations.
 *
 * Weights are multiplied where they lie: as many neighbouring rows of w as a vector has lanes, each in its own lane.
 * Sixteen bytes of each row are loaded and transposed, so that a vector holds the same four bytes of every row; what takes
 * quants out of bytes works on them as on any. Sums within a group of weights that share a scale are exact integers, and
 * groups are added in one order in f32: a result depends on nothing but its row of x and its row of w.
 */
import type { Assembler } from "../assembler.ts";
import type { Isa } from "../isa.ts";
import {
  eax,
  type Gpr,
  k5,
  k6,
  k7,
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
import { Simd } from "../simd.ts";

/** Activations that share a scale. */
export const BLOCK = 32;
/**
 * 32 activations of a row as integers. With VNNI they are two planes of bytes, the high ones and the low ones, both
 * signed; without it words, the even ones, then the odd, as bytes of weights become words. Behind them their scale, where
 * sums of their products begin (minus their sums times the weights' offset; of all, or of each half), and their sum as a
 * float. Records of the rows that meet weights together lie beside each other.
 */
export const record = {
  bytes: 80,
  lowPlane: 32,
  oddWords: 32,
  scale: 64,
  start: 68,
  secondStart: 72,
  sum: 76,
} as const;

/** Planes of bytes: one is half the work, and loses 200 times as much. */
export type Planes = 1 | 2;

/** The most rows of x that meet weights together. */
export const mostRows = ({ masks }: Isa): 4 | 8 => (masks ? 8 : 4);

/** General registers by their role: `args` is needed outside of the loops that `inner` counts. */
export const gpr = {
  args: rdi,
  inner: rdi,
  lo: rsi,
  ahead: rsi,
  hi: rdx,
  out: rdx,
  weights: rbx,
  x: rax,
  frame: rcx,
  cursor: rbp,
} as const;
/** Odd multiples of the bytes of a row of w, by which every row of sixteen can be addressed. */
const multiples: readonly Gpr[] = [r8, r9, r10, r11, r12, r13, r14, r15];

/** The frame, in the thread's own memory: factors and minima of groups, upper bits of quants, sums of rows; a vector each. */
const SLOT = 64;
const places = { scales: 0, minima: 16, upper: 24, sums: 40 } as const;
/** A place in the frame; `base` may be a cursor that moves in it. */
export const place = (name: keyof typeof places, i: number, base: Gpr = gpr.frame): Mem =>
  mem(base, (places[name] + i) * SLOT);
export const slots = (n: number): number => n * SLOT;

/** Sixteen bytes of each row: four vectors with four of them each. */
export type Words = readonly [Vec, Vec, Vec, Vec];

export class QuantCode extends Simd {
  /** Of rows of x: in registers, or in the frame where these do not suffice. */
  readonly sums: readonly (Vec | Mem)[];
  readonly integers: readonly Vec[];
  /** Quants, and what is made of them without VNNI. */
  readonly quants: Vec;
  readonly split: Vec;
  readonly product: Vec;
  readonly #fetched: readonly Vec[];

  constructor(a: Assembler, isa: Isa, rows: number, planes: Planes) {
    super(a, isa);
    const registers = Array.from({ length: isa.registers }, (_, id) => isa.v(id));
    const take = (n: number) => registers.splice(0, n);
    this.#fetched = take(9);
    this.quants = take(1)[0]!;
    [this.split, this.product] = (isa.vnni ? [this.quants, this.quants] : take(2)) as [Vec, Vec];
    const needed = isa.vnni ? planes * rows : rows;
    const room = registers.length - needed >= rows;
    this.sums = room ? take(rows) : Array.from({ length: rows }, (_, r) => place("sums", r));
    this.integers = registers;
  }

  get lanes(): 8 | 16 {
    return this.isa.lanes;
  }

  /** Vectors of 512 bits, with masks and repeated memory operands. */
  get wide(): boolean {
    return this.isa.masks;
  }

  /** Registers that nothing uses between blocks. */
  get temporary(): readonly [Vec, Vec] {
    return this.#fetched as unknown as readonly [Vec, Vec];
  }

  xor(to: Vec, from: Vec, other: Vec | Mem): void {
    if (this.wide) this.a.vpxord(to, from, other);
    else this.a.vpxor(to, from, other);
  }

  /** to | (from & mask); `from` is used up. */
  orMasked(to: Vec, from: Vec, mask: Mem | Vec): void {
    if (this.wide) this.a.vpternlogd(to, from, mask, 0xf8);
    else {
      this.a.vpand(from, from, mask);
      this.a.vpor(to, to, from);
    }
  }

  /** A row of the current rows of w, `offset` bytes from where they stand. */
  row(i: number, offset: number): Mem {
    if (i === 0) return mem(gpr.weights, offset);
    const scale = (i & -i) as 1 | 2 | 4 | 8;
    return mem(gpr.weights, { index: multiples[(i / scale - 1) / 2]!, scale, disp: offset });
  }

  /** Fills the registers that `row` and `fetch` read; `line` is the bytes of a row of w. */
  prepare(line: Mem): void {
    const { a } = this;
    const [one, three] = multiples as [Gpr, Gpr];
    a.mov(one, line);
    a.lea(three, mem(one, { index: one, scale: 2 }));
    for (let i = 2; i < this.lanes / 2; i++) a.lea(multiples[i]!, mem(multiples[i - 1]!, { index: one, scale: 2 }));
    if (!this.wide) return;
    for (const [i, part] of parts.entries()) {
      a.mov(eax, 0xf0 << (4 * i));
      a.kmovw(part, eax);
    }
  }

  /** Sixteen bytes of each row; `free` is a register to use meanwhile. */
  fetch(offset: number): { readonly words: Words; readonly free: Vec } {
    const [r0, r1, r2, r3, t] = this.#fetched as [Vec, Vec, Vec, Vec, Vec];
    return this.#fetchInto(offset, [r0, r1, r2, r3, t]);
  }

  /** Two times sixteen. */
  fetchBoth(first: number, second: number): { readonly halves: readonly [Words, Words]; readonly free: Vec } {
    const one = this.fetch(first);
    const [r0, r1, r2, r3] = this.#fetched.slice(5) as [Vec, Vec, Vec, Vec];
    const two = this.#fetchInto(second, [r0, r1, r2, r3, one.free]);
    return { halves: [one.words, two.words], free: two.free };
  }

  #fetchInto(
    offset: number,
    [r0, r1, r2, r3, t]: readonly [Vec, Vec, Vec, Vec, Vec],
  ): { readonly words: Words; readonly free: Vec } {
    const { a } = this;
    for (const [i, to] of [r0, r1, r2, r3].entries()) {
      a.vmovups(to.x, this.row(i, offset));
      // Repeated and masked, a load needs no unit that shuffles.
      if (this.wide)
        for (const [p, part] of parts.entries()) a.vbroadcasti32x4(to.k(part), this.row(4 * p + 4 + i, offset));
      else a.vinserti128(to, to, this.row(4 + i, offset), 1);
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
    const [low, high] = this.#fetched as [Vec, Vec];
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
    this.and(from, from, this.constantInt(0xffff));
    a.vpackusdw(from, from, from);
    a.vpermq(from, from, 0b1000);
    a.vcvtph2ps(to, from.x);
  }
}

/** The second, third and fourth part of 128 bits. */
const parts = [k5, k6, k7] as const;
