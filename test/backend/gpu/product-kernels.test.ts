// Products of halves on every matrix unit's layout of registers, by Wick's own kernels, against sums in double precision.
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { MatrixUnit } from "../../../src/backend/gpu/attention-plan.ts";
import type { GpuBackend } from "../../../src/backend/gpu/backend.ts";
import { type ProductSize, planBlock, planProduct } from "../../../src/backend/gpu/families/product.ts";
import { type Device, Tensor } from "../../../src/index.ts";
import { deviceWith, units } from "../../helpers/matrix-units.ts";

beforeEach(() => void vi.stubEnv("WICK_BLAS", "none"));
afterEach(() => vi.unstubAllEnvs());

type Lie = "rows" | "columns" | "neither";
/** A matrix (rows, cols) that lies row by row, column by column, or with gaps both ways; its places elsewhere hold NaN. */
function matrix(rows: number, cols: number, lie: Lie, dtype: "bf16" | "f16", device: Device, seed: number) {
  const value = (i: number, j: number): number => (((i * 31 + j * 17 + seed * 7) % 29) - 14) / 8;
  const plain = Array.from({ length: rows }, (_, i) => Array.from({ length: cols }, (_, j) => value(i, j)));
  const options = { dtype, device };
  if (lie === "rows") return { plain, x: Tensor.from(plain, options) };
  if (lie === "columns") return { plain, x: Tensor.from(plain, options).t().contiguous().t() };
  const wide = Tensor.full([2 * rows, 2 * cols + 1], Number.NaN, options);
  const layout = wide.layout
    .step(0, 2)
    .narrow(1, 1, 2 * cols)
    .step(1, 2);
  const x = wide.view(layout);
  device.backend.copy(Tensor.from(plain, options), x);
  return { plain, x };
}

describe.each(units)("A product by %s of %s", (_unit, arch, ordinal) => {
  const lies: readonly Lie[] = ["rows", "columns", "neither"];
  const cases = lies.flatMap((a) => lies.map((b) => [a, b] as const));
  // Odd sizes cut tiles, slices and pieces; the others fill them.
  const sizes: readonly (readonly [m: number, n: number, k: number])[] = [
    [5, 7, 9],
    [70, 72, 40],
    [72, 64, 44],
    [64, 64, 96],
  ];

  it.each(cases)("of %s and %s", (la, lb) => {
    // Enough multiprocessors that tiles are small, so that they fit the simulator's shared memory whatever the unit.
    const device = deviceWith(arch, ordinal, 10_000);
    for (const dtype of ["bf16", "f16"] as const) {
      for (const [m, n, k] of dtype === "bf16" ? sizes : sizes.slice(1, 2)) {
        const [a, b] = [matrix(m, k, la, dtype, device, 1), matrix(k, n, lb, dtype, device, 2)];
        const launch = vi.spyOn(device.backend as GpuBackend, "launch");
        const y = a.x.matmul(b.x);
        // Rows, or columns, of whole pieces go to the matrix unit as they are; the others are copied first.
        const isCut = (lie: Lie, rows: number, cols: number) =>
          lie === "neither" || (lie === "rows" ? cols : rows) % 8 !== 0;
        const copies = Number(isCut(la, m, k)) + Number(isCut(lb, k, n));
        expect(launch.mock.calls.map(([name]) => name)).toEqual([
          ...Array(copies).fill("pad_lines_2"),
          expect.stringMatching(arch === "sm_90a" ? /^product_half_/ : /^product_small_/),
        ]);
        launch.mockRestore();
        expectProduct(y, a.plain, b.plain, dtype);
      }
    }
  });

  it("of whole and cut large tiles", () => {
    const device = deviceWith(arch, ordinal, 1);
    for (const [la, lb] of [
      ["rows", "columns"],
      ["rows", "rows"],
      ["columns", "rows"],
      ["columns", "columns"],
    ] as const) {
      const [a, b] = [matrix(136, 168, la, "bf16", device, 3), matrix(168, 152, lb, "bf16", device, 4)];
      expectProduct(a.x.matmul(b.x), a.plain, b.plain, "bf16");
    }
  });

  // Sizes that only warpgroups have, by the multiprocessors that call for them; a tile that several make together is a deep one.
  const grouped =
    arch !== "sm_90a"
      ? []
      : ([
          ["square", 4, 136, 152, 168],
          ["pair", 6, 70, 136, 2056],
          ["split", 10_000, 70, 136, 2056],
        ] as const);
  it.each(grouped)("of %s tiles", (size, multiprocessors, m, n, k) => {
    const device = deviceWith(arch, ordinal, multiprocessors);
    for (const [la, lb] of [
      ["rows", "columns"],
      ["columns", "rows"],
    ] as const) {
      const [a, b] = [matrix(m, k, la, "bf16", device, 3), matrix(k, n, lb, "bf16", device, 4)];
      const launch = vi.spyOn(device.backend as GpuBackend, "launch");
      const y = a.x.matmul(b.x);
      expect(launch.mock.calls.at(-1)![0]).toMatch(`product_${size}_`);
      launch.mockRestore();
      expectProduct(y, a.plain, b.plain, "bf16");
    }
  });

  it("of a batch, one side of it shared", () => {
    const device = deviceWith(arch, ordinal, 10_000);
    const [a, b] = [matrix(3 * 17, 24, "rows", "f16", device, 5), matrix(24, 33, "rows", "f16", device, 6)];
    const y = a.x.reshape([3, 17, 24]).matmul(b.x.broadcastAs([3, 24, 33]));
    expectProduct(y.reshape([51, 33]), a.plain, b.plain, "f16");
  });
});

