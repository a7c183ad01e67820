/**
 * The op table. An op is described once, where it is defined: its name, what it takes, its rule (shapes, dtypes, errors) and
 * what it calls. Tensor's methods, nn's functions, the verifier, the list of ops in docs/ and FEATURES.md come from here.
 */
import { fail } from "../core/errors.ts";

/** Arguments are what `takes` says. */
export type OpFunction = (...args: never[]) => unknown;

export interface Op {
  readonly name: string;
  /** The kind of op, a row of FEATURES.md. */
  readonly group: string;
  /** Its arguments in order, by the names that golden cases have for them; "?" marks those that may be left out. */
  readonly takes: readonly string[];
  readonly run: OpFunction;
}

const takenBy = new WeakMap<OpFunction, readonly string[]>();
const table = new Map<string, Op>();

/** Says what an op of a group takes. */
export function op<F extends OpFunction>(takes: string, run: F): F {
  takenBy.set(run, takes.split(" "));
  return run;
}

function enter(group: string, name: string, takes: readonly string[], run: OpFunction): void {
  if (table.has(name)) fail("InvalidArgument", `the op ${name} is defined twice`);
  table.set(name, { name, group, takes, run });
}

/** Enters an op into the table. */
export function define<F extends OpFunction>(group: string, name: string, takes: string, run: F): F {
  enter(group, name, takes.split(" "), run);
  return run;
}

/** Enters several ops, under the names they have here. */
export function group<G extends object>(name: string, ops: G): G {
  for (const [key, run] of Object.entries(ops) as [string, OpFunction][]) {
    enter(name, key, takenBy.get(run) ?? fail("InvalidArgument", `the op ${key} does not say what it takes`), run);
  }
  return ops;
}

export const ops: ReadonlyMap<string, Op> = table;
