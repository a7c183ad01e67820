// Simulates tensor parallelism over 2 to 64 GPUs by the formulas of `wick plan`, and writes docs/benchmarks/scaling.json, from
// which `npm run charts` draws: npm run build && node scripts/scaling.mjs [--table]
import { writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import "../dist/devices.js";
import { parseHuggingFaceConfig } from "../dist/models/hugging-face/config.js";
import { cardNamed, links } from "../dist/models/placement/cards.js";
import { planModel } from "../dist/models/placement/plan.js";

const CARD = "MI300X";
const RANKS = [2, 4, 8, 16, 32, 64];
const CONTEXT = 4096;
const llama = (layers, hidden, intermediate, heads) => ({
  model_type: "llama",
  vocab_size: 128256,
  hidden_size: hidden,
  intermediate_size: intermediate,
  num_hidden_layers: layers,
  num_attention_heads: heads,
  num_key_value_heads: 8,
  max_position_embeddings: 131072,
  rms_norm_eps: 1e-5,
  torch_dtype: "bfloat16",
});
const SHAPES = { "70B": llama(80, 8192, 28672, 64), "405B": llama(126, 16384, 53248, 128) };
const fabric = links["infinity-fabric"];
const { ethernet } = links;
const NETWORKS = {
  "Infinity Fabric": { inner: fabric, outer: fabric, perMachine: 64 },
  "8 by Infinity Fabric, then Ethernet": { inner: fabric, outer: ethernet, perMachine: 8 },
  Ethernet: { inner: ethernet, outer: ethernet, perMachine: 64 },
};

const cardsOf = (count) =>
  Array.from({ length: count }, (_, i) => ({ ...cardNamed(CARD), name: `${CARD}:${i}`, isCpu: false }));

const rows = [];
for (const [shape, json] of Object.entries(SHAPES)) {
  const config = parseHuggingFaceConfig(json, shape);
  for (const sequences of [1, 64]) {
    for (const [network, joined] of Object.entries(NETWORKS)) {
      for (const ranks of RANKS) {
        const plan = await planModel({
          config,
          devices: cardsOf(ranks),
          tensorParallel: ranks,
          network: joined,
          context: CONTEXT,
          sequences,
          prompt: 2048,
        });
        if (!plan.fits) continue;
        const { tokensPerSecond, step, stepLinks, firstToken } = plan.estimate;
        rows.push({
          shape,
          sequences,
          network,
          ranks,
          tokensPerSecond,
          step,
          stepLinks,
          firstToken,
          bytes: plan.devices[0].total,
        });
      }
    }
  }
}
const file = fileURLToPath(new URL("../docs/benchmarks/scaling.json", import.meta.url));
const rounded = (_, value) => (typeof value === "number" ? Number(value.toPrecision(6)) : value);
writeFileSync(file, `${JSON.stringify({ card: CARD, context: CONTEXT, rows }, rounded, 1)}\n`);

/** Rows of a page's table: one for each number of ranks, tokens/s and the share of links by network. */
if (process.argv.includes("--table")) {
  for (const shape of Object.keys(SHAPES)) {
    for (const sequences of [1, 64]) {
      console.log(`\n${shape}, ${sequences} sequence(s): tokens/s (share of the step between GPUs)`);
      console.log(`| GPUs | ${Object.keys(NETWORKS).join(" | ")} | GiB each |\n|---|${"---|".repeat(4)}`);
      for (const ranks of RANKS) {
        const own = rows.filter((row) => row.shape === shape && row.sequences === sequences && row.ranks === ranks);
        if (own.length === 0) continue;
        const cells = own.map(
          ({ tokensPerSecond, step, stepLinks }) =>
            `${Math.round(tokensPerSecond).toLocaleString("en-US")} (${(stepLinks / step).toFixed(2)})`,
        );
        console.log(`| ${ranks} | ${cells.join(" | ")} | ${(own[0].bytes / 2 ** 30).toFixed(1)} |`);
      }
    }
  }
}

/** Machines of eight cards each: every layer over all of them, or a stage to each machine. */
if (process.argv.includes("--table")) {
  console.log("\n| | sequences | GPUs | every layer over all | a stage to each machine |\n|---|---|---|---|---|");
  for (const [shape, json] of Object.entries(SHAPES)) {
    const config = parseHuggingFaceConfig(json, shape);
    for (const sequences of [1, 64]) {
      for (const ranks of RANKS.filter((count) => count > 8)) {
        const network = NETWORKS["8 by Infinity Fabric, then Ethernet"];
        const common = { config, devices: cardsOf(ranks), network, context: CONTEXT, sequences, prompt: 2048 };
        const plans = [
          await planModel({ ...common, tensorParallel: ranks }),
          await planModel({ ...common, tensorParallel: 8, pipelineParallel: ranks / 8 }),
        ];
        const cells = plans.map(({ estimate }) =>
          estimate
            ? `${Math.round(estimate.tokensPerSecond).toLocaleString("en-US")} (${(1000 * estimate.firstToken).toFixed(0)} ms)`
            : "does not fit",
        );
        console.log(`| ${shape} | ${sequences} | ${ranks} | ${cells.join(" | ")} |`);
      }
    }
  }
}
