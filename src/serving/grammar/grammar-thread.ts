/** The thread that compiles grammars and makes masks; where it is ended for what one grammar does, the others go on in a new one. */
import { Worker } from "node:worker_threads";
import { fail, type WickError } from "../../core/errors.ts";
import type { TokenConstraint } from "../request.ts";
import type { Vocabulary } from "./vocabulary.ts";

export interface GrammarThreadOptions {
  readonly vocabulary: Vocabulary;
  readonly vocabSize: number;
  readonly stopTokens: readonly number[];
  readonly memory: number;
  readonly milliseconds: number;
}

/** A grammar as xgrammar reads it, and special tokens that are text in it. */
export interface GrammarSource {
  readonly ebnf: string;
  readonly shown: readonly (readonly [number, string])[];
}

interface Answer {
  readonly id: number;
  readonly error?: string;
  readonly broken?: boolean;
}

interface Pending {
  resolve(): void;
  reject(error: WickError): void;
}

/** As worker.js has them. */
const HEADER = 2;
const ENDED = 1;
const FAILED = 2;
/** Grammars that are known to compile. */
const MOST_KNOWN = 64;

export class GrammarThread implements Disposable {
  readonly #options: GrammarThreadOptions;
  readonly #open = new Set<ThreadConstraint>();
  readonly #known = new Map<string, Promise<void>>();
  readonly #pending = new Map<number, Pending>();
  #worker: Worker | null = null;
  #ids = 0;
  /** Compilations one after another: only the one that runs can be what takes too long. */
  #turn: Promise<void> = Promise.resolve();

  constructor(options: GrammarThreadOptions) {
    this.#options = options;
  }

  get milliseconds(): number {
    return this.#options.milliseconds;
  }

  isStop(token: number): boolean {
    return this.#options.stopTokens.includes(token);
  }

  compile(source: GrammarSource): Promise<void> {
    const key = JSON.stringify(source);
    const known = this.#known.get(key);
    if (known) {
      this.#known.delete(key);
      this.#known.set(key, known);
      return known;
    }
    const done = this.#turn.then(() => this.#compile(source));
    this.#turn = done.catch(() => {});
    this.#known.set(key, done);
    done.catch(() => this.#known.delete(key));
    if (this.#known.size > MOST_KNOWN) this.#known.delete(this.#known.keys().next().value!);
    return done;
  }

  open(begun: Begun): TokenConstraint {
    const constraint = new ThreadConstraint(this, this.#ids++, begun);
    this.#open.add(constraint);
    constraint.begin();
    return constraint;
  }

  closed(constraint: ThreadConstraint): void {
    this.#open.delete(constraint);
  }

  get words(): number {
    return Math.ceil(this.#options.vocabSize / 32);
  }

  post(message: object): void {
    this.#worker ??= this.#start();
    this.#worker.postMessage(message);
  }

  [Symbol.dispose](): void {
    this.#end("the grammars were disposed");
    for (const constraint of this.#open) constraint.fail();
    this.#open.clear();
  }

  async #compile(source: GrammarSource): Promise<void> {
    const id = this.#ids++;
    const { milliseconds } = this.#options;
    const done = new Promise<void>((resolve, reject) => this.#pending.set(id, { resolve, reject }));
    this.post({ type: "compile", id, source });
    const late = setTimeout(() => {
      this.#restart(`the grammar takes more than ${milliseconds / 1000} s to compile; make it simpler`);
    }, milliseconds);
    try {
      await done;
    } finally {
      clearTimeout(late);
    }
  }

  #start(): Worker {
    const { milliseconds: _, ...workerData } = this.#options;
    const worker = new Worker(new URL("./worker.js", import.meta.url), {
      workerData,
      resourceLimits: { maxOldGenerationSizeMb: 512 },
    });
    worker.unref();
    worker.on("message", (answer: Answer) => this.#hear(answer));
    worker.on("error", (error) => {
      if (worker === this.#worker) this.#restart(`the grammar cannot be compiled: ${error.message}`);
    });
    return worker;
  }

  #hear({ id, error, broken = false }: Answer): void {
    const pending = this.#pending.get(id);
    this.#pending.delete(id);
    if (error === undefined) pending?.resolve();
    else pending?.reject(asError(`the grammar cannot be compiled: ${error}`));
    if (broken) this.#restart(error ?? "");
  }

  /** Those that were under way are told; what is open begins anew with what it has heard. */
  #restart(why: string): void {
    this.#end(why);
    for (const constraint of this.#open) if (!constraint.hasFailed) constraint.begin();
  }

  #end(why: string): void {
    void this.#worker?.terminate();
    this.#worker = null;
    for (const { reject } of this.#pending.values()) reject(asError(why));
    this.#pending.clear();
  }
}

function asError(message: string): WickError {
  try {
    return fail("InvalidArgument", message);
  } catch (error) {
    return error as WickError;
  }
}

/** How an answer begins. */
interface Begun {
  readonly source: GrammarSource;
  /** The most tokens it may have. */
  readonly left: number | null;
  /** Bytes of the shortest answer, and those by which one step can lengthen it. */
  readonly least: number;
  readonly margin: number;
}

class ThreadConstraint implements TokenConstraint {
  readonly #thread: GrammarThread;
  readonly #id: number;
  readonly #begun: Begun;
  readonly #tokens: number[] = [];
  #state: Int32Array;
  #isOver = false;
  #failed = false;
  #disposed = false;

  constructor(thread: GrammarThread, id: number, begun: Begun) {
    this.#thread = thread;
    this.#id = id;
    this.#begun = begun;
    this.#state = this.#empty();
  }

  /** Also where its thread had to end: from the tokens that it has heard of. */
  begin(): void {
    this.#state = this.#empty();
    const state = this.#state.buffer;
    this.#thread.post({ type: "open", id: this.#id, ...this.#begun, state, tokens: this.#tokens });
  }

  get hasFailed(): boolean {
    return (this.#state[1]! & FAILED) !== 0;
  }

  /** Nothing comes of it any more. */
  fail(): void {
    this.#failed = true;
  }

  mask(): Uint32Array {
    this.#wait();
    return new Uint32Array(this.#state.buffer, 4 * HEADER);
  }

  accept(token: number): void {
    if (this.#thread.isStop(token)) this.#isOver = true;
    if (this.#isOver || this.#disposed) return;
    this.#tokens.push(token);
    this.#thread.post({ type: "accept", id: this.#id, token });
  }

  get ended(): boolean {
    return this.#isOver || (this.#wait() & ENDED) !== 0;
  }

  [Symbol.dispose](): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.#thread.closed(this);
    if (!this.#failed) this.#thread.post({ type: "close", id: this.#id });
  }

  #empty(): Int32Array {
    return new Int32Array(new SharedArrayBuffer(4 * (HEADER + this.#thread.words)));
  }

  /** Until the mask behind the last token is there, which mostly it is already. */
  #wait(): number {
    if (this.#disposed || this.#failed) fail("Disposed", "the constraint was disposed");
    const wanted = this.#tokens.length + 1;
    const until = performance.now() + this.#thread.milliseconds;
    for (;;) {
      const there = Atomics.load(this.#state, 0);
      const flags = this.#state[1]!;
      if ((flags & FAILED) !== 0) fail("InvalidArgument", "the grammar could not go on behind the answer's tokens");
      if (there >= wanted) return flags;
      const left = until - performance.now();
      if (left <= 0)
        fail("InvalidArgument", "the grammar takes too long to say which tokens may come; make it simpler");
      Atomics.wait(this.#state, 0, there, left);
    }
  }
}
