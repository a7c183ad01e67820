import { createServer } from "node:net";
import { afterEach, describe, expect, it } from "vitest";
import { firstNode, ranksHere } from "../../src/distributed/ranks.ts";
import { Rendezvous, requireSame } from "../../src/distributed/rendezvous.ts";

const open: Rendezvous[] = [];
afterEach(async () => {
  for (const meeting of open.splice(0)) await meeting[Symbol.asyncDispose]();
});

const freePort = (): Promise<number> =>
  new Promise((resolve) => {
    const server = createServer();
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address() as { port: number };
      server.close(() => resolve(port));
    });
  });

async function meet(port: number, rank: number, size: number, seconds = 20): Promise<Rendezvous> {
  const meeting = await Rendezvous.open({ rank, size, host: "127.0.0.1", port, job: "a job", seconds });
  open.push(meeting);
  return meeting;
}

async function ranks(size: number): Promise<Rendezvous[]> {
  const port = await freePort();
  return Promise.all(Array.from({ length: size }, (_, rank) => meet(port, rank, size)));
}

const errors = async (all: readonly Promise<unknown>[]) =>
  (await Promise.allSettled(all)).map((one) => (one.status === "rejected" ? one.reason : null));

describe("Ranks", () => {
  it("exchange what each has", async () => {
    const all = await ranks(3);
    const got = await Promise.all(all.map((meeting) => meeting.exchange("numbers", 10 * meeting.rank)));
    expect(got).toEqual([
      [0, 10, 20],
      [0, 10, 20],
      [0, 10, 20],
    ]);
    await Promise.all(all.map((meeting) => requireSame(meeting, "same", "the model", { a: 1 })));
    const differing = await errors(all.map((meeting) => requireSame(meeting, "other", "the model", meeting.rank % 2)));
    for (const error of differing) {
      expect(error).toMatchObject({ code: "RanksDiffer" });
      expect(error.message).toBe("the model must be the same on all ranks: rank 0 has 0, rank 1 has 1");
    }
  });

  it("hear what rank 0 tells them, in order", async () => {
    const [first, second] = (await ranks(2)) as [Rendezvous, Rendezvous];
    for (const value of [1, 2, 3]) first.tell(value);
    const heard: unknown[] = [];
    await second.listen(async (value) => heard.push(value) < 3);
    expect(heard).toEqual([1, 2, 3]);
  });

  it("say who did not come", async () => {
    const port = await freePort();
    const all = await errors([meet(port, 0, 3, 0.7), meet(port, 2, 3, 5)]);
    for (const error of all) expect(error).toMatchObject({ code: "RendezvousFailed" });
    expect(all[0].message).toContain("after 0.7 s rank 1 had not come to 127.0.0.1:");
    expect(all[1].message).toContain("rank 1 had not come");
  });

  it("say that nobody is there", async () => {
    const [error] = await errors([meet(await freePort(), 1, 2, 0.4)]);
    expect(error).toMatchObject({ code: "RendezvousFailed" });
    expect(error.message).toMatch(/rank 0 was not reached at 127\.0\.0\.1:\d+ in 0\.4 s.*ECONNREFUSED/);
  });

  it("refuse another number of ranks, on every rank", async () => {
    const port = await freePort();
    const all = await errors([meet(port, 0, 2), meet(port, 1, 3)]);
    for (const error of all) {
      expect(error).toMatchObject({ code: "RendezvousFailed" });
      expect(error.message).toContain("rank 1 is of 3 ranks, and rank 0 of 2");
    }
  });

  it("end with the words of the one that failed", async () => {
    const all = await ranks(3);
    const waiting = errors([all[0]!, all[2]!].map((meeting) => meeting.exchange("never", 0)));
    all[1]!.fail("failed: its file is damaged");
    for (const error of await waiting) {
      expect(error).toMatchObject({ code: "RankLost" });
      expect(error.message).toContain("rank 1 failed: its file is damaged");
    }
    expect(() => all[0]!.check()).toThrow(/rank 0 cannot go on/);
    expect(all[2]!.signal.aborted).toBe(true);
  });
});

describe("ranksHere", () => {
  const within = (variables: Record<string, string>) => {
    const before = { ...process.env };
    Object.assign(process.env, variables);
    try {
      return ranksHere();
    } finally {
      process.env = before;
    }
  };

  it("reads what whoever started the ranks says", () => {
    expect(ranksHere()).toBeNull();
    expect(within({ OMPI_COMM_WORLD_RANK: "3", OMPI_COMM_WORLD_SIZE: "4" })).toMatchObject({
      ...{ rank: 3, size: 4, localRank: 3, localSize: 4, source: "Open MPI's mpirun", master: null, job: null },
    });
    const torch = { RANK: "1", WORLD_SIZE: "2", LOCAL_RANK: "0", LOCAL_WORLD_SIZE: "1", MASTER_ADDR: "a" };
    const agent = { MASTER_PORT: "29500", TORCHELASTIC_USE_AGENT_STORE: "True", TORCHELASTIC_RUN_ID: "r" };
    expect(within({ ...torch, ...agent })).toMatchObject({
      ...{ rank: 1, size: 2, localRank: 0, localSize: 1, source: "torchrun", job: "r" },
      master: { host: "a", port: 29501 },
    });
    const slurm = { SLURM_PROCID: "5", SLURM_NTASKS: "8", SLURM_LOCALID: "1", SLURM_STEP_TASKS_PER_NODE: "4(x2)" };
    expect(within({ ...slurm, SLURM_STEP_NODELIST: "node[03-04]", SLURM_JOB_ID: "7" })).toMatchObject({
      ...{ rank: 5, localRank: 1, localSize: 4, source: "srun", master: { host: "node03", port: 20007 }, job: "7" },
    });
  });

  it("refuses what is no rank", () => {
    expect(() => within({ WICK_RANK: "2", WICK_WORLD_SIZE: "2" })).toThrow(
      "WICK_RANK=2 must be a whole number from 0 to 1",
    );
    expect(() => within({ RANK: "0", WORLD_SIZE: "2" })).toThrow("MASTER_ADDR");
  });

  it("finds the first machine of a list", () => {
    const lists = ["a", "a,b", "n[03-07,9],x", "gpu-[1,4]-b", "n12.local"];
    expect(lists.map(firstNode)).toEqual(["a", "a", "n03", "gpu-1-b", "n12.local"]);
  });
});
