// Which library multiplies, found out without risking the process; its workspace, its recordings, its first product.
// The libraries are copies of the simulator's stand-ins: each copy is another library with a first product of its own.
import { copyFileSync, mkdirSync, readdirSync, readFileSync, utimesSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, describe, expect, test, vi } from "vitest";
import { buildSim } from "../../../sim/build.mjs";
import { GpuBackend } from "../../../src/backend/gpu/backend.ts";
import { BlasTrials } from "../../../src/backend/gpu/blas-verdicts.ts";
import { DeviceBlas } from "../../../src/backend/gpu/device-blas.ts";
import type { Blas, BlasLibrary, Gemm, GemmType, GpuContext, GpuPlatform } from "../../../src/backend/gpu/driver.ts";
import { addressOf, ffi } from "../../../src/backend/gpu/library.ts";
import { openHip } from "../../../src/backend/gpu/rocm/hip.ts";
import { kernelFiles } from "../../../src/backend/gpu/rocm/kernel-files.ts";
import type { TransformerNeeds } from "../../../src/backend/transformers.ts";
import { decode, encode } from "../../../src/core/dtype.ts";
import { Device, type DType, Tensor, WickError } from "../../../src/index.ts";
import { verify } from "../../../src/verify/runner.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const sim = await buildSim();
const MiB = 2 ** 20;
const at = temporaryFolder();
const none = { recording: false, graphs: 0 };

afterEach(() => vi.unstubAllEnvs());

let copies = 0;
/** A library of its own, in a folder of its own. */
function copyOf(file: string, name = "librocblas.so"): string {
  const path = at(`lib${copies++}/${name}`);
  mkdirSync(dirname(path), { recursive: true });
  copyFileSync(file, path);
  return path;
}

interface Setting {
  readonly platform: GpuPlatform;
  readonly context: GpuContext;
  readonly rocblas: string;
  readonly hipblaslt: string;
  /** What a new process would have, with verdicts in `folder`. */
  blas(folder?: string, seconds?: number): DeviceBlas;
}

function setUp({
  arch = "",
  rocblas = copyOf(sim.rocblas),
  hipblaslt = copyOf(sim.hipblaslt, "libhipblaslt.so"),
} = {}): Setting {
  const hip = openHip({
    hipLibrary: sim.hip,
    rocblasLibrary: rocblas,
    hipblasltLibrary: hipblaslt,
    commonArch: "host",
  });
  const platform: GpuPlatform = arch ? { ...hip, blas: () => hip.blas(arch) } : hip;
  const context = platform.driver.open(0);
  const verdicts = at(`verdicts${copies}`);
  return {
    platform,
    context,
    rocblas,
    hipblaslt,
    blas: (folder = verdicts, seconds = 20) => new DeviceBlas(platform, context, none, new BlasTrials(folder, seconds)),
  };
}

/** What `run` throws. */
function thrown(run: () => unknown): [string, string] {
  try {
    run();
  } catch (error) {
    if (error instanceof WickError) return [error.code, error.message];
    throw error;
  }
  throw new Error("nothing was thrown");
}

function upload(context: GpuContext, bytes: Uint8Array): bigint {
  const ptr = context.malloc(bytes.length);
  context.copyToDevice(ptr, addressOf(bytes), bytes.length);
  context.synchronizeSync();
  return ptr;
}
function download(context: GpuContext, ptr: bigint, bytes: number): Uint8Array {
  const into = new Uint8Array(bytes);
  context.copyToHost(addressOf(into), ptr, bytes);
  context.synchronizeSync();
  return into;
}

const small: Omit<Gemm, "a" | "b" | "c"> = {
  type: "f32",
  m: 4,
  n: 4,
  k: 4,
  transA: false,
  lda: 4,
  strideA: 16,
  transB: false,
  ldb: 4,
  strideB: 16,
  strideC: 16,
  batch: 1,
};
const sizes: Record<GemmType, number> = { f16: 2, bf16: 2, f32: 4, f64: 8 };

