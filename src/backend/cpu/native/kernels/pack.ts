/**
 * Panels of B: `columns` columns side by side, one line for each step of k, as floats of 32 bits; columns that do not
 * exist are zeros. Lines that lie so in memory are copied; columns that lie along k are turned in blocks of four steps.
 */
import type { Assembler } from "../assembler.ts";
import type { Isa } from "../isa.ts";
import {
  eax,
  k1,
  k2,
  k3,
  k4,
  k5,
  k6,
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
  rbx,
  rcx,
  rdi,
  rdx,
  rsi,
  type Vec,
} from "../operands.ts";
import { type FloatType, Simd } from "../simd.ts";
import { tileShape } from "./tile.ts";

export const elementBytes = (type: FloatType): 2 | 4 => (type === "f32" ? 4 : 2);

/**
 * A function that packs a panel. rdi: the first element; rsi and rdx: bytes along k and from column to column; rcx: steps
 * of k; r8: the panel; r9: columns that exist. It keeps rbx, rbp and r12 to r15.
 */
export function emitPackPanel(a: Assembler, isa: Isa, type: FloatType): Label {
  const simd = new Simd(a, isa);
  const { columns, vectors, lineBytes } = tileShape(isa);
  const es = elementBytes(type);
  const saved = [rbx, rbp, r12, r13, r14, r15];
  const [isPartial, turned, general, end] = [a.label(), a.label(), a.label(), a.label()];
  const scalars = emitScalars(simd, type);
  const turn = emitTurn(simd, type, scalars);

  const entry = a.here();
  for (const register of saved) a.push(register);
  a.test(rcx, rcx);
  a.je(end);
  a.cmp(r9, columns);
  a.jne(isPartial);
  a.cmp(rdx, es);
  a.jne(turned);
  const lines = a.here();
  for (let v = 0; v < vectors; v++) {
    simd.load(isa.v(v), type, mem(rdi, v * isa.lanes * es));
    a.vmovups(mem(r8, v * isa.bytes), isa.v(v));
  }
  a.add(rdi, rsi);
  a.add(r8, lineBytes);
  a.sub(rcx, 1);
  a.jne(lines);
  a.jmp(end);

  a.bind(isPartial);
  if (isa.masks) {
    a.cmp(rdx, es);
    const other = a.label();
    a.jne(other);
    a.mov(rax, -1);
    a.bzhi(rax, rax, r9);
    for (const [v, mask] of [k1, k2, k3].entries()) {
      if (v > 0) a.shr(rax, 16);
      a.kmovw(mask, eax);
    }
    const masked = a.here();
    for (const [v, mask] of [k1, k2, k3].entries()) {
      const from = mem(rdi, v * isa.lanes * es);
      const to = isa.v(v);
      if (type === "f32") a.vmovups(to.kz(mask), from);
      else if (type === "f16") {
        a.vmovdqu16(to.y.kz(mask), from);
        a.vcvtph2ps(to, to.y);
      } else {
        a.vpmovzxwd(to.kz(mask), from);
        a.vpslld(to, to, 16);
      }
      a.vmovups(mem(r8, v * isa.bytes), to);
    }
    a.add(rdi, rsi);
    a.add(r8, lineBytes);
    a.sub(rcx, 1);
    a.jne(masked);
    a.jmp(end);
    a.bind(other);
  }
  // Columns that do not exist: all is zero first.
  simd.zero(isa.v(0));
  a.mov(rax, rcx);
  a.mov(r10, r8);
  const zeros = a.here();
  for (let v = 0; v < vectors; v++) a.vmovups(mem(r10, v * isa.bytes), isa.v(0));
  a.add(r10, lineBytes);
  a.sub(rax, 1);
  a.jne(zeros);

  a.bind(turned);
  a.cmp(rsi, es);
  a.jne(general);
  const group = a.here();
  a.cmp(r9, isa.lanes);
  a.jb(general);
  a.call(turn);
  a.mov(rax, rdx);
  a.imul(rax, rax, isa.lanes);
  a.add(rdi, rax);
  a.add(r8, isa.bytes);
  a.sub(r9, isa.lanes);
  a.jne(group);
  a.jmp(end);
  a.bind(general);
  a.call(scalars);
  a.bind(end);
  for (const register of saved.toReversed()) a.pop(register);
  a.ret();
  return entry;
}

/**
 * A function that packs as many columns as a vector has elements, into their part of a panel: as above, with r9 columns
 * that exist. It keeps all but rax, r10 and r11.
 */
export function emitPackGroup(a: Assembler, isa: Isa, type: FloatType): Label {
  const simd = new Simd(a, isa);
  const { lineBytes } = tileShape(isa);
  const saved = [rbx, rbp, r12, r13, r14, r15];
  const [single, end] = [a.label(), a.label()];
  const scalars = emitScalars(simd, type);
  const turn = emitTurn(simd, type, scalars);
  const entry = a.here();
  for (const register of saved) a.push(register);
  a.cmp(r9, isa.lanes);
  a.jb(single);
  a.cmp(rsi, elementBytes(type));
  a.jne(single);
  a.call(turn);
  a.jmp(end);
  a.bind(single);
  simd.zero(isa.v(0));
  a.mov(rax, rcx);
  a.mov(r10, r8);
  const zeros = a.here();
  a.vmovups(mem(r10), isa.v(0));
  a.add(r10, lineBytes);
  a.sub(rax, 1);
  a.jne(zeros);
  a.call(scalars);
  a.bind(end);
  for (const register of saved.toReversed()) a.pop(register);
  a.ret();
  return entry;
}

