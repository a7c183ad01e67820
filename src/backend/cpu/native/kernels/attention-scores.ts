/**
 * Scores of few rows: a square of keys, a vector of each, is turned in registers and multiplied at once, as in turned.ts,
 * so that keys are not packed for them. Sums are chains along the heads, as in the tile.
 */
import {
  type Gpr,
  type Label,
  type Mem,
  mem,
  r8,
  r9,
  r10,
  r11,
  r14,
  rax,
  rbp,
  rcx,
  rdi,
  rdx,
  rsi,
  type Vec,
} from "../operands.ts";
import type { FloatType, Simd } from "../simd.ts";
import { elementBytes } from "./pack.ts";
import { turn } from "./square.ts";
import { place } from "./tile.ts";
import { split } from "./turned.ts";

/** Rows that there is code for: each takes as long to emit as a small kernel. Others meet packed keys. */
const OWN_BODIES = [1, 2, 4] as const;

export interface FewScores {
  readonly height: Mem;
  readonly d: Mem;
  readonly kRow: Mem;
  readonly kCol: Mem;
  readonly scoreRow: Mem;
  /** The next key, up to which scores have been computed, the last one that is asked for, and how many there are. */
  readonly j: Mem;
  readonly most: Mem;
  readonly keys: Mem;
  /** A place on the stack to use. */
  readonly first: Mem;
  /** Rows of Q begin at this register, `qRow` bytes apart; scores so far behind it. */
  readonly scratch: Gpr;
  readonly qRow: number;
  readonly scoresAt: number;
  /** The address of the key in rax goes to rdi; uses rax and rcx. */
  keyAt(): void;
  /** rax becomes how many keys lie directly before the one in it. */
  before(): void;
}

/** Goes to `done` where all keys have their scores; else those from `j` on are left, which do not fill a vector. */
export function emitFewScores(simd: Simd, type: FloatType, few: FewScores, done: Label): void {
  const { a, isa } = simd;
  const es = elementBytes(type);
  const steps = isa.bytes / es;
  const left = a.label();
  const bodies = OWN_BODIES.map((rows) => ({ rows, start: a.label() }));
  a.cmp(few.kCol, es);
  a.jne(left);
  a.mov(rax, few.d);
  a.test(rax, steps - 1);
  a.jne(left);
  for (const { rows, start } of bodies) {
    a.cmp(few.height, rows);
    a.je(start);
  }
  a.jmp(left);
  for (const { rows, start } of bodies) {
    a.bind(start);
    emitGroups(simd, type, few, rows, done, left);
  }
  a.bind(left);
}

/** The same for this many rows. */
function emitGroups(simd: Simd, type: FloatType, few: FewScores, rows: number, done: Label, left: Label): void {
  const { a, isa } = simd;
  const { lanes } = isa;
  const steps = isa.bytes / elementBytes(type);
  const bases = [rsi, rdi, r8, r9].slice(0, lanes / 4) as Gpr[];
  const [stride, three, q] = [r10, r14, rdx];
  const square = Array.from({ length: lanes }, (_, i) => isa.v(i));
  const sums = Array.from({ length: rows }, (_, i) => isa.v(lanes + 1 + i));
  const [spare, other] = [isa.v(lanes + 1 + rows), isa.v(lanes + 2 + rows)];
  const whole = a.label();
  const groups = a.here();
  a.mov(rax, few.j);
  a.cmp(rax, few.most);
  a.jae(done);
  a.mov(few.first, rax);
  a.lea(rcx, mem(rax, lanes));
  a.cmp(rcx, few.keys);
  a.jbe(whole);
  // The last vector of keys ends where they end.
  few.before();
  a.cmp(rax, lanes);
  a.jb(left);
  a.mov(rax, few.keys);
  a.sub(rax, lanes);
  a.mov(few.first, rax);
  a.bind(whole);
  a.mov(rax, few.first);
  few.keyAt();
  a.mov(stride, few.kRow);
  a.lea(three, mem(stride, { index: stride, scale: 2 }));
  a.mov(rsi, rdi);
  for (const [i, base] of bases.slice(1).entries()) a.lea(base, mem(bases[i]!, { index: stride, scale: 4 }));
  for (const sum of sums) simd.zero(sum);
  a.mov(q, few.scratch);
  a.mov(rbp, few.d);
  const multiply = (line: Vec, k: number) => {
    for (const [row, sum] of sums.entries()) {
      const factor = mem(q, row * few.qRow + 4 * k);
      if (isa.masks) a.vfmadd231ps(sum, line, factor.each);
      else {
        a.vbroadcastss(spare, factor);
        a.vfmadd231ps(sum, line, spare);
      }
    }
  };
  a.align(16);
  const loop = a.here();
  for (const [c, register] of square.entries()) {
    a.vmovups(register, place(bases[c >> 2]!, c % 4, stride, three, 0));
  }
  for (const [k, line] of turn(a, isa, square, isa.v(lanes)).entries()) {
    if (type === "f32") multiply(line, k);
    else {
      split(simd, type, line, other);
      multiply(other, 2 * k);
      multiply(line, 2 * k + 1);
    }
  }
  for (const base of bases) a.add(base, isa.bytes);
  a.add(q, 4 * steps);
  a.sub(rbp, steps);
  a.jne(loop);
  a.mov(rax, few.first);
  a.lea(r11, mem(few.scratch, { index: rax, scale: 4, disp: few.scoresAt }));
  for (const sum of sums) {
    a.vmovups(mem(r11), sum);
    a.add(r11, few.scoreRow);
  }
  a.add(few.j, lanes);
  a.jmp(groups);
}
