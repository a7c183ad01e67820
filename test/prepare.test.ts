// Programs compiled ahead of their use: by a compiler that counts, for a device that only notes what is loaded.
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import type { GpuContext, KernelCompiler } from "../src/backend/gpu/driver.ts";
import { KernelCache } from "../src/backend/gpu/kernel-cache.ts";
import { Launcher } from "../src/backend/gpu/launcher.ts";
import { transformerPrograms } from "../src/backend/gpu/program.ts";

function setUp(failing = "none") {
  const loaded: string[] = [];
  const compiled: string[] = [];
  let running = 0;
  let most = 0;
  const compiler = {
    library: "libcounting.so",
    version: "1",
    supports: () => true,
    codeArch: (arch: string) => arch,
    compileAsync: async (_source: string, name: string, _arch: string, options: readonly string[]) => {
      most = Math.max(most, ++running);
      await setTimeout(1);
      running--;
      if (name === `${failing}.hip`) throw new Error("does not compile");
      compiled.push(`${name} ${options.find((option) => option.startsWith("-DGPU_ONLY_"))}`);
      return Buffer.from(compiled.at(-1)!);
    },
  } as unknown as KernelCompiler;
  const context = {
    properties: { name: "a device", arch: "gfx1100" },
    loadModule: (code: Uint8Array) => BigInt(loaded.push(Buffer.from(code).toString())),
  } as unknown as GpuContext;
  const cache = new KernelCache(mkdtempSync(join(tmpdir(), "wick-prepare-")));
  const launcher = new Launcher(context, () => compiler, cache);
  return { launcher, loaded, compiled, most: () => most, again: () => new Launcher(context, () => compiler, cache) };
}

describe("Programs of a transformer", () => {
  test("are those of its dtype and of its quantized types", () => {
    const found = transformerPrograms("bf16", ["Q4_K", "Q6_K"]).map(({ file, unit }) => `${file} ${unit}`);
    expect(found).toEqual(
      expect.arrayContaining(["attention bf16", "linear bf16", "quant-matvec q4_k", "quant-matvec q6_k"]),
    );
    expect(found.filter((name) => !/ (bf16|q4_k|q6_k)$/.test(name))).toEqual([]);
    expect(new Set(found).size).toBe(found.length);
  });

  test("are compiled side by side, loaded once, and found in the cache the next time", async () => {
    const { launcher, loaded, compiled, most, again } = setUp();
    const programs = transformerPrograms("f16", ["Q8_0"]);
    await launcher.prepare(programs);
    expect([compiled.length, loaded.length]).toEqual([programs.length, programs.length]);
    expect(most()).toBe(3);
    await launcher.prepare(programs);
    expect(loaded.length).toBe(programs.length);
    await again().prepare(programs);
    expect([compiled.length, loaded.length]).toEqual([programs.length, 2 * programs.length]);
  });

  test("that do not compile are left to their first use", async () => {
    const { launcher, loaded } = setUp("norm");
    const programs = transformerPrograms("f32", []);
    await launcher.prepare(programs);
    expect(loaded.length).toBe(programs.length - 1);
  });
});
