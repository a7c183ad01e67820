/**
 * The register tile of convolutions that read the image where it is (AVX-512): three vectors of neighbouring outputs, whose
 * inputs lie in one row of the image or in two. At most one vector has some in each; it is loaded twice.
 */
import type { Assembler } from "../assembler.ts";
import type { Isa } from "../isa.ts";
import { d, k4, mem, r8, r9, r10, r11, r12, r13, r14, r15, rax, rbp, rbx, rcx, rdi, rdx, rsi } from "../operands.ts";
import { Simd } from "../simd.ts";
import { place, tileShape } from "./tile.ts";

const UNROLL = 4;
const [three, fifth, left] = [rbx, r12, r14];
// Where the inputs of the three vectors are, in the order of the registers, and those of the divided one's first part.
const [first, second, third, divided] = [rsi, r11, r13, r15];
const saved = [rbx, rbp, r12, r13, r14, r15];

/** The vectors in the order of the registers, by which one is divided: that is the last. */
const orders = [
  [1, 2, 0],
  [0, 2, 1],
  [0, 1, 2],
] as const;

/**
 * A function of rax rows. rdi: rows of weights, rcx bytes apart; rsi: where the first output's inputs are; rbp: how many
 * bytes further those of each of rdx taps are; r8: results; r9: bytes from row to row of them; r10: how many of the outputs
 * are in the first row, and r11: how many bytes further the others read. It keeps what functions keep. Results go past the
 * caches where they are streamed, which is for aligned places.
 */
export const emitConvTiles =
  (isStreamed: boolean) =>
  (a: Assembler, isa: Isa): void => {
    const { rows } = tileShape(isa);
    for (const register of saved) a.push(register);
    a.mov(left, rax);
    a.lea(three, mem(rcx, { index: rcx, scale: 2 }));
    a.lea(rdx, mem(rbp, { index: rdx, scale: 4 }));
    a.add(r11, rsi);
    // Which vector is divided, and how.
    a.lea(rax, mem(r10, -1));
    a.shr(rax, Math.log2(isa.lanes));
    a.mov(r13, rax);
    a.shl(r13, Math.log2(isa.lanes));
    a.sub(r10, r13);
    a.mov(r13, -1);
    a.bzhi(r13, r13, r10);
    a.kmovw(k4, d(r13));
    a.mov(r10, rax);
    const [ready, end] = [a.label(), a.label()];
    const cases = orders.map(() => a.label());
    a.cmp(r10, 1);
    a.jb(cases[0]!);
    a.je(cases[1]!);
    for (const t of [2, 1, 0] as const) {
      a.bind(cases[t]!);
      const at = (v: number) => mem(v < t ? rsi : r11, v * isa.bytes);
      a.lea(divided, mem(rsi, t * isa.bytes));
      a.lea(third, at(t));
      // The later one first: it may take the place of what both are counted from.
      const [one, two] = orders[t];
      if (t === 0) {
        a.lea(first, at(one));
        a.lea(second, at(two));
      } else {
        a.lea(second, at(two));
        if (one > 0) a.lea(first, at(one));
      }
      if (t > 0) a.jmp(ready);
    }
    a.bind(ready);
    const again = a.here();
    const tiles = Array.from({ length: rows }, () => a.label());
    for (let n = rows; n > 0; n--) {
      a.cmp(d(left), n);
      if (n === rows) a.jae(tiles[n - 1]!);
      else a.je(tiles[n - 1]!);
    }
    a.jmp(end);
    for (const [i, label] of tiles.entries()) {
      a.bind(label);
      emitConvTile(a, isa, i + 1, isStreamed);
      if (i + 1 < rows) a.jmp(end);
      else {
        a.lea(rdi, mem(rdi, { index: rcx, scale: 8 }));
        a.sub(left, rows);
        a.jne(again);
      }
    }
    a.bind(end);
    for (const register of saved.toReversed()) a.pop(register);
    a.ret();
  };

function emitConvTile(a: Assembler, isa: Isa, rows: number, isStreamed: boolean): void {
  const simd = new Simd(a, isa);
  const { vectors } = tileShape(isa);
  const sum = (row: number, v: number) => isa.v(row * vectors + v);
  const line = [0, 1, 2].map((v) => isa.v(rows * vectors + v)) as [ReturnType<Isa["v"]>, ...ReturnType<Isa["v"]>[]];
  const spare = Math.min(rows, isa.registers - (rows + 1) * vectors);
  if (rows > 4) a.lea(fifth, mem(rdi, { index: rcx, scale: 4 }));
  for (let row = 0; row < rows; row++) for (let v = 0; v < vectors; v++) simd.zero(sum(row, v));
  const step = (u: number) => {
    a.mov(d(rax), mem(rbp, 4 * u));
    for (const [v, base] of [first, second, third].entries()) a.vmovups(line[v]!, mem(base, { index: rax }));
    a.vmovups(line[2]!.k(k4), mem(divided, { index: rax }));
    for (let row = 0; row < rows; row++) {
      const x = isa.v((rows + 1) * vectors + (row % spare));
      a.vbroadcastss(x, place(row < 4 ? rdi : fifth, row % 4, rcx, three, 4 * u));
      for (let v = 0; v < vectors; v++) a.vfmadd231ps(sum(row, v), x, line[v]!);
    }
  };
  const advance = (count: number) => {
    for (const register of rows > 4 ? [rbp, rdi, fifth] : [rbp, rdi]) a.add(register, 4 * count);
  };
  const [ones, done] = [a.label(), a.label()];
  a.push(rdi);
  a.push(rbp);
  if (rows === tileShape(isa).rows) {
    a.lea(rax, mem(rbp, 4 * UNROLL));
    a.cmp(rax, rdx);
    a.ja(ones);
    a.align(32);
    const loop = a.here();
    for (let u = 0; u < UNROLL; u++) step(u);
    advance(UNROLL);
    a.lea(rax, mem(rbp, 4 * UNROLL));
    a.cmp(rax, rdx);
    a.jbe(loop);
  }
  a.bind(ones);
  a.cmp(rbp, rdx);
  a.jae(done);
  step(0);
  advance(1);
  a.jmp(ones);
  a.bind(done);
  a.pop(rbp);
  a.pop(rdi);
  const stored = a.label();
  const stores = orders.map(() => a.label());
  a.cmp(r10, 1);
  a.jb(stores[0]!);
  a.je(stores[1]!);
  for (const t of [2, 1, 0] as const) {
    a.bind(stores[t]!);
    for (let row = 0; row < rows; row++) {
      for (const [v, where] of orders[t].entries()) {
        const to = mem(r8, where * isa.bytes);
        if (isStreamed) a.vmovntps(to, sum(row, v));
        else a.vmovups(to, sum(row, v));
      }
      a.add(r8, r9);
    }
    if (t > 0) a.jmp(stored);
  }
  a.bind(stored);
}
