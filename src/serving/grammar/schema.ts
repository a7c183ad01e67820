/**
 * JSON schemas read into one form: references followed, `allOf` and neighbouring keywords brought together. What no grammar
 * can keep to is refused, never ignored.
 */
import { fail } from "../../core/errors.ts";
import { formats } from "./formats.ts";

export type Schema = boolean | { readonly [keyword: string]: unknown };
export const types = ["null", "boolean", "integer", "number", "string", "array", "object"] as const;
export type Type = (typeof types)[number];

export interface Group {
  /** Exactly one of the cases may fit. */
  readonly one: boolean;
  readonly cases: readonly Schema[];
}

/** What a value must be, all at once. */
export interface Plain {
  /** Null: any. */
  readonly types: ReadonlySet<Type> | null;
  readonly values: readonly unknown[] | null;
  readonly minimum: number;
  readonly maximum: number;
  readonly above: number;
  readonly below: number;
  readonly multiples: readonly number[];
  readonly minLength: number;
  readonly maxLength: number;
  readonly patterns: readonly string[];
  readonly properties: ReadonlyMap<string, Schema>;
  readonly patternProperties: readonly (readonly [string, Schema])[];
  /** Null where nothing is said. */
  readonly additional: Schema | null;
  readonly unevaluatedProperties: Schema | null;
  readonly names: Schema;
  readonly required: ReadonlySet<string>;
  readonly minProperties: number;
  readonly maxProperties: number;
  readonly prefix: readonly Schema[];
  readonly items: Schema | null;
  readonly unevaluatedItems: Schema | null;
  readonly minItems: number;
  readonly maxItems: number;
  readonly unique: boolean;
  readonly groups: readonly Group[];
}

const refused = [
  "not",
  "if",
  "then",
  "else",
  "contains",
  "minContains",
  "maxContains",
  "dependentRequired",
  "dependentSchemas",
  "dependencies",
  "$dynamicRef",
  "$recursiveRef",
];

const INFINITY = Number.POSITIVE_INFINITY;
const anything: Plain = {
  types: null,
  values: null,
  ...{ minimum: -INFINITY, maximum: INFINITY, above: -INFINITY, below: INFINITY, multiples: [] },
  ...{ minLength: 0, maxLength: INFINITY, patterns: [] },
  ...{ properties: new Map(), patternProperties: [], additional: null, unevaluatedProperties: null, names: true },
  ...{ required: new Set<string>(), minProperties: 0, maxProperties: INFINITY },
  ...{ prefix: [], items: null, unevaluatedItems: null, minItems: 0, maxItems: INFINITY, unique: false },
  groups: [],
};

const MOST_REFERENCES = 100;
const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const bad = (what: string): never => fail("InvalidArgument", `the JSON schema ${what}`);

export class SchemaDocument {
  readonly root: Schema;

  constructor(root: unknown) {
    this.root = asSchema(root, "itself");
  }

