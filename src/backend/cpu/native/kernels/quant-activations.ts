/**
 * Activations as integers for products with quantized weights, in the records that quant-code.ts describes: with 16 bits
 * and a scale for each 32 they are within 1/65278 of the largest of these, with 8 bits within 1/254.
 */
import { sizeOf } from "../../../../core/dtype.ts";
import type { Assembler } from "../assembler.ts";
import { layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import { type Mem, mem, r8, r9, r10, r11, rax, rcx, rdi, rdx, rsi, type Vec } from "../operands.ts";
import { type FloatType, Simd } from "../simd.ts";
import { BLOCK, type Planes, record } from "./quant-code.ts";

/** `most` rows are a tile; `offset` is minus what the weights' quants are shifted by. */
export const roundArguments = layoutArguments("x", "blocks", "rows", "most", "out", "offset");
const args = roundArguments.at(rdi);

/** The largest integer: whose bytes, both signed, are 127. */
const largestOf = { 1: 127, 2: 127 * 256 + 127 } as const;
/** Below, the reciprocal of the scale would overflow; such blocks are zero. */
const SMALLEST = 1.2e-34;
const LESS = 1;

export interface RoundingForm {
  readonly dtype: FloatType;
  /** Sums begin for halves of 32. */
  readonly halves: boolean;
  readonly planes: Planes;
  /** Integers are words, and not planes of bytes. */
  readonly words: boolean;
}

class Rounding extends Simd {
  /** 32 floats, then integers. */
  readonly #x: readonly Vec[];
  readonly #wide: boolean;
  readonly #planes: Planes;
  readonly #words: boolean;

  constructor(a: Assembler, isa: Isa, { planes, words }: RoundingForm) {
    super(a, isa);
    this.#wide = isa.masks;
    this.#planes = planes;
    this.#words = words;
    this.#x = Array.from({ length: BLOCK / isa.lanes }, (_, i) => isa.v(i));
  }

  /** What stays in registers. */
  prepare(): void {
    const { a, isa } = this;
    a.vpbroadcastd(isa.v(13).x, args.offset);
    if (!this.#words) return;
    a.vmovups(isa.v(14), this.#constant(new Array<number>(2 * isa.lanes).fill(1)));
    if (this.#wide) {
      // Of 32-bit integers the low words: the even ones of 32, then the odd.
      const order = Array.from({ length: 32 }, (_, i) => (i < 16 ? 4 * i : 4 * (i - 16) + 2));
      a.vmovups(isa.v(15), this.#constant(order));
    }
  }

  #constant(values: readonly number[]): Mem {
    return this.a.data(new Uint8Array(Int16Array.from(values).buffer));
  }

  #floats(value: number): Mem {
    return this.a.f32(value, value, value, value);
  }

  read(dtype: FloatType, from: Mem): void {
    for (const [i, to] of this.#x.entries()) this.load(to, dtype, from.plus(i * this.isa.lanes * sizeOf(dtype)));
  }

  /** The largest magnitude in every element of 128 bits, by its bits: those of infinity and NaN are larger than any. */
  #magnitude(to: Vec, t: Vec): void {
    const { a } = this;
    for (const [i, x] of this.#x.entries()) {
      this.and(i === 0 ? to : t, x, this.constantInt(0x7fffffff));
      if (i > 0) a.vpmaxsd(to, to, t);
    }
    if (this.#wide) {
      a.vextracti64x4(t.y, to, 1);
      a.vpmaxsd(to.y, to.y, t.y);
    }
    a.vextracti128(t.x, to.y, 1);
    a.vpmaxsd(to.x, to.x, t.x);
    for (const order of [0b01001110, 0b10110001]) {
      a.vpshufd(t.x, to.x, order);
      a.vpmaxsd(to.x, to.x, t.x);
    }
  }

  /** The integers; their scale goes to `scale`. NaN and infinity become the scale of zeros: every product is NaN then. */
  round(scale: Vec): void {
    const { a, isa } = this;
    const [largest, t, inverse, finite] = [isa.v(4), isa.v(5), isa.v(7), isa.v(8)];
    this.#magnitude(largest, t);
    a.vmovups(inverse.x, this.#floats(largestOf[this.#planes]));
    a.vdivps(scale.x, largest.x, inverse.x);
    a.vdivps(inverse.x, inverse.x, largest.x);
    a.vcmpps(t.x, largest.x, this.#floats(SMALLEST), LESS);
    a.vandnps(scale.x, t.x, scale.x);
    a.vcmpps(finite.x, largest.x, this.#floats(Infinity), LESS);
    a.vandnps(finite.x, t.x, finite.x);
    a.vandps(inverse.x, inverse.x, finite.x);
    a.vbroadcastss(inverse, inverse.x);
    a.vbroadcastss(finite, finite.x);
    for (const x of this.#x) {
      a.vandps(x, x, finite);
      a.vmulps(x, x, inverse);
      a.vcvtps2dq(x, x);
    }
  }

  /** Stores the integers as bytes or words, and puts the sums of both sixteens into the halves of 256 bits of `sums`. */
  pack(to: Mem, sums: Vec): void {
    const { a } = this;
    const t = this.v(7);
    if (!this.#words) this.#packBytes(to, sums, t);
    else if (this.#wide) this.#packWords(to, sums, t);
    else this.#packShortWords(to, sums, t);
    for (const order of [0b01001110, 0b10110001]) {
      a.vpshufd(t.y, sums.y, order);
      a.vpaddd(sums.y, sums.y, t.y);
    }
  }

  #packBytes(to: Mem, sums: Vec, t: Vec): void {
    const { a } = this;
    const [low, high] = this.#x as [Vec, Vec];
    for (const [i, x] of [low, high].entries()) {
      const into = i === 0 ? sums : t;
      const half = this.v(8);
      a.vextracti64x4(half.y, x, 1);
      a.vpaddd(into.y, half.y, x.y);
      a.vextracti128(half.x, into.y, 1);
      a.vpaddd(into.x, into.x, half.x);
      if (this.#planes === 2) {
        a.vpmovdb(to.plus(record.lowPlane + 16 * i), x);
        // The low byte is signed: the high one makes up for it.
        a.vpaddd(x, x, this.constantInt(128));
        a.vpsrad(x, x, 8);
      }
      a.vpmovdb(to.plus(16 * i), x);
    }
    a.vinserti128(sums.y, sums.y, t.x, 1);
  }

  #packWords(to: Mem, sums: Vec, t: Vec): void {
    const { a } = this;
    const [low, high] = this.#x as [Vec, Vec];
    a.vpermt2w(low, this.v(15), high);
    a.vmovups(to, low);
    a.vpmaddwd(sums, low, this.v(14));
    a.vextracti64x4(t.y, sums, 1);
    a.vpaddd(sums.y, sums.y, t.y);
  }

  #packShortWords(to: Mem, sums: Vec, t: Vec): void {
    const { a } = this;
    const [x0, x1, x2, x3] = this.#x as [Vec, Vec, Vec, Vec];
    const evenFirst = [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15];
    const bytes = a.data(Uint8Array.from([...evenFirst, ...evenFirst]));
    a.vmovups(t, a.i32(0, 4, 1, 5, 2, 6, 3, 7));
    for (const [low, high] of [
      [x0, x1],
      [x2, x3],
    ] as const) {
      a.vpackssdw(low, low, high);
      a.vpshufb(low, low, bytes);
      a.vpermd(low, t, low);
    }
    a.vperm2i128(x1, x0, x2, 0x20);
    a.vperm2i128(x3, x0, x2, 0x31);
    a.vmovups(to, x1);
    a.vmovups(to.plus(record.oddWords), x3);
    a.vpmaddwd(sums, x1, this.v(14));
    a.vpmaddwd(t, x3, this.v(14));
    a.vpaddd(sums, sums, t);
  }

  /** What follows the integers of a record. */
  close(to: Mem, scale: Vec, sums: Vec, halves: boolean): void {
    const { a, isa } = this;
    const [second, total, offset] = [isa.v(7).x, isa.v(8).x, isa.v(13).x];
    const [own, first] = [scale.x, sums.x];
    a.vextracti128(second, sums.y, 1);
    a.vpaddd(total, first, second);
    a.vpmulld(first, halves ? first : total, offset);
    a.vpmulld(second, second, offset);
    a.vcvtdq2ps(total, total);
    a.vmulps(total, total, own);
    a.vpunpckldq(own, own, first);
    a.vpunpckldq(second, second, total);
    a.vpunpcklqdq(own, own, second);
    a.vmovups(to, own);
  }
}

/** Tiles lo … hi of contiguous rows of x. */
export function emitRounding(a: Assembler, isa: Isa, form: RoundingForm): void {
  const { dtype, halves } = form;
  const r = new Rounding(a, isa, form);
  const [x, out, blocks, rows, step, tile, end, base] = [rcx, rdx, rax, r10, r9, rsi, r8, r11];
  a.mov(end, rdx);
  r.prepare();
  const tiles = a.here();
  // Where the tile begins: `most` rows of everything come before it.
  a.mov(base, tile);
  a.imul(base, args.most);
  a.mov(rows, args.rows);
  a.sub(rows, base);
  a.cmp(rows, args.most);
  a.cmova(rows, args.most);
  a.imul(step, rows, record.bytes);
  a.imul(base, args.blocks);
  a.imul(x, base, BLOCK * sizeOf(dtype));
  a.add(x, args.x);
  a.imul(base, base, record.bytes);
  a.add(base, args.out);
  const next = a.here();
  a.mov(out, base);
  a.mov(blocks, args.blocks);
  const loop = a.here();
  const [scale, sums] = [isa.v(6), isa.v(9)];
  r.read(dtype, mem(x));
  r.round(scale);
  r.pack(mem(out), sums);
  r.close(mem(out, record.scale), scale, sums, halves);
  a.add(x, BLOCK * sizeOf(dtype));
  a.add(out, step);
  a.dec(blocks);
  a.jne(loop);
  a.add(base, record.bytes);
  a.dec(rows);
  a.jne(next);
  a.add(tile, 1);
  a.cmp(tile, end);
  a.jb(tiles);
  a.vzeroupper();
  a.ret();
}
