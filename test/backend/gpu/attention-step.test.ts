// One position of a text in one launch, where there is a unit for it, beside the same op by op.
import { describe, expect, it, vi } from "vitest";
import type { GpuBackend } from "../../../src/backend/gpu/backend.ts";
import { planQuantEven } from "../../../src/backend/gpu/families/quant-even.ts";
import { at } from "../../../src/backend/gpu/gpu.ts";
import { multiplyEven } from "../../../src/backend/gpu/ops/quant-even.ts";
import { nothing } from "../../../src/backend/gpu/ops/quant-wide.ts";
import { type Ordered, orderedAs } from "../../../src/backend/gpu/ops/x-order.ts";
import { scope, Tensor } from "../../../src/index.ts";
import { rmsNorm, rope, ropeI, sdpa } from "../../../src/nn/index.ts";
import { QTensor } from "../../../src/quantized/index.ts";
import { result } from "../../../src/tensor/tensor.ts";
import { deviceWith, inBoxes } from "../../helpers/matrix-units.ts";

interface Case {
  /** Default sm_90a, which has clusters for few kv heads; waves of one with less shared memory go through one tile at a time. */
  readonly arch?: string;
  readonly dtype: "f16" | "bf16";
  readonly d: 64 | 128;
  readonly heads: number;
  readonly kvHeads: number;
  readonly lengths: readonly number[];
  readonly interleaved?: boolean;
  readonly window?: number;
  readonly padding?: readonly number[];
  readonly hasSinks?: boolean;
  /** Heads of queries and keys are normalised. */
  readonly normed?: boolean;
}

const MULTIPROCESSORS = 16;
const values = (x: Tensor): number[] => Array.from(x.dataSync(), Number);

