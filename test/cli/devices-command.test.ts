/** `wick devices` and `wick kernels`: on this machine, on the simulator and on installations that are broken. */
import { writeFileSync } from "node:fs";
import { afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import { kernels } from "../../src/backend/gpu/catalogue.ts";
import { devicesCommand } from "../../src/cli/devices.ts";
import { kernelsCommand } from "../../src/cli/kernels.ts";
import { buildPackage, type Package, sim, stubLibrary, stubs } from "../helpers/built-package.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";

interface Listing {
  readonly devices: { name: string }[];
  readonly absent: { platform: string; code?: string; problem: string }[];
  readonly kernelCache: { folder: string; writable: boolean; problem?: string };
}

const at = temporaryFolder();
let built: Package;
beforeAll(async () => {
  built = await buildPackage(at());
}, 60_000);
afterEach(() => vi.unstubAllEnvs());

/** Runs a command in this process; its children are of the built package. */
async function printed(command: ReturnType<typeof devicesCommand>, ...args: string[]): Promise<string> {
  const log = vi.spyOn(console, "log").mockImplementation(() => {});
  try {
    await command.exitOverride().parseAsync(args, { from: "user" });
    return log.mock.calls.map((call) => String(call[0])).join("\n");
  } finally {
    log.mockRestore();
  }
}
const devices = (...args: string[]): Promise<string> => printed(devicesCommand({ entry: built.entry }), ...args);
const listing = async (...args: string[]): Promise<Listing> => JSON.parse(await devices("--json", ...args)) as Listing;

describe("wick devices", () => {
  it("shows the simulated devices on demand", async () => {
    const text = await devices("--sim");
    expect(text).toMatch(/^sim:32\n +product +Wick simulator.*\n +arch +gfx1100, wave 32, \d+ multi/m);
    expect(text).toMatch(/^sim:64\n(.*\n)* +arch +gfx90a\S*, wave 64/m);
    expect(text).toMatch(
      / +memory +2\.0 GiB, [\d.]+ [GM]iB free\n +uses +discrete: .*\n +driver +[\d.]+, runtime [\d.]+ \(\/.*libamdhip64_sim/,
    );
    expect(text).toMatch(
      / +compiler +hiprtc [\d.]+ \(\/.*\n +BLAS +rocBLAS [\d.]+\S* \(\/.*\n +MIOpen +MIOpen [\d.]+ \(\/.*used by sim:32\+miopen/,
    );
    expect(text).toMatch(/^kernel cache \/.*: \d+ programs, .*B, writable$/m);
    const { devices: found } = await listing("--sim");
    expect(found.map((d) => d.name)).toEqual(expect.arrayContaining(["cpu", "sim:32", "sim:64"]));
    expect(found.find((d) => d.name === "sim:64")).toMatchObject({
      waveSize: 64,
      totalBytes: 2 ** 31,
      compiles: true,
      blas: { path: sim.rocblas },
    });
  });

  it("says which memory an integrated device uses", async () => {
    vi.stubEnv("WICK_SIM_INTEGRATED", "1");
    vi.stubEnv("WICK_SIM_MEMORY", String(512 * 2 ** 20));
    vi.stubEnv("WICK_SIM_HOST_MEMORY", String(12 * 2 ** 30));
    expect(await devices("--sim")).toMatch(
      / +uses +integrated: 504\.0 MiB of its own, then up to 12\.0 GiB of the host's; WICK_HOST_MEMORY=never turns/,
    );
    vi.stubEnv("WICK_HOST_MEMORY", "never");
    const { devices: found } = await listing("--sim");
    expect(found.find((d) => d.name === "sim:32")).toMatchObject({
      integrated: true,
      busId: "0000:00:00.0",
      memoryUse: expect.stringMatching(/^integrated: 504\.0 MiB of its own and none of the host's, by choice$/),
    });
  });

  it("shows the variables by which devices are hidden", async () => {
    vi.stubEnv("WICK_HIP_LIBRARY", sim.hip);
    vi.stubEnv("WICK_SIM_DEVICES", "0");
    expect(await devices()).not.toContain("VISIBLE_DEVICES");
    vi.stubEnv("HIP_VISIBLE_DEVICES", "3");
    const text = await devices();
    expect(text).toContain("finds no device; HIP_VISIBLE_DEVICES=3 may hide what there is");
    expect(text).toContain("HIP_VISIBLE_DEVICES=3: the vendors' libraries show only these devices");
    expect(await listing()).toMatchObject({ visibility: ["HIP_VISIBLE_DEVICES=3"] });
  });

  it("runs as a program, and shows no simulator unasked", async () => {
    const { code, out, err } = await built.wick(["devices"], { WICK_HIP_LIBRARY: "/nonexistent" });
    expect([code, err]).toEqual([0, ""]);
    expect(out).toMatch(/^cpu\n +processor/);
    expect(out).toContain("no AMD ROCm: WICK_HIP_LIBRARY=/nonexistent cannot be loaded as the HIP runtime");
    expect(out).not.toContain("sim:");
  });

  it("lists devices of the library that the environment names, and says when no BLAS is used", async () => {
    vi.stubEnv("WICK_HIP_LIBRARY", sim.hip);
    vi.stubEnv("WICK_BLAS", "none");
    const found = (await listing()).devices.filter((d) => d.name.startsWith("rocm"));
    expect(found).toMatchObject([
      { name: "rocm:0", arch: "gfx1100", library: sim.hip, blas: { problem: "turned off by WICK_BLAS=none" } },
      { name: "rocm:1", waveSize: 64 },
    ]);
  });

  it("tells a library without devices from one that is missing", async () => {
    vi.stubEnv("WICK_HIP_LIBRARY", sim.hip);
    vi.stubEnv("WICK_SIM_DEVICES", "0");
    expect(await devices()).toMatch(
      new RegExp(`no AMD ROCm: ${sim.hip} \\(HIP .*, 5\\.2 or later is needed\\) finds no device`),
    );
    expect((await listing()).absent).toContainEqual({ platform: "rocm", library: sim.hip, problem: "no device" });
  });

  it.each([
    ["missing", (path: string) => path, "LibraryNotFound", /WICK_HIP_LIBRARY=.* cannot be loaded/],
    [
      "broken",
      (path: string) => {
        writeFileSync(path, "not a library");
        return path;
      },
      "LibraryNotFound",
      /WICK_HIP_LIBRARY=.* cannot be loaded.*unset WICK_HIP_LIBRARY/,
    ],
    [
      "too old",
      (path: string) => stubLibrary(path, stubs.tooOld, false),
      "LibraryNotFound",
      /lacks hipDriverGetVersion.*too old/,
    ],
    [
      "crashing",
      (path: string) => stubLibrary(path, stubs.crashing),
      undefined,
      /its libraries crashed with SIGABRT while counting devices/,
    ],
    [
      "ending the process",
      (path: string) => stubLibrary(path, stubs.ending),
      undefined,
      /ended with exit code 7 while counting devices; it printed last: LLVM ERROR: no$/,
    ],
  ])("survives a library that is %s", async (kind, make, code, problem) => {
    vi.stubEnv("WICK_HIP_LIBRARY", make(at(`lib${kind.replaceAll(" ", "-")}.so`)));
    const { absent, devices: found } = await listing();
    const rocm = absent.find((a) => a.platform === "rocm")!;
    expect(rocm.code).toBe(code);
    expect(rocm.problem).toMatch(problem);
    expect(found[0]).toMatchObject({ name: "cpu" });
  });

  it("keeps what was found before a later library crashed", async () => {
    vi.stubEnv("WICK_HIP_LIBRARY", sim.hip);
    vi.stubEnv("WICK_ROCBLAS_LIBRARY", stubLibrary(at("libblas-crashing.so"), stubs.crashingBlas));
    vi.stubEnv("WICK_BLAS", "rocblas"); // or a trial in a child would crash instead
    const text = await devices();
    expect(text).toMatch(/^rocm:0\n +product +Wick simulator/m);
    expect(text).toMatch(/^AMD ROCm: its libraries crashed with SIGABRT while opening rocBLAS on rocm:0$/m);
  });

  it("says which library multiplies and why, or why none does", async () => {
    vi.stubEnv("WICK_HIP_LIBRARY", sim.hip);
    vi.stubEnv("WICK_ROCBLAS_LIBRARY", sim.rocblas);
    vi.stubEnv("WICK_HIPBLASLT_LIBRARY", sim.hipblaslt);
    vi.stubEnv("WICK_BLAS", "hipblaslt");
    expect(await devices()).toMatch(/ BLAS +hipBLASLt [\d.]+ \(\/.*\), asked for by WICK_BLAS=hipblaslt$/m);
    vi.stubEnv("WICK_BLAS", undefined);
    vi.stubEnv("ROCBLAS_TENSILE_LIBPATH", at("no-such-folder"));
    const none = / BLAS +none: rocBLAS 4\.4\.0 has no files for gfx1100: Wick's own kernels multiply$/m;
    expect(await devices()).toMatch(none);
    vi.stubEnv("ROCBLAS_TENSILE_LIBPATH", undefined);
    vi.stubEnv("WICK_ROCBLAS_LIBRARY", stubLibrary(at("libblas-tried.so"), stubs.crashingBlas));
    vi.stubEnv("WICK_CACHE", at("verdicts"));
    const died =
      / BLAS +none: rocBLAS 4\.4\.0 died by SIGABRT in a trial product on gfx1100: Wick's own kernels multiply$/m;
    expect(await devices()).toMatch(died);
  });

  it("says when the kernel cache cannot be written", async () => {
    writeFileSync(at("file"), "");
    vi.stubEnv("WICK_CACHE", at("file/kernels"));
    expect(await devices()).toMatch(/kernel cache .*file\/kernels: 0 programs, 0 B, not writable: (ENOTDIR|EEXIST)/);
    expect((await listing()).kernelCache).toMatchObject({ writable: false, problem: expect.stringContaining("file") });
  });
});

describe("wick kernels", () => {
  it("prints every family with its dtypes and arguments", async () => {
    const text = await printed(kernelsCommand());
    expect(text).toMatch(/^kernels\/affine\.hip\n +affine_\{T\} +9 kernels: bf16 f16 f32/m);
    expect(text).toContain("(x*, out*, numel, num_dims, info*, mul:T, add:T)");
    expect(text).toMatch(new RegExp(`^${kernels.size} kernels of \\d+ families in \\d+ programs$`, "m"));
  });

  it("names every kernel once in JSON", async () => {
    const listed = JSON.parse(await printed(kernelsCommand(), "--json")) as {
      kernels: number;
      catalogue: { kernels: string[]; args: object[] }[];
    };
    expect(listed.kernels).toBe(kernels.size);
    expect(listed.catalogue.flatMap((family) => family.kernels).sort()).toEqual([...kernels.keys()].sort());
    expect(listed.catalogue[0]!.args[0]).toEqual({ name: "x", kind: "ptr" });
  });
});
