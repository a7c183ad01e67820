/** Regular expressions, as JavaScript writes them with the flag u, as expressions of a grammar. */
import { fail } from "../../core/errors.ts";
import {
  choice,
  complement,
  type Expression,
  LAST_CODE_POINT,
  type Range,
  repeat,
  sequence,
  unite,
} from "./expression.ts";

export interface Pattern {
  /** Of characters: classes of single ones. */
  readonly expression: Expression;
  /** Whether nothing may come before, and whether nothing may follow. */
  readonly startsHere: boolean;
  readonly endsHere: boolean;
}

const MOST_REPEATS = 10_000;
const MOST_DEPTH = 64;
const DIGITS: readonly Range[] = [[0x30, 0x39]];
const WORD: readonly Range[] = [
  [0x30, 0x39],
  [0x41, 0x5a],
  [0x5f, 0x5f],
  [0x61, 0x7a],
];
const BLANK: readonly Range[] = (
  [0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x20, 0xa0, 0x1680, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000, 0xfeff] as const
).map((c): Range => [c, c]);
const SPACES = unite([...BLANK, [0x2000, 0x200a]]);
const LINE_ENDS: readonly Range[] = [
  [0x0a, 0x0a],
  [0x0d, 0x0d],
  [0x2028, 0x2029],
];
export const ANY_CHARACTER: readonly Range[] = complement([]);

const classes: Readonly<Record<string, readonly Range[]>> = {
  d: DIGITS,
  D: complement(DIGITS),
  w: WORD,
  W: complement(WORD),
  s: SPACES,
  S: complement(SPACES),
};
const controls: Readonly<Record<string, number>> = { t: 9, n: 10, v: 11, f: 12, r: 13, 0: 0 };

/** The texts that a pattern finds from their beginning on; what may follow is the caller's. */
export function parsePattern(source: string): Pattern {
  try {
    new RegExp(source, "u");
  } catch (cause) {
    fail(
      "InvalidArgument",
      `the pattern ${JSON.stringify(source)} is no regular expression: ${(cause as Error).message}`,
    );
  }
  return new PatternParser(source).parse();
}

class PatternParser {
  readonly #source: string;
  readonly #characters: readonly string[];
  #at = 0;

  constructor(source: string) {
    this.#source = source;
    this.#characters = Array.from(source);
  }

  parse(): Pattern {
    const cases = this.#cases(true, 0);
    const endsHere = cases.every((each) => each.endsHere);
    const rest = repeat({ kind: "class", ranges: ANY_CHARACTER }, 0, null);
    const all = cases.map((each) => (endsHere || !each.endsHere ? each.expression : null));
    if (all.every((each) => each !== null)) return { expression: choice(...all), startsHere: true, endsHere };
    // Some end here and some do not: those that do not are given what may follow.
    const closed = cases.map((each) => (each.endsHere ? each.expression : sequence(each.expression, rest)));
    return { expression: choice(...closed), startsHere: true, endsHere: true };
  }

