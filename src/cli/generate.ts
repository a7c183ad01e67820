/** `wick generate`: a model continues a text. */
import { randomInt } from "node:crypto";
import { text as readAll } from "node:stream/consumers";
import { Command } from "commander";
import type { Finish, GenerateOptions, Model } from "../models/index.ts";
import {
  addModelOptions,
  addSamplingOptions,
  generateOptions,
  isAbort,
  loadWithProgress,
  MODEL_NAMES,
  type ModelOptions,
  modelPath,
  openSpeculation,
  type SamplingFlags,
} from "./model-options.ts";
import { addRankOptions, joinRanks, type RankOptions, sameOnAll } from "./ranks.ts";

interface Options extends ModelOptions, SamplingFlags, RankOptions {
  prompt: string;
  json: boolean;
}

export function generateCommand(): Command {
  const command = new Command("generate").description("Let a model continue a text");
  addRankOptions(addModelOptions(command));
  command.option("--prompt <text>", 'the text to continue; "-" reads it from stdin', "Once upon a time");
  return addSamplingOptions(command, 256)
    .option("--json", "print the result as JSON when it is complete", false)
    .addHelpText(
      "after",
      `
Examples:
  wick generate
  wick generate --prompt "The princess opened the door and" --max-tokens 100
  wick generate --model Qwen/Qwen3-0.6B --prompt "The capital of France is"
  wick generate --model ./Llama-3.2-1B --temperature 0 --stop "\\n\\n"
  wick generate --model ./Llama-3.1-8B --draft ./Llama-3.2-1B --temperature 0
  wick generate --seed 7 --top-p 0.9 --json
  echo "It was a dark night" | wick generate --prompt -

Ctrl-C ends the text (exit code 130).
${MODEL_NAMES}`,
    )
    .action(run);
}

async function run(options: Options): Promise<void> {
  const abort = new AbortController();
  const stop = () => abort.abort();
  process.once("SIGINT", stop);
  try {
    const group = await joinRanks(options);
    const given = options.prompt === "-" && (group?.rank ?? 0) === 0;
    const prompt = await sameOnAll(group, given ? await readAll(process.stdin) : options.prompt);
    const seed = await sameOnAll(group, options.seed ?? (group ? randomInt(2 ** 32) : undefined));
    const loading = { signal: abort.signal, group };
    using model = await loadWithProgress(options, loading);
    using guesses = await openSpeculation(options, loading);
    const { speculation } = guesses;
    const result = await stream(
      model,
      prompt,
      { ...generateOptions(options), seed, speculation },
      options.json,
      abort.signal,
    );
    if (options.json)
      console.log(
        JSON.stringify(
          { model: modelPath(options.model), device: model.devices.map(({ name }) => name).join(), ...result },
          null,
          2,
        ),
      );
    else if ((group?.rank ?? 0) === 0) console.error(summary(result));
    if (result.finish === "aborted") process.exitCode = 130;
  } catch (error) {
    if (!isAbort(error)) throw error;
    process.exitCode = 130;
  } finally {
    process.off("SIGINT", stop);
  }
}

interface Result {
  readonly prompt: string;
  readonly text: string;
  readonly finish: Finish | "aborted";
  readonly promptTokens: number;
  readonly tokens: readonly number[];
  /** Until the first token, and per second after it. */
  readonly promptSeconds: number;
  readonly tokensPerSecond: number;
  /** Where tokens were guessed: how many, and how many of them rightly. */
  readonly speculation?: { readonly drafted: number; readonly accepted: number };
}

async function stream(
  model: Model,
  prompt: string,
  options: GenerateOptions,
  json: boolean,
  signal: AbortSignal,
): Promise<Result> {
  const { speculation } = options;
  const ids = model.encode(prompt);
  const tokens: number[] = [];
  let text = "";
  let finish: Result["finish"] = "aborted";
  const write = (piece: string): void => {
    text += piece;
    if (!json) process.stdout.write(piece);
  };
  const start = performance.now();
  let first = start;
  try {
    for await (const piece of model.generate(ids, { ...options, signal })) {
      if (tokens.length === 0) {
        first = performance.now();
        if (!json) process.stdout.write(prompt);
      }
      tokens.push(piece.token);
      write(piece.text);
      finish = piece.finish ?? finish;
    }
  } catch (error) {
    if (!isAbort(error)) throw error;
  }
  const end = performance.now();
  if (!json) process.stdout.write("\n");
  return {
    prompt,
    text,
    finish,
    promptTokens: ids.length,
    tokens,
    promptSeconds: (first - start) / 1000,
    tokensPerSecond: tokens.length > 1 ? ((tokens.length - 1) * 1000) / (end - first) : 0,
    ...(speculation && { speculation: { drafted: speculation.drafted, accepted: speculation.accepted } }),
  };
}

function summary({ promptTokens, tokens, promptSeconds, tokensPerSecond, finish, speculation }: Result): string {
  const rate = promptSeconds > 0 ? ` (${(promptTokens / promptSeconds).toFixed(1)} tokens/s)` : "";
  const why: Record<Result["finish"], string> = {
    length: "the limit of --max-tokens",
    context: "the context is full",
    token: "the end of the text",
    string: "a stop string",
    aborted: "stopped",
  };
  const guessed = speculation ? `, ${speculation.accepted} of ${speculation.drafted} guesses right` : "";
  return `prompt ${promptTokens} tokens${rate}, generated ${tokens.length} tokens (${tokensPerSecond.toFixed(1)} tokens/s${guessed}); ${why[finish]}`;
}
