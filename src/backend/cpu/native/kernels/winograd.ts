/**
 * Convolutions of 3 × 3 taps by Winograd's F(2 × 2, 3 × 3): sixteen products of sums of weights with sums of 4 × 4 inputs give
 * a tile of four outputs, which would take 36. Over all channels they are sixteen products of matrices. Each output is made of
 * the very inputs that it has in the plain sum, but where that is infinite, or nearly, this may be no number: images with
 * results that are not finite are marked, and computed again by the plain sum.
 */
import type { Assembler } from "../assembler.ts";
import { enter, layoutArguments } from "../frame.ts";
import type { Isa } from "../isa.ts";
import {
  d,
  eax,
  type Gpr,
  k2,
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
  type Vec,
} from "../operands.ts";
import { Simd, tail } from "../simd.ts";
import { place, tileShape, VECTORS_SHIFT } from "./tile.ts";

/** Inputs of a tile, products of a tile. */
const SIDE = 4;
export const PRODUCTS = SIDE * SIDE;
const UNORDERED = 3;

export const winogradArguments = layoutArguments(
  "tiles",
  "image",
  "imageBatch",
  "imageChannel",
  "imageRow",
  "channels",
  "height",
  "top",
  /** Of a row of the image: pairs of vectors before the last one, whether that is whole, and elements of the last vector. */
  "pairs",
  "isPair",
  "rest",
  /** Bytes of a padded row, whose even elements come first, and where those and the others begin. */
  "paddedRow",
  "half",
  "evenTo",
  "oddTo",
  "paddedBytes",
  /** Sums of weights: all of one product, and of an output channel. */
  "weights",
  "weightsPlane",
  "weightsRow",
  "out",
  "outs",
  "outHeight",
  "outRow",
  "outPlane",
  /** Outputs of a row beyond whole pairs of vectors: whether they are more than a vector, and those of the last one. */
  "isLong",
  "outRest",
  /** Rows of tiles of an image and of an item, tiles of a row, and vectors of them. */
  "tileRows",
  "rows",
  "columns",
  "chunks",
  /** Items of an image: blocks of rows, and of output channels. */
  "blocks",
  "parts",
  "outsOfPart",
  /** Bytes from one channel's tiles to the next one's; the thread's memory for inputs and for products, and of each product. */
  "tilesRow",
  "inputs",
  "inputsPlane",
  "products",
  "productsPlane",
  "marks",
);
type Arguments = ReturnType<typeof winogradArguments.at>;

const locals = [
  "end",
  "item",
  "scratch",
  /** Rows of tiles, and vectors of all of them. */
  "rows",
  "vectors",
  "from",
  "to",
  "copied",
  "weights",
  "outs",
  "outAt",
  "outRows",
  "mark",
  "count",
  "at",
  "products",
  "left",
] as const;
type Locals = Readonly<Record<(typeof locals)[number], Mem>>;

/** Items are blocks of rows of tiles, and of output channels. */
export function emitWinograd(a: Assembler, isa: Isa): void {
  const simd = new Simd(a, isa);
  const { local, leave } = enter(a, ...locals);
  const arg = winogradArguments.at(rbx);
  const done = a.label();
  a.mov(rbx, rdi);
  a.mov(local.item, rsi);
  a.mov(local.end, rdx);
  a.mov(local.scratch, rcx);
  const items = a.here();
  a.mov(rax, local.item);
  a.cmp(rax, local.end);
  a.jae(done);
  emitItem(a, isa, arg, local);
  emitInputs(simd, arg, local);
  emitProducts(a, isa, arg, local);
  emitOutputs(simd, arg, local);
  a.add(local.item, 1);
  a.jmp(items);
  a.bind(done);
  leave();
}