/** 3·I times itself. */
function square(context: GpuContext, multiply: (p: Gemm) => boolean, change: Partial<Gemm> = {}): number[] | false {
  const p = { ...small, ...change };
  const values = Array.from({ length: 16 }, (_, i) => (i % 5 === 0 ? 3 : 0));
  const [a, c] = [upload(context, encode(values, p.type)), context.malloc(16 * sizes[p.type])];
  const done = multiply({ a, b: a, c, ...p });
  const result = [...decode(download(context, c, 16 * sizes[p.type]), p.type)].map(Number);
  for (const ptr of [a, c]) context.free(ptr);
  return done && result;
}
const nine = Array.from({ length: 16 }, (_, i) => (i % 5 === 0 ? 9 : 0));

describe("the files of a library", () => {
  const spec = { name: "rocblas", env: "ROCBLAS_TENSILE_LIBPATH" } as const;
  const archs = ["gfx1030", "gfx90a:sramecc+:xnack-", "gfx103", "gfx90", "gfx1036", "gfx1100"];

  test.each([
    ["AMD's packages and Fedora's", "rocblas/library", false],
    ["Debian's packages, which take those of compatible GPUs", "rocblas/2.47.0/library", undefined],
    ["a build's own folder", "library", false],
    ["the folder above", "../rocblas/library", false],
  ])("are found in %s", (_, folder, otherwise) => {
    const library = at(`files-${folder.replaceAll("/", "-")}/lib/librocblas.so.4`);
    const files = join(dirname(library), folder);
    mkdirSync(files, { recursive: true });
    for (const name of ["TensileLibrary_lazy_gfx1030.dat", "Kernels.so-000-gfx90a-xnack+.hsaco"])
      writeFileSync(join(files, name), "");
    const has = (arch: string) => kernelFiles(spec, library, arch).areThere;
    expect(archs.map(has)).toEqual([true, true, ...Array(4).fill(otherwise)]);
    vi.stubEnv(spec.env, at("elsewhere"));
    expect(archs.map(has)).toEqual(Array(6).fill(false));
  });

  test("may be in a folder per GPU, and where there is no folder nothing is known", () => {
    const files = { name: "hipblaslt", env: "HIPBLASLT_TENSILE_LIBPATH" } as const;
    const library = at("per-gpu/lib/libhipblaslt.so.1");
    expect(kernelFiles(files, library, "gfx942").areThere).toBeUndefined();
    mkdirSync(at("per-gpu/lib/hipblaslt/library/gfx942"), { recursive: true });
    expect(kernelFiles(files, library, "gfx942").areThere).toBe(true);
    expect(kernelFiles(files, library, "gfx950").areThere).toBe(false);
  });

  test("that are missing for the card keep the library out of it", () => {
    const { blas, context, rocblas } = setUp();
    const files = join(dirname(rocblas), "rocblas/library");
    mkdirSync(files, { recursive: true });
    writeFileSync(join(files, "Kernels.so-000-gfx1030.hsaco"), "");
    // A trial would pass: the files alone decide.
    const without = blas();
    expect(without.first).toBeNull();
    expect(without.problem).toBe("rocBLAS 4.4.0 has no files for gfx1100: Wick's own kernels multiply");
    expect(square(context, (p) => without.gemm(p))).toBe(false);
    writeFileSync(join(files, "Kernels.so-000-gfx1100.hsaco"), "");
    expect(blas().first?.version).toBe("rocBLAS 4.4.0.wick-sim");
  });

  test("librocblas.so.0 is the name in ROCm 5.2 to 5.5 and in Debian", () => {
    const library = copyOf(sim.rocblas, "librocblas.so.0");
    vi.stubEnv("WICK_ROCBLAS_LIBRARY", dirname(library));
    const platform = openHip({ hipLibrary: sim.hip });
    const context = platform.driver.open(0);
    expect(
      platform
        .blas("gfx1100")
        .find(({ name }) => name === "rocblas")!
        .find(context).library,
    ).toBe(library);
  });
});

