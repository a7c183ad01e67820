// A rank of a model that is split, beside the same model whole: how far their logits are apart, whether they choose the same
// tokens, and what each rank has read and holds. Rank 0 prints it.
// Usage, under mpirun or `wick launch`: node compare.mjs DIST DEVICE DTYPE STAGES MODEL...
import { pathToFileURL } from "node:url";

const [dist, name, dtype, stages, ...models] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(`${dist}/${file}`).href);
await load("devices.js");
const { joinGroup } = await load("distributed/group.js");
const { loadModel } = await load("models/index.js");

const group = await joinGroup({ device: name, stages: Number(stages), arguments: process.argv.slice(4) });
const { device } = group;

/** Weights that are a file's pages count, too. */
function held() {
  const { live, mapped = 0 } = device.memory();
  return live + mapped;
}

async function outcome(model) {
  const prompt = Array.from({ length: 11 }, (_, i) => (7 * i + 3) % model.config.vocabSize);
  const logits = model.forward(prompt);
  const values = await logits.data();
  logits.dispose();
  const ids = [];
  for await (const { token } of model.generate(prompt, { maxTokens: 12, temperature: 0, ignoreEos: true }))
    ids.push(token);
  return { values, ids };
}

const results = [];
for (const path of models) {
  const before = held();
  const whole = await loadModel(path, { device, dtype });
  const wholeBytes = held() - before;
  const want = await outcome(whole);
  whole.dispose();
  const between = held();
  let read = 0;
  const part = await loadModel(path, { device, dtype, group, onProgress: ({ bytesLoaded }) => (read = bytesLoaded) });
  const bytes = held() - between;
  const got = await outcome(part);
  part.dispose();
  const apart = got.values.reduce((most, x, i) => Math.max(most, Math.abs(x - want.values[i])), 0);
  const ids = JSON.stringify(got.ids) === JSON.stringify(want.ids);
  const all = await group.exchange({ apart, ids, bytes, read, said: got.ids });
  results.push({
    model: path,
    apart: Math.max(...all.map((one) => one.apart)),
    sameIds: all.every((one) => one.ids),
    agree: all.every((one) => JSON.stringify(one.said) === JSON.stringify(all[0].said)),
    wholeBytes,
    bytes: all.map((one) => one.bytes),
    read: all.map((one) => one.read),
  });
}
if (group.rank === 0) console.log(JSON.stringify({ library: group.communicator.name, results }));
await group[Symbol.asyncDispose]();
