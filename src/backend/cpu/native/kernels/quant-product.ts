/**
 * Few rows of x · wᵀ with quantized weights, where they lie: a vector of rows of w meets up to eight packed rows of x, one
 * block of weights after the other. The weights that come next are fetched into the cache in the order of memory.
 */
import { sizeOf } from "../../../../core/dtype.ts";
import { quantTypes } from "../../../../core/quant-types.ts";
import type { Assembler } from "../assembler.ts";
import { enter, layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import { type Mem, mem, Vec } from "../operands.ts";
import type { FloatType } from "../simd.ts";
import {
  type BlockCode,
  blockCodes,
  type Group,
  type NativeQuantType,
  type Quants,
  type Sink,
  STRIP,
  takesStrips,
} from "./quant-blocks.ts";
import { chainsOf, gpr, type Planes, QuantCode, record, turnedFormOf } from "./quant-code.ts";

/**
 * Bytes of a row of w, blocks in it, tiles of the most rows and rows behind them; w, x (packed) and out are addresses. What
 * is added to the product has a row for each of its rows, `addendLine` bytes apart: none where one serves all.
 */
export const productArguments = layoutArguments(
  ...(["w", "line", "x", "blocks", "tiles", "rest", "out", "outLine", "addend", "addendLine"] as const),
);

export interface ProductForm {
  readonly type: NativeQuantType;
  readonly dtype: FloatType;
  readonly planes: Planes;
  /** Of x, at most `mostRows`. */
  readonly rows: number;
  /** Something is added to the product before it is rounded. */
  readonly adds: boolean;
  /** Rows of w are whole strips of blocks. */
  readonly strips: boolean;
  /** Weights lie turned. */
  readonly isTurned: boolean;
}

/** x points into the middle of the records that it is used for: displacements of a byte reach all of them. */
const MIDDLE = 256;

/** Bytes between what is read and what is fetched into the cache: less than what memory takes to answer costs. */
const LEAST_AHEAD = 16384;

class Dots implements Sink {
  readonly c: QuantCode;
  readonly rows: number;
  readonly planes: Planes;

  /** What is done with every block besides. */
  readonly #meanwhile: (() => void) | undefined;

  constructor(c: QuantCode, rows: number, planes: Planes, meanwhile?: () => void) {
    this.c = c;
    this.rows = rows;
    this.planes = planes;
    this.#meanwhile = meanwhile;
  }

  /** A part of the record of row r that a group belongs to. */
  #at({ block }: Group, r: number, offset: number): Mem {
    return mem(gpr.x, (block * this.rows + r) * record.bytes + offset - MIDDLE);
  }

  add(group: Group, quants: Iterable<Quants>): void {
    const { a, isa, integers } = this.c;
    const start = (r: number) => this.#at(group, r, group.half === 1 ? record.secondStart : record.start);
    const chains = chainsOf(isa, this.rows, this.planes);
    const sums = Array.from({ length: this.rows }, (_, r) => integers[r * chains]!);
    if (isa.vnni && this.planes === 2) {
      for (const sum of integers.slice(0, this.rows * chains)) this.c.zero(sum);
      if (chains === 1) this.#addBytes(group, quants, 0);
      else this.#addBoth(group, quants);
      for (const [r, sum] of sums.entries()) {
        a.vpslld(sum, sum, 8);
        if (chains > 1) a.vpaddd(sum, sum, integers[r * chains + 1]!);
        a.vpaddd(sum, sum, start(r).each);
      }
      if (chains === 1) this.#addBytes(group, quants, record.lowPlane);
    } else {
      for (const [r, sum] of sums.entries()) a.vpbroadcastd(sum, start(r));
      if (isa.vnni) this.#addBytes(group, quants, 0);
      else this.#addWords(group, quants);
    }
    this.#finish(group, sums);
  }

  /** Both planes, in chains of their own. */
  #addBoth(group: Group, quants: Iterable<Quants>): void {
    for (const { at, emit } of quants) {
      const bytes = emit();
      for (let r = 0; r < this.rows; r++) {
        for (const [i, plane] of [0, record.lowPlane].entries()) {
          this.c.a.vpdpbusd(this.c.integers[2 * r + i]!, bytes, this.#at(group, r, plane + 4 * at).each);
        }
      }
    }
  }

  #addBytes(group: Group, quants: Iterable<Quants>, plane: number): void {
    for (const { at, emit } of quants) {
      const bytes = emit();
      for (let r = 0; r < this.rows; r++) {
        this.c.a.vpdpbusd(this.c.integers[r]!, bytes, this.#at(group, r, plane + 4 * at).each);
      }
    }
  }

  #addWords(group: Group, quants: Iterable<Quants>): void {
    const { a, split, product, integers } = this.c;
    const add = (at: number) => {
      for (let r = 0; r < this.rows; r++) {
        a.vpbroadcastd(product, this.#at(group, r, at));
        a.vpmaddwd(product, product, split);
        a.vpaddd(integers[r]!, integers[r]!, product);
      }
    };
    for (const { at, emit } of quants) {
      const bytes = emit();
      this.c.and(split, bytes, this.c.constantInt(0x00ff00ff));
      add(4 * at);
      a.vpsrlw(split, bytes, 8);
      add(record.oddWords + 4 * at);
    }
  }

  #finish(group: Group, integers: readonly Vec[]): void {
    const { a, quants: factor, sums, factors, minima } = this.c;
    if (factors) a.vmovups(factors, group.scale);
    if (minima && group.minimum) a.vmovups(minima, group.minimum);
    for (const [r, sum] of integers.entries()) {
      const [scale, total] = [this.#at(group, r, record.scale), this.#at(group, r, record.sum)];
      const to = sums[r]!;
      const into = to instanceof Vec ? to : sum;
      a.vcvtdq2ps(sum, sum);
      if (factors) a.vmulps(factor, factors, scale.each);
      else {
        a.vbroadcastss(factor, scale);
        a.vmulps(factor, factor, group.scale);
      }
      if (to instanceof Vec) a.vfmadd231ps(to, sum, factor);
      else a.vfmadd213ps(sum, factor, to);
      if (group.minimum && minima) a.vfnmadd231ps(into, minima, total.each);
      else if (group.minimum) {
        a.vbroadcastss(factor, total);
        a.vfnmadd231ps(into, factor, group.minimum);
      }
      if (!(to instanceof Vec)) a.vmovups(to, sum);
    }
  }

  advance(blocks: number): void {
    this.c.a.add(gpr.x, blocks * this.rows * record.bytes);
    this.#meanwhile?.();
  }
}

