// One process of those that scripts/scaling-measured.mjs starts. The first rank prints a line of JSON.
//   mpirun -n N node scripts/scaling-rank.mjs steps MODEL   steps of a model that is split over N ranks, and the same steps
//                                                           where they say nothing to each other, in turns
//   mpirun -n 2 node scripts/scaling-rank.mjs link          how long bytes take from one rank to another
import { joinGroup } from "../dist/distributed/group.js";
import "../dist/devices.js";
import { loadModel } from "../dist/models/index.js";
import { Tensor } from "../dist/ops/index.js";

const [what, path] = process.argv.slice(2);
/** How long each measurement goes on, in how many turns. */
const MEASURED_MS = 1500;
const TURNS = 10;
/** Rows of a step, a token that is decoded and a part of a prompt; and how long such steps run before: JavaScript gets faster. */
const WARM_MS = { 1: 2000, 64: 500 };
/** Positions at which decoding begins anew. */
const MOST = 256;

/**
 * What ranks share layers by, which can be told to be silent: each then computes as if the others had nothing to say, and the
 * moments at which it would have asked them are noted.
 */
class Switched {
  #by;
  silent = false;
  moments = [];

  constructor(by) {
    this.#by = by;
    Object.assign(this, { rank: by.rank, size: by.size });
  }

  allReduceInto(x) {
    if (!this.silent) return this.#by.allReduceInto(x);
    this.moments.push(performance.now());
    return x;
  }

  allGather(x) {
    if (!this.silent) return this.#by.allGather(x);
    this.moments.push(performance.now());
    return Tensor.stack(new Array(this.size).fill(x), 0);
  }
}

const median = (times) => times.toSorted((a, b) => a - b)[times.length >> 1];

/** Milliseconds of each of `count` runs. */
const timesOf = (count, run) =>
  Array.from({ length: count }, () => {
    const start = performance.now();
    run();
    return performance.now() - start;
  });

/** As many as take so long; all ranks must agree on it. */
async function countOf(group, milliseconds, run) {
  const each = Math.min(...(await group.exchange(median(timesOf(5, run)))));
  return Math.max(4, Math.round(milliseconds / each));
}

/** How long each rank computes before, between and behind what it would say to the others in a step. */
function stretchesOf(tensor, step) {
  const start = performance.now();
  tensor.moments = [];
  step();
  const moments = [start, ...tensor.moments, performance.now()];
  return moments.slice(1).map((moment, i) => moment - moments[i]);
}

/** Each stretch of a step ends with the slowest rank's, as the others wait for it. */
const together = (ranks) =>
  ranks[0].map((step, i) =>
    step.reduce((sum, _, stretch) => sum + Math.max(...ranks.map((own) => own[i][stretch])), 0),
  );

async function steps(group) {
  const { communicator, device } = group;
  const tensor = new Switched(communicator);
  group.tensor = tensor;
  const model = await loadModel(path, { device, dtype: "f32", ...(group.size > 1 && { group }) });
  group.tensor = communicator;
  const found = {};
  for (const [rows, warm] of Object.entries(WARM_MS).map((pair) => pair.map(Number))) {
    const ids = Array.from({ length: rows }, (_, i) => 7 + i);
    let cache = model.newCache();
    const step = () => {
      if (cache.length >= (rows === 1 ? MOST : 1)) {
        cache.dispose();
        cache = model.newCache();
      }
      model.logits(ids, { cache }).dispose();
    };
    timesOf(await countOf(group, warm, step), step);
    const count = await countOf(group, MEASURED_MS / TURNS, step);
    const [times, stretches] = [[], []];
    const before = communicator.moved;
    for (let turn = 0; turn < TURNS; turn++) {
      times.push(...timesOf(count, step));
      tensor.silent = true;
      communicator.barrier();
      for (let i = 0; i < count; i++) stretches.push(stretchesOf(tensor, step));
      communicator.barrier();
      tensor.silent = false;
    }
    const after = communicator.moved;
    const per = (field) => (after[field] - before[field]) / times.length;
    const row = Tensor.zeros([rows, model.config.hiddenSize]);
    found[rows] = {
      step: median(times),
      alone: median(stretches.map((own) => own.reduce((a, b) => a + b))),
      compute: median(together(await group.exchange(stretches))),
      reduce: median(timesOf(1000, () => communicator.allReduceInto(row))),
      bytes: per("bytes"),
      calls: per("calls"),
    };
    cache.dispose();
  }
  const { live, mapped = 0 } = device.memory();
  const { layers, hiddenSize, vocabSize } = model.config;
  return { library: communicator.name, weights: live + mapped, layers, hiddenSize, vocabSize, rows: found };
}

/** Half of the way there and back, in milliseconds, by bytes. */
function link({ rank, communicator }) {
  const found = {};
  // The first is for the host to get into its stride.
  for (const bytes of [1024, 1024, 4096, 16384, 65536, 262144, 1048576]) {
    const x = Tensor.zeros([bytes / 4]);
    const there = () => communicator.send(x, 1 - rank);
    const back = () => communicator.receive(x.shape, "f32", 1 - rank).dispose();
    const [first, second] = rank === 0 ? [there, back] : [back, there];
    const both = () => {
      first();
      second();
    };
    timesOf(500, both);
    found[bytes] = median(timesOf(1000, both)) / 2;
  }
  return found;
}

const group = await joinGroup({ device: "cpu" });
const all = await group.exchange(what === "link" ? link(group) : await steps(group));
if (group.rank === 0) console.log(JSON.stringify(all));
await group[Symbol.asyncDispose]();
