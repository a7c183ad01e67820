/** Sequences of any lengths one after the other, without padding: products and norms run over the rows of all at once. */
import type { Device } from "../backend/device.ts";
import { sdpa } from "../nn/index.ts";
import { Tensor } from "../ops/index.ts";
import type { RopeConfig } from "./config.ts";
import { type Run, runsOf } from "./embeddings/batches.ts";
import type { Sequence } from "./embeddings/embed.ts";
import type { Positions } from "./positions.ts";
import type { Rotation } from "./rotary.ts";
import type { AttentionParams, Step } from "./steps.ts";

export class Packed {
  readonly lengths: readonly number[];
  /** Neighbours of one length. */
  readonly runs: readonly Run[];
  readonly rows: number;
  readonly sequences: readonly Sequence[];

  constructor(sequences: readonly Sequence[]) {
    this.sequences = sequences;
    this.lengths = sequences.map(({ ids }) => ids.length);
    this.runs = runsOf(this.lengths);
    this.rows = this.lengths.reduce((sum, length) => sum + length, 0);
  }

  /** A number for each row, (rows). */
  numbers(of: (sequence: Sequence) => readonly number[], device: Device): Tensor {
    return Tensor.from(Uint32Array.from(this.sequences.flatMap(of)), { device });
  }

  /** Where each row stands in its sequence, for one batch of all of them. */
  get positions(): Positions & { readonly each: readonly [readonly number[]] } {
    return { each: [this.lengths.flatMap((length) => Array.from({ length }, (_, i) => i))] };
  }

  get longest(): number {
    return Math.max(...this.lengths);
  }
}

/** Every sequence attends to itself: up to each position, or, where nothing is `causal`, to all of it. */
export class PackedStep implements Step {
  /** To the layers all is one sequence. */
  readonly batch = 1;
  readonly length: number;

  constructor(
    readonly packed: Packed,
    readonly causal: boolean,
    readonly rotations: ReadonlyMap<RopeConfig, Rotation>,
  ) {
    this.length = packed.rows;
  }

  attend(q: Tensor, k: Tensor, v: Tensor, _cache: undefined, params: AttentionParams): Tensor {
    const rotate = this.rotations.get(params.rope)!;
    const split = (x: Tensor): Tensor => x.reshape([1, this.length, -1, params.headDim]).transpose(1, 2);
    const [queries, keys, values] = [rotate(split(q)), rotate(split(k)), split(v)];
    const parts = this.packed.runs.map((run) => this.#attendRun(queries, keys, values, run, params));
    const rows = parts.length === 1 ? parts[0]! : Tensor.cat(parts, 0);
    return rows.unsqueeze(0).transpose(1, 2);
  }

  /** Sequences of one length side by side: (rows of the run, heads, headDim). */
  #attendRun(q: Tensor, k: Tensor, v: Tensor, { start, count, length }: Run, params: AttentionParams): Tensor {
    const { headDim, scale, softcap, window, sinks } = params;
    const own = (x: Tensor): Tensor =>
      x
        .transpose(1, 2)
        .narrow(1, start, count * length)
        .reshape([count, length, -1, headDim])
        .transpose(1, 2);
    const options = { scale, softcap, causal: this.causal, window, ...(sinks && { sinks }) };
    const y = sdpa(own(q), own(k), own(v), options);
    return y.transpose(1, 2).reshape([count * length, -1, headDim]);
  }
}
