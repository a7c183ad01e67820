// MIOpen as an option, on its stand-in: what it does, what it leaves to Wick and why, and how it is called.
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from "vitest";
import { buildSim } from "../../../../sim/build.mjs";
import type { GpuContext } from "../../../../src/backend/gpu/driver.ts";
import { addressOf, ffiPath, Library } from "../../../../src/backend/gpu/library.ts";
import { openHip } from "../../../../src/backend/gpu/rocm/hip.ts";
import { type MiopenApi, types } from "../../../../src/backend/gpu/rocm/miopen/api.ts";
import { MiopenBackend } from "../../../../src/backend/gpu/rocm/miopen/backend.ts";
import { Miopen } from "../../../../src/backend/gpu/rocm/miopen/miopen.ts";
import type { Route } from "../../../../src/backend/gpu/rocm/miopen/ops.ts";
import { examine } from "../../../../src/doctor/doctor.ts";
import { Device, type DType, type ErrorCode, Tensor, WickError } from "../../../../src/index.ts";
import { batchNorm, leakyRelu, miopen, sdpa } from "../../../../src/nn/index.ts";
import { verify } from "../../../../src/verify/runner.ts";
import { tolerance } from "../../../helpers/reference.ts";

const sim = await buildSim();
const standIn = new Library("MIOpen's stand-in", sim.miopen);
const alive = standIn.func("int wickSimMiopenAlive()");
const lastMessage = standIn.func<string>("const char *wickSimLastMessage()");

function thrown(work: () => unknown): [ErrorCode, string] {
  try {
    work();
  } catch (error) {
    if (error instanceof WickError) return [error.code, error.message];
    throw error;
  }
  throw new Error("nothing was thrown");
}

/** What `run` added to a device's account of who did what. */
function routesOf(device: Device, run: () => unknown): Omit<Route, "times">[] {
  const times = (): Map<string, Route> => new Map(device.miopen!.routes().map((r) => [`${r.op} ${r.why}`, r]));
  const before = times();
  run();
  const grown = [...times().values()].filter((r) => r.times > (before.get(`${r.op} ${r.why}`)?.times ?? 0));
  return grown.map(({ op, by, why }) => ({ op, by, why }));
}

function expectClose(got: Tensor, want: Tensor, dtype: DType, units: number): void {
  expect(got.shape).toEqual(want.shape);
  expect(got.dtype).toBe(want.dtype);
  const [a, b] = [got.dataSync(), want.dataSync()];
  const bound = tolerance(dtype, units);
  for (let i = 0; i < b.length; i++) {
    const [x, y] = [Number(a[i]), Number(b[i])];
    if (Object.is(x, y) || (Number.isNaN(x) && Number.isNaN(y)) || x === y) continue;
    expect(Math.abs(x - y), `[${i}]: ${x}, not ${y}`).toBeLessThanOrEqual(bound * Math.max(1, Math.abs(y)));
  }
}

const { NaN: nan, POSITIVE_INFINITY: inf } = Number;

