// What loading a large model costs: writes a Llama of random weights to the temporary folder, loads it in processes of their own with
// progress, and tells rates, where the time went, and peak memory against the file's size; then loads again and aborts.
//
//   node bench/load.mjs [--device cpu] [--shape 2GB|8B] [--type Q8_0] [--loads 1] [--folder /tmp] [--keep] [--json FILE]
//
// The file has just been written, so it is read from the page cache. Of the seconds of a load, `open` pass before the first
// bytes are there (header, tokenizer, device, kernels that convert), `transfer` until the last ones, `finish` afterwards
// (kernels that are still being compiled). `reading` and `copying` count the pieces that are read from the file and copied
// to the device at the same time, on average; `busy` is the share of the time in which JavaScript runs.
import { spawnSync } from "node:child_process";
import { existsSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const { values: options } = parseArgs({
  options: {
    device: { type: "string", default: "cpu" },
    shape: { type: "string", default: "2GB" },
    type: { type: "string", default: "Q8_0" },
    loads: { type: "string", default: "1" },
    folder: { type: "string", default: tmpdir() },
    keep: { type: "boolean", default: false },
    json: { type: "string" },
    child: { type: "string" },
    file: { type: "string" },
  },
});
/** Counts the time that transfers spend in reading, and in waiting for the device. */
function watch(backend) {
  const own = backend.receive;
  const times = { reading: 0, copying: 0 };
  backend.receive = async (dst, at, bytes, read) => {
    const start = performance.now();
    let between = start;
    await own.call(backend, dst, at, bytes, async (out) => {
      await read(out);
      between = performance.now();
    });
    times.reading += between - start;
    times.copying += performance.now() - between;
  };
  return times;
}

/** Runs in the process that is measured. */
async function load(path, abort) {
  const { Device } = await import("../dist/index.js");
  const { loadModel } = await import("../dist/models/index.js");
  const before = process.memoryUsage.rss();
  const controller = new AbortController();
  let calls = 0;
  let last = 0;
  let [first, latest] = [0, 0];
  const start = performance.now();
  const since = (at) => (performance.now() - at) / 1000;
  const { backend } = Device.from(options.device);
  const device = since(start);
  const times = watch(backend);
  const loop = performance.eventLoopUtilization();
  const finish = (extra) => {
    const peak = process.resourceUsage().maxRSS * 1024;
    const seconds = since(start);
    const transfer = (latest - first) / 1000;
    const split = {
      device,
      open: (first - start) / 1000,
      transfer,
      finish: since(latest),
      reading: times.reading / 1000 / transfer,
      copying: times.copying / 1000 / transfer,
      busy: performance.eventLoopUtilization(loop).utilization,
    };
    console.log(JSON.stringify({ seconds, split, before, peak, calls, ...extra }));
  };
  try {
    const model = await loadModel(path, {
      device: options.device,
      signal: controller.signal,
      onProgress: ({ bytesLoaded, bytesTotal }) => {
        latest = performance.now();
        if (calls++ === 0) first = latest;
        if (bytesLoaded < last) throw new Error("the progress went back");
        last = bytesLoaded;
        if (abort && bytesLoaded > bytesTotal / 3) controller.abort(new Error("stopped by the caller"));
      },
    });
    finish({ loaded: last, result: "loaded" });
    model[Symbol.dispose]();
  } catch (error) {
    finish({ loaded: last, result: error.message });
  }
}

const gb = (n) => `${(n / 1e9).toFixed(2)} GB`;
const seconds = (n) => `${n.toFixed(2)} s`;

/** One load in a process of its own. */
function measure(kind, path, bytes) {
  const own = fileURLToPath(import.meta.url);
  const args = [own, "--child", kind, "--file", path, "--device", options.device];
  const { stdout, stderr } = spawnSync(process.execPath, args, { encoding: "utf8" });
  if (stderr) process.stderr.write(stderr);
  const row = JSON.parse(stdout);
  const { split, calls, loaded, peak, before, result } = row;
  console.log(
    `${kind}: ${seconds(row.seconds)} (${(loaded / row.seconds / 1e9).toFixed(2)} GB/s): open ${seconds(split.open)} (the device ${seconds(split.device)}), transfer ${seconds(split.transfer)} (${(loaded / split.transfer / 1e9).toFixed(2)} GB/s; reading ${split.reading.toFixed(1)}, copying ${split.copying.toFixed(1)}, busy ${split.busy.toFixed(2)}), finish ${seconds(split.finish)}`,
  );
  console.log(
    `      ${calls} progress calls up to ${gb(loaded)}, peak ${gb(peak)} (${(peak / bytes).toFixed(3)} of the file; ${gb(before)} before): ${result}`,
  );
  return { kind, gbPerSecond: loaded / row.seconds / 1e9, ...row };
}

if (options.child) {
  await load(options.file, options.child === "abort");
} else {
  const { shapes, writeRandomLlama } = await import("./random-llama.mjs");
  const { shape, type } = options;
  const path = join(options.folder, `wick-bench-load-${shape}.${type}.gguf`);
  const start = performance.now();
  if (!existsSync(path)) await writeRandomLlama(path, shapes[shape], type);
  const bytes = statSync(path).size;
  console.log(
    `${path}: ${gb(bytes)}, written in ${seconds((performance.now() - start) / 1000)}; loading on ${options.device}`,
  );
  const kinds = [...new Array(Number(options.loads)).fill("load"), "abort"];
  const rows = kinds.map((kind) => measure(kind, path, bytes));
  if (!options.keep) rmSync(path);
  if (options.json) {
    const result = { bench: "load", device: options.device, shape, type, bytes, rows };
    writeFileSync(options.json, `${JSON.stringify(result, null, 2)}\n`);
  }
}
