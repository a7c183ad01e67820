/**
 * Many rows of x · wᵀ with quantized weights: a panel of some vectors of rows of w is made of their blocks once, in the
 * thread's memory, and all tiles of rows of x meet it there. Quants are words in it, from which what they are shifted by has
 * been taken, or bytes where activations are: two planes of bytes are as many dot products as words, and more to add up.
 *
 * Sums of groups are the same integers as in quant-product.ts, and are added in its order: so a row has the same bits there.
 */
import { sizeOf } from "../../../../core/dtype.ts";
import { quantTypes } from "../../../../core/quant-types.ts";
import type { Assembler } from "../assembler.ts";
import { enter } from "../frame.ts";
import type { Isa } from "../isa.ts";
import {
  d,
  type Gpr,
  type Label,
  low,
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
  rsp,
  tmm,
  type Vec,
} from "../operands.ts";
import type { FloatType, Simd } from "../simd.ts";
import {
  type BlockCode,
  blockCodes,
  type Group,
  type NativeQuantType,
  type Quants,
  type Sink,
} from "./quant-blocks.ts";
import { BLOCK, gpr, PANEL_AT, type Planes, QuantCode, record } from "./quant-code.ts";
import { productArguments } from "./quant-product.ts";

export interface TilesForm {
  readonly type: NativeQuantType;
  readonly dtype: FloatType;
  readonly planes: Planes;
  /** Rows behind the last whole tile; those of tile registers are an argument. */
  readonly rest: number;
  readonly adds: boolean;
  /** Dot products are those of tile registers (AMX). */
  readonly matrix: boolean;
}

/** Vectors of rows of w, and rows of x: with both of them few loads are needed, and sums enough to hide their latency. */
export const tileForm = ({ masks }: Isa): { readonly vectors: 1 | 2; readonly rows: 4 | 6 } =>
  masks ? { vectors: 2, rows: 6 } : { vectors: 1, rows: 4 };
/** Rows of x that a tile register holds. */
export const MATRIX_ROWS = 16;

/** Activations of 32 that a panel is made of at once: it stays in the second cache. */
const SLICE = 64;
/** Lines that are fetched ahead with each 32 activations of such a tile, which are done sooner than those of others. */
const MATRIX_LINES = 4;
/** Where sums of tile registers lie in the thread's memory. */
const SUMS_AT = 2 ** 21;
/** x points into the middle of the records of a tile: displacements of a byte reach all of them. */
const MIDDLE = 256;

/** Where things are in a panel: for each 32 activations vectors of quants, then of factors, then of minima. */
class Panel {
  /** Vectors of quants of a row of w that meet 32 activations. */
  readonly units: 8 | 16;
  readonly vectors: number;
  readonly slot: number;
  readonly bytes: number;

  constructor(isa: Isa, planes: Planes, matrix: boolean) {
    this.units = matrix || (isa.vnni && planes === 1) ? 8 : 16;
    this.vectors = tileForm(isa).vectors;
    this.slot = isa.bytes;
    this.bytes = (this.units + 2) * this.vectors * this.slot;
  }

  get isOfBytes(): boolean {
    return this.units === 8;
  }

  /** Vector `v` of what is `i`-th: quants, then factors, then minima or the factors of second halves. */
  at(base: typeof gpr.weights | typeof gpr.ahead, block: number, i: number, v: number): Mem {
    return mem(base, block * this.bytes + (i * this.vectors + v) * this.slot);
  }

  /** Where partial sums of rows lie, where activations are too many for one panel. */
  get sumsAt(): number {
    return PANEL_AT + SLICE * this.bytes;
  }
}

/** Writes quants and factors of one vector of rows of w into a panel at `ahead`. */
class Filling implements Sink {
  readonly #c: QuantCode;
  readonly #panel: Panel;
  readonly #v: number;
  readonly #shift: Vec | undefined;

  constructor(c: QuantCode, panel: Panel, v: number, shift: Vec | undefined) {
    this.#c = c;
    this.#panel = panel;
    this.#v = v;
    this.#shift = shift;
  }

