/** What a row of scores becomes: exponentials of the keys that it sees, 0 for the others, and one over their sum. */
import type { Assembler } from "../assembler.ts";
import { type Mem, mem, r9, r14, rax, rbp, rcx, rdi, rsi, type Vec } from "../operands.ts";
import { type FloatType, type Simd, tail } from "../simd.ts";
import { emitLargest } from "./largest.ts";
import { expNegative, formulas, type Temps } from "./math.ts";
import { elementBytes } from "./pack.ts";

/** Vectors of a row that are summed in f32. */
const RUN = 32;

/** What changes scores, besides their scale. */
export interface ScoreKind {
  readonly type: FloatType;
  /** tanh(s / cap) · cap. */
  readonly hasCap: boolean;
  readonly hasMask: boolean;
  /** A logit of each head that has its share, and no value. */
  readonly hasSinks: boolean;
}

export interface ScoreRow {
  /** The keys that the row sees, and those that any row of the block does. */
  readonly low: Mem;
  readonly limit: Mem;
  readonly least: Mem;
  readonly most: Mem;
  readonly scale: Mem;
  readonly cap: Mem;
  readonly inverseCap: Mem;
  /** Where the row's mask begins, and its sink is. */
  readonly maskAt: Mem;
  readonly sinkAt: Mem;
  inverse(): Mem;
}

const temporaries = (simd: Simd): Temps => [4, 5, 6, 7, 8, 9, 10, 11].map((id) => simd.v(id)) as unknown as Temps;

/** Constants that the rows share, in registers from here on. */
export function holdConstants(simd: Simd): void {
  simd.hoist("e to negatives", (trial) => expNegative(trial, trial.v(1), temporaries(trial)));
}

/** The scores at rdi become e^(score − largest). Uses rax, rcx, rsi, rbp, r9 to r11, r14 and the vectors below 16. */
export function emitExponentials(simd: Simd, { type, hasCap, hasMask, hasSinks }: ScoreKind, row: ScoreRow): void {
  const { a, isa } = simd;
  const v = (id: number): Vec => isa.v(id);
  const [most, value, sums, more, scale, short] = [v(0), v(1), v(2), v(3), v(12), v(13)];
  const temps = temporaries(simd);
  const isChanged = hasCap || hasMask;
  a.vbroadcastss(scale, row.scale);
  a.mov(rsi, row.low);
  a.lea(rsi, mem(rdi, { index: rsi, scale: 4 }));
  a.mov(r14, row.limit);
  a.sub(r14, row.low);
  a.mov(tail, r14);
  a.and(tail, isa.lanes - 1);
  simd.prepareTail();
  const place = mem(rsi, { index: rcx, scale: 4 });
  const each = (body: (isTail: boolean) => void) => emitEach(a, isa.lanes, body);

  if (hasMask) {
    a.mov(r9, row.low);
    a.imul(r9, r9, elementBytes(type));
    a.add(r9, row.maskAt);
  }
  if (isChanged) {
    each((isTail) => {
      if (isTail) simd.loadTail(value, "f32", place);
      else a.vmovups(value, place);
      a.vmulps(value, value, scale);
      if (hasCap) {
        a.vbroadcastss(most, row.inverseCap);
        a.vmulps(value, value, most);
        formulas.tanh!(simd, value, temps, [v(2), v(3)]);
        a.vbroadcastss(most, row.cap);
        a.vmulps(value, value, most);
      }
      if (hasMask) {
        const from = mem(r9, { index: rcx, scale: elementBytes(type) });
        if (isTail) simd.loadTail(temps[0], type, from);
        else simd.load(temps[0], type, from);
        a.vaddps(value, value, temps[0]);
      }
      // A row of scores has room for a whole vector behind it, and the keys behind are none of this row's.
      a.vmovups(place, value);
    });
  }
  const load = (to: Vec, from: Mem) => {
    if (isChanged) a.vmovups(to, from);
    else a.vmulps(to, scale, from);
  };
  emitLargest(simd, { base: rsi, count: r14, elementBytes: 4, load }, most, value, temps);
  if (hasSinks) {
    a.mov(rax, row.sinkAt);
    simd.loadOne(v(14), type, mem(rax));
    a.vbroadcastss(v(14), v(14).x);
    a.vmaxps(most, most, v(14));
  }
  if (hasMask) {
    // Where nothing is seen, differences stay −inf, instead of being no numbers.
    simd.zero(temps[0]);
    simd.set(temps[1], -3e38);
    simd.whereLess(most, most, temps[1], temps[0], temps[2]);
  }
  for (const register of [sums, more, short]) simd.zero(register);
  const flush = () => {
    simd.toDoubles(short, temps[0], temps[1]);
    a.vaddpd(sums, sums, temps[0]);
    a.vaddpd(more, more, temps[1]);
    simd.zero(short);
    a.mov(r9, RUN);
  };
  a.mov(r9, RUN);
  each((isTail) => {
    a.vmovups(value, place);
    if (!isChanged) a.vmulps(value, value, scale);
    a.vsubps(value, value, most);
    expNegative(simd, value, temps);
    if (isTail) simd.clearBeyondTail(value);
    a.vmovups(place, value);
    a.vaddps(short, short, value);
    if (isTail) return;
    const goOn = a.label();
    a.sub(r9, 1);
    a.jne(goOn);
    flush();
    a.bind(goOn);
  });
  flush();
  a.vaddpd(sums, sums, more);
  simd.sumDoubles(sums, more);
  if (hasSinks) {
    a.vsubps(value, v(14), most);
    expNegative(simd, value, temps);
    a.vcvtss2sd(value.x, value.x, value.x);
    a.vaddsd(sums.x, sums.x, value.x);
  }
  a.vmovsd(value.x, a.data(new Uint8Array(Float64Array.of(1).buffer)));
  a.vdivsd(value.x, value.x, sums.x);
  a.vcvtsd2ss(value.x, value.x, value.x);
  a.vmovss(row.inverse(), value.x);
  emitZerosAround(simd, row);
}

/** `body` for the r14 elements in vectors, rcx of them before. */
function emitEach(a: Assembler, lanes: number, body: (isTail: boolean) => void): void {
  const [rest, end] = [a.label(), a.label()];
  a.mov(rcx, 0);
  a.mov(rbp, r14);
  a.sub(rbp, lanes);
  a.jl(rest);
  a.align(16);
  const loop = a.here();
  body(false);
  a.add(rcx, lanes);
  a.sub(rbp, lanes);
  a.jge(loop);
  a.bind(rest);
  a.test(tail, tail);
  a.je(end);
  body(true);
  a.bind(end);
}

/** Keys before and behind those that the row sees. */
function emitZerosAround({ a, isa }: Simd, row: ScoreRow): void {
  const zero = isa.v(1);
  const [before, behind, filled] = [a.label(), a.label(), a.label()];
  a.mov(rcx, row.least);
  a.bind(before);
  a.cmp(rcx, row.low);
  a.jae(behind);
  a.mov(mem(rdi, { index: rcx, scale: 4, bits: 32 }), 0);
  a.add(rcx, 1);
  a.jmp(before);
  a.bind(behind);
  a.vxorps(zero.x, zero.x, zero.x);
  a.mov(rcx, row.limit);
  const fill = a.here();
  a.cmp(rcx, row.most);
  a.jae(filled);
  a.vmovups(mem(rdi, { index: rcx, scale: 4 }), zero);
  a.add(rcx, isa.lanes);
  a.jmp(fill);
  a.bind(filled);
}
