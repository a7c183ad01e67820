/** `wick embed`: texts as vectors, how alike they are, or which of them answer a query. */
import { readFile } from "node:fs/promises";
import { text as readAll } from "node:stream/consumers";
import { Command, Option } from "commander";
import { fail } from "../core/errors.ts";
import { unitRows } from "../models/embeddings/pooling.ts";
import type { EmbedOptions, Model } from "../models/index.ts";
import { poolings } from "../models/index.ts";
import { scope } from "../ops/index.ts";
import { columns, printable } from "./columns.ts";
import { addModelOptions, isAbort, loadWithProgress, MODEL_NAMES, type ModelOptions } from "./model-options.ts";
import { ProgressBar } from "./progress.ts";

interface Options extends ModelOptions {
  file?: string;
  query?: string;
  pooling?: EmbedOptions["pooling"];
  normalize?: boolean;
  prompt?: string;
  json: boolean;
}

export function embedCommand(): Command {
  const command = new Command("embed")
    .description("Show how alike texts are, rank them for a query, or print their vectors")
    .argument("[texts...]", "the texts; without them and --file the lines of stdin")
    .option("--file <path>", "read the texts from a file, one a line")
    .option("--query <text>", "rank the texts by how well they answer this; a reranker scores each beside it")
    .addOption(
      new Option("--pooling <kind>", "what of a text's tokens its vector is (default: as the model says)").choices(
        poolings,
      ),
    )
    .option("--normalize", "scale vectors to length 1 (default: as the model says)")
    .option("--no-normalize", "leave vectors as they are")
    .option("--prompt <name>", "what the texts are for, by a name the model knows, as query or document")
    .option("--json", "print {dims, embeddings}, or {query, results} with --query, as JSON", false);
  return addModelOptions(command, { caches: false })
    .addHelpText(
      "after",
      `
Encoders (BERT, XLM-RoBERTa, ModernBERT) and decoders embed; rerankers, which have a classification head, score pairs.
${MODEL_NAMES}

Examples:
  wick embed --model BAAI/bge-small-en-v1.5 "a cat" "a kitten" "the tax office"
  wick embed --model BAAI/bge-small-en-v1.5 --file lines.txt --json > vectors.json
  wick embed --model BAAI/bge-reranker-v2-m3 --query "who purrs?" "a cat" "the tax office"`,
    )
    .action(run);
}

async function run(given: string[], options: Options): Promise<void> {
  const texts = await textsOf(given, options.file);
  const abort = new AbortController();
  const stop = () => abort.abort();
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, stop);
  const bar = new ProgressBar("Embedding", process.stderr);
  try {
    using model = await loadWithProgress(options, { signal: abort.signal });
    const work: Work = {
      ...options,
      model,
      texts,
      signal: abort.signal,
      onProgress: ({ textsDone, textsTotal }) => bar.update(textsDone, textsTotal),
    };
    const lines = await (options.query === undefined ? embed(work) : rank(work, options.query));
    bar.clear();
    console.log(lines);
  } catch (error) {
    bar.clear();
    if (!isAbort(error)) throw error;
    process.exitCode = 130;
  } finally {
    for (const signal of ["SIGINT", "SIGTERM"] as const) process.off(signal, stop);
  }
}

interface Work extends Pick<EmbedOptions, "pooling" | "normalize" | "prompt" | "signal" | "onProgress"> {
  readonly model: Model;
  readonly texts: readonly string[];
  readonly json: boolean;
}

const optionsOf = ({ pooling, normalize, prompt, signal, onProgress }: Work): EmbedOptions => ({
  pooling,
  normalize,
  prompt,
  signal,
  onProgress,
});

