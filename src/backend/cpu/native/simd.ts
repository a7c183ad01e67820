/**
 * Floats in vectors, whatever they are in memory: loads that widen, stores that round to nearest even, and both for the
 * last few elements of a line, without touching what lies behind.
 *
 * The number of those last elements is in `tail` (r11); `prepareTail` makes the mask for it (k1, or ymm15 in AVX2) and
 * uses rax and r10.
 */
import type { DType } from "../../../core/dtype.ts";
import { Assembler } from "./assembler.ts";
import type { Isa } from "./isa.ts";
import { eax, k1, k2, type Mask, type Mem, mem, r10, r11, rax, Vec } from "./operands.ts";
import { floatBits } from "./pool.ts";

export const floatTypes = ["f32", "f16", "bf16"] as const;
export type FloatType = (typeof floatTypes)[number];
export const isFloatType = (dtype: DType): dtype is FloatType => (floatTypes as readonly DType[]).includes(dtype);

export const tail = r11;
const LESS = 1;
const UNORDERED = 3;

/** By the name of what asks for them. */
const constantsOf = new Map<string, readonly number[]>();

export class Simd {
  readonly a: Assembler;
  readonly isa: Isa;
  /** Constants in registers, by their bits; and those that a trial asked for. */
  #held: ReadonlyMap<number, Vec> = new Map();
  #asked: Set<number> | undefined;
  /** Constants in memory, by their bits. */
  readonly #stored = new Map<number, Mem>();

  constructor(a: Assembler, isa: Isa) {
    this.a = a;
    this.isa = isa;
  }

  v(id: number): Vec {
    return this.isa.v(id);
  }

  /**
   * Loads the constants that `use` asks for into registers from 16 on, as far as there are any, for the code that follows.
   * `name` is that of `use`: which they are is found out once, by emitting it somewhere else.
   */
  hoist(name: string, use: (trial: Simd) => void): void {
    if (this.isa.registers < 32) return;
    let asked = constantsOf.get(name);
    if (asked === undefined) {
      const trial = new Simd(new Assembler(), this.isa);
      trial.#asked = new Set();
      use(trial);
      trial.a.finish();
      asked = [...trial.#asked].slice(0, 16);
      constantsOf.set(name, asked);
    }
    const held = new Map(asked.map((bits, i) => [bits, this.v(16 + i)]));
    for (const [bits, register] of held) this.a.vpbroadcastd(register, this.a.i32(bits));
    this.#held = held;
  }

  #bits(bits: number): Mem | Vec {
    this.#asked?.add(bits);
    const known = this.#held.get(bits) ?? this.#stored.get(bits);
    if (known) return known;
    const { masks, lanes } = this.isa;
    const place = masks ? this.a.i32(bits).each : this.a.i32(...Array<number>(lanes).fill(bits));
    this.#stored.set(bits, place);
    return place;
  }

  /** A float in every element, as an operand. */
  constant(x: number): Mem | Vec {
    return this.#bits(floatBits(x) | 0);
  }

  /** The same with an integer. */
  constantInt(x: number): Mem | Vec {
    return this.#bits(x | 0);
  }

  and(dst: Vec, x: Vec, y: Vec | Mem): void {
    if (this.isa.masks) this.a.vpandd(dst, x, y);
    else this.a.vpand(dst, x, y);
  }

  or(dst: Vec, x: Vec, y: Vec | Mem): void {
    if (this.isa.masks) this.a.vpord(dst, x, y);
    else this.a.vpor(dst, x, y);
  }

  zero(dst: Vec): void {
    // The short form clears the whole register, of which 17 and higher have none.
    if (dst.id < 16) this.a.vxorps(dst.x, dst.x, dst.x);
    else this.a.vpxord(dst, dst, dst);
  }

  /** Every element the same. */
  set(dst: Vec, x: number): void {
    const from = this.constant(x);
    if (from instanceof Vec) this.a.vmovaps(dst, from);
    else if (this.isa.masks) this.a.vbroadcastss(dst, this.a.f32(x));
    else this.a.vmovups(dst, from);
  }

