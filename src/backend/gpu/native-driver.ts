/**
 * HIP's and CUDA's driver APIs are the same calls under different names. This is the one implementation of `GpuDriver`
 * and `GpuContext` over both: a vendor gives its prototypes, its numbers and the few steps that differ.
 */
import { fail } from "../../core/errors.ts";
import type {
  ArgumentBlock,
  DevicePtr,
  GpuContext,
  GpuDriver,
  GpuProperties,
  Handle,
  LaunchGeometry,
  MappedBuffer,
  PinnedBuffer,
} from "./driver.ts";
import { addressOf, type Bound, callAsync, type Library, symbolOf, viewOf } from "./library.ts";
import { visibilityMasks } from "./visible-devices.ts";

type DriverCall =
  | "count"
  | "name"
  | "totalBytes"
  | "attribute"
  | "busId"
  | "activate"
  | "malloc"
  | "free"
  | "memoryInfo"
  | "hostAlloc"
  | "hostFree"
  | "hostPointer"
  | "toDevice"
  | "toHost"
  | "onDevice"
  | "canAccessPeer"
  | "enablePeer"
  | "toPeer"
  | "memset"
  | "streamCreate"
  | "streamDestroy"
  | "streamSynchronize"
  | "streamQuery"
  | "streamWait"
  | "eventCreate"
  | "eventDestroy"
  | "eventRecord"
  | "eventSynchronize"
  | "eventQuery"
  | "eventElapsed"
  | "moduleLoad"
  | "moduleUnload"
  | "moduleFunction"
  | "launch"
  | "beginCapture"
  | "endCapture"
  | "instantiate"
  | "graphLaunch"
  | "graphDestroy"
  | "execDestroy";
export type DriverPrototypes = Readonly<Record<DriverCall, string>>;

/** What differs between the vendors. */
export interface Vendor {
  readonly vendor: "rocm" | "cuda";
  /** For messages: "AMD", "NVIDIA". */
  readonly maker: string;
  readonly library: Library;
  readonly prototypes: DriverPrototypes;
  /** Numbers of the device attributes. */
  readonly attributes: Readonly<
    Record<"waveSize" | "multiprocessors" | "maxThreadsPerBlock" | "sharedBytes" | "integrated", number>
  >;
  /** By which host memory is asked for that kernels work on. */
  readonly mappedFlags: number;
  /** Codes after which every further call of the process fails. */
  readonly lost: ReadonlySet<number>;
  /** Whether such a code has no lesser meaning; else the device is asked whether it goes on. */
  readonly isLostCertain: boolean;
  /** Codes by which counting says that there is no device. */
  readonly none: ReadonlySet<number>;
  /** The vendor's name and text of an error. */
  describe(code: number): string;
  /** Runs once before anything else; its result code. */
  initialize(): number;
  arch(ordinal: number, check: (code: number, call: string) => void): string;
  versions(): { readonly driver: string; readonly runtime: string };
  describeRelease(): string;
  /** What `activate` takes to make the device current: an ordinal or a context. */
  retain(ordinal: number, check: (code: number, call: string) => void): number | bigint;
  release(ordinal: number): void;
  /** Whether waiting on a pool thread for an event of a stream spoils a recording that has begun on that stream since. */
  readonly waitsSpoilRecordings: boolean;
  /** Why work cannot be recorded; null where it can. */
  readonly recordingProblem: string | null;
  /**
   * A launch that may begin while the kernel launched before it ends, for kernels that wait by themselves where they must
   * (kernels/gpu/entry.h); its result code. Null where devices of this arch cannot.
   */
  overlapping(arch: string): OverlappingLaunch | null;
  /** Lets a function use this much dynamic shared memory, where that must be asked for, and as much again beside it. */
  allowShared: ((fn: Handle, bytes: number, crowds: boolean) => number) | null;
}

export type OverlappingLaunch = (fn: Handle, geometry: LaunchGeometry, stream: Handle, args: ArgumentBlock) => number;

// Both vendors number these alike.
const outOfMemory = 2;
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

const wayOut: Readonly<Record<number, string>> = {
  35: "the installed GPU driver is older than the library needs: update the driver",
  100: "no GPU is visible to this process",
  200: "the module is damaged or not made for this driver: clear the kernel cache",
  209: "the module was compiled for another GPU: clear the kernel cache",
  222: "the module needs a newer driver: update it",
  701: "use fewer threads or less shared memory per block",
  709: "a stream, event or graph was used that is not alive",
  719: "the device goes on, so the launch was refused: the block may be larger than what the kernel was compiled for",
  999: "see what the kernel driver says: dmesg",
  1052: "the runtime got no memory from the system: check the host's free memory and `ulimit -l`",
  1053: "see what the kernel driver says: dmesg",
};

