/**
 * How fast kernels are next to the fastest that memory allows: a copy by the driver. Times are of the device's own events
 * around many launches, so what the host adds to a launch does not show.
 */
import { Device } from "../backend/device.ts";
import type { Gpu } from "../backend/gpu/gpu.ts";
import type { DType } from "../core/dtype.ts";
import { rmsNorm, softmax } from "../nn/index.ts";
import { Tensor } from "../ops/index.ts";
import { type Check, check, type Say } from "./check.ts";
import { gpuOf, isSimulated } from "./gpu-of.ts";

interface Sizes {
  /** A matrix of this many rows and columns for what is bound by memory. */
  readonly rows: number;
  readonly columns: number;
  /** Square matrices for products. */
  readonly product: number;
  /** Milliseconds that one measurement should take. */
  readonly budget: number;
}

const COLUMNS = 4096;
const MEASUREMENTS = 3;
const MAX_LAUNCHES = 200;

export async function checkSpeed(name: string, say: Say): Promise<Check[]> {
  const gpu = gpuOf(name)!;
  const sizes = sizesFor(name, gpu);
  const device = Device.from(name);
  const checks: Check[] = [];
  let ceiling = Number.NaN;
  checks.push(
    await check(say, "copy", async () => {
      ceiling = await copyRate(gpu, sizes);
      return `${gigabytes(ceiling)}, the ceiling for the kernels below`;
    }),
  );
  for (const { label, dtype, passes, run } of kernels) {
    checks.push(
      await check(say, `${label} ${dtype}`, async () => {
        using x = Tensor.rand([sizes.rows, sizes.columns], { dtype, device, seed: 1 });
        const rate = (passes * bytesOf(x)) / (await seconds(gpu, sizes, () => run(x).dispose()));
        return `${gigabytes(rate)}, ${(rate / ceiling).toFixed(2)} of the copy`;
      }),
    );
  }
  const by = gpu.blas?.version ?? "Wick's own kernels";
  for (const dtype of ["f16", "bf16", "f32"] as const) {
    checks.push(
      await check(say, `matmul ${dtype}`, async () => {
        const n = sizes.product;
        using a = Tensor.rand([n, n], { dtype, device, seed: 1, low: -1 });
        using b = Tensor.rand([n, n], { dtype, device, seed: 2, low: -1 });
        const rate = (2 * n ** 3) / (await seconds(gpu, sizes, () => a.matmul(b).dispose()));
        return `${(rate / 1e12).toPrecision(3)} TFLOP/s by ${by}`;
      }),
    );
  }
  return checks;
}

interface Measured {
  readonly label: string;
  readonly dtype: DType;
  /** How often the input's bytes are moved. */
  readonly passes: number;
  readonly run: (x: Tensor) => Tensor;
}

const kernels: readonly Measured[] = [
  { label: "affine", dtype: "f32", passes: 2, run: (x) => x.affine(2, 1) },
  { label: "exp", dtype: "f32", passes: 2, run: (x) => x.exp() },
  { label: "sum over rows", dtype: "f32", passes: 1, run: (x) => x.sum(1) },
  { label: "softmax", dtype: "f32", passes: 2, run: (x) => softmax(x, -1) },
  { label: "rms_norm", dtype: "f16", passes: 2, run: (x) => rmsNorm(x, null, 1e-6) },
  {
    label: "transpose copy",
    dtype: "f32",
    passes: 2,
    run: (x) => {
      using t = x.transpose(0, 1);
      return t.contiguous();
    },
  },
];

/** Large enough that no cache holds it, small enough for cards with little memory free. */
function sizesFor(name: string, gpu: Gpu): Sizes {
  if (isSimulated(name)) return { rows: 16, columns: 64, product: 32, budget: 0 };
  const { free } = gpu.context.memoryInfo();
  const rows = 2 ** Math.floor(Math.log2(Math.min(2 ** 28, free / 8) / (4 * COLUMNS)));
  return { rows: Math.max(64, rows), columns: COLUMNS, product: 4096, budget: 100 };
}

async function copyRate(gpu: Gpu, sizes: Sizes): Promise<number> {
  const bytes = sizes.rows * sizes.columns * 4;
  const [src, dst] = [gpu.alloc(bytes), gpu.alloc(bytes)];
  try {
    const copy = (): void => gpu.context.copyOnDevice(BigInt(dst.at), BigInt(src.at), bytes);
    return (2 * bytes) / (await seconds(gpu, sizes, copy));
  } finally {
    gpu.free(src);
    gpu.free(dst);
  }
}

/** Seconds of one run in the best of several rows of runs. The first runs warm up and tell how many fill the budget. */
async function seconds(gpu: Gpu, { budget }: Sizes, run: () => void): Promise<number> {
  run();
  const once = await gpu.milliseconds(run);
  if (budget === 0) return once / 1000;
  const launches = Math.max(3, Math.min(MAX_LAUNCHES, Math.round(budget / Math.max(once, 1e-3))));
  let best = Number.POSITIVE_INFINITY;
  for (let i = 0; i < MEASUREMENTS; i++) {
    const total = await gpu.milliseconds(() => {
      for (let n = 0; n < launches; n++) run();
    });
    best = Math.min(best, total / launches);
  }
  return best / 1000;
}

const bytesOf = (x: Tensor): number => x.storage.byteLength;
const gigabytes = (bytesPerSecond: number): string => `${(bytesPerSecond / 1e9).toPrecision(3)} GB/s`;
