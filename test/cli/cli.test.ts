import { execFile, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { afterEach, beforeAll, describe, expect, it, vi } from "vitest";
import { devicesCommand } from "../../src/cli/devices.ts";
import { verifyCommand } from "../../src/cli/verify.ts";
import { saveSafetensors } from "../../src/formats/index.ts";
import { Device, Tensor } from "../../src/index.ts";
import { type Report, verify } from "../../src/verify/runner.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";

const at = temporaryFolder();
const program = fileURLToPath(new URL("../../dist/cli/main.js", import.meta.url));
const { version } = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8")) as {
  version: string;
};

interface Run {
  readonly code: number | null;
  readonly out: string;
  readonly err: string;
}
function wick(args: string[], env: Record<string, string> = {}): Promise<Run> {
  return new Promise((done) => {
    // A process that worker threads kept alive would end by the time limit, with no exit code.
    execFile(
      process.execPath,
      [program, ...args],
      { env: { ...process.env, ...env }, timeout: 20_000 },
      (error, out, err) => done({ code: error ? (typeof error.code === "number" ? error.code : null) : 0, out, err }),
    );
  });
}

const tight = { rel: 1e-6, abs: 1e-6 };
const input = (tensor: string, ...view: unknown[][]) => ({ tensor, ...(view.length > 0 && { view }) });
const golden = (id: string, op: string, inputs: object, outputs: string[], params: object = {}, tolerance = tight) => ({
  id,
  op,
  inputs,
  params,
  outputs,
  tolerance,
});

const tensors = (): Record<string, Tensor> => ({
  x: Tensor.from([[1, 2, 3]]),
  negated: Tensor.from([[-1, -2, -3]]),
  turned: Tensor.from([[-1], [-2], [-3]]),
  last: Tensor.from([[-2, -3]]),
  tripled: Tensor.from([
    [-1, -2, -3],
    [-1, -2, -3],
  ]),
  doubles: Tensor.from([[-1, -2, -3]], { dtype: "f64" }),
  sum: Tensor.from([[2, 4, 6]]),
  nan: Tensor.from([[Number.NaN, 1, 1]]),
  sorted: Tensor.from([[3, 2, 1]]),
  order: Tensor.from([[2, 1, 0]], { dtype: "u32" }),
  big: Tensor.from([2n ** 53n + 1n]),
  bigger: Tensor.from([-(2n ** 53n) - 2n]),
});

async function folder(name: string, cases: unknown): Promise<string> {
  await mkdir(at(name), { recursive: true });
  await writeFile(at(name, "cases.json"), typeof cases === "string" ? cases : JSON.stringify(cases));
  await saveSafetensors(at(name, "tensors.safetensors"), tensors());
  return at(name);
}

const passing = [
  golden("neg-0", "neg", { x: input("x") }, ["negated"]),
  golden("neg-turned", "neg", { x: input("x", ["transpose", 0, 1]) }, ["turned"]),
  golden("neg-part", "neg", { x: input("x", ["narrow", 1, 1, 2]) }, ["last"]),
  golden("neg-spread", "neg", { x: input("x", ["broadcast", [2, 3]]) }, ["tripled"]),
  golden("add-0", "add", { lhs: input("x"), rhs: input("x") }, ["sum"]),
  golden("sort-0", "sort", { x: input("x") }, ["sorted", "order"], { asc: false }),
];
const failing = [
  golden("neg-wrong", "neg", { x: input("x") }, ["sum"]),
  golden("neg-shape", "neg", { x: input("x") }, ["turned"]),
  golden("neg-dtype", "neg", { x: input("x") }, ["doubles"]),
  golden("neg-nan", "neg", { x: input("x") }, ["nan"]),
  golden("neg-outputs", "neg", { x: input("x") }, ["negated", "negated"]),
  golden("neg-input", "neg", { y: input("x") }, ["negated"]),
  golden("neg-tensor", "neg", { x: input("absent") }, ["negated"]),
  golden("neg-view", "neg", { x: input("x", ["rotate", 1]) }, ["negated"]),
  golden("neg-integer", "neg", { x: input("big") }, ["bigger"], {}, { rel: 0, abs: 0 }),
  golden("softmax-parameter", "softmax", { x: input("x") }, ["x"], { dim: "last" }),
  golden("unknown-0", "fold_proteins", { x: input("x") }, ["x"]),
];