describe.each(["sim:32", "sim:64"])("MIOpen on %s", (name) => {
  const plain = Device.from(name);
  const device = Device.from(`${name}+miopen`);

  /** Runs on both devices: MIOpen's result is Wick's. */
  function agree(op: string, run: (device: Device) => Tensor, dtype: DType = "f32", units = 8): void {
    const want = run(plain);
    let got: Tensor | undefined;
    const routes = routesOf(device, () => {
      got = run(device);
    });
    expect(routes).toContainEqual({ op, by: "MIOpen", why: "" });
    expectClose(got!, want, dtype, units);
  }
  const random = (shape: number[], dtype: DType = "f32", seed = 1) => ({
    on: (d: Device) => Tensor.randn(shape, { device: d, dtype, seed }),
  });

  test("softmax is Wick's, for any number of dims, layout and value", () => {
    for (const shape of [[7], [3, 5], [2, 3, 33], [2, 3, 4, 300]])
      agree("softmax", (d) => random(shape).on(d).softmax(-1));
    agree("softmax", (d) => random([5, 7]).on(d).softmax(0));
    agree("softmax", (d) => random([4, 6, 9]).on(d).transpose(0, 2).narrow(1, 1, 4).softmax(-1));
    const rows = [
      [1000, 999, -1000],
      [-inf, 0, 1],
      [-inf, -inf, -inf],
      [nan, 0, 1],
      [inf, 0, 1],
      [3e38, -3e38, 0],
    ];
    agree("softmax", (d) => Tensor.from(rows, { device: d }).softmax(-1));
  });

  test("sigmoid, tanh and abs are Wick's, for any layout and value", () => {
    const values = [0, -0, 1, -1, 0.5, 20, -20, 100, -100, 1e-8, inf, -inf, nan];
    for (const op of ["sigmoid", "tanh", "abs"] as const) {
      agree(op, (d) => Tensor.from(values, { device: d })[op]());
      agree(op, (d) => random([3, 5, 7]).on(d).transpose(0, 1).narrow(2, 1, 5)[op]());
    }
  });

  const windows = [
    { x: [2, 3, 9, 8], w: [4, 3, 3, 3], o: {} },
    { x: [1, 4, 7, 7], w: [6, 2, 3, 2], o: { stride: [2, 1], padding: [1, 2], groups: 2 } },
    { x: [2, 3, 11, 9], w: [5, 3, 3, 3], o: { dilation: [2, 3], padding: 3 } },
    { x: [3, 8, 5, 5], w: [6, 8, 1, 1], o: {} },
    { x: [1, 6, 6, 6], w: [6, 1, 3, 3], o: { groups: 6, padding: 1 } },
    { x: [1, 1, 1, 1], w: [1, 1, 1, 1], o: {} },
  ] as const;

  test.each(["f32", "f16", "bf16"] as const)("convolutions in %s are Wick's", (dtype) => {
    for (const { x, w, o } of windows) {
      const [a, b] = [random([...x], dtype), random([...w], dtype, 2)];
      agree("conv2d", (d) => a.on(d).conv2d(b.on(d), o), dtype, dtype === "f32" ? 50 : 4);
    }
    const turned = random([8, 9, 3, 2], dtype);
    const kernel = random([3, 4, 3, 3], dtype, 2);
    const run = (d: Device) => turned.on(d).permute([3, 2, 1, 0]).conv2d(kernel.on(d).transpose(0, 1));
    agree("conv2d", run, dtype, dtype === "f32" ? 50 : 4);
    const [line, taps] = [random([2, 3, 17], dtype), random([4, 3, 5], dtype, 2)];
    agree("conv2d", (d) => line.on(d).conv1d(taps.on(d), { stride: 2 }), dtype, dtype === "f32" ? 50 : 4);
  });

  test.each(["f32", "f16"] as const)("average pooling in %s is Wick's", (dtype) => {
    for (const [kernel, stride] of [
      [2, 2],
      [3, 1],
      [
        [1, 4],
        [2, 3],
      ],
      [[9, 8], 1],
    ] as const)
      agree("avgPool2d", (d) => random([2, 3, 9, 8], dtype).on(d).avgPool2d(kernel, stride), dtype);
    agree("avgPool2d", (d) => random([8, 9, 3, 2], dtype).on(d).permute([3, 2, 1, 0]).avgPool2d(2), dtype);
    agree(
      "avgPool2d",
      (d) => Tensor.from([[[[nan, 1, inf, -inf, 2, 3]]]], { device: d, dtype }).avgPool2d([1, 2]),
      dtype,
    );
  });

  test("attention in f32 is Wick's where MIOpen has it", () => {
    for (const shape of [
      [2, 3, 5, 8],
      [1, 1, 1, 1],
      [1, 2, 33, 7],
      [1, 1, 300, 16],
    ]) {
      const [q, k, v] = [1, 2, 3].map((seed) => random(shape, "f32", seed));
      agree("sdpa", (d) => sdpa(q!.on(d), k!.on(d), v!.on(d)));
      agree("sdpa", (d) => sdpa(q!.on(d), k!.on(d), v!.on(d), { scale: 0.3 }));
    }
    const x = random([2, 5, 3, 8]);
    agree("sdpa", (d) => sdpa(x.on(d).transpose(1, 2), x.on(d).transpose(1, 2), x.on(d).transpose(1, 2)));
  });

  test("golden cases of its operations pass", { timeout: 120_000 }, async () => {
    const only = [
      "softmax",
      "log_softmax",
      "tanh",
      "abs",
      "relu",
      "sigmoid",
      "elu",
      "conv1d",
      "conv2d",
      "avg_pool2d",
      "max_pool2d",
    ];
    const report = await verify(fileURLToPath(new URL("../../../data/golden", import.meta.url)), device, { only });
    expect(report.cases.filter((c) => !c.ok).map((c) => `${c.id}: ${c.error}`)).toEqual([]);
    expect(report.passed).toBe(79);
  });

  const on = (values: ConstructorParameters<typeof Array>[0], dtype: DType = "f32") =>
    Tensor.from(values as number[], { device, dtype });

  test("small cases have the results that are known", () => {
    const softmax = miopen.softmax(on([[0, Math.log(3)]])).dataSync();
    expect([...softmax].map((v) => Number(Number(v).toFixed(6)))).toEqual([0.25, 0.75]);
    const logs = miopen.logSoftmax(on([[0, Math.log(3)]])).dataSync();
    expect([...logs].map((v) => Number(Number(v).toFixed(5)))).toEqual([-1.38629, -0.28768]);
    const image = Tensor.from([1, 2, 3, 4, 5, 6, 7, 8, 9], { device, shape: [1, 1, 3, 3], dtype: "f32" });
    const kernel = Tensor.from([1, 0, 0, -1], { device, shape: [1, 1, 2, 2], dtype: "f32" });
    expect(miopen.conv2d(image, kernel).toArraySync()).toEqual([
      [
        [
          [-4, -4],
          [-4, -4],
        ],
      ],
    ]);
    expect(miopen.avgPool2d(image, 2, 1).toArraySync()).toEqual([
      [
        [
          [3, 4],
          [6, 7],
        ],
      ],
    ]);
    expect(miopen.maxPool2d(image, 2, 1).toArraySync()).toEqual([
      [
        [
          [5, 6],
          [8, 9],
        ],
      ],
    ]);
    const known = { sigmoid: 0.11920292, tanh: -0.9640276, relu: -0, softplus: 0.12692805, abs: 2, clippedRelu: 0 };
    for (const [mode, want] of Object.entries({ ...known, leakyRelu: -0.02, elu: -0.8646647 })) {
      const [got, above] = miopen.activation(on([-2, 9]), mode as "abs").dataSync();
      expect(got, mode).toBeCloseTo(want, 6);
      expect(above).toBeCloseTo(mode === "clippedRelu" ? 6 : mode === "sigmoid" || mode === "tanh" ? 1 : 9, 3);
    }
    expect(miopen.activation(on([-2, 9]), "leakyRelu", 0.5).toArraySync()).toEqual([-1, 9]);
  });

  test("leaky relu and batch norm, which have no place in the backend, are done by name", () => {
    const x = Tensor.randn([2, 3, 4, 5], { device, seed: 1 });
    expectClose(miopen.activation(x, "leakyRelu", 0.1), leakyRelu(x, 0.1), "f32", 4);
    const [mean, weight, bias] = [2, 3, 4].map((seed) => Tensor.randn([3], { device, seed })) as [
      Tensor,
      Tensor,
      Tensor,
    ];
    const variance = Tensor.rand([3], { device, seed: 5 });
    for (const shape of [
      [2, 3, 4, 5],
      [8, 3, 5],
      [40, 3],
    ]) {
      const y = x.reshape([2, 3, 20]).transpose(0, 1).reshape([3, 40]).t().reshape([40, 3]).flattenAll();
      const input = y
        .narrow(
          0,
          0,
          shape.reduce((a, b) => a * b),
        )
        .reshape(shape);
      const want = batchNorm(input, { mean, variance }, weight, bias, 0.01);
      expectClose(miopen.batchNorm(input, { mean, variance }, weight, bias, 0.01), want, "f32", 20);
    }
    expect(thrown(() => miopen.batchNorm(x, { mean, variance }, weight, mean.narrow(0, 0, 2)))[1]).toContain(
      "the bias must have shape [3] for an input of [2, 3, 4, 5], not [2]",
    );
  });

  const cube = Tensor.randn([1, 2, 4, 8], { device, seed: 1 });
  const wide = Tensor.randn([1, 2, 4, 9], { device, seed: 1 });
  const long = Tensor.randn([1, 2, 6, 8], { device, seed: 1 });
  const one = cube.narrow(1, 0, 1);
  const image = (dtype: DType): Tensor => Tensor.ones([1, 1, 4, 4], { device, dtype });
  const refusals: readonly [what: string, run: () => Tensor, op: string, reason: string][] = [
    ["bf16", () => image("bf16").softmax(-1), "softmax", "it takes f32, f16, not bf16"],
    ["f64", () => image("f64").softmax(-1), "softmax", "it takes f32, f16, not f64"],
    ["f8e4m3", () => image("f8e4m3").softmax(-1), "softmax", "it takes f32, f16, not f8e4m3"],
    ["nothing", () => Tensor.zeros([0, 3], { device }).softmax(-1), "softmax", "it takes no empty tensors"],
    ["bf16", () => image("bf16").sigmoid(), "sigmoid", "it takes f32, f16, not bf16"],
    ["integers", () => image("i32").relu(), "relu", "it takes f32, f16, not i32"],
    ["nothing", () => Tensor.zeros([0], { device }).tanh(), "tanh", "it takes no empty tensors"],
    ["f64", () => image("f64").conv2d(image("f64")), "conv2d", "it takes f32, f16, bf16, not f64"],
    ["integers", () => image("u8").conv2d(image("u8")), "conv2d", "it takes f32, f16, bf16, not u8"],
    ["no images", () => image("f32").narrow(0, 0, 0).conv2d(image("f32")), "conv2d", "it takes no empty tensors"],
    ["bf16", () => image("bf16").avgPool2d(2), "avgPool2d", "it takes f32, f16, not bf16"],
    ["f64", () => image("f64").maxPool2d(2), "maxPool2d", "it takes f32, f16, not f64"],
    ["halves", () => sdpa(...three(cube.toDType("f16"))), "sdpa", "it takes f32, not f16"],
    ["a causal mask", () => sdpa(cube, cube, cube, { causal: true }), "sdpa", "its causal mask is accepted and never"],
    ["a mask", () => sdpa(cube, cube, cube, { mask: Tensor.zeros([4, 4], { device }) }), "sdpa", "it subtracts a mask"],
    ["a soft cap", () => sdpa(cube, cube, cube, { softcap: 30 }), "sdpa", "it has no soft cap"],
    ["grouped heads", () => sdpa(cube, one, one), "sdpa", "it wants as many heads of keys as of queries, not 1 for 2"],
    ["more keys", () => sdpa(cube, long, long), "sdpa", "it wants as many keys as queries, not 6 for 4"],
    ["wide values", () => sdpa(cube, cube, wide), "sdpa", "it wants values as wide as keys, not 9 for 8"],
    ["no heads", () => sdpa(...three(cube.narrow(1, 0, 0))), "sdpa", "it takes no empty tensors"],
  ];
  const three = (x: Tensor): [Tensor, Tensor, Tensor] => [x, x, x];

  test.each(refusals)("%s: Wick does what MIOpen cannot, and says why (%#)", (_, run, op, reason) => {
    const routes = routesOf(device, () => run().dispose());
    expect(routes).toContainEqual({ op, by: "Wick", why: expect.stringContaining(reason) });
    const [code, message] = thrown(() => device.miopen!.only(run));
    expect(code).toBe("UnsupportedOp");
    expect(message).toContain(`MIOpen does not do ${op}`);
    expect(message).toContain(reason);
    // A refusal is not in the way of what comes after it.
    agree("softmax", (d) => random([3, 5]).on(d).softmax(-1));
  });

  test("by name: refused with the reason", () => {
    expect(thrown(() => miopen.sdpa(cube, cube, cube, { causal: true }))[1]).toContain("never applied");
    expect(thrown(() => miopen.activation(image("bf16"), "elu"))[0]).toBe("UnsupportedOp");
    const c = Tensor.ones([1], { device, dtype: "f16" });
    const [, message] = thrown(() => miopen.batchNorm(image("f16"), { mean: c, variance: c }, c, c));
    expect(message).toBe(
      "MIOpen does not do batchNorm of f16 [1, 1, 4, 4]: it takes f32, not f16; outside of MIOpen's own calls Wick's kernels do it",
    );
    const row = Tensor.ones([3], { device });
    const empty = row.narrow(0, 0, 0);
    expect(thrown(() => device.miopen!.batchNorm(row, empty, empty, empty, empty, 0))[1]).toContain("not 1 dims");
  });

  test("what it would do otherwise than Wick is left to Wick, unless MIOpen is asked for by name", () => {
    const edge = on([-inf, -1, 2, nan]);
    const cases: readonly [op: string, why: string, run: () => Tensor, wick: number[], theirs: number[]][] = [
      ["relu", "gives NaN for −∞", () => edge.relu(), [0, 0, 2, nan], [nan, -0, 2, nan]],
      ["logSoftmax", "does not spread NaN", () => on([nan, 0]).logSoftmax(-1), [nan, nan], [nan, 0]],
      ["maxPool2d", "drops NaN", () => edge.reshape([1, 1, 1, 4]).maxPool2d([1, 2]), [-1, nan], [-1, 2]],
    ];
    for (const [op, why, run, wick, theirs] of cases) {
      expect(routesOf(device, () => expect([...run().dataSync()], op).toEqual(wick))).toEqual([
        { op, by: "Wick", why: expect.stringContaining(why) },
      ]);
      expect(routesOf(device, () => expect([...device.miopen!.only(run).dataSync()], op).toEqual(theirs))).toEqual([
        { op, by: "MIOpen", why: "" },
      ]);
    }
    const tiny = on([-1e-5]);
    expect(tiny.elu().dataSync()[0]).toBe(Math.fround(Math.expm1(Math.fround(-1e-5))));
    expect(miopen.activation(tiny, "elu").dataSync()[0]).not.toBe(tiny.elu().dataSync()[0]);
    for (const run of [() => image("f16").sigmoid(), () => image("f16").softmax(-1)])
      expect(routesOf(device, run)).toEqual([
        { op: expect.any(String), by: "Wick", why: expect.stringContaining("halves") },
      ]);
  });

  test("limits are answered without doing anything", () => {
    const { limits } = device.miopen!;
    const p = { stride: [1, 1], padding: [0, 0], dilation: [1, 1], groups: 1, size: [1, 1] } as const;
    expect(limits.conv2d(image("f32"), image("f32"), p)).toEqual({ refused: null, differs: null });
    expect(limits.softmax(Tensor.zeros([1], { device }).broadcastAs([2 ** 23, 1])).refused).toContain("24 bits");
    const huge = Tensor.zeros([1], { device }).broadcastAs([2 ** 16, 2 ** 15]);
    expect(limits.softmax(huge).refused).toBe("it counts elements in 31 bits, and there are 2147483648");
    expect(limits.softmax(huge.narrow(0, 0, 2 ** 15)).refused).toBeNull();
  });

  test("leaves no descriptor behind, whatever happened", () => {
    const before = alive();
    for (let i = 0; i < 3; i++) {
      image("f32").softmax(-1);
      image("f32").conv2d(image("f32"));
      image("f32").avgPool2d(2);
      image("f32").tanh();
    }
    expect(alive()).toBe(before);
  });
});

