// Run-time compilers as they are in the field: they crash, hang, answer nonsense, hold locks and take stack. Each costs a
// child process; and what was compiled is kept by everything it depends on.
import { readdirSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { performance } from "node:perf_hooks";
import { afterEach, describe, expect, test, vi } from "vitest";
import { type CacheKey, KernelCache } from "../../../src/backend/gpu/kernel-cache.ts";
import { buildId, libraryIdentity } from "../../../src/backend/gpu/library-identity.ts";
import { NativeCompiler } from "../../../src/backend/gpu/native-compiler.ts";
import { platform } from "../../../src/backend/gpu/platforms.ts";
import { programs } from "../../../src/backend/gpu/program.ts";
import { openHip } from "../../../src/backend/gpu/rocm/hip.ts";
import { Device, WickError } from "../../../src/index.ts";
import { loadModel } from "../../../src/models/index.ts";
import { buildPackage, sim, stubLibrary } from "../../helpers/built-package.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const at = temporaryFolder();
const compile = (body: string): string =>
  `#include <csignal>\n#include <cstdio>\n#include <cstring>\n#include <unistd.h>\n
   extern "C" int hiprtcCompileProgram(void*, int, const char**) { ${body} }`;

/** A compiler that works, but for one call. */
function compilerOf(name: string, source: string) {
  const hiprtcLibrary = stubLibrary(at(`lib${name}.so`), source);
  return openHip({ hipLibrary: sim.hip, hiprtcLibrary, commonArch: "host" }).compiler();
}

async function problemOf(run: () => unknown): Promise<string> {
  try {
    await run();
  } catch (error) {
    if (error instanceof WickError && error.code === "CompileFailed") return error.message;
    throw error;
  }
  return "it compiled";
}

/** The longest time in milliseconds for which the event loop did not turn while `run` was under way. */
async function longestPause(run: () => Promise<unknown>): Promise<number> {
  let last = performance.now();
  let longest = 0;
  const watch = setInterval(() => {
    longest = Math.max(longest, performance.now() - last);
    last = performance.now();
  }, 1);
  await run();
  clearInterval(watch);
  return longest;
}

afterEach(() => vi.unstubAllEnvs());

describe.each(["compile", "compileAsync"] as const)("A compiler, by %s,", (how) => {
  const problemWith = (name: string, source: string): Promise<string> => {
    const compiler = compilerOf(`${name}_${how}`, source);
    return problemOf(() => compiler[how]("", "kernels.hip", "gfx1100", []));
  };

  test("that dies of a signal is an error with its last words, and this process lives", async () => {
    const source = compile('fputs("LLVM ERROR: out of luck\\n", stderr); raise(SIGSEGV); return 0;');
    const message = await problemWith("segfault", source);
    expect(message).toMatch(/libsegfault_.*\.so\) died by SIGSEGV; its last words: LLVM ERROR: out of luck, while/);
    expect(message).toMatch(/compiled kernels\.hip for gfx1100 in a process of its own; `wick doctor`/);
  });

  test("that hangs is ended after the time that it is given", async () => {
    vi.stubEnv("WICK_COMPILE_SECONDS", "1.5");
    const start = performance.now();
    expect(await problemWith("hang", compile("for (;;) pause(); return 0;"))).toMatch(/no answer within 1\.5 s/);
    expect(performance.now() - start).toBeLessThan(10_000);
    vi.stubEnv("WICK_COMPILE_SECONDS", "soon");
    const compiler = compilerOf(`hang_${how}`, compile("return 0;"));
    await expect(async () => compiler[how]("", "k.hip", "gfx1100", [])).rejects.toThrow("WICK_COMPILE_SECONDS=soon");
  });

  test("that prints and gives garbage is an error", async () => {
    const garbage = `${compile('puts("garbage"); write(1, "\\0\\0\\0\\1", 4); return 0;')}
      extern "C" int hiprtcGetCodeSize(void*, size_t* n) { *n = 7; return 0; }
      extern "C" int hiprtcGetCode(void*, char* out) { memcpy(out, "garbage", 7); return 0; }`;
    expect(await problemWith("garbage", garbage)).toMatch(/gave 7 bytes .* that are no code object/);
  });

  test("that ends the process is an error", async () => {
    expect(await problemWith("ending", compile("_exit(3); return 0;"))).toMatch(/ended with exit code 3/);
  });

  test("whose library cannot be loaded in a child is an error", async () => {
    const compiler = compilerOf(`gone_${how}`, compile("return 0;"));
    rmSync(compiler.library);
    const message = await problemOf(() => compiler[how]("", "k.hip", "gfx1100", []));
    expect(message).toMatch(/libgone_.* could not be used: Failed to load shared library/);
  });
});

