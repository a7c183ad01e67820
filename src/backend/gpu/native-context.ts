/** An open device of either vendor: memory, stream, events, modules, launches and graphs. */
import { fail } from "../../core/errors.ts";
import type {
  ArgumentBlock,
  Boxes,
  DevicePtr,
  GpuContext,
  GpuProperties,
  Handle,
  LaunchGeometry,
  MappedBuffer,
  PinnedBuffer,
} from "./driver.ts";
import { addressOf, type Bound, callAsync, symbolOf, viewOf } from "./library.ts";
import type { Current, NativeDriver } from "./native-driver.ts";
import {
  type DriverCall,
  type DriverPrototypes,
  OUT_OF_MEMORY,
  type OverlappingLaunch,
  type Vendor,
} from "./vendor.ts";

// Both vendors number these alike.
const invalidContext = 201;
const peerAlreadyEnabled = 704;
const notReady = 600;
const nonBlockingStream = 1;
const eventWithoutTime = 2;
/** Milliseconds that this thread looks for the end of work itself. */
const POLLED_MS = 4;
// Relaxed: memory and modules may be allocated and loaded while a graph is recorded; neither is part of the graph.
const captureModeRelaxed = 2;
/** A larger view of native memory aborts the process on Node 20. */
const maxViewBytes = 2 ** 32;

export class NativeContext implements GpuContext {
  readonly properties: GpuProperties;
  readonly stream: Handle;
  readonly ordinal: number;
  readonly #driver: NativeDriver;
  readonly #api: Bound<DriverPrototypes>;
  readonly #current: Current;
  readonly #key: number | bigint;
  readonly #allowShared: Vendor["allowShared"];
  /** Dynamic shared memory that a function may use by now. */
  readonly #shared = new Map<Handle, number>();
  /** Code of the loaded modules: HIP may read it after loading. */
  readonly #images = new Map<Handle, Uint8Array>();
  /** Out-parameters, written by every call that returns a handle. */
  readonly #out = new BigUint64Array(2);
  readonly #second = this.#out.subarray(1);
  /** A stream that never records: its events can be waited for at any time. Made when it is first needed. */
  #aside: Handle | undefined;
  readonly #overlapping: OverlappingLaunch | null;
  /** Whether this device may write another's memory, by the other's number. */
  readonly #peers = new Map<number, boolean>();
  #isRecording = false;
  /** Whether what was recorded last is a kernel of Wick's: those of others do not say when they may be overlapped. */
  #followsKernel = false;
  #closed = false;

  constructor(driver: NativeDriver, ordinal: number, properties: GpuProperties) {
    this.#driver = driver;
    this.#api = driver.api;
    this.#current = driver.current;
    this.ordinal = ordinal;
    this.properties = properties;
    this.#allowShared = driver.spec.allowShared;
    this.#overlapping = driver.spec.overlapping(properties.arch);
    this.#key = driver.spec.retain(ordinal, (code, call) => code === 0 || driver.raise(call, code));
    this.stream = this.#create(this.#api.streamCreate(this.#cell(), nonBlockingStream), "streamCreate");
  }

  get recordingProblem(): string | null {
    return this.#driver.spec.recordingProblem;
  }

  get kernelsWritePinned(): boolean {
    return this.#driver.spec.kernelsWritePinned;
  }

  /** Asks without waiting: a device that hangs would not answer. */
  isLost(): boolean {
    this.#api.activate(this.#key);
    return this.#driver.spec.lost.has(this.#api.streamQuery(this.stream));
  }

