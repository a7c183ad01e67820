/** `wick quantize`: weights in, a smaller GGUF file out. */
import { stat } from "node:fs/promises";
import { join } from "node:path";
import { Command, Option } from "commander";
import { Device } from "../backend/device.ts";
import { formatBytes } from "../backend/usage.ts";
import { formatShape } from "../core/layout.ts";
import { type QuantizedTensorReport, quantizeFile, quantizeTargets } from "../formats/gguf/quantize.ts";
import { writeModelGguf } from "../models/index.ts";
import { columns, printable } from "./columns.ts";
import { count, isAbort, located } from "./model-options.ts";
import { ProgressBar } from "./progress.ts";

interface Options {
  type: string;
  threads?: number;
  json: boolean;
}

export function quantizeCommand(): Command {
  return new Command("quantize")
    .description("Write the weights of a safetensors or GGUF file as a GGUF file of another type")
    .argument("<in>", "a GGUF file, a safetensors file or index, a model's folder or its name at the hub")
    .argument("<out>", "the GGUF file to write; never the input")
    .addOption(
      new Option("--type <type>", `what matrices become: ${quantizeTargets.join(", ")}`)
        .argParser((text) => text.toUpperCase())
        .makeOptionMandatory(),
    )
    .option("--threads <n>", "CPU threads (default: WICK_THREADS or all cores)", count(1))
    .option("--json", "print the report as JSON", false)
    .addHelpText(
      "after",
      `
A model's folder (config.json, safetensors, tokenizer.json) becomes a complete model in one file. Of other inputs the
tensors are written as they are named. Vectors, and matrices whose rows are not whole blocks of the type, are kept in
F32 or F16.

Examples:
  wick quantize Qwen/Qwen3-0.6B Qwen3-0.6B.Q4_K.gguf --type Q4_K
  wick quantize ./Llama-3.2-1B Llama-3.2-1B.Q4_K.gguf --type Q4_K
  wick quantize model.safetensors model.Q4_K.gguf --type Q4_K
  wick quantize model.F16.gguf model.Q8_0.gguf --type Q8_0 --json

Ctrl-C stops and leaves no file behind (exit code 130).`,
    )
    .action(run);
}

async function run(name: string, output: string, { type, threads, json }: Options): Promise<void> {
  const input = await located(name);
  if (input === undefined) return;
  if (threads !== undefined) Device.cpu({ threads });
  const abort = new AbortController();
  const stop = () => abort.abort();
  const bar = new ProgressBar("Quantizing", process.stderr);
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, stop);
  try {
    const write = (await isModelFolder(input)) ? writeModelGguf : quantizeFile;
    const tensors = await write(input, output, {
      type,
      signal: abort.signal,
      onProgress: ({ bytesDone, bytesTotal }) => bar.update(bytesDone, bytesTotal),
    });
    bar.clear();
    if (json) console.log(JSON.stringify({ input, output, type, tensors }, null, 2));
    else console.log([...table(tensors), "", summary(tensors, output)].join("\n"));
  } catch (error) {
    bar.clear();
    if (!isAbort(error)) throw error;
    process.exitCode = 130;
  } finally {
    for (const signal of ["SIGINT", "SIGTERM"] as const) process.off(signal, stop);
  }
}

const isModelFolder = (path: string): Promise<boolean> =>
  stat(join(path, "config.json")).then(
    (found) => found.isFile(),
    () => false,
  );

function table(tensors: readonly QuantizedTensorReport[]): string[] {
  const rows = tensors.map(({ name, shape, from, to, bytesAfter, rmse, maxError }) => [
    printable(name),
    formatShape(shape),
    `${from} → ${to}`,
    formatBytes(bytesAfter),
    rmse.toExponential(2),
    maxError.toExponential(2),
  ]);
  rows.unshift(["tensor", "shape", "type", "size", "RMSE", "max error"]);
  return columns(rows);
}

function summary(tensors: readonly QuantizedTensorReport[], output: string): string {
  const sum = (key: "bytesBefore" | "bytesAfter") => formatBytes(tensors.reduce((n, tensor) => n + tensor[key], 0));
  return `${tensors.length} tensors, ${sum("bytesBefore")} → ${sum("bytesAfter")}, written to ${output}`;
}
