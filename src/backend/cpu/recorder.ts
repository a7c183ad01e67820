/**
 * Steps that are recorded once and run again without JavaScript between their kernels. Recording a step runs it. What could
 * not be recorded, or whose memory has changed hands since, is run op by op the next time, and recorded anew.
 */
import { chosen } from "../../core/environment.ts";
import { fail } from "../../core/errors.ts";
import type { Block } from "../backend.ts";
import type { Graph, Recorder } from "../transformers.ts";
import type { Usage } from "../usage.ts";
import type { Engine } from "./engine.ts";
import type { Native } from "./native/native.ts";
import { settle } from "./native/pending.ts";
import { Recording, type Reserve, recording } from "./recording.ts";

/** Recordings that did not come about, after which none is tried: the first may have made what later ones only use. */
const MOST_TRIES = 3;

/**
 * Runs that are not recorded, from a process's second graph on: prompts, and later recordings, go through the same
 * JavaScript, and are slower by some milliseconds as long as it was run a few times only and is not compiled. A process
 * that has one graph alone is done sooner without.
 */
export const WARM_RUNS = 48;
let runs = 0;
let graphs = 0;

interface Recordable {
  readonly engine: Engine;
  readonly native: Native | null;
}

/** The recorded work that uses memory which it has not made. */
const users = new WeakMap<Block, Set<Recorded>>();

/** What was in the block is there no more, or is about to go. */
export function forgetRecorded(block: Block): void {
  recording()?.free(block);
  const all = users.get(block);
  if (all) for (const recorded of [...all]) recorded.forget();
}

/** Graphs that nobody holds any more leave their memory. */
const registry = new FinalizationRegistry<Recorded>((recorded) => recorded.forget());

export class CpuRecorder implements Recorder {
  readonly #backend: Recordable;
  readonly #usage: Usage;

  constructor(backend: Recordable, usage: Usage) {
    this.#backend = backend;
    this.#usage = usage;
  }

  get problem(): string | null {
    if (chosen("WICK_GRAPHS")) return "turned off by WICK_GRAPHS=none";
    return this.#backend.native ? null : "machine code is recorded, and WebAssembly computes here";
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
  #recorded: Recorded | null = null;
  #refused = 0;
  readonly #isFirst = graphs++ === 0;
  #isDisposed = false;

  constructor(backend: Recordable, usage: Usage, run: () => void) {
    this.#backend = backend;
    this.#usage = usage;
    this.#run = run;
  }

  replay(): void {
    if (this.#isDisposed) fail("Disposed", "cpu: the graph was disposed");
    recording()?.refuse("it replays another");
    const actions = this.#recorded?.actions;
    if (actions) {
      settle();
      for (const action of actions) action();
    } else if (recording() || this.#refused >= MOST_TRIES || this.#warms()) this.#run();
    else this.#record();
  }

  #warms(): boolean {
    return !this.#isFirst && runs++ < WARM_RUNS;
  }

  [Symbol.dispose](): void {
    this.#isDisposed = true;
    this.#forget();
  }

  #forget(): void {
    if (!this.#recorded) return;
    registry.unregister(this.#recorded);
    this.#recorded.forget();
    this.#recorded = null;
  }

  #record(): void {
    this.#forget();
    const reserve = this.#backend.engine.beginReserve(this.#usage);
    const taken = new Recording(reserve);
    const recorded = new Recorded(this.#backend, reserve);
    try {
      taken.during(this.#run);
    } catch (error) {
      recorded.forget();
      throw error;
    }
    if (recorded.complete(taken)) {
      this.#recorded = recorded;
      registry.register(this, recorded, recorded);
    } else this.#refused++;
  }
}

/** What a graph replays, and the memory that is its own until it is forgotten. */
class Recorded {
  readonly #backend: Recordable;
  readonly #reserve: Reserve;
  readonly #used: Block[] = [];
  #actions: readonly (() => void)[] | null = null;

  constructor(backend: Recordable, reserve: Reserve) {
    this.#backend = backend;
    this.#reserve = reserve;
  }

  /** Null where it cannot be replayed, or not any more. */
  get actions(): readonly (() => void)[] | null {
    return this.#actions;
  }

  /** Says whether all that was done can be replayed. */
  complete({ actions, borrowed, problem }: Recording): boolean {
    const { engine, native } = this.#backend;
    if (problem !== null) {
      this.forget();
      return false;
    }
    this.#actions = actions.map((action) => {
      if (!Array.isArray(action)) return action;
      const list = native!.list(engine.threads, action);
      return () => native!.replay(engine.threads, list);
    });
    for (const block of borrowed) {
      const all = users.get(block) ?? new Set();
      users.set(block, all.add(this));
      this.#used.push(block);
    }
    return true;
  }

  forget(): void {
    this.#actions = null;
    for (const block of this.#used.splice(0)) users.get(block)?.delete(this);
    this.#backend.engine.endReserve(this.#reserve);
  }
}
