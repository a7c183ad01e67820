/** How ranks find each other, say what must be the same on all of them, and notice that one is gone. */
import { Worker } from "node:worker_threads";
import { ffiPath } from "../backend/gpu/library.ts";
import { positive } from "../core/environment.ts";
import { DistributedError, fail } from "../core/errors.ts";

export interface RendezvousOptions {
  readonly rank: number;
  readonly size: number;
  /** Where rank 0 is, for the others. */
  readonly host: string;
  /** 0 on rank 0: one that is free. */
  readonly port: number;
  /** What rank 0 listens on. Default: the host. */
  readonly bind?: string;
  /** A word that only the ranks of a job know. */
  readonly job: string;
  /** How long to wait for the others. Default: WICK_RENDEZVOUS_SECONDS, or 60. */
  readonly seconds?: number | undefined;
  /** Whether the loss of a rank is said on stderr at once, whatever the main thread is at. Default false. */
  readonly announces?: boolean | undefined;
}

const announced = new WeakSet<object>();
/** Whether the watching thread has said on stderr what the error says. */
export const isAnnounced = (error: unknown): boolean => announced.has(error as object);

/** As the worker has them. */
const [LOST, BEAT, KNOWN, CLOSED, LEFT, TEXT_BYTES, HEADER] = [0, 1, 2, 3, 4, 5, 8] as const;
const LONGEST_TEXT = 1024;
const BEAT_MS = 250;
const CLOSE_MS = 1000;

type Told =
  | { readonly type: "listening"; readonly port: number }
  | { readonly type: "ready" | "lost" }
  | { readonly type: "refused"; readonly why: string }
  | { readonly type: "told"; readonly value: unknown }
  | { readonly type: "all"; readonly topic: string; readonly values: unknown[] };

interface Waiting {
  resolve(values: unknown[]): void;
  reject(error: Error): void;
}

export class Rendezvous implements AsyncDisposable {
  readonly rank: number;
  readonly size: number;
  readonly #worker: Worker;
  readonly #state: Int32Array;
  readonly #text: Uint8Array;
  readonly #waiting = new Map<string, Waiting>();
  readonly #beat: NodeJS.Timeout;
  readonly #lost = new AbortController();
  readonly #atExit = () => this.#leave();
  readonly #told: unknown[] = [];
  #listener: Waiting | null = null;
  #refused: DistributedError | null = null;
  #onListening: ((port: number) => void) | null = null;
  #onReady: ((error: DistributedError | null) => void) | null = null;
  #closed = false;
  #loss: DistributedError | null = null;
  readonly #announces: boolean;

