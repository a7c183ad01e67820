/** Sequences of any lengths one after the other, without padding: products and norms run over the rows of all at once. */
import type { Device } from "../backend/device.ts";
import { sdpaVarlen } from "../nn/index.ts";
import { Tensor } from "../ops/index.ts";
import type { RopeConfig } from "./config.ts";
import { type Run, runsOf } from "./embeddings/batches.ts";
import type { Sequence } from "./embeddings/embed.ts";
import { attendLatents, expansionPays, type LatentHeads, type LatentRows } from "./latent-attention.ts";
import type { Positions } from "./positions.ts";
import type { Rotation } from "./rotary.ts";
import { type AttentionParams, normedHeads, type Step } from "./steps.ts";

export class Packed {
  readonly lengths: readonly number[];
  /** Neighbours of one length. */
  readonly runs: readonly Run[];
  readonly rows: number;
  readonly sequences: readonly Sequence[];
  #positions: Positions | undefined;

  constructor(sequences: readonly Sequence[]) {
    this.sequences = sequences;
    this.lengths = sequences.map(({ ids }) => ids.length);
    this.runs = runsOf(this.lengths);
    this.rows = this.lengths.reduce((sum, length) => sum + length, 0);
  }

  /** The ids of all tokens, (rows). */
  ids(device: Device): Tensor {
    return this.numbers(({ ids }, out) => out.set(ids), device);
  }

  /** A number for each row, (rows): `write` gives those of a sequence. */
  numbers(write: (sequence: Sequence, out: Uint32Array) => void, device: Device): Tensor {
    const all = new Uint32Array(this.rows);
    let start = 0;
    for (const sequence of this.sequences) {
      write(sequence, all.subarray(start, start + sequence.ids.length));
      start += sequence.ids.length;
    }
    return Tensor.from(all, { device });
  }

  /** Where each row stands in its sequence, for one batch of all of them. */
  get positions(): Positions {
    if (!this.#positions) {
      const each: number[] = [];
      for (const length of this.lengths) for (let i = 0; i < length; i++) each.push(i);
      this.#positions = { each: [each] };
    }
    return this.#positions;
  }

  /** Where each sequence begins, and where the last one ends. */
  get offsets(): number[] {
    const offsets = [0];
    for (const length of this.lengths) offsets.push(offsets.at(-1)! + length);
    return offsets;
  }

  get longest(): number {
    return Math.max(...this.lengths);
  }
}

/** What turns heads at these positions; call it inside a scope. */
export type RotationsAt = (positions: Positions) => ReadonlyMap<RopeConfig, Rotation>;

/** Every sequence attends to itself: up to each position, or, where nothing is `causal`, to all of it. */
export class PackedStep implements Step {
  /** To the layers all is one sequence. */
  readonly batch = 1;
  readonly length: number;
  readonly #packed: Packed;
  readonly #causal: boolean;
  readonly #rotationsAt: RotationsAt;
  readonly #rotations: ReadonlyMap<RopeConfig, Rotation>;
  readonly #offsets: Tensor;

  /** Call it inside a scope. */
  constructor(packed: Packed, causal: boolean, rotationsAt: RotationsAt, device: Device) {
    this.length = packed.rows;
    this.#packed = packed;
    this.#causal = causal;
    this.#rotationsAt = rotationsAt;
    this.#rotations = rotationsAt(packed.positions);
    this.#offsets = Tensor.from(BigInt64Array.from(packed.offsets, BigInt), { device });
  }

  attend(rawQ: Tensor, rawK: Tensor, v: Tensor, _cache: undefined, params: AttentionParams): Tensor {
    const [q, k] = normedHeads(rawQ, rawK, params);
    const { headDim, rope, scale, softcap, window, sinks } = params;
    const split = (x: Tensor): Tensor => x.reshape([this.length, -1, headDim]);
    const rotate = this.#rotations.get(rope)!;
    const turned = (x: Tensor): Tensor =>
      rope.dims === 0 ? split(x) : rotate(split(x).transpose(0, 1).unsqueeze(0)).squeeze(0).transpose(0, 1);
    const options = { scale, softcap, causal: this.#causal, window, ...(sinks && { sinks }) };
    return sdpaVarlen(turned(q), turned(k), split(v), this.#offsets, options).unsqueeze(0).transpose(1, 2);
  }

  /** Sequences of one length side by side. */
  attendLatent({ q, latent, key }: LatentRows, _cache: undefined, heads: LatentHeads): Tensor {
    const parts = this.#packed.runs.map(({ start, count, length }) => {
      const own = (x: Tensor): Tensor => x.narrow(0, start, count * length);
      const rotate = this.#rotationsAt({ start: 0, length }).get(heads.rope)!;
      const rows = { q: own(q), latent: own(latent), key: own(key) };
      return attendLatents(
        rows,
        { batch: count, length },
        undefined,
        rotate,
        () => null,
        heads,
        expansionPays(length, heads),
      );
    });
    return parts.length === 1 ? parts[0]! : Tensor.cat(parts, 0);
  }
}
