/**
 * What comes again is found ready: jobs of products of one form, and copies of the weights of convolutions, which must not
 * outlive what they were.
 */
import { describe, expect, it } from "vitest";
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

describe.each(natives)("copies of weights with $tier", ({ native }) => {
  const x = random([1, 64, 24, 24], 1);
  const conv = (w: Tensor) => withNative(native, () => x.conv2d(w, { padding: 1, groups: 2 }).dataSync());
  const fresh = (w: Tensor) => conv(w.copy());

  it.each(Object.keys(writers))("are made anew after %s", async (name) => {
    const w = random([64, 32, 3, 3], 2);
    const first = conv(w);
    for (let i = 0; i < 3; i++) expect(conv(w)).toEqual(first);
    await writers[name]!(w);
    const then = fresh(w);
    expect(then).not.toEqual(first);
    for (let i = 0; i < 3; i++) expect(conv(w)).toEqual(then);
  });

  it("are none of memory that others work with", () => {
    const w = random([64, 32, 3, 3], 2);
    for (let i = 0; i < 3; i++) conv(w);
    backend.nativeMemory.address(w.storage);
    for (let i = 0; i < 3; i++) conv(w);
    const { at } = w.storage.block as unknown as { at: number };
    new Float32Array(backend.engine.memory.buffer, at, 300).fill(0.5);
    expect(conv(w)).toEqual(fresh(w));
  });

  it("are of a view's own elements, and of the groups that are asked for", () => {
    const all = random([128, 32, 3, 3], 3);
    for (let i = 0; i < 3; i++) {
      for (const start of [0, 64]) {
        const w = all.narrow(0, start, 64);
        expect(conv(w)).toEqual(fresh(w));
      }
    }
    const half = random([1, 32, 24, 24], 4);
    const ungrouped = (w: Tensor) => withNative(native, () => half.conv2d(w, { padding: 1 }).dataSync());
    const w = random([64, 32, 3, 3], 5);
    for (let i = 0; i < 3; i++) {
      conv(w);
      expect(ungrouped(w)).toEqual(ungrouped(w.copy()));
    }
  });

  it("go with their weights", () => {
    const w = random([64, 32, 3, 3], 2);
    for (let i = 0; i < 3; i++) conv(w);
    const want = fresh(w);
    w.dispose();
    const again = random([64, 32, 3, 3], 2);
    for (let i = 0; i < 3; i++) expect(conv(again)).toEqual(want);
  });
});
