/** How long a product takes by Wick's own kernels and by the library. */
import { Layout, numel } from "../../core/layout.ts";
import type { Storage } from "../storage.ts";
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
    if (!gemm?.type || !gpu.gemm(gemm)) return null;
    const own = () => byKernel(gpu, p, out);
    const library = () => void gpu.gemm(gemm);
    const runs = [await runsFor(gpu, own), await runsFor(gpu, library)] as const;
    const times: [own: number[], library: number[]] = [[], []];
    for (let i = 0; i < SAMPLES; i++) {
      times[0].push(await microseconds(gpu, own, runs[0]));
      times[1].push(await microseconds(gpu, library, runs[1]));
    }
    return { own: median(times[0]), library: median(times[1]) };
  } finally {
    for (const storage of storages) storage.discard();
  }
}

/** After a first run, which compiles or loads kernels, how many fill a sample. */
async function runsFor(gpu: GpuBackend, run: () => void): Promise<number> {
  await gpu.milliseconds(run);
  const ms = await gpu.milliseconds(run);
  return Math.max(1, Math.min(MOST_RUNS, Math.ceil(SAMPLE_MS / Math.max(ms, 1e-3))));
}

async function microseconds(gpu: GpuBackend, run: () => void, runs: number): Promise<number> {
  const ms = await gpu.milliseconds(() => {
    for (let i = 0; i < runs; i++) run();
  });
  return (1000 * ms) / runs;
}

const median = (values: readonly number[]): number => values.toSorted((a, b) => a - b)[values.length >> 1]!;