  #peek(): string | undefined {
    return this.#characters[this.#at];
  }

  #takes(expected: string): boolean {
    if (!expected.startsWith(this.#peek() ?? " ")) return false;
    if (this.#characters.slice(this.#at, this.#at + expected.length).join("") !== expected) return false;
    this.#at += expected.length;
    return true;
  }

  #refuse(what: string): never {
    return fail(
      "InvalidArgument",
      `the pattern ${JSON.stringify(this.#source)} has ${what}, which masks cannot keep to`,
    );
  }

  #cases(atStart: boolean, depth: number): Pattern[] {
    if (depth > MOST_DEPTH) this.#refuse("too many groups within each other");
    const cases = [this.#sequence(atStart, depth)];
    while (this.#takes("|")) cases.push(this.#sequence(atStart, depth));
    return cases;
  }

  #sequence(atStart: boolean, depth: number): Pattern {
    const items: Expression[] = [];
    let ended = false;
    let started = false;
    for (let c = this.#peek(); c !== undefined && c !== "|" && c !== ")"; c = this.#peek()) {
      if (this.#takes("^")) {
        if (!atStart || items.length > 0) this.#refuse('a "^" behind the beginning');
        started = true;
        continue;
      }
      if (this.#takes("$")) {
        ended = true;
        continue;
      }
      if (ended) this.#refuse('a "$" before the end');
      const item = this.#item(atStart && items.length === 0, depth);
      ended = item.endsHere;
      const repeated = this.#repeated(item.expression);
      if ((ended || item.startsHere) && repeated !== item.expression) this.#refuse('a "^" or "$" that is repeated');
      started ||= item.startsHere;
      items.push(repeated);
    }
    return { expression: sequence(...items), startsHere: started, endsHere: ended };
  }

  #item(atStart: boolean, depth: number): Pattern {
    if (this.#takes("(")) return this.#group(atStart, depth);
    return { expression: { kind: "class", ranges: this.#single() }, startsHere: false, endsHere: false };
  }

  #group(atStart: boolean, depth: number): Pattern {
    if (this.#takes("?")) {
      if (!this.#takes(":")) {
        const named = this.#takes("<") && this.#peek() !== "=" && this.#peek() !== "!";
        if (!named) this.#refuse("a look ahead or behind");
        while (!this.#takes(">")) this.#at++;
      }
    }
    const cases = this.#cases(atStart, depth + 1);
    this.#takes(")");
    const ends = cases.filter((each) => each.endsHere).length;
    if (ends > 0 && ends < cases.length) this.#refuse('a "$" in some cases of a group only');
    const startsHere = cases.some((each) => each.startsHere);
    return { expression: choice(...cases.map((each) => each.expression)), startsHere, endsHere: ends > 0 };
  }

  #repeated(item: Expression): Expression {
    const bounds = this.#bounds();
    if (!bounds) return item;
    // How eager it is makes no difference to the texts there are.
    this.#takes("?");
    const [least, most] = bounds;
    if (least > MOST_REPEATS || (most ?? 0) > MOST_REPEATS) this.#refuse(`more than ${MOST_REPEATS} repetitions`);
    return repeat(item, least, most);
  }

  #bounds(): readonly [number, number | null] | null {
    if (this.#takes("*")) return [0, null];
    if (this.#takes("+")) return [1, null];
    if (this.#takes("?")) return [0, 1];
    if (this.#peek() !== "{") return null;
    const end = this.#characters.indexOf("}", this.#at);
    const [least, most] = this.#characters
      .slice(this.#at + 1, end)
      .join("")
      .split(",") as [string, string?];
    this.#at = end + 1;
    return [Number(least), most === undefined ? Number(least) : most === "" ? null : Number(most)];
  }

  #single(): readonly Range[] {
    if (this.#takes(".")) return complement(LINE_ENDS);
    if (this.#takes("[")) return this.#class();
    if (this.#takes("\\")) return this.#escape(false);
    return [codeOf(this.#characters[this.#at++]!)];
  }

  #class(): readonly Range[] {
    const negated = this.#takes("^");
    const ranges: Range[] = [];
    while (!this.#takes("]")) {
      const first = this.#takes("\\") ? this.#escape(true) : [codeOf(this.#characters[this.#at++]!)];
      const isRange = this.#peek() === "-" && this.#characters[this.#at + 1] !== "]" && isSingle(first);
      if (!isRange) {
        ranges.push(...first);
        continue;
      }
      this.#at++;
      const last = this.#takes("\\") ? this.#escape(true) : [codeOf(this.#characters[this.#at++]!)];
      ranges.push([first[0]![0], last[0]![1]]);
    }
    return negated ? complement(ranges) : complement(complement(ranges));
  }

  #escape(inClass: boolean): readonly Range[] {
    const c = this.#characters[this.#at++]!;
    if (c in classes) return classes[c]!;
    if (c === "b" && inClass) return [[8, 8]];
    if (c === "b" || c === "B") this.#refuse("a word boundary");
    if (/[1-9k]/.test(c)) this.#refuse("a reference to a group");
    if (c === "p" || c === "P") return this.#property(c);
    if (c === "c")
      return [[codeOf(this.#characters[this.#at]!)[0] % 32, codeOf(this.#characters[this.#at++]!)[0] % 32]];
    if (c === "x") return [this.#hex(2)];
    if (c === "u") return [this.#unicode()];
    return [c in controls ? [controls[c]!, controls[c]!] : codeOf(c)];
  }

  #property(c: string): readonly Range[] {
    const end = this.#characters.indexOf("}", this.#at);
    const name = this.#characters.slice(this.#at, end + 1).join("");
    this.#at = end + 1;
    return propertyRanges(`\\${c}${name}`);
  }

  #hex(count: number): Range {
    const code = Number.parseInt(this.#characters.slice(this.#at, this.#at + count).join(""), 16);
    this.#at += count;
    return [code, code];
  }

  #unicode(): Range {
    if (this.#takes("{")) {
      const end = this.#characters.indexOf("}", this.#at);
      const range = this.#hex(end - this.#at);
      this.#at++;
      return range;
    }
    const [high] = this.#hex(4);
    if (high < 0xd800 || high > 0xdbff || !this.#takes("\\u")) return [high, high];
    const [low] = this.#hex(4);
    const code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    return [code, code];
  }
}

const codeOf = (c: string): Range => [c.codePointAt(0)!, c.codePointAt(0)!];
const isSingle = (ranges: readonly Range[]): boolean => ranges.length === 1 && ranges[0]![0] === ranges[0]![1];

const properties = new Map<string, readonly Range[]>();

/** Unicode's properties are the engine's knowledge: every code point is asked once. */
function propertyRanges(written: string): readonly Range[] {
  const known = properties.get(written);
  if (known) return known;
  const test = new RegExp(`^${written}$`, "u");
  const found: [number, number][] = [];
  for (let code = 0; code <= LAST_CODE_POINT; code++) {
    if ((code >= 0xd800 && code <= 0xdfff) || !test.test(String.fromCodePoint(code))) continue;
    const last = found.at(-1);
    if (last && last[1] === code - 1) last[1] = code;
    else found.push([code, code]);
  }
  properties.set(written, found);
  return found;
}

/** Classes and texts of an expression as others. */
export function mapCharacters(e: Expression, map: (ranges: readonly Range[]) => Expression): Expression {
  switch (e.kind) {
    case "text":
      return sequence(...Array.from(e.text, (c) => map([codeOf(c)])));
    case "class":
      return map(e.ranges);
    case "sequence":
      return sequence(...e.items.map((item) => mapCharacters(item, map)));
    case "choice":
      return choice(...e.items.map((item) => mapCharacters(item, map)));
    case "repeat":
      return repeat(mapCharacters(e.item, map), e.least, e.most);
    case "rule":
      return e;
    default:
      return e satisfies never;
  }
}
