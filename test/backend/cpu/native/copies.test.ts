/** Weights of convolutions that come again have a copy: it must not outlive what they were. */
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

describe.each(natives)("copies of weights with $tier", ({ native }) => {
  const withIt = <T>(run: () => T): T => {
    Object.defineProperty(backend, "native", { value: native, configurable: true });
    try {
      return run();
    } finally {
      Reflect.deleteProperty(backend, "native");
    }
  };
  const x = random([1, 64, 24, 24], 1);
  const conv = (w: Tensor) => withIt(() => x.conv2d(w, { padding: 1, groups: 2 }).dataSync());
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
    const ungrouped = (w: Tensor) => withIt(() => half.conv2d(w, { padding: 1 }).dataSync());
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
