/**
 * What the GPU backend needs of a vendor's driver: memory, one stream per device, events, modules, launches, graphs.
 * HIP and CUDA are two thin bindings of it; the simulator is HIP with other libraries. All handles are addresses.
 * Every failing call throws a `WickError` that names the call, the vendor's error and the way out.
 */

import type { BlasTrial } from "./blas-trial.ts";
import type { Ccl } from "./ccl.ts";
import type { SystemMemory } from "./system-memory.ts";

export type DevicePtr = bigint;
export type Handle = bigint;

export interface GpuProperties {
  readonly name: string;
  /** What the compiler is told: "gfx1100", "sm_90". */
  readonly arch: string;
  /** Lanes per wave or warp. */
  readonly waveSize: number;
  readonly multiprocessors: number;
  readonly maxThreadsPerBlock: number;
  readonly sharedBytesPerBlock: number;
  readonly totalBytes: number;
  /** It has no memory to speak of but the host's: an APU. */
  readonly integrated: boolean;
  /** Its address on the PCI bus, "0000:c5:00.0"; null where the driver does not tell. */
  readonly busId: string | null;
  readonly driverVersion: string;
  readonly runtimeVersion: string;
}

export interface GpuDriver {
  readonly vendor: "rocm" | "cuda";
  /** The path or name of the library that was loaded. */
  readonly library: string;
  /** Its release, with the oldest that is supported where that is known: "HIP 5.2.3, 5.2 or later is needed". */
  readonly release: string;
  deviceCount(): number;
  properties(ordinal: number): GpuProperties;
  /** A device ready for work; the stream is its own. */
  open(ordinal: number): GpuContext;
}

/** Page-locked host memory: `bytes` views it. */
export interface PinnedBuffer {
  readonly address: bigint;
  readonly bytes: Uint8Array;
}

/** Host memory that the device maps: `address` is what kernels use. */
export interface MappedBuffer {
  readonly address: DevicePtr;
  readonly host: bigint;
}

/**
 * Arguments of a kernel in native memory: values are written into `view` at `offsets`, and `pointers` is the array of
 * their addresses that a launch takes. Allocated once per kernel and reused, because launches copy the values.
 */
export interface ArgumentBlock {
  readonly view: DataView;
  readonly offsets: readonly number[];
  readonly pointers: bigint;
}

export interface LaunchGeometry {
  readonly grid: readonly [x: number, y: number, z: number];
  readonly block: readonly [x: number, y: number, z: number];
  readonly sharedBytes: number;
  /** Whether multiprocessors set apart as much memory for it as they can. */
  readonly crowds?: boolean | undefined;
}

/**
 * A matrix in device memory and the boxes of it that kernels bring to shared memory (kernels/gpu/boxes.h). A row is `pieces` of
 * `pieceBytes`, a multiple of 16 as `at` is; `halves` of 2 are the rows of a gate and, behind them, those that it gates.
 */
export interface Boxes {
  readonly at: number;
  readonly rows: number;
  readonly halves: 1 | 2;
  readonly pieces: number;
  readonly pieceBytes: number;
  /** Of a box: rows of each half, and pieces side by side. */
  readonly boxRows: number;
  readonly boxPieces: number;
}

export interface GpuContext {
  readonly properties: GpuProperties;
  /** Why work cannot be recorded; null where it can. */
  readonly recordingProblem: string | null;
  /** Which of the driver's devices it is. */
  readonly ordinal: number;
  readonly stream: Handle;
  /** Makes the device current on this thread, for libraries that are given the stream; the methods do it themselves. */
  activate(): void;

  /** Throws `OutOfMemory`; 0 bytes give the address 0. */
  malloc(bytes: number): DevicePtr;
  free(ptr: DevicePtr): void;
  memoryInfo(): { readonly free: number; readonly total: number };
  /** Host memory for kernels, not for this process to look at: the device caches it. Throws `OutOfMemory`. */
  mapped(bytes: number): MappedBuffer;
  freeMapped(buffer: MappedBuffer): void;

  /** Whether kernels may write to page-locked memory what the host reads once an event has passed. */
  readonly kernelsWritePinned: boolean;
  pinned(bytes: number): PinnedBuffer;
  freePinned(buffer: PinnedBuffer): void;
  /** Enqueues; the host memory must stay until the stream has passed. */
  copyToDevice(dst: DevicePtr, src: bigint, bytes: number): void;
  copyToHost(dst: bigint, src: DevicePtr, bytes: number): void;
  copyOnDevice(dst: DevicePtr, src: DevicePtr, bytes: number): void;
  memset(dst: DevicePtr, byte: number, bytes: number): void;
  /** Whether events of one can be waited for by the other. */
  sharesDriver(other: GpuContext): boolean;
  /** Whether this device can write the other's memory itself; asked for when it is first needed. */
  reaches(peer: GpuContext): boolean;
  /** Enqueues on this device's stream a copy into memory of another that it reaches. */
  copyToPeer(peer: GpuContext, dst: DevicePtr, src: DevicePtr, bytes: number): void;

  /** Blocks this thread until the stream is done. */
  synchronizeSync(): void;
  /** Waits on a pool thread, so the event loop goes on. */
  synchronize(): Promise<void>;

