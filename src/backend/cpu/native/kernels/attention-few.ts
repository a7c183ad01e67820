/** Weights of a few rows times V, by lines of V as they are: packing them would cost more than it saves. */
import { type Gpr, type Mem, mem, r8, r9, r13, rax, rcx, rdi, rdx, rsi } from "../operands.ts";
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

/** Four vectors of columns at a time, then one, then what is left of one, of one row, or of it and the next. */
export function emitWeigh(simd: Simd, type: FloatType, few: FewRows, rows: 1 | 2): void {
  const { a, isa } = simd;
  const es = elementBytes(type);
  const weights = [isa.v(8), isa.v(9)].slice(0, rows);
  const y = isa.v(10);
  const [column, nextRow] = [r8, r9];
  const columns = (count: number, isTail: boolean) => {
    /** By columns, and rows. */
    const sums = Array.from({ length: count }, (_, i) => weights.map((_, row) => isa.v(rows * i + row)));
    for (const sum of sums.flat()) simd.zero(sum);
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
    if (rows > 1) a.mov(nextRow, few.scoreRow);
    a.align(16);
    const loop = a.here();
    for (const [row, x] of weights.entries()) {
      a.vbroadcastss(x, row === 0 ? mem(rsi) : mem(rsi, { index: nextRow }));
    }
    for (const [i, own] of sums.entries()) {
      const from = mem(rdi, i * isa.lanes * es);
      const inPlace = rows === 1 && type === "f32" && !isTail;
      if (isTail) simd.loadTail(y, type, from);
      else if (!inPlace) simd.load(y, type, from);
      for (const [row, sum] of own.entries()) a.vfmadd231ps(sum, weights[row]!, inPlace ? from : y);
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
    for (const row of weights.keys()) {
      if (row > 0) a.add(rax, few.resultRow);
      for (const [i, own] of sums.entries()) {
        a.vmovups(mem(rax, { index: column, scale: 4, disp: few.resultsAt + i * isa.bytes }), own[row]!);
      }
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
