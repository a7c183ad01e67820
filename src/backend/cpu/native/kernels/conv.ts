/**
 * Convolutions of f32 as products of weights (o × c·kh·kw) with patches that never exist as a whole: one line of patches
 * is a line of the image, `offsets[k]` bytes further, as long as neighbouring outputs read neighbouring inputs. Where they
 * do not, or read the padding, the image is spread first (`emitSpread`): padded, and for a stride s cut into the s × s
 * images of every s-th row and column. An item is some rows of outputs of one image and group.
 */
import type { Assembler } from "../assembler.ts";
import { enter, layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import {
  d,
  eax,
  k1,
  k2,
  k3,
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
import { Simd } from "../simd.ts";
import { emitCopyRows, emitMode, MOST_ROWS } from "./product.ts";
import { A_ROW, KC, tileShape } from "./tile.ts";

const PANEL_AT = 2 ** 18;

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
  /** Bytes of one channel of the result. */
  "channel",
  "groups",
  "outs",
  "k",
  "height",
  "width",
  /** Rows of outputs in an item, and items of an image and group. */
  "rows",
  "blocks",
);

export function emitConv(a: Assembler, isa: Isa): void {
  const simd = new Simd(a, isa);
  const shape = tileShape(isa);
  const start = a.label();
  a.jmp(start);
  const copyRows = emitCopyRows(simd, "f32");
  const lines = emitPackLines(simd);
  a.bind(start);
  const { local, leave } = enter(
    a,
    ...([
      "end",
      "imageAt",
      "wAt",
      "outAt",
      "firstRow",
      "endRow",
      "o",
      "outsHere",
      "p",
      "steps",
      "row",
      "j",
      "rowsLeft",
    ] as const),
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
  a.imul(rdx, arg.rows);
  a.mov(local.firstRow, rdx);
  a.add(rdx, arg.rows);
  a.cmp(rdx, arg.height);
  a.cmova(rdx, arg.height);
  a.mov(local.endRow, rdx);
  a.mov(rcx, rax); // batch · groups + group
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
  a.imul(rcx, arg.outs);
  a.imul(rcx, arg.channel);
  a.add(rcx, arg.out);
  a.mov(local.outAt, rcx);

  a.mov(local.o, 0);
  const outputs = a.here();
  a.mov(rax, arg.outs);
  a.sub(rax, local.o);
  a.mov(d(rcx), MOST_ROWS);
  a.cmp(rax, rcx);
  a.cmova(rax, rcx);
  a.mov(local.outsHere, rax);
  a.mov(local.p, 0);
  const stretches = a.here();
  a.mov(rcx, arg.k);
  a.sub(rcx, local.p);
  a.mov(d(rax), KC);
  a.cmp(rcx, rax);
  a.cmova(rcx, rax);
  a.mov(local.steps, rcx);
  a.mov(rdi, local.o);
  a.imul(rdi, arg.wRow);
  a.add(rdi, local.wAt);
  a.mov(rax, local.p);
  a.lea(rdi, mem(rdi, { index: rax, scale: 4 }));
  a.mov(rsi, arg.wRow);
  a.mov(rdx, 4);
  a.mov(r8, scratch);
  a.mov(r9, local.outsHere);
  a.call(copyRows);
  a.mov(rax, local.firstRow);
  a.mov(local.row, rax);
  const rows = a.here();
  a.mov(local.j, 0);
  const panels = a.here();
  a.mov(rax, local.j);
  a.mov(rdi, local.row);
  a.imul(rdi, arg.imageRow);
  a.add(rdi, local.imageAt);
  a.lea(rdi, mem(rdi, { index: rax, scale: 4 }));
  a.mov(rsi, arg.offsets);
  a.mov(rcx, local.p);
  a.lea(rsi, mem(rsi, { index: rcx, scale: 4 }));
  a.mov(r9, arg.width);
  a.sub(r9, rax);
  a.mov(rcx, local.steps);
  a.lea(r8, mem(scratch, PANEL_AT));
  a.call(lines);
  a.mov(rcx, arg.width);
  a.sub(rcx, local.j);
  a.mov(rax, local.p);
  emitMode(a, isa);
  a.lea(rsi, mem(scratch, PANEL_AT));
  a.mov(rdi, scratch);
  a.mov(rdx, local.steps);
  a.mov(r9, arg.channel);
  a.mov(r8, local.o);
  a.imul(r8, r9);
  a.add(r8, local.outAt);
  a.mov(rax, local.row);
  a.imul(rax, arg.width);
  a.add(rax, local.j);
  a.lea(r8, mem(r8, { index: rax, scale: 4 }));
  a.mov(rax, local.outsHere);
  a.mov(local.rowsLeft, rax);
  const tiles = a.here();
  a.mov(rax, local.rowsLeft);
  a.mov(d(rcx), shape.rows);
  a.cmp(rax, rcx);
  a.cmova(rax, rcx);
  a.call(arg.tiles);
  a.add(rdi, shape.rows * A_ROW);
  a.sub(local.rowsLeft, shape.rows);
  a.jg(tiles);
  a.add(local.j, shape.columns);
  a.mov(rax, local.j);
  a.cmp(rax, arg.width);
  a.jb(panels);
  a.add(local.row, 1);
  a.mov(rax, local.row);
  a.cmp(rax, local.endRow);
  a.jb(rows);
  a.mov(rax, local.p);
  a.add(rax, local.steps);
  a.mov(local.p, rax);
  a.cmp(rax, arg.k);
  a.jb(stretches);
  a.add(local.o, MOST_ROWS);
  a.mov(rax, local.o);
  a.cmp(rax, arg.outs);
  a.jb(outputs);
  a.add(item, 1);
  a.jmp(items);
  a.bind(done);
  leave();
}

/** rcx lines of a panel at r8, each from rdi plus its offset at rsi; r9 columns are left. Uses rax, rsi, rcx, r8, r10. */
function emitPackLines(simd: Simd): Label {
  const { a, isa } = simd;
  const { columns, vectors, lineBytes } = tileShape(isa);
  const partial = a.label();
  const entry = a.here();
  a.cmp(r9, columns);
  a.jb(partial);
  const body = (load: (v: number) => void) => {
    const loop = a.here();
    a.mov(eax, mem(rsi));
    for (let v = 0; v < vectors; v++) {
      load(v);
      a.vmovups(mem(r8, v * isa.bytes), isa.v(v));
    }
    a.add(rsi, 4);
    a.add(r8, lineBytes);
    a.sub(rcx, 1);
    a.jne(loop);
    a.ret();
  };
  const place = (v: number) => mem(rdi, { index: rax, disp: v * isa.bytes });
  body((v) => a.vmovups(isa.v(v), place(v)));
  a.bind(partial);
  if (isa.masks) {
    a.mov(rax, -1);
    a.bzhi(rax, rax, r9);
    for (const [v, mask] of [k1, k2, k3].entries()) {
      if (v > 0) a.shr(rax, 16);
      a.kmovw(mask, eax);
    }
    body((v) => a.vmovups(isa.v(v).kz([k1, k2, k3][v]!), place(v)));
  } else {
    const table = a.i32(...Array<number>(columns).fill(-1), ...Array<number>(columns).fill(0));
    a.lea(r10, table.plus(4 * columns));
    a.mov(rax, r9);
    a.neg(rax);
    for (let v = 0; v < vectors; v++) {
      a.vmovdqu(isa.v(4 + v), mem(r10, { index: rax, scale: 4, disp: v * isa.bytes }));
    }
    body((v) => a.vmaskmovps(isa.v(v), isa.v(4 + v), place(v)));
  }
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
  "left",
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
  a.mov(rax, local.row);
  a.add(rax, arg.top);
  a.mov(rdx, 0);
  a.div(arg.strideRows);
  a.imul(rax, arg.imageRow);
  a.imul(rdx, arg.strideColumns);
  a.imul(rdx, arg.image);
  a.add(rax, rdx);
  a.add(rax, plane);
  a.mov(r14, rax);
  a.mov(rax, arg.left);
  a.mov(rdx, 0);
  a.div(arg.strideColumns);
  a.lea(r14, mem(r14, { index: rax, scale: 4 }));
  a.mov(r15, rdx); // which image of the row the next element goes to
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
