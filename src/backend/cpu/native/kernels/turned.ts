/**
 * A few rows times a B whose columns lie along k, as the weights of linear layers do: a square of B, a vector of every
 * column, is turned in registers and multiplied at once, so that B is read from end to end and once. Sums are chains in
 * the order of k, as in the tile. An item is as many columns as a vector has elements.
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
  rsp,
  type Vec,
} from "../operands.ts";
import { type FloatType, Simd } from "../simd.ts";
import { elementBytes } from "./pack.ts";
import { loadTurned, prepareTurned } from "./square.ts";
import { place } from "./tile.ts";

/** Most rows: their sums share the registers with the square. */
export const turnedRows = ({ masks }: Isa): number => (masks ? 8 : 4);

export const turnedArguments = layoutArguments(
  "a",
  "aRow",
  "aCol",
  "b",
  "bCol",
  "out",
  "outRow",
  "m",
  "n",
  "k",
  /** Bytes of the next columns that are fetched while a vector of each of these is read; 0: each of these is fetched ahead. */
  "fetched",
);

/** Rows of the kernel for m of them, of which the last ones are the last row again: turning takes as long as four of them. */
export const turnedHeight = (m: number): number => (m === 1 ? 1 : m <= 4 ? 4 : 8);

export const emitTurned =
  (type: FloatType, rows: number) =>
  (a: Assembler, isa: Isa): void => {
    const simd = new Simd(a, isa);
    const es = elementBytes(type);
    const { lanes } = isa;
    const steps = isa.bytes / es;
    /** Bytes of a column that are fetched ahead: what lies nearer is on its way. */
    const AHEAD = 512;
    const { local, leave } = enter(a, "end", "xRow", "column", "next");
    const arg = turnedArguments.at(rbx);
    const bases = [rsi, rdi, r8, r9].slice(0, lanes / 4) as Gpr[];
    const [stride, three, x, x4, xRow, xThree, ahead] = [r10, r14, r13, r15, rcx, rdx, r11];
    const square = Array.from({ length: lanes }, (_, c) => isa.v(c));
    const first = lanes + 1;
    const sums = Array.from({ length: rows }, (_, i) => isa.v(first + i));
    const spare = [isa.v(first + rows), isa.v(first + 1 + rows)] as const;
    const done = a.label();
    a.mov(rbx, rdi);
    a.mov(r12, rsi);
    a.mov(local.end, rdx);
    a.mov(x, rcx);
    emitWiden(simd, type, rows, arg, local.xRow);
    prepareTurned(a, isa);
    a.mov(stride, arg.bCol);
    a.lea(three, mem(stride, { index: stride, scale: 2 }));

    const items = a.here();
    a.cmp(r12, local.end);
    a.jae(done);
    // The last columns are some of those before, too, where they do not fill a vector.
    a.mov(rax, r12);
    a.imul(rax, rax, lanes);
    a.mov(rbp, arg.n);
    a.sub(rbp, lanes);
    a.cmp(rax, rbp);
    a.cmova(rax, rbp);
    a.mov(local.column, rax);
    a.imul(rax, stride);
    a.add(rax, arg.b);
    for (const [q, base] of bases.entries()) {
      if (q === 0) a.mov(base, rax);
      else a.lea(base, mem(bases[q - 1]!, { index: stride, scale: 4 }));
    }
    // From the end of its columns to the beginning of the next item's, if that is this thread's.
    a.mov(rax, arg.k);
    a.imul(rax, rax, -es);
    a.mov(rbp, stride);
    a.imul(rbp, rbp, lanes);
    a.add(rax, rbp);
    a.add(rax, AHEAD);
    a.lea(ahead, mem(bases[0]!, { index: rbp }));
    a.mov(d(rcx), AHEAD);
    a.lea(rbp, mem(r12, 1));
    a.cmp(rbp, local.end);
    a.cmovae(rax, rcx);
    a.cmovae(ahead, bases[0]!);
    a.mov(local.next, rax);
    for (const sum of sums) simd.zero(sum);
    a.mov(xRow, arg.k);
    a.shl(xRow, 2);
    a.lea(xThree, mem(xRow, { index: xRow, scale: 2 }));
    if (rows > 4) a.lea(x4, mem(x, { index: xRow, scale: 4 }));
    const factor = (row: number, k: number): Mem => place(row < 4 ? x : x4, row % 4, xRow, xThree, 4 * k);
    const multiply = (line: Vec, k: number) => {
      for (const [row, sum] of sums.entries()) {
        if (isa.masks) a.vfmadd231ps(sum, line, factor(row, k).each);
        else {
          a.vbroadcastss(spare[0], factor(row, k));
          a.vfmadd231ps(sum, line, spare[0]);
        }
      }
    };
    const advance = (bytes: number, count: number) => {
      for (const base of bases) a.add(base, bytes);
      a.add(x, 4 * count);
      if (rows > 4) a.add(x4, 4 * count);
    };
    const [rest, end] = [a.label(), a.label()];
    a.mov(rbp, arg.k);
    a.sub(rbp, steps);
    a.jb(rest);
    a.align(32);
    const loop = a.here();
    const at = (column: number, bytes: number) => place(bases[column >> 2]!, column % 4, stride, three, bytes);
    for (const [k, line] of loadTurned(a, isa, at, square, isa.v(lanes)).entries()) {
      if (type === "f32") multiply(line, k);
      else {
        split(simd, type, line, spare[1]);
        multiply(spare[1], 2 * k);
        multiply(line, 2 * k + 1);
      }
    }
    const [each, fetched] = [a.label(), a.label()];
    a.cmp(arg.fetched, 0);
    a.je(each);
    // The next item's columns, one after the other.
    for (let i = 0; i < lanes; i++) a.prefetcht1(mem(ahead, isa.bytes * i));
    a.add(ahead, arg.fetched);
    a.jmp(fetched);
    a.bind(each);
    // What comes next of each column, and where it ends what the next item begins with.
    a.mov(d(rax), AHEAD);
    a.cmp(rbp, AHEAD / es);
    a.cmovb(rax, local.next);
    for (const base of bases) {
      a.lea(ahead, mem(base, { index: rax }));
      for (let i = 0; i < 4; i++) a.prefetcht0(place(ahead, i, stride, three, 0));
    }
    a.bind(fetched);
    advance(isa.bytes, steps);
    a.sub(rbp, steps);
    a.jae(loop);
    a.bind(rest);
    a.add(rbp, steps);
    a.je(end);
    emitLastSteps(simd, type, lanes, bases[0]!, stride, r11, multiply, advance);
    a.bind(end);
    a.sub(x, xRow);
    a.mov(rax, arg.out);
    a.mov(rbp, local.column);
    a.lea(rax, mem(rax, { index: rbp, scale: es }));
    a.mov(rcx, 0);
    for (const [row, sum] of sums.entries()) {
      simd.store(mem(rax), type, sum, isa.v(0), isa.v(1));
      a.mov(rbp, arg.outRow);
      a.cmp(arg.m, row + 1);
      a.cmovbe(rbp, rcx);
      a.add(rax, rbp);
    }
    a.add(r12, 1);
    a.jmp(items);
    a.bind(done);
    leave();
  };