describe("devices", () => {
  test("with MIOpen are devices of their own", () => {
    const device = Device.from("sim+miopen");
    expect(device.name).toBe("sim:32+miopen");
    expect(device).toBe(Device.from("sim:32+miopen"));
    expect(device).not.toBe(Device.from("sim:32"));
    expect(Device.from("sim:32").miopen).toBeNull();
    expect(Device.cpu().miopen).toBeNull();
    expect(device.miopen!.version).toBe("MIOpen 3.3.0");
    expect(device.miopen!.library).toContain("libMIOpen_sim.so");
    const x = Tensor.ones([2], { device });
    expect(thrown(() => x.add(Tensor.ones([2], { device: "sim:32" })))[0]).toBe("DeviceMismatch");
  });

  test("of others have no MIOpen", () => {
    for (const name of ["cuda:0+miopen", "cpu+miopen", "sim:16+miopen", "rocm:0+cudnn"])
      expect(thrown(() => Device.from(name))).toEqual(["UnknownDevice", expect.stringContaining("rocm:0+miopen")]);
    const [code, message] = thrown(() => miopen.softmax(Tensor.ones([2], { device: "sim:32" })));
    expect(code).toBe("UnsupportedOp");
    expect(message).toContain("miopen.softmax: the tensor is on sim:32, which was opened without MIOpen");
  });

  test("with MIOpen are not the doctor's, who says whose they are", async () => {
    await expect(examine({ device: "sim:32+miopen" })).rejects.toMatchObject({
      code: "UnknownDevice",
      message: expect.stringContaining("ask for sim:32;"),
    });
  });

  test("of ROCm are asked for with an option", () => {
    // Without a GPU here the error tells that ROCm was tried; with one, the device has the name.
    try {
      expect(Device.rocm(0, { miopen: true }).name).toBe("rocm:0+miopen");
    } catch (error) {
      expect((error as WickError).code).toMatch(/LibraryNotFound|DeviceUnavailable/);
    }
  });
});

