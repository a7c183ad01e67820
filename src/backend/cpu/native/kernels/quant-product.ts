/**
 * Rows of x · wᵀ with quantized weights, where they lie: a vector of rows of w meets up to eight packed rows of x, one
 * block of weights after the other. The weights that come next are fetched into the cache in the order of memory.
 */
import { type DType, sizeOf } from "../../../../core/dtype.ts";
import { quantTypes } from "../../../../core/quant-types.ts";
import type { Assembler } from "../assembler.ts";
import type { Isa } from "../isa.ts";
import { k1, type Mem, mem, rsp, type Vec } from "../operands.ts";
import { blockCodes, type Group, type NativeQuantType, type Sink } from "./quant-blocks.ts";
import { frame, gpr, QuantCode, record, saved } from "./quant-code.ts";

/** What a product is called with, in words of 64 bits; `total` and the rest of its tiles are in the code. */
export const productWords = ["w", "line", "x", "blocks", "tiles", "out", "outLine"] as const;

const word = (name: (typeof productWords)[number]): Mem => mem(gpr.args, 8 * productWords.indexOf(name));
const variable = (i: number): Mem => mem(rsp, frame.variables + 8 * i);
const [ARGS, COLUMN, END, TILES, ROWS_OF_W] = [0, 1, 2, 3, 4].map(variable) as [Mem, Mem, Mem, Mem, Mem];

/** Integer sums that a row has at a time for each group: with few rows, several chains of additions hide their latency. */
const chainsOf = (rows: number): number => (rows === 1 ? 4 : rows < 4 ? 2 : 1);

class Dots implements Sink {
  readonly #started = new Map<string, readonly (readonly Vec[])[]>();
  readonly #free: Vec[];
  readonly #chains: number;

  constructor(
    readonly c: QuantCode,
    readonly rows: number,
  ) {
    this.#free = [...c.integers];
    this.#chains = c.wide ? chainsOf(rows) : 1;
  }

  /** Part of the record of row r that belongs to a group. */
  #at({ block }: Group, r: number, offset: number): Mem {
    return mem(gpr.x, (block * this.rows + r) * record.bytes + offset);
  }

  take(group: Group, part: number, words: Vec): void {
    const { a, isa } = this.c;
    const sums = this.#sums(group);
    for (let r = 0; r < this.rows; r++) {
      const x = this.#at(group, r, 4 * part);
      const sum = sums[r]![part % this.#chains]!;
      if (isa.vnni) a.vpdpwssd(sum, words, x.each);
      else {
        a.vpbroadcastd(this.c.product, x);
        a.vpmaddwd(this.c.product, this.c.product, words);
        a.vpaddd(sum, sum, this.c.product);
      }
    }
  }

  #sums(group: Group): readonly (readonly Vec[])[] {
    const key = `${group.block}.${group.half ?? 0}`;
    const known = this.#started.get(key);
    if (known) return known;
    const start = group.half === 1 ? record.secondStart : record.start;
    const sums = Array.from({ length: this.rows }, (_, r) => {
      const [first, ...others] = this.#free.splice(0, this.#chains) as [Vec, ...Vec[]];
      this.c.a.vpbroadcastd(first, this.#at(group, r, start));
      for (const other of others) this.c.zero(other);
      return [first, ...others];
    });
    this.#started.set(key, sums);
    return sums;
  }

  finish(group: Group): void {
    const { c } = this;
    const { a, quants: factor } = c;
    const [scale, minimum] = c.fetched as [Vec, Vec];
    c.load(scale, group.scale);
    if (group.minimum) c.load(minimum, group.minimum);
    const sums = this.#sums(group);
    for (const [r, chains] of sums.entries()) {
      const own = this.#at(group, r, record.scale);
      if (c.wide) a.vmulps(factor, scale, own.each);
      else {
        a.vbroadcastss(factor, own);
        a.vmulps(factor, factor, scale);
      }
      const [sum] = chains as [Vec];
      for (let step = chains.length / 2; step >= 1; step /= 2) {
        for (let i = 0; i < step; i++) a.vpaddd(chains[i]!, chains[i]!, chains[i + step]!);
      }
      a.vcvtdq2ps(sum, sum);
      a.vfmadd231ps(c.floats[r]!, sum, factor);
      if (!group.minimum) continue;
      const total = this.#at(group, r, record.sum);
      if (c.wide) a.vfnmadd231ps(c.floats[r]!, minimum, total.each);
      else {
        a.vbroadcastss(factor, total);
        a.vfnmadd231ps(c.floats[r]!, minimum, factor);
      }
    }
    this.#started.delete(`${group.block}.${group.half ?? 0}`);
    this.#free.push(...sums.flat());
  }

  advance(blocks: number): void {
    this.c.a.add(gpr.x, blocks * this.rows * record.bytes);
  }
}

/** The bit of a NaN that lets it pass. */
const QUIET = 0x00400000;

