// The vendors' bindings, driven through the simulator: HIP as it is, CUDA through a shim that maps its names to HIP's.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import { buildSim } from "../../../sim/build.mjs";
import { openCuda } from "../../../src/backend/gpu/cuda/driver.ts";
import { nvrtcTarget } from "../../../src/backend/gpu/cuda/nvrtc.ts";
import type { Blas, GemmType, GpuContext, GpuPlatform } from "../../../src/backend/gpu/driver.ts";
import { addressOf, openLibrary } from "../../../src/backend/gpu/library.ts";
import type { NativeDriver } from "../../../src/backend/gpu/native-driver.ts";
import { findArch, openHip } from "../../../src/backend/gpu/rocm/hip.ts";
import { kernelSource } from "../../../src/backend/gpu/source.ts";
import { type ErrorCode, WickError } from "../../../src/core/errors.ts";
import { f16ToF32, f32ToBf16, f32ToF16 } from "../../../src/core/halves.ts";

const sim = await buildSim();
const folder = mkdtempSync(join(tmpdir(), "wick-drivers-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function buildLibrary(name: string, source: string, ...link: string[]): string {
  const path = join(folder, name);
  const compiler = process.env.CXX || "g++";
  const args = ["-x", "c++", "-std=c++17", "-O1", "-fPIC", "-shared", "-o", path, "-", ...link];
  const { status, stderr } = spawnSync(compiler, args, { input: source, encoding: "utf8" });
  if (status !== 0) throw new Error(`${compiler} failed on ${name}:\n${stderr}`);
  return path;
}

const simFolder = dirname(sim.hip);
/** A library built so offers all that the simulator does, but for what it defines itself. */
const linkSim = [`-L${simFolder}`, "-Wl,--no-as-needed", "-lamdhip64_sim", "-lrocblas_sim", `-Wl,-rpath,${simFolder}`];
const shimSource = readFileSync(new URL("../../helpers/cuda-on-sim.cpp", import.meta.url), "utf8");
const shim = buildLibrary("libcuda_shim.so", shimSource, ...linkSim);

const openSim = (): GpuPlatform => openHip({ hipLibrary: sim.hip, rocblasLibrary: sim.rocblas });
const openShim = (): GpuPlatform => openCuda({ cudaLibrary: shim, nvrtcLibrary: shim, cublasLibrary: shim });
/** How many launches the shim was asked to overlap so far. */
const openShimCounter = (): (() => number) =>
  openLibrary({ title: "the shim", env: "WICK_CUDA_LIBRARY", names: [], folders: [], install: "" }, shim).func(
    "int shimOverlapping()",
  );
/** A handle of the library that the device uses, without the trial that comes before. */
const openBlas = (platform: GpuPlatform, context: GpuContext): Blas =>
  platform
    .blas(context.properties.arch)
    .find(({ isDefault }) => isDefault)!
    .find(context)
    .open(context, { recording: false, graphs: 0 });
const platforms = [
  { name: "rocm:0", open: openSim, ordinal: 0, arch: "gfx1100", wave: 32 },
  { name: "rocm:1", open: openSim, ordinal: 1, arch: "gfx90a:sramecc+:xnack-", wave: 64 },
  { name: "cuda:0", open: openShim, ordinal: 0, arch: "sm_90a", wave: 32 },
];

const gpuHeader = kernelSource("gpu.h");
const kernels = `${gpuHeader}
namespace gpu {
KERNEL(axpy, unsigned char bias, double scale, size_t n, const float* x, float* y) {
  for (size_t i = bid_x() * bdim_x() + tid_x(); i < n; i += gdim_x() * bdim_x()) y[i] = (float)(scale * x[i]) + bias;
}
KERNEL(reversed, size_t n, const float* x, float* y) {
  DYNAMIC_SHARED(float, row);
  row[tid_x()] = x[tid_x()];
  barrier();
  y[tid_x()] = row[n - 1 - tid_x()];
}
KERNEL(wild, float* x) { x[1 << 28] = 1; }
KERNEL_BOUNDS(64, narrow, float* x) { x[tid_x()] = 1; }
}`;

async function codeOf(work: () => unknown): Promise<[ErrorCode, string]> {
  try {
    await work();
  } catch (error) {
    if (error instanceof WickError) return [error.code, error.message];
    throw error;
  }
  throw new Error("nothing was thrown");
}

const bytesOf = (view: ArrayBufferView): Uint8Array => new Uint8Array(view.buffer, view.byteOffset, view.byteLength);

function upload(context: GpuContext, data: ArrayBufferView): bigint {
  const ptr = context.malloc(data.byteLength);
  context.copyToDevice(ptr, addressOf(bytesOf(data)), data.byteLength);
  context.synchronizeSync();
  return ptr;
}

function download<T extends ArrayBufferView>(context: GpuContext, ptr: bigint, into: T): T {
  context.copyToHost(addressOf(bytesOf(into)), ptr, into.byteLength);
  context.synchronizeSync();
  return into;
}

describe.each(platforms)("the driver on $name", ({ open, ordinal, arch, wave }) => {
  const platform = open();
  let context: GpuContext;
  let module = 0n;
  beforeAll(() => {
    context = platform.driver.open(ordinal);
    module = context.loadModule(platform.compiler().compile(kernels, "kernels.hip", arch, []));
  });
  afterAll(() => {
    context.unloadModule(module);
    context.close();
  });

  function launchAxpy(n: number, scale: number, bias: number, x: bigint, y: bigint): void {
    const args = context.argumentBlock([1, 8, 8, 8, 8]);
    expect(args.offsets).toEqual([0, 8, 16, 24, 32]);
    args.view.setUint8(args.offsets[0]!, bias);
    args.view.setFloat64(args.offsets[1]!, scale, true);
    args.view.setBigUint64(args.offsets[2]!, BigInt(n), true);
    args.view.setBigUint64(args.offsets[3]!, x, true);
    args.view.setBigUint64(args.offsets[4]!, y, true);
    const fn = context.getFunction(module, "axpy");
    context.launch(fn, { grid: [Math.ceil(n / 64), 1, 1], block: [64, 1, 1], sharedBytes: 0 }, args);
  }

  test("tells what the device is", () => {
    expect(platform.driver.deviceCount()).toBe(2);
    const p = context.properties;
    expect(p).toMatchObject({ arch, waveSize: wave, maxThreadsPerBlock: 1024, sharedBytesPerBlock: 65536 });
    expect(p.name).toBe(`Wick simulator, wave ${wave}`);
    expect(p.totalBytes).toBe(2 ** 31);
    expect(p.multiprocessors).toBeGreaterThan(1);
    expect(p.driverVersion).toBe(platform.driver.vendor === "rocm" ? "6.4.0" : "12.4");
    expect(platform.driver.properties(ordinal)).toBe(p);
  });

  test("refuses devices that do not exist", async () => {
    for (const wrong of [2, -1, 0.5]) {
      const [code, message] = await codeOf(() => platform.driver.open(wrong));
      expect(code).toBe("DeviceUnavailable");
      expect(message).toContain(`${platform.driver.vendor}:${wrong}`);
      expect(message).toContain("2 devices");
    }
  });

  test("copies to, on and from the device, and sets bytes", () => {
    const data = Float64Array.from({ length: 1001 }, (_, i) => i * 0.5 - 7);
    const a = upload(context, data);
    const b = context.malloc(data.byteLength);
    context.copyOnDevice(b, a, data.byteLength);
    expect(download(context, b, new Float64Array(1001))).toEqual(data);
    context.memset(b + 8n, 0xab, 16);
    const seen = download(context, b, new Uint8Array(32));
    expect([...seen.subarray(8, 24)]).toEqual(Array(16).fill(0xab));
    expect([...seen.subarray(24)]).toEqual([...bytesOf(data.subarray(3, 4))]);
    context.free(a);
    context.free(b);
  });

  test("does nothing for zero bytes", () => {
    expect(context.malloc(0)).toBe(0n);
    context.free(0n);
    context.copyToDevice(0n, 0n, 0);
    context.copyToHost(0n, 0n, 0);
    context.copyOnDevice(0n, 0n, 0);
    context.memset(0n, 1, 0);
  });

  test("counts its memory", () => {
    const before = context.memoryInfo();
    const ptr = context.malloc(1 << 20);
    const after = context.memoryInfo();
    expect(before.free - after.free).toBeGreaterThanOrEqual(1 << 20);
    expect(after.total).toBe(2 ** 31);
    context.free(ptr);
    expect(context.memoryInfo()).toEqual(before);
  });

  test("says how much memory there is when it is not enough", async () => {
    const [code, message] = await codeOf(() => context.malloc(2 ** 33));
    expect(code).toBe("OutOfMemory");
    expect(message).toContain(`${2 ** 33} bytes`);
    expect(message).toMatch(/\d+ of 2147483648 bytes are free/);
  });

  test("pins host memory that the device can read and write", () => {
    const pinned = context.pinned(64);
    expect(pinned.bytes.length).toBe(64);
    pinned.bytes.forEach((_, i) => {
      pinned.bytes[i] = i;
    });
    const ptr = context.malloc(64);
    context.copyToDevice(ptr, pinned.address, 64);
    context.synchronizeSync();
    pinned.bytes.fill(0);
    context.copyToHost(pinned.address + 1n, ptr, 63);
    context.synchronizeSync();
    expect([...pinned.bytes.subarray(0, 4)]).toEqual([0, 0, 1, 2]);
    context.freePinned(pinned);
    context.free(ptr);
  });

  test("pins neither nothing nor more than a view can hold", async () => {
    for (const bytes of [0, 2 ** 32 + 1])
      expect((await codeOf(() => context.pinned(bytes)))[0]).toBe("InvalidArgument");
  });

  test("launches with arguments of mixed sizes", () => {
    const x = Float32Array.from({ length: 1000 }, (_, i) => i);
    const px = upload(context, x);
    const py = context.malloc(4000);
    launchAxpy(1000, 0.5, 3, px, py);
    expect(download(context, py, new Float32Array(1000))).toEqual(x.map((v) => 0.5 * v + 3));
    context.free(px);
    context.free(py);
  });

  test("gives kernels dynamic shared memory, and tells when it is too much", async () => {
    const x = Float32Array.from({ length: 128 }, (_, i) => i);
    const px = upload(context, x);
    const py = context.malloc(512);
    const args = context.argumentBlock([8, 8, 8]);
    [128n, px, py].forEach((value, i) => {
      args.view.setBigUint64(args.offsets[i]!, value, true);
    });
    const fn = context.getFunction(module, "reversed");
    for (const sharedBytes of [512, 60_000, 512])
      context.launch(fn, { grid: [1, 1, 1], block: [128, 1, 1], sharedBytes }, args);
    expect(download(context, py, new Float32Array(128))).toEqual(x.toReversed());
    const [code, message] = await codeOf(() =>
      context.launch(fn, { grid: [1, 1, 1], block: [128, 1, 1], sharedBytes: 70_000 }, args),
    );
    expect(code).toBe("DriverError");
    expect(message).toContain("70000 bytes");
    context.free(px);
    context.free(py);
  });

  test("tells the geometry of a launch that fails", async () => {
    const args = context.argumentBlock([1, 8, 8, 8, 8]);
    const fn = context.getFunction(module, "axpy");
    const [code, message] = await codeOf(() =>
      context.launch(fn, { grid: [1, 1, 1], block: [2048, 1, 1], sharedBytes: 0 }, args),
    );
    expect(code).toBe("DriverError");
    expect(message).toContain("block 2048×1×1");
    expect(message).toContain("hipErrorInvalid");
  });

  test("names a kernel that a module lacks", async () => {
    const [code, message] = await codeOf(() => context.getFunction(module, "absent_kernel"));
    expect(code).toBe("DriverError");
    expect(message).toContain("absent_kernel");
    expect(message).toContain("hipErrorNotFound (500)");
  });

  test("refuses a module that is none", async () => {
    expect((await codeOf(() => context.loadModule(new Uint8Array(256))))[0]).toBe("DriverError");
  });

  test("waits for the stream and for events while the event loop goes on", async () => {
    const ptr = context.malloc(64);
    const [start, end] = [context.createEvent(), context.createEvent()];
    context.recordEvent(start);
    context.memset(ptr, 1, 64);
    context.recordEvent(end);
    await context.waitEvent(end);
    await context.synchronize();
    const milliseconds = context.elapsed(start, end);
    expect(milliseconds).toBeGreaterThanOrEqual(0);
    expect(milliseconds).toBeLessThan(10_000);
    context.destroyEvent(start);
    context.destroyEvent(end);
    expect((await codeOf(() => context.waitEvent(end)))[0]).toBe("DriverError");
    context.free(ptr);
  });

  test("records a graph without running it and runs it as often as asked", () => {
    const px = upload(context, new Float32Array(64).fill(1));
    const py = upload(context, new Float32Array(64));
    context.beginCapture();
    launchAxpy(64, 2, 1, px, py);
    context.copyOnDevice(px, py, 256);
    const graph = context.endCapture();
    expect(download(context, px, new Float32Array(64))[0]).toBe(1);
    for (let i = 0; i < 3; i++) context.launchGraph(graph);
    expect(download(context, px, new Float32Array(64))).toEqual(new Float32Array(64).fill(15));
    context.destroyGraph(graph);
    context.free(px);
    context.free(py);
  });

  test("recorded kernels may overlap the ones before them, where the device can, and nothing else may", () => {
    const overlapping = platform.driver.vendor === "cuda" ? openShimCounter() : () => 0;
    const [px, py] = [upload(context, new Float32Array(64).fill(1)), upload(context, new Float32Array(64))];
    const launch = () => launchAxpy(64, 2, 1, px, py);
    const recorded = (run: () => void): number => {
      const before = overlapping();
      context.beginCapture();
      run();
      const graph = context.endCapture();
      context.launchGraph(graph);
      expect(download(context, py, new Float32Array(64))).toEqual(new Float32Array(64).fill(3));
      context.destroyGraph(graph);
      return overlapping() - before;
    };
    const twice = () => {
      launch();
      launch();
    };
    const before = overlapping();
    twice();
    expect(overlapping() - before).toBe(0);
    const all = platform.driver.vendor === "cuda" ? 1 : 0;
    expect(recorded(twice)).toBe(all);
    // What precedes it is no kernel, or one that does not say when it may be overlapped.
    for (const between of [
      () => context.copyOnDevice(py, px, 4),
      () => context.memset(py, 0, 4),
      () => context.fence(),
    ]) {
      const fenced = () => {
        launch();
        between();
        twice();
      };
      expect(recorded(fenced)).toBe(all);
    }
    expect(recorded(launch)).toBe(0);
    context.free(px);
    context.free(py);
  });

  test("does not end a capture that was not begun", async () => {
    expect((await codeOf(() => context.endCapture()))[0]).toBe("DriverError");
  });

  test("says that the process must be restarted when a kernel faults", async () => {
    const args = context.argumentBlock([8]);
    const ptr = context.malloc(64);
    args.view.setBigUint64(0, ptr, true);
    const [code, message] = await codeOf(async () => {
      context.launch(context.getFunction(module, "wild"), { grid: [1, 1, 1], block: [1, 1, 1], sharedBytes: 0 }, args);
      await context.synchronize();
    });
    expect(code).toBe("DeviceLost");
    expect(message).toContain("restart the process");
    context.free(ptr);
  });

  test("cannot be waited for in the middle of a recording", async () => {
    context.beginCapture();
    const event = context.createEvent();
    for (const wait of [() => context.synchronizeSync(), () => context.synchronize(), () => context.waitEvent(event)])
      expect((await codeOf(wait))[0]).toBe("InvalidArgument");
    context.destroyGraph(context.endCapture());
    context.destroyEvent(event);
    await context.synchronize();
  });

  test.each([
    ["of one driver", () => platform],
    ["of a driver opened twice", open],
  ])("keeps devices %s apart that are used in turn", (_, reopen) => {
    const other = reopen().driver.open(1 - ordinal);
    const [a, b] = [upload(context, Uint8Array.of(1)), upload(other, Uint8Array.of(2))];
    const before = context.memoryInfo().free;
    const more = other.malloc(1 << 20);
    expect(context.memoryInfo().free).toBe(before);
    expect(download(context, a, new Uint8Array(1))[0]).toBe(1);
    expect(download(other, b, new Uint8Array(1))[0]).toBe(2);
    other.free(more);
    other.free(b);
    context.free(a);
    other.close();
  });

  test("cannot be used once closed", async () => {
    const other = platform.driver.open(ordinal);
    other.close();
    other.close();
    expect((await codeOf(() => other.malloc(1)))[0]).toBe("Disposed");
  });
});

describe("errors of HIP that mean more than one thing", () => {
  const geometry = { grid: [2, 1, 1], block: [128, 1, 1], sharedBytes: 16 } as const;
  /** Launches on the simulator with some calls replaced. */
  function launch(source: string, name = "narrow"): Promise<[ErrorCode, string]> {
    const path = source ? buildLibrary(`libodd${Math.random()}.so`, source, ...linkSim) : sim.hip;
    const platform = openHip({ hipLibrary: path, commonArch: "host" });
    const context = platform.driver.open(0);
    const code = platform.compiler().compile(kernels, "kernels.hip", "gfx1100", []);
    const module = context.loadModule(code);
    const args = context.argumentBlock([8]);
    const ptr = context.malloc(1024);
    args.view.setBigUint64(0, ptr, true);
    return codeOf(() => context.launch(context.getFunction(module, name), geometry, args)).finally(() => {
      context.unloadModule(module);
      context.free(ptr);
      context.close();
    });
  }
  const shape = "grid 2×1×1, block 128×1×1, 16 bytes of dynamic shared memory";

  test("a block above the kernel's launch bounds is refused, and no device is lost", async () => {
    const [code, message] = await launch("");
    expect(code).toBe("DriverError");
    expect(message).toContain(`hipModuleLaunchKernel (${shape}) failed: hipErrorLaunchFailure (719)`);
    expect(message).toMatch(/the device goes on.*larger than what the kernel was compiled for/);
  });

  test.each([
    [719, "compiled for"],
    [709, "a stream, event or graph was used that is not alive"],
    [999, "dmesg"],
    [1052, "ulimit -l"],
    [1053, "dmesg"],
  ])("%i while the device answers is an error of the call", async (number, says) => {
    const [code, message] = await launch(`extern "C" int hipModuleLaunchKernel() { return ${number}; }`, "axpy");
    expect(code).toBe("DriverError");
    expect(message).toContain(shape);
    expect(message).toContain(says);
    expect(message).not.toContain("restart");
  });

  test.each([709, 719, 999, 1052, 1053])("%i is a lost device when asking gives such a code, too", async (number) => {
    const both = ["hipModuleLaunchKernel", "hipStreamQuery"].map((n) => `extern "C" int ${n}() { return ${number}; }`);
    const [code, message] = await launch(both.join("\n"), "axpy");
    expect(code).toBe("DeviceLost");
    expect(message).toContain(shape);
    expect(message).toContain("restart the process");
  });

  test("a runtime that cannot count its devices has lost none", async () => {
    const broken = buildLibrary(
      "libuncounted.so",
      'extern "C" int hipGetDeviceCount(int*) { return 999; }',
      ...linkSim,
    );
    const [code, message] = await codeOf(() => openHip({ hipLibrary: broken }).driver.deviceCount());
    expect([code, message]).toEqual(["DriverError", expect.stringContaining("hipErrorUnknown (999)")]);
  });
});

describe("waits that nobody awaited", () => {
  // Every wait begins late enough to fall into a recording that began after it was asked for.
  const slow = ["hipEventSynchronize", "hipStreamSynchronize"]
    .map(
      (name) => `extern "C" int ${name}(void* handle) {
        usleep(100000);
        return reinterpret_cast<int (*)(void*)>(dlsym(RTLD_NEXT, "${name}"))(handle);
      }`,
    )
    .join("\n");
  const hipLibrary = buildLibrary("libslow.so", `#include <dlfcn.h>\n#include <unistd.h>\n${slow}`, ...linkSim);

  test.each([
    ["for the device", (context: GpuContext) => context.synchronize()],
    [
      "for an event",
      async (context: GpuContext) => {
        const event = context.createEvent();
        context.recordEvent(event);
        await context.waitEvent(event);
        context.destroyEvent(event);
      },
    ],
  ])("%s leave a recording whole", async (_, wait) => {
    const context = openHip({ hipLibrary }).driver.open(0);
    const ptr = upload(context, new Uint8Array(8));
    const pending = wait(context);
    context.beginCapture();
    context.memset(ptr, 7, 8);
    const until = performance.now() + 400;
    while (performance.now() < until);
    const graph = context.endCapture();
    await pending;
    expect(download(context, ptr, new Uint8Array(8))[0]).toBe(0);
    context.launchGraph(graph);
    expect(download(context, ptr, new Uint8Array(8))[0]).toBe(7);
    context.destroyGraph(graph);
    context.free(ptr);
    context.close();
  });
});

test("an event whose end the runtime has yet to note is waited for, and its time told", async () => {
  const source = `#include <dlfcn.h>
    static bool noted = false;
    extern "C" int hipEventSynchronize(void* event) {
      noted = true;
      return reinterpret_cast<int (*)(void*)>(dlsym(RTLD_NEXT, "hipEventSynchronize"))(event);
    }
    extern "C" int hipEventElapsedTime(float* out, void*, void*) { return *out = 3, noted ? 0 : 600; }`;
  const context = openHip({ hipLibrary: buildLibrary("libunnoted.so", source, ...linkSim) }).driver.open(0);
  const [start, end] = [context.createEvent(), context.createEvent()];
  context.recordEvent(start);
  context.recordEvent(end);
  expect(context.elapsed(start, end)).toBe(3);
  context.destroyEvent(start);
  context.destroyEvent(end);
  context.close();
});

describe("the release of HIP", () => {
  const answering = (number: number, code = 0): string =>
    buildLibrary(
      `libhip${number}.so`,
      `extern "C" int hipRuntimeGetVersion(int* version) { return *version = ${number}, ${code}; }`,
      ...linkSim,
    );

  test.each([
    [50_120_531, "5.1.20531"],
    [40_421_401, "4.4.21401"],
    [306, "306"],
  ])("%i is too old, and told with the library and the way out", async (number, version) => {
    const path = answering(number);
    const [code, message] = await codeOf(() => openHip({ hipLibrary: path }));
    expect(code).toBe("DeviceUnavailable");
    expect(message).toContain(`${path} is HIP ${version}, and the oldest that Wick runs on is 5.2;`);
    expect(message).toContain("WICK_HIP_LIBRARY");
  });

  test("is the oldest that is taken at 5.2, which records nothing", async () => {
    const context = openHip({ hipLibrary: answering(50_200_000) }).driver.open(0);
    expect(context.properties.runtimeVersion).toBe("5.2.0");
    expect(context.recordingProblem).toBe("HIP 5.2 does not capture launches");
    const [code, message] = await codeOf(() => context.beginCapture());
    expect([code, message]).toEqual(["UnsupportedOp", expect.stringContaining("HIP 5.2 does not capture launches")]);
    context.close();
  });

  test("lets work be recorded from 5.3 on, and where it is not told", () => {
    for (const path of [answering(50_300_000), answering(70_151_831), answering(1, 1)]) {
      const context = openHip({ hipLibrary: path }).driver.open(0);
      expect(context.recordingProblem).toBeNull();
      context.close();
    }
  });

  const debian = "/usr/lib/x86_64-linux-gnu/libamdhip64.so.5";
  test.skipIf(!existsSync(debian))("of Debian's library, which has every call that is bound", () => {
    const { driver } = openHip({ hipLibrary: debian });
    const { spec } = driver as NativeDriver;
    expect(spec.versions().runtime).toMatch(/^5\.[2-7]\.\d+$/);
    expect(driver.deviceCount()).toBeGreaterThanOrEqual(0);
  });
});

describe.each(platforms)("the compiler on $name", ({ open, arch }) => {
  const compiler = open().compiler();

  test("tells its name and version", () => {
    expect(["hiprtc 9.0", "nvrtc 12.4"]).toContain(compiler.version);
  });

  test("compiles off the main thread, with the options given", async () => {
    const source = `${gpuHeader}\nnamespace gpu { KERNEL(nothing, size_t n) { static_assert(SIZE == 7, ""); (void)n; } }`;
    const code = await compiler.compileAsync(source, "nothing.hip", arch, ["-DSIZE=7"]);
    expect(code.length).toBeGreaterThan(100);
    expect((await codeOf(() => compiler.compileAsync(source, "nothing.hip", arch, ["-DSIZE=8"])))[0]).toBe(
      "CompileFailed",
    );
  });

  test("shows the log of a source that does not compile", async () => {
    for (const compile of ["compile", "compileAsync"] as const) {
      const [error, message] = await codeOf(() => compiler[compile]("int x = nonsense;", "bad.hip", arch, []));
      expect(error).toBe("CompileFailed");
      expect(message).toContain("bad.hip");
      expect(message).toContain("nonsense");
      expect(message).toContain("COMPILATION");
    }
  });
});

describe("what a compiler knows", () => {
  const list = (...names: string[]): string =>
    `#include <stddef.h>
     static const char* const names[] = {${names.map((name) => JSON.stringify(name)).join(", ")}};
     extern "C" int amd_comgr_get_isa_count(size_t* n) { return *n = ${names.length}, 0; }
     extern "C" int amd_comgr_get_isa_name(size_t i, const char** name) { return *name = names[i], 0; }`;

  test("is asked of comgr, by processor", async () => {
    const comgrLibrary = buildLibrary(
      "libamd_comgr_stub.so",
      list("amdgcn-amd-amdhsa--gfx90a", "amdgcn-amd-amdhsa--gfx1100"),
    );
    const compiler = openHip({ hipLibrary: sim.hip, comgrLibrary }).compiler();
    expect(["gfx1100", "gfx90a:sramecc+:xnack-", "gfx110", "gfx1200"].map((arch) => compiler.supports(arch))).toEqual([
      true,
      true,
      false,
      false,
    ]);
    const [code, message] = await codeOf(() => compiler.compile("", "empty.hip", "gfx1200", []));
    expect(code).toBe("CompileFailed");
    expect(message).toContain("gfx1200");
  });

  test("is tried in a child process without comgr, where a crash means no", () => {
    // A hiprtc that dies of an arch it does not know, as AMD's does.
    const hiprtcLibrary = buildLibrary(
      "libhiprtc_dying.so",
      `#include <stdlib.h>
       #include <string.h>
       extern "C" {
       int hiprtcVersion(int* a, int* b) { return *a = 9, *b = 1, 0; }
       int hiprtcCreateProgram(void** out, const char*, const char*, int, void*, void*) { return *out = (void*)1, 0; }
       int hiprtcDestroyProgram(void**) { return 0; }
       int hiprtcCompileProgram(void*, int n, const char** options) {
         for (int i = 0; i < n; i++) if (strstr(options[i], "gfx9999")) abort();
         return 0;
       }
       int hiprtcGetProgramLogSize(void*, size_t* n) { return *n = 0, 0; }
       int hiprtcGetProgramLog(void*, char*) { return 0; }
       int hiprtcGetCodeSize(void*, size_t* n) { return *n = 0, 0; }
       int hiprtcGetCode(void*, char*) { return 0; }
       const char* hiprtcGetErrorString(int) { return "error"; }
       }`,
    );
    const compiler = openHip({ hipLibrary: sim.hip, hiprtcLibrary }).compiler();
    expect(compiler.library).toBe(hiprtcLibrary);
    expect(compiler.version).toBe("hiprtc 9.1");
    expect(compiler.supports("gfx9999")).toBe(false);
    expect(compiler.supports("gfx1100")).toBe(true);
    const asked = performance.now();
    expect(compiler.supports("gfx9999")).toBe(false);
    expect(performance.now() - asked).toBeLessThan(5); // remembered
  });

  test("decides between machine code and PTX on NVIDIA", () => {
    const supported = [75, 80, 86, 90];
    expect(nvrtcTarget("sm_90", supported)).toEqual({ architecture: "sm_90", output: "code" });
    expect(nvrtcTarget("sm_90a", supported)).toEqual({ architecture: "sm_90a", output: "code" });
    expect(nvrtcTarget("sm_120", supported)).toEqual({ architecture: "compute_90", output: "assembly" });
    expect(nvrtcTarget("sm_89", supported)).toEqual({ architecture: "compute_86", output: "assembly" });
    expect(nvrtcTarget("sm_100a", supported)).toBeNull();
    expect(nvrtcTarget("sm_70", supported)).toBeNull();
    expect(nvrtcTarget("gfx1100", supported)).toBeNull();
  });

  test("lets a newer NVIDIA GPU have PTX", () => {
    const compiler = openShim().compiler();
    expect(["sm_80", "sm_90", "sm_120", "sm_75"].map((arch) => compiler.supports(arch))).toEqual([
      true,
      true,
      true,
      false,
    ]);
    const source = `${gpuHeader}\nnamespace gpu { KERNEL(nothing, size_t n) { (void)n; } }`;
    expect(compiler.compile(source, "nothing.hip", "sm_120", []).length).toBeGreaterThan(100);
  });
});

describe("the arch in HIP's properties", () => {
  const properties = (text: string, offset: number): Uint8Array => {
    const bytes = new Uint8Array(4096);
    bytes.set(new TextEncoder().encode(text), offset);
    return bytes;
  };
  test("is read where the struct has it", () => {
    expect(findArch(properties("gfx90a:sramecc+:xnack-", 1160), 1160)).toBe("gfx90a:sramecc+:xnack-");
    expect(findArch(properties("gfx1030", 396), 396)).toBe("gfx1030");
  });
  test("is searched for when the struct has changed", () => {
    expect(findArch(properties("gfx942:sramecc+:xnack-", 1300), 1160)).toBe("gfx942:sramecc+:xnack-");
    expect(findArch(properties("gfx1201", 17), 1160)).toBe("gfx1201");
  });
  test("is that of the struct, not one in a card's name", () => {
    const decoy = buildLibrary(
      "libdecoy.so",
      `#include <string.h>
       extern "C" int hipGetDevicePropertiesR0600(char* out, int) {
         return strcpy(out, "Card with gfx803"), strcpy(out + 1160, "gfx942:xnack-"), 0;
       }`,
      ...linkSim,
    );
    expect(openHip({ hipLibrary: decoy }).driver.properties(0).arch).toBe("gfx942:xnack-");
  });
  test("is an error when there is none", async () => {
    expect((await codeOf(() => findArch(properties("Radeon gfx", 1160), 1160)))[0]).toBe("DriverError");
  });
});

// Values of every type as numbers, rounded to the type as the device stores them.
const stores: Record<
  GemmType,
  { pack(values: number[]): ArrayBufferView; unpack(bytes: Uint8Array): number[]; ulp: number }
> = {
  f64: {
    pack: (values) => Float64Array.from(values),
    unpack: (bytes) => [...new Float64Array(bytes.buffer)],
    ulp: 2 ** -50,
  },
  f32: {
    pack: (values) => Float32Array.from(values),
    unpack: (bytes) => [...new Float32Array(bytes.buffer)],
    ulp: 2 ** -20,
  },
  f16: {
    pack: (values) => Uint16Array.from(values, f32ToF16),
    unpack: (bytes) => [...new Uint16Array(bytes.buffer)].map(f16ToF32),
    ulp: 2 ** -10,
  },
  bf16: {
    pack: (values) => Uint16Array.from(values, f32ToBf16),
    unpack: (bytes) =>
      [...new Uint16Array(bytes.buffer)].map((bits) => new Float32Array(Uint32Array.of(bits << 16).buffer)[0]!),
    ulp: 2 ** -7,
  },
};
const sizes: Record<GemmType, number> = { f64: 8, f32: 4, f16: 2, bf16: 2 };

describe.each(platforms)("products on $name", ({ open, ordinal }) => {
  const platform = open();
  let context: GpuContext;
  let blas: Blas;
  beforeAll(() => {
    context = platform.driver.open(ordinal);
    blas = openBlas(platform, context);
  });
  afterAll(() => {
    blas.close();
    blas.close();
    context.close();
  });

  interface Shape {
    readonly m: number;
    readonly n: number;
    readonly k: number;
    readonly batch?: number;
    readonly transA?: boolean;
    readonly transB?: boolean;
    /** Extra columns beyond each row of the operands. */
    readonly padding?: number;
    readonly repeatA?: boolean;
    readonly repeatB?: boolean;
    /** Extra elements between the results of a batch. */
    readonly gap?: number;
  }

  function multiply(type: GemmType, shape: Shape): { got: number[]; want: number[]; magnitude: number } {
    const { m, n, k, batch = 1, transA = false, transB = false, padding = 0, gap = 0 } = shape;
    const [rowsA, columnsA] = transA ? [k, m] : [m, k];
    const [rowsB, columnsB] = transB ? [n, k] : [k, n];
    const [lda, ldb] = [columnsA + padding, columnsB + padding];
    const [strideA, strideB] = [shape.repeatA ? 0 : rowsA * lda, shape.repeatB ? 0 : rowsB * ldb];
    const strideC = m * n + gap;
    // Small multiples of 1/8 are exact in every type, so only the rounding of the result differs.
    const values = (count: number, seed: number): number[] =>
      Array.from({ length: Math.max(1, count) }, (_, i) => (((i * 37 + seed * 11) % 17) - 8) / 8);
    const a = values(rowsA * lda * batch, 1);
    const b = values(rowsB * ldb * batch, 2);
    const { pack, unpack } = stores[type];
    const bytes = strideC * batch * sizes[type];
    const [pa, pb] = [upload(context, pack(a)), upload(context, pack(b))];
    const pc = upload(context, new Uint8Array(bytes).fill(0xff)); // NaN: the old contents must not count
    blas.gemm({ type, m, n, k, a: pa, transA, lda, strideA, b: pb, transB, ldb, strideB, c: pc, strideC, batch });
    const result = unpack(download(context, pc, new Uint8Array(bytes)));
    for (const ptr of [pa, pb, pc]) context.free(ptr);
    const [got, want]: [number[], number[]] = [[], []];
    for (let z = 0; z < batch; z++)
      for (let i = 0; i < m; i++)
        for (let j = 0; j < n; j++) {
          let sum = 0;
          for (let l = 0; l < k; l++) {
            const x = a[z * strideA + (transA ? l * lda + i : i * lda + l)]!;
            sum += x * b[z * strideB + (transB ? j * ldb + l : l * ldb + j)]!;
          }
          want.push(sum);
          got.push(result[z * strideC + i * n + j]!);
        }
    return { got, want, magnitude: Math.max(k, 1) };
  }

  function agree(type: GemmType, shape: Shape): void {
    const { got, want, magnitude } = multiply(type, shape);
    got.forEach((value, i) => {
      expect(
        Math.abs(value - want[i]!),
        `${type} ${JSON.stringify(shape)} [${i}]: ${value}, not ${want[i]}`,
      ).toBeLessThanOrEqual(stores[type].ulp * magnitude);
    });
  }

  describe.each(["f16", "bf16", "f32", "f64"] as const)("in %s", (type) => {
    test("are right for odd sizes and every transposition", () => {
      for (const transA of [false, true])
        for (const transB of [false, true])
          for (const padding of [0, 3]) agree(type, { m: 5, n: 7, k: 9, transA, transB, padding });
    });
    test("are right for a single row, column and element", () => {
      for (const [m, n, k] of [
        [1, 7, 9],
        [5, 1, 9],
        [5, 7, 1],
        [1, 1, 1],
      ] as const)
        for (const transA of [false, true])
          for (const transB of [false, true]) agree(type, { m, n, k, transA, transB });
    });
    test("are right in batches, with operands repeated and results apart", () => {
      for (const [repeatA, repeatB] of [
        [false, false],
        [true, false],
        [false, true],
        [true, true],
      ] as const)
        for (const gap of [0, 5]) agree(type, { m: 3, n: 4, k: 5, batch: 3, repeatA, repeatB, gap, transB: true });
    });
    test("are zero where there is nothing to sum", () => {
      agree(type, { m: 3, n: 2, k: 0, batch: 2, gap: 1 });
    });
  });

  test("of halves are summed in f32", () => {
    // 4096 × 1 + 1 would be stuck at 2048 in f16.
    const k = 4097;
    const ones = upload(context, new Uint16Array(k).fill(f32ToF16(1)));
    const c = context.malloc(2);
    blas.gemm({
      type: "f16",
      m: 1,
      n: 1,
      k,
      a: ones,
      transA: false,
      lda: k,
      strideA: 0,
      b: ones,
      transB: false,
      ldb: 1,
      strideB: 0,
      c,
      strideC: 1,
      batch: 1,
    });
    expect(f16ToF32(download(context, c, new Uint16Array(1))[0]!)).toBe(4096); // 4097 rounded to even
    context.free(ones);
    context.free(c);
  });

  const square = {
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
  } as const;

  test("are not asked for when the result is empty", () => {
    for (const empty of [{ m: 0 }, { n: 0 }, { batch: 0 }]) blas.gemm({ ...square, ...empty, a: 0n, b: 0n, c: 0n });
  });

  test("can be part of a graph", () => {
    const identity = Float32Array.from({ length: 16 }, (_, i) => (i % 5 === 0 ? 3 : 0));
    const [a, b] = [upload(context, identity), upload(context, identity)];
    const c = upload(context, new Float32Array(16));
    context.beginCapture();
    blas.gemm({ ...square, a, b, c });
    const graph = context.endCapture();
    expect(download(context, c, new Float32Array(16))[0]).toBe(0);
    context.launchGraph(graph);
    expect(download(context, c, new Float32Array(16))).toEqual(identity.map((v) => v * 3));
    context.destroyGraph(graph);
    for (const ptr of [a, b, c]) context.free(ptr);
  });

  test("can be asked for without waiting, from whichever thread the library takes", async () => {
    const identity = Float32Array.from({ length: 16 }, (_, i) => (i % 5 === 0 ? 3 : 0));
    const [a, c] = [upload(context, identity), upload(context, new Float32Array(16))];
    expect(await blas.gemmAsync({ ...square, a, b: a, c })).toBe(true);
    expect(download(context, c, new Float32Array(16))).toEqual(identity.map((v) => v * 3));
    for (const empty of [{ m: 0 }, { n: 0 }, { batch: 0 }])
      expect(await blas.gemmAsync({ ...square, ...empty, a: 0n, b: 0n, c: 0n })).toBe(true);
    const [code, message] = await codeOf(() => blas.gemmAsync({ ...square, a: 0n, b: a, c }));
    expect([code, message]).toEqual(["DriverError", expect.stringContaining("f32 product (4×4)·(4×4)")]);
    for (const ptr of [a, c]) context.free(ptr);
  });

  test("refuse what the library cannot do", async () => {
    const ptr = context.malloc(64);
    const operands = { a: ptr, b: ptr, c: ptr };
    const refused = [
      { change: { lda: 3 }, code: "InvalidArgument", says: "leading dimension of 3" },
      { change: { transB: true, ldb: 0 }, code: "InvalidArgument", says: "operand b" },
      { change: { m: 2 ** 31, lda: 4 }, code: "InvalidArgument", says: "2147483647" },
      { change: { a: 0n }, code: "DriverError", says: "f32 product (4×4)·(4×4)" },
    ];
    for (const { change, code, says } of refused) {
      const [got, message] = await codeOf(() => blas.gemm({ ...square, ...operands, ...change }));
      expect([got, message]).toEqual([code, expect.stringContaining(says)]);
    }
    context.free(ptr);
  });

  test("end with their handle", async () => {
    const other = openBlas(platform, context);
    expect(other.version).toMatch(/^(rocBLAS|cuBLAS) \d+\.\d+/);
    other.close();
    expect((await codeOf(() => other.gemm({ ...square, a: 0n, b: 0n, c: 0n })))[0]).toBe("Disposed");
  });
});

describe("libraries", () => {
  afterEach(() => vi.unstubAllEnvs());

  test("that are nowhere are named with the places and the way out", async () => {
    const spec = {
      title: "the runtime of nobody",
      env: "WICK_COMGR_LIBRARY" as const,
      names: ["libwick_nobody.so.2", "libwick_nobody.so.1"],
      folders: [folder, "/nowhere/*/lib"],
      install: "install Nobody",
    };
    const [code, message] = await codeOf(() => openLibrary(spec));
    expect(code).toBe("LibraryNotFound");
    for (const part of ["the runtime of nobody", ...spec.names, folder, "install Nobody", spec.env])
      expect(message).toContain(part);
    expect(message).not.toContain("/nowhere");
  });

  test("that are there but broken are told apart from missing ones", async () => {
    const path = join(folder, "libwick_broken.so");
    writeFileSync(path, "not a library");
    const spec = {
      title: "it",
      env: "WICK_COMGR_LIBRARY" as const,
      names: ["libwick_broken.so"],
      folders: [folder],
      install: "install",
    };
    const [, message] = await codeOf(() => openLibrary(spec));
    expect(message).toContain(`found but not loadable: ${path}`);
  });

  test("are found in folders by pattern, later versions first", () => {
    for (const version of ["9.1", "10.0"]) {
      mkdirSync(join(folder, `kit-${version}`, "lib"), { recursive: true });
      const built = buildLibrary("libkit.so", 'extern "C" int kit() { return 0; }');
      writeFileSync(join(folder, `kit-${version}`, "lib", "libwick_kit.so"), readFileSync(built));
    }
    const spec = {
      title: "kit",
      env: "WICK_COMGR_LIBRARY" as const,
      names: ["libwick_kit.so"],
      folders: [join(folder, "kit-*/lib")],
      install: "",
    };
    const library = openLibrary(spec);
    expect(library.path).toBe(join(folder, "kit-10.0/lib/libwick_kit.so"));
    // Beside a library that is open comes before anything else.
    const beside = openLibrary(spec, join(folder, "kit-9.1/lib/libwick_kit.so"));
    expect(openLibrary(spec, undefined, beside).path).toBe(join(folder, "kit-9.1/lib/libwick_kit.so"));
  });

  test("may be named by the environment: a file, or the folder that it is in", async () => {
    vi.stubEnv("WICK_CUDA_LIBRARY", shim);
    expect(openCuda().driver.library).toBe(shim);
    const kit = join(folder, "pip");
    mkdirSync(kit);
    writeFileSync(join(kit, "libnvrtc.so.12"), readFileSync(shim));
    vi.stubEnv("WICK_NVRTC_LIBRARY", kit);
    expect(openCuda().compiler().library).toBe(join(kit, "libnvrtc.so.12"));
    vi.stubEnv("WICK_NVRTC_LIBRARY", simFolder);
    expect((await codeOf(() => openCuda().compiler()))[1]).toContain(
      `WICK_NVRTC_LIBRARY=${simFolder} is a folder without`,
    );
  });

  test("are found in an active Python environment", () => {
    const lib = join(folder, "venv/lib/python3.12/site-packages/nvidia/cublas/lib");
    mkdirSync(lib, { recursive: true });
    writeFileSync(join(lib, "libcublas.so.12"), readFileSync(shim));
    vi.stubEnv("VIRTUAL_ENV", join(folder, "venv"));
    const platform = openCuda({ cudaLibrary: join(lib, "libcublas.so.12") });
    const context = platform.driver.open(0);
    const blas = openBlas(platform, context);
    expect(blas.library).toBe(join(lib, "libcublas.so.12"));
    blas.close();
    context.close();
  });

  test("that are no libraries are refused, with the variable that names them", async () => {
    const path = join(folder, "text.so");
    writeFileSync(path, "not a library");
    vi.stubEnv("WICK_HIP_LIBRARY", path);
    const [code, message] = await codeOf(() => openHip());
    expect(code).toBe("LibraryNotFound");
    expect(message).toContain(`WICK_HIP_LIBRARY=${path}`);
    expect(message).toContain("unset WICK_HIP_LIBRARY");
    const [, explicit] = await codeOf(() => openHip({ hipLibrary: join(folder, "absent.so") }));
    expect(explicit).toContain(`${join(folder, "absent.so")} cannot be loaded as the HIP runtime`);
  });

  test("that lack symbols are refused, and the symbols are named", async () => {
    const stub = buildLibrary("libstub.so", 'extern "C" int hipGetDeviceCount(int* n) { return *n = 0, 0; }');
    const [code, message] = await codeOf(() => openHip({ hipLibrary: stub }));
    expect(code).toBe("LibraryNotFound");
    expect(message).toContain(stub);
    expect(message).toContain("hipDriverGetVersion");
    expect(message).not.toContain("hipGetDeviceCount");
    const [, cuda] = await codeOf(() => openCuda({ cudaLibrary: stub }));
    expect(cuda).toContain("cuInit");
  });

  test("without devices count none, and say so when one is asked for", async () => {
    // The simulator reads its settings from the process's own environment.
    const setenv = openLibrary({
      title: "libc",
      env: "WICK_COMGR_LIBRARY" as const,
      names: ["libc.so.6"],
      folders: [],
      install: "",
    }).func("int setenv(const char *name, const char *value, int overwrite)");
    setenv("WICK_SIM_DEVICES", "0", 1);
    try {
      for (const open of [openSim, openShim]) {
        const { driver } = open();
        expect(driver.deviceCount()).toBe(0);
        const [code, message] = await codeOf(() => driver.open(0));
        expect(code).toBe("DeviceUnavailable");
        expect(message).toMatch(/finds no (AMD|NVIDIA) GPU/);
      }
    } finally {
      setenv("WICK_SIM_DEVICES", "2", 1);
    }
  });

  test("that cannot start are errors, not machines without a GPU", async () => {
    const broken = shimSource.replace("return flags ? invalidValue : 0;", "return (void)flags, 999;");
    const cudaLibrary = buildLibrary("libcuda_broken.so", broken, ...linkSim);
    const [code, message] = await codeOf(() => openCuda({ cudaLibrary }).driver.deviceCount());
    expect(code).toBe("DriverError");
    expect(message).toContain("hipErrorUnknown (999)");
  });

  test("whose calls fail are told by the call and the status", async () => {
    const failing = (name: string, body: string): string => buildLibrary(name, `extern "C" ${body}`, ...linkSim);
    const context = openSim().driver.open(0);
    const create = failing("libblas_create.so", "int rocblas_create_handle(void**) { return 6; }");
    const [code, message] = await codeOf(() =>
      openBlas(openHip({ hipLibrary: sim.hip, rocblasLibrary: create }), context),
    );
    expect([code, message]).toEqual(["DriverError", "rocblas_create_handle failed: rocblas_status 6 (internal error)"]);

    const full = failing("libblas_full.so", "int rocblas_gemm_ex(void*) { return 5; }");
    const blas = openBlas(openHip({ hipLibrary: sim.hip, rocblasLibrary: full }), context);
    const ptr = context.malloc(64);
    const sizes = { m: 2, n: 2, k: 2, lda: 2, ldb: 2, strideA: 4, strideB: 4, strideC: 4, batch: 1 };
    const operands = { type: "f32", a: ptr, b: ptr, c: ptr, transA: false, transB: false } as const;
    expect((await codeOf(() => blas.gemm({ ...operands, ...sizes })))[0]).toBe("OutOfMemory");
    blas.close();
    context.free(ptr);
    context.close();

    const math = shimSource.replace("return mode & ~16 ? 7 : 0;", "return (void)mode, 15;");
    const cuda = openCuda({ cudaLibrary: buildLibrary("libcublas_math.so", math, ...linkSim) });
    const other = cuda.driver.open(0);
    const platform = openCuda({ cudaLibrary: cuda.driver.library, cublasLibrary: cuda.driver.library });
    expect((await codeOf(() => openBlas(platform, other)))[1]).toBe(
      "cublasSetMathMode failed: CUBLAS_STATUS_NOT_SUPPORTED (15)",
    );
    other.close();
  });
});
