/**
 * JSON schemas as grammars. Every text of the grammar fits the schema; not every value that fits has a text: properties come
 * in the order in which they are named and others than these only where the schema has words for them, numbers have at most
 * fifteen digits, space is short.
 */
import { fail } from "../../core/errors.ts";
import { toEbnf } from "./ebnf.ts";
import {
  choice,
  type Expression,
  Grammar,
  isNothing,
  NOTHING,
  oneOf,
  repeat,
  rule,
  sequence,
  text,
} from "./expression.ts";
import { anyValue, CHARACTER, INTEGER, inString, NUMBER, quoted, SPACE } from "./json-text.ts";
import { withLengths } from "./lengths.ts";
import { ANY_CHARACTER, mapCharacters, parsePattern } from "./regex.ts";
import { type Group, type Plain, type Schema, SchemaDocument, type Type } from "./schema.ts";
import { arrayOf } from "./schema-arrays.ts";
import { numberOf } from "./schema-numbers.ts";
import { objectOf } from "./schema-objects.ts";
import { accepts, excludes, fitsPlain } from "./schema-values.ts";

/** Schemas within a schema, after references are followed and cases told apart. */
const MOST_PARTS = 10_000;
const MOST_DEPTH = 200;
/** Longest strings and lists that are counted. */
export const MOST_COUNT = 4096;

export interface Converter {
  readonly grammar: Grammar;
  readonly document: SchemaDocument;
  /** The texts of values that fit. */
  of(schema: Schema): Expression;
}

/** A schema's texts within a grammar that has others, too. */
export function schemaExpression(schema: unknown, grammar: Grammar): Expression {
  return new SchemaConverter(new SchemaDocument(schema), grammar).root();
}

export function schemaGrammar(schema: unknown): { readonly root: Expression; readonly grammar: Grammar } {
  const grammar = new Grammar();
  const value = schemaExpression(schema, grammar);
  if (isNothing(value)) fail("InvalidArgument", "the JSON schema has no value that fits it");
  return { root: sequence(SPACE, value), grammar };
}

export const schemaEbnf = (schema: unknown): string => {
  const { root, grammar } = schemaGrammar(schema);
  return toEbnf(root, grammar.rules);
};

class SchemaConverter implements Converter {
  readonly grammar: Grammar;
  readonly document: SchemaDocument;
  readonly #known = new Map<string, Expression>();
  #parts = 0;
  #depth = 0;

  constructor(document: SchemaDocument, grammar: Grammar) {
    this.document = document;
    this.grammar = grammar;
  }

  root(): Expression {
    return this.of(this.document.root);
  }

  of(schema: Schema): Expression {
    if (schema === true) return anyValue(this.grammar);
    if (schema === false) return NOTHING;
    const key = JSON.stringify(schema);
    const known = this.#known.get(key);
    if (known) return known;
    if (++this.#parts > MOST_PARTS || ++this.#depth > MOST_DEPTH) {
      fail(
        "InvalidArgument",
        `the JSON schema is too large: more than ${MOST_PARTS} parts, or ${MOST_DEPTH} within each other`,
      );
    }
    // A rule of its own, which what is within it may refer to.
    const made = this.grammar.define("value", (name) => {
      this.#known.set(key, rule(name));
      return this.#plain(this.document.read(schema), schema);
    });
    this.#depth--;
    const name = made.kind === "rule" ? made.name : "";
    const found = isNothing(this.grammar.rules.get(name)!) ? NOTHING : made;
    this.#known.set(key, found);
    return found;
  }

