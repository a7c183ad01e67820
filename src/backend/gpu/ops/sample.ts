/**
 * Choosing tokens. A slot is a record that the kernels read: a request's settings, seed and step, and where its marks of
 * tokens, its bias and its mask are; those that have none cost nothing. What a row needs while it is chosen from lies beside.
 */
import { fail } from "../../../core/errors.ts";
import type { View } from "../../backend.ts";
import type { Storage } from "../../storage.ts";
import { type Chosen, MOST_LOGPROBS, NO_SLOT, type SamplerSpec, type TokenSampler } from "../../transformers.ts";
import type { ValuesFor } from "../catalogue.ts";
import { quantOutput } from "../families/quantized.ts";
import { SAMPLE_BINS, SAMPLE_PIECE, SAMPLE_TOPS, samplePieces, samplesAtOnce } from "../families/sample.ts";
import { addressOf, at, type Gpu } from "../gpu.ts";

const SLOT_WORDS = 13;
const TOLD_WORDS = 1 + 2 * SAMPLE_TOPS;
/** The bit of a mark that says that the prompt has the token; the others count the answer's. */
const IN_PROMPT = 2 ** 31;

/** All that the kernels take. */
type Values = ValuesFor<"sample_best"> & ValuesFor<"sample_weigh"> & ValuesFor<"sample_draw">;
type Fixed = Omit<Values, "logits" | "stride" | "count" | "dtype" | "each">;

/** What a slot has beyond its record, and what it asked for. */
interface Held {
  readonly marks: Storage | null;
  readonly bias: Storage | null;
  readonly mask: Storage | null;
  readonly told: boolean;
}

export class GpuSampler implements TokenSampler {
  readonly tokens: Storage;
  readonly rows: Storage;
  readonly #gpu: Gpu;
  readonly #vocab: number;
  readonly #records: Storage;
  readonly #told: Storage;
  readonly #scratch: Storage;
  readonly #held: (Held | null)[];
  readonly #values: Fixed;
  #placed: readonly number[] = [];

  static for(gpu: Gpu, vocab: number, slots: number): GpuSampler | null {
    return slots === 0 || vocab === 0 || !samplesAtOnce(slots, vocab) ? null : new GpuSampler(gpu, vocab, slots);
  }

