/**
 * A GGUF file's tokenizer in the form of tokenizer.json: byte-level BPE ("gpt2"), SentencePiece by merges ("llama") and
 * by unigrams ("t5"), WordPiece ("bert").
 */
import { fail } from "../../core/errors.ts";
import type { JsonFields } from "../json-fields.ts";
import { Tokenizer } from "../text/tokenizer.ts";
import { byteLevelStep, type PreTokenizer, preTokenizerNamed, splitStep } from "./pre-tokenizers.ts";

/** GGUF's numbers of the kinds of tokens. */
export const tokenTypes = { normal: 1, unknown: 2, control: 3, userDefined: 4, unused: 5, byte: 6 } as const;

/** Control tokens that end a turn, which older files do not point out. */
const turnEnds = [
  "<|eot_id|>",
  "<|im_end|>",
  "<|end|>",
  "<end_of_turn>",
  "<|endoftext|>",
  "<|end_of_text|>",
  "<|eom_id|>",
];

/** Any of these ends a text. */
export function endTokens(fields: JsonFields): number[] {
  const named = ["eos", "eot", "eom"].flatMap((name) => fields.tokens(`tokenizer.ggml.${name}_token_id`));
  const known = fields.has("tokenizer.ggml.tokens") ? readTokens(fields) : undefined;
  const found = turnEnds.map((text) => known?.texts.indexOf(text) ?? -1).filter((id) => id >= 0);
  return [...new Set([...named, ...found.filter((id) => known!.types[id] === tokenTypes.control)])];
}

/** Null where the file has none, as those made of random weights. */
export function readGgufTokenizer(fields: JsonFields): Tokenizer | null {
  const model = fields.textOr("tokenizer.ggml.model", "none");
  if (model === "none" || model === "no_vocab") return null;
  const make = Object.hasOwn(makers, model) ? makers[model] : undefined;
  if (!make) {
    const known = Object.keys(makers).join(", ");
    return fail("InvalidFile", `${fields.source}: unknown tokenizer ${JSON.stringify(model)}; known are ${known}`);
  }
  const { json, addBos = false, end = otherEnd(fields), doubleSeparator = false } = make(fields, readTokens(fields));
  const source = `${fields.source}: tokenizer.ggml`;
  const bosToken = fields.flagOr("tokenizer.ggml.add_bos_token", addBos) ? firstToken(fields) : null;
  const endToken = end && fields.flagOr(`tokenizer.ggml.add_${end}_token`, true) ? lastToken(fields, end) : null;
  return new Tokenizer(json, { source, bosToken, endToken, doubleSeparator });
}

/** Where a file says that prompts end by a token, as those of decoders that embed do. */
const otherEnd = (fields: JsonFields): "eos" | "sep" | undefined =>
  (["eos", "sep"] as const).find((end) => fields.flagOr(`tokenizer.ggml.add_${end}_token`, false));

const idOf = (fields: JsonFields, name: string): number | null =>
  fields.tokens(`tokenizer.ggml.${name}_token_id`)[0] ?? null;

/** Encoders have a token for what classifies, where others have one for the start. */
const firstToken = (fields: JsonFields): number | null => idOf(fields, "bos") ?? idOf(fields, "cls");

/** The format writes "separator" with an e. */
const lastToken = (fields: JsonFields, end: "eos" | "sep"): number | null =>
  idOf(fields, end === "sep" ? "seperator" : "eos") ?? idOf(fields, "eos");

/** The texts of the special tokens that a chat template may write. */
export function specialTokens(fields: JsonFields): Record<string, string> {
  const { texts } = readTokens(fields);
  const pairs = { bos_token: "bos", eos_token: "eos", unk_token: "unknown", pad_token: "padding" };
  const ids = Object.entries(pairs).map(
    ([name, own]) => [name, texts[fields.tokens(`tokenizer.ggml.${own}_token_id`)[0] ?? -1]] as const,
  );
  return Object.fromEntries(ids.filter((pair): pair is [string, string] => pair[1] !== undefined));
}

interface Tokens {
  readonly texts: readonly string[];
  readonly types: ArrayLike<number>;
}