/** Columns lo … hi of the result, at least as many as a vector has lanes; the last ones may be computed twice. */
export function emitQuantProduct(a: Assembler, isa: Isa, form: ProductForm): void {
  const { type, dtype, planes, rows, adds, isTurned } = form;
  const { bytes } = quantTypes[type];
  const code: BlockCode = blockCodes[type];
  const c = new QuantCode(a, isa, rows, planes, code.keep, isTurned ? turnedFormOf(type) : undefined);
  const strip = form.strips && !isTurned && takesStrips(c, code) ? code.strip : undefined;
  const args = productArguments.at(gpr.args);
  const { local, leave } = enter(a, "args", "column", "end", "count", "addend");

  a.mov(local.args, gpr.args);
  a.mov(local.column, gpr.lo);
  a.mov(local.end, gpr.hi);
  if (!isTurned) c.prepare(args.line);
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
  if (adds) {
    a.mov(gpr.cursor, gpr.out);
    a.add(gpr.cursor, args.addend);
    a.mov(local.addend, gpr.cursor);
  }
  a.add(gpr.out, args.out);
  // Turned rows are those that belong together, wherever the last ones begin.
  if (isTurned) a.mov(gpr.weights, local.column);
  a.imul(gpr.weights, args.line);
  a.add(gpr.weights, args.w);
  if (isTurned) c.findScales(args.blocks);
  a.mov(gpr.x, args.x);
  a.add(gpr.x, MIDDLE);
  // The rows that come next, or those behind them where rows are short.
  a.mov(gpr.ahead, args.line);
  a.shl(gpr.ahead, Math.log2(c.lanes));
  a.mov(gpr.cursor, LEAST_AHEAD);
  a.cmp(gpr.ahead, gpr.cursor);
  a.cmovb(gpr.ahead, gpr.cursor);
  a.add(gpr.ahead, gpr.weights);
  for (const [r, sum] of c.sums.entries()) {
    if (sum instanceof Vec) c.zero(sum);
    else {
      if (r === 0) c.zero(c.quants);
      a.vmovups(sum, c.quants);
    }
  }
  a.mov(gpr.cursor, args.blocks);
  if (strip) a.shr(gpr.cursor, Math.log2(STRIP));
  a.mov(local.count, gpr.cursor);
  a.align(32);
  const loop = a.here();
  const ahead = c.lanes * bytes;
  const fetchAhead = () => {
    for (let at = 0; at < ahead; at += 64) a.prefetcht2(mem(gpr.ahead, at));
    a.add(gpr.ahead, ahead);
  };
  if (strip) strip(c, new Dots(c, rows, planes, fetchAhead));
  else {
    fetchAhead();
    code.emit(c, new Dots(c, rows, planes));
  }
  c.nextBlock(strip ? STRIP * bytes : bytes);
  a.dec(local.count);
  a.jne(loop);
  a.mov(gpr.args, local.args);
  const [t, u] = c.temporary;
  const addend = gpr.cursor;
  if (adds) a.mov(addend, local.addend);
  for (const sum of c.sums) {
    const value = sum instanceof Vec ? sum : c.quants;
    if (!(sum instanceof Vec)) a.vmovups(value, sum);
    if (adds) {
      c.load(t, dtype, mem(addend));
      a.vaddps(value, value, t);
      a.add(addend, args.addendLine);
    }
    c.store(mem(gpr.out), dtype, value, t, u);
    a.add(gpr.out, args.outLine);
  }
  a.mov(gpr.out, local.column);
  a.add(gpr.out, c.lanes);
  a.mov(local.column, gpr.out);
  a.cmp(gpr.out, local.end);
  a.jl(columns);
  leave();
}
