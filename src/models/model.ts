/** A language model: the transformer with its tokenizer and chat template. */
import type { Device } from "../backend/device.ts";
import type { DType } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { Tensor } from "../ops/index.ts";
import { ModelCache, type ModelCacheOptions } from "./cache.ts";
import type { AnswerForm } from "./chat/answer-form.ts";
import { answerFormOf, type ChatEvent, type ChatOptions, chat, needTemplate } from "./chat/chat.ts";
import type { ChatMessage } from "./chat/messages.ts";
import type { ModelConfig } from "./config.ts";
import { type GenerateOptions, generate, type Piece } from "./generation/generate.ts";
import type { ChatTemplate } from "./text/chat-template.ts";
import type { Tokenizer } from "./text/tokenizer.ts";
import type { Transformer, TransformerOptions } from "./transformer.ts";

/** Text, token ids, or a chat. */
export type Prompt = string | readonly number[] | readonly ChatMessage[];
/** One sequence, several of one length, or a tensor (batch, length). */
export type TokenIds = readonly number[] | readonly (readonly number[])[] | Tensor;
export type ForwardOptions = Omit<TransformerOptions, "last">;

export class Model implements Disposable {
  readonly transformer: Transformer;
  /** Null where the model came without one: it then takes token ids only. */
  readonly tokenizer: Tokenizer | null;
  readonly chatTemplate: ChatTemplate | null;

  constructor(transformer: Transformer, tokenizer: Tokenizer | null, chatTemplate: ChatTemplate | null) {
    this.transformer = transformer;
    this.tokenizer = tokenizer;
    this.chatTemplate = chatTemplate;
  }

  get config(): ModelConfig {
    return this.transformer.config;
  }

  get device(): Device {
    return this.transformer.device;
  }

  /** What it computes in. */
  get dtype(): DType {
    return this.transformer.dtype;
  }

  /** Logits (batch, length, vocab) in f32. With a cache, `ids` go on where the last call ended. */
  forward(ids: TokenIds, options: ForwardOptions = {}): Tensor {
    return this.#run(ids, options);
  }

  /** As `forward`, for the last position only: (batch, vocab). */
  logits(ids: TokenIds, options: ForwardOptions = {}): Tensor {
    return this.#run(ids, { ...options, last: true });
  }

  newCache(options: ModelCacheOptions = {}): ModelCache {
    return new ModelCache(this.config, this.device, this.dtype, options);
  }

  /** Continues a prompt token by token, until `maxTokens`, a stop, or the end of the context. */
  generate(prompt: Prompt, options: GenerateOptions = {}): AsyncIterableIterator<Piece> {
    return this.generateBatch([prompt], options);
  }

  /** Continues several prompts side by side; `sequence` says which one a piece belongs to. */
  generateBatch(prompts: readonly Prompt[], options: GenerateOptions = {}): AsyncIterableIterator<Piece> {
    return generate(
      this.transformer,
      this.tokenizer,
      prompts.map((prompt) => this.encode(prompt)),
      options,
    );
  }

  /**
   * Answers a chat: its text, its reasoning and its tool calls come one by one, and at the end all of them. The answer's parts are
   * told apart as `answerForm` says.
   */
  chat(messages: readonly ChatMessage[], options: ChatOptions = {}): AsyncIterableIterator<ChatEvent> {
    return chat(this, messages, options);
  }

  /** How it writes reasoning and tool calls, as its template and vocabulary show. */
  get answerForm(): AnswerForm {
    return answerFormOf(this);
  }

  /** The token ids of a prompt as `generate` feeds them. */
  encode(prompt: Prompt): number[] {
    if (typeof prompt === "string") return this.#needTokenizer().encode(prompt);
    if (prompt.every((item): item is number => typeof item === "number")) return [...prompt];
    const messages = prompt as readonly ChatMessage[];
    const template = needTemplate(this.chatTemplate);
    // A template writes the special tokens itself.
    return this.#needTokenizer().encode(template.render(messages), { special: false });
  }

  /** Frees the weights. */
  dispose(): void {
    this.transformer[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  toString(): string {
    const { architecture, layers, hiddenSize, vocabSize, contextLength } = this.config;
    const sizes = `${layers} layers of ${hiddenSize}, ${vocabSize} tokens, context ${contextLength}`;
    return `Model(${architecture}, ${sizes}, ${this.dtype}, ${this.device.name})`;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.toString();
  }

  #needTokenizer(): Tokenizer {
    return (
      this.tokenizer ??
      fail("InvalidArgument", "the model was loaded without a tokenizer (no tokenizer.json); prompt it with token ids")
    );
  }

  #run(ids: TokenIds, options: TransformerOptions): Tensor {
    if (ids instanceof Tensor) return this.transformer.forward(ids, options);
    const rows = (ids.length === 0 || typeof ids[0] === "number" ? [ids] : ids) as number[][];
    using input = Tensor.from(rows, { dtype: "u32", device: this.device });
    return this.transformer.forward(input, options);
  }
}
