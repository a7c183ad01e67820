/** llama.cpp's GBNF, as its grammars/README has it. */
import { fail } from "../../core/errors.ts";
import {
  choice,
  complement,
  type Expression,
  Grammar,
  type Range,
  repeat,
  rule,
  sequence,
  text,
} from "./expression.ts";
import { ANY_CHARACTER } from "./regex.ts";

const MOST_REPEATS = 10_000;
const MOST_DEPTH = 100;
const NAME = /[A-Za-z0-9_-]/;

export function parseGbnf(source: string): { readonly root: Expression; readonly grammar: Grammar } {
  const parser = new GbnfParser(source);
  return parser.parse();
}

class GbnfParser {
  readonly #source: readonly string[];
  readonly #grammar = new Grammar();
  /** Rules by the names of the source: xgrammar does not take all of them. */
  readonly #names = new Map<string, { readonly name: string; isDefined: boolean }>();
  #at = 0;

  constructor(source: string) {
    this.#source = Array.from(source.replaceAll("\r\n", "\n"));
  }

  parse(): { readonly root: Expression; readonly grammar: Grammar } {
    this.#space(true);
    while (this.#at < this.#source.length) this.#rule();
    for (const [name, { isDefined }] of this.#names) if (!isDefined) this.#bad(`has no rule "${name}", which is used`);
    const root = this.#names.get("root");
    if (!root) this.#bad('has no rule "root", with which an answer begins');
    return { root: rule(root!.name), grammar: this.#grammar };
  }

  #bad(what: string): never {
    const line = this.#source.slice(0, this.#at).filter((c) => c === "\n").length + 1;
    return fail("InvalidArgument", `the grammar, at line ${line}, ${what}`);
  }

  #peek(): string | undefined {
    return this.#source[this.#at];
  }

  #takes(expected: string): boolean {
    if (this.#source.slice(this.#at, this.#at + expected.length).join("") !== expected) return false;
    this.#at += expected.length;
    return true;
  }

  #space(acrossLines: boolean): void {
    for (let c = this.#peek(); c !== undefined; c = this.#peek()) {
      if (c === "#") while (this.#peek() !== undefined && this.#peek() !== "\n") this.#at++;
      else if (c === " " || c === "\t" || c === "\r" || (acrossLines && c === "\n")) this.#at++;
      else return;
    }
  }

  #name(): string {
    let name = "";
    while (NAME.test(this.#peek() ?? " ")) name += this.#source[this.#at++];
    return name === "" ? this.#bad(`has ${JSON.stringify(this.#peek() ?? "its end")} where a name belongs`) : name;
  }

  #known(name: string): { readonly name: string; isDefined: boolean } {
    const known = this.#names.get(name) ?? { name: `rule-${this.#names.size}`, isDefined: false };
    this.#names.set(name, known);
    return known;
  }

  #rule(): void {
    const named = this.#name();
    const known = this.#known(named);
    this.#space(false);
    if (!this.#takes("::=")) this.#bad(`misses "::=" behind ${named}`);
    if (known.isDefined) this.#bad(`has the rule "${named}" twice`);
    known.isDefined = true;
    this.#space(true);
    this.#grammar.rules.set(known.name, this.#choices(false, 0));
    if (this.#peek() !== undefined && this.#peek() !== "\n")
      this.#bad(`has ${JSON.stringify(this.#peek())}, which belongs to nothing`);
    this.#space(true);
  }

  #choices(isNested: boolean, depth: number): Expression {
    if (depth > MOST_DEPTH) this.#bad("has too many parentheses within each other");
    const cases = [this.#sequence(isNested, depth)];
    while (this.#takes("|")) {
      this.#space(true);
      cases.push(this.#sequence(isNested, depth));
    }
    return choice(...cases);
  }

  #sequence(isNested: boolean, depth: number): Expression {
    const items: Expression[] = [];
    for (let c = this.#peek(); c !== undefined && !"|)\n".includes(c); c = this.#peek()) {
      const item = this.#item(c, depth);
      this.#space(isNested);
      items.push(this.#repeated(item));
      this.#space(isNested);
    }
    return sequence(...items);
  }

  #item(c: string, depth: number): Expression {
    if (c === '"') return this.#literal();
    if (c === "[") return this.#class();
    if (this.#takes(".")) return { kind: "class", ranges: ANY_CHARACTER };
    if (this.#takes("(")) {
      this.#space(true);
      const inside = this.#choices(true, depth + 1);
      return this.#takes(")") ? inside : this.#bad('misses a ")"');
    }
    return rule(this.#known(this.#name()).name);
  }

  #repeated(item: Expression): Expression {
    if (this.#takes("*")) return this.#repeated(repeat(item, 0, null));
    if (this.#takes("+")) return this.#repeated(repeat(item, 1, null));
    if (this.#takes("?")) return this.#repeated(repeat(item, 0, 1));
    if (!this.#takes("{")) return item;
    const end = this.#source.indexOf("}", this.#at);
    const [, least, comma, most] =
      /^\s*(\d+)\s*(,)?\s*(\d*)\s*$/.exec(this.#source.slice(this.#at, end).join("")) ?? [];
    if (end < 0 || least === undefined) this.#bad("has a { that is no number of repetitions");
    this.#at = end + 1;
    const bounds = [Number(least), comma ? (most === "" ? null : Number(most)) : Number(least)] as const;
    if (Math.max(bounds[0], bounds[1] ?? 0) > MOST_REPEATS) this.#bad(`has more than ${MOST_REPEATS} repetitions`);
    return this.#repeated(repeat(item, ...bounds));
  }

  #literal(): Expression {
    this.#at++;
    let written = "";
    while (!this.#takes('"')) {
      if (this.#peek() === undefined || this.#peek() === "\n") this.#bad("has a text without its closing quote");
      written += String.fromCodePoint(this.#character());
    }
    return text(written);
  }

  #class(): Expression {
    this.#at++;
    const isNegated = this.#takes("^");
    const ranges: Range[] = [];
    while (!this.#takes("]")) {
      if (this.#peek() === undefined) this.#bad('has a "[" without its "]"');
      const first = this.#character();
      const isRange = this.#peek() === "-" && this.#source[this.#at + 1] !== "]";
      if (isRange) this.#at++;
      ranges.push([first, isRange ? this.#character() : first]);
    }
    return { kind: "class", ranges: complement(isNegated ? ranges : complement(ranges)) };
  }

  #character(): number {
    const c = this.#source[this.#at++]!;
    if (c !== "\\") return c.codePointAt(0)!;
    const marked = this.#source[this.#at++] ?? "";
    const digits = { x: 2, u: 4, U: 8 }[marked];
    if (digits === undefined)
      return ({ n: "\n", r: "\r", t: "\t" }[marked] ?? (marked || this.#bad("ends in a \\"))).codePointAt(0)!;
    const hex = this.#source.slice(this.#at, this.#at + digits).join("");
    this.#at += digits;
    const code = Number.parseInt(hex, 16);
    return /^[0-9a-fA-F]+$/.test(hex) && code <= 0x10ffff
      ? code
      : this.#bad(`has \\${marked}${hex}, which is no character`);
  }
}
