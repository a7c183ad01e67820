/**
 * Tiles of what has 16 bits that widen it on their way: the tiles of the first panel each write their rows of A as floats for
 * the panels that follow, and the first tile of each panel its lines of B for the rows that follow. While multipliers are
 * busy that costs nothing, where a pass of its own costs as much as one of a hundred multiplications.
 */
import type { Assembler } from "../assembler.ts";
import type { Isa } from "../isa.ts";
import {
  d,
  k2,
  k4,
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
} from "../operands.ts";
import { type FloatType, Simd } from "../simd.ts";
import { place, prefetchNext, tileShape, VECTORS_SHIFT } from "./tile.ts";

/** Bits of the mode, above those of the tile. */
export const WIDENS_A = 64;
export const WIDENS_B = 128;
/** Steps of k are whole blocks of so many, which A is widened by. */
export const WIDENED_STEPS = 16;

const BYTES = 2;
/** Steps by which lines of B are fetched ahead. */
const AHEAD = 8;
const [aThree, bThree, fifth, left] = [rbx, r13, r12, r14];
const saved = [aThree, bThree, fifth, left];

/** Where bytes from row to row of A and of B, as they are, are told. */
export type Distances = Readonly<Record<"aRow" | "bRow", Mem>>;

/**
 * As the tile's function, of whole tiles of rows and whole vectors of columns, with a mode that asks for the one, the other or
 * both (then all but the first tile widen A alone). r15 and r11: A and B as they are; rbx: the arguments with
 * those distances. It leaves the tile's mode in r10, and uses r11 and r15.
 */
export const emitWideningTiles =
  (type: FloatType, distances: Distances) =>
  (a: Assembler, isa: Isa): void => {
    const { rows, vectors } = tileShape(isa);
    const pushed: Distances = { aRow: mem(rsp, 0), bRow: mem(rsp, 8) };
    for (const register of saved) a.push(register);
    a.mov(left, rax);
    for (const distance of [distances.bRow, distances.aRow]) {
      a.mov(rax, distance);
      a.push(rax);
    }
    a.lea(aThree, mem(rcx, { index: rcx, scale: 2 }));
    a.lea(bThree, mem(rbp, { index: rbp, scale: 2 }));
    const [end, ofB, ofA] = [a.label(), a.label(), a.label()];
    a.test(d(r10), WIDENS_A);
    a.je(ofB);
    a.test(d(r10), WIDENS_B);
    a.je(ofA);
    emitTile(a, isa, type, vectors, true, true, pushed);
    a.sub(left, rows);
    a.je(end);
    a.bind(ofA);
    const others = a.here();
    emitTile(a, isa, type, vectors, true, false, pushed);
    a.sub(left, rows);
    a.jne(others);
    a.jmp(end);
    a.bind(ofB);
    const widths = Array.from({ length: vectors }, () => a.label());
    for (let n = vectors; n > 1; n--) {
      a.cmp(d(r10), WIDENS_B + (n << VECTORS_SHIFT));
      a.jae(widths[n - 1]!);
    }
    for (const [w, width] of widths.entries()) {
      a.bind(width);
      emitTile(a, isa, type, w + 1, false, true, pushed);
      if (w + 1 < vectors) a.jmp(end);
    }
    a.bind(end);
    a.and(r10, WIDENS_A - 1);
    a.add(rsp, 16);
    for (const register of saved.toReversed()) a.pop(register);
    a.ret();
  };

function emitTile(
  a: Assembler,
  isa: Isa,
  type: FloatType,
  vectors: number,
  widensA: boolean,
  widensB: boolean,
  { aRow, bRow }: Distances,
): void {
  const simd = new Simd(a, isa);
  const { rows } = tileShape(isa);
  const sum = (row: number, v: number) => isa.v(row * vectors + v);
  const sums = rows * vectors;
  const line = Array.from({ length: vectors }, (_, v) => isa.v(sums + v));
  const spare = Math.min(rows, isa.registers - sums - vectors);
  const free = (i: number) => isa.v(sums + vectors + (i % spare));
  const rowOfA = (row: number, disp: number) => place(row < 4 ? rdi : fifth, row % 4, rcx, aThree, disp);
  const half = isa.bytes / 2;
  a.lea(fifth, mem(rdi, { index: rcx, scale: 4 }));
  for (let i = 0; i < sums; i++) simd.zero(isa.v(i));
  prefetchNext(a, isa, rows, vectors * half);
  // Both are further when registers are pushed; steps of k that are left are below.
  const kept = [rdi, rsi, rdx];
  const [fromA, fromB] = [aRow.plus(8 * kept.length), bRow.plus(8 * kept.length)];
  const stepsLeft = mem(rsp, -8);
  for (const register of kept) a.push(register);
  a.mov(stepsLeft, rdx);
  const ahead = rdx;
  if (widensB) a.lea(ahead, mem(rsi, { index: rbp, scale: AHEAD }));
  a.align(32);
  const loop = a.here();
  if (widensA) {
    a.mov(rax, r15);
    for (let row = 0; row < rows; row++) {
      simd.load(free(row), type, mem(rax));
      a.vmovups(rowOfA(row, 0), free(row));
      a.add(rax, fromA);
    }
    // Those of the next tile: so many rows at a time the processor does not foresee.
    for (let row = 0; row < rows; row++) {
      a.prefetcht1(mem(rax));
      a.add(rax, fromA);
    }
    a.add(r15, WIDENED_STEPS * BYTES);
  }
  const steps = widensA ? WIDENED_STEPS : 4;
  if (widensB) a.mov(rax, fromB);
  for (let u = 0; u < steps; u++) {
    for (const [v, register] of line.entries()) {
      const at = place(rsi, u % 4, rbp, bThree, v * isa.bytes);
      if (widensB) {
        simd.load(register, type, mem(r11, v * half));
        a.vmovups(at, register);
      } else a.vmovups(register, at);
    }
    for (let row = 0; row < rows; row++) {
      const x = free(row);
      a.vbroadcastss(x, rowOfA(row, 4 * u));
      for (const [v, register] of line.entries()) a.vfmadd231ps(sum(row, v), x, register);
    }
    if (widensB) {
      for (let at = 0; at < vectors * half; at += 64) a.prefetcht0(mem(r11, { index: rax, scale: AHEAD, disp: at }));
      for (let v = 0; v < vectors; v++) a.prefetcht0(mem(ahead, v * isa.bytes));
      a.add(ahead, rbp);
      a.add(r11, rax);
    }
    if (u % 4 === 3) a.lea(rsi, mem(rsi, { index: rbp, scale: 4 }));
  }
  a.add(rdi, 4 * steps);
  a.add(fifth, 4 * steps);
  a.sub(stepsLeft, steps);
  a.jne(loop);
  for (const register of kept.toReversed()) a.pop(register);
  if (widensA) {
    // The rows of the next tile.
    a.mov(rax, rdx);
    a.imul(rax, rax, -BYTES);
    a.add(r15, rax);
    a.mov(rax, aRow);
    a.lea(r15, mem(r15, { index: rax, scale: 8 }));
  }
  // Rounding to bf16 uses the second mask, which may be the next tiles'.
  if (type === "bf16") a.kmovw(k4, k2);
  for (let row = 0; row < rows; row++) {
    for (let v = 0; v < vectors; v++) simd.store(mem(r8, v * half), type, sum(row, v), isa.v(30), isa.v(31));
    a.add(r8, r9);
  }
  if (type === "bf16") a.kmovw(k2, k4);
  a.lea(rdi, mem(rdi, { index: rcx, scale: 8 }));
}
