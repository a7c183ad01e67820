/**
 * A step from ids to logits that is recorded once and replayed: one recording for each stretch of the model that lies on a
 * device which records, and between them the copies, in the order of the devices' streams. What lies elsewhere runs op by
 * op each time, at the positions that the host knows.
 */
import type { Device } from "../backend/device.ts";
import type { Graph } from "../backend/transformers.ts";
import { type DType, sizeOf } from "../core/dtype.ts";
import type { Shape } from "../core/layout.ts";
import { advance } from "../ops/counting.ts";
import { scope, Tensor } from "../ops/index.ts";
import type { ModelCache } from "./cache.ts";
import { devicesOf } from "./placement/sites.ts";
import { positionIds } from "./positions.ts";
import type { Transformer } from "./transformer.ts";

/** How many positions there are with the step's, i64 (batch), on every device that records. */
export class Counts implements Disposable {
  readonly #onDevices: ReadonlyMap<Device, Tensor>;

  constructor({ sites }: Transformer, batch: number, count: number) {
    const devices = devicesOf(sites).filter(({ backend }) => backend.recorder?.problem === null);
    const options = { dtype: "i64" } as const;
    this.#onDevices = new Map(
      devices.map((device) => [device, Tensor.full([batch], count, { ...options, device }).keep()]),
    );
  }

  on(device: Device): Tensor {
    return this.#onDevices.get(device)!;
  }

  write(count: number): void {
    const bytes = new Uint8Array(BigInt64Array.of(BigInt(count)).buffer);
    for (const { storage, numel } of this.#onDevices.values()) {
      for (let i = 0; i < numel; i++) storage.write(8 * i, bytes);
    }
  }

  [Symbol.dispose](): void {
    for (const tensor of this.#onDevices.values()) tensor.dispose();
  }
}

export interface RecordedStepOptions {
  readonly model: Transformer;
  readonly cache: ModelCache;
  /** u32 (b · t) on the model's device, written before each replay. */
  readonly ids: Tensor;
  readonly counts: Counts;
  /** Whether each replay counts its positions itself. */
  readonly counting: boolean;
  readonly extent: number;
  /** Whether logits may be in the dtype that they are computed in, and not in f32. */
  readonly asComputed?: boolean;
  /** A part of the recording where the logits' device records: what becomes of them, (b · t, vocab). */
  readonly finish: (logits: Tensor) => void;
  /** What `finish` does: those of one kind launch the same kernels. */
  readonly kind: string;
}

/** A part of the step on one device: from what came in to what goes out. */
interface Stage {
  readonly device: Device;
  readonly recordable: boolean;
  /** Call it inside a scope. */
  run(x: Tensor): Tensor;
}

/** What steps of each model were recorded: one like them needs no run of its own first. */
const recordedBefore = new WeakMap<Transformer, Set<string>>();

/** Of equal ones the kernels and their layouts are equal; null where a cache has more to upload at its first step. */
function keyOf({ model, cache, ids, counting, extent, kind, asComputed }: RecordedStepOptions): string | null {
  if (cache.isPadded) return null;
  return [cache.batch, ids.numel, cache.reserve(0), model.recordedUntil(extent), counting, kind, asComputed].join();
}

/** Recording a step runs it, too. The cache has been given room; that it is longer is the caller's to say, by `accept`. */
export function recordStep(options: RecordedStepOptions): Graph {
  const { model, cache, ids, counts, counting, finish } = options;
  const stages = joined(stagesOf(options));
  const [known, key] = [recordedBefore.get(model) ?? new Set<string>(), keyOf(options)];
  const sequence = new Sequence(key !== null && known.has(key));
  const counted = new Set<Device>();
  try {
    let came = ids;
    for (const [i, { device, recordable, run }] of stages.entries()) {
      const x = sequence.moved(came, device);
      const isLast = i === stages.length - 1;
      const out = isLast ? null : sequence.buffer([ids.numel, model.config.hiddenSize], model.dtype, device);
      const countsHere = counting && recordable && !counted.has(device);
      const compute = (): void =>
        scope(() => {
          if (countsHere) advance(counts.on(device), ids.numel / cache.batch);
          const y = run(x);
          if (out) out.sliceSet(y, 0, 0);
          else finish(y);
        });
      if (recordable) {
        counted.add(device);
        sequence.record(device, compute);
      } else sequence.run(compute);
      came = out ?? x;
    }
  } catch (error) {
    sequence[Symbol.dispose]();
    throw error;
  }
  if (key !== null) recordedBefore.set(model, known.add(key));
  return sequence;
}

/** Recordings of several devices, and what happens between them. */
class Sequence implements Graph {
  readonly #hasRun: boolean;
  readonly #actions: (() => void)[] = [];
  readonly #owned: Disposable[] = [];

  constructor(hasRun: boolean) {
    this.#hasRun = hasRun;
  }

  replay(): void {
    for (const action of this.#actions) action();
  }

  buffer(shape: Shape, dtype: DType, device: Device): Tensor {
    const tensor = Tensor.empty(shape, { dtype, device }).keep();
    this.#owned.push(tensor);
    return tensor;
  }

  /** Happens now, and again at every replay. */
  run(action: () => void): void {
    action();
    this.#actions.push(action);
  }

  record(device: Device, work: () => void): void {
    const graph = device.backend.recorder!.capture(work, this.#hasRun);
    this.#owned.push(graph);
    this.#actions.push(() => graph.replay());
  }

  /** The tensor, or what it is copied to on another device. */
  moved(x: Tensor, device: Device): Tensor {
    if (x.device === device) return x;
    const there = this.buffer(x.shape, x.dtype, device);
    const offset = x.layout.offset * sizeOf(x.dtype);
    this.run(() => there.storage.copyFrom(0, x.storage, offset, there.storage.byteLength));
    return there;
  }

  [Symbol.dispose](): void {
    for (const resource of this.#owned.splice(0).toReversed()) resource[Symbol.dispose]();
  }
}

function stagesOf({ model, cache, ids, counts, extent, asComputed }: RecordedStepOptions): Stage[] {
  const { input, output } = model.sites;
  const [batch, length] = [cache.batch, ids.numel / cache.batch];
  const records = ({ backend }: Device): boolean => backend.recorder?.problem === null;
  const places = (): Tensor =>
    records(input)
      ? cache.on(input).lastPositions(counts.on(input), length)
      : positionIds(cache.positions(cache.length, length), batch, input);
  const room = cache.reserve(0);
  return [
    { device: input, recordable: records(input), run: (x) => model.embed(x, places) },
    ...model.segments.map((segment) => {
      const { device, recordable } = segment;
      const step = () =>
        recordable
          ? segment.recordedStep(length, cache, room, counts.on(device), extent)
          : segment.step({ batch, length, start: cache.length, extent: cache.length + length }, cache);
      return { device, recordable, run: (x: Tensor) => segment.run(x.view(x.layout), step(), cache.layers) };
    }),
    { device: output, recordable: records(output), run: (x) => model.logits(x, asComputed) },
  ];
}

/** Neighbours on one device as one, where both are recorded or neither is. */
function joined(stages: readonly Stage[]): Stage[] {
  const all: Stage[] = [];
  for (const stage of stages) {
    const last = all.at(-1);
    if (last?.device !== stage.device || last.recordable !== stage.recordable) all.push(stage);
    else all[all.length - 1] = { ...stage, run: (x) => stage.run(last.run(x)) };
  }
  return all;
}