describe("Compilations", () => {
  const source = (id: number): string => `extern "C" int number${id}() { return ${id}; }`;
  const compiler = platform("sim").compiler();

  test("have the stack that clang wants", async () => {
    // The simulator's hiprtc takes 256 KiB; koffi's own asynchronous stack has 128.
    expect((await compiler.compileAsync(source(0), "a.hip", "gfx1100", [])).length).toBeGreaterThan(1000);
  });

  test("go on after one that failed, in order of asking", async () => {
    const asked = [source(1), "int x = nonsense;", source(2)].map((text, i) =>
      compiler.compileAsync(text, `${i}.hip`, "gfx1100", []).then(
        () => "compiled",
        (error: Error) => /nonsense/.exec(error.message)?.[0],
      ),
    );
    expect(await Promise.all(asked)).toEqual(["compiled", "nonsense", "compiled"]);
  });

  test("run side by side in spite of the compiler's lock, and leave the event loop free", async () => {
    vi.stubEnv("WICK_SIM_COMPILE_MS", "2000");
    const fresh = openHip({ hipLibrary: sim.hip, commonArch: "host" }).compiler();
    const start = performance.now();
    const pause = await longestPause(() =>
      Promise.all([3, 4].map((id) => fresh.compileAsync(source(id), `${id}.hip`, "gfx1100", []))),
    );
    // One after the other they would take 4 s, and a call that waits for the lock would be a pause of 2 s.
    expect(performance.now() - start).toBeLessThan(3900);
    expect(pause).toBeLessThan(1000);
  });

  test("of a model's kernels are never waited for on this thread", async () => {
    // bench/first-run.mjs measures how short the pauses of the event loop are.
    vi.stubEnv("WICK_CACHE", at("load"));
    const waited = vi.spyOn(NativeCompiler.prototype, "compile");
    using _ = await loadModel("models/fable-7m.Q8_0.gguf", { device: Device.from("sim:32") });
    expect(new KernelCache(at("load")).contents().entries).toBeGreaterThan(10);
    expect(waited).not.toHaveBeenCalled();
    waited.mockRestore();
  });
});

describe("The identity of a library", () => {
  test("is its build id, wherever it lies", () => {
    const path = stubLibrary(at("libplain.so"), "int plain = 1;", false);
    const copy = at("libcopy.so");
    writeFileSync(copy, readFileSync(path));
    expect(libraryIdentity(path)).toMatch(/^[0-9a-f]{16,}$/);
    expect(libraryIdentity(copy)).toBe(libraryIdentity(path));
    expect(libraryIdentity(stubLibrary(at("libother.so"), "int plain = 2;", false))).not.toBe(libraryIdentity(path));
  });

  test("is size and time without one, and unknown of what is not there", () => {
    writeFileSync(at("plain.dll"), "MZ");
    expect(libraryIdentity(at("plain.dll"))).toMatch(/^2-\d+$/);
    expect(libraryIdentity(at("absent.so"))).toBe("unknown");
    expect(buildId(Buffer.from("MZ".padEnd(80)))).toBeUndefined();
  });

  test("and the release tell compilers apart, as hiprtc's version does not", () => {
    const sixOne = `extern "C" int hipRuntimeGetVersion(int* v) { *v = 60140091; return 0; }`;
    const open = (hipLibrary: string) => openHip({ hipLibrary, hiprtcLibrary: sim.hip, commonArch: "host" }).compiler();
    const upgraded = open(stubLibrary(at("libhip61.so"), sixOne));
    const current = open(sim.hip);
    expect(upgraded.version).toBe(current.version);
    expect(upgraded.identity).toContain("60140091");
    expect(upgraded.identity).not.toBe(current.identity);
  });
});

