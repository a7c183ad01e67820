/** What the commands that run a model share: their options, and loading with a progress bar. */
import { fileURLToPath } from "node:url";
import { type Command, InvalidArgumentError, Option } from "commander";
import { Device } from "../backend/device.ts";
import type { Group } from "../distributed/group.ts";
import { locateModel } from "../models/hub/pull.ts";
import {
  type CacheType,
  type ComputeType,
  draftModel,
  type GenerateOptions,
  loadModel,
  type Model,
  type PullOptions,
  promptLookup,
  type Speculation,
} from "../models/index.ts";
import { DownloadBars } from "./download-bars.ts";
import { ProgressBar } from "./progress.ts";

/** The model that comes with the package. */
const BUNDLED = fileURLToPath(new URL("../../models/fable-7m.Q8_0.gguf", import.meta.url));

/** For the help of commands that take a model. */
export const MODEL_NAMES = `
A model is named by
  owner/name                its name at the Hugging Face hub: safetensors, or GGUF in Q4_K_M or else Q8_0
  owner/name:Q4_K_M         a GGUF repository's file by its quantization, or by its name
  hf:owner/name@revision    a branch, tag or commit
  a folder, a file, or the URL of a GGUF file
and downloaded where it is not here.`;

export interface ModelOptions {
  model?: string;
  device: string;
  gpuLayers?: number;
  dtype?: ComputeType;
  context?: number;
  kvCache?: CacheType;
  threads?: number;
}

export interface SamplingFlags {
  maxTokens: number;
  temperature: number;
  topK: number;
  topP: number;
  minP: number;
  repetitionPenalty: number;
  presencePenalty?: number;
  frequencyPenalty?: number;
  logitBias?: ReadonlyMap<number, number>;
  seed?: number;
  stop?: string[];
  draft?: string;
  lookup?: boolean;
}

export function count(least: number): (text: string) => number {
  return (text) => {
    const n = Number(text);
    if (text.trim() === "" || !Number.isSafeInteger(n) || n < least)
      throw new InvalidArgumentError(`must be a whole number from ${least} up.`);
    return n;
  };
}

/** Several, separated by commas. */
export function counts(least: number): (text: string) => number[] {
  const one = count(least);
  return (text) => text.split(",").map(one);
}

/** Numbers within limits, which the help names. */
function within(low: number, high = Number.POSITIVE_INFINITY): (text: string) => number {
  return (text) => {
    const n = Number(text);
    if (text.trim() === "" || !(n >= low && n <= high)) {
      const limits = high === Number.POSITIVE_INFINITY ? `from ${low} up` : `from ${low} to ${high}`;
      throw new InvalidArgumentError(`must be a number ${limits}.`);
    }
    return n;
  };
}

function cacheType(text: string): CacheType {
  if (text === "f8" || text === "f8e4m3") return "f8e4m3";
  throw new InvalidArgumentError("must be f8.");
}

/** `named`: the model is an option, and no argument; `caches`: it keeps keys and values. */
export function addModelOptions(command: Command, { named = true, caches = true } = {}): Command {
  if (caches) {
    command.option(
      "--kv-cache <type>",
      "f8 keeps keys and values in 8 bits: half the memory, a little less exact (default: as what is computed in)",
      cacheType,
    );
  }
  if (named) {
    command.option(
      "--model <name>",
      "owner/name at the hub, a folder, a file or a URL (default: the bundled fable-7m)",
    );
  }
  return command
    .option(
      "--device <names>",
      "cpu, rocm:0, cuda:0; several share the layers: rocm:0,rocm:1,cpu; auto is the best, and others where it is too small",
      "auto",
    )
    .option("--gpu-layers <n>", "layers on GPUs, the others on the CPU (default: as many as have room)", count(0))
    .addOption(
      new Option("--dtype <dtype>", "what to compute in (default: f32 on the CPU, elsewhere as the model)").choices([
        "f32",
        "f16",
        "bf16",
      ]),
    )
    .option(
      "--context <n>",
      "tokens that must fit beside the weights, or the model is not loaded (default: 2048)",
      count(1),
    )
    .option("--threads <n>", "CPU threads (default: WICK_THREADS or all cores)", count(1));
}

export function addSamplingOptions(command: Command, maxTokens: number): Command {
  return command
    .option("--max-tokens <n>", "the most tokens to generate", count(1), maxTokens)
    .option("--temperature <t>", "0 takes the likeliest token; higher is more varied", within(0), 0.7)
    .option("--top-k <n>", "draw from the n likeliest tokens only; 0 is all", count(0), 40)
    .option("--top-p <p>", "draw from the likeliest tokens that together reach this probability", within(0, 1), 0.95)
    .option("--min-p <p>", "draw from tokens at least this share as likely as the likeliest", within(0, 1), 0)
    .option("--repetition-penalty <x>", "above 1 makes repetition less likely", within(0), 1.1)
    .option("--presence-penalty <x>", "taken off the logits of tokens that the answer has", within(-1e6, 1e6), 0)
    .option("--frequency-penalty <x>", "taken off them as often as it has them", within(-1e6, 1e6), 0)
    .option("--logit-bias <id=x>", "add x to a token's logit; may be given several times", biases)
    .option("--seed <n>", "makes the draws repeatable", count(0))
    .option("--stop <text>", "end at this text; may be given several times", collected)
    .option("--lookup", "guess that the text repeats itself or its prompt: the same text, sooner where it does")
    .addOption(
      new Option("--draft <name>", "let a smaller model of the same vocabulary guess: the same text, sooner").conflicts(
        "lookup",
      ),
    );
}

