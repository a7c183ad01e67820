/** Chooses tokens on the host, for devices without kernels for it. */
import type { Backend, View } from "../../backend/backend.ts";
import type { Storage } from "../../backend/storage.ts";
import {
  type Chosen,
  MOST_LOGPROBS,
  NO_SLOT,
  NO_TOKEN,
  type SamplerSpec,
  type TokenSampler,
} from "../../backend/transformers.ts";
import { fail, WickError } from "../../core/errors.ts";
import { logprobsOf, RowSampler } from "./row-sampler.ts";

interface Slot {
  readonly sampler: RowSampler;
  mask: Uint32Array | null;
}

export class HostSampler implements TokenSampler {
  readonly tokens: Storage;
  readonly rows: Storage;
  readonly #vocab: number;
  readonly #slots: (Slot | null)[];
  readonly #chosen: Uint32Array;
  readonly #logprobs: Float32Array;
  readonly #topTokens: Uint32Array;
  readonly #topLogprobs: Float32Array;
  #placed: readonly number[] = [];

  constructor(backend: Backend, vocab: number, slots: number) {
    this.#vocab = vocab;
    this.#slots = new Array<Slot | null>(slots).fill(null);
    this.#chosen = new Uint32Array(slots);
    this.#logprobs = new Float32Array(slots);
    this.#topTokens = new Uint32Array(slots * MOST_LOGPROBS);
    this.#topLogprobs = new Float32Array(slots * MOST_LOGPROBS);
    this.tokens = backend.fill("u32", slots, 0);
    this.rows = backend.fill("u32", slots, NO_SLOT);
    this.tokens.retain();
    this.rows.retain();
  }

  assign(slot: number, spec: SamplerSpec): void {
    this.#slots[slot] = { sampler: new RowSampler(spec), mask: null };
  }

  release(slot: number): void {
    this.#slots[slot] = null;
  }

  place(slots: readonly number[]): void {
    this.#placed = [...slots];
    const rows = new Uint32Array(this.#slots.length).fill(NO_SLOT);
    rows.set(slots);
    this.rows.write(0, new Uint8Array(rows.buffer));
  }

  restrict(slot: number, mask: Uint32Array | null): void {
    this.#slots[slot]!.mask = mask;
  }

  sample({ storage, layout }: View): void {
    if (this.tokens.freed) fail("Disposed", "the sampler was disposed; make a new one");
    const rows = Math.min(layout.shape[0]!, this.#placed.length);
    for (let row = 0; row < rows; row++) {
      const slot = this.#placed[row]!;
      if (slot === NO_SLOT) continue;
      const bytes = storage.readSync(4 * (layout.offset + row * layout.strides[0]!), 4 * this.#vocab);
      this.#choose(slot, new Float32Array(bytes.buffer, bytes.byteOffset, this.#vocab));
    }
    this.tokens.write(0, new Uint8Array(this.#chosen.buffer));
  }

  async read(): Promise<Chosen> {
    return {
      tokens: this.#chosen.slice(),
      logprobs: this.#logprobs.slice(),
      topTokens: this.#topTokens.slice(),
      topLogprobs: this.#topLogprobs.slice(),
    };
  }

  [Symbol.dispose](): void {
    if (this.tokens.freed) return;
    this.tokens.release();
    this.rows.release();
  }

  #choose(slot: number, logits: Float32Array): void {
    const { sampler, mask } = this.#slots[slot]!;
    const { logprobs } = sampler.spec;
    const raw = logprobs === null ? null : logits.slice();
    const token = orNone(() => sampler.sample(logits, mask));
    this.#chosen[slot] = token;
    if (raw && token !== NO_TOKEN) {
      const { own, top } = logprobsOf(raw, token, logprobs!);
      this.#logprobs[slot] = own;
      this.#topTokens.set(
        top.map((each) => each.token),
        slot * MOST_LOGPROBS,
      );
      this.#topLogprobs.set(
        top.map((each) => each.logprob),
        slot * MOST_LOGPROBS,
      );
    }
  }
}

/** A row without a token is told by its own: the others are none the worse for it. */
function orNone(choose: () => number): number {
  try {
    return choose();
  } catch (error) {
    if (error instanceof WickError && error.code === "ValueOutOfRange") return NO_TOKEN;
    throw error;
  }
}
