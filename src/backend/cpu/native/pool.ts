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
import { callable, executable, guarded, type NativeCall, systemFunction } from "./memory.ts";
import { d, type Label, mem, r8, r9, r12, r13, r14, r15, rax, rbp, rbx, rcx, rdi, rdx, rsi, rsp } from "./operands.ts";
import { type Sleep, sleepCalls } from "./sleep.ts";

// The control block: what threads wait for has cache lines of its own.
const TICKET = 0;
const SIGNAL = 64; // u32: the generation, on which idle workers sleep
const DONE = 128; // u32: chunks finished
const WAITING = 192; // u32: the main thread sleeps until all are
const SLEEPERS = 196; // u32: workers asleep
const THREADS = 256; // u32: threads that may take part, the main one included
const STOP = 260;
const KERNEL = 320;
const ARGS = 328;
const TOTAL = 336;
const GRAIN = 344;
const CHUNKS = 352;
const OWN = 1024; // per worker: control block, number, private memory
const OWN_BYTES = 64;
const CONTROL_BYTES = 8192;
const MAX_THREADS = 64;

/** Some tenth of a millisecond: longer than the pauses between the ops of a decoded token, in which waking would cost. */
const SPINS = 4000;
/** Bytes of private memory per thread, on large pages where the system has them. */
export const SCRATCH_BYTES = 4 << 20;
const LARGE_PAGE = 2 << 20;

const ARGUMENT_BYTES = 16384;
const JOB_BYTES = 32;
const MAX_JOBS = 16;

/** A word of arguments: a whole number, or a float of 64 bits. */
export type Word = number | { readonly double: number };

/**
 * One step of an op: `kernel(args, lo, hi, scratch)` for the items 0 … total−1 in chunks of `grain`. Arguments are 64-bit
 * words: addresses, sizes, and floats by their bits (`floatBits`).
 */
export interface Job {
  readonly kernel: number;
  readonly args: readonly Word[];
  readonly total: number;
  readonly grain: number;
}

const saved = [rbx, rbp, r12, r13, r14, r15];

/** Registers of both loops, which calls keep. */
const control = rbx;
const generation = r13;
const scratch = r14;

function prologue(a: Assembler): void {
  for (const register of saved) a.push(register);
  a.sub(rsp, 8); // calls want 16 bytes
}

function epilogue(a: Assembler): void {
  a.add(rsp, 8);
  for (const register of saved.toReversed()) a.pop(register);
  a.ret();
}

/** Calls the job's kernel for the chunk in rax. */
function emitChunk(a: Assembler): void {
  a.mov(rsi, mem(control, GRAIN));
  a.mov(rdx, rsi);
  a.imul(rsi, rax);
  a.add(rdx, rsi);
  a.cmp(rdx, mem(control, TOTAL));
  a.cmova(rdx, mem(control, TOTAL));
  a.mov(rdi, mem(control, ARGS));
  a.mov(rcx, scratch);
  a.mov(rax, mem(control, KERNEL));
  a.call(rax);
}

