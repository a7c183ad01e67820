/**
 * Scaled dot-product attention. An item is a block of query rows that share their keys: those of the query heads of one
 * key head. Its scores, exponentials and sums stay in the thread's memory: Q·Kᵀ by the register tile, with keys packed a
 * panel at a time, a softmax of each row over the keys that it sees, P·V by the tile, and each row divided by its sum at
 * the end. Sums of products are chains in the order of keys, so that a row is the same in any company, and whether its
 * keys and values lie one behind the other or in pages.
 */
import type { Assembler } from "../assembler.ts";
import { emitRest, enter, layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import {
  d,
  type Gpr,
  mem,
  r8,
  r9,
  r10,
  r12,
  r13,
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
import { Simd, tail } from "../simd.ts";
import { emitWeigh } from "./attention-few.ts";
import { emitFewScores } from "./attention-scores.ts";
import { emitExponentials, holdConstants, type ScoreKind } from "./attention-softmax.ts";
import { elementBytes, emitPackGroup, emitPackPanel } from "./pack.ts";
import { emitCopyRows, emitMode, emitWidth } from "./product.ts";
import { tileShape, VECTORS_SHIFT } from "./tile.ts";

/** Most query rows of a block, most elements of a head of keys, and of values. */
export const BLOCK_ROWS = 192;
export const MOST_KEY_DIM = 256;
export const MOST_VALUE_DIM = 512;

/** Up to so many rows V is read line by line. */
const FEW_ROWS = 4;
/** Keys whose values are packed, or read by all rows, at a time. */
const STRETCH = 512;
/** Bytes from row to row of Q: not a power of two, so that rows do not share places of the cache. */
const Q_ROW = 4 * MOST_KEY_DIM + 64;

// The thread's memory: rows of Q, a panel of K or V, one over the sums, rows of the result, rows of scores.
const PANEL_AT = 2 ** 18;
const INVERSE_AT = PANEL_AT + 2 ** 17;
const RESULT_AT = INVERSE_AT + 2 ** 12;
const SCORES_AT = RESULT_AT + 4 * BLOCK_ROWS * (MOST_VALUE_DIM + 64);
export const SCORE_BYTES = SCRATCH_BYTES - SCORES_AT;

/** Positions of a page, as a power of two. */
const LOG_PAGE = 6;

export interface AttentionKind extends ScoreKind {
  readonly isPaged: boolean;
}

export const attentionArguments = layoutArguments(
  "tiles",
  "entries",
  ...(["qHead", "qRow", "qCol"] as const),
  ...(["kHead", "kRow", "kCol", "kPage"] as const),
  ...(["vHead", "vRow", "vCol", "vPage"] as const),
  ...(["outHead", "outRow"] as const),
  ...(["maskHead", "maskRow"] as const),
  "sinks",
  /** Heads of keys, and of queries for each of them. */
  "heads",
  "group",
  "d",
  "dv",
  /** Bytes of a row of scores and of a row of results before they are rounded. */
  "scoreRow",
  "resultRow",
  /** A row at position p of all sees the keys from p − behind on, and none from p + ahead on. */
  "ahead",
  "behind",
  "scale",
  "cap",
  "inverseCap",
);

/**
 * A block of rows: addresses of what its batch or sequence has, rows of queries and keys there are, where its pages are
 * listed, its first row, of those of all heads that share keys, and how many rows it has. Where `length` is the address of
 * an i64, that says how many keys there are, at most `tk`.
 */
const entryWords = layoutArguments("q", "k", "v", "mask", "out", "tq", "tk", "table", "first", "height", "length");
export const ENTRY_BYTES = 8 * entryWords.count;

export const emitAttention =
  (kind: AttentionKind) =>
  (a: Assembler, isa: Isa): void => {
    const { type, isPaged, hasMask, hasSinks } = kind;
    const simd = new Simd(a, isa);
    const shape = tileShape(isa);
    const es = elementBytes(type);
    const v = (id: number): Vec => isa.v(id);
    const start = a.label();
    a.jmp(start);
    const packKeys = emitPackGroup(a, isa, type);
    const packValues = emitPackPanel(a, isa, type);
    const copyQueries = emitCopyRows(simd, type, Q_ROW);
    a.bind(start);
    const { local, leave } = enter(
      a,
      ...(["end", "head", "kAt", "vAt", "most", "least", "row", "limit", "low", "p", "j", "steps", "width"] as const),
      ...(["key", "maskAt", "sinkAt", "stop", "keys"] as const),
    );
    const arg = attentionArguments.at(rbx);
    const [item, scratch, entry] = [r12, r13, r15];
    const own = entryWords.at(entry);
    const done = a.label();
    a.mov(rbx, rdi);
    a.mov(item, rsi);
    a.mov(local.end, rdx);
    a.mov(scratch, rcx);

    /** The query head and the position of the row in rax go to rax and rdx. */
    const splitRow = () => {
      a.mov(rdx, 0);
      a.div(own.tq);
      a.mov(rcx, local.head);
      a.imul(rcx, arg.group);
      a.add(rax, rcx);
    };
    /** Where the keys that the row at position rdx sees begin (local.low) and end (local.limit). */
    const boundsOf = () => {
      a.add(rdx, local.keys);
      a.sub(rdx, own.tq);
      a.mov(rcx, 0);
      a.mov(rax, rdx);
      a.add(rax, arg.ahead);
      a.cmp(rax, rcx);
      a.cmovl(rax, rcx);
      a.cmp(rax, local.keys);
      a.cmovg(rax, local.keys);
      a.mov(local.limit, rax);
      a.sub(rdx, arg.behind);
      a.cmp(rdx, rcx);
      a.cmovl(rdx, rcx);
      a.cmp(rdx, rax);
      a.cmovg(rdx, rax);
      a.mov(local.low, rdx);
    };
    /** The address of the key or value at position rax goes to rdi. Uses rax and rcx. */
    const keyAt = (base: typeof local.kAt, row: typeof arg.kRow, page: typeof arg.kPage) => {
      a.mov(rdi, rax);
      if (isPaged) {
        a.and(rdi, (1 << LOG_PAGE) - 1);
        a.shr(rax, LOG_PAGE);
        a.mov(rcx, own.table);
        a.mov(rcx, mem(rcx, { index: rax, scale: 8 }));
        a.imul(rcx, page);
      }
      a.imul(rdi, row);
      if (isPaged) a.add(rdi, rcx);
      a.add(rdi, base);
    };
    /** `count` becomes no more than there are positions from rax on in its page. */
    const withinPage = (count: Gpr) => {
      if (!isPaged) return;
      a.and(rax, (1 << LOG_PAGE) - 1);
      a.neg(rax);
      a.add(rax, 1 << LOG_PAGE);
      a.cmp(count, rax);
      a.cmova(count, rax);
    };

    const items = a.here();
    a.cmp(item, local.end);
    a.jae(done);
    a.mov(rax, item);
    a.mov(rdx, 0);
    a.div(arg.heads);
    a.mov(local.head, rdx);
    a.imul(entry, rax, ENTRY_BYTES);
    a.add(entry, arg.entries);
    for (const [base, head, to] of [
      [own.k, arg.kHead, local.kAt],
      [own.v, arg.vHead, local.vAt],
    ] as const) {
      a.mov(rcx, local.head);
      a.imul(rcx, head);
      a.add(rcx, base);
      a.mov(to, rcx);
    }

    const counted = a.label();
    a.mov(rax, own.tk);
    a.mov(rcx, own.length);
    a.test(rcx, rcx);
    a.je(counted);
    a.cmp(rax, mem(rcx));
    a.cmovg(rax, mem(rcx));
    a.cmp(rax, own.tq);
    a.cmovl(rax, own.tq);
    a.bind(counted);
    a.mov(local.keys, rax);

    // The rows of Q, and which keys any of them sees.
    a.mov(local.row, 0);
    a.mov(local.most, 1);
    a.mov(rax, local.keys);
    a.mov(local.least, rax);
    const queries = a.here();
    a.mov(rax, own.first);
    a.add(rax, local.row);
    splitRow();
    a.mov(rdi, own.q);
    a.imul(rax, arg.qHead);
    a.add(rdi, rax);
    a.mov(rax, rdx);
    a.imul(rax, arg.qRow);
    a.add(rdi, rax);
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
    a.imul(r8, r8, Q_ROW);
    a.add(r8, scratch);
    a.mov(r9, 1);
    a.call(copyQueries);
    a.add(local.row, 1);
    a.mov(rax, local.row);
    a.cmp(rax, own.height);
    a.jb(queries);
    // Panels begin at multiples of a vector, which pages are multiples of.
    a.and(local.least, -isa.lanes);

    // Scores, panel by panel of keys.
    a.mov(rax, local.least);
    a.mov(local.j, rax);
    const scored = a.label();
    emitFewScores(
      simd,
      type,
      {
        height: own.height,
        d: arg.d,
        kRow: arg.kRow,
        kCol: arg.kCol,
        scoreRow: arg.scoreRow,
        j: local.j,
        most: local.most,
        keys: local.keys,
        first: local.p,
        scratch,
        qRow: Q_ROW,
        scoresAt: SCORES_AT,
        keyAt: () => keyAt(local.kAt, arg.kRow, arg.kPage),
        before: () => {
          if (isPaged) a.and(rax, (1 << LOG_PAGE) - 1);
        },
      },
      scored,
    );
    const keyPanels = a.here();
    emitRest(a, rcx, local.most, local.j, shape.columns, rax);
    a.mov(local.width, rcx);
    // A vector of keys at a time.
    a.mov(rax, local.j);
    a.mov(local.p, rax);
    a.add(rax, rcx);
    a.mov(local.stop, rax);
    a.lea(r8, mem(scratch, PANEL_AT));
    const groups = a.here();
    a.mov(rax, local.p);
    emitRest(a, r9, local.keys, rax, isa.lanes, rcx);
    keyAt(local.kAt, arg.kRow, arg.kPage);
    a.mov(rsi, arg.kCol);
    a.mov(rdx, arg.kRow);
    a.mov(rcx, arg.d);
    a.call(packKeys);
    a.add(r8, isa.bytes);
    a.add(local.p, isa.lanes);
    a.mov(rax, local.p);
    a.cmp(rax, local.stop);
    a.jb(groups);
    // Rows of scores are whole vectors.
    a.mov(r10, local.width);
    a.add(r10, isa.lanes - 1);
    a.shr(r10, Math.log2(isa.lanes));
    a.shl(r10, VECTORS_SHIFT);
    a.lea(rsi, mem(scratch, PANEL_AT));
    a.mov(rdx, arg.d);
    a.mov(r8, local.j);
    a.lea(r8, mem(scratch, { index: r8, scale: 4, disp: SCORES_AT }));
    a.mov(r9, arg.scoreRow);
    a.mov(rdi, scratch);
    a.mov(rcx, Q_ROW);
    a.mov(rax, own.height);
    a.mov(rbp, shape.lineBytes);
    a.call(arg.tiles);
    a.add(local.j, shape.columns);
    a.mov(rax, local.j);
    a.cmp(rax, local.most);
    a.jb(keyPanels);
    a.bind(scored);

    // Exponentials of each row, and one over their sum.
    const held = new Simd(a, isa);
    holdConstants(held);
    a.mov(local.row, 0);
    const scoreRows = a.here();
    a.mov(rax, own.first);
    a.add(rax, local.row);
    splitRow();
    if (hasMask) {
      a.mov(rcx, rax);
      a.imul(rcx, arg.maskHead);
      a.mov(rsi, rdx);
      a.imul(rsi, arg.maskRow);
      a.add(rcx, rsi);
      a.add(rcx, own.mask);
      a.mov(local.maskAt, rcx);
    }
    if (hasSinks) {
      a.mov(rcx, arg.sinks);
      a.lea(rcx, mem(rcx, { index: rax, scale: es }));
      a.mov(local.sinkAt, rcx);
    }
    boundsOf();
    a.mov(rdi, local.row);
    a.imul(rdi, arg.scoreRow);
    a.lea(rdi, mem(rdi, { index: scratch, disp: SCORES_AT }));
    emitExponentials(held, kind, {
      low: local.low,
      limit: local.limit,
      least: local.least,
      most: local.most,
      scale: arg.scale,
      cap: arg.cap,
      inverseCap: arg.inverseCap,
      maskAt: local.maskAt,
      sinkAt: local.sinkAt,
      inverse: () => {
        a.mov(rax, local.row);
        return mem(scratch, { index: rax, scale: 4, disp: INVERSE_AT });
      },
    });
    a.add(local.row, 1);
    a.mov(rax, local.row);
    a.cmp(rax, own.height);
    a.jb(scoreRows);

    // P·V: of few rows over the lines of V as they are, else a stretch of keys at a time.
    const [many, weighed] = [a.label(), a.label()];
    a.cmp(own.height, FEW_ROWS);
    a.ja(many);
    a.cmp(arg.vCol, es);
    a.jne(many);
    a.mov(local.row, 0);
    const few = {
      row: local.row,
      least: local.least,
      most: local.most,
      dv: arg.dv,
      vRow: arg.vRow,
      scoreRow: arg.scoreRow,
      resultRow: arg.resultRow,
      scoresAt: SCORES_AT,
      resultsAt: RESULT_AT,
      key: local.key,
      valueAt: () => keyAt(local.vAt, arg.vRow, arg.vPage),
      run: withinPage,
    };
    const single = a.label();
    const fewRows = a.here();
    a.mov(rax, local.row);
    a.cmp(rax, own.height);
    a.jae(weighed);
    a.add(rax, 1);
    a.cmp(rax, own.height);
    a.je(single);
    emitWeigh(simd, type, few, 2);
    a.add(local.row, 2);
    a.jmp(fewRows);
    a.bind(single);
    emitWeigh(simd, type, few, 1);
    a.jmp(weighed);

    a.bind(many);
    a.mov(rax, local.least);
    a.mov(local.p, rax);
    const stretches = a.here();
    emitRest(a, rax, local.most, local.p, STRETCH, rcx);
    a.mov(local.steps, rax);
    a.mov(local.j, 0);
    const valuePanels = a.here();
    const [packs, ready] = [a.label(), a.label()];
    a.mov(rax, arg.dv);
    a.sub(rax, local.j);
    emitWidth(a, isa);
    a.mov(local.width, rax);
    if (type === "f32" && !isPaged) {
      // Whole vectors of a value are read where they are.
      a.test(local.width, isa.lanes - 1);
      a.jne(packs);
      a.cmp(arg.vCol, es);
      a.jne(packs);
      a.mov(rax, local.p);
      keyAt(local.vAt, arg.vRow, arg.vPage);
      a.mov(rax, local.j);
      a.lea(rsi, mem(rdi, { index: rax, scale: es }));
      a.mov(rbp, arg.vRow);
      a.jmp(ready);
      a.bind(packs);
    }
    // Packed, a run of values at a time.
    a.mov(rax, local.p);
    a.mov(local.key, rax);
    a.add(rax, local.steps);
    a.mov(local.stop, rax);
    a.lea(r8, mem(scratch, PANEL_AT));
    const runs = a.here();
    a.mov(rax, local.key);
    keyAt(local.vAt, arg.vRow, arg.vPage);
    a.mov(rax, local.j);
    a.imul(rax, arg.vCol);
    a.add(rdi, rax);
    a.mov(rax, local.key);
    a.mov(rcx, local.stop);
    a.sub(rcx, rax);
    withinPage(rcx);
    a.add(local.key, rcx);
    a.mov(rsi, arg.vRow);
    a.mov(rdx, arg.vCol);
    a.mov(r9, local.width);
    a.push(r8);
    a.push(rcx);
    a.call(packValues);
    a.pop(rcx);
    a.pop(r8);
    a.imul(rcx, rcx, shape.lineBytes);
    a.add(r8, rcx);
    a.mov(rax, local.key);
    a.cmp(rax, local.stop);
    a.jb(runs);
    a.lea(rsi, mem(scratch, PANEL_AT));
    a.mov(d(rbp), shape.lineBytes);
    a.bind(ready);
    a.mov(rcx, local.width);
    a.mov(rax, local.p);
    a.lea(rdi, mem(scratch, { index: rax, scale: 4, disp: SCORES_AT }));
    a.sub(rax, local.least);
    emitMode(a, isa);
    a.mov(rcx, arg.scoreRow);
    a.mov(rdx, local.steps);
    a.mov(r8, local.j);
    a.lea(r8, mem(scratch, { index: r8, scale: 4, disp: RESULT_AT }));
    a.mov(r9, arg.resultRow);
    a.mov(rax, own.height);
    a.call(arg.tiles);
    a.mov(rax, local.j);
    a.add(rax, local.width);
    a.mov(local.j, rax);
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
    a.mov(rax, own.first);
    a.add(rax, local.row);
    splitRow();
    a.imul(rax, arg.outHead);
    a.imul(rdx, arg.outRow);
    a.mov(rdi, own.out);
    a.add(rdi, rax);
    a.add(rdi, rdx);
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
    a.mov(rax, local.row);
    a.cmp(rax, own.height);
    a.jb(results);
    a.add(item, 1);
    a.jmp(items);
    a.bind(done);
    leave();
  };
