// What grammars of JSON schemas take: the cases here, and schemas by chance against a validator.
import { Ajv2020 } from "ajv/dist/2020.js";
import fc from "fast-check";
import { afterAll, describe, expect, test } from "vitest";
import { loadModel } from "../../../src/models/index.ts";
import { formats } from "../../../src/serving/grammar/formats.ts";
import { Grammars } from "../../../src/serving/grammar/grammars.ts";
import { schemaEbnf } from "../../../src/serving/grammar/schema-grammar.ts";
import { randomSchema } from "../../helpers/random-schemas.ts";
import { babble, taker } from "./helper.ts";

const cases: readonly (readonly [string, unknown, readonly string[], readonly string[]])[] = [
  [
    "types",
    { type: ["string", "null"] },
    ['"a"', "null", '"\\u00e9 é 😀"', '"\\n"'],
    ["1", "nul", '"\n"', '"\\ud83d"', '"\\x"'],
  ],
  [
    "whole numbers",
    { type: "integer" },
    ["0", "-7", "123456789012345"],
    ["01", "-0", "1.0", "1e3", "1234567890123456"],
  ],
  ["numbers", { type: "number" }, ["0.5", "-1e10", "12.25E-3", "-0"], [".5", "1.", "+1", "1e999", "00"]],
  [
    "bounds",
    { type: "integer", minimum: -12, maximum: 105 },
    ["-12", "-9", "0", "9", "10", "99", "105"],
    ["-13", "106", "110", "-20", "1000"],
  ],
  ["open bounds", { type: "integer", exclusiveMinimum: 3 }, ["4", "10", "99999"], ["3", "0", "-4"]],
  [
    "decimals",
    { type: "number", minimum: 0.5, exclusiveMaximum: 2 },
    ["0.5", "0.75", "1", "1.999999", "1.0"],
    ["0.4", "0.49", "2", "2.0", "0", "-1"],
  ],
  [
    "negative decimals",
    { type: "number", minimum: -1.25, maximum: -0.5 },
    ["-1.25", "-1", "-0.5"],
    ["-1.26", "-0.4", "0", "1"],
  ],
  ["multiples", { type: "number", multipleOf: 0.5, minimum: 1, maximum: 3 }, ["1", "1.5", "3"], ["1.2", "0.5", "3.5"]],
  [
    "lengths",
    { type: "string", minLength: 2, maxLength: 14 },
    ['"ab"', '"é\\n"', '"😀😀"', '"aaaaaaaaaaaaaa"'],
    ['"a"', '"aaaaaaaaaaaaaaa"'],
  ],
  ["patterns", { type: "string", pattern: '^"\\d+\\\\$' }, ['"\\"12\\\\"'], ['"12"', '"\\"a\\\\"', '"\\"12"']],
  ["patterns within", { type: "string", pattern: "cat" }, ['"cat"', '"cat and dog"'], ['"dog"']],
  [
    "patterns with lengths",
    { type: "string", pattern: "^[a-z]+\\d*$", maxLength: 4 },
    ['"ab"', '"a1"'],
    ['"abcde"', '"1"'],
  ],
  [
    "formats",
    { type: "string", format: "date" },
    ['"2024-02-28"', '"1999-12-31"'],
    ['"2024-02-30"', '"2024-13-01"', '"today"'],
  ],
  [
    "enums",
    { enum: ["a", 'b"c', 3, null, { x: [1] }] },
    ['"a"', '"b\\"c"', "3", "null", '{"x":[1]}'],
    ['"b"', "4", "{}"],
  ],
  ["an enum of which one fits", { enum: [1, 20, "a"], type: "integer", minimum: 5 }, ["20"], ["1", '"a"']],
  [
    "objects",
    { type: "object", properties: { a: { type: "integer" }, 'b"': { const: 1 } }, required: ["a"] },
    ['{"a":1}', '{"a": 1, "b\\"": 1}', '{\n  "a": 1\n}'],
    ["{}", '{"b\\"":1}', '{"a":1,}', '{"a":1,"c":2}'],
  ],
  [
    "optional properties",
    { type: "object", properties: { a: { const: 1 }, b: { const: 2 }, c: { const: 3 } } },
    ["{}", '{"a":1}', '{"b":2}', '{"a":1,"c":3}', '{"a":1,"b":2,"c":3}'],
    ['{"c":3,"a":1}', '{,"a":1}'],
  ],
  [
    "other properties",
    { type: "object", properties: { ab: { const: 1 } }, additionalProperties: { const: 2 } },
    ['{"ab":1,"a":2,"abc":2}', '{"b":2}'],
    ['{"ab":2}', '{"ab":1,"ab":2}'],
  ],
  [
    "counted properties",
    { type: "object", additionalProperties: { const: 0 }, minProperties: 2, maxProperties: 3 },
    ['{"a":0,"b":0}', '{"ax":0,"b":0,"zz":0}'],
    ['{"a":0}', '{"a":0,"a":0}', '{"a":0,"b":0,"c":0,"d":0}'],
  ],
  [
    "lists",
    { type: "array", items: { const: 1 }, minItems: 1, maxItems: 3 },
    ["[1]", "[1, 1,1]"],
    ["[]", "[1,1,1,1]", "[1,]", "[2]"],
  ],
  [
    "tuples",
    { type: "array", prefixItems: [{ const: 1 }, { const: 2 }], items: { const: 3 }, minItems: 1 },
    ["[1]", "[1,2]", "[1,2,3,3]"],
    ["[]", "[2]", "[1,3]"],
  ],
  [
    "sets",
    { type: "array", items: { enum: [1, 2, 3] }, uniqueItems: true, minItems: 2 },
    ["[1,2]", "[1,3]", "[1,2,3]"],
    ["[1]", "[1,1]", "[2,1]"],
  ],
  [
    "anyOf beside others",
    {
      type: "object",
      properties: { k: { type: "string" } },
      required: ["k"],
      anyOf: [
        { properties: { a: { const: 1 } }, required: ["a"] },
        { properties: { b: { const: 2 } }, required: ["b"] },
      ],
    },
    ['{"k":"","a":1}', '{"k":"","b":2}'],
    ['{"k":""}', '{"a":1}'],
  ],
  ["oneOf", { oneOf: [{ enum: [1, 2] }, { enum: [2, 3] }] }, ["1", "3"], ["2"]],
  [
    "allOf",
    {
      allOf: [
        { type: "integer", minimum: 3 },
        { type: "number", maximum: 5 },
      ],
    },
    ["3", "5"],
    ["2", "6", "3.5"],
  ],
  [
    "references",
    { $defs: { "a/b": { type: "array", items: { $ref: "#/$defs/a~1b" }, maxItems: 1 } }, $ref: "#/$defs/a~1b" },
    ["[]", "[[]]", "[[[]]]"],
    ["[[],[]]", "1"],
  ],
  [
    "true and false",
    { type: "object", properties: { a: true, b: false }, required: ["a"], additionalProperties: false },
    ['{"a":[1,{"x":null}]}'],
    ['{"a":1,"b":1}'],
  ],
];

