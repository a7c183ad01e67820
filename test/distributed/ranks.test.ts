import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { loadModel } from "../../src/models/index.ts";
import { deviceNames } from "../helpers/devices.ts";
import { fable } from "../helpers/model-folders.ts";
import { builtForRanks, byMpi, mpiruns, type Outcome, program, runRanks, tiny } from "../helpers/ranks/run.ts";
import { startServe } from "../helpers/wick-serve.ts";

interface Compared {
  readonly model: string;
  readonly apart: number;
  readonly sameIds: boolean;
  readonly wholeBytes: number;
  readonly bytes: readonly number[];
  readonly read: readonly number[];
}

/** A port below those that systems hand out, and so rarely in use. */
const port = 30_000 + (process.pid % 2000);
const variables = {
  torchrun: (rank: number) => ({
    ...{ RANK: `${rank}`, WORLD_SIZE: "2", LOCAL_RANK: `${rank}`, LOCAL_WORLD_SIZE: "2" },
    ...{ MASTER_ADDR: "127.0.0.1", MASTER_PORT: `${port}`, TORCHELASTIC_RUN_ID: "a run" },
  }),
  srun: (rank: number) => ({
    ...{ SLURM_PROCID: `${rank}`, SLURM_NTASKS: "2", SLURM_LOCALID: `${rank}`, SLURM_STEP_TASKS_PER_NODE: "2" },
    ...{ SLURM_STEP_NODELIST: "127.0.0.1", SLURM_JOB_ID: `${port - 20_000 + 2000}` },
  }),
};

let built: Awaited<ReturnType<typeof builtForRanks>>;
beforeAll(async () => {
  built = await builtForRanks();
}, 60_000);
afterAll(() => built[Symbol.dispose]());

const launch = (ranks: number): string[] => [
  ...[process.execPath, built.cli, "launch", "-n", `${ranks}`, "--by", "processes"],
  process.execPath,
];

async function compared(
  start: readonly string[],
  device: string,
  models: readonly string[],
  stages = 1,
): Promise<Compared[]> {
  const args = [program("compare.mjs"), built.dist, device, "f32", `${stages}`, ...models];
  const { stdout, stderr } = await runRanks(start, args);
  expect(stdout, stderr).toContain("results");
  return (JSON.parse(stdout) as { results: Compared[] }).results;
}

function expectSame(results: readonly Compared[], ranks: number): void {
  for (const { model, apart, sameIds, wholeBytes, bytes, read } of results) {
    expect(apart, model).toBeLessThan(1e-3);
    expect(sameIds, model).toBe(true);
    expect(bytes).toHaveLength(ranks);
    // Norms, routers, vectors of positions and what makes latents are whole on every rank, and some kv heads are on several.
    for (const own of [...bytes, ...read]) expect(own / wholeBytes, model).toBeLessThan(1 / ranks + 0.125);
  }
}

/** With Open MPI at two ranks, with MPICH at four, which are more than there are kv heads. */
const architectures = {
  2: ["llama", "qwen3", "gemma2", "mixtral", "deepseek_v2", "gpt_oss", "gpt2"].map(tiny),
  4: ["olmo2", "deepseek_v2"].map(tiny),
};