async function embed(work: Work): Promise<string> {
  const { model, texts, json } = work;
  using vectors = await model.embed(texts, optionsOf(work));
  if (json) return JSON.stringify({ dims: vectors.shape[1], embeddings: await vectors.toArray() });
  if (texts.length === 1) return oneVector(Array.from((await vectors.data()) as Float32Array));
  const cosines = await scope(() => {
    const unit = unitRows(vectors);
    return unit.matmul(unit.t()).toArray();
  });
  return (texts.length > WIDEST_TABLE ? nearest : table)(texts, cosines as number[][]);
}

/** Texts whose cosines fit on a terminal side by side. */
const WIDEST_TABLE = 10;

function table(texts: readonly string[], cosines: readonly (readonly number[])[]): string {
  const head = ["", "", ...texts.map((_, i) => String(i + 1).padStart(5))];
  const rows = texts.map((text, i) => [
    String(i + 1).padStart(3),
    shortened(text),
    ...cosines[i]!.map((cosine) => cosine.toFixed(2).padStart(5)),
  ]);
  return columns([head, ...rows]).join("\n");
}

/** Each text with the one that is most like it. */
function nearest(texts: readonly string[], cosines: readonly (readonly number[])[]): string {
  const rows = texts.map((text, i) => {
    const others = cosines[i]!.map((cosine, j) => (j === i ? Number.NEGATIVE_INFINITY : cosine));
    const best = Math.max(...others);
    return [String(i + 1).padStart(5), shortened(text), best.toFixed(2), shortened(texts[others.indexOf(best)]!)];
  });
  return columns([["", "", "like", ""], ...rows]).join("\n");
}

async function rank(work: Work, query: string): Promise<string> {
  const { model, texts, json } = work;
  const scores = model.canScore
    ? await model.score(
        texts.map((text) => [query, text]),
        work,
      )
    : await cosines(work, query);
  const results = texts
    .map((text, index) => ({ index, text, score: scores[index]! }))
    .sort((a, b) => b.score - a.score);
  if (json) return JSON.stringify({ query, results });
  return columns(results.map(({ score, text }) => [score.toFixed(4).padStart(8), shortened(text)])).join("\n");
}

/** The query is a text like the others, unless the model has a prompt for queries. */
async function cosines(work: Work, query: string): Promise<number[]> {
  const { model, texts } = work;
  const options = { ...optionsOf(work), normalize: true };
  const forQuery = Object.hasOwn(model.embedding.prompts, "query") ? { ...options, prompt: "query" } : options;
  using asked = await model.embed([query], forQuery);
  using others = await model.embed(texts, options);
  const values = await scope(() => others.matmul(asked.t()).data());
  return Array.from(values as Float32Array);
}

const SHOWN_NUMBERS = 8;
function oneVector(values: readonly number[]): string {
  const first = values.slice(0, SHOWN_NUMBERS).map((x) => x.toFixed(4));
  const rest = values.length > SHOWN_NUMBERS ? ` … (${values.length} numbers; --json prints all)` : "";
  return `  ${first.join(" ")}${rest}`;
}

const SHOWN_LENGTH = 48;
function shortened(text: string): string {
  const line = printable(text.replace(/\s+/g, " ").trim());
  return line.length > SHOWN_LENGTH ? `${line.slice(0, SHOWN_LENGTH - 1)}…` : line;
}

async function textsOf(given: readonly string[], file: string | undefined): Promise<string[]> {
  if (given.length > 0 && file !== undefined) {
    fail("InvalidArgument", "embed: the texts and --file are two ways to say one thing");
  }
  const text = given.length > 0 ? undefined : await (file === undefined ? readAll(process.stdin) : fileText(file));
  const texts = text === undefined ? [...given] : text.split(/\r?\n/).filter((line) => line.trim() !== "");
  return texts.length > 0 ? texts : fail("InvalidArgument", "embed: there are no texts to embed");
}

const fileText = (file: string): Promise<string> =>
  readFile(file, "utf8").catch((cause: Error) =>
    fail("InvalidFile", `${file} cannot be read: ${cause.message}`, { cause }),
  );