  /** dst becomes y where x is less than the bound; `t` is used. */
  whereLess(dst: Vec, x: Vec, bound: Mem | Vec, y: Vec, t: Vec): void {
    const { a } = this;
    if (this.isa.masks) {
      a.vcmpps(k2, x, bound, LESS);
      a.vmovaps(dst.k(k2), y);
    } else {
      a.vcmpps(t, x, bound, LESS);
      a.vblendvps(dst, dst, y, t);
    }
  }

  /** The larger one of x and a number; what is no number stays. */
  atLeast(x: Vec, least: number, t: Vec): void {
    this.set(t, least);
    this.a.vmaxps(x, t, x);
  }

  atMost(x: Vec, most: number, t: Vec): void {
    this.set(t, most);
    this.a.vminps(x, t, x);
  }

  prepareTail(): void {
    const { a } = this;
    if (this.isa.masks) {
      a.mov(rax, -1);
      a.bzhi(rax, rax, tail);
      a.kmovw(k1, eax);
      return;
    }
    const { lanes } = this.isa;
    const table = a.i32(...Array<number>(lanes).fill(-1), ...Array<number>(lanes).fill(0));
    a.lea(r10, table.plus(4 * lanes));
    a.mov(rax, tail);
    a.neg(rax);
    a.vmovdqu(this.v(15), mem(r10, { index: rax, scale: 4 }));
  }

  load(dst: Vec, type: FloatType, from: Mem): void {
    const { a } = this;
    if (type === "f32") a.vmovups(dst, from);
    else if (type === "f16") a.vcvtph2ps(dst, from);
    else {
      a.vpmovzxwd(dst, from);
      a.vpslld(dst, dst, 16);
    }
  }

  /** The last elements; the others are 0. */
  loadTail(dst: Vec, type: FloatType, from: Mem): void {
    const { a } = this;
    if (!this.isa.masks) {
      if (type === "f32") a.vmaskmovps(dst, this.v(15), from);
      else {
        const end = a.label();
        a.vpxor(dst.x, dst.x, dst.x);
        for (let i = 0; i < this.isa.lanes - 1; i++) {
          a.cmp(tail, i);
          a.jbe(end);
          a.vpinsrw(dst.x, dst.x, from.plus(2 * i), i);
        }
        a.bind(end);
        this.#widen(dst, type);
      }
    } else if (type === "f32") a.vmovups(dst.kz(k1), from);
    else if (type === "f16") {
      a.vmovdqu16(dst.y.kz(k1), from);
      a.vcvtph2ps(dst, dst.y);
    } else {
      a.vpmovzxwd(dst.kz(k1), from);
      a.vpslld(dst, dst, 16);
    }
  }

  /** Elements outside the tail become zero. */
  clearBeyondTail(x: Vec): void {
    if (this.isa.masks) this.a.vmovaps(x.kz(k1), x);
    else this.a.vandps(x, x, this.v(15));
  }

  /** Elements outside the tail become `fill`, which is used up. */
  fillBeyondTail(x: Vec, fill: Vec): void {
    const { a } = this;
    if (this.isa.masks) {
      a.vmovaps(fill.k(k1), x);
      a.vmovaps(x, fill);
    } else a.vblendvps(x, fill, x, this.v(15));
  }

  /** Both halves as f64 in `low` and `high`. */
  toDoubles(x: Vec, low: Vec, high: Vec): void {
    const { a } = this;
    if (this.isa.masks) {
      a.vextractf64x4(high.y, x, 1);
      a.vcvtps2pd(low, x.y);
      a.vcvtps2pd(high, high.y);
    } else {
      a.vextractf128(high.x, x, 1);
      a.vcvtps2pd(low, x.x);
      a.vcvtps2pd(high, high.x);
    }
  }

  /** The sum of all f64 of x, in its lowest place; `t` is used. */
  sumDoubles(x: Vec, t: Vec): void {
    const { a } = this;
    if (this.isa.masks) {
      a.vextractf64x4(t.y, x, 1);
      a.vaddpd(x.y, x.y, t.y);
    }
    a.vextractf128(t.x, x.y, 1);
    a.vaddpd(x.x, x.x, t.x);
    a.vunpckhpd(t.x, x.x, x.x);
    a.vaddsd(x.x, x.x, t.x);
  }

