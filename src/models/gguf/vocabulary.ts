/** The content of tokenizer.json as the metadata of a GGUF file. */
import { fail } from "../../core/errors.ts";
import type { GgufTyped } from "../../formats/index.ts";
import type { ModelConfig } from "../config.ts";
import { JsonFields } from "../json-fields.ts";
import { type Tokens, unigrams, wordPieces } from "./piece-vocabularies.ts";
import { BYTE_LEVEL_PATTERN, preTokenizerName, preTokenizers } from "./pre-tokenizers.ts";
import { tokenTypes } from "./tokenizer.ts";

type Metadata = Record<string, GgufTyped>;

/** What a tokenizer starts and ends a prompt with. */
export interface Around {
  readonly first: number | null;
  readonly last: number | null;
}

/** A file for a model without a tokenizer says so, and how it ends a text all the same. */
export function ggufVocabulary(json: unknown, config: ModelConfig, around: Around, source: string): Metadata {
  const { first, last } = around;
  const ending = [...new Set([...(last === null ? [] : [last]), ...config.eosTokens])];
  const encoderIds = config.encoder ? { cls: first, seperator: last, padding: config.encoder.paddingToken } : {};
  const named = { bos: first ?? config.bosToken, ...encoderIds };
  const ids: Metadata = Object.fromEntries(
    [...Object.entries(named), ...ending.map((id, i) => [ends[i], id] as const)]
      .filter((pair): pair is [string, number] => pair[0] !== undefined && pair[1] !== null)
      .map(([name, id]) => [`tokenizer.ggml.${name}_token_id`, { type: "u32", value: id }]),
  );
  if (json === undefined) return { "tokenizer.ggml.model": { type: "string", value: "no_vocab" }, ...ids };
  const fields = new JsonFields(json, source);
  const model = fields.object("model") ?? fail("InvalidFile", `${source} has no model`);
  const type = model.textOr("type", "BPE");
  const write = Object.hasOwn(writers, type) ? writers[type] : undefined;
  if (!write) {
    return fail(
      "InvalidFile",
      `${source} has a ${type} model; ${Object.keys(writers).join(", ")} can be written to GGUF`,
    );
  }
  const tokens = readTokens(fields, model, config.vocabSize);
  const own = write(fields, model, tokens);
  const unknown = tokens.types.indexOf(tokenTypes.unknown);
  return {
    ...own,
    "tokenizer.ggml.tokens": { type: "string[]", value: tokens.texts },
    "tokenizer.ggml.token_type": { type: "i32[]", value: tokens.types },
    ...ids,
    ...(config.encoder && unknown >= 0 && { "tokenizer.ggml.unknown_token_id": { type: "u32", value: unknown } }),
    "tokenizer.ggml.add_bos_token": { type: "bool", value: first !== null },
    ...(last !== null && { "tokenizer.ggml.add_eos_token": { type: "bool", value: true } }),
  };
}

type Writer = (fields: JsonFields, model: JsonFields, tokens: Tokens) => Metadata;

/** By the type of tokenizer.json's model. */
const writers: Readonly<Record<string, Writer>> = {
  BPE: (fields, model, tokens) =>
    model.flagOr("byte_fallback", false) ? sentencePiece(fields, model, tokens) : byteLevel(fields, model),
  WordPiece: wordPieces,
  Unigram: unigrams,
};

/** As many ends of a text as GGUF has names for. */
const ends = ["eos", "eot", "eom"];

/** Ids without a token get one that no text has. */
function readTokens(fields: JsonFields, model: JsonFields, size: number): Tokens {
  const texts = Array.from({ length: size }, (_, id) => `[PAD${id}]`);
  const types = new Int32Array(size).fill(tokenTypes.unused);
  const set = (text: string, id: unknown, type: number): void => {
    if (!Number.isInteger(id) || (id as number) < 0 || (id as number) >= size) {
      fail("InvalidFile", `${fields.source}: token ${JSON.stringify(text)} has id ${id}; the model has ${size}`);
    }
    texts[id as number] = text;
    types[id as number] = type;
  };
  const unknown = model.textOr("unk_token", undefined);
  // Unigrams are a list, which their writer reads.
  const vocabulary = Array.isArray(model.values.vocab) ? undefined : model.object("vocab");
  for (const [text, id] of Object.entries(vocabulary?.values ?? {})) set(text, id, tokenTypes.normal);
  for (const token of objects(fields, "added_tokens")) {
    const text = token.text("content");
    const special = token.flagOr("special", false);
    const type = text === unknown ? tokenTypes.unknown : special ? tokenTypes.control : tokenTypes.userDefined;
    set(text, token.values.id, type);
  }
  return { texts, types };
}

