/** act(gate) · up over rows that hold the gates and, behind them, what they open. An item is a piece of a row. */
import type { Assembler } from "../assembler.ts";
import { emitRest, enter, layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import { type Mem, mem, r8, r9, r12, r13, rax, rbx, rcx, rdi, rdx, rsi, type Vec } from "../operands.ts";
import { type FloatType, Simd, tail } from "../simd.ts";
import { formulas } from "./math.ts";
import { elementBytes } from "./pack.ts";

/** Columns of a piece: a multiple of every vector. */
export const GATE_PIECE = 1024;

export const gateArguments = layoutArguments("x", "out", "columns", "pieces");

export const emitGates =
  (act: "silu" | "gelu", type: FloatType) =>
  (a: Assembler, isa: Isa): void => {
    const simd = new Simd(a, isa);
    const es = elementBytes(type);
    const v = (id: number): Vec => isa.v(id);
    const [gate, up] = [v(0), v(1)];
    const temps = [2, 3, 4, 5, 6, 7, 8, 9].map(v) as unknown as Parameters<NonNullable<(typeof formulas)["exp"]>>[2];
    const open = (s: Simd) => formulas[act]!(s, gate, temps, [v(10), v(11)]);
    const { local, leave } = enter(a, "end");
    const arg = gateArguments.at(rbx);
    const [item, left, second, x, out] = [r12, r13, rcx, r8, r9];
    a.mov(rbx, rdi);
    a.mov(item, rsi);
    a.mov(local.end, rdx);
    simd.hoist(act, open);

    const items = a.here();
    a.mov(rax, item);
    a.mov(rdx, 0);
    a.div(arg.pieces);
    a.imul(rdx, rdx, GATE_PIECE);
    // What is left of the row from this column on.
    emitRest(a, left, arg.columns, rdx, GATE_PIECE, rsi);
    a.imul(rax, arg.columns);
    a.mov(out, arg.out);
    a.lea(rsi, mem(rax, { index: rdx, scale: 1 }));
    a.lea(out, mem(out, { index: rsi, scale: es }));
    a.lea(rsi, mem(rdx, { index: rax, scale: 2 }));
    a.mov(x, arg.x);
    a.lea(x, mem(x, { index: rsi, scale: es }));
    a.mov(second, arg.columns);
    a.lea(second, mem(x, { index: second, scale: es }));
    const [rest, end] = [a.label(), a.label()];
    a.sub(left, isa.lanes);
    a.jb(rest);
    const loop = a.here();
    const step = (load: (to: Vec, from: Mem) => void) => {
      load(gate, mem(x));
      open(simd);
      load(up, mem(second));
      a.vmulps(gate, gate, up);
    };
    step((to, from) => simd.load(to, type, from));
    simd.store(mem(out), type, gate, temps[0], temps[1]);
    for (const pointer of [x, second, out]) a.add(pointer, isa.lanes * es);
    a.sub(left, isa.lanes);
    a.jae(loop);
    a.bind(rest);
    a.add(left, isa.lanes);
    a.je(end);
    a.mov(tail, left);
    simd.prepareTail();
    step((to, from) => simd.loadTail(to, type, from));
    simd.storeTail(mem(out), type, gate, temps[0], temps[1]);
    a.bind(end);
    a.add(item, 1);
    a.cmp(item, local.end);
    a.jb(items);
    leave();
  };
