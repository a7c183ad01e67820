/**
 * Hugging Face's tokenizers, with the parts that take the time done here: merges, the best path through unigrams, and
 * the writing of bytes as characters. What they give is the same. SentencePiece's table of characters, which the library
 * takes for NFKC, is read.
 */
import { Tokenizer } from "@huggingface/tokenizers";
import type { JsonFields } from "../json-fields.ts";
import { CharactersMap } from "./characters-map.ts";
import { Merges } from "./merges.ts";
import { Unigrams } from "./unigrams.ts";

/** `fields` is the content of tokenizer.json, `config` that of tokenizer_config.json. */
export function fastTokenizer(fields: JsonFields, config: JsonFields | undefined): Tokenizer {
  const { model, ...rest } = fields.values;
  const merges = mergesOf(model);
  // Without its merges the library has no table of them to make.
  const inner = new Tokenizer(
    merges ? { ...rest, model: { ...(model as object), merges: [] } } : fields.values,
    config?.values ?? {},
  );
  const made: unknown = inner.model;
  if (merges && isPairEncoder(made)) {
    const own = new Merges(merges.map(pairOf));
    made.bpe = (word: string) => own.split(word);
  } else if (isUnigram(made)) {
    const own = new Unigrams(made.vocab, made.scores, made.unk_token_id);
    made.encode = (words: readonly string[]) => words.flatMap((word) => own.split(word));
  }
  speedUpSteps(inner.pre_tokenizer);
  mapCharacters(inner.normalizer);
  return inner;
}

/** Marks of where a word ends, which only the library knows. */
const SUFFIXES = ["continuing_subword_suffix", "end_of_word_suffix"];

function mergesOf(model: unknown): readonly unknown[] | undefined {
  if (typeof model !== "object" || model === null) return undefined;
  const values = model as Readonly<Record<string, unknown>>;
  return Array.isArray(values.merges) && !SUFFIXES.some((name) => values[name]) ? values.merges : undefined;
}

/** Newer files have pairs, older ones pairs joined by a space. */
const pairOf = (merge: unknown): [string, string] => {
  if (Array.isArray(merge)) return [String(merge[0]), String(merge[1])];
  const text = String(merge);
  const cut = text.indexOf(" ", 1);
  return [text.slice(0, cut), text.slice(cut + 1)];
};

// The library's classes are functions with properties.
const has = (value: unknown, ...names: string[]): boolean =>
  (typeof value === "function" || (typeof value === "object" && value !== null)) &&
  names.every((name) => name in value);

interface PairEncoder {
  bpe(word: string): readonly string[];
}
const isPairEncoder = (model: unknown): model is PairEncoder => has(model, "bpe");

interface Unigram {
  readonly vocab: readonly string[];
  readonly scores: readonly number[];
  readonly unk_token_id: number;
  encode(words: readonly string[]): string[];
}
const isUnigram = (model: unknown): model is Unigram => has(model, "scores", "trie");

interface Precompiled {
  readonly charsmap: string;
  normalize(text: string): string;
}
const isPrecompiled = (step: unknown): step is Precompiled =>
  has(step, "charsmap") && typeof (step as Precompiled).charsmap === "string";
const isNormalizers = (step: unknown): step is { readonly normalizers: readonly unknown[] } => has(step, "normalizers");

function mapCharacters(step: unknown): void {
  if (isNormalizers(step)) for (const inner of step.normalizers) mapCharacters(inner);
  if (!isPrecompiled(step) || step.charsmap === "") return;
  const map = new CharactersMap(Buffer.from(step.charsmap, "base64"));
  step.normalize = (text) => map.normalize(text);
}

interface ByteLevel {
  readonly byte_encoder: Readonly<Record<number, string>>;
  readonly add_prefix_space: boolean;
  readonly use_regex: boolean;
  readonly pattern: RegExp;
  pre_tokenize_text(text: string): string[];
}
const isByteLevel = (step: unknown): step is ByteLevel => has(step, "byte_encoder", "use_regex");
interface Split {
  pre_tokenize_text(text: string): string[];
}
const isSplit = (step: unknown): step is Split => has(step, "pattern", "config", "pre_tokenize_text");
const isSequence = (step: unknown): step is { readonly tokenizers: readonly unknown[] } => has(step, "tokenizers");

/** Words whose results are kept, and how long they may be. */
const KEPT_WORDS = 2 ** 16;
const KEPT_LENGTH = 64;

/** Most words of a text come again and again. */
function remembered<T>(make: (word: string) => T): (word: string) => T {
  const results = new Map<string, T>();
  return (word) => {
    if (word.length > KEPT_LENGTH) return make(word);
    let result = results.get(word);
    if (result === undefined) {
      result = make(word);
      if (results.size >= KEPT_WORDS) results.clear();
      results.set(word, result);
    }
    return result;
  };
}

function speedUpSteps(step: unknown): void {
  if (isSequence(step)) for (const inner of step.tokenizers) speedUpSteps(inner);
  if (isByteLevel(step)) speedUpBytes(step);
  else if (isSplit(step)) {
    const split = step.pre_tokenize_text;
    step.pre_tokenize_text = remembered((text) => split.call(step, text));
  }
}

function speedUpBytes(step: ByteLevel): void {
  const codes = Uint16Array.from({ length: 256 }, (_, byte) => step.byte_encoder[byte]!.charCodeAt(0));
  const bytesOf = remembered((word) =>
    Buffer.from(Uint16Array.from(Buffer.from(word), (byte) => codes[byte]!).buffer).toString("utf16le"),
  );
  step.pre_tokenize_text = (given) => {
    const text = step.add_prefix_space && !given.startsWith(" ") ? ` ${given}` : given;
    return (step.use_regex ? (text.match(step.pattern) ?? []) : [text]).map(bytesOf);
  };
}