describe("a trial product in a child process", () => {
  const fresh = async (): Promise<typeof BlasTrials> => {
    // As a second process has it: nothing in memory.
    vi.resetModules();
    return (await import("../../../src/backend/gpu/blas-verdicts.ts")).BlasTrials;
  };
  const rocblasOf = ({ platform, context }: Setting): BlasLibrary => platform.blas("gfx1100")[1]!.find(context);

  test("that aborts leaves this process alive, and Wick's own kernels multiply", async () => {
    const { platform } = setUp();
    vi.stubEnv("WICK_CACHE", at("cache"));
    vi.stubEnv("WICK_SIM_BLAS_FIRST", "abort");
    const device = Device.open("abort:0", () => new GpuBackend("abort:0", platform, 0));
    const gpu = device.backend as GpuBackend;
    const [a, b] = [Tensor.randn([9, 33], { device, seed: 1 }), Tensor.randn([33, 17], { device, seed: 2 })];
    const got = await a.matmul(b).data();
    expect(gpu.blasProblem).toBe(
      "rocBLAS 4.4.0 died by SIGABRT in a trial product on gfx1100: Wick's own kernels multiply",
    );
    const want = await (await a.toDevice("cpu")).matmul(await b.toDevice("cpu")).data();
    for (let i = 0; i < want.length; i++) expect(got[i]).toBeCloseTo(want[i] as number, 4);
  });

  test("is made once: what came of it is kept until the library is another", async () => {
    const setting = setUp();
    const { blas, rocblas } = setting;
    const folder = at("kept");
    vi.stubEnv("WICK_SIM_BLAS_FIRST", "abort");
    expect(blas(folder).problem).toMatch(/died by SIGABRT/);
    vi.stubEnv("WICK_SIM_BLAS_FIRST", undefined);
    expect(blas(folder).problem).toMatch(/died by SIGABRT/);
    const { trial } = rocblasOf(setting);
    expect(new (await fresh())(folder).problem(trial!)).toMatch(/died by SIGABRT/);
    expect(await new (await fresh())(folder).problemAsync(trial!)).toMatch(/died by SIGABRT/);

    // Damaged, or of another key: tried again and written anew.
    const [file] = readdirSync(folder);
    for (const damaged of ["{", "[]", JSON.stringify({ key: "another", problem: "nonsense" })]) {
      writeFileSync(join(folder, file!), damaged);
      expect(new (await fresh())(folder).problem(trial!)).toBe("");
      expect(JSON.parse(readFileSync(join(folder, file!), "utf8"))).toMatchObject({ problem: "" });
    }
    expect(readdirSync(folder)).toEqual([file]);

    vi.stubEnv("WICK_SIM_BLAS_FIRST", "abort");
    expect(blas(folder).problem).toBe("");
    utimesSync(rocblas, 1, 1);
    expect(blas(folder).problem).toMatch(/died by SIGABRT/);
  });

  test("that hangs is ended, with this thread waiting or not", async () => {
    const { trial } = rocblasOf(setUp());
    vi.stubEnv("WICK_SIM_BLAS_FIRST", "hang");
    const problem = "rocBLAS 4.4.0 did not end a trial product on gfx1100 in 0.6 s";
    expect(new BlasTrials(at("hang"), 0.6).problem(trial!)).toBe(problem);
    expect(await new BlasTrials(at("hang-async"), 0.6).problemAsync(trial!)).toBe(problem);
  });

  test("of a moment's failure is not kept", () => {
    const setting = setUp();
    vi.stubEnv("WICK_SIM_MEMORY", String(MiB));
    const folder = at("moment");
    expect(new BlasTrials(folder).problem(rocblasOf(setting).trial!)).toBe(
      "rocBLAS 4.4.0 could not be tried on gfx1100: hipMalloc failed with status 2",
    );
    vi.stubEnv("WICK_SIM_MEMORY", undefined);
    expect(new BlasTrials(folder).problem(rocblasOf(setting).trial!)).toBe("");
  });

  test("that gives something else than the product is a reason, too", () => {
    const setting = setUp();
    const trial = rocblasOf(setting).trial!;
    const wrong = { ...trial, key: "wrong", request: trial.request.replace("1065353216", "1073741824") };
    expect(new BlasTrials(at("wrong")).problem(wrong)).toBe(
      "rocBLAS 4.4.0 gave a wrong result in a trial product on gfx1100",
    );
    const refused = {
      ...trial,
      key: "refused",
      request: trial.request.replaceAll('["gemm","handle",111', '["gemm","handle",7'),
    };
    expect(new BlasTrials(at("refused")).problem(refused)).toBe(
      "rocBLAS 4.4.0 failed in a trial product on gfx1100: rocblas_gemm_ex failed with status 11",
    );
    const nonsense = { ...trial, key: "nonsense", request: "{}" };
    expect(new BlasTrials(at("nonsense")).problem(nonsense)).toMatch(/ended with code 1 in a trial product/);
  });

  test("is not made for a library that WICK_BLAS names, which must then open", () => {
    vi.stubEnv("WICK_SIM_BLAS_FIRST", "abort");
    vi.stubEnv("WICK_BLAS", "rocblas");
    const forced = setUp().blas();
    expect([forced.first?.version, forced.why]).toEqual(["rocBLAS 4.4.0.wick-sim", "asked for by WICK_BLAS=rocblas"]);
    vi.stubEnv("WICK_BLAS", "hipblaslt");
    const missing = setUp({ hipblaslt: at("absent.so") }).blas();
    for (let i = 0; i < 2; i++) {
      const [code, message] = thrown(() => missing.first);
      expect(code).toBe("LibraryNotFound");
      expect(message).toMatch(/^WICK_BLAS=hipblaslt asks for a library that cannot be used: .*absent\.so/);
    }
    vi.stubEnv("WICK_BLAS", "mkl");
    expect(thrown(() => setUp().blas().first)).toEqual([
      "InvalidArgument",
      "WICK_BLAS=mkl names no library of this device; it can be none, hipblaslt, rocblas, or unset",
    ]);
    vi.stubEnv("WICK_BLAS", "none");
    const off = setUp().blas();
    expect([off.first, off.problem]).toEqual([null, "turned off by WICK_BLAS=none"]);
  });
});

