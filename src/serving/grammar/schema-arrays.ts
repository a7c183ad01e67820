/** The lists of a schema. */
import { fail } from "../../core/errors.ts";
import { EMPTY, type Expression, isNothing, NOTHING, optional, repeat, sequence, text } from "./expression.ts";
import { COMMA, constant, listOf, SPACE } from "./json-text.ts";
import { counted } from "./members.ts";
import type { Plain, Schema } from "./schema.ts";
import type { Converter } from "./schema-grammar.ts";
import { accepts } from "./schema-values.ts";

/** Longest lists that are counted. */
const MOST_ITEMS = 1024;

export function arrayOf(plain: Plain, converter: Converter): Expression {
  const { prefix, minItems, maxItems } = plain;
  if (minItems > maxItems) return NOTHING;
  if (minItems > MOST_ITEMS || prefix.length > MOST_ITEMS) {
    fail(
      "InvalidArgument",
      `the JSON schema asks for lists of ${Math.max(minItems, prefix.length)} items; up to ${MOST_ITEMS} are counted`,
    );
  }
  const others = otherItems(plain);
  if (plain.unique && maxItems > 1) return uniqueItems(plain, others, converter);
  const items = prefix.map((each) => converter.of(each));
  const other = converter.of(others);
  const room = isNothing(other) ? items.length : Number.POSITIVE_INFINITY;
  const possible = items.findIndex(isNothing);
  const most = Math.min(maxItems, room, possible < 0 ? Number.POSITIVE_INFINITY : possible);
  if (minItems > most) return NOTHING;
  const limit = Number.isFinite(most) ? Math.min(most, MOST_ITEMS) : null;
  if (items.length === 0) return limit === 0 ? listOf(EMPTY, 0, 0) : listOf(other, minItems, limit);
  const from = (at: number): Expression => {
    if (limit !== null && at >= limit) return EMPTY;
    if (at === items.length) {
      return repeat(sequence(COMMA, other), Math.max(0, minItems - at), limit === null ? null : limit - at);
    }
    const here = sequence(at === 0 ? EMPTY : COMMA, items[at]!, from(at + 1));
    return at < minItems ? here : optional(here);
  };
  return sequence(text("["), SPACE, from(0), SPACE, text("]"));
}

/** Behind the first ones, of which nothing is said, there are none where none need be. */
function otherItems({ prefix, items, unevaluatedItems, minItems }: Plain): Schema {
  const said = items ?? unevaluatedItems;
  return said ?? (prefix.length === 0 || minItems > prefix.length);
}

/** Values of a list as often as once, in their order. */
function uniqueItems(plain: Plain, others: Schema, converter: Converter): Expression {
  const { document, grammar } = converter;
  const { values, types } = document.read(others);
  const named =
    values ?? (types && [...types].every((type) => type === "boolean" || type === "null") ? [true, false, null] : null);
  if (!named || plain.prefix.length > 0) {
    fail("InvalidArgument", 'the JSON schema has "uniqueItems" of other items than an enum; masks cannot keep to it');
  }
  const fitting = named.filter((value) => accepts(document, others, value));
  const members = fitting.map((value) => ({ text: constant(value), required: false }));
  const all = counted(grammar, members, { least: plain.minItems, most: plain.maxItems, others: null });
  return isNothing(all) ? NOTHING : sequence(text("["), SPACE, all, SPACE, text("]"));
}
