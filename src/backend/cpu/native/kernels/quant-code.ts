/**
 * What the kernels for quantized weights have in common: registers by their role, how weights are loaded, and the form of
 * packed activations.
 *
 * Weights are multiplied where they lie: as many neighbouring rows of w as a vector has lanes, each in its own lane.
 * Sixteen bytes of each row are loaded and transposed, so that a vector holds the same four bytes of every row; what takes
 * quants out of bytes works on them as on any. Sums within a group of weights that share a scale are exact integers, and
 * groups are added in one order in f32: a result depends on nothing but its row of x and its row of w.
 */
import { type QuantType, quantTypes } from "../../../../core/quant-types.ts";
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
import { Simd } from "../simd.ts";
import { prepareTurned, UPPER } from "./square.ts";

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

/**
 * Chains of additions that a row's sums of a group are made of: of few rows both planes are added at once, with a chain for
 * each; of more, which hide the latency, a plane after the other.
 */
export const chainsOf = ({ vnni }: Isa, rows: number, planes: Planes): 1 | 2 =>
  vnni && planes === 2 && rows <= 4 ? 2 : 1;

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
/** Where scales stand in turned weights, of which no row needs a register. */
const scales = r8;
/** Odd multiples of the bytes of a row of w, by which every row of sixteen can be addressed. */
const multiples: readonly Gpr[] = [r8, r9, r10, r11, r12, r13, r14, r15];

/** The frame, in the thread's own memory: factors and minima of groups, upper bits of quants, sums of rows; a vector each. */
const SLOT = 64;
const places = { scales: 0, minima: 16, upper: 24, sums: 40 } as const;
/** A place in the frame; `base` may be a cursor that moves in it. */
export const place = (name: keyof typeof places, i: number, base: Gpr = gpr.frame): Mem =>
  mem(base, (places[name] + i) * SLOT);
export const slots = (n: number): number => n * SLOT;

/** Where the thread's memory is free behind the frame: panels of quants that serve many rows lie there. */
export const PANEL_AT = 64 * SLOT;

/** Four bytes of each row, and which they are of 32: the first byte, counted in fours. */
export interface Word {
  readonly at: number;
  readonly bytes: Vec;
}

/**
 * Weights may lie turned: of as many rows as a vector has lanes each word of four bytes side by side, block by block, and
 * behind all blocks those two bytes of each that are left, an f16. Nothing is transposed then, and all is read in order.
 */
export interface TurnedForm {
  /** Where a block's words begin, and how many there are. */
  readonly first: 0 | 2;
  readonly words: number;
}

export function turnedFormOf(type: QuantType): TurnedForm & { readonly half: number | undefined } {
  const { bytes } = quantTypes[type];
  const words = Math.floor(bytes / 4);
  // Small blocks begin with their f16, large ones end with it.
  const first = bytes % 4 === 2 && bytes < 4 * BLOCK ? 2 : 0;
  return { first, words, half: bytes % 4 === 2 ? (first === 2 ? 0 : 4 * words) : undefined };
}

export class QuantCode extends Simd {
  /** Of rows of x: in registers, or in the frame where these do not suffice. */
  readonly sums: readonly (Vec | Mem)[];
  /** Sums of groups: the chains of a row beside each other. */
  readonly integers: readonly Vec[];
  /** Quants, and what is made of them without VNNI. */
  readonly quants: Vec;
  readonly split: Vec;
  readonly product: Vec;
  /** A group's factors and minima, where there are registers for them. */
  readonly factors: Vec | undefined;
  readonly minima: Vec | undefined;
  /** One plane is added after the other, so that quants are needed once more. */
  readonly asksTwice: boolean;
  /** For those quants; empty where each serves once. */
  readonly kept: readonly Vec[];
  readonly #fetched: readonly Vec[];
  /** What nothing else uses. */
  readonly spare: readonly Vec[];
  readonly #turned: TurnedForm | undefined;

  /** `keep`: how many vectors of quants a type wants to keep from one plane to the next. */
  constructor(a: Assembler, isa: Isa, rows: number, planes: Planes, keep: number, turned?: TurnedForm) {
    super(a, isa);
    this.#turned = turned;
    const registers = Array.from({ length: isa.registers }, (_, id) => isa.v(id));
    const take = (n: number) => registers.splice(0, n);
    this.#fetched = take(9);
    this.quants = take(1)[0]!;
    [this.split, this.product] = (isa.vnni ? [this.quants, this.quants] : take(2)) as [Vec, Vec];
    const chains = chainsOf(isa, rows, planes);
    this.integers = take(rows * chains);
    this.asksTwice = isa.vnni && planes === 2 && chains === 1;
    this.kept = this.asksTwice ? take(keep) : [];
    if (isa.masks) [this.factors, this.minima] = take(2);
    const room = registers.length >= rows;
    this.sums = room ? take(rows) : Array.from({ length: rows }, (_, r) => place("sums", r));
    this.spare = registers;
  }

  get lanes(): 8 | 16 {
    return this.isa.lanes;
  }

  /** Vectors of 512 bits, with masks and repeated memory operands. */
  get wide(): boolean {
    return this.isa.masks;
  }

  /** Registers that nothing uses while sixteen bytes are fetched, between groups. */
  get temporary(): readonly [Vec, Vec] {
    return this.#fetched.slice(5, 7) as unknown as readonly [Vec, Vec];
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
    prepareTurned(a, this.isa);
  }

