/** A file whose tensors go by other names than those it has for them. */
import { fail } from "../../core/errors.ts";
import type { StoredWeights } from "../../formats/index.ts";

export function renamed(file: StoredWeights, nameOf: (stored: string) => string): StoredWeights {
  const stored = new Map<string, string>();
  for (const { name } of file.tensors) {
    const other = stored.get(nameOf(name));
    if (other !== undefined) fail("InvalidFile", `${file.path}: "${other}" and "${name}" are the same tensor`);
    stored.set(nameOf(name), name);
  }
  const own = (name: string): string => stored.get(name) ?? name;
  return {
    path: file.path,
    format: file.format,
    metadata: file.metadata,
    tensors: file.tensors.map((tensor) => ({ ...tensor, name: nameOf(tensor.name) })),
    readBytes: (name, signal, range) => file.readBytes(own(name), signal, range),
    readInto: (out, name, start, signal) => file.readInto(out, own(name), start, signal),
    [Symbol.asyncDispose]: () => file[Symbol.asyncDispose](),
  };
}
