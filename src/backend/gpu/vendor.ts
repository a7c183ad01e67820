/** What HIP and CUDA must tell of themselves, where they differ. */
import type { ArgumentBlock, Boxes, Handle, LaunchGeometry } from "./driver.ts";
import type { Library } from "./library.ts";

export type DriverCall =
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
  /** Whether what kernels write to page-locked memory is seen once an event behind them has passed, under one address. */
  readonly kernelsWritePinned: boolean;
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
  /** Lets a function use this much dynamic shared memory, where that must be asked for, and blocks that crowd find room beside it. */
  allowShared: ((fn: Handle, bytes: number, crowds: boolean) => number) | null;
  /** Writes the map of a matrix, of 128 bytes, to a multiple of 64; its result code. Null where devices know no such maps. */
  boxMap: ((to: bigint, boxes: Boxes) => number) | null;
}

export type OverlappingLaunch = (fn: Handle, geometry: LaunchGeometry, stream: Handle, args: ArgumentBlock) => number;

/** Both vendors number it alike. */
export const OUT_OF_MEMORY = 2;
