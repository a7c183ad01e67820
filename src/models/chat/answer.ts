/** A model's answer taken apart as it comes: what it says, what it thinks before, and the tools it asks for. */
import { randomInt } from "node:crypto";
import { type AnswerForm, markersOf } from "./answer-form.ts";
import { ChannelReader } from "./channels.ts";
import { MarkerScanner } from "./marker-scanner.ts";
import type { ToolCall } from "./messages.ts";
import { TaggedReader } from "./tags.ts";
import type { WrittenCall } from "./tool-forms.ts";

export type AnswerEvent =
  | { readonly type: "text"; readonly text: string }
  | { readonly type: "reasoning"; readonly text: string }
  | { readonly type: "tool_call"; readonly call: ToolCall };

export interface Answer {
  readonly content: string;
  /** Empty where the model did not think aloud. */
  readonly reasoning: string;
  readonly toolCalls: readonly ToolCall[];
}

export interface AnswerOptions {
  /** Whether the prompt ended with the opening of the reasoning, as some templates have it. */
  readonly startsInReasoning?: boolean | undefined;
  /** Names of the tools there are: JSON without a marker is a call only if it names one. Default: any name. */
  readonly toolNames?: readonly string[] | undefined;
}

/** What readers of the forms give out. */
export interface AnswerSink {
  write(type: "text" | "reasoning", text: string): void;
  call(call: WrittenCall): void;
}

/** Takes text without markers, and markers, one by one. */
export interface AnswerReader {
  text(text: string): void;
  marker(marker: string): void;
  end(): void;
}

export class AnswerParser {
  readonly #scanner: MarkerScanner;
  readonly #reader: AnswerReader;
  #events: AnswerEvent[] = [];
  #content = "";
  #reasoning = "";
  readonly #calls: ToolCall[] = [];
  /** What is being written, whether it has begun, and the space at its end, which counts only if more of it follows. */
  #part: AnswerEvent["type"] | null = null;
  #hasBegun = false;
  #space = "";

  constructor(form: AnswerForm, options: AnswerOptions = {}) {
    this.#scanner = new MarkerScanner(markersOf(form));
    const sink: AnswerSink = {
      write: (type, text) => this.#write(type, text),
      call: (call) => this.#call(call),
    };
    const { toolCalls, reasoning } = form;
    this.#reader =
      toolCalls === "harmony" ? new ChannelReader(sink) : new TaggedReader(sink, { toolCalls, reasoning }, options);
  }

  /** What a further piece of the answer brings. */
  push(text: string): AnswerEvent[] {
    return this.#read(this.#scanner.push(text));
  }

  /** What is left when no more comes. */
  end(): AnswerEvent[] {
    this.#read(this.#scanner.end(), false);
    this.#reader.end();
    if (this.#part === "text" && this.#hasBegun && this.#space !== "") this.#give("text", this.#space);
    this.#space = "";
    return this.#take();
  }

  /** All that came so far. */
  get answer(): Answer {
    return { content: this.#content, reasoning: this.#reasoning, toolCalls: [...this.#calls] };
  }

  #read(scanned: ReturnType<MarkerScanner["push"]>, take = true): AnswerEvent[] {
    for (const item of scanned) {
      if ("marker" in item) this.#reader.marker(item.marker);
      else this.#reader.text(item.text);
    }
    return take ? this.#take() : [];
  }

  #take(): AnswerEvent[] {
    const events = this.#events;
    this.#events = [];
    return events;
  }

  /** Space between parts belongs to none of them; an answer that is nothing but text is given as it came. */
  #write(type: "text" | "reasoning", text: string): void {
    if (this.#part !== type) {
      this.#hasBegun = type === "text" && this.#part === null;
      this.#space = "";
      this.#part = type;
    }
    const all = this.#space + text;
    const body = this.#hasBegun ? all : all.trimStart();
    const end = body.trimEnd().length;
    this.#space = body.slice(end);
    if (end === 0) return;
    this.#hasBegun = true;
    this.#give(type, body.slice(0, end));
  }

  #give(type: "text" | "reasoning", text: string): void {
    if (type === "text") this.#content += text;
    else this.#reasoning += text;
    this.#events.push({ type, text });
  }

  #call({ name, arguments: args, id = newCallId() }: WrittenCall): void {
    const call: ToolCall = { id, type: "function", function: { name, arguments: args } };
    this.#calls.push(call);
    this.#events.push({ type: "tool_call", call });
    this.#part = "tool_call";
  }
}

/** A whole answer taken apart. */
export function parseAnswer(text: string, form: AnswerForm, options: AnswerOptions = {}): Answer {
  const parser = new AnswerParser(form, options);
  parser.push(text);
  parser.end();
  return parser.answer;
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
/** Nine letters and digits: Mistral's templates take no others back. */
const newCallId = (): string => Array.from({ length: 9 }, () => letters[randomInt(letters.length)]).join("");
