/** What the emitted loops of native threads share: the control block, and how chunks of a job are taken. */
import type { Assembler } from "./assembler.ts";
import { d, mem, r12, r13, r14, r15, rax, rbp, rbx, rcx, rdi, rdx, rsi, rsp } from "./operands.ts";
import type { Sleep } from "./sleep.ts";

// The control block: what threads wait for has cache lines of its own.
export const TICKET = 0;
export const SIGNAL = 64; // u32: the generation, on which idle workers sleep
export const DONE = 128; // u32: chunks finished
export const WAITING = 192; // u32: the main thread sleeps until all are
export const SLEEPERS = 196; // u32: workers asleep
export const THREADS = 256; // u32: threads that may take part, the main one included
export const STOP = 260;
export const KERNEL = 320;
export const ARGS = 328;
export const TOTAL = 336;
export const GRAIN = 344;
export const CHUNKS = 352;
// The queue: jobs that were given and jobs that are done, counted.
export const GIVEN = 384; // u64
export const FINISHED = 448; // u64
export const LOCK = 512; // u32: a thread runs the next of them
export const SETTLING = 576; // u32: the main thread waits for all of them
export const OWN = 1024; // per worker: control block, number, private memory
export const OWN_BYTES = 64;
export const CONTROL_BYTES = 8192;
export const MAX_THREADS = 64;

/** Some tenth of a millisecond: longer than the pauses between the ops of a decoded token, in which waking would cost. */
export const SPINS = 4000;
export const JOB_BYTES = 32;

const saved = [rbx, rbp, r12, r13, r14, r15];

/** Registers of both loops, which calls keep. */
export const control = rbx;
export const generation = r13;
export const scratch = r14;

export function prologue(a: Assembler): void {
  for (const register of saved) a.push(register);
  a.sub(rsp, 8); // calls want 16 bytes
}

export function epilogue(a: Assembler): void {
  a.add(rsp, 8);
  for (const register of saved.toReversed()) a.pop(register);
  a.ret();
}

/** Calls the job's kernel for the chunk in rax. */
export function emitChunk(a: Assembler): void {
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
export function emitTakeChunks(a: Assembler, sleep: Sleep): void {
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
