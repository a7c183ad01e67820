/**
 * The worker pool: one op at a time, cut into chunks that the main thread and the workers take from a ticket counter.
 *
 * The ticket is 64 bits, generation in the high half and the next chunk in the low half, taken by compare-and-swap: a
 * worker that wakes late finds another generation and takes nothing. Arguments are read only after a chunk of the
 * current generation was taken, and the main thread starts no new op before every chunk is done, so they cannot change
 * under a running kernel. The cut into chunks depends on the work alone, never on the number of threads: results are
 * the same with any of them.
 */
import { CONTROL } from "./abi";
import { Address, Bytes, Thread, Threads, TmpAddress } from "./types";

const TICKET: usize = CONTROL; // u64: generation << 32 | next chunk
const SIGNAL: usize = CONTROL + 8; // i32: the generation, on which idle workers sleep
const CHUNKS: usize = CONTROL + 12;
const KERNEL: usize = CONTROL + 16; // index into the function table
const TOTAL: usize = CONTROL + 20;
const GRAIN: usize = CONTROL + 24;
const DONE: usize = CONTROL + 28; // i32: chunks finished
const SLEEPERS: usize = CONTROL + 32; // i32: workers asleep
const THREADS: usize = CONTROL + 36; // i32: threads that may take part, the main one included

/** A tenth of a millisecond or two: longer than the pauses between the ops of a decoded token, in which waking would cost. */
const SPINS: i32 = 100000;

/** A kernel handles the items lo … hi−1 of the op whose arguments are at ARGS. */
export type Kernel = (lo: usize, hi: usize) => void;

/** This thread's private memory, and its number (0 is the main thread). */
export let scratch: usize = 0;
export let threadIndex: i32 = 0;
/** Bytes of private memory per thread. */
export const SCRATCH_BYTES: usize = 4 << 20;

export function scratchBytes(): Bytes {
  return SCRATCH_BYTES;
}

/** Where the memory behind the module's own data begins. */
export function heapBase(): Address {
  return __heap_base;
}

export function enter(index: Thread, scratchAt: TmpAddress): void {
  threadIndex = index;
  scratch = scratchAt;
}

export function setThreads(n: Threads): void {
  atomic.store<i32>(THREADS, n);
}

/** Runs `kernel` over 0 … total−1 in chunks of `grain` items; returns when all are done. */
export function parallel(kernel: Kernel, total: usize, grain: usize): void {
  if (total === 0) return;
  const chunks = (total - 1) / grain + 1; // sums near 4 Gi would overflow
  if (chunks === 1 || load<i32>(THREADS) <= 1) {
    for (let chunk: usize = 0; chunk < chunks; chunk++) {
      const lo = chunk * grain;
      kernel(lo, lo + min(grain, total - lo));
    }
    return;
  }
  const generation = load<i32>(SIGNAL) + 1;
  // First close the old generation: a late worker must not pair its ticket with the fields written next.
  atomic.store<u64>(TICKET, ((<u64>(<u32>generation)) << 32) | 0xffffffff);
  store<u32>(CHUNKS, <u32>chunks);
  store<i32>(KERNEL, <i32>kernel.index);
  store<u32>(TOTAL, <u32>total);
  store<u32>(GRAIN, <u32>grain);
  atomic.store<i32>(DONE, 0);
  atomic.store<u64>(TICKET, (<u64>(<u32>generation)) << 32);
  atomic.store<i32>(SIGNAL, generation);
  if (atomic.load<i32>(SLEEPERS) > 0) atomic.notify(SIGNAL, -1);
  takeChunks(generation);
  let spins = 0;
  for (;;) {
    const done = atomic.load<i32>(DONE);
    if (done === <i32>chunks) return;
    if (++spins > SPINS) atomic.wait<i32>(DONE, done, 1_000_000);
  }
}

function takeChunks(generation: i32): void {
  for (;;) {
    const ticket = atomic.load<u64>(TICKET);
    const chunks = load<u32>(CHUNKS);
    if (<i32>(ticket >> 32) !== generation || <u32>ticket >= chunks) return;
    const kernel = load<i32>(KERNEL);
    const total = <usize>load<u32>(TOTAL);
    const grain = <usize>load<u32>(GRAIN);
    if (atomic.cmpxchg<u64>(TICKET, ticket, ticket + 1) !== ticket) continue;
    const lo = <usize>(<u32>ticket) * grain;
    call_indirect<void>(kernel, lo, lo + min(grain, total - lo));
    if (atomic.add<i32>(DONE, 1) + 1 === <i32>chunks) atomic.notify(DONE, 1);
  }
}

/** A worker's life: take chunks of each new op, spin a little for the next, then sleep. Never returns. */
export function work(index: Thread, scratchAt: TmpAddress): void {
  enter(index, scratchAt);
  let seen = 0;
  for (;;) {
    let spins = 0;
    while (atomic.load<i32>(SIGNAL) === seen) {
      if (++spins < SPINS) continue;
      atomic.add<i32>(SLEEPERS, 1);
      atomic.wait<i32>(SIGNAL, seen, -1);
      atomic.sub<i32>(SLEEPERS, 1);
      spins = 0;
    }
    seen = atomic.load<i32>(SIGNAL);
    if (index < atomic.load<i32>(THREADS)) takeChunks(seen);
  }
}
