/** A language model: the transformer with its tokenizer and chat template. */
import type { Device } from "../backend/device.ts";
import type { DType } from "../core/dtype.ts";
import { fail } from "../core/errors.ts";
import { Tensor } from "../ops/index.ts";
import { type ModelCache, type ModelCacheOptions, namesOf } from "./cache.ts";
import type { AnswerForm } from "./chat/answer-form.ts";
import { answerFormOf, type ChatEvent, type ChatOptions, chat, needTemplate } from "./chat/chat.ts";
import type { ChatMessage } from "./chat/messages.ts";
import type { ModelConfig } from "./config.ts";
import {
  type BatchOptions,
  type EmbedOptions,
  inBatches,
  rowsInBatches,
  type ScoreOptions,
} from "./embeddings/embed.ts";
import { pool, unitRows } from "./embeddings/pooling.ts";
import { type EmbedInput, type SequenceOptions, sequencesOf, type TextPair } from "./embeddings/sequences.ts";
import { type EmbeddingSettings, poolingNamed, usualPooling, usualSettings } from "./embeddings/settings.ts";
import { Encoder } from "./encoder/encoder.ts";
import { type GenerateOptions, generate, type Piece } from "./generation/generate.ts";
import type { Packed } from "./packed.ts";
import type { DeviceShare } from "./placement/choose.ts";
import { devicesOf } from "./placement/sites.ts";
import type { ChatTemplate } from "./text/chat-template.ts";
import type { Tokenizer } from "./text/tokenizer.ts";
import type { Transformer, TransformerOptions } from "./transformer.ts";

/** Text, token ids, or a chat. */
export type Prompt = string | readonly number[] | readonly ChatMessage[];
/** One sequence, several of one length, or a tensor (batch, length). */
export type TokenIds = readonly number[] | readonly (readonly number[])[] | Tensor;
export type ForwardOptions = Omit<TransformerOptions, "last">;

export class Model implements Disposable {
  readonly #body: Transformer | Encoder;
  /** Null where the model came without one: it then takes token ids only. */
  readonly tokenizer: Tokenizer | null;
  readonly chatTemplate: ChatTemplate | null;
  /** How its authors mean it to embed. */
  readonly embedding: EmbeddingSettings;
  /** What lies on each device, as it was planned before it was loaded; nothing of a model that was put together by hand. */
  readonly placement: readonly DeviceShare[];

  constructor(
    body: Transformer | Encoder,
    tokenizer: Tokenizer | null,
    chatTemplate: ChatTemplate | null,
    embedding: EmbeddingSettings = usualSettings(usualPooling(body.config)),
    placement: readonly DeviceShare[] = [],
  ) {
    this.#body = body;
    this.tokenizer = tokenizer;
    this.chatTemplate = chatTemplate;
    this.embedding = embedding;
    this.placement = placement;
  }

  /** What generates. Encoders have none. */
  get transformer(): Transformer {
    if (!(this.#body instanceof Encoder)) return this.#body;
    const { architecture } = this.config;
    return fail("InvalidArgument", `${architecture} is an encoder: it embeds texts (embed, score) and generates none`);
  }

  get config(): ModelConfig {
    return this.#body.config;
  }

  /** Where its logits, states and vectors are; of several devices, that of the last layers. */
  get device(): Device {
    return this.#body.device;
  }

  /** Every device that has a part of it, in the order of the layers. */
  get devices(): readonly Device[] {
    return devicesOf(this.#body.sites);
  }

  /** What it computes in. */
  get dtype(): DType {
    return this.#body.dtype;
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
    return this.transformer.newCache(options);
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

  /** The vectors of texts, or of their token ids: (texts, width) in f32, on the model's device. */
  async embed(texts: readonly EmbedInput[], options: EmbedOptions = {}): Promise<Tensor> {
    const { embedding, device } = this;
    const pooling = options.pooling === undefined ? embedding.pooling : poolingNamed(options.pooling);
    const normalize = options.normalize ?? embedding.normalize;
    const sequences = sequencesOf(texts, options.prompt, this.#sequenceOptions(options));
    if (sequences.length === 0) return Tensor.zeros([0, this.config.hiddenSize], { device });
    return inBatches(sequences, this, options, (packed) => {
      const vectors = pool(this.#states(packed), packed, pooling);
      return normalize ? unitRows(vectors) : vectors;
    });
  }

  /** The state of each token of each text, (tokens, width) in f32. */
  async hiddenStates(texts: readonly EmbedInput[], options: BatchOptions = {}): Promise<Tensor[]> {
    const sequences = sequencesOf(texts, undefined, this.#sequenceOptions(options));
    return rowsInBatches(sequences, this, options, (packed) => this.#states(packed).toDType("f32"));
  }

  /** Whether it has a classification head of one label, as rerankers have, and so can `score`. */
  get canScore(): boolean {
    return this.config.encoder?.labels.length === 1;
  }

  /** How well each text answers its query, by a reranker: the higher the better. */
  async score(pairs: readonly TextPair[], options: ScoreOptions = {}): Promise<number[]> {
    const { labels } = this.#needHead();
    if (labels.length !== 1) {
      fail(
        "InvalidArgument",
        `score: the model gives ${labels.length} labels (${labels.join(", ")}) and no one score; use classify`,
      );
    }
    using logits = await this.classify(pairs, options);
    const values = Array.from((await logits.data()) as Float32Array);
    return options.activation === "sigmoid" ? values.map((x) => 1 / (1 + Math.exp(-x))) : values;
  }

  /** A score for each label of the model's classification head, before any softmax: (texts, labels) in f32. */
  async classify(texts: readonly (EmbedInput | TextPair)[], options: BatchOptions = {}): Promise<Tensor> {
    const { head, labels } = this.#needHead();
    const sequences = sequencesOf(texts, undefined, this.#sequenceOptions(options));
    if (sequences.length === 0) return Tensor.zeros([0, labels.length], { device: this.device });
    return inBatches(sequences, this, options, (packed) => head.forward(this.#states(packed), packed));
  }

  /** Frees the weights. */
  dispose(): void {
    this.#body[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    this.dispose();
  }

  toString(): string {
    const { architecture, layers, hiddenSize, vocabSize, contextLength } = this.config;
    const sizes = `${layers} layers of ${hiddenSize}, ${vocabSize} tokens, context ${contextLength}`;
    return `Model(${architecture}, ${sizes}, ${this.dtype}, ${namesOf(this.devices)})`;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.toString();
  }

  #states(packed: Packed): Tensor {
    return this.#body instanceof Encoder ? this.#body.forward(packed) : this.#body.hidden(packed);
  }

  #sequenceOptions({ truncate }: BatchOptions): SequenceOptions {
    const { config, embedding: settings } = this;
    return { config, settings, truncate, tokenizer: () => this.#needTokenizer() };
  }

  #needHead() {
    const head = this.#body instanceof Encoder ? this.#body.head : null;
    if (head) return { head, labels: this.config.encoder!.labels };
    return fail(
      "InvalidArgument",
      "the model has no classification head, as rerankers have one; compare what embed gives",
    );
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
