/** Rows of an image with the padding's zeros around them, in the thread's memory. */
import { type Label, type Mem, mem, r8, r9, r12, r13, r14, rax, rbp, rcx, rdi, rdx, rsi } from "../operands.ts";
import { type Simd, tail } from "../simd.ts";

/** Where the kernel finds what the copy needs. */
export interface RowArguments {
  readonly imageChannel: Mem;
  readonly imageRow: Mem;
  readonly rows: Mem;
  readonly rowBytes: Mem;
  readonly channels: Mem;
  readonly height: Mem;
  readonly columnsOfImage: Mem;
  readonly stride: Mem;
  readonly top: Mem;
  readonly left: Mem;
}

/**
 * The rows that outputs from row `first` on read, of every channel of the image at rdi, to `offset` bytes behind `scratch`. Each
 * ends in zeros, which reach into the next one, and that covers them. Uses rdi and what its code names.
 */
export function emitCopyRows(simd: Simd, arg: RowArguments, first: Mem, scratch: Mem, offset: number): void {
  const { a, isa } = simd;
  const [to, from, row, y, rows, at, next] = [r8, r9, rsi, rbp, r13, rcx, rdx];
  const [zero, value] = [isa.v(0), isa.v(1)];
  const zeros = (bytes: Mem, end: Label) => {
    const top = a.here();
    a.cmp(at, bytes);
    a.jge(end);
    a.vmovups(mem(to, { index: at }), zero);
    a.add(at, isa.bytes);
    a.jmp(top);
  };
  simd.zero(zero);
  a.mov(tail, arg.columnsOfImage);
  a.and(tail, isa.lanes - 1);
  simd.prepareTail();
  // The first row, which may be above the image.
  a.mov(rax, first);
  a.imul(rax, arg.stride);
  a.sub(rax, arg.top);
  a.mov(r12, rax);
  a.imul(rax, arg.imageRow);
  a.add(rdi, rax);
  a.mov(to, scratch);
  a.add(to, offset);
  // The next channel's rows are fetched meanwhile: they are too short for the processor to see a pattern.
  a.mov(next, arg.imageChannel);
  a.mov(r14, arg.channels);
  const channels = a.here();
  a.mov(from, rdi);
  a.mov(y, r12);
  a.mov(rows, arg.rows);
  const eachRow = a.here();
  const [outside, copied, ended, single] = [a.label(), a.label(), a.label(), a.label()];
  a.mov(at, 0);
  a.test(y, y);
  a.js(outside);
  a.cmp(y, arg.height);
  a.jae(outside);
  zeros(arg.left, copied);
  a.bind(copied);
  a.mov(at, arg.left);
  a.mov(row, from);
  a.mov(rax, arg.columnsOfImage);
  const vectors = a.here();
  a.sub(rax, isa.lanes);
  a.jb(single);
  a.vmovups(value, mem(row));
  a.prefetcht0(mem(row, { index: next }));
  a.vmovups(mem(to, { index: at }), value);
  a.add(row, isa.bytes);
  a.add(at, isa.bytes);
  a.jmp(vectors);
  a.bind(single);
  a.add(rax, isa.lanes);
  a.je(outside);
  simd.loadTail(value, "f32", mem(row));
  a.vmovups(mem(to, { index: at }), value);
  a.add(at, isa.bytes);
  a.bind(outside);
  zeros(arg.rowBytes, ended);
  a.bind(ended);
  a.add(to, arg.rowBytes);
  a.add(from, arg.imageRow);
  a.add(y, 1);
  a.sub(rows, 1);
  a.jne(eachRow);
  a.add(rdi, next);
  a.sub(r14, 1);
  a.jne(channels);
}