  /** Makes the device current on this thread. Every method here does it itself; libraries given the stream need it. */
  activate(): void {
    if (this.#current.context === this) return;
    if (this.#closed) fail("Disposed", `${this.#driver.vendor}:${this.ordinal} is closed`);
    this.#driver.check(this.#api.activate(this.#key), "activate");
    this.#current.context = this;
  }

  malloc(bytes: number): DevicePtr {
    if (bytes === 0) return 0n;
    const code = this.#api.malloc(this.#cell(), bytes);
    if (code === OUT_OF_MEMORY) this.#outOfMemory(bytes);
    return this.#create(code, "malloc");
  }

  free(ptr: DevicePtr): void {
    if (ptr === 0n) return;
    this.activate();
    this.#check(this.#api.free(ptr), "free");
  }

  memoryInfo(): { readonly free: number; readonly total: number } {
    this.#check(this.#api.memoryInfo(this.#cell(), this.#second), "memoryInfo");
    return { free: Number(this.#out[0]), total: Number(this.#out[1]) };
  }

  mapped(bytes: number): MappedBuffer {
    const code = this.#api.hostAlloc(this.#cell(), bytes, this.#driver.spec.mappedFlags);
    if (code === OUT_OF_MEMORY) this.#outOfMemory(bytes, " of the host's memory");
    const host = this.#create(code, "hostAlloc");
    const found = this.#api.hostPointer(this.#cell(), host, 0);
    const address = this.#out[0]!;
    if (found !== 0) this.#api.hostFree(host);
    this.#check(found, "hostPointer");
    return { address, host };
  }

  freeMapped({ host }: MappedBuffer): void {
    this.activate();
    this.#check(this.#api.hostFree(host), "hostFree");
  }

  pinned(bytes: number): PinnedBuffer {
    if (bytes <= 0 || bytes > maxViewBytes) {
      fail("InvalidArgument", `pinned memory of ${bytes} bytes was asked for; it can be 1 to ${maxViewBytes} bytes`);
    }
    const address = this.#create(this.#api.hostAlloc(this.#cell(), bytes, 0), "hostAlloc");
    return { address, bytes: new Uint8Array(viewOf(address, bytes)) };
  }

  freePinned(buffer: PinnedBuffer): void {
    this.activate();
    this.#check(this.#api.hostFree(buffer.address), "hostFree");
  }

  copyToDevice(dst: DevicePtr, src: bigint, bytes: number): void {
    if (bytes === 0) return;
    this.activate();
    this.fence();
    this.#check(this.#api.toDevice(dst, src, bytes, this.stream), "toDevice");
  }

  copyToHost(dst: bigint, src: DevicePtr, bytes: number): void {
    if (bytes === 0) return;
    this.activate();
    this.fence();
    this.#check(this.#api.toHost(dst, src, bytes, this.stream), "toHost");
  }

  copyOnDevice(dst: DevicePtr, src: DevicePtr, bytes: number): void {
    if (bytes === 0) return;
    this.activate();
    this.fence();
    this.#check(this.#api.onDevice(dst, src, bytes, this.stream), "onDevice");
  }

  memset(dst: DevicePtr, byte: number, bytes: number): void {
    if (bytes === 0) return;
    this.activate();
    this.fence();
    this.#check(this.#api.memset(dst, byte, bytes, this.stream), "memset");
  }

  synchronizeSync(): void {
    this.#refuseRecording();
    this.activate();
    this.#check(this.#api.streamSynchronize(this.stream), "streamSynchronize");
  }

  /** By an event: waiting for the stream itself would spoil a recording that begins meanwhile. */
  async synchronize(): Promise<void> {
    this.#refuseRecording();
    const event = this.#createEvent(eventWithoutTime);
    try {
      this.recordEvent(event);
      await this.waitEvent(event);
    } finally {
      this.destroyEvent(event);
    }
  }

  createEvent(): Handle {
    return this.#createEvent(0);
  }

  #createEvent(flags: number): Handle {
    return this.#create(this.#api.eventCreate(this.#cell(), flags), "eventCreate");
  }

  destroyEvent(event: Handle): void {
    this.activate();
    this.#check(this.#api.eventDestroy(event), "eventDestroy");
  }

  recordEvent(event: Handle): void {
    this.activate();
    this.fence();
    this.#check(this.#api.eventRecord(event, this.stream), "eventRecord");
  }

  async waitEvent(event: Handle): Promise<void> {
    this.#refuseRecording();
    if (!this.#driver.spec.waitsSpoilRecordings) return this.#wait(event);
    this.activate();
    this.#aside ??= this.#create(this.#api.streamCreate(this.#cell(), nonBlockingStream), "streamCreate");
    this.#check(this.#api.streamWait(this.#aside, event, 0), "streamWait");
    const marker = this.#createEvent(eventWithoutTime);
    try {
      this.#check(this.#api.eventRecord(marker, this.#aside), "eventRecord");
      await this.#wait(marker);
    } finally {
      this.destroyEvent(marker);
    }
  }

  waitEventSync(event: Handle): void {
    this.#refuseRecording();
    this.activate();
    this.#check(this.#api.eventSynchronize(event), "eventSynchronize");
  }

  waitFor(event: Handle): void {
    this.#refuseRecording();
    this.activate();
    this.#check(this.#api.streamWait(this.stream, event, 0), "streamWait");
  }

  sharesDriver(other: GpuContext): boolean {
    return other instanceof NativeContext && other.#driver === this.#driver;
  }

  reaches(peer: GpuContext): boolean {
    if (!(peer instanceof NativeContext) || !this.sharesDriver(peer)) return false;
    let reached = this.#peers.get(peer.ordinal);
    if (reached === undefined) {
      reached = this.#enablePeer(peer);
      this.#peers.set(peer.ordinal, reached);
    }
    return reached;
  }

  #enablePeer(peer: NativeContext): boolean {
    const can = new Int32Array(1);
    const code = this.#api.canAccessPeer(can, this.ordinal, peer.ordinal);
    if (code !== 0 || can[0] === 0) return false;
    this.activate();
    return [0, peerAlreadyEnabled].includes(this.#api.enablePeer(peer.#key, 0));
  }

  copyToPeer(peer: GpuContext, dst: DevicePtr, src: DevicePtr, bytes: number): void {
    if (bytes === 0) return;
    this.activate();
    this.fence();
    this.#check(this.#api.toPeer(dst, (peer as NativeContext).#key, src, this.#key, bytes, this.stream), "toPeer");
  }

  elapsed(start: Handle, end: Handle): number {
    this.activate();
    const milliseconds = new Float32Array(1);
    let code = this.#api.eventElapsed(milliseconds, start, end);
    // What waited for it aside may know of its end before the runtime has noted it in the event.
    if (code === notReady) {
      this.#check(this.#api.eventSynchronize(end), "eventSynchronize");
      code = this.#api.eventElapsed(milliseconds, start, end);
    }
    this.#check(code, "eventElapsed");
    return milliseconds[0]!;
  }

  loadModule(code: Uint8Array): Handle {
    const module = this.#create(this.#api.moduleLoad(this.#cell(), addressOf(code)), "moduleLoad");
    this.#images.set(module, code);
    return module;
  }

  unloadModule(module: Handle): void {
    this.activate();
    this.#check(this.#api.moduleUnload(module), "moduleUnload");
    this.#images.delete(module);
    // Handles of its functions may be given out again.
    this.#shared.clear();
  }

  getFunction(module: Handle, name: string): Handle {
    const code = this.#api.moduleFunction(this.#cell(), module, name);
    if (code !== 0) this.#raise("moduleFunction", code, name);
    return this.#out[0]!;
  }

  argumentBlock(sizes: readonly number[]): ArgumentBlock {
    let end = 0;
    const offsets = sizes.map((size) => {
      const offset = alignUp(end, Math.min(size, 8));
      end = offset + size;
      return offset;
    });
    const table = alignUp(end, 8);
    // The buffer is of its own, so it does not move, and `view` keeps it alive.
    const view = new DataView(new ArrayBuffer(table + 8 * Math.max(1, sizes.length)));
    const base = addressOf(view);
    offsets.forEach((offset, i) => {
      view.setBigUint64(table + 8 * i, base + BigInt(offset), true);
    });
    return { view, offsets, pointers: base + BigInt(table) };
  }

  launch(fn: Handle, geometry: LaunchGeometry, args: ArgumentBlock): void {
    const { grid, block, sharedBytes } = geometry;
    this.activate();
    if (sharedBytes > 0 && this.#allowShared) this.#raiseShared(fn, sharedBytes, geometry.crowds ?? false);
    const overlapping = this.#followsKernel ? this.#overlapping : null;
    this.#followsKernel = this.#isRecording;
    if (overlapping) {
      const code = overlapping(fn, geometry, this.stream, args);
      if (code !== 0) this.#launchFailed(code, geometry);
      return;
    }
    const code = this.#api.launch(
      fn,
      grid[0],
      grid[1],
      grid[2],
      block[0],
      block[1],
      block[2],
      sharedBytes,
      this.stream,
      args.pointers,
      0n,
    );
    if (code !== 0) this.#launchFailed(code, geometry);
  }

  boxMap(boxes: Boxes): Uint8Array | null {
    const make = this.#driver.spec.boxMap;
    if (!make || !/^sm_(9|1\d\d)/.test(this.properties.arch)) return null;
    this.activate();
    // The driver writes to a multiple of 64 bytes.
    const room = new Uint8Array(128 + 64);
    const base = addressOf(room);
    const skip = Number(-base & 63n);
    return make(base + BigInt(skip), boxes) === 0 ? room.subarray(skip, skip + 128) : null;
  }

  /**
   * What is launched next begins when all before it has ended. Recorded kernels may overlap: a step is short kernels, each of
   * which would else wait for the last block of the one before. Those launched at once do not: their host is slower than they.
   */
  fence(): void {
    this.#followsKernel = false;
  }

  beginCapture(): void {
    if (this.recordingProblem !== null) {
      fail("UnsupportedOp", `${this.#driver.vendor}:${this.ordinal} cannot record work: ${this.recordingProblem}`);
    }
    this.activate();
    this.#check(this.#api.beginCapture(this.stream, captureModeRelaxed), "beginCapture");
    this.#isRecording = true;
  }

  endCapture(): Handle {
    this.#isRecording = false;
    this.fence();
    const graph = this.#create(this.#api.endCapture(this.stream, this.#cell()), "endCapture");
    const code = this.#api.instantiate(this.#out, graph, 0);
    const executable = this.#out[0]!;
    this.#check(this.#api.graphDestroy(graph), "graphDestroy");
    this.#check(code, "instantiate");
    return executable;
  }

  launchGraph(graph: Handle): void {
    this.activate();
    this.#check(this.#api.graphLaunch(graph, this.stream), "graphLaunch");
  }

  destroyGraph(graph: Handle): void {
    this.activate();
    this.#check(this.#api.execDestroy(graph), "execDestroy");
  }

  close(): void {
    if (this.#closed) return;
    this.activate();
    this.#closed = true;
    this.#current.context = null;
    if (this.#aside !== undefined) this.#api.streamDestroy(this.#aside);
    const code = this.#api.streamDestroy(this.stream);
    this.#driver.spec.release(this.ordinal);
    this.#check(code, "streamDestroy");
  }

  /** The cell for an out-parameter; the device is current when the call that takes it is made. */
  #cell(): BigUint64Array {
    this.activate();
    this.#out[0] = 0n;
    return this.#out;
  }

  #create(code: number, call: DriverCall): Handle {
    if (code !== 0) this.#driver.check(code, call, this);
    return this.#out[0]!;
  }

  #check(code: number, call: DriverCall): void {
    if (code !== 0) this.#driver.check(code, call, this);
  }

  #raise(call: DriverCall, code: number, detail: string): never {
    return this.#driver.raise(symbolOf(this.#driver.spec.prototypes[call]), code, detail, this);
  }

  /** A wait would be recorded, or end the recording. */
  #refuseRecording(): void {
    if (!this.#isRecording) return;
    fail(
      "InvalidArgument",
      `${this.#driver.vendor}:${this.ordinal} cannot be waited for while work is recorded; do it before or afterwards`,
    );
  }

  /**
   * The event loop goes on meanwhile. Steps are short, and this thread would hear of their end from another, which spins
   * until then, a good part of a step later: so it looks by itself between turns, and leaves only what takes long to a thread.
   */
  async #wait(event: Handle): Promise<void> {
    if (await this.#poll(event, false)) return;
    const code = await callAsync(this.#api.eventSynchronize, event);
    // A pool thread has no current context; where a driver insists on one, this thread looks on.
    if (code === invalidContext) await this.#poll(event, true);
    else this.#check(code, "eventSynchronize");
  }

  /** Whether it has come to pass: soon, or in the end for who is patient. */
  async #poll(event: Handle, patient: boolean): Promise<boolean> {
    const until = performance.now() + POLLED_MS;
    for (;;) {
      this.activate();
      const code = this.#api.eventQuery(event);
      if (code !== notReady) {
        this.#check(code, "eventQuery");
        return true;
      }
      const soon = performance.now() < until;
      if (!soon && !patient) return false;
      await new Promise((resolve) => (soon ? setImmediate(resolve) : setTimeout(resolve, 1)));
    }
  }

  #raiseShared(fn: Handle, bytes: number, crowds: boolean): void {
    if ((this.#shared.get(fn) ?? 0) >= bytes) return;
    const code = this.#allowShared!(fn, bytes, crowds);
    if (code !== 0) {
      const most = this.properties.sharedBytesPerBlock;
      this.#driver.raise("asking for dynamic shared memory", code, `${bytes} bytes; a block can have ${most}`);
    }
    this.#shared.set(fn, bytes);
  }

  #launchFailed(code: number, { grid, block, sharedBytes }: LaunchGeometry): never {
    const detail = `grid ${grid.join("×")}, block ${block.join("×")}, ${sharedBytes} bytes of dynamic shared memory`;
    return this.#raise("launch", code, detail);
  }

  #outOfMemory(bytes: number, where = ""): never {
    // The sizes help, but a device that cannot tell them must not hide the error.
    const known = this.#api.memoryInfo(this.#cell(), this.#second) === 0;
    const state = known ? `; ${this.#out[0]} of ${this.#out[1]} bytes are free` : "";
    return fail(
      "OutOfMemory",
      `${this.#driver.vendor}:${this.ordinal} (${this.properties.name}) cannot allocate ${bytes} bytes${where}${state}; free tensors, use a smaller batch or a quantized model`,
    );
  }
}

const alignUp = (offset: number, alignment: number): number => Math.ceil(offset / alignment) * alignment;