  read(schema: Schema, depth = 0): Plain {
    if (depth > MOST_REFERENCES) bad("has a reference that leads back to itself");
    if (schema === true) return anything;
    if (schema === false) return { ...anything, types: new Set() };
    for (const keyword of refused) {
      if (keyword in schema) bad(`has "${keyword}", which masks cannot keep to; say it otherwise, or leave it out`);
    }
    let plain = ownKeywords(schema);
    if ("$ref" in schema) plain = this.meet(plain, this.read(this.#target(schema.$ref), depth + 1));
    for (const part of list(schema, "allOf")) plain = this.meet(plain, this.read(asSchema(part, "allOf"), depth + 1));
    return plain;
  }

  /** What is both. */
  meet(a: Plain, b: Plain): Plain {
    const high = Math.max;
    const low = Math.min;
    return {
      types: a.types && b.types ? commonTypes(a.types, b.types) : (a.types ?? b.types),
      values: a.values && b.values ? a.values.filter((v) => b.values!.some((w) => same(v, w))) : (a.values ?? b.values),
      minimum: high(a.minimum, b.minimum),
      maximum: low(a.maximum, b.maximum),
      above: high(a.above, b.above),
      below: low(a.below, b.below),
      multiples: [...new Set([...a.multiples, ...b.multiples])],
      minLength: high(a.minLength, b.minLength),
      maxLength: low(a.maxLength, b.maxLength),
      patterns: [...new Set([...a.patterns, ...b.patterns])],
      properties: meetProperties(a, b),
      patternProperties: [...a.patternProperties, ...b.patternProperties],
      additional: both(a.additional, b.additional),
      unevaluatedProperties: both(a.unevaluatedProperties, b.unevaluatedProperties),
      names: both(a.names, b.names) ?? true,
      required: new Set([...a.required, ...b.required]),
      minProperties: high(a.minProperties, b.minProperties),
      maxProperties: low(a.maxProperties, b.maxProperties),
      prefix: Array.from({ length: high(a.prefix.length, b.prefix.length) }, (_, i) => {
        return both(a.prefix[i] ?? a.items, b.prefix[i] ?? b.items) ?? true;
      }),
      items: both(a.items, b.items),
      unevaluatedItems: both(a.unevaluatedItems, b.unevaluatedItems),
      minItems: high(a.minItems, b.minItems),
      maxItems: low(a.maxItems, b.maxItems),
      unique: a.unique || b.unique,
      groups: [...a.groups, ...b.groups],
    };
  }

  #target(reference: unknown): Schema {
    if (typeof reference !== "string" || !/^#(\/|$)/.test(reference)) {
      bad(`refers to ${JSON.stringify(reference)}; only references within it, such as "#/$defs/name", are followed`);
    }
    let at: unknown = this.root;
    for (const part of (reference as string).split("/").slice(1)) {
      const key = decode(part).replaceAll("~1", "/").replaceAll("~0", "~");
      at =
        (isObject(at) && Object.hasOwn(at, key)) || Array.isArray(at)
          ? (at as Record<string, unknown>)[key]
          : undefined;
    }
    if (at === undefined) bad(`refers to ${reference}, which is not there`);
    return asSchema(at, String(reference));
  }
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function asSchema(value: unknown, where: string): Schema {
  if (typeof value === "boolean" || isObject(value)) return value;
  return bad(`has ${JSON.stringify(value)} where a schema belongs (${where})`);
}

/** Both schemas at once; null is nothing said. */
function both(a: Schema | null, b: Schema | null): Schema | null {
  if (a === null || a === true) return b ?? a;
  return b === null || b === true || same(a, b) ? a : { allOf: [a, b] };
}

/** A property that only one of the two names is for the other an additional one. */
function meetProperties(a: Plain, b: Plain): Map<string, Schema> {
  const said = (plain: Plain, name: string): Schema | null => {
    const isMatched = plain.patternProperties.some(([pattern]) => new RegExp(pattern, "u").test(name));
    return plain.properties.get(name) ?? (isMatched ? null : plain.additional);
  };
  const names = new Set([...a.properties.keys(), ...b.properties.keys()]);
  return new Map(Array.from(names, (name) => [name, both(said(a, name), said(b, name)) ?? true]));
}

function commonTypes(a: ReadonlySet<Type>, b: ReadonlySet<Type>): Set<Type> {
  const has = (set: ReadonlySet<Type>, type: Type) => set.has(type) || (type === "integer" && set.has("number"));
  const common = types.filter((type) => has(a, type) && has(b, type));
  return new Set(common.filter((type) => type !== "integer" || !common.includes("number")));
}

function list(schema: Record<string, unknown>, keyword: string): readonly unknown[] {
  const value = schema[keyword] ?? [];
  return Array.isArray(value) ? value : bad(`has a "${keyword}" that is no list`);
}

function number(schema: Record<string, unknown>, keyword: string, otherwise: number): number {
  const value = schema[keyword] ?? otherwise;
  return typeof value === "number" && !Number.isNaN(value) ? value : bad(`has a "${keyword}" that is no number`);
}

function count(schema: Record<string, unknown>, keyword: string, otherwise: number): number {
  const value = number(schema, keyword, otherwise);
  return value === otherwise || (Number.isSafeInteger(value) && value >= 0)
    ? value
    : bad(`has a "${keyword}" of ${value}`);
}

function schemas(schema: Record<string, unknown>, keyword: string): [string, Schema][] {
  const value = schema[keyword] ?? {};
  if (!isObject(value)) return bad(`has a "${keyword}" that is no object`);
  return Object.entries(value).map(([name, each]) => [name, asSchema(each, name)]);
}

const optionalSchema = (schema: Record<string, unknown>, keyword: string): Schema | null =>
  schema[keyword] === undefined ? null : asSchema(schema[keyword], keyword);

function ownKeywords(schema: Record<string, unknown>): Plain {
  // In draft 7 a list of items is what prefixItems is since.
  const isTuple = Array.isArray(schema.items);
  // In draft 4 exclusive bounds are flags.
  const exclusive = (flag: string, bound: string, otherwise: number): number =>
    schema[flag] === true
      ? number(schema, bound, otherwise)
      : schema[flag] === false
        ? otherwise
        : number(schema, flag, otherwise);
  const multiples = schema.multipleOf === undefined ? [] : [number(schema, "multipleOf", 1)];
  if (multiples.some((multiple) => !(multiple > 0))) bad(`has a "multipleOf" of ${multiples[0]}`);
  const required = list(schema, "required").map(String);
  return {
    types: ownTypes(schema),
    values: ownValues(schema),
    minimum: number(schema, "minimum", -INFINITY),
    maximum: number(schema, "maximum", INFINITY),
    above: exclusive("exclusiveMinimum", "minimum", -INFINITY),
    below: exclusive("exclusiveMaximum", "maximum", INFINITY),
    multiples,
    minLength: count(schema, "minLength", 0),
    maxLength: count(schema, "maxLength", INFINITY),
    patterns: ownPatterns(schema),
    properties: new Map(schemas(schema, "properties")),
    patternProperties: schemas(schema, "patternProperties"),
    additional: optionalSchema(schema, "additionalProperties"),
    unevaluatedProperties: optionalSchema(schema, "unevaluatedProperties"),
    names: optionalSchema(schema, "propertyNames") ?? true,
    required: new Set(required),
    minProperties: count(schema, "minProperties", 0),
    maxProperties: count(schema, "maxProperties", INFINITY),
    prefix: list(schema, isTuple ? "items" : "prefixItems").map((item) => asSchema(item, "prefixItems")),
    items: optionalSchema(schema, isTuple ? "additionalItems" : "items"),
    unevaluatedItems: optionalSchema(schema, "unevaluatedItems"),
    minItems: count(schema, "minItems", 0),
    maxItems: count(schema, "maxItems", INFINITY),
    unique: schema.uniqueItems === true,
    groups: (["anyOf", "oneOf"] as const).flatMap((keyword) => {
      if (schema[keyword] === undefined) return [];
      const cases = list(schema, keyword).map((each) => asSchema(each, keyword));
      return [{ one: keyword === "oneOf", cases }];
    }),
  };
}

function ownTypes({ type }: Record<string, unknown>): Set<Type> | null {
  if (type === undefined) return null;
  const named = Array.isArray(type) ? type : [type];
  for (const each of named) if (!types.includes(each as Type)) bad(`has the type ${JSON.stringify(each)}`);
  return new Set((named as Type[]).filter((each) => each !== "integer" || !named.includes("number")));
}

function ownValues(schema: Record<string, unknown>): readonly unknown[] | null {
  const { enum: values } = schema;
  if (values !== undefined && !Array.isArray(values)) bad('has an "enum" that is no list');
  const constant = "const" in schema ? [schema.const] : null;
  if (values === undefined || !constant) return (values as unknown[] | undefined) ?? constant;
  return constant.filter((value) => (values as unknown[]).some((each) => same(each, value)));
}

function ownPatterns({ pattern, format }: Record<string, unknown>): string[] {
  if (pattern !== undefined && typeof pattern !== "string") bad('has a "pattern" that is no text');
  const known = typeof format === "string" && Object.hasOwn(formats, format) ? [`^(?:${formats[format]})$`] : [];
  return [...(pattern === undefined ? [] : [pattern as string]), ...known];
}

/** Whether two values of JSON are equal. */
export function same(a: unknown, b: unknown): boolean {
  if (Array.isArray(a)) return Array.isArray(b) && a.length === b.length && a.every((item, i) => same(item, b[i]));
  if (!isObject(a) || !isObject(b)) return a === b;
  const names = Object.keys(a);
  return (
    names.length === Object.keys(b).length && names.every((name) => Object.hasOwn(b, name) && same(a[name], b[name]))
  );
}