/** Takes chunks of `generation` until none is left. */
function emitTakeChunks(a: Assembler, sleep: Sleep): void {
  const out = a.label();
  const top = a.here();
  a.mov(rax, mem(control, TICKET));
  a.mov(rcx, rax);
  a.shr(rcx, 32);
  a.cmp(d(rcx), d(generation));
  a.jne(out);
  a.mov(d(rbp), mem(control, CHUNKS));
  a.cmp(d(rax), d(rbp));
  a.jae(out);
  a.lea(rdx, mem(rax, 1));
  a.lock();
  a.cmpxchg(mem(control, TICKET), rdx);
  a.jne(top);
  a.mov(d(rax), d(rax));
  emitChunk(a);
  a.mov(rax, 1);
  a.lock();
  a.xadd(mem(control, DONE), d(rax));
  a.add(d(rax), 1);
  a.cmp(d(rax), d(rbp));
  a.jne(top);
  a.cmp(mem(control, { disp: WAITING, bits: 32 }), 0);
  a.je(top);
  sleep.wakeAll(a, control, DONE);
  a.jmp(top);
  a.bind(out);
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
  const [next, end, shared, finished, waiting, empty] = [
    a.label(),
    a.label(),
    a.label(),
    a.label(),
    a.label(),
    a.label(),
  ];
  const top = a.here();
  a.test(left, left);
  a.je(end);
  a.mov(rax, mem(jobs, 16));
  a.test(rax, rax);
  a.je(empty);
  a.mov(rcx, mem(jobs, 24));
  a.sub(rax, 1);
  a.mov(rdx, 0);
  a.div(rcx);
  a.lea(rbp, mem(rax, 1));
  // First close the old generation: a late worker must not pair its ticket with the fields written next.
  a.mov(d(generation), mem(control, SIGNAL));
  a.add(d(generation), 1);
  a.mov(rax, generation);
  a.shl(rax, 32);
  a.mov(rdx, rax);
  a.mov(r9, 0xffffffff);
  a.or(rax, r9);
  a.xchg(mem(control, TICKET), rax);
  for (const [at, field] of [KERNEL, ARGS, TOTAL, GRAIN].entries()) {
    a.mov(r8, mem(jobs, 8 * at));
    a.mov(mem(control, field), r8);
  }
  a.mov(mem(control, CHUNKS), rbp);
  a.mov(mem(control, { disp: DONE, bits: 32 }), 0);
  a.cmp(rbp, 1);
  a.je(waiting);
  a.cmp(mem(control, { disp: THREADS, bits: 32 }), 1);
  a.ja(shared);
  // Alone, one chunk after the other.
  a.bind(waiting);
  a.mov(generation, 0);
  const alone = a.here();
  a.mov(rax, generation);
  emitChunk(a);
  a.add(generation, 1);
  a.cmp(generation, rbp);
  a.jb(alone);
  a.jmp(next);
  a.bind(shared);
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
  a.bind(next);
  a.bind(empty);
  a.add(jobs, JOB_BYTES);
  a.sub(left, 1);
  a.jmp(top);
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

export class NativePool {
  readonly #run: NativeCall;
  readonly #work: number;
  readonly #control: number;
  readonly #words: Uint32Array;
  readonly #doubles: Float64Array;
  readonly #argumentsAt: number;
  readonly #scratch: number;
  #threads = 1;
  #workers = 0;

  constructor() {
    const sleep = sleepCalls();
    this.#run = callable(executable(emitRun(sleep)), 4);
    this.#work = executable(emitWork(sleep));
    this.#control = guarded(CONTROL_BYTES).address;
    const buffer = new ArrayBuffer(ARGUMENT_BYTES);
    this.#words = new Uint32Array(buffer);
    this.#doubles = new Float64Array(buffer);
    this.#argumentsAt = addressOfBuffer(buffer);
    this.#scratch = newScratch();
    this.#writeControl(THREADS, 1);
    // A worker thread of Node that ends takes its pool along; the process itself does not wait for the threads.
    if (!isMainThread) process.once("exit", () => callable(executable(emitStop(sleep)), 1)(this.#control));
  }

  get threads(): number {
    return this.#threads;
  }

  set threads(n: number) {
    if (n === this.#threads) return;
    this.#threads = n;
    this.#writeControl(THREADS, n);
  }

  /** Runs the jobs one after the other, each shared by the threads; returns when all are done. */
  run(...jobs: readonly Job[]): void {
    if (jobs.length > MAX_JOBS) fail("InvalidArgument", `cpu: ${jobs.length} jobs in one call`);
    let at = (MAX_JOBS * JOB_BYTES) / 4;
    let isShared = false;
    jobs.forEach(({ kernel, args, total, grain }, i) => {
      if (at + 2 * args.length > this.#words.length)
        fail("InvalidArgument", "cpu: the jobs of one call have too many arguments");
      const place = (i * JOB_BYTES) / 4;
      this.#word(place, kernel);
      this.#word(place + 2, this.#argumentsAt + 4 * at);
      this.#word(place + 4, total);
      this.#word(place + 6, grain);
      for (const word of args) {
        if (typeof word === "number") this.#word(at, word);
        else this.#doubles[at >> 1] = word.double;
        at += 2;
      }
      at = (at + 15) & ~15;
      isShared ||= total > grain;
    });
    if (isShared && this.#workers < this.#threads - 1) this.#startWorkers();
    this.#run(this.#control, this.#argumentsAt, jobs.length, this.#scratch);
  }

  #word(at: number, value: number): void {
    this.#words[at] = value; // modulo 2^32
    this.#words[at + 1] = Math.floor(value / 2 ** 32);
  }

  #writeControl(field: number, value: number): void {
    ffi().encode(BigInt(this.#control + field), "uint32_t", value);
  }

  #startWorkers(): void {
    while (this.#workers < Math.min(this.#threads, MAX_THREADS) - 1) {
      const number = this.#workers + 1;
      const own = this.#control + OWN + number * OWN_BYTES;
      const words = BigInt64Array.of(BigInt(this.#control), BigInt(number), BigInt(newScratch()));
      ffi().encode(BigInt(own), "int64_t [3]", [...words]);
      // Where the system gives no more threads, those that are there do all chunks.
      if (!startThread(this.#work, own)) return;
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
