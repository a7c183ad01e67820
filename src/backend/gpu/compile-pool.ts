/**
 * Run-time compilers in child processes (compile-child.js): several programs side by side, whatever locks a compiler
 * holds, an event loop that stays free, and a compiler that crashes, hangs or answers nonsense costs a child.
 */

import { availableParallelism, freemem } from "node:os";
import { MessageChannel, type MessagePort, receiveMessageOnPort, SHARE_ENV, Worker } from "node:worker_threads";
import { positive } from "../../core/environment.ts";
import { type CompileAnswer, CompileProcess, type CompileRequest } from "./compile-process.js";
import { STACK_BYTES } from "./library.ts";

export type { CompileAnswer, CompileRequest } from "./compile-process.js";

/** The memory that one compilation may take. */
const COMPILER_BYTES = 2 ** 29;
const MAX_CHILDREN = 16;
/** A child that waits so long for work ends. */
const IDLE_MS = 2000;

/** Seconds that one program may take. */
const secondsEach = (): number => positive("WICK_COMPILE_SECONDS", "seconds", 300);

/** Children at once: one per core, as far as memory goes. */
const width = (): number =>
  Math.max(1, Math.min(MAX_CHILDREN, availableParallelism(), Math.floor(freemem() / COMPILER_BYTES)));

interface Job {
  readonly request: CompileRequest;
  readonly seconds: number;
  resolve(answer: CompileAnswer): void;
}

export class CompilePool {
  readonly #arguments: readonly string[];
  readonly #waiting: Job[] = [];
  readonly #idle: CompileProcess[] = [];
  #busy = 0;
  #worker: { readonly thread: Worker; readonly answers: MessagePort } | undefined;

  constructor(library: string, prototypes: Readonly<Record<string, string>>) {
    this.#arguments = [library, JSON.stringify(prototypes), String(STACK_BYTES)];
  }

  /** Never rejects for what the compiler does: that is the answer's problem. */
  compile(request: CompileRequest): Promise<CompileAnswer> {
    const seconds = secondsEach();
    return new Promise((resolve) => {
      this.#waiting.push({ request, seconds, resolve });
      this.#next();
    });
  }

  /** As `compile`, while this thread waits: another one sees to the child. */
  compileSync(request: CompileRequest): CompileAnswer {
    const seconds = secondsEach();
    this.#worker ??= startWorker(this.#arguments);
    const { thread, answers } = this.#worker;
    const done = new SharedArrayBuffer(4);
    answers.postMessage({ request, seconds, done });
    const state = Atomics.wait(new Int32Array(done), 0, 0, (seconds + WORKER_GRACE_SECONDS) * 1000);
    const answer = receiveMessageOnPort(answers)?.message as CompileAnswer | undefined;
    if (answer) return answer;
    this.#worker = undefined;
    void thread.terminate();
    return { problem: `could not be asked: the thread that waits for it gave no answer (${state})` };
  }

  #next(): void {
    while (this.#waiting.length > 0 && this.#busy < width()) {
      const { request, seconds, resolve } = this.#waiting.shift()!;
      const child = this.#rested() ?? new CompileProcess(this.#arguments);
      this.#busy++;
      void child.run(request, seconds).then((answer) => {
        this.#busy--;
        if (child.isAlive) this.#rest(child);
        resolve(answer);
        this.#next();
      });
    }
  }

  /** One that waits and has not ended. */
  #rested(): CompileProcess | undefined {
    for (let child = this.#idle.pop(); child; child = this.#idle.pop()) if (child.isAlive) return child;
    return undefined;
  }

  #rest(child: CompileProcess): void {
    this.#idle.push(child);
    child.rest(IDLE_MS);
  }
}

/** How much longer than the child's time its thread is waited for. */
const WORKER_GRACE_SECONDS = 10;

function startWorker(args: readonly string[]): { readonly thread: Worker; readonly answers: MessagePort } {
  const { port1: answers, port2: requests } = new MessageChannel();
  const thread = new Worker(new URL("./compile-worker.js", import.meta.url), {
    workerData: { args, requests },
    transferList: [requests],
    // The child takes its settings from the environment as it is by then.
    env: SHARE_ENV,
    execArgv: [],
  });
  // Neither keeps the process alive.
  thread.unref();
  answers.unref();
  return { thread, answers };
}
