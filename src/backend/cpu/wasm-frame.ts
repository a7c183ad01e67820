import { type DType, sizeOf } from "../../core/dtype.ts";
import { fail } from "../../core/errors.ts";
import { collapse, Layout, numel } from "../../core/layout.ts";
import type { Available, Backend, Block, MemoryStats, ReadInto, View } from "../backend.ts";
import { calledOp } from "../call.ts";
import { Storage } from "../storage.ts";
import { formatBytes, Usage } from "../usage.ts";
import { codes, memoryMap, shiftOf, type WordsOf, words } from "./abi.ts";
import { blockOf, type HeapBlock, isNativeBlock } from "./blocks.ts";
import { CPU_BYTES, Engine, INFO_WORDS } from "./engine.ts";
import type {
  Address,
  Bytes,
  Cols,
  Count,
  DTypeCode,
  Flag,
  Layouts,
  OutAddress,
  Params,
  Rows,
  TmpAddress,
} from "./kernels.ts";
import { settle } from "./native/pending.ts";
import { recording } from "./recording.ts";

/** Ops over less than this stay on one thread, so that small programs start no worker. */
const SHARE_FROM_BYTES = 256 * 1024;
export const NOWHERE = 0 as Address;
export const CONTIGUOUS = 0 as Layouts;

export const code = (dtype: DType): DTypeCode => codes.dtype[dtype];
export const flag = (is: boolean): Flag => Number(is) as Flag;
export const count = (layout: Layout): Count => layout.numel as Count;
/** Only what is in the heap has a place there: an op that forgets to stage fails here, and not in somebody's memory. */
function blockAt(storage: Storage): number {
  const block = blockOf(storage);
  if (isNativeBlock(block)) throw new TypeError("a WebAssembly kernel was given memory outside its heap");
  recording()?.used.add(block);
  return block.at;
}
/** The address of a view's first element. */
export const at = (view: View): Address =>
  (blockAt(view.storage) + view.layout.offset * sizeOf(view.storage.dtype)) as Address;
/** The same, of a view that is written. */
export const outAt = (view: View): OutAddress => at(view) as number as OutAddress;

export abstract class WasmFrame {
  readonly name = "cpu";
  readonly engine = new Engine();
  readonly #info = new Int32Array(this.engine.memory.buffer, memoryMap.INFO, INFO_WORDS);
  protected readonly usage = new Usage();
  readonly #error = new Int32Array(this.engine.memory.buffer, memoryMap.BAD_INDEX, 8);

  get threads(): number {
    return this.engine.threads;
  }

  set threads(n: number) {
    this.engine.threads = n;
  }

  alloc(bytes: number): Block {
    this.startWorkersFor(bytes);
    const block: HeapBlock = { at: this.engine.alloc(bytes), bytes };
    this.usage.add(bytes);
    return block;
  }

  protected startWorkersFor(bytes: number): void {
    if (bytes >= SHARE_FROM_BYTES) this.engine.startWorkers();
  }

  free(block: Block): void {
    this.engine.release((block as HeapBlock).at);
    this.usage.remove(block.bytes);
  }

  memory(): MemoryStats {
    return this.usage.stats(this.engine.cached);
  }

  available(): Available {
    const { available: bytes } = this.engine;
    return { bytes, where: `${formatBytes(bytes)} of the ${formatBytes(CPU_BYTES)} that the device can hold` };
  }

  describe(): string {
    const { threads, variant } = this.engine;
    return `WebAssembly SIMD${variant === "relaxed" ? " with fused multiply-add" : ""}, ${threads} thread${threads === 1 ? "" : "s"}`;
  }

  /** WebAssembly memory cannot be returned to the system. */
  trim(): void {}

  async synchronize(): Promise<void> {
    settle();
  }

  write(dst: Storage, byteOffset: number, data: Uint8Array): void {
    this.engine.bytes(blockAt(dst) + byteOffset, data.byteLength).set(data);
  }

