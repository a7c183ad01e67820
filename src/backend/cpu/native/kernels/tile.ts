/**
 * The register tile of every product of floats: up to `rows` × `vectors` vectors of C, over a stretch of k. Each element
 * is one chain of fused multiply-adds in the order of k, going on from what C holds, so that it is the same whatever
 * rows and columns it is computed with.
 */
import type { Assembler } from "../assembler.ts";
import type { Isa } from "../isa.ts";
import {
  d,
  type Gpr,
  k1,
  k2,
  k3,
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
  rax,
  rbp,
  rbx,
  rcx,
  rdi,
  rdx,
  rsi,
  type Vec,
} from "../operands.ts";
import { type FloatType, Simd } from "../simd.ts";

/** Steps of k between two visits of C; A's rows and B's panel of so many lie in the caches. */
export const KC = 1024;
/** Bytes from row to row of a copied block of A: no power of two, so that rows do not share places of the cache. */
export const copiedRow = (k: number): number => Math.ceil(Math.min(k, KC) / 16) * 64 + 64;

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

/**
 * What a word of A and of B is: a float; or two bf16, the first one in the upper half, which the processor multiplies and
 * adds one after the other as fused multiply-adds do, except that it takes what is smaller than a normal float for zero; or
 * such a pair where that could be, each half a float of its own. Sums have the same bits in all three.
 */
export type TileWords = "floats" | "pairs" | "small pairs";

/** Steps of k at a time where all rows of the tile are used, which is nearly always. */
const UNROLL = 4;
/** How many bytes of a streamed panel are on their way. */
const AHEAD = 3072;

// Three times the distances of A's rows and of B's lines, the fifth row of A, and the rows that are left.
const [aThree, bThree, fifth, left] = [rbx, r13, r12, r14];
const saved = [aThree, bThree, fifth, left];

/**
 * A function of rax rows, for words as above, which are the steps of k. rdi: A's rows, rcx bytes apart; rsi: B's lines, rbp bytes apart, a panel's columns of each;
 * rdx: steps of k; r8: C; r9: bytes from row to row of C; r10: mode, GO_ON for sums that go on, PARTIAL for the last
 * columns, whose masks are in k1 to k3 or at r11, and the number of vectors, fewer for a panel's last columns. B's lines
 * are whole vectors also then. Results of 16 bits are rounded, and do not go on; AVX2 has none. Streamed panels come from memory.
 * It moves rdi and r8 behind the rows, uses rax and vectors, and keeps everything else.
 */
export const emitTiles =
  (words: TileWords, result: FloatType, isStreamed = false) =>
  (a: Assembler, isa: Isa): void => {
    const { rows, vectors } = tileShape(isa);
    const widths = Array.from({ length: vectors }, () => a.label());
    const end = a.label();
    for (const register of saved) a.push(register);
    a.mov(left, rax);
    a.lea(aThree, mem(rcx, { index: rcx, scale: 2 }));
    a.lea(bThree, mem(rbp, { index: rbp, scale: 2 }));
    for (let n = vectors; n > 1; n--) {
      a.cmp(d(r10), n << VECTORS_SHIFT);
      a.jae(widths[n - 1]!);
    }
    for (const [w, width] of widths.entries()) {
      a.bind(width);
      const tiles = Array.from({ length: rows }, () => a.label());
      for (let n = rows; n > 0; n--) {
        a.cmp(d(left), n);
        if (n === rows) a.jae(tiles[n - 1]!);
        else a.je(tiles[n - 1]!);
      }
      a.jmp(end);
      for (const [i, label] of tiles.entries()) {
        a.bind(label);
        emitTile(a, isa, words, result, isStreamed, i + 1, w + 1);
        if (i + 1 < rows) a.jmp(end);
        else {
          a.sub(left, rows);
          a.jne(width);
        }
      }
      if (w + 1 < vectors) a.jmp(end);
    }
    a.bind(end);
    for (const register of saved.toReversed()) a.pop(register);
    a.ret();
  };

/** The place `i` (0 to 3) strides behind a base. */
export function place(base: Gpr, i: number, stride: Gpr, three: Gpr, disp: number): Mem {
  if (i === 0) return mem(base, disp);
  return i === 3 ? mem(base, { index: three, disp }) : mem(base, { index: stride, scale: i as 1 | 2, disp });
}