test.each(cases)("schemas with %s", async (_, schema, good, bad) => {
  const takes = await taker(schemaEbnf(schema));
  const validate = new Ajv2020({ strict: false }).addFormat("date", /^\d{4}-\d\d-\d\d$/).compile(schema as object);
  expect(good.filter((text) => !takes(text))).toEqual([]);
  expect(good.filter((text) => !validate(JSON.parse(text)))).toEqual([]);
  expect(bad.filter((text) => takes(text))).toEqual([]);
});

test.each([
  [{ not: { type: "string" } }, '"not"'],
  [{ if: {}, else: {} }, '"if"'],
  [{ type: "array", contains: {} }, '"contains"'],
  [{ type: "array", items: { type: "string" }, uniqueItems: true }, '"uniqueItems"'],
  [{ oneOf: [{ type: "integer" }, { type: "number" }] }, "oneOf"],
  [{ type: "string", pattern: "(?=a)b" }, "look ahead"],
  [{ type: "string", pattern: "(" }, "no regular expression"],
  [{ type: "string", pattern: "^a$", minLength: 3 }, "none were found"],
  [{ type: "string", minLength: 1e9 }, "1000000000 characters"],
  [{ type: "array", minItems: 1e9 }, "1000000000 items"],
  [{ $ref: "https://example.com/schema" }, "only references within it"],
  [{ $ref: "#/$defs/none" }, "which is not there"],
  [{ $ref: "#" }, "leads back to itself"],
  [{ type: "text" }, '"text"'],
  [{ type: "integer", minimum: 5, maximum: 4 }, "no value that fits"],
  [
    { $defs: { a: { type: "object", properties: { a: { $ref: "#/$defs/a" } }, required: ["a"] } }, $ref: "#/$defs/a" },
    "no text at all",
  ],
  [false, "no value that fits"],
  ["a", "where a schema belongs"],
])("%o is refused", (schema, message) => expect(() => schemaEbnf(schema)).toThrow(message as string));

describe("schemas by chance", () => {
  const grammars: Grammars[] = [];
  afterAll(() => {
    for (const each of grammars) each[Symbol.dispose]();
  });

  test("have answers that fit them, whole though the tokens run out", { timeout: 120_000 }, async () => {
    await using model = await loadModel("models/fable-7m.Q8_0.gguf");
    const tokenizer = model.tokenizer!;
    const { vocabSize, eosTokens } = model.config;
    const own = new Grammars({ tokenizer, vocabSize, eosTokens });
    grammars.push(own);
    const ajv = new Ajv2020({ strict: false });
    for (const [name, format] of Object.entries(formats)) ajv.addFormat(name, new RegExp(`^(?:${format})$`, "u"));
    for (const [i, schema] of fc.sample(randomSchema, { numRuns: 24, seed: 12 }).entries()) {
      using constraint = (await own.schema(schema)).constraint({ maxTokens: 400 });
      const said = babble(constraint, vocabSize, eosTokens, 400, i + 1);
      const text = said && tokenizer.decode(said);
      const fits = text !== null && ajv.validate(schema, JSON.parse(text));
      expect({ schema, text, errors: fits ? null : ajv.errorsText() }).toEqual({ schema, text, errors: null });
    }
  });
});
