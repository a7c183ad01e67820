/** `wick tokenize`: the tokens of a text. */
import { readFile } from "node:fs/promises";
import { text as readAll } from "node:stream/consumers";
import { Command } from "commander";
import { fail } from "../core/errors.ts";
import { loadTokenizer } from "../models/index.ts";
import { columns, printable } from "./columns.ts";
import { MODEL_NAMES, modelPath, withDownloads } from "./model-options.ts";

interface Options {
  model?: string;
  file?: string;
  special: boolean;
  json: boolean;
}

export function tokenizeCommand(): Command {
  return new Command("tokenize")
    .description("Show the tokens of a text")
    .argument("[text]", "the text; without it and --file it is read from stdin")
    .option("--model <name>", "whose tokenizer: owner/name, a folder, a file or a URL (default: the bundled fable-7m)")
    .option("--file <path>", "read the text from a file")
    .option("--no-special", "leave out what the model starts and ends a text with")
    .option("--json", "print {ids, pieces} as JSON", false)
    .addHelpText(
      "after",
      `
A GGUF file needs no weights for it.
${MODEL_NAMES}

Examples:
  wick tokenize "Once upon a time"
  wick tokenize --model ./Qwen3-0.6B --file story.txt --json
  echo "some text" | wick tokenize --no-special`,
    )
    .action(run);
}

async function run(given: string | undefined, { model, file, special, json }: Options): Promise<void> {
  if (given !== undefined && file !== undefined) {
    fail("InvalidArgument", "tokenize: the text and --file are two ways to say one thing");
  }
  const tokenizer = await withDownloads((options) => loadTokenizer(modelPath(model), options));
  if (!tokenizer) return;
  const ids = tokenizer.encode(given ?? (await textOf(file)), { special });
  const pieces = ids.map((id) => tokenizer.token(id) ?? "");
  if (json) console.log(JSON.stringify({ ids, pieces }));
  else if (ids.length > 0)
    console.log(columns(ids.map((id, i) => [String(id).padStart(7), printable(pieces[i]!)])).join("\n"));
}

const textOf = (file: string | undefined): Promise<string> =>
  file === undefined
    ? readAll(process.stdin)
    : readFile(file, "utf8").catch((cause: Error) =>
        fail("InvalidFile", `${file} cannot be read: ${cause.message}`, { cause }),
      );