/** What an item is of, with its number in rax. */
function emitItem(a: Assembler, isa: Isa, arg: Arguments, local: Locals): void {
  a.mov(rdx, 0);
  a.div(arg.parts);
  a.imul(rdx, arg.outsOfPart);
  a.mov(rcx, arg.outs);
  a.sub(rcx, rdx);
  a.cmp(rcx, arg.outsOfPart);
  a.cmova(rcx, arg.outsOfPart);
  a.mov(local.outs, rcx);
  a.mov(r8, rdx); // the first output channel
  a.imul(rdx, arg.weightsRow);
  a.add(rdx, arg.weights);
  a.mov(local.weights, rdx);
  a.mov(rdx, 0);
  a.div(arg.blocks);
  a.mov(rcx, arg.marks);
  a.lea(rcx, mem(rcx, { index: rax, scale: 4 }));
  a.mov(local.mark, rcx);
  a.mov(rcx, arg.image);
  a.mov(r9, rax);
  a.imul(r9, arg.imageBatch);
  a.add(rcx, r9);
  a.imul(rax, arg.outs);
  a.add(rax, r8);
  a.imul(rax, arg.outPlane);
  a.imul(rdx, arg.rows);
  a.mov(r9, arg.tileRows);
  a.sub(r9, rdx);
  a.cmp(r9, arg.rows);
  a.cmova(r9, arg.rows);
  a.mov(local.rows, r9);
  a.mov(r10, r9);
  a.imul(r10, arg.columns);
  a.add(r10, isa.lanes - 1);
  a.shr(r10, Math.log2(isa.lanes));
  a.mov(local.vectors, r10);
  a.add(rdx, rdx);
  a.mov(r10, arg.outHeight);
  a.sub(r10, rdx);
  a.mov(local.outRows, r10);
  a.mov(r10, rdx);
  a.imul(r10, arg.outRow);
  a.add(rax, r10);
  a.add(rax, arg.out);
  a.mov(local.outAt, rax);
  // Of the 2 · rows + 2 rows that it reads those that the image has: the others stay zero.
  const first = r8;
  a.sub(rdx, arg.top);
  a.mov(r10, 0);
  a.mov(first, rdx);
  a.neg(first);
  a.cmovl(first, r10);
  a.lea(r9, mem(r9, { index: r9, disp: 2 }));
  a.mov(rax, arg.height);
  a.sub(rax, rdx);
  a.cmp(rax, r9);
  a.cmovg(rax, r9);
  a.sub(rax, first);
  a.cmovl(rax, r10);
  a.mov(local.copied, rax);
  a.add(rdx, first);
  a.imul(rdx, arg.imageRow);
  a.add(rcx, rdx);
  a.mov(local.from, rcx);
  a.imul(first, arg.paddedRow);
  a.add(first, local.scratch);
  a.mov(local.to, first);
}

