/** Turns quantized weights (quant-code.ts says how): an item is as many rows as a vector has lanes. */
import { quantTypes } from "../../../../core/quant-types.ts";
import type { Assembler } from "../assembler.ts";
import { enter, layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import { mem } from "../operands.ts";
import type { NativeQuantType } from "./quant-blocks.ts";
import { gpr, QuantCode, turnedFormOf } from "./quant-code.ts";

/** `rows` of w, at least as many as a vector has lanes: the last item's end where they end. */
export const turningArguments = layoutArguments("w", "line", "blocks", "rows", "out");

export const emitTurning =
  (type: NativeQuantType) =>
  (a: Assembler, isa: Isa): void => {
    const { bytes } = quantTypes[type];
    const { first, words, half } = turnedFormOf(type);
    const c = new QuantCode(a, isa, 0, 2, 0);
    const { local, leave } = enter(a, "args", "item", "end", "count");
    const args = turningArguments.at(gpr.args);
    const [out, scales] = [gpr.out, gpr.ahead];
    a.mov(local.args, gpr.args);
    a.mov(local.item, gpr.lo);
    a.mov(local.end, gpr.hi);
    c.prepare(args.line);
    const items = a.here();
    a.mov(gpr.weights, local.item);
    a.imul(gpr.weights, gpr.weights, isa.lanes);
    a.mov(out, gpr.weights);
    a.imul(out, args.line);
    a.add(out, args.out);
    a.mov(gpr.cursor, args.rows);
    a.sub(gpr.cursor, isa.lanes);
    a.cmp(gpr.weights, gpr.cursor);
    a.cmovg(gpr.weights, gpr.cursor);
    a.imul(gpr.weights, args.line);
    a.add(gpr.weights, args.w);
    a.mov(gpr.cursor, args.blocks);
    a.mov(local.count, gpr.cursor);
    a.imul(scales, gpr.cursor, words * isa.bytes);
    a.add(scales, out);
    const blocks = a.here();
    for (let i = 0; i < words; i += 8) {
      const fetched = words - i >= 8 ? c.fetch32(first + 4 * i) : c.fetch16(first + 4 * i);
      for (const { at, bytes: from } of fetched.words) a.vmovups(mem(out, (i + at) * isa.bytes), from);
    }
    if (half !== undefined) {
      a.vmovups(mem(scales), c.gatherHalves(half));
      a.add(scales, 2 * isa.lanes);
    }
    a.add(out, words * isa.bytes);
    a.add(gpr.weights, bytes);
    a.dec(local.count);
    a.jne(blocks);
    a.mov(gpr.cursor, local.item);
    a.add(gpr.cursor, 1);
    a.mov(local.item, gpr.cursor);
    a.cmp(gpr.cursor, local.end);
    a.jb(items);
    leave();
  };