  /** The largest float of x in every element; `t` is used. */
  largest(x: Vec, t: Vec): void {
    const { a } = this;
    if (this.isa.masks) {
      a.vextractf64x4(t.y, x, 1);
      a.vmaxps(x.y, x.y, t.y);
    }
    a.vextractf128(t.x, x.y, 1);
    a.vmaxps(x.x, x.x, t.x);
    a.vmovhlps(t.x, x.x, x.x);
    a.vmaxps(x.x, x.x, t.x);
    a.vmovshdup(t.x, x.x);
    a.vmaxps(x.x, x.x, t.x);
    a.vbroadcastss(x, x.x);
  }

  /** One element, into the lowest place; uses rax. */
  loadOne(dst: Vec, type: FloatType, from: Mem): void {
    const { a } = this;
    if (type === "f32") {
      a.vmovss(dst.x, from);
      return;
    }
    a.movzx(eax, from.sized(16));
    if (type === "bf16") a.shl(eax, 16);
    a.vmovd(dst.x, eax);
    if (type === "f16") a.vcvtph2ps(dst.x, dst.x);
  }

  /** Sixteen bits each, in the low half of the register, become floats. */
  #widen(dst: Vec, type: FloatType): void {
    const { a } = this;
    const half = this.isa.masks ? dst.y : dst.x;
    if (type === "f16") a.vcvtph2ps(dst, half);
    else {
      a.vpmovzxwd(dst, half);
      a.vpslld(dst, dst, 16);
    }
  }

  /** bf16 in the low half of each element of `t`; uses `u`, or k2. */
  #toBf16(src: Vec, t: Vec, u: Vec): void {
    const { a } = this;
    if (this.isa.masks) {
      // Half of the last place is added, and less where that place is even; what is no number becomes a quiet one.
      a.vpaddd(t, src, this.constantInt(0x7fff));
      a.vptestmd(k2, src, this.constantInt(0x10000));
      a.vpaddd(t.k(k2), src, this.constantInt(0x8000));
      a.vcmpps(k2, src, src, UNORDERED);
      a.vpord(t.k(k2), src, this.constantInt(0x400000));
      a.vpsrld(t, t, 16);
      return;
    }
    a.vpslld(t, src, 15);
    a.vpsrld(t, t, 31);
    a.vpaddd(t, t, src);
    a.vpaddd(t, t, this.constantInt(0x7fff));
    a.vpsrld(t, t, 16);
    a.vpsrld(u, src, 16);
    this.or(u, u, this.constantInt(0x40));
    // The mask of what is no number takes the place of the source.
    a.vcmpps(src, src, src, UNORDERED);
    a.vpblendvb(t, t, u, src);
  }

  /** Sixteen bits each, side by side in the low half of `t`. In AVX2 the source is used up. */
  #narrow(type: FloatType, src: Vec, t: Vec, u: Vec): Vec {
    const { a } = this;
    const half = this.isa.masks ? t.y : t.x;
    if (type === "f16") {
      a.vcvtps2ph(half, src, 0);
      return half;
    }
    this.#toBf16(src, t, u);
    if (this.isa.masks) a.vpmovdw(half, t);
    else {
      a.vpackusdw(t, t, t);
      a.vpermq(t, t, 0x08);
    }
    return half;
  }

  /** Rounds and stores; `t` and `u` are used, and in AVX2 the source. */
  store(to: Mem, type: FloatType, src: Vec, t: Vec, u: Vec): void {
    const { a } = this;
    if (type === "f32") a.vmovups(to, src);
    else if (type === "f16") a.vcvtps2ph(to, src, 0);
    else a.vmovups(to, this.#narrow(type, src, t, u));
  }

  /** Only the tail, or what another mask has. */
  storeTail(to: Mem, type: FloatType, src: Vec, t: Vec, u: Vec, mask: Mask = k1): void {
    const { a } = this;
    if (type === "f32") {
      if (this.isa.masks) a.vmovups(to.k(mask), src);
      else a.vmaskmovps(to, this.v(15), src);
      return;
    }
    const half = this.#narrow(type, src, t, u);
    if (this.isa.masks) {
      a.vmovdqu16(to.k(mask), half);
      return;
    }
    const end = a.label();
    for (let i = 0; i < this.isa.lanes - 1; i++) {
      a.cmp(tail, i);
      a.jbe(end);
      a.vpextrw(to.plus(2 * i), half, i);
    }
    a.bind(end);
  }
}
