/** Machine code in the build is what the generators emit, and runs. */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { addressOfBuffer } from "../../../../src/backend/cpu/libc.ts";
import { everyKernel, kernels } from "../../../../src/backend/cpu/native/catalogue.ts";
import { type Isa, isaKey } from "../../../../src/backend/cpu/native/isa.ts";
import { mapRowArguments } from "../../../../src/backend/cpu/native/kernels/map.ts";
import { callable } from "../../../../src/backend/cpu/native/memory.ts";
import { emit, StoredCode, storedIsas } from "../../../../src/backend/cpu/native/stored.ts";
import { chooseIsa, tiers } from "../../../../src/backend/cpu/native/tier.ts";

/** Where the build writes them; the sources have none, so that tests run what the generators emit. */
const stored = (isa: Isa): StoredCode =>
  new StoredCode(readFileSync(new URL(`../../../../dist/backend/cpu/native/code/${isaKey(isa)}.bin`, import.meta.url)));

test.each(storedIsas.map((isa) => [isaKey(isa), isa] as const))("%s: all kernels, byte by byte", (_, isa) => {
  const code = stored(isa);
  const all = [...everyKernel(isa)];
  const names = all.map(({ name }) => name);
  expect(new Set(names).size).toBe(names.length);
  // Where this fails, sources were changed since `npm run build`.
  expect(Object.keys(code.places)).toEqual(names);
  const chunks = new Map<number, Buffer>();
  const differ = all.filter((kernel) => {
    const [chunk, at] = code.places[kernel.name]!;
    const bytes = chunks.get(chunk) ?? Buffer.from(code.chunk(chunk));
    chunks.set(chunk, bytes);
    const emitted = emit(kernel, isa);
    return at % 64 !== 0 || !bytes.subarray(at, at + emitted.length).equals(emitted);
  });
  expect(differ.map(({ name }) => name)).toEqual([]);
});

test("every instruction set of a processor has its file", () => {
  for (const tier of tiers()) {
    const isa = chooseIsa(tier);
    if (isa) expect(storedIsas.map(isaKey)).toContain(isaKey(isa));
  }
  expect(StoredCode.of(storedIsas[0]!)).toBe(null);
});

test("only the build's own modules use them: compiled again, they emit", async () => {
  const path = new URL("../../../../dist/backend/cpu/native/stored.js", import.meta.url);
  const { StoredCode: Built } = (await import(path.href)) as { StoredCode: typeof StoredCode };
  expect(Built.of(storedIsas[0]!)).not.toBe(null);
  expect(readFileSync(path, "utf8").match(/isPacked = true/g)).toHaveLength(1);
});

test("files of a build that was cut off are not used", () => {
  const path = new URL(`../../../../dist/backend/cpu/native/code/${isaKey(storedIsas[0]!)}.bin`, import.meta.url);
  const file = readFileSync(path);
  expect(StoredCode.in(file)).not.toBe(null);
  for (const length of [0, 3, 100, file.length >> 1, file.length - 1]) {
    expect(StoredCode.in(file.subarray(0, length)), `${length} bytes`).toBe(null);
  }
});

describe.runIf(tiers().length > 1)("stored code", () => {
  test("is found by its name and computes", () => {
    const isa = chooseIsa()!;
    const code = stored(isa);
    expect(code.address("no such kernel")).toBe(undefined);
    const address = code.address(kernels.map("mul", "f32", false).name)!;
    expect(code.address(kernels.map("mul", "f32", false).name)).toBe(address);
    const [x, y, out] = [0, 1, 2].map((n) => Float32Array.from({ length: 100 }, (_, i) => n + i / 8)) as [
      Float32Array<ArrayBuffer>,
      Float32Array<ArrayBuffer>,
      Float32Array<ArrayBuffer>,
    ];
    const args = new BigInt64Array(mapRowArguments.count);
    for (const [name, data] of Object.entries({ x, y, out }) as ["x" | "y" | "out", typeof x][]) {
      args[mapRowArguments.indexOf(name)] = BigInt(addressOfBuffer(data.buffer));
    }
    callable(address, 4)(addressOfBuffer(args.buffer), 0, 100, 0);
    expect([...out]).toEqual([...x].map((value, i) => Math.fround(value * y[i]!)));
  });
});