describe("a step of attention in one launch", () => {
  it.each<Case>([
    { dtype: "bf16", d: 128, heads: 8, kvHeads: 1, lengths: [333], normed: true },
    { dtype: "bf16", d: 128, heads: 8, kvHeads: 1, lengths: [333], normed: true, arch: "sm_86" },
    { dtype: "f16", d: 64, heads: 3, kvHeads: 1, lengths: [320, 65], hasSinks: true },
    {
      dtype: "f16",
      d: 128,
      heads: 6,
      kvHeads: 2,
      lengths: [257, 17],
      interleaved: true,
      padding: [0, 5],
      normed: true,
    },
    { dtype: "bf16", d: 128, heads: 7, kvHeads: 1, lengths: [530], window: 300, hasSinks: true },
    { dtype: "f16", d: 64, heads: 2, kvHeads: 1, lengths: [300, 1], window: 19, interleaved: true },
    // The newest is the first of a wave's second tile, the last of it, and in a part of its own.
    { dtype: "f16", d: 128, heads: 5, kvHeads: 5, lengths: [193] },
    { dtype: "bf16", d: 64, heads: 12, kvHeads: 3, lengths: [384, 271], normed: true },
    { dtype: "f16", d: 64, heads: 10, kvHeads: 5, lengths: [385], hasSinks: true },
    { dtype: "f16", d: 128, heads: 6, kvHeads: 3, lengths: [193, 40, 1], interleaved: true, normed: true },
    { dtype: "f16", d: 128, heads: 6, kvHeads: 2, lengths: [1, 17], interleaved: true, padding: [0, 5] },
    { dtype: "f16", d: 128, heads: 7, kvHeads: 1, lengths: [790], hasSinks: true, normed: true },
    { dtype: "f16", d: 128, heads: 7, kvHeads: 1, lengths: [1090], hasSinks: true, normed: true },
    { dtype: "f16", d: 128, heads: 2, kvHeads: 2, lengths: [40, 64], window: 19, hasSinks: true },
    { dtype: "bf16", d: 64, heads: 8, kvHeads: 2, lengths: [333, 1], normed: true },
    { dtype: "f16", d: 64, heads: 6, kvHeads: 1, lengths: [700], interleaved: true, window: 300, padding: [5] },
    // More kv heads than blocks, which go on from one to the next.
    { dtype: "bf16", d: 128, heads: 6, kvHeads: 3, lengths: [2, 1, 16, 33, 250, 17], normed: true },
    {
      dtype: "f16",
      d: 128,
      heads: 8,
      kvHeads: 4,
      lengths: [5, 97, 16, 130, 1, 64, 40, 81],
      padding: [1, 2, 0, 0, 0, 9, 3, 0],
    },
    { dtype: "bf16", d: 128, heads: 22, kvHeads: 11, lengths: [70, 3, 200, 64], hasSinks: true, interleaved: true },
    { dtype: "f16", d: 64, heads: 64, kvHeads: 8, lengths: [9, 130, 47, 16, 1, 64, 65, 17], normed: true, window: 60 },
    // The newest is the last of a wave's second tile, and the first of its next one; where there is no room for two items.
    { dtype: "f16", d: 128, heads: 24, kvHeads: 6, lengths: [192, 193, 208, 32, 209, 15, 224] },
    { dtype: "bf16", d: 128, heads: 12, kvHeads: 6, lengths: [192, 193, 20], arch: "sm_86" },
  ])("does what rope, cache and sdpa do: %o", (c) => {
    const device = deviceWith(c.arch ?? "sm_90a", 0, MULTIPROCESSORS);
    const launch = vi.spyOn(device.backend as unknown as { launch(name: string): void }, "launch");
    scope(() => {
      const { dtype, d, heads, kvHeads, lengths, interleaved = false, window = 0, padding } = c;
      const batch = lengths.length;
      const options = { dtype, device };
      const capacity = Math.max(...lengths) + 3;
      const side = Tensor.randn([batch, (heads + 2 * kvHeads) * d], { ...options, seed: 1 });
      const part = (at: number, count: number) => side.narrow(1, at * d, count * d);
      const [q, k, v] = [part(0, heads), part(heads, kvHeads), part(heads + kvHeads, kvHeads)];
      const weight = (seed: number) => Tensor.randn([d], { ...options, seed });
      const norms = c.normed ? { q: weight(5), k: weight(6), eps: 0.1 } : null;
      const angles = Tensor.randn([capacity, d / 2], { device, seed: 2 });
      const [cos, sin] = [angles.cos().toDType(dtype), angles.sin().toDType(dtype)];
      const filled = (seed: number) => Tensor.randn([batch, kvHeads, capacity, d], { ...options, seed });
      const [keys, vals] = [filled(3), filled(4)];
      const sinks = c.hasSinks ? Tensor.randn([heads], { ...options, seed: 7 }) : null;
      const counts = (from: readonly number[]) => Tensor.from(BigInt64Array.from(from, BigInt), { device });
      launch.mockClear();
      const got = result(
        device.backend.cachedAttention!.attend(q, k, v, {
          ...{ cos, sin, interleaved, k: keys, v: vals, past: 0, window, softcap: 0, scale: 0.1, sinks, norms },
          ...{ lengths: counts(lengths), padding: padding ? counts(padding) : null, mask: null },
        }),
        [batch, heads, d],
      );
      const items = batch * kvHeads;
      const clusters = !c.arch && 8 * items <= MULTIPROCESSORS && capacity <= 1024;
      // Two items with all keys on their way take more than 99 KiB.
      const fit = c.arch !== "sm_86" || d === 64;
      const kernel = items > MULTIPROCESSORS && fit ? "steps" : clusters ? "cluster" : "step";
      expect(launch.mock.calls.map(([name]) => name)).toEqual([`attention_${kernel}_${d}_${dtype}`]);
      const tolerance = { f16: 2e-3, bf16: 2e-2 }[dtype];
      const near = (x: Tensor, want: Tensor): void => {
        const wanted = values(want);
        expect(values(x).every((value, i) => Math.abs(value - wanted[i]!) < tolerance)).toBe(true);
      };
      // The same, op by op, sequence by sequence.
      const [oldK, oldV] = [filled(3), filled(4)];
      for (const [b, length] of lengths.entries()) {
        const position = Math.max(length - 1 - (padding?.[b] ?? 0), 0);
        const shaped = (x: Tensor, norm: Tensor | undefined) => {
          const split = x.narrow(0, b, 1).reshape([1, -1, 1, d]);
          const normed = norm ? rmsNorm(split, norm, norms!.eps) : split;
          return (interleaved ? ropeI : rope)(normed, cos.narrow(0, position, 1), sin.narrow(0, position, 1));
        };
        const wantK = oldK.narrow(0, b, 1).copy();
        const wantV = oldV.narrow(0, b, 1).copy();
        wantK.sliceSet(shaped(k, norms?.k), 2, length - 1);
        wantV.sliceSet(v.narrow(0, b, 1).reshape([1, kvHeads, 1, d]), 2, length - 1);
        near(keys.narrow(0, b, 1), wantK);
        expect(values(vals.narrow(0, b, 1))).toEqual(values(wantV));
        const [seenK, seenV] = [wantK.narrow(2, 0, length), wantV.narrow(2, 0, length)];
        const [query, key, value, sink] = [shaped(q, norms?.q), seenK, seenV, sinks].map((x) => x?.toDeviceSync("cpu"));
        const want = sdpa(query!, key!, value!, {
          ...{ scale: 0.1, causal: true, window },
          ...(sink && { sinks: sink }),
        });
        near(got.narrow(0, b, 1), want);
      }
    });
    launch.mockRestore();
  });
});

