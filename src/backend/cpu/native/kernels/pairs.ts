/**
 * bf16 in pairs, for the processor's own products of them: a word holds two steps of k, the first one in its upper half,
 * which is multiplied first. Such products take what is smaller than a normal float for zero, so it is noted where that
 * could make a difference: every product of two numbers of at least 2^-56 is a multiple of 2^-126, the smallest normal
 * float, and so are all sums of them.
 */
import type { Assembler } from "../assembler.ts";
import type { Isa } from "../isa.ts";
import {
  d,
  eax,
  k1,
  k2,
  k3,
  type Label,
  low,
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
  type Vec,
} from "../operands.ts";
import { emitPackPanel } from "./pack.ts";
import { tileShape } from "./tile.ts";

/** 2^-56 in bf16. */
const LEAST = 0x2380;
const LESS = 1;
/** Numbers in a word, and their bytes. */
export const PAIR = 2;
const BYTES = 2;

/** Stores pairs and notes small ones; zeros are not small. */
class Pairs {
  readonly #a: Assembler;
  readonly #isa: Isa;

  constructor(a: Assembler, isa: Isa) {
    this.#a = a;
    this.#isa = isa;
  }

  get #registers(): readonly [least: Vec, ones: Vec, magnitudes: Vec, t: Vec] {
    return [this.#isa.v(28), this.#isa.v(29), this.#isa.v(30), this.#isa.v(31)];
  }

  begin(): void {
    const [least, ones, magnitudes] = this.#registers;
    for (const register of [least, ones]) this.#a.vpbroadcastd(register, this.#a.i32(-1));
    this.#a.vpbroadcastd(magnitudes, this.#a.i32(0x7fff7fff));
  }

  put(to: Mem, x: Vec): void {
    const [least, ones, magnitudes, t] = this.#registers;
    this.#a.vpandd(t, x, magnitudes);
    // Zero becomes the largest one.
    this.#a.vpaddw(t, t, ones);
    this.#a.vpminuw(least, least, t);
    this.#a.vmovups(to, x);
  }

  /** rax: whether there were small ones. */
  end(): void {
    const [least, , , t] = this.#registers;
    this.#a.vpbroadcastd(t, this.#a.i32((LEAST - 1) * 0x10001));
    this.#a.vpcmpuw(k1, least, t, LESS);
    this.#a.kmovd(eax, k1);
  }
}

/** As emitPackPanel, with lines of pairs: half as many as steps of k, an odd last one with zeros. rax: whether some are small. */
export function emitPackPairs(a: Assembler, isa: Isa): Label {
  const pairs = new Pairs(a, isa);
  const { vectors, lineBytes } = tileShape(isa);
  const saved = [rbx, rbp, r12, r13, r14, r15];
  const [scattered, noted] = [a.label(), a.label()];
  // Words of B's columns along k are packed as if they were floats.
  const packWords = emitPackPanel(a, isa, "f32");
  const single = emitSingle(a, isa);
  const line = Array.from({ length: vectors }, (_, v) => v);
  const masks = [k1, k2, k3];
  const entry = a.here();
  for (const register of saved) a.push(register);
  a.cmp(rdx, BYTES);
  a.jne(scattered);
  a.mov(rax, -1);
  a.bzhi(rax, rax, r9);
  for (const [v, mask] of masks.entries()) {
    if (v > 0) a.shr(rax, 16);
    a.kmovw(mask, eax);
  }
  pairs.begin();
  const lastLine = a.label();
  const lines = a.here();
  a.sub(rcx, PAIR);
  a.jl(lastLine);
  for (const v of line) {
    const [first, second] = [isa.v(2 * v), isa.v(2 * v + 1)];
    a.vpmovzxwd(first.kz(masks[v]!), mem(rdi, v * isa.lanes * BYTES));
    a.vpmovzxwd(second.kz(masks[v]!), mem(rdi, { index: rsi, disp: v * isa.lanes * BYTES }));
    a.vpslld(first, first, 16);
    a.vpord(first, first, second);
    pairs.put(mem(r8, v * isa.bytes), first);
  }
  a.lea(rdi, mem(rdi, { index: rsi, scale: 2 }));
  a.add(r8, lineBytes);
  a.jmp(lines);
  a.bind(lastLine);
  a.add(rcx, PAIR);
  a.je(noted);
  for (const v of line) {
    a.vpmovzxwd(isa.v(v).kz(masks[v]!), mem(rdi, v * isa.lanes * BYTES));
    a.vpslld(isa.v(v), isa.v(v), 16);
    pairs.put(mem(r8, v * isa.bytes), isa.v(v));
  }
  a.jmp(noted);

  a.bind(scattered);
  const [panel, count, alongK, across, columns, from] = [rbx, rbp, r12, r13, r14, r15];
  for (const [to, x] of [
    [panel, r8],
    [count, rcx],
    [alongK, rsi],
    [across, rdx],
    [columns, r9],
    [from, rdi],
  ] as const)
    a.mov(to, x);
  // Lines that are not written as a whole are zeros first: the last one, or all.
  const [zeros, singles, turn] = [a.label(), a.label(), a.label()];
  a.lea(r10, mem(count, 1));
  a.shr(r10, 1);
  a.imul(r10, r10, lineBytes);
  a.add(r10, panel);
  a.lea(r11, mem(r10, -lineBytes));
  a.cmp(alongK, BYTES);
  a.cmovne(r11, panel);
  for (const v of line) a.vpxord(isa.v(v), isa.v(v), isa.v(v));
  a.bind(zeros);
  for (const v of line) a.vmovups(mem(r11, v * isa.bytes), isa.v(v));
  a.add(r11, lineBytes);
  a.cmp(r11, r10);
  a.jb(zeros);
  a.cmp(alongK, BYTES);
  a.jne(singles);
  a.mov(rsi, 2 * BYTES);
  a.shr(rcx, 1);
  a.call(packWords);
  a.test(count, 1);
  a.je(turn);
  // The last step alone.
  a.lea(rdi, mem(from, { index: count, scale: BYTES, disp: -BYTES }));
  a.mov(r8, count);
  a.shr(r8, 1);
  a.imul(r8, r8, lineBytes);
  a.add(r8, panel);
  a.mov(rcx, 1);
  a.bind(singles);
  a.call(single);
  a.bind(turn);
  pairs.begin();
  a.add(count, 1);
  a.shr(count, 1);
  const turning = a.here();
  for (const v of line) {
    a.vprord(isa.v(v), mem(panel, v * isa.bytes), 16);
    pairs.put(mem(panel, v * isa.bytes), isa.v(v));
  }
  a.add(panel, lineBytes);
  a.sub(count, 1);
  a.jne(turning);
  a.bind(noted);
  pairs.end();
  for (const register of saved.toReversed()) a.pop(register);
  a.ret();
  return entry;
}

