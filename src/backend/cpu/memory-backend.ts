/**
 * The memory of the CPU device. Tensors are in the heap while they fit, for that is where every kernel reaches them; what
 * does not fit is native memory, and weights are a file's own pages: in the heap's place, or in native memory.
 */
import { freemem, totalmem } from "node:os";
import { chosen } from "../../core/environment.ts";
import { fail } from "../../core/errors.ts";
import type { Available, Block, FileRange, MemoryStats, OpenFile, ReadInto } from "../backend.ts";
import { ffi } from "../ffi.ts";
import type { Storage } from "../storage.ts";
import { formatBytes } from "../usage.ts";
import { addressOfStorage, blockOf, type CpuBlock, type HeapBlock, isNativeBlock } from "./blocks.ts";
import { CPU_BYTES } from "./engine.ts";
import type { OutAddress } from "./kernels.ts";
import { hasLibc, libc } from "./libc.ts";
import { settle } from "./native/pending.ts";
import { allocatePages, MappedFile, requireFileRange, systemBytes } from "./native-memory.ts";
import { recording } from "./recording.ts";
import { WasmBackend } from "./wasm-backend.ts";

/** Blocks from this size on leave room in the heap, for small ones and for what is staged. */
const LARGE = 2 ** 20;
const HEAP_RESERVE = 2 ** 29;
/** Files leave more of it: what is computed has no other place as good, and they have. */
const HEAP_FOR_FILES = CPU_BYTES / 2;

export interface CpuMemoryOptions {
  /** Tensors are in native memory whatever their size, so that tests see every op there. */
  readonly allNative?: boolean;
}

export class MemoryBackend extends WasmBackend {
  /** Not there where files are not to be mapped. */
  readonly map?: (range: FileRange) => Block | null;
  readonly #allNative: boolean;
  readonly #files = new Map<OpenFile, MappedFile>();
  #mapped = 0;
  #inHeap = false;

  constructor({ allNative = false }: CpuMemoryOptions = {}) {
    super();
    this.#allNative = allNative;
    if (hasLibc() && chosen("WICK_MMAP") !== "0") this.map = (range) => this.#map(range);
  }

  override alloc(bytes: number): Block {
    if (this.takesHeap(bytes)) {
      const block = this.allocInHeap(bytes);
      if (block) return block;
    }
    const system = libc();
    if (!system) return super.alloc(bytes);
    recording()?.refuse("tensors do not fit into WebAssembly's memory");
    const there = bytes < LARGE ? Number.POSITIVE_INFINITY : systemBytes();
    const block = bytes <= there ? allocatePages(system, bytes) : null;
    if (!block) {
      const given = formatBytes(Number.isFinite(there) ? there : freemem());
      return fail(
        "OutOfMemory",
        `cpu: cannot allocate ${formatBytes(bytes)}: tensors hold ${formatBytes(this.usage.live)}, and the system can give ${given} more. Dispose tensors, use a scope(), or a smaller dtype`,
      );
    }
    this.startWorkersFor(bytes);
    this.usage.add(bytes);
    return block;
  }

  override free(block: Block): void {
    const own = block as CpuBlock;
    if (isNativeBlock(own)) {
      settle();
      own.release();
      this.#mapped -= own.length - own.bytes;
      this.usage.remove(own.bytes);
    } else if (own.mapped) {
      settle();
      const { start, first, bytes, length } = own.mapped;
      // Should the system not give the heap its own pages back, they stay the file's, and nobody's.
      if (libc()!.allocate(bytes, this.engine.base + first) !== null) this.engine.release(start);
      this.#mapped -= length;
      this.usage.remove(0);
    } else super.free(own);
  }

