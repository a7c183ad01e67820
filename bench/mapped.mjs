// A model that is larger than WebAssembly's memory, on the CPU: writes a Llama of random weights in Q4_K to the temporary
// folder, then loads it and generates in one process, and in two at the same time.
//
//   node bench/mapped.mjs [--gb 6] [--type Q4_K] [--tokens 4] [--folder /tmp] [--keep]
//
// Tells how long the load takes, how fast it generates, and whose memory it is (/proc/self/smaps_rollup, Linux): `own` is
// what a process has written (Private_Dirty), `file` the file's pages that it has in view. Those are the system's, which
// counts them as private to a process (Private_Clean) for as long as no other one has them in view, too; `pss` is a
// process's share of all.
import { spawn } from "node:child_process";
import { existsSync, readFileSync, rmSync, statfsSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const { values: options } = parseArgs({
  options: {
    gb: { type: "string", default: "6" },
    type: { type: "string", default: "Q4_K" },
    tokens: { type: "string", default: "4" },
    folder: { type: "string", default: tmpdir() },
    keep: { type: "boolean", default: false },
    child: { type: "string" },
  },
});
/** In bytes; undefined where the system does not tell. */
function smaps() {
  if (!existsSync("/proc/self/smaps_rollup")) return undefined;
  const text = readFileSync("/proc/self/smaps_rollup", "utf8");
  const figure = (name) => 1024 * Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, "m").exec(text)[1]);
  return {
    rss: figure("Rss"),
    pss: figure("Pss"),
    own: figure("Private_Dirty"),
    onlyHere: figure("Private_Clean"),
    shared: figure("Shared_Clean") + figure("Shared_Dirty"),
  };
}

/** Runs in the process that is measured, which tells its memory again when it is told to go. */
async function run(path) {
  const start = performance.now();
  const { loadModel } = await import("../dist/models/index.js");
  const imported = performance.now();
  const model = await loadModel(path);
  const loaded = performance.now();
  const times = [];
  const tokens = [];
  let last = loaded;
  const prompt = Array.from({ length: 8 }, (_, i) => 10 + i);
  for await (const { token } of model.generate(prompt, { maxTokens: Number(options.tokens), temperature: 0 })) {
    const now = performance.now();
    times.push((now - last) / 1000);
    tokens.push(token);
    last = now;
  }
  const memory = model.device.memory();
  process.send({
    importing: (imported - start) / 1000,
    load: (loaded - imported) / 1000,
    first: times[0],
    each: times.slice(1).reduce((sum, s) => sum + s, 0) / Math.max(1, times.length - 1),
    tokens,
    memory,
    smaps: smaps(),
  });
  await new Promise((resolve) => process.once("message", resolve));
  process.send({ smaps: smaps() });
  await new Promise((resolve) => process.once("message", resolve));
  model[Symbol.dispose]();
  process.exit(0);
}

const answer = (child) =>
  new Promise((resolve, reject) => {
    child.once("message", resolve);
    child.once("exit", (code) => reject(new Error(`the process ended with ${code}`)));
  });

const gb = (n) => `${(n / 1e9).toFixed(2)} GB`;

function tell(title, { rss, pss, own, onlyHere, shared }) {
  console.log(
    `  ${title}: own ${gb(own)}, file ${gb(onlyHere + shared)} (of which no other process has ${gb(onlyHere)}); rss ${gb(rss)}, pss ${gb(pss)}`,
  );
}

if (options.child) {
  await run(options.child);
} else {
  const bytes = Number(options.gb) * 1e9;
  const path = join(options.folder, `wick-bench-mapped-${options.gb}GB.${options.type}.gguf`);
  const { bavail, bsize } = statfsSync(options.folder);
  if (!existsSync(path) && bavail * bsize < 1.1 * bytes) {
    throw new Error(`${options.folder} has ${gb(bavail * bsize)} left, too little for a model of ${gb(bytes)}`);
  }
  const start = performance.now();
  if (!existsSync(path)) {
    const { layersFor, shapes, writeRandomLlama } = await import("./random-llama.mjs");
    // An 8B Llama's layers, as many as it takes.
    const shape = { ...shapes["8B"], vocab: 32000 };
    await writeRandomLlama(path, { ...shape, layers: layersFor(shape, options.type, bytes) }, options.type);
  }
  console.log(`${path}: ${gb(statSync(path).size)}, there after ${((performance.now() - start) / 1000).toFixed(1)} s`);
  const own = fileURLToPath(import.meta.url);
  const child = () =>
    spawn(process.execPath, [own, "--child", path, "--tokens", options.tokens], {
      stdio: ["ignore", "inherit", "inherit", "ipc"],
    });
  try {
    const first = child();
    const one = await answer(first);
    console.log(
      `loaded in ${one.load.toFixed(2)} s (modules ${one.importing.toFixed(2)} s before), first token after ${one.first.toFixed(2)} s, then ${one.each.toFixed(2)} s each: ${one.tokens}`,
    );
    console.log(`  the device: live ${gb(one.memory.live)}, mapped ${gb(one.memory.mapped)}`);
    if (one.smaps) tell("alone", one.smaps);
    const second = child();
    const two = await answer(second);
    console.log(`a second process: loaded in ${two.load.toFixed(2)} s, generates ${two.tokens}`);
    first.send("tell");
    const again = await answer(first);
    if (again.smaps) {
      tell("the first", again.smaps);
      tell("the second", two.smaps);
    }
    second.send("tell");
    await answer(second);
    for (const process of [first, second]) process.send("go");
  } finally {
    if (!options.keep) rmSync(path);
  }
}
