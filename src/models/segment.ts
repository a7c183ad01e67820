/** Neighbouring layers on one device, with what they need to know of positions there. */
import type { Device } from "../backend/device.ts";
import type { DType } from "../core/dtype.ts";
import { scope, Tensor } from "../ops/index.ts";
import { deviceAttends, type ModelCache } from "./cache.ts";
import type { ModelConfig, RopeConfig } from "./config.ts";
import { runsOnDevice } from "./experts/mixture.ts";
import { expansionPays } from "./latent-attention.ts";
import { beginningOf, type Layer, runLayer } from "./layer.ts";
import { type Packed, PackedStep } from "./packed.ts";
import { extentOf, lengthOf, type PagedBatch, type PagedSequence, type PagedTensors } from "./paged/batch.ts";
import {
  ComposedPagedStep,
  DevicePagedStep,
  type DevicePlaces,
  deviceAttendsPages,
  type PagedTable,
} from "./paged/steps.ts";
import type { Positions } from "./positions.ts";
import { Rotary, type SharedTable } from "./rotary.ts";
import { CachedStep, ComposedStep, type LayerCache, type Step } from "./steps.ts";

/** Rows whose temporary tensors are small beside the weights. */
const FEW_ROWS = 16;

export interface SegmentOptions {
  readonly config: ModelConfig;
  readonly device: Device;
  readonly dtype: DType;
  /** What keys and values are kept as. */
  readonly cacheDType: DType;
  /** Rows must not depend on each other, where a device would let them. */
  readonly batchInvariant: boolean;
  /** Whether latents may be expanded where that is faster: for many rows at once. */
  readonly mayExpand: boolean;
  /** The number of the first layer. */
  readonly first: number;
  readonly layers: readonly Layer[];
  /** Takes what the last layer gave, where another process has those behind. */
  readonly handOn?: ((states: Tensor) => void) | undefined;
}

/** The part of a sequence that a pass feeds. */
export interface Fed {
  readonly batch: number;
  readonly length: number;
  /** Positions before it. */
  readonly start: number;
  /** Positions that the sequence will have. */
  readonly extent: number;
}

/** What `run` computes has rows that do not depend on each other, where that is `wanted` and the device would let them. */
export const invariantlyOn = <T>({ backend }: Device, wanted: boolean, run: () => T): T =>
  wanted && backend.invariantly ? backend.invariantly(run) : run();

export class Segment implements Disposable {
  readonly device: Device;
  readonly #options: SegmentOptions;
  readonly #rotaries: ReadonlyMap<RopeConfig, Rotary>;

  constructor(options: SegmentOptions) {
    const { config, device, dtype, first, layers } = options;
    this.device = device;
    this.#options = options;
    const ropes = new Set(config.ropes.slice(first, first + layers.length));
    this.#rotaries = new Map([...ropes].map((rope) => [rope, new Rotary(rope, device, dtype)]));
  }

  /** Whether its steps can be recorded: nothing in them depends on what the host knows. */
  get recordable(): boolean {
    return this.#records && this.#attends;
  }

  /** Whether steps of decoding over pages can be recorded. */
  get recordsPages(): boolean {
    const { config, device, dtype, cacheDType } = this.#options;
    return this.#records && deviceAttendsPages(config, device, dtype, cacheDType);
  }