  #store(block: number, i: number, from: Vec): void {
    this.#c.a.vmovups(this.#panel.at(gpr.ahead, block, i, this.#v), from);
  }

  add({ block, half = 0, scale, minimum }: Group, quants: Iterable<Quants>): void {
    const { a, isa } = this.#c;
    const { units, isOfBytes } = this.#panel;
    const t = isa.v(isa.registers - 1);
    for (const { at, emit } of quants) {
      const bytes = emit();
      if (isOfBytes) {
        this.#store(block, at, bytes);
        continue;
      }
      for (const odd of [0, 1]) {
        if (odd === 1) a.vpsrlw(t, bytes, 8);
        else this.#c.and(t, bytes, this.#c.constantInt(0x00ff00ff));
        if (this.#shift) a.vpsubw(t, t, this.#shift);
        this.#store(block, 2 * at + odd, t);
      }
    }
    a.vmovups(t, scale);
    this.#store(block, units + half, t);
    if (!minimum) return;
    a.vmovups(t, minimum);
    this.#store(block, units + 1, t);
  }

  advance(blocks: number): void {
    this.#c.a.add(gpr.ahead, blocks * this.#panel.bytes);
  }
}

/** What meets a panel: `rows` rows of x, whose records lie beside each other. */
class Tile {
  readonly simd: Simd;
  readonly rows: number;
  readonly #panel: Panel;
  readonly #code: BlockCode;
  /** By row, then by vector. */
  readonly sums: readonly (readonly Vec[])[];
  readonly #integers: readonly (readonly Vec[])[];
  readonly #weights: readonly Vec[];
  readonly #x: Vec;
  readonly #t: Vec;