describe("The kernel cache", () => {
  const key = (source: string, more: Partial<CacheKey> = {}): CacheKey => ({
    ...{ source, options: [], arch: "gfx1100", compiler: "hiprtc 9.0 HIP 6.1" },
    ...more,
  });
  const code = (text: string): Buffer => Buffer.from(text);
  const days = (n: number): Date => new Date(Date.now() - n * 86_400_000);
  const files = (cache: KernelCache): string[] => readdirSync(cache.folder).map((name) => join(cache.folder, name));

  test("does not take what another release, option or feature made", () => {
    const cache = new KernelCache(at("keys"));
    cache.put(key("a"), code("a"));
    expect(cache.get(key("a"))).toEqual(code("a"));
    expect(cache.get(key("a", { compiler: "hiprtc 9.0 HIP 6.2" }))).toBeUndefined();
    expect(cache.get(key("a", { options: ["-O1"] }))).toBeUndefined();
    expect(cache.get(key("a", { arch: "gfx1101" }))).toBeUndefined();
    cache.put(key("b", { arch: "gfx90a:sramecc+:xnack-" }), code("b"));
    expect(cache.get(key("b", { arch: "gfx90a:sramecc+:xnack+" }))).toBeUndefined();
    expect(cache.get(key("b", { arch: "gfx90a" }))).toBeUndefined();
    // What was compiled ahead of time, for any features, serves.
    cache.put(key("c", { arch: "gfx90a" }), code("c"));
    expect(cache.get(key("c", { arch: "gfx90a:sramecc+:xnack-" }))).toEqual(code("c"));
  });

  test("forgets what nobody used for long, and what processes left half written", () => {
    const cache = new KernelCache(at("old"));
    cache.put(key("used"), code("used"));
    cache.put(key("old"), code("old"));
    const [first, second] = files(cache) as [string, string];
    for (const path of [first, second]) utimesSync(path, days(100), days(100));
    writeFileSync(`${first}.00000000-0000-0000-0000-000000000000`, "half");
    utimesSync(`${first}.00000000-0000-0000-0000-000000000000`, days(2), days(2));
    writeFileSync(at("old/README"), "not Wick's");
    utimesSync(at("old/README"), days(1000), days(1000));
    expect(cache.get(key("used"))).toEqual(code("used"));
    cache.evict();
    expect(cache.get(key("used"))).toEqual(code("used"));
    expect(cache.get(key("old"))).toBeUndefined();
    expect(files(cache).sort()).toEqual([expect.stringMatching(/\.gfx1100$/), at("old/README")].sort());
  });

  test("keeps to its limit, dropping what was used longest ago", () => {
    const cache = new KernelCache(at("limit"), 3 * (100 + 32));
    for (const [i, name] of ["a", "b", "c", "d"].entries()) {
      const before = new Set(cache.contents().entries ? files(cache) : []);
      cache.put(key(name), Buffer.alloc(100, name));
      const path = files(cache).find((file) => !before.has(file))!;
      utimesSync(path, days(10 - i), days(10 - i));
    }
    cache.evict();
    expect(["a", "b", "c", "d"].map((name) => cache.get(key(name)) !== undefined)).toEqual([false, true, true, true]);
    vi.stubEnv("WICK_CACHE_MB", "-1");
    expect(() => new KernelCache()).toThrow("WICK_CACHE_MB=-1");
    vi.stubEnv("WICK_CACHE_MB", "2");
    expect(new KernelCache().limit).toBe(2 * 2 ** 20);
  });

  test("is filled by two processes at once, and every entry is whole", async () => {
    const built = await buildPackage(at("package"));
    const env = { WICK_CACHE: at("shared") };
    const args = ["kernels", "--precompile", "--device", "sim:32", "--only", "affine"];
    const runs = await Promise.all([built.wick(args, env), built.wick(args, env)]);
    expect(runs.map(({ code: exit, err }) => [exit, err])).toEqual([
      [0, ""],
      [0, ""],
    ]);
    const wanted = programs().filter(({ file }) => file === "affine").length;
    expect(new KernelCache(at("shared")).contents()).toMatchObject({ entries: wanted, damaged: 0 });
    // A third has nothing left to do.
    expect((await built.wick(args, env)).out).toMatch(new RegExp(`0 compiled, ${wanted} were there`));
    // Damage is mended.
    const [victim] = readdirSync(at("shared"));
    writeFileSync(join(at("shared"), victim!), Buffer.alloc(statSync(join(at("shared"), victim!)).size));
    expect((await built.wick(args, env)).out).toMatch(/1 compiled/);
  });
});