  #map(range: FileRange): Block | null {
    if (!libc() || range.bytes === 0) return null;
    requireFileRange(range);
    settle();
    const { file, start, bytes } = range;
    const block =
      this.#allNative || this.engine.available - bytes < HEAP_FOR_FILES
        ? this.#fileOf(file)?.block(start, bytes)
        : this.#mapInHeap(range);
    if (!block) return null;
    this.#mapped += bytes;
    this.usage.add(0);
    return block;
  }

  override memory(): MemoryStats {
    return { ...super.memory(), mapped: this.#mapped };
  }

  override available(): Available {
    if (!hasLibc()) return super.available();
    const { live, peak } = super.memory();
    const bytes = systemBytes() + Math.min(this.engine.cached, peak - live);
    const near = Math.min(bytes, Math.max(0, this.engine.available - HEAP_RESERVE));
    return { bytes, near, where: `${formatBytes(bytes)} of the machine's ${formatBytes(totalmem())}` };
  }

  /** Of what nobody uses the system gets the pages back; the addresses stay. */
  override trim(): void {
    settle();
    const system = libc();
    if (system) this.engine.eachFree((at, bytes) => system.discard(this.engine.base + at, bytes));
  }

  override write(dst: Storage, byteOffset: number, data: Uint8Array): void {
    if (!isNativeBlock(blockOf(dst))) {
      super.write(dst, byteOffset, data);
      return;
    }
    copyBytes(addressOfStorage(dst) + byteOffset, Number(ffi().address(data)), data.byteLength);
  }

  override async receive(dst: Storage, byteOffset: number, byteLength: number, read: ReadInto): Promise<void> {
    if (!isNativeBlock(blockOf(dst))) return super.receive(dst, byteOffset, byteLength, read);
    const bytes = new Uint8Array(byteLength);
    await read(bytes);
    this.write(dst, byteOffset, bytes);
  }

  override readSync(src: Storage, byteOffset: number, byteLength: number): Uint8Array {
    if (!isNativeBlock(blockOf(src))) return super.readSync(src, byteOffset, byteLength);
    const out = new Uint8Array(byteLength);
    copyBytes(Number(ffi().address(out)), addressOfStorage(src) + byteOffset, byteLength);
    return out;
  }

  /** Whether a block of this size is to be in the heap. */
  takesHeap(bytes: number): boolean {
    if (bytes === 0 || this.#inHeap) return true;
    return !this.#allNative && (bytes < LARGE || this.engine.available - bytes >= HEAP_RESERVE);
  }

  /** What `run` allocates is in the heap, if there is room. */
  inHeap<T>(run: () => T): T {
    const before = this.#inHeap;
    this.#inHeap = true;
    try {
      return run();
    } finally {
      this.#inHeap = before;
    }
  }

  allocInHeap(bytes: number): HeapBlock | null {
    this.startWorkersFor(bytes);
    const at = this.engine.take(bytes);
    if (at === undefined) return null;
    this.usage.add(bytes);
    return { at, bytes };
  }

  /** What is outside the heap is computed there, and copied. */
  protected override into(storage: Storage, run: (out: OutAddress) => void): void {
    if (!isNativeBlock(blockOf(storage))) {
      super.into(storage, run);
      return;
    }
    const { engine } = this;
    const at = engine.alloc(storage.byteLength);
    try {
      run(at as OutAddress);
      copyBytes(addressOfStorage(storage), engine.base + at, storage.byteLength);
    } finally {
      engine.release(at);
    }
  }

  /** Pages of a file in the place of pages of the heap; null where one or the other cannot be. */
  #mapInHeap({ file, start, bytes }: FileRange): HeapBlock | null {
    const system = libc()!;
    const { pageBytes } = system;
    const { engine } = this;
    const before = start % pageBytes;
    const length = Math.ceil((before + bytes) / pageBytes) * pageBytes;
    const at = engine.take(length + pageBytes);
    if (at === undefined) return null;
    const first = Math.ceil(at / pageBytes) * pageBytes;
    this.startWorkersFor(bytes);
    if (system.mapFile(file.descriptor, start - before, length, engine.base + first) === null) {
      engine.release(at);
      return null;
    }
    return { at: first + before, bytes: 0, mapped: { start: at, first, bytes: length, length: bytes } };
  }

  #fileOf(file: OpenFile): MappedFile | null {
    const system = libc()!;
    const known = this.#files.get(file) ?? MappedFile.over(system, file, () => this.#files.delete(file));
    if (known) this.#files.set(file, known);
    return known;
  }
}

export function copyBytes(to: number, from: number, bytes: number): void {
  settle();
  recording()?.refuse("data moves between memories");
  libc()!.calls.memmove(to, from, bytes);
}