  private constructor(options: RendezvousOptions) {
    const { rank, size, host, port, bind = host, job, announces = false } = options;
    this.#announces = announces;
    this.rank = rank;
    this.size = size;
    const shared = new SharedArrayBuffer(4 * HEADER + LONGEST_TEXT);
    this.#state = new Int32Array(shared, 0, HEADER);
    this.#text = new Uint8Array(shared, 4 * HEADER);
    const seconds = options.seconds ?? positive("WICK_RENDEZVOUS_SECONDS", "seconds", 60);
    const stalledSeconds = positive("WICK_RANK_SECONDS", "seconds", 60);
    const own = { rank, size, host, port, bind, job, seconds, stalledSeconds, announces };
    this.#worker = new Worker(new URL("./rendezvous-worker.js", import.meta.url), {
      workerData: { ...own, state: shared, koffi: koffiPath() },
      execArgv: [],
    });
    this.#worker.on("message", (told: Told) => this.#hear(told));
    this.#worker.on("error", (error) => this.#refuse(`the thread that meets the other ranks failed: ${error.message}`));
    this.#worker.unref();
    this.#beat = setInterval(() => this.tick(), BEAT_MS).unref();
    process.once("exit", this.#atExit);
  }

  /** `onListening` is called on rank 0 with its port, before the others can come. */
  static open(options: RendezvousOptions, onListening?: (port: number) => void): Promise<Rendezvous> {
    const made = new Rendezvous(options);
    made.#worker.ref();
    return new Promise((resolve, reject) => {
      made.#onListening = onListening ?? null;
      made.#onReady = (error) => {
        made.#worker.unref();
        made.#onReady = null;
        if (error) reject(error);
        else resolve(made);
      };
    });
  }

  /** What every rank gave for a topic, by rank. Each topic is for one use. */
  async exchange<T>(topic: string, value: T): Promise<T[]> {
    this.check();
    this.#worker.ref();
    try {
      return (await new Promise<unknown[]>((resolve, reject) => {
        this.#waiting.set(topic, { resolve, reject });
        this.#worker.postMessage({ type: "exchange", topic, value });
      })) as T[];
    } finally {
      this.#waiting.delete(topic);
      if (this.#waiting.size === 0) this.#worker.unref();
    }
  }

  /** Of rank 0: tells all others, in this order. */
  tell(value: unknown): void {
    this.check();
    this.#worker.postMessage({ type: "tell", value });
  }

  /** Of the others: what rank 0 tells them, from now on and until `take` throws or the ranks part. */
  async listen(take: (value: unknown) => Promise<boolean>): Promise<void> {
    this.#worker.ref();
    try {
      for (;;) {
        const value = this.#told.length > 0 ? this.#told.shift() : await this.#next();
        if (!(await take(value))) return;
      }
    } finally {
      this.#worker.unref();
    }
  }

  #next(): Promise<unknown> {
    return new Promise((resolve, reject) => {
      this.#listener = { resolve: (values) => resolve(values[0]), reject };
    });
  }

  #take(value: unknown): void {
    const listener = this.#listener;
    this.#listener = null;
    if (listener) listener.resolve([value]);
    else this.#told.push(value);
  }

  /** Aborts when a rank is lost, with the error as its reason. */
  get signal(): AbortSignal {
    return this.#lost.signal;
  }

  /** That the main thread is alive: called by all that waits. */
  tick(): void {
    Atomics.add(this.#state, BEAT, 1);
  }

  /** Throws where a rank is lost. */
  check(): void {
    if (this.#refused) throw this.#refused;
    if (Atomics.load(this.#state, LOST) !== 0) throw this.#lossOf();
  }

  /** Whether ranks have left in order: whoever waits for them waits in vain. */
  get othersHaveLeft(): boolean {
    return Atomics.load(this.#state, LEFT) > 0;
  }

  /** Lets the watching thread stop a library that waits for a rank that is gone: `prototype` is called with the handle. */
  guard(library: string, prototype: string, handle: bigint): void {
    this.#worker.postMessage({ type: "guard", library, prototype, handle });
  }

  unguard(handle: bigint): void {
    this.#worker.postMessage({ type: "unguard", handle });
  }

  /** Ends the others, too, with these words about this rank. */
  fail(message: string): void {
    this.#close({ type: "fail", message });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#close({ type: "close" });
  }

  #hear(told: Told): void {
    if (told.type === "listening") this.#onListening?.(told.port);
    else if (told.type === "ready") this.#onReady?.(null);
    else if (told.type === "refused") this.#refuse(told.why);
    else if (told.type === "told") this.#take(told.value);
    else if (told.type === "all") this.#waiting.get(told.topic)?.resolve(told.values);
    else this.#end(this.#lossOf());
  }

  #refuse(why: string): void {
    this.#refused = new DistributedError("RendezvousFailed", `rank ${this.rank}: the ranks did not meet: ${why}`);
    this.#onReady?.(this.#refused);
    this.#end(this.#refused);
  }

  #end(error: DistributedError): void {
    this.#lost.abort(error);
    this.#listener?.reject(error);
    for (const { reject } of this.#waiting.values()) reject(error);
  }

  #lossOf(): DistributedError {
    Atomics.store(this.#state, KNOWN, 1);
    if (this.#loss) return this.#loss;
    const bytes = this.#text.slice(0, Atomics.load(this.#state, TEXT_BYTES));
    const lost = Atomics.load(this.#state, LOST) - 1;
    const advice = lost === this.rank ? "" : ", and see what that rank said";
    this.#loss = new DistributedError(
      "RankLost",
      `rank ${this.rank} cannot go on: ${new TextDecoder().decode(bytes)}; start all ${this.size} ranks anew${advice}`,
    );
    if (this.#announces) announced.add(this.#loss);
    return this.#loss;
  }

  /** At the end of the process: the others are told while there is time. */
  #leave(): void {
    const failed = process.exitCode !== undefined && process.exitCode !== 0;
    this.#close(failed ? { type: "fail", message: `has ended with exit code ${process.exitCode}` } : { type: "close" });
  }

  #close(order: { type: "close" } | { type: "fail"; message: string }): void {
    if (this.#closed) return;
    this.#closed = true;
    clearInterval(this.#beat);
    process.off("exit", this.#atExit);
    this.#worker.postMessage(order);
    // The thread writes to its sockets whatever this one does.
    Atomics.wait(this.#state, CLOSED, 0, CLOSE_MS);
  }
}

function koffiPath(): string | null {
  try {
    return ffiPath();
  } catch {
    return null;
  }
}

/** Throws on every rank where their values differ; `what` names them in the message. */
export async function requireSame(meeting: Rendezvous, topic: string, what: string, value: unknown): Promise<void> {
  const all = (await meeting.exchange(topic, value)).map((one) => JSON.stringify(one) ?? "nothing");
  const other = all.findIndex((one) => one !== all[0]);
  if (other < 0) return;
  fail("RanksDiffer", `${what} must be the same on all ranks: rank 0 has ${all[0]}, rank ${other} has ${all[other]}`);
}