function readTokens(fields: JsonFields): Tokens {
  const texts = fields.textList("tokenizer.ggml.tokens");
  const types = fields.has("tokenizer.ggml.token_type")
    ? fields.numbers("tokenizer.ggml.token_type", texts.length)
    : new Int32Array(texts.length).fill(tokenTypes.normal);
  return { texts, types };
}

interface Made {
  readonly json: object;
  /** Where the file does not say. */
  readonly addBos?: boolean;
  /** What ends a prompt, unless the file says that nothing does. */
  readonly end?: "eos" | "sep" | undefined;
  /** As the tokenizer's. */
  readonly doubleSeparator?: boolean;
}

function byMerges(fields: JsonFields, tokens: Tokens, name = fields.textOr("tokenizer.ggml.pre", "default")): Made {
  const pre = preTokenizerNamed(name, fields.source);
  const merges = fields.textList("tokenizer.ggml.merges");
  const { addBos = false, addSeparator = false } = pre;
  const end = addSeparator ? "sep" : undefined;
  return { json: pairEncoding(tokens, merges, pre), addBos, end, doubleSeparator: addSeparator };
}

const makers: Readonly<Record<string, (fields: JsonFields, tokens: Tokens) => Made>> = {
  gpt2: (fields, tokens) => byMerges(fields, tokens),
  whitespace: (fields, tokens) => byMerges(fields, tokens),
  gemma4: (fields, tokens) => byMerges(fields, tokens, "gemma4"),
  llama: (fields, tokens) => {
    const scores = fields.numbers("tokenizer.ggml.scores", tokens.texts.length);
    const spacePrefix = fields.flagOr("tokenizer.ggml.add_space_prefix", true);
    return { json: sentencePiece(tokens, scores, spacePrefix), addBos: true };
  },
  t5: (fields, tokens) => ({ json: unigrams(fields, tokens), end: "eos", doubleSeparator: true }),
  bert: (fields, tokens) => ({ json: wordPieces(fields, tokens), addBos: true, end: "sep" }),
};

/** Texts may repeat, as in files padded with unused tokens; the first has it. */
function vocabulary({ texts }: Tokens): Map<string, number> {
  const vocab = new Map<string, number>();
  for (const [id, text] of texts.entries()) if (!vocab.has(text)) vocab.set(text, id);
  return vocab;
}

function addedTokens({ texts, types }: Tokens): object[] {
  const isAdded = (type: number) => type === tokenTypes.control || type === tokenTypes.userDefined;
  return texts.flatMap((content, id) =>
    isAdded(types[id]!) && content !== ""
      ? [{ id, content, special: types[id] === tokenTypes.control, normalized: false }]
      : [],
  );
}

function pairEncoding(tokens: Tokens, merges: readonly string[], pre: PreTokenizer): object {
  const { isRaw = false, escapesSpaces = false, normalizer } = pre;
  const steps = pre.patterns.map(splitStep);
  return {
    added_tokens: addedTokens(tokens),
    normalizer: escapesSpaces ? spacesToBars : normalizer ? { type: normalizer } : null,
    pre_tokenizer: { type: "Sequence", pretokenizers: isRaw ? steps : [...steps, byteLevelStep(false)] },
    post_processor: null,
    decoder: isRaw
      ? { type: "Sequence", decoders: [barsToSpaces, { type: "ByteFallback" }, { type: "Fuse" }] }
      : { type: "ByteLevel" },
    model: {
      type: "BPE",
      vocab: Object.fromEntries(vocabulary(tokens)),
      merges,
      byte_fallback: isRaw,
      ignore_merges: pre.ignoreMerges ?? false,
    },
  };
}

const spacesToBars = { type: "Replace", pattern: { String: " " }, content: "▁" };
const barsToSpaces = { type: "Replace", pattern: { String: "▁" }, content: " " };