let good = "";
let mixed = "";
beforeAll(async () => {
  good = await folder("good", passing);
  mixed = await folder("mixed", [...passing, ...failing]);
});
afterEach(() => {
  vi.restoreAllMocks();
  process.exitCode = undefined;
});

describe("the wick program", () => {
  it("explains itself", async () => {
    const { code, out } = await wick(["--help"]);
    expect(code).toBe(0);
    expect(out).toMatch(/Usage: wick/);
    expect(out).toMatch(/devices .*\n.*verify|verify .*\n(.*\n)*.*devices/);
    const help = await wick(["verify", "--help"]);
    expect(help.code).toBe(0);
    expect(help.out).toMatch(/--device <names>(.*\n)+.*default: "cpu"(.*\n)*Examples:/);
  });

  it("tells its version", async () => {
    expect(await wick(["--version"])).toEqual({ code: 0, out: `${version}\n`, err: "" });
  });

  it.each([
    [["frobnicate"], /unknown command 'frobnicate'/],
    [["verify"], /missing required argument 'folder'/],
    [["verify", "x", "--what"], /unknown option '--what'/],
    [["verify", "x", "--threads", "0"], /whole number/],
  ])("called as %j it says what is wrong and exits with 2", async (args, message) => {
    const { code, err } = await wick(args);
    expect(code).toBe(2);
    expect(err).toMatch(message);
  });

  it("shows devices, for people and for programs", async () => {
    const people = await wick(["devices"], { WICK_THREADS: "3" });
    expect(people.code).toBe(0);
    expect(people.out).toMatch(/^cpu\n(.*\n)* +threads +3\n/m);
    const programs = await wick(["devices", "--json"], { WICK_THREADS: "3" });
    expect(programs.code).toBe(0);
    const { devices } = JSON.parse(programs.out) as { devices: { name: string }[] };
    expect(devices.find((d) => d.name === "cpu")).toMatchObject({ threads: 3, processor: expect.any(String) });
  });

  it("names WICK_THREADS where it is wrong", async () => {
    const { code, err } = await wick(["devices"], { WICK_THREADS: "lots" });
    expect(code).toBe(2);
    expect(err).toMatch(/WICK_THREADS="lots".*1 to 64/);
  });

  it("can do without relaxed SIMD", async () => {
    const { code, out } = await wick(["verify", good], { WICK_SIMD: "plain" });
    expect(out).toContain("6 passed, 0 failed");
    expect(code).toBe(0);
  });

  it("ends by itself although worker threads run", async () => {
    const source = `
      import { Tensor } from ${JSON.stringify(new URL("../../dist/index.js", import.meta.url).href)};
      const x = Tensor.ones([1024, 1024]);
      await new Promise((next) => setTimeout(next, 200));
      console.log(x.matmul(x).sumAll().toScalarSync());`;
    const child = spawn(process.execPath, ["--input-type=module", "-e", source], {
      env: { ...process.env, WICK_THREADS: "2" },
      timeout: 20_000,
    });
    let out = "";
    child.stdout.on("data", (text) => {
      out += text;
    });
    const [code, signal] = await new Promise<[number | null, string | null]>((done) =>
      child.on("exit", (...end) => done(end)),
    );
    expect([code, signal, out.trim()]).toEqual([0, null, String(2 ** 30)]);
  });

  it("does not mind a reader that closes early", async () => {
    const child = spawn(process.execPath, [program, "devices", "--json"]);
    child.stdout.destroy();
    let err = "";
    child.stderr.on("data", (text) => {
      err += text;
    });
    const code = await new Promise((done) => child.on("exit", done));
    expect([code, err]).toEqual([0, ""]);
  });
});