  /** Sixteen bytes of each row, the first or the second of 32; `free` is a register to use meanwhile. */
  fetch16(offset: number, half = 0): { readonly words: readonly Word[]; readonly free: Vec } {
    const { a } = this;
    if (this.#turned) return this.#take(this.#turned, offset, 4, 4 * half);
    const rows = this.#fetched.slice(0, 4);
    const t = this.#fetched[4]!;
    const pair = (to: Vec, row: number) => {
      a.vmovups(to.x, this.row(row, offset));
      a.vinserti128(to.y, to.y, this.row(row + 4, offset), 1);
    };
    for (const [i, to] of rows.entries()) {
      pair(to, i);
      if (!this.wide) continue;
      pair(t, 8 + i);
      a.vinserti64x4(to, to, t.y, 1);
    }
    const { columns, free } = this.#transpose(rows, t);
    return { words: columns.map((bytes, i) => ({ at: 4 * half + i, bytes })), free };
  }

  /** The same of 32 bytes. */
  fetch32(offset: number): { readonly words: readonly Word[]; readonly free: Vec } {
    const { a } = this;
    if (this.#turned) return this.#take(this.#turned, offset, 8, 0);
    const [low, high] = [this.#fetched.slice(0, 4), this.#fetched.slice(4, 8)];
    // A register holds a row, or rows i and i + 4: repeated and masked, a load needs no unit that shuffles.
    for (const [i, to] of [...low, ...high].entries()) {
      const row = this.wide ? 8 * (i >> 2) + (i & 3) : i;
      a.vmovups(to.y, this.row(row, offset));
      if (this.wide) a.vbroadcasti64x4(to.k(UPPER), this.row(row + 4, offset));
    }
    const first = this.#transpose(low, this.#fetched[8]!);
    const second = this.#transpose(high, first.free);
    let { free } = second;
    const words: Word[] = [];
    for (const [i, x] of first.columns.entries()) {
      const y = second.columns[i]!;
      if (this.wide) {
        a.vshufi64x2(free, x, y, 0x88);
        a.vshufi64x2(x, x, y, 0xdd);
      } else {
        a.vperm2i128(free, x, y, 0x20);
        a.vperm2i128(x, x, y, 0x31);
      }
      words.push({ at: i, bytes: free }, { at: 4 + i, bytes: x });
      free = y;
    }
    return { words, free };
  }

  /** Turned words as they lie. */
  #take({ first }: TurnedForm, offset: number, count: number, at: number) {
    const registers = this.#fetched.slice(0, count);
    for (const [i, to] of registers.entries()) {
      this.a.vmovups(to, mem(gpr.weights, ((offset - first) / 4 + i) * this.isa.bytes));
    }
    return { words: registers.map((bytes, i) => ({ at: at + i, bytes })), free: this.#fetched[count]! };
  }

  /** Sets where the scales of turned weights are: behind `blocks` blocks. */
  findScales(blocks: Mem): void {
    const { a } = this;
    a.mov(scales, blocks);
    a.imul(scales, scales, this.#turned!.words * this.isa.bytes);
    a.add(scales, gpr.weights);
  }

  /** Moves within a block, by whole words. */
  move(bytes: number): void {
    this.a.add(gpr.weights, this.#turned ? (bytes / 4) * this.isa.bytes : bytes);
  }

  /** On to the next block; `bytes` are those of one. */
  nextBlock(bytes: number): void {
    if (!this.#turned) {
      this.a.add(gpr.weights, bytes);
      return;
    }
    this.a.add(gpr.weights, this.#turned.words * this.isa.bytes);
    this.a.add(scales, 2 * this.lanes);
  }

  /** Within 128 bits, four times four elements of 32 bits change places. */
  #transpose(rows: readonly Vec[], t: Vec): { readonly columns: readonly Vec[]; readonly free: Vec } {
    const { a } = this;
    const [r0, r1, r2, r3] = rows as [Vec, Vec, Vec, Vec];
    a.vpunpckldq(t, r0, r1);
    a.vpunpckhdq(r0, r0, r1);
    a.vpunpckldq(r1, r2, r3);
    a.vpunpckhdq(r2, r2, r3);
    a.vpunpcklqdq(r3, t, r1);
    a.vpunpckhqdq(t, t, r1);
    a.vpunpcklqdq(r1, r0, r2);
    a.vpunpckhqdq(r0, r0, r2);
    return { columns: [r3, t, r1, r0], free: r2 };
  }

  /** An f16 of each row as floats. */
  halves(to: Vec, offset: number): void {
    this.a.vcvtph2ps(to, this.#turned ? mem(scales) : this.gatherHalves(offset));
  }

  /** The same as they are, side by side. */
  gatherHalves(offset: number): Vec {
    const { a } = this;
    const [low, high] = this.temporary;
    for (const [part, half] of [low, high].slice(0, this.lanes / 8).entries()) {
      a.vpxor(half.x, half.x, half.x);
      for (let i = 0; i < 8; i++) a.vpinsrw(half.x, half.x, this.row(8 * part + i, offset), i);
    }
    if (this.wide) a.vinserti128(low.y, low.y, high.x, 1);
    return this.wide ? low.y : low.x;
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