describe("rocBLAS's workspace", () => {
  interface Last {
    readonly products: number;
    readonly atomics: number;
    readonly isUsers: number;
    readonly bytes: number;
  }
  function open(recordings = { ...none }): Setting & { handle: Blas; recordings: typeof recordings; last(): Last } {
    const setting = setUp();
    const library = setting.platform.blas("gfx1100")[1]!.find(setting.context);
    const read = ffi().load(setting.rocblas).func("void wickSimRocblasLast(void *out)");
    const last = (): Last => {
      const words = new BigInt64Array(4);
      read(words);
      const [products, atomics, isUsers, bytes] = Array.from(words, Number) as [number, number, number, number];
      return { products, atomics, isUsers, bytes };
    };
    return { ...setting, recordings, handle: library.open(setting.context, recordings), last };
  }

  test("is Wick's own, and sums are not atomic", () => {
    const { handle, context, last } = open();
    expect(square(context, (p) => handle.gemm(p))).toEqual(nine);
    expect(last()).toEqual({ products: 1, atomics: 0, isUsers: 1, bytes: 32 * MiB });
    handle.close();
  });

  test("grows once where a product needs more, up to its limit", () => {
    const { handle, context, last } = open();
    const before = context.memoryInfo().free;
    vi.stubEnv("WICK_SIM_BLAS_WORKSPACE", String(40 * MiB));
    expect(square(context, (p) => handle.gemm(p))).toEqual(nine);
    expect(last().bytes).toBe(128 * MiB);
    expect(before - context.memoryInfo().free).toBe(96 * MiB);
    vi.stubEnv("WICK_SIM_BLAS_WORKSPACE", String(128 * MiB + 1));
    const [code, message] = thrown(() => square(context, (p) => handle.gemm(p)));
    expect(code).toBe("OutOfMemory");
    expect(message).toContain("f32 product (4×4)·(4×4), batch 1: rocblas_status 5 (memory error)");
    expect(message).toContain(`workspace of ${128 * MiB} bytes`);
    handle.close();
  });

  test("does not grow while work is recorded", () => {
    const { handle, context, recordings } = open();
    vi.stubEnv("WICK_SIM_BLAS_WORKSPACE", String(40 * MiB));
    recordings.recording = true;
    expect(thrown(() => square(context, (p) => handle.gemm(p)))).toEqual([
      "OutOfMemory",
      expect.stringContaining("nor while work is recorded: multiply once before the capture"),
    ]);
    recordings.recording = false;
    expect(square(context, (p) => handle.gemm(p))).toEqual(nine);
    handle.close();
  });

  test("stays as recorded work knew it, until no graph is left", async () => {
    const { platform, context } = setUp();
    vi.stubEnv("WICK_CACHE", at("cache"));
    vi.stubEnv("WICK_SIM_BLAS_WORKSPACE", String(MiB));
    const device = Device.open("grown:0", () => new GpuBackend("grown:0", platform, 0));
    const gpu = device.backend as GpuBackend;
    const values = encode(
      Array.from({ length: 16 }, (_, i) => (i % 5 === 0 ? 3 : 0)),
      "f32",
    );
    const [a, c] = [upload(context, values), upload(context, new Uint8Array(64))];
    const multiply = (): boolean => gpu.gemm({ ...small, a, b: a, c });
    const graph = gpu.capture(() => void multiply());
    const free = context.memoryInfo().free;
    vi.stubEnv("WICK_SIM_BLAS_WORKSPACE", String(64 * MiB));
    expect(multiply()).toBe(true);
    expect(free - context.memoryInfo().free).toBe(128 * MiB);
    gpu.context.memset(c, 0, 64);
    graph.replay();
    await gpu.synchronize();
    expect([...decode(download(context, c, 64), "f32")]).toEqual(nine);
    graph[Symbol.dispose]();
    expect(free - context.memoryInfo().free).toBe(96 * MiB);
  });
});

