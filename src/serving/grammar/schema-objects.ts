/** The objects of a schema. */
import { fail } from "../../core/errors.ts";
import {
  chars,
  choice,
  complement,
  type Expression,
  isNothing,
  NOTHING,
  type Range,
  repeat,
  sequence,
  text,
} from "./expression.ts";
import { CHARACTER, COLON, constant, inString, quoted, SPACE } from "./json-text.ts";
import { type Counts, counted, type Member } from "./members.ts";
import { mapCharacters, parsePattern } from "./regex.ts";
import type { Plain, Schema } from "./schema.ts";
import { type Converter, stringContent } from "./schema-grammar.ts";
import { accepts, propertyOf } from "./schema-values.ts";

const MOST_PROPERTIES = 1024;

export function objectOf(plain: Plain, converter: Converter): Expression {
  const { properties, required, minProperties, maxProperties, names } = plain;
  if (minProperties > maxProperties) return NOTHING;
  const all = [...new Set([...properties.keys(), ...required])];
  if (all.length > MOST_PROPERTIES || minProperties > MOST_PROPERTIES) {
    fail("InvalidArgument", `the JSON schema has objects of more than ${MOST_PROPERTIES} properties`);
  }
  const members: Member[] = [];
  for (const name of all) {
    const value = accepts(converter.document, names, name) ? converter.of(propertyOf(plain, name)) : NOTHING;
    const isRequired = required.has(name);
    if (!isNothing(value)) members.push({ text: sequence(constant(name), COLON, value), required: isRequired });
    else if (isRequired) return NOTHING;
  }
  const others = otherMembers(plain, all, converter);
  const inside = counted(converter.grammar, members, { least: minProperties, most: maxProperties, others });
  return isNothing(inside) ? NOTHING : sequence(text("{"), SPACE, inside, SPACE, text("}"));
}

/** Properties that have no name in the schema. */
function otherMembers(plain: Plain, named: readonly string[], converter: Converter): Counts["others"] {
  const { patternProperties, minProperties } = plain;
  const other = (key: Expression, schema: Schema): Counts["others"] => {
    const value = converter.of(schema);
    if (isNothing(value)) return null;
    const member = (name: Expression): Expression => sequence(quoted(name), COLON, value);
    return { free: member(key), needed: (i) => member(minProperties > 1 ? distinct(i, named, plain) : key) };
  };
  if (patternProperties.length > 0) return byPattern(plain, named, other);
  const said = plain.additional ?? plain.unevaluatedProperties;
  const isWanted = named.length === 0 || minProperties > named.length || (said !== null && said !== true);
  if (said === false || !isWanted) return null;
  if (plain.names !== true) {
    if (named.length > 0) return null;
    const read = converter.document.read(plain.names);
    if (read.groups.length > 0 || read.values) return byNames(read.values ?? [], plain, converter, other);
    return other(stringContent(read), said ?? true);
  }
  return other(named.length === 0 ? repeat(CHARACTER, 1, null) : notOneOf(named), said ?? true);
}

type Make = (key: Expression, schema: Schema) => Counts["others"];

function byNames(values: readonly unknown[], plain: Plain, converter: Converter, other: Make): Counts["others"] {
  const fitting = values.filter((value) => accepts(converter.document, plain.names, value));
  const keys = fitting.map((value) => text(JSON.stringify(String(value)).slice(1, -1)));
  if (keys.length === 0 || plain.minProperties > 1) refuse("propertyNames");
  return other(choice(...keys), plain.additional ?? true);
}

/** Names of one pattern that is for none of the named ones. */
function byPattern(
  { patternProperties, minProperties }: Plain,
  named: readonly string[],
  other: Make,
): Counts["others"] {
  const [[pattern, schema]] = patternProperties as [readonly [string, Schema]];
  const isApart = patternProperties.length === 1 && named.every((name) => !new RegExp(pattern, "u").test(name));
  if (!isApart || minProperties > 1) return minProperties > named.length ? refuse("patternProperties") : null;
  return other(mapCharacters(parsePattern(pattern).expression, inString), schema);
}

const refuse = (keyword: string): never =>
  fail("InvalidArgument", `the JSON schema has "${keyword}" beside "minProperties"; masks cannot keep to both`);

const LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
const letter = chars("az", "AZ", "09", "_");

/** A name that no other begins like: so many different ones there are, whatever they are. */
function distinct(index: number, named: readonly string[], { names }: Plain): Expression {
  const free = Array.from(LETTERS).filter((first) => named.every((name) => !name.startsWith(first)));
  if (index >= free.length || names !== true) refuse("additionalProperties");
  return sequence(text(free[index]!), repeat(letter, 0, null));
}

/** Words that are none of these. */
function notOneOf(names: readonly string[]): Expression {
  const next = new Map<string, string[]>();
  for (const name of names) {
    const [first] = Array.from(name);
    if (first === undefined) continue;
    next.set(first, [...(next.get(first) ?? []), name.slice(first.length)]);
  }
  const taken = Array.from(next.keys(), (c): Range => [c.codePointAt(0)!, c.codePointAt(0)!]);
  const letters: Range[] = [
    [0x30, 0x39],
    [0x41, 0x5a],
    [0x5f, 0x5f],
    [0x61, 0x7a],
  ];
  const others = complement([...complement(letters), ...taken]);
  const cases: Expression[] = Array.from(next)
    .filter(([first]) => /[A-Za-z0-9_]/.test(first))
    .map(([first, rest]) => {
      const longer = sequence(text(first), notOneOf(rest));
      return rest.includes("") ? longer : choice(text(first), longer);
    });
  if (others.length > 0) cases.push(sequence({ kind: "class", ranges: others }, repeat(letter, 0, null)));
  return choice(...cases.filter((each) => !isNothing(each)));
}