/** Stores the sums of a row in its dtype. */
function put(c: QuantCode, dtype: DType, to: Mem, sums: Vec): void {
  const { a } = c;
  if (dtype === "f32") c.store(to, sums);
  else if (dtype === "f16") a.vcvtps2ph(to, sums, 0);
  else putBfloat16(c, to, sums);
}

function putBfloat16(c: QuantCode, to: Mem, sums: Vec): void {
  const { a } = c;
  // Rounded to even by adding what is just below half of the last bit, or half; NaN stays NaN.
  const [t, nan, quiet] = c.fetched as [Vec, Vec, Vec];
  a.vpsrld(t, sums, 16);
  c.and(t, t, c.splat(1));
  a.vpaddd(t, t, sums);
  a.vpaddd(t, t, c.splat(0x7fff));
  const UNORDERED = 3;
  if (c.wide) {
    a.vcmpps(k1, sums, sums, UNORDERED);
    a.vpord(t.k(k1), sums, c.splat(QUIET));
    a.vpsrld(t, t, 16);
    a.vpmovdw(to, t);
    return;
  }
  a.vcmpps(nan, sums, sums, UNORDERED);
  c.or(quiet, sums, c.splat(QUIET));
  a.vblendvps(t, t, quiet, nan);
  a.vpsrld(t, t, 16);
  a.vpackusdw(t, t, t);
  a.vpermq(t, t, 0b1000);
  c.store(to, t.x);
}

/** All rows of a tile with the rows of w that `weights` points at. */
function tile(c: QuantCode, type: NativeQuantType, dtype: DType, rows: number, prefetch: boolean): void {
  const { a } = c;
  const { bytes } = quantTypes[type];
  for (let r = 0; r < rows; r++) c.zero(c.floats[r]!);
  a.mov(gpr.args, ARGS);
  a.mov(gpr.count, word("blocks"));
  const loop = a.here();
  if (prefetch) {
    const ahead = c.lanes * bytes;
    for (let at = 0; at < ahead; at += 64) a.prefetcht0(mem(gpr.ahead, at));
    a.add(gpr.ahead, ahead);
  }
  blockCodes[type].emit(c, new Dots(c, rows));
  a.add(gpr.weights, bytes);
  a.dec(gpr.count);
  a.jne(loop);
  a.mov(gpr.args, ARGS);
  for (let r = 0; r < rows; r++) {
    put(c, dtype, mem(gpr.out), c.floats[r]!);
    a.add(gpr.out, word("outLine"));
  }
}

/**
 * Columns lo … hi of the result, at least as many as a vector has lanes; the last ones may be computed twice. Tiles of
 * `most` rows, as many as the arguments say, then one of `rest`.
 */
export function emitProduct(
  a: Assembler,
  isa: Isa,
  type: NativeQuantType,
  dtype: DType,
  most: number,
  rest: number,
): void {
  const c = new QuantCode(a, isa, Math.max(most, rest));
  for (const register of saved) a.push(register);
  a.mov(gpr.cursor, rsp);
  a.sub(rsp, frame.bytes + 64);
  a.and(rsp, -64);
  a.mov(mem(rsp, frame.bytes), gpr.cursor);
  a.mov(ARGS, gpr.args);
  a.mov(COLUMN, gpr.lo);
  a.sub(gpr.hi, c.lanes);
  a.mov(END, gpr.hi);
  c.multiply(word("line"));

  const columns = a.here();
  // The last vector of columns ends where they end.
  a.mov(gpr.args, ARGS);
  a.mov(gpr.count, COLUMN);
  a.cmp(gpr.count, END);
  const inside = a.label();
  a.jle(inside);
  a.mov(gpr.count, END);
  a.bind(inside);
  a.mov(gpr.out, gpr.count);
  a.shl(gpr.out, Math.log2(sizeOf(dtype)));
  a.add(gpr.out, word("out"));
  a.imul(gpr.count, word("line"));
  a.add(gpr.count, word("w"));
  a.mov(ROWS_OF_W, gpr.count);
  a.mov(gpr.x, word("x"));

  const once = most === 0;
  if (once) {
    a.mov(gpr.ahead, word("line"));
    a.shl(gpr.ahead, Math.log2(c.lanes));
    a.add(gpr.ahead, gpr.count);
  } else {
    a.mov(gpr.ahead, word("tiles"));
    a.mov(TILES, gpr.ahead);
    const tiles = a.here();
    a.mov(gpr.weights, ROWS_OF_W);
    tile(c, type, dtype, most, false);
    a.dec(TILES);
    a.jne(tiles);
  }
  if (rest > 0) {
    a.mov(gpr.weights, ROWS_OF_W);
    tile(c, type, dtype, rest, once);
  }

  a.mov(gpr.count, COLUMN);
  a.add(gpr.count, c.lanes);
  a.mov(COLUMN, gpr.count);
  a.mov(gpr.hi, END);
  a.add(gpr.hi, c.lanes);
  a.cmp(gpr.count, gpr.hi);
  a.jl(columns);

  a.mov(rsp, mem(rsp, frame.bytes));
  for (const register of saved.toReversed()) a.pop(register);
  a.vzeroupper();
  a.ret();
}
