/**
 * How byte-level BPE tokenizers cut text before they merge, by the names that GGUF files give. The patterns are those
 * of the models' tokenizer.json files, so that a tokenizer can be recognised by its pattern, too.
 */
import { fail } from "../../core/errors.ts";

export interface PreTokenizer {
  /** Applied one after the other; each cuts what the last one left. */
  readonly patterns: readonly string[];
  /** A piece that is a token as it stands is not merged. */
  readonly ignoreMerges?: boolean;
  /** Prompts start with the first token unless the file says otherwise. */
  readonly addBos?: boolean;
  readonly normalizer?: "NFC";
}

const gpt2 = String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`;
const contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
/** The words of GPT-4 and its kin; `digits` is how many stay together. */
const words = (digits: string): string =>
  String.raw`${contractions}|[^\r\n\p{L}\p{N}]?\p{L}+|${digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`;
const upper = String.raw`[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`;
const lower = String.raw`[\p{Ll}\p{Lm}\p{Lo}\p{M}]`;
/** Words cut where capitals start; `end` follows a word. */
const capitals = (end: string, digits: string): string =>
  String.raw`[^\r\n\p{L}\p{N}]?${upper}*${lower}+${end}|[^\r\n\p{L}\p{N}]?${upper}+${lower}*${end}|${digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`;
const singleDigits: PreTokenizer = { patterns: [String.raw`\p{N}`, gpt2] };

/** The first name of a pattern is the one that is written. */
export const preTokenizers: Readonly<Record<string, PreTokenizer>> = {
  "gpt-2": { patterns: [gpt2] },
  "llama-bpe": { patterns: [words(String.raw`\p{N}{1,3}`)], ignoreMerges: true, addBos: true },
  qwen2: { patterns: [words(String.raw`\p{N}`)], normalizer: "NFC" },
  smollm: singleDigits,
  starcoder: singleDigits,
  tekken: { patterns: [capitals("", String.raw`\p{N}`)], ignoreMerges: true, addBos: true },
  "gpt-4o": { patterns: [capitals(`${contractions}?`, String.raw`\p{N}{1,3}`)] },
  dbrx: { patterns: [words(String.raw`\p{N}{1,3}`)] },
  // Files from before the name was written.
  default: {
    patterns: [
      String.raw`[\p{P}\$\+<=>\^~\|]+`,
      String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)`,
      String.raw`\p{N}+`,
      "[0-9][0-9][0-9]",
    ],
  },
};

export function preTokenizerNamed(name: string, source: string): PreTokenizer {
  if (Object.hasOwn(preTokenizers, name)) return preTokenizers[name]!;
  const known = Object.keys(preTokenizers).join(", ");
  return fail("InvalidFile", `${source}: unknown pre-tokenizer ${JSON.stringify(name)}; known are ${known}`);
}

/** The name of the pre-tokenizer with these patterns. */
export function preTokenizerName(patterns: readonly string[], ignoreMerges: boolean): string | undefined {
  const has = ({ patterns: own }: PreTokenizer) => own.join("\n") === patterns.join("\n");
  const found = Object.entries(preTokenizers).filter(([, entry]) => has(entry));
  return (found.find(([, entry]) => (entry.ignoreMerges ?? false) === ignoreMerges) ?? found[0])?.[0];
}

/** A step of tokenizer.json's pre_tokenizer. */
export const splitStep = (pattern: string): object => ({
  type: "Split",
  pattern: { Regex: pattern },
  behavior: "Isolated",
  invert: false,
});
export const byteLevelStep = (useRegex: boolean): object => ({
  type: "ByteLevel",
  add_prefix_space: false,
  trim_offsets: false,
  use_regex: useRegex,
});
/** The pattern of ByteLevel's own `use_regex`. */
export const BYTE_LEVEL_PATTERN = gpt2;