describe("a library's first product", () => {
  const llama: TransformerNeeds = {
    dtype: "f32",
    quantTypes: [],
    storedTypes: ["f32"],
    normsAreShifted: false,
    hasPlainWeights: true,
    headDim: 64,
    hiddenSize: 256,
    activation: "silu",
    norm: "rms",
    mlpsAreGated: true,
    positionsAreLearned: false,
    interleaved: false,
    scoresAreShaped: false,
    embeddingsAreScaled: false,
    logitsAreCapped: false,
  };

  test("is made while a model loads, beside the event loop, and not again", async () => {
    const { platform, rocblas } = setUp();
    const [delay, folder] = [1200, at("prepared")];
    vi.stubEnv("WICK_CACHE", folder);
    vi.stubEnv("WICK_SIM_BLAS_FIRST", String(delay));
    const backend = new GpuBackend("prepared:0", platform, 0);
    // Kernels are another test's.
    vi.spyOn(backend, "prepare").mockResolvedValue();
    let longest = 0;
    let last = performance.now();
    const look = (): void => {
      const now = performance.now();
      longest = Math.max(longest, now - last);
      last = now;
    };
    const ticking = setInterval(look, 5);
    const start = performance.now();
    await backend.transformers.prepare({ ...llama, dtype: "f32" }).toRun;
    look();
    clearInterval(ticking);
    // Once in the child, once here.
    expect(performance.now() - start).toBeGreaterThan(2 * delay);
    expect(longest).toBeLessThan(delay / 2);
    const read = ffi().load(rocblas).func("void wickSimRocblasLast(void *out)");
    const words = new BigInt64Array(4);
    read(words);
    expect(Number(words[0])).toBe(1);
    expect(readdirSync(folder).filter((name) => name.startsWith("blas-"))).toHaveLength(1);

    const context = backend.context;
    const began = performance.now();
    expect(square(context, (p) => backend.gemm(p))).toEqual(nine);
    expect(performance.now() - began).toBeLessThan(delay / 2);
    await backend.transformers.prepare({ ...llama, dtype: "f32" }).toRun;
    read(words);
    expect(Number(words[0])).toBe(2);
    await backend.transformers.prepare({ ...llama, dtype: "f16" }).toRun;
    read(words);
    expect(Number(words[0])).toBe(3);
  });

  test("that cannot be made is no error until a product is asked for", async () => {
    vi.stubEnv("WICK_BLAS", "hipblaslt");
    const missing = setUp({ hipblaslt: at("absent.so") }).blas();
    await missing.prepare("f32");
    expect(thrown(() => missing.gemm({ ...small, a: 0n, b: 0n, c: 0n }))[0]).toBe("LibraryNotFound");
  });
});