  private constructor(gpu: Gpu, vocab: number, slots: number) {
    this.#gpu = gpu;
    this.#vocab = vocab;
    this.#held = new Array<Held | null>(slots).fill(null);
    const pieces = slots * Math.ceil(vocab / SAMPLE_PIECE);
    // In bytes, for as many rows as there are slots; all are multiples of 8.
    const sizes = {
      best: pieces * 8,
      kept: pieces * 8,
      totals: pieces * 8,
      tops: pieces * SAMPLE_TOPS * 8,
      sums: slots * SAMPLE_BINS * 8,
      counts: slots * SAMPLE_BINS * 4,
      bins: pieces * SAMPLE_PIECE * 2,
    };
    const make = (dtype: "u32" | "u8", n: number): Storage => {
      const storage = gpu.make(dtype, n);
      storage.retain();
      return storage;
    };
    this.tokens = make("u32", slots);
    this.rows = make("u32", slots);
    this.#records = make("u8", slots * SLOT_WORDS * 8);
    this.#told = make("u32", slots * TOLD_WORDS);
    this.#scratch = make(
      "u8",
      Object.values(sizes).reduce((sum, bytes) => sum + bytes),
    );
    let end = addressOf(this.#scratch);
    const addresses = Object.entries(sizes).map(([name, bytes]) => {
      end += bytes;
      return [name, end - bytes];
    });
    this.#values = {
      ...(Object.fromEntries(addresses) as Record<keyof typeof sizes, number>),
      tokens: addressOf(this.tokens),
      rows: addressOf(this.rows),
      slots: addressOf(this.#records),
      told: addressOf(this.#told),
      vocab,
      scale: 2 ** Math.min(53, 63 - Math.ceil(Math.log2(vocab))),
    };
    gpu.write(this.tokens, 0, new Uint8Array(this.tokens.byteLength));
    this.place([]);
  }

  assign(slot: number, spec: SamplerSpec): void {
    this.release(slot);
    const { prompt, answer, logitBias, repetitionPenalty, presencePenalty, frequencyPenalty } = spec;
    const penalises = repetitionPenalty !== 1 || presencePenalty !== 0 || frequencyPenalty !== 0;
    const held = {
      marks: penalises ? this.#upload(marks(this.#vocab, prompt, answer)) : null,
      bias: logitBias.size > 0 ? this.#upload(biases(this.#vocab, logitBias)) : null,
      mask: spec.masked ? this.#upload(this.#all()) : null,
      told: spec.logprobs !== null,
    };
    this.#held[slot] = held;
    this.#gpu.write(this.#records, slot * SLOT_WORDS * 8, record(spec, held));
  }

  /** The record stays: no row is placed there before it is written anew. */
  release(slot: number): void {
    const held = this.#held[slot];
    if (!held) return;
    for (const storage of [held.marks, held.bias, held.mask]) storage?.release();
    this.#held[slot] = null;
  }

  place(slots: readonly number[]): void {
    const rows = new Uint32Array(this.rows.length).fill(NO_SLOT);
    rows.set(slots);
    this.#gpu.write(this.rows, 0, bytesOf(rows));
    this.#placed = [...slots];
  }

  restrict(slot: number, mask: Uint32Array | null): void {
    this.#gpu.write(this.#held[slot]!.mask!, 0, bytesOf(mask ?? this.#all()));
  }

  sample(logits: View, draws = true): void {
    if (this.rows.freed) fail("Disposed", "the sampler was disposed; make a new one");
    const { shape, strides } = logits.layout;
    const dtype = quantOutput[logits.storage.dtype]!;
    const count = shape[0]!;
    const own = { logits: at(logits), stride: strides[0]!, count, dtype, each: samplePieces(count) };
    const values = { ...this.#values, ...own };
    if (values.count === 0) return;
    this.#gpu.launch("sample_best", values);
    if (draws) this.#gpu.launch("sample_weigh", values);
    this.#gpu.launch("sample_draw", values);
  }

  async read(): Promise<Chosen> {
    const told = this.#placed.some((slot) => this.#held[slot]?.told);
    const chosen = this.#gpu.readWords(this.tokens);
    if (!told) return { tokens: new Uint32Array((await chosen).buffer), ...NOTHING_TOLD };
    const [tokens, words] = await Promise.all([chosen, this.#told.read()]);
    return { tokens: new Uint32Array(tokens.buffer), ...toldOf(words.buffer) };
  }

  [Symbol.dispose](): void {
    if (this.rows.freed) return;
    for (const slot of this.#held.keys()) this.release(slot);
    for (const storage of [this.tokens, this.rows, this.#records, this.#told, this.#scratch]) storage.release();
  }

  #all(): Uint32Array {
    return new Uint32Array(Math.ceil(this.#vocab / 32)).fill(0xffffffff);
  }

  #upload(words: Uint32Array | Float32Array): Storage {
    const storage = this.#gpu.make("u8", words.byteLength);
    storage.retain();
    this.#gpu.write(storage, 0, bytesOf(words));
    return storage;
  }
}

const NOTHING_TOLD = { logprobs: null, topTokens: null, topLogprobs: null };

const bytesOf = ({ buffer, byteOffset, byteLength }: Uint32Array | Float32Array): Uint8Array =>
  new Uint8Array(buffer, byteOffset, byteLength);

/** A slot as the kernels read it. */
function record(spec: SamplerSpec, { marks, bias, mask }: Held): Uint8Array {
  const view = new DataView(new ArrayBuffer(8 * SLOT_WORDS));
  const { temperature, topP, minP, repetitionPenalty, presencePenalty, frequencyPenalty } = spec;
  const numbers = [temperature, topP, minP, repetitionPenalty, presencePenalty, frequencyPenalty];
  for (let i = 0; i < numbers.length; i++) view.setFloat64(8 * i, numbers[i]!, true);
  const address = (storage: Storage | null): number => (storage ? addressOf(storage) : 0);
  const told = spec.logprobs === null ? 0 : spec.logprobs + 1;
  const counts = [spec.topK, 0, spec.answer.length, address(marks), address(bias), address(mask), told];
  // Whole numbers below 2⁵³, without a BigInt each.
  for (let i = 0; i < counts.length; i++) {
    view.setUint32(8 * (numbers.length + i), counts[i]! % 2 ** 32, true);
    view.setUint32(8 * (numbers.length + i) + 4, Math.floor(counts[i]! / 2 ** 32), true);
  }
  view.setBigUint64(8 * (numbers.length + 1), BigInt.asUintN(64, spec.seed), true);
  return new Uint8Array(view.buffer);
}

function marks(vocab: number, prompt: readonly number[], answer: readonly number[]): Uint32Array {
  const marks = new Uint32Array(vocab);
  for (const token of prompt) if (token < vocab) marks[token] = IN_PROMPT;
  for (const token of answer) if (token < vocab) marks[token]!++;
  return marks;
}

function biases(vocab: number, bias: ReadonlyMap<number, number>): Float32Array {
  const biases = new Float32Array(vocab);
  for (const [token, value] of bias) if (token < vocab) biases[token] = value;
  return biases;
}

function toldOf(buffer: ArrayBufferLike): Omit<Chosen, "tokens"> {
  const words = new Uint32Array(buffer);
  const slots = words.length / TOLD_WORDS;
  const logprobs = new Float32Array(slots);
  const topTokens = new Uint32Array(slots * MOST_LOGPROBS);
  const topLogprobs = new Float32Array(slots * MOST_LOGPROBS);
  const numbers = new Float32Array(buffer);
  for (let slot = 0; slot < slots; slot++) {
    const [own, ids, values] = [0, 1, 1 + SAMPLE_TOPS].map((offset) => slot * TOLD_WORDS + offset) as [
      number,
      number,
      number,
    ];
    logprobs[slot] = numbers[own]!;
    topTokens.set(words.subarray(ids, ids + MOST_LOGPROBS), slot * MOST_LOGPROBS);
    topLogprobs.set(numbers.subarray(values, values + MOST_LOGPROBS), slot * MOST_LOGPROBS);
  }
  return { logprobs, topTokens, topLogprobs };
}
