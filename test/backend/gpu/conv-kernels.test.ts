// Convolutions of halves as products on every matrix unit's layout of registers, against the CPU's in f32.
import { describe, expect, it, vi } from "vitest";
import type { GpuBackend } from "../../../src/backend/gpu/backend.ts";
import { convolveByProduct } from "../../../src/backend/gpu/ops/conv-product.ts";
import { type Device, Tensor } from "../../../src/index.ts";
import { result } from "../../../src/tensor/tensor.ts";
import { deviceWith, units } from "../../helpers/matrix-units.ts";

type Two = readonly [number, number];
interface Case {
  readonly x: readonly [number, number, number, number];
  readonly outs: number;
  readonly kernel: Two;
  readonly stride?: Two;
  readonly padding?: Two;
  readonly dilation?: Two;
  readonly groups?: number;
  readonly transposed?: boolean;
  readonly outputPadding?: Two;
}
type Lie = "plain" | "channels last" | "gaps";

/** Multiples of 1/8 below 2: sums of products are exact in f32, so that only the result is rounded. */
function values(shape: readonly number[], seed: number): Tensor {
  const n = shape.reduce((a, b) => a * b, 1);
  const data = Float32Array.from({ length: n }, (_, i) => (((i * 31 + seed * 7 + (i >> 4)) % 29) - 14) / 8);
  return Tensor.from(data).reshape([...shape]);
}

/** The same elements on the device, whose places elsewhere hold NaN. */
function lying(x: Tensor, lie: Lie, dtype: "bf16" | "f16", device: Device): Tensor {
  const there = Tensor.from(x.toArraySync(), { dtype, device });
  if (lie === "plain") return there;
  if (lie === "channels last") return there.permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2]);
  const wide = Tensor.full(
    x.shape.map((n) => 2 * n + 1),
    Number.NaN,
    { dtype, device },
  );
  let { layout } = wide;
  for (let d = 0; d < x.rank; d++) layout = layout.narrow(d, 1, 2 * x.shape[d]!).step(d, 2);
  const view = wide.view(layout);
  device.backend.copy(there, view);
  return view;
}

function check(device: Device, c: Case, dtype: "bf16" | "f16", lie: Lie, bad = false): string[] {
  const { x: xs, outs, kernel, groups = 1, transposed = false, outputPadding = [0, 0] } = c;
  const { stride = [1, 1], padding = [0, 0], dilation = [1, 1] } = c;
  const inner = xs[1] / groups;
  const ws = transposed ? [xs[1], outs / groups, ...kernel] : [outs, inner, ...kernel];
  let [x, w] = [values(xs, 1), values(ws, 2)];
  if (bad)
    x = x.sliceScatter(
      Tensor.full([xs[0], 1, 1, 1], Number.NaN).broadcastAs([xs[0], 1, xs[2], 1]).narrow(2, 0, xs[2]),
      1,
      0,
    );
  const options = { stride, padding, dilation, groups };
  const want = transposed ? x.convTranspose2d(w, { ...options, outputPadding }) : x.conv2d(w, options);
  const gpu = device.backend as GpuBackend;
  const launch = vi.spyOn(gpu, "launch");
  const [a, b] = [lying(x, lie, dtype, device), lying(w, lie, dtype, device)];
  launch.mockClear();
  const size = want.shape.slice(2) as [number, number];
  const made = gpu.filled(dtype, want.numel, (out) =>
    expect(convolveByProduct(gpu, a, b, { ...options, size }, out, { transposed })).toBe(true),
  );
  const names = launch.mock.calls.map(([name]) => name.slice(0, name.lastIndexOf("_")));
  launch.mockRestore();
  const [got, wanted] = [result(made, want.shape).dataSync() as Float32Array, want.dataSync() as Float32Array];
  const unit = dtype === "bf16" ? 2 ** -8 : 2 ** -11;
  wanted.forEach((sum, i) => {
    const same = Number.isNaN(sum) ? Number.isNaN(got[i]!) : Math.abs(got[i]! - sum) <= unit * Math.abs(sum) + 1e-7;
    if (!same) expect.fail(`${JSON.stringify(c)} ${lie}: [${i}] is ${got[i]}, wanted ${sum}`);
  });
  return names;
}

describe.each(units)("A convolution by %s", (unit, arch, ordinal) => {
  // Enough multiprocessors that tiles are small, so that they fit the simulator's shared memory whatever the unit.
  const device = () => deviceWith(unit, arch, ordinal, 10_000);
  const cases: readonly Case[] = [
    // Whole planes, whole pieces, whole tiles; then what cuts each of them.
    { x: [1, 16, 8, 8], outs: 64, kernel: [3, 3], padding: [1, 1] },
    { x: [2, 72, 4, 8], outs: 24, kernel: [3, 3], padding: [1, 1] },
    { x: [2, 12, 7, 9], outs: 9, kernel: [3, 3], padding: [1, 1], stride: [2, 2] },
    { x: [3, 8, 5, 3], outs: 70, kernel: [2, 3], dilation: [2, 1], padding: [2, 0] },
    { x: [1, 3, 11, 10], outs: 16, kernel: [7, 7], stride: [2, 2], padding: [3, 3] },
    { x: [2, 1, 1, 40], outs: 8, kernel: [1, 5], stride: [1, 3], padding: [0, 2], dilation: [1, 2] },
    { x: [1, 80, 1, 24], outs: 33, kernel: [1, 3], padding: [0, 1], stride: [1, 2] },
    { x: [2, 32, 4, 4], outs: 48, kernel: [3, 3], padding: [1, 1], groups: 4 },
    { x: [1, 9, 5, 5], outs: 24, kernel: [3, 3], padding: [1, 1], groups: 3 },
    { x: [2, 24, 6, 5], outs: 20, kernel: [1, 1], stride: [2, 2] },
    {
      x: [2, 16, 5, 6],
      outs: 16,
      kernel: [3, 3],
      stride: [2, 2],
      padding: [1, 1],
      outputPadding: [1, 0],
      transposed: true,
    },
    {
      x: [1, 24, 3, 4],
      outs: 16,
      kernel: [4, 2],
      groups: 2,
      stride: [1, 3],
      padding: [2, 0],
      dilation: [1, 2],
      transposed: true,
    },
    { x: [1, 4, 3, 5], outs: 12, kernel: [3, 2], stride: [2, 1], padding: [3, 0], transposed: true },
  ];
  it.each(cases)("%j", (c) => {
    for (const lie of ["plain", "channels last", "gaps"] as const)
      check(device(), c, lie === "gaps" ? "bf16" : "f16", lie);
  });

  it("reads pixels whose channels are neighbours where they are", () => {
    const c: Case = { x: [2, 16, 6, 7], outs: 24, kernel: [3, 3], stride: [2, 1] };
    expect(check(device(), c, "f16", "channels last")).toEqual(["conv_gather", "conv_product_small"]);
    expect(check(device(), { ...c, groups: 2 }, "bf16", "channels last")).toHaveLength(2);
    expect(check(device(), { ...c, padding: [1, 0] }, "f16", "channels last")).toHaveLength(3);
  });
});
