/**
 * How SentencePiece rewrites characters before it cuts a text: a table in the model's file, which at each place the
 * longest entry that fits is taken from. It is a double array over UTF-8: the unit of a state, changed by a byte, is the
 * place of the next one, if that has the byte for its label; behind the units stand the replacements, each ended by 0.
 */
import { fail } from "../../core/errors.ts";

const LEAF = 1 << 8;
const WIDE = 1 << 9;
const LABEL = 0x800000ff;
const VALUE = 0x7fffffff;
/** Where the next states of a unit are, by exclusive or. */
const offsetOf = (unit: number): number => (unit >>> 10) << ((unit & WIDE) >>> 6);

export class CharactersMap {
  readonly #units: Uint32Array;
  readonly #replacements: Uint8Array;

  constructor(bytes: Uint8Array) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const size = bytes.byteLength < 4 ? Number.POSITIVE_INFINITY : view.getUint32(0, true);
    if (size % 4 !== 0 || size + 4 > bytes.byteLength) {
      fail("InvalidFile", `a tokenizer's precompiled_charsmap of ${bytes.byteLength} bytes is damaged`);
    }
    this.#units = Uint32Array.from({ length: size / 4 }, (_, i) => view.getUint32(4 + i * 4, true));
    this.#replacements = bytes.subarray(4 + size);
  }

  normalize(text: string): string {
    const input = Buffer.from(text);
    const pieces: Uint8Array[] = [];
    let kept = 0;
    for (let at = 0; at < input.length; ) {
      const found = this.#longest(input, at);
      if (found) {
        if (kept < at) pieces.push(input.subarray(kept, at));
        pieces.push(this.#replacement(found.value));
        at += found.length;
        kept = at;
      } else at += widthOf(input[at]!);
    }
    if (kept === 0) return text;
    pieces.push(input.subarray(kept));
    return Buffer.concat(pieces).toString();
  }

  #longest(input: Uint8Array, start: number): { length: number; value: number } | undefined {
    const units = this.#units;
    let found: { length: number; value: number } | undefined;
    let place = offsetOf(units[0] ?? 0);
    for (let at = start; at < input.length; at++) {
      place ^= input[at]!;
      const unit = units[place];
      if (unit === undefined || (unit & LABEL) >>> 0 !== input[at]) break;
      place ^= offsetOf(unit);
      if (unit & LEAF) found = { length: at + 1 - start, value: (units[place] ?? 0) & VALUE };
    }
    return found;
  }

  #replacement(value: number): Uint8Array {
    const end = this.#replacements.indexOf(0, value);
    return this.#replacements.subarray(value, end < 0 ? undefined : end);
  }
}

/** How many bytes the character has whose first one this is. */
const widthOf = (byte: number): number => (byte < 0xc0 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4);
