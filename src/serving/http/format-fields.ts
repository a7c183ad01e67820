/** What the text of an answer must be: JSON, JSON of a schema, what a regular expression or a grammar describes. */
import { invalid } from "./errors.ts";
import type { Fields } from "./fields.ts";

export type Format =
  | { readonly kind: "json" }
  | { readonly kind: "schema"; readonly schema: unknown; readonly param: string }
  | { readonly kind: "regex"; readonly pattern: string; readonly param: string }
  | { readonly kind: "grammar"; readonly grammar: string; readonly param: string };

/** `format` is what the endpoint itself has for it; vLLM's names are known besides. Null where any text will do. */
export function formatOf(fields: Fields, format: Format | null): Format | null {
  const structured = fields.object("structured_outputs");
  const found = [
    format,
    regexOf(fields, "regex"),
    regexOf(fields, "guided_regex"),
    structured && regexOf(structured, "regex"),
    grammarOf(fields, "grammar"),
    grammarOf(fields, "guided_grammar"),
    structured && grammarOf(structured, "grammar"),
    schemaOf(fields, "guided_json"),
    structured && schemaOf(structured, "json"),
    choiceOf(fields, "guided_choice"),
    structured && choiceOf(structured, "choice"),
  ].filter((one) => one !== null && one !== undefined);
  structured?.refuse(["structural_tag"]);
  fields.refuse(["guided_whitespace_pattern"]);
  if (found.length > 1) invalid(null, "the answer's format is given more than once; give it once");
  return found[0] ?? null;
}

/** `response_format` of a chat; that of responses, `text.format`, has the schema beside its type. */
export function responseFormatOf(format: Fields | undefined): Format | null {
  if (!format) return null;
  format.required("type");
  const type = format.choice("type", ["text", "json_object", "json_schema"])!;
  if (type === "text") return null;
  if (type === "json_object") return { kind: "json" };
  const own = format.has("schema") ? format : format.object("json_schema");
  if (!own) return invalid(format.param("json_schema"), `${format.param("json_schema")} is missing`);
  own.required("schema");
  return { kind: "schema", schema: own.object("schema")!.values, param: own.param("schema") };
}

function regexOf(fields: Fields, name: string): Format | null {
  const pattern = fields.text(name);
  return pattern === undefined ? null : { kind: "regex", pattern, param: fields.param(name) };
}

function grammarOf(fields: Fields, name: string): Format | null {
  const grammar = fields.text(name);
  return grammar === undefined ? null : { kind: "grammar", grammar, param: fields.param(name) };
}

/** A schema as an object, or as JSON. */
function schemaOf(fields: Fields, name: string): Format | null {
  const given = fields.get(name);
  if (given === undefined) return null;
  const param = fields.param(name);
  if (typeof given !== "string") return { kind: "schema", schema: fields.object(name)!.values, param };
  try {
    return { kind: "schema", schema: JSON.parse(given) as unknown, param };
  } catch {
    return invalid(param, `${param} is no JSON`);
  }
}

/** One of these texts. */
function choiceOf(fields: Fields, name: string): Format | null {
  const texts = fields.texts(name);
  if (!texts) return null;
  const param = fields.param(name);
  if (texts.length === 0) invalid(param, `${param} has no texts to choose from`);
  return { kind: "grammar", grammar: `root ::= ${texts.map((text) => JSON.stringify(text)).join(" | ")}`, param };
}