it.each(["Q4_0", "Q8_0", "Q5_0"] as const)("comes in the order of weights of %s", (type) => {
  const device = deviceWith("sm_90a", 0, MULTIPROCESSORS);
  const launch = vi.spyOn(device.backend as unknown as { launch(name: string): void }, "launch");
  scope(() => {
    const [batch, heads, kvHeads, d, dtype] = [18, 6, 2, 128, "f16"] as const;
    const random = (shape: readonly number[], seed: number) => Tensor.randn(shape, { device, dtype, seed });
    const side = random([batch, (heads + 2 * kvHeads) * d], 1);
    const part = (from: number, count: number) => side.narrow(1, from * d, count * d);
    const angles = random([40, d / 2], 2);
    const x = result(
      device.backend.cachedAttention!.attend(part(0, heads), part(heads, kvHeads), part(heads + kvHeads, kvHeads), {
        ...{ cos: angles, sin: angles, interleaved: false, window: 0, softcap: 0, scale: 0.1, sinks: null },
        ...{ k: random([batch, kvHeads, 40, d], 3), v: random([batch, kvHeads, 40, d], 4), past: 0, mask: null },
        ...{ lengths: Tensor.full([batch], 35, { device, dtype: "i64" }), padding: null, next: { type } },
      }),
      [batch, heads * d],
    );
    const w = QTensor.quantize(Tensor.randn([40, heads * d], { seed: 5 }), type).toDeviceSync(device).blocks;
    const product = (rows: Tensor) =>
      result(device.backend.linear!(rows, w, type, { norm: null, bias: null, glu: null, residual: null })!, [
        batch,
        40,
      ]);
    launch.mockClear();
    const found = values(product(x));
    expect(launch.mock.calls.map(([name]) => name)).not.toContain("quant_order_f16");
    expect(found).toEqual(values(product(x.copy())));
    expect(launch.mock.calls.map(([name]) => name)).toContain("quant_order_f16");
  });
  launch.mockRestore();
});

it("of few texts comes in order with its bits as they are in f16", () => {
  const [batch, heads, kvHeads, d, n, dtype] = [7, 4, 2, 128, 24, "f16"] as const;
  const device = deviceWith("sm_90a", 0, MULTIPROCESSORS);
  const gpu = device.backend as GpuBackend;
  scope(() => {
    const random = (shape: readonly number[], seed: number) => Tensor.randn(shape, { device, dtype, seed });
    const side = random([batch, (heads + 2 * kvHeads) * d], 1);
    const part = (from: number, count: number) => side.narrow(1, from * d, count * d);
    const angles = random([40, d / 2], 2);
    const x = result(
      gpu.cachedAttention!.attend(part(0, heads), part(heads, kvHeads), part(heads + kvHeads, kvHeads), {
        ...{ cos: angles, sin: angles, interleaved: false, window: 0, softcap: 0, scale: 0.1, sinks: null },
        ...{ k: random([batch, kvHeads, 40, d], 3), v: random([batch, kvHeads, 40, d], 4), past: 0, mask: null },
        ...{ lengths: Tensor.full([batch], 35, { device, dtype: "i64" }), padding: null, next: { type: "Q4_0" } },
      }),
      [batch, heads * d],
    );
    const shape = { rows: batch, n, k: heads * d };
    const plan = planQuantEven(shape, "Q4_0", 2)!;
    const { blocks } = QTensor.quantize(Tensor.randn([n, shape.k], { seed: 5 }), "Q4_0").toDeviceSync(device);
    const w = inBoxes(device, blocks, plan, false);
    const product = (came: Ordered | null): number[] => {
      const y = Tensor.full([batch, n], Number.NaN, { device, dtype });
      multiplyEven(gpu, plan, dtype, at(x), w, shape, at(y), { ...nothing, came });
      return values(y);
    };
    const came = orderedAs(x, shape, "Q4_0", null);
    expect(came).not.toBeNull();
    const [found, wanted] = [product(came), product(null)];
    for (const [i, value] of found.entries()) expect(Math.abs(value - wanted[i]!)).toBeLessThan(0.02);
  });
});
