/**
 * Native threads, and how they share an op: as in wasm/pool.ts, by a ticket of 64 bits with the generation in its high
 * half and the next chunk in the low one, taken by compare-and-swap. A worker that wakes late finds another generation
 * and takes nothing; what it reads of the job it reads after it has taken a chunk of it, and no new job begins before
 * every chunk is done. The cut into chunks depends on the work alone, so results are the same with any number of threads.
 *
 * All of it is emitted: the main thread makes one call per op, and no JavaScript runs in the others. They never end: the
 * process does not wait for them.
 */
import { isMainThread } from "node:worker_threads";
import { fail } from "../../../core/errors.ts";
import { ffi } from "../../ffi.ts";
import { addressOfBuffer, libc } from "../libc.ts";
import { Assembler } from "./assembler.ts";
import { emitConduct, emitGive, emitSettle, QUEUE } from "./conductor.ts";
import {
  CHUNKS,
  CONTROL_BYTES,
  control,
  DONE,
  emitChunk,
  emitTakeChunks,
  epilogue,
  generation,
  JOB,
  JOB_BYTES,
  jobFields,
  MAX_THREADS,
  OWN,
  OWN_BYTES,
  prologue,
  SIGNAL,
  SLEEPERS,
  SPINS,
  STOP,
  scratch,
  THREADS,
  TICKET,
  WAITING,
} from "./control.ts";
import { callable, executable, guarded, type NativeCall, systemFunction } from "./memory.ts";
import { d, type Label, mem, r8, r9, r12, r15, rax, rbp, rcx, rdi, rdx, rsi } from "./operands.ts";
import { setPending } from "./pending.ts";
import { type Sleep, sleepCalls } from "./sleep.ts";

/** Bytes of private memory per thread, on large pages where the system has them. */
export const SCRATCH_BYTES = 4 << 20;
const LARGE_PAGE = 2 << 20;

const ARGUMENT_BYTES = 16384;
/** Of a job in the queue. */
export const QUEUED_BYTES = 1024;
const MAX_JOBS = 16;

/** A word of arguments: a whole number, a float of 64 bits, or the address of another word of the same job's. */
export type Word = number | { readonly double: number } | { readonly own: number };

/**
 * One step of an op: `kernel(args, lo, hi, scratch)` for the items 0 … total−1 in chunks of `grain`. Arguments are 64-bit
 * words: addresses, sizes, and floats by their bits (`floatBits`).
 */
export interface Job {
  readonly kernel: number;
  readonly args: readonly Word[];
  readonly total: number;
  readonly grain: number;
  /** A first chunk of so many items for each thread. */
  readonly head?: number;
}

/** void run(control, jobs, count, scratch) of the main thread. */
function emitRun(sleep: Sleep): Uint8Array {
  const a = new Assembler();
  const jobs = r12;
  const left = r15;
  prologue(a);
  a.mov(control, rdi);
  a.mov(jobs, rsi);
  a.mov(left, rdx);
  a.mov(scratch, rcx);
  const [end, finished, alone, empty] = [a.label(), a.label(), a.label(), a.label()];
  const top = a.here();
  a.test(left, left);
  a.je(end);
  const field = (name: keyof typeof jobFields) => mem(jobs, jobFields[name]);
  a.mov(rax, field("total"));
  a.test(rax, rax);
  a.je(empty);
  a.mov(rcx, field("head"));
  a.mov(rbp, field("heads"));
  a.imul(rcx, rbp);
  a.sub(rax, rcx);
  a.mov(rcx, field("grain"));
  a.add(rax, rcx);
  a.sub(rax, 1);
  a.mov(rdx, 0);
  a.div(rcx);
  a.add(rbp, rax);
  a.cmp(rbp, 1);
  a.je(alone);
  a.cmp(mem(control, { disp: THREADS, bits: 32 }), 1);
  a.je(alone);
  // First close the old generation: a late worker must not pair its ticket with the fields written next.
  a.mov(d(generation), mem(control, SIGNAL));
  a.add(d(generation), 1);
  a.mov(rax, generation);
  a.shl(rax, 32);
  a.mov(rdx, rax);
  a.mov(r9, 0xffffffff);
  a.or(rax, r9);
  a.xchg(mem(control, TICKET), rax);
  for (const at of Object.values(jobFields)) {
    a.mov(r8, mem(jobs, at));
    a.mov(mem(control, JOB + at), r8);
  }
  a.mov(mem(control, CHUNKS), rbp);
  a.mov(mem(control, { disp: DONE, bits: 32 }), 0);
  a.mov(mem(control, TICKET), rdx);
  a.mov(rax, generation);
  a.xchg(mem(control, SIGNAL), d(rax));
  const awake = a.label();
  a.cmp(mem(control, { disp: SLEEPERS, bits: 32 }), 0);
  a.je(awake);
  sleep.wakeAll(a, control, SIGNAL);
  a.bind(awake);
  emitTakeChunks(a, sleep);
  a.mov(rbp, mem(control, CHUNKS));
  emitWaitForAll(a, sleep, finished);
  a.bind(finished);
  const next = a.here();
  a.bind(empty);
  a.add(jobs, JOB_BYTES);
  a.sub(left, 1);
  a.jmp(top);
  // One chunk after the other, of which nobody else hears.
  a.bind(alone);
  a.mov(generation, 0);
  const chunks = a.here();
  a.mov(rax, generation);
  emitChunk(a, jobs, 0);
  a.add(generation, 1);
  a.cmp(generation, rbp);
  a.jb(chunks);
  a.jmp(next);
  a.bind(end);
  epilogue(a);
  return a.finish();
}

