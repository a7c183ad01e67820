/** `wick bench`: how fast a model reads a prompt and writes, per device. */
import { Command } from "commander";
import type { MemoryStats } from "../backend/backend.ts";
import { formatBytes, shownBytes } from "../backend/usage.ts";
import type { Group } from "../distributed/group.ts";
import type { Model } from "../models/index.ts";
import {
  addModelOptions,
  count,
  counts,
  isAbort,
  loadWithProgress,
  type ModelOptions,
  modelPath,
} from "./model-options.ts";
import { addRankOptions, joinRanks, type RankOptions } from "./ranks.ts";

interface Options extends ModelOptions, RankOptions {
  promptTokens: number;
  tokens: number;
  batch: number[];
  runs: number;
  together: boolean;
  json: boolean;
}

const WARM_UP_MS = 2000;
/** Longer than kernels take to compile. */
const LONG_RUN_SECONDS = 60;

interface Row {
  readonly device: string;
  readonly dtype: string;
  readonly batch: number;
  readonly promptTokens: number;
  readonly tokens: number;
  readonly loadSeconds: number;
  /** The medians of the runs, over all sequences of the batch. */
  readonly promptTokensPerSecond: number;
  readonly decodeTokensPerSecond: number;
  readonly weightsBytes: number;
  readonly peakBytes: number;
  /** Of a model that is split: how many ranks it is split over, and what this one moved for a token. */
  readonly ranks?: number;
  readonly bytesMovedPerToken?: number;
}

export function benchCommand(): Command {
  const command = new Command("bench").description("Measure prompt and decode rates and memory");
  return addRankOptions(addModelOptions(command))
    .option("--prompt-tokens <n>", "length of the prompt", count(1), 128)
    .option("--tokens <n>", "tokens to decode", count(1), 64)
    .option("--batch <n,…>", "sequences side by side; several numbers are measured one after the other", counts(1), [1])
    .option("--runs <n>", "measured runs after two seconds of others that warm up; the median counts", count(1), 3)
    .option("--together", "the devices share the model's layers, and are not measured one after the other", false)
    .option("--json", "print JSON", false)
    .addHelpText(
      "after",
      `
Several devices are separated by commas, and measured one after the other unless they work --together. The tokens are
random, so every run does the same work.

Examples:
  wick bench
  wick bench --model ./Llama-3.2-1B --device cpu --prompt-tokens 512 --tokens 128
  wick bench --model ./Llama-3.1-70B --device rocm:0,rocm:1,cpu --together
  wick bench --dtype bf16 --batch 1,4,16 --json`,
    )
    .action(run);
}

async function run(options: Options): Promise<void> {
  const abort = new AbortController();
  const stop = () => abort.abort();
  process.once("SIGINT", stop);
  const rows: Row[] = [];
  try {
    const group = await joinRanks(options);
    const together = options.together || options.gpuLayers !== undefined;
    const each = together ? [options.device] : options.device.split(",");
    for (const device of each) await measure({ ...options, device }, group, abort.signal, rows);
  } catch (error) {
    if (!isAbort(error)) throw error;
    process.exitCode = 130;
  } finally {
    process.off("SIGINT", stop);
  }
  if (options.json) console.log(JSON.stringify({ model: modelPath(options.model), results: rows }, null, 2));
  else if (rows.length > 0) console.log(table(rows).join("\n"));
}

/** Loads a model once, and adds a row for each number of sequences. */
async function measure(options: Options, group: Group | null, signal: AbortSignal, rows: Row[]): Promise<void> {
  const { promptTokens, tokens, runs } = options;
  const start = performance.now();
  using model = await loadWithProgress(options, { signal, group });
  const loadSeconds = (performance.now() - start) / 1000;
  const all = (of: (memory: MemoryStats) => number): number =>
    model.devices.reduce((sum, device) => sum + of(device.memory()), 0);
  const weightsBytes = all(shownBytes);
  for (const batch of options.batch) {
    let moved = 0;
    const times: { prompt: number; decode: number }[] = [];
    // Runs that do not count: the first compiles kernels, and in those of the next seconds V8 compiles what the host does between
    // them, which does not tell where a run takes long. Ranks must run equally often, so theirs is one.
    const first = await once(model, batch, options, signal);
    const isLong = first.prompt + first.decode > LONG_RUN_SECONDS;
    const until = performance.now() + (group || isLong ? 0 : WARM_UP_MS);
    while (performance.now() < until) await once(model, batch, options, signal);
    while (times.length < runs) {
      const before = group?.communicator.moved.bytes ?? 0;
      times.push(await once(model, batch, options, signal));
      moved = (group?.communicator.moved.bytes ?? 0) - before;
    }
    rows.push({
      device: model.devices.map(({ name }) => name).join(),
      dtype: model.dtype,
      batch,
      promptTokens,
      tokens,
      loadSeconds,
      promptTokensPerSecond: (batch * promptTokens) / median(times.map((t) => t.prompt)),
      // The first token comes with the prompt.
      decodeTokensPerSecond: tokens > 1 ? (batch * (tokens - 1)) / median(times.map((t) => t.decode)) : 0,
      weightsBytes,
      peakBytes: all(({ peak, mapped = 0 }) => peak + mapped),
      ...(group && { ranks: group.size, bytesMovedPerToken: moved / (batch * (promptTokens + tokens - 1)) }),
    });
  }
}

/** Seconds until the first token, and from there to the last. */
async function once(
  model: Model,
  batch: number,
  { promptTokens, tokens }: Options,
  signal: AbortSignal,
): Promise<{ prompt: number; decode: number }> {
  const { vocabSize } = model.config;
  const prompts = Array.from({ length: batch }, (_, b) =>
    Array.from({ length: promptTokens }, (_, i) => (7919 * (i + 1) + 104729 * b) % vocabSize),
  );
  const start = performance.now();
  let first = 0;
  let last = 0;
  for await (const _ of model.generateBatch(prompts, { maxTokens: tokens, ignoreEos: true, signal })) {
    last = performance.now();
    if (first === 0) first = last;
  }
  return { prompt: (first - start) / 1000, decode: (last - first) / 1000 };
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

function table(rows: readonly Row[]): string[] {
  const columns: [head: string, cell: (row: Row) => string][] = [
    ["device", (row) => row.device],
    ["dtype", (row) => row.dtype],
    ["batch", (row) => String(row.batch)],
    ["load", (row) => `${row.loadSeconds.toFixed(2)} s`],
    ["prompt tokens/s", (row) => row.promptTokensPerSecond.toFixed(1)],
    ["decode tokens/s", (row) => row.decodeTokensPerSecond.toFixed(1)],
    ["weights", (row) => formatBytes(row.weightsBytes)],
    ["peak", (row) => formatBytes(row.peakBytes)],
  ];
  const cells = [columns.map(([head]) => head), ...rows.map((row) => columns.map(([, cell]) => cell(row)))];
  const widths = columns.map((_, c) => Math.max(...cells.map((line) => line[c]!.length)));
  return cells.map((line) =>
    line
      .map((cell, c) => cell.padEnd(widths[c]!))
      .join("  ")
      .trimEnd(),
  );
}
