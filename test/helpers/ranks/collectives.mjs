// What every collective gives, and what is refused. Usage: node collectives.mjs DIST DEVICE
import { pathToFileURL } from "node:url";

const [dist, name] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(`${dist}/${file}`).href);
await load("devices.js");
const { joinGroup } = await load("distributed/group.js");
const { Tensor } = await load("ops/index.js");

const group = await joinGroup({ device: name });
const { rank, size, device, communicator } = group;
const got = {};
const keep = async (what, tensor) => (got[what] = (await tensor.toArray()).flat(3).map(Number));
const own = Tensor.from([rank + 1, 10 * (rank + 1)], { device });
for (const dtype of ["f32", "bf16", "f16", "i64", "u8"])
  await keep(`sum ${dtype}`, communicator.allReduce(own.toDType(dtype)));
await keep("max", communicator.allReduce(own, "max"));
await keep("min", communicator.allReduce(own, "min"));
await keep("gather", communicator.allGather(own));
await keep("scatter", communicator.reduceScatter(Tensor.arange(0, 2 * size, { device }).reshape([size, 2])));
await keep("broadcast", communicator.broadcast(own, size - 1));
if (rank === 0) communicator.send(own, 1);
if (rank === 1) await keep("received", communicator.receive([2], "f32", 0));
const around = (by) => (rank + by + size) % size;
await keep("ring", communicator.sendReceive(own, around(1), around(-1)));
for (const dtype of ["bf16", "u8"])
  await keep(`itself ${dtype}`, communicator.sendReceive(own.toDType(dtype), rank, rank));
// More than one piece of what a library moves at once.
const long = communicator.allReduce(Tensor.full([300_001], rank + 1, { device }));
await keep("long", long.narrow(0, 300_000, 1));
communicator.barrier();
const { recorder } = device.backend;
if (recorder) {
  const [input, out] = [own.copy().keep(), Tensor.zeros([2], { device }).keep()];
  const graph = recorder.capture(() => {
    const sum = communicator.allReduceInto(input.add(1));
    const ring = communicator.sendReceive(sum, around(1), around(-1));
    out.sliceSet(ring.mul(2), 0, 0);
  });
  input.sliceSet(Tensor.from([5, 6], { device }), 0, 0);
  // What others do with the CPU's memory is tried to be recorded, and then done anew each time.
  for (let i = 0; i < (communicator.recordable ? 1 : 5); i++) graph.replay();
  await keep("recorded", out);
}
const all = await group.exchange(got);
let refused = null;
if (communicator.recordable) {
  // Ranks whose calls differ are told so.
  try {
    communicator.allReduce(Tensor.zeros([4 + rank], { device }));
    await device.backend.synchronize();
    communicator.barrier();
  } catch (error) {
    refused = error.code;
  }
}
const refusals = await group.exchange(refused);
if (rank === 0) console.log(JSON.stringify({ library: communicator.name, all, refusals }));
process.exit(0);
