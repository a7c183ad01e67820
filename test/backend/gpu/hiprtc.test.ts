// The hiprtc that is installed (Debian's is 5.2.3), through Wick's own binding: its processes, its stack, its options. It
// needs no GPU. `npm run hiprtc` compiles everything; here a few programs of each day's choice.
import { describe, expect, test } from "vitest";
import { amdTargets } from "../../../scripts/kernels/compile.mjs";
import { compareWithCatalogue, readCodeObject } from "../../../src/backend/gpu/codeobject.ts";
import { KernelCache } from "../../../src/backend/gpu/kernel-cache.ts";
import { unitOf } from "../../../src/backend/gpu/matrix-unit.ts";
import { probeProgram, programCodeAsync, programNamed, programs } from "../../../src/backend/gpu/program.ts";
import { type HipPlatform, openHip } from "../../../src/backend/gpu/rocm/hip.ts";
import { WickError } from "../../../src/index.ts";
import { buildPackage } from "../../helpers/built-package.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

function installed(): HipPlatform | null {
  try {
    return openHip();
  } catch (error) {
    if (process.env.CI === "true" || !(error instanceof WickError)) throw error;
    console.warn(`No real hiprtc is tested: ${error.message}`);
    return null;
  }
}
const hip = installed();

const today = Math.floor(Date.now() / 86_400_000);
/** `count` of a list, others on other days. */
const slice = <T>(list: readonly T[], count: number): T[] =>
  Array.from({ length: count }, (_, i) => list[(today * count + i * Math.ceil(list.length / count)) % list.length]!);

describe.skipIf(!hip)("The installed hiprtc", () => {
  if (!hip) return;
  const { driver, compiler: open } = hip;
  const compiler = open();
  // Nothing of an earlier run: this is about the compiler.
  const at = temporaryFolder();
  const code = async (program: typeof probeProgram | string, arch: string): Promise<Uint8Array> => {
    const chosen = typeof program === "string" ? programNamed(program) : program;
    return (
      await programCodeAsync(chosen, { device: { name: arch, arch }, compiler, cache: new KernelCache(at("cache")) })
    ).code;
  };
  const archs = amdTargets.filter((arch) => compiler.supports(arch));

  test("is bound, tells its release by the runtime, and knows cards", () => {
    expect(compiler.identity).toMatch(/^hiprtc \d+\.\d+ HIP \d+ \S/);
    expect(driver.library).toMatch(/amdhip64/);
    expect(archs).toEqual(expect.arrayContaining(["gfx906", "gfx90a", "gfx1030"]));
  });

  test("is not asked for a card that it does not know", async () => {
    expect(compiler.supports("gfx9999")).toBe(false);
    await expect(code("affine/affine_f32", "gfx9999")).rejects.toThrow(/gfx9999, which .* does not know/);
  });

  test("tells its matrix units", async () => {
    expect(unitOf(await code(probeProgram, "gfx90a"), "gfx90a")).toBe("mfma");
    expect(unitOf(await code(probeProgram, "gfx1030"), "gfx1030")).toBe("fma");
  });

  test("fills a cache ahead of time for a card that is not here", async () => {
    const { wick } = await buildPackage(at("package"));
    const args = ["kernels", "--precompile", "--only", "affine", "--arch"];
    const env = { WICK_CACHE: at("ahead") };
    expect(await wick([...args, "gfx1030"], env)).toMatchObject({ code: 0, err: "" });
    const { entries, damaged } = new KernelCache(at("ahead")).contents();
    expect({ entries, damaged }).toEqual({
      entries: programs().filter(({ file }) => file === "affine").length,
      damaged: 0,
    });
    // What a process on such a card asks for is there.
    const toolchain = { device: { name: "a card", arch: "gfx1030" }, compiler, cache: new KernelCache(at("ahead")) };
    expect((await programCodeAsync(programNamed("affine/affine_f32"), toolchain)).cached).toBe(true);
    expect((await wick([...args, "gfx9999"], env)).err).toMatch(/gfx9999/);
    expect((await wick([...args, "geforce"], env)).err).toMatch(/geforce is no architecture/);
  });

  // Attention and quantized products are what compilers stumble over.
  const always = ["attention_decode/attention_decode_64_f16", "quant-matvec/linear_q4_k_b1"];
  const cases = [...always, ...slice(programs(), 4).map(({ id }) => id)].map((id, i) => ({
    id,
    arch: slice(archs, 6)[i]!,
  }));
  test.each(cases)("compiles $id for $arch as the catalogue has it", async ({ id, arch }) => {
    expect(compareWithCatalogue(readCodeObject(await code(id, arch)), programNamed(id).kernels)).toEqual([]);
  });
});
