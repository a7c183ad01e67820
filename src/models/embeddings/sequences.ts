/** Texts as the sequences of tokens that a model embeds: with its prompt, and cut to what it takes. */
import { fail } from "../../core/errors.ts";
import type { ModelConfig } from "../config.ts";
import type { Tokenizer } from "../text/tokenizer.ts";
import type { Sequence } from "./embed.ts";
import { type EmbeddingSettings, promptNamed } from "./settings.ts";

/** Text, or the token ids of one, which are taken as they are. */
export type EmbedInput = string | readonly number[];
/** A query and a text that may answer it. */
export type TextPair = readonly [query: string, text: string];

export interface SequenceOptions {
  readonly config: ModelConfig;
  readonly settings: EmbeddingSettings;
  readonly tokenizer: () => Tokenizer;
  readonly truncate?: boolean | undefined;
}

/** `prompt` names what is put before single texts. */
export function sequencesOf(
  inputs: readonly (EmbedInput | TextPair)[],
  prompt: string | undefined,
  options: SequenceOptions,
): Sequence[] {
  const prefix = promptNamed(options.settings, prompt);
  const limit = limitOf(options);
  return inputs.map((input, i) => {
    if (typeof input === "string") return encoded([prefix + input], i, options);
    if (isPair(input)) return encoded(input, i, options);
    if (!input.every((id) => typeof id === "number")) {
      fail("InvalidArgument", `text ${i} must be a string, token ids, or a pair of strings`);
    }
    return checked({ ids: input.slice(0, limit) }, input.length, i, options);
  });
}

export const isPair = (input: unknown): input is TextPair =>
  Array.isArray(input) && input.length === 2 && input.every((text) => typeof text === "string");

const limitOf = ({ config: { contextLength }, settings: { maxTokens } }: SequenceOptions): number =>
  Math.min(maxTokens ?? contextLength, contextLength);

function encoded(texts: readonly [string] | readonly [string, string], i: number, options: SequenceOptions): Sequence {
  const { ids, types, uncut } = options.tokenizer().encodeSegments(texts, limitOf(options));
  return checked({ ids, types }, uncut, i, options);
}

function checked(sequence: Sequence, uncut: number, i: number, options: SequenceOptions): Sequence {
  const { config, truncate = true } = options;
  const limit = limitOf(options);
  if (uncut > limit && !truncate) {
    fail(
      "ValueOutOfRange",
      `text ${i} has ${uncut} tokens, but the model takes ${limit}; shorten it, or let it be cut (truncate: true)`,
    );
  }
  if (sequence.ids.length === 0) fail("InvalidArgument", `text ${i} has no tokens, so there is nothing to embed`);
  const wrong = sequence.ids.find((id) => !Number.isInteger(id) || id < 0 || id >= config.vocabSize);
  if (wrong !== undefined) {
    fail("InvalidIndex", `text ${i}: ${wrong} is no token id; the vocabulary has ${config.vocabSize}`);
  }
  return sequence;
}
