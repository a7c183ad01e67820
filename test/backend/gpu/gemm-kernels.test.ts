// Products by multiply-adds: every dtype, large and small tiles, whole and cut, parts of k, however the operands lie.
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { GpuBackend } from "../../../src/backend/gpu/backend.ts";
import { planGemm } from "../../../src/backend/gpu/families/matmul.ts";
import { isFloat } from "../../../src/core/dtype.ts";
import type { Device, DType } from "../../../src/index.ts";
import { Tensor } from "../../../src/index.ts";
import { deviceWith } from "../../helpers/matrix-units.ts";

beforeEach(() => void vi.stubEnv("WICK_BLAS", "none"));
afterEach(() => vi.unstubAllEnvs());

/** A card without a matrix unit. */
const PLAIN = "gfx1030";

type Lie = "rows" | "columns" | "neither";
const lies: readonly Lie[] = ["rows", "columns", "neither"];

/** Small whole numbers, exact in every dtype, in a matrix that lies as asked; what is between its elements is not to be read. */
function matrix(rows: number, cols: number, lie: Lie, dtype: DType, device: Device, seed: number) {
  const isUnsigned = dtype.startsWith("u");
  const value = (i: number, j: number): number => ((i * 31 + j * 17 + seed * 7) % 3) - (isUnsigned ? 0 : 1);
  const plain = Array.from({ length: rows }, (_, i) => Array.from({ length: cols }, (_, j) => value(i, j)));
  const options = { dtype, device };
  const x = Tensor.from(plain, options);
  if (lie === "rows") return { plain, x };
  if (lie === "columns") return { plain, x: x.t().contiguous().t() };
  const wide = Tensor.full([2 * rows, 2 * cols + 1], 99, options);
  const view = wide.view(
    wide.layout
      .step(0, 2)
      .narrow(1, 1, 2 * cols)
      .step(1, 2),
  );
  device.backend.copy(x, view);
  return { plain, x: view };
}

function expectProduct(y: Tensor, a: number[][], b: number[][]): void {
  const got = Array.from(y.dataSync(), Number);
  const columns = b[0]!.map((_, j) => b.map((row) => row[j]!));
  const wanted = a.flatMap((row) => columns.map((column) => column.reduce((sum, x, l) => sum + x * row[l]!, 0)));
  expect(got.length).toBe(wanted.length);
  for (let i = 0; i < wanted.length; i++)
    if (got[i] !== wanted[i]) expect.fail(`[${i}] is ${got[i]}, wanted ${wanted[i]}`);
}

/** Launches of `run`. */
function launched(device: Device, run: () => void): string[] {
  const launch = vi.spyOn(device.backend as GpuBackend, "launch");
  run();
  const names = launch.mock.calls.map(([name]) => name);
  launch.mockRestore();
  return names;
}

describe.each([
  // Nearly whole tiles: with many that are cut, small ones take less time. Too few products to be worth copies.
  [
    "large",
    1,
    [
      [250, 253, 29],
      [256, 256, 24],
    ],
  ],
  [
    "small",
    10_000,
    [
      [5, 7, 9],
      [70, 66, 33],
      [64, 128, 48],
    ],
  ],
] as const)("A product of %s tiles", (size, multiprocessors, sizes) => {
  const gemm = size === "small" ? "gemm_small" : "gemm";

  it.each(lies.flatMap((a) => lies.map((b) => [a, b] as const)))("of %s and %s", (la, lb) => {
    for (const ordinal of [0, 1]) {
      const device = deviceWith(PLAIN, ordinal, multiprocessors);
      for (const [m, n, k] of sizes) {
        const [a, b] = [matrix(m, k, la, "f32", device, 1), matrix(k, n, lb, "f32", device, 2)];
        const names = launched(device, () => expectProduct(a.x.matmul(b.x), a.plain, b.plain));
        expect(names).toEqual([`${gemm}_f32`]);
      }
    }
  });

  it.each(["bf16", "f16", "f32", "f64", "u8", "u32", "i16", "i32", "i64"] as const)("in %s", (dtype) => {
    const device = deviceWith(PLAIN, 0, multiprocessors);
    for (const [la, lb] of [
      ["rows", "rows"],
      ["columns", "columns"],
    ] as const) {
      const [m, n] = sizes.at(-1)!;
      const [a, b] = [matrix(m - 1, 30, la, dtype, device, 3), matrix(30, n - 2, lb, dtype, device, 4)];
      const names = launched(device, () => expectProduct(a.x.matmul(b.x), a.plain, b.plain));
      expect(names).toEqual([`${isFloat(dtype) ? gemm : "gemm_small"}_${dtype}`]);
    }
  });

  it("of a batch, one side of it shared", () => {
    const device = deviceWith(PLAIN, 0, multiprocessors);
    const [a, b] = [matrix(3 * 125, 24, "rows", "f32", device, 5), matrix(24, 250, "rows", "f32", device, 6)];
    const y = a.x.reshape([3, 125, 24]).matmul(b.x.broadcastAs([3, 24, 250]));
    expectProduct(y.reshape([375, 250]), a.plain, b.plain);
  });
});

