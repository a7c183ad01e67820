/**
 * A queue of jobs that the first worker runs while the main thread goes on with JavaScript: what is between two calls costs
 * time on one core only. When the main thread needs results it takes chunks, too, until all jobs are done. Jobs run in the
 * order in which they were given, each when the one before is done.
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
  prologue,
  SETTLING,
  SIGNAL,
  SLEEPERS,
  SPINS,
  STOP,
  scratch,
  THREADS,
} from "./control.ts";
import { d, mem, r12, r15, rax, rcx, rdi, rdx, rsi, rsp } from "./operands.ts";
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

/** void* conduct(own): runs what is given, by the code at `run`, and takes chunks of others' jobs meanwhile. */
export function emitConduct(sleep: Sleep, run: number): Uint8Array {
  const a = new Assembler();
  const done = r12;
  prologue(a);
  a.mov(scratch, mem(rdi, 16));
  a.mov(rax, mem(rdi, 24));
  a.push(rax); // where the queue is
  a.push(rax);
  a.mov(control, mem(rdi, 0));
  a.mov(generation, 0);
  a.mov(done, 0);
  const [given, helping, end] = [a.label(), a.label(), a.label()];
  const idle = a.here();
  a.mov(r15, SPINS);
  const spin = a.here();
  a.cmp(done, mem(control, GIVEN));
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
  a.cmp(done, mem(control, GIVEN));
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

  // All that are given, or as many as there are up to the end of the queue.
  a.bind(given);
  a.mov(rdx, mem(control, GIVEN));
  a.sub(rdx, done);
  a.mov(rsi, done);
  a.and(rsi, QUEUE - 1);
  a.mov(rcx, QUEUE);
  a.sub(rcx, rsi);
  a.cmp(rdx, rcx);
  a.cmova(rdx, rcx);
  a.mov(r15, rdx);
  a.imul(rsi, rsi, JOB_BYTES);
  a.add(rsi, mem(rsp));
  a.mov(rdi, control);
  a.mov(rcx, scratch);
  a.mov(rax, run);
  a.call(rax);
  a.add(done, r15);
  a.mov(rax, done);
  a.xchg(mem(control, FINISHED), rax);
  a.mov(d(generation), mem(control, SIGNAL));
  a.cmp(word(SETTLING), 0);
  a.je(idle);
  emitRouse(a, sleep);
  a.jmp(idle);
  a.bind(end);
  a.pop(rax);
  a.pop(rax);
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

/** void settle(control, scratch): takes chunks of what was given until all of it is done. */
export function emitSettle(sleep: Sleep): Uint8Array {
  const a = new Assembler();
  prologue(a);
  a.mov(control, rdi);
  a.mov(scratch, rsi);
  const [end, found] = [a.label(), a.label()];
  const compare = () => {
    a.mov(rax, mem(control, FINISHED));
    a.cmp(rax, mem(control, GIVEN));
  };
  const top = a.here();
  a.bind(found);
  a.mov(d(generation), mem(control, SIGNAL));
  compare();
  a.je(end);
  emitTakeChunks(a, sleep);
  a.mov(r15, SPINS);
  const spin = a.here();
  compare();
  a.je(end);
  a.mov(d(rax), mem(control, SIGNAL));
  a.cmp(d(rax), d(generation));
  a.jne(found);
  a.pause();
  a.sub(r15, 1);
  a.jne(spin);
  a.mov(rax, 1);
  a.xchg(mem(control, SETTLING), d(rax));
  a.lock();
  a.inc(word(SLEEPERS));
  const awake = a.label();
  compare();
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
