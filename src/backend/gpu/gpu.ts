/**
 * One GPU ready for work: memory, transfers, launches and layouts on the device. The ops beside it are functions over
 * this class; it knows nothing of tensors beyond views.
 */
import { type DType, sizeOf } from "../../core/dtype.ts";
import { variable } from "../../core/environment.ts";
import { fail } from "../../core/errors.ts";
import { collapse, Layout, numel } from "../../core/layout.ts";
import type {
  Available,
  Backend,
  Block,
  DeviceMemory as MemoryOps,
  MemoryStats,
  NativeMemory,
  PendingRead,
  ReadInto,
  View,
} from "../backend.ts";
import { calledOp } from "../call.ts";
import { Storage } from "../storage.ts";
import type { Graph } from "../transformers.ts";
import { formatBytes, Usage } from "../usage.ts";
import { Allocator, type Pool } from "./allocator.ts";
import { MAX_COUNTERS, type MatrixUnit, usesMatrixUnit } from "./attention-plan.ts";
import { BlasTrials } from "./blas-verdicts.ts";
import { BoxMaps } from "./box-maps.ts";
import type { KernelName, ValuesFor } from "./catalogue.ts";
import { copyLayout } from "./copy.ts";
import { DeviceBlas } from "./device-blas.ts";
import { DeviceMemory } from "./device-memory.ts";
import type { Blas, Boxes, Gemm, GemmType, GpuContext, GpuPlatform, Handle, Recordings } from "./driver.ts";
import { KernelCache } from "./kernel-cache.ts";
import { Launcher } from "./launcher.ts";
import { defaultChoice } from "./memory-policy.ts";
import { copyBetween } from "./peer-copy.ts";
import { Staging } from "./staging.ts";
import { Tuning } from "./tuning.ts";

export interface GpuBlock extends Block {
  readonly at: number;
}

interface WatchedOp {
  readonly op: string;
  readonly size: number;
  readonly dim: number;
}

/** Distinct layouts kept on the device before the table is begun anew. */
const MAX_LAYOUTS = 16_384;

export const addressOf = (storage: Storage): number => (storage.block as GpuBlock).at;
/** The address of a view's first element. */
export const at = (view: View): number => addressOf(view.storage) + view.layout.offset * sizeOf(view.storage.dtype);

export abstract class Gpu implements MemoryOps, Recordings {
  /** As users write it: "rocm:0". */
  readonly name: string;
  readonly context: GpuContext;
  readonly platform: GpuPlatform;
  readonly cache = new KernelCache();
  /** Where its memory comes from. */
  readonly source: DeviceMemory;
  readonly #allocator: Allocator;
  readonly #staging: Staging;
  readonly #launcher: Launcher;
  readonly #usage = new Usage();
  readonly #boxMaps: BoxMaps;
  readonly #layouts = new Map<string, number>();
  /** Layouts out of use that recorded work may still read. */
  #oldLayouts: number[] = [];
  #graphs = 0;
  #recording = false;
  readonly #blas: DeviceBlas;
  #tuning: Tuning | null | undefined;
  /** Where kernels note a bad id: flag, id, position. */
  readonly #error: number;
  /** MAX_COUNTERS 32-bit zeros where the blocks of a kernel count which of them is the last; that one leaves zeros. */
  readonly counters: number;
  #errorOp: WatchedOp | undefined;
  /** Devices whose results have come here since the last read: it tells of their bad ids, too. */
  readonly #sources = new Set<Gpu>();
  /** The ids that the kernel launched last was given, if it was one of experts: the next may read them before that has ended. */
  expertIds = 0;
  /** What the kernel launched last has written, if it says so: the next may read all else before that has ended. */
  latest = 0;
  #isInvariant = false;

