/**
 * The register tile of every product of floats: up to `rows` × `vectors` vectors of C, over a stretch of k. Each element
 * is one chain of fused multiply-adds in the order of k, going on from what C holds, so that it is the same whatever
 * rows and columns it is computed with.
 */
import type { Assembler } from "../assembler.ts";
import type { Isa } from "../isa.ts";
import { d, k1, k2, k3, mem, r8, r9, r10, r11, rax, rdi, rdx, rsi, type Vec } from "../operands.ts";
import { Simd } from "../simd.ts";

/** Steps of k between two visits of C; A's rows and B's panel of so many lie in the caches. */
export const KC = 256;
/** Bytes from row to row of a block of A: not a power of two, so that rows do not share places of the cache. */
export const A_ROW = 4 * KC + 64;

export interface TileShape {
  /** Most rows of a tile. */
  readonly rows: number;
  /** Vectors of a panel of B. */
  readonly vectors: number;
  /** Columns of a panel, and its bytes per step of k. */
  readonly columns: number;
  readonly lineBytes: number;
}

/** 24 sums, 3 vectors of B and broadcasts of A in 32 registers; 12 and 2 in 16. */
export function tileShape({ masks, lanes, bytes }: Isa): TileShape {
  const [rows, vectors] = masks ? [8, 3] : [6, 2];
  return { rows, vectors, columns: vectors * lanes, lineBytes: vectors * bytes };
}

/** Bits of the tile's mode, and above them how many vectors of the panel hold columns. */
export const GO_ON = 1;
export const PARTIAL = 2;
export const VECTORS_SHIFT = 2;

const UNROLL = 4;

/**
 * A function of rax rows: rdi: A's rows, A_ROW apart; rsi: B's panel; rdx: steps of k; r8: C; r9: bytes from row to row
 * of C; r10: mode, GO_ON for sums that go on, PARTIAL for the last columns, whose masks are in k1 to k3 or at r11, and
 * the number of vectors, fewer for a panel's last columns.
 * It keeps rdi, rsi, r9, r10, r11 and moves r8 behind the rows.
 */
export function emitTiles(a: Assembler, isa: Isa): void {
  const { rows, vectors } = tileShape(isa);
  const widths = Array.from({ length: vectors }, () => a.label());
  for (let n = vectors; n > 1; n--) {
    a.cmp(d(r10), n << VECTORS_SHIFT);
    a.jae(widths[n - 1]!);
  }
  for (const [w, width] of widths.entries()) {
    a.bind(width);
    const tiles = Array.from({ length: rows }, () => a.label());
    for (let n = rows; n > 1; n--) {
      a.cmp(d(rax), n);
      a.je(tiles[n - 1]!);
    }
    for (const [i, label] of tiles.entries()) {
      a.bind(label);
      emitTile(a, isa, i + 1, w + 1);
    }
  }
}

function emitTile(a: Assembler, isa: Isa, rows: number, vectors: number): void {
  const simd = new Simd(a, isa);
  const { lineBytes } = tileShape(isa);
  const sum = (row: number, v: number) => isa.v(row * vectors + v);
  const sums = rows * vectors;
  const line = Array.from({ length: vectors }, (_, v) => isa.v(sums + v));
  const spare = Math.min(rows, isa.registers - sums - vectors - (isa.masks ? 0 : 1));
  const places = Array.from({ length: rows }, (_, row) => Array.from({ length: vectors }, (_, v) => sum(row, v)));
  const [fresh, begin, partialLoad, store, partialStore] = Array.from({ length: 5 }, () => a.label()) as [
    ReturnType<Assembler["label"]>,
    ReturnType<Assembler["label"]>,
    ReturnType<Assembler["label"]>,
    ReturnType<Assembler["label"]>,
    ReturnType<Assembler["label"]>,
  ];
  a.test(d(r10), GO_ON);
  a.je(fresh);
  a.mov(rax, r8);
  a.test(d(r10), PARTIAL);
  a.jne(partialLoad);
  for (const row of places) {
    for (const [v, register] of row.entries()) a.vmovups(register, mem(rax, v * isa.bytes));
    a.add(rax, r9);
  }
  a.jmp(begin);
  a.bind(partialLoad);
  masksOf(a, isa, line);
  for (const row of places) {
    for (const [v, register] of row.entries()) {
      const from = mem(rax, v * isa.bytes);
      if (isa.masks) a.vmovups(register.kz([k1, k2, k3][v]!), from);
      else a.vmaskmovps(register, line[v]!, from);
    }
    a.add(rax, r9);
  }
  a.jmp(begin);
  a.bind(fresh);
  for (const row of places) for (const register of row) simd.zero(register);
  a.bind(begin);

  const step = (u: number) => {
    for (const [v, register] of line.entries()) a.vmovups(register, mem(rsi, u * lineBytes + v * isa.bytes));
    for (const [i, row] of places.entries()) {
      const x = isa.v(sums + vectors + (i % spare));
      a.vbroadcastss(x, mem(rdi, i * A_ROW + 4 * u));
      for (const [v, register] of row.entries()) a.vfmadd231ps(register, x, line[v]!);
    }
  };
  const [ones, done] = [a.label(), a.label()];
  a.push(rdi);
  a.push(rsi);
  a.push(rdx);
  a.sub(rdx, UNROLL);
  a.jb(ones);
  a.align(32);
  const loop = a.here();
  for (let u = 0; u < UNROLL; u++) step(u);
  a.add(rsi, UNROLL * lineBytes);
  a.add(rdi, UNROLL * 4);
  a.sub(rdx, UNROLL);
  a.jae(loop);
  a.bind(ones);
  a.add(rdx, UNROLL);
  a.je(done);
  const single = a.here();
  step(0);
  a.add(rsi, lineBytes);
  a.add(rdi, 4);
  a.sub(rdx, 1);
  a.jne(single);
  a.bind(done);
  a.pop(rdx);
  a.pop(rsi);
  a.pop(rdi);

  a.test(d(r10), PARTIAL);
  a.jne(partialStore);
  a.bind(store);
  for (const row of places) {
    for (const [v, register] of row.entries()) a.vmovups(mem(r8, v * isa.bytes), register);
    a.add(r8, r9);
  }
  a.ret();
  a.bind(partialStore);
  masksOf(a, isa, line);
  for (const row of places) {
    for (const [v, register] of row.entries()) {
      const to = mem(r8, v * isa.bytes);
      if (isa.masks) a.vmovups(to.k([k1, k2, k3][v]!), register);
      else a.vmaskmovps(to, line[v]!, register);
    }
    a.add(r8, r9);
  }
  a.ret();
}

/** AVX2 has its masks in memory, at r11. */
function masksOf(a: Assembler, isa: Isa, registers: readonly Vec[]): void {
  if (isa.masks) return;
  for (const [v, register] of registers.entries()) a.vmovdqu(register, mem(r11, v * isa.bytes));
}
