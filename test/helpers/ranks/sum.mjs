// What ranks have together, once they have met. Usage: node sum.mjs DIST DEVICE
import { pathToFileURL } from "node:url";

const [dist, name] = process.argv.slice(2);
const load = (file) => import(pathToFileURL(`${dist}/${file}`).href);
await load("devices.js");
const { joinGroup } = await load("distributed/group.js");
const { Tensor } = await load("ops/index.js");

const group = await joinGroup({ device: name });
const own = Tensor.from([group.rank + 1, 10], { device: group.device });
const sum = await group.communicator.allReduce(own).toArray();
if (group.rank === 0) console.log(JSON.stringify(sum));
await group[Symbol.asyncDispose]();
