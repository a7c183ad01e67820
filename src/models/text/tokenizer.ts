/** Text to token ids and back, by Hugging Face's tokenizer.json. */
import type { Tokenizer as HuggingFaceTokenizer } from "@huggingface/tokenizers";
import { fail } from "../../core/errors.ts";
import { JsonFields } from "../json-fields.ts";
import { fastTokenizer } from "./fast-tokenizer.ts";

export interface TokenizerOptions {
  /** Opens the error messages. */
  readonly source: string;
  /** tokenizer_config.json, where there is one. */
  readonly config?: JsonFields | undefined;
  /** Starts every prompt, where the tokenizer's own rules say nothing about it. */
  readonly bosToken?: number | null;
  /** Ends every prompt, as those of encoders. */
  readonly endToken?: number | null;
}

export interface EncodeOptions {
  /** Adds what the tokenizer starts (and ends) a prompt with. Default true. */
  readonly special?: boolean;
}

export interface DecodeOptions {
  /** Leaves out tokens such as the end of text. Default false. */
  readonly skipSpecial?: boolean;
}

export class Tokenizer {
  readonly #inner: HuggingFaceTokenizer;
  /** Put before a prompt that does not start with it. */
  readonly #prefix: number | null;
  /** Put behind one that does not end with it. */
  readonly #suffix: number | null;

  /** `json` is the content of tokenizer.json, or an object of that form. */
  constructor(json: unknown, { source, config, bosToken = null, endToken = null }: TokenizerOptions) {
    const fields = new JsonFields(json, source);
    try {
      this.#inner = fastTokenizer(fields, config);
    } catch (cause) {
      this.#inner = fail("InvalidFile", `${source} cannot be used: ${(cause as Error).message}`, { cause });
    }
    this.#prefix = startToken(fields, config, bosToken, (token) => this.tokenId(token));
    this.#suffix = endToken;
  }

  encode(text: string, { special = true }: EncodeOptions = {}): number[] {
    const { ids } = this.#inner.encode(text, { add_special_tokens: special });
    if (!special) return ids;
    const starts = this.#prefix === null || ids[0] === this.#prefix;
    const ends = this.#suffix === null || ids.at(-1) === this.#suffix;
    return [...(starts ? [] : [this.#prefix!]), ...ids, ...(ends ? [] : [this.#suffix!])];
  }

  /** Bytes that are no UTF-8 become U+FFFD. */
  decode(ids: readonly number[], { skipSpecial = false }: DecodeOptions = {}): string {
    if (ids.length === 0) return "";
    // Its clean-up would remove spaces before punctuation that the model did write.
    return this.#inner.decode([...ids], { skip_special_tokens: skipSpecial, clean_up_tokenization_spaces: false });
  }

  tokenId(token: string): number | undefined {
    return this.#inner.token_to_id(token);
  }

  token(id: number): string | undefined {
    return this.#inner.id_to_token(id);
  }

  toString(): string {
    return `Tokenizer(${this.#inner.get_vocab().size} tokens)`;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.toString();
  }
}

/**
 * A post-processor is the tokenizer's own rule. Without one, tokenizer_config.json's add_bos_token decides, and
 * without that, a model that has a first token is given it.
 */
function startToken(
  tokenizer: JsonFields,
  config: JsonFields | undefined,
  bosToken: number | null,
  idOf: (token: string) => number | undefined,
): number | null {
  if (config?.has("add_bos_token")) {
    if (!config.flagOr("add_bos_token", false)) return null;
    const named = specialToken(config, "bos_token");
    return (named === undefined ? undefined : idOf(named)) ?? bosToken;
  }
  return tokenizer.has("post_processor") || config ? null : bosToken;
}

/** tokenizer_config.json holds special tokens as text or as an object with their content. */
export function specialToken(config: JsonFields, name: string): string | undefined {
  if (!config.has(name)) return undefined;
  return typeof config.values[name] === "string" ? config.text(name) : config.object(name)!.text("content");
}
