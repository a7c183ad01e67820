/**
 * Scaled dot-product attention. An item is a block of query rows that share their keys: those of the query heads of one
 * key head. Its scores, exponentials and sums stay in the thread's memory: Q·Kᵀ by the register tile, with keys packed a
 * panel at a time, a softmax of each row over the keys that it sees, P·V by the tile, and each row divided by its sum at
 * the end. Sums of products are chains in the order of keys, so that a row is the same in any company.
 */
import type { Assembler } from "../assembler.ts";
import { enter, layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import {
  d,
  type Gpr,
  type Mem,
  mem,
  r8,
  r9,
  r10,
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
import { SCRATCH_BYTES } from "../pool.ts";
import { type FloatType, Simd, tail } from "../simd.ts";
import { expNegative } from "./math.ts";
import { elementBytes, emitPackPanel } from "./pack.ts";
import { emitCopyRows, emitMode } from "./product.ts";
import { A_ROW, KC, tileShape, VECTORS_SHIFT } from "./tile.ts";

/** Most query rows of a block, most elements of a head of keys, and of values. */
export const BLOCK_ROWS = 96;
export const MOST_KEY_DIM = KC;
export const MOST_VALUE_DIM = 512;

/** Up to so many rows V is not packed. */
const FEW_ROWS = 4;

// The thread's memory: rows of Q or P, a panel of K or V, one over the sums, rows of the result, rows of scores.
const PANEL_AT = 2 ** 17;
const INVERSE_AT = PANEL_AT + 2 ** 16;
const RESULT_AT = INVERSE_AT + 2 ** 12;
const SCORES_AT = RESULT_AT + 4 * BLOCK_ROWS * (MOST_VALUE_DIM + 64);
export const SCORE_BYTES = SCRATCH_BYTES - SCORES_AT;

export const attentionArguments = layoutArguments(
  "tiles",
  "q",
  "k",
  "v",
  "out",
  ...(["qBatch", "qHead", "qRow", "qCol"] as const),
  ...(["kBatch", "kHead", "kRow", "kCol"] as const),
  ...(["vBatch", "vHead", "vRow", "vCol"] as const),
  /** Heads of keys, and of queries for each of them. */
  "heads",
  "group",
  "tq",
  "tk",
  "d",
  "dv",
  /** Query rows of one key head, of a block, and blocks. */
  "rows",
  "blockRows",
  "blocks",
  /** Bytes of a row of scores and of a row of results before they are rounded. */
  "scoreRow",
  "resultRow",
  "isCausal",
  "window",
  "scale",
);

export const emitAttention =
  (type: FloatType) =>
  (a: Assembler, isa: Isa): void => {
    const simd = new Simd(a, isa);
    const shape = tileShape(isa);
    const es = elementBytes(type);
    const v = (id: number): Vec => isa.v(id);
    const start = a.label();
    a.jmp(start);
    const pack = emitPackPanel(a, isa, type);
    const copyQueries = emitCopyRows(simd, type);
    const copyWeights = type === "f32" ? copyQueries : emitCopyRows(simd, "f32");
    a.bind(start);
    const { local, leave } = enter(
      a,
      ...([
        "end",
        "batch",
        "head",
        "first",
        "kAt",
        "vAt",
        "most",
        "least",
        "row",
        "limit",
        "low",
        "p",
        "j",
        "steps",
      ] as const),
    );
    const arg = attentionArguments.at(rbx);
    const [item, scratch, height] = [r12, r13, r15];
    const done = a.label();
    a.mov(rbx, rdi);
    a.mov(item, rsi);
    a.mov(local.end, rdx);
    a.mov(scratch, rcx);

    /** Head and position of the row in rax go to rax and rdx. */
    const splitRow = () => {
      a.mov(rdx, 0);
      a.div(arg.tq);
      a.mov(rcx, local.head);
      a.imul(rcx, arg.group);
      a.add(rax, rcx);
    };
    /** Where the keys that the row at position rdx sees begin (local.low) and end (local.limit). */
    const boundsOf = () => {
      const [all, noWindow] = [a.label(), a.label()];
      a.mov(rax, arg.tk);
      a.mov(rcx, 0);
      a.cmp(arg.isCausal, 0);
      a.je(all);
      a.add(rax, rdx);
      a.sub(rax, arg.tq);
      a.add(rax, 1);
      a.mov(rdx, 0);
      a.cmp(rax, rdx);
      a.cmovl(rax, rdx);
      a.cmp(rax, arg.tk);
      a.cmovg(rax, arg.tk);
      a.cmp(arg.window, 0);
      a.je(noWindow);
      a.mov(rcx, rax);
      a.sub(rcx, arg.window);
      a.cmovl(rcx, rdx);
      a.bind(noWindow);
      a.bind(all);
      a.mov(local.limit, rax);
      a.mov(local.low, rcx);
    };

    const items = a.here();
    a.cmp(item, local.end);
    a.jae(done);
    a.mov(rax, item);
    a.mov(rdx, 0);
    a.div(arg.blocks);
    a.imul(rdx, arg.blockRows);
    a.mov(local.first, rdx);
    a.mov(rcx, arg.rows);
    a.sub(rcx, rdx);
    a.cmp(rcx, arg.blockRows);
    a.cmova(rcx, arg.blockRows);
    a.mov(height, rcx);
    a.mov(rdx, 0);
    a.div(arg.heads);
    a.mov(local.batch, rax);
    a.mov(local.head, rdx);
    for (const [base, batch, head, to] of [
      [arg.k, arg.kBatch, arg.kHead, local.kAt],
      [arg.v, arg.vBatch, arg.vHead, local.vAt],
    ] as const) {
      a.mov(rcx, local.batch);
      a.imul(rcx, batch);
      a.mov(r8, local.head);
      a.imul(r8, head);
      a.add(rcx, r8);
      a.add(rcx, base);
      a.mov(to, rcx);
    }

    // The rows of Q, and which keys any of them sees.
    a.mov(local.row, 0);
    a.mov(local.most, 1);
    a.mov(rax, arg.tk);
    a.mov(local.least, rax);
    const queries = a.here();
    a.mov(rax, local.first);
    a.add(rax, local.row);
    splitRow();
    a.mov(rdi, local.batch);
    a.imul(rdi, arg.qBatch);
    a.imul(rax, arg.qHead);
    a.add(rdi, rax);
    a.mov(rax, rdx);
    a.imul(rax, arg.qRow);
    a.add(rdi, rax);
    a.add(rdi, arg.q);
    boundsOf();
    a.mov(rax, local.limit);
    a.cmp(rax, local.most);
    a.cmovl(rax, local.most);
    a.mov(local.most, rax);
    a.mov(rax, local.low);
    a.cmp(rax, local.least);
    a.cmovg(rax, local.least);
    a.mov(local.least, rax);
    a.mov(rsi, 0);
    a.mov(rdx, arg.qCol);
    a.mov(rcx, arg.d);
    a.mov(r8, local.row);
    a.imul(r8, r8, A_ROW);
    a.add(r8, scratch);
    a.mov(r9, 1);
    a.call(copyQueries);
    a.add(local.row, 1);
    a.cmp(height, local.row);
    a.ja(queries);
    // Panels begin at multiples of their width.
    a.mov(rax, local.least);
    a.mov(rdx, 0);
    a.mov(d(rcx), shape.columns);
    a.div(rcx);
    a.imul(rax, rcx);
    a.mov(local.least, rax);

    /** The tile over all rows of the block, with B packed and everything but A and the distances set. */
    const allRows = () => {
      a.mov(rdi, scratch);
      a.mov(rcx, A_ROW);
      a.mov(rbp, shape.lineBytes);
      a.mov(rax, height);
      a.call(arg.tiles);
    };
    /** rcx becomes at most the width of a panel. */
    const panelWidth = (left: Gpr) => {
      a.mov(d(rax), shape.columns);
      a.cmp(left, rax);
      a.cmova(left, rax);
    };

    // Scores, panel by panel of keys.
    a.mov(rax, local.least);
    a.mov(local.j, rax);
    const keyPanels = a.here();
    a.mov(rdi, local.j);
    a.imul(rdi, arg.kRow);
    a.add(rdi, local.kAt);
    a.mov(rsi, arg.kCol);
    a.mov(rdx, arg.kRow);
    a.mov(rcx, arg.d);
    a.lea(r8, mem(scratch, PANEL_AT));
    a.mov(r9, arg.tk);
    a.sub(r9, local.j);
    panelWidth(r9);
    a.call(pack);
    a.lea(rsi, mem(scratch, PANEL_AT));
    a.mov(rdx, arg.d);
    a.mov(r8, local.j);
    a.lea(r8, mem(scratch, { index: r8, scale: 4, disp: SCORES_AT }));
    a.mov(r9, arg.scoreRow);
    a.mov(r10, shape.vectors << VECTORS_SHIFT);
    allRows();
    a.add(local.j, shape.columns);
    a.mov(rax, local.j);
    a.cmp(rax, local.most);
    a.jb(keyPanels);

    // Exponentials of each row, and one over their sum.
    a.mov(local.row, 0);
    const scoreRows = a.here();
    a.mov(rax, local.first);
    a.add(rax, local.row);
    splitRow();
    boundsOf();
    a.mov(rdi, local.row);
    a.imul(rdi, arg.scoreRow);
    a.lea(rdi, mem(rdi, { index: scratch, disp: SCORES_AT }));
    emitExponentials(simd, {
      low: local.low,
      limit: local.limit,
      least: local.least,
      most: local.most,
      scale: arg.scale,
      inverse: () => {
        a.mov(rax, local.row);
        return mem(scratch, { index: rax, scale: 4, disp: INVERSE_AT });
      },
    });
    a.add(local.row, 1);
    a.cmp(height, local.row);
    a.ja(scoreRows);

    // P·V: of few rows over the lines of V as they are, else a stretch of keys at a time.
    const [many, weighed] = [a.label(), a.label()];
    a.cmp(height, FEW_ROWS);
    a.ja(many);
    a.cmp(arg.vCol, es);
    a.jne(many);
    a.mov(local.row, 0);
    const fewRows = a.here();
    emitWeigh(simd, type, local, arg);
    a.add(local.row, 1);
    a.cmp(height, local.row);
    a.ja(fewRows);
    a.jmp(weighed);
    a.bind(many);
    a.mov(rax, local.least);
    a.mov(local.p, rax);
    const stretches = a.here();
    a.mov(rax, local.most);
    a.sub(rax, local.p);
    a.mov(d(rcx), KC);
    a.cmp(rax, rcx);
    a.cmova(rax, rcx);
    a.mov(local.steps, rax);
    a.mov(rcx, rax);
    a.mov(rdi, local.p);
    a.lea(rdi, mem(scratch, { index: rdi, scale: 4, disp: SCORES_AT }));
    a.mov(rsi, arg.scoreRow);
    a.mov(rdx, 4);
    a.mov(r8, scratch);
    a.mov(r9, height);
    a.call(copyWeights);
    a.mov(local.j, 0);
    const valuePanels = a.here();
    a.mov(rdi, local.p);
    a.imul(rdi, arg.vRow);
    a.mov(rax, local.j);
    a.imul(rax, arg.vCol);
    a.add(rdi, rax);
    a.add(rdi, local.vAt);
    a.mov(rsi, arg.vRow);
    a.mov(rdx, arg.vCol);
    a.mov(rcx, local.steps);
    a.lea(r8, mem(scratch, PANEL_AT));
    a.mov(r9, arg.dv);
    a.sub(r9, local.j);
    panelWidth(r9);
    a.call(pack);
    a.mov(rcx, arg.dv);
    a.sub(rcx, local.j);
    a.mov(rax, local.p);
    a.sub(rax, local.least);
    emitMode(a, isa);
    a.lea(rsi, mem(scratch, PANEL_AT));
    a.mov(rdx, local.steps);
    a.mov(r8, local.j);
    a.lea(r8, mem(scratch, { index: r8, scale: 4, disp: RESULT_AT }));
    a.mov(r9, arg.resultRow);
    allRows();
    a.add(local.j, shape.columns);
    a.mov(rax, local.j);
    a.cmp(rax, arg.dv);
    a.jb(valuePanels);
    a.mov(rax, local.p);
    a.add(rax, local.steps);
    a.mov(local.p, rax);
    a.cmp(rax, local.most);
    a.jb(stretches);

    a.bind(weighed);

    // Each row over its sum, rounded.
    a.mov(tail, arg.dv);
    a.and(tail, isa.lanes - 1);
    simd.prepareTail();
    a.mov(local.row, 0);
    const results = a.here();
    a.mov(rax, local.first);
    a.add(rax, local.row);
    splitRow();
    a.mov(rdi, arg.heads);
    a.imul(rdi, arg.group);
    a.imul(rdi, local.batch);
    a.add(rdi, rax);
    a.imul(rdi, arg.tq);
    a.add(rdi, rdx);
    a.imul(rdi, arg.dv);
    a.mov(rax, arg.out);
    a.lea(rdi, mem(rax, { index: rdi, scale: es }));
    a.mov(rax, local.row);
    a.vbroadcastss(v(3), mem(scratch, { index: rax, scale: 4, disp: INVERSE_AT }));
    a.imul(rax, arg.resultRow);
    a.lea(rsi, mem(scratch, { index: rax, disp: RESULT_AT }));
    const [lastFew, rowEnd] = [a.label(), a.label()];
    a.mov(rcx, 0);
    a.mov(rbp, arg.dv);
    a.sub(rbp, isa.lanes);
    a.jb(lastFew);
    const vectors = a.here();
    a.vmulps(v(0), v(3), mem(rsi, { index: rcx, scale: 4 }));
    simd.store(mem(rdi, { index: rcx, scale: es }), type, v(0), v(1), v(2));
    a.add(rcx, isa.lanes);
    a.sub(rbp, isa.lanes);
    a.jae(vectors);
    a.bind(lastFew);
    a.test(tail, tail);
    a.je(rowEnd);
    simd.loadTail(v(0), "f32", mem(rsi, { index: rcx, scale: 4 }));
    a.vmulps(v(0), v(0), v(3));
    simd.storeTail(mem(rdi, { index: rcx, scale: es }), type, v(0), v(1), v(2));
    a.bind(rowEnd);
    a.add(local.row, 1);
    a.cmp(height, local.row);
    a.ja(results);
    a.add(item, 1);
    a.jmp(items);
    a.bind(done);
    leave();
  };

/** The row of P times V, by lines of V: four vectors of columns at a time, then one, then what is left of one. */
function emitWeigh(
  simd: Simd,
  type: FloatType,
  local: Readonly<Record<"row" | "least" | "most" | "vAt", Mem>>,
  arg: ReturnType<typeof attentionArguments.at>,
): void {
  const { a, isa } = simd;
  const es = elementBytes(type);
  const sums = [0, 1, 2, 3].map((id) => isa.v(id));
  const [x, y] = [isa.v(4), isa.v(5)];
  const column = r8;
  const columns = (count: number, isTail: boolean) => {
    a.mov(rdi, local.least);
    a.mov(rcx, local.most);
    a.sub(rcx, rdi);
    a.mov(rsi, local.row);
    a.imul(rsi, arg.scoreRow);
    a.add(rsi, r13);
    a.lea(rsi, mem(rsi, { index: rdi, scale: 4, disp: SCORES_AT }));
    a.imul(rdi, arg.vRow);
    a.add(rdi, local.vAt);
    a.lea(rdi, mem(rdi, { index: column, scale: es }));
    a.mov(rdx, arg.vRow);
    const own = sums.slice(0, count);
    for (const sum of own) simd.zero(sum);
    a.align(16);
    const loop = a.here();
    a.vbroadcastss(x, mem(rsi));
    for (const [i, sum] of own.entries()) {
      const from = mem(rdi, i * isa.lanes * es);
      if (type === "f32" && !isTail) a.vfmadd231ps(sum, x, from);
      else {
        if (isTail) simd.loadTail(y, type, from);
        else simd.load(y, type, from);
        a.vfmadd231ps(sum, x, y);
      }
    }
    a.add(rsi, 4);
    a.add(rdi, rdx);
    a.sub(rcx, 1);
    a.jne(loop);
    a.mov(rax, local.row);
    a.imul(rax, arg.resultRow);
    a.add(rax, r13);
    for (const [i, sum] of own.entries()) {
      a.vmovups(mem(rax, { index: column, scale: 4, disp: RESULT_AT + i * isa.bytes }), sum);
    }
    a.add(column, count * isa.lanes);
  };
  const [ones, rest, end] = [a.label(), a.label(), a.label()];
  a.mov(column, 0);
  for (const [count, next] of [
    [4, ones],
    [1, rest],
  ] as const) {
    const again = a.here();
    a.lea(rax, mem(column, count * isa.lanes));
    a.cmp(rax, arg.dv);
    a.ja(next);
    columns(count, false);
    a.jmp(again);
    a.bind(next);
  }
  a.mov(tail, arg.dv);
  a.sub(tail, column);
  a.je(end);
  simd.prepareTail();
  columns(1, true);
  a.bind(end);
}

interface ScoreRow {
  /** The keys that the row sees, and those that any row of the block does. */
  readonly low: Mem;
  readonly limit: Mem;
  readonly least: Mem;
  readonly most: Mem;
  readonly scale: Mem;
  inverse(): Mem;
}

/** The scores at rdi become e^(scale·score − largest) for the keys that the row sees, 0 for the others. */
function emitExponentials(simd: Simd, row: ScoreRow): void {
  const { a, isa } = simd;
  const v = (id: number): Vec => isa.v(id);
  const [most, value, sums, more, scale] = [v(0), v(1), v(2), v(3), v(12)];
  const temps = [4, 5, 6, 7, 8, 9, 10, 11].map(v) as unknown as Parameters<typeof expNegative>[2];
  a.vbroadcastss(scale, row.scale);
  a.mov(rsi, row.low);
  a.lea(rsi, mem(rdi, { index: rsi, scale: 4 }));
  a.mov(r14, row.limit);
  a.sub(r14, row.low);
  a.mov(tail, r14);
  a.and(tail, isa.lanes - 1);
  simd.prepareTail();
  const each = (body: (isTail: boolean) => void) => {
    const [rest, end] = [a.label(), a.label()];
    a.mov(rcx, 0);
    a.mov(rbp, r14);
    a.sub(rbp, isa.lanes);
    a.jl(rest);
    a.align(16);
    const loop = a.here();
    body(false);
    a.add(rcx, isa.lanes);
    a.sub(rbp, isa.lanes);
    a.jge(loop);
    a.bind(rest);
    a.test(tail, tail);
    a.je(end);
    body(true);
    a.bind(end);
  };
  const place = mem(rsi, { index: rcx, scale: 4 });
  simd.set(most, Number.NEGATIVE_INFINITY);
  each((isTail) => {
    if (isTail) simd.loadTail(value, "f32", place);
    else a.vmovups(value, place);
    a.vmulps(value, value, scale);
    // A row of scores has room for a whole vector behind it, and the keys behind are none of this row's.
    a.vmovups(place, value);
    if (isTail) {
      simd.set(temps[0], Number.NEGATIVE_INFINITY);
      simd.fillBeyondTail(value, temps[0]);
    }
    a.vmaxps(most, value, most);
  });
  simd.largest(most, value);
  simd.zero(sums);
  simd.zero(more);
  each((isTail) => {
    a.vmovups(value, place);
    a.vsubps(value, value, most);
    expNegative(simd, value, temps);
    if (isTail) simd.clearBeyondTail(value);
    a.vmovups(place, value);
    simd.toDoubles(value, temps[0], temps[1]);
    a.vaddpd(sums, sums, temps[0]);
    a.vaddpd(more, more, temps[1]);
  });
  a.vaddpd(sums, sums, more);
  simd.sumDoubles(sums, more);
  a.vmovsd(value.x, a.data(new Uint8Array(Float64Array.of(1).buffer)));
  a.vdivsd(value.x, value.x, sums.x);
  a.vcvtsd2ss(value.x, value.x, value.x);
  a.vmovss(row.inverse(), value.x);
  // Keys before and behind those that it sees.
  const [before, behind, filled] = [a.label(), a.label(), a.label()];
  a.mov(rcx, row.least);
  a.bind(before);
  a.cmp(rcx, row.low);
  a.jae(behind);
  a.mov(mem(rdi, { index: rcx, scale: 4, bits: 32 }), 0);
  a.add(rcx, 1);
  a.jmp(before);
  a.bind(behind);
  simd.zero(value);
  a.mov(rcx, row.limit);
  const fill = a.here();
  a.cmp(rcx, row.most);
  a.jae(filled);
  a.vmovups(mem(rdi, { index: rcx, scale: 4 }), value);
  a.add(rcx, isa.lanes);
  a.jmp(fill);
  a.bind(filled);
}
