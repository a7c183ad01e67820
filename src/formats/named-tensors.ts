/** What the savers of several tensors take: a map, or a plain object. */
import { fail } from "../core/errors.ts";
import type { Tensor } from "../ops/index.ts";

export type NamedTensors = Readonly<Record<string, Tensor>> | ReadonlyMap<string, Tensor>;

export function namedEntries<T>(named: Readonly<Record<string, T>> | ReadonlyMap<string, T>): [string, T][] {
  const entries = named instanceof Map ? [...(named as ReadonlyMap<string, T>)] : Object.entries(named);
  for (const [name] of entries) checkName(name);
  return entries;
}

/** Half a surrogate pair has no UTF-8 form: the name would come back as another one. */
function checkName(name: string): void {
  if (!isWellFormed(name)) fail("InvalidArgument", `the name ${quoted(name)} is not well-formed Unicode; rename it`);
}

export const isWellFormed = (text: string): boolean => !/\p{Surrogate}/u.test(text);

/** A name for an error message, which a hostile file must not be able to flood. */
export const quoted = (name: string): string => JSON.stringify(name.length > 200 ? `${name.slice(0, 200)}…` : name);