function objects(fields: JsonFields, name: string): JsonFields[] {
  const values = fields.has(name) ? fields.values[name] : [];
  if (!Array.isArray(values)) return fail("InvalidFile", `${fields.source}: ${name} must be a list`);
  return values.map((value: unknown) => new JsonFields(value, `${fields.source}: ${name}`));
}

/** Newer files have pairs, older ones pairs joined by a space. */
function merges(model: JsonFields): string[] {
  const { merges: list = [] } = model.values;
  if (!Array.isArray(list)) return fail("InvalidFile", `${model.source}: merges must be a list`);
  return list.map((pair: unknown) => (Array.isArray(pair) ? pair.join(" ") : String(pair)));
}

function byteLevel(fields: JsonFields, model: JsonFields): Metadata {
  const patterns = patternsOf(fields.object("pre_tokenizer"));
  const pre = patterns && preTokenizerName(patterns, model.flagOr("ignore_merges", false));
  if (pre === undefined) {
    return fail(
      "InvalidFile",
      `${fields.source}: GGUF has no name for its pre_tokenizer; known are ${Object.keys(preTokenizers).join(", ")}`,
    );
  }
  const normalizer = fields.object("normalizer")?.text("type");
  if (normalizer !== preTokenizers[pre]!.normalizer) {
    fail("InvalidFile", `${fields.source}: the normalizer ${normalizer ?? "none"} does not belong to GGUF's ${pre}`);
  }
  return {
    "tokenizer.ggml.model": { type: "string", value: "gpt2" },
    "tokenizer.ggml.pre": { type: "string", value: pre },
    "tokenizer.ggml.merges": { type: "string[]", value: merges(model) },
  };
}

function patternsOf(step: JsonFields | undefined): string[] | undefined {
  switch (step?.text("type")) {
    case "ByteLevel":
      return step.flagOr("use_regex", true) ? [BYTE_LEVEL_PATTERN] : [];
    case "Split":
      return [step.object("pattern")?.textOr("Regex", "") ?? ""];
    case "Digits":
      return step.flagOr("individual_digits", false) ? [String.raw`\p{N}`] : [String.raw`\p{N}+`];
    case "Sequence": {
      const steps = objects(step, "pretokenizers").map(patternsOf);
      return steps.includes(undefined) ? undefined : (steps as string[][]).flat();
    }
    default:
      return undefined;
  }
}

/** The earlier a merge, the better the score of what it makes. */
function sentencePiece(fields: JsonFields, model: JsonFields, { texts, types }: Tokens): Metadata {
  const rank = new Map<string, number>();
  for (const [i, pair] of merges(model).entries()) {
    const text = pair.replace(" ", "");
    if (!rank.has(text)) rank.set(text, i);
  }
  for (const [id, text] of texts.entries()) {
    if (/^<0x[0-9A-F]{2}>$/.test(text) && types[id] === tokenTypes.normal) types[id] = tokenTypes.byte;
    if (text === model.textOr("unk_token", undefined)) types[id] = tokenTypes.unknown;
  }
  return {
    "tokenizer.ggml.model": { type: "string", value: "llama" },
    "tokenizer.ggml.pre": { type: "string", value: "default" },
    "tokenizer.ggml.scores": { type: "f32[]", value: Float32Array.from(texts, (text) => -(rank.get(text) ?? 0)) },
    "tokenizer.ggml.add_space_prefix": { type: "bool", value: prefixesSpace(fields) },
  };
}

function prefixesSpace(fields: JsonFields): boolean {
  const normalizer = fields.object("normalizer");
  const steps = normalizer?.has("normalizers") ? objects(normalizer, "normalizers") : normalizer ? [normalizer] : [];
  const pre = fields.object("pre_tokenizer");
  const metaspace = pre?.text("type") === "Metaspace" && pre.textOr("prepend_scheme", "always") !== "never";
  return metaspace || steps.some((step) => step.text("type") === "Prepend");
}
