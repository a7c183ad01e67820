/**
 * Rows of x · wᵀ with quantized weights, where they lie: a vector of rows of w meets up to eight packed rows of x, one
 * block of weights after the other. The weights that come next are fetched into the cache in the order of memory.
 */
import { sizeOf } from "../../../../core/dtype.ts";
import { quantTypes } from "../../../../core/quant-types.ts";
import type { Assembler } from "../assembler.ts";
import { enter, layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import { type Mem, mem, Vec } from "../operands.ts";
import type { FloatType } from "../simd.ts";
import { blockCodes, type Group, type NativeQuantType, type Sink } from "./quant-blocks.ts";
import { gpr, mostRows, type Planes, QuantCode, record } from "./quant-code.ts";

/** Bytes of a row of w, blocks in it, tiles of the most rows; w, x (packed) and out are addresses. */
export const productArguments = layoutArguments("w", "line", "x", "blocks", "tiles", "out", "outLine");

export interface ProductForm {
  readonly type: NativeQuantType;
  readonly dtype: FloatType;
  readonly planes: Planes;
  /** Whether there are tiles of the most rows, and how many rows are left then. */
  readonly full: boolean;
  readonly rest: number;
}

/** x points into the middle of the records that it is used for: displacements of a byte reach all of them. */
const MIDDLE = 256;

class Dots implements Sink {
  readonly c: QuantCode;
  readonly rows: number;
  readonly planes: Planes;
  /** Chains of additions of each plane: with a single row, two of them hide their latency. */
  readonly #chains: 1 | 2;
  #isStarted = false;

  constructor(c: QuantCode, rows: number, planes: Planes) {
    this.c = c;
    this.rows = rows;
    this.planes = planes;
    this.#chains = rows === 1 && c.isa.vnni ? 2 : 1;
  }

  /** A part of the record of row r that a group belongs to. */
  #at({ block }: Group, r: number, offset: number): Mem {
    return mem(gpr.x, (block * this.rows + r) * record.bytes + offset - MIDDLE);
  }

  /** The integer sums of a row: those of the high plane, then those of the low one. */
  #sum(r: number, plane = 0, chain = 0): Vec {
    const perRow = this.c.isa.vnni ? this.planes * this.#chains : 1;
    return this.c.integers[r * perRow + plane * this.#chains + chain]!;
  }

  #start(group: Group): void {
    const { a } = this.c;
    const start = group.half === 1 ? record.secondStart : record.start;
    for (let r = 0; r < this.rows; r++) {
      const last = this.c.isa.vnni ? this.planes - 1 : 0;
      for (let plane = 0; plane <= last; plane++) {
        for (let chain = 0; chain < this.#chains; chain++) {
          if (plane < last || chain > 0) this.c.zero(this.#sum(r, plane, chain));
          else a.vpbroadcastd(this.#sum(r, plane), this.#at(group, r, start));
        }
      }
    }
    this.#isStarted = true;
  }

  take(group: Group, half: number, word: number, quants: Vec): void {
    const { a, isa, split } = this.c;
    if (!this.#isStarted) this.#start(group);
    const at = 16 * half + 4 * word;
    if (isa.vnni) {
      for (let plane = 0; plane < this.planes; plane++) {
        for (let r = 0; r < this.rows; r++) {
          const sum = this.#sum(r, plane, word % this.#chains);
          a.vpdpbusd(sum, quants, this.#at(group, r, plane * record.lowPlane + at).each);
        }
      }
      return;
    }
    this.c.and(split, quants, this.c.constantInt(0x00ff00ff));
    this.#addWords(group, at, split);
    a.vpsrlw(split, quants, 8);
    this.#addWords(group, record.oddWords + at, split);
  }

  #addWords(group: Group, at: number, words: Vec): void {
    const { a, product } = this.c;
    for (let r = 0; r < this.rows; r++) {
      a.vpbroadcastd(product, this.#at(group, r, at));
      a.vpmaddwd(product, product, words);
      a.vpaddd(this.#sum(r), this.#sum(r), product);
    }
  }

  finish(group: Group): void {
    const { a, quants: factor, sums, isa } = this.c;
    for (let r = 0; r < this.rows; r++) {
      const sum = this.#sum(r);
      if (this.#chains === 2) {
        for (let plane = 0; plane < this.planes; plane++)
          a.vpaddd(this.#sum(r, plane), this.#sum(r, plane), this.#sum(r, plane, 1));
      }
      if (isa.vnni && this.planes === 2) {
        a.vpslld(sum, sum, 8);
        a.vpaddd(sum, sum, this.#sum(r, 1));
      }
      a.vcvtdq2ps(sum, sum);
      a.vbroadcastss(factor, this.#at(group, r, record.scale));
      a.vmulps(factor, factor, group.scale);
      const to = sums[r]!;
      const total = to instanceof Vec ? to : sum;
      if (to instanceof Vec) a.vfmadd231ps(to, sum, factor);
      else a.vfmadd213ps(sum, factor, to);
      if (group.minimum) {
        a.vbroadcastss(factor, this.#at(group, r, record.sum));
        a.vfnmadd231ps(total, factor, group.minimum);
      }
      if (!(to instanceof Vec)) a.vmovups(to, sum);
    }
    this.#isStarted = false;
  }

  advance(blocks: number): void {
    this.c.a.add(gpr.x, blocks * this.rows * record.bytes);
  }
}

/** Columns lo … hi of the result, at least as many as a vector has lanes; the last ones may be computed twice. */
export function emitQuantProduct(a: Assembler, isa: Isa, form: ProductForm): void {
  const { type, dtype, planes, full, rest } = form;
  const most = mostRows(isa);
  const { bytes } = quantTypes[type];
  const c = new QuantCode(a, isa, full ? most : rest, planes);
  const args = productArguments.at(gpr.args);
  const { local, leave } = enter(a, "args", "column", "end", "weights", "tiles", "count");

  /** All rows of a tile with the rows of w that `weights` points at. */
  const tile = (rows: number, prefetch: boolean): void => {
    a.mov(gpr.weights, local.weights);
    for (let r = 0; r < rows; r++) {
      const sum = c.sums[r]!;
      if (sum instanceof Vec) c.zero(sum);
      else {
        if (r === 0) c.zero(c.quants);
        a.vmovups(sum, c.quants);
      }
    }
    a.mov(gpr.args, local.args);
    a.mov(gpr.cursor, args.blocks);
    a.mov(local.count, gpr.cursor);
    a.align(32);
    const loop = a.here();
    if (prefetch) {
      const ahead = c.lanes * bytes;
      for (let at = 0; at < ahead; at += 64) a.prefetcht0(mem(gpr.ahead, at));
      a.add(gpr.ahead, ahead);
    }
    blockCodes[type].emit(c, new Dots(c, rows, planes));
    a.add(gpr.weights, bytes);
    a.dec(local.count);
    a.jne(loop);
    a.mov(gpr.args, local.args);
    const [t, u] = c.temporary;
    for (let r = 0; r < rows; r++) {
      const sum = c.sums[r]!;
      if (!(sum instanceof Vec)) a.vmovups(c.quants, sum);
      c.store(mem(gpr.out), dtype, sum instanceof Vec ? sum : c.quants, t, u);
      a.add(gpr.out, args.outLine);
    }
  };

  a.mov(local.args, gpr.args);
  a.mov(local.column, gpr.lo);
  a.mov(local.end, gpr.hi);
  c.prepare(args.line);
  const columns = a.here();
  a.mov(gpr.args, local.args);
  a.mov(gpr.weights, local.column);
  // The last vector of columns ends where they end.
  a.mov(gpr.out, local.end);
  a.sub(gpr.out, c.lanes);
  a.cmp(gpr.weights, gpr.out);
  a.cmovg(gpr.weights, gpr.out);
  a.mov(gpr.out, gpr.weights);
  a.shl(gpr.out, Math.log2(sizeOf(dtype)));
  a.add(gpr.out, args.out);
  a.imul(gpr.weights, args.line);
  a.add(gpr.weights, args.w);
  a.mov(local.weights, gpr.weights);
  a.mov(gpr.x, args.x);
  a.add(gpr.x, MIDDLE);
  if (full) {
    a.mov(gpr.cursor, args.tiles);
    a.mov(local.tiles, gpr.cursor);
    const tiles = a.here();
    tile(most, false);
    a.dec(local.tiles);
    a.jne(tiles);
  } else {
    a.mov(gpr.ahead, args.line);
    a.shl(gpr.ahead, Math.log2(c.lanes));
    a.add(gpr.ahead, gpr.weights);
  }
  if (rest > 0) tile(rest, !full);
  a.mov(gpr.out, local.column);
  a.add(gpr.out, c.lanes);
  a.mov(local.column, gpr.out);
  a.cmp(gpr.out, local.end);
  a.jl(columns);
  leave();
}
