/** `wick chat`: a conversation in the terminal. */
import { createInterface, type Interface } from "node:readline/promises";
import { Command } from "commander";
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

export interface ChatOptions extends SamplingFlags {
  system?: string;
  hideReasoning?: boolean;
  /** The file with the definitions of tools. */
  tools?: string;
  speculation?: Speculation | undefined;
}
type Options = ModelOptions & ChatOptions;

const HELP = `/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer, arrow up brings back what you wrote`;

export function chatCommand(): Command {
  const command = new Command("chat").description("Talk with a model");
  addModelOptions(command);
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
  using model = await loadForChat(options);
  using guesses = await openSpeculation(options);
  await converse(
    model,
    { ...options, speculation: guesses.speculation },
    { input: process.stdin, output: process.stdout },
  );
}

/** Until the user leaves. */
export async function converse(model: Model, options: ChatOptions, { input, output }: Terminal): Promise<void> {
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
  for await (const line of lines(reader)) {
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
      answering = new AbortController();
      try {
        await conversation.answer(text, answering.signal);
      } finally {
        answering = null;
      }
    }
  }
  reader.close();
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

async function loadForChat(options: Options): Promise<Model> {
  const model = await loadWithProgress(options);
  if (model.chatTemplate) return model;
  console.error("This model was not made for chat (it has no chat template): it goes on with what you write.");
  const { transformer, tokenizer, embedding, placement } = model;
  return new Model(transformer, tokenizer, plainTemplate(model), embedding, placement);
}
