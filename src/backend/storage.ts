/**
 * A storage is a block of device memory with a dtype, shared by all tensors that view it. It is freed by the first of
 * these to happen:
 *
 * - the last of its tensors is disposed (by `using`, `dispose()` or the end of a scope): counted in `refs`;
 * - the garbage collector finds it unreachable. JavaScript reports that only between turns of the event loop, and
 *   knows nothing of the device memory behind a small object, so `collect()` also looks by itself: when enough has
 *   been allocated since the last look, it runs the collector and frees what died. A loop of ops that never yields
 *   and never disposes therefore stays within a bound.
 */
import { setFlagsFromString } from "node:v8";
import { createContext, runInNewContext, Script } from "node:vm";
import { type DType, sizeOf } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import type { Backend, Block, FileRange, ReadInto } from "./backend.ts";
import { call } from "./call.ts";

interface Entry {
  readonly backend: Backend;
  readonly block: Block;
  freed: boolean;
  /** Set once the garbage collector is to be asked about the storage. */
  ref: WeakRef<Storage> | undefined;
}

/** The entries with a `ref`. */
const tracked = new Set<Entry>();
const registry = new FinalizationRegistry<Entry>((entry) => reclaim(entry));

function reclaim(entry: Entry): void {
  if (entry.freed) return;
  entry.freed = true;
  tracked.delete(entry);
  entry.backend.free(entry.block);
}

/**
 * Most storages are disposed soon after they were made, and watching one costs more than making it. So new ones wait here,
 * for a number of others or for the end of the event loop's turn, before the collector is asked to watch them.
 */
const young: Storage[] = [];
const MOST_YOUNG = 256;
const MOST_YOUNG_BYTES = 16 * 2 ** 20;
let youngBytes = 0;
let settling = false;

function addYoung(storage: Storage): void {
  young.push(storage);
  youngBytes += storage.byteLength;
  if (young.length >= MOST_YOUNG || youngBytes > MOST_YOUNG_BYTES) {
    settle();
  } else if (!settling) {
    settling = true;
    setImmediate(settleTurn).unref();
  }
}

function settle(): void {
  for (const storage of young) storage.watch();
  young.length = 0;
  youngBytes = 0;
}

function settleTurn(): void {
  settling = false;
  settle();
}

export class Storage {
  readonly backend: Backend;
  readonly block: Block;
  readonly dtype: DType;
  readonly length: number;
  #refs = 0;
  readonly #entry: Entry;

  private constructor(backend: Backend, block: Block, dtype: DType, length: number) {
    this.backend = backend;
    this.block = block;
    this.dtype = dtype;
    this.length = length;
    this.#entry = { backend, block, freed: false, ref: undefined };
    addYoung(this);
  }

  /** Uninitialised memory for `length` elements. */
  static alloc(backend: Backend, dtype: DType, length: number): Storage {
    const bytes = length * sizeOf(dtype);
    allocated += bytes + OVERHEAD;
    if (allocated > budget) collect();
    return new Storage(backend, allocBlock(backend, bytes), dtype, length);
  }

  /** Over memory that is there already, and is freed as others are. */
  static over(backend: Backend, block: Block, dtype: DType, length: number): Storage {
    allocated += block.bytes + OVERHEAD;
    return new Storage(backend, block, dtype, length);
  }

  /** Over a part of a file, without a copy; null where the device has none, or elements would not be aligned. */
  static mapped(backend: Backend, range: FileRange, dtype: DType): Storage | null {
    const size = sizeOf(dtype);
    const block = range.start % size === 0 ? call(backend, "map", range) : null;
    return block && Storage.over(backend, block, dtype, range.bytes / size);
  }

  get byteLength(): number {
    return this.length * sizeOf(this.dtype);
  }

  get freed(): boolean {
    return this.#entry.freed;
  }

  write(byteOffset: number, data: Uint8Array): void {
    call(this.backend, "write", this, byteOffset, data);
  }

  /** Some of its bytes as `read` gives them. The memory stays until they are there, whatever happens to its tensors. */
  async receive(byteOffset: number, byteLength: number, read: ReadInto): Promise<void> {
    this.retain();
    try {
      await call(this.backend, "receive", this, byteOffset, byteLength, read);
    } finally {
      this.release();
    }
  }

  /** A copy of some of its bytes. The memory stays until they are there, whatever happens to its tensors. */
  async read(byteOffset = 0, byteLength = this.byteLength): Promise<Uint8Array> {
    this.retain();
    try {
      return await call(this.backend, "read", this, byteOffset, byteLength);
    } finally {
      this.release();
    }
  }

  readSync(byteOffset = 0, byteLength = this.byteLength): Uint8Array {
    return call(this.backend, "readSync", this, byteOffset, byteLength);
  }

  /** Some bytes of a storage on any device, in the order of the work enqueued on both. */
  copyFrom(byteOffset: number, src: Storage, srcOffset: number, byteLength: number): void {
    if (call(this.backend, "copyFrom", this, byteOffset, src, srcOffset, byteLength)) return;
    this.write(byteOffset, src.readSync(srcOffset, byteLength));
  }

  retain(): void {
    if (this.freed)
      fail("Disposed", `the storage of ${this.length} ${this.dtype} elements on ${this.backend.name} was disposed`);
    this.#refs++;
  }

  /** Whether several tensors view it. */
  get isShared(): boolean {
    return this.#refs > 1;
  }

  release(): void {
    if (--this.#refs <= 0) this.discard();
  }

  /** Frees the memory at once; for storages that no tensor has seen. */
  discard(): void {
    if (this.#entry.ref) registry.unregister(this.#entry);
    reclaim(this.#entry);
    allocated -= this.block.bytes + OVERHEAD; // given back by hand: no reason to look for garbage
  }

  /** From now on it is freed when the garbage collector finds it unreachable. */
  watch(): void {
    const entry = this.#entry;
    if (entry.freed) return;
    entry.ref = new WeakRef(this);
    tracked.add(entry);
    registry.register(this, entry, entry);
  }
}

function allocBlock(backend: Backend, bytes: number): Block {
  try {
    return backend.alloc(bytes);
  } catch (error) {
    // Garbage may hold what is missing: one more look before the error reaches the user.
    if (collect() === 0) throw error;
    return backend.alloc(bytes);
  }
}

/** Counted per storage besides its bytes, so that very many tiny tensors trigger a look, too. */
const OVERHEAD = 1024;
const LEAST_BUDGET = 64 * 2 ** 20;
let budget = LEAST_BUDGET;
let allocated = 0;

let runCollector: (() => void) | undefined;

function collector(): () => void {
  setFlagsFromString("--expose-gc");
  const gc = runInNewContext("gc") as () => void;
  // A WeakRef keeps its target alive until the current job ends. Evaluating a script in a context with a microtask
  // queue of its own ends a job in V8's eyes, so that targets made in this very turn can be collected.
  const context = createContext({}, { microtaskMode: "afterEvaluate" });
  const script = new Script("0");
  return () => {
    script.runInContext(context);
    gc();
  };
}

/** Runs the garbage collector and frees every storage that no tensor reaches. Returns how many were freed. */
export function collect(): number {
  settle();
  runCollector ??= collector();
  runCollector();
  let live = 0;
  let freed = 0;
  for (const entry of tracked) {
    const storage = entry.ref!.deref();
    if (storage) {
      live += entry.block.bytes + OVERHEAD;
    } else {
      reclaim(entry);
      freed++;
    }
  }
  allocated = 0;
  budget = Math.max(LEAST_BUDGET, live);
  return freed;
}
