/** Weights of a few rows times V, by lines of V as they are: packing them would cost more than it saves. */
import { type Gpr, type Mem, mem, r8, r13, rax, rcx, rdi, rdx, rsi } from "../operands.ts";
import { type FloatType, type Simd, tail } from "../simd.ts";
import { elementBytes } from "./pack.ts";

export interface FewRows {
  /** The row of the block, and the keys that any row of it sees. */
  readonly row: Mem;
  readonly least: Mem;
  readonly most: Mem;
  /** Elements of a value, bytes from value to value, of a row of scores and of one of results. */
  readonly dv: Mem;
  readonly vRow: Mem;
  readonly scoreRow: Mem;
  readonly resultRow: Mem;
  /** Where scores and results begin behind r13. */
  readonly scoresAt: number;
  readonly resultsAt: number;
  /** A place on the stack to use. */
  readonly key: Mem;
  /** The address of the value in rax goes to rdi; uses rax, rcx and rdx. */
  valueAt(): void;
  /** How many values lie one behind the other from the one in rax on, at most `count`, which they become; uses rax. */
  run(count: Gpr): void;
}

/** Four vectors of columns at a time, then one, then what is left of one. */
export function emitWeigh(simd: Simd, type: FloatType, few: FewRows): void {
  const { a, isa } = simd;
  const es = elementBytes(type);
  const sums = [0, 1, 2, 3].map((id) => isa.v(id));
  const [x, y] = [isa.v(4), isa.v(5)];
  const column = r8;
  const columns = (count: number, isTail: boolean) => {
    const own = sums.slice(0, count);
    for (const sum of own) simd.zero(sum);
    a.mov(rax, few.least);
    a.mov(few.key, rax);
    const runs = a.here();
    a.mov(rax, few.key);
    few.valueAt();
    a.lea(rdi, mem(rdi, { index: column, scale: es }));
    a.mov(rsi, few.row);
    a.imul(rsi, few.scoreRow);
    a.add(rsi, r13);
    a.mov(rax, few.key);
    a.lea(rsi, mem(rsi, { index: rax, scale: 4, disp: few.scoresAt }));
    a.mov(rcx, few.most);
    a.sub(rcx, rax);
    few.run(rcx);
    a.add(few.key, rcx);
    a.mov(rdx, few.vRow);
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
    a.mov(rax, few.key);
    a.cmp(rax, few.most);
    a.jb(runs);
    a.mov(rax, few.row);
    a.imul(rax, few.resultRow);
    a.add(rax, r13);
    for (const [i, sum] of own.entries()) {
      a.vmovups(mem(rax, { index: column, scale: 4, disp: few.resultsAt + i * isa.bytes }), sum);
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
    a.cmp(rax, few.dv);
    a.ja(next);
    columns(count, false);
    a.jmp(again);
    a.bind(next);
  }
  a.mov(tail, few.dv);
  a.sub(tail, column);
  a.je(end);
  simd.prepareTail();
  columns(1, true);
  a.bind(end);
}
