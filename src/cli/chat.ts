/** `wick chat`: a conversation in the terminal. */
import { createInterface, type Interface } from "node:readline/promises";
import { Command } from "commander";
import { WickError } from "../core/errors.ts";
import { type ChatMessage, ChatTemplate, Model, PLAIN_TEMPLATE, PromptCache } from "../models/index.ts";
import {
  addModelOptions,
  addSamplingOptions,
  generateOptions,
  isAbort,
  loadWithProgress,
  type ModelOptions,
  type SamplingFlags,
} from "./model-options.ts";

interface Options extends ModelOptions, SamplingFlags {
  system?: string;
}

const HELP = `/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer, arrow up brings back what you wrote`;

export function chatCommand(): Command {
  const command = new Command("chat").description("Talk with a model");
  addModelOptions(command);
  return addSamplingOptions(command, 512)
    .option("--system <text>", "what the model is told before the conversation")
    .addHelpText(
      "after",
      `
Examples:
  wick chat --model ./Llama-3.2-1B-Instruct
  wick chat --model ./Qwen3-0.6B --system "Answer in one sentence." --temperature 0

In the conversation:
  ${HELP.replaceAll(", ", "\n  ")}`,
    )
    .action(run);
}

async function run(options: Options): Promise<void> {
  using model = await loadForChat(options);
  const input = createInterface({ input: process.stdin, output: process.stdout, prompt: "> ", historySize: 1000 });
  using conversation = new Conversation(model, options);
  let answering: AbortController | null = null;
  input.on("SIGINT", () => {
    if (answering) answering.abort();
    else {
      process.stdout.write("\n(/exit or Ctrl-D leaves)\n");
      input.prompt();
    }
  });
  console.log(HELP);
  for await (const line of lines(input)) {
    const text = line.trim();
    if (text === "/exit") break;
    if (text === "/reset") {
      conversation.reset();
      console.log("(the conversation is forgotten)");
    } else if (text === "/help") {
      console.log(HELP);
    } else if (text.startsWith("/")) {
      console.log(`(there is no ${text}: ${HELP})`);
    } else if (text !== "") {
      answering = new AbortController();
      try {
        await conversation.say(text, answering.signal);
      } finally {
        answering = null;
      }
    }
  }
  input.close();
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
  const { bosToken } = model.config;
  const first = bosToken === null ? undefined : model.tokenizer?.token(bosToken);
  const plain = new ChatTemplate(PLAIN_TEMPLATE, first === undefined ? {} : { bos_token: first });
  return new Model(model.transformer, model.tokenizer, plain);
}

class Conversation implements Disposable {
  readonly #model: Model;
  readonly #options: Options;
  readonly #cache = new PromptCache();
  #messages: ChatMessage[] = [];

  constructor(model: Model, options: Options) {
    this.#model = model;
    this.#options = options;
    this.reset();
  }

  reset(): void {
    this.#messages = this.#options.system === undefined ? [] : [{ role: "system", content: this.#options.system }];
    this.#cache.reset();
  }

  /** Prints the answer as it comes; what was said before a stop stays part of the conversation. */
  async say(content: string, signal: AbortSignal): Promise<void> {
    const before = this.#messages;
    this.#messages = [...before, { role: "user", content }];
    let answer = "";
    let count = 0;
    const start = performance.now();
    try {
      const pieces = this.#model.generate(this.#messages, {
        ...generateOptions(this.#options),
        promptCache: this.#cache,
        signal,
      });
      for await (const piece of pieces) {
        answer += piece.text;
        count++;
        process.stdout.write(piece.text);
      }
      process.stdout.write("\n");
    } catch (error) {
      if (isAbort(error)) {
        process.stdout.write("\n(stopped)\n");
      } else if (error instanceof WickError) {
        // The conversation goes on without what could not be answered.
        this.#messages = before;
        console.error(`${error.message}${error.code === "ValueOutOfRange" ? "; /reset starts afresh" : ""}`);
        return;
      } else throw error;
    }
    this.#messages = [...this.#messages, { role: "assistant", content: answer }];
    const seconds = (performance.now() - start) / 1000;
    if (process.stderr.isTTY) console.error(`(${count} tokens, ${(count / seconds).toFixed(1)} tokens/s)`);
  }

  [Symbol.dispose](): void {
    this.#cache.dispose();
  }
}
