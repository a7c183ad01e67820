/** Squares of 32-bit elements, as many rows as a vector has elements, whose rows become columns. */
import type { Assembler } from "../assembler.ts";
import type { Isa } from "../isa.ts";
import {
  eax,
  type Gpr,
  k7,
  type Label,
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
  rcx,
  rdi,
  rdx,
  rsi,
  rsp,
  type Vec,
} from "../operands.ts";
import { place } from "./tile.ts";

/** Of the steps of turning a square: two vectors become two others, of which one is where a third was. */
class Exchange {
  readonly #a: Assembler;
  readonly #isa: Isa;
  #free: Vec;

  constructor(a: Assembler, isa: Isa, free: Vec) {
    this.#a = a;
    this.#isa = isa;
    this.#free = free;
  }

  #pair(first: (dst: Vec, x: Vec, y: Vec) => void, second: typeof first, x: Vec, y: Vec): [Vec, Vec] {
    const one = this.#free;
    first(one, x, y);
    second(x, x, y);
    this.#free = y;
    return [one, x];
  }

  /** Four rows: element j of each, in every 128 bits. */
  four(rows: readonly Vec[]): readonly Vec[] {
    const a = this.#a;
    const unpack = (x: Vec, y: Vec) =>
      this.#pair(
        (d, p, q) => a.vunpcklps(d, p, q),
        (d, p, q) => a.vunpckhps(d, p, q),
        x,
        y,
      );
    const unpackPairs = (x: Vec, y: Vec) =>
      this.#pair(
        (d, p, q) => a.vunpcklpd(d, p, q),
        (d, p, q) => a.vunpckhpd(d, p, q),
        x,
        y,
      );
    const [r0, r1, r2, r3] = rows as [Vec, Vec, Vec, Vec];
    const [lo0, hi0] = unpack(r0, r1);
    const [lo1, hi1] = unpack(r2, r3);
    return [...unpackPairs(lo0, lo1), ...unpackPairs(hi0, hi1)];
  }

  /** Even 128 bits of both, and odd ones. */
  lanes(x: Vec, y: Vec): [Vec, Vec] {
    const a = this.#a;
    return this.#isa.masks
      ? this.#pair(
          (d, p, q) => a.vshuff32x4(d, p, q, 0x88),
          (d, p, q) => a.vshuff32x4(d, p, q, 0xdd),
          x,
          y,
        )
      : this.#pair(
          (d, p, q) => a.vperm2f128(d, p, q, 0x20),
          (d, p, q) => a.vperm2f128(d, p, q, 0x31),
          x,
          y,
        );
  }
}

/** A square, its rows in registers, becomes its columns; `free` is used. Gives them in order. */
export function turn(a: Assembler, isa: Isa, rows: readonly Vec[], free: Vec): readonly Vec[] {
  const exchange = new Exchange(a, isa, free);
  // Groups of four rows: element j + 4·L of each, in the 128 bits L.
  const groups = Array.from({ length: isa.lanes / 4 }, (_, g) => exchange.four(rows.slice(4 * g, 4 * g + 4)));
  const out: Vec[] = [];
  for (let j = 0; j < 4; j++) {
    if (!isa.masks) {
      [out[j], out[j + 4]] = exchange.lanes(groups[0]![j]!, groups[1]![j]!) as [Vec, Vec];
      continue;
    }
    const [even0, odd0] = exchange.lanes(groups[0]![j]!, groups[1]![j]!);
    const [even1, odd1] = exchange.lanes(groups[2]![j]!, groups[3]![j]!);
    [out[j], out[j + 8]] = exchange.lanes(even0, even1) as [Vec, Vec];
    [out[j + 4], out[j + 12]] = exchange.lanes(odd0, odd1) as [Vec, Vec];
  }
  return out;
}

/** The upper half of a vector, in elements of 64 bits. */
export const UPPER = k7;

/** Sets that mask. Uses rax. */
export function prepareTurned(a: Assembler, isa: Isa): void {
  if (!isa.masks) return;
  a.mov(eax, 0xf0);
  a.kmovw(UPPER, eax);
}

/**
 * The columns of a square in memory, `at` so many bytes of a row, in `registers` and `free`. Halves of two rows are loaded into
 * one register, which takes a quarter of the exchanges from the one unit that has them.
 */
export function loadTurned(
  a: Assembler,
  isa: Isa,
  at: (row: number, bytes: number) => Mem,
  registers: readonly Vec[],
  free: Vec,
): readonly Vec[] {
  if (!isa.masks) {
    for (const [row, to] of registers.entries()) a.vmovups(to, at(row, 0));
    return turn(a, isa, registers, free);
  }
  // Register 8h + 4g + i: half h of rows 8g + i and 8g + 4 + i. Both halves of a row are read at once.
  for (let r = 0; r < 8; r++) {
    for (const h of [0, 1]) {
      const [to, row] = [registers[8 * h + r]!, 8 * (r >> 2) + (r & 3)];
      a.vmovups(to.y, at(row, 32 * h));
      a.vbroadcasti64x4(to.k(UPPER), at(row + 4, 32 * h));
    }
  }
  const exchange = new Exchange(a, isa, free);
  const out: Vec[] = [];
  for (const h of [0, 1]) {
    const [first, second] = [0, 4].map((r) => exchange.four(registers.slice(8 * h + r, 8 * h + r + 4)));
    for (let j = 0; j < 4; j++) {
      [out[8 * h + j], out[8 * h + j + 4]] = exchange.lanes(first![j]!, second![j]!) as [Vec, Vec];
    }
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
  prepareTurned(a, isa);
  spread(from, rdx);
  spread(to, r9);
  const [three, toThree] = [r8, r10];
  a.lea(three, mem(rdx, { index: rdx, scale: 2 }));
  a.lea(toThree, mem(r9, { index: r9, scale: 2 }));
  const loop = a.here();
  const registers = Array.from({ length: isa.lanes }, (_, i) => isa.v(i));
  const at = (row: number, bytes: number) => place(from[row >> 2]!, row % 4, rdx, three, bytes);
  const columns = loadTurned(a, isa, at, registers, isa.v(isa.lanes));
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
