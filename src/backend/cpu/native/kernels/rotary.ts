/**
 * What a step does with its queries, keys and values before it attends: queries and keys are turned by their positions, as
 * in wasm/rope.ts and with its bits, and keys and values enter the cache. An item is a row of all heads.
 *
 * Heads and what is turned of them fill whole vectors, with pairs that are neighbours and with halves apart.
 */
import type { Assembler } from "../assembler.ts";
import { enter, layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import {
  type Gpr,
  type Mem,
  mem,
  r8,
  r9,
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
import { elementBytes } from "./pack.ts";

/** Elements that heads, and half of what is turned of them, are multiples of. */
export const WHOLE_LINE = 16;

/**
 * Strides are in bytes, `d` and `half` in elements; `padding` is the address of an i64 for each sequence, or 0. So is
 * `lengths`, of the positions there are with the new ones: in place of `past`, and no more than `room`.
 */
export const rotaryArguments = layoutArguments(
  ...(["q", "qRow", "k", "kRow", "v", "vRow", "out"] as const),
  ...(["kCache", "kBatch", "kHead", "kPosition", "vCache", "vBatch", "vHead", "vPosition"] as const),
  ...(["cos", "sin", "heads", "kvHeads", "d", "half", "t", "past", "lengths", "room", "padding"] as const),
);

export const emitRotary =
  (type: FloatType, interleaved: boolean) =>
  (a: Assembler, isa: Isa): void => {
    const simd = new Simd(a, isa);
    const es = elementBytes(type);
    const v = (id: number): Vec => isa.v(id);
    const arg = rotaryArguments.at(rbx);
    const [item, place, cos, sin] = [r12, r13, r14, r15];
    /** A head and where it goes, how far apart the latter are, and how many there are. */
    const [from, to, step, heads] = [rdi, r8, r9, rbp];
    const at = rcx;
    const line = (base: Gpr): Mem => mem(base, { index: at, scale: es });

    /** The rest of a line, from `at` on. */
    const copyRest = () => {
      const [loop, end] = [a.label(), a.label()];
      a.bind(loop);
      a.cmp(at, arg.d);
      a.jae(end);
      simd.load(v(0), type, line(from));
      simd.store(line(to), type, v(0), v(1), v(2));
      a.add(at, isa.lanes);
      a.jmp(loop);
      a.bind(end);
    };
    const turnApart = () => {
      const [loop, end] = [a.label(), a.label()];
      const [x, y, c, s, t, u] = [0, 1, 2, 3, 4, 5].map(v) as [Vec, Vec, Vec, Vec, Vec, Vec];
      const [from2, to2] = [rdx, rsi];
      a.mov(rax, arg.half);
      a.lea(from2, mem(from, { index: rax, scale: es }));
      a.lea(to2, mem(to, { index: rax, scale: es }));
      a.mov(at, 0);
      a.bind(loop);
      a.cmp(at, rax);
      a.jae(end);
      simd.load(x, type, line(from));
      simd.load(y, type, line(from2));
      simd.load(c, type, line(cos));
      simd.load(s, type, line(sin));
      a.vmulps(t, x, c);
      a.vmulps(u, y, s);
      a.vsubps(t, t, u);
      a.vmulps(x, x, s);
      a.vmulps(y, y, c);
      a.vaddps(x, x, y);
      simd.store(line(to), type, t, u, y);
      simd.store(line(to2), type, x, u, y);
      a.add(at, isa.lanes);
      a.jmp(loop);
      a.bind(end);
      a.add(at, at);
    };
    const [twice, signs] = [v(12), v(13)];
    const prepareNeighbours = () => {
      const { lanes } = isa;
      a.vmovups(twice, a.i32(...Array.from({ length: lanes }, (_, i) => i >> 1)));
      a.vmovups(signs, a.f32(...Array.from({ length: lanes }, (_, i) => (i % 2 === 0 ? -1 : 1))));
    };
    const turnNeighbours = () => {
      const [loop, end] = [a.label(), a.label()];
      const [x, c, s, t] = [0, 1, 2, 3].map(v) as [Vec, Vec, Vec, Vec];
      const short = (register: Vec): Vec => (isa.masks ? register.y : register.x);
      a.mov(rax, arg.half);
      a.add(rax, rax);
      a.mov(at, 0);
      a.mov(rdx, 0);
      a.bind(loop);
      a.cmp(at, rax);
      a.jae(end);
      simd.load(x, type, line(from));
      for (const [to, table] of [
        [c, cos],
        [s, sin],
      ] as const) {
        simd.load(short(to), type, mem(table, { index: rdx, scale: es }));
        a.vpermps(to, twice, to);
      }
      a.vpermilps(t, x, 0b10110001);
      a.vmulps(t, t, signs);
      a.vmulps(t, t, s);
      a.vmulps(x, x, c);
      a.vaddps(x, x, t);
      simd.store(line(to), type, x, c, s);
      a.add(at, isa.lanes);
      a.add(rdx, isa.lanes / 2);
      a.jmp(loop);
      a.bind(end);
    };
    /** All heads of a row: `turn` leaves in `at` how far it came. */
    const eachHead = (turn: () => void) => {
      const loop = a.here();
      turn();
      copyRest();
      a.mov(rax, arg.d);
      a.lea(from, mem(from, { index: rax, scale: es }));
      a.add(to, step);
      a.sub(heads, 1);
      a.jne(loop);
    };

    const start = a.label();
    a.jmp(start);
    const turned = a.here();
    eachHead(interleaved ? turnNeighbours : turnApart);
    a.ret();
    const copied = a.here();
    eachHead(() => a.mov(at, 0));
    a.ret();

    a.bind(start);
    const { local, leave } = enter(a, "end", "batch");
    a.mov(rbx, rdi);
    a.mov(item, rsi);
    a.mov(local.end, rdx);
    if (interleaved) prepareNeighbours();
    const items = a.here();
    a.mov(rax, item);
    a.mov(rdx, 0);
    a.div(arg.t);
    a.mov(local.batch, rax);
    a.mov(place, rdx);
    emitPast(a, rdx, rcx, { ...arg, sequence: rax });
    a.add(place, rdx);
    // Padding counts as position 0.
    const unpadded = a.label();
    a.mov(cos, place);
    a.mov(rcx, arg.padding);
    a.test(rcx, rcx);
    a.je(unpadded);
    a.mov(rdx, 0);
    a.sub(cos, mem(rcx, { index: rax, scale: 8 }));
    a.cmovl(cos, rdx);
    a.bind(unpadded);
    a.imul(cos, arg.half);
    a.mov(sin, arg.sin);
    a.lea(sin, mem(sin, { index: cos, scale: es }));
    a.mov(rax, arg.cos);
    a.lea(cos, mem(rax, { index: cos, scale: es }));

    /** Where the row's heads are. */
    const source = (base: Mem, row: Mem) => {
      a.mov(from, item);
      a.imul(from, row);
      a.add(from, base);
    };
    source(arg.q, arg.qRow);
    a.mov(step, arg.d);
    a.imul(step, step, es);
    a.mov(heads, arg.heads);
    a.mov(to, step);
    a.imul(to, heads);
    a.imul(to, item);
    a.add(to, arg.out);
    a.call(turned);
    for (const [base, row, cache, batch, head, position, run] of [
      [arg.k, arg.kRow, arg.kCache, arg.kBatch, arg.kHead, arg.kPosition, turned],
      [arg.v, arg.vRow, arg.vCache, arg.vBatch, arg.vHead, arg.vPosition, copied],
    ] as const) {
      source(base, row);
      a.mov(to, local.batch);
      a.imul(to, batch);
      a.mov(rax, place);
      a.imul(rax, position);
      a.add(to, rax);
      a.add(to, cache);
      a.mov(step, head);
      a.mov(heads, arg.kvHeads);
      a.call(run);
    }
    a.add(item, 1);
    a.cmp(item, local.end);
    a.jb(items);
    leave();
  };

/** to = the positions before those of a step, be it `past` or what memory says of the sequence; uses `via`. */
function emitPast(
  a: Assembler,
  to: Gpr,
  via: Gpr,
  { past, lengths, room, t, sequence }: Readonly<Record<"past" | "lengths" | "room" | "t", Mem>> & { sequence: Gpr },
): void {
  const known = a.label();
  a.mov(to, past);
  a.mov(via, lengths);
  a.test(via, via);
  a.je(known);
  a.mov(to, mem(via, { index: sequence, scale: 8 }));
  a.cmp(to, room);
  a.cmovg(to, room);
  a.mov(via, 0);
  a.sub(to, t);
  a.cmovl(to, via);
  a.bind(known);
}
