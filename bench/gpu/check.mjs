// What a card is asked after a change, in one command: first whether results are right, many checks side by side, then how fast they
// come, one measurement after another and beside the peers that are there (the vendor's library, PyTorch).
//
//   node bench/gpu/check.mjs DEVICE [--only right,gemm,tiny/llama,…] [--seconds 3600] [--out FOLDER]
//
// Prints a line for each step and what is wrong; all that the steps printed is in FOLDER (right.log, fast.log and *.json). Exits 1 where
// something is wrong or did not end. Where time is short, measurements that would not end are left out, and said so.
import { spawn, spawnSync } from "node:child_process";
import { appendFileSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const args = process.argv.slice(2);
const option = (name, otherwise) => (args.includes(name) ? args[args.indexOf(name) + 1] : otherwise);
const device = args[0]?.startsWith("--") ? "cuda:0" : (args[0] ?? "cuda:0");
const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const out = resolve(option("--out", join(tmpdir(), "wick-check")));
const only = option("--only")?.split(",");
const began = performance.now();
const seconds = () => Math.round((performance.now() - began) / 1000);
const total = Number(option("--seconds", 3600));

const runs = (command, ...words) => spawnSync(command, words).status === 0;
const hasTorch = runs("python3", "-c", "import torch; assert torch.cuda.is_available()");
const hasSanitizer = device.startsWith("cuda") && runs("compute-sanitizer", "--version");

const bench = (name, ...rest) => [process.execPath, here(name), device, ...rest];
const wick = (command, ...rest) => [
  process.execPath,
  here("../../dist/cli/main.js"),
  command,
  ...rest,
  "--device",
  device,
];
const json = (name) => ["--json", join(out, `${name}.json`)];
const data = (path) => here(`../../test/data/${path}`);
const memcheck = (command) => ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", ...command];
const large = (type) => join(tmpdir(), `wick-bench-load-8B.${type}.gguf`);
const load = (type, loads) => [
  ...[process.execPath, here("../load.mjs"), "--device", device],
  ...["--shape", "8B", "--type", type, "--keep", "--loads", String(loads)],
];

/** Each a command that exits with something else than 0 where a result is wrong. */
const right = {
  golden: wick("verify", data("golden")),
  "golden, no library": { command: wick("verify", data("golden")), env: { WICK_BLAS: "none" } },
  ...Object.fromEntries(
    ["fable-7m", ...readdirSync(data("models/tiny")).map((name) => `tiny/${name}`)].map((name) => [
      name,
      wick("verify", data(`models/${name}`)),
    ]),
  ),
  products: bench("random-products.mjs", "--runs", "600", "--seconds", "120"),
  layers: bench("random-layers.mjs", "--runs", "400", "--seconds", "120"),
  nn: bench("random-nn.mjs", "--runs", "400", "--seconds", "120"),
  ...Object.fromEntries(
    ["dense,Q8_0,Q4_0", "Q4_K,Q6_K,Q5_K", "Q2_K,Q3_K", "IQ4_NL,IQ4_XS,MXFP4", "Q4_1,Q5_0,Q5_1", "Q8_K,Q8_1"].map(
      (types) => [`accuracy ${types}`, bench("accuracy.mjs", "--only", types)],
    ),
  ),
  ...(hasSanitizer && {
    "memcheck products": memcheck(bench("random-products.mjs", "--runs", "30", "--seconds", "120", "--seed", "1000")),
    "memcheck layers": memcheck(bench("random-layers.mjs", "--runs", "30", "--seconds", "120", "--seed", "1000")),
    "memcheck rope, sdpa, convolutions": memcheck(
      wick("verify", data("golden"), "--only", "matmul,rope,rope_i,rope_thd,conv1d,conv2d,sdpa"),
    ),
  }),
};

const batches = (type) => [
  load(type, 3),
  wick("bench", "--model", large(type), "--batch", "1,2,4,8,9,16,32,64", "--tokens", "64", "--runs", "3"),
  wick("bench", "--model", large(type), "--prompt-tokens", "1024", "--tokens", "2", "--runs", "8"),
];
/** Peers take turns with Wick, whose clock is then as low or as high. */
const turns = (count, commands) => Array.from({ length: count }, () => commands).flat();
const torch = (...command) => (hasTorch ? [["python3", ...command]] : []);
/** The commands of each measurement, one after the other. */
const fast = {
  gemm: [bench("gemm.mjs", "--only", "f32,bf16,f16", ...json("gemm"))],
  quantized: [bench("gemm.mjs", "--only", "Q8_0,Q4_K,Q4_0", ...json("quantized"))],
  sdpa: turns(3, [bench("ops.mjs", "--only", "sdpa"), ...torch(here("ops.py"), "--only", "sdpa")]),
  "8B Q4_0": batches("Q4_0"),
  "1B": [bench("llama.mjs", ...json("llama"))],
  "8B Q8_0": batches("Q8_0"),
  conv: [
    ...torch(here("conv.py"), join(out, "conv-torch.json")),
    bench("conv.mjs", ...(hasTorch ? ["--peers", join(out, "conv-torch.json")] : [])),
  ],
  ops: [bench("ops.mjs", ...json("ops")), ...torch(here("ops.py"), ...json("ops-torch"))],
};

/** Runs a command for as long as there is time; answers how it ended and what it printed. */
function run(step) {
  const { command, env } = Array.isArray(step) ? { command: step } : step;
  const timeout = Math.max(1, 1000 * (total - seconds()));
  return new Promise((done) => {
    const child = spawn(command[0], command.slice(1), {
      env: { ...process.env, ...env },
      timeout,
      killSignal: "SIGKILL",
    });
    const printed = [];
    for (const stream of [child.stdout, child.stderr]) stream.on("data", (text) => printed.push(text));
    child.on("error", (error) => done({ ok: false, text: error.message }));
    child.on("close", (code, signal) =>
      done({ ok: code === 0, text: `${Buffer.concat(printed)}${signal ? `\nended by ${signal}\n` : ""}` }),
    );
  });
}

let wrong = 0;
function report(log, name, took, { ok, text }, shown) {
  appendFileSync(join(out, log), `=== ${name}\n${text}\n`);
  if (!ok) wrong++;
  const lines = text.trim().split("\n");
  console.log(`[${seconds()} s] ${ok ? "ok" : "WRONG"} ${name} (${took.toFixed(1)} s): ${lines.at(-1).slice(0, 200)}`);
  const kept = ok
    ? lines.slice(0, -1).slice(-shown)
    : lines.filter((line) => /WRONG|FAILED|!|[Ee]rror/.test(line)).slice(0, 12);
  for (const line of shown > 0 || !ok ? kept : []) console.log(`    ${line.slice(0, 240)}`);
}

mkdirSync(out, { recursive: true });
for (const log of ["right.log", "fast.log"]) writeFileSync(join(out, log), "");
console.log(
  `${device}: PyTorch ${hasTorch ? "is there" : "is not there"}, compute-sanitizer ${hasSanitizer ? "too" : "is not"}`,
);

const wanted = (group, steps) =>
  Object.entries(steps).filter(([name]) => !only || only.includes(group) || only.includes(name));
const measured = wanted("fast", fast);
// The largest first: the small models fill up what is left of the time. Files for the measurements are written meanwhile.
const waiting = wanted("right", right).sort(([a], [b]) => Number(a.includes("/")) - Number(b.includes("/")));
for (const type of waiting.length > 0 ? ["Q4_0", "Q8_0"] : [])
  if (measured.some(([name]) => name === `8B ${type}`)) waiting.unshift([`write 8B ${type}`, load(type, 1)]);

async function work() {
  for (let next = waiting.shift(); next; next = waiting.shift()) {
    const start = performance.now();
    const result = await run(next[1]);
    report("right.log", next[0], (performance.now() - start) / 1000, result, 0);
  }
}
if (waiting.length > 0) {
  await Promise.all(Array.from({ length: availableParallelism() }, work));
  console.log(wrong > 0 ? `${wrong} checks failed` : "all checks passed");
}

for (const [name, commands] of measured) {
  for (const [i, command] of commands.entries()) {
    const title = `${name} ${i + 1} of ${commands.length}`;
    if (total - seconds() < 10) {
      console.log(`[${seconds()} s] left out for want of time: ${title}`);
      continue;
    }
    const start = performance.now();
    const result = await run(command);
    report("fast.log", title, (performance.now() - start) / 1000, result, 12);
  }
}
process.exitCode = wrong > 0 ? 1 : 0;
