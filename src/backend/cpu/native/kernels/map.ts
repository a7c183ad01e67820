/**
 * Elementwise ops over arrays without gaps, of which an item is an element and a chunk a run of them, or over rows that are
 * apart, of which an item is one.
 */
import type { BinaryOp } from "../../../backend.ts";
import type { Assembler } from "../assembler.ts";
import { layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import { type Label, type Mem, mem, r8, r9, rax, rbp, rbx, rcx, rdi, rdx, rsi, type Vec } from "../operands.ts";
import { type FloatType, Simd, tail } from "../simd.ts";
import { expInTwo, formulas } from "./math.ts";
import { elementBytes } from "./pack.ts";

const words = ["x", "y", "out", "mul", "add", "isStreamed"] as const;
export const mapArguments = layoutArguments(...words);
/** Of rows that are apart also: elements of each, and bytes from one to the next. */
export const mapRowArguments = layoutArguments(...words, "cols", "xRow", "yRow");

export type MapOp = keyof typeof formulas | "affine" | BinaryOp;
const binary = {
  add: "vaddps",
  sub: "vsubps",
  mul: "vmulps",
  div: "vdivps",
} as const;
export type NativeBinaryOp = keyof typeof binary;
export const binaryOps = Object.keys(binary) as NativeBinaryOp[];
export const isNativeBinary = (op: BinaryOp): op is NativeBinaryOp => op in binary;

/** Bytes that are fetched ahead: the next lines come sooner than the processor would fetch them. */
const AHEAD = 128;

/** How a vector is stored: the last few elements, or past the caches. */
const LAST = 1;
const PAST = 2;

/** `op` of every element, in vectors; results go past the caches where `isStreamed` (f32 at aligned places) says so. */
export const emitMap =
  (op: MapOp, type: FloatType, hasGaps = false) =>
  (a: Assembler, isa: Isa): void => {
    const simd = new Simd(a, isa);
    const es = elementBytes(type);
    const step = isa.lanes * es;
    const arg = mapRowArguments.at(rdi);
    const [x, y, out, n, how] = [rax, r8, r9, rdx, rsi];
    const isBinary = op in binary;
    const v = (id: number): Vec => isa.v(id);
    const [mul, add] = [v(13), v(14)];
    // Registers from the top of AVX2's, below the mask.
    const temps = [2, 3, 4, 5, 6, 7, 8, 9].map(v) as unknown as Parameters<NonNullable<(typeof formulas)["exp"]>>[2];
    const formula = formulas[op as keyof typeof formulas];
    const compute = (value: Vec, second: Vec | Mem | undefined) => {
      if (isBinary) a[binary[op as NativeBinaryOp]](value, value, second!);
      else if (formula) formula(simd, value, temps, [v(10), v(11)]);
      else {
        a.vmulps(value, value, mul);
        a.vaddps(value, value, add);
      }
    };
    if (formula) simd.hoist(op, (trial) => formula(trial, v(0), temps, [v(10), v(11)]));
    const secondOf = (at: Mem): Vec | Mem | undefined => {
      if (!isBinary) return undefined;
      if (type === "f32") return at;
      simd.load(v(1), type, at);
      return v(1);
    };
    const [row, lastRow] = [rbx, rbp];
    const finish = a.label();
    if (hasGaps) {
      a.push(rbx);
      a.push(rbp);
      a.mov(row, rsi);
      a.mov(lastRow, rdx);
    } else {
      a.sub(rdx, rsi);
      for (const [register, field] of [
        [x, arg.x],
        [y, arg.y],
        [out, arg.out],
      ] as const) {
        a.mov(register, field);
        a.lea(register, mem(register, { index: rsi, scale: es }));
      }
    }
    if (op === "affine") {
      a.vbroadcastss(mul, arg.mul);
      a.vbroadcastss(add, arg.add);
    }
    const advance = (bytes: number) => {
      a.add(x, bytes);
      if (isBinary) a.add(y, bytes);
      a.add(out, bytes);
    };
    const [vectors, rest, end, streamed, computed, otherwise] = Array.from({ length: 6 }, () => a.label()) as Labels6;
    const isStreamable = type === "f32" && !hasGaps;
    const nextRow = a.here();
    if (hasGaps) {
      a.cmp(row, lastRow);
      a.jae(finish);
      a.mov(n, arg.cols);
      a.mov(out, n);
      a.imul(out, row);
      a.mov(rcx, arg.out);
      a.lea(out, mem(rcx, { index: out, scale: es }));
      for (const [register, base, stride] of [
        [x, arg.x, arg.xRow],
        [y, arg.y, arg.yRow],
      ] as const) {
        a.mov(register, row);
        a.imul(register, stride);
        a.add(register, base);
      }
    }
    if (formula) {
      // What the formula gives is stored in one of three ways: it is long, and once is enough.
      a.mov(how, 0);
      if (isStreamable) {
        a.mov(rcx, PAST);
        a.cmp(arg.isStreamed, 0);
        a.cmovne(how, rcx);
      }
    } else if (isStreamable) {
      a.cmp(arg.isStreamed, 0);
      a.jne(streamed);
    }
    a.bind(vectors);
    a.sub(n, isa.lanes);
    a.jb(rest);
    // The next vector is begun before this one is finished; behind the last that is this one again.
    const isInTwo = op === "exp" && isa.masks;
    const [next, power, nextPower] = [v(1), v(10), v(11)];
    const begin = (value: Vec, to: Vec) => expInTwo.begin(simd, value, to, temps[0]);
    if (isInTwo) {
      simd.load(v(0), type, mem(x));
      begin(v(0), power);
    }
    a.align(32);
    const loop = a.here();
    // A formula takes longer than its element; and what goes past the caches must not be fetched into them.
    if (!formula) for (const register of isBinary ? [x, y, out] : [x, out]) a.prefetcht0(mem(register, AHEAD));
    if (isInTwo) {
      a.lea(rcx, mem(x, step));
      a.cmp(n, isa.lanes);
      a.cmovb(rcx, x);
      simd.load(next, type, mem(rcx));
      begin(next, nextPower);
    } else simd.load(v(0), type, mem(x));
    a.bind(computed);
    if (isInTwo) expInTwo.end(simd, v(0), power, temps);
    else compute(v(0), secondOf(mem(y)));
    if (formula) {
      a.test(how, how);
      a.jne(otherwise);
    }
    simd.store(mem(out), type, v(0), temps[0], temps[1]);
    const stored = a.here();
    if (isInTwo) {
      a.vmovaps(v(0), next);
      a.vmovaps(power, nextPower);
    }
    advance(step);
    a.sub(n, isa.lanes);
    a.jae(loop);
    a.bind(rest);
    a.add(n, isa.lanes);
    a.je(end);
    a.mov(tail, n);
    a.mov(rcx, rax);
    simd.prepareTail();
    a.mov(rax, rcx);
    simd.loadTail(v(0), type, mem(x));
    if (isInTwo) begin(v(0), power);
    if (formula) {
      a.mov(how, LAST);
      a.mov(n, 0);
      a.jmp(computed);
    } else {
      if (isBinary) simd.loadTail(v(1), type, mem(y));
      compute(v(0), isBinary ? v(1) : undefined);
      simd.storeTail(mem(out), type, v(0), temps[0], temps[1]);
    }
    a.bind(end);
    if (hasGaps) {
      a.add(row, 1);
      a.jmp(nextRow);
      a.bind(finish);
    } else if (formula && isStreamable) a.sfence();
    a.vzeroupper();
    if (hasGaps) for (const register of [rbp, rbx]) a.pop(register);
    a.ret();
    if (formula) {
      const last = a.label();
      a.bind(otherwise);
      if (isStreamable) {
        a.cmp(how, LAST);
        a.je(last);
        a.vmovntps(mem(out), v(0));
        a.jmp(stored);
        a.bind(last);
      }
      simd.storeTail(mem(out), type, v(0), temps[0], temps[1]);
      a.jmp(stored);
      return;
    }
    if (!isStreamable) return;
    // Several lines of the cache at a time; what is left goes the usual way.
    a.bind(streamed);
    const left = a.label();
    const count = 4;
    a.sub(n, count * isa.lanes);
    a.jb(left);
    const stream = a.here();
    for (let u = 0; u < count; u++) {
      simd.load(v(0), type, mem(x, u * step));
      compute(v(0), secondOf(mem(y, u * step)));
      a.vmovntps(mem(out, u * step), v(0));
    }
    advance(count * step);
    a.sub(n, count * isa.lanes);
    a.jae(stream);
    a.sfence();
    a.bind(left);
    a.add(n, count * isa.lanes);
    a.jmp(vectors);
  };

type Labels6 = [Label, Label, Label, Label, Label, Label];
