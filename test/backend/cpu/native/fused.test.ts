/** Linear layers and attention over a cache in one call, in every form that this machine has, beside the ops they are made of. */
import { describe, expect, it } from "vitest";
import type { CpuBackend } from "../../../../src/backend/cpu/backend.ts";
import { blockCodes, type NativeQuantType } from "../../../../src/backend/cpu/native/kernels/quant-blocks.ts";
import { Native } from "../../../../src/backend/cpu/native/native.ts";
import { NativeCachedAttention } from "../../../../src/backend/cpu/native/ops/cached-attention.ts";
import { linear } from "../../../../src/backend/cpu/native/ops/linear.ts";
import { chooseIsa, tiers } from "../../../../src/backend/cpu/native/tier.ts";
import type { LinearParams } from "../../../../src/backend/fused-ops.ts";
import type { Storage } from "../../../../src/backend/storage.ts";
import { Device, Tensor } from "../../../../src/index.ts";
import { rope, ropeI, sdpa } from "../../../../src/nn/index.ts";
import { composed } from "../../../../src/ops/composed/index.ts";
import { QTensor } from "../../../../src/quantized/index.ts";
import { result } from "../../../../src/tensor/tensor.ts";
import { NativeWithTiles } from "../../../helpers/tiles.ts";

const natives = tiers()
  .filter((tier) => tier !== "wasm")
  .flatMap((tier) => {
    const isa = chooseIsa(tier)!;
    const native = { tier: `${tier}`, native: new Native(isa) };
    return isa.vnni && !isa.amx ? [native, { tier: `${tier} with AMX`, native: new NativeWithTiles(isa) }] : [native];
  });
const types = Object.keys(blockCodes) as NativeQuantType[];
const backend = Device.cpu().backend as CpuBackend;
const random = (shape: number[], seed: number) => Tensor.randn(shape, { seed });
const numbers = (x: Tensor): Float32Array => x.toDType("f32").dataSync() as Float32Array;

/** The device's machine code is this one's, until the result is disposed. */
function instead(native: Native): Disposable {
  Object.defineProperty(backend, "native", { value: native, configurable: true });
  return { [Symbol.dispose]: () => Reflect.deleteProperty(backend, "native") };
}

/** The largest difference, beside the largest number. */
function distance(got: Tensor, want: Tensor): number {
  const [a, b] = [numbers(got), numbers(want)];
  expect(a.length).toBe(b.length);
  const most = b.reduce((most, y) => Math.max(most, Math.abs(y)), 0);
  return a.reduce((worst, x, i) => Math.max(worst, Math.abs(x - b[i]!)), 0) / most;
}