describe("the library", () => {
  const folder = mkdtempSync(join(tmpdir(), "wick-miopen-"));
  afterAll(() => rmSync(folder, { recursive: true, force: true }));
  afterEach(() => vi.unstubAllEnvs());

  const simFolder = dirname(sim.hip);
  const link = [`-L${simFolder}`, "-Wl,--no-as-needed", "-lamdhip64_sim", `-Wl,-rpath,${simFolder}`];
  function build(name: string, ...args: string[]): string {
    const path = join(folder, name);
    const all = ["-x", "c++", "-std=c++17", "-O1", "-fPIC", "-shared", "-o", path, ...args];
    const { status, stderr } = spawnSync(process.env.CXX || "g++", all, { encoding: "utf8" });
    if (status !== 0) throw new Error(stderr);
    return path;
  }
  /** The stand-in, but for what `source` defines itself. */
  function altered(name: string, source: string): string {
    const path = join(folder, `${name}.so`);
    const args = ["-x", "c++", "-fPIC", "-shared", "-o", path, "-", ...link, "-lMIOpen_sim"];
    const { status, stderr } = spawnSync(process.env.CXX || "g++", args, {
      input: `extern "C" ${source}`,
      encoding: "utf8",
    });
    if (status !== 0) throw new Error(stderr);
    return path;
  }
  const open = (miopenLibrary?: string): MiopenApi =>
    openHip({ hipLibrary: sim.hip, ...(miopenLibrary !== undefined && { miopenLibrary }) }).miopen();

  test("that is missing is named with the way out", () => {
    const [code, message] = thrown(() => open(join(folder, "absent.so")));
    expect(code).toBe("LibraryNotFound");
    expect(message).toContain("cannot be loaded as MIOpen");
    vi.stubEnv("WICK_MIOPEN_LIBRARY", folder);
    expect(thrown(() => open())[1]).toContain(`WICK_MIOPEN_LIBRARY=${folder} is a folder without libMIOpen.so`);
    vi.stubEnv("WICK_MIOPEN_LIBRARY", "");
    vi.stubEnv("ROCM_PATH", folder);
    try {
      expect(open().version).toMatch(/^\d+\.\d+/); // where MIOpen is installed
    } catch (error) {
      const text = (error as Error).message;
      for (const part of [
        "MIOpen was not found",
        "libMIOpen.so",
        "miopen-hip",
        "without MIOpen",
        "WICK_MIOPEN_LIBRARY",
      ])
        expect(text).toContain(part);
    }
  });

  test("may be named by the environment", () => {
    vi.stubEnv("WICK_MIOPEN_LIBRARY", sim.miopen);
    expect(open().library).toBe(sim.miopen);
  });

  test("that lacks calls is refused, and the calls are named", () => {
    const [code, message] = thrown(() => open(sim.rocblas));
    expect(code).toBe("LibraryNotFound");
    for (const symbol of ["miopenCreateWithStream", "miopenConvolutionForward", "miopenSoftmaxForward_V2"])
      expect(message).toContain(symbol);
    expect(message).not.toContain("Mha");
  });

  test("of a release without attention leaves attention to Wick", () => {
    const source = fileURLToPath(new URL("../../../../sim/runtime/miopen.cpp", import.meta.url));
    const old = build("libMIOpen_old.so", "-DmiopenCreateMhaProblem=notYet", source, ...link);
    const platform = openHip({ hipLibrary: sim.hip, rocblasLibrary: sim.rocblas, miopenLibrary: old });
    const device = Device.open("sim:old", () => new MiopenBackend("sim:old", platform, 0));
    expect(device.miopen!.limits.softmax(Tensor.ones([2], { device }))).toEqual({ refused: null, differs: null });
    const x = Tensor.randn([1, 2, 3, 8], { device, seed: 1 });
    const why = "MIOpen 3.3.0 has no attention, which came with 3.2";
    expect(routesOf(device, () => sdpa(x, x, x))).toEqual([{ op: "sdpa", by: "Wick", why }]);
    expect(thrown(() => miopen.sdpa(x, x, x))[1]).toContain(why);
    const binding = new Miopen(platform.miopen(), (device.backend as MiopenBackend).context, () => {});
    expect(thrown(() => binding.attention({ q: 0n, k: 0n, v: 0n, y: 0n, dims: [1, 1, 1, 1], scale: 1 }))[1]).toBe(why);
    binding.close();
  });

  test("whose calls fail is told by the call and the status", () => {
    const wanted = (status: number): string => `int miopenCreateWithStream(void**, void*) { return ${status}; }`;
    for (const [status, code, text] of [
      [5, "DriverError", "miopenStatusInternalError (5)"],
      [4, "OutOfMemory", "miopenStatusAllocFailed (4)"],
      [77, "DriverError", "Unknown error status (77)"],
    ] as const) {
      const platform = openHip({ hipLibrary: sim.hip, miopenLibrary: altered(`create${status}`, wanted(status)) });
      const [got, message] = thrown(() => new MiopenBackend("sim:broken", platform, 0));
      expect([got, message]).toEqual([code, expect.stringContaining(`miopenCreateWithStream failed: ${text}`)]);
    }
    const version = altered(
      "version",
      "int miopenGetVersion(unsigned long*, unsigned long*, unsigned long*) { return 7; }",
    );
    expect(thrown(() => open(version))[1]).toContain("miopenGetVersion failed: miopenStatusUnknownError (7)");
  });

  test("that finds no algorithm, or no solution, says so", () => {
    const none = altered(
      "none",
      `int miopenFindConvolutionForwardAlgorithm(void*, void*, void*, void*, void*, void*, void*, void*, int, int* n) { return *n = 0; }
       extern "C" int miopenFindSolutions(void*, void*, void*, void*, unsigned long* n) { return *n = 0; }`,
    );
    const platform = openHip({ hipLibrary: sim.hip, miopenLibrary: none });
    const device = Device.open("sim:none", () => new MiopenBackend("sim:none", platform, 0));
    const before = alive();
    const x = Tensor.ones([1, 2, 4, 4], { device });
    expect(thrown(() => x.conv2d(x))).toEqual([
      "UnsupportedOp",
      expect.stringContaining("no algorithm for a f32 convolution of 1×2×4×4 with 1×2×4×4"),
    ]);
    expect(thrown(() => miopen.sdpa(x, x, x))).toEqual(["UnsupportedOp", expect.stringContaining("1×2×4×4")]);
    expect(alive()).toBe(before);
  });
});

