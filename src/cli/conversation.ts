/** The conversation of `wick chat`: what was said, and answers printed as they come. */
import { readFile } from "node:fs/promises";
import { fail, WickError } from "../core/errors.ts";
import {
  type ChatMessage,
  type Model,
  PromptCache,
  type Speculation,
  type ToolCall,
  type ToolDefinition,
} from "../models/index.ts";
import { generateOptions, isAbort, type SamplingFlags } from "./model-options.ts";

export type ChatOutput = NodeJS.WritableStream & { readonly isTTY?: boolean };

export interface ConversationOptions extends SamplingFlags {
  readonly system?: string;
  readonly hideReasoning?: boolean;
  readonly tools?: readonly ToolDefinition[] | undefined;
  readonly speculation?: Speculation | undefined;
}

/** A list of tools as OpenAI's API takes them. */
export async function readTools(path: string): Promise<ToolDefinition[]> {
  const text = await readFile(path, "utf8").catch((cause: Error) =>
    fail("InvalidFile", `${path} cannot be read: ${cause.message}`, { cause }),
  );
  try {
    const value: unknown = JSON.parse(text);
    if (Array.isArray(value)) return value as ToolDefinition[];
  } catch {
    // Said below.
  }
  return fail("InvalidFile", `${path} holds no list of tools: [{ "type": "function", "function": { "name", … } }]`);
}

const [DIM, PLAIN] = ["\u001b[2m", "\u001b[22m"];

export class Conversation implements Disposable {
  readonly #model: Model;
  readonly #options: ConversationOptions;
  readonly #output: ChatOutput;
  readonly #cache = new PromptCache();
  #messages: ChatMessage[] = [];
  /** Calls whose results the user has not typed yet. */
  #open: ToolCall[] = [];
  #showsReasoning = false;

  constructor(model: Model, options: ConversationOptions, output: ChatOutput) {
    this.#model = model;
    this.#options = options;
    this.#output = output;
    this.reset();
  }

  reset(): void {
    this.#messages = this.#options.system === undefined ? [] : [{ role: "system", content: this.#options.system }];
    this.#open = [];
    this.#cache.reset();
  }

  /** What the user typed: the result of a tool that was asked for, or something to answer. */
  async answer(content: string, signal: AbortSignal): Promise<void> {
    const before = this.#messages;
    const open = this.#open;
    const [call, ...others] = open;
    const message: ChatMessage = call
      ? { role: "tool", tool_call_id: call.id, name: call.function.name, content }
      : { role: "user", content };
    this.#messages = [...before, message];
    this.#open = others;
    if (others[0]) this.#askFor(others[0]);
    else if (!(await this.#generate(signal))) {
      // The conversation goes on without what could not be answered.
      this.#messages = before;
      this.#open = open;
    }
  }

  /** Prints the answer as it comes; what was said before a stop stays part of the conversation. False where there is none. */
  async #generate(signal: AbortSignal): Promise<boolean> {
    const said = { content: "", reasoning: "", calls: [] as ToolCall[] };
    let count = 0;
    const start = performance.now();
    try {
      const events = this.#model.chat(this.#messages, {
        ...generateOptions(this.#options),
        tools: this.#options.tools,
        promptCache: this.#cache,
        speculation: this.#options.speculation,
        onPiece: () => count++,
        signal,
      });
      for await (const event of events) {
        if (event.type === "text") {
          this.#endReasoning("\n\n");
          said.content += event.text;
          this.#output.write(event.text);
        } else if (event.type === "reasoning") {
          said.reasoning += event.text;
          this.#showReasoning(event.text);
        } else if (event.type === "tool_call") said.calls.push(event.call);
      }
      this.#endReasoning("");
      this.#output.write("\n");
    } catch (error) {
      this.#endReasoning("");
      if (isAbort(error)) {
        this.#output.write("\n(stopped)\n");
      } else if (error instanceof WickError) {
        const wayOut = error.code === "ValueOutOfRange" ? ", or start afresh with /reset" : "";
        this.#output.write(`(${error.message}${wayOut})\n`);
        return false;
      } else throw error;
    }
    this.#messages = [
      ...this.#messages,
      {
        role: "assistant",
        content: said.content,
        ...(said.reasoning !== "" && { reasoning_content: said.reasoning }),
        ...(said.calls.length > 0 && { tool_calls: said.calls }),
      },
    ];
    this.#open = said.calls;
    for (const { function: called } of said.calls) this.#output.write(`→ ${called.name}(${called.arguments})\n`);
    if (said.calls[0]) this.#askFor(said.calls[0]);
    const seconds = (performance.now() - start) / 1000;
    if (this.#output.isTTY && count > 0)
      this.#output.write(`(${count} tokens, ${(count / seconds).toFixed(1)} tokens/s)\n`);
    return true;
  }

  #askFor({ function: { name } }: ToolCall): void {
    this.#output.write(`(type what ${name} gives)\n`);
  }

  /** Dimmed, where the terminal can. */
  #showReasoning(text: string): void {
    if (this.#options.hideReasoning) return;
    if (!this.#showsReasoning && this.#output.isTTY) this.#output.write(DIM);
    this.#showsReasoning = true;
    this.#output.write(text);
  }

  #endReasoning(space: string): void {
    if (!this.#showsReasoning) return;
    this.#showsReasoning = false;
    this.#output.write(`${this.#output.isTTY ? PLAIN : ""}${space}`);
  }

  [Symbol.dispose](): void {
    this.#cache.dispose();
  }
}