describe.each(natives)("in one call with $tier", ({ native }) => {
  const params = (p: Partial<LinearParams<Tensor>>): LinearParams<Tensor> => ({
    norm: null,
    bias: null,
    glu: null,
    residual: null,
    ...p,
  });

  it("linear layers do what their ops do", () => {
    const [n, k] = [70, 64];
    const runner = { native, threads: 2, planes: 2 } as const;
    const norm = { weight: random([k], 1), eps: 1e-5 };
    const w = QTensor.quantize(random([n, k], 2), "Q8_0").blocks;
    for (const m of [1, 3, 20]) {
      for (const dtype of ["f32", "bf16"] as const) {
        const x = random([m, k], 3).toDType(dtype);
        const own = { norm: { ...norm, weight: norm.weight.toDType(dtype) } };
        for (const p of [
          params({}),
          params({ ...own, residual: random([m, n], 4).toDType(dtype) }),
          params({ ...own, bias: random([n], 5).toDType(dtype) }),
          params({ ...own, bias: random([n], 5).toDType(dtype), glu: "silu" }),
          params({ glu: "gelu" }),
          params({ bias: random([n], 5).toDType(dtype), activation: "geluErf" }),
        ]) {
          const made = linear(backend, runner, x, w, "Q8_0", p)!;
          const want = composed.linear(x, w, "Q8_0", p);
          expect(distance(result(made, want.shape), want)).toBeLessThan(dtype === "f32" ? 1e-5 : 2e-2);
        }
      }
    }
    // What is not done in one call is left to the ops.
    const x = random([2, k], 3);
    const both = params({ bias: random([n], 5), residual: random([2, n], 4) });
    expect(linear(backend, runner, x, w, "Q8_0", both)).toBeNull();
    expect(linear(backend, runner, x, w, "Q8_0", params({ glu: "clampedSwiglu" }))).toBeNull();
  });

  it.each(types)("rows of layers with %s have the same bits alone, from turned weights, and in company", (type) => {
    const [n, k] = [45, 768];
    const runner = { native, threads: 2, planes: 2 } as const;
    const w = QTensor.quantize(random([n, k], 6), type).blocks;
    const x = random([10, k], 7);
    const run = (rows: Tensor): Float32Array =>
      numbers(result(linear(backend, runner, rows, w, type, params({}))!, [rows.shape[0]!, n]));
    const all = run(x);
    for (const [first, count] of [
      [0, 1],
      [3, 2],
      [2, 8],
    ] as const) {
      expect(run(x.narrow(0, first, count))).toEqual(all.subarray(first * n, (first + count) * n));
    }
    w.dispose();
  });

  it("a part of weights that decodes first leaves the whole of them as it is", () => {
    const [n, k] = [45, 768];
    const runner = { native, threads: 2, planes: 2 } as const;
    const w = QTensor.quantize(random([n, k], 6), "Q8_0").blocks;
    const x = random([1, k], 7);
    const run = (of: Tensor): Float32Array =>
      numbers(result(linear(backend, runner, x, of, "Q8_0", params({}))!, [1, of.shape[0]!]));
    const part = run(w.narrow(0, 0, 16));
    const whole = run(w);
    expect(part).toEqual(whole.subarray(0, 16));
    const want = (): Tensor => composed.linear(x, w, "Q8_0", params({}));
    expect(distance(Tensor.from(whole), want())).toBeLessThan(1e-5);
    // What is written to them later counts, too.
    backend.write(w.storage, 0, QTensor.quantize(random([n, k], 8), "Q8_0").blocks.dataSync() as Uint8Array);
    expect(distance(Tensor.from(run(w)), want())).toBeLessThan(1e-5);
    w.dispose();
  });

  it("wide layers one behind the other in the queue give what they give one by one", () => {
    const k = 512;
    const w = QTensor.quantize(random([k, k], 8), "Q4_0").blocks;
    const norm = { weight: random([k], 9), eps: 1e-5 };
    const run = (threads: number): Float32Array => {
      let y = random([1, k], 10);
      for (let i = 0; i < 40; i++) {
        const p = params({ norm, residual: y });
        y = result(linear(backend, { native, threads, planes: 2 }, y, w, "Q4_0", p)!, [1, k]);
      }
      return numbers(y);
    };
    const want = run(1);
    expect(want.every(Number.isFinite)).toBe(true);
    for (let i = 0; i < 5; i++) expect(run(2)).toEqual(want);
  });

  it("rows are turned, enter the cache and attend to it", () => {
    const [heads, kvHeads, d, room] = [4, 2, 48, 24];
    using _ = instead(native);
    const attention = new NativeCachedAttention(backend);
    for (const dtype of ["f32", "f16"] as const) {
      for (const [batch, t, past, rotary, interleaved] of [
        [1, 1, 9, 32, true],
        [2, 5, 3, 32, false],
        [1, 7, 0, 0, false],
      ] as const) {
        const typed = (shape: number[], seed: number) => random(shape, seed).toDType(dtype);
        // Queries, keys and values lie beside each other.
        const rows = typed([batch * t, (heads + 2 * kvHeads) * d], 1);
        const [q, k, v] = rows.split([heads * d, kvHeads * d, kvHeads * d], 1) as [Tensor, Tensor, Tensor];
        const [cos, sin] = [typed([room, rotary / 2], 2), typed([room, rotary / 2], 3)];
        const cache = { k: typed([batch, kvHeads, room, d], 4), v: typed([batch, kvHeads, room, d], 5) };
        const padding = batch === 2 ? [0, 4] : null;
        const mask = padding && Tensor.zeros([batch, 1, 1, past + t], { dtype });
        const split = (x: Tensor) => x.reshape([batch, t, -1, d]).transpose(1, 2);
        const turned = (x: Tensor): Tensor => {
          if (rotary === 0) return split(x);
          const parts = Array.from({ length: batch }, (_, b) => {
            const ids = Uint32Array.from({ length: t }, (_, i) => Math.max(past + i - (padding?.[b] ?? 0), 0));
            const at = Tensor.from(ids);
            const one = split(x).narrow(0, b, 1);
            const turn = (interleaved ? ropeI : rope)(
              one.narrow(3, 0, rotary),
              cos.indexSelect(at, 0),
              sin.indexSelect(at, 0),
            );
            return Tensor.cat([turn, one.narrow(3, rotary, d - rotary)], 3);
          });
          return Tensor.cat(parts, 0);
        };
        const [keys, values] = [
          [cache.k, turned(k)],
          [cache.v, split(v)],
        ].map(([before, fresh]) => Tensor.cat([before!.narrow(2, 0, past), fresh!], 2)) as [Tensor, Tensor];
        const want = sdpa(turned(q), keys, values, { scale: 0.2, causal: true, ...(mask && { mask }) });
        const padded = padding && Tensor.from(BigInt64Array.from(padding, BigInt));
        const made: Storage = attention.attend(q, k, v, {
          ...{ cos, sin, interleaved, ...cache, past, lengths: null, padding: padded, mask },
          ...{ scale: 0.2, softcap: 0, window: 0, sinks: null },
        });
        const got = result(made, [batch, t, heads, d]).transpose(1, 2);
        expect(distance(got, want)).toBeLessThan(dtype === "f32" ? 1e-6 : 1e-3);
        expect(numbers(cache.k.narrow(2, 0, past + t))).toEqual(numbers(keys));
        expect(numbers(cache.v.narrow(2, 0, past + t))).toEqual(numbers(values));
      }
    }
    const forms = { rotary: [32], windowed: false };
    expect(attention.supports("f32", 48, "f32", forms)).toBe(true);
    expect(attention.supports("f32", 40, "f32", forms)).toBe(false);
    expect(attention.supports("f32", 48, "f32", { ...forms, rotary: [16] })).toBe(false);
    expect(attention.supports("f32", 48, "f32", { ...forms, windowed: true })).toBe(false);
    expect(attention.supports("f32", 48, "f8e4m3", forms)).toBe(false);
    const [q, k, v] = [random([1, 96], 1), random([1, 48], 2), random([1, 48], 3)];
    const cache = { k: random([1, 1, 2, 48], 4), v: random([1, 1, 2, 48], 5) };
    const table = { cos: random([8, 16], 6), sin: random([8, 16], 7), interleaved: false };
    const places = { lengths: null, padding: null, mask: null, scale: 1, softcap: 0, window: 0, sinks: null };
    expect(() => attention.attend(q, k, v, { ...table, ...cache, past: 2, ...places })).toThrow(
      /3 positions do not fit/,
    );
  });
});