  get #records(): boolean {
    const { config, device, dtype } = this.#options;
    return device.backend.recorder?.problem === null && runsOnDevice(config, dtype);
  }

  get #attends(): boolean {
    const { config, device, dtype, cacheDType } = this.#options;
    return deviceAttends(config, device, dtype, cacheDType);
  }

  /** `caches` are those of all layers of the model. Disposes x. */
  run(x: Tensor, step: Step, caches: readonly LayerCache[] | undefined): Tensor {
    const { config, first, layers, batchInvariant, handOn } = this.#options;
    return invariantlyOn(this.device, batchInvariant, () => {
      let y = x;
      for (const [i, layer] of layers.entries()) {
        using before = y;
        const behind = layers[i + 1];
        const next = behind ? beginningOf(behind, config) : null;
        const run = () => runLayer(layer, config, before, step, caches?.[first + i], next);
        // Of a long prompt each layer's tensors are freed at once; those of a single step are not worth the scope.
        y = step.batch * step.length > FEW_ROWS ? scope(run) : run();
      }
      handOn?.(y);
      return y;
    });
  }

  step({ batch, length, start, extent }: Fed, cache: ModelCache | undefined): Step {
    const { config, mayExpand } = this.#options;
    const total = start + length;
    const most = Math.max(extent, total);
    const places = cache?.on(this.device);
    const mask = (keys: number) => places?.mask(keys, total) ?? null;
    const { latent } = config;
    if (!cache || !this.#attends || (latent && mayExpand && expansionPays(length, latent))) {
      const positions = cache?.positions(start, length) ?? { start, length };
      const rotations = this.#perRope((rotary) => rotary.at(positions, most));
      return new ComposedStep(batch, length, rotations, mask, mayExpand);
    }
    const tables = this.#perRope((rotary) => rotary.tables(total, most));
    return new CachedStep(this.device.backend, batch, length, tables, places!.padding, mask, null);
  }

  /** For recording: `lengths` counts the positions, in device memory. */
  recordedStep(length: number, cache: ModelCache, room: number, lengths: Tensor, extent: number): Step {
    const tables = this.#perRope((rotary) => rotary.tables(room, extent));
    const places = cache.on(this.device);
    const mask = (keys: number) => places.mask(keys, keys);
    return new CachedStep(this.device.backend, cache.batch, length, tables, places.padding, mask, lengths);
  }

  packedStep(packed: Packed): Step {
    const rotationsAt = (at: Positions) => this.#perRope((rotary) => rotary.at(at, packed.longest));
    return new PackedStep(packed, true, rotationsAt, this.device);
  }

  pagedStep(batch: PagedBatch, { tables, lengths, offsets }: PagedTensors): Step {
    const { config, device, dtype, cacheDType, mayExpand } = this.#options;
    const rotationsOf = (sequence: PagedSequence) => {
      const positions = { start: sequence.past, length: lengthOf(sequence) };
      return this.#perRope((rotary) => rotary.at(positions, extentOf(sequence)));
    };
    if (!deviceAttendsPages(config, device, dtype, cacheDType)) return new ComposedPagedStep(batch, rotationsOf);
    const { sequences, singles, rows } = batch;
    const turns = this.#perRope((rotary): PagedTable => {
      const { start, ...table } = rotary.shared(batch.longest);
      const starts = start && BigInt64Array.from(sequences, (sequence) => BigInt(start(extentOf(sequence))));
      return { ...table, starts: starts && Tensor.from(starts, { device }) };
    });
    const chunks = sequences.slice(singles).map((sequence) => ({ sequence, rotations: () => rotationsOf(sequence) }));
    return new DevicePagedStep(device.backend, rows, { tables, lengths, offsets, singles }, turns, chunks, mayExpand);
  }

  /** For recording: where the rows stand is in device memory. */
  pagedDecodeStep(rows: number, places: DevicePlaces, tables: ReadonlyMap<RopeConfig, PagedTable>): Step {
    return new DevicePagedStep(this.device.backend, rows, places, tables, [], false);
  }

  /** What turns up to `positions` positions of sequences of any extent. */
  pagedTables(positions: number): ReadonlyMap<RopeConfig, SharedTable> {
    return this.#perRope((rotary) => rotary.shared(positions));
  }

  /** Some models turn long texts otherwise. */
  turnsAsLong(extent: number): boolean {
    return [...this.#rotaries.values()].some((rotary) => rotary.isLong(extent));
  }

  /** How many positions a recorded step stays right for, besides the room in its cache. */
  recordedUntil(extent: number): number {
    return Math.min(...[...this.#rotaries.values()].map((rotary) => rotary.validUntil(extent)));
  }

  [Symbol.dispose](): void {
    for (const rotary of this.#rotaries.values()) rotary[Symbol.dispose]();
  }

  #perRope<T>(of: (rotary: Rotary) => T): ReadonlyMap<RopeConfig, T> {
    return new Map([...this.#rotaries].map(([rope, rotary]) => [rope, of(rotary)]));
  }
}
