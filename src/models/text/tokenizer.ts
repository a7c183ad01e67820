/** Text to token ids and back, by Hugging Face's tokenizer.json. */
import type { Tokenizer as HuggingFaceTokenizer } from "@huggingface/tokenizers";
import { fail } from "../../core/errors.ts";
import { JsonFields } from "../json-fields.ts";
import { fastTokenizer } from "./fast-tokenizer.ts";
import { type Frame, type FrameItem, framed, frameOf, type PostProcessor, type Segments } from "./frames.ts";
import { tokenBytes } from "./token-bytes.ts";

export interface TokenizerOptions {
  /** Opens the error messages. */
  readonly source: string;
  /** tokenizer_config.json, where there is one. */
  readonly config?: JsonFields | undefined;
  /** Starts every prompt, where the tokenizer's own rules say nothing about it. */
  readonly bosToken?: number | null;
  /** Ends every prompt, as those of encoders. */
  readonly endToken?: number | null;
  /** A second text begins behind two end tokens and not one, as RoBERTa has it. */
  readonly doubleSeparator?: boolean;
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
  readonly #bytesOf: (token: string) => Uint8Array;
  readonly #unknown: unknown;
  /** Put before a prompt that does not start with it. */
  readonly #prefix: number | null;
  /** Put behind one that does not end with it. */
  readonly #suffix: number | null;
  /** Around one text, and around two. */
  readonly #frames: readonly [Frame, Frame];

  /** `json` is the content of tokenizer.json, or an object of that form. */
  constructor(
    json: unknown,
    { source, config, bosToken = null, endToken = null, doubleSeparator = false }: TokenizerOptions,
  ) {
    const fields = new JsonFields(json, source);
    try {
      this.#inner = fastTokenizer(fields, config);
    } catch (cause) {
      this.#inner = fail("InvalidFile", `${source} cannot be used: ${(cause as Error).message}`, { cause });
    }
    this.#bytesOf = tokenBytes(fields.values.decoder);
    this.#unknown = (fields.values.model as { readonly unk_token?: unknown } | undefined)?.unk_token;
    this.#prefix = startToken(fields, config, bosToken, (token) => this.tokenId(token));
    this.#suffix = endToken ?? configuredEnd(config, (token) => this.tokenId(token));
    const process = this.#inner.post_processor as PostProcessor | null;
    const frame = (count: 1 | 2): Frame => frameOf(process, count, (token) => this.tokenId(token));
    this.#frames = [this.#completed(frame(1)), this.#completed(process ? frame(2) : this.#pair(doubleSeparator))];
  }

  encode(text: string, { special = true }: EncodeOptions = {}): number[] {
    const { ids } = this.#inner.encode(text, { add_special_tokens: special });
    if (!special) return ids;
    const starts = this.#prefix === null || ids[0] === this.#prefix;
    const ends = this.#suffix === null || ids.at(-1) === this.#suffix;
    return [...(starts ? [] : [this.#prefix!]), ...ids, ...(ends ? [] : [this.#suffix!])];
  }

  /**
   * One text, or two as one (a question and what may answer it), with all that the tokenizer puts around them. Texts are
   * cut at their ends where there would be more than `limit` tokens; of two the longer one first.
   */
  encodeSegments(texts: readonly [string] | readonly [string, string], limit = Number.MAX_SAFE_INTEGER): Segments {
    const contents = texts.map((text) => this.encode(text, { special: false }));
    return framed(this.#frames[texts.length - 1]!, contents, limit);
  }

  /** What every prompt starts with, if anything. */
  get firstToken(): number | null {
    const first = this.#frames[0][0]!;
    return "id" in first ? first.id : null;
  }

  /** What every prompt ends with, if anything. */
  get lastToken(): number | null {
    const last = this.#frames[0].at(-1)!;
    return "id" in last ? last.id : null;
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

  /** What a token writes behind others; null for tokens that are no text, as the end of text. */
  bytes(id: number): Uint8Array | null {
    const token = this.token(id);
    if (token === undefined || token === this.#unknown) return null;
    const added = this.#inner.get_added_tokens_decoder().get(id);
    if (!added) return this.#bytesOf(token);
    return added.special ? null : Buffer.from(added.content);
  }

  /** What starts and ends a prompt belongs to every frame. */
  #completed(frame: Frame): Frame {
    const [first, last] = [frame[0]!, frame.at(-1)!];
    const starts = this.#prefix === null || ("id" in first && first.id === this.#prefix);
    const ends = this.#suffix === null || ("id" in last && last.id === this.#suffix);
    return [
      ...(starts ? [] : [{ id: this.#prefix!, type: first.type }]),
      ...frame,
      ...(ends ? [] : [{ id: this.#suffix!, type: last.type }]),
    ];
  }

  /** Without a rule of the tokenizer's own: what ends a prompt stands between two texts. */
  #pair(doubled: boolean): Frame {
    const end: FrameItem[] = this.#suffix === null ? [] : [{ id: this.#suffix, type: 0 }];
    const between = doubled ? [...end, ...end] : end;
    return [{ text: 0, type: 0 }, ...between, { text: 1, type: 1 }];
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

/** Tokenizers that end every prompt say so in tokenizer_config.json where they have no rule of their own for it. */
function configuredEnd(config: JsonFields | undefined, idOf: (token: string) => number | undefined): number | null {
  const named = config?.flagOr("add_eos_token", false) ? specialToken(config, "eos_token") : undefined;
  return (named === undefined ? undefined : idOf(named)) ?? null;
}

/** tokenizer_config.json holds special tokens as text or as an object with their content. */
export function specialToken(config: JsonFields, name: string): string | undefined {
  if (!config.has(name)) return undefined;
  return typeof config.values[name] === "string" ? config.text(name) : config.object(name)!.text("content");
}
