/** `wick plan`: whether a model fits on devices that need not be here, what lies where, and how fast it would be. */
import { Command, Option } from "commander";
import { formatBytes } from "../backend/usage.ts";
import { asQuantType } from "../core/quant-types.ts";
import type { ComputeType } from "../models/index.ts";
import { computeTypes } from "../models/load.ts";
import { type Plan, planModel } from "../models/placement/plan.ts";
import { planDevices } from "../models/placement/plan-devices.ts";
import { planSource } from "../models/placement/plan-source.ts";
import { columns } from "./columns.ts";
import { count, MODEL_NAMES, modelPath, withDownloads } from "./model-options.ts";

interface Options {
  devices: string;
  tensorParallel?: number;
  pipelineParallel?: number;
  context?: number;
  sequences: number;
  prompt?: number;
  dtype?: ComputeType;
  quantize?: string;
  json: boolean;
}

export function planCommand(): Command {
  return new Command("plan")
    .description("Say whether a model fits on devices, what lies where, and how fast it may be, without its weights")
    .argument(
      "[model]",
      "owner/name at the hub, of which the config alone is fetched; a folder, config.json or GGUF file",
    )
    .option(
      "--devices <list>",
      "8xMI300X, or with figures: 8xMI300X,192GB,5.3TB/s,link=448GB/s; auto is what is here",
      "auto",
    )
    .option("--tensor-parallel <n>", "n processes share every layer, each with a device", count(1))
    .option("--pipeline-parallel <n>", "n stages of processes have the layers one after the other", count(1))
    .option("--context <n>", "tokens of each sequence (default: 4096)", count(1))
    .option("--sequences <n>", "sequences at once", count(1), 1)
    .option(
      "--prompt <n>",
      "tokens of the prompt whose first answer is waited for (default: half of the context)",
      count(1),
    )
    .addOption(
      new Option("--dtype <dtype>", "what to compute in (default: as the model, or bf16)").choices(computeTypes),
    )
    .option(
      "--quantize <type>",
      "matrices as they would be in this type: Q4_K, Q8_0, … (default: as the file has them)",
    )
    .option("--json", "print JSON", false)
    .addHelpText(
      "after",
      `
Devices are cards by their names (docs/scaling.md lists them), any others by their figures: memory, bandwidth, TFLOPS of
dense products of halves, and link= by rate (448GB/s, 400Gb/s, 50GB/s@12us) or name (infinity-fabric, nvlink4, pcie4,
ethernet). Groups are joined by +, and the CPU takes what GPUs have no room for. Bytes are counted as they are loaded;
tokens per second and the time to the first token are estimates.

Examples:
  wick plan Qwen/Qwen3-32B --devices 2xRX7900XTX --quantize Q4_K
  wick plan meta-llama/Llama-3.1-405B --devices 8xMI300X --tensor-parallel 8 --sequences 16
  wick plan meta-llama/Llama-3.1-405B --devices 16xMI300X --pipeline-parallel 2 --tensor-parallel 8
  wick plan ./model.gguf --devices "RTX4090+cpu,64GB,60GB/s" --context 8192
  wick plan ./config.json --devices 4xcard,32GB,1.2TB/s,200TFLOPS,link=pcie5 --json
${MODEL_NAMES}`,
    )
    .action(run);
}

async function run(name: string | undefined, options: Options): Promise<void> {
  const devices = planDevices(options.devices);
  const source = await withDownloads((pulling) => planSource(modelPath(name), pulling));
  if (!source) return;
  const { dtype, tensorParallel, pipelineParallel, context, sequences, prompt } = options;
  const ranks = { tensorParallel, pipelineParallel };
  const quantize = options.quantize === undefined ? undefined : asQuantType(options.quantize);
  const plan = await planModel({ ...source, devices, dtype, quantize, ...ranks, context, sequences, prompt });
  const { architecture, layers, hiddenSize } = source.config;
  const model = { name: modelPath(name), architecture, layers, hiddenSize };
  console.log(
    options.json ? JSON.stringify({ model, ...plan }, null, 2) : text(model, plan, devices.length).join("\n"),
  );
  if (!plan.fits) process.exitCode = 1;
}

function text(model: { name: string; architecture: string; layers: number }, plan: Plan, given: number): string[] {
  const {
    dtype,
    quantize,
    context,
    sequences,
    tensorParallel: ranks,
    pipelineParallel: stages,
    weights,
    estimate,
  } = plan;
  const facts = [
    `${model.name}: ${model.architecture}, ${model.layers} layers`,
    `weights ${formatBytes(weights)} (${quantize ?? "as they are"}, computed in ${dtype})`,
    `${formatBytes(plan.cachePerToken)} of cache per token, ${formatBytes(plan.cachePerSequence)} for ${context}`,
  ];
  const many = `${sequences} sequence${sequences === 1 ? "" : "s"} of ${context} tokens`;
  if (!plan.fits) {
    const would =
      plan.wouldTake === null
        ? "no number of such devices would hold it"
        : `${plan.wouldTake} such devices would hold it`;
    return [...facts, "", `It does not fit on ${given} device${given === 1 ? "" : "s"} with ${many}; ${would}.`];
  }
  const parts = ranks > 1 ? `a part of ${stages > 1 ? "each" : "every layer on each"} of ${ranks}` : "";
  const shares =
    stages > 1
      ? `layers in ${stages} stages${parts && `, ${parts} ranks`}`
      : parts || `layers on ${plan.devices.length} of ${given}`;
  const rows = plan.devices.map((device) => [
    device.name,
    ranks > 1 && stages === 1
      ? "all, in part"
      : `${device.first} to ${device.first + device.layers - 1}${ranks > 1 ? ", in part" : ""}`,
    [device.embedding && "embedding", device.head && "head"].filter(Boolean).join(", "),
    formatBytes(device.weights),
    formatBytes(device.cache),
    formatBytes(device.work),
    `${formatBytes(device.total)} of ${formatBytes(device.memory)}`,
  ]);
  const { tokensPerSecond, tokensPerSecondEach, step, stepLinks, firstToken, promptTokens } = estimate!;
  return [
    ...facts,
    "",
    `It fits with ${many}: ${shares}`,
    ...columns([["device", "layers", "with", "weights", "cache", "work", "in all"], ...rows]),
    "",
    "Estimates, from the makers' figures and what was measured on one H200 (docs/scaling.md):",
    `  ${tokensPerSecond.toFixed(1)} tokens/s${sequences > 1 ? `, ${tokensPerSecondEach.toFixed(1)} each` : ""}: ${milliseconds(step)} a step, ${milliseconds(stepLinks)} of it between devices`,
    `  first token after ${milliseconds(firstToken)} behind a prompt of ${promptTokens}`,
  ];
}

const milliseconds = (seconds: number): string => `${(seconds * 1000).toFixed(seconds < 0.1 ? 2 : 0)} ms`;
