/** Tokens for the rows of a batch whose requests come and go, chosen by the device where it can. */
import { call } from "../../backend/call.ts";
import type { Device } from "../../backend/device.ts";
import {
  type Chosen,
  MOST_LOGPROBS,
  NO_SLOT,
  NO_TOKEN,
  type SamplerSpec,
  type TokenSampler,
} from "../../backend/transformers.ts";
import { fail, ValueError, type WickError } from "../../core/errors.ts";
import { Layout } from "../../core/layout.ts";
import { Tensor } from "../../ops/index.ts";
import { HostSampler } from "./host-sampler.ts";
import { noToken, type TokenLogprob } from "./row-sampler.ts";

export interface Choice {
  readonly token: number;
  /** Where the request asked for it. */
  readonly logprob?: number | undefined;
  /** By falling probability. */
  readonly top?: readonly TokenLogprob[] | undefined;
}

export class BatchSampler implements Disposable {
  readonly slots: number;
  readonly vocab: number;
  /** u32 (slots) on the device: the newest token of each slot, for the next step to read. */
  readonly tokens: Tensor;
  /** u32 (slots) on the device: the slot of each row, 0xffffffff for nobody's, so that gathering `tokens` by it gives 0. */
  readonly rows: Tensor;
  /** Whether steps may be enqueued before the tokens of those before them are known. */
  readonly onDevice: boolean;
  readonly #sampler: TokenSampler;
  readonly #specs: (SamplerSpec | null)[];
  #placed: readonly (number | null)[] = [];

  constructor(device: Device, vocab: number, slots: number) {
    this.vocab = vocab;
    this.slots = slots;
    const { backend } = device;
    const own = backend.transformers?.sampler(vocab, slots);
    this.#sampler = own ?? new HostSampler(backend, vocab, slots);
    this.onDevice = Boolean(own);
    this.tokens = new Tensor(this.#sampler.tokens, Layout.contiguous([slots])).keep();
    this.rows = new Tensor(this.#sampler.rows, Layout.contiguous([slots])).keep();
    this.#specs = new Array<SamplerSpec | null>(slots).fill(null);
  }

  /**
   * From the next step on the slot is this request's: `new Sampler(options, prompt).spec`, with the answer so far where it
   * is taken up again, and with `logprobs` or `masked` where it needs them.
   */
  assign(slot: number, spec: SamplerSpec): void {
    this.#checkSlot(slot);
    this.#sampler.assign(slot, spec);
    this.#specs[slot] = spec;
  }

  release(slot: number): void {
    this.#checkSlot(slot);
    this.#sampler.release(slot);
    this.#specs[slot] = null;
  }

  /**
   * Before a step, outside of recordings: which slot each row of logits belongs to (null: nobody's), and for slots assigned
   * as masked which tokens may come, a bit for each, 32 to a word (null: all). Stays until it is said anew, but for masks,
   * which are for one step.
   */
  place(slots: readonly (number | null)[], masks: readonly (Uint32Array | null)[] = []): void {
    if (slots.length > this.slots) fail("InvalidArgument", `${slots.length} rows are more than ${this.slots} slots`);
    for (const slot of slots) if (slot !== null) this.#checkAssigned(slot);
    const held = slots.filter((slot) => slot !== null);
    if (new Set(held).size < held.length) fail("InvalidArgument", `two rows of a step have one slot: ${held.join()}`);
    if (slots.length !== this.#placed.length || slots.some((slot, row) => slot !== this.#placed[row])) {
      this.#sampler.place(slots.map((slot) => slot ?? NO_SLOT));
      this.#placed = [...slots];
    }
    for (const [row, slot] of slots.entries()) {
      if (slot !== null && this.#specs[slot]!.masked) this.#sampler.restrict(slot, this.#checkMask(masks[row] ?? null));
    }
  }

  /** Enqueues the choice for f32 logits (rows, vocab); may be recorded. */
  choose(logits: Tensor): void {
    const [rows, vocab] = logits.shape;
    if (logits.rank !== 2 || vocab !== this.vocab || rows! > this.slots || logits.dtype !== "f32") {
      const wanted = `f32 of at most (${this.slots}, ${this.vocab})`;
      fail(
        "ShapeMismatch",
        `tokens are chosen from logits, ${wanted}, not ${logits.dtype} (${logits.shape.join(", ")})`,
      );
    }
    call(this.#sampler, "sample", logits);
  }

  /**
   * What the steps enqueued so far chose for the rows placed last: an error where a row has no probabilities, or where its
   * mask leaves no token (the others are none the worse for it); null for rows that are nobody's.
   */
  async read(): Promise<readonly (Choice | WickError | null)[]> {
    const placed = this.#placed;
    const specs = placed.map((slot) => (slot === null ? null : this.#specs[slot]));
    const chosen = await this.#sampler.read();
    return placed.map((slot, row) => (slot === null ? null : this.#choice(chosen, slot, specs[row]!)));
  }

  [Symbol.dispose](): void {
    this.tokens.dispose();
    this.rows.dispose();
    this.#sampler[Symbol.dispose]();
  }

  #checkSlot(slot: number): void {
    if (Number.isInteger(slot) && slot >= 0 && slot < this.slots) return;
    fail("InvalidArgument", `there is no slot ${slot}; the sampler has ${this.slots}`);
  }

  #checkAssigned(slot: number): void {
    this.#checkSlot(slot);
    if (!this.#specs[slot]) fail("InvalidArgument", `slot ${slot} belongs to no request; assign it first`);
  }

  #checkMask(mask: Uint32Array | null): Uint32Array | null {
    const words = Math.ceil(this.vocab / 32);
    if (mask && mask.length !== words) {
      fail("ShapeMismatch", `a mask for ${this.vocab} tokens has ${words} words, not ${mask.length}`);
    }
    return mask;
  }

  #choice(chosen: Chosen, slot: number, spec: SamplerSpec): Choice | WickError {
    const token = chosen.tokens[slot]!;
    if (token === NO_TOKEN) return new ValueError("ValueOutOfRange", noToken(null, spec.masked));
    if (spec.logprobs === null) return { token };
    const first = slot * MOST_LOGPROBS;
    const top = Array.from({ length: Math.min(spec.logprobs, this.vocab) }, (_, i) => {
      return { token: chosen.topTokens![first + i]!, logprob: chosen.topLogprobs![first + i]! };
    });
    return { token, logprob: chosen.logprobs![slot]!, top };
  }
}
