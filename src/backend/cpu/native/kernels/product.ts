/**
 * Products of floats. An item is a block of C: some rows and columns of one matrix of the batch. For each stretch of k
 * its rows of A are copied (and widened) to the thread's memory; B's panels were packed by all threads before, or are
 * packed here, for this block alone, where B is used by few rows or is small; or each thread widens all of a small B once,
 * as what another thread has written would take longer to come. What is narrower than 32 bits is rounded once, at the end.
 * bf16 stays as it is, in pairs, where the processor multiplies them.
 */
import type { Assembler } from "../assembler.ts";
import { emitRest, enter, layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import {
  d,
  eax,
  type Gpr,
  k1,
  k2,
  k3,
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
  rax,
  rbp,
  rbx,
  rcx,
  rdi,
  rdx,
  rsi,
} from "../operands.ts";
import { SCRATCH_BYTES } from "../pool.ts";
import { type FloatType, Simd, tail } from "../simd.ts";
import { elementBytes, emitPackPanel } from "./pack.ts";
import { emitCopyPairs, emitPackPairs, PAIR } from "./pairs.ts";
import { NOTE_BYTES, type ProductType } from "./panels.ts";
import { GO_ON, KC, PARTIAL, tileShape, VECTORS_SHIFT } from "./tile.ts";
import { emitWideningTiles, WIDENS_A, WIDENS_B } from "./widening-tile.ts";

/** Most rows and columns of a block: what the thread's memory holds. */
export const MOST_ROWS = 192;
export const MOST_COLUMNS = 960;
// The thread's memory: a block of A, a panel of B or all of it, a block of C before it is rounded, and whose B that is.
const PANEL_AT = 2 ** 20;
const C_AT = 5 * 2 ** 19;
const WHOSE_AT = SCRATCH_BYTES - 64;
/** Bytes of a B that each thread widens for itself, and of one of its rows: no power of two. */
export const MOST_WIDENED = C_AT - PANEL_AT;
export const widenedRow = (n: number): number => Math.ceil(n / 16) * 64 + 64;

/** Where the panels of a B are from. */
export type Panels = "packed before" | "own" | "widened";

export const productArguments = layoutArguments(
  /** Functions of the tile, also where pairs are small. */
  "tiles",
  "smallTiles",
  /** The same where 16 bits are widened in tiles, in whole vectors and blocks of steps, and all columns are an item's; else 0. */
  "widening",
  "a",
  "aRow",
  "aCol",
  "b",
  "bRow",
  "bCol",
  "out",
  "outRow",
  "m",
  "n",
  "k",
  /** Rows and columns of a block, and how many blocks there are of each. */
  "rows",
  "columns",
  "down",
  "across",
  /** Packed panels: where they are and bytes of each. */
  "packed",
  "panelBytes",
  /** The tile rounds its sums itself: they are whole at once. */
  "rounds",
  /** Rows of A, and lines of B, are read where they are: f32 without gaps. */
  "readsA",
  "readsB",
  /** Bytes from row to row of what is copied of A, and of a widened B. */
  "aCopied",
  "bWidened",
  /** Where the number of the widened B is. */
  "number",
  /** Where the matrices of a batch are: inner size, and bytes along its outer and inner dim. */
  "inner",
  "aOuter",
  "aInner",
  "bOuter",
  "bInner",
  "outMatrix",
);

export const emitProduct =
  (given: ProductType, panelsOf: Panels) =>
  (a: Assembler, isa: Isa): void => {
    const isPaired = given === "pairs";
    const type = isPaired ? "bf16" : given;
    // Pairs are packed as panels also by each thread for itself.
    const isWidened = panelsOf === "widened" && !isPaired;
    const packsAll = panelsOf === "widened" && isPaired;
    const packsItself = panelsOf === "own";
    const simd = new Simd(a, isa);
    const shape = tileShape(isa);
    const es = elementBytes(type);
    const start = a.label();
    a.jmp(start);
    const packs = packsItself || packsAll;
    const pack = packs ? (isPaired ? emitPackPairs(a, isa) : emitPackPanel(a, isa, type)) : undefined;
    const { aCopied } = productArguments.at(rbx);
    const copyRows = isPaired ? emitCopyPairs(a, isa, aCopied) : emitCopyRows(simd, type, aCopied);
    const widen = isWidened ? emitCopyRows(simd, type, productArguments.at(rbx).bWidened) : undefined;
    const roundRows = type === "f32" ? undefined : emitRoundRows(simd, type);
    a.bind(start);
    const { local, leave } = enter(
      a,
      ...([
        "end",
        "height",
        "width",
        "aAt",
        "aRows",
        "aStride",
        "bAt",
        "outAt",
        "p",
        "steps",
        "left",
        "bPanel",
        "panel",
        "cPanel",
        /** Bytes of a panel of pairs before the stretch, and whether A's are small. */
        "before",
        "isSmall",
        /** Where A is as it is, its rows in whole tiles and those that are left, and whether B is still to be widened. */
        "aFrom",
        "whole",
        "rest",
        "isNew",
      ] as const),
    );
    const arg = productArguments.at(rbx);
    const [item, scratch, c, cRow] = [r12, r13, r14, r15];
    const [done, nextItem] = [a.label(), a.label()];
    a.mov(rbx, rdi);
    a.mov(item, rsi);
    a.mov(local.end, rdx);
    a.mov(scratch, rcx);
    const widensInTiles = isWidened && isa.masks;
    if (panelsOf === "widened") {
      const known = a.label();
      if (widensInTiles) a.mov(local.isNew, 0);
      a.mov(rax, arg.number);
      a.mov(rax, mem(rax));
      a.cmp(rax, mem(scratch, WHOSE_AT));
      a.je(known);
      a.mov(mem(scratch, WHOSE_AT), rax);
      if (widensInTiles) {
        a.mov(rax, arg.widening);
        a.mov(local.isNew, rax);
        a.test(rax, rax);
        a.jne(known);
      }
      a.lea(r8, mem(scratch, PANEL_AT));
      a.mov(rdi, arg.b);
      if (widen) {
        a.mov(rsi, arg.bRow);
        a.mov(rdx, arg.bCol);
        a.mov(rcx, arg.n);
        a.mov(r9, arg.k);
        a.call(widen);
      } else {
        a.mov(local.cPanel, r8);
        a.mov(local.bPanel, rdi);
        a.mov(local.left, 0);
        const all = a.here();
        emitRest(a, r9, arg.n, local.left, shape.columns, rcx);
        a.mov(rdi, local.bPanel);
        a.mov(rsi, arg.bRow);
        a.mov(rdx, arg.bCol);
        a.mov(rcx, arg.k);
        a.mov(r8, local.cPanel);
        a.call(pack!);
        a.mov(rcx, local.cPanel);
        a.add(rcx, arg.panelBytes);
        a.mov(local.cPanel, rcx);
        a.mov(mem(rcx, -NOTE_BYTES), rax);
        a.mov(rax, arg.bCol);
        a.imul(rax, rax, shape.columns);
        a.add(local.bPanel, rax);
        a.mov(rax, local.left);
        a.add(rax, shape.columns);
        a.mov(local.left, rax);
        a.cmp(rax, arg.n);
        a.jb(all);
      }
      a.bind(known);
    }

    const items = a.here();
    a.cmp(item, local.end);
    a.jae(done);
    // item = (matrix · down + block of rows) · across + block of columns
    a.mov(rax, item);
    a.mov(rdx, 0);
    a.div(arg.across);
    a.imul(rdx, arg.columns);
    a.mov(rbp, rdx); // first column
    a.mov(rdx, 0);
    a.div(arg.down);
    a.imul(rdx, arg.rows);
    a.mov(rsi, rdx); // first row
    a.mov(r8, rax); // matrix
    a.mov(rdx, 0);
    a.div(arg.inner);
    for (const [outer, inner, base, to] of [
      [arg.aOuter, arg.aInner, arg.a, local.aAt],
      [arg.bOuter, arg.bInner, arg.b, local.bAt],
    ] as const) {
      a.mov(rcx, rax);
      a.imul(rcx, outer);
      a.mov(r9, rdx);
      a.imul(r9, inner);
      a.add(rcx, r9);
      a.add(rcx, base);
      a.mov(to, rcx);
    }
    a.imul(r8, arg.outMatrix);
    a.add(r8, arg.out);
    a.mov(rax, rsi);
    a.imul(rax, arg.outRow);
    a.add(r8, rax);
    a.lea(r8, mem(r8, { index: rbp, scale: es }));
    a.mov(local.outAt, r8);
    a.mov(rax, rsi);
    a.imul(rax, arg.aRow);
    a.add(local.aAt, rax);
    a.mov(rax, arg.m);
    a.sub(rax, rsi);
    a.cmp(rax, arg.rows);
    a.cmova(rax, arg.rows);
    a.mov(local.height, rax);
    a.mov(rax, arg.n);
    a.sub(rax, rbp);
    a.cmp(rax, arg.columns);
    a.cmova(rax, arg.columns);
    a.mov(local.width, rax);
    if (packsItself) {
      a.imul(rbp, arg.bCol);
      a.add(local.bAt, rbp);
    } else if (isWidened) {
      a.lea(rax, mem(scratch, PANEL_AT));
      a.lea(rax, mem(rax, { index: rbp, scale: 4 }));
      a.mov(local.bAt, rax);
    } else {
      a.mov(rax, rbp);
      a.mov(rdx, 0);
      a.mov(d(rcx), shape.columns);
      a.div(rcx);
      a.imul(rax, arg.panelBytes);
      if (packsAll) a.lea(rax, mem(scratch, { index: rax, disp: PANEL_AT }));
      else a.add(rax, arg.packed);
      a.mov(local.bAt, rax);
    }
    a.mov(c, local.outAt);
    a.mov(cRow, arg.outRow);
    if (roundRows) {
      const rounds = a.label();
      a.cmp(arg.rounds, 0);
      a.jne(rounds);
      a.lea(c, mem(scratch, C_AT));
      a.mov(cRow, arg.columns);
      a.shl(cRow, 2);
      a.bind(rounds);
    }
    a.mov(local.p, 0);
    if (isPaired) a.mov(local.before, 0);

    const stretches = a.here();
    emitRest(a, rax, arg.k, local.p, isPaired ? PAIR * KC : KC, rcx);
    a.mov(local.steps, rax);
    const copied = a.label();
    a.mov(rdi, local.aAt);
    a.mov(local.aRows, rdi);
    a.mov(rsi, arg.aRow);
    a.mov(local.aStride, rsi);
    if (type === "f32") {
      a.cmp(arg.readsA, 0);
      a.jne(copied);
    }
    a.mov(rdx, arg.aCol);
    a.mov(rcx, rax);
    a.mov(r8, scratch);
    a.mov(r9, local.height);
    const copiedRest = a.label();
    if (widensInTiles) {
      const all = a.label();
      a.mov(local.aFrom, rdi);
      a.cmp(arg.widening, 0);
      a.je(all);
      // Only the rows behind the last whole tile.
      a.and(r9, -shape.rows);
      a.mov(local.whole, r9);
      a.mov(rax, r9);
      a.imul(rax, rsi);
      a.add(rdi, rax);
      a.mov(rax, arg.aCopied);
      a.imul(rax, r9);
      a.add(r8, rax);
      a.sub(r9, local.height);
      a.neg(r9);
      a.je(copiedRest);
      a.bind(all);
    }
    a.call(copyRows);
    a.bind(copiedRest);
    if (isPaired) a.mov(local.isSmall, rax);
    a.mov(local.aRows, scratch);
    a.mov(rax, arg.aCopied);
    a.mov(local.aStride, rax);
    a.bind(copied);
    a.mov(rax, local.steps);
    a.imul(rax, arg.aCol);
    a.add(local.aAt, rax);
    a.mov(rax, local.bAt);
    a.mov(local.bPanel, rax);
    a.mov(rax, local.width);
    a.mov(local.left, rax);
    a.mov(local.cPanel, c);

    const panels = a.here();
    const [packsHere, packed] = [a.label(), a.label()];
    if (packsItself || isWidened) {
      a.mov(rax, local.left);
      emitWidth(a, isa);
      a.mov(local.panel, rax);
    }
    if (packsItself) {
      a.mov(r9, rax);
      a.mov(rdi, local.bPanel);
      a.mov(rsi, arg.bRow);
      if (type === "f32") {
        // What is not whole vectors is packed: they would reach behind B.
        a.test(r9, isa.lanes - 1);
        a.jne(packsHere);
        a.cmp(arg.readsB, 0);
        a.je(packsHere);
        a.mov(rbp, rsi);
        a.mov(rsi, rdi);
        a.jmp(packed);
        a.bind(packsHere);
      }
      a.mov(rdx, arg.bCol);
      a.mov(rcx, local.steps);
      a.lea(r8, mem(scratch, PANEL_AT));
      a.call(pack!);
      a.lea(rsi, mem(scratch, PANEL_AT));
    } else {
      a.mov(rsi, local.bPanel);
      if (isPaired) {
        a.mov(rax, rsi);
        a.add(rax, arg.panelBytes);
        a.mov(rax, mem(rax, -NOTE_BYTES));
        a.add(rsi, local.before);
      }
    }
    if (isPaired) {
      a.or(rax, local.isSmall);
      a.mov(r11, arg.tiles);
      a.cmovne(r11, arg.smallTiles);
    }
    if (isWidened) a.mov(rbp, arg.bWidened);
    else a.mov(d(rbp), shape.lineBytes);
    a.bind(packed);
    // The mode, and masks for the last columns.
    a.mov(rax, local.p);
    a.mov(rcx, packsItself || isWidened ? local.panel : local.left);
    emitMode(a, isa);
    a.mov(rdi, local.aRows);
    a.mov(rcx, local.aStride);
    a.mov(rdx, local.steps);
    if (isPaired) {
      a.add(rdx, 1);
      a.shr(rdx, 1);
    }
    a.mov(r8, local.cPanel);
    a.mov(r9, cRow);
    a.mov(rax, local.height);
    const tiled = a.label();
    if (widensInTiles) emitWidened(a, isa, arg, local, scratch, cRow, tiled);
    if (isPaired) a.call(r11);
    else a.call(arg.tiles);
    a.bind(tiled);
    // The next panel.
    if (packsItself) {
      a.mov(rcx, local.panel);
      a.mov(rax, arg.bCol);
      a.imul(rax, rcx);
    } else if (isWidened) {
      a.mov(rcx, local.panel);
      a.lea(rax, mem(rcx, { index: rcx, scale: 2 }));
      a.add(rax, rcx);
    } else {
      a.mov(d(rcx), shape.columns);
      a.mov(rax, arg.panelBytes);
    }
    a.add(local.bPanel, rax);
    a.sub(local.left, rcx);
    a.shl(rcx, 2);
    if (roundRows) {
      a.mov(rax, rcx);
      a.shr(rax, 1);
      a.cmp(arg.rounds, 0);
      a.cmovne(rcx, rax);
    }
    a.add(local.cPanel, rcx);
    a.cmp(local.left, 0);
    a.jg(panels);

    a.mov(rax, local.steps);
    if (packsItself) a.imul(rax, arg.bRow);
    else if (isWidened) a.imul(rax, arg.bWidened);
    else a.imul(rax, rax, isPaired ? shape.lineBytes / PAIR : shape.lineBytes);
    if (isPaired && !packsItself) a.add(local.before, rax);
    else a.add(local.bAt, rax);
    a.mov(rax, local.p);
    a.add(rax, local.steps);
    a.mov(local.p, rax);
    a.cmp(rax, arg.k);
    a.jb(stretches);
    if (widensInTiles) a.mov(local.isNew, 0);
    if (roundRows) {
      a.cmp(arg.rounds, 0);
      a.jne(nextItem);
      a.mov(rdi, c);
      a.mov(rsi, cRow);
      a.mov(rdx, local.outAt);
      a.mov(rcx, arg.outRow);
      a.mov(r8, local.width);
      a.mov(r9, local.height);
      a.call(roundRows);
    }
    a.bind(nextItem);
    a.add(item, 1);
    a.jmp(items);
    a.bind(done);
    leave();
  };

/** Tiles that widen, in the first panel and where B is new, before others of the rax rows; to `done` where none are left. */
function emitWidened(
  a: Assembler,
  isa: Isa,
  arg: ReturnType<typeof productArguments.at>,
  local: Readonly<Record<"whole" | "left" | "width" | "isNew" | "aFrom" | "bPanel" | "rest", Mem>>,
  scratch: Gpr,
  cRow: Gpr,
  done: Label,
): void {
  const [others, isFirst, isKnown] = [a.label(), a.label(), a.label()];
  const rows = r11;
  a.cmp(arg.widening, 0);
  a.je(others);
  a.mov(rows, local.whole);
  a.test(rows, rows);
  a.je(others);
  a.mov(cRow, local.left);
  a.cmp(cRow, local.width);
  a.mov(cRow, arg.outRow);
  a.je(isFirst);
  a.cmp(local.isNew, 0);
  a.je(others);
  // The first tile alone.
  a.mov(d(rows), tileShape(isa).rows);
  a.or(r10, WIDENS_B);
  a.jmp(isKnown);
  a.bind(isFirst);
  a.or(r10, WIDENS_A);
  a.cmp(local.isNew, 0);
  a.je(isKnown);
  a.or(r10, WIDENS_B);
  a.bind(isKnown);
  a.sub(rax, rows);
  a.mov(local.rest, rax);
  a.mov(rax, rows);
  // B as it is, whose elements have half the bytes.
  a.mov(r11, local.bPanel);
  a.sub(r11, scratch);
  a.sub(r11, PANEL_AT);
  a.shr(r11, 1);
  a.add(r11, arg.b);
  a.mov(r15, local.aFrom);
  a.call(arg.widening);
  a.mov(cRow, arg.outRow);
  a.mov(rax, local.rest);
  a.test(rax, rax);
  a.je(done);
  a.bind(others);
}

/** The tiles of this product's arguments. */
export const emitWidening = (type: FloatType) => emitWideningTiles(type, productArguments.at(rbx));

/** void next(number): another B is widened from now on. */
export function emitNextNumber(a: Assembler): void {
  a.mov(rax, mem(rdi));
  a.inc(mem(rax));
  a.ret();
}

/** The tile's mode for sums that go on where rax is not 0, over the rcx columns that are left, with masks for the last. */
export function emitMode(a: Assembler, isa: Isa): void {
  const shape = tileShape(isa);
  const full = a.label();
  const whole = shape.vectors << VECTORS_SHIFT;
  // GO_ON is the lowest bit.
  a.mov(r10, 0);
  a.test(rax, rax);
  a.setne(low(r10, 8));
  a.or(r10, whole);
  a.cmp(rcx, shape.columns);
  a.jae(full);
  a.lea(rax, mem(rcx, isa.lanes - 1));
  a.shr(rax, Math.log2(isa.lanes));
  a.shl(rax, VECTORS_SHIFT);
  a.and(r10, GO_ON);
  a.lea(r10, mem(r10, { index: rax, disp: PARTIAL }));
  if (isa.masks) {
    a.mov(rax, -1);
    a.bzhi(rax, rax, rcx);
    for (const [v, mask] of [k1, k2, k3].entries()) {
      if (v > 0) a.shr(rax, 16);
      a.kmovw(mask, eax);
    }
  } else {
    const table = a.i32(...Array<number>(shape.columns).fill(-1), ...Array<number>(shape.columns).fill(0));
    a.lea(r11, table.plus(4 * shape.columns));
    a.neg(rcx);
    a.lea(r11, mem(r11, { index: rcx, scale: 4 }));
  }
  a.bind(full);
}

/**
 * How many of the rax columns that are left are the next panel, where B is not packed: four vectors are two and two, as
 * one by itself would leave the multipliers waiting. Uses rcx.
 */
export function emitWidth(a: Assembler, isa: Isa): void {
  const { columns, vectors } = tileShape(isa);
  a.mov(d(rcx), columns);
  if (vectors === 3) {
    const whole = a.label();
    a.cmp(rax, 4 * isa.lanes);
    a.jne(whole);
    a.mov(d(rcx), 2 * isa.lanes);
    a.bind(whole);
  }
  a.cmp(rax, rcx);
  a.cmova(rax, rcx);
}

/**
 * r9 rows of rcx elements from rdi, rsi bytes apart and rdx within the row, to r8, `rowBytes` apart, as floats. Uses rax, rdi,
 * r8 to r11, rbp.
 */
export function emitCopyRows(simd: Simd, type: FloatType, rowBytes: Mem | number): Label {
  const { a, isa } = simd;
  const es = elementBytes(type);
  const entry = a.here();
  const [scattered, nextRow, tailEnd] = [a.label(), a.label(), a.label()];
  a.mov(tail, rcx);
  a.and(tail, isa.lanes - 1);
  simd.prepareTail();
  const rows = a.here();
  a.cmp(rdx, es);
  a.jne(scattered);
  a.mov(rax, 0);
  a.mov(rbp, rcx);
  a.sub(rbp, isa.lanes);
  const vectorsEnd = a.label();
  a.jb(vectorsEnd);
  const vectors = a.here();
  simd.load(isa.v(0), type, mem(rdi, { index: rax, scale: es }));
  a.vmovups(mem(r8, { index: rax, scale: 4 }), isa.v(0));
  a.add(rax, isa.lanes);
  a.sub(rbp, isa.lanes);
  a.jae(vectors);
  a.bind(vectorsEnd);
  a.test(tail, tail);
  a.je(tailEnd);
  simd.loadTail(isa.v(0), type, mem(rdi, { index: rax, scale: es }));
  // The block's rows have room for a whole vector.
  a.vmovups(mem(r8, { index: rax, scale: 4 }), isa.v(0));
  a.bind(tailEnd);
  a.bind(nextRow);
  a.add(rdi, rsi);
  if (typeof rowBytes === "number") a.add(r8, rowBytes);
  else a.add(r8, rowBytes);
  a.sub(r9, 1);
  a.jne(rows);
  a.ret();
  a.bind(scattered);
  a.mov(r10, rdi);
  a.mov(rbp, 0);
  const elements = a.here();
  simd.loadOne(isa.v(0), type, mem(r10));
  a.vmovss(mem(r8, { index: rbp, scale: 4 }), isa.v(0).x);
  a.add(r10, rdx);
  a.add(rbp, 1);
  a.cmp(rbp, rcx);
  a.jb(elements);
  a.jmp(nextRow);
  return entry;
}

/** r9 rows of r8 floats from rdi, rsi bytes apart, rounded to rdx, rcx bytes apart. Uses rax, rdi, rdx, r9 to r11, rbp. */
function emitRoundRows(simd: Simd, type: FloatType): Label {
  const { a, isa } = simd;
  const es = elementBytes(type);
  const [x, t, u] = [isa.v(0), isa.v(1), isa.v(2)];
  const entry = a.here();
  a.mov(tail, r8);
  a.and(tail, isa.lanes - 1);
  simd.prepareTail();
  const rows = a.here();
  const [vectorsEnd, rowEnd] = [a.label(), a.label()];
  a.mov(rax, 0);
  a.mov(rbp, r8);
  a.sub(rbp, isa.lanes);
  a.jb(vectorsEnd);
  const vectors = a.here();
  a.vmovups(x, mem(rdi, { index: rax, scale: 4 }));
  simd.store(mem(rdx, { index: rax, scale: es }), type, x, t, u);
  a.add(rax, isa.lanes);
  a.sub(rbp, isa.lanes);
  a.jae(vectors);
  a.bind(vectorsEnd);
  a.test(tail, tail);
  a.je(rowEnd);
  a.vmovups(x, mem(rdi, { index: rax, scale: 4 }));
  simd.storeTail(mem(rdx, { index: rax, scale: es }), type, x, t, u);
  a.bind(rowEnd);
  a.add(rdi, rsi);
  a.add(rdx, rcx);
  a.sub(r9, 1);
  a.jne(rows);
  a.ret();
  return entry;
}