  createEvent(): Handle;
  destroyEvent(event: Handle): void;
  recordEvent(event: Handle): void;
  waitEvent(event: Handle): Promise<void>;
  /** Blocks this thread. */
  waitEventSync(event: Handle): void;
  /** What is enqueued from now on begins after an event of this device, or of another of the driver. */
  waitFor(event: Handle): void;
  /** Milliseconds between two recorded and completed events. */
  elapsed(start: Handle, end: Handle): number;

  /** Keeps `code`, which must not change until the module is unloaded. */
  loadModule(code: Uint8Array): Handle;
  unloadModule(module: Handle): void;
  getFunction(module: Handle, name: string): Handle;
  /** Native memory for arguments of these sizes, each aligned to its size. */
  argumentBlock(sizes: readonly number[]): ArgumentBlock;
  launch(fn: Handle, geometry: LaunchGeometry, args: ArgumentBlock): void;
  /** The map by which kernels find these boxes; null where the device or its driver has none, or refuses this one. */
  boxMap(boxes: Boxes): Uint8Array | null;
  /**
   * Recorded launches that follow each other may overlap as far as their kernels allow it. What is launched behind a fence
   * begins when all before it has ended; copies are fences, and so is what libraries enqueue, who call this themselves.
   */
  fence(): void;

  /** Work enqueued between these two is recorded, not run. */
  beginCapture(): void;
  endCapture(): Handle;
  launchGraph(graph: Handle): void;
  destroyGraph(graph: Handle): void;

  close(): void;
}

/** Compiles kernel sources at run time: hiprtc or nvrtc, each program in a process of its own. */
export interface KernelCompiler {
  readonly library: string;
  readonly version: string;
  /** Differs between any two builds and releases: compiled code is kept under it. */
  readonly identity: string;
  /** Whether this compiler knows the arch: an unknown one would kill the process in hiprtc. */
  supports(arch: string): boolean;
  /** The arch that code for a device is kept under: its own, or, in the simulator, one that all devices share. */
  codeArch(arch: string): string;
  /** Throws `CompileFailed` with the log. Blocks this thread; `compileAsync` compiles several programs side by side. */
  compile(source: string, name: string, arch: string, options: readonly string[]): Uint8Array;
  compileAsync(source: string, name: string, arch: string, options: readonly string[]): Promise<Uint8Array>;
}

export type GemmType = "f16" | "bf16" | "f32" | "f64";

/** Row-major C (m, n) = A (m, k) × B (k, n), batched by strides in elements (0 repeats). */
export interface Gemm<Pointer = DevicePtr> {
  readonly type: GemmType;
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly a: Pointer;
  readonly transA: boolean;
  readonly lda: number;
  readonly strideA: number;
  readonly b: Pointer;
  readonly transB: boolean;
  readonly ldb: number;
  readonly strideB: number;
  readonly c: Pointer;
  readonly strideC: number;
  readonly batch: number;
}

/** A handle of rocBLAS, hipBLASLt or cuBLAS, bound to a context's stream. */
export interface Blas {
  readonly library: string;
  /** With its name: "rocBLAS 4.2.0". */
  readonly version: string;
  /** Enqueues the product; false where the library has no way to compute it. */
  gemm(p: Gemm): boolean;
  /** The same from a pool thread, so the event loop goes on; nothing else may be asked of this handle meanwhile. */
  gemmAsync(p: Gemm): Promise<boolean>;
  /** Frees what only recorded work could need, once there is none. */
  trim(): void;
  close(): void;
}

/** Recorded work, which keeps the addresses that it was recorded with. */
export interface Recordings {
  /** Whether work is being recorded right now. */
  readonly recording: boolean;
  /** Recorded graphs that may be replayed. */
  readonly graphs: number;
}

/** A BLAS library that was found and has not been used yet. */
export interface BlasLibrary {
  readonly library: string;
  readonly version: string;
  /** Why it cannot multiply on this device, by the files that are there; empty where they say nothing against it. */
  readonly problem: string;
  /** What a child process tries before this one uses it; null for a library that does not end the process. */
  readonly trial: BlasTrial | null;
  /** A new handle. */
  open(context: GpuContext, recordings: Recordings): Blas;
}

/** A kind of BLAS library that a platform can have. */
export interface BlasSource {
  /** As WICK_BLAS names it. */
  readonly name: "rocblas" | "hipblaslt" | "cublas";
  /** Whether it is used on this device without being asked for, and why it comes before others; "" where it is the only one. */
  readonly isDefault: boolean;
  readonly why: string;
  /** Throws `LibraryNotFound`. */
  find(context: GpuContext): BlasLibrary;
}

/** A vendor's libraries. The compiler, the BLAS and the collectives are opened when asked for; each throws `LibraryNotFound`. */
export interface GpuPlatform {
  readonly driver: GpuDriver;
  compiler(): KernelCompiler;
  /** The libraries that can multiply on devices of an arch, the best first. */
  blas(arch: string): readonly BlasSource[];
  /** The library by which processes with a device each add up and exchange what they have. */
  collectives(): Ccl;
  /** What the system says about memory. */
  readonly memory: SystemMemory;
}
