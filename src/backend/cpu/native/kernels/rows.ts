/** Ops over rows without gaps: softmax and the norms. An item is a row; sums are in f64. */
import type { Assembler } from "../assembler.ts";
import { enter, layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import {
  type Gpr,
  k1,
  k2,
  type Mem,
  mem,
  r8,
  r9,
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
import { type FloatType, Simd, tail } from "../simd.ts";
import { emitLargest } from "./largest.ts";
import { expNegative } from "./math.ts";
import { elementBytes } from "./pack.ts";

/** `isStreamed`: results go past the caches, which is for f32 in whole vectors at aligned places. */
export const rowArguments = layoutArguments("x", "out", "cols", "weight", "bias", "eps", "isStreamed");

/** What a row's passes share. */
interface Row {
  readonly simd: Simd;
  readonly type: FloatType;
  readonly v: (id: number) => Vec;
  /**
   * Visits a row's elements in vectors: `body` gets how many bytes of f32 (rcx, in elements) lie before, and whether these
   * are the last few.
   */
  each(body: (isTail: boolean) => void): void;
  /**
   * Where the vector at hand is in this thread's next row, to be fetched in the longest pass: rows are about as long as a page,
   * where the processor's own prefetching ends.
   */
  readonly next: Mem;
  /** The same for the results, which `body` leaves in `value`; `t` and `u` are used. */
  eachResult(body: (isTail: boolean) => void, value: Vec, t: Vec, u: Vec): void;
}

const x = r14;
const out = r15;
const scratch = r13;
const nextRow = rsi;
/** Elements before the vector at hand. */
const at = rcx;

/** The loop over rows; `row` emits what is done with one. */
function emitRows(
  a: Assembler,
  isa: Isa,
  type: FloatType,
  row: (r: Row, arg: ReturnType<typeof rowArguments.at>) => void,
  constants?: (trial: Simd) => void,
): void {
  const simd = new Simd(a, isa);
  const es = elementBytes(type);
  const { local, leave } = enter(a, "end");
  const arg = rowArguments.at(rbx);
  const done = a.label();
  a.mov(rbx, rdi);
  a.mov(r12, rsi);
  a.mov(local.end, rdx);
  a.mov(scratch, rcx);
  a.mov(tail, arg.cols);
  a.and(tail, isa.lanes - 1);
  simd.prepareTail();
  if (constants) simd.hoist("e to negatives", constants);
  const rows = a.here();
  a.cmp(r12, local.end);
  a.jae(done);
  a.mov(rax, arg.cols);
  a.imul(rax, r12);
  for (const [register, field] of [
    [x, arg.x],
    [out, arg.out],
  ] as const) {
    a.mov(register, field);
    a.lea(register, mem(register, { index: rax, scale: es }));
  }
  const each = (body: (isTail: boolean) => void, hasTail = true) => {
    const [rest, end] = [a.label(), a.label()];
    a.mov(at, 0);
    a.mov(rbp, arg.cols);
    a.sub(rbp, isa.lanes);
    a.jb(rest);
    a.align(16);
    const loop = a.here();
    body(false);
    a.add(at, isa.lanes);
    a.sub(rbp, isa.lanes);
    a.jae(loop);
    a.bind(rest);
    if (!hasTail) return;
    a.test(tail, tail);
    a.je(end);
    body(true);
    a.bind(end);
  };
  const eachResult: Row["eachResult"] = (body, value, t, u) => {
    const to = mem(out, { index: at, scale: es });
    const [streamed, end] = [a.label(), a.label()];
    if (type === "f32") {
      a.cmp(arg.isStreamed, 0);
      a.jne(streamed);
    }
    each((isTail) => {
      body(isTail);
      if (isTail) simd.storeTail(to, type, value, t, u);
      else simd.store(to, type, value, t, u);
    });
    if (type !== "f32") return;
    a.jmp(end);
    a.bind(streamed);
    each((isTail) => {
      body(isTail);
      a.vmovntps(to, value);
    }, false);
    a.bind(end);
  };
  a.mov(nextRow, arg.cols);
  a.lea(nextRow, mem(x, { index: nextRow, scale: es }));
  a.lea(rax, mem(r12, 1));
  a.cmp(rax, local.end);
  a.cmovae(nextRow, x);
  const next = mem(nextRow, { index: at, scale: es });
  row({ simd, type, v: (id) => isa.v(id), each, next, eachResult }, arg);
  a.add(r12, 1);
  a.jmp(rows);
  a.bind(done);
  if (type === "f32") a.sfence();
  leave();
}

/** Vectors of a row that are summed in f32. */
const RUN = 32;

/** A vector of the row at `base`, or its last elements and zeros. */
function loadAt({ simd, type }: Row, dst: Vec, base: Gpr, isTail: boolean, stored: FloatType = type): void {
  const from = mem(base, { index: at, scale: elementBytes(stored) });
  if (isTail) simd.loadTail(dst, stored, from);
  else simd.load(dst, stored, from);
}

/** What the exponentials of a row ask for. */
const expNegativeConstants = (isa: Isa) => (trial: Simd) => expNegative(trial, isa.v(1), temporaries(isa));
const temporaries = (isa: Isa) =>
  [4, 5, 6, 7, 8, 9, 10, 11].map((id) => isa.v(id)) as unknown as Parameters<typeof expNegative>[2];

/**
 * e^(x − largest) / sum; the exponentials wait where the result will be, or in the thread's memory where that is narrower or
 * goes past the caches.
 */
export const emitSoftmax =
  (type: FloatType) =>
  (a: Assembler, isa: Isa): void =>
    emitRows(
      a,
      isa,
      type,
      (row, arg) => {
        const { simd, v, each, eachResult, next } = row;
        const es = elementBytes(type);
        const kept = type === "f32" ? rdi : scratch;
        if (type === "f32") {
          a.mov(kept, out);
          a.cmp(arg.isStreamed, 0);
          a.cmovne(kept, scratch);
        }
        const [most, value, sums, more] = [v(0), v(1), v(2), v(3)];
        const temps = temporaries(isa);
        // What is no number is not the largest: it makes the sum none, and with it the row.
        const load = (to: Vec, from: Mem, isTail: boolean) =>
          isTail ? simd.loadTail(to, type, from) : simd.load(to, type, from);
        const line = { base: x, count: arg.cols, elementBytes: es, load };
        emitLargest(simd, line, most, value, temps);
        // Short runs are summed in f32, their sums in f64.
        const short = v(12);
        const flush = () => {
          simd.toDoubles(short, temps[0], temps[1]);
          a.vaddpd(sums, sums, temps[0]);
          a.vaddpd(more, more, temps[1]);
          simd.zero(short);
          a.mov(r9, RUN);
        };
        for (const register of [sums, more, short]) simd.zero(register);
        a.mov(r9, RUN);
        each((isTail) => {
          if (!isTail) a.prefetcht0(next);
          loadAt(row, value, x, isTail);
          a.vsubps(value, value, most);
          expNegative(simd, value, temps);
          if (isTail) simd.clearBeyondTail(value);
          const to = mem(kept, { index: at, scale: 4 });
          if (isTail) simd.storeTail(to, "f32", value, temps[0], temps[1]);
          else a.vmovups(to, value);
          a.vaddps(short, short, value);
          if (isTail) return;
          const goOn = a.label();
          a.sub(r9, 1);
          a.jne(goOn);
          flush();
          a.bind(goOn);
        });
        flush();
        a.vaddpd(sums, sums, more);
        simd.sumDoubles(sums, more);
        a.vmovsd(value.x, a.data(new Uint8Array(Float64Array.of(1).buffer)));
        a.vdivsd(value.x, value.x, sums.x);
        a.vcvtsd2ss(value.x, value.x, value.x);
        const scale = sums;
        a.vbroadcastss(scale, value.x);
        const scaled = (isTail: boolean) => {
          const from = mem(kept, { index: at, scale: 4 });
          if (isTail) simd.loadTail(value, "f32", from);
          else a.vmovups(value, from);
          a.vmulps(value, value, scale);
        };
        eachResult(scaled, value, temps[0], temps[1]);
      },
      expNegativeConstants(isa),
    );

export interface NormKind {
  readonly isCentred: boolean;
  readonly hasWeight: boolean;
  readonly hasBias: boolean;
}

/** (x − mean) / √(mean of squares + eps) · weight + bias; the mean comes off in two parts. */
export const emitNorm =
  (type: FloatType, { isCentred, hasWeight, hasBias }: NormKind) =>
  (a: Assembler, isa: Isa): void =>
    emitRows(a, isa, type, (row, arg) => {
      const { simd, v, each, eachResult, next } = row;
      const [value, low, high, sums, more, mean] = [v(0), v(1), v(2), v(3), v(4), v(5)];
      const [head, rest, scale, count] = [v(6), v(7), v(8), v(9)];
      const total = () => {
        a.vaddpd(sums, sums, more);
        simd.sumDoubles(sums, more);
        a.vdivsd(sums.x, sums.x, count.x);
      };
      simd.zero(count);
      a.vcvtsi2sd(count.x, count.x, arg.cols);
      if (isCentred) {
        simd.zero(sums);
        simd.zero(more);
        each((isTail) => {
          loadAt(row, value, x, isTail);
          simd.toDoubles(value, low, high);
          a.vaddpd(sums, sums, low);
          a.vaddpd(more, more, high);
        });
        total();
        a.vbroadcastsd(mean, sums.x);
        a.vcvtsd2ss(head.x, sums.x, sums.x);
        a.vcvtss2sd(rest.x, head.x, head.x);
        a.vsubsd(rest.x, sums.x, rest.x);
        a.vcvtsd2ss(rest.x, rest.x, rest.x);
        a.vbroadcastss(head, head.x);
        a.vbroadcastss(rest, rest.x);
      }
      simd.zero(sums);
      simd.zero(more);
      each((isTail) => {
        // With short vectors the sums take longer than memory.
        if (!isTail && isa.masks) a.prefetcht0(next);
        loadAt(row, value, x, isTail);
        simd.toDoubles(value, low, high);
        if (isCentred) {
          a.vsubpd(low, low, mean);
          a.vsubpd(high, high, mean);
          if (isTail) clearDoubles(simd, low, high, v(10));
        }
        a.vfmadd231pd(sums, low, low);
        a.vfmadd231pd(more, high, high);
      });
      total();
      a.vaddsd(sums.x, sums.x, arg.eps);
      a.vsqrtsd(sums.x, sums.x, sums.x);
      a.vmovsd(more.x, a.data(new Uint8Array(Float64Array.of(1).buffer)));
      a.vdivsd(sums.x, more.x, sums.x);
      a.vcvtsd2ss(sums.x, sums.x, sums.x);
      a.vbroadcastss(scale, sums.x);
      a.mov(r8, arg.weight);
      a.mov(r9, arg.bias);
      const scaled = (isTail: boolean) => {
        loadAt(row, value, x, isTail);
        if (isCentred) {
          a.vsubps(value, value, head);
          a.vsubps(value, value, rest);
        }
        a.vmulps(value, value, scale);
        if (hasWeight) loadAt(row, low, r8, isTail);
        if (hasBias) loadAt(row, high, r9, isTail);
        if (hasWeight && hasBias) a.vfmadd213ps(value, low, high);
        else if (hasWeight) a.vmulps(value, value, low);
        else if (hasBias) a.vaddps(value, value, high);
      };
      eachResult(scaled, value, v(10), v(11));
    });

/** Doubles that belong to elements outside the tail become zero; `t` is used. */
function clearDoubles({ a, isa }: Simd, low: Vec, high: Vec, t: Vec): void {
  if (isa.masks) {
    a.kshiftrw(k2, k1, 8);
    a.vmovupd(low.kz(k1), low);
    a.vmovupd(high.kz(k2), high);
    return;
  }
  const mask = isa.v(15);
  a.vpmovsxdq(t, mask.x);
  a.vandps(low, low, t);
  a.vextracti128(t.x, mask, 1);
  a.vpmovsxdq(t, t.x);
  a.vandps(high, high, t);
}

/** How far ahead sums are read: the processor's own prefetching ends with a page. */
const PREFETCH_BYTES = 8192;

export const sumArguments = layoutArguments("x", "partial", "out", "cols", "blocks", "blockSize");

/** Items are blocks of rows, in order: the sum of each, as f64, goes to its place in `partial`. */
export const emitSumBlocks =
  (type: FloatType) =>
  (a: Assembler, isa: Isa): void => {
    const simd = new Simd(a, isa);
    const es = elementBytes(type);
    const { local, leave } = enter(a, "end");
    const arg = sumArguments.at(rbx);
    const v = (id: number): Vec => isa.v(id);
    const pairs = [0, 1].map((i) => ({
      low: v(2 * i),
      high: v(2 * i + 1),
      value: v(4 + i),
      s: v(6 + 2 * i),
      t: v(7 + 2 * i),
    }));
    const [done, rest, end, ones] = [a.label(), a.label(), a.label(), a.label()];
    a.mov(rbx, rdi);
    a.mov(r12, rsi);
    a.mov(local.end, rdx);
    const items = a.here();
    a.cmp(r12, local.end);
    a.jae(done);
    a.mov(rax, r12);
    a.mov(rdx, 0);
    a.div(arg.blocks);
    a.imul(rdx, arg.blockSize);
    a.mov(rbp, arg.cols);
    a.imul(rax, rbp);
    a.sub(rbp, rdx);
    a.cmp(rbp, arg.blockSize);
    a.cmova(rbp, arg.blockSize);
    a.add(rax, rdx);
    a.mov(x, arg.x);
    a.lea(x, mem(x, { index: rax, scale: es }));
    for (const { s, t } of pairs) for (const register of [s, t]) simd.zero(register);
    const add = ({ low, high, value, s, t }: (typeof pairs)[number]) => {
      simd.toDoubles(value, low, high);
      a.vaddpd(s, s, low);
      a.vaddpd(t, t, high);
    };
    const step = isa.lanes * es;
    a.sub(rbp, 2 * isa.lanes);
    a.jb(ones);
    a.align(16);
    const loop = a.here();
    for (const [i, pair] of pairs.entries()) {
      a.prefetcht0(mem(x, i * step + PREFETCH_BYTES));
      simd.load(pair.value, type, mem(x, i * step));
      add(pair);
    }
    a.add(x, 2 * step);
    a.sub(rbp, 2 * isa.lanes);
    a.jae(loop);
    a.bind(ones);
    a.add(rbp, 2 * isa.lanes);
    a.cmp(rbp, isa.lanes);
    a.jb(rest);
    simd.load(pairs[0]!.value, type, mem(x));
    add(pairs[0]!);
    a.add(x, step);
    a.sub(rbp, isa.lanes);
    a.bind(rest);
    a.test(rbp, rbp);
    a.je(end);
    a.mov(tail, rbp);
    simd.prepareTail();
    simd.loadTail(pairs[0]!.value, type, mem(x));
    add(pairs[0]!);
    a.bind(end);
    const { s, t } = pairs[0]!;
    a.vaddpd(s, s, t);
    a.vaddpd(s, s, pairs[1]!.s);
    a.vaddpd(s, s, pairs[1]!.t);
    simd.sumDoubles(s, t);
    a.mov(rax, arg.partial);
    a.vmovsd(mem(rax, { index: r12, scale: 8 }), s.x);
    a.add(r12, 1);
    a.jmp(items);
    a.bind(done);
    leave();
  };

/** Items are rows: the sum of their blocks, in order, rounded. */
export const emitSumRows =
  (type: FloatType) =>
  (a: Assembler, isa: Isa): void => {
    const simd = new Simd(a, isa);
    const es = elementBytes(type);
    const arg = sumArguments.at(rdi);
    const sum = isa.v(0);
    const end = a.label();
    a.mov(tail, 1);
    simd.prepareTail();
    a.mov(r8, arg.blocks);
    a.mov(rax, rsi);
    a.imul(rax, r8);
    a.mov(rcx, arg.partial);
    a.lea(rcx, mem(rcx, { index: rax, scale: 8 }));
    const rows = a.here();
    a.cmp(rsi, rdx);
    a.jae(end);
    simd.zero(sum);
    a.mov(r9, r8);
    const blocks = a.here();
    a.vaddsd(sum.x, sum.x, mem(rcx));
    a.add(rcx, 8);
    a.sub(r9, 1);
    a.jne(blocks);
    a.vcvtsd2ss(sum.x, sum.x, sum.x);
    a.mov(rax, arg.out);
    simd.storeTail(mem(rax, { index: rsi, scale: es }), type, sum, isa.v(1), isa.v(2));
    a.add(rsi, 1);
    a.jmp(rows);
    a.bind(end);
    a.vzeroupper();
    a.ret();
  };
