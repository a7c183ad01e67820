// One library in one process: `node child.mjs <peer> <threads>`. Answers { setup }, { measure } and { release }.
import { setFlagsFromString } from "node:v8";
import { median } from "./median.mjs";

// Node 20 hides relaxed SIMD behind a flag; every library may use it.
if (Number.parseInt(process.versions.node, 10) < 22) setFlagsFromString("--experimental-wasm-relaxed-simd");
// Optimised code from the first call: how soon the engine replaces baseline code depends on what else the machine does.
setFlagsFromString("--no-liftoff");

const WARM_UP_MS = 300;
const [peer, threadsWanted] = process.argv.slice(2);
const ready = import(`./peers/${peer}.mjs`).then(async (adapter) => {
  const threads = await adapter.threads(Number(threadsWanted));
  return { adapter, threads };
});

let task;

/** Runs until `ms` have passed, at least once; returns the time of each run in ms. */
async function sample(ms) {
  const times = [];
  const begin = performance.now();
  let now = begin;
  do {
    const result = task.run();
    if (result instanceof Promise) await result;
    const end = performance.now();
    times.push(end - now);
    now = end;
  } while (now - begin < ms);
  return times;
}

const answers = {
  async hello() {
    const { adapter, threads } = await ready;
    return { version: adapter.version, threads };
  },
  async setup({ op, shapes, params = {} }) {
    const { adapter } = await ready;
    if (!adapter.cases[op]) throw new Error("no such operation");
    task = await adapter.cases[op](shapes, params);
    await sample(WARM_UP_MS);
  },
  async measure({ ms }) {
    return { ms: median(await sample(ms)) };
  },
  async release() {
    await task?.dispose?.();
    task = undefined;
  },
};

process.on("message", async ({ request, ...args }) => {
  try {
    process.send({ value: await answers[request](args) });
  } catch (error) {
    process.send({ error: String(error?.message ?? error).split("\n")[0] });
  }
});