  constructor(name: string, platform: GpuPlatform, ordinal: number) {
    this.name = name;
    this.platform = platform;
    const choice = defaultChoice();
    this.context = platform.driver.open(ordinal);
    this.source = new DeviceMemory(this.context, platform, choice);
    this.#allocator = new Allocator(this.context, name, this.source);
    this.#staging = new Staging(this.context);
    this.#launcher = new Launcher(this.context, () => platform.compiler(), this.cache);
    this.#boxMaps = new BoxMaps(
      this.context,
      (bytes) => this.#allocator.alloc(bytes),
      (to, bytes) => this.#staging.upload(BigInt(to), bytes),
    );
    this.#blas = new DeviceBlas(platform, this.context, this, new BlasTrials(this.cache.folder));
    this.#error = this.#allocator.alloc(24);
    this.context.memset(BigInt(this.#error), 0, 24);
    this.counters = this.#allocator.alloc(4 * MAX_COUNTERS);
    this.context.memset(BigInt(this.counters), 0, 4 * MAX_COUNTERS);
  }

  /** Throws where what was enqueued cannot be believed: another process that had a part in it is gone. */
  trusts: () => void = () => {};
  readonly nativeMemory: NativeMemory = { address: (storage) => BigInt(addressOf(storage)) };

  /** The device as a backend: this, with its ops. */
  protected abstract readonly backend: Backend;

  get multiprocessors(): number {
    return this.context.properties.multiprocessors;
  }

  /** The unit that kernels for `dtype` multiply on. */
  matrixUnit(dtype: DType): MatrixUnit {
    return usesMatrixUnit(dtype) ? this.#launcher.matrixUnit : "fma";
  }

  get recording(): boolean {
    return this.#recording;
  }

  get graphs(): number {
    return this.#graphs;
  }

  /** Whether only kernels may be used whose rows do not depend on how many there are. */
  get isInvariant(): boolean {
    return this.#isInvariant;
  }

  invariantly<T>(run: () => T): T {
    const before = this.#isInvariant;
    this.#isInvariant = true;
    try {
      return run();
    } finally {
      this.#isInvariant = before;
    }
  }

  /** The vendor's library that multiplies, or null where Wick's own kernels do. */
  get blas(): Blas | null {
    return this.#blas.first;
  }

  /** Why there is no BLAS library; empty when there is one. */
  get blasProblem(): string {
    return this.#blas.problem;
  }

  /** Why it is this library, where there was a choice. */
  get blasChoice(): string {
    return this.#blas.why;
  }

  /** What is known of the library beside Wick's own kernels; null where there is no choice, or WICK_BLAS has made it. */
  get tuning(): Tuning | null {
    if (this.#tuning === undefined) {
      const { blas } = this;
      const isOpen = blas !== null && variable("WICK_BLAS") === undefined;
      this.#tuning = isOpen ? new Tuning(this.cache.folder, this.context.properties, blas.version) : null;
    }
    return this.#tuning;
  }

  /** Enqueues the product by a vendor's library; false where none can compute it. */
  gemm(p: Gemm): boolean {
    return this.#blas.gemm(p);
  }

  alloc(bytes: number): GpuBlock {
    const block = { at: this.#allocator.alloc(bytes), bytes };
    this.#usage.add(bytes);
    return block;
  }

  free(block: Block): void {
    this.#allocator.release((block as GpuBlock).at);
    this.#usage.remove(block.bytes);
  }

  memory(): MemoryStats {
    const { cached, reserved, mapped } = this.#allocator;
    const regions = { own: reserved - mapped, host: mapped, policy: this.source.text };
    return { ...this.#usage.stats(cached), regions };
  }

  available(): Available {
    const { own, host, text } = this.source.room();
    const { cached } = this.#allocator;
    return { bytes: own + host + cached, where: `${text}${cached > 0 ? `; ${formatBytes(cached)} cached` : ""}` };
  }

  trim(): void {
    this.#allocator.trim();
    this.#staging.trim();
  }

  /** A new storage; the caller enqueues what fills it. */
  make(dtype: DType, n: number): Storage {
    return Storage.alloc(this.backend, dtype, n);
  }

  /** Fills a new storage by `run`, which is given its address; nothing runs for zero elements. */
  filled(dtype: DType, n: number, run: (out: number) => void): Storage {
    const storage = this.make(dtype, n);
    if (n === 0) return storage;
    try {
      run(addressOf(storage));
    } catch (error) {
      storage.discard();
      throw error;
    }
    return storage;
  }

  /** Memory for the ops enqueued by `run`. It may be reused at once afterwards: later work runs after them. */
  temporary<T>(bytes: number, run: (at: number) => T): T {
    const tmp = this.#allocator.alloc(bytes);
    try {
      return run(tmp);
    } finally {
      this.#allocator.release(tmp);
    }
  }

  /** Compiles kernels before they are needed. */
  prepare(names: readonly KernelName[]): Promise<void> {
    return this.#launcher.prepare(names);
  }

  /** As the launcher's. */
  rehearse(run: () => Promise<void>): Promise<void> {
    return this.#launcher.rehearse(run);
  }

  /** Finds the BLAS library and loads its kernels for a dtype before they are needed. */
  prepareBlas(type: GemmType): Promise<void> {
    return this.#blas.prepare(type);
  }

  launch<Name extends KernelName>(name: Name, values: ValuesFor<Name>): void {
    this.expertIds = 0;
    this.latest = 0;
    this.#launcher.launch(name, values);
  }

  /**
   * Before a launch whose kernel reads these weights ahead of what it waits for: where they are made within the recording
   * that goes on, by a kernel or two before, it must not begin early. All else that is recorded leaves weights alone.
   */
  fenceWeights(weights: Storage): void {
    if (this.#allocator.isPooled(addressOf(weights))) this.context.fence();
  }

  /**
   * The address of a map of boxes of weights; 0 where there is none: kernels then bring rows one by one. Weights that are made
   * within a recording have none, as maps come from the host; those of others are there since the first run.
   */
  boxMap(weights: Storage, boxes: Boxes): number {
    if (this.#allocator.isPooled(addressOf(weights))) return 0;
    return this.#boxMaps.find(boxes, () => this.#refuseRecording("a map of weights that the first run did not have"));
  }

  /** The arguments num_dims and info of elementwise kernels: dims merged, info 0 where all operands are contiguous. */
  layouts(...layouts: Layout[]): { num_dims: number; info: number } {
    if (layouts.every((l) => l.isContiguous())) return { num_dims: 0, info: 0 };
    const { shape, strides } = collapse(layouts);
    if (shape.length === 0) return { num_dims: 0, info: 0 };
    return { num_dims: shape.length, info: this.words(shape, ...strides) };
  }

  /** Numbers as 64-bit words on the device. Each distinct row is uploaded once, so that launches copy nothing. */
  words(...parts: readonly (readonly number[])[]): number {
    const words = parts.flat();
    const key = words.join();
    let address = this.#layouts.get(key);
    if (address === undefined) {
      if (this.#layouts.size >= MAX_LAYOUTS) {
        this.#oldLayouts.push(...this.#layouts.values());
        this.#layouts.clear();
        this.#releaseOldLayouts();
      }
      this.#refuseRecording("a layout that the first run did not have");
      address = this.#allocator.alloc(words.length * 8);
      this.#staging.upload(BigInt(address), new Uint8Array(BigInt64Array.from(words, BigInt).buffer));
      this.#layouts.set(key, address);
    }
    return address;
  }

  /** The address of the view's elements in row-major order: its own, or that of a temporary copy; 0 for no view. */
  packed<T>(view: View | null, run: (at: number) => T): T {
    if (!view) return run(0);
    if (view.layout.isContiguous()) return run(at(view));
    const { dtype } = view.storage;
    return this.temporary(numel(view.layout.shape) * sizeOf(dtype), (to) => {
      copyLayout(this, dtype, at(view), view.layout, to, Layout.contiguous(view.layout.shape));
      return run(to);
    });
  }

  /** Runs `run`, so that kernels are compiled and layouts uploaded, then records it; see Recorder for what `hasRun`. */
  capture(run: () => void, hasRun = false): Graph {
    if (this.#recording) fail("InvalidArgument", `${this.name}: a capture cannot be part of another`);
    const early = hasRun ? this.#triedToRecord(run) : null;
    if (!early) run();
    const graph = early ?? this.#recorded(run);
    early?.replay();
    return graph;
  }

  /** Null where something that an earlier run left is gone, or that was another run: one more brings it, or tells why not. */
  #triedToRecord(run: () => void): GpuGraph | null {
    try {
      return this.#recorded(run);
    } catch {
      return null;
    }
  }

  #recorded(run: () => void): GpuGraph {
    let handle: Handle | undefined;
    const pool = this.#allocator.intoPool(() => {
      handle = this.#record(run);
    });
    this.#usage.add(pool.bytes);
    this.#graphs++;
    const { trusts } = this;
    return new GpuGraph(this.context, handle!, trusts, () => this.#endGraph(handle!, pool));
  }

  #record(run: () => void): Handle {
    this.context.beginCapture();
    this.#recording = true;
    try {
      run();
    } catch (error) {
      this.#recording = false;
      // What was recorded so far is of no use; where the driver has given it up already, the first error counts.
      try {
        this.context.destroyGraph(this.context.endCapture());
      } catch {}
      throw error;
    }
    this.#recording = false;
    return this.context.endCapture();
  }

  #endGraph(handle: Handle, pool: Pool): void {
    this.context.destroyGraph(handle);
    this.#allocator.releasePool(pool);
    this.#usage.remove(pool.bytes);
    this.#graphs--;
    this.#releaseOldLayouts();
  }

  #releaseOldLayouts(): void {
    if (this.#graphs > 0) return;
    this.#blas.trim();
    for (const old of this.#oldLayouts) this.#allocator.release(old);
    this.#oldLayouts = [];
  }

  #refuseRecording(what: string): void {
    if (!this.#recording) return;
    fail(
      "InvalidArgument",
      `${this.name}: ${what} cannot move between host and device while work is recorded; do it before the capture`,
    );
  }

  write(dst: Storage, byteOffset: number, data: Uint8Array): void {
    this.#refuseRecording("data");
    this.#staging.upload(BigInt(addressOf(dst) + byteOffset), data);
  }

  async receive(dst: Storage, byteOffset: number, byteLength: number, read: ReadInto): Promise<void> {
    this.#refuseRecording("data");
    await this.#staging.receive(BigInt(addressOf(dst) + byteOffset), byteLength, read);
  }

  async read(src: Storage, byteOffset: number, byteLength: number): Promise<Uint8Array> {
    this.#refuseRecording("data");
    return this.#checked(this.#staging.download(BigInt(addressOf(src) + byteOffset), byteLength));
  }

  /** As `read`, of few words between steps: where it may, a kernel brings them, which takes the device less than a copy. */
  async readWords(src: Storage): Promise<Uint8Array> {
    if (!this.context.kernelsWritePinned) return src.read();
    this.#refuseRecording("data");
    const out = new Uint8Array(src.byteLength);
    const cols = src.byteLength / 4;
    const copy = { x: addressOf(src), rows: 1, cols, x_stride: cols, out_stride: cols };
    const enqueue = (to: bigint): void => this.launch("copy2d_u32", { ...copy, out: Number(to) });
    src.retain();
    try {
      await this.#checked(this.#staging.fetch(out.byteLength, enqueue, (piece) => out.set(piece)));
    } finally {
      src.release();
    }
    return out;
  }

  /** What a read brings, unless what was enqueued before it cannot be believed. */
  async #checked<T>(download: Promise<T>): Promise<T> {
    const isWatched = this.#errorOp !== undefined || this.#sources.size > 0;
    const result = isWatched ? (await Promise.all([download, this.#checkIndex()]))[0] : await download;
    this.trusts();
    return result;
  }

  readSync(src: Storage, byteOffset: number, byteLength: number): Uint8Array {
    this.#refuseRecording("data");
    const bytes = this.#staging.downloadSync(BigInt(addressOf(src) + byteOffset), byteLength);
    this.trusts();
    this.#checkIndexSync();
    return bytes;
  }

  #checkIndexSync(): void {
    const watched = this.#errorOp;
    this.#errorOp = undefined;
    if (watched) this.#reportIndex(watched, this.#staging.downloadSync(BigInt(this.#error), 24));
    for (const source of this.#takeSources()) source.#checkIndexSync();
  }

  #takeSources(): Gpu[] {
    const sources = [...this.#sources];
    this.#sources.clear();
    return sources;
  }

  copyFrom(dst: Storage, dstOffset: number, src: Storage, srcOffset: number, byteLength: number): boolean {
    const { backend } = src;
    if (!(backend instanceof Gpu)) return false;
    for (const gpu of [this, backend]) gpu.#refuseRecording("data");
    const side = (gpu: Gpu, storage: Storage, offset: number) => {
      return { context: gpu.context, staging: gpu.#staging, at: BigInt(addressOf(storage) + offset) };
    };
    const copied = copyBetween(side(backend, src, srcOffset), side(this, dst, dstOffset), byteLength);
    if (copied) this.#sources.add(backend);
    return copied;
  }

  beginRead(src: Storage, byteOffset: number, byteLength: number): PendingRead {
    this.#refuseRecording("data");
    const download = this.#staging.begin(BigInt(addressOf(src) + byteOffset), byteLength);
    return {
      finish: (take) => {
        using done = download;
        this.context.waitEventSync(done.event);
        for (const { start, bytes } of done.pieces) take(bytes, start);
        this.#checkIndexSync();
      },
    };
  }

  async synchronize(): Promise<void> {
    // Both at once: what the check reads comes behind the work that is waited for.
    await Promise.all([this.context.synchronize(), this.#checkIndex()]);
  }

  /** Milliseconds between two events on the device, before and after what `run` enqueues. */
  async milliseconds(run: () => void): Promise<number> {
    const start = this.context.createEvent();
    const end = this.context.createEvent();
    try {
      this.context.recordEvent(start);
      run();
      this.context.recordEvent(end);
      await this.context.waitEvent(end);
      return this.context.elapsed(start, end);
    } finally {
      this.context.destroyEvent(start);
      this.context.destroyEvent(end);
    }
  }

  /** The flag that an indexing kernel gets; the next read or synchronize() looks at it. */
  watchIndex(op: string, size: number, dim: number): number {
    this.#errorOp = { op: calledOp(op), size, dim };
    return this.#error;
  }

  /** Looks at the flag as it is behind the work enqueued so far; reads may be under way at the same time. */
  async #checkIndex(): Promise<void> {
    const watched = this.#errorOp;
    this.#errorOp = undefined;
    const sources = this.#takeSources();
    if (watched) this.#reportIndex(watched, await this.#staging.download(BigInt(this.#error), 24));
    for (const source of sources) await source.#checkIndex();
  }

  #reportIndex({ op, size, dim }: WatchedOp, flag: Uint8Array): void {
    const [bad, id, position] = new BigInt64Array(flag.buffer, flag.byteOffset, 3);
    if (bad === 0n) return;
    this.context.memset(BigInt(this.#error), 0, 24);
    fail(
      "InvalidIndex",
      `${this.name}: an op since the last read was given id ${id} at position ${position}, which is out of range; the last such op was ${op} on dim ${dim} of size ${size}`,
    );
  }
}

/** Ends graphs that nobody can dispose any more. */
const abandoned = new FinalizationRegistry<() => void>((end) => end());

class GpuGraph implements Graph {
  readonly #context: GpuContext;
  readonly #handle: Handle;
  readonly #trusts: () => void;
  #end: (() => void) | null;

  constructor(context: GpuContext, handle: Handle, trusts: () => void, end: () => void) {
    this.#context = context;
    this.#handle = handle;
    this.#trusts = trusts;
    this.#end = end;
    abandoned.register(this, end, this);
  }

  replay(): void {
    if (!this.#end) fail("Disposed", "the graph was disposed and cannot be replayed");
    this.#trusts();
    this.#context.launchGraph(this.#handle);
  }

  [Symbol.dispose](): void {
    abandoned.unregister(this);
    this.#end?.();
    this.#end = null;
  }
}
