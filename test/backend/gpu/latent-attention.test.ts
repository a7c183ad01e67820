/** Latent attention over a cache against the same op by op on the CPU, with every matrix unit's layout of registers. */
import { describe, expect, it } from "vitest";
import { PAGE_SIZE } from "../../../src/backend/paged-attention.ts";
import type { Device } from "../../../src/index.ts";
import { scope, Tensor } from "../../../src/index.ts";
import { rope, ropeI, sdpa } from "../../../src/nn/index.ts";
import { result } from "../../../src/tensor/tensor.ts";
import { deviceWith, units } from "../../helpers/matrix-units.ts";

type Half = "bf16" | "f16" | "f32";

interface Case {
  readonly rank: number;
  readonly rope: number;
  readonly batch?: number;
  readonly heads?: number;
  readonly t?: number;
  readonly past: number;
  readonly interleaved?: boolean;
  readonly padding?: readonly number[];
  /** In pages: the row of cos and sin that each sequence's first position has. */
  readonly starts?: readonly number[];
  /** Lengths in device memory. */
  readonly recorded?: boolean;
}

const cases: Record<string, Case> = {
  "one query of more heads than a tile has rows, in parts": { rank: 32, rope: 16, heads: 20, past: 199 },
  "more than eight parts, joined by eights": { rank: 40, rope: 8, heads: 2, past: 740 },
  "the sizes of DeepSeek": { rank: 512, rope: 64, heads: 16, past: 40 },
  "several queries of a batch with padding, recorded": {
    ...{ rank: 40, rope: 8, batch: 2, heads: 3, t: 3, past: 50, padding: [0, 7], interleaved: true, recorded: true },
  },
  "several queries in pages, turned from other rows on": {
    ...{ rank: 40, rope: 8, batch: 2, heads: 9, t: 2, past: 130, starts: [0, 5] },
  },
  "the first positions": { rank: 64, rope: 8, batch: 2, heads: 2, t: 5, past: 0, interleaved: true },
};

const values = (x: Tensor): number[] => Array.from(x.toDType("f32").dataSync());

