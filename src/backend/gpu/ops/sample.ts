/** Choosing tokens: per sequence its settings, seed and step, a mark for every token seen, and room for a row's weights. */
import { fail } from "../../../core/errors.ts";
import type { View } from "../../backend.ts";
import type { Storage } from "../../storage.ts";
import type { SamplerSpec, TokenSampler } from "../../transformers.ts";
import type { ValuesFor } from "../catalogue.ts";
import { SAMPLE_BINS, SAMPLE_PIECE, samplesAtOnce } from "../families/sample.ts";
import { addressOf, at, type Gpu } from "../gpu.ts";

const SEQUENCE_WORDS = 7;

/** All that the kernels take. */
type Values = ValuesFor<"sample_best"> & ValuesFor<"sample_weigh"> & ValuesFor<"sample_draw">;
type Fixed = Omit<Values, "logits" | "stride" | "out">;

export class GpuSampler implements TokenSampler {
  readonly #gpu: Gpu;
  readonly #memory: Storage;
  readonly #draws: boolean;
  readonly #values: Fixed;

  static for(gpu: Gpu, vocab: number, specs: readonly SamplerSpec[]): GpuSampler | null {
    return specs.length === 0 || vocab === 0 || !samplesAtOnce(specs.length, vocab)
      ? null
      : new GpuSampler(gpu, vocab, specs);
  }

  private constructor(gpu: Gpu, vocab: number, specs: readonly SamplerSpec[]) {
    const rows = specs.length;
    const pieces = rows * Math.ceil(vocab / SAMPLE_PIECE);
    const draws = specs.some((spec) => spec.temperature !== 0);
    const sequences = settings(specs);
    const seen = specs.some((spec) => spec.repetitionPenalty !== 1) ? marks(vocab, specs) : null;
    // In bytes; weights are needed only where something is drawn.
    const drawing = {
      kept: pieces * 8,
      sums: rows * SAMPLE_BINS * 8,
      counts: rows * SAMPLE_BINS * 4,
      falls: pieces * SAMPLE_PIECE * 8,
      bins: pieces * SAMPLE_PIECE * 2,
    };
    const sizes = { sequences: sequences.length, best: pieces * 8, seen: seen?.length ?? 0, ...drawing };
    const offsets: Record<string, number> = {};
    let end = 0;
    for (const [name, bytes] of Object.entries(sizes)) {
      if (bytes === 0 || (!draws && name in drawing)) continue;
      offsets[name] = end;
      end += Math.ceil(bytes / 16) * 16;
    }
    this.#gpu = gpu;
    this.#draws = draws;
    this.#memory = gpu.make("u8", end);
    this.#memory.retain();
    gpu.write(this.#memory, offsets.sequences!, sequences);
    if (seen) gpu.write(this.#memory, offsets.seen!, seen);
    const base = addressOf(this.#memory);
    const addresses = Object.keys(sizes).map((name) => [name, name in offsets ? base + offsets[name]! : 0]);
    const scale = 2 ** Math.min(53, 63 - Math.ceil(Math.log2(vocab)));
    this.#values = { ...(Object.fromEntries(addresses) as Fixed), vocab, rows, scale };
  }

  sample(logits: View, ids: Storage): void {
    if (this.#memory.freed) fail("Disposed", "the sampler was disposed; make a new one");
    const values = { ...this.#values, logits: at(logits), stride: logits.layout.strides[0]!, out: addressOf(ids) };
    this.#gpu.launch("sample_best", values);
    if (this.#draws) this.#gpu.launch("sample_weigh", values);
    this.#gpu.launch("sample_draw", values);
  }

  [Symbol.dispose](): void {
    if (!this.#memory.freed) this.#memory.release();
  }
}

/** Sequences as the kernels read them: four f64, then topK, seed and step as u64. */
function settings(specs: readonly SamplerSpec[]): Uint8Array {
  const words = new BigUint64Array(specs.length * SEQUENCE_WORDS);
  const numbers = new Float64Array(words.buffer);
  for (const [row, { temperature, topP, minP, repetitionPenalty, topK, seed }] of specs.entries()) {
    numbers.set([temperature, topP, minP, repetitionPenalty], row * SEQUENCE_WORDS);
    words.set([BigInt(topK), BigInt.asUintN(64, seed)], row * SEQUENCE_WORDS + 4);
  }
  return new Uint8Array(words.buffer);
}

function marks(vocab: number, specs: readonly SamplerSpec[]): Uint8Array {
  const seen = new Uint8Array(specs.length * vocab);
  for (const [row, { prompt }] of specs.entries()) {
    for (const token of prompt) if (token < vocab) seen[row * vocab + token] = 1;
  }
  return seen;
}
