/** The core ops suffice: a device that has nothing else passes every golden case through the composed defaults. */
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import type { CoreOps, DeviceMemory } from "../../src/backend/backend.ts";
import { Device, observe, registerDevice, Tensor } from "../../src/index.ts";
import { composed } from "../../src/ops/composed/index.ts";
import { verify } from "../../src/verify/runner.ts";
import { ReferenceBackend } from "./backend.ts";

registerDevice("ref", () => new ReferenceBackend());

const methods = Object.getOwnPropertyNames(ReferenceBackend.prototype).filter((name) => name !== "constructor");
const memory: readonly (keyof DeviceMemory | "synchronize")[] = [
  ...(["alloc", "free", "memory", "available", "trim", "synchronize", "write", "receive", "read", "readSync"] as const),
];
const core: Readonly<Record<keyof CoreOps, true>> = {
  ...{ fill: true, random: true, unary: true, binary: true, compare: true, where: true, cast: true, copy: true },
  ...{ reduce: true, cumsum: true, argsort: true, gather: true, scatter: true, matmul: true },
  ...{ dequantize: true, quantize: true },
};

describe("the reference device", () => {
  it("has memory, the core ops and nothing else", () => {
    expect(methods.sort()).toEqual([...memory, ...Object.keys(core)].sort());
    expect(Object.keys(core)).toHaveLength(16);
  });

  it("passes every golden case", async () => {
    const report = await verify(fileURLToPath(new URL("../data/golden", import.meta.url)), Device.from("ref"));
    expect(report.cases.filter((c) => !c.ok)).toEqual([]);
    expect(report.passed).toBe(863);
  }, 300_000);

  it("names the op that was called, whatever it was composed of", () => {
    const [x, ids] = [Tensor.zeros([2, 2], { device: "ref" }), Tensor.from([5], { dtype: "u32", device: "ref" })];
    expect(() => x.indexSelect(ids, 0)).toThrow(/^indexSelect: id 5/);
    expect(() => x.indexAdd(ids, Tensor.zeros([1, 2], { device: "ref" }), 0)).toThrow(/^indexAdd: id 5/);
    expect(() => x.embedding(ids)).toThrow(/^embedding: id 5/);
  });

  it("composes what it does not have", () => {
    const asked: string[] = [];
    using _ = observe(({ op, done }) => asked.push(done ? op : `${op}?`));
    Tensor.from([1, 2, 3], { device: "ref" }).softmax(0);
    expect(asked).toContain("softmax?");
    expect(asked).toContain("reduce");
    expect(asked.filter((op) => op.endsWith("?")).every((op) => op.slice(0, -1) in composed)).toBe(true);
  });
});
