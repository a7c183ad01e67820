/** The ways in which a tensor's memory comes back: disposal, scopes, collection; and that nothing else frees it. */
import { setImmediate as turn } from "node:timers/promises";
import { expect, it } from "vitest";
import { collect } from "../../src/backend/storage.ts";
import { MemoryError, scope, Tensor } from "../../src/index.ts";
import { describeInTurns } from "../helpers/devices.ts";

describeInTurns("memory", (device) => {
  const live = () => device.memory().live;
  const make = (n = 1024) => Tensor.ones([n], { device });

  it("dispose frees the storage at once, and twice is harmless", () => {
    collect();
    const before = live();
    const x = make();
    expect(live()).toBeGreaterThanOrEqual(before + 4096);
    x.dispose();
    x.dispose();
    expect(live()).toBe(before);
    expect(x.disposed).toBe(true);
  });

  it("a view keeps the storage of a disposed tensor", () => {
    collect();
    const before = live();
    const x = make();
    const view = x.narrow(0, 3, 2);
    x.dispose();
    expect(view.toArraySync()).toEqual([1, 1]);
    expect(() => x.sumAll()).toThrow(MemoryError);
    view.dispose();
    expect(live()).toBe(before);
  });

  it("using disposes at the end of the block", () => {
    collect();
    const before = live();
    {
      using x = make();
      expect(x.numel).toBe(1024);
    }
    expect(live()).toBe(before);
  });

  it("a scope disposes what is made inside and keeps what it returns, however nested", () => {
    collect();
    const before = live();
    const kept = scope(() => {
      const a = make();
      const b = a.add(a);
      return { list: [b], map: new Map([["c", b.mul(b)]]) };
    });
    expect(kept.list[0]!.toArraySync()).toHaveLength(1024);
    expect(kept.map.get("c")!.toArraySync()).toContain(4);
    kept.list[0]!.dispose();
    kept.map.get("c")!.dispose();
    expect(live()).toBe(before);
  });

  it("a scope that throws disposes everything", () => {
    collect();
    const before = live();
    expect(() =>
      scope(() => {
        make().add(1);
        throw new Error("out");
      }),
    ).toThrow("out");
    expect(live()).toBe(before);
  });

  it("a scope survives await, beside another scope", async () => {
    collect();
    const before = live();
    const work = (value: number) =>
      scope(async () => {
        const x = Tensor.full([100], value, { device });
        await turn();
        const y = x.add(x);
        await y.data();
        expect(x.disposed).toBe(false);
        return y;
      });
    const [a, b] = await Promise.all([work(1), work(2)]);
    expect([a.disposed, b.disposed]).toEqual([false, false]);
    expect((await b.data())[0]).toBe(4);
    a.dispose();
    b.dispose();
    expect(live()).toBe(before);
    await expect(
      scope(async () => {
        make();
        await turn();
        throw new Error("late");
      }),
    ).rejects.toThrow("late");
    expect(live()).toBe(before);
  });

  it("what an inner scope returns belongs to the outer one", () => {
    collect();
    const before = live();
    scope(() => {
      const inner = scope(() => make().add(1));
      expect(inner.disposed).toBe(false);
    });
    expect(live()).toBe(before);
  });

  it("keep takes a tensor out of its scope", () => {
    const kept: Tensor[] = [];
    scope(() => {
      kept.push(make().keep());
    });
    expect(kept[0]!.disposed).toBe(false);
    kept[0]!.dispose();
  });

  it("a pending read pins its storage", async () => {
    const x = make();
    const reading = x.data();
    x.dispose();
    const other = Tensor.zeros([1024], { device });
    expect((await reading).every((v) => v === 1)).toBe(true);
    other.dispose();
  });

  it("collection frees tensors that nobody holds", async () => {
    collect();
    const before = live();
    (() => {
      for (let i = 0; i < 10; i++) make();
    })();
    expect(live()).toBeGreaterThan(before);
    for (let i = 0; i < 50 && live() > before; i++) {
      globalThis.gc!();
      await turn();
    }
    expect(live()).toBe(before);
  });

  it("100,000 ops in a loop that never yields and never disposes stay within a bound", () => {
    collect();
    const before = live();
    const x = make(16);
    let largest = 0;
    let y = x;
    for (let i = 0; i < 100_000; i++) {
      y = x.add(y);
      if (i % 1000 === 0) largest = Math.max(largest, live() - before);
    }
    expect(y.numel).toBe(16);
    // All of them would be 6.4 MB.
    expect(largest).toBeLessThan(5e6);
    collect();
    expect(live() - before).toBeLessThan(1024);
  });

  it("large tensors dropped in a synchronous loop are found in time", () => {
    collect();
    const before = live();
    const data = new Float32Array(2 ** 20);
    let largest = 0;
    for (let i = 0; i < 100; i++) {
      // From the host: the simulator would take long to fill them.
      Tensor.from(data, { device });
      largest = Math.max(largest, live() - before);
    }
    expect(largest).toBeLessThan(256 * 2 ** 20);
  });

  it("ops in a scope do not grow memory even without collection", () => {
    const x = make(16);
    collect();
    const before = live();
    let largest = 0;
    for (let i = 0; i < (device.name === "cpu" ? 50_000 : 5_000); i++) {
      scope(() => {
        x.add(x).mul(x);
      });
      largest = Math.max(largest, live() - before);
    }
    expect(largest).toBe(0);
    x.dispose();
  });

  it("a failing op leaves nothing behind", () => {
    const x = Tensor.zeros([4, 4], { device });
    const ids = Tensor.from([9], { dtype: "u32", device });
    collect();
    const before = live();
    for (let i = 0; i < 3; i++) expect(() => x.indexSelect(ids, 0).toArraySync()).toThrow(/out of range/);
    collect();
    expect(live()).toBe(before);
    x.dispose();
    ids.dispose();
  });

  it("reports live, cached and peak bytes", () => {
    const { peak } = device.memory();
    const big = make(2 ** 22);
    const during = device.memory();
    expect(during.peak).toBeGreaterThanOrEqual(Math.max(peak, 2 ** 24));
    big.dispose();
    const after = device.memory();
    expect(after.live).toBe(during.live - 2 ** 24);
    expect(after.cached).toBeGreaterThanOrEqual(2 ** 24);
    expect(after.storages).toBe(during.storages - 1);
  });
});
