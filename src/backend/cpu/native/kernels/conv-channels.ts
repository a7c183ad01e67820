/**
 * Convolutions of f32 whose vectors are output channels: weights lie in the order of the taps, a line of channels for each,
 * and every output reads its inputs one by one, from wherever they are. No vector lies across two lines of the cache, rows may
 * end anywhere, and a stride costs nothing; what it costs is that results have to be turned. Sums are chains in the order of
 * the taps, as in the other tiles.
 *
 * An item is some outputs of one image and group. Where there is padding, the rows that it reads are copied to the thread's
 * memory first, with zeros around them: no thread waits for what another one has written.
 */
import type { Assembler } from "../assembler.ts";
import { emitRest, enter, layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import {
  d,
  type Label,
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
} from "../operands.ts";
import { SCRATCH_BYTES } from "../pool.ts";
import { Simd } from "../simd.ts";
import { emitCopyRows } from "./conv-rows.ts";
import { channelVectors, emitChannel } from "./conv-weights.ts";
import { emitTurnSquares } from "./square.ts";

/** Outputs that are computed and turned at a time: their sums stay in the first cache. Tiles and squares divide them. */
export const RUN = 48;
/** Most outputs of an item: the rows that they read stay in the second one. */
export const MOST_OUTPUTS = 16 * RUN;
/** Taps between two visits of the sums: their weights stay in the second cache. */
const TAPS = 1024;
const UNROLL = 4;
// The thread's memory: sums of a run, and the rows that an item reads.
const ROWS_AT = 2 ** 16;
export const MOST_ROW_BYTES = SCRATCH_BYTES / 2;

/** Outputs of a tile of so many vectors of channels: sums, weights and an input are in registers. */
const tileOutputs = ({ masks }: Isa, vectors: number): number => (!masks || vectors > 3 ? 6 : 8);
const pointers = [rsi, r8, r9, r10, r11, r12, r13, r14] as const;

export const channelArguments = layoutArguments(
  "image",
  "imageBatch",
  "imageGroup",
  "imageChannel",
  "imageRow",
  /** Where taps are, in bytes from an output's first one. */
  "offsets",
  "k",
  "weights",
  "weightsGroup",
  "out",
  /** Outputs of a channel, and of a row of it. */
  "outputs",
  "width",
  "groups",
  "outs",
  /** Outputs of an item, and items of an image and group. */
  "columns",
  "blocks",
  /** Bytes from one output's inputs to the next one's, what is added at the end of a row, and from row to row. */
  "step",
  "turnOfRow",
  "rowStep",
  /** Of rows that are copied: how many of each channel (0: none), bytes of a row, the image's size, padding. */
  "rows",
  "rowBytes",
  "channels",
  "height",
  "columnsOfImage",
  "stride",
  "top",
  "left",
);

const locals = [
  ...(["item", "end", "scratch"] as const),
  /** Of the item: its first output and the row of that, where that row begins, where results and weights are. */
  ...(["first", "y", "base", "outItem", "weights"] as const),
  /** Of the run: outputs before it and in it, where its first one reads, how many are left in the row, where they go. */
  ...(["run", "count", "start", "room", "outAt"] as const),
  /** Of the tile: where it reads, and what is left of its row and of the run. */
  ...(["at", "left", "rest"] as const),
  /** Vectors of channels and taps before it, and where its weights are. */
  ...(["vector", "p", "weightsAt"] as const),
] as const;
type Locals = Readonly<Record<(typeof locals)[number], Mem>>;

export function emitConvChannels(a: Assembler, isa: Isa): void {
  const simd = new Simd(a, isa);
  const begin = a.label();
  a.jmp(begin);
  const turnSquares = emitTurnSquares(a, isa);
  a.bind(begin);
  const { local, leave } = enter(a, ...locals);
  const arg = channelArguments.at(rbx);
  const [done, inPlace, ready, nextRun] = [a.label(), a.label(), a.label(), a.label()];
  a.mov(rbx, rdi);
  a.mov(local.item, rsi);
  a.mov(local.end, rdx);
  a.mov(local.scratch, rcx);

  const items = a.here();
  a.mov(rax, local.item);
  a.cmp(rax, local.end);
  a.jae(done);
  // The last item has some outputs of the one before, too, where it would not be full.
  a.mov(rdx, 0);
  a.div(arg.blocks);
  a.imul(rdx, arg.columns);
  a.mov(rcx, arg.outputs);
  a.sub(rcx, arg.columns);
  a.cmp(rdx, rcx);
  a.cmova(rdx, rcx);
  a.mov(local.first, rdx);
  a.mov(rcx, rax); // batch · groups + group
  a.imul(rcx, arg.outs);
  a.imul(rcx, arg.outputs);
  a.add(rcx, rdx);
  a.mov(rdi, arg.out);
  a.lea(rdi, mem(rdi, { index: rcx, scale: 4 }));
  a.mov(local.outItem, rdi);
  a.mov(rdx, 0);
  a.div(arg.groups);
  a.imul(rax, arg.imageBatch);
  a.mov(rdi, rdx);
  a.imul(rdi, arg.imageGroup);
  a.add(rdi, rax);
  a.add(rdi, arg.image);
  a.imul(rdx, arg.weightsGroup);
  a.add(rdx, arg.weights);
  a.mov(local.weights, rdx);
  a.mov(rax, local.first);
  a.mov(rdx, 0);
  a.div(arg.width);
  a.mov(local.y, rax);
  a.cmp(arg.rows, 0);
  a.je(inPlace);
  emitCopyRows(simd, arg, local.y, local.scratch, ROWS_AT);
  a.mov(rdi, local.scratch);
  a.add(rdi, ROWS_AT);
  a.jmp(ready);
  a.bind(inPlace);
  a.imul(rax, arg.rowStep);
  a.add(rdi, rax);
  a.bind(ready);
  a.mov(local.base, rdi);
  a.mov(local.run, 0);

  const runs = a.here();
  emitRest(a, rcx, arg.columns, local.run, RUN, rax);
  a.mov(local.count, rcx);
  a.mov(rcx, local.run);
  a.mov(rdi, local.outItem);
  a.lea(rdi, mem(rdi, { index: rcx, scale: 4 }));
  a.mov(local.outAt, rdi);
  a.mov(rax, local.first);
  a.add(rax, rcx);
  a.mov(rdx, 0);
  a.div(arg.width);
  a.sub(rax, local.y);
  a.imul(rax, arg.rowStep);
  a.add(rax, local.base);
  a.mov(rcx, arg.width);
  a.sub(rcx, rdx);
  a.mov(local.room, rcx);
  a.imul(rdx, arg.step);
  a.add(rax, rdx);
  a.mov(local.start, rax);
  a.mov(local.vector, 0);
  a.mov(rax, local.weights);
  a.mov(local.weightsAt, rax);

  const most = channelVectors(isa);
  const panels = a.here();
  const widths = Array.from({ length: most }, () => a.label());
  const nextPanel = a.label();
  a.mov(rax, arg.outs);
  a.add(rax, isa.lanes - 1);
  a.shr(rax, Math.log2(isa.lanes));
  a.sub(rax, local.vector);
  a.je(nextRun);
  for (let n = most; n > 1; n--) {
    a.cmp(rax, n);
    a.jae(widths[n - 1]!);
  }
  for (const [i, width] of widths.entries()) {
    a.bind(width);
    emitPanel(simd, i + 1, arg, local);
    emitTurnOut(simd, i + 1, arg, local, turnSquares);
    if (i + 1 < most) a.jmp(nextPanel);
  }
  a.bind(nextPanel);
  a.jmp(panels);
  a.bind(nextRun);
  a.add(local.run, RUN);
  a.mov(rax, local.run);
  a.cmp(rax, arg.columns);
  a.jb(runs);
  a.add(local.item, 1);
  a.jmp(items);
  a.bind(done);
  leave();
}

type Arguments = ReturnType<typeof channelArguments.at>;

/** The sums of a run's outputs for `vectors` vectors of channels, a line for each output. */
function emitPanel(simd: Simd, vectors: number, arg: Arguments, local: Locals): void {
  const { a, isa } = simd;
  const outputs = tileOutputs(isa, vectors);
  const line = vectors * isa.bytes;
  const [at, sums, weights, offset, end] = [r15, rcx, rdi, rbp, rdx];
  const sum = (i: number, v: number) => isa.v(i * vectors + v);
  const weight = (v: number) => isa.v(outputs * vectors + v);
  const spare = isa.registers - (outputs + 1) * vectors;
  const each = (body: (i: number, v: number) => void) => {
    for (let i = 0; i < outputs; i++) for (let v = 0; v < vectors; v++) body(i, v);
  };
  a.mov(local.p, 0);
  const stretches = a.here();
  const tiles = a.label();
  a.mov(rax, local.start);
  a.mov(local.at, rax);
  a.mov(rax, local.room);
  a.mov(local.left, rax);
  a.mov(rax, local.count);
  a.mov(local.rest, rax);
  a.mov(sums, local.scratch);

  a.bind(tiles);
  // Where the inputs of each output are: in the next row when this one ends.
  a.mov(at, local.at);
  a.mov(rdx, local.left);
  for (let i = 0; i < outputs; i++) {
    a.mov(pointers[i]!, at);
    a.mov(rax, at);
    a.add(rax, arg.step);
    a.mov(rdi, rax);
    a.add(rdi, arg.turnOfRow);
    a.sub(rdx, 1);
    a.cmove(rax, rdi);
    a.cmove(rdx, arg.width);
    // Those that the last tile has too many are the last one again.
    a.cmp(local.rest, i + 1);
    a.cmova(at, rax);
  }
  a.mov(local.at, at);
  a.mov(local.left, rdx);
  emitRest(a, rdx, arg.k, local.p, TAPS, rax);
  a.mov(rax, local.p);
  a.mov(offset, arg.offsets);
  a.lea(offset, mem(offset, { index: rax, scale: 4 }));
  a.lea(end, mem(offset, { index: rdx, scale: 4 }));
  a.mov(weights, rax);
  a.imul(weights, weights, line);
  a.add(weights, local.weightsAt);
  const [fresh, begin] = [a.label(), a.label()];
  a.test(rax, rax);
  a.je(fresh);
  each((i, v) => a.vmovups(sum(i, v), mem(sums, i * line + v * isa.bytes)));
  a.jmp(begin);
  a.bind(fresh);
  each((i, v) => simd.zero(sum(i, v)));
  a.bind(begin);
  const step = (u: number) => {
    a.mov(d(rax), mem(offset, 4 * u));
    for (let v = 0; v < vectors; v++) a.vmovups(weight(v), mem(weights, u * line + v * isa.bytes));
    for (let i = 0; i < outputs; i++) {
      const x = isa.v((outputs + 1) * vectors + (i % spare));
      a.vbroadcastss(x, mem(pointers[i]!, { index: rax }));
      for (let v = 0; v < vectors; v++) a.vfmadd231ps(sum(i, v), x, weight(v));
    }
  };
  const advance = (count: number) => {
    a.add(offset, 4 * count);
    a.add(weights, count * line);
  };
  const [ones, summed] = [a.label(), a.label()];
  const isMore = (loop: Label, otherwise?: Label) => {
    a.lea(rax, mem(offset, 4 * UNROLL));
    a.cmp(rax, end);
    if (otherwise) a.ja(otherwise);
    else a.jbe(loop);
  };
  isMore(ones, ones);
  a.align(32);
  const loop = a.here();
  for (let u = 0; u < UNROLL; u++) step(u);
  advance(UNROLL);
  isMore(loop);
  a.bind(ones);
  a.cmp(offset, end);
  a.jae(summed);
  step(0);
  advance(1);
  a.jmp(ones);
  a.bind(summed);
  each((i, v) => a.vmovups(mem(sums, i * line + v * isa.bytes), sum(i, v)));
  a.add(sums, outputs * line);
  a.sub(local.rest, outputs);
  a.jg(tiles);
  a.add(local.p, TAPS);
  a.mov(rax, local.p);
  a.cmp(rax, arg.k);
  a.jb(stretches);
}

/** The sums of `vectors` vectors of channels go to their channels; then the next ones are to be computed. */
function emitTurnOut(simd: Simd, vectors: number, arg: Arguments, local: Locals, turnSquares: Label): void {
  const { a, isa } = simd;
  const line = vectors * isa.bytes;
  const next = a.label();
  const squares = (v: number, prepare: () => void) => {
    emitChannel(simd, rdi, arg, local.vector, v);
    a.mov(r9, arg.outputs);
    a.shl(r9, 2);
    a.imul(rdi, r9);
    a.add(rdi, local.outAt);
    a.mov(rsi, local.scratch);
    if (v > 0) a.add(rsi, v * isa.bytes);
    a.mov(rdx, line);
    a.mov(r8, line * isa.lanes);
    a.mov(r10, isa.bytes);
    a.mov(rcx, local.count);
    prepare();
    a.call(turnSquares);
  };
  for (let v = 0; v < vectors; v++) squares(v, () => a.shr(rcx, Math.log2(isa.lanes)));
  // The last squares are of some outputs of those before, too, where they would not be full.
  a.test(local.count, isa.lanes - 1);
  a.je(next);
  for (let v = 0; v < vectors; v++) {
    squares(v, () => {
      a.sub(rcx, isa.lanes);
      a.lea(rdi, mem(rdi, { index: rcx, scale: 4 }));
      a.imul(rcx, rcx, line);
      a.add(rsi, rcx);
      a.mov(rcx, 1);
    });
  }
  a.bind(next);
  a.add(local.vector, vectors);
  a.mov(rax, arg.k);
  a.imul(rax, rax, line);
  a.add(local.weightsAt, rax);
}
