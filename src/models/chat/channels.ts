/**
 * gpt-oss's answers: messages with a header each, `<|start|>assistant<|channel|>analysis<|message|>…<|end|>`. What is analysis is
 * reasoning; what goes to a function, `to=functions.name` in the header, is a call; the rest is said to the user.
 */
import type { AnswerReader, AnswerSink } from "./answer.ts";

export class ChannelReader implements AnswerReader {
  readonly #sink: AnswerSink;
  #header = "";
  #body = "";
  // The prompt has opened the first message.
  #inHeader = true;

  constructor(sink: AnswerSink) {
    this.#sink = sink;
  }

  text(text: string): void {
    if (this.#inHeader) this.#header += text;
    else if (this.#function !== undefined) this.#body += text;
    else this.#sink.write(this.#isReasoning ? "reasoning" : "text", text);
  }

  marker(marker: string): void {
    if (marker === "<|message|>" && this.#inHeader) this.#inHeader = false;
    else if (marker === "<|channel|>" && this.#inHeader) this.#header += " ";
    else {
      this.#finish();
      this.#inHeader = true;
      this.#header = "";
    }
  }

  end(): void {
    // Without a single header it is an answer of a model that has no channels.
    if (
      this.#inHeader &&
      this.#header.trim() !== "" &&
      !/^\s*(assistant|analysis|final|commentary)\b/.test(this.#header)
    )
      this.#sink.write("text", this.#header);
    this.#finish();
  }

  get #function(): string | undefined {
    return /\bto=(?:functions\.)?([\w.:-]+)/.exec(this.#header)?.[1];
  }

  get #isReasoning(): boolean {
    return /\banalysis\b/.test(this.#header);
  }

  #finish(): void {
    const name = this.#function;
    const args = this.#body.trim();
    this.#body = "";
    if (!this.#inHeader && name !== undefined) this.#sink.call({ name, arguments: args === "" ? "{}" : args });
  }
}
