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
function values(shape: readonly number[], seed: number, bad: readonly number[] = []): Tensor {
  const n = shape.reduce((a, b) => a * b, 1);
  const data = Float32Array.from({ length: n }, (_, i) => (((i * 31 + seed * 7 + (i >> 4)) % 29) - 14) / 8);
  for (const i of bad) data[i] = Number.NaN;
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

function check(device: Device, c: Case, dtype: "bf16" | "f16", lie: Lie, bad: readonly number[] = []): string[] {
  const { x: xs, outs, kernel, groups = 1, transposed = false, outputPadding = [0, 0] } = c;
  const { stride = [1, 1], padding = [0, 0], dilation = [1, 1] } = c;
  const inner = xs[1] / groups;
  const ws = transposed ? [xs[1], outs / groups, ...kernel] : [outs, inner, ...kernel];
  const [x, w] = [values(xs, 1, bad), values(ws, 2)];
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

/** gfx1200 lays operands out as gfx1100 does, and sm_90 as sm_90a where it has no warpgroups: products are tested on them. */
const played = units.filter(([, arch]) => arch !== "gfx1200" && arch !== "sm_90");

describe.each(played)("A convolution by %s of %s", (_unit, arch, ordinal) => {
  // Enough multiprocessors that tiles are small, so that they fit the simulator's shared memory whatever the unit.
  const device = () => deviceWith(arch, ordinal, 10_000);
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
    expect(check(device(), c, "f16", "channels last")).toEqual(["conv_product_small"]);
    expect(check(device(), { ...c, groups: 2 }, "bf16", "channels last")).toHaveLength(2);
    expect(check(device(), { ...c, padding: [1, 0] }, "f16", "channels last")).toHaveLength(2);
    expect(check(device(), { ...c, kernel: [1, 1] }, "f16", "plain")).toEqual(["conv_turn", "conv_product_small"]);
    expect(check(device(), c, "f16", "plain")).toEqual(["conv_turn", "conv_turn_taps", "conv_product_small"]);
  });

  it("of whole and cut large blocks", () => {
    const c: Case = { x: [2, 24, 12, 11], outs: 130, kernel: [3, 3], padding: [1, 1] };
    const few = deviceWith(arch, ordinal, 1);
    expect(check(few, c, "bf16", "plain").at(-1)).toBe("conv_product");
    expect(check(few, { ...c, stride: [2, 1], transposed: true }, "f16", "plain").at(-1)).toBe("conv_spread");
  });

  it("carries NaN to the outputs that see it, and no further", () => {
    const c: Case = { x: [2, 16, 6, 8], outs: 16, kernel: [3, 3], padding: [1, 1], stride: [1, 2] };
    check(device(), c, "f16", "plain", [0, 700]);
    check(device(), { ...c, transposed: true }, "bf16", "channels last", [5]);
  });

  it("of any size and window", () => {
    let state = ordinal * 100 + arch.length;
    const upTo = (n: number, from = 1) => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      return from + Math.floor((state / 2 ** 32) * (n - from + 1));
    };
    const two = (run: (i: 0 | 1) => number): Two => [run(0), run(1)];
    for (let i = 0; i < 24; i++) {
      const [groups, transposed] = [upTo(3), upTo(3) === 1];
      const [kernel, dilation, stride] = [two(() => upTo(4)), two(() => upTo(2)), two(() => upTo(3))];
      const reach = two((d) => dilation[d] * (kernel[d] - 1) + 1);
      // Transposed, what is padded is cut off, and something must be left.
      const padding = two((d) => upTo(transposed ? (reach[d] - 1) >> 1 : 3, 0));
      const size = two((d) => upTo(9, Math.max(1, reach[d] - 2 * padding[d])));
      const channels = upTo(2) === 1 ? 8 * upTo(4) : upTo(20);
      const c: Case = {
        x: [upTo(3), channels * groups, ...size],
        ...{ outs: groups * upTo(30), kernel, dilation, stride, padding, groups, transposed },
      };
      const lie = (["plain", "channels last", "gaps"] as const)[upTo(3) - 1]!;
      check(device(), c, upTo(2) === 1 ? "f16" : "bf16", lie);
    }
  });
});
