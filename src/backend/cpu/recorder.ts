/**
 * Steps that are recorded once and run again without JavaScript between their kernels. Recording a step runs it. What could
 * not be recorded, or whose memory has changed hands since, is run op by op the next time, and recorded anew.
 */
import type { Block } from "../backend.ts";
import { fail } from "../../core/errors.ts";
import type { Graph, Recorder } from "../transformers.ts";
import type { Usage } from "../usage.ts";
import type { Engine } from "./engine.ts";
import type { Native } from "./native/native.ts";
import { settle } from "./native/pending.ts";
import { Recording, Reserve, recording } from "./recording.ts";

/** Recordings that did not come about, after which none is tried: the first may have made what later ones only use. */
const MOST_TRIES = 3;

/** The graphs that use memory which they have not made. */
const users = new WeakMap<Block, Set<CpuGraph>>();

/** What was in the block is there no more, or is about to go. */
export function forgetRecorded(block: Block): void {
  recording()?.free(block);
  const graphs = users.get(block);
  if (!graphs) return;
  for (const graph of [...graphs]) graph.forget();
}

interface Recordable {
  readonly engine: Engine;
  readonly native: Native | null;
}

export class CpuRecorder implements Recorder {
  readonly #backend: Recordable;
  readonly #usage: Usage;

  constructor(backend: Recordable, usage: Usage) {
    this.#backend = backend;
    this.#usage = usage;
  }

  get problem(): string | null {
    return this.#backend.native ? null : "cpu: only machine code is recorded, and WebAssembly computes here";
  }

  capture(run: () => void): Graph {
    if (recording()) fail("InvalidArgument", "cpu: a capture cannot be part of another");
    const graph = new CpuGraph(this.#backend, this.#usage, run);
    graph.replay();
    return graph;
  }
}

class CpuGraph implements Graph {
  readonly #backend: Recordable;
  readonly #usage: Usage;
  readonly #run: () => void;
  #actions: readonly (() => void)[] | null = null;
  #reserve: Reserve | null = null;
  readonly #used: Block[] = [];
  #refused = 0;
  #isDisposed = false;

  constructor(backend: Recordable, usage: Usage, run: () => void) {
    this.#backend = backend;
    this.#usage = usage;
    this.#run = run;
  }

  replay(): void {
    if (this.#isDisposed) fail("Disposed", "cpu: the recording was disposed");
    recording()?.refuse("it replays another");
    if (this.#actions !== null) {
      settle();
      for (const action of this.#actions) action();
    } else if (recording() || this.#refused >= MOST_TRIES) this.#run();
    else this.#record();
  }

  /** It will be recorded anew where it is asked for again. */
  forget(): void {
    this.#actions = null;
    for (const block of this.#used.splice(0)) users.get(block)?.delete(this);
    if (this.#reserve) this.#backend.engine.endReserve(this.#reserve);
    this.#reserve = null;
  }

  [Symbol.dispose](): void {
    this.#isDisposed = true;
    this.forget();
  }

  #record(): void {
    const { engine, native } = this.#backend;
    const reserve = engine.beginReserve(this.#usage);
    const taken = new Recording(reserve);
    try {
      taken.during(this.#run);
    } catch (error) {
      engine.endReserve(reserve);
      throw error;
    }
    if (taken.problem !== null) {
      this.#refused++;
      engine.endReserve(reserve);
      return;
    }
    this.#reserve = reserve;
    this.#actions = taken.actions.map((action) => {
      if (!Array.isArray(action)) return action;
      const list = native!.list(engine.threads, action);
      return () => native!.replay(engine.threads, list);
    });
    for (const block of taken.borrowed) {
      const graphs = users.get(block) ?? new Set();
      users.set(block, graphs.add(this));
      this.#used.push(block);
    }
  }
}