/** Every channel: its rows padded, even elements and odd ones apart, and the sums of each tile's 4 × 4. */
function emitInputs(simd: Simd, arg: Arguments, local: Locals): void {
  const { a, isa } = simd;
  const [rows, row, noRows, column] = [a.label(), a.label(), a.label(), a.label()];
  a.mov(rdi, local.scratch);
  a.mov(rcx, arg.paddedBytes);
  simd.zero(isa.v(0));
  const zeros = a.here();
  a.vmovups(mem(rdi), isa.v(0));
  a.add(rdi, isa.bytes);
  a.sub(rcx, isa.bytes);
  a.jne(zeros);
  a.mov(tail, arg.rest);
  simd.prepareTail();
  const order = isa.v(isa.registers - 1);
  if (isa.masks) a.vmovdqu64(order, a.data(new Uint8Array(BigInt64Array.of(0n, 2n, 4n, 6n, 1n, 3n, 5n, 7n).buffer)));
  a.mov(rax, local.scratch);
  a.add(rax, arg.inputs);
  a.mov(local.at, rax);
  a.mov(rax, arg.channels);
  a.mov(local.count, rax);

  const channels = a.here();
  a.mov(r13, local.copied);
  a.mov(rsi, local.from);
  a.mov(rdi, local.to);
  a.test(r13, r13);
  a.je(noRows);
  a.bind(rows);
  a.mov(r8, arg.evenTo);
  a.add(r8, rdi);
  a.mov(r9, arg.oddTo);
  a.add(r9, rdi);
  a.mov(r10, rsi);
  const [x, y, even, odd] = [isa.v(0), isa.v(1), isa.v(2), isa.v(3)];
  const part = () => {
    a.vshufps(even, x, y, 0x88);
    a.vshufps(odd, x, y, 0xdd);
    for (const half of [even, odd]) {
      if (isa.masks) a.vpermq(half, order, half);
      else a.vpermq(half, half, 0xd8);
    }
    a.vmovups(mem(r8), even);
    a.vmovups(mem(r9), odd);
  };
  const [last, single, parted] = [a.label(), a.label(), a.label()];
  a.mov(rcx, arg.pairs);
  const pairs = a.here();
  a.sub(rcx, 1);
  a.jl(last);
  a.vmovups(x, mem(r10));
  a.vmovups(y, mem(r10, isa.bytes));
  part();
  a.add(r10, 2 * isa.bytes);
  a.add(r8, isa.bytes);
  a.add(r9, isa.bytes);
  a.jmp(pairs);
  a.bind(last);
  a.cmp(arg.isPair, 0);
  a.je(single);
  a.vmovups(x, mem(r10));
  simd.loadTail(y, "f32", mem(r10, isa.bytes));
  a.jmp(parted);
  a.bind(single);
  simd.loadTail(x, "f32", mem(r10));
  simd.zero(y);
  a.bind(parted);
  part();
  a.add(rsi, arg.imageRow);
  a.add(rdi, arg.paddedRow);
  a.sub(r13, 1);
  a.jne(rows);
  a.bind(noRows);

  const [evens, odds, stride, three] = [rsi, rdx, rcx, rbp];
  const [plane, planes] = [r14, r15];
  const bases = [rdi, r8, r9, r10];
  a.mov(evens, local.scratch);
  a.mov(odds, evens);
  a.add(odds, arg.half);
  a.mov(stride, arg.paddedRow);
  a.lea(three, mem(stride, { index: stride, scale: 2 }));
  a.mov(rdi, local.at);
  emitBases(a, bases, arg.inputsPlane, plane, planes);
  a.mov(r13, local.rows);
  a.bind(row);
  a.mov(r12, arg.chunks);
  a.align(16);
  a.bind(column);
  // Sums of two elements of each row: these minus those, or both.
  const at = (i: number, element: number) =>
    place(element % 2 === 0 ? evens : odds, i, stride, three, 2 * (element & 2));
  for (const [j, [first, second]] of PAIRS.entries()) {
    const h = [0, 1, 2, 3].map((i) => isa.v(4 * (j % 2) + i)) as [Vec, Vec, Vec, Vec];
    const t = isa.v(8 + (j % 2));
    const combine = (to: Vec, p: Vec, q: Vec | Mem, isSum: boolean) =>
      isSum ? a.vaddps(to, p, q) : a.vsubps(to, p, q);
    for (const [i, register] of h.entries()) {
      a.vmovups(register, at(i, first));
      combine(register, register, at(i, second), j === 1);
    }
    for (const [i, [p, q]] of PAIRS.entries()) {
      combine(t, h[p]!, h[q]!, i === 1);
      a.vmovups(place(bases[i]!, j, plane, planes, 0), t);
    }
  }
  for (const register of [evens, odds, ...bases]) a.add(register, isa.bytes);
  a.sub(r12, 1);
  a.jne(column);
  // Back to the first tile of the row, and on to the next one.
  a.mov(rax, arg.chunks);
  a.shl(rax, Math.log2(isa.bytes));
  for (const register of [evens, odds]) {
    a.sub(register, rax);
    a.lea(register, mem(register, { index: stride, scale: 2 }));
  }
  a.neg(rax);
  a.mov(r12, arg.columns);
  a.lea(rax, mem(rax, { index: r12, scale: 4 }));
  for (const base of bases) a.add(base, rax);
  a.sub(r13, 1);
  a.jne(row);

  a.mov(rax, arg.imageChannel);
  a.add(local.from, rax);
  a.mov(rax, arg.tilesRow);
  a.add(local.at, rax);
  a.sub(local.count, 1);
  a.jne(channels);
}

/** Which of four inputs a sum is made of: the first minus the second, but both in the second sum. */
const PAIRS = [
  [0, 2],
  [1, 2],
  [2, 1],
  [1, 3],
] as const;