describe.skipIf(mpiruns.length === 0)("a model over several processes, by MPI", () => {
  it.each(mpiruns)("says the same as whole, by %s", async (mpirun) => {
    const ranks = mpirun.endsWith("mpich") ? 4 : 2;
    expectSame(await compared(byMpi(mpirun, ranks), "cpu", architectures[ranks]), ranks);
  });

  it("serves several requests at once, as whole, and ends with the server", async () => {
    const prompts = ["Once upon a time", "The fox", "A crow sat in a tree and"];
    await using server = await startServe(built.cli, [fable, "--tensor-parallel", "2"], ["launch", "-n", "2"]);
    const answer = async (prompt: string): Promise<string> => {
      const body = JSON.stringify({ model: "fable-7m", prompt, max_tokens: 12, temperature: 0 });
      const headers = { "content-type": "application/json" };
      const response = await fetch(`${server.address}/v1/completions`, { method: "POST", headers, body });
      return ((await response.json()) as { choices: { text: string }[] }).choices[0]!.text;
    };
    const answers = await Promise.all(prompts.map(answer));
    using model = await loadModel(fable, { device: "cpu" });
    for (const [i, prompt] of prompts.entries()) {
      let text = "";
      for await (const piece of model.generate(prompt, { maxTokens: 12, temperature: 0 })) text += piece.text;
      expect(answers[i]).toBe(text);
    }
    // Pipes are closed once nobody has them any more.
    const closed = once(server.child, "close");
    await server.stop();
    await closed;
    expect(server.log()).toContain('"event":"ended"');
  });

  it("verifies at rank 0, which alone prints", async () => {
    // Two stages of two ranks each.
    const split = ["--pipeline-parallel", "2", "--tensor-parallel", "2"];
    const command = [built.cli, "verify", tiny("gemma2"), "--device", "cpu", ...split, "--json"];
    const { code, stdout } = await runRanks(byMpi(mpiruns[0]!, 4), command);
    expect(JSON.parse(stdout)).toMatchObject({ device: "cpu", passed: 4, failed: 0 });
    expect(code).toBe(0);
  });

  it("says on every rank which counts work", async () => {
    const command = [built.cli, "verify", tiny("llama"), "--tensor-parallel", "3"];
    const { code, stderr } = await runRanks(byMpi(mpiruns[0]!, 3), command);
    expect(code).not.toBe(0);
    expect(stderr.match(/4 heads cannot be split over 3 ranks; 1, 2, 4 ranks can \[CannotShard\]/g)).toHaveLength(3);
  });

  it("ends where a rank is killed", async () => {
    const faults = fileURLToPath(new URL("../../scripts/rank-faults.mjs", import.meta.url));
    const options = [
      "--times",
      "1",
      "--ranks",
      "2",
      "--most",
      "2500",
      "--by",
      mpiruns[0]!,
      "--cli",
      built.cli,
      "--json",
    ];
    const { stdout, stderr } = await runRanks([process.execPath, faults], options);
    expect(JSON.parse(stdout), stderr).toMatchObject({ rounds: 1, failed: [] });
  });

  it("collects and adds up", async () => {
    const { stdout, stderr } = await runRanks(byMpi(mpiruns[0]!, 3), [program("collectives.mjs"), built.dist, "cpu"]);
    expect(stdout, stderr).toContain("library");
    expectCollectives(JSON.parse(stdout), 3);
  });
});

describe.skipIf(!deviceNames.includes("sim:32"))("a model over several processes, by RCCL's stand-in", () => {
  it("says the same as whole", async () => {
    expectSame(await compared(launch(2), "sim:32", [tiny("llama")]), 2);
  });

  it("says the same in stages", async () => {
    expectSame(await compared(launch(2), "sim:32", [tiny("llama")], 2), 2);
  });

  it.each(["torchrun", "srun"] as const)("meets by %s's variables", async (by) => {
    const args = [program("sum.mjs"), built.dist, "sim:32"];
    const both = [0, 1].map((rank) => runRanks([process.execPath], args, variables[by](rank)));
    const [first, second] = (await Promise.all(both)) as [Outcome, Outcome];
    expect([first.stdout.trim(), second.stdout, first.stderr, second.stderr]).toEqual(["[3,20]", "", "", ""]);
  });

  it("collects, adds up and is recorded", async () => {
    const { stdout, stderr } = await runRanks(launch(4), [program("collectives.mjs"), built.dist, "sim:32"]);
    expect(stdout, stderr).toContain("library");
    const outcome = JSON.parse(stdout);
    expectCollectives(outcome, 4);
    expect(outcome.refusals).toEqual(new Array(4).fill("CollectiveFailed"));
  });
});

function expectCollectives({ all }: { all: Record<string, number[]>[] }, ranks: number): void {
  const sum = (ranks * (ranks + 1)) / 2;
  for (const [rank, got] of all.entries()) {
    for (const dtype of ["f32", "bf16", "f16", "i64", "u8"])
      expect(got[`sum ${dtype}`], dtype).toEqual([sum, 10 * sum]);
    expect(got.max).toEqual([ranks, 10 * ranks]);
    expect(got.min).toEqual([1, 10]);
    expect(got.gather).toEqual(Array.from({ length: ranks }, (_, i) => [i + 1, 10 * (i + 1)]).flat());
    expect(got.scatter).toEqual([ranks * 2 * rank, ranks * (2 * rank + 1)]);
    expect(got.broadcast).toEqual([ranks, 10 * ranks]);
    if (rank === 1) expect(got.received).toEqual([1, 10]);
    const before = (rank + ranks - 1) % ranks;
    expect(got.ring).toEqual([before + 1, 10 * (before + 1)]);
    for (const dtype of ["bf16", "u8"]) expect(got[`itself ${dtype}`]).toEqual([rank + 1, 10 * (rank + 1)]);
    expect(got.long).toEqual([sum]);
    expect(got.recorded).toEqual([2 * ranks * 6, 2 * ranks * 7]);
  }
}
