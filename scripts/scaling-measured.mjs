// Steps of a model at 1, 2 and 4 ranks over MPI on the CPU, one thread each, beside what the formulas of `wick plan` make of
// parameters that are measured by themselves: how long each rank computes between what it would say to the others, where it says
// nothing (beside each other, as they share the memory, and in turns with the steps, as machines are faster now and slower
// then), and the latency and the rate of a message between two processes. Simulated, a rank waits for the slowest at each sum.
// Needs Open MPI's mpirun and `npm run build`; the machine should have nothing else to do, and a core for each rank:
//   node scripts/scaling-measured.mjs [MODEL] [--ranks 1,2,4] [--rounds 3] [--json]
// Without a MODEL one of random weights is made, of eight layers and a hidden size of 768 (--hidden): 68 million parameters.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import "../dist/devices.js";
import { saveSafetensors } from "../dist/formats/index.js";
import { allReduceTime, transferTime } from "../dist/models/placement/estimate.js";
import { Tensor } from "../dist/ops/index.js";

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    ranks: { type: "string", default: "1,2,4" },
    rounds: { type: "string", default: "3" },
    hidden: { type: "string", default: "768" },
    json: { type: "boolean", default: false },
  },
});
const program = fileURLToPath(new URL("scaling-rank.mjs", import.meta.url));
const env = {
  ...process.env,
  WICK_THREADS: "1",
  OMPI_ALLOW_RUN_AS_ROOT: "1",
  OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: "1",
  OMPI_MCA_hwloc_base_binding_policy: "none",
};

/** A command's last line, as JSON. */
const lineOf = (command, ...args) =>
  new Promise((resolve, reject) => {
    const child = spawn(command, args, { env, stdio: ["ignore", "pipe", "inherit"] });
    let said = "";
    child.stdout.setEncoding("utf8").on("data", (text) => (said += text));
    child.on("error", reject).on("close", (code) => {
      const line = said.trim().split("\n").at(-1);
      if (code === 0 && line) resolve(JSON.parse(line));
      else reject(new Error(`${command} ${args.join(" ")} ended with ${code}`));
    });
  });
const underMpi = (ranks, ...args) => lineOf("mpirun", "-n", `${ranks}`, process.execPath, program, ...args);
const median = (numbers) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1];

async function randomModel(folder, hidden) {
  const [heads, width, vocabulary] = [hidden / 64, 3 * hidden, 8192];
  const config = {
    ...{ model_type: "llama", hidden_size: hidden, intermediate_size: width, vocab_size: vocabulary },
    ...{ num_hidden_layers: 8, num_attention_heads: heads, num_key_value_heads: 4, max_position_embeddings: 512 },
    ...{ rms_norm_eps: 1e-5, tie_word_embeddings: false, torch_dtype: "float32" },
  };
  const tensors = {};
  const add = (name, ...shape) => (tensors[`${name}.weight`] = Tensor.randn(shape, { std: 0.02, seed: shape[0] }));
  add("model.embed_tokens", vocabulary, hidden);
  for (let layer = 0; layer < config.num_hidden_layers; layer++) {
    const at = `model.layers.${layer}`;
    for (const norm of ["input_layernorm", "post_attention_layernorm"]) add(`${at}.${norm}`, hidden);
    for (const [name, rows] of Object.entries({ q: hidden, k: 256, v: 256, o: hidden }))
      add(`${at}.self_attn.${name}_proj`, rows, hidden);
    for (const name of ["gate", "up"]) add(`${at}.mlp.${name}_proj`, width, hidden);
    add(`${at}.mlp.down_proj`, hidden, width);
  }
  add("model.norm", hidden);
  add("lm_head", vocabulary, hidden);
  await saveSafetensors(join(folder, "model.safetensors"), tensors);
  writeFileSync(join(folder, "config.json"), JSON.stringify(config));
  return folder;
}

/** Milliseconds of a message of any size: as the shortest, and by the rate of the longest. */
function linkOf(times) {
  const [shortest, longest] = [Math.min, Math.max].map((pick) => pick(...Object.keys(times).map(Number)));
  const bytesPerSecond = (longest - shortest) / ((times[longest] - times[shortest]) / 1e3);
  return { name: "messages", seconds: times[shortest] / 1e3, bytesPerSecond };
}

/** Milliseconds, as `wick plan` has it: 2 · layers + 1 sums of the rows, and the logits of one. */
function linksOf({ layers, hiddenSize, vocabSize }, ranks, rows, link) {
  const reduce = allReduceTime(rows * hiddenSize * 4, ranks, link);
  const links = ranks === 1 ? 0 : (2 * layers + 1) * reduce + transferTime((vocabSize * 4) / ranks, link);
  return links * 1e3;
}

const folder = mkdtempSync(join(tmpdir(), "wick-scaling-"));
try {
  const model = positionals[0] ?? (await randomModel(folder, Number(options.hidden)));
  const rounds = Array.from({ length: Number(options.rounds) });
  const counts = options.ranks.split(",").map(Number);
  const found = new Map(counts.map((ranks) => [ranks, []]));
  const links = [];
  for (const _ of rounds) {
    links.push(linkOf((await underMpi(2, "link"))[0]));
    for (const ranks of counts) {
      found.get(ranks).push(await underMpi(ranks, "steps", model));
      if (!options.json) console.log(`${ranks} ranks: ${JSON.stringify(found.get(ranks).at(-1)[0].rows)}`);
    }
  }
  const link = {
    name: "messages",
    seconds: median(links.map(({ seconds }) => seconds)),
    bytesPerSecond: median(links.map(({ bytesPerSecond }) => bytesPerSecond)),
  };
  const results = counts.flatMap((ranks) => {
    const rounds = found.get(ranks);
    const [[first]] = rounds;
    // The slowest rank's: others wait for it.
    const slowest = (field, rows) => median(rounds.map((all) => Math.max(...all.map((own) => own.rows[rows][field]))));
    return Object.keys(first.rows).map((rows) => {
      const [measured, alone, compute, reduce] = ["step", "alone", "compute", "reduce"].map((own) =>
        slowest(own, rows),
      );
      const links = linksOf(first, ranks, Number(rows), link);
      const { bytes, calls } = first.rows[rows];
      return {
        ...{ ranks, rows: Number(rows), library: first.library, weights: first.weights, bytes, calls },
        ...{ measured, alone, compute, links, simulated: compute + links, reduce },
        ...{ tokensPerSecond: (1000 * rows) / measured, off: (compute + links) / measured - 1 },
      };
    });
  });
  const rounded = (_, value) => (typeof value === "number" ? Number(value.toPrecision(4)) : value);
  if (options.json) console.log(JSON.stringify({ link, results }, rounded));
  else {
    console.log(`a message: ${(link.seconds * 1e6).toFixed(2)} µs, ${(link.bytesPerSecond / 1e9).toFixed(2)} GB/s`);
    console.table(JSON.parse(JSON.stringify(results, rounded)));
  }
} finally {
  rmSync(folder, { recursive: true, force: true });
}
