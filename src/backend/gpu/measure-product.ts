/** How long a product takes by Wick's own kernels and by the library. */
import { Layout, numel } from "../../core/layout.ts";
import type { Storage } from "../storage.ts";
import type { Graph } from "../transformers.ts";
import type { GpuBackend } from "./backend.ts";
import { addressOf } from "./gpu.ts";
import { byKernel, libraryProduct, type Matrices, type Product } from "./ops/matmul.ts";
import type { ProductShape, ProductTimes } from "./tuning.ts";

/** Samples of each, one after the other in turn: the card's clock is the same for both. */
const SAMPLES = 7;
/** What a sample takes, about: beside it the time between two events is exact. */
const SAMPLE_MS = 2;
const MOST_RUNS = 200;

/** Null where the library does not compute such a product. */
export async function measureProduct(gpu: GpuBackend, shape: ProductShape): Promise<ProductTimes | null> {
  const { type, m, n, k, batch } = shape;
  const storages: Storage[] = [];
  const keep = (storage: Storage): Storage => {
    storages.push(storage);
    return storage;
  };
  /** Rows × columns, or columns × rows that stand for it. */
  const matrices = (rows: number, cols: number, isTransposed: boolean, seed: bigint): Matrices => ({
    at: addressOf(keep(gpu.random("uniform", type, batch * rows * cols, seed, -1, 1))),
    row: isTransposed ? 1 : cols,
    col: isTransposed ? rows : 1,
    batch: batch === 1 ? Layout.contiguous([]) : new Layout([batch], [rows * cols]),
  });
  try {
    const p: Product = {
      ...{ dtype: type, m, n, k },
      a: matrices(m, k, shape.transA, 1n),
      b: matrices(k, n, shape.transB, 2n),
    };
    const out = addressOf(keep(gpu.make(type, numel([batch, m, n]))));
    const gemm = libraryProduct(p, out);
    if (!gemm || !gpu.gemm(gemm)) return null;
    using own = await Timed.of(gpu, () => byKernel(gpu, p, out));
    using library = await Timed.of(gpu, () => void gpu.gemm(gemm));
    const times: { own: number[]; library: number[] } = { own: [], library: [] };
    for (let i = 0; i < SAMPLES; i++) {
      times.own.push(await own.microseconds());
      times.library.push(await library.microseconds());
    }
    return { own: median(times.own), library: median(times.library) };
  } finally {
    for (const storage of storages) storage.discard();
  }
}

/** Work so many times over that its time is exact: recorded where that is possible, so that launches are no part of it. */
class Timed implements Disposable {
  readonly #gpu: GpuBackend;
  readonly #work: () => void;
  readonly #runs: number;
  readonly #graph: Graph | null;

  private constructor(gpu: GpuBackend, run: () => void, runs: number) {
    this.#gpu = gpu;
    this.#runs = runs;
    const all = (): void => {
      for (let i = 0; i < runs; i++) run();
    };
    this.#graph = gpu.recorder.problem === null ? gpu.recorder.capture(all) : null;
    this.#work = this.#graph ? () => this.#graph!.replay() : all;
  }

  /** After a first run, which compiles or loads kernels, a second one tells how many fill a sample. */
  static async of(gpu: GpuBackend, run: () => void): Promise<Timed> {
    await gpu.milliseconds(run);
    const ms = await gpu.milliseconds(run);
    return new Timed(gpu, run, Math.max(1, Math.min(MOST_RUNS, Math.ceil(SAMPLE_MS / Math.max(ms, 1e-3)))));
  }

  async microseconds(): Promise<number> {
    return (1000 * (await this.#gpu.milliseconds(this.#work))) / this.#runs;
  }

  [Symbol.dispose](): void {
    this.#graph?.[Symbol.dispose]();
  }
}

const median = (values: readonly number[]): number => values.toSorted((a, b) => a - b)[values.length >> 1]!;
