/** `wick doctor`: its sections on the simulator, and its word on installations that are broken. */
import { spawn } from "node:child_process";
import { chmodSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import { KernelCache } from "../../src/backend/gpu/kernel-cache.ts";
import { loadedPath } from "../../src/backend/gpu/library.ts";
import { doctorCommand } from "../../src/cli/doctor.ts";
import { judgePlatform } from "../../src/doctor/advice.ts";
import { anonymous } from "../../src/doctor/anonymous.ts";
import { cacheFacts } from "../../src/doctor/cache.ts";
import { check, overall } from "../../src/doctor/check.ts";
import { Child } from "../../src/doctor/child.ts";
import { examine, type Report } from "../../src/doctor/doctor.ts";
import { describeFamily } from "../../src/doctor/golden.ts";
import { type Hardware, hardwareOf } from "../../src/doctor/hardware.ts";
import { type PlatformFacts, probe } from "../../src/doctor/probe.ts";
import { Root } from "../../src/doctor/root.ts";
import { judgeDifference } from "../../src/doctor/subtraction.ts";
import { type Message, perform, type TaskName } from "../../src/doctor/tasks.ts";
import { buildPackage, type Package, sim, stubLibrary, stubs } from "../helpers/built-package.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";

const at = temporaryFolder();
let built: Package;
beforeAll(async () => {
  built = await buildPackage(at());
}, 60_000);
afterEach(() => {
  vi.unstubAllEnvs();
  process.exitCode = undefined;
});

const detailsOf = (report: Report): string =>
  report.sections.flatMap((s) => [...s.checks.map((c) => `${c.name}: ${c.detail}`), ...s.advice]).join("\n");
const isF32Affine = (p: { file: string; unit: string }): boolean => p.file === "affine" && p.unit === "f32";

describe("the sections", () => {
  /** Runs a task as a child would, in this process. */
  async function messages(task: TaskName, input: unknown): Promise<Message[]> {
    const sent: Message[] = [];
    await perform({ task, input }, (message) => sent.push(structuredClone(message)));
    return sent;
  }
  const device = "sim:32";

  it.each(["memory", "random", "index-errors", "graphs", "speed"] as const)(
    "%s passes on the simulator",
    async (task) => {
      const sent = await messages(task, { device });
      const last = sent.at(-1) as Message & { value: { name: string; verdict: string; detail: string }[] };
      expect(last.kind).toBe("done");
      expect(last.value.filter((c) => c.verdict !== "ok")).toEqual([]);
      // Each check was announced before it ran.
      const said = sent.flatMap((m) => (m.kind === "doing" ? [m.doing] : []));
      expect(said).toEqual(last.value.map((c) => c.name));
    },
  );

  it.each(["memory", "index-errors"] as const)("%s passes on the CPU", async (task) => {
    const last = (await messages(task, { device: "cpu" })).at(-1);
    expect(last).toMatchObject({ kind: "done" });
    expect(JSON.stringify(last)).not.toContain('"problem"');
  });

  it("golden cases are grouped by family, with true progress", async () => {
    const sent = await messages("golden", { device, only: ["affine", "where", "exp"] });
    const counts = sent.flatMap((m) => (m.kind === "doing" ? [[m.done, m.total]] : []));
    expect(counts.length).toBeGreaterThan(15);
    expect(counts).toEqual(counts.map((_, i) => [i + 1, counts.length]));
    expect(sent.at(-1)).toMatchObject({
      value: [
        { name: "unary", verdict: "ok", detail: "4 cases pass" },
        { name: "affine, where, cast", verdict: "ok" },
      ],
    });
  });

  it("the shipped golden cases cover every family and all of them pass on the CPU", async () => {
    const last = (await messages("golden", { device: "cpu" })).at(-1) as Message & { value: { verdict: string }[] };
    expect(last.value.map((c) => c.verdict)).toEqual(Array(13).fill("ok"));
  });

  it("cases that fail are named, the first few", () => {
    const result = (n: number) => ({ id: `exp-${n}`, op: "exp", ok: n === 0, maxAbs: 1, maxRel: 1, error: `bad ${n}` });
    const { verdict, detail } = describeFamily("unary", [0, 1, 2, 3, 4, 5, 6, 7].map(result));
    expect(verdict).toBe("problem");
    expect(detail).toMatch(/^7 of 8 cases fail\nexp-1: bad 1\n(.*\n){4}and 2 more$/);
  });

  it("a subtraction tells a compiler that turns it round", () => {
    const differences = [2, -1.5, -6, 15, 99.75];
    expect(judgeDifference(differences)).toBe("as it should be");
    expect(() => judgeDifference(differences.map((x) => -x))).toThrow(/a − b comes out as b − a: .*#160151/);
    expect(() => judgeDifference([2, -1.5, -6, 15, 0])).toThrow(/gives 2,-1.5,-6,15,0, not 2,-1.5,-6,15,99.75/);
  });

  it("a program is compiled, loaded and its kernels looked up", async () => {
    const sent = await messages("compile", { device, program: "affine/affine_f32" });
    expect(sent.at(-1)).toMatchObject({ kind: "done", value: { kernels: 1, bytes: expect.any(Number) } });
  });

  it("a platform hands over what it knows step by step", () => {
    const steps: [string, number][] = [];
    const facts = probe("sim", (doing, so) => steps.push([doing, so.devices.length]));
    expect(steps[0]).toEqual(["loading the simulator", 0]);
    expect(steps.at(-1)).toEqual(["opening the simulator's rocBLAS on sim:64", 2]);
    expect(facts.devices.map((d) => d.waveSize)).toEqual([32, 64]);
    expect(loadedPath("libc.so")).toMatch(/^\/.*libc\.so/);
    expect(loadedPath("libabsent.so")).toBe("libabsent.so");
  });

  it("a task that throws fails with the error's code", async () => {
    expect(await messages("memory", { device: "sim:16" })).toEqual([
      { kind: "failed", problem: expect.stringMatching(/unknown device "sim:16".*\[UnknownDevice\]/) },
    ]);
    const broken = await check(
      () => {},
      "name",
      () => Promise.reject(new Error("why")),
    );
    expect(broken).toEqual({ name: "name", verdict: "problem", detail: "why" });
    expect([overall([]), overall(["skipped", "ok"]), overall(["ok", "problem"])]).toEqual(["skipped", "ok", "problem"]);
  });
});

describe("an examination", () => {
  it("of the simulator goes through all sections", async () => {
    const seen: string[] = [];
    const report = await examine({
      device: "sim",
      entry: built.entry,
      programs: isF32Affine,
      ops: ["affine"],
      onSection: (s) => seen.push(`${s.name} ${s.verdict}`),
    });
    expect(detailsOf(report)).not.toMatch(/PROBLEM|crashed/);
    expect(seen).toEqual([
      ...["system ok", "libraries ok", "cache ok", "kernels ok", "memory ok", "golden ok", "random ok"],
      ...["index-errors ok", "graphs ok", "speed ok"],
    ]);
    expect(report).toMatchObject({
      verdict: "ok",
      summary: "everything that is here works: sim:32",
      devices: ["sim:32"],
    });
    expect(report.sections[3]!.summary).toMatch(/^1 of 1 programs with 1 kernels, /);
  });

  it("of both devices of a platform, by the library that the environment names", async () => {
    vi.stubEnv("WICK_HIP_LIBRARY", sim.hip);
    const report = await examine({ entry: built.entry, only: ["index-errors"] });
    expect(report.devices).toEqual(expect.arrayContaining(["rocm:0", "rocm:1", "cpu"]));
    expect(report.sections.filter((s) => s.verdict === "problem")).toEqual([]);
    expect(report.hardware.rocm?.environment).toMatchObject({ WICK_HIP_LIBRARY: sim.hip });
    const loaded = report.platforms.find((p) => p.platform === "rocm")!.loaded!.map(({ path }) => path);
    expect(loaded).toEqual(expect.arrayContaining([sim.hip]));
  });

  it("of a device that is not there names those that are", async () => {
    vi.stubEnv("WICK_HIP_LIBRARY", sim.hip);
    const report = await examine({ device: "rocm:7", entry: built.entry });
    expect(report.verdict).toBe("problem");
    expect(detailsOf(report)).toContain("rocm:7: there is no such device, only rocm:0, rocm:1");
    expect(report.devices).toEqual([]);
    for (const device of ["tpu", "sim:16", "cpu:1"]) {
      await expect(examine({ device })).rejects.toMatchObject({ code: "UnknownDevice" });
    }
  });
});

// What the bus and the libraries of this machine have must not decide the test.
const hasGpu = (["rocm", "cuda"] as const).some((name) => hardwareOf(name).pci.length > 0);

describe("the command", () => {
  it.skipIf(hasGpu)("without any GPU checks the CPU and is content", async () => {
    const { code, out, err } = await built.wick(["doctor"]);
    expect([code, err]).toEqual([0, ""]);
    expect(out).toMatch(/^installation\n +system +ok .*\n +machine +\S/);
    expect(out).toMatch(/\n +libraries +skipped/);
    expect(out).toMatch(/AMD ROCm +skipped: (no AMD GPU here: .*was not found|.*finds no device)/);
    expect(out).toMatch(/\ncpu\n +memory +ok(.*\n)+ +golden +ok(.*\n)+ +index-errors +ok/);
    expect(out).toMatch(/\nno GPU was found; the CPU works\n$/);
  });

  it("writes a report that names neither its owner nor the machine", async () => {
    const file = at("report.json");
    const args = ["doctor", "--device", "sim:32", "--only", "cache,memory", "--json", file];
    const { code, out } = await built.wick(args);
    expect(out).toMatch(/sim:32\n +memory +ok/);
    expect(out).toContain(`The report is in ${file}.`);
    expect(code).toBe(0);
    const text = readFileSync(file, "utf8");
    expect(text).not.toContain(`"${homedir()}`);
    const report = JSON.parse(text) as Report;
    expect(report).toMatchObject({ verdict: "ok", wick: expect.any(String), devices: ["sim:32"] });
    expect(report.sections.map((s) => s.name)).toEqual(["libraries", "cache", "memory"]);
    expect(report.platforms[0]).toMatchObject({ platform: "sim", devices: [{ arch: "gfx1100" }, { waveSize: 64 }] });
  });

  it("called wrongly exits with 2", async () => {
    const calls: [string[], RegExp][] = [
      [["--device", "tpu"], /unknown device "tpu"/],
      [["--only", "teeth"], /sections are system, libraries, cache/],
      [["--device", "cpu", "--only", "cache", "--json", at("absent/report.json")], /cannot be written to .*absent/],
    ];
    for (const [args, message] of calls) {
      const { code, err } = await built.wick(["doctor", ...args]);
      expect([code, err]).toEqual([2, expect.stringMatching(message)]);
    }
  });

  it("shows kernels that fail, with the compiler's words, and gives up after a few", async () => {
    // Only whole programs are refused: a compiler that refuses all is one that does not know the arch.
    const refuse = "seq -f 'x.hip:%g: error: refused' 20 >&2; exit 1";
    const script = `#!/bin/sh\ncase "$*" in *GPU_ONLY*) ${refuse};; esac\nexec \${CXX:-g++} "$@"\n`;
    writeFileSync(at("cxx"), script, { mode: 0o755 });
    const env = { WICK_SIM_CXX: at("cxx"), WICK_CACHE: at("failing") };
    const { code, out } = await built.wick(["doctor", "--device", "sim:32", "--only", "kernels"], env);
    expect(code).toBe(1);
    expect(out).toMatch(/kernels +PROBLEM +0 of \d+ programs .* \d+ not tried after \d problems/);
    expect(out).toMatch(
      /unary\/\w+ +PROBLEM: hiprtc .* could not compile unary\/\w+\.hip for gfx1100.*\n +x\.hip:1: error: ref/,
    );
    expect(out).toMatch(/ +x\.hip:7: error: refused\n +… 1\d more lines/);
    expect(out).toMatch(/\n1 of 2 sections have problems: kernels on sim:32\n$/);
  });

  it("ends at Ctrl-C, also while it compiles", async () => {
    const args = [built.program, "doctor", "--device", "sim:32", "--only", "kernels"];
    const child = spawn(process.execPath, args, { env: { ...process.env, WICK_CACHE: at("interrupted") } });
    // The libraries have been printed: it compiles.
    child.stdout.once("data", () => setTimeout(() => child.kill("SIGINT"), 500));
    const start = performance.now();
    const code = await new Promise((done) => child.on("exit", done));
    expect(code).toBe(130);
    expect(performance.now() - start).toBeLessThan(20_000);
  });

  it("shows its progress on a terminal", async () => {
    const log = vi.spyOn(console, "log").mockImplementation(() => {});
    const write = vi.spyOn(process.stderr, "write").mockReturnValue(true);
    const { isTTY } = process.stderr;
    try {
      process.stderr.isTTY = true;
      const command = doctorCommand({ entry: built.entry, ops: ["affine"] }).exitOverride();
      await command.parseAsync(["--device", "cpu", "--only", "golden"], { from: "user" });
      const shown = write.mock.calls.map((c) => String(c[0])).join("");
      expect(shown).toMatch(/golden: running golden case affine-\d+ \(1 of \d+\)/);
      expect(shown.endsWith("\r\u001b[K")).toBe(true);
      expect(log.mock.calls.join("\n")).toMatch(/^cpu\n +golden +ok/);
    } finally {
      process.stderr.isTTY = isTTY;
      vi.restoreAllMocks();
    }
  });
});

describe("broken libraries", () => {
  const visit = (only: "libraries" | "golden" = "libraries"): Promise<Report> =>
    examine({ device: "rocm:0", only: [only], entry: built.entry, ops: ["affine", "matmul"] });

  it.each([
    ["missing", () => "/nonexistent", /WICK_HIP_LIBRARY=\/nonexistent cannot be loaded as the HIP runtime/],
    [
      "no library at all",
      () => {
        writeFileSync(at("text.so"), "not a library");
        return at("text.so");
      },
      /text\.so cannot be loaded as the HIP runtime/,
    ],
    ["too old", () => stubLibrary(at("libold.so"), stubs.tooOld, false), /lacks hipDriverGetVersion.*too old/],
    ["crashing", () => stubLibrary(at("libcrash.so"), stubs.crashing), /crashed with SIGABRT while counting devices/],
  ])("%s: the cause and the way out", async (_, make, message) => {
    vi.stubEnv("WICK_HIP_LIBRARY", make());
    const report = await visit();
    expect(report.verdict).toBe("problem");
    expect(report.sections[0]!.checks[0]).toMatchObject({ name: "AMD ROCm", verdict: "problem" });
    expect(report.sections[0]!.checks[0]!.detail).toMatch(message);
    expect(report.sections[0]!.advice).toContain("correct or unset WICK_HIP_LIBRARY");
    expect(report.summary).toContain("have problems: libraries");
  });

  it("a library that hangs is ended", async () => {
    const env = { WICK_HIP_LIBRARY: stubLibrary(at("libhang.so"), stubs.hanging) };
    const outcome = await new Child({ entry: built.entry, env }).run("probe", "rocm", { seconds: 3 });
    expect(outcome).toMatchObject({ ok: false, problem: expect.stringMatching(/no answer within 3 s while counting/) });
    expect(outcome).toMatchObject({ part: { platform: "rocm", library: env.WICK_HIP_LIBRARY } });
  });

  it("a compiler that kills the process over an arch is not let near it", async () => {
    const crashing = stubLibrary(at("librtc.so"), stubs.crashingCompiler);
    vi.stubEnv("WICK_HIP_LIBRARY", crashing);
    const report = await visit();
    expect(detailsOf(report)).toMatch(/rocm:0: .*the run-time compiler does not know gfx1100/);
    expect(detailsOf(report)).toMatch(/older than the GPU: install a newer release/);
  });

  it("a BLAS that crashes is a problem of the cases that need it, and the rest goes on", async () => {
    vi.stubEnv("WICK_HIP_LIBRARY", sim.hip);
    vi.stubEnv("WICK_ROCBLAS_LIBRARY", stubLibrary(at("libblas.so"), stubs.crashingBlas));
    vi.stubEnv("WICK_BLAS", "rocblas"); // or a trial in a child would crash instead
    const report = await visit("golden");
    expect(report.sections.map((s) => `${s.name} ${s.verdict}`)).toEqual(["libraries problem", "golden problem"]);
    expect(detailsOf(report)).toMatch(/crashed with SIGABRT while opening rocBLAS on rocm:0/);
    expect(detailsOf(report)).toMatch(/golden: crashed with SIGABRT while running golden case matmul-\d+/);
    expect(report.sections.map((s) => s.advice.at(-1))).toEqual(Array(2).fill(expect.stringMatching(/WICK_BLAS=none/)));
  });

  it("a child that cannot start is told", async () => {
    const outcome = await new Child({ entry: at("absent.js") }).run("probe", "rocm", { seconds: 20 });
    expect(outcome).toMatchObject({
      ok: false,
      problem: expect.stringMatching(/^ended with exit code 1 while starting/),
    });
  });
});

describe("the kernel cache", () => {
  const compile = async (folder: string, child = new Child({ entry: built.entry, env: { WICK_CACHE: folder } })) => {
    const outcome = await child.run("compile", { device: "sim:32", program: "affine/affine_u8" }, { seconds: 50 });
    child.close();
    return outcome.ok ? outcome.value : outcome.problem;
  };

  it("that cannot be written is a problem, and the sections share a stand-in", async () => {
    writeFileSync(at("occupied"), "");
    let folder = at("occupied/kernels");
    if (process.getuid?.() !== 0) {
      mkdirSync(at("readonly"));
      chmodSync(at("readonly"), 0o555);
      folder = at("readonly/kernels");
    }
    vi.stubEnv("WICK_CACHE", folder);
    const only = ["cache", "kernels"] as const;
    const report = await examine({ device: "sim:32", only, entry: built.entry, programs: isF32Affine });
    const cache = report.sections.find((s) => s.name === "cache")!;
    expect(cache.verdict).toBe("problem");
    expect(cache.checks[0]!.detail).toMatch(/cannot be written: E/);
    expect(cache.advice[0]).toMatch(/make the folder writable, or set WICK_CACHE/);
    expect(report.sections.find((s) => s.name === "kernels")).toMatchObject({ verdict: "ok" });
    expect(await compile(folder)).toMatchObject({ cached: false });
  });

  it("that is damaged is told, and its entries are compiled anew", async () => {
    const folder = at("damaged");
    expect(await compile(folder)).toMatchObject({ cached: false });
    expect(await compile(folder)).toMatchObject({ cached: true });
    const [entry] = readdirSync(folder);
    const bytes = readFileSync(join(folder, entry!));
    bytes[100]! ^= 1;
    writeFileSync(join(folder, entry!), bytes);
    mkdirSync(join(folder, `${"0".repeat(40)}.gfx1100`));
    const facts = cacheFacts(new KernelCache(folder));
    expect(facts).toEqual({ folder, entries: 1, bytes: bytes.length, damaged: 1 });
    vi.stubEnv("WICK_CACHE", folder);
    const report = await examine({ device: "sim:32", only: ["cache"], entry: built.entry });
    expect(detailsOf(report)).toContain("1 are damaged and will be compiled anew when needed");
    expect(await compile(folder)).toMatchObject({ cached: false });
    expect(cacheFacts(new KernelCache(folder)).damaged).toBe(0);
  });

  it("may be filled by two processes at once", async () => {
    const folder = at("shared");
    const both = await Promise.all([compile(folder), compile(folder)]);
    expect(both).toMatchObject([{ kernels: 1 }, { kernels: 1 }]);
    expect(readdirSync(folder)).toHaveLength(1);
    expect(await compile(folder)).toMatchObject({ cached: true });
  });
});

describe("the verdict on a platform", () => {
  const bare: Hardware = { pci: [], driver: null, nodes: [], environment: {} };
  const card: Hardware = {
    pci: ["1002:744c"],
    driver: "6.8.5",
    nodes: [
      { path: "/dev/kfd", access: "ok" },
      { path: "/dev/dri/renderD128", access: "ok" },
    ],
    environment: {},
  };
  const missing: PlatformFacts = { platform: "rocm", devices: [], problem: "not found", code: "LibraryNotFound" };
  const empty: PlatformFacts = { platform: "rocm", devices: [], library: "/opt/rocm/lib/libamdhip64.so" };
  const judge = (facts: PlatformFacts, hardware: Hardware, isWanted = false) => {
    const { checks, advice } = judgePlatform("rocm", { ok: true, value: facts }, hardware, isWanted);
    return { verdict: checks[0]!.verdict, detail: checks[0]!.detail, advice: advice.join("\n") };
  };

  it("without card and library is none, unless it was asked for", () => {
    expect(judge(missing, bare)).toEqual({ verdict: "skipped", detail: "no AMD GPU here: not found", advice: "" });
    expect(judge(empty, bare).verdict).toBe("skipped");
    expect(judge(missing, bare, true)).toMatchObject({ verdict: "problem", advice: expect.stringMatching(/ROCm/) });
    expect(judge(empty, bare, true).verdict).toBe("problem");
  });

  it("with a card on the bus says what keeps it from being used", () => {
    expect(judge(missing, card)).toMatchObject({
      verdict: "problem",
      advice: expect.stringMatching(/^install ROCm: http/),
    });
    const denied = { ...card, nodes: [{ path: "/dev/kfd", access: "denied" as const }] };
    expect(judge(empty, denied).advice).toMatch(/^\/dev\/kfd may not be used by this user; .*usermod -aG render,video/);
    const contained = { ...card, nodes: [{ path: "/dev/kfd", access: "missing" as const }] };
    expect(judge(empty, contained).advice).toMatch(/^\/dev\/kfd are missing; in a container, pass --device \/dev\/kfd/);
    expect(judge(empty, { ...card, driver: null }).advice).toMatch(/driver amdgpu is not loaded/);
    const hidden = { ...card, environment: { HIP_VISIBLE_DEVICES: "" } };
    expect(judge(empty, hidden).advice).toMatch(/^HIP_VISIBLE_DEVICES= may hide devices: unset it/);
    expect(judge(empty, card)).toMatchObject({
      verdict: "problem",
      detail: "/opt/rocm/lib/libamdhip64.so finds no device, although the bus has 1002:744c",
      advice: expect.stringContaining("dmesg"),
    });
    expect(judge(empty, { ...bare, driver: "6.8.5" }).verdict).toBe("skipped");
  });

  it("names each library and device, and lets BLAS be missing", () => {
    const facts: PlatformFacts = {
      ...empty,
      compiler: { problem: "hiprtc was not found" },
      miopen: { problem: "MIOpen was not found" },
      devices: [
        { name: "rocm:0", product: "A", arch: "gfx1100", waveSize: 32, totalBytes: 2 ** 34, blas: { problem: "none" } },
        { name: "rocm:1", problem: "faulted" },
      ],
    };
    const { checks } = judgePlatform("rocm", { ok: true, value: facts }, card, false);
    expect(checks.map((c) => `${c.name} ${c.verdict}`)).toEqual([
      "AMD ROCm ok",
      "compiler problem",
      "BLAS skipped",
      "MIOpen skipped",
      "rocm:0 ok",
      "rocm:1 problem",
    ]);
  });

  it("rests on what the system tells", () => {
    const root = at("root");
    const put = (path: string, text: string): void => {
      mkdirSync(join(root, path, ".."), { recursive: true });
      writeFileSync(join(root, path), text);
    };
    const bus = {
      gpu: ["0x1002", "0x744c", "0x030000"],
      sound: ["0x1002", "0xab30", "0x040300"],
      other: ["0x10de", "0x2335", "0x030200"],
    };
    for (const [name, [vendor, device, kind]] of Object.entries(bus)) {
      put(`sys/bus/pci/devices/${name}/vendor`, `${vendor}\n`);
      put(`sys/bus/pci/devices/${name}/device`, `${device}\n`);
      put(`sys/bus/pci/devices/${name}/class`, `${kind}\n`);
    }
    put("sys/module/amdgpu/version", "6.8.5\n");
    put("sys/module/nvidia/taint", "PO\n");
    put("dev/dri/renderD129", "");
    put("dev/dri/card0", "");
    symlinkSync("/nowhere", join(root, "dev/kfd"));
    vi.stubEnv("HIP_VISIBLE_DEVICES", "1");
    expect(hardwareOf("rocm", new Root(root))).toMatchObject({
      pci: ["1002:744c"],
      driver: "6.8.5",
      nodes: [
        { path: "/dev/kfd", access: "missing" },
        { path: "/dev/dri/renderD129", access: "ok" },
      ],
      environment: { HIP_VISIBLE_DEVICES: "1" },
    });
    expect(hardwareOf("cuda", new Root(root))).toMatchObject({
      pci: ["10de:2335"],
      driver: "loaded",
      driverOrigin: "DKMS",
    });
    expect(hardwareOf("rocm", new Root(at("nowhere")))).toMatchObject({
      pci: [],
      driver: null,
      nodes: [{ access: "missing" }, { path: "/dev/dri/renderD*", access: "missing" }],
    });
  });
});

describe("a report", () => {
  it("loses the names of its owner wherever they are", () => {
    const owner = { home: "/home/ada.l", user: "ada.l", host: "engine-1" };
    const report = {
      cache: "/home/ada.l/.cache/wick",
      list: ["/home/ada.l", "/data/ada.l/x", "/home/ada.lovelace/y", "on engine-1:", "engine-12"],
      others: ["/home/grace/rocm/lib:/opt/x", "C:\\Users\\Grace\\x", "ROCR_VISIBLE_DEVICES=GPU-1a2b3c4d5e6f7a8b,1"],
      network: "02:42:ac:11:00:02",
      deep: { n: 3, none: null, ok: true },
    };
    expect(anonymous(report, owner)).toEqual({
      cache: "~/.cache/wick",
      list: ["~", "/data/user/x", "/home/user/y", "on host:", "engine-12"],
      others: ["/home/user/rocm/lib:/opt/x", "C:\\Users\\user\\x", "ROCR_VISIBLE_DEVICES=GPU-…,1"],
      network: "…",
      deep: { n: 3, none: null, ok: true },
    });
    expect(anonymous({ a: "/root/x", b: "the root" }, { home: "/root", user: "root", host: "localhost" })).toEqual({
      a: "~/x",
      b: "the root",
    });
  });
});
