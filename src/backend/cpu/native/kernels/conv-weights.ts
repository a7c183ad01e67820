/** Weights of convolutions whose vectors are output channels: a line of channels for each tap, panel by panel. */
import type { Assembler } from "../assembler.ts";
import { emitRest, enter, layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import { type Gpr, type Mem, mem, r8, r9, r10, rax, rbx, rcx, rdi, rdx, rsi } from "../operands.ts";
import { Simd } from "../simd.ts";
import { emitTurnSquares } from "./square.ts";

/** Most vectors of channels in a tile. */
export const channelVectors = ({ masks }: Isa): number => (masks ? 4 : 2);

/** The first channel of a vector: the last vector has some of those before, too, where it would not be full. Uses rax. */
export function emitChannel({ a, isa }: Simd, to: Gpr, arg: { readonly outs: Mem }, vector: Mem | Gpr, more = 0): void {
  a.mov(to, vector);
  if (more > 0) a.add(to, more);
  a.shl(to, Math.log2(isa.lanes));
  a.mov(rax, arg.outs);
  a.sub(rax, isa.lanes);
  a.cmp(to, rax);
  a.cmova(to, rax);
}

export const weightArguments = layoutArguments("w", "wRow", "outs", "k", "vectors", "weights", "weightsGroup");

/** Items are vectors of channels of all groups: their weights in the order of the tiles. */
export function emitPackWeights(a: Assembler, isa: Isa): void {
  const simd = new Simd(a, isa);
  const most = channelVectors(isa);
  const begin = a.label();
  a.jmp(begin);
  const turnSquares = emitTurnSquares(a, isa);
  a.bind(begin);
  const { local, leave } = enter(a, "item", "end", "from", "to", "line");
  const arg = weightArguments.at(rbx);
  const [done, whole] = [a.label(), a.label()];
  a.mov(rbx, rdi);
  a.mov(local.item, rsi);
  a.mov(local.end, rdx);
  const items = a.here();
  a.mov(rax, local.item);
  a.cmp(rax, local.end);
  a.jae(done);
  a.mov(rdx, 0);
  a.div(arg.vectors);
  a.mov(r8, rax); // group
  a.mov(r9, rdx); // vector
  emitChannel(simd, rsi, arg, r9);
  a.mov(rcx, arg.outs);
  a.imul(rcx, r8);
  a.add(rsi, rcx);
  a.imul(rsi, arg.wRow);
  a.add(rsi, arg.w);
  a.mov(local.from, rsi);
  // Its panel begins with vector rdx, and has rcx of them.
  a.mov(rdx, r9);
  a.and(rdx, -most);
  emitRest(a, rcx, arg.vectors, rdx, most, rax);
  a.shl(rcx, Math.log2(isa.bytes));
  a.mov(local.line, rcx);
  a.mov(rdi, rdx);
  a.imul(rdi, arg.k);
  a.sub(r9, rdx);
  a.add(rdi, r9);
  a.shl(rdi, Math.log2(isa.bytes));
  a.imul(r8, arg.weightsGroup);
  a.add(rdi, r8);
  a.add(rdi, arg.weights);
  a.mov(local.to, rdi);
  const square = (count: () => void) => {
    a.mov(rdx, arg.wRow);
    a.mov(r9, local.line);
    a.mov(r8, isa.bytes);
    a.mov(r10, r9);
    a.shl(r10, Math.log2(isa.lanes));
    count();
    a.call(turnSquares);
  };
  square(() => {
    a.mov(rcx, arg.k);
    a.shr(rcx, Math.log2(isa.lanes));
  });
  // The last taps are some of those before, too, where they do not fill a square.
  a.mov(rax, arg.k);
  a.test(rax, isa.lanes - 1);
  a.je(whole);
  a.sub(rax, isa.lanes);
  a.mov(rsi, local.from);
  a.lea(rsi, mem(rsi, { index: rax, scale: 4 }));
  a.mov(rdi, local.to);
  a.imul(rax, local.line);
  a.add(rdi, rax);
  square(() => a.mov(rcx, 1));
  a.bind(whole);
  a.add(local.item, 1);
  a.jmp(items);
  a.bind(done);
  leave();
}
