/**
 * Copies from one GPU to another, in the order of both streams and without the host's waiting: by the source itself where
 * it reaches the other's memory, else through page-locked memory.
 */
import type { DevicePtr, GpuContext } from "./driver.ts";
import type { Staging } from "./staging.ts";

export interface Side {
  readonly context: GpuContext;
  readonly staging: Staging;
  readonly at: DevicePtr;
}

/** False where the two know nothing of each other: those of different vendors. */
export function copyBetween(from: Side, to: Side, bytes: number): boolean {
  if (!from.context.sharesDriver(to.context)) return false;
  if (bytes === 0) return true;
  if (from.context.reaches(to.context)) push(from, to, bytes);
  else relay(from, to, bytes);
  return true;
}

/** The source's stream writes once the other's has done all that was enqueued there: its memory may have been in use. */
function push(from: Side, to: Side, bytes: number): void {
  follow(from.context, to.context);
  from.context.copyToPeer(to.context, to.at, from.at, bytes);
  follow(to.context, from.context);
}

function relay(from: Side, to: Side, bytes: number): void {
  const download = from.staging.begin(from.at, bytes);
  to.context.waitFor(download.event);
  for (const { start, address, bytes: piece } of download.pieces) {
    to.context.copyToDevice(to.at + BigInt(start), address, piece.byteLength);
  }
  const taken = to.context.createEvent();
  to.context.recordEvent(taken);
  const end = (): void => {
    to.context.destroyEvent(taken);
    download[Symbol.dispose]();
  };
  // Where the device is lost, so are the buffers; whoever reads next is told.
  to.context.waitEvent(taken).then(end, () => {});
}

/** What is enqueued on `later` from now on begins after what is enqueued on `earlier` by now. */
function follow(later: GpuContext, earlier: GpuContext): void {
  const event = earlier.createEvent();
  earlier.recordEvent(event);
  later.waitFor(event);
  earlier.destroyEvent(event);
}