it("of too few tiles is cut along k", () => {
  const device = deviceWith(PLAIN, 0, 12);
  for (const [la, lb] of [
    ["rows", "columns"],
    ["columns", "rows"],
    ["neither", "rows"],
  ] as const) {
    const [a, b] = [matrix(2 * 5, 2048, la, "f32", device, 7), matrix(2048, 70, lb, "f32", device, 8)];
    const names = launched(device, () => expectProduct(a.x.matmul(b.x), a.plain, b.plain));
    expect(names).toEqual(["gemm_small_f32", "sum_cols_f32"]);
  }
  const [a, b] = [matrix(2 * 5, 1024, "rows", "i32", device, 9), matrix(1024, 3, "columns", "i32", device, 10)];
  const y = a.x.reshape([2, 5, 1024]).matmul(b.x.broadcastAs([2, 1024, 3]));
  expectProduct(y.reshape([10, 3]), a.plain, b.plain);
});

describe.each([
  // Whole tiles, then cut ones, and depths of which the last block has little or nothing.
  [
    "pair",
    4,
    [
      [64, 128, 32],
      [70, 126, 45],
      [5, 7, 9],
    ],
  ],
  [
    "split",
    8,
    [
      [128, 64, 64],
      [70, 67, 133],
      [65, 3, 33],
    ],
  ],
] as const)("A product whose depth a cluster shares, %s", (size, multiprocessors, sizes) => {
  it.each(lies.flatMap((a) => lies.map((b) => [a, b] as const)))("of %s and %s", (la, lb) => {
    const device = deviceWith("sm_90a", 0, multiprocessors);
    for (const [m, n, k] of sizes) {
      const [a, b] = [matrix(m, k, la, "f32", device, 1), matrix(k, n, lb, "f32", device, 2)];
      const names = launched(device, () => expectProduct(a.x.matmul(b.x), a.plain, b.plain));
      expect(names).toEqual([`gemm_${size}_f32`]);
    }
  });

  it("of a batch, one side of it shared", () => {
    const device = deviceWith("sm_90a", 0, multiprocessors);
    const [a, b] = [matrix(3 * 21, 24, "rows", "f32", device, 5), matrix(24, 30, "rows", "f32", device, 6)];
    const y = a.x.reshape([3, 21, 24]).matmul(b.x.broadcastAs([3, 24, 30]));
    expectProduct(y.reshape([63, 30]), a.plain, b.plain);
  });
});

it.each([
  ["rows", "rows"],
  ["columns", "columns"],
  ["neither", "columns"],
] as const)("of many elements of f32 in odd %s and %s is copied to whole pieces first", (la, lb) => {
  const device = deviceWith(PLAIN, 1, 4);
  const [a, b] = [matrix(65, 7711, la, "f32", device, 11), matrix(7711, 67, lb, "f32", device, 12)];
  const names = launched(device, () => expectProduct(a.x.matmul(b.x), a.plain, b.plain));
  expect(names).toEqual(["pad_lines_4", "pad_lines_4", "gemm_small_f32", "sum_cols_f32"]);
});

it("is planned by how many tiles there are", () => {
  const plan = (type: DType, m: number, n: number, k: number, batch = 1) => planGemm(type, { batch, m, n, k }, 132);
  expect(plan("f32", 8192, 8192, 8192)).toEqual({ size: "large", depth: 8192, parts: 1 });
  expect(plan("f32", 2048, 2048, 2048)).toEqual({ size: "large", depth: 2048, parts: 1 });
  expect(plan("f32", 1000, 1000, 1000)).toEqual({ size: "small", depth: 1000, parts: 1 });
  expect(plan("i32", 8192, 8192, 8192)).toEqual({ size: "small", depth: 8192, parts: 1 });
  expect(plan("f32", 64, 4096, 4096)).toEqual({ size: "small", depth: 512, parts: 8 });
  expect(plan("f32", 333, 777, 555)).toEqual({ size: "small", depth: 96, parts: 6 });
  // Halves are not rounded between.
  expect(plan("f16", 64, 4096, 4096)).toEqual({ size: "small", depth: 4096, parts: 1 });
  expect(plan("f32", 64, 64, 4096, 1000)).toEqual({ size: "small", depth: 4096, parts: 1 });
  expect(plan("f32", 64, 64, 200)).toEqual({ size: "small", depth: 48, parts: 5 });
  expect(plan("f32", 64, 64, 120)).toEqual({ size: "small", depth: 120, parts: 1 });
});

it.each([
  // What was measured to be the fastest of them on an H200.
  ["large", 2048, 2048, 2048, 2048, 1],
  ["large", 2000, 4000, 4096, 4096, 1],
  ["pair", 3000, 3000, 3000, 1504, 1],
  ["pair", 1536, 1536, 1536, 768, 1],
  ["pair", 1000, 1000, 1000, 512, 1],
  ["pair", 256, 2048, 4096, 2048, 1],
  ["split", 768, 768, 768, 192, 1],
  ["split", 512, 512, 512, 128, 1],
  ["split", 256, 256, 256, 64, 1],
  ["split", 333, 777, 555, 144, 1],
  ["split", 100, 1000, 300, 80, 1],
  ["small", 512, 512, 4096, 512, 8],
  ["small", 64, 4096, 4096, 512, 8],
] as const)("in f32 where there are clusters is planned as %s for %d × %d × %d", (size, m, n, k, depth, parts) => {
  expect(planGemm("f32", { batch: 1, m, n, k }, 132, true)).toEqual({ size, depth, parts });
  expect(planGemm("f64", { batch: 1, m, n, k }, 132, true).size).toMatch(/^(large|small)$/);
});