/** One "id=x" after another. */
function biases(text: string, before: ReadonlyMap<number, number> = new Map()): ReadonlyMap<number, number> {
  const [, id, bias] = /^(\d+)=([-+]?(?:[\d.]+|Infinity))$/.exec(text) ?? [];
  if (id === undefined || Number.isNaN(Number(bias))) {
    throw new InvalidArgumentError("must be a token's id and a number, such as 42=-1.5, or 42=-Infinity to forbid it.");
  }
  return new Map([...before, [Number(id), Number(bias)]]);
}

export function generateOptions(flags: SamplingFlags): GenerateOptions {
  const { maxTokens, temperature, topK, topP, minP, repetitionPenalty, seed, stop } = flags;
  const { presencePenalty, frequencyPenalty, logitBias } = flags;
  const penalties = { repetitionPenalty, presencePenalty, frequencyPenalty, logitBias };
  return { maxTokens, temperature, topK, topP, minP, ...penalties, seed, stop };
}

/** As users write sizes: 512M, 8GiB, 1000000. */
export function bytes(text: string): number {
  const [, number, unit] = /^(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?$/i.exec(text.trim()) ?? [];
  if (number === undefined) throw new InvalidArgumentError("must be a number of bytes, such as 512M or 8GiB.");
  return Math.round(Number(number) * 1024 ** ["", "K", "M", "G", "T"].indexOf(unit!.toUpperCase()));
}

/** For options that may be given several times. */
export const collected = (text: string, before: string[] = []): string[] => [...before, text];

export const modelPath = (model: string | undefined): string => model ?? BUNDLED;

/** "auto" is the best device present. */
export const deviceNamed = (name: string): Device => (name === "auto" ? Device.best() : Device.from(name));

/** Every device that a model may be loaded to by these names. */
export const devicesNamed = (names: string): Device[] =>
  names === "auto" ? Device.present() : names.split(",").map((name) => Device.from(name.trim()));

/** What shows downloads on stderr, and what takes them away again. */
function downloads(): { options: PullOptions; clear(): void } {
  const bars = new DownloadBars(process.stderr);
  const onUnreached = (why: string) => console.error(`wick: ${why}; the model is taken as the cache has it`);
  return { options: { onDownload: (progress) => bars.update(progress), onUnreached }, clear: () => bars.clear() };
}

/** Does what may download, with bars on stderr; undefined, with the exit code for it, where Ctrl-C ends it. */
export async function withDownloads<T>(work: (options: PullOptions) => Promise<T>): Promise<T | undefined> {
  const abort = new AbortController();
  const stop = () => abort.abort();
  const { options, clear } = downloads();
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, stop);
  try {
    return await work({ ...options, signal: abort.signal });
  } catch (error) {
    if (!isAbort(error)) throw error;
    process.exitCode = 130;
    return undefined;
  } finally {
    clear();
    for (const signal of ["SIGINT", "SIGTERM"] as const) process.off(signal, stop);
  }
}

/** Where a model of that name is, downloaded if need be; undefined as above. */
export const located = (name: string): Promise<string | undefined> =>
  withDownloads(async (options) => (await locateModel(name, options)).path);

/** Loads with a bar on stderr, where that is a terminal. */
export async function loadWithProgress(
  { model, device, gpuLayers, dtype, context, kvCache, threads }: ModelOptions,
  options: { signal?: AbortSignal; group?: Group | null } = {},
): Promise<Model> {
  const { signal, group } = options;
  if (threads !== undefined) Device.cpu({ threads });
  const bar = new ProgressBar("Loading", process.stderr);
  const download = downloads();
  try {
    return await loadModel(modelPath(model), {
      ...download.options,
      signal,
      group: group ?? undefined,
      device: group?.device ?? device,
      gpuLayers,
      dtype,
      context,
      kvCache,
      onProgress: ({ bytesLoaded, bytesTotal }) => bar.update(bytesLoaded, bytesTotal),
    });
  } finally {
    download.clear();
    bar.clear();
  }
}

/** What guesses the next tokens, if the user asks for it; disposing it frees the draft model. */
export async function openSpeculation(
  { draft, lookup, ...options }: ModelOptions & SamplingFlags,
  loading: { signal?: AbortSignal; group?: Group | null } = {},
): Promise<{ readonly speculation: Speculation | undefined } & Disposable> {
  if (draft === undefined) {
    return { speculation: lookup ? promptLookup() : undefined, [Symbol.dispose]: () => {} };
  }
  const model = await loadWithProgress({ ...options, model: draft }, loading);
  const speculation = draftModel(model);
  return {
    speculation,
    [Symbol.dispose]: () => {
      speculation[Symbol.dispose]();
      model.dispose();
    },
  };
}

export const isAbort = (error: unknown): boolean => error instanceof Error && error.name === "AbortError";