describe("the binding", () => {
  const platform = openHip({ hipLibrary: sim.hip, miopenLibrary: sim.miopen });
  const calls: string[] = [];
  let context: GpuContext;
  let dnn: Miopen;
  const asked: number[] = [];
  let before = 0;

  beforeAll(() => {
    context = platform.driver.open(0);
  });
  afterAll(() => context.close());
  beforeEach(() => {
    calls.length = 0;
    asked.length = 0;
    before = alive();
    const api = platform.miopen();
    const noted = <T extends object>(table: T): T =>
      new Proxy(table, {
        get: (target, name) => {
          calls.push(String(name));
          return Reflect.get(target, name);
        },
      });
    const attention = api.attention && noted(api.attention);
    dnn = new Miopen({ ...api, calls: noted(api.calls), attention }, context, (bytes, run) => {
      asked.push(bytes);
      const at = context.malloc(bytes);
      run(Number(at));
      context.synchronizeSync();
      context.free(at);
    });
  });
  afterEach(() => {
    dnn.close();
    dnn.close();
    expect(alive()).toBe(before);
  });

  const size = { input: [1, 1, 4, 4], kernel: [1, 1, 3, 3], output: [1, 1, 2, 2] } as const;
  const window = { stride: [1, 1], padding: [0, 0], dilation: [1, 1], groups: 1, size: [1, 1] } as const;

  test("searches once per convolution, and gives it the memory that the search asked for", () => {
    const at = context.malloc(256);
    const conv = { dtype: "f32", x: at, w: at, y: at, ...size, ...window } as const;
    dnn.conv2d(conv);
    dnn.conv2d(conv);
    expect(calls.filter((name) => name === "convFind")).toHaveLength(1);
    expect(calls.filter((name) => name === "conv")).toHaveLength(2);
    expect(asked).toEqual([144, 144, 144]); // 9 taps at 4 positions: the search, then each run
    dnn.conv2d({ ...conv, padding: [1, 0], output: [1, 1, 4, 2] });
    expect(calls.filter((name) => name === "convFind")).toHaveLength(2);
    asked.length = 0;
    dnn.conv2d({ ...conv, kernel: [1, 1, 1, 1], output: [1, 1, 4, 4] });
    expect(asked).toEqual([]);
    context.free(at);
  });

  test("solves attention once per problem, and forgets the oldest", () => {
    const at = context.malloc(256);
    const p = { q: at, k: at, v: at, y: at, dims: [1, 1, 2, 4], scale: 1 } as const;
    const started = alive();
    dnn.attention(p);
    dnn.attention(p);
    expect(calls.filter((name) => name === "find")).toHaveLength(1);
    expect(alive()).toBe(started + 1);
    for (let i = 0; i < 300; i++) dnn.attention({ ...p, scale: i + 2 });
    expect(alive()).toBe(started + 256);
    dnn.attention(p);
    expect(calls.filter((name) => name === "find")).toHaveLength(302);
    context.free(at);
  });

  test("works in a graph once the search was made, and not before", () => {
    const bytes = (values: number[]): bigint => {
      const data = new Float32Array(new ArrayBuffer(4 * values.length));
      data.set(values);
      const at = context.malloc(data.byteLength);
      context.copyToDevice(at, addressOf(data), data.byteLength);
      context.synchronizeSync();
      return at;
    };
    const [x, w, y] = [bytes(Array(16).fill(2)), bytes(Array(9).fill(3)), bytes(Array(4).fill(0))];
    const conv = { dtype: "f32", x, w, y, ...size, ...window } as const;
    const read = (): number[] => {
      const into = new Float32Array(new ArrayBuffer(16));
      context.copyToHost(addressOf(into), y, 16);
      context.synchronizeSync();
      return [...into];
    };
    const workspace = context.malloc(4096);
    const graphed = new Miopen(platform.miopen(), context, (_, run) => run(Number(workspace)));
    context.beginCapture();
    expect(thrown(() => graphed.conv2d(conv))[1]).toContain("miopenFindConvolutionForwardAlgorithm failed");
    expect(lastMessage()).toContain("cannot be captured");
    context.destroyGraph(context.endCapture());
    graphed.conv2d(conv);
    context.memset(y, 0, 16);
    context.beginCapture();
    graphed.conv2d(conv);
    const graph = context.endCapture();
    expect(read()).toEqual([0, 0, 0, 0]);
    context.launchGraph(graph);
    expect(read()).toEqual([54, 54, 54, 54]);
    context.destroyGraph(graph);
    graphed.close();
    for (const at of [x, w, y, workspace]) context.free(at);
  });

  test("passes on what MIOpen refuses, with nothing left behind", () => {
    const started = alive();
    const wrong = { dtype: "f32", rows: 1, cols: 4, log: false, x: 0n, y: 0n } as const;
    expect(thrown(() => dnn.softmax(wrong))).toEqual([
      "DriverError",
      expect.stringContaining("miopenSoftmaxForward_V2 failed: miopenStatusBadParm (3)"),
    ]);
    expect(lastMessage()).toContain("softmax, x: the pointer is a null pointer");
    expect(thrown(() => dnn.softmax({ ...wrong, cols: 0 }))[1]).toContain("miopenSet4dTensorDescriptor failed");
    expect(alive()).toBe(started);
  });

  test("ends with its handle", () => {
    dnn.close();
    expect(thrown(() => dnn.activation({ dtype: "f32", activation: "abs", param: 0, numel: 1, x: 0n, y: 0n }))[0]).toBe(
      "Disposed",
    );
  });
});

