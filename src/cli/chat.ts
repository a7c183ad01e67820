/** `wick chat`: a conversation in the terminal. */
import { randomInt } from "node:crypto";
import { createInterface, type Interface } from "node:readline/promises";
import { Command } from "commander";
import type { Group } from "../distributed/group.ts";
import { plainTemplate } from "../models/chat/chat.ts";
import { Model, type Speculation } from "../models/index.ts";
import { type ChatOutput, Conversation, readTools } from "./conversation.ts";
import {
  addModelOptions,
  addSamplingOptions,
  loadWithProgress,
  MODEL_NAMES,
  type ModelOptions,
  openSpeculation,
  type SamplingFlags,
} from "./model-options.ts";
import { addRankOptions, joinRanks, type RankOptions, sameOnAll } from "./ranks.ts";

export interface ChatOptions extends SamplingFlags {
  system?: string;
  hideReasoning?: boolean;
  /** The file with the definitions of tools. */
  tools?: string;
  speculation?: Speculation | undefined;
}
type Options = ModelOptions & ChatOptions & RankOptions;

const HELP = `/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer, arrow up brings back what you wrote`;

export function chatCommand(): Command {
  const command = new Command("chat").description("Talk with a model");
  addRankOptions(addModelOptions(command));
  return addSamplingOptions(command, 512)
    .option("--system <text>", "what the model is told before the conversation")
    .option("--hide-reasoning", "does not show what the model thinks before it answers")
    .option("--tools <file>", "JSON with the tools that the model may ask for; you type their results")
    .addHelpText(
      "after",
      `
Examples:
  wick chat --model Qwen/Qwen3-0.6B
  wick chat --model ./Llama-3.2-1B-Instruct
  wick chat --model ./Qwen3-0.6B --system "Answer in one sentence." --temperature 0
  wick chat --model Qwen/Qwen3-0.6B --hide-reasoning --tools tools.json

In the conversation:
  ${HELP.replaceAll(", ", "\n  ")}
${MODEL_NAMES}`,
    )
    .action(run);
}

export interface Terminal {
  readonly input: NodeJS.ReadableStream;
  readonly output: ChatOutput;
}

async function run(options: Options): Promise<void> {
  const group = await joinRanks(options);
  using model = await loadForChat(options, group);
  using guesses = await openSpeculation(options, { group });
  const seed = group ? await sameOnAll(group, options.seed ?? randomInt(2 ** 32)) : options.seed;
  await converse(
    model,
    { ...options, ...(seed !== undefined && { seed }), speculation: guesses.speculation },
    { input: process.stdin, output: process.stdout },
    group,
  );
}

/** Until the user leaves. */
export async function converse(
  model: Model,
  options: ChatOptions,
  { input, output }: Terminal,
  group: Group | null = null,
): Promise<void> {
  const tools = options.tools === undefined ? undefined : await readTools(options.tools);
  using conversation = new Conversation(model, { ...options, tools }, output);
  const terminal = output.isTTY ?? false;
  const reader = createInterface({ input, output, terminal, prompt: "> ", historySize: 1000 });
  let answering: AbortController | null = null;
  reader.on("SIGINT", () => {
    if (answering) answering.abort();
    else {
      output.write("\n(/exit or Ctrl-D leaves)\n");
      reader.prompt();
    }
  });
  const say = (text: string) => output.write(`${text}\n`);
  say(HELP);
  for await (const line of linesOfAll(group, reader)) {
    const text = line.trim();
    if (text === "/exit") break;
    if (text === "/reset") {
      conversation.reset();
      say("(the conversation is forgotten)");
    } else if (text === "/help") {
      say(HELP);
    } else if (text.startsWith("/")) {
      say(`(there is no ${text}: ${HELP})`);
    } else if (text !== "") {
      const stop = new AbortController();
      // Ranks would not stop at the same token.
      answering = group ? null : stop;
      try {
        await conversation.answer(text, stop.signal);
      } finally {
        answering = null;
      }
    }
  }
  reader.close();
}

/** What the user enters at rank 0, on every rank. */
async function* linesOfAll(group: Group | null, input: Interface): AsyncGenerator<string> {
  if (!group) return yield* lines(input);
  if (group.rank === 0) {
    for await (const line of lines(input)) {
      await group.exchange(line);
      yield line;
    }
    await group.exchange(null);
    return;
  }
  for (;;) {
    const [line] = (await group.exchange<string | null>(null)) as [string | null];
    if (line === null) return;
    yield line;
  }
}

/** The lines the user enters, with the prompt shown before each; ends with the input. */
async function* lines(input: Interface): AsyncGenerator<string> {
  let open = true;
  input.once("close", () => {
    open = false;
  });
  const iterator = input[Symbol.asyncIterator]();
  for (;;) {
    if (open) input.prompt();
    const { value, done } = await iterator.next();
    if (done) return;
    yield value;
  }
}

async function loadForChat(options: Options, group: Group | null): Promise<Model> {
  const model = await loadWithProgress(options, { group });
  if (model.chatTemplate) return model;
  if ((group?.rank ?? 0) === 0)
    console.error("This model was not made for chat (it has no chat template): it goes on with what you write.");
  const { transformer, tokenizer, embedding, placement } = model;
  return new Model(transformer, tokenizer, plainTemplate(model), embedding, placement);
}
