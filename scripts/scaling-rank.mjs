// One process of those that scripts/scaling-measured.mjs starts. The first rank prints a line of JSON.
//   mpirun -n N node scripts/scaling-rank.mjs run MODEL     steps of a model that is split over N ranks
//   node scripts/scaling-rank.mjs part MODEL N              steps of the part of one of N ranks, which talks to nobody
//   mpirun -n 2 node scripts/scaling-rank.mjs link          how long bytes take from one rank to another
import { Device } from "../dist/backend/device.js";
import { joinGroup } from "../dist/distributed/group.js";
import "../dist/devices.js";
import { loadModel } from "../dist/models/index.js";
import { Tensor } from "../dist/ops/index.js";

const [what, path, parts = "1"] = process.argv.slice(2);
/** How long each measurement goes on. */
const MEASURED_MS = 1500;
/** Rows of a step, a token that is decoded and a part of a prompt; and how long such steps run before: JavaScript gets faster. */
const WARM_MS = { 1: 2500, 64: 500 };
/** Positions at which decoding begins anew. */
const MOST = 256;

/** A group of one process that computes as if there were others. */
function alone(size) {
  const communicator = {
    ...{ name: "nothing", rank: 0, size },
    moved: { bytes: 0, calls: 0 },
    allReduceInto: (x) => x,
    allGather: (x) => Tensor.stack(new Array(size).fill(x), 0),
  };
  const none = async () => {};
  const exchange = async (value) => [value];
  const own = { rank: 0, size, stages: 1, device: Device.from("cpu"), communicator, tensor: communicator };
  return { ...own, requireSame: none, exchange, [Symbol.asyncDispose]: none };
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
  return Math.max(8, Math.round(milliseconds / each));
}

async function steps(group) {
  const { communicator, device } = group;
  const model = await loadModel(path, { device, dtype: "f32", group: group.size > 1 ? group : undefined });
  const found = {};
  for (const [rows, warm] of Object.entries(WARM_MS).map(([rows, ms]) => [Number(rows), ms])) {
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
    const count = await countOf(group, MEASURED_MS, step);
    const before = communicator.moved;
    const times = timesOf(count, step);
    const after = communicator.moved;
    const per = (field) => (after[field] - before[field]) / times.length;
    found[rows] = { step: median(times), bytes: per("bytes"), calls: per("calls"), steps: times.length };
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

const group =
  what === "part" || !process.env.OMPI_COMM_WORLD_SIZE ? alone(Number(parts)) : await joinGroup({ device: "cpu" });
const all = await group.exchange(what === "link" ? link(group) : await steps(group));
if (group.rank === 0) console.log(JSON.stringify(all));
await group[Symbol.asyncDispose]();
