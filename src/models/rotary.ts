/** Rotary frequencies under each scaling, and the tables of cos and sin that grow with the positions asked for. */
import type { Device } from "../backend/device.ts";
import { type DType, sizeOf } from "../core/dtype.ts";
import { rope, ropeI } from "../nn/index.ts";
import { Tensor } from "../ops/index.ts";
import type { RopeConfig } from "./config.ts";
import type { Positions } from "./positions.ts";

export interface Frequencies {
  /** Radians per position. */
  readonly values: Float64Array;
  /** Multiplies cos and sin. */
  readonly magnitude: number;
}

/** `extent` is the number of positions in play, which decides between longrope's two sets. */
export function frequencies(config: RopeConfig, extent: number): Frequencies {
  const { theta, dims, scaling } = config;
  const scaled = (scale: (frequency: number, i: number) => number, magnitude = 1): Frequencies => ({
    values: Float64Array.from({ length: dims / 2 }, (_, i) => scale(theta ** ((-2 * i) / dims), i)),
    magnitude,
  });
  switch (scaling.type) {
    case "none":
      return scaled((f) => f);
    case "linear":
      return scaled((f) => f / scaling.factor);
    case "llama3": {
      const { factor, lowFrequencyFactor: low, highFrequencyFactor: high, originalContext } = scaling;
      return scaled((f) => {
        const turns = (originalContext * f) / (2 * Math.PI);
        const kept = clamp((turns - low) / (high - low));
        return kept * f + (1 - kept) * (f / factor);
      });
    }
    case "yarn": {
      const { factor, betaFast, betaSlow, originalContext, attentionFactor, truncate } = scaling;
      // The index whose frequency makes `turns` turns within the original context.
      const indexOf = (turns: number) =>
        (dims * Math.log(originalContext / (turns * 2 * Math.PI))) / (2 * Math.log(theta));
      const [low, high] = [indexOf(betaFast), indexOf(betaSlow)];
      const from = Math.max(truncate ? Math.floor(low) : low, 0);
      const to = Math.min(truncate ? Math.ceil(high) : high, dims - 1);
      return scaled((f, i) => {
        const divided = clamp((i - from) / (to === from ? 0.001 : to - from));
        return divided * (f / factor) + (1 - divided) * f;
      }, attentionFactor);
    }
    case "longrope": {
      const divisors = isLong(config, extent) ? scaling.long : scaling.short;
      return scaled((f, i) => f / divisors[i]!, scaling.attentionFactor);
    }
    default:
      return scaling satisfies never;
  }
}

const clamp = (x: number): number => Math.min(Math.max(x, 0), 1);
const isLong = ({ scaling }: RopeConfig, extent: number): boolean =>
  scaling.type === "longrope" && extent > scaling.originalContext;

export interface Table {
  readonly cos: Tensor;
  readonly sin: Tensor;
}

/** Of sequences of any extent: `start` says which row position 0 has in one of that extent, where that differs. */
export interface SharedTable extends Table {
  readonly interleaved: boolean;
  readonly start: ((extent: number) => number) | null;
}

/** Turns x (b, h, t, headDim). */
export type Rotation = (x: Tensor) => Tensor;

const FIRST_ROWS = 512;

/** What the tables of cos and sin take for so many positions. */
export const tableBytes = ({ dims }: RopeConfig, positions: number, dtype: DType): number =>
  Math.max(positions, FIRST_ROWS) * dims * sizeOf(dtype);

export class Rotary implements Disposable {
  readonly #config: RopeConfig;
  readonly #device: Device;
  readonly #dtype: DType;
  /** By whether the long set is used. */
  readonly #tables = new Map<boolean, Table>();
  /** Both sets one behind the other, of so many rows each. */
  #both: (Table & { readonly rows: number }) | undefined;
  /** Smaller ones, which recorded steps may still read. */
  readonly #outgrown: Table[] = [];

  constructor(config: RopeConfig, device: Device, dtype: DType) {
    this.#config = config;
    this.#device = device;
    this.#dtype = dtype;
  }

