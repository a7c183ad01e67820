/**
 * A queue of jobs that the first worker runs while the main thread goes on with JavaScript: what is between two calls costs
 * time on one core only. When the main thread needs results it runs jobs, too, or takes chunks of the one that is under way,
 * until all are done: so nothing waits for a worker that the system does not run. Jobs run in the order in which they were
 * given, each when the one before is done; who holds the lock runs the next.
 */
import { Assembler } from "./assembler.ts";
import {
  control,
  emitTakeChunks,
  epilogue,
  FINISHED,
  GIVEN,
  generation,
  JOB_BYTES,
  LOCK,
  prologue,
  SETTLING,
  SIGNAL,
  SLEEPERS,
  SPINS,
  STOP,
  scratch,
  THREADS,
} from "./control.ts";
import { d, type Gpr, type Label, type Mem, mem, r12, r15, rax, rcx, rdi, rdx, rsi } from "./operands.ts";
import type { Sleep } from "./sleep.ts";

/** Jobs that the queue has room for. */
export const QUEUE = 256;

const word = (disp: number) => mem(control, { disp, bits: 32 });

/** A new signal without a job: whoever sleeps looks again. */
function emitRouse(a: Assembler, sleep: Sleep): void {
  a.lock();
  a.inc(word(SIGNAL));
  sleep.wakeAll(a, control, SIGNAL);
}

const compareQueue = (a: Assembler): void => {
  a.mov(rax, mem(control, FINISHED));
  a.cmp(rax, mem(control, GIVEN));
};

/** Runs the next job of the queue at `queue` by the code at `run`; goes to `busy` where another thread runs one. Uses r15. */
function emitNext(a: Assembler, run: number, queue: Gpr | Mem, busy: Label): void {
  const none = a.label();
  a.cmp(word(LOCK), 0);
  a.jne(busy);
  a.mov(rax, 1);
  a.xchg(mem(control, LOCK), d(rax));
  a.test(d(rax), d(rax));
  a.jne(busy);
  a.mov(r15, mem(control, FINISHED));
  a.cmp(r15, mem(control, GIVEN));
  a.je(none);
  a.mov(rsi, r15);
  a.and(rsi, QUEUE - 1);
  a.imul(rsi, rsi, JOB_BYTES);
  a.add(rsi, queue);
  a.mov(rdi, control);
  a.mov(rdx, 1);
  a.mov(rcx, scratch);
  a.mov(rax, run);
  a.call(rax);
  a.add(r15, 1);
  a.xchg(mem(control, FINISHED), r15);
  a.bind(none);
  a.mov(word(LOCK), 0);
}

/** void* conduct(own): runs what is given, by the code at `run`, and takes chunks of others' jobs. */
export function emitConduct(sleep: Sleep, run: number): Uint8Array {
  const a = new Assembler();
  const queue = r12;
  prologue(a);
  a.mov(scratch, mem(rdi, 16));
  a.mov(queue, mem(rdi, 24));
  a.mov(control, mem(rdi, 0));
  a.mov(generation, 0);
  const [given, busy, helping, end] = [a.label(), a.label(), a.label(), a.label()];
  const idle = a.here();
  a.mov(r15, SPINS);
  const spin = a.here();
  compareQueue(a);
  a.jne(given);
  a.mov(d(rax), mem(control, SIGNAL));
  a.cmp(d(rax), d(generation));
  a.jne(helping);
  a.pause();
  a.sub(r15, 1);
  a.jne(spin);
  a.lock();
  a.inc(word(SLEEPERS));
  // Who gives a job looks for sleepers after it: one of both is seen.
  const awake = a.label();
  compareQueue(a);
  a.jne(awake);
  sleep.wait(a, control, SIGNAL, generation);
  a.bind(awake);
  a.lock();
  a.dec(word(SLEEPERS));
  a.jmp(idle);

  a.bind(helping);
  a.mov(d(generation), d(rax));
  a.cmp(word(STOP), 0);
  a.jne(end);
  a.mov(rax, 1);
  a.cmp(d(rax), mem(control, THREADS));
  a.jae(idle);
  emitTakeChunks(a, sleep);
  a.jmp(idle);

  a.bind(given);
  emitNext(a, run, queue, busy);
  a.mov(d(generation), mem(control, SIGNAL));
  compareQueue(a);
  a.jne(given);
  a.cmp(word(SETTLING), 0);
  a.je(idle);
  emitRouse(a, sleep);
  a.jmp(idle);
  a.bind(busy);
  a.mov(d(generation), mem(control, SIGNAL));
  emitTakeChunks(a, sleep);
  a.pause();
  a.jmp(idle);

  a.bind(end);
  a.mov(rax, 0);
  epilogue(a);
  return a.finish();
}

/** void give(control, given): so many jobs have been given by now. */
export function emitGive(sleep: Sleep): Uint8Array {
  const a = new Assembler();
  prologue(a);
  a.mov(control, rdi);
  a.xchg(mem(control, GIVEN), rsi);
  const awake = a.label();
  a.cmp(word(SLEEPERS), 0);
  a.je(awake);
  emitRouse(a, sleep);
  a.bind(awake);
  epilogue(a);
  return a.finish();
}

/** void settle(control, scratch, queue): runs what was given, and takes chunks of it, until all is done. */
export function emitSettle(sleep: Sleep, run: number): Uint8Array {
  const a = new Assembler();
  const queue = r12;
  prologue(a);
  a.mov(control, rdi);
  a.mov(scratch, rsi);
  a.mov(queue, rdx);
  const [end, busy, awake] = [a.label(), a.label(), a.label()];
  const top = a.here();
  compareQueue(a);
  a.je(end);
  emitNext(a, run, queue, busy);
  a.jmp(top);
  a.bind(busy);
  a.mov(d(generation), mem(control, SIGNAL));
  emitTakeChunks(a, sleep);
  // Until there is another job, or nobody runs one.
  a.mov(r15, SPINS);
  const spin = a.here();
  a.cmp(word(LOCK), 0);
  a.je(top);
  a.mov(d(rax), mem(control, SIGNAL));
  a.cmp(d(rax), d(generation));
  a.jne(busy);
  a.pause();
  a.sub(r15, 1);
  a.jne(spin);
  a.mov(rax, 1);
  a.xchg(mem(control, SETTLING), d(rax));
  a.lock();
  a.inc(word(SLEEPERS));
  compareQueue(a);
  a.je(awake);
  sleep.wait(a, control, SIGNAL, generation);
  a.bind(awake);
  a.lock();
  a.dec(word(SLEEPERS));
  a.mov(word(SETTLING), 0);
  a.jmp(top);
  a.bind(end);
  epilogue(a);
  return a.finish();
}
