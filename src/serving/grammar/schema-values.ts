/** Whether a value fits a schema, and whether what a grammar writes for one schema can fit another. */
import { type Plain, type Schema, type SchemaDocument, same, type Type } from "./schema.ts";

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

export function typeOf(value: unknown): Type {
  if (value === null) return "null";
  if (Array.isArray(value)) return "array";
  if (typeof value === "number") return Number.isInteger(value) ? "integer" : "number";
  return typeof value as Type;
}

const hasType = (types: ReadonlySet<Type> | null, type: Type): boolean =>
  types === null || types.has(type) || (type === "integer" && types.has("number"));

export const isMultiple = (value: number, multiples: readonly number[]): boolean =>
  multiples.every((multiple) => Number.isInteger(value / multiple));

export const accepts = (document: SchemaDocument, schema: Schema, value: unknown): boolean =>
  fitsPlain(document, document.read(schema), value);

/** The same of a schema that was read. */
export function fitsPlain(document: SchemaDocument, plain: Plain, value: unknown): boolean {
  const { groups } = plain;
  if (!hasType(plain.types, typeOf(value))) return false;
  if (plain.values && !plain.values.some((each) => same(each, value))) return false;
  const fits = (each: Schema, part: unknown): boolean => accepts(document, each, part);
  const inGroups = groups.every(({ one, cases }) => {
    const fitting = cases.filter((each) => fits(each, value)).length;
    return one ? fitting === 1 : fitting > 0;
  });
  if (!inGroups) return false;
  if (typeof value === "number") return acceptsNumber(plain, value);
  if (typeof value === "string") return acceptsText(plain, value);
  if (Array.isArray(value)) return acceptsList(plain, value, fits);
  return !isObject(value) || acceptsObject(plain, value, fits);
}

function acceptsNumber({ minimum, maximum, above, below, multiples }: Plain, value: number): boolean {
  return value >= minimum && value <= maximum && value > above && value < below && isMultiple(value, multiples);
}

function acceptsText({ minLength, maxLength, patterns }: Plain, value: string): boolean {
  const { length } = Array.from(value);
  return length >= minLength && length <= maxLength && patterns.every((each) => new RegExp(each, "u").test(value));
}

type Fits = (schema: Schema, part: unknown) => boolean;

function acceptsList(plain: Plain, list: readonly unknown[], fits: Fits): boolean {
  const { prefix, items, minItems, maxItems, unique, unevaluatedItems } = plain;
  if (list.length < minItems || list.length > maxItems) return false;
  if (unique && list.some((item, i) => list.slice(0, i).some((other) => same(item, other)))) return false;
  return list.every((item, i) => fits(prefix[i] ?? items ?? unevaluatedItems ?? true, item));
}

function acceptsObject(plain: Plain, value: Record<string, unknown>, fits: Fits): boolean {
  const names = Object.keys(value);
  if (names.length < plain.minProperties || names.length > plain.maxProperties) return false;
  if (![...plain.required].every((name) => Object.hasOwn(value, name))) return false;
  return names.every((name) => fits(plain.names, name) && fits(propertyOf(plain, name), value[name]));
}

/** What is said of a property by its name. */
export function propertyOf(plain: Plain, name: string): Schema {
  const { properties, patternProperties, additional, unevaluatedProperties } = plain;
  const said = patternProperties.filter(([pattern]) => new RegExp(pattern, "u").test(name)).map(([, schema]) => schema);
  const own = properties.get(name);
  if (own !== undefined) said.push(own);
  if (said.length === 0) return additional ?? unevaluatedProperties ?? true;
  return said.length === 1 ? said[0]! : { allOf: said };
}

/** Whether nothing that is written for `a`, which names all of its properties, fits `b`. */
export function excludes(document: SchemaDocument, a: Plain, b: Plain, depth = 0): boolean {
  if (a.values) return a.values.every((value) => !fitsPlain(document, b, value));
  const inner = (x: Schema, y: Schema): boolean =>
    depth < 8 && excludes(document, document.read(x), document.read(y), depth + 1);
  const shared = [...(a.types ?? [])].filter(
    (type) => hasType(b.types, type) || (type === "number" && b.types?.has("integer")),
  );
  if (a.types && shared.length === 0) return true;
  if (b.values?.every((value) => !fitsPlain(document, a, value))) return true;
  return a.types !== null && shared.every((type) => excludesAs(type, a, b, inner));
}

function excludesAs(type: Type, a: Plain, b: Plain, inner: (x: Schema, y: Schema) => boolean): boolean {
  switch (type) {
    case "integer":
    case "number":
      return (
        a.minimum > b.maximum ||
        a.maximum < b.minimum ||
        a.minimum >= b.below ||
        a.maximum <= b.above ||
        a.above >= b.maximum ||
        a.below <= b.minimum
      );
    case "string":
      return a.minLength > b.maxLength || a.maxLength < b.minLength;
    case "array":
      return a.minItems > b.maxItems || a.maxItems < b.minItems;
    case "object": {
      const written = (name: string) => a.properties.has(name) || a.required.has(name);
      if (a.additional === null || a.additional === false) {
        if ([...b.required].some((name) => a.properties.size > 0 && !written(name))) return true;
      }
      return [...a.required].some((name) => {
        const theirs = propertyOf(b, name);
        return theirs === false || inner(propertyOf(a, name), theirs);
      });
    }
    case "null":
    case "boolean":
      return false;
    default:
      return type satisfies never;
  }
}
