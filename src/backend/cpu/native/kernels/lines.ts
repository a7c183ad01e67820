/**
 * One row times a B whose rows are lines in memory: eight lines at a time, each read from end to end, go into the sums of
 * a block of columns, which stay in the first cache. The order of k is that of the tile. An item is a block of columns.
 */
import type { Assembler } from "../assembler.ts";
import { enter, layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import { type Label, mem, r8, r9, r10, r12, r13, r14, r15, rax, rbp, rbx, rcx, rdi, rdx, rsi } from "../operands.ts";
import { type FloatType, Simd, tail } from "../simd.ts";
import { elementBytes } from "./pack.ts";
import { place } from "./tile.ts";

/** Most columns of a block. Of longer pieces of a line memory gives more in a second. */
export const LINE_BLOCK = 2048;
const LINES = 8;
/** Bytes of a line that are fetched ahead, into the second cache; behind its end those of the next pass. */
const AHEAD = 4096;

export const lineArguments = layoutArguments("a", "aCol", "b", "bRow", "out", "n", "k", "block");

export const emitLines =
  (type: FloatType) =>
  (a: Assembler, isa: Isa): void => {
    const simd = new Simd(a, isa);
    const es = elementBytes(type);
    const step = isa.lanes * es;
    const { local, leave } = enter(a, "end", "width", "left", "ahead", "turn", "next");
    const arg = lineArguments.at(rbx);
    const [sums, first, fifth, ahead, aheadFifth, one, three] = [r13, r8, r9, rcx, rdx, r14, r15];
    const done = a.label();
    a.mov(rbx, rdi);
    a.mov(r12, rsi);
    a.mov(local.end, rdx);
    a.mov(sums, rcx);
    a.mov(one, arg.bRow);
    a.lea(three, mem(one, { index: one, scale: 2 }));
    const items = a.here();
    a.cmp(r12, local.end);
    a.jae(done);
    a.mov(rcx, r12);
    a.imul(rcx, arg.block);
    a.mov(rax, arg.n);
    a.sub(rax, rcx);
    a.cmp(rax, arg.block);
    a.cmova(rax, arg.block);
    a.mov(local.width, rax);
    // No further than the block is wide; of the lines of the next pass where no more than that is left.
    a.mov(rdx, AHEAD / es);
    a.cmp(rdx, rax);
    a.cmova(rdx, rax);
    a.mov(local.turn, rdx);
    a.mov(r8, one);
    a.imul(r8, r8, LINES);
    a.sub(rdx, rax);
    a.lea(r8, mem(r8, { index: rdx, scale: es }));
    a.mov(local.next, r8);
    a.add(rdx, rax);
    a.imul(rdx, rdx, es);
    a.mov(local.ahead, rdx);
    a.mov(tail, rax);
    a.and(tail, isa.lanes - 1);
    simd.prepareTail();
    a.mov(rdi, arg.b);
    a.lea(rdi, mem(rdi, { index: rcx, scale: es }));
    a.mov(rsi, arg.a);
    // The sums begin at zero.
    simd.zero(isa.v(0));
    a.mov(r10, 0);
    const zeros = a.here();
    a.vmovups(mem(sums, { index: r10, scale: 4 }), isa.v(0));
    a.add(r10, isa.lanes);
    a.cmp(r10, local.width);
    a.jb(zeros);
    a.mov(rax, arg.k);
    a.mov(local.left, rax);

    const pass = (lines: number, next: Label) => {
      for (let i = 0; i < lines; i++) {
        simd.loadOne(isa.v(6 + i), type, mem(rsi));
        a.vbroadcastss(isa.v(6 + i), isa.v(6 + i).x);
        a.add(rsi, arg.aCol);
      }
      a.mov(first, rdi);
      if (lines > 4) a.lea(fifth, mem(rdi, { index: one, scale: 4 }));
      a.mov(r10, sums);
      const line = (i: number) => place(i < 4 ? first : fifth, i % 4, one, three, 0);
      const body = (isTail: boolean) => {
        const y = isa.v(0);
        a.vmovups(y, mem(r10));
        const fetches = lines > 4 && !isTail;
        if (fetches) {
          a.mov(rax, local.ahead);
          a.cmp(rbp, local.turn);
          a.cmovb(rax, local.next);
          a.lea(ahead, mem(first, { index: rax }));
          a.lea(aheadFifth, mem(fifth, { index: rax }));
        }
        for (let i = 0; i < lines; i++) {
          const x = isa.v(6 + i);
          // A line is too short for the processor to foresee it, and eight are too much for the first cache.
          if (fetches) a.prefetcht1(place(i < 4 ? ahead : aheadFifth, i % 4, one, three, 0));
          if (type === "f32" && !isTail) a.vfmadd231ps(y, x, line(i));
          else {
            const b = isa.v(1 + (i % 4));
            if (isTail) simd.loadTail(b, type, line(i));
            else simd.load(b, type, line(i));
            a.vfmadd231ps(y, x, b);
          }
        }
        a.vmovups(mem(r10), y);
      };
      const [rest, end] = [a.label(), a.label()];
      a.mov(rbp, local.width);
      a.sub(rbp, isa.lanes);
      a.jb(rest);
      a.align(32);
      const loop = a.here();
      body(false);
      a.add(first, step);
      if (lines > 4) a.add(fifth, step);
      a.add(r10, isa.bytes);
      a.sub(rbp, isa.lanes);
      a.jae(loop);
      a.bind(rest);
      a.test(tail, tail);
      a.je(end);
      body(true);
      a.bind(end);
      a.mov(rax, one);
      a.imul(rax, rax, lines);
      a.add(rdi, rax);
      a.jmp(next);
    };
    const [eights, ones, finished] = [a.here(), a.label(), a.label()];
    a.sub(local.left, LINES);
    a.jl(ones);
    pass(LINES, eights);
    a.bind(ones);
    a.add(local.left, LINES);
    const single = a.here();
    a.sub(local.left, 1);
    a.jl(finished);
    pass(1, single);
    a.bind(finished);

    a.mov(rcx, r12);
    a.imul(rcx, arg.block);
    a.mov(rdx, arg.out);
    a.lea(rdx, mem(rdx, { index: rcx, scale: es }));
    a.mov(r10, sums);
    const [rest, end] = [a.label(), a.label()];
    a.mov(rbp, local.width);
    a.sub(rbp, isa.lanes);
    a.jb(rest);
    const loop = a.here();
    a.vmovups(isa.v(0), mem(r10));
    simd.store(mem(rdx), type, isa.v(0), isa.v(1), isa.v(2));
    a.add(rdx, step);
    a.add(r10, isa.bytes);
    a.sub(rbp, isa.lanes);
    a.jae(loop);
    a.bind(rest);
    a.test(tail, tail);
    a.je(end);
    a.vmovups(isa.v(0), mem(r10));
    simd.storeTail(mem(rdx), type, isa.v(0), isa.v(1), isa.v(2));
    a.bind(end);
    a.add(r12, 1);
    a.jmp(items);
    a.bind(done);
    leave();
  };
