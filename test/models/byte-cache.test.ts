/** Keys and values in 8 bits: what rows keep, that devices attend to just that, and what it does to logits. */
import { describe, expect, it } from "vitest";
import { f8RowBytes } from "../../src/core/cache-rows.ts";
import { Device, type DType, Tensor } from "../../src/index.ts";
import { fromRows, toRows } from "../../src/models/byte-cache.ts";
import { loadModel } from "../../src/models/index.ts";
import { sdpa } from "../../src/nn/index.ts";
import { createEngine } from "../../src/serving/index.ts";
import { result } from "../../src/tensor/tensor.ts";
import { deviceNames, gpuNames, inTurns } from "../helpers/devices.ts";
import { deviceWith } from "../helpers/matrix-units.ts";
import { distance, tiny } from "../helpers/model-folders.ts";

const draw = (n: number, seed: number): Float32Array =>
  Float32Array.from({ length: n }, (_, i) =>
    Math.fround(Math.sin(i * 12.9898 + seed) * 2 ** (((i * 7 + seed) % 9) - 8)),
  );

describe("rows in 8 bits", () => {
  it.each(["f32", "f16", "bf16"] as const)("keep four bits of what they are made of, in %s", async (dtype) => {
    for (const d of [5, 16, 96]) {
      const x = Tensor.from(draw(7 * d, d), { dtype }).reshape([1, 7, d]);
      const rows = toRows(x);
      expect([rows.dtype, rows.shape]).toEqual(["f8e4m3", [1, 7, f8RowBytes(d)]]);
      const [was, now] = [await x.data(), await fromRows(rows, d, dtype).data()] as [Float32Array, Float32Array];
      for (let r = 0; r < 7; r++) {
        const most = Math.max(...was.subarray(r * d, (r + 1) * d).map(Math.abs));
        for (let i = r * d; i < (r + 1) * d; i++)
          expect(Math.abs(now[i]! - was[i]!)).toBeLessThanOrEqual(Math.max(Math.abs(was[i]!) / 16, most / 2 ** 17));
      }
    }
  });
  it("hold zeros, very small and very large elements; what is not finite makes its row NaN", async () => {
    const kept = async (...row: number[]) => [
      ...((await fromRows(
        toRows(Tensor.from(row).reshape([1, 1, row.length])),
        row.length,
        "f32",
      ).data()) as Float32Array),
    ];
    expect(await kept(0, -0, 0)).toEqual([0, -0, 0]);
    expect(await kept(448, 449, -57344)).toEqual([448, 448, -57344]);
    expect(await kept(2 ** -100, 3 * 2 ** -101)).toEqual([2 ** -100, 3 * 2 ** -101]);
    expect(await kept(2 ** 66, 1e38)).toEqual([2 ** 66, 448 * 2 ** 60]);
    expect(await kept(1, Number.POSITIVE_INFINITY)).toEqual([NaN, NaN]);
    expect(await kept(NaN, 1)).toEqual([NaN, NaN]);
  });
});