  constructor(simd: Simd, panel: Panel, code: BlockCode, rows: number) {
    this.simd = simd;
    this.rows = rows;
    this.#panel = panel;
    this.#code = code;
    let id = 0;
    const take = (n: number) => Array.from({ length: n }, () => simd.v(id++));
    const each = () => Array.from({ length: rows }, () => take(panel.vectors));
    this.sums = each();
    this.#integers = each();
    this.#weights = take(panel.vectors);
    [this.#x, this.#t] = take(2) as [Vec, Vec];
  }

  /** Registers that are free when all is added up. */
  get temporary(): readonly [Vec, Vec] {
    return [this.#x, this.#t];
  }

  #at(block: number, r: number, offset: number): Mem {
    return mem(gpr.x, (block * this.rows + r) * record.bytes + offset - MIDDLE);
  }

  /** The groups that a step takes, in the order of quant-product.ts, and how many blocks they are. */
  step(): number {
    if (!this.#code.halves) {
      this.#group(0, undefined);
      return 1;
    }
    for (const odd of [0, 1])
      for (const half of [0, 1] as const) for (const block of [odd, odd + 2]) this.#group(block, half);
    return 4;
  }

  #group(block: number, half: 0 | 1 | undefined): void {
    const { units, isOfBytes } = this.#panel;
    const { a } = this.simd;
    const start = half === 1 ? record.secondStart : record.start;
    for (const [r, integers] of this.#integers.entries())
      for (const sum of integers)
        if (isOfBytes) a.vpbroadcastd(sum, this.#at(block, r, start));
        else this.simd.zero(sum);
    const [from, to] = half === undefined ? [0, units] : [(half * units) / 2, ((half + 1) * units) / 2];
    for (let u = from; u < to; u++) {
      for (const [v, w] of this.#weights.entries()) a.vmovups(w, this.#panel.at(gpr.weights, block, u, v));
      const place = isOfBytes ? 4 * u : record.oddWords * (u & 1) + 4 * (u >> 1);
      for (const [r, integers] of this.#integers.entries()) {
        a.vpbroadcastd(this.#x, this.#at(block, r, place));
        for (const [v, sum] of integers.entries()) this.#dot(sum, this.#weights[v]!);
      }
    }
    this.#finish(block, half ?? 0);
  }

  #dot(sum: Vec, weights: Vec): void {
    const { a, isa } = this.simd;
    if (this.#panel.isOfBytes) a.vpdpbusd(sum, weights, this.#x);
    else if (isa.vnni) a.vpdpwssd(sum, weights, this.#x);
    else {
      a.vpmaddwd(this.#t, weights, this.#x);
      a.vpaddd(sum, sum, this.#t);
    }
  }

  #finish(block: number, half: number): void {
    const { a } = this.simd;
    const { units } = this.#panel;
    const factors = this.#weights;
    for (const [v, to] of factors.entries()) a.vmovups(to, this.#panel.at(gpr.weights, block, units + half, v));
    for (const [r, integers] of this.#integers.entries()) {
      a.vbroadcastss(this.#x, this.#at(block, r, record.scale));
      for (const [v, sum] of integers.entries()) {
        a.vcvtdq2ps(sum, sum);
        a.vmulps(this.#t, factors[v]!, this.#x);
        a.vfmadd231ps(this.sums[r]![v]!, sum, this.#t);
      }
      if (!this.#code.minima) continue;
      a.vbroadcastss(this.#x, this.#at(block, r, record.sum));
      for (const [v, to] of this.sums[r]!.entries())
        a.vfnmadd231ps(to, this.#x, this.#panel.at(gpr.weights, block, units + 1, v));
    }
  }
}

/** Columns lo … hi of the result, as `emitQuantProduct`; there is a whole tile of rows at least. */
export function emitQuantTiles(a: Assembler, isa: Isa, form: TilesForm): void {
  const { type, dtype, planes, rest, adds, matrix } = form;
  const { bytes, size } = quantTypes[type];
  const code: BlockCode = blockCodes[type];
  const panel = new Panel(isa, planes, matrix);
  const c = new QuantCode(a, isa, 0, planes, 0);
  const { vectors } = tileForm(isa);
  const es = sizeOf(dtype);
  const args = productArguments.at(gpr.args);
  const { local, leave } = enter(
    a,
    ...(["args", "column", "end", "weights", "second", "delta", "firstOut", "out", "firstAddend", "addend"] as const),
    ...(["x", "done", "left", "now", "tiles", "count", "partial", "ahead", "aheadEnd"] as const),
  );
  const weights = [local.weights, local.second].slice(0, vectors);

  /** `rows` rows with the panel; x and out move on to what comes behind them. */
  const tile = (rows: number): void => {
    const t = new Tile(c, panel, code, rows);
    const each = (body: (sum: Vec, r: number, v: number) => void) => {
      for (const [r, sums] of t.sums.entries()) for (const [v, sum] of sums.entries()) body(sum, r, v);
    };
    const [later, begun, unfinished, end] = [a.label(), a.label(), a.label(), a.label()];
    a.mov(gpr.x, local.done);
    a.imul(gpr.x, gpr.x, rows * record.bytes);
    a.add(gpr.x, local.x);
    a.add(gpr.x, MIDDLE);
    a.lea(gpr.weights, mem(gpr.frame, PANEL_AT));
    a.mov(gpr.ahead, local.ahead);
    a.mov(gpr.cursor, local.now);
    if (code.halves) a.shr(gpr.cursor, 2);
    a.mov(local.count, gpr.cursor);
    a.mov(gpr.inner, local.partial);
    a.cmp(local.done, 0);
    a.jne(later);
    each((sum) => c.zero(sum));
    a.jmp(begun);
    a.bind(later);
    each((sum, r, v) => a.vmovups(sum, mem(gpr.inner, (r * vectors + v) * panel.slot)));
    a.bind(begun);
    a.align(32);
    const loop = a.here();
    // The rows of w that come next, a line at a time.
    const fetched = a.label();
    a.cmp(gpr.ahead, local.aheadEnd);
    a.jae(fetched);
    a.prefetcht2(mem(gpr.ahead));
    a.add(gpr.ahead, 64);
    a.bind(fetched);
    const blocks = t.step();
    a.add(gpr.x, blocks * rows * record.bytes);
    a.add(gpr.weights, blocks * panel.bytes);
    a.dec(local.count);
    a.jne(loop);
    a.mov(local.ahead, gpr.ahead);
    a.cmp(local.left, 0);
    a.jne(unfinished);
    finish(t);
    a.jmp(end);
    a.bind(unfinished);
    a.mov(gpr.inner, local.partial);
    each((sum, r, v) => a.vmovups(mem(gpr.inner, (r * vectors + v) * panel.slot), sum));
    a.bind(end);
    a.add(local.partial, rows * vectors * panel.slot);
    a.mov(gpr.args, local.args);
    a.mov(gpr.cursor, args.blocks);
    a.imul(gpr.cursor, gpr.cursor, (size / BLOCK) * rows * record.bytes);
    a.add(gpr.cursor, local.x);
    a.mov(local.x, gpr.cursor);
  };

  /**
   * The same with tile registers, whose sums go through memory: while those of 32 activations are computed, those of the 32
   * before are stored, and those before these added up to what is in memory, too. So nothing waits for a tile. The rest are
   * fewer rows, one at a time.
   */
  const matrixTile = (isRest: boolean): void => {
    const [xStep, step, to, from] = [gpr.out, gpr.cursor, r8, r9];
    const lows = MATRIX_ROWS * vectors * panel.slot;
    const place = (r: number, v: number) => (r * vectors + v) * panel.slot;
    // Of the rest: how many rows there are and bytes of their records; a row's record and sums, and how many are left.
    const [rows, rowsBytes, xRow, fromRow, sumRow, rowsLeft] = [r15, r14, r10, r11, r12, r13];
    const eachRow = (body: (r: number) => void, ...next: readonly (readonly [Gpr, number])[]): void => {
      if (!isRest) {
        for (let r = 0; r < MATRIX_ROWS; r++) body(r);
        return;
      }
      a.mov(rowsLeft, rows);
      const loop = a.here();
      body(0);
      for (const [register, bytes] of next) a.add(register, bytes);
      a.sub(rowsLeft, 1);
      a.jne(loop);
    };
    const sumBytes = vectors * panel.slot;
    const [x, w] = [
      [tmm(4), tmm(5)],
      [tmm(6), tmm(7)],
    ] as const;
    const loads: (() => void)[] = [
      ...[0, record.lowPlane].map((disp, i) => () => a.tileloadd(x[i]!, mem(gpr.x, { index: xStep, disp }))),
      ...w.map((tile, v) => () => a.tileloadd(tile, mem(gpr.weights, { index: step, disp: v * panel.slot }))),
    ];
    const stores = [0, 1, 2, 3].map((i) => () => {
      a.tilestored(mem(to, { index: step, disp: (i >> 1) * lows + (i & 1) * panel.slot }), tmm(i));
    });
    const dots = [0, 1, 2, 3].map((i) => () => {
      a.tilezero(tmm(i));
      a.tdpbsud(tmm(i), x[i >> 1]!, w[i & 1]!);
    });
    const factor = (v: number) => isa.v(v);
    const minimum = (v: number) => isa.v(vectors + v);
    /** Adds up what is at `from`, of so many times 32 activations before x, while `meanwhile` is done. */
    const addUp = (before: number, ...meanwhile: readonly (() => void)[]): void => {
      const { units } = panel;
      for (let v = 0; v < vectors; v++) {
        a.vmovups(factor(v), panel.at(gpr.weights, -before, units, v));
        if (code.minima) a.vmovups(minimum(v), panel.at(gpr.weights, -before, units + 1, v));
      }
      const count = MATRIX_ROWS * vectors;
      const [x, integersOf, sumsOf] = isRest ? [xRow, fromRow, sumRow] : [gpr.x, from, gpr.inner];
      if (isRest) {
        for (const emit of meanwhile) emit();
        a.mov(xRow, gpr.x);
        for (let i = 0; i < before; i++) a.sub(xRow, rowsBytes);
        a.mov(fromRow, from);
        a.mov(sumRow, gpr.inner);
      }
      const addRow = (r: number): void => {
        for (let v = 0; v < vectors; v++) {
          const i = r * vectors + v;
          const share = (n: number) => Math.floor((n * meanwhile.length) / count);
          if (!isRest) for (const emit of meanwhile.slice(share(i), share(i + 1))) emit();
          const [integers, scale, sum] = [0, 1, 2].map((t) => isa.v(4 + 3 * (i % 9) + t)) as [Vec, Vec, Vec];
          const first = isRest ? 0 : before * MATRIX_ROWS;
          const at = (offset: number) => mem(x, (r - first) * record.bytes + offset).each;
          a.vpslld(integers, mem(integersOf, place(r, v)), 8);
          a.vpaddd(integers, integers, mem(integersOf, lows + place(r, v)));
          if (code.offset > 0) a.vpaddd(integers, integers, at(record.start));
          a.vcvtdq2ps(integers, integers);
          a.vmulps(scale, factor(v), at(record.scale));
          a.vmovups(sum, mem(sumsOf, place(r, v)));
          a.vfmadd231ps(sum, integers, scale);
          if (code.minima) a.vfnmadd231ps(sum, minimum(v), at(record.sum));
          a.vmovups(mem(sumsOf, place(r, v)), sum);
        }
      };
      eachRow(addRow, [xRow, record.bytes], [fromRow, sumBytes], [sumRow, sumBytes]);
    };
    const all = (...steps: readonly (() => void)[]) => {
      for (const emit of steps) emit();
    };
    const advance = () => {
      if (isRest) a.add(gpr.x, rowsBytes);
      else a.add(gpr.x, MATRIX_ROWS * record.bytes);
      a.add(gpr.weights, panel.bytes);
    };
    const [later, first, tail, last, unfinished, single, fetched] = Array.from({ length: 7 }, () => a.label()) as [
      Label,
      Label,
      Label,
      Label,
      Label,
      Label,
      Label,
    ];
    a.mov(gpr.x, local.done);
    if (isRest) {
      a.mov(gpr.args, local.args);
      a.mov(rows, args.rest);
      a.imul(rowsBytes, rows, record.bytes);
      a.imul(gpr.x, rowsBytes);
      configureRest(rows, rowsLeft);
    } else a.imul(gpr.x, gpr.x, MATRIX_ROWS * record.bytes);
    a.add(gpr.x, local.x);
    a.lea(gpr.weights, mem(gpr.frame, PANEL_AT));
    a.lea(to, mem(gpr.frame, SUMS_AT));
    a.lea(from, mem(to, 2 * lows));
    a.mov(gpr.ahead, local.ahead);
    a.mov(gpr.cursor, local.now);
    a.mov(local.count, gpr.cursor);
    a.mov(gpr.inner, local.partial);
    a.cmp(local.done, 0);
    a.jne(later);
    c.zero(isa.v(0));
    a.mov(sumRow, gpr.inner);
    const clear = (r: number) => {
      for (let v = 0; v < vectors; v++) a.vmovups(mem(sumRow, place(r, v)), isa.v(0));
    };
    eachRow(clear, [sumRow, sumBytes]);
    a.bind(later);
    a.mov(xStep, record.bytes);
    a.mov(step, vectors * panel.slot);
    all(...loads, ...dots);
    advance();
    a.dec(local.count);
    a.je(first);
    all(...loads, ...stores, ...dots);
    advance();
    a.xchg(to, from);
    const loop = a.here();
    a.dec(local.count);
    a.je(tail);
    a.cmp(gpr.ahead, local.aheadEnd);
    a.jae(fetched);
    for (let line = 0; line < MATRIX_LINES; line++) a.prefetcht2(mem(gpr.ahead, 64 * line));
    a.add(gpr.ahead, 64 * MATRIX_LINES);
    a.bind(fetched);
    addUp(2, ...loads, ...stores, ...dots);
    advance();
    a.xchg(to, from);
    a.jmp(loop);
    a.bind(first);
    all(...stores);
    a.jmp(last);
    a.bind(tail);
    addUp(2, ...stores);
    a.bind(last);
    a.xchg(to, from);
    addUp(1);
    a.mov(local.ahead, gpr.ahead);
    a.cmp(local.left, 0);
    a.jne(unfinished);
    const addend = gpr.ahead;
    a.mov(gpr.args, local.args);
    a.mov(gpr.x, local.partial);
    a.mov(gpr.out, local.out);
    a.mov(gpr.cursor, local.delta);
    if (adds) a.mov(addend, local.addend);
    const finishRow = (r: number) => {
      for (let v = 0; v < vectors; v++) {
        const to = (base: typeof gpr.out | typeof gpr.ahead) =>
          mem(base, v === 0 ? 0 : { index: gpr.cursor, scale: 1 });
        a.vmovups(isa.v(0), mem(gpr.x, place(r, v)));
        if (adds) {
          c.load(isa.v(1), dtype, to(addend));
          a.vaddps(isa.v(0), isa.v(0), isa.v(1));
        }
        c.store(to(gpr.out), dtype, isa.v(0), isa.v(1), isa.v(2));
      }
      a.add(gpr.out, args.outLine);
      if (adds) a.add(addend, args.addendLine);
    };
    eachRow(finishRow, [gpr.x, sumBytes]);
    a.mov(local.out, gpr.out);
    if (adds) a.mov(local.addend, addend);
    // Sums of rows that are done are needed no more.
    a.cmp(local.done, 0);
    a.je(single);
    a.bind(unfinished);
    a.add(local.partial, MATRIX_ROWS * sumBytes);
    a.bind(single);
    a.mov(gpr.args, local.args);
    a.mov(gpr.cursor, args.blocks);
    a.imul(gpr.cursor, gpr.cursor, (size / BLOCK) * MATRIX_ROWS * record.bytes);
    a.add(gpr.cursor, local.x);
    a.mov(local.x, gpr.cursor);
  };

  /** Fewer rows than tile registers have, as a register says; another one is used. */
  const configureRest = (rows: Gpr, t: Gpr): void => {
    const at = mem(rsp, -TILE_CONFIGURATION);
    a.vmovups(isa.v(0), a.data(tileConfiguration(MATRIX_ROWS)));
    a.vmovups(at, isa.v(0));
    // The same byte six times.
    a.imul(t, rows, 0x01010101);
    a.mov(at.plus(ROWS_IN_CONFIGURATION), d(t));
    a.mov(at.plus(ROWS_IN_CONFIGURATION + 4), low(t, 16));
    a.ldtilecfg(at);
  };

  const finish = (t: Tile): void => {
    const [delta, addend] = [gpr.cursor, gpr.ahead];
    a.mov(gpr.args, local.args);
    a.mov(gpr.out, local.out);
    if (vectors > 1) a.mov(delta, local.delta);
    if (adds) a.mov(addend, local.addend);
    for (const sums of t.sums) {
      for (const [v, sum] of sums.entries()) {
        const place = (base: typeof gpr.out | typeof gpr.ahead) => mem(base, v === 0 ? 0 : { index: delta, scale: 1 });
        if (adds) {
          c.load(t.temporary[0], dtype, place(addend));
          a.vaddps(sum, sum, t.temporary[0]);
        }
        c.store(place(gpr.out), dtype, sum, ...t.temporary);
      }
      a.add(gpr.out, args.outLine);
      if (adds) a.add(addend, args.addendLine);
    }
    a.mov(local.out, gpr.out);
    if (adds) a.mov(local.addend, addend);
  };

  a.mov(local.args, gpr.args);
  a.mov(local.column, gpr.lo);
  a.mov(local.end, gpr.hi);
  c.prepare(args.line);
  const columns = a.here();
  a.mov(gpr.args, local.args);
  // Each vector of columns, of which the last ones end where the columns end, and may be computed twice.
  for (const [v, place] of weights.entries()) {
    a.mov(gpr.weights, local.column);
    if (v > 0) a.add(gpr.weights, c.lanes);
    a.mov(gpr.out, local.end);
    a.sub(gpr.out, c.lanes);
    a.cmp(gpr.weights, gpr.out);
    a.cmovg(gpr.weights, gpr.out);
    a.mov(gpr.cursor, gpr.weights);
    a.shl(gpr.cursor, Math.log2(es));
    if (v === 0) {
      a.mov(gpr.out, gpr.cursor);
      a.add(gpr.out, args.out);
      a.mov(local.firstOut, gpr.out);
      a.mov(local.delta, gpr.cursor);
      if (adds) {
        a.add(gpr.cursor, args.addend);
        a.mov(local.firstAddend, gpr.cursor);
      }
    } else {
      a.sub(gpr.cursor, local.delta);
      a.mov(local.delta, gpr.cursor);
    }
    a.imul(gpr.weights, args.line);
    a.add(gpr.weights, args.w);
    a.mov(place, gpr.weights);
  }
  // What follows the last vector, as far as the next ones go.
  a.mov(gpr.cursor, args.line);
  a.shl(gpr.cursor, Math.log2(c.lanes));
  a.add(gpr.weights, gpr.cursor);
  a.mov(local.ahead, gpr.weights);
  if (vectors > 1) a.add(gpr.cursor, gpr.cursor);
  a.add(gpr.cursor, gpr.weights);
  a.mov(local.aheadEnd, gpr.cursor);
  a.mov(gpr.cursor, args.blocks);
  a.shl(gpr.cursor, Math.log2(size / BLOCK));
  a.mov(local.left, gpr.cursor);
  a.mov(local.done, 0);

  const slices = a.here();
  if (matrix) {
    a.mov(gpr.args, local.args);
    c.prepare(args.line);
  }
  a.mov(gpr.cursor, local.left);
  a.mov(gpr.inner, SLICE);
  a.cmp(gpr.cursor, gpr.inner);
  a.cmova(gpr.cursor, gpr.inner);
  a.mov(local.now, gpr.cursor);
  a.sub(local.left, gpr.cursor);
  const shift = isa.v(isa.registers - 2);
  const shifts = !panel.isOfBytes && code.offset > 0;
  if (shifts) a.vmovups(shift, a.data(new Uint8Array(new Int16Array(2 * c.lanes).fill(code.offset).buffer)));
  for (const [v, place] of weights.entries()) {
    a.mov(gpr.weights, place);
    a.lea(gpr.ahead, mem(gpr.frame, PANEL_AT));
    a.mov(gpr.cursor, local.now);
    a.shr(gpr.cursor, Math.log2(size / BLOCK));
    a.mov(local.count, gpr.cursor);
    const blocks = a.here();
    code.emit(c, new Filling(c, panel, v, shifts ? shift : undefined));
    a.add(gpr.weights, bytes);
    a.dec(local.count);
    a.jne(blocks);
    a.mov(place, gpr.weights);
  }
  a.mov(gpr.args, local.args);
  a.lea(gpr.cursor, mem(gpr.frame, panel.sumsAt));
  a.mov(local.partial, gpr.cursor);
  for (const [from, to] of [
    [args.x, local.x],
    [args.tiles, local.tiles],
    [local.firstOut, local.out],
    ...(adds ? [[local.firstAddend, local.addend] as const] : []),
  ] as const) {
    a.mov(gpr.cursor, from);
    a.mov(to, gpr.cursor);
  }
  if (matrix) a.ldtilecfg(a.data(tileConfiguration(MATRIX_ROWS)));
  const tiles = a.here();
  if (matrix) matrixTile(false);
  else tile(tileForm(isa).rows);
  a.dec(local.tiles);
  a.jne(tiles);
  if (matrix) {
    const none = a.label();
    a.mov(gpr.args, local.args);
    a.cmp(args.rest, 0);
    a.je(none);
    matrixTile(true);
    a.bind(none);
  } else if (rest > 0) tile(rest);
  a.mov(gpr.cursor, local.now);
  a.add(gpr.cursor, local.done);
  a.mov(local.done, gpr.cursor);
  a.cmp(local.left, 0);
  a.jne(slices);
  a.mov(gpr.cursor, local.column);
  a.add(gpr.cursor, vectors * c.lanes);
  a.mov(local.column, gpr.cursor);
  a.cmp(gpr.cursor, local.end);
  a.jl(columns);
  if (matrix) a.tilerelease();
  leave();
}

/** Bytes of a tile configuration, and where rows stand in it. */
const TILE_CONFIGURATION = 64;
const ROWS_IN_CONFIGURATION = 48;

/** Rows and bytes of a row of each tile: sums of products, then both planes of x, then weights. */
function tileConfiguration(rows: number): Uint8Array {
  const bytes = new Uint8Array(TILE_CONFIGURATION);
  bytes[0] = 1;
  for (let t = 0; t < 8; t++) {
    bytes[16 + 2 * t] = t === 4 || t === 5 ? BLOCK : 64;
    bytes[ROWS_IN_CONFIGURATION + t] = t < 6 ? rows : BLOCK / 4;
  }
  return bytes;
}
