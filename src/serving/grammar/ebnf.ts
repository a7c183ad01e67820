/**
 * Grammars as xgrammar reads them. Version 0.1.27, the last for WebAssembly, takes classes for bytes, and merges what begins
 * alike in the cases of a rule with what ends alike, so that it takes texts that the grammar does not have. Written out here
 * are therefore bytes, and rules whose cases begin with different things.
 */
import { fail } from "../../core/errors.ts";
import { type Expression, leastBytes, type Range, shortest } from "./expression.ts";
import { byteSequences } from "./utf8.ts";

/** An empty rule: one that refers to another is not put in its place. */
const EMPTY_RULE = "nil";

export function toEbnf(root: Expression, rules: ReadonlyMap<string, Expression>): string {
  const least = shortest(rules);
  if (leastBytes(root, least) === Number.POSITIVE_INFINITY) fail("InvalidArgument", "the grammar has no text at all");
  const writer = new Writer(least);
  writer.rule("root", root);
  for (const [name, expression] of rules) {
    if (least.get(name) !== Number.POSITIVE_INFINITY) writer.rule(name, expression);
  }
  return writer.text();
}

class Writer {
  readonly #least: ReadonlyMap<string, number>;
  readonly #lines: string[] = [];
  /** Rules made here, by what they have. */
  readonly #made = new Map<string, string>();

  constructor(least: ReadonlyMap<string, number>) {
    this.#least = least;
  }

  text(): string {
    return `${this.#lines.join("\n")}\n${EMPTY_RULE} ::= ""\n`;
  }

  rule(name: string, e: Expression): void {
    this.#lines.push(`${name} ::= ${this.#body(e)}`);
  }

  #body(e: Expression): string {
    return e.kind === "choice" ? this.#cases(e.items) : `${this.#atoms(e).join(" ")} ${EMPTY_RULE}`;
  }

  #cases(items: readonly Expression[]): string {
    const possible = items.filter((item) => leastBytes(item, this.#least) !== Number.POSITIVE_INFINITY);
    const cases = possible.map((item) => this.#atoms(item));
    const firsts = cases.map(([first]) => beginning(first!));
    const written = cases.map((atoms, i) => {
      const isAlone = firsts[i] !== null && firsts.indexOf(firsts[i]!) === firsts.lastIndexOf(firsts[i]!);
      return isAlone || atoms.length === 0 ? atoms.join(" ") : this.#hoisted(atoms.join(" "));
    });
    return [...new Set(written)].map((each, i) => (i === 0 ? `${each} ${EMPTY_RULE}` : each)).join(" | ");
  }

  /** A rule of its own. */
  #hoisted(body: string): string {
    const whole = body.includes(EMPTY_RULE) ? body : `${body} ${EMPTY_RULE}`;
    const known = this.#made.get(whole);
    if (known) return known;
    const name = `part-${this.#made.size}`;
    this.#made.set(whole, name);
    this.#lines.push(`${name} ::= ${whole}`);
    return name;
  }

  /** A sequence of texts, classes of single bytes, rules, and repetitions of these. */
  #atoms(e: Expression): string[] {
    switch (e.kind) {
      case "text":
        return [literal(e.text)];
      case "class":
        return this.#class(e.ranges);
      case "sequence":
        return e.items.flatMap((item) => this.#atoms(item));
      case "choice":
        return [this.#hoisted(this.#cases(e.items))];
      case "repeat":
        return [this.#repeated(e.item, e.least, e.most)];
      case "rule":
        return [e.name];
      default:
        return e satisfies never;
    }
  }

  #class(ranges: readonly Range[]): string[] {
    const cases = byteSequences(ranges);
    const isAscii = cases.length === 1 && cases[0]!.length === 1;
    if (isAscii) return [byteClass(cases[0]![0]!)];
    const written = cases.map((parts) => parts.map(byteClass).join(" "));
    const apart = written.map((each, i) => (cases[i]!.length === 1 ? each : this.#hoisted(each)));
    return [
      this.#hoisted(
        `${apart[0]} ${EMPTY_RULE}${apart
          .slice(1)
          .map((each) => ` | ${each}`)
          .join("")}`,
      ),
    ];
  }

  #repeated(item: Expression, least: number, most: number | null): string {
    const atoms = this.#atoms(item);
    const one = atoms.length === 1 && !/[*+?}]$/.test(atoms[0]!) ? atoms[0]! : this.#hoisted(atoms.join(" "));
    if (most === null && least < 2) return `${one}${least === 0 ? "*" : "+"}`;
    if (least === 0 && most === 1) return `${one}?`;
    // What is written out so many times must not be put in the place of others.
    const named = one.startsWith("[") || one.startsWith('"') ? this.#hoisted(one) : one;
    return `${named}{${least},${most ?? ""}}`;
  }
}

/** What a case begins with; null where another may begin with the same byte although it is written otherwise. */
function beginning(atom: string): string | null {
  if (!atom.startsWith('"')) return /[*?}]$/.test(atom) ? null : atom;
  const [, first] = /^"(\\u00[0-7].|[ A-Za-z0-9])/.exec(atom) ?? [];
  return first ?? null;
}

const literal = (text: string): string => `"${Array.from(text, (c) => escaped(c.codePointAt(0)!)).join("")}"`;

const byteClass = (ranges: readonly Range[]): string =>
  `[${ranges.map(([a, b]) => (a === b ? single(a) : `${escaped(a)}-${escaped(b)}`)).join("")}]`;

/** Twice, or it is taken for a character. */
const single = (byte: number): string => (byte < 0x80 ? escaped(byte) : `${escaped(byte)}${escaped(byte)}`);

const isPlain = (c: number): boolean =>
  (c >= 0x30 && c <= 0x39) || (c >= 0x41 && c <= 0x5a) || (c >= 0x61 && c <= 0x7a) || c === 0x20;

const escaped = (c: number): string =>
  isPlain(c)
    ? String.fromCharCode(c)
    : c <= 0xffff
      ? `\\u${c.toString(16).padStart(4, "0")}`
      : `\\U${c.toString(16).padStart(8, "0")}`;