it.each([
  // One of each size on an H200; of few and deep tiles the depth is shared out.
  ["_wide", 4096, 4096, 4096],
  ["_square", 512, 4096, 4096],
  ["_half", 1024, 1024, 1024],
  ["_half", 128, 4096, 1024],
  ["_pair", 128, 4096, 4096],
  ["_split", 64, 4096, 4096],
] as const)("is planned as %s for %d × %d × %d", (size, m, n, k) => {
  const target = { unit: "mma", arch: "sm_90a", multiprocessors: 132 } as const;
  expect(planProduct({ batch: 1, m, n, k }, target).size).toBe(size);
  expect(planProduct({ batch: 1, m, n, k }, { ...target, arch: "sm_90" }).size).toMatch(/^(_small)?$/);
});

it("a block's shared memory fits every card of a unit", () => {
  const bytes = (size: ProductSize, unit: Exclude<MatrixUnit, "fma">) => planBlock(size, unit).launch.shared_bytes;
  for (const size of ["_small", ""] as const) {
    expect(bytes(size, "mma")).toBeLessThanOrEqual(99 * 1024);
    for (const unit of ["wmma11", "wmma12", "mfma"] as const) expect(bytes(size, unit)).toBeLessThanOrEqual(64 * 1024);
  }
  for (const size of ["_wide", "_square", "_half", "_pair", "_split"] as const)
    expect(bytes(size, "mma")).toBeLessThanOrEqual(227 * 1024);
});

/** Sums of a few multiples of 1/64 are exact in f32: only the result is rounded. */
function expectProduct(y: Tensor, a: number[][], b: number[][], dtype: "bf16" | "f16"): void {
  const got = y.dataSync() as Float32Array;
  const unit = dtype === "bf16" ? 2 ** -8 : 2 ** -11;
  const [n, k] = [b[0]!.length, b.length];
  for (let i = 0; i < a.length; i++)
    for (let j = 0; j < n; j++) {
      let sum = 0;
      for (let l = 0; l < k; l++) sum += a[i]![l]! * b[l]![j]!;
      const found = got[i * n + j]!;
      if (!(Math.abs(found - sum) <= unit * Math.abs(sum) + 1e-7))
        expect.fail(`[${i}, ${j}] is ${found}, wanted ${sum}`);
    }
}