function emitTile(
  a: Assembler,
  isa: Isa,
  words: TileWords,
  result: FloatType,
  isStreamed: boolean,
  rows: number,
  vectors: number,
): void {
  const simd = new Simd(a, isa);
  const { rows: mostRows, lineBytes } = tileShape(isa);
  const isFull = rows === mostRows;
  const sum = (row: number, v: number) => isa.v(row * vectors + v);
  const sums = rows * vectors;
  const line = Array.from({ length: vectors }, (_, v) => isa.v(sums + v));
  /** Bytes of C that are a vector of sums. */
  const step = result === "f32" ? isa.bytes : isa.bytes / 2;
  const [t, u] = [isa.v(isa.registers - 2), isa.v(isa.registers - 1)];
  const spare = Math.min(rows, isa.registers - sums - vectors - (isa.masks && words !== "small pairs" ? 0 : 1));
  const upper = isa.v(isa.registers - 1);
  const places = Array.from({ length: rows }, (_, row) => Array.from({ length: vectors }, (_, v) => sum(row, v)));
  const [fresh, begin, partialLoad, partialStore, stored] = Array.from({ length: 5 }, () => a.label()) as [
    ReturnType<Assembler["label"]>,
    ReturnType<Assembler["label"]>,
    ReturnType<Assembler["label"]>,
    ReturnType<Assembler["label"]>,
    ReturnType<Assembler["label"]>,
  ];
  if (rows > 4) a.lea(fifth, mem(rdi, { index: rcx, scale: 4 }));
  if (result === "f32") {
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
  }
  a.bind(fresh);
  for (const row of places) for (const register of row) simd.zero(register);
  a.bind(begin);
  if (isFull) prefetchNext(a, isa, rows, vectors * step);

  const wordOfA = (row: number, u: number) => place(row < 4 ? rdi : fifth, row % 4, rcx, aThree, 4 * u);
  const vectorOfB = (v: number, u: number) => place(rsi, u, rbp, bThree, v * isa.bytes);
  const stepOfWords = (u: number) => {
    if (isStreamed) for (let at = 0; at < lineBytes; at += 64) a.prefetcht0(place(rsi, u, rbp, bThree, at + AHEAD));
    for (const [v, register] of line.entries()) a.vmovups(register, vectorOfB(v, u));
    for (const [i, row] of places.entries()) {
      const x = isa.v(sums + vectors + (i % spare));
      a.vbroadcastss(x, wordOfA(i, u));
      for (const [v, register] of row.entries()) {
        if (words === "pairs") a.vdpbf16ps(register, x, line[v]!);
        else a.vfmadd231ps(register, x, line[v]!);
      }
    }
  };
  const stepOfHalves = (u: number) => {
    for (const isUpper of [true, false]) {
      const half = (dst: Vec, from: Mem) => {
        if (isUpper) a.vpandd(dst, upper, from);
        else a.vpslld(dst, from, 16);
      };
      for (const [v, register] of line.entries()) half(register, vectorOfB(v, u));
      for (const [i, row] of places.entries()) {
        const x = isa.v(sums + vectors + (i % spare));
        half(x, wordOfA(i, u).each);
        for (const [v, register] of row.entries()) a.vfmadd231ps(register, x, line[v]!);
      }
    }
  };
  const multiply = words === "small pairs" ? stepOfHalves : stepOfWords;
  if (words === "small pairs") a.vpbroadcastd(upper, a.i32(-65536));
  const advance = (count: number) => {
    if (count === 1) a.add(rsi, rbp);
    else a.lea(rsi, mem(rsi, { index: rbp, scale: count as 4 }));
    a.add(rdi, 4 * count);
    if (rows > 4) a.add(fifth, 4 * count);
  };
  const [ones, done] = [a.label(), a.label()];
  a.push(rdi);
  a.push(rsi);
  a.mov(rax, rdx);
  if (isFull) {
    a.sub(rax, UNROLL);
    a.jb(ones);
    a.align(32);
    const loop = a.here();
    for (let u = 0; u < UNROLL; u++) multiply(u);
    advance(UNROLL);
    a.sub(rax, UNROLL);
    a.jae(loop);
    a.bind(ones);
    a.add(rax, UNROLL);
    a.je(done);
  }
  const single = a.here();
  multiply(0);
  advance(1);
  a.sub(rax, 1);
  a.jne(single);
  a.bind(done);
  a.pop(rsi);
  a.pop(rdi);

  a.test(d(r10), PARTIAL);
  a.jne(partialStore);
  for (const row of places) {
    for (const [v, register] of row.entries()) simd.store(mem(r8, v * step), result, register, t, u);
    a.add(r8, r9);
  }
  a.jmp(stored);
  a.bind(partialStore);
  masksOf(a, isa, line);
  // Rounding to bf16 uses the second mask.
  const kept = result === "bf16" ? k4 : k2;
  if (result === "bf16") a.kmovw(kept, k2);
  for (const row of places) {
    for (const [v, register] of row.entries()) {
      const to = mem(r8, v * step);
      if (isa.masks) simd.storeTail(to, result, register, t, u, [k1, kept, k3][v]!);
      else a.vmaskmovps(to, line[v]!, register);
    }
    a.add(r8, r9);
  }
  if (result === "bf16") a.kmovw(k2, kept);
  a.bind(stored);
  // Eight rows, or six.
  if (isFull) a.lea(rdi, isa.masks ? mem(rdi, { index: rcx, scale: 8 }) : mem(rdi, { index: aThree, scale: 2 }));
}

/** C of the rows that come next, which is seldom in the first caches: a tile begins with what C holds. */
export function prefetchNext(a: Assembler, isa: Isa, rows: number, bytes: number): void {
  a.lea(rax, isa.masks ? mem(r8, { index: r9, scale: 8 }) : mem(r8, { index: r9, scale: 4 }));
  if (!isa.masks) a.lea(rax, mem(rax, { index: r9, scale: 2 }));
  for (let row = 0; row < rows; row++) {
    for (let at = 0; at < bytes; at += 64) a.prefetcht0(mem(rax, at));
    a.add(rax, r9);
  }
}

/** AVX2 has its masks in memory, at r11. */
function masksOf(a: Assembler, isa: Isa, registers: readonly Vec[]): void {
  if (isa.masks) return;
  for (const [v, register] of registers.entries()) a.vmovdqu(register, mem(r11, v * isa.bytes));
}
