/**
 * The one way in: whatever a device computes is asked for here, so that a tape, a trace or a profiler has one place to
 * hang on.
 */

/** An op that was asked of a device. */
export interface Call {
  readonly op: string;
  readonly args: readonly unknown[];
  /** False where the device has no such op, or none for these operands: it is composed of others then. */
  readonly done: boolean;
}

let listeners: readonly ((call: Call) => void)[] = [];

/** Calls `listener` after every op, until the result is disposed. */
export function observe(listener: (call: Call) => void): Disposable {
  listeners = [...listeners, listener];
  return {
    [Symbol.dispose]: () => {
      listeners = listeners.filter((other) => other !== listener);
    },
  };
}

type Arguments<F> = NonNullable<F> extends (...args: infer A) => unknown ? A : never;
type Result<F> = NonNullable<F> extends (...args: never[]) => infer R ? (undefined extends F ? R | null : R) : never;

let outer: string | null = null;

/** What is asked for in `run`, which must not be async, is a part of `op`: errors that a device finds name that. */
export function asPartOf<T>(op: string, run: () => T): T {
  const before = outer;
  outer ??= op;
  try {
    return run();
  } finally {
    outer = before;
  }
}

/** The op that the user called, where a device was asked for `op`. */
export const calledOp = (op: string): string => outer ?? op;

/** What `target`, a backend or a part of one, makes of an op; null where it has none. */
export function call<T extends object, K extends keyof T & string>(
  target: T,
  op: K,
  ...args: Arguments<T[K]>
): Result<T[K]> {
  return callWith(target, op, args);
}

/** The same with arguments that are an array already. */
export function callWith<T extends object, K extends keyof T & string>(
  target: T,
  op: K,
  args: Arguments<T[K]>,
): Result<T[K]> {
  const method = target[op] as ((...args: Arguments<T[K]>) => Result<T[K]>) | undefined;
  const result = method === undefined ? (null as Result<T[K]>) : method.apply(target, args);
  if (listeners.length > 0) tell({ op, args, done: result !== null });
  return result;
}

function tell(call: Call): void {
  for (const listener of listeners) listener(call);
}
