// Who multiplies: what was measured decides, shape by shape, and is found again by later processes.
import { readFileSync, writeFileSync } from "node:fs";
import { afterEach, describe, expect, it, vi } from "vitest";
import { GpuBackend } from "../../../src/backend/gpu/backend.ts";
import { measureProduct } from "../../../src/backend/gpu/measure-product.ts";
import { platform } from "../../../src/backend/gpu/platforms.ts";
import { type ProductShape, Tuning } from "../../../src/backend/gpu/tuning.ts";
import { tuneCommand } from "../../../src/cli/tune.ts";
import { Device, Tensor, WickError } from "../../../src/index.ts";
import { temporaryFolder } from "../../helpers/temporary-folder.ts";

const at = temporaryFolder();
const card = { name: "Card", arch: "gfx1100" };
const shape: ProductShape = { type: "f32", m: 64, n: 96, k: 32, transA: false, transB: true, batch: 1 };
const own = { own: 1, library: 2 };
const theirs = { own: 2, library: 1 };

afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllEnvs();
});

/** A simulated device that keeps its times in a folder of its own. */
function deviceWith(folder: string): { device: Device; gpu: GpuBackend; tuning: Tuning } {
  const device = Device.from("sim:32");
  const gpu = device.backend as GpuBackend;
  const tuning = new Tuning(at(folder), gpu.context.properties, gpu.blas!.version);
  vi.spyOn(GpuBackend.prototype, "tuning", "get").mockReturnValue(tuning);
  return { device, gpu, tuning };
}

describe("times of products", () => {
  it("are kept for the next process, for one card and one release of the library", () => {
    const tuning = new Tuning(at("kept"), card, "rocBLAS 4.2.0");
    expect(tuning.prefersOwn(shape)).toBe(false);
    expect(tuning.note(shape, own)).toBeUndefined();
    expect(tuning.prefersOwn(shape)).toBe(true);
    expect(new Tuning(at("kept"), card, "rocBLAS 4.2.0").prefersOwn(shape)).toBe(true);
    expect(new Tuning(at("kept"), card, "rocBLAS 4.3.0").prefersOwn(shape)).toBe(false);
    expect(new Tuning(at("kept"), { ...card, arch: "gfx1101" }, "rocBLAS 4.2.0").prefersOwn(shape)).toBe(false);
    expect(JSON.parse(readFileSync(tuning.path, "utf8"))).toMatchObject({
      card: "Card, gfx1100",
      library: "rocBLAS 4.2.0",
      microseconds: { "f32 64x96x32 nt": own },
    });
  });

  it("of the next power of two of rows hold for what was not measured itself", () => {
    const tuning = new Tuning(at("rows"), card, "rocBLAS 4.2.0");
    tuning.note(shape, own);
    tuning.note({ ...shape, m: 60 }, theirs);
    const rows = [32, 33, 60, 63, 64, 65];
    expect(rows.map((m) => tuning.prefersOwn({ ...shape, m }))).toEqual([false, true, false, true, true, false]);
    for (const other of [{ type: "bf16" }, { n: 95 }, { k: 31 }, { transA: true }, { batch: 2 }] as const) {
      expect(tuning.prefersOwn({ ...shape, ...other })).toBe(false);
    }
  });

  it("by two processes go into one file, and a damaged one is begun anew", () => {
    const [one, two] = [new Tuning(at("two"), card, "cuBLAS"), new Tuning(at("two"), card, "cuBLAS")];
    one.note(shape, own);
    two.note({ ...shape, m: 8 }, own);
    expect(new Tuning(at("two"), card, "cuBLAS").prefersOwn(shape)).toBe(true);
    writeFileSync(one.path, '{"microseconds": {"f32 8x96x32 nt": {"own": "fast"}, "f32 64x96x32 nt": null}}');
    expect(new Tuning(at("two"), card, "cuBLAS").prefersOwn(shape)).toBe(false);
    writeFileSync(one.path, "{");
    const anew = new Tuning(at("two"), card, "cuBLAS");
    expect(anew.prefersOwn(shape)).toBe(false);
    expect(anew.note(shape, own)).toBeUndefined();
  });

  it("of a card that is known hold until it is measured itself", () => {
    const known = new Tuning(at("known"), { name: "NVIDIA H200", arch: "sm_90a" }, "cuBLAS 13.1.0");
    const odd: ProductShape = { type: "bf16", m: 1000, n: 1001, k: 999, transA: false, transB: false, batch: 1 };
    const even = { ...odd, n: 1002, k: 998 };
    expect([odd, even, { ...odd, type: "f32" as const }].map((s) => known.prefersOwn(s))).toEqual([true, false, false]);
    known.note(odd, theirs);
    expect(known.prefersOwn(odd)).toBe(false);
    expect(new Tuning(at("known"), card, "cuBLAS 13.1.0").prefersOwn({ ...odd, k: 997 })).toBe(false);
  });

  it("that cannot be written hold in this process", () => {
    writeFileSync(at("file"), "");
    const tuning = new Tuning(at("file"), card, "cuBLAS");
    expect(tuning.note(shape, own)).toMatch(/EEXIST|ENOTDIR/);
    expect(tuning.prefersOwn(shape)).toBe(true);
  });
});

