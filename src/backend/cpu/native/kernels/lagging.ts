/**
 * One row of floats times columns along k, as in turned.ts, of which the upper eight of sixteen lag behind the lower ones: at
 * strides of whole pages sixteen lines of one step of k would share eight places of the first cache. Each half begins with the
 * next item where the other is in the midst of its own. What comes next is fetched into the second cache in the order in which
 * it lies in memory. Sums are chains in the order of k. AVX-512 only.
 */
import type { Assembler } from "../assembler.ts";
import { enter } from "../frame.ts";
import type { Isa } from "../isa.ts";
import { type Mem, mem, r8, r9, r10, r11, r12, r13, r14, r15, rax, rbp, rbx, rcx, rdi, rdx, rsi } from "../operands.ts";
import { Simd } from "../simd.ts";
import { loadTurned, prepareTurned } from "./square.ts";
import { place } from "./tile.ts";
import { emitLastSteps, emitWiden, turnedArguments } from "./turned.ts";

/** Columns of an item. */
export const LAGGING_COLUMNS = 16;
const HALF = 8;
/** Vectors of k that the upper half comes later: half of the first cache's 4 KB. */
const LAG = 32;
/** Shorter columns are over too soon. */
export const LEAST_LAGGING = 2 * LAG * 16;

/** Columns lie one behind the other. */
export function emitLagging(a: Assembler, isa: Isa): void {
  const simd = new Simd(a, isa);
  const { local, leave } = enter(a, "begin", "end", "x", "column", "previous");
  const arg = turnedArguments.at(rbx);
  const [stride, three, ahead, item] = [r10, r14, r11, r12];
  // Each half's sums are in a register of their own, whose other half is of no use.
  const lower = { bases: [rsi, rdi], x: r13, sums: isa.v(17), first: 0 } as const;
  const upper = { bases: [r8, r9], x: r15, sums: isa.v(18), first: HALF } as const;
  const bases = [...lower.bases, ...upper.bases];
  const square = Array.from({ length: LAGGING_COLUMNS }, (_, c) => isa.v(c));
  const [free, sum] = [isa.v(16), isa.v(19).y];
  const done = a.label();

  a.mov(rbx, rdi);
  a.mov(item, rsi);
  a.mov(local.begin, rsi);
  a.mov(local.end, rdx);
  a.mov(r13, rcx);
  emitWiden(simd, "f32", 1, arg, local.x);
  a.mov(local.x, r13);
  prepareTurned(a, isa);
  a.mov(stride, arg.bCol);
  a.lea(three, mem(stride, { index: stride, scale: 2 }));

  /** Puts a half at the beginning of its columns of the item at local.column. Uses rax. */
  const begin = ({ bases: [base, fifth], x, sums, first }: typeof lower | typeof upper) => {
    simd.zero(sums);
    a.mov(rax, local.column);
    if (first > 0) a.add(rax, first);
    a.imul(rax, stride);
    a.add(rax, arg.b);
    a.mov(base, rax);
    a.lea(fifth, mem(base, { index: stride, scale: 4 }));
    a.mov(x, local.x);
  };
  const stretch = a.label();
  const at = (column: number, bytes: number): Mem => place(bases[column >> 2]!, column % 4, stride, three, bytes);
  /** The last steps of a half, and its results, which belong at the column rcx. */
  const finish = ({ bases: [base], x, sums, first }: typeof lower | typeof upper) => {
    const whole = a.label();
    if (first === 0) a.vmovaps(sum, sums.y);
    else a.vextractf64x4(sum, sums, 1);
    a.mov(rbp, arg.k);
    a.and(rbp, isa.lanes - 1);
    a.je(whole);
    emitLastSteps(
      simd,
      "f32",
      HALF,
      base,
      stride,
      rdx,
      (line) => a.vfmadd231ps(sum, line, mem(x).each),
      () => {
        a.add(base, 4);
        a.add(x, 4);
      },
    );
    a.bind(whole);
    a.mov(rax, arg.out);
    a.vmovups(mem(rax, { index: rcx, scale: 4, disp: 4 * first }), sum);
  };

  const items = a.here();
  // Behind the last item the lower half reads it again, for nothing.
  a.mov(rax, local.end);
  a.sub(rax, 1);
  a.cmp(item, rax);
  a.cmovb(rax, item);
  a.shl(rax, 4);
  a.mov(rdx, arg.n);
  a.sub(rdx, LAGGING_COLUMNS);
  a.cmp(rax, rdx);
  a.cmova(rax, rdx);
  a.mov(local.column, rax);
  begin(lower);
  // The next item is fetched if it is this thread's.
  a.mov(rax, stride);
  a.shl(rax, 4);
  a.lea(ahead, mem(lower.bases[0], { index: rax }));
  a.lea(rax, mem(item, 1));
  a.cmp(rax, local.end);
  a.cmovae(ahead, lower.bases[0]);
  const isLater = a.label();
  a.cmp(item, local.begin);
  a.jne(isLater);
  begin(upper);
  a.bind(isLater);
  a.mov(rbp, LAG);
  a.call(stretch);
  const isFirst = a.label();
  a.cmp(item, local.begin);
  a.je(isFirst);
  a.mov(rcx, local.previous);
  finish(upper);
  a.bind(isFirst);
  a.cmp(item, local.end);
  a.jae(done);
  begin(upper);
  a.mov(rbp, arg.k);
  a.shr(rbp, 4);
  a.sub(rbp, LAG);
  a.call(stretch);
  a.mov(rcx, local.column);
  a.mov(local.previous, rcx);
  finish(lower);
  a.add(item, 1);
  a.jmp(items);
  a.bind(done);
  leave();

  // rbp vectors of both halves.
  a.align(32);
  a.bind(stretch);
  for (const [k, line] of loadTurned(a, isa, at, square, free).entries()) {
    for (const { sums, x } of [lower, upper]) a.vfmadd231ps(sums, line, mem(x, 4 * k).each);
  }
  for (let i = 0; i < LAGGING_COLUMNS; i++) a.prefetcht1(mem(ahead, isa.bytes * i));
  a.add(ahead, LAGGING_COLUMNS * isa.bytes);
  for (const pointer of [...bases, lower.x, upper.x]) a.add(pointer, isa.bytes);
  a.sub(rbp, 1);
  a.jne(stretch);
  a.ret();
}
