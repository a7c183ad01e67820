/** Plans for devices that are not here: bytes as they are loaded, times by formulas that can be done by hand. */
import { copyFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, it, vi } from "vitest";
import { planCommand } from "../../src/cli/plan.ts";
import { loadModel } from "../../src/models/index.ts";
import { cardNamed, cards, linkNamed, links } from "../../src/models/placement/cards.ts";
import { allReduceTime, expertsRead, networkAllReduceTime, transferTime } from "../../src/models/placement/estimate.ts";
import { planModel } from "../../src/models/placement/plan.ts";
import { planDevices } from "../../src/models/placement/plan-devices.ts";
import { planSource } from "../../src/models/placement/plan-source.ts";
import { fable, tiny } from "../helpers/model-folders.ts";
import { temporaryFolder } from "../helpers/temporary-folder.ts";

const folder = temporaryFolder();
const llama = (layers: number, hiddenSize: number, intermediate: number, heads: number) => ({
  model_type: "llama",
  vocab_size: 128256,
  hidden_size: hiddenSize,
  intermediate_size: intermediate,
  num_hidden_layers: layers,
  num_attention_heads: heads,
  num_key_value_heads: 8,
  max_position_embeddings: 131072,
  rms_norm_eps: 1e-5,
  torch_dtype: "bfloat16",
});
async function shape(name: string, config: object) {
  const path = folder(`${name}.json`);
  await writeFile(path, JSON.stringify(config));
  return planSource(path);
}

describe("a plan", () => {
  it("counts 405B parameters, says what lies where, and that fewer cards are too few", async () => {
    const source = await shape("405b", llama(126, 16384, 53248, 128));
    const eight = planDevices("8xMI300X");
    const plan = await planModel({ ...source, devices: eight });
    expect(plan.weights / 2).toBeCloseTo(405_853_388_800, -6);
    expect(plan.devices.map(({ layers }) => layers).reduce((a, b) => a + b)).toBe(126);
    expect(plan.devices[0]).toMatchObject({ name: "MI300X:0", embedding: true, head: false });
    expect(plan.cachePerToken).toBe(126 * 2 * 8 * 128 * 2);
    const split = await planModel({ ...source, devices: eight, tensorParallel: 8, sequences: 4 });
    for (const { weights } of split.devices) expect(weights / (plan.weights / 8)).toBeCloseTo(1, 2);
    // One kv head to each rank.
    expect(split.devices[0]!.cache / (4 * plan.cachePerSequence)).toBeCloseTo(1 / 8, 1);
    expect(split.estimate!.step).toBeLessThan(plan.estimate!.step / 4);
    const two = await planModel({ ...source, devices: planDevices("2xMI300X") });
    expect(two).toMatchObject({ fits: false, wouldTake: 4, estimate: null });
    await expect(planModel({ ...source, devices: eight, tensorParallel: 3 })).rejects.toThrow(
      /128 heads cannot be split/,
    );
    await expect(planModel({ ...source, devices: eight, tensorParallel: 16 })).rejects.toThrow(
      /16 ranks need a device/,
    );
  });

  it("has stages of ranks, whose layers lie by the memory that they have", async () => {
    const source = await shape("405b", llama(126, 16384, 53248, 128));
    const sixteen = planDevices("16xMI300X");
    const plan = await planModel({ ...source, devices: sixteen, pipelineParallel: 2, tensorParallel: 8 });
    expect(plan.devices).toHaveLength(16);
    expect(plan.devices[0]).toMatchObject({ first: 0, layers: 63, embedding: true, head: false });
    expect(plan.devices[15]).toMatchObject({ first: 63, layers: 63, embedding: false, head: true });
    for (const { weights } of plan.devices) expect(weights / (plan.weights / 16)).toBeCloseTo(1, 1);
    const across = await planModel({ ...source, devices: sixteen, tensorParallel: 16 });
    expect(plan.estimate!.stepLinks).toBeLessThan(across.estimate!.stepLinks);
    const uneven = planDevices("MI300X+2xH100");
    const staged = await planModel({ ...source, devices: uneven, quantize: "Q4_K", pipelineParallel: 3 });
    const [large, small] = staged.devices.map(({ layers }) => layers) as [number, number];
    expect(large / small).toBeCloseTo(192 / 80, 0);
    const few = await planModel({ ...source, devices: planDevices("2xMI300X"), pipelineParallel: 2 });
    expect(few).toMatchObject({ fits: false, wouldTake: 4 });
    const bad = { ...source, devices: sixteen };
    await expect(planModel({ ...bad, pipelineParallel: 127 })).rejects.toThrow(/126 layers.*1 to 126 stages/);
    await expect(planModel({ ...bad, pipelineParallel: 3, tensorParallel: 8 })).rejects.toThrow(/3 stages of 8 ranks/);
  });

  it("gives the CPU what a card has no room for, and takes quantized matrices as smaller", async () => {
    const source = await shape("70b", llama(80, 8192, 28672, 64));
    const devices = planDevices("RTX4090+cpu,128GB,80GB/s");
    const plan = await planModel({ ...source, devices, quantize: "Q4_K", context: 8192 });
    expect(plan.weights / 2 ** 30).toBeCloseTo((70.55e9 * 144) / 256 / 2 ** 30, 0);
    const [gpu, cpu] = plan.devices as [(typeof plan.devices)[0], (typeof plan.devices)[0]];
    expect([gpu.name, cpu.name, gpu.layers + cpu.layers]).toEqual(["RTX4090", "cpu", 80]);
    expect(gpu.total).toBeLessThan(gpu.memory);
    expect(gpu.total).toBeGreaterThan(0.95 * gpu.memory);
    // Reading what the CPU has at its memory's rate is nearly all of a step.
    expect(plan.estimate!.step).toBeGreaterThan(cpu.weights / 80e9);
  });

  it("is what loading takes", async () => {
    const source = await planSource(fable);
    const devices = planDevices("cpu,8GB,10GB/s");
    const plan = await planModel({ ...source, devices, dtype: "f32", context: 128 });
    using model = await loadModel(fable, { dtype: "f32", context: 128 });
    const [{ weights, cache }] = model.placement as [(typeof model.placement)[0]];
    expect(plan.devices[0]).toMatchObject({ weights, cache });
    await copyFile(join(tiny("mixtral"), "config.json"), folder("mixtral.json"));
    const [byConfig, byFile] = await Promise.all(
      [folder("mixtral.json"), tiny("mixtral")].map(async (path) =>
        planModel({ ...(await planSource(path)), devices, dtype: "f32" }),
      ),
    );
    expect(byConfig!.weights).toBe(byFile!.weights);
  });
});

