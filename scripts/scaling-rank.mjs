// Steps of decoding by ranks over MPI, measured and simulated. One of N ranks, with the others:
//   mpirun -n N node scripts/scaling-rank.mjs MODEL
// and what N ranks would take by what the part of one of them takes, alone, and by the latency of a collective:
//   node scripts/scaling-rank.mjs MODEL N LATENCY_US
import { Device } from "../dist/backend/device.js";
import { joinGroup } from "../dist/distributed/group.js";
import "../dist/devices.js";
import { loadModel } from "../dist/models/index.js";
import { Tensor } from "../dist/ops/index.js";

const STEPS = 400;
const [path, parts = "0", latency = "0"] = process.argv.slice(2);
/** Collectives of a step. */
let calls = 0;
const group = Number(parts) > 0 ? alone(Number(parts)) : await joinGroup({ device: "cpu" });
const { communicator, device } = group;
const model = await loadModel(path, { device, dtype: "f32", group });
const { hiddenSize } = model.config;

/** A group of one process that computes as if there were others. */
function alone(size) {
  const communicator = {
    name: "nothing",
    moved: { bytes: 0, calls: 0 },
    allReduceInto(x) {
      calls++;
      return x;
    },
    allGather(x) {
      calls++;
      return Tensor.stack(new Array(size).fill(x), 0);
    },
  };
  const none = async () => {};
  const exchange = async (value) => [value];
  const own = { rank: 0, size, device: Device.from("cpu"), communicator };
  return { ...own, requireSame: none, exchange, [Symbol.asyncDispose]: none };
}

const sorted = (times) => times.toSorted((a, b) => a - b);
const median = (times) => sorted(times)[times.length >> 1];

/** Milliseconds of each run. */
function timesOf(count, run) {
  return Array.from({ length: count }, () => {
    const start = performance.now();
    run();
    return performance.now() - start;
  });
}

const cache = model.newCache();
const step = () => model.logits([7], { cache }).dispose();
for (let i = 0; i < 30; i++) step();
const before = communicator.moved;
const times = timesOf(STEPS, () => {
  calls = 0;
  step();
});
const after = communicator.moved;

const row = Tensor.zeros([1, hiddenSize]);
const logits = Tensor.zeros([1, Math.ceil(model.config.vocabSize / group.size)]);
const { live, mapped = 0 } = Device.from("cpu").memory();
const result = Number(parts)
  ? { alone: sorted(times)[0], simulated: sorted(times)[0] + (calls * Number(latency)) / 1000 }
  : {
      median: median(times),
      // What else the machine does makes others slower.
      fastest: sorted(times)[0],
      gather: 1000 * median(timesOf(500, () => communicator.allGather(logits).dispose())),
      layers: model.config.layers,
      weights: live + mapped,
      reduce: 1000 * median(timesOf(2000, () => communicator.allReduceInto(row))),
      bytesPerToken: (after.bytes - before.bytes) / STEPS,
      callsPerToken: (after.calls - before.calls) / STEPS,
    };
const all = await group.exchange(result);
if (group.rank === 0) console.log(JSON.stringify({ ranks: group.size, library: communicator.name, all }));
await group[Symbol.asyncDispose]();
