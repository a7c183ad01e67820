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
/** So many of a part are counted one by one. */
const BLOCK = 32;

/** What a choice is between, each as a sequence. */
type Cases = readonly (readonly string[])[];

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
    return this.#cases(this.#alternatives(e));
  }

  /** Cases of one thing each; only the bytes of characters, which begin differently, need no rules of their own. */
  #cases(cases: Cases, behind = EMPTY_RULE): string {
    const firsts = cases.map(([first]) => first);
    const written = cases.map((atoms, i) => {
      const isAlone = firsts.indexOf(firsts[i]) === firsts.lastIndexOf(firsts[i]);
      const isCharacter = atoms.every((atom) => atom.startsWith("[") && atom.endsWith("]"));
      const isOne = atoms.length < 2 && !atoms[0]?.startsWith('"');
      return isAlone && (isCharacter || isOne) ? atoms.join(" ") : this.#hoisted(atoms.join(" "));
    });
    return [...new Set(written)].map((each) => `${each} ${behind}`.trim()).join(" | ");
  }

  /** What a choice is between, each as a sequence. */
  #alternatives(e: Expression): string[][] {
    if (e.kind === "class") return byteSequences(e.ranges).map((parts) => parts.map(byteClass));
    if (e.kind !== "choice") return [this.#atoms(e)];
    const possible = e.items.filter((item) => leastBytes(item, this.#least) !== Number.POSITIVE_INFINITY);
    return possible.flatMap((item) => this.#alternatives(item));
  }

  /** A rule of its own. */
  #hoisted(body: string): string {
    const whole = body.includes(EMPTY_RULE) ? body : `${body} ${EMPTY_RULE}`;
    return this.#named(whole, () => whole);
  }

  /** A sequence of texts, classes of single bytes, rules, and repetitions of these. */
  #atoms(e: Expression): string[] {
    switch (e.kind) {
      case "text":
        return [literal(e.text)];
      case "class":
        return this.#class(e.ranges);
      case "sequence":
        return this.#sequence(e.items);
      case "choice":
        return [this.#hoisted(this.#cases(this.#alternatives(e)))];
      case "repeat":
        return this.#repeated(e.item, e.least, e.most);
      case "rule":
        return [e.name];
      default:
        return e satisfies never;
    }
  }

  #class(ranges: readonly Range[]): string[] {
    const cases = byteSequences(ranges);
    const isAscii = cases.length === 1 && cases[0]!.length === 1;
    return isAscii ? [byteClass(cases[0]![0]!)] : [this.#hoisted(this.#body({ kind: "class", ranges }))];
  }

  #sequence(items: readonly Expression[]): string[] {
    const atoms: string[] = [];
    for (let i = 0; i < items.length; i++) {
      const [item, next] = [items[i]!, items[i + 1]];
      if (item.kind === "repeat" && next?.kind === "text" && isApart(item.item, next.text)) {
        atoms.push(...this.#repeated(item.item, item.least, item.most, literal(next.text)));
        i++;
      } else atoms.push(...this.#atoms(item));
    }
    return atoms;
  }

  /** With an end that none of the parts begins with the rule ends in it: what may follow is then known beforehand. */
  #repeated(item: Expression, least: number, most: number | null, end = '""'): string[] {
    const cases = this.#alternatives(item);
    if (most === null) return [...this.#times(cases, least), this.#again(cases, end)];
    return [...this.#times(cases, least), ...this.#upTo(cases, most - least, end)];
  }

  /** So many, one behind the other: xgrammar's own counting takes others, too. */
  #times(cases: Cases, count: number): string[] {
    if (count === 0) return [];
    if (count <= BLOCK) return [this.#chain(cases, count, null)];
    const block = [[this.#chain(cases, BLOCK, null)]];
    return [...this.#times(block, Math.floor(count / BLOCK)), ...this.#times(cases, count % BLOCK)];
  }

  /** At most so many; of more than two blocks some less, so that how many there were has one reading only. */
  #upTo(cases: Cases, count: number, end = '""'): string[] {
    if (count === 0) return end === '""' ? [] : [end];
    if (count <= 2 * BLOCK) return [this.#chain(cases, count, end)];
    const block = [[this.#chain(cases, BLOCK, null)]];
    return [...this.#upTo(block, Math.floor((count - BLOCK + 1) / BLOCK)), this.#chain(cases, BLOCK - 1, end)];
  }

  /** A rule for each that is still to come; all but single bytes in one that they share, since each rule is compiled. */
  #chain(all: Cases, count: number, end: string | null): string {
    const bytes = all.filter(([first, second]) => first?.startsWith("[") && second === undefined);
    const others = all.filter((each) => !bytes.includes(each));
    const cases = others.length > 1 && count > 1 ? [...bytes, [this.#hoisted(this.#cases(others))]] : all;
    let next = end === null || end === '""' ? EMPTY_RULE : this.#hoisted(end);
    for (let left = 1; left <= count; left++) {
      next = this.#named(`${left} ${end} ${JSON.stringify(cases)}`, () => {
        const body = this.#cases(cases, next);
        return end === null ? body : `${end} | ${body}`;
      });
    }
    return next;
  }

  #named(key: string, body: (name: string) => string): string {
    const known = this.#made.get(key);
    if (known) return known;
    const name = `part-${this.#made.size}`;
    this.#made.set(key, name);
    this.#lines.push(`${name} ::= ${body(name)}`);
    return name;
  }

  /**
   * As often as one likes, by a rule that ends in itself: a token of several characters then stays within one rule, whose
   * tokens are known beforehand.
   */
  #again(cases: Cases, end: string): string {
    const isEmpty = (atoms: readonly string[]): boolean => atoms.every((atom) => atom === '""');
    return this.#named(`again ${end} ${JSON.stringify(cases)}`, (name) => {
      const body = this.#cases(
        cases.filter((atoms) => !isEmpty(atoms)),
        name,
      );
      return body === "" ? end : `${end} | ${body}`;
    });
  }
}

/** Whether no text of an expression begins as another one does, and none is empty. */
function isApart(e: Expression, other: string): boolean {
  const code = other.codePointAt(0);
  if (code === undefined || code > 0x7f) return false;
  switch (e.kind) {
    case "text":
      return e.text !== "" && e.text.codePointAt(0) !== code;
    case "class":
      return e.ranges.every(([a, b]) => code < a || code > b);
    case "sequence":
      return isApart(e.items[0]!, other);
    case "choice":
      return e.items.every((item) => isApart(item, other));
    case "repeat":
      return e.least > 0 && isApart(e.item, other);
    case "rule":
      return false;
    default:
      return e satisfies never;
  }
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