describe("the stand-in refuses", () => {
  const api = openHip({ hipLibrary: sim.hip, miopenLibrary: sim.miopen }).miopen();
  const { calls } = api;
  const attention = api.attention!;
  let context: GpuContext;
  let handle = 0n;
  let memory = 0n;
  const scalars = new Float32Array(new ArrayBuffer(8)).fill(1, 0, 1);
  const [alpha, beta] = [addressOf(scalars), addressOf(scalars) + 4n];
  const made: [(handle: bigint) => number, bigint][] = [];

  const out = (call: (slot: BigUint64Array) => number): bigint => {
    const slot = new BigUint64Array(1);
    expect(call(slot)).toBe(0);
    return slot[0]!;
  };
  const make = (kind: "tensor" | "activation" | "conv" | "pool"): bigint => {
    const desc = out((slot) => calls[`${kind}Create`](slot));
    made.push([calls[`${kind}Destroy`], desc]);
    return desc;
  };
  const tensor = (type: number, ...dims: number[]): bigint => {
    const desc = make("tensor");
    expect(calls.tensorSet(desc, type, ...dims)).toBe(0);
    return desc;
  };
  const conv = (groups = 1, ...numbers: number[]): bigint => {
    const desc = make("conv");
    expect(calls.convSet(desc, 0, ...(numbers.length ? numbers : [0, 0, 1, 1, 1, 1]))).toBe(0);
    expect(calls.convGroups(desc, groups)).toBe(0);
    return desc;
  };
  beforeAll(() => {
    context = openHip({ hipLibrary: sim.hip }).driver.open(0);
    handle = out((slot) => calls.create(slot, context.stream));
    memory = context.malloc(4096);
  });
  afterEach(() => {
    for (const [destroy, desc] of made.splice(0)) expect(destroy(desc)).toBe(0);
  });
  afterAll(() => {
    expect(calls.destroy(handle)).toBe(0);
    expect(calls.destroy(handle)).toBe(3);
    expect([...scalars]).toEqual([1, 0]); // kept until here, as calls read it by its address
    context.free(memory);
    context.close();
  });

  const bad = (status: number, want: number, says: string): void => {
    expect([status, lastMessage()]).toEqual([want, expect.stringContaining(says)]);
  };
  const softmax = (x: bigint, y: bigint, a = alpha, b = beta, algorithm = 1, mode = 0, to = memory): number =>
    calls.softmax(handle, a, x, memory, b, y, to, algorithm, mode);

  test("descriptors that are dead, unset, of another kind, or impossible", () => {
    const unset = make("tensor");
    bad(softmax(unset, unset), 3, "the tensor descriptor was never set");
    bad(softmax(make("pool"), unset), 3, "is a pooling descriptor, not a tensor descriptor");
    bad(softmax(4096n, unset), 3, "is no live tensor descriptor");
    bad(calls.tensorSet(unset, 4, 1, 1, 1, 1), 3, "4 is no data type");
    bad(calls.tensorSet(unset, types.f32, 1, 0, 1, 1), 3, "a tensor of 1x0x1x1");
    bad(calls.tensorDestroy(make("conv")), 3, "is a convolution descriptor");
    const dead = out((slot) => calls.tensorCreate(slot));
    expect(calls.tensorDestroy(dead)).toBe(0);
    bad(calls.tensorDestroy(dead), 3, "is no live tensor descriptor");
    bad(calls.tensorCreate(0n), 3, "a place for the tensor descriptor is missing");
    const f32 = tensor(types.f32, 1, 4, 1, 1);
    bad(calls.softmax(0n, alpha, f32, memory, beta, f32, memory, 1, 0), 3, "is no live handle");
    bad(calls.create(new BigUint64Array(1), 64n), 3, "");
  });

  test("enums, types and shapes that do not fit", () => {
    const f32 = tensor(types.f32, 2, 4, 1, 1);
    bad(softmax(f32, f32, alpha, beta, 3), 3, "3 is no softmax algorithm");
    bad(softmax(f32, f32, alpha, beta, 1, 2), 3, "2 is no softmax mode");
    bad(softmax(f32, tensor(types.f32, 2, 5, 1, 1)), 3, "softmax: 2x4x1x1 of type 1 to 2x5x1x1 of type 1");
    const bf16 = tensor(types.bf16, 2, 4, 1, 1);
    bad(softmax(bf16, bf16), 6, "softmax does not take data type 5");
    const act = make("activation");
    bad(calls.activation(handle, act, alpha, f32, memory, beta, f32, memory), 3, "activation descriptor was never set");
    bad(calls.activationSet(act, 10, 1, 1, 1), 3, "10 is no activation");
    expect(calls.activationSet(act, 1, 1, 1, 1)).toBe(0);
    bad(calls.activation(handle, act, alpha, bf16, memory, beta, bf16, memory), 6, "activation does not take");
    const other = tensor(types.f32, 1, 1, 1, 1);
    bad(calls.activation(handle, act, alpha, f32, memory, beta, other, memory), 3, "activation: 2x4x1x1");
    const pool = make("pool");
    bad(calls.poolSet(pool, 3, 2, 2, 0, 0, 2, 2), 3, "3 is no pooling mode");
    bad(calls.poolSet(pool, 0, 2, 2, 0, 0, 0, 2), 3, "stride 0x2");
    expect(calls.poolSet(pool, 0, 2, 1, 0, 0, 1, 1)).toBe(0);
    bad(calls.pool(handle, pool, alpha, f32, memory, beta, f32, memory, 0, 0n, 0), 3, "pooling: the output is");
    const image = tensor(types.f32, 1, 1, 2, 1);
    bad(
      calls.pool(handle, pool, alpha, image, memory, beta, image, memory, 0, 0n, 0),
      3,
      "is 1x1x1x1 of type 1, not 1x1x2x1",
    );
    bad(calls.pool(handle, pool, alpha, image, memory, beta, other, memory, 1, 0n, 0), 6, "backward");
    bad(calls.convSet(make("conv"), 4, 0, 0, 1, 1, 1, 1), 3, "4 is no convolution mode");
    bad(calls.convSet(make("conv"), 0, 0, 0, 0, 1, 1, 1), 3, "stride 0x1");
    bad(calls.convGroups(conv(), 0), 3, "0 groups");
    const normalise = (mode: number, channel: bigint): number =>
      calls.batchNorm(handle, mode, alpha, beta, f32, memory, f32, memory, channel, memory, memory, memory, memory, 0);
    bad(normalise(2, other), 3, "2 is no batch norm mode");
    bad(normalise(1, other), 3, "batch norm: 2x4x1x1 of type 1 to 2x4x1x1 of type 1 with 1x1x1x1");
    bad(normalise(1, tensor(types.f16, 1, 4, 1, 1)), 3, "with 1x4x1x1 of type 0");
    expect(normalise(1, tensor(types.f32, 1, 4, 1, 1))).toBe(0);
  });

  test("scales that are missing, of the wrong type, or not 1 and 0", () => {
    const f32 = tensor(types.f32, 2, 4, 1, 1);
    const doubles = new Float64Array(new ArrayBuffer(16)).fill(1, 0, 1);
    bad(
      softmax(f32, f32, addressOf(doubles), addressOf(doubles) + 8n),
      3,
      "alpha is 0 and beta 0, not 1 and 0, read as float",
    );
    bad(softmax(f32, f32, 0n), 3, "alpha or beta is null");
    bad(softmax(f32, f32, alpha, alpha), 3, "alpha is 1 and beta 1");
    expect(softmax(f32, f32)).toBe(0);
  });

  test("memory that is not the device's, or too small", () => {
    const f32 = tensor(types.f32, 2, 4, 1, 1);
    bad(softmax(f32, f32, alpha, beta, 1, 0, memory + 4090n), 3, "softmax, y");
    bad(softmax(f32, f32, alpha, beta, 1, 0, alpha), 3, "no memory of the device");
  });

  test("a convolution without its search, with another's, or with too little workspace", () => {
    const [x, w, y] = [tensor(1, 1, 2, 4, 4), tensor(1, 4, 2, 3, 3), tensor(1, 1, 4, 2, 2)];
    const [found, results, size] = [new Int32Array(1), new DataView(new ArrayBuffer(32)), new BigUint64Array(1)];
    const forward = (desc: bigint, algorithm = 0, bytes = 288, workspace = memory, to = y): number =>
      calls.conv(handle, alpha, x, memory, w, memory, desc, algorithm, beta, to, memory, workspace, bytes);
    const search = (desc: bigint, bytes = 288, workspace = memory, wanted = 2): number =>
      calls.convFind(handle, x, memory, w, memory, desc, y, memory, wanted, found, results, workspace, bytes, 0);
    const desc = conv();
    bad(forward(desc), 7, "no search was made");
    expect(calls.convWorkspace(handle, w, x, desc, y, size)).toBe(0);
    expect(size[0]).toBe(288n);
    bad(calls.convWorkspace(handle, x, w, desc, y, size), 3, "the output is 4x1x0x0");
    bad(search(desc, 287), 3, "287 bytes of workspace, not 288");
    bad(search(desc, 288, 0n), 3, "convolution search, workspace: the pointer is a null pointer");
    bad(search(desc, 288, memory, 0), 3, "no room for results");
    bad(forward(desc), 7, "no search was made");
    expect(search(desc)).toBe(0);
    expect([found[0], results.getInt32(0, true), results.getInt32(16, true)]).toEqual([2, 0, 1]);
    expect(forward(desc)).toBe(0);
    expect(forward(desc, 1, 0, 0n)).toBe(0);
    bad(forward(desc, 3), 7, "did not give algorithm 3");
    bad(forward(desc, 0, 287), 3, "287 bytes of workspace, not 288");
    bad(forward(desc, 0, 288, 0n), 3, "convolution, workspace: the pointer is a null pointer");
    bad(forward(desc, 0, 288, memory, x), 3, "the output is 1x4x2x2 of type 1, not 1x2x4x4");
    bad(forward(conv(2)), 3, "do not fit 2 groups");
    bad(forward(conv(1, 0, 0, 2, 2, 1, 1)), 3, "the output is 1x4x1x1");
    const second = out((slot) => calls.create(slot, context.stream));
    const elsewhere = calls.conv(second, alpha, x, memory, w, memory, desc, 0, beta, y, memory, memory, 288);
    bad(elsewhere, 7, "no search was made");
    expect(calls.destroy(second)).toBe(0);
  });

  test("attention with steps left out or out of order", () => {
    const desc = out((slot) => attention.descCreate(slot));
    const slot = new BigUint64Array(1);
    bad(attention.problemCreate(slot, desc, 0), 3, "the attention descriptor was never set");
    expect(attention.descSet(desc, 0.5)).toBe(0);
    bad(attention.problemCreate(slot, desc, 3), 3, "3 is no direction");
    const problem = out((p) => attention.problemCreate(p, desc, 0));
    const [data, rows] = [tensor(1, 1, 1, 2, 4), tensor(1, 1, 1, 2, 1)];
    const [one, wide] = [tensor(1, 1, 1, 1, 1), tensor(types.i64, 1, 1, 1, 1)];
    const find = (wanted = 1): number => attention.find(handle, problem, 0n, slot, 0n, wanted);
    bad(find(), 2, "tensor 4 has no descriptor");
    bad(attention.problemTensor(problem, 21, data), 3, "attention has no tensor 21");
    for (let id = 4; id <= 20; id++) {
      const kind = [4, 5, 6, 16].includes(id) ? data : id >= 19 ? rows : id === 14 ? one : id === 15 ? wide : one;
      expect(attention.problemTensor(problem, id, kind)).toBe(0);
    }
    bad(attention.problemTensor(problem, 4, data), 3, "tensor 4 has a descriptor already");
    bad(find(), 3, "tensor 14 is 1x1x1x1 of type 1, not 1x1x1x1 of type 9");
    bad(find(0), 3, "no room for solutions");
    expect(attention.problemDestroy(problem)).toBe(0);
    bad(find(), 3, "is no live problem");

    const right = out((p) => attention.problemCreate(p, desc, 0));
    for (let id = 4; id <= 20; id++) {
      const kind = [4, 5, 6, 16].includes(id) ? data : id >= 19 ? rows : id === 14 || id === 15 ? wide : one;
      expect(attention.problemTensor(right, id, kind)).toBe(0);
    }
    const solution = out((s) => attention.find(handle, right, 0n, s, 0n, 1));
    expect(attention.problemDestroy(right)).toBe(0);
    expect(attention.workspace(solution, slot)).toBe(0);
    expect(slot[0]).toBe(48n); // 2 rows of 2 scores and 4 values
    const args = (count: number): DataView => {
      const view = new DataView(new ArrayBuffer(count * 24));
      for (let i = 0; i < count; i++) {
        view.setUint32(i * 24, i + 4, true);
        view.setBigUint64(i * 24 + 16, memory + BigInt(i * 64), true);
      }
      return view;
    };
    const run = (count: number, bytes = 48, workspace = memory + 2048n): number =>
      attention.run(handle, solution, count, args(count), workspace, bytes);
    bad(run(16), 2, "tensor 20 is missing");
    bad(run(18), 3, "attention has no tensor 21");
    bad(run(17, 47), 3, "47 bytes of workspace, not 48");
    bad(run(17, 48, 0n), 3, "attention, workspace: the pointer is a null pointer");
    expect(run(17)).toBe(0);
    expect(attention.solutionDestroy(solution)).toBe(0);
    bad(run(17), 3, "is no live solution");
  });

  test("to keep quiet about what is left at the end of a process", () => {
    const run = (rest: string): string => {
      const source = `
        const library = require(${JSON.stringify(ffiPath())}).load(${JSON.stringify(sim.miopen)});
        const slot = new BigUint64Array(1);
        library.func("int miopenCreateTensorDescriptor(void *out)")(slot);
        ${rest}`;
      const env = { ...process.env, WICK_SIM_LEAKS: "1" };
      return spawnSync(process.execPath, ["-e", source], { encoding: "utf8", env }).stderr;
    };
    expect(run("")).toContain("wick-sim: leaked a MIOpen tensor descriptor");
    expect(run(`library.func("int miopenDestroyTensorDescriptor(void *desc)")(slot[0])`)).toBe("");
  });
});
