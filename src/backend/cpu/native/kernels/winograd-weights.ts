/** Weights of 3 × 3 taps as Winograd's products take them: sixteen matrices of sums, of output channels by channels. */
import type { Assembler } from "../assembler.ts";
import { enter, layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import { eax, k1, mem, r8, r9, r10, r12, r13, r14, r15, rbx, rdi, rdx, rsi, rsp, type Vec } from "../operands.ts";
import { Simd } from "../simd.ts";
import { turn } from "./square.ts";
import { place } from "./tile.ts";

const TAPS = 9;
const TAP_BYTES = 4 * TAPS;

export const winogradWeightArguments = layoutArguments("w", "channels", "weights", "plane", "row");

/** Items are output channels. A vector is of channels, of which there must be enough for one. */
export function emitWinogradWeights(a: Assembler, isa: Isa): void {
  const simd = new Simd(a, isa);
  const { local, leave } = enter(a, "end");
  const arg = winogradWeightArguments.at(rbx);
  const [item, c, plane, planes, from] = [r12, r13, r14, r15, rsi];
  const bases = [rdi, r8, r9, r10];
  const done = a.label();
  a.mov(rbx, rdi);
  a.mov(item, rsi);
  a.mov(local.end, rdx);
  a.mov(plane, arg.plane);
  a.lea(planes, mem(plane, { index: plane, scale: 2 }));
  if (isa.masks) {
    a.mov(eax, (1 << TAPS) - 1);
    a.kmovw(k1, eax);
  }
  const items = a.here();
  a.cmp(item, local.end);
  a.jae(done);
  a.mov(c, 0);
  const channels = a.here();
  // The last channels are some of those before, too, where they do not fill a vector.
  a.mov(rdx, arg.channels);
  a.sub(rdx, isa.lanes);
  a.cmp(c, rdx);
  a.cmovb(rdx, c);
  a.mov(from, item);
  a.imul(from, arg.channels);
  a.add(from, rdx);
  a.imul(from, from, TAP_BYTES);
  a.add(from, arg.w);
  a.mov(rdi, item);
  a.imul(rdi, arg.row);
  a.lea(rdi, mem(rdi, { index: rdx, scale: 4 }));
  a.add(rdi, arg.weights);
  for (const [i, base] of bases.entries()) if (i > 0) a.lea(base, mem(bases[i - 1]!, { index: plane, scale: 4 }));
  const taps = loadTaps(a, isa);
  const used = new Set(taps.map(({ id }) => id));
  const free = Array.from({ length: isa.registers }, (_, id) => isa.v(id)).filter(({ id }) => !used.has(id));
  const [sum, u] = [free[0]!, free[1]!];
  /** Half of both outer ones, plus and minus half of the middle one. */
  const halves = ([g0, g1, g2]: readonly Vec[], to: Vec, isSum: boolean) => {
    a.vaddps(sum, g0!, g2!);
    if (isSum) a.vaddps(to, sum, g1!);
    else a.vsubps(to, sum, g1!);
    a.vmulps(to, to, simd.constant(0.5));
  };
  for (const [i, base] of bases.entries()) {
    const line = [0, 1, 2].map((j) => {
      const column = [0, 1, 2].map((r) => taps[3 * r + j]!);
      if (i === 0 || i === 3) return column[i && 2]!;
      halves(column, free[2 + j]!, i === 1);
      return free[2 + j]!;
    });
    const store = (j: number, x: Vec) => a.vmovups(place(base, j, plane, planes, 0), x);
    store(0, line[0]!);
    for (const j of [1, 2]) {
      halves(line, u, j === 1);
      store(j, u);
    }
    store(3, line[2]!);
  }
  a.add(c, isa.lanes);
  a.cmp(c, arg.channels);
  a.jb(channels);
  a.add(item, 1);
  a.jmp(items);
  a.bind(done);
  leave();
}

/** The taps of the channels at rsi, a vector of channels each. */
function loadTaps(a: Assembler, isa: Isa): readonly Vec[] {
  const rows = Array.from({ length: isa.lanes }, (_, i) => isa.v(i));
  const free = isa.v(isa.lanes);
  if (isa.masks) {
    for (const [i, to] of rows.entries()) a.vmovups(to.kz(k1), mem(rsi, TAP_BYTES * i));
    return turn(a, isa, rows, free).slice(0, TAPS);
  }
  // Eight taps at a time: the last ones, of which one is kept, then the first ones.
  const load = (skipped: number) => {
    for (const [i, to] of rows.entries()) a.vmovups(to, mem(rsi, TAP_BYTES * i + 4 * skipped));
    return turn(a, isa, rows, free);
  };
  const last = load(1).at(-1)!;
  a.vmovups(mem(rsp, -isa.bytes), last);
  const first = load(0);
  const ninth = isa.v(isa.lanes + 1);
  a.vmovups(ninth, mem(rsp, -isa.bytes));
  return [...first, ninth];
}
