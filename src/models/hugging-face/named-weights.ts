/**
 * Checkpoints call the same tensors by other names where the language model is a part of a larger one, and where it was
 * saved without its head: both are shown here under the names that its architecture has.
 */
import type { StoredWeights } from "../../formats/index.ts";
import type { HuggingFaceForm } from "../architectures/architecture.ts";
import type { Names } from "../weights/naming.ts";

/** What stands before the names of a language model that is a part of another. */
const PARTS = ["language_model.", "model.language_model."];

export function namedWeights(file: StoredWeights, { names, plainName }: HuggingFaceForm): StoredWeights {
  const rename = plainName ?? renaming(new Set(file.tensors.map(({ name }) => name)), names);
  if (!rename) return file;
  const tensors = new Map(
    file.tensors.flatMap((tensor) => {
      const name = rename(tensor.name);
      return name === undefined ? [] : [[name, tensor] as const];
    }),
  );
  return {
    path: file.path,
    format: file.format,
    metadata: file.metadata,
    tensors: Array.from(tensors, ([name, tensor]) => ({ ...tensor, name })),
    readBytes: (name, signal, range) => file.readBytes(tensors.get(name)!.name, signal, range),
    readInto: (out, name, start, signal) => file.readInto(out, tensors.get(name)!.name, start, signal),
    [Symbol.asyncDispose]: () => file[Symbol.asyncDispose](),
  };
}

/** From a file's names to those of the architecture, or to nothing; null where they are the same. */
function renaming(stored: ReadonlySet<string>, names: Names): ((name: string) => string | undefined) | null {
  const known = `${names.embedding.token}.weight`;
  const base = known.slice(0, known.indexOf(".") + 1);
  const isHead = (name: string): boolean => name.startsWith(`${names.linear.head}.`);
  if (stored.has(known)) return null;
  for (const part of PARTS) {
    // The part is the whole language model, or all of it but the head.
    for (const cut of ["", base]) {
      if (!stored.has(part + known.slice(cut.length))) continue;
      return (name) => (name.startsWith(part) ? cut + name.slice(part.length) : isHead(name) ? name : undefined);
    }
  }
  return stored.has(known.slice(base.length)) ? (name) => (isHead(name) ? name : base + name) : null;
}