describe("hipBLASLt", () => {
  interface Counts {
    readonly searches: number;
    readonly products: number;
    readonly alive: number;
  }
  const counting = (library: string): (() => Counts) => {
    const read = ffi().load(library).func("void wickSimHipblasltCounts(void *out)");
    return () => {
      const words = new BigInt64Array(3);
      read(words);
      const [searches, products, alive] = Array.from(words, Number) as [number, number, number];
      return { searches, products, alive };
    };
  };
  function open(recordings = { ...none }): Setting & { handle: Blas; recordings: typeof recordings; counts(): Counts } {
    const setting = setUp();
    const library = setting.platform.blas("gfx942")[0]!.find(setting.context);
    const handle = library.open(setting.context, recordings);
    return { ...setting, recordings, handle, counts: counting(setting.hipblaslt) };
  }

  test("comes first on gfx942, gfx950 and gfx12, and is not asked on other cards", () => {
    const { platform } = setUp();
    const defaults = (arch: string): string[] =>
      platform
        .blas(arch)
        .filter(({ isDefault }) => isDefault)
        .map(({ name, why }) => `${name} ${why}`.trim());
    for (const arch of ["gfx942:sramecc+:xnack-", "gfx950", "gfx1200", "gfx1201"])
      expect(defaults(arch)).toEqual([`hipblaslt preferred on ${arch.split(":")[0]}`, "rocblas"]);
    for (const arch of ["gfx90a:sramecc+:xnack-", "gfx1030", "gfx1100", "gfx1151"])
      expect(defaults(arch)).toEqual(["rocblas"]);
  });

  test("leaves to rocBLAS what it does not take", () => {
    const { blas, context, hipblaslt } = setUp({ arch: "gfx942:sramecc+:xnack-" });
    const both = blas();
    expect([both.first?.version, both.why]).toEqual(["hipBLASLt 0.12.0", "preferred on gfx942"]);
    expect(square(context, (p) => both.gemm(p))).toEqual(nine);
    expect(square(context, (p) => both.gemm(p), { type: "f64" })).toEqual(nine);
    expect(counting(hipblaslt)().products).toBe(1);
  });

  test("is passed over where it is missing, too old, or fails in its trial", () => {
    const arch = "gfx942";
    const missing = setUp({ arch, hipblaslt: at("absent.so") }).blas();
    expect(missing.first?.version).toBe("rocBLAS 4.4.0.wick-sim");
    expect(missing.why).toMatch(/absent\.so cannot be loaded as hipBLASLt$/);
    vi.stubEnv("WICK_SIM_HIPBLASLT_VERSION", "501");
    const old = setUp({ arch }).blas();
    expect(old.first?.version).toBe("rocBLAS 4.4.0.wick-sim");
    expect(old.why).toBe("hipBLASLt is version 0.5.1; 0.6.0 (ROCm 6.0) is the oldest that Wick can use");
    vi.stubEnv("WICK_BLAS", "hipblaslt");
    expect(thrown(() => setUp({ arch }).blas().first)[1]).toMatch(
      /is version 0\.5\.1; 0\.6\.0 .* install a newer ROCm/,
    );
  });

  test("searches once per problem, and leaves nothing behind", () => {
    const { handle, context, counts } = open();
    for (let i = 0; i < 3; i++) expect(square(context, (p) => handle.gemm(p))).toEqual(nine);
    expect(counts()).toMatchObject({ searches: 1, products: 3 });
    expect(square(context, (p) => handle.gemm(p), { transA: true })).toEqual(nine);
    expect(counts()).toMatchObject({ searches: 2, products: 4 });
    handle.close();
    expect(counts().alive).toBe(0);
  });

  test("keeps a bounded number of problems", () => {
    const { handle, context, counts } = open();
    const memory = upload(context, new Uint8Array(4 * 2000));
    for (let m = 1; m <= 1100; m++) {
      const column = { m, n: 1, k: 1, lda: 1, ldb: 1, strideA: 0, strideB: 0, strideC: 0 };
      handle.gemm({ ...small, ...column, a: memory, b: memory, c: memory });
    }
    // Four descriptors each, the handle and its preference.
    expect(counts()).toEqual({ searches: 1100, products: 1100, alive: 4 * 1024 + 2 });
    handle.close();
  });

  test("refuses f64 and what it has no kernel for, and remembers it", () => {
    const { handle, context, counts } = open();
    expect(square(context, (p) => handle.gemm(p), { type: "f64" })).toBe(false);
    expect(counts().searches).toBe(0);
    vi.stubEnv("WICK_SIM_BLAS_WORKSPACE", String(77 * MiB));
    for (let i = 0; i < 2; i++) expect(square(context, (p) => handle.gemm(p))).toBe(false);
    expect(counts()).toMatchObject({ searches: 1, products: 0, alive: 2 });
    handle.close();
  });

  test("does not search while work is recorded", () => {
    const { handle, context, recordings } = open();
    expect(square(context, (p) => handle.gemm(p))).toEqual(nine);
    recordings.recording = true;
    expect(square(context, (p) => handle.gemm(p))).toEqual(nine);
    expect(thrown(() => square(context, (p) => handle.gemm(p), { transB: true }))).toEqual([
      "InvalidArgument",
      expect.stringMatching(/not yet met a f32 product \(4×4\)·\(4×4\), batch 1, .* multiply once before the capture$/),
    ]);
    handle.close();
  });

  test("has its first product made ahead, too", async () => {
    const { blas, context, hipblaslt } = setUp({ arch: "gfx942" });
    const prepared = blas();
    await prepared.prepare("bf16");
    const counts = counting(hipblaslt);
    expect(counts()).toMatchObject({ searches: 1, products: 1 });
    expect(square(context, (p) => prepared.gemm(p), { type: "bf16" })).toEqual(nine);
  });

  test("gives the products of every layout and dtype, and the golden ones", { timeout: 120_000 }, async () => {
    vi.stubEnv("WICK_BLAS", "hipblaslt");
    const device = Device.from("sim:64");
    const gpu = device.backend as GpuBackend;
    expect(gpu.blas?.version).toBe("hipBLASLt 0.12.0");
    const counts = counting(gpu.blas!.library);
    const folder = fileURLToPath(new URL("../../data/golden", import.meta.url));
    const report = await verify(folder, device, { only: ["matmul"] });
    expect(report.cases.filter((c) => !c.ok).map((c) => `${c.id}: ${c.error}`)).toEqual([]);
    expect(report.passed).toBeGreaterThan(10);
    const met = Tensor.randn([3, 4, 5], { device, seed: 1 });
    const graph = gpu.capture(() => met.matmul(met.transpose(1, 2)).dispose());
    const { searches, products } = counts();
    graph.replay();
    await device.synchronize();
    expect(counts()).toMatchObject({ searches, products });
    graph[Symbol.dispose]();

    const cases: [DType, (x: Tensor, y: Tensor) => Tensor][] = [];
    for (const dtype of ["f32", "f16", "bf16"] as const) {
      cases.push(
        [dtype, (x, y) => x.matmul(y.transpose(1, 2))],
        [dtype, (x, y) => x.transpose(1, 2).matmul(y)],
        [dtype, (x, y) => x.narrow(2, 1, 4).matmul(y.narrow(2, 2, 4).transpose(1, 2))],
        [dtype, (x, y) => x.narrow(0, 1, 1).matmul(y.transpose(1, 2).narrow(0, 0, 1))],
      );
    }
    for (const [dtype, run] of cases) {
      const before = counts().products;
      const shapes = { x: [3, 5, 7], y: [3, 5, 7] };
      const [x, y] = [shapes.x, shapes.y].map((shape, seed) =>
        Tensor.randn(shape, { device: "cpu", seed }).toDType(dtype),
      ) as [Tensor, Tensor];
      const got = await run(await x.toDevice(device), await y.toDevice(device))
        .toDType("f32")
        .data();
      const want = await run(x, y).toDType("f32").data();
      const tolerance = dtype === "f32" ? 1e-5 : dtype === "f16" ? 4e-3 : 4e-2;
      for (let i = 0; i < want.length; i++)
        expect(Math.abs((got[i] as number) - (want[i] as number))).toBeLessThan(
          tolerance * (1 + Math.abs(want[i] as number)),
        );
      expect(counts().products).toBe(before + 1);
    }
  });
});
