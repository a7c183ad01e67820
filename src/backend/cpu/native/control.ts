/** What the emitted loops of native threads share: the control block, and how chunks of a job are taken. */
import type { Assembler } from "./assembler.ts";
import { d, type Gpr, mem, r12, r13, r14, r15, rax, rbp, rbx, rcx, rdi, rdx, rsi, rsp } from "./operands.ts";
import type { Sleep } from "./sleep.ts";

// The control block: what threads wait for has cache lines of its own.
export const TICKET = 0;
export const SIGNAL = 64; // u32: the generation, on which idle workers sleep
export const DONE = 128; // u32: chunks finished
export const WAITING = 192; // u32: the main thread sleeps until all are
export const SLEEPERS = 196; // u32: workers asleep
export const THREADS = 256; // u32: threads that may take part, the main one included
export const STOP = 260;
export const JOB = 320; // as `jobFields` has it
export const CHUNKS = 376;
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

/** A job: the first `heads` chunks have `head` items each, the others `grain`. */
export const jobFields = { kernel: 0, args: 8, total: 16, grain: 24, head: 32, heads: 40 } as const;
export const JOB_BYTES = 48;

const saved = [rbx, rbp, r12, r13, r14, r15];

/** Registers of both loops, which calls keep. */
export const control = rbx;
export const generation = r13;
export const scratch = r14;

export function prologue(a: Assembler): void {
  for (const register of saved) a.push(register);
  a.sub(rsp, 8); // calls want 16 bytes: a word for `emitTakeChunks`
}

export function epilogue(a: Assembler): void {
  a.add(rsp, 8);
  for (const register of saved.toReversed()) a.pop(register);
  a.ret();
}

/** Calls the kernel of the job at base + at for the chunk in rax. */
export function emitChunk(a: Assembler, base: Gpr, at: number): void {
  const field = (name: keyof typeof jobFields) => mem(base, at + jobFields[name]);
  const [isHead, ready] = [a.label(), a.label()];
  a.mov(rcx, field("heads"));
  a.cmp(rax, rcx);
  a.jb(isHead);
  a.sub(rax, rcx);
  a.imul(rcx, field("head"));
  a.mov(rdx, field("grain"));
  a.mov(rsi, rdx);
  a.imul(rsi, rax);
  a.add(rsi, rcx);
  a.add(rdx, rsi);
  a.cmp(rdx, field("total"));
  a.cmova(rdx, field("total"));
  a.jmp(ready);
  a.bind(isHead);
  a.mov(rdx, field("head"));
  a.mov(rsi, rdx);
  a.imul(rsi, rax);
  a.add(rdx, rsi);
  a.bind(ready);
  a.mov(rdi, field("args"));
  a.mov(rcx, scratch);
  a.mov(rax, field("kernel"));
  a.call(rax);
}

/** Takes chunks of `generation` until none is left, and says then how many it has done: words between cores take time. */
export function emitTakeChunks(a: Assembler, sleep: Sleep): void {
  const [out, end] = [a.label(), a.label()];
  const taken = mem(rsp);
  a.mov(taken, 0);
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
  emitChunk(a, control, JOB);
  a.add(taken, 1);
  a.jmp(top);
  a.bind(out);
  a.mov(rcx, taken);
  a.test(rcx, rcx);
  a.je(end);
  a.mov(rax, rcx);
  a.lock();
  a.xadd(mem(control, DONE), d(rax));
  a.add(d(rax), d(rcx));
  a.cmp(d(rax), d(rbp));
  a.jne(end);
  a.cmp(mem(control, { disp: WAITING, bits: 32 }), 0);
  a.je(end);
  sleep.wakeAll(a, control, DONE);
  a.bind(end);
}
