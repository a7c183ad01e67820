/** Many requests at once over one runner: the loop that plans steps, waits for them and hands their tokens out. */
import { setImmediate } from "node:timers/promises";
import { DeviceError, fail, ServingError, WickError } from "../core/errors.ts";
import type { Choice } from "../models/generation/batch-sampler.ts";
import { checkRequest } from "./check-request.ts";
import type { Engine, EngineRequest, EngineStats, TokenEvent } from "./request.ts";
import type { Runner } from "./runner.ts";
import { Scheduler, type Step } from "./scheduler.ts";
import { Task } from "./task.ts";
import { TokenStream } from "./token-stream.ts";

export interface BatchingOptions {
  /** The most tokens of a step, of prompts and answers together. Default 512. */
  readonly stepTokens?: number | undefined;
  /** How many requests may wait for their turn. Default 1024. */
  readonly queue?: number | undefined;
}

interface Enqueued {
  readonly step: Step;
  readonly choices: Promise<readonly (Choice | WickError | null)[]>;
}

export class BatchEngine implements Engine {
  readonly #runner: Runner;
  readonly #scheduler: Scheduler;
  /** Positions that a request may have. */
  readonly #context: number;
  readonly #queue: number;
  #arrivals = 0;
  #loop: Promise<void> | null = null;
  /** Why no more requests are taken. */
  #closed: string | null = null;

  /** Takes the runner over: it is disposed with the engine. */
  constructor(runner: Runner, { stepTokens = 512, queue = 1024 }: BatchingOptions = {}) {
    checkCount("stepTokens", stepTokens, 1);
    checkCount("queue", queue, 0);
    this.#runner = runner;
    this.#scheduler = new Scheduler(runner, stepTokens);
    this.#context = Math.min(runner.contextLength, runner.pages * runner.pageSize);
    this.#queue = queue;
  }

  submit(request: EngineRequest): AsyncIterableIterator<TokenEvent, void, undefined> {
    if (this.#closed) fail("EngineClosed", `the request was not taken: ${this.#closed}`);
    checkRequest(request, this.#runner, this.#context);
    const { running, waiting } = this.#scheduler.stats;
    // Those that would get their turn at once do not count as waiting.
    if (waiting >= this.#queue + Math.max(0, this.#runner.slots - running)) {
      fail(
        "QueueFull",
        `${waiting} requests wait already, as many as the queue holds (${this.#queue}); try again later`,
      );
    }
    const { signal } = request;
    const cancel = (): void => this.#scheduler.end(task, { reason: signal!.reason, atOnce: true });
    const stream = new TokenStream(() => this.#scheduler.end(task));
    const task: Task = new Task({
      request,
      stream,
      arrival: this.#arrivals++,
      runner: this.#runner,
      context: this.#context,
      onEnd: () => signal?.removeEventListener("abort", cancel),
    });
    if (signal?.aborted) cancel();
    else if (request.maxTokens === 0) this.#scheduler.end(task);
    else {
      signal?.addEventListener("abort", cancel, { once: true });
      this.#scheduler.add(task);
      this.#loop ??= this.#run();
    }
    return stream;
  }

  get stats(): EngineStats {
    return this.#scheduler.stats;
  }

  async ready(): Promise<void> {
    // Requests that run have readied most of it.
    if (this.#loop) return;
    const readied = this.#runner.ready();
    // What is submitted meanwhile waits for it.
    this.#loop = readied.catch(() => {}).then(() => this.#run());
    await readied;
  }

  async drain(): Promise<void> {
    this.#closed ??= "the engine finishes what runs and takes nothing new";
    while (this.#loop) await this.#loop;
  }

  /** Ends what runs and waits by an error, and frees the runner. */
  async [Symbol.asyncDispose](): Promise<void> {
    const disposed = this.#closed === DISPOSED;
    this.#closed = DISPOSED;
    this.#endAll(new ServingError("EngineClosed", "the engine was disposed before the answer ended"));
    while (this.#loop) await this.#loop;
    if (!disposed) await this.#runner[Symbol.asyncDispose]();
  }

  async #run(): Promise<void> {
    const enqueued: Enqueued[] = [];
    try {
      // What is submitted together starts together.
      await setImmediate();
      for (;;) {
        while (enqueued.length <= this.#runner.ahead) {
          const step = this.#scheduler.plan();
          if (!step) break;
          enqueued.push({ step, choices: this.#enqueue(step) });
        }
        if (enqueued.length > 0) {
          await this.#settle(enqueued);
          // By now those that waited for a token have it.
          this.#scheduler.tidy();
        } else if (this.#scheduler.isIdle) break;
        else throw new Error("requests wait, and none can go on");
        // Lets sockets, timers and signals in: on the CPU a step does not return to the event loop by itself.
        await setImmediate();
      }
    } catch (error) {
      // Nothing of this is a request's fault, and none would ever end.
      this.#closed ??= "the engine has failed";
      await Promise.allSettled(enqueued.map(({ choices }) => choices));
      this.#endAll(typed(error));
    } finally {
      this.#loop = null;
    }
  }

  #enqueue(step: Step): Enqueued["choices"] {
    const choices = new Promise<readonly (Choice | WickError | null)[]>((resolve) =>
      resolve(this.#runner.step(step.rows, step.copies)),
    );
    // Where one fails nobody may be waiting for those behind it.
    choices.catch(() => {});
    return choices;
  }

  /** Waits for the oldest step. Where it failed those behind it have failed, too. */
  async #settle(enqueued: Enqueued[]): Promise<void> {
    const [{ step, choices }] = enqueued as [Enqueued];
    const outcome = await choices.catch(typed);
    if (outcome instanceof WickError) {
      await Promise.allSettled(enqueued.map((other) => other.choices));
      const steps = enqueued.splice(0).map((other) => other.step);
      this.#scheduler.discard(steps, outcome);
    } else {
      enqueued.shift();
      this.#scheduler.settle(step, outcome);
    }
  }

  #endAll(reason: WickError): void {
    for (const task of this.#scheduler.tasks) this.#scheduler.end(task, { reason, atOnce: false });
  }
}

const DISPOSED = "the engine was disposed";

const typed = (error: unknown): WickError =>
  error instanceof WickError
    ? error
    : new DeviceError("DriverError", `a step failed: ${error instanceof Error ? error.message : String(error)}`, {
        cause: error,
      });

function checkCount(name: string, value: number, least: number): void {
  if (!(Number.isSafeInteger(value) && value >= least)) {
    fail("InvalidArgument", `an engine's ${name} must be a whole number from ${least} up, not ${value}`);
  }
}
