/** `Device.best()`: which of several GPUs is taken. */
import { afterEach, describe, expect, test, vi } from "vitest";
import { type Candidate, ranked } from "../../../src/backend/gpu/best-device.ts";
import type { GpuProperties } from "../../../src/backend/gpu/driver.ts";
import { openHip } from "../../../src/backend/gpu/rocm/hip.ts";
import { sim } from "../../helpers/built-package.ts";

const GIB = 2 ** 30;
afterEach(() => vi.unstubAllEnvs());

function gpu(name: string, properties: Partial<GpuProperties> | null): Candidate {
  const [platform, ordinal] = name.split(":") as ["rocm" | "cuda", string];
  const usual: GpuProperties = {
    name,
    arch: "gfx1100",
    waveSize: 32,
    multiprocessors: 48,
    maxThreadsPerBlock: 1024,
    sharedBytesPerBlock: 65536,
    totalBytes: 16 * GIB,
    integrated: false,
    busId: null,
    driverVersion: "6.4.0",
    runtimeVersion: "6.4.0",
  };
  return { platform, ordinal: Number(ordinal), properties: properties && { ...usual, ...properties } };
}

function best(candidates: readonly Candidate[], usable: (candidate: Candidate) => boolean = () => true): string {
  const found = ranked(candidates, usable).next().value;
  return found ? `${found.platform}:${found.ordinal}` : "cpu";
}

describe("the best device", () => {
  test.each<[string, string, Candidate[]]>([
    ["is the CPU where there is no other", "cpu", []],
    [
      "is a card rather than an APU, however much memory that maps",
      "rocm:1",
      [gpu("rocm:0", { integrated: true, totalBytes: 96 * GIB }), gpu("rocm:1", { totalBytes: 8 * GIB })],
    ],
    ["is an APU where there is no card", "rocm:0", [gpu("rocm:0", { integrated: true, totalBytes: GIB / 2 })]],
    [
      "has more memory than others, whoever made it",
      "cuda:1",
      [gpu("rocm:0", {}), gpu("cuda:0", { totalBytes: 8 * GIB }), gpu("cuda:1", { totalBytes: 24 * GIB })],
    ],
    [
      "has more multiprocessors where the memory is alike",
      "rocm:2",
      [gpu("rocm:0", {}), gpu("rocm:1", { multiprocessors: 60 }), gpu("rocm:2", { multiprocessors: 96 })],
    ],
    ["is the first of equal ones", "rocm:0", [gpu("rocm:1", {}), gpu("rocm:0", {})]],
    ["comes before AMD's with a higher number", "cuda:0", [gpu("rocm:1", {}), gpu("cuda:0", {})]],
    ["is AMD's on a tie", "rocm:0", [gpu("cuda:0", {}), gpu("rocm:0", {})]],
    ["is not one that does not tell its properties", "rocm:1", [gpu("rocm:0", null), gpu("rocm:1", {})]],
    ["is the CPU where none tells them", "cpu", [gpu("rocm:0", null)]],
  ])("%s", (_, name, candidates) => {
    expect(best(candidates)).toBe(name);
  });

  test("is not one whose arch the compiler does not know; the others are not asked for", () => {
    const asked: number[] = [];
    const cards = [gpu("rocm:0", { arch: "gfx1036" }), gpu("rocm:1", { arch: "gfx803", totalBytes: 32 * GIB })];
    const usable = ({ ordinal, properties }: Candidate): boolean => {
      asked.push(ordinal);
      return properties!.arch !== "gfx803";
    };
    expect(best(cards, usable)).toBe("rocm:0");
    expect(best(cards.slice(1), usable)).toBe("cpu");
    expect(best([gpu("rocm:2", { totalBytes: 64 * GIB }), ...cards], usable)).toBe("rocm:2");
    expect(asked).toEqual([1, 0, 1, 2]);
  });

  test("is found among all of a platform's devices", async () => {
    // The simulator stands in for ROCm; its second device has more multiprocessors and as much memory.
    vi.resetModules();
    vi.stubEnv("WICK_HIP_LIBRARY", sim.hip);
    vi.stubEnv("WICK_CUDA_LIBRARY", "/nonexistent/libcuda.so");
    const { Device } = await import("../../../src/index.ts");
    expect(Device.best().name).toBe("rocm:1");
  });

  test("that is hidden is not found, and the error names what hides it", async () => {
    const { driver } = openHip({ hipLibrary: sim.hip });
    vi.stubEnv("WICK_SIM_DEVICES", "0");
    vi.stubEnv("HIP_VISIBLE_DEVICES", "-1");
    vi.stubEnv("ROCR_VISIBLE_DEVICES", "");
    expect(() => driver.open(0)).toThrow(
      /finds no AMD GPU.*; ROCR_VISIBLE_DEVICES= and HIP_VISIBLE_DEVICES=-1 may hide what there is$/,
    );
  });
});
