/** The largest element of a line. */
import { type Gpr, type Mem, mem, rbp, rcx, type Vec } from "../operands.ts";
import { type Simd, tail } from "../simd.ts";

/** Vectors that are looked at side by side: one after the other, each would wait for the one before. */
const SIDE_BY_SIDE = 4;

export interface Line {
  /** Its first element, how many there are, and bytes of one. `tail` is prepared. */
  readonly base: Gpr;
  readonly count: Gpr | Mem;
  readonly elementBytes: 2 | 4;
  /** Loads a vector of it as floats; of the last one what lies behind is anything. */
  load(to: Vec, from: Mem, isTail: boolean): void;
}

/** It goes to every element of `most`; what is no number is passed over. Uses `value`, four of `temps`, rcx and rbp. */
export function emitLargest(simd: Simd, line: Line, most: Vec, value: Vec, temps: readonly Vec[]): void {
  const { a, isa } = simd;
  const { base: from, elementBytes: scale } = line;
  const [fill, ...others] = temps.slice(0, SIDE_BY_SIDE) as [Vec, ...Vec[]];
  const all = [most, ...others];
  const [ones, rest, end] = [a.label(), a.label(), a.label()];
  for (const register of all) simd.set(register, Number.NEGATIVE_INFINITY);
  a.mov(rcx, 0);
  if (line.count.kind === "gpr") a.mov(rbp, line.count);
  else a.mov(rbp, line.count);
  a.sub(rbp, SIDE_BY_SIDE * isa.lanes);
  a.jl(ones);
  a.align(16);
  const loop = a.here();
  for (const [i, register] of all.entries()) {
    line.load(value, mem(from, { index: rcx, scale, disp: i * isa.lanes * scale }), false);
    a.vmaxps(register, value, register);
  }
  a.add(rcx, SIDE_BY_SIDE * isa.lanes);
  a.sub(rbp, SIDE_BY_SIDE * isa.lanes);
  a.jge(loop);
  a.bind(ones);
  a.add(rbp, (SIDE_BY_SIDE - 1) * isa.lanes);
  a.jl(rest);
  const single = a.here();
  line.load(value, mem(from, { index: rcx, scale }), false);
  a.vmaxps(most, value, most);
  a.add(rcx, isa.lanes);
  a.sub(rbp, isa.lanes);
  a.jge(single);
  a.bind(rest);
  a.test(tail, tail);
  a.je(end);
  line.load(value, mem(from, { index: rcx, scale }), true);
  simd.set(fill, Number.NEGATIVE_INFINITY);
  simd.fillBeyondTail(value, fill);
  a.vmaxps(most, value, most);
  a.bind(end);
  for (const register of others) a.vmaxps(most, register, most);
  simd.largest(most, value);
}