/** The rows of A as floats of 32 bits, one behind the other, at r13. */
export function emitWiden(
  simd: Simd,
  type: FloatType,
  rows: number,
  arg: ReturnType<typeof turnedArguments.at>,
  keep: Mem,
): void {
  const { a, isa } = simd;
  a.mov(r8, r13);
  for (let row = 0; row < rows; row++) {
    if (row === 0) a.mov(r10, arg.a);
    else {
      a.mov(rcx, 0);
      a.mov(r10, arg.aRow);
      a.cmp(arg.m, row);
      a.cmovbe(r10, rcx);
      a.add(r10, keep);
    }
    a.mov(keep, r10);
    a.mov(rcx, arg.k);
    a.mov(rdx, arg.aCol);
    const [single, end] = [a.label(), a.label()];
    a.cmp(rdx, elementBytes(type));
    a.jne(single);
    const vectors = a.here();
    a.cmp(rcx, isa.lanes);
    a.jb(single);
    simd.load(isa.v(0), type, mem(r10));
    a.vmovups(mem(r8), isa.v(0));
    a.add(r10, isa.lanes * elementBytes(type));
    a.add(r8, isa.bytes);
    a.sub(rcx, isa.lanes);
    a.jmp(vectors);
    a.bind(single);
    a.test(rcx, rcx);
    a.je(end);
    const loop = a.here();
    simd.loadOne(isa.v(0), type, mem(r10));
    a.vmovss(mem(r8), isa.v(0).x);
    a.add(r10, rdx);
    a.add(r8, 4);
    a.sub(rcx, 1);
    a.jne(loop);
    a.bind(end);
  }
}

/** Of two neighbours of 16 bits in each element the first goes to `even`, as floats, and the second stays. */
export function split(simd: Simd, type: FloatType, pair: Vec, even: Vec): void {
  const { a, isa } = simd;
  if (type === "bf16") {
    a.vpslld(even, pair, 16);
    simd.and(pair, pair, simd.constantInt(-65536));
  } else if (isa.masks) {
    a.vpmovdw(even.y, pair);
    a.vcvtph2ps(even, even.y);
    a.vpsrld(pair, pair, 16);
    a.vpmovdw(pair.y, pair);
    a.vcvtph2ps(pair, pair.y);
  } else {
    simd.and(even, pair, simd.constantInt(0xffff));
    a.vpsrld(pair, pair, 16);
    a.vpackusdw(even, even, pair);
    a.vpermq(even, even, 0xd8);
    a.vextracti128(pair.x, even, 1);
    a.vcvtph2ps(even, even.x);
    a.vcvtph2ps(pair, pair.x);
  }
}

/** The last rbp steps, one line of columns at a time, which is put together below the stack. Uses rax and `via`. */
export function emitLastSteps(
  simd: Simd,
  type: FloatType,
  lanes: number,
  base: Gpr,
  stride: Gpr,
  via: Gpr,
  multiply: (line: Vec, k: number) => void,
  advance: (bytes: number, count: number) => void,
): void {
  const { a, isa } = simd;
  const loop = a.here();
  a.mov(via, base);
  for (let c = 0; c < lanes; c++) {
    simd.loadOne(isa.v(0), type, mem(via));
    a.vmovss(mem(rsp, 4 * c - isa.bytes), isa.v(0).x);
    a.add(via, stride);
  }
  const line = lanes === 8 ? isa.v(0).y : isa.v(0);
  a.vmovups(line, mem(rsp, -isa.bytes));
  multiply(line, 0);
  advance(elementBytes(type), 1);
  a.sub(rbp, 1);
  a.jne(loop);
}
