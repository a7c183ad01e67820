/** Texts of JSON values as expressions: strings with their escapes, any value, what stands between the parts. */
import {
  chars,
  choice,
  complement,
  type Expression,
  type Grammar,
  optional,
  type Range,
  repeat,
  rule,
  sequence,
  text,
} from "./expression.ts";

/**
 * Space where JSON may have it, as models write it: none, one, or a new line with what it is indented by. Without an end it
 * would be where a model that has nothing to say goes on for ever.
 */
export const SPACE: Expression = optional(choice(text(" "), sequence(text("\n"), repeat(chars(" ", "\t"), 0, 20))));
export const COMMA: Expression = sequence(text(","), SPACE);
export const COLON: Expression = sequence(text(":"), optional(text(" ")));

/** Characters that stand for themselves in a string. */
const PLAIN: readonly Range[] = complement([
  [0, 0x1f],
  [0x22, 0x22],
  [0x5c, 0x5c],
]);
const hex = chars("09", "af", "AF");

/** Any one character of a string; surrogates have no escapes of their own, since two of them are one character. */
export const CHARACTER: Expression = choice(
  { kind: "class", ranges: PLAIN },
  sequence(
    text("\\"),
    choice(
      chars('"', "\\", "/", "b", "f", "n", "r", "t"),
      sequence(
        text("u"),
        choice(
          sequence(chars("09", "ac", "AC", "ef", "EF"), repeat(hex, 3, 3)),
          sequence(chars("d", "D"), chars("07"), repeat(hex, 2, 2)),
        ),
      ),
    ),
  ),
);

const quote = text('"');
export const quoted = (content: Expression): Expression => sequence(quote, content, quote);

/** A character or a class of them as it stands in a string. */
export function inString(ranges: readonly Range[]): Expression {
  const plain: Range[] = [];
  const escapes: Expression[] = [];
  for (const [first, last] of ranges) {
    for (const [from, to] of PLAIN) {
      if (Math.max(first, from) <= Math.min(last, to)) plain.push([Math.max(first, from), Math.min(last, to)]);
    }
    for (const code of [...Array(0x20).keys(), 0x22, 0x5c]) {
      if (code >= first && code <= last) escapes.push(text(JSON.stringify(String.fromCharCode(code)).slice(1, -1)));
    }
  }
  return choice(...(plain.length > 0 ? [{ kind: "class", ranges: plain } as const] : []), ...escapes);
}

/** Values as they are, with no space. */
export const constant = (value: unknown): Expression => text(JSON.stringify(value));

/** So many digits that the value is the same for every reader of JSON. */
const digits = (most: number): Expression => repeat(chars("09"), 0, most);
export const INTEGER: Expression = choice(text("0"), sequence(optional(text("-")), chars("19"), digits(14)));
export const NUMBER: Expression = sequence(
  optional(text("-")),
  choice(text("0"), sequence(chars("19"), digits(14))),
  optional(sequence(text("."), repeat(chars("09"), 1, 15))),
  optional(sequence(chars("e", "E"), optional(chars("+", "-")), repeat(chars("09"), 1, 2))),
);

const anyRules = new WeakMap<Grammar, Expression>();

/** Any value. */
export function anyValue(grammar: Grammar): Expression {
  const known = anyRules.get(grammar);
  if (known) return known;
  const made = grammar.define("any", (name) => {
    anyRules.set(grammar, rule(name));
    const value = rule(name);
    const member = sequence(quoted(repeat(CHARACTER, 0, null)), COLON, value);
    return choice(
      quoted(repeat(CHARACTER, 0, null)),
      NUMBER,
      text("true"),
      text("false"),
      text("null"),
      listOf(value, 0, null),
      sequence(
        text("{"),
        SPACE,
        optional(sequence(member, repeat(sequence(COMMA, member), 0, null), SPACE)),
        text("}"),
      ),
    );
  });
  anyRules.set(grammar, made);
  return made;
}

/** An object of any members. */
export function anyObject(grammar: Grammar): Expression {
  const member = sequence(quoted(repeat(CHARACTER, 0, null)), COLON, anyValue(grammar));
  const members = sequence(member, repeat(sequence(COMMA, member), 0, null), SPACE);
  return sequence(text("{"), SPACE, optional(members), text("}"));
}

/** A list of so many items. */
export function listOf(item: Expression, least: number, most: number | null): Expression {
  const others = repeat(sequence(COMMA, item), Math.max(0, least - 1), most === null ? null : most - 1);
  const all = most === 0 ? text("") : sequence(item, others, SPACE);
  return sequence(text("["), SPACE, least === 0 ? optional(all) : all, text("]"));
}
