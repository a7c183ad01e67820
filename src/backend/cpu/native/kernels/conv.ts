/**
 * Convolutions of f32 as products of weights (o × c·kh·kw) with patches that never exist as a whole: the inputs of
 * neighbouring outputs of a row are a line of the image, `offsets[k]` bytes further for tap k. Where they are not, or are
 * the padding's, the image is spread first (`emitSpread`): padded, and for a stride s cut into the s × s images of every
 * s-th row and column. Outputs are counted across rows, so that panels are full however narrow the image is.
 */
import type { Assembler } from "../assembler.ts";
import { emitRest, enter, layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import {
  d,
  eax,
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
} from "../operands.ts";
import { Simd, tail } from "../simd.ts";
import { emitMode } from "./product.ts";
import { tileShape } from "./tile.ts";

/** Taps between two visits of the result, output channels that share packed panels in turn, and most panels of an item. */
const TAPS = 1024;
export const CHANNELS = 192;
export const MOST_PANELS = 4;

export const convArguments = layoutArguments(
  "tiles",
  "image",
  "imageBatch",
  "imageGroup",
  "imageRow",
  "offsets",
  "w",
  "wRow",
  "out",
  /** Outputs of a channel, and of a row of it. */
  "outputs",
  "width",
  "groups",
  "outs",
  "k",
  /** Outputs of an item, and items of an image and group. */
  "columns",
  "blocks",
);

/** Rows of outputs that a panel can lie in where the tile reads the image itself, which machines with masks can. */
export const readsImage = (isa: Isa, width: number): boolean => isa.masks && width >= tileShape(isa).columns;

/**
 * An item is one panel of outputs, in one row of them or two, whose inputs are read where they are. The last one has some
 * of those before, too, where it would not be full.
 */
export function emitConvInPlace(a: Assembler, isa: Isa): void {
  const { columns } = tileShape(isa);
  const { local, leave } = enter(a, ...(["end", "first"] as const));
  const arg = convArguments.at(rbx);
  const item = r12;
  const done = a.label();
  a.mov(rbx, rdi);
  a.mov(item, rsi);
  a.mov(local.end, rdx);
  const items = a.here();
  a.cmp(item, local.end);
  a.jae(done);
  a.mov(rax, item);
  a.mov(rdx, 0);
  a.div(arg.blocks);
  a.imul(rdx, rdx, columns);
  a.mov(rcx, arg.outputs);
  a.sub(rcx, columns);
  a.cmp(rdx, rcx);
  a.cmova(rdx, rcx);
  a.mov(local.first, rdx);
  a.mov(r8, rax); // batch · groups + group
  a.imul(r8, arg.outs);
  a.imul(r8, arg.outputs);
  a.add(r8, rdx);
  a.mov(rcx, arg.out);
  a.lea(r8, mem(rcx, { index: r8, scale: 4 }));
  a.mov(rdx, 0);
  a.div(arg.groups);
  a.imul(rax, arg.imageBatch);
  a.mov(rsi, rdx);
  a.imul(rsi, arg.imageGroup);
  a.add(rsi, rax);
  a.add(rsi, arg.image);
  a.mov(rdi, rdx);
  a.imul(rdi, arg.outs);
  a.imul(rdi, arg.wRow);
  a.add(rdi, arg.w);
  // Where its first output reads, how many of its outputs are in that row, and how much further the others read.
  a.mov(rax, local.first);
  a.mov(rdx, 0);
  a.div(arg.width);
  a.imul(rax, arg.imageRow);
  a.add(rsi, rax);
  a.lea(rsi, mem(rsi, { index: rdx, scale: 4 }));
  a.mov(r10, arg.width);
  a.mov(r11, arg.imageRow);
  a.mov(rax, r10);
  a.shl(rax, 2);
  a.sub(r11, rax);
  a.sub(r10, rdx);
  a.mov(rax, 0);
  a.mov(rcx, columns);
  a.cmp(r10, rcx);
  a.cmovae(r11, rax);
  a.cmova(r10, rcx);
  a.mov(rcx, arg.wRow);
  a.mov(rbp, arg.offsets);
  a.mov(rdx, arg.k);
  a.mov(r9, arg.outputs);
  a.shl(r9, 2);
  a.mov(rax, arg.outs);
  a.call(arg.tiles);
  a.add(item, 1);
  a.jmp(items);
  a.bind(done);
  // What was streamed is there before anybody hears that it is done.
  a.sfence();
  leave();
}

/** An item is some panels of outputs, whose inputs are packed. */
export function emitConv(a: Assembler, isa: Isa): void {
  const simd = new Simd(a, isa);
  const shape = tileShape(isa);
  const panelBytes = TAPS * shape.lineBytes;
  const start = a.label();
  a.jmp(start);
  const lines = emitPackLines(simd);
  a.bind(start);
  const { local, leave } = enter(
    a,
    ...(["end", "imageAt", "wAt", "outAt", "first", "count", "o", "channels", "p", "steps", "j", "panel"] as const),
  );
  const arg = convArguments.at(rbx);
  const [item, scratch] = [r12, r13];
  const done = a.label();
  a.mov(rbx, rdi);
  a.mov(item, rsi);
  a.mov(local.end, rdx);
  a.mov(scratch, rcx);
  const items = a.here();
  a.cmp(item, local.end);
  a.jae(done);
  a.mov(rax, item);
  a.mov(rdx, 0);
  a.div(arg.blocks);
  a.imul(rdx, arg.columns);
  a.mov(local.first, rdx);
  a.mov(rcx, arg.outputs);
  a.sub(rcx, rdx);
  a.cmp(rcx, arg.columns);
  a.cmova(rcx, arg.columns);
  a.mov(local.count, rcx);
  a.mov(rcx, rax); // batch · groups + group
  a.imul(rcx, arg.outs);
  a.imul(rcx, arg.outputs);
  a.add(rcx, rdx);
  a.mov(r8, arg.out);
  a.lea(rcx, mem(r8, { index: rcx, scale: 4 }));
  a.mov(local.outAt, rcx);
  a.mov(rdx, 0);
  a.div(arg.groups);
  a.imul(rax, arg.imageBatch);
  a.mov(r8, rdx);
  a.imul(r8, arg.imageGroup);
  a.add(rax, r8);
  a.add(rax, arg.image);
  a.mov(local.imageAt, rax);
  a.imul(rdx, arg.outs);
  a.imul(rdx, arg.wRow);
  a.add(rdx, arg.w);
  a.mov(local.wAt, rdx);

  a.mov(local.p, 0);
  const stretches = a.here();
  emitRest(a, rcx, arg.k, local.p, TAPS, rax);
  a.mov(local.steps, rcx);

  // The item's panels, then all output channels with them.
  a.mov(local.j, 0);
  a.mov(local.panel, scratch);
  const packed = a.here();
  emitRest(a, r9, local.count, local.j, shape.columns, rax);
  a.mov(rax, local.first);
  a.add(rax, local.j);
  a.mov(rdx, 0);
  a.div(arg.width);
  a.mov(r15, arg.width);
  a.mov(rbp, arg.imageRow);
  a.imul(rax, rbp);
  a.mov(rdi, local.imageAt);
  a.add(rdi, rax);
  a.mov(rsi, arg.offsets);
  a.mov(rcx, local.p);
  a.lea(rsi, mem(rsi, { index: rcx, scale: 4 }));
  a.mov(rcx, local.steps);
  a.mov(r8, local.panel);
  a.call(lines);
  a.add(local.panel, panelBytes);
  a.add(local.j, shape.columns);
  a.mov(rax, local.j);
  a.cmp(rax, local.count);
  a.jb(packed);

  a.mov(local.o, 0);
  const channels = a.here();
  emitRest(a, rax, arg.outs, local.o, CHANNELS, rcx);
  a.mov(local.channels, rax);
  a.mov(local.j, 0);
  a.mov(local.panel, scratch);
  const panels = a.here();
  a.mov(rcx, local.count);
  a.sub(rcx, local.j);
  a.mov(rax, local.p);
  emitMode(a, isa);
  a.mov(rcx, arg.wRow);
  a.mov(rdi, local.o);
  a.mov(r8, rdi);
  a.imul(rdi, rcx);
  a.add(rdi, local.wAt);
  a.mov(rax, local.p);
  a.lea(rdi, mem(rdi, { index: rax, scale: 4 }));
  a.mov(r9, arg.outputs);
  a.shl(r9, 2);
  a.imul(r8, r9);
  a.add(r8, local.outAt);
  a.mov(rax, local.j);
  a.lea(r8, mem(r8, { index: rax, scale: 4 }));
  a.mov(rsi, local.panel);
  a.mov(d(rbp), shape.lineBytes);
  a.mov(rdx, local.steps);
  a.mov(rax, local.channels);
  a.call(arg.tiles);
  a.add(local.panel, panelBytes);
  a.add(local.j, shape.columns);
  a.mov(rax, local.j);
  a.cmp(rax, local.count);
  a.jb(panels);
  a.add(local.o, CHANNELS);
  a.mov(rax, local.o);
  a.cmp(rax, arg.outs);
  a.jb(channels);
  a.mov(rax, local.p);
  a.add(rax, local.steps);
  a.mov(local.p, rax);
  a.cmp(rax, arg.k);
  a.jb(stretches);
  a.add(item, 1);
  a.jmp(items);
  a.bind(done);
  leave();
}

/**
 * rcx lines of a panel at r8, of r9 columns: the first is at element rdx of the row of the image at rdi, plus the line's
 * offset at rsi; r15 columns make a row, and rows are rbp bytes apart. Uses all but rbx, rsi, rcx and r12, r13, rbp, r15.
 */
function emitPackLines(simd: Simd): Label {
  const { a, isa } = simd;
  const { columns, vectors, lineBytes } = tileShape(isa);
  const full = a.label();
  const entry = a.here();
  // Columns that do not exist are zeros.
  a.cmp(r9, columns);
  a.jae(full);
  simd.zero(isa.v(0));
  a.mov(rax, rcx);
  a.mov(r14, r8);
  const zeros = a.here();
  for (let v = 0; v < vectors; v++) a.vmovups(mem(r14, v * isa.bytes), isa.v(0));
  a.add(r14, lineBytes);
  a.sub(rax, 1);
  a.jne(zeros);
  a.bind(full);
  // A piece is what lies in one row of outputs.
  const pieces = a.here();
  const [next, end] = [a.label(), a.label()];
  const length = r14;
  a.mov(length, r15);
  a.sub(length, rdx);
  a.cmp(length, r9);
  a.cmova(length, r9);
  a.push(r9);
  a.push(rdi);
  a.push(r8);
  a.lea(rdi, mem(rdi, { index: rdx, scale: 4 }));
  a.lea(tail, mem(length, -1));
  a.and(tail, isa.lanes - 1);
  a.add(tail, 1);
  simd.prepareTail();
  const counts = Array.from({ length: vectors }, () => a.label());
  for (let n = vectors; n > 1; n--) {
    a.cmp(length, (n - 1) * isa.lanes);
    a.ja(counts[n - 1]!);
  }
  for (const [n, label] of counts.entries()) {
    a.bind(label);
    a.mov(rdx, 0);
    a.align(16);
    const loop = a.here();
    a.mov(eax, mem(rsi, { index: rdx, scale: 4 }));
    for (let v = 0; v <= n; v++) {
      const from = mem(rdi, { index: rax, disp: v * isa.bytes });
      const to = mem(r8, v * isa.bytes);
      if (v < n) {
        a.vmovups(isa.v(v), from);
        a.vmovups(to, isa.v(v));
      } else {
        simd.loadTail(isa.v(v), "f32", from);
        simd.storeTail(to, "f32", isa.v(v), isa.v(v), isa.v(v));
      }
    }
    a.add(r8, lineBytes);
    a.add(rdx, 1);
    a.cmp(rdx, rcx);
    a.jb(loop);
    if (n + 1 < vectors) a.jmp(next);
  }
  a.bind(next);
  a.pop(r8);
  a.pop(rdi);
  a.pop(r9);
  a.sub(r9, length);
  a.je(end);
  a.add(rdi, rbp);
  a.lea(r8, mem(r8, { index: length, scale: 4 }));
  a.mov(rdx, 0);
  a.jmp(pieces);
  a.bind(end);
  a.ret();
  return entry;
}

export const spreadArguments = layoutArguments(
  "x",
  "xBatch",
  "xChannel",
  "xRow",
  "channels",
  "height",
  "width",
  "to",
  /** Bytes of a channel with all its images, of one image and of its row. */
  "plane",
  "image",
  "imageRow",
  "top",
  /** Where a row begins in its image, in bytes, and in which one. */
  "left",
  "leftImage",
  "strideRows",
  "strideColumns",
);

/** Items are channels of images: zeros, then every element to its place in the image of its row and column. */
export function emitSpread(a: Assembler, isa: Isa): void {
  const simd = new Simd(a, isa);
  const { local, leave } = enter(a, "end", "row", "from");
  const arg = spreadArguments.at(rbx);
  const done = a.label();
  a.mov(rbx, rdi);
  a.mov(r12, rsi);
  a.mov(local.end, rdx);
  a.mov(tail, arg.width);
  a.and(tail, isa.lanes - 1);
  simd.prepareTail();
  const items = a.here();
  a.cmp(r12, local.end);
  a.jae(done);
  a.mov(rax, r12);
  a.mov(rdx, 0);
  a.div(arg.channels);
  a.imul(rax, arg.xBatch);
  a.imul(rdx, arg.xChannel);
  a.add(rax, rdx);
  a.add(rax, arg.x);
  a.mov(local.from, rax);
  const plane = r13;
  a.mov(plane, r12);
  a.imul(plane, arg.plane);
  a.add(plane, arg.to);
  // Planes are whole vectors.
  simd.zero(isa.v(0));
  a.mov(rdi, plane);
  a.mov(rcx, arg.plane);
  const zeros = a.here();
  a.vmovups(mem(rdi), isa.v(0));
  a.add(rdi, isa.bytes);
  a.sub(rcx, isa.bytes);
  a.jg(zeros);
  a.mov(local.row, 0);
  const rows = a.here();
  // Row (y + top) / stride of the images that begin at row (y + top) mod stride.
  const whole = a.label();
  a.mov(rax, local.row);
  a.add(rax, arg.top);
  a.mov(rdx, 0);
  a.cmp(arg.strideRows, 1);
  a.je(whole);
  a.div(arg.strideRows);
  a.bind(whole);
  a.imul(rax, arg.imageRow);
  a.imul(rdx, arg.strideColumns);
  a.imul(rdx, arg.image);
  a.add(rax, rdx);
  a.add(rax, plane);
  a.mov(r14, rax);
  a.add(r14, arg.left);
  a.mov(r15, arg.leftImage); // which image of the row the next element goes to
  a.mov(rsi, local.from);
  a.mov(rcx, arg.width);
  const [apart, nextRow] = [a.label(), a.label()];
  a.cmp(arg.strideColumns, 1);
  a.jne(apart);
  const singles = a.label();
  const vectors = a.here();
  a.sub(rcx, isa.lanes);
  a.jb(singles);
  a.vmovups(isa.v(0), mem(rsi));
  a.vmovups(mem(r14), isa.v(0));
  a.add(rsi, isa.bytes);
  a.add(r14, isa.bytes);
  a.jmp(vectors);
  a.bind(singles);
  a.add(rcx, isa.lanes);
  a.je(nextRow);
  simd.loadTail(isa.v(0), "f32", mem(rsi));
  simd.storeTail(mem(r14), "f32", isa.v(0), isa.v(0), isa.v(0));
  a.jmp(nextRow);
  a.bind(apart);
  emitPairs(simd, arg, nextRow);
  // One by one, through the images of the row.
  a.mov(r8, arg.image);
  a.mov(r9, arg.strideColumns);
  a.mov(r10, r9);
  a.imul(r10, r8);
  a.mov(rdi, r15);
  a.imul(rdi, r8);
  a.add(rdi, r14);
  const elements = a.here();
  a.mov(eax, mem(rsi));
  a.mov(mem(rdi), eax);
  a.add(rsi, 4);
  a.add(rdi, r8);
  a.add(r15, 1);
  a.lea(r11, mem(rdi, 4));
  a.sub(r11, r10);
  a.mov(rbp, 0);
  a.cmp(r15, r9);
  a.cmove(rdi, r11);
  a.cmove(r15, rbp);
  a.sub(rcx, 1);
  a.jne(elements);
  a.bind(nextRow);
  a.mov(rax, arg.xRow);
  a.add(local.from, rax);
  a.add(local.row, 1);
  a.mov(rax, local.row);
  a.cmp(rax, arg.height);
  a.jb(rows);
  a.add(r12, 1);
  a.jmp(items);
  a.bind(done);
  leave();
}

/** With a stride of two, neighbours part in vectors: rcx elements from rsi, the first to image r15 at r14. */
function emitPairs(simd: Simd, arg: ReturnType<typeof spreadArguments.at>, end: Label): void {
  const { a, isa } = simd;
  const [x, y, even, odd, order] = [isa.v(0), isa.v(1), isa.v(2), isa.v(3), isa.v(4)];
  const [other, rest] = [a.label(), a.label()];
  a.cmp(arg.strideColumns, 2);
  a.jne(other);
  a.mov(r8, arg.image);
  a.mov(rdi, r15);
  a.imul(rdi, r8);
  a.add(rdi, r14);
  // The second one goes to the other image: to the same place of it, or behind, if that is the first image.
  a.lea(r11, mem(r14, 4));
  a.add(r8, r14);
  a.test(r15, r15);
  a.cmove(r11, r8);
  if (isa.masks) a.vmovdqu64(order, a.data(new Uint8Array(BigInt64Array.of(0n, 2n, 4n, 6n, 1n, 3n, 5n, 7n).buffer)));
  const loop = a.here();
  a.sub(rcx, 2 * isa.lanes);
  a.jb(rest);
  a.vmovups(x, mem(rsi));
  a.vmovups(y, mem(rsi, isa.bytes));
  a.vshufps(even, x, y, 0x88);
  a.vshufps(odd, x, y, 0xdd);
  for (const [to, part] of [
    [rdi, even],
    [r11, odd],
  ] as const) {
    if (isa.masks) a.vpermq(part, order, part);
    else a.vpermq(part, part, 0xd8);
    a.vmovups(mem(to), part);
    a.add(to, isa.bytes);
  }
  a.add(rsi, 2 * isa.bytes);
  a.add(r14, isa.bytes);
  a.jmp(loop);
  a.bind(rest);
  a.add(rcx, 2 * isa.lanes);
  a.je(end);
  a.bind(other);
}
