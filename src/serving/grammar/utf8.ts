/** Characters as the bytes that UTF-8 writes them with. */
import type { Range } from "./expression.ts";

/** The first code point of as many bytes, and what the first of them has set. */
const forms = [
  { first: 0x80, bytes: 2 },
  { first: 0x800, bytes: 3 },
  { first: 0x10000, bytes: 4 },
] as const;
const LAST = 0x10ffff;

/** Sequences of bytes, each from a few ranges: first those of one byte, if there are any. */
export function byteSequences(ranges: readonly Range[]): (readonly Range[])[][] {
  const single = ranges.filter(([a]) => a < 0x80).map(([a, b]): Range => [a, Math.min(b, 0x7f)]);
  const longer = ranges.flatMap(([a, b]) =>
    forms.flatMap(({ first, bytes }, i) => {
      const last = (forms[i + 1]?.first ?? LAST + 1) - 1;
      return split(Math.max(a, first), Math.min(b, last), bytes);
    }),
  );
  return [...(single.length > 0 ? [[single]] : []), ...longer.map((parts) => parts.map((part) => [part]))];
}

/** Code points of as many bytes, such that in each sequence every byte is free of the others. */
function split(first: number, last: number, bytes: number): Range[][] {
  if (first > last) return [];
  for (let tail = 1; tail < bytes; tail++) {
    const unit = 2 ** (6 * tail);
    // Where the bytes before differ, the ones behind must go through all of their values.
    if (Math.floor(first / unit) === Math.floor(last / unit)) continue;
    if (first % unit !== 0) {
      const end = first - (first % unit) + unit - 1;
      return [...split(first, end, bytes), ...split(end + 1, last, bytes)];
    }
    if (last % unit !== unit - 1) {
      const start = last - (last % unit);
      return [...split(first, start - 1, bytes), ...split(start, last, bytes)];
    }
  }
  const [from, to] = [encoded(first), encoded(last)];
  return [Array.from(from, (byte, i): Range => [byte, to[i]!])];
}

const encoded = (code: number): Uint8Array => new TextEncoder().encode(String.fromCodePoint(code));