/** Until `rbp` chunks are done: spinning, then asleep. */
function emitWaitForAll(a: Assembler, sleep: Sleep, finished: Label): void {
  const asleep = a.label();
  a.mov(rcx, SPINS);
  const spin = a.here();
  a.mov(d(rax), mem(control, DONE));
  a.cmp(d(rax), d(rbp));
  a.je(finished);
  a.pause();
  a.sub(rcx, 1);
  a.jne(spin);
  a.mov(rax, 1);
  a.xchg(mem(control, WAITING), d(rax));
  const wait = a.here();
  a.mov(d(rax), mem(control, DONE));
  a.cmp(d(rax), d(rbp));
  a.je(asleep);
  sleep.wait(a, control, DONE, rax);
  a.jmp(wait);
  a.bind(asleep);
  a.mov(mem(control, { disp: WAITING, bits: 32 }), 0);
}

/** void* work(own): a worker's life. It takes chunks of each new job, spins a little for the next, then sleeps. */
function emitWork(sleep: Sleep): Uint8Array {
  const a = new Assembler();
  const number = r12;
  prologue(a);
  a.mov(control, mem(rdi, 0));
  a.mov(number, mem(rdi, 8));
  a.mov(scratch, mem(rdi, 16));
  a.mov(generation, 0);
  const [found, end] = [a.label(), a.label()];
  const idle = a.here();
  a.mov(r15, SPINS);
  const spin = a.here();
  a.mov(d(rax), mem(control, SIGNAL));
  a.cmp(d(rax), d(generation));
  a.jne(found);
  a.pause();
  a.sub(r15, 1);
  a.jne(spin);
  a.lock();
  a.inc(mem(control, { disp: SLEEPERS, bits: 32 }));
  sleep.wait(a, control, SIGNAL, generation);
  a.lock();
  a.dec(mem(control, { disp: SLEEPERS, bits: 32 }));
  a.jmp(idle);
  a.bind(found);
  a.mov(d(generation), d(rax));
  a.cmp(mem(control, { disp: STOP, bits: 32 }), 0);
  a.jne(end);
  a.cmp(d(number), mem(control, THREADS));
  a.jae(idle);
  emitTakeChunks(a, sleep);
  a.jmp(idle);
  a.bind(end);
  a.mov(rax, 0);
  epilogue(a);
  return a.finish();
}

/** void stop(control): every worker ends. */
function emitStop(sleep: Sleep): Uint8Array {
  const a = new Assembler();
  prologue(a);
  a.mov(control, rdi);
  a.mov(rax, 1);
  a.xchg(mem(control, STOP), d(rax));
  a.lock();
  a.inc(mem(control, { disp: SIGNAL, bits: 32 }));
  sleep.wakeAll(a, control, SIGNAL);
  epilogue(a);
  return a.finish();
}

const [bits32, floats] = (() => {
  const buffer = new ArrayBuffer(8);
  return [new Uint32Array(buffer), new Float32Array(buffer)];
})();
/** A float as a word of arguments. */
export function floatBits(x: number): number {
  floats[0] = x;
  return bits32[0]!;
}

/** Memory that machine code reads jobs and their arguments from. */
class JobMemory {
  readonly address: number;
  readonly #words: Uint32Array;
  readonly #doubles: Float64Array;

