/**
 * What texts a grammar has: a small algebra that schemas, patterns and GBNF are all turned into, and that is written as
 * xgrammar's EBNF.
 */
import { fail } from "../../core/errors.ts";

/** Code points from the first to the last. */
export type Range = readonly [number, number];

export type Expression =
  | { readonly kind: "text"; readonly text: string }
  | { readonly kind: "class"; readonly ranges: readonly Range[] }
  | { readonly kind: "sequence"; readonly items: readonly Expression[] }
  | { readonly kind: "choice"; readonly items: readonly Expression[] }
  | { readonly kind: "repeat"; readonly item: Expression; readonly least: number; readonly most: number | null }
  | { readonly kind: "rule"; readonly name: string };

export const LAST_CODE_POINT = 0x10ffff;
export const EMPTY: Expression = { kind: "text", text: "" };
/** No text at all. */
export const NOTHING: Expression = { kind: "choice", items: [] };
export const isNothing = (e: Expression): boolean => e.kind === "choice" && e.items.length === 0;

export const text = (value: string): Expression => ({ kind: "text", text: value });
export const rule = (name: string): Expression => ({ kind: "rule", name });

export function sequence(...items: readonly Expression[]): Expression {
  if (items.some(isNothing)) return NOTHING;
  const flat = items.flatMap((item) => (item.kind === "sequence" ? item.items : [item]));
  const kept: Expression[] = [];
  for (const item of flat) {
    const before = kept.at(-1);
    if (item.kind !== "text" || before?.kind !== "text") kept.push(item);
    else kept[kept.length - 1] = text(before.text + item.text);
  }
  if (kept.length > 1) kept.splice(0, kept.length, ...kept.filter((item) => item.kind !== "text" || item.text !== ""));
  return kept.length === 1 ? kept[0]! : kept.length === 0 ? EMPTY : { kind: "sequence", items: kept };
}

export function choice(...items: readonly Expression[]): Expression {
  const flat = items.flatMap((item) => (item.kind === "choice" ? item.items : [item]));
  return flat.length === 1 ? flat[0]! : { kind: "choice", items: flat };
}

/** `most` null is as often as one likes. */
export function repeat(item: Expression, least: number, most: number | null): Expression {
  if (isNothing(item)) return least === 0 ? EMPTY : NOTHING;
  if (most !== null && most < least) return NOTHING;
  if (most === 0) return EMPTY;
  return least === 1 && most === 1 ? item : { kind: "repeat", item, least, most };
}

/** One of these texts, as a tree of their beginnings: of many texts side by side xgrammar takes others, too. */
export function oneOf(texts: readonly string[]): Expression {
  const byFirst = new Map<string, string[]>();
  for (const each of new Set(texts)) {
    const [first = ""] = each;
    byFirst.set(first, [...(byFirst.get(first) ?? []), each.slice(first.length)]);
  }
  const cases = Array.from(byFirst, ([first, rests]) =>
    rests.length === 1 ? text(first + rests[0]!) : sequence(text(first), oneOf(rests)),
  );
  return choice(...cases);
}

export const optional = (item: Expression): Expression => repeat(item, 0, 1);

/** "a-z" pairs: `chars("az", "09")`, or single characters. */
export const chars = (...ranges: readonly string[]): Expression => {
  const pairs = ranges.map((range): Range => {
    const [first, last] = Array.from(range, (c) => c.codePointAt(0)!);
    return [first!, last ?? first!];
  });
  return { kind: "class", ranges: pairs };
};

/** Sorted and joined. */
export function unite(ranges: readonly Range[]): Range[] {
  const sorted = [...ranges].sort(([a], [b]) => a - b);
  const out: [number, number][] = [];
  for (const [first, last] of sorted) {
    const before = out.at(-1);
    if (before && first <= before[1] + 1) before[1] = Math.max(before[1], last);
    else out.push([first, last]);
  }
  return out;
}

/** All other code points but surrogates, which are no characters. */
export function complement(ranges: readonly Range[]): Range[] {
  const out: Range[] = [];
  let next = 0;
  for (const [first, last] of unite([...ranges, [0xd800, 0xdfff]])) {
    if (first > next) out.push([next, first - 1]);
    next = last + 1;
  }
  if (next <= LAST_CODE_POINT) out.push([next, LAST_CODE_POINT]);
  return out;
}

export class Grammar {
  readonly rules = new Map<string, Expression>();
  #count = 0;

  /** A rule of its own for what is made while its name is known: it may refer to itself. */
  define(hint: string, make: (name: string) => Expression): Expression {
    const name = `${hint.replaceAll(/[^A-Za-z]/g, "").slice(0, 20) || "rule"}-${this.#count++}`;
    this.rules.set(name, NOTHING);
    const made = make(name);
    this.rules.set(name, made);
    return rule(name);
  }
}

/** For every rule the bytes of its shortest text; Infinity where it has none. */
export function shortest(rules: ReadonlyMap<string, Expression>): Map<string, number> {
  const least = new Map(Array.from(rules.keys(), (name) => [name, Number.POSITIVE_INFINITY]));
  for (let changed = true; changed; ) {
    changed = false;
    for (const [name, expression] of rules) {
      const now = leastBytes(expression, least);
      if (now < least.get(name)!) {
        least.set(name, now);
        changed = true;
      }
    }
  }
  return least;
}

export function leastBytes(e: Expression, rules: ReadonlyMap<string, number>): number {
  switch (e.kind) {
    case "text":
      return Buffer.byteLength(e.text);
    case "class":
      return e.ranges.length === 0
        ? Number.POSITIVE_INFINITY
        : Buffer.byteLength(String.fromCodePoint(e.ranges[0]![0]));
    case "sequence":
      return e.items.reduce((sum, item) => sum + leastBytes(item, rules), 0);
    case "choice":
      return Math.min(Number.POSITIVE_INFINITY, ...e.items.map((item) => leastBytes(item, rules)));
    case "repeat":
      return e.least === 0 ? 0 : e.least * leastBytes(e.item, rules);
    case "rule":
      return rules.get(e.name) ?? fail("InvalidArgument", `the grammar has no rule "${e.name}"`);
    default:
      return e satisfies never;
  }
}

/** By how many bytes one step can lengthen the shortest way to the end: the largest part that need not have been begun. */
export function longestDetour(root: Expression, rules: ReadonlyMap<string, Expression>): number {
  const least = shortest(rules);
  const detour = (e: Expression): number => {
    switch (e.kind) {
      case "text":
      case "class":
      case "rule":
        return 0;
      case "sequence":
        return Math.max(0, ...e.items.map(detour));
      case "choice": {
        const sizes = e.items.map((item) => leastBytes(item, least)).filter(Number.isFinite);
        return Math.max(0, Math.max(0, ...sizes) - Math.min(...sizes), ...e.items.map(detour));
      }
      case "repeat": {
        const size = leastBytes(e.item, least);
        return Math.max(Number.isFinite(size) && e.most !== e.least ? size : 0, detour(e.item));
      }
      default:
        return e satisfies never;
    }
  };
  return Math.max(detour(root), ...Array.from(rules.values(), detour));
}