  #plain(plain: Plain, schema: Schema): Expression {
    if (plain.values) {
      const fitting = plain.values.filter((value) => accepts(this.document, schema, value));
      return oneOf(fitting.map((value) => JSON.stringify(value)));
    }
    const [group, ...others] = plain.groups;
    return group ? this.#cases({ ...plain, groups: others }, group) : this.#typed(plain);
  }

  #cases(rest: Plain, { one, cases }: Group): Expression {
    if (this.#parts + cases.length > MOST_PARTS) fail("InvalidArgument", "the JSON schema has too many cases");
    this.#parts += cases.length;
    const plains = cases.map((each) => this.document.meet(rest, this.document.read(each)));
    if (one) this.#checkApart(plains);
    const written = plains.map((plain, i) => {
      if (!plain.values) return this.#plain(plain, true);
      // A value that fits a second case as well fits none.
      const others = one ? cases.filter((_, j) => j !== i) : [];
      const alone = plain.values.filter((value) => !others.some((each) => accepts(this.document, each, value)));
      const fitting = alone.filter((value) => fitsPlain(this.document, plain, value));
      return oneOf(fitting.map((value) => JSON.stringify(value)));
    });
    return choice(...written.filter((each) => !isNothing(each)));
  }

  #checkApart(plains: readonly Plain[]): void {
    for (const [i, a] of plains.entries()) {
      for (const [j, b] of plains.entries()) {
        if (i === j || a.values || excludes(this.document, a, b)) continue;
        fail(
          "InvalidArgument",
          "the JSON schema has a oneOf of which two cases may both fit; use anyOf, or tell them apart by a property that is required",
        );
      }
    }
  }

  #typed(plain: Plain): Expression {
    const named = plain.types ?? impliedTypes(plain);
    if (!named) return anyValue(this.grammar);
    return choice(...[...named].map((type) => this.#as(type, plain)).filter((each) => !isNothing(each)));
  }

  #as(type: Type, plain: Plain): Expression {
    switch (type) {
      case "null":
        return text("null");
      case "boolean":
        return choice(text("true"), text("false"));
      case "integer":
        return numberOf(plain, true) ?? INTEGER;
      case "number":
        return numberOf(plain, false) ?? NUMBER;
      case "string":
        return quoted(stringContent(plain));
      case "array":
        return arrayOf(plain, this);
      case "object":
        return objectOf(plain, this);
      default:
        return type satisfies never;
    }
  }
}

/** Where no type is named, what the other keywords speak of. */
function impliedTypes(plain: Plain): readonly Type[] | null {
  const { properties, patternProperties, additional, required, minProperties, maxProperties, names } = plain;
  const named = properties.size + patternProperties.length + required.size > 0 || additional !== null || names !== true;
  const implied: Type[] = [];
  if (named || minProperties > 0 || Number.isFinite(maxProperties)) implied.push("object");
  const { prefix, items, minItems, maxItems, unique } = plain;
  if (prefix.length > 0 || items !== null || minItems > 0 || Number.isFinite(maxItems) || unique) implied.push("array");
  if (plain.minLength > 0 || Number.isFinite(plain.maxLength) || plain.patterns.length > 0) implied.push("string");
  const bounds = [plain.minimum, plain.maximum, plain.above, plain.below];
  if (bounds.some(Number.isFinite) || plain.multiples.length > 0) implied.push("number");
  return implied.length > 0 ? implied : null;
}

/** What stands between the quotes. */
export function stringContent({ patterns, minLength, maxLength }: Plain): Expression {
  if (minLength > maxLength) return NOTHING;
  if (minLength > MOST_COUNT)
    fail(
      "InvalidArgument",
      `the JSON schema asks for strings of ${minLength} characters; up to ${MOST_COUNT} are counted`,
    );
  const most = Number.isFinite(maxLength) ? Math.min(maxLength, MOST_COUNT) : null;
  if (patterns.length === 0) return repeat(CHARACTER, minLength, most);
  if (patterns.length > 1) {
    fail("InvalidArgument", `the JSON schema asks for strings of several patterns at once: ${patterns.join(", ")}`);
  }
  const { expression, endsHere } = parsePattern(patterns[0]!);
  const rest = repeat({ kind: "class", ranges: ANY_CHARACTER }, 0, null);
  const fitting = withLengths(endsHere ? expression : sequence(expression, rest), minLength, maxLength);
  if (isNothing(fitting)) {
    fail(
      "InvalidArgument",
      `the JSON schema asks for strings of ${minLength} to ${maxLength} characters with the pattern ${patterns[0]}: none were found`,
    );
  }
  return mapCharacters(fitting, inString);
}
