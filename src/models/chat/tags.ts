/** Answers with markers around what is not meant for the reader: `<think>…</think>`, `<tool_call>…</tool_call>`. */
import type { AnswerOptions, AnswerReader, AnswerSink } from "./answer.ts";
import type { AnswerForm } from "./answer-form.ts";
import { type TaggedForm, type TaggedFormName, taggedForms } from "./tool-forms.ts";

interface TaggedAnswerForm extends AnswerForm {
  readonly toolCalls: TaggedFormName | "none";
}

export class TaggedReader implements AnswerReader {
  readonly #sink: AnswerSink;
  readonly #tools: TaggedForm | null;
  readonly #reasoning: AnswerForm["reasoning"];
  readonly #toolNames: readonly string[] | undefined;
  #state: "start" | "text" | "reasoning" | "call";
  /** What stands in a call, and the marker before it. */
  #body = "";
  #opened = "";

  constructor(sink: AnswerSink, { toolCalls, reasoning }: TaggedAnswerForm, options: AnswerOptions) {
    this.#sink = sink;
    this.#tools = toolCalls === "none" ? null : taggedForms[toolCalls];
    this.#reasoning = reasoning;
    this.#toolNames = options.toolNames;
    this.#state = options.startsInReasoning && reasoning ? "reasoning" : "start";
  }

  text(text: string): void {
    if (this.#state === "call") this.#body += text;
    else if (this.#state === "reasoning") this.#sink.write("reasoning", text);
    else if (this.#state === "start" && this.#mayBeBare(text)) this.#openCall("", text);
    else {
      // Space alone does not tell yet how the answer starts.
      if (text.trim() !== "") this.#state = "text";
      this.#sink.write("text", text);
    }
  }

  marker(marker: string): void {
    const { open, close, around = [] } = this.#tools ?? { open: undefined, close: undefined };
    if (this.#state === "reasoning") {
      // Until its end all is reasoning, whatever it speaks of.
      const ends = marker === this.#reasoning?.close;
      this.#sink.write("reasoning", ends ? "" : marker);
      if (ends) this.#state = "start";
    } else if (this.#state === "call") {
      if (marker === close) this.#closeCall(marker);
      else if (marker === open && close === undefined) {
        this.#closeCall("");
        this.#openCall(marker);
      } else this.#body += marker;
    } else if (marker === this.#reasoning?.open) this.#state = "reasoning";
    else if (marker === open) this.#openCall(marker);
    else if (!around.includes(marker)) this.text(marker);
  }

  end(): void {
    if (this.#state === "call") this.#closeCall("");
  }

  #mayBeBare = (text: string): boolean => this.#tools?.bare === true && /^\s*[{[]/.test(text);

  #openCall(marker: string, body = ""): void {
    this.#state = "call";
    this.#opened = marker;
    this.#body = body;
  }

  #closeCall(marker: string): void {
    const calls = this.#tools!.parse(this.#body);
    const isKnown = this.#opened !== "" || calls?.every(({ name }) => this.#toolNames?.includes(name) ?? true);
    this.#state = "text";
    // What is no call after all is given as it was written.
    if (!calls || !isKnown) this.#sink.write("text", this.#opened + this.#body + marker);
    else for (const call of calls) this.#sink.call(call);
  }
}
