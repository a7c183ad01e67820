import { describe, expect, it } from "vitest";
import { collect } from "../../src/backend/storage.ts";
import { scope, Tensor } from "../../src/index.ts";
import { KvCache, RotatingKvCache, sdpa } from "../../src/nn/index.ts";
import { describeInTurns } from "../helpers/devices.ts";

describeInTurns("Key and value caches", (device) => {
  /** (1, 2, n, 3) where every element of position p is p, and of head 1 is p + 0.5. */
  const positions = (from: number, n: number, sign = 1): Tensor =>
    Tensor.from(
      [0, 1].map((h) => Array.from({ length: n }, (_, i) => new Array<number>(3).fill(sign * (from + i + h / 2)))),
      { shape: [1, 2, n, 3], device },
    );
  const seenIn = (t: Tensor): number[] => t.index(0, 0, null, 0).toArraySync() as number[];
  const range = (from: number, to: number) => Array.from({ length: to - from }, (_, i) => from + i);

  describe("KvCache", () => {
    it("returns everything appended so far, across many growths", () => {
      using cache = new KvCache();
      let total = 0;
      for (const n of [5, 1, 1, 60, 1, 1, 100, 0, 3]) {
        const { k, v } = cache.append(positions(total, n), positions(total, n, -1));
        total += n;
        expect(cache.length).toBe(total);
        expect(k.shape).toEqual([1, 2, total, 3]);
        expect(seenIn(k)).toEqual(range(0, total));
        expect(seenIn(v)).toEqual(range(0, total).map((p) => -p));
        expect(k.index(0, 1, -1, 2).toScalarSync()).toBe(total - 0.5);
      }
      expect(total).toBe(172);
    });

    it("views handed out stay as they are while it grows", () => {
      using cache = new KvCache();
      const { k } = cache.append(positions(0, 3), positions(0, 3));
      for (let i = 3; i < 200; i++) cache.append(positions(i, 1), positions(i, 1));
      expect(seenIn(k)).toEqual([0, 1, 2]);
    });

    it("knows nothing at first, and what it holds afterwards", () => {
      using cache = new KvCache();
      expect(cache.current).toBeUndefined();
      expect(cache.length).toBe(0);
      cache.append(positions(0, 2), positions(0, 2, -1));
      expect(seenIn(cache.current!.k)).toEqual([0, 1]);
      expect(seenIn(cache.current!.v)).toEqual([-0, -1]);
    });

    it("truncate forgets the end, reset everything; both go on from there", () => {
      using cache = new KvCache();
      cache.append(positions(0, 5), positions(0, 5));
      cache.truncate(2);
      expect(cache.length).toBe(2);
      expect(seenIn(cache.append(positions(7, 2), positions(7, 2)).k)).toEqual([0, 1, 7, 8]);
      cache.reset();
      expect(cache.length).toBe(0);
      expect(seenIn(cache.append(positions(9, 1), positions(9, 1)).k)).toEqual([9]);
    });

    it("may grow along another dim, in any dtype, with keys and values of different width", () => {
      for (const dtype of ["f16", "bf16", "f64"] as const) {
        for (const dim of [1, -2]) {
          using cache = new KvCache(dim);
          cache.append(Tensor.ones([2, 1, 4], { dtype, device }), Tensor.ones([2, 1, 3], { dtype, device }));
          const { k, v } = cache.append(
            Tensor.zeros([2, 2, 4], { dtype, device }),
            Tensor.zeros([2, 2, 3], { dtype, device }),
          );
          expect(k.shape).toEqual([2, 3, 4]);
          expect(v.index(1, null, 0).toArraySync()).toEqual([1, 0, 0]);
          expect(cache.current!.v.dtype).toBe(dtype);
        }
      }
    });

    it("gives whoever writes into its buffers the room, and counts what was written", () => {
      using cache = new KvCache();
      const kind = { dtype: "f32", device } as const;
      const { k, v } = cache.reserve(3, [1, 2, 0, 3], kind);
      expect([k.shape, v.shape]).toEqual([
        [1, 2, 256, 3],
        [1, 2, 256, 3],
      ]);
      expect(cache.length).toBe(0);
      k.sliceSet(positions(0, 3), 2, 0);
      v.sliceSet(positions(0, 3, -1), 2, 0);
      cache.advance(3);
      expect(seenIn(cache.append(positions(3, 1), positions(3, 1, -1)).v)).toEqual([-0, -1, -2, -3]);
      // What is behind the length moves along: it may have been written already.
      k.sliceSet(positions(4, 2), 2, 4);
      const grown = cache.reserve(253, [1, 2, 0, 3], kind);
      expect(grown.k.shape[2]).toBe(512);
      cache.advance(2);
      expect(seenIn(cache.current!.k)).toEqual(range(0, 6));
      expect(cache.reserve(506, [1, 2, 0, 3], kind).k).toBe(grown.k);
    });

    it("takes transposed keys, as attention has them", () => {
      using cache = new KvCache();
      const k = Tensor.arange(12, undefined, { device }).reshape([1, 2, 2, 3]).transpose(1, 2);
      cache.append(k, k);
      expect(cache.append(k, k).k.index(0, 0).toArraySync()).toEqual([
        [0, 1, 2],
        [6, 7, 8],
        [0, 1, 2],
        [6, 7, 8],
      ]);
    });

    it("lives beyond the scope in which it grew, and frees its memory when disposed", () => {
      collect();
      const before = device.memory().storages;
      const cache = new KvCache();
      for (let i = 0; i < 70; i++) scope(() => void cache.append(positions(i, 1), positions(i, 1)));
      scope(() => expect(seenIn(cache.current!.k)).toEqual(range(0, 70)));
      expect(device.memory().storages).toBe(before + 2);
      cache.dispose();
      cache.dispose();
      expect(device.memory().storages).toBe(before);
      expect(cache.length).toBe(0);
      expect(cache.current).toBeUndefined();
    });
  });

  describe("RotatingKvCache", () => {
    it("keeps the last positions in order, however they come", () => {
      for (const size of [1, 3, 4, 10]) {
        for (const steps of [
          [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
          [2, 3, 1, 5, 1, 1, 4],
          [7, 1, 1, 9, 2, 1],
          [0, 2, 0, 3, 12, 1],
        ]) {
          using cache = new RotatingKvCache(size);
          let total = 0;
          for (const n of steps) {
            const { k, v } = cache.append(positions(total, n), positions(total, n, -1));
            const kept = Math.min(total, size);
            total += n;
            // What was kept before, then the new ones: each new query has its whole window.
            expect(seenIn(k), `size ${size}, steps ${steps}`).toEqual(range(total - n - kept, total));
            expect(seenIn(v)).toEqual(range(total - n - kept, total).map((p) => -p));
            expect(cache.seen).toBe(total);
          }
        }
      }
    });

    it("goes on for a thousand steps without growing", () => {
      using cache = new RotatingKvCache(8);
      scope(() => void cache.append(positions(0, 1), positions(0, 1)));
      collect();
      const before = device.memory();
      for (let i = 1; i < 1000; i++) {
        scope(() => {
          const { k } = cache.append(positions(i, 1), positions(i, 1));
          if (i > 990) expect(seenIn(k)).toEqual(range(i - 8, i + 1));
        });
      }
      expect(device.memory().storages).toBeLessThanOrEqual(before.storages);
      expect(cache.seen).toBe(1000);
    });

    it("with a causal window gives what attention over everything gives", () => {
      const size = 4;
      const total = 11;
      const random = (seed: number) => Tensor.randn([1, 2, total, 8], { device, seed });
      const [q, k, v] = [random(1), random(2), random(3)];
      const whole = sdpa(q, k, v, { causal: true, window: size });
      for (const steps of [[5, 1, 1, 3, 1], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], [11]]) {
        using cache = new RotatingKvCache(size);
        let at = 0;
        const parts = steps.map((n) => {
          const now = (t: Tensor) => t.narrow(2, at, n);
          const pair = cache.append(now(k), now(v));
          const y = sdpa(now(q), pair.k, pair.v, { causal: true, window: size });
          at += n;
          return y;
        });
        const got = Array.from(Tensor.cat(parts, 2).dataSync() as Float32Array);
        const want = whole.dataSync() as Float32Array;
        for (const [i, value] of got.entries()) expect(Math.abs(value - want[i]!)).toBeLessThan(1e-5);
      }
    });

    it("reset starts again, dispose frees", () => {
      collect();
      const before = device.memory().storages;
      const cache = new RotatingKvCache(3);
      scope(() => {
        cache.append(positions(0, 5), positions(0, 5));
        cache.reset();
        expect(cache.seen).toBe(0);
        expect(seenIn(cache.append(positions(7, 2), positions(7, 2)).k)).toEqual([7, 8]);
      });
      cache.dispose();
      cache.dispose();
      expect(cache.seen).toBe(0);
      expect(device.memory().storages).toBe(before);
    });

    it("counts positions along the dim it rotates, also counted from the end", () => {
      for (const dim of [1, -2]) {
        using cache = new RotatingKvCache(2, dim);
        cache.append(Tensor.ones([1, 3, 4], { device }), Tensor.ones([1, 3, 4], { device }));
        const { k } = cache.append(Tensor.zeros([1, 1, 4], { device }), Tensor.zeros([1, 1, 4], { device }));
        expect(k.index(0, null, 0).toArraySync()).toEqual([1, 1, 0]);
        expect(cache.seen).toBe(4);
      }
    });
  });
});
