/**
 * What comes again is found ready: jobs of products of one form, and copies of the weights of convolutions and linear layers,
 * which must not outlive what they were.
 */
import { describe, expect, it, vi } from "vitest";
import type { CpuBackend } from "../../../../src/backend/cpu/backend.ts";
import { Native } from "../../../../src/backend/cpu/native/native.ts";
import { chooseIsa, tiers } from "../../../../src/backend/cpu/native/tier.ts";
import { Device, Tensor } from "../../../../src/index.ts";

const natives = tiers()
  .filter((tier) => tier !== "wasm")
  .map((tier) => ({ tier, native: new Native(chooseIsa(tier)!) }));
const backend = Device.cpu().backend as CpuBackend;
const random = (shape: number[], seed: number) => Tensor.randn(shape, { seed });

/** The ways to write to a tensor. */
const writers: Readonly<Record<string, (w: Tensor) => void | Promise<void>>> = {
  sliceSet: (w) => w.sliceSet(random([2, 32, 3, 3], 9), 0, 5),
  write: (w) => backend.write(w.storage, 64, new Uint8Array(random([50], 9).dataSync().buffer)),
  receive: (w) => backend.receive(w.storage, 0, 400, async (into) => void into.fill(1)),
  scatter: (w) => {
    const ids = Tensor.zeros([1, 32, 3, 3], { dtype: "u32" });
    backend.scatter(w, ids, random([1, 32, 3, 3], 9), 0, true);
  },
  indexAdd: (w) => backend.indexAdd(w, Tensor.zeros([1], { dtype: "u32" }), random([1, 32, 3, 3], 9), 0),
};

/** The device's machine code is this one's while `run` runs. */
function withNative<T>(native: Native, run: () => T): T {
  Object.defineProperty(backend, "native", { value: native, configurable: true });
  try {
    return run();
  } finally {
    Reflect.deleteProperty(backend, "native");
  }
}

describe.each(natives)("products that come again with $tier", ({ native }) => {
  const forms = [
    [1, 70, 300],
    [3, 64, 40],
    [70, 50, 1],
    [20, 33, 50],
    [64, 80, 96],
    [300, 256, 64],
  ] as const;

  it.each(["f32", "f16", "bf16"] as const)("are those of their own operands: %s", (dtype) => {
    for (let round = 0; round < 3; round++) {
      for (const [i, [m, k, n]] of forms.entries()) {
        // From other places each time; the second B has its columns along k.
        const x = random([m + round, k], 10 * i + round)
          .toDType(dtype)
          .narrow(0, round, m);
        const w = random([k + round, n], 10 * i + 3 + round)
          .toDType(dtype)
          .narrow(0, round, k);
        const turned = random([n + round, k], 10 * i + 6 + round)
          .toDType(dtype)
          .narrow(0, round, n)
          .t();
        for (const b of [w, turned]) {
          // A batch has no jobs ready.
          const want = withNative(native, () => x.unsqueeze(0).matmul(b.unsqueeze(0)).dataSync());
          expect(withNative(native, () => x.matmul(b).dataSync())).toEqual(want);
        }
      }
    }
  });
});

/** What has copies of its weights (64, 32, 3, 3). */
const layers: Readonly<Record<string, (w: Tensor) => Tensor>> = {
  conv: (w) => random([1, 64, 24, 24], 1).conv2d(w, { padding: 1, groups: 2 }),
  linear: (w) => random([3, 288], 1).matmul(w.reshape([64, 288]).t()),
  "one row": (w) => random([1, 288], 1).matmul(w.reshape([64, 288]).t()),
  "a batch": (w) => random([2, 5, 288], 1).matmul(w.reshape([1, 64, 288]).transpose(1, 2)),
  "one column": (w) => w.reshape([64, 288]).matmul(random([288, 1], 1)),
};

describe.each(
  natives.flatMap(({ tier, native }) => Object.entries(layers).map(([layer, run]) => ({ tier, native, layer, run }))),
)("copies of weights with $tier, $layer", ({ native, run: layer }) => {
  const run = (w: Tensor) => withNative(native, () => layer(w).dataSync());
  const fresh = (w: Tensor) => run(w.copy());

  it.each(Object.keys(writers))("are made anew after %s", async (name) => {
    const w = random([64, 32, 3, 3], 2);
    const first = run(w);
    for (let i = 0; i < 3; i++) expect(run(w)).toEqual(first);
    await writers[name]!(w);
    const then = fresh(w);
    expect(then).not.toEqual(first);
    for (let i = 0; i < 3; i++) expect(run(w)).toEqual(then);
  });

  it("are none of memory that others work with", () => {
    const w = random([64, 32, 3, 3], 2);
    for (let i = 0; i < 3; i++) run(w);
    backend.nativeMemory.address(w.storage);
    for (let i = 0; i < 3; i++) run(w);
    const { at } = w.storage.block as unknown as { at: number };
    new Float32Array(backend.engine.memory.buffer, at, 300).fill(0.5);
    expect(run(w)).toEqual(fresh(w));
  });

  it("are of a view's own elements", () => {
    const all = random([128, 32, 3, 3], 3);
    for (let i = 0; i < 3; i++) {
      for (const start of [0, 64]) {
        const w = all.narrow(0, start, 64);
        expect(run(w)).toEqual(fresh(w));
      }
    }
  });

  it("go with their weights", () => {
    const w = random([64, 32, 3, 3], 2);
    for (let i = 0; i < 3; i++) run(w);
    const want = fresh(w);
    w.dispose();
    const again = random([64, 32, 3, 3], 2);
    for (let i = 0; i < 3; i++) expect(run(again)).toEqual(want);
  });
});

describe.each(natives)("copies with $tier", ({ native }) => {
  it("of a convolution's weights are of the groups that are asked for", () => {
    const [x, half] = [random([1, 64, 24, 24], 1), random([1, 32, 24, 24], 4)];
    const grouped = (w: Tensor) => withNative(native, () => x.conv2d(w, { padding: 1, groups: 2 }).dataSync());
    const whole = (w: Tensor) => withNative(native, () => half.conv2d(w, { padding: 1 }).dataSync());
    const w = random([64, 32, 3, 3], 5);
    for (let i = 0; i < 3; i++) {
      grouped(w);
      expect(whole(w)).toEqual(whole(w.copy()));
    }
  });

  it.each(["f32", "f16", "bf16"] as const)("of a layer's weights give the bits that %s had without", (dtype) => {
    const make = vi.spyOn(native, "prepare");
    // Panels of 48 columns or 16, stretches of 1,024 steps, tiles of 8 rows or 6.
    for (const [n, k] of [
      [48, 400],
      [97, 301],
      [130, 2050],
      [1000, 64],
    ] as const) {
      const w = random([n, k], n).toDType(dtype);
      for (const m of [1, 2, 7, 8, 9, 17, 100, 200]) {
        const x = random([m, k], m).toDType(dtype);
        const want = withNative(native, () => x.matmul(w.copy().t()).dataSync());
        for (let i = 0; i < 2; i++) expect(withNative(native, () => x.matmul(w.t()).dataSync())).toEqual(want);
      }
    }
    // Those that are as wide in panels as they are.
    const isCopied = dtype === "f32" || (dtype === "bf16" && native.isa.pairs);
    expect(make).toHaveBeenCalledTimes(isCopied ? 4 : 0);
    make.mockRestore();
  });
});
