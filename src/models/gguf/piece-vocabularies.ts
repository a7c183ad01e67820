/** The vocabularies of encoders as GGUF has them: WordPiece ("bert") and SentencePiece's unigrams ("t5"). */
import { fail } from "../../core/errors.ts";
import type { GgufTyped } from "../../formats/index.ts";
import type { JsonFields } from "../json-fields.ts";
import { tokenTypes } from "./tokenizer.ts";

export interface Tokens {
  readonly texts: string[];
  readonly types: Int32Array;
}

/** tokenizer.json marks what goes on with a word by "##", GGUF the start of one by "▁". */
export function wordPieces(fields: JsonFields, model: JsonFields, { texts, types }: Tokens): Record<string, GgufTyped> {
  const prefix = model.textOr("continuing_subword_prefix", "##");
  const normalizer = fields.object("normalizer");
  const pre = fields.object("pre_tokenizer")?.text("type");
  if (normalizer?.text("type") !== "BertNormalizer" || pre !== "BertPreTokenizer") {
    fail(
      "InvalidFile",
      `${fields.source}: GGUF holds BERT's normalizer and pre_tokenizer with WordPiece, and no others`,
    );
  }
  for (const [id, text] of texts.entries()) {
    if (types[id] !== tokenTypes.normal && types[id] !== tokenTypes.userDefined) continue;
    texts[id] = text.startsWith(prefix) ? text.slice(prefix.length) : `▁${text}`;
  }
  const lowercase = normalizer.flagOr("lowercase", true);
  return {
    "tokenizer.ggml.model": { type: "string", value: "bert" },
    "tokenizer.ggml.normalizer.lowercase": { type: "bool", value: lowercase },
    "tokenizer.ggml.normalizer.strip_accents": {
      type: "bool",
      value: normalizer.flagOr("strip_accents", lowercase),
    },
  };
}

/** What a piece scores where the vocabulary has none at an id. */
const UNUSED_SCORE = -10_000;

/** Sets the tokens that the model lists with their scores; special ones have been set before. */
export function unigrams(fields: JsonFields, model: JsonFields, { texts, types }: Tokens): Record<string, GgufTyped> {
  const scores = new Float32Array(texts.length).fill(UNUSED_SCORE);
  const { vocab } = model.values;
  if (!Array.isArray(vocab)) return fail("InvalidFile", `${model.source}: vocab must be a list of pieces`);
  if (vocab.length > texts.length) {
    fail("InvalidFile", `${model.source}: ${vocab.length} pieces, but the model has ${texts.length} tokens`);
  }
  for (const [id, [text, score]] of (vocab as [string, number][]).entries()) {
    scores[id] = score;
    if (types[id] !== tokenTypes.unused) continue;
    texts[id] = text;
    types[id] = tokenTypes.normal;
  }
  const unknown = model.countOr("unk_id", null, 0);
  if (unknown !== null) types[unknown] = tokenTypes.unknown;
  const steps = [...stepsOf(fields, "normalizer", "normalizers"), ...stepsOf(fields, "pre_tokenizer", "pretokenizers")];
  const named = (type: string): JsonFields | undefined => steps.find((step) => step.text("type") === type);
  const map = named("Precompiled")?.textOr("precompiled_charsmap", undefined);
  const spaces = named("Metaspace");
  return {
    "tokenizer.ggml.model": { type: "string", value: "t5" },
    "tokenizer.ggml.pre": { type: "string", value: "default" },
    "tokenizer.ggml.scores": { type: "f32[]", value: scores },
    "tokenizer.ggml.add_space_prefix": { type: "bool", value: spaces?.textOr("prepend_scheme", "always") !== "never" },
    "tokenizer.ggml.remove_extra_whitespaces": {
      type: "bool",
      value: (named("WhitespaceSplit") ?? named("Replace")) !== undefined,
    },
    ...(map && { "tokenizer.ggml.precompiled_charsmap": { type: "u8[]", value: Buffer.from(map, "base64") } }),
  };
}

/** One step, or those of a sequence. */
function stepsOf(fields: JsonFields, name: string, inner: string): JsonFields[] {
  const step = fields.object(name);
  if (!step) return [];
  return step.has(inner) ? step.objects(inner) : [step];
}