describe("wick verify", () => {
  it("passes where all cases pass", async () => {
    const { code, out, err } = await wick(["verify", good]);
    expect(out).toMatch(/^op +passed +failed +max abs +max rel\nneg +4 +0 /);
    expect(out).toMatch(/6 passed, 0 failed, 0 skipped on cpu\n$/);
    expect([code, err]).toEqual([0, ""]);
  });

  it("fails where one fails, and says which and why", async () => {
    const { code, out } = await wick(["verify", mixed]);
    expect(code).toBe(1);
    expect(out).toContain("6 passed, 11 failed, 0 skipped on cpu");
    expect(out).toMatch(/FAILED neg-wrong: output 0: element 0 is -1, expected 2/);
    expect(out).toMatch(/FAILED neg-shape: output 0: shape \[1, 3\], expected \[3, 1\]/);
    expect(out).toMatch(/FAILED unknown-0: op "fold_proteins" is not implemented/);
  });

  it("prints the report as JSON", async () => {
    const { code, out } = await wick(["verify", mixed, "--json", "--device", "cpu", "--threads", "2"]);
    expect(code).toBe(1);
    const report = JSON.parse(out) as Report;
    expect(Object.keys(report)).toEqual(["device", "passed", "failed", "skipped", "cases"]);
    expect(report).toMatchObject({ device: "cpu", passed: 6, failed: 11, skipped: 0 });
    expect(report.cases).toHaveLength(17);
    expect(report.cases[0]).toEqual({ id: "neg-0", op: "neg", ok: true, maxAbs: 0, maxRel: 0 });
    expect(report.cases[6]).toEqual({
      id: "neg-wrong",
      op: "neg",
      ok: false,
      maxAbs: 9,
      maxRel: 1.5,
      error: expect.stringContaining("element 0"),
    });
  });

  it("--only runs some ops and skips the others", async () => {
    const { code, out } = await wick(["verify", mixed, "--only", "add,sort"]);
    expect(code).toBe(0);
    expect(out).toContain("2 passed, 0 failed, 15 skipped");
  });

  it("--only with an op that has no cases is a wrong call", async () => {
    const { code, err } = await wick(["verify", good, "--only", "neg,tan"]);
    expect(code).toBe(2);
    expect(err).toMatch(/no cases of op "tan".*neg, add, sort/);
  });

  it("an unknown device is a wrong call", async () => {
    const { code, err } = await wick(["verify", good, "--device", "tpu"]);
    expect(code).toBe(2);
    expect(err).toMatch(/unknown device "tpu".*cpu/);
  });

  it("a folder that is not there, or holds something else, is named", async () => {
    const absent = await wick(["verify", at("absent")]);
    expect(absent.code).toBe(1);
    expect(absent.err).toMatch(/cannot read .*absent.cases\.json.*InvalidFile/);
    expect(absent.err).not.toMatch(/\n +at /);
  });
});

