// Kernels compiled ahead of their use: by a compiler that counts, for a device that only notes what is loaded, and by the
// simulator's for whole models.
import { mkdtempSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { GpuBackend } from "../../../src/backend/gpu/backend.ts";
import { kernelNamed } from "../../../src/backend/gpu/catalogue.ts";
import type { GpuContext, KernelCompiler } from "../../../src/backend/gpu/driver.ts";
import { KernelCache } from "../../../src/backend/gpu/kernel-cache.ts";
import { Launcher } from "../../../src/backend/gpu/launcher.ts";
import { platform } from "../../../src/backend/gpu/platforms.ts";
import { programOf, programs, programsOf } from "../../../src/backend/gpu/program.ts";
import {
  productKernels,
  quantProductKernels,
  transformerKernels,
} from "../../../src/backend/gpu/transformer-kernels.ts";
import type { TransformerNeeds } from "../../../src/backend/transformers.ts";
import { fail } from "../../../src/core/errors.ts";
import { loadModel } from "../../../src/models/index.ts";
import { needsOf } from "../../../src/models/load.ts";
import { gpuNames } from "../../helpers/devices.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const folder = temporaryFolder();

const llama: TransformerNeeds = {
  dtype: "bf16",
  quantTypes: [],
  storedTypes: ["bf16"],
  normsAreShifted: false,
  hasPlainWeights: true,
  headDim: 128,
  hiddenSize: 4096,
  activation: "silu",
  norm: "rms",
  mlpsAreGated: true,
  positionsAreLearned: false,
  interleaved: false,
  scoresAreShaped: false,
  embeddingsAreScaled: false,
  logitsAreCapped: false,
};

function deferred(): { readonly promise: Promise<void>; readonly resolve: () => void } {
  let resolve = (): void => {};
  const promise = new Promise<void>((done) => {
    resolve = done;
  });
  return { promise, resolve };
}

/** Programs whose names start with `failing` do not compile, and none is done before `together` of them have been begun. */
function setUp({ failing = "none", together = 1 } = {}) {
  const loaded: string[] = [];
  const compiled: string[] = [];
  const { promise: enough, resolve: go } = deferred();
  let running = 0;
  let most = 0;
  const compiler = {
    library: "libcounting.so",
    version: "1",
    identity: "1",
    supports: () => true,
    codeArch: () => "host",
    compileAsync: async (_source: string, name: string) => {
      most = Math.max(most, ++running);
      if (running === together) go();
      await enough;
      running--;
      if (name.startsWith(failing)) throw new Error("does not compile");
      compiled.push(name);
      return Buffer.from(name);
    },
  } as unknown as KernelCompiler;
  const context = {
    properties: { name: "a device", arch: "gfx1100" },
    loadModule: (code: Uint8Array) => BigInt(loaded.push(Buffer.from(code).toString())),
  } as unknown as GpuContext;
  const cache = new KernelCache(mkdtempSync(folder("cache-")));
  const launcher = new Launcher(context, () => compiler, cache);
  return { launcher, loaded, compiled, most: () => most, again: () => new Launcher(context, () => compiler, cache) };
}

describe("Programs", () => {
  test("hold every kernel once, and only kernels of their file and unit", () => {
    const held = programs().flatMap(({ kernels }) => kernels.map(({ name }) => name));
    expect(new Set(held).size).toBe(held.length);
    for (const program of programs()) {
      for (const kernel of program.kernels) {
        expect({ file: kernel.file, unit: kernel.unit }).toEqual({ file: program.file, unit: program.unit });
        expect(programOf(kernel)).toBe(program);
      }
    }
  });

  test("of attention are for one head size, those of casts for one pair of dtypes", () => {
    const kernelsWith = (name: string) => programOf(kernelNamed(name)).kernels.map((kernel) => kernel.name);
    expect(kernelsWith("attention_128_bf16")).toEqual(["attention_128_bf16"]);
    expect(kernelsWith("cast_f32_bf16")).toEqual(["cast_f32_bf16"]);
    expect(kernelsWith("rmsnorm_f32")).toEqual(["rmsnorm_f32", "rmsnorm_wide_f32"]);
  });
});

describe("Kernels of a transformer", () => {
  test("are those of its dtype, head size and quantized types", () => {
    const names = transformerKernels({ ...llama, quantTypes: ["Q4_K", "Q6_K"], hasPlainWeights: false });
    expect(names).toEqual(expect.arrayContaining(["attention_128_bf16", "linear_q4_k_b1", "linear_q6_k_b1"]));
    expect(names.filter((name) => /attention/.test(name) && !name.includes("128"))).toEqual([]);
    expect(names.filter((name) => /_f16|gemm|index_select_u32/.test(name))).toEqual([]);
    expect(new Set(names).size).toBe(names.length);
    expect(productKernels(llama, "fma", "gfx1030")).toContain("gemm_bf16");
    expect(productKernels(llama, "wmma11", "gfx1100")).toContain("product_kk_bf16");
    expect(productKernels(llama, "mma", "sm_90a")).toContain("product_half_kk_bf16");
    expect(productKernels({ ...llama, dtype: "f32" }, "fma", "gfx1030")).toContain("gemm_f32");
    expect(transformerKernels({ ...llama, headDim: 100 }).some((name) => name.startsWith("attention"))).toBe(false);
  });

  test("are compiled side by side, loaded once, and found in the cache the next time", async () => {
    const names = transformerKernels({ ...llama, quantTypes: ["Q8_0"] });
    const count = programsOf(names).length;
    const { launcher, loaded, compiled, most, again } = setUp({ together: count });
    await launcher.prepare(names);
    expect([compiled.length, loaded.length]).toEqual([count, count]);
    // The compiler itself sees to how many run at once.
    expect(most()).toBe(count);
    await launcher.prepare(names);
    expect(loaded.length).toBe(count);
    await again().prepare(names);
    expect([compiled.length, loaded.length]).toEqual([count, 2 * count]);
  });

  test("of what a rehearsal would launch are compiled side by side, and nothing is launched", async () => {
    const { launcher, compiled, most } = setUp({ together: 2 });
    // The device can only load: a launch would be an error.
    await launcher.rehearse(async () => {
      for (const name of ["softmax_f32", "add_f32", "softmax_f32"] as const) launcher.launch(name, {} as never);
    });
    expect(compiled.toSorted()).toEqual(programsOf(["add_f32", "softmax_f32"]).map(({ id }) => `${id}.hip`));
    expect(most()).toBe(2);
    await expect(launcher.rehearse(async () => fail("InvalidArgument", "stopped"))).rejects.toThrow("stopped");
    // Behind it launches are launches again, also where it failed.
    expect(() => launcher.launch("softmax_f32", {} as never)).toThrow();
  });

  test("that do not compile are left to their first use", async () => {
    const { launcher, loaded } = setUp({ failing: "norm/" });
    const names = transformerKernels(llama);
    await launcher.prepare(names);
    expect(loaded.length).toBe(programsOf(names).length - 1);
  });

  test.skipIf(gpuNames.length === 0)("that cannot be compiled at all are no error until they are used", async () => {
    const compiler = () => fail("LibraryNotFound", "hiprtc was not found");
    const backend = new GpuBackend("uncompiled:0", { ...platform("sim"), compiler }, 0);
    const { toLoad, toRun } = backend.transformers.prepare(llama);
    await expect(Promise.all([toLoad, toRun])).resolves.toBeDefined();
    expect(() => backend.fill("f32", 4, 1)).toThrow("hiprtc was not found");
  });

  // Whoever adds a kernel to the transformer's path adds it to the list: the first token must not wait for a compiler.
  const folders = ["bert", "gemma2", "gpt2", "granite", "llama", "modernbert", "olmo2", "phi3", "qwen2", "qwen3"].map(
    (name) => `test/data/models/tiny/${name}`,
  );
  const cases = gpuNames.flatMap((device) =>
    [...folders, "models/fable-7m.Q8_0.gguf"].map((path) => ({ device, path })),
  );
  test.skipIf(cases.length === 0).each(cases)("are all that $path needs on $device", async ({ device, path }) => {
    using model = await loadModel(path, { device, dtype: "bf16" });
    const needed = new Set<string>();
    const launch = Launcher.prototype.launch;
    Launcher.prototype.launch = function (name, values) {
      needed.add(name);
      launch.call(this, name, values as never);
    };
    try {
      const prompt = Array.from({ length: 12 }, (_, i) => i + 3);
      const { encoder } = model.config;
      if (encoder) (await model.embed([prompt, prompt.slice(1)], { normalize: true })).dispose();
      else for await (const _ of model.generate(prompt, { maxTokens: 2, temperature: 0.8 }));
    } finally {
      Launcher.prototype.launch = launch;
    }
    const quantized = path.endsWith(".gguf");
    const quantTypes = quantized ? (["Q8_0"] as const) : [];
    const weights = { quantTypes, storedTypes: ["f32" as const], normsAreShifted: false, hasPlainMatrices: !quantized };
    const needs = needsOf(model.config, weights, "bf16");
    const { arch } = (model.device.backend as GpuBackend).context.properties;
    const prepared = [...transformerKernels(needs, arch), ...quantProductKernels(needs, arch)];
    const held = new Set(programsOf(prepared).flatMap(({ kernels }) => kernels.map(({ name }) => name)));
    expect([...needed].filter((name) => !held.has(name))).toEqual([]);
  });
});