describe("a product", () => {
  it("goes to whom was faster, with one result", () => {
    const { device, gpu, tuning } = deviceWith("products");
    const [a, b] = [Tensor.rand([64, 32], { device, seed: 1 }), Tensor.rand([96, 32], { device, seed: 2 })];
    const launch = vi.spyOn(gpu, "launch");
    const library = [...a.matmul(b.t()).dataSync()] as number[];
    expect(launch).not.toHaveBeenCalled();
    tuning.note(shape, own);
    const kernel = [...a.matmul(b.t()).dataSync()] as number[];
    expect(launch.mock.calls.map(([name]) => name)).toEqual([expect.stringMatching(/^gemm/)]);
    kernel.forEach((x, i) => void expect(x).toBeCloseTo(library[i]!, 4));
  });

  it("is not asked about where WICK_BLAS has chosen, or where there is no library", () => {
    for (const [i, blas] of ["rocblas", "none"].entries()) {
      vi.stubEnv("WICK_BLAS", blas);
      const { backend } = Device.open(`chosen:${i}`, () => new GpuBackend(`chosen:${i}`, platform("sim"), 0));
      expect((backend as GpuBackend).tuning).toBeNull();
    }
  });

  it("is measured by both, in every layout", async () => {
    const { gpu } = deviceWith("measured");
    for (const [transA, transB, batch] of [
      [false, true, 1],
      [true, false, 2],
    ] as const) {
      const times = await measureProduct(gpu, { type: "f32", m: 8, n: 6, k: 4, transA, transB, batch });
      expect(times!.own).toBeGreaterThan(0);
      expect(times!.library).toBeGreaterThan(0);
    }
    vi.spyOn(gpu, "gemm").mockReturnValue(false);
    expect(await measureProduct(gpu, shape)).toBeNull();
  });
});

describe("wick tune", () => {
  async function tune(...args: string[]): Promise<string> {
    const log = vi.spyOn(console, "log").mockImplementation(() => {});
    await tuneCommand()
      .exitOverride()
      .parseAsync(["--device", "sim:32", ...args], { from: "user" });
    const text = log.mock.calls.map((call) => String(call[0])).join("\n");
    log.mockRestore();
    return text;
  }

  it("measures the shapes that it is given", async () => {
    const { tuning } = deviceWith("shapes");
    const text = await tune("--shape", "8,6,4", "--shape", "5,7,9", "--dtype", "f32", "--trans", "nn");
    expect(text).toMatch(/^sim:32, rocBLAS \S+\n {2}product +own +library +faster\n {2}f32 8x6x4 nn +[\d.]+ µs/);
    expect(text).toMatch(/ {2}f32 5x7x9 nn .* (own|library)\nkept in \/.*tuned-\w+\.json$/);
    expect(tuning.timesOf({ ...shape, m: 5, n: 7, k: 9, transB: false })).toBeDefined();
    const told = JSON.parse(await tune("--shape", "2,3,4", "--dtype", "f32", "--batch", "2", "--json")) as object;
    expect(told).toMatchObject({ device: "sim:32", products: [{ m: 2, n: 3, k: 4, transB: true, batch: 2 }] });
  });

  it("measures what a model multiplies", async () => {
    deviceWith("model");
    const model = new URL("../../data/models/tiny/llama", import.meta.url).pathname;
    const { products } = JSON.parse(await tune("--model", model, "--rows", "16", "--dtype", "f32", "--json")) as {
      products: ProductShape[];
    };
    expect(products.length).toBeGreaterThan(2);
    for (const { m, transB } of products) expect([m, transB]).toEqual([16, true]);
  });

  it("says what it cannot do", async () => {
    await expect(tune("--device", "cpu", "--shape", "2,2,2")).rejects.toThrow(/cpu is no GPU/);
    deviceWith("wrong");
    await expect(tune()).rejects.toThrow(/give --shape or --model/);
    await expect(tune("--model", "x", "--dtype", "f64")).rejects.toThrow(/do not compute in f64/);
    await expect(tune("--shape", "2,2")).rejects.toThrow(/three numbers/);
    vi.restoreAllMocks();
    vi.spyOn(GpuBackend.prototype, "tuning", "get").mockReturnValue(null);
    await expect(tune("--shape", "2,2,2")).rejects.toThrow(WickError);
    writeFileSync(at("no-folder"), "");
    deviceWith("no-folder");
    await expect(tune("--shape", "2,2,2")).rejects.toThrow(/cannot be written/);
  });
});