/** SentencePiece joins the neighbours whose union has the best score: merges, in the order of the scores. */
function sentencePiece(tokens: Tokens, scores: ArrayLike<number>, spacePrefix: boolean): object {
  const vocab = vocabulary(tokens);
  const { types, texts } = tokens;
  const merges: { readonly pair: [string, string]; readonly score: number }[] = [];
  for (const [text, id] of vocab) {
    if (types[id] !== tokenTypes.normal && types[id] !== tokenTypes.userDefined) continue;
    const characters = Array.from(text);
    for (let cut = 1, left = ""; cut < characters.length; cut++) {
      left += characters[cut - 1];
      const right = text.slice(left.length);
      if (vocab.has(left) && vocab.has(right)) merges.push({ pair: [left, right], score: scores[id]! });
    }
  }
  merges.sort((a, b) => b.score - a.score);
  const prefix = { type: "Prepend", prepend: "▁" };
  const strip = { type: "Strip", content: " ", start: 1, stop: 0 };
  const unknown = texts[Array.from(types).indexOf(tokenTypes.unknown)];
  return {
    added_tokens: addedTokens(tokens),
    normalizer: { type: "Sequence", normalizers: spacePrefix ? [prefix, spacesToBars] : [spacesToBars] },
    pre_tokenizer: null,
    post_processor: null,
    decoder: {
      type: "Sequence",
      decoders: [barsToSpaces, { type: "ByteFallback" }, { type: "Fuse" }, ...(spacePrefix ? [strip] : [])],
    },
    model: {
      type: "BPE",
      ...(unknown !== undefined && { unk_token: unknown }),
      byte_fallback: true,
      fuse_unk: true,
      vocab: Object.fromEntries(vocab),
      merges: merges.map(({ pair }) => pair),
    },
  };
}

function unigrams(fields: JsonFields, tokens: Tokens): object {
  const scores = fields.numbers("tokenizer.ggml.scores", tokens.texts.length);
  const space = { type: "Metaspace", replacement: "▁", prepend_scheme: "always" };
  const bare = { ...space, prepend_scheme: "never" };
  const metaspace = fields.flagOr("tokenizer.ggml.add_space_prefix", true) ? space : bare;
  const map = fields.values["tokenizer.ggml.precompiled_charsmap"];
  const charactersMap = ArrayBuffer.isView(map)
    ? Buffer.from(map.buffer, map.byteOffset, map.byteLength).toString("base64")
    : undefined;
  const mergesSpaces = fields.flagOr("tokenizer.ggml.remove_extra_whitespaces", true);
  return {
    added_tokens: addedTokens(tokens),
    normalizer: charactersMap === undefined ? null : { type: "Precompiled", precompiled_charsmap: charactersMap },
    pre_tokenizer: {
      type: "Sequence",
      pretokenizers: mergesSpaces ? [{ type: "WhitespaceSplit" }, metaspace] : [metaspace],
    },
    post_processor: null,
    decoder: { ...metaspace, type: "Metaspace" },
    model: {
      type: "Unigram",
      vocab: tokens.texts.map((text, id) => [text, scores[id]!]),
      unk_id: idOf(fields, "unknown") ?? Array.from(tokens.types).indexOf(tokenTypes.unknown),
    },
  };
}

/** The file marks the start of a word by "▁", tokenizer.json what goes on with one by "##". */
function wordPieces(fields: JsonFields, tokens: Tokens): object {
  const isName = (text: string): boolean => text.startsWith("[") && text.endsWith("]") && text.length > 1;
  const written = (text: string): string => {
    if (isName(text)) return text;
    return text.startsWith("▁") ? text.slice(1) : `##${text}`;
  };
  const texts = tokens.texts.map(written);
  const lowercase = fields.flagOr("tokenizer.ggml.normalizer.lowercase", true);
  return {
    added_tokens: addedTokens(tokens),
    normalizer: {
      type: "BertNormalizer",
      clean_text: true,
      handle_chinese_chars: true,
      strip_accents: fields.flagOr("tokenizer.ggml.normalizer.strip_accents", lowercase),
      lowercase,
    },
    pre_tokenizer: { type: "BertPreTokenizer" },
    post_processor: null,
    decoder: { type: "WordPiece", prefix: "##", cleanup: true },
    model: {
      type: "WordPiece",
      vocab: Object.fromEntries(vocabulary({ ...tokens, texts })),
      unk_token: texts[idOf(fields, "unknown") ?? texts.indexOf("[UNK]")] ?? "[UNK]",
      continuing_subword_prefix: "##",
      max_input_chars_per_word: 100,
    },
  };
}