describe("wick plan", () => {
  it("prints what lies where, or that it does not fit, as text and as JSON", async () => {
    await shape("8b", llama(32, 4096, 14336, 32));
    const lines: string[] = [];
    vi.spyOn(console, "log").mockImplementation((line: string) => void lines.push(line));
    const run = (...args: string[]) => planCommand().parseAsync([folder("8b.json"), ...args], { from: "user" });
    await run("--devices", "2xRTX4090", "--sequences", "4");
    expect(lines[0]).toMatch(
      /weights 15\.0 GiB.*128\.0 KiB of cache per token.*RTX4090:0 {2}0 to 15 .*Estimates.*tokens\/s/s,
    );
    await run("--devices", "RX7600XT", "--dtype", "f32", "--json");
    expect(JSON.parse(lines[1]!)).toMatchObject({
      fits: false,
      wouldTake: 2,
      dtype: "f32",
      devices: [],
      estimate: null,
    });
    expect(process.exitCode).toBe(1);
    process.exitCode = 0;
    vi.restoreAllMocks();
  });
});

describe("devices of a plan", () => {
  it("are cards by name, others by their figures, and links by either", () => {
    expect(planDevices("2xcard,24GB,1TB/s,100TFLOPS,link=400Gb/s")).toMatchObject([
      { name: "card:0", memory: 24 * 2 ** 30, bytesPerSecond: 1e12, flops: 1e14, link: { bytesPerSecond: 50e9 } },
      { name: "card:1" },
    ]);
    expect(planDevices("MI300X,64GB")[0]).toMatchObject({ memory: 64 * 2 ** 30, bytesPerSecond: 5.3e12 });
    expect(cardNamed("NVIDIA GeForce RTX 4090, sm_89")?.name).toBe("RTX4090");
    expect(cardNamed("AMD Radeon RX 7900 XTX, gfx1100")?.name).toBe("RX7900XTX");
    expect(cardNamed("AMD Instinct MI300X, gfx942")?.name).toBe("MI300X");
    expect(linkNamed("50GB/s@12us")).toMatchObject({ bytesPerSecond: 50e9, seconds: 12e-6 });
    for (const card of cards) expect(card.flops / card.bytesPerSecond).toBeGreaterThan(50);
  });

  it.each([
    ["8xfoo", /"foo" is no card that is known/],
    ["MI300X,fast", /"fast" in .* is no figure/],
    ["MI300X,link=wire", /"wire" is no link/],
    ["0xMI300X", /names no devices/],
    ["cpu+cpu", /there is one CPU/],
  ])("cannot be %s", (text, message) => {
    expect(() => planDevices(text)).toThrow(message);
  });
});

describe("times", () => {
  const link = { name: "l", bytesPerSecond: 1e9, seconds: 1e-6 };

  it("of collectives are the faster of a ring and of doubling", () => {
    expect(transferTime(1e6, link)).toBeCloseTo(1.001e-3, 9);
    expect(allReduceTime(8, 8, link)).toBeCloseTo(3 * (1e-6 + 8e-9), 9);
    expect(allReduceTime(8e6, 8, link)).toBeCloseTo(14 * (1e-6 + 1e-3), 9);
    expect(allReduceTime(8e6, 1, link)).toBe(0);
    const network = { inner: links.nvlink4, outer: link, perMachine: 8 };
    expect(networkAllReduceTime(1e6, 16, network)).toBeCloseTo(
      allReduceTime(1e6, 8, links.nvlink4) + allReduceTime(1e6 / 8, 2, link),
      12,
    );
  });

  it("of mixtures count the experts that rows choose", () => {
    expect(expertsRead(8, 2, 1)).toBeCloseTo(2);
    expect(expertsRead(8, 2, 1000)).toBeCloseTo(8);
  });
});
