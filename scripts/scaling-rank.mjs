// A rank that measures steps of decoding, and the collectives in them: scripts/scaling.mjs --measure starts it by mpirun.
// Usage: mpirun -n N node scripts/scaling-rank.mjs MODEL
import { joinGroup } from "../dist/distributed/group.js";
import "../dist/devices.js";
import { loadModel } from "../dist/models/index.js";
import { Tensor } from "../dist/ops/index.js";

const STEPS = 150;
const group = await joinGroup({ device: "cpu" });
const { communicator, device } = group;
const model = await loadModel(process.argv[2], { device, dtype: "f32", group });
const { hiddenSize, vocabSize, layers } = model.config;

/** Seconds of the fastest runs: what else the machine does makes others slower. */
function fastest(count, run) {
  const times = [];
  for (let i = 0; i < count; i++) {
    const start = performance.now();
    run();
    times.push(performance.now() - start);
  }
  times.sort((a, b) => a - b);
  return times[Math.floor(count / 20)] / 1000;
}

const cache = model.newCache();
for (let i = 0; i < 20; i++) model.logits([i + 3], { cache }).dispose();
const before = communicator.moved;
const step = fastest(STEPS, () => model.logits([7], { cache }).dispose());
const after = communicator.moved;
const row = Tensor.zeros([1, hiddenSize]);
const logits = Tensor.zeros([1, Math.ceil(vocabSize / group.size)]);
const reduce = fastest(2000, () => communicator.allReduceInto(row));
const gather = fastest(500, () => communicator.allGather(logits).dispose());
const result = {
  step,
  reduce,
  gather,
  layers,
  bytesPerToken: (after.bytes - before.bytes) / STEPS,
  callsPerToken: (after.calls - before.calls) / STEPS,
  weightBytes: device.memory().live + (device.memory().mapped ?? 0),
};
const all = await group.exchange(result);
if (group.rank === 0) console.log(JSON.stringify({ ranks: group.size, library: communicator.name, all }));
await group[Symbol.asyncDispose]();