/** A step over a cache of rows, beside attention on the CPU over what these rows say. */
async function stepError(
  device: Device,
  dtype: DType,
  d: number,
  t: number,
  lengthsOnDevice: boolean,
): Promise<number> {
  const [batch, heads, kvHeads, past, capacity] = [2, 4, 2, 70, 256];
  const width = f8RowBytes(d);
  const put = (x: Float32Array, shape: number[], to: Device | string = device) =>
    Tensor.from(x, { device: to, dtype }).reshape(shape);
  const [q, k, v] = [
    draw(batch * t * heads * d, 1),
    draw(batch * t * kvHeads * d, 2),
    draw(batch * t * kvHeads * d, 3),
  ];
  const before = [4, 5].map((seed) =>
    toRows(put(draw(batch * kvHeads * capacity * d, seed), [batch, kvHeads, capacity, d], "cpu")),
  );
  const [kCache, vCache] = await Promise.all(before.map((rows) => rows.toDevice(device)));
  const turns = {
    cos: put(new Float32Array(capacity * 2).fill(1), [capacity, 2]),
    sin: put(new Float32Array(capacity * 2), [capacity, 2]),
  };
  const lengths = lengthsOnDevice ? Tensor.from(new BigInt64Array(batch).fill(BigInt(past + t)), { device }) : null;
  const shaping = { scale: 0.3, softcap: t === 3 ? 4 : 0, window: t === 1 ? 40 : 0, sinks: null };
  const y = device.backend.cachedAttention!.attend(
    put(q, [batch * t, heads * d]),
    put(k, [batch * t, kvHeads * d]),
    put(v, [batch * t, kvHeads * d]),
    {
      ...turns,
      k: kCache!,
      v: vCache!,
      past: lengths ? 0 : past,
      lengths,
      padding: null,
      mask: null,
      interleaved: false,
      norms: null,
      ...shaping,
    },
  );
  const got = (await result(y, [batch, t, heads, d]).transpose(1, 2).toDType("f32").data()) as Float32Array;
  const all = [k, v].map((x, i) => {
    const added = toRows(put(x, [batch, t, kvHeads, d], "cpu").transpose(1, 2).contiguous());
    const rows = before[i]!;
    rows.sliceSet(added, 2, past);
    return fromRows(rows.narrow(2, 0, past + t), d, dtype).toDType("f32");
  });
  expect(all[0]!.shape.at(-1)).toBe(width - 8);
  const queries = put(q, [batch, t, heads, d], "cpu").toDType("f32").transpose(1, 2);
  const wanted = (await sdpa(queries, all[0]!, all[1]!, {
    scale: 0.3,
    causal: true,
    softcap: shaping.softcap,
    window: shaping.window,
  }).data()) as Float32Array;
  return distance(got, wanted);
}
const limits = { f32: 1e-5, f16: 1e-3, bf16: 8e-3 } as Partial<Record<DType, number>>;

describe("attention over a cache in 8 bits", () => {
  const cases = [
    ...gpuNames.map((name) => [name, () => Device.from(name), "f32", 24] as const),
    ["sm_90a", () => deviceWith("sm_90a", 0, 16), "bf16", 64],
    ["gfx1100", () => deviceWith("gfx1100", 0, 16), "f16", 96],
    ["gfx90a", () => deviceWith("gfx90a", 1, 16), "f16", 64],
  ] as const;
  it.skipIf(gpuNames.length === 0).each(cases)("on %s", async (_, open, dtype, d) => {
    for (const t of [1, 3, 20]) expect(await stepError(open(), dtype, d, t, t === 3)).toBeLessThan(limits[dtype]!);
  });
});

describe.each(deviceNames.map((name) => [name]))("a model that keeps 8 bits on %s", (name) => {
  const device = Device.from(name);
  it.each(inTurns(["qwen3", "gemma2", "llama"] as const, device).slice(0, name === "cpu" ? 3 : 1))(
    "%s says nearly the same, and the engine the same as its own cache",
    async (model) => {
      const ids = Array.from({ length: 70 }, (_, i) => 1 + ((i * 31) % 60));
      using plain = await loadModel(tiny(model), { device, dtype: "f32" });
      using bytes = await loadModel(tiny(model), { device, dtype: "f32", kvCache: "f8e4m3" });
      const steps = async (from: typeof plain): Promise<Float32Array> => {
        using cache = from.newCache();
        from.logits([ids.slice(0, 60)], { cache });
        for (const id of ids.slice(60, -1)) from.logits([[id]], { cache });
        return (await from.logits([ids.slice(-1)], { cache }).data()) as Float32Array;
      };
      const error = distance(await steps(bytes), await steps(plain));
      expect(error).toBeGreaterThan(0);
      expect(error).toBeLessThan(0.12);
      await using engine = createEngine(bytes, { pages: 8, batch: 2 });
      const tokens: number[] = [];
      for await (const { token } of engine.submit({ prompt: ids, sampling: { temperature: 0 }, maxTokens: 6 }))
        tokens.push(token);
      const own: number[] = [];
      for await (const { token } of bytes.generate(ids, { temperature: 0, maxTokens: 6 })) own.push(token);
      expect(tokens).toEqual(own);
    },
  );
});

it("is refused where there is no such cache", async () => {
  await expect(loadModel(tiny("deepseek_v2"), { kvCache: "f8e4m3" })).rejects.toThrow(/latents/);
  await expect(loadModel(tiny("bert"), { kvCache: "f8e4m3" })).rejects.toThrow(/encoder/);
  await expect(loadModel(tiny("llama"), { kvCache: "f4" as "f8e4m3" })).rejects.toThrow(/f8e4m3, not f4/);
});