  /** Growing does not move shared memory, so the view stays right while it is read into. */
  receive(dst: Storage, byteOffset: number, byteLength: number, read: ReadInto): Promise<void> {
    return read(this.engine.bytes(blockAt(dst) + byteOffset, byteLength));
  }

  async read(src: Storage, byteOffset: number, byteLength: number): Promise<Uint8Array> {
    return this.readSync(src, byteOffset, byteLength);
  }

  readSync(src: Storage, byteOffset: number, byteLength: number): Uint8Array {
    const out = new Uint8Array(byteLength);
    out.set(this.engine.bytes(blockAt(src) + byteOffset, byteLength));
    return out;
  }

  /** A new storage filled by `run`, which is given its address; nothing runs for zero elements. */
  protected make(this: WasmFrame & Backend, dtype: DType, n: number, run: (out: OutAddress) => void): Storage {
    const storage = Storage.alloc(this, dtype, n);
    if (n === 0) return storage;
    try {
      this.into(storage, run);
    } catch (error) {
      storage.discard();
      throw error;
    }
    return storage;
  }

  /** Calls `run` with the place in the heap where the storage is to be filled. */
  protected into(storage: Storage, run: (out: OutAddress) => void): void {
    run(blockAt(storage) as OutAddress);
  }

  protected temporary<T>(bytes: Bytes, run: (at: TmpAddress) => T): T {
    if (bytes === 0) return run(0 as TmpAddress);
    const tmp = this.engine.alloc(bytes >>> 0) as TmpAddress;
    try {
      return run(tmp);
    } finally {
      this.engine.release(tmp);
    }
  }

  /** The address of the view's elements in row-major order: its own, or that of a temporary copy; 0 for no view. */
  protected packed<T>(view: View | null, run: (at: Address) => T): T {
    if (!view) return run(NOWHERE);
    if (view.layout.isContiguous()) return run(at(view));
    const { dtype } = view.storage;
    const n = count(view.layout);
    return this.temporary((n * sizeOf(dtype)) as Bytes, (to: number) => {
      const info = this.layouts(view.layout, Layout.contiguous(view.layout.shape));
      this.engine.kernels.copy(shiftOf(dtype), n, info, at(view), to as OutAddress);
      return run(to as Address);
    });
  }

  protected rows(layout: Layout, dims: number): [rows: Rows, cols: Cols] {
    const split = layout.rank - dims;
    return [numel(layout.shape.slice(0, split)) as Rows, numel(layout.shape.slice(split)) as Cols];
  }

  /** Writes merged dims and strides for the kernels. */
  protected layouts(...layouts: Layout[]): Layouts {
    if (layouts.every((l) => l.isContiguous())) return CONTIGUOUS;
    const { shape, strides } = collapse(layouts);
    if (shape.length === 0) return CONTIGUOUS;
    return this.put([shape.length, ...shape, ...strides.flat()]);
  }

  protected put(words: readonly number[]): Layouts {
    this.#info.set(words);
    return memoryMap.INFO as Layouts;
  }

  /** Writes the words of a kernel that takes many, in their order. */
  protected params<K extends keyof typeof words>(kernel: K, values: WordsOf<K>): Params {
    const named = values as Readonly<Record<string, number | readonly number[]>>;
    const info = this.#info;
    let place = 0;
    for (const name in words[kernel]) {
      const value = named[name]!;
      if (typeof value === "number") info[place++] = value;
      else for (const word of value) info[place++] = word;
    }
    return memoryMap.INFO as Params;
  }

  protected checkIndex(op: string, size: number, dim: number): void {
    recording()?.add(() => this.checkIndex(op, size, dim));
    if (this.#error[0] === 0) return;
    const [id, position] = new BigInt64Array(this.engine.memory.buffer, memoryMap.BAD_INDEX + 8, 2) as unknown as [
      bigint,
      bigint,
    ];
    this.#error[0] = 0;
    fail(
      "InvalidIndex",
      `${calledOp(op)}: id ${id} at position ${position} is out of range for dim ${dim} of size ${size}`,
    );
  }
}