/**
 * rcx steps of r14 columns from rdi, r12 bytes along k and r13 from column to column, to a panel at r8, whose words have
 * the first one in their lower half. Uses rax, rcx, rdx, rsi, rdi, r8 to r11.
 */
function emitSingle(a: Assembler, isa: Isa): Label {
  const { lineBytes } = tileShape(isa);
  const entry = a.here();
  a.mov(rdx, r14);
  const column = a.here();
  a.mov(rsi, rdi);
  a.mov(r10, r8);
  a.mov(r9, rcx);
  const step = a.here();
  const odd = a.label();
  a.movzx(eax, mem(rsi).sized(16));
  a.add(rsi, r12);
  a.sub(r9, 1);
  a.je(odd);
  a.movzx(d(r11), mem(rsi).sized(16));
  a.add(rsi, r12);
  a.shl(d(r11), 16);
  a.or(eax, d(r11));
  a.sub(r9, 1);
  a.bind(odd);
  a.mov(mem(r10), eax);
  a.add(r10, lineBytes);
  a.test(r9, r9);
  a.jne(step);
  a.add(rdi, r13);
  a.add(r8, 4);
  a.sub(rdx, 1);
  a.jne(column);
  a.ret();
  return entry;
}

/** As emitCopyRows, with rows of pairs, an odd last one with a zero. rax: whether some are small. */
export function emitCopyPairs(a: Assembler, isa: Isa, rowBytes: Mem): Label {
  const pairs = new Pairs(a, isa);
  const x = isa.v(0);
  const entry = a.here();
  a.mov(rax, rcx);
  a.and(rax, PAIR * isa.lanes - 1);
  a.mov(r10, -1);
  a.bzhi(r10, r10, rax);
  a.kmovd(k1, d(r10));
  pairs.begin();
  const rows = a.here();
  const [gathered, vectorsEnd, rowEnd] = [a.label(), a.label(), a.label()];
  a.mov(r10, rdi);
  a.cmp(rdx, BYTES);
  a.je(gathered);
  // Elements far apart are brought together where the row will be.
  a.mov(rbp, 0);
  const elements = a.here();
  a.movzx(eax, mem(r10).sized(16));
  a.mov(mem(r8, { index: rbp, scale: BYTES }), low(rax, 16));
  a.add(r10, rdx);
  a.add(rbp, 1);
  a.cmp(rbp, rcx);
  a.jb(elements);
  a.mov(r10, r8);
  a.bind(gathered);
  a.mov(r11, r8);
  a.mov(rbp, rcx);
  a.sub(rbp, PAIR * isa.lanes);
  a.jb(vectorsEnd);
  const vectors = a.here();
  a.vprord(x, mem(r10), 16);
  pairs.put(mem(r11), x);
  a.add(r10, isa.bytes);
  a.add(r11, isa.bytes);
  a.sub(rbp, PAIR * isa.lanes);
  a.jae(vectors);
  a.bind(vectorsEnd);
  a.add(rbp, PAIR * isa.lanes);
  a.je(rowEnd);
  a.vmovdqu16(x.kz(k1), mem(r10));
  a.vprord(x, x, 16);
  pairs.put(mem(r11), x);
  a.bind(rowEnd);
  a.add(rdi, rsi);
  a.add(r8, rowBytes);
  a.sub(r9, 1);
  a.jne(rows);
  pairs.end();
  a.ret();
  return entry;
}
