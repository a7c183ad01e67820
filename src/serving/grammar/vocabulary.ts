/** What every token of a model writes, in a form that goes to another thread. */
import type { Tokenizer } from "../../models/text/tokenizer.ts";

export interface Vocabulary {
  readonly bytes: Uint8Array;
  /** Where the bytes of each token end; special tokens have none. */
  readonly ends: Uint32Array;
}

export function vocabularyOf(tokenizer: Tokenizer, size: number): Vocabulary {
  const parts: Uint8Array[] = [];
  const ends = new Uint32Array(size);
  let end = 0;
  for (let id = 0; id < size; id++) {
    const bytes = tokenizer.bytes(id);
    if (bytes) parts.push(bytes);
    end += bytes?.length ?? 0;
    ends[id] = end;
  }
  return { bytes: new Uint8Array(Buffer.concat(parts)), ends };
}