function check(device: Device, dtype: Half, c: Case): void {
  const { rank, batch = 1, heads = 2, t = 1, past, interleaved = false, padding = null } = c;
  const { starts = null } = c;
  const [width, total] = [rank + c.rope, past + t];
  const capacity = starts ? Math.ceil(total / PAGE_SIZE) * PAGE_SIZE : total + 9;
  scope(() => {
    // Rounded, so that both sides have the same numbers.
    const draw = (seed: number, ...shape: number[]) => Tensor.randn(shape, { seed }).toDType(dtype).toDType("f32");
    // Heads outside of rows, as products by head give them.
    const q = draw(1, heads, batch * t, rank).transpose(0, 1);
    const qRope = draw(2, batch * t, heads, c.rope);
    const keys = draw(3, batch * t, width);
    const cache = draw(4, batch, 1, capacity, width);
    const angles = Tensor.randn([capacity + 9, c.rope / 2], { seed: 5 });
    const [cos, sin] = [angles.cos().toDType(dtype).toDType("f32"), angles.sin().toDType(dtype).toDType("f32")];
    const mask = padding
      ? Tensor.from(
          padding.flatMap((pad) => Array.from({ length: capacity }, (_, i) => (i < pad ? -30_000 : 0))),
        ).reshape([batch, 1, 1, capacity])
      : null;
    const at = (b: number, i: number) => Math.max(past + i - (padding?.[b] ?? 0), 0) + (starts?.[b] ?? 0);
    const positions = Array.from({ length: batch * t }, (_, row) => at(Math.floor(row / t), row % t));
    const own = (table: Tensor) =>
      table.indexSelect(Tensor.from(positions, { dtype: "u32" }), 0).reshape([batch, t, c.rope / 2]);
    const turn = (x: Tensor) => (interleaved ? ropeI : rope)(x, own(cos), own(sin)).toDType(dtype).toDType("f32");
    const split = (x: Tensor, n: number) => x.reshape([batch, t, n, -1]).transpose(1, 2);
    const wantedCache = cache.copy();
    const turnedKeys = turn(split(keys.narrow(1, rank, c.rope), 1));
    wantedCache.sliceSet(Tensor.cat([split(keys.narrow(1, 0, rank), 1), turnedKeys], 3), 2, past);
    const queries = Tensor.cat([split(q.contiguous(), heads), turn(split(qRope, heads))], 3);
    const seen = wantedCache.narrow(2, 0, total);
    const options = { scale: 0.1, causal: true, ...(mask && { mask: mask.narrow(3, 0, total) }) };
    const wanted = sdpa(queries, seen, seen.narrow(3, 0, rank), options);

    const put = (x: Tensor) => x.toDType(dtype).toDeviceSync(device);
    // Pages from the last to the first.
    const pages = starts && [...Array((batch * capacity) / PAGE_SIZE).keys()].reverse();
    const inPages = (x: Tensor): Tensor =>
      pages ? x.reshape([pages.length, 1, PAGE_SIZE, width]).indexSelect(Tensor.from(pages, { dtype: "u32" }), 0) : x;
    const there = put(inPages(cache));
    const hidden = mask && put(mask);
    const [k, r] = [put(keys), put(qRope)];
    const numbers = (x: readonly number[]) => Tensor.from(BigInt64Array.from(x, BigInt), { device });
    const { latentAttention, pagedLatentAttention } = device.backend;
    expect(latentAttention!.supports(dtype, rank, c.rope)).toBe(true);
    const rows = [put(q), r, k.narrow(1, 0, rank), k.narrow(1, rank, c.rope)] as const;
    const turned = { cos: put(cos), sin: put(sin), interleaved, cache: there, scale: 0.1 };
    const lengths = Tensor.full([batch], total, { dtype: "i64", device });
    const said = pages
      ? pagedLatentAttention!.attend(...rows, {
          ...{ ...turned, lengths, starts: numbers(starts) },
          tables: numbers(pages).reshape([batch, -1]),
        })
      : latentAttention!.attend(...rows, {
          ...{ ...turned, past, lengths: c.recorded ? lengths : null, padding: padding && numbers(padding) },
          mask: hidden && (c.recorded ? hidden : hidden.narrow(3, 0, total)),
        });
    const got = result(said, [batch, heads, t, rank]);
    const tolerance = { f32: 2e-5, f16: 3e-3, bf16: 2e-2 }[dtype];
    const far = (a: number[], b: number[]) => a.reduce((most, x, i) => Math.max(most, Math.abs(x - b[i]!)), 0);
    expect(far(values(there), values(inPages(wantedCache)))).toBeLessThanOrEqual(tolerance / 2);
    expect(far(values(got), values(wanted))).toBeLessThanOrEqual(tolerance);
  });
}

describe.each([
  ["fma", "gfx1030", 0, "f32"],
  ["fma", "gfx906", 1, "f16"],
  ...units
    .filter(([, arch]) => arch !== "sm_90a")
    .map(([unit, arch, ordinal]) => [unit, arch, ordinal, "bf16"] as const),
] as const)("latent attention with %s of %s, device %i, in %s", (_, arch, ordinal, dtype) => {
  const device = deviceWith(arch, ordinal, 4);
  it.each(Object.entries(cases))("%s", (_name, c) => check(device, dtype, c));
});

it("sizes that there is no kernel for", () => {
  const { latentAttention } = deviceWith("gfx1100", 0, 4).backend;
  expect(latentAttention!.supports("bf16", 512, 64)).toBe(true);
  expect(latentAttention!.supports("bf16", 520, 40)).toBe(false);
  expect(latentAttention!.supports("bf16", 512, 72)).toBe(false);
  expect(latentAttention!.supports("bf16", 36, 12)).toBe(false);
  expect(latentAttention!.supports("f64", 512, 64)).toBe(false);
});