describe("verify as a function", () => {
  const cpu = Device.cpu();
  const errorsOf = (report: Report) => Object.fromEntries(report.cases.map((c) => [c.id, c.error]));

  it("says of every failing case what is wrong", async () => {
    const report = await verify(mixed, cpu);
    expect(report.passed).toBe(passing.length);
    const errors = errorsOf(report);
    for (const { id } of passing) expect(errors[id]).toBeUndefined();
    const reasons: Record<string, RegExp> = {
      "neg-wrong": /element 0 is -1, expected 2 \(tolerance/,
      "neg-shape": /shape \[1, 3\], expected \[3, 1\]/,
      "neg-dtype": /dtype f32, expected f64/,
      "neg-nan": /element 0 is -1, expected NaN/,
      "neg-outputs": /1 outputs, expected 2/,
      "neg-input": /neither an input nor a parameter "x"/,
      "neg-tensor": /no tensor "absent"/,
      "neg-view": /unknown view step \["rotate",1\]/,
      "neg-integer": /element 0 is -9007199254740993, expected -9007199254740994/,
      "softmax-parameter": /softmax: a dim is a whole number, not "last"/,
      "unknown-0": /fold_proteins/,
    };
    for (const [id, reason] of Object.entries(reasons)) expect(errors[id]).toMatch(reason);
  });

  it("names an op without cases and a folder that is not there", async () => {
    const without = verify(good, cpu, { only: ["neg", "tan"] });
    await expect(without).rejects.toMatchObject({ code: "InvalidArgument", message: expect.stringMatching(/"tan"/) });
    const absent = verify(at("absent"), cpu);
    await expect(absent).rejects.toMatchObject({ code: "InvalidFile", message: expect.stringMatching(/absent/) });
    const { passed, skipped } = await verify(good, cpu, { only: ["add"] });
    expect([passed, skipped]).toEqual([1, 5]);
  });

  it("leaves no tensor behind", async () => {
    await verify(mixed, cpu);
    const before = cpu.memory().storages;
    await verify(mixed, cpu);
    expect(cpu.memory().storages).toBeLessThanOrEqual(before);
  });

  it("reports progress and can be aborted", async () => {
    const seen: [number, number][] = [];
    await verify(good, cpu, { onProgress: (done, total) => seen.push([done, total]) });
    expect(seen).toEqual([1, 2, 3, 4, 5, 6].map((n) => [n, 6]));
    const aborted = verify(good, cpu, { signal: AbortSignal.abort(new Error("enough")) });
    await expect(aborted).rejects.toThrow("enough");
  });

  it.each([
    ["no JSON", "{", /is not JSON/],
    ["no array", {}, /array of cases/],
    ["a case without op", [{ ...passing[0], op: undefined }], /array of cases/],
    ["an input without tensor", [{ ...passing[0], inputs: { x: {} } }], /array of cases/],
    ["a tolerance of text", [{ ...passing[0], tolerance: { rel: "0", abs: 0 } }], /array of cases/],
  ])("refuses %s", async (name, cases, message) => {
    const bad = await folder(`bad ${name}`, cases);
    await expect(verify(bad, cpu)).rejects.toMatchObject({
      code: "InvalidFile",
      message: expect.stringMatching(message),
    });
  });

  it("compares within the tolerance, equal infinities and NaN included", async () => {
    const edge = await folder("edge", [
      golden("near", "neg", { x: input("x") }, ["negated"], {}, { rel: 0, abs: 0 }),
      golden("far", "affine", { x: input("x") }, ["x"], { mul: 1, add: 0.25 }, { rel: 0, abs: 0.25 }),
      golden("farther", "affine", { x: input("x") }, ["x"], { mul: 1, add: 0.375 }, { rel: 0, abs: 0.25 }),
      golden("nan", "affine", { x: input("nan") }, ["nan"], { mul: 1, add: 0 }),
      golden("relative", "affine", { x: input("x") }, ["x"], { mul: 1.5, add: 0 }, { rel: 0.5, abs: 0 }),
    ]);
    const report = await verify(edge, cpu);
    expect(report.cases.map((c) => [c.id, c.ok])).toEqual([
      ["near", true],
      ["far", true],
      ["farther", false],
      ["nan", true],
      ["relative", true],
    ]);
    expect(report.cases[1]).toMatchObject({ maxAbs: 0.25, maxRel: 0.25 });
  });
});

describe("commands in this process", () => {
  const printed = () => {
    const log = vi.spyOn(console, "log").mockImplementation(() => {});
    return () => log.mock.calls.map((call) => String(call[0])).join("\n");
  };
  const call = (command: ReturnType<typeof verifyCommand>, ...args: string[]) =>
    command
      .exitOverride()
      .configureOutput({ writeErr: () => {} })
      .parseAsync(args, { from: "user" });

  it("verify prints a table and sets the exit code", async () => {
    const text = printed();
    await call(verifyCommand(), good);
    expect(text()).toMatch(/6 passed, 0 failed/);
    expect(process.exitCode).toBeUndefined();
    await call(verifyCommand(), mixed, "--only", "neg,fold_proteins");
    expect(text()).toMatch(/FAILED neg-wrong/);
    expect(process.exitCode).toBe(1);
  });

  it("verify shows its progress on a terminal only", async () => {
    printed();
    const write = vi.spyOn(process.stderr, "write").mockReturnValue(true);
    const { isTTY } = process.stderr;
    try {
      process.stderr.isTTY = true;
      await call(verifyCommand(), good);
      expect(write.mock.calls.map((c) => String(c[0])).join("")).toMatch(/1 of 6 cases.*6 of 6 cases/s);
      write.mockClear();
      await call(verifyCommand(), good, "--json");
      process.stderr.isTTY = false;
      await call(verifyCommand(), good);
      expect(write).not.toHaveBeenCalled();
    } finally {
      process.stderr.isTTY = isTTY;
    }
  });

  it("verify prints JSON and takes a number of threads", async () => {
    const text = printed();
    const { backend } = Device.cpu();
    const { threads } = backend as unknown as { threads: number };
    await call(verifyCommand(), good, "--json", "--threads", "1");
    expect(JSON.parse(text())).toMatchObject({ passed: 6, failed: 0 });
    expect((backend as unknown as { threads: number }).threads).toBe(1);
    Device.cpu({ threads });
    await expect(call(verifyCommand(), good, "--threads", "none")).rejects.toThrow(/whole number/);
  });

  it("devices prints text and JSON", async () => {
    const text = printed();
    await call(devicesCommand());
    expect(text()).toMatch(/^cpu\n +processor/m);
    vi.restoreAllMocks();
    const json = printed();
    await call(devicesCommand(), "--json");
    const { devices } = JSON.parse(json()) as { devices: { name: string }[] };
    expect(devices.find((d) => d.name === "cpu")).toMatchObject({ threads: expect.any(Number) });
  });
});
