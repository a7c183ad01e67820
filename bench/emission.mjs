// What machine code costs a new process of the CPU device, until all of it, or what a model needs, can be called:
//
//   node bench/emission.mjs [--processes 21] [--dist dist]
//
// Medians over new processes, in turns: `read`, every kernel of the machine's instructions from the build; `emitted`, the same
// kernels by their generators, as where the build has none; `one of each`, the kernels for floats alone, without the variants
// of maps, norms and attention, emitted. `processor` is that of the whole process, V8's compiling threads included.
import { spawnSync } from "node:child_process";
import { resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const { values: options } = parseArgs({
  options: {
    processes: { type: "string", default: "21" },
    dist: { type: "string", default: fileURLToPath(new URL("../dist", import.meta.url)) },
    child: { type: "string" },
  },
});
const median = (list) => list.toSorted((a, b) => a - b)[list.length >> 1];

/** Variants that nothing but another one of the same kernel is like. */
const isOneOfEach = ({ name }) =>
  !name.startsWith("quantized") &&
  !name.startsWith("round") &&
  !name.startsWith("turning") &&
  !name.endsWith(" rows") &&
  (!name.startsWith("norm") || name.endsWith(" 010")) &&
  (!name.startsWith("attention") || name.endsWith("000"));

async function measure(what) {
  const from = (file) => import(resolve(options.dist, "backend/cpu/native", file));
  const [{ everyKernel }, { emit }, { executable }, { findNative }] = await Promise.all(
    ["catalogue.js", "stored.js", "memory.js", "native.js"].map(from),
  );
  const native = findNative();
  if (!native) throw new Error("this machine, or WICK_CPU, has no machine code");
  const { isa } = native;
  const all = [...everyKernel(isa)].filter((kernel) => what !== "one of each" || isOneOfEach(kernel));
  // What V8 compiles on other threads since the list was made belongs to no kernel.
  await new Promise((done) => setTimeout(done, 100));
  const [clock, processor] = [performance.now(), process.cpuUsage()];
  let bytes = 0;
  for (const kernel of all) {
    if (what === "read") native.kernel(kernel);
    else {
      const code = emit(kernel, isa);
      executable(code);
      bytes += code.length;
    }
  }
  const ms = performance.now() - clock;
  const { user, system } = process.cpuUsage(processor);
  return { isa: isa.name, kernels: all.length, bytes, clock: ms, processor: (user + system) / 1000 };
}

if (options.child) console.log(JSON.stringify(await measure(options.child)));
else {
  const found = { read: [], emitted: [], "one of each": [] };
  for (let i = 0; i < Number(options.processes); i++) {
    for (const [what, list] of Object.entries(found)) {
      const args = [fileURLToPath(import.meta.url), "--dist", options.dist, "--child", what];
      const { stdout, stderr, status } = spawnSync(process.execPath, args, { encoding: "utf8" });
      if (status !== 0) throw new Error(stderr);
      list.push(JSON.parse(stdout));
    }
  }
  const table = Object.entries(found).map(([what, list]) => [
    what,
    {
      kernels: list[0].kernels,
      MB: list[0].bytes ? +(list[0].bytes / 1e6).toFixed(2) : "",
      "clock ms": +median(list.map(({ clock }) => clock)).toFixed(1),
      "processor ms": +median(list.map(({ processor }) => processor)).toFixed(1),
    },
  ]);
  console.log(`${found.read[0].isa}, medians of ${options.processes} processes`);
  console.table(Object.fromEntries(table));
}