/** The context that is current on this thread: one per library, however often that is opened. */
interface Current {
  context: NativeContext | null;
}
const currents = new Map<string, Current>();

export class NativeDriver implements GpuDriver {
  readonly vendor: "rocm" | "cuda";
  readonly library: string;
  readonly spec: Vendor;
  readonly api: Bound<DriverPrototypes>;
  readonly current: Current;
  readonly #properties = new Map<number, GpuProperties>();
  #count: number | undefined;

  constructor(spec: Vendor) {
    this.vendor = spec.vendor;
    this.library = spec.library.path;
    this.spec = spec;
    this.api = spec.library.bind(spec.prototypes);
    this.current = currents.get(this.library) ?? { context: null };
    currents.set(this.library, this.current);
  }

  get release(): string {
    return this.spec.describeRelease();
  }

  deviceCount(): number {
    if (this.#count !== undefined) return this.#count;
    const count = new Int32Array(1);
    const code = this.spec.initialize() || this.api.count(count);
    if (code !== 0 && !this.spec.none.has(code)) this.raise(symbolOf(this.spec.prototypes.count), code);
    this.#count = code === 0 ? count[0]! : 0;
    return this.#count;
  }

  properties(ordinal: number): GpuProperties {
    const known = this.#properties.get(ordinal);
    if (known) return known;
    this.#requireDevice(ordinal);
    const { api, spec } = this;
    const name = new Uint8Array(256);
    this.check(api.name(name, name.length, ordinal), "name");
    const total = new BigUint64Array(1);
    this.check(api.totalBytes(total, ordinal), "totalBytes");
    const attribute = (number: number): number => {
      const value = new Int32Array(1);
      this.check(api.attribute(value, number, ordinal), "attribute");
      return value[0]!;
    };
    const busId = new Uint8Array(32);
    const hasBusId = api.busId(busId, busId.length, ordinal) === 0;
    const { driver, runtime } = spec.versions();
    const properties: GpuProperties = {
      name: cString(name),
      arch: spec.arch(ordinal, (code, call) => code === 0 || this.raise(call, code)),
      waveSize: attribute(spec.attributes.waveSize),
      multiprocessors: attribute(spec.attributes.multiprocessors),
      maxThreadsPerBlock: attribute(spec.attributes.maxThreadsPerBlock),
      sharedBytesPerBlock: attribute(spec.attributes.sharedBytes),
      totalBytes: Number(total[0]),
      integrated: attribute(spec.attributes.integrated) !== 0,
      busId: hasBusId ? cString(busId) : null,
      driverVersion: driver,
      runtimeVersion: runtime,
    };
    this.#properties.set(ordinal, properties);
    return properties;
  }

  open(ordinal: number): NativeContext {
    return new NativeContext(this, ordinal, this.properties(ordinal));
  }

  check(code: number, call: DriverCall, context?: NativeContext): void {
    if (code !== 0) this.raise(symbolOf(this.spec.prototypes[call]), code, "", context);
  }

  /** `context` is where the call was made, if it was on an open device. */
  raise(symbol: string, code: number, detail = "", context?: NativeContext): never {
    const what = `${symbol}${detail && ` (${detail})`} failed: ${this.spec.describe(code)}`;
    if (this.spec.lost.has(code) && (this.spec.isLostCertain || context?.isLost())) {
      return fail(
        "DeviceLost",
        `${what}; the ${this.spec.maker} device faulted, perhaps in a kernel launched earlier, and its memory is gone: restart the process`,
      );
    }
    if (code === outOfMemory) return fail("OutOfMemory", `${what}; free tensors or use a smaller batch`);
    return fail("DriverError", wayOut[code] ? `${what}; ${wayOut[code]}` : what);
  }

  #requireDevice(ordinal: number): void {
    const count = this.deviceCount();
    if (Number.isInteger(ordinal) && ordinal >= 0 && ordinal < count) return;
    const masks = visibilityMasks(this.vendor);
    const hidden = masks.length > 0 ? `; ${masks.join(" and ")} may hide what there is` : "";
    const asked = `${this.vendor}:${ordinal} was asked for, but ${this.library}`;
    fail(
      "DeviceUnavailable",
      count === 0
        ? `${asked} finds no ${this.spec.maker} GPU; check that its driver is loaded and that this user may use it, or use the device cpu${hidden}`
        : `${asked} finds ${count} device${count === 1 ? "" : "s"}: ${this.vendor}:0 to ${this.vendor}:${count - 1}${hidden}`,
    );
  }
}

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
    if (code === outOfMemory) this.#outOfMemory(bytes);
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
    if (code === outOfMemory) this.#outOfMemory(bytes, " of the host's memory");
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

export const cString = (bytes: Uint8Array): string => {
  const end = bytes.indexOf(0);
  return new TextDecoder().decode(end < 0 ? bytes : bytes.subarray(0, end));
};