  /** What rotates at these positions; call it inside a scope. */
  at(positions: Positions, extent: number): Rotation {
    const { dims, interleaved } = this.#config;
    if (dims === 0) return (x) => x;
    const { cos, sin } = this.#rows(positions, extent);
    const turn = interleaved ? ropeI : rope;
    return (x) => {
      const headDim = x.shape[3]!;
      if (dims === headDim) return turn(x, cos, sin);
      return Tensor.cat([turn(x.narrow(3, 0, dims), cos, sin), x.narrow(3, dims, headDim - dims)], 3);
    };
  }

  /** As long as no more positions than these are in play, the tables for `extent` are right. */
  validUntil(extent: number): number {
    const { scaling } = this.#config;
    return scaling.type === "longrope" && !isLong(this.#config, extent)
      ? scaling.originalContext
      : Number.POSITIVE_INFINITY;
  }

  /** Whether positions of a sequence of this extent are turned as those of a long one. */
  isLong(extent: number): boolean {
    return isLong(this.#config, extent);
  }

  [Symbol.dispose](): void {
    const both = this.#both ? [this.#both] : [];
    for (const { cos, sin } of [...this.#tables.values(), ...both, ...this.#outgrown.splice(0)]) {
      cos.dispose();
      sin.dispose();
    }
    this.#tables.clear();
    this.#both = undefined;
  }

  #rows(positions: Positions, extent: number): Table {
    if ("start" in positions) {
      const { start, length } = positions;
      const { cos, sin } = this.tables(start + length, extent);
      return { cos: cos.narrow(0, start, length), sin: sin.narrow(0, start, length) };
    }
    const flat = positions.each.flat();
    const { cos, sin } = this.tables(Math.max(...flat) + 1, extent);
    const ids = Tensor.from(Uint32Array.from(flat), { device: this.#device });
    const shape = [positions.each.length, -1, this.#config.dims / 2];
    return { cos: cos.indexSelect(ids, 0).reshape(shape), sin: sin.indexSelect(ids, 0).reshape(shape) };
  }

  /** cos and sin of at least `rows` positions: (positions, dims / 2). */
  tables(rows: number, extent: number): Table & { readonly interleaved: boolean } {
    return { ...this.#grown(rows, extent), interleaved: this.#config.interleaved };
  }

  /** The same for sequences of any extent side by side. */
  shared(rows: number): SharedTable {
    const { scaling } = this.#config;
    if (scaling.type !== "longrope") return { ...this.tables(rows, 0), start: null };
    const longer = scaling.originalContext + 1;
    let both = this.#both;
    if (!both || both.rows < rows) {
      if (both) this.#outgrown.push(both);
      const room = Math.max(rows, 2 * (both?.rows ?? 0), FIRST_ROWS);
      both = { ...this.#compute(room, [0, longer]), rows: room };
      this.#both = both;
    }
    const { cos, sin, rows: long } = both;
    const start = (extent: number): number => (isLong(this.#config, extent) ? long : 0);
    return { cos, sin, interleaved: this.#config.interleaved, start };
  }

  #grown(rows: number, extent: number): Table {
    const long = isLong(this.#config, extent);
    const old = this.#tables.get(long);
    const have = old?.cos.shape[0] ?? 0;
    if (old && have >= rows) return old;
    const table = this.#compute(Math.max(rows, 2 * have, FIRST_ROWS), [extent]);
    if (old) this.#outgrown.push(old);
    this.#tables.set(long, table);
    return table;
  }

  /** The rows for each extent, one behind the other. */
  #compute(rows: number, extents: readonly number[]): Table {
    const sets = extents.map((extent) => frequencies(this.#config, extent));
    const half = this.#config.dims / 2;
    const table = (of: (angle: number) => number): Tensor => {
      const out = new Float32Array(sets.length * rows * half);
      let at = 0;
      for (const { values, magnitude } of sets) {
        for (let p = 0; p < rows; p++) for (let i = 0; i < half; i++) out[at++] = of(p * values[i]!) * magnitude;
      }
      const shape = [sets.length * rows, half];
      return Tensor.from(out, { shape, dtype: this.#dtype, device: this.#device }).keep();
    };
    return { cos: table(Math.cos), sin: table(Math.sin) };
  }
}
