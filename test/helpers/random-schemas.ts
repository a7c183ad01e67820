/** JSON schemas by chance, of what masked sampling keeps to. */
import fc from "fast-check";

type Json = Record<string, unknown>;

const word = fc.stringMatching(/^[a-z][a-z_]{0,7}$/);
const name = fc.oneof(
  { weight: 6, arbitrary: word },
  fc.constantFrom("a b", 'say "hi"', "é", "back\\slash", "", "0", "$ref"),
);

const formats = ["date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "uri", "hostname", "duration"];
const patterns = [
  "^[a-z]+$",
  "^[A-Z]{2}-\\d{3,5}$",
  "^(foo|bar)?baz$",
  "cat",
  "^\\w+@\\w+\\.(com|org)$",
  '^"[^"\\\\]*"$',
  "^[^\\x00-\\x1f]{2,4}\\.$",
  "^(?:[é-ü]|\\u{1F600}|\\p{Lu}){1,3}$",
  "(^a|^b)c$",
  "^.?$",
];

const scalar = fc.oneof(
  fc.string({ maxLength: 6 }),
  fc.integer(),
  fc.boolean(),
  fc.constant(null),
  fc.double({ noNaN: true, noDefaultInfinity: true }),
);

const texts = fc.oneof(
  fc.constant({ type: "string" }),
  fc.record({ type: fc.constant("string"), minLength: fc.nat(5), maxLength: fc.integer({ min: 5, max: 20 }) }),
  fc.constantFrom(...patterns).map((pattern) => ({ type: "string", pattern })),
  fc.constant({ type: "string", pattern: "^[a-z]+(-[a-z]+)*$", minLength: 4, maxLength: 12 }),
  fc.constantFrom(...formats).map((format) => ({ type: "string", format })),
);

const bounds = fc
  .tuple(fc.integer({ min: -2000, max: 2000 }), fc.nat(3000))
  .map(([low, size]) => ({ low, high: low + size }));
const numbers = fc.oneof(
  fc.constantFrom(
    { type: "integer" },
    { type: "number" },
    { type: "integer", multipleOf: 5 },
    { type: "number", multipleOf: 0.25 },
  ),
  bounds.map(({ low, high }) => ({ type: "integer", minimum: low, maximum: high })),
  bounds.map(({ low, high }) => ({ type: "integer", exclusiveMinimum: low, exclusiveMaximum: high + 2 })),
  bounds.map(({ low, high }) => ({ type: "number", minimum: low / 16, maximum: high / 16 })),
  bounds.map(({ low, high }) => ({ type: "number", exclusiveMinimum: low / 100, exclusiveMaximum: (high + 1) / 100 })),
  bounds.map(({ low }) => ({ type: "number", minimum: low })),
  bounds.map(({ high }) => ({ type: "integer", maximum: high })),
);

const fixed = fc.oneof(
  fc.array(scalar, { minLength: 1, maxLength: 4 }).map((values) => ({ enum: values })),
  fc.jsonValue({ maxDepth: 2 }).map((value) => ({ const: value })),
);

function schemaOf(depth: number): fc.Arbitrary<Json> {
  const leaves = [
    texts,
    numbers,
    fixed,
    fc.constantFrom({ type: "boolean" }, { type: "null" }),
  ] as fc.Arbitrary<Json>[];
  if (depth === 0) return fc.oneof(...leaves);
  const inner = schemaOf(depth - 1);
  const objects = fc
    .tuple(
      fc.uniqueArray(fc.tuple(name, inner, fc.boolean()), { maxLength: 4, selector: ([key]) => key }),
      fc.constantFrom(undefined, false, "own"),
      inner,
    )
    .map(
      ([members, additional, other]): Json => ({
        type: "object",
        properties: Object.fromEntries(members.map(([key, schema]) => [key, schema])),
        required: members.filter(([, , isRequired]) => isRequired).map(([key]) => key),
        ...(additional !== undefined && { additionalProperties: additional === "own" ? other : false }),
      }),
    );
  const counted = fc
    .tuple(objects, fc.nat(2))
    .map(([schema, count]): Json => ({ ...schema, minProperties: count, additionalProperties: true }));
  const dictionaries = fc.tuple(inner, fc.nat(3)).map(
    ([schema, count]): Json => ({
      type: "object",
      additionalProperties: schema,
      minProperties: count,
      maxProperties: 4,
    }),
  );
  const lists = fc
    .tuple(inner, fc.nat(3), fc.nat(3))
    .map(([items, least, more]): Json => ({ type: "array", items, minItems: least, maxItems: least + more }));
  const openLists = inner.map((items): Json => ({ type: "array", items }));
  const tuples = fc.tuple(fc.array(inner, { minLength: 1, maxLength: 3 }), fc.boolean()).map(
    ([prefixItems, isClosed]): Json => ({
      type: "array",
      prefixItems,
      minItems: prefixItems.length,
      ...(isClosed && { items: false }),
    }),
  );
  const sets = fc
    .uniqueArray(fc.integer({ min: 0, max: 20 }), { minLength: 2, maxLength: 6 })
    .map((values): Json => ({ type: "array", items: { enum: values }, uniqueItems: true, minItems: 1 }));
  const cases = fc.array(inner, { minLength: 1, maxLength: 3 }).map((anyOf): Json => ({ anyOf }));
  const apart = fc.tuple(texts, numbers, inner).map(
    ([text, number, schema]): Json => ({
      oneOf: [
        text,
        number,
        { type: "object", properties: { kind: { const: "x" }, of: schema }, required: ["kind"] },
        { type: "object", properties: { kind: { const: "y" } }, required: ["kind"] },
      ],
    }),
  );
  const both = fc.tuple(objects, objects).map(
    ([a, b]): Json => ({
      allOf: [
        { ...a, additionalProperties: true },
        { properties: { more: { type: "integer" } }, required: ["more"] },
      ],
      title: String(b.type),
    }),
  );
  const mixed = fc.constant<Json>({ type: ["string", "null", "integer"], minimum: 3, maxLength: 4 });
  return fc.oneof(objects, counted, dictionaries, lists, openLists, tuples, sets, cases, apart, both, mixed, ...leaves);
}

/** With definitions that refer to themselves. */
export const randomSchema: fc.Arbitrary<Json> = fc.oneof(
  { weight: 5, arbitrary: schemaOf(3) },
  {
    weight: 1,
    arbitrary: fc.tuple(schemaOf(1), schemaOf(1)).map(
      ([a, b]): Json => ({
        $defs: {
          leaf: a,
          "a/b": b,
          node: {
            type: "object",
            properties: {
              value: { $ref: "#/$defs/leaf" },
              other: { $ref: "#/$defs/a~1b" },
              next: { anyOf: [{ $ref: "#/$defs/node" }, { type: "null" }] },
              all: { type: "array", items: { $ref: "#/$defs/node" }, maxItems: 2 },
            },
            required: ["value", "next"],
            additionalProperties: false,
          },
        },
        $ref: "#/$defs/node",
      }),
    ),
  },
);
