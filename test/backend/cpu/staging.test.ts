/** Every op on tensors that are outside WebAssembly's memory: whole, and in pieces so small that nothing fits into one. */
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { CpuBackend } from "../../../src/backend/cpu/backend.ts";
import { Device } from "../../../src/index.ts";
import { verify } from "../../../src/verify/runner.ts";

const golden = fileURLToPath(new URL("../../data/golden", import.meta.url));
const named = (name: string, backend: CpuBackend) => Object.defineProperty(backend, "name", { value: name });
const devices = {
  "in native memory": Device.open("native", () => named("native", new CpuBackend({ allNative: true }))),
  "in pieces": Device.open("pieces", () => named("pieces", new CpuBackend({ allNative: true, pieceBytes: 2048 }))),
};

describe.each(Object.entries(devices))("tensors %s", (_, device) => {
  it("pass the golden cases", { timeout: 60_000 }, async () => {
    const report = await verify(golden, device);
    expect(report.cases.filter((c) => !c.ok).map((c) => `${c.id}: ${c.error}`)).toEqual([]);
    expect(report.passed).toBe(863);
  });
});
