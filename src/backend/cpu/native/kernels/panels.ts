/** Packing all of a B, or a part, for all threads. */
import type { Assembler } from "../assembler.ts";
import { emitRest, enter, layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import { mem, r8, r9, r12, rax, rbx, rcx, rdi, rdx, rsi } from "../operands.ts";
import type { FloatType } from "../simd.ts";
import { emitPackPanel } from "./pack.ts";
import { emitPackPairs } from "./pairs.ts";
import { tileShape } from "./tile.ts";

/** What a product multiplies: pairs are bf16, where the processor has products of them. */
export type ProductType = FloatType | "pairs";

/** Bytes behind each panel of pairs, which begin with whether some are small. */
export const NOTE_BYTES = 64;

export const packArguments = layoutArguments(
  "b",
  "alongK",
  "acrossColumns",
  "steps",
  "columns",
  "packed",
  "panelBytes",
);

/** Items are panels of B. */
export const emitPack =
  (type: ProductType) =>
  (a: Assembler, isa: Isa): void => {
    const { columns } = tileShape(isa);
    const start = a.label();
    a.jmp(start);
    const pack = type === "pairs" ? emitPackPairs(a, isa) : emitPackPanel(a, isa, type);
    a.bind(start);
    const { local, leave } = enter(a, "end");
    const arg = packArguments.at(rbx);
    const done = a.label();
    a.mov(rbx, rdi);
    a.mov(r12, rsi);
    a.mov(local.end, rdx);
    const top = a.here();
    a.cmp(r12, local.end);
    a.jae(done);
    a.mov(rax, r12);
    a.imul(rax, rax, columns);
    emitRest(a, r9, arg.columns, rax, columns, rcx);
    a.mov(rdx, arg.acrossColumns);
    a.imul(rax, rdx);
    a.mov(rdi, arg.b);
    a.add(rdi, rax);
    a.mov(r8, r12);
    a.imul(r8, arg.panelBytes);
    a.add(r8, arg.packed);
    a.mov(rsi, arg.alongK);
    a.mov(rcx, arg.steps);
    a.call(pack);
    a.add(r12, 1);
    if (type === "pairs") {
      a.mov(rcx, r12);
      a.imul(rcx, arg.panelBytes);
      a.add(rcx, arg.packed);
      a.mov(mem(rcx, -NOTE_BYTES), rax);
    }
    a.jmp(top);
    a.bind(done);
    leave();
  };