  constructor(bytes: number) {
    const buffer = new ArrayBuffer(bytes);
    this.#words = new Uint32Array(buffer);
    this.#doubles = new Float64Array(buffer);
    this.address = addressOfBuffer(buffer);
  }

  /** A job at `place`, with its arguments at `at`, in words; says where the next ones may be. */
  write(place: number, at: number, { kernel, args, total, grain, head = 0 }: Job, threads: number): number {
    const heads = head > 0 && threads * head <= total ? threads : 0;
    const fields = [kernel, this.address + 4 * at, total, grain, head, heads];
    for (let i = 0; i < fields.length; i++) this.set(place + 2 * i, fields[i]!);
    let next = at;
    for (const word of args) {
      if (typeof word === "number") this.set(next, word);
      else if ("own" in word) this.set(next, this.address + 4 * at + 8 * word.own);
      else this.#doubles[next >> 1] = word.double;
      next += 2;
    }
    return nextLine(next);
  }

  set(at: number, value: number): void {
    this.#words[at] = value; // modulo 2^32
    this.#words[at + 1] = Math.floor(value / 2 ** 32);
  }
}

/** Arguments begin at lines of the cache, in words. */
const nextLine = (word: number): number => (word + 15) & ~15;

/** More than any address or size is. */
const FIRST_HOLE = 2 ** 52;
/** A word that a list is told before each run. */
export const hole = (which: number): number => FIRST_HOLE + which;

/** Jobs with memory of their own, to be run as often as one likes. */
export class JobList {
  readonly count: number;
  readonly isShared: boolean;
  readonly #memory: JobMemory;
  /** Where the words of holes are, and which they are of. */
  readonly #holes: { readonly at: number; readonly which: number }[] = [];

  /** For so many threads; others can run it, too. */
  constructor(jobs: readonly Job[], threads: number) {
    this.count = jobs.length;
    this.isShared = jobs.some(({ total, grain }) => total > grain);
    let at = nextLine((jobs.length * JOB_BYTES) / 4);
    const words = jobs.reduce((end, { args }) => nextLine(end + 2 * args.length), at);
    this.#memory = new JobMemory(4 * words);
    for (const [i, job] of jobs.entries()) {
      for (const [j, word] of job.args.entries()) {
        if (typeof word === "number" && word >= FIRST_HOLE)
          this.#holes.push({ at: at + 2 * j, which: word - FIRST_HOLE });
      }
      at = this.#memory.write((i * JOB_BYTES) / 4, at, job, threads);
    }
  }

  /** What stands in the place of each hole from now on. */
  fill(...words: readonly number[]): void {
    for (const { at, which } of this.#holes) this.#memory.set(at, words[which]!);
  }

  get address(): number {
    return this.#memory.address;
  }
}

export class NativePool {
  readonly #run: NativeCall;
  readonly #work: number;
  readonly #conduct: number;
  readonly #give: NativeCall;
  readonly #settleCall: NativeCall;
  readonly #control: number;
  /** Jobs and their arguments: those of one call, then the queue. */
  readonly #memory = new JobMemory(ARGUMENT_BYTES + QUEUE * (JOB_BYTES + QUEUED_BYTES));
  readonly #scratch: number;
  #threads = 1;
  #workers = 0;
  /** Jobs that were put into the queue, and those of them that are known to be done. */
  #given = 0;
  #settled = 0;
  readonly #settle = () => this.settle();

