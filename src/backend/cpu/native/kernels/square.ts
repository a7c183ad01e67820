/** Squares of 32-bit elements, as many rows as a vector has elements, whose rows become columns. */
import type { Assembler } from "../assembler.ts";
import type { Isa } from "../isa.ts";
import {
  type Gpr,
  type Label,
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
  rcx,
  rdi,
  rdx,
  rsi,
  rsp,
  type Vec,
} from "../operands.ts";
import { place } from "./tile.ts";

/** A square, its rows in registers, becomes its columns; `free` is used. Gives them in order. */
export function turn(a: Assembler, isa: Isa, rows: readonly Vec[], free: Vec): readonly Vec[] {
  let spare = free;
  // Two vectors become two others, of which one is where a third was.
  const pair = (first: (dst: Vec, x: Vec, y: Vec) => void, second: typeof first, x: Vec, y: Vec): [Vec, Vec] => {
    const one = spare;
    first(one, x, y);
    second(x, x, y);
    spare = y;
    return [one, x];
  };
  const unpack = (x: Vec, y: Vec) =>
    pair(
      (d, p, q) => a.vunpcklps(d, p, q),
      (d, p, q) => a.vunpckhps(d, p, q),
      x,
      y,
    );
  const unpackPairs = (x: Vec, y: Vec) =>
    pair(
      (d, p, q) => a.vunpcklpd(d, p, q),
      (d, p, q) => a.vunpckhpd(d, p, q),
      x,
      y,
    );
  const shuffle = (x: Vec, y: Vec) =>
    isa.masks
      ? pair(
          (d, p, q) => a.vshuff32x4(d, p, q, 0x88),
          (d, p, q) => a.vshuff32x4(d, p, q, 0xdd),
          x,
          y,
        )
      : pair(
          (d, p, q) => a.vperm2f128(d, p, q, 0x20),
          (d, p, q) => a.vperm2f128(d, p, q, 0x31),
          x,
          y,
        );
  // Groups of four rows: element j + 4·L of each, in the 128 bits L.
  const groups = Array.from({ length: isa.lanes / 4 }, (_, g) => {
    const [r0, r1, r2, r3] = rows.slice(4 * g, 4 * g + 4) as [Vec, Vec, Vec, Vec];
    const [lo0, hi0] = unpack(r0, r1);
    const [lo1, hi1] = unpack(r2, r3);
    return [...unpackPairs(lo0, lo1), ...unpackPairs(hi0, hi1)];
  });
  const out: Vec[] = [];
  for (let j = 0; j < 4; j++) {
    if (!isa.masks) {
      [out[j], out[j + 4]] = shuffle(groups[0]![j]!, groups[1]![j]!) as [Vec, Vec];
      continue;
    }
    const [even0, odd0] = shuffle(groups[0]![j]!, groups[1]![j]!);
    const [even1, odd1] = shuffle(groups[2]![j]!, groups[3]![j]!);
    [out[j], out[j + 8]] = shuffle(even0, even1) as [Vec, Vec];
    [out[j + 4], out[j + 12]] = shuffle(odd0, odd1) as [Vec, Vec];
  }
  return out;
}

/**
 * A function that turns rcx squares. Rows of the first are at rsi, rdx bytes apart, and what they become goes to rdi, r9 bytes
 * apart; the next square is r8 bytes further, and r10 where it goes. It uses all but rbx, and vectors.
 */
export function emitTurnSquares(a: Assembler, isa: Isa): Label {
  const quarters = isa.lanes / 4;
  const from = [rsi, r11, r12, r13].slice(0, quarters);
  const to = [rdi, r14, r15, rbp].slice(0, quarters);
  const spread = (bases: readonly Gpr[], stride: Gpr) => {
    for (let q = 1; q < quarters; q++) a.lea(bases[q]!, mem(bases[q - 1]!, { index: stride, scale: 4 }));
  };
  const entry = a.here();
  a.push(r8);
  a.push(r10);
  spread(from, rdx);
  spread(to, r9);
  const [three, toThree] = [r8, r10];
  a.lea(three, mem(rdx, { index: rdx, scale: 2 }));
  a.lea(toThree, mem(r9, { index: r9, scale: 2 }));
  const loop = a.here();
  const rows = Array.from({ length: isa.lanes }, (_, i) => isa.v(i));
  for (const [i, row] of rows.entries()) a.vmovups(row, place(from[i >> 2]!, i % 4, rdx, three, 0));
  const columns = turn(a, isa, rows, isa.v(isa.lanes));
  for (const [i, column] of columns.entries()) a.vmovups(place(to[i >> 2]!, i % 4, r9, toThree, 0), column);
  a.mov(rax, mem(rsp, 8));
  for (const base of from) a.add(base, rax);
  a.mov(rax, mem(rsp));
  for (const base of to) a.add(base, rax);
  a.sub(rcx, 1);
  a.jne(loop);
  a.pop(r10);
  a.pop(r8);
  a.ret();
  return entry;
}
