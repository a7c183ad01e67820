/**
 * `scope(fn)` disposes every tensor made inside it when `fn` ends, except those it returns. It survives `await`: the
 * scope belongs to the asynchronous call chain, so concurrent scopes do not mix. A tensor that escapes belongs to the
 * enclosing scope, if there is one.
 */
import { AsyncLocalStorage } from "node:async_hooks";
import type { Tensor } from "./tensor.ts";

class Scope {
  readonly tensors = new Set<Tensor>();
  readonly parent: Scope | undefined;
  constructor(parent: Scope | undefined) {
    this.parent = parent;
  }

  end(result: unknown): void {
    const kept = new Set<Tensor>();
    findTensors(result, this.tensors, kept, new Set());
    for (const tensor of this.tensors) {
      if (!kept.has(tensor)) tensor.dispose();
      else this.parent?.tensors.add(tensor);
    }
    this.tensors.clear();
  }
}

const scopes = new AsyncLocalStorage<Scope>();

/** Called for every new tensor; returns the scope to leave when the tensor is disposed. */
export function enterScope(tensor: Tensor): Set<Tensor> | undefined {
  const tensors = scopes.getStore()?.tensors;
  tensors?.add(tensor);
  return tensors;
}

export function scope<T>(fn: () => T): T {
  const own = new Scope(scopes.getStore());
  let result: T;
  try {
    result = scopes.run(own, fn);
  } catch (error) {
    own.end(undefined);
    throw error;
  }
  if (result instanceof Promise) {
    const done = (value: unknown) => {
      own.end(value);
      return value;
    };
    const failed = (error: unknown) => {
      own.end(undefined);
      throw error;
    };
    return result.then(done, failed) as T;
  }
  own.end(result);
  return result;
}

/** Tensors of `owned` that can be reached from `value` through arrays, maps, sets and object fields. */
function findTensors(value: unknown, owned: Set<Tensor>, found: Set<Tensor>, seen: Set<object>): void {
  if (typeof value !== "object" || value === null || seen.has(value)) return;
  seen.add(value);
  if (owned.has(value as Tensor)) {
    found.add(value as Tensor);
    return;
  }
  if (ArrayBuffer.isView(value)) return;
  if (value instanceof Map) for (const entry of value) findTensors(entry, owned, found, seen);
  else if (value instanceof Set || Array.isArray(value)) for (const v of value) findTensors(v, owned, found, seen);
  else for (const v of Object.values(value)) findTensors(v, owned, found, seen);
}