/** r9 columns one element at a time. Keeps all but rax, r10, r11, rbx, rbp and the first vector. */
function emitScalars(simd: Simd, type: FloatType): Label {
  const { a, isa } = simd;
  const { lineBytes } = tileShape(isa);
  const end = a.label();
  const entry = a.here();
  a.mov(r10, rdi);
  a.mov(r11, r8);
  a.mov(rbx, r9);
  const column = a.here();
  a.sub(rbx, 1);
  a.jb(end);
  a.push(r10);
  a.push(r11);
  a.mov(rbp, rcx);
  const step = a.here();
  simd.loadOne(isa.v(0), type, mem(r10));
  a.vmovss(mem(r11), isa.v(0).x);
  a.add(r10, rsi);
  a.add(r11, lineBytes);
  a.sub(rbp, 1);
  a.jne(step);
  a.pop(r11);
  a.pop(r10);
  a.add(r10, rdx);
  a.add(r11, 4);
  a.jmp(column);
  a.bind(end);
  a.ret();
  return entry;
}

/**
 * As many columns as a vector has elements, each along k: 16 bytes of every fourth column make a vector, and four such
 * vectors, interleaved twice, give the lines. Keeps rdi, rsi, rdx, rcx, r8, r9.
 */
function emitTurn(simd: Simd, type: FloatType, scalars: Label): Label {
  const { a, isa } = simd;
  const { lineBytes } = tileShape(isa);
  const quarters = isa.lanes / 4;
  const bases = [r10, r11, r12, r13].slice(0, quarters);
  const three = r14;
  const steps = 16 / elementBytes(type);
  const [rest, end] = [a.label(), a.label()];
  const entry = a.here();
  if (isa.masks) {
    for (const [q, mask] of [k4, k5, k6].entries()) {
      a.mov(eax, 0xf0 << (4 * q));
      a.kmovw(mask, eax);
    }
  }
  a.lea(three, mem(rdx, { index: rdx, scale: 2 }));
  for (const [q, base] of bases.entries()) {
    if (q === 0) a.mov(base, rdi);
    else a.lea(base, mem(bases[q - 1]!, { index: rdx, scale: 4 }));
  }
  a.push(rcx);
  a.push(r8);
  a.sub(rcx, steps);
  a.jb(rest);
  const loop = a.here();
  const v = (id: number): Vec => isa.v(id);
  for (let t = 0; t < 4; t++) {
    const place = (base: (typeof bases)[number]) =>
      t === 0
        ? mem(base)
        : t === 1
          ? mem(base, { index: rdx })
          : t === 2
            ? mem(base, { index: rdx, scale: 2 })
            : mem(base, { index: three });
    a.vmovups(v(t).x, place(bases[0]!));
    if (isa.masks)
      for (const [q, mask] of [k4, k5, k6].entries()) a.vbroadcastf32x4(v(t).k(mask), place(bases[q + 1]!));
    else a.vinsertf128(v(t), v(t), place(bases[1]!), 1);
  }
  a.vunpcklps(v(4), v(0), v(1));
  a.vunpckhps(v(5), v(0), v(1));
  a.vunpcklps(v(6), v(2), v(3));
  a.vunpckhps(v(7), v(2), v(3));
  a.vunpcklpd(v(0), v(4), v(6));
  a.vunpckhpd(v(1), v(4), v(6));
  a.vunpcklpd(v(2), v(5), v(7));
  a.vunpckhpd(v(3), v(5), v(7));
  for (let t = 0; t < 4; t++) {
    if (type === "f32") a.vmovups(mem(r8, t * lineBytes), v(t));
    else emitPairs(simd, type, v(t), t);
  }
  for (const base of bases) a.add(base, 16);
  a.add(r8, steps * lineBytes);
  a.sub(rcx, steps);
  a.jae(loop);
  a.bind(rest);
  a.add(rcx, steps);
  a.je(end);
  // The last steps, one element at a time.
  for (const register of [rdi, r9]) a.push(register);
  a.mov(rdi, r10);
  a.mov(r9, isa.lanes);
  a.call(scalars);
  for (const register of [r9, rdi]) a.pop(register);
  a.bind(end);
  a.pop(r8);
  a.pop(rcx);
  a.ret();
  return entry;
}

/** Two neighbours of 16 bits in each element become the lines 2t and 2t + 1. */
function emitPairs(simd: Simd, type: FloatType, pair: Vec, t: number): void {
  const { a, isa } = simd;
  const { lineBytes } = tileShape(isa);
  const [even, odd] = [isa.v(4), isa.v(5)];
  if (type === "bf16") {
    a.vpslld(even, pair, 16);
    simd.and(odd, pair, simd.constantInt(-65536));
  } else if (isa.masks) {
    a.vpmovdw(even.y, pair);
    a.vpsrld(odd, pair, 16);
    a.vpmovdw(odd.y, odd);
    a.vcvtph2ps(even, even.y);
    a.vcvtph2ps(odd, odd.y);
  } else {
    simd.and(even, pair, simd.constantInt(0xffff));
    a.vpsrld(odd, pair, 16);
    a.vpackusdw(even, even, odd);
    a.vpermq(even, even, 0xd8);
    a.vextracti128(odd.x, even, 1);
    a.vcvtph2ps(even, even.x);
    a.vcvtph2ps(odd, odd.x);
  }
  a.vmovups(mem(r8, 2 * t * lineBytes), even);
  a.vmovups(mem(r8, (2 * t + 1) * lineBytes), odd);
}