  constructor() {
    const sleep = sleepCalls();
    const run = executable(emitRun(sleep));
    this.#run = callable(run, 4);
    this.#work = executable(emitWork(sleep));
    this.#conduct = executable(emitConduct(sleep, run));
    this.#give = callable(executable(emitGive(sleep)), 2);
    this.#settleCall = callable(executable(emitSettle(sleep, run)), 3);
    this.#control = guarded(CONTROL_BYTES).address;
    this.#scratch = newScratch();
    this.#writeControl(THREADS, 1);
    // Memory must not go away under what is still computed.
    process.once("exit", this.#settle);
    // A worker thread of Node that ends takes its pool along; the process itself does not wait for the threads.
    if (!isMainThread) process.once("exit", () => callable(executable(emitStop(sleep)), 1)(this.#control));
  }

  get threads(): number {
    return this.#threads;
  }

  set threads(n: number) {
    if (n === this.#threads) return;
    this.settle();
    this.#threads = n;
    this.#writeControl(THREADS, n);
  }

  /** Runs the jobs one after the other, each shared by the threads; returns when all are done. */
  run(...jobs: readonly Job[]): void {
    this.settle();
    if (jobs.length > MAX_JOBS) fail("InvalidArgument", `cpu: ${jobs.length} jobs in one call`);
    let at = (MAX_JOBS * JOB_BYTES) / 4;
    let isShared = false;
    for (const [i, job] of jobs.entries()) {
      if (4 * at + 8 * job.args.length > ARGUMENT_BYTES)
        fail("InvalidArgument", "cpu: the jobs of one call have too many arguments");
      at = this.#memory.write((i * JOB_BYTES) / 4, at, job, this.#threads);
      isShared ||= job.total > job.grain;
    }
    if (isShared && this.#workers < this.#threads - 1) this.#startWorkers();
    this.#run(this.#control, this.#memory.address, jobs.length, this.#scratch);
  }

  /** The same for jobs that lie ready. */
  replay({ address, count, isShared }: JobList): void {
    this.settle();
    if (isShared && this.#workers < this.#threads - 1) this.#startWorkers();
    this.#run(this.#control, address, count, this.#scratch);
  }

  /**
   * Gives the jobs to the queue, and returns before they are done: what they use stays in place, and what looks at it asks
   * `settle` first. With one thread, or too many arguments, they are run at once.
   */
  give(...jobs: readonly Job[]): void {
    if (this.#workers === 0 && this.#threads > 1) this.#startWorkers();
    if (this.#workers === 0 || this.#threads === 1 || jobs.some(({ args }) => 8 * args.length > QUEUED_BYTES)) {
      this.run(...jobs);
      return;
    }
    if (this.#given + jobs.length - this.#settled > QUEUE) this.settle();
    for (const job of jobs) {
      const place = this.#given % QUEUE;
      const args = (ARGUMENT_BYTES + QUEUE * JOB_BYTES + place * QUEUED_BYTES) / 4;
      this.#memory.write((ARGUMENT_BYTES + place * JOB_BYTES) / 4, args, job, this.#threads);
      this.#given++;
    }
    this.#give(this.#control, this.#given);
    setPending(this.#settle);
  }

  /** Returns when the queue is empty and all is done. */
  settle(): void {
    if (this.#settled === this.#given) return;
    this.#settleCall(this.#control, this.#scratch, this.#memory.address + ARGUMENT_BYTES);
    this.#settled = this.#given;
    setPending(null);
  }

  #writeControl(field: number, value: number): void {
    ffi().encode(BigInt(this.#control + field), "uint32_t", value);
  }

  #startWorkers(): void {
    while (this.#workers < Math.min(this.#threads, MAX_THREADS) - 1) {
      const number = this.#workers + 1;
      const own = this.#control + OWN + number * OWN_BYTES;
      const queue = this.#memory.address + ARGUMENT_BYTES;
      const words = BigInt64Array.from([this.#control, number, newScratch(), queue], BigInt);
      ffi().encode(BigInt(own), "int64_t [4]", [...words]);
      // Where the system gives no more threads, those that are there do all chunks.
      if (!startThread(number === 1 ? this.#conduct : this.#work, own)) return;
      this.#workers = number;
    }
  }
}

function newScratch(): number {
  const { address } = guarded(SCRATCH_BYTES, LARGE_PAGE);
  libc()?.preferLargePages(address, SCRATCH_BYTES);
  return address;
}

let threadCalls: { readonly create: NativeCall; readonly detach: NativeCall; readonly mask: NativeCall } | undefined;

/** A thread of the system that is bothered by no signal. */
function startThread(code: number, argument: number): boolean {
  threadCalls ??= {
    create: callable(systemFunction("pthread_create"), 4),
    detach: callable(systemFunction("pthread_detach"), 1),
    mask: callable(systemFunction("pthread_sigmask"), 3),
  };
  const words = new BigInt64Array(64);
  const at = addressOfBuffer(words.buffer);
  words.fill(-1n, 0, 16);
  const setMask = process.platform === "darwin" ? 3 : 2;
  threadCalls.mask(setMask, at, at + 128);
  const failed = threadCalls.create(at + 256, 0, code, argument);
  threadCalls.mask(setMask, at + 128, 0);
  // An int, of which the call gives 64 bits.
  if (failed % 2 ** 32 !== 0) return false;
  threadCalls.detach(Number(words[32]));
  return true;
}
