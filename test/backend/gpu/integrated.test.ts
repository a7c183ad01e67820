/** Integrated GPUs, whose own memory is small: what may be taken of the host's, and that tensors live there as well. */
import { mkdirSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { afterEach, describe, expect, test, vi } from "vitest";
import { GpuBackend } from "../../../src/backend/gpu/backend.ts";
import type { GpuPlatform } from "../../../src/backend/gpu/driver.ts";
import {
  defaultChoice,
  type HostMemoryChoice,
  keptForOthers,
  type MemoryFigures,
  roomOf,
} from "../../../src/backend/gpu/memory-policy.ts";
import { openSimulator } from "../../../src/backend/gpu/platforms.ts";
import { type HostMemory, systemMemory } from "../../../src/backend/gpu/system-memory.ts";
import { loadWithProgress } from "../../../src/cli/model-options.ts";
import { Device, scope, Tensor, WickError } from "../../../src/index.ts";
import { loadModel, type Model } from "../../../src/models/index.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const MIB = 2 ** 20;
const GIB = 2 ** 30;
const folder = temporaryFolder();
afterEach(() => vi.unstubAllEnvs());

/** A laptop of 32 GiB whose GPU has 512 MiB of its own, before Linux 6.10. */
const laptop: MemoryFigures = {
  vendor: "rocm",
  integrated: true,
  driver: { free: 400 * MIB, total: 512 * MIB },
  card: { vramTotal: 512 * MIB, vramUsed: 112 * MIB, gttTotal: 15 * GIB, gttUsed: GIB },
  host: { total: 31 * GIB, available: 20 * GIB },
  kernel: "6.8.0-45-generic",
};

describe("the room that a GPU has", () => {
  const room = (figures: Partial<MemoryFigures>, choice: HostMemoryChoice = "auto") =>
    roomOf({ ...laptop, ...figures }, choice);

  test("is its own memory, then what it may map", () => {
    expect(room({})).toEqual({
      own: 400 * MIB,
      host: 14 * GIB,
      sharesHost: false,
      text: "integrated: 400.0 MiB of its own, then up to 14.0 GiB of the host's; WICK_HOST_MEMORY=never turns that off",
    });
  });

  test("leaves the rest of the machine a margin: a tenth, and 2 GiB at least", () => {
    expect([8, 20, 128].map((n) => keptForOthers(n * GIB) / GIB)).toEqual([2, 2, 12.8]);
    expect(room({ host: { total: 31 * GIB, available: 6 * GIB } }).host).toBe(Math.floor(2.9 * GIB));
    expect(room({ host: { total: 8 * GIB, available: GIB } }).host).toBe(0);
  });

  test("is none of the host's where the user says so", () => {
    expect(room({}, "never")).toMatchObject({ own: 400 * MIB, host: 0, text: expect.stringContaining("by choice") });
  });

  test("does not count memory twice that the driver's ordinary call takes from the host", () => {
    const all = { own: 0, host: 14 * GIB, sharesHost: true };
    // Since Linux 6.10, whatever the driver says; with the change brought back to an older kernel it says so.
    expect(room({ kernel: "6.10.0" })).toMatchObject(all);
    expect(room({ kernel: "7.0.1-arch1" })).toMatchObject(all);
    expect(room({ driver: { free: 14 * GIB, total: 15 * GIB } })).toMatchObject(all);
    expect(room({ driver: { free: 14 * GIB, total: 15.5 * GIB } }).text).toBe(
      "integrated: its memory is the host's, 14.0 GiB of which it can have",
    );
    // Then nothing is mapped besides, but the margin stays.
    const small = { total: 8 * GIB, available: 5 * GIB };
    expect(room({ kernel: "6.14.0", host: small }, "never")).toMatchObject({ own: 0, host: 400 * MIB });
    expect(room({ kernel: "6.14.0", host: small })).toMatchObject({ own: 0, host: 3 * GIB });
  });

  test("counts a large share of the BIOS's as its own on every kernel, by the kernel's figures", () => {
    // The driver has been seen to tell the host's free memory here.
    const card = { vramTotal: 48 * GIB, vramUsed: 2 * GIB, gttTotal: 43 * GIB, gttUsed: GIB };
    const figures = { card, kernel: "6.14.0", driver: { free: 27 * GIB, total: 48 * GIB } };
    const host = { total: 47 * GIB, available: 40 * GIB };
    const { own, host: mapped } = room({ ...figures, host });
    expect([own / GIB, mapped / GIB]).toEqual([46, expect.closeTo(35.3, 5)]);
  });

  test("is what is known where some figures are missing", () => {
    expect(room({ card: null })).toMatchObject({ own: 400 * MIB, host: Math.floor((20 - 3.1) * GIB) });
    expect(room({ host: null })).toMatchObject({ own: 400 * MIB, host: 14 * GIB });
    expect(room({ host: null, card: null, kernel: null })).toMatchObject({ own: 400 * MIB, host: 0 });
    const blind = { integrated: false, driver: { free: 0, total: 0 } };
    expect(room(blind)).toMatchObject({ own: Number.POSITIVE_INFINITY, host: 0 });
  });

  test("of a discrete card is its own, unless the user allows more", () => {
    const card = { vramTotal: 16 * GIB, vramUsed: 4 * GIB, gttTotal: 15 * GIB, gttUsed: 0 };
    const figures = { integrated: false, card, driver: { free: 12 * GIB, total: 16 * GIB }, kernel: "6.14.0" };
    for (const choice of ["auto", "never"] as const) {
      expect(room(figures, choice)).toEqual({
        own: 12 * GIB,
        host: 0,
        sharesHost: false,
        text: "discrete: its own memory only; WICK_HOST_MEMORY=allow adds the host's, read over PCIe",
      });
    }
    expect(room(figures, "allow")).toMatchObject({
      own: 12 * GIB,
      host: 15 * GIB,
      text: "discrete: 12.0 GiB of its own, then up to 15.0 GiB of the host's, read over PCIe, by choice",
    });
  });

  test("of NVIDIA's integrated GPUs is the host's, page cache and all", () => {
    const figures = { vendor: "cuda", card: null, driver: { free: GIB, total: 31 * GIB } } as const;
    for (const choice of ["auto", "never", "allow"] as const)
      expect(room(figures, choice)).toMatchObject({ own: 0, host: Math.floor(16.9 * GIB), sharesHost: true });
    expect(room({ ...figures, host: null })).toMatchObject({ own: 0, host: GIB });
  });

  test("is chosen by WICK_HOST_MEMORY", () => {
    expect(defaultChoice()).toBe("auto");
    vi.stubEnv("WICK_HOST_MEMORY", "allow");
    expect(defaultChoice()).toBe("allow");
    vi.stubEnv("WICK_HOST_MEMORY", "yes");
    expect(() => defaultChoice()).toThrow('WICK_HOST_MEMORY must be one of auto, never, allow, not "yes"');
  });
});

describe("the system's figures", () => {
  const card = () => folder("sys/bus/pci/devices/0000:c5:00.0");
  const write = (name: string, text: string) => writeFileSync(`${card()}/mem_info_${name}`, text);

  test("are read from sysfs and /proc, anew each time", () => {
    mkdirSync(card(), { recursive: true });
    mkdirSync(folder("proc"));
    const memory = systemMemory(folder());
    expect(memory.card("0000:c5:00.0")).toBeNull();
    expect(memory.host()).toBeNull();
    for (const [name, n] of Object.entries({ vram_total: 8, vram_used: 3, gtt_total: 20 })) write(name, `${n}\n`);
    expect(memory.card("0000:c5:00.0")).toBeNull(); // one is missing
    write("gtt_used", "5\n");
    expect(memory.card("0000:C5:00.0")).toEqual({ vramTotal: 8, vramUsed: 3, gttTotal: 20, gttUsed: 5 });
    write("gtt_used", "6\n");
    expect(memory.card("0000:c5:00.0")?.gttUsed).toBe(6);
    expect(memory.card("0000:03:00.0")).toBeNull();
    writeFileSync(folder("proc/meminfo"), "MemTotal:       1000 kB\nMemFree:   1 kB\nMemAvailable:    250 kB\n");
    expect(memory.host()).toEqual({ total: 1_024_000, available: 256_000 });
    writeFileSync(folder("proc/meminfo"), "MemTotal:       1000 kB\n");
    expect(memory.host()).toBeNull();
  });
});

interface Sizes {
  readonly own: number;
  readonly host: number;
  readonly kind?: "0" | "1" | "gtt";
  /** What Linux says of the machine; it says nothing otherwise. */
  readonly machine?: HostMemory;
}

let opened = 0;
let system: GpuPlatform | undefined;
/** A simulated device with this much left of each kind, beside those that other tests have open. */
function simulated({ own, host, kind = "1", machine }: Sizes): Device {
  vi.stubEnv("WICK_SIM_INTEGRATED", kind);
  system ??= openSimulator();
  const { vramUsed, gttUsed } = system.memory.card(system.driver.properties(0).busId!)!;
  vi.stubEnv("WICK_SIM_MEMORY", String(vramUsed + own));
  vi.stubEnv("WICK_SIM_HOST_MEMORY", String(gttUsed + host));
  const name = `sim:apu${opened++}`;
  // Properties are read once, so the sizes need a driver of their own.
  const fresh = openSimulator();
  const memory = machine ? { ...fresh.memory, host: () => machine } : fresh.memory;
  return Device.open(name, () => new GpuBackend(name, { ...fresh, memory }, 0));
}

const empty = (device: Device, bytes: number): Tensor => Tensor.empty([bytes], { dtype: "u8", device }).keep();
const places = (device: Device) => {
  const { own, host } = device.memory().regions!;
  return { own: own / MIB, host: host / MIB };
};
const caught = (run: () => unknown): WickError => {
  try {
    run();
  } catch (error) {
    if (error instanceof WickError) return error;
  }
  throw new Error("no WickError was thrown");
};

describe("an integrated device", () => {
  test("takes its own memory first, then maps the host's, and gives both back", async () => {
    const device = simulated({ own: 4 * MIB, host: 100 * MIB });
    expect(places(device)).toEqual({ own: 4, host: 0 });
    const all = Array.from({ length: 6 }, (_, i) => Tensor.full([MIB / 4], i, { device }).keep());
    expect(places(device)).toEqual({ own: 4, host: 8 });
    // Kernels read and write both.
    using sum = scope(() => all.reduce((a, b) => a.add(b)));
    expect(await sum.data()).toEqual(new Float32Array(MIB / 4).fill(15));
    for (const x of all) x.dispose();
    sum.dispose();
    device.backend.trim();
    expect(places(device)).toEqual({ own: 4, host: 0 }); // a few words of its own are never given back
    expect(device.memory()).toMatchObject({
      live: 0,
      regions: { policy: expect.stringMatching(/^integrated: 0 B of/) },
    });
  });

  test("keeps its own memory for what is small when large tensors come", () => {
    const device = simulated({ own: 128 * MIB, host: 400 * MIB });
    const large = [empty(device, 50 * MIB), empty(device, 50 * MIB), empty(device, 100 * MIB)];
    // The first of them left more than 64 MiB; the others went to the host.
    expect(places(device)).toEqual({ own: 58, host: 150 });
    const small = empty(device, 9 * MIB);
    expect(places(device)).toEqual({ own: 90, host: 150 });
    for (const x of [...large, small]) x.dispose();
  });

  test("goes on in memory that was given back, of either kind, and refuses what neither has", () => {
    const device = simulated({ own: 4 * MIB, host: 64 * MIB });
    const error = caught(() => empty(device, 80 * MIB));
    expect(error.code).toBe("OutOfMemory");
    expect(error.message).toContain("of its own, then up to 64.0 MiB of the host's");
    for (let turn = 0; turn < 3; turn++) {
      empty(device, 40 * MIB).dispose();
      empty(device, 60 * MIB).dispose();
    }
    expect(places(device).host).toBe(60);
  });

  test("records work over both kinds of memory", () => {
    const device = simulated({ own: 4 * MIB, host: 100 * MIB });
    const near = Tensor.full([1000], 1, { device }).keep();
    const filler = empty(device, 3 * MIB);
    const far = Tensor.full([2 * MIB], 2, { device }).keep();
    const out = Tensor.zeros([1000], { device }).keep();
    expect(places(device).host).toBeGreaterThan(0);
    using graph = device.backend.recorder!.capture(() =>
      scope(() => {
        // Two temporaries of 8 MiB: the recording's pool is mapped.
        const twice = far.affine(2, 0).affine(1, 1);
        out.sliceSet(near.add(twice.narrow(0, 0, 1000)), 0, 0);
      }),
    );
    near.sliceSet(Tensor.full([1000], 10, { device }), 0, 0);
    graph.replay();
    expect(out.dataSync()).toEqual(new Float32Array(1000).fill(15));
    for (const x of [near, filler, far, out]) x.dispose();
    graph[Symbol.dispose]();
    device.backend.trim();
    expect(places(device)).toEqual({ own: 4, host: 0 });
  });

  test("whose driver takes the host's memory itself is bounded by it once", () => {
    const device = simulated({ own: 4 * MIB, host: 96 * MIB, kind: "gtt" });
    expect(device.memory().regions?.policy).toMatch(/^integrated: its memory is the host's, 88\.0 MiB/);
    expect(device.backend.available().bytes).toBeLessThanOrEqual(96 * MIB);
    const half = empty(device, 60 * MIB);
    expect(places(device)).toEqual({ own: 68, host: 0 });
    expect(caught(() => empty(device, 40 * MIB)).code).toBe("OutOfMemory");
    half.dispose();
  });

  test("leaves to the rest of the machine what it needs, though the driver would give it", () => {
    const machine = { total: 8 * GIB, available: 2 * GIB + 30 * MIB };
    const apu = simulated({ own: 4 * MIB, host: 200 * MIB, machine });
    expect(caught(() => empty(apu, 40 * MIB)).message).toContain("up to 30.0 MiB of the host's");
    empty(apu, 30 * MIB).dispose();
    const shared = simulated({ own: 4 * MIB, host: 200 * MIB, kind: "gtt", machine });
    expect(caught(() => empty(shared, 40 * MIB)).message).toContain("30.0 MiB of which it can have");
    empty(shared, 30 * MIB).dispose();
    expect(places(shared).host).toBe(0);
  });

  test("does not ask again and again for memory of its own that was refused", () => {
    const device = simulated({ own: 4 * MIB, host: 100 * MIB });
    const filler = empty(device, 3 * MIB);
    const { context } = device.backend as GpuBackend;
    const malloc = vi.spyOn(context, "malloc");
    const all = Array.from({ length: 20 }, () => empty(device, MIB));
    expect(malloc.mock.calls.length).toBeLessThan(8);
    for (const x of [filler, ...all]) x.dispose();
  });

  test("takes nothing of the host's with hostMemory never; a discrete one does with allow", () => {
    const apu = simulated({ own: 16 * MIB, host: 100 * MIB });
    (apu.backend as GpuBackend).source.choice = "never";
    expect(caught(() => empty(apu, 20 * MIB)).message).toContain("none of the host's, by choice");
    const card = simulated({ own: 16 * MIB, host: 100 * MIB, kind: "0" });
    expect(caught(() => empty(card, 20 * MIB)).code).toBe("OutOfMemory");
    (card.backend as GpuBackend).source.choice = "allow";
    const far = empty(card, 20 * MIB);
    expect(places(card)).toEqual({ own: 8, host: 20 });
    far.dispose();
  });

  test("is asked by the option of Device.rocm, whose values are checked", async () => {
    vi.resetModules();
    const { sim } = await import("../../helpers/built-package.ts");
    vi.stubEnv("WICK_HIP_LIBRARY", sim.hip);
    const { Device: Fresh } = await import("../../../src/index.ts");
    const policy = (hostMemory?: HostMemoryChoice) =>
      Fresh.rocm(0, hostMemory && { hostMemory }).memory().regions!.policy;
    expect(policy()).toContain("its own memory only");
    expect(policy("allow")).toContain("read over PCIe, by choice");
    expect(policy("never")).toContain("its own memory only");
    expect(() => Fresh.rocm(0, { hostMemory: "always" as "allow" })).toThrow("hostMemory must be one of auto, never");
  });

  test("has mapped memory whose bounds are checked, and no managed memory", async () => {
    const { openLibrary } = await import("../../../src/backend/gpu/library.ts");
    const device = simulated({ own: 4 * MIB, host: 64 * MIB });
    const gpu = device.backend as GpuBackend;
    const buffer = gpu.context.mapped(4096);
    const fill = (bytes: number) => gpu.context.memset(buffer.address, 7, bytes);
    fill(4096);
    expect(caught(() => fill(4097)).code).toBe("DriverError");
    gpu.context.freeMapped(buffer);
    expect(caught(() => fill(1)).code).toBe("DriverError");
    const spec = { title: "", env: "WICK_HIP_LIBRARY" as const, names: [], folders: [], install: "" };
    const managed = openLibrary(spec, openSimulator().driver.library).func(
      "int hipMallocManaged(void *out, size_t bytes, unsigned int flags)",
    );
    expect(managed(new BigUint64Array(1), 64, 1)).toBe(801);
  });
});

const fable = fileURLToPath(new URL("../../../models/fable-7m.Q8_0.gguf", import.meta.url));

async function tokensOf(model: Model): Promise<number[]> {
  const tokens: number[] = [];
  for await (const { token } of model.generate([260], { maxTokens: 2, temperature: 0 })) tokens.push(token);
  return tokens;
}

describe("a model", () => {
  test("larger than the device's own memory generates the same tokens", async () => {
    const device = simulated({ own: 4 * MIB, host: 100 * MIB });
    const model = await loadModel(fable, { device });
    expect(device.memory().live).toBeGreaterThan(7 * MIB);
    expect(places(device)).toEqual({ own: 4, host: 8 });
    const tokens = await tokensOf(model);
    model.dispose();
    const roomy = simulated({ own: 2048 * MIB, host: 2048 * MIB, kind: "0" });
    using other = await loadModel(fable, { device: roomy });
    expect(places(roomy).host).toBe(0);
    expect(tokens).toHaveLength(2);
    expect(await tokensOf(other)).toEqual(tokens);
  });

  test("larger than everything is refused before anything is loaded, with both numbers", async () => {
    const device = simulated({ own: 4 * MIB, host: 8 * MIB });
    const before = device.memory();
    const onProgress = vi.fn();
    const error = await loadModel(fable, { device, onProgress }).catch((e: unknown) => e);
    expect(error).toMatchObject({ code: "OutOfMemory" });
    expect((error as Error).message).toMatch(
      /^sim:apu\d+: the model needs 1[\d.]+ MiB \(weights 7\.4 MiB, a context of \d+ tokens [\d.]+ [KM]iB, work 7\.4 MiB\), but 1[12]\.\d MiB can be had \(integrated: 0 B of its own, then up to 8\.0 MiB of the host's.*\); nothing was loaded\. Take a smaller quantization/,
    );
    expect(onProgress).not.toHaveBeenCalled();
    expect(device.memory()).toEqual(before);
    expect(before).toMatchObject({ live: 0, peak: 0 });
  });

  test("is refused on a card and on the CPU alike, and by the context that is asked for", async () => {
    const card = simulated({ own: 24 * MIB, host: 100 * MIB, kind: "0" });
    await expect(loadModel(fable, { device: card, context: 100_000 })).rejects.toThrow(/context must be .* not 100000/);
    await expect(loadWithProgress({ device: "cpu", context: 100_000 })).rejects.toThrow(
      /context must be .* not 100000/,
    );
    (await loadModel(fable, { device: card, context: 1 })).dispose();
    const filler = empty(card, 12 * MIB);
    await expect(loadModel(fable, { device: card })).rejects.toThrow(/needs .* can be had \(discrete: its own/);
    filler.dispose();
    vi.spyOn(Device.cpu().backend, "available").mockReturnValue({ bytes: MIB, where: "made up" });
    await expect(loadModel(fable)).rejects.toThrow(/^cpu: the model needs .*but 1\.0 MiB can be had \(made up\)/);
  });
});