/** The first of four planes each, from the first base on; `planes` is three of them. */
function emitBases(a: Assembler, bases: readonly Gpr[], bytes: Mem, plane: Gpr, planes: Gpr): void {
  a.mov(plane, bytes);
  a.lea(planes, mem(plane, { index: plane, scale: 2 }));
  for (const [i, base] of bases.entries()) if (i > 0) a.lea(base, mem(bases[i - 1]!, { index: plane, scale: 4 }));
}

function emitProducts(a: Assembler, isa: Isa, arg: Arguments, local: Locals): void {
  const { vectors, lineBytes } = tileShape(isa);
  a.mov(rax, local.scratch);
  a.mov(rcx, rax);
  a.add(rax, arg.inputs);
  a.mov(local.at, rax);
  a.add(rcx, arg.products);
  a.mov(local.products, rcx);
  a.mov(local.count, PRODUCTS);
  const planes = a.here();
  a.mov(r13, 0);
  a.mov(r14, local.vectors);
  const panels = a.here();
  a.mov(r10, vectors);
  a.cmp(r14, r10);
  a.cmovb(r10, r14);
  a.shl(r10, VECTORS_SHIFT);
  a.mov(rdi, local.weights);
  a.mov(rcx, arg.weightsRow);
  a.mov(rsi, local.at);
  a.add(rsi, r13);
  a.mov(rbp, arg.tilesRow);
  a.mov(rdx, arg.channels);
  a.mov(r8, local.products);
  a.add(r8, r13);
  a.mov(r9, rbp);
  a.mov(rax, local.outs);
  a.call(arg.tiles);
  a.add(r13, lineBytes);
  a.sub(r14, vectors);
  a.jg(panels);
  a.mov(rax, arg.weightsPlane);
  a.add(local.weights, rax);
  a.mov(rax, arg.inputsPlane);
  a.add(local.at, rax);
  a.mov(rax, arg.productsPlane);
  a.add(local.products, rax);
  a.sub(local.count, 1);
  a.jne(planes);
}

/** Sums of products are four outputs of a tile, in two rows. */
function emitOutputs(simd: Simd, arg: Arguments, local: Locals): void {
  const { a, isa } = simd;
  const bases = [rsi, r8, r9, rdx];
  const [plane, planes, upper, lower, next] = [r14, r15, rdi, rbp, rcx];
  const order = isa.masks ? [isa.v(16), isa.v(17)] : [];
  for (const [h, register] of order.entries()) {
    const index = Int32Array.from(
      { length: isa.lanes },
      (_, i) => (isa.lanes / 2) * h + (i >> 1) + isa.lanes * (i & 1),
    );
    a.vmovups(register, a.data(new Uint8Array(index.buffer)));
  }
  const sound = isa.v(14);
  simd.zero(sound);
  a.mov(tail, arg.outRest);
  simd.prepareTail();
  a.mov(rax, local.scratch);
  a.add(rax, arg.products);
  a.mov(local.products, rax);
  const channels = a.here();
  a.mov(rsi, local.products);
  emitBases(a, bases, arg.productsPlane, plane, planes);
  a.mov(upper, local.outAt);
  a.mov(rax, local.outRows);
  a.mov(local.left, rax);
  a.mov(r13, local.rows);
  const row = a.here();
  // Where there is no second row, the first one is written over it.
  a.mov(lower, upper);
  a.mov(rax, arg.outRow);
  a.mov(next, upper);
  a.add(next, rax);
  a.cmp(local.left, 1);
  a.cmova(lower, next);
  a.add(next, rax);
  a.push(next);
  a.mov(r12, arg.chunks);
  const [last, long, stored] = [a.label(), a.label(), a.label()];
  a.align(16);
  const column = a.here();
  const sums = emitTileSums(simd, bases, plane, planes);
  for (const base of bases) a.add(base, isa.bytes);
  a.sub(r12, 1);
  a.je(last);
  const zero = isa.v(9);
  /** A row's vectors to memory, `whole` of them whole, and the next one's last elements. */
  const store = (whole: number, hasRest: boolean) => {
    simd.zero(zero);
    for (const [i, to] of [lower, upper].entries()) {
      const [x, y] = sums[1 - i]!;
      const [low, high] = interleave(simd, x, y, isa.v(0), isa.v(1), order);
      for (const [h, register] of [low, high].entries()) {
        if (h > whole || (h === whole && !hasRest)) continue;
        if (h < whole) a.vmovups(mem(to, h * isa.bytes), register);
        else {
          simd.clearBeyondTail(register);
          simd.storeTail(mem(to, h * isa.bytes), "f32", register, register, register);
        }
        a.vfmadd231ps(sound, register, zero);
      }
    }
  };
  store(2, false);
  a.add(upper, 2 * isa.bytes);
  a.add(lower, 2 * isa.bytes);
  a.jmp(column);
  a.bind(last);
  a.cmp(arg.isLong, 0);
  a.jne(long);
  store(0, true);
  a.jmp(stored);
  a.bind(long);
  store(1, true);
  a.bind(stored);
  a.pop(upper);
  a.mov(rax, arg.columns);
  a.shl(rax, 2);
  a.mov(r12, arg.chunks);
  a.shl(r12, Math.log2(isa.bytes));
  a.sub(rax, r12);
  for (const base of bases) a.add(base, rax);
  a.sub(local.left, 2);
  a.sub(r13, 1);
  a.jne(row);
  a.mov(rax, arg.tilesRow);
  a.add(local.products, rax);
  a.mov(rax, arg.outPlane);
  a.add(local.outAt, rax);
  a.sub(local.outs, 1);
  a.jne(channels);
  const end = a.label();
  if (isa.masks) {
    a.vcmpps(k2, sound, sound, UNORDERED);
    a.kortestw(k2, k2);
  } else {
    a.vcmpps(sound, sound, sound, UNORDERED);
    a.vmovmskps(eax, sound);
    a.test(d(rax), d(rax));
  }
  a.je(end);
  a.mov(r11, local.mark);
  a.mov(mem(r11, { bits: 32 }), 1);
  a.bind(end);
}

/** The four outputs of a vector of tiles, by row. Uses the registers below ten. */
function emitTileSums(
  { a, isa }: Simd,
  bases: readonly Gpr[],
  plane: Gpr,
  planes: Gpr,
): readonly (readonly [Vec, Vec])[] {
  const v = (id: number) => isa.v(id);
  const [t, u] = [v(8), v(9)];
  for (let j = 0; j < SIDE; j++) {
    const [sum, difference] = [v(j), v(SIDE + j)];
    const product = (i: number) => place(bases[i]!, j, plane, planes, 0);
    a.vmovups(t, product(1));
    a.vmovups(u, product(2));
    a.vaddps(sum, t, u);
    a.vaddps(sum, sum, product(0));
    a.vsubps(difference, t, u);
    a.vsubps(difference, difference, product(3));
  }
  return [0, 1].map((i) => {
    const [s0, s1, s2, s3] = [0, 1, 2, 3].map((j) => v(SIDE * i + j)) as [Vec, Vec, Vec, Vec];
    const [first, second] = [v(10 + 2 * i), v(11 + 2 * i)];
    a.vaddps(first, s1, s2);
    a.vaddps(first, first, s0);
    a.vsubps(second, s1, s2);
    a.vsubps(second, second, s3);
    return [first, second] as const;
  });
}

/** x and y in turns, in two vectors: `t` and `u`, or x. */
function interleave({ a, isa }: Simd, x: Vec, y: Vec, t: Vec, u: Vec, order: readonly Vec[]): readonly [Vec, Vec] {
  if (isa.masks) {
    a.vmovaps(t, x);
    a.vpermt2ps(t, order[0]!, y);
    a.vpermt2ps(x, order[1]!, y);
    return [t, x];
  }
  a.vunpcklps(t, x, y);
  a.vunpckhps(u, x, y);
  a.vperm2f128(x, t, u, 0x31);
  a.vperm2f128(t, t, u, 0x20);
  return [t, x];
}
