/** One message of a chat. */
import type { Answering } from "../answering.ts";
import type { App } from "../app.ts";
import { codeBlock, copyButton } from "../code-block.ts";
import type { Message } from "../conversation.ts";
import { h, icon, iconButton } from "../dom.ts";
import { MarkdownView } from "../markdown.ts";
import { shortName } from "./model-picker.ts";
import { alternatives, editIn, failureNote, liveStats, statsLine, waitingLine } from "./parts.ts";

const seconds = (ms: number): string => (ms < 1000 ? "a moment" : `${Math.round(ms / 1000)} s`);

interface Reasoning {
  readonly text: string;
  readonly ms: number | undefined;
  readonly thinking: boolean;
}

/** Reasoning, folded away unless one wants to see it. */
class ReasoningView {
  readonly #text = new MarkdownView();
  readonly #summary = h("span");
  readonly element = h(
    "details",
    { class: "reasoning", ontoggle: () => this.show(this.#shown) },
    h("summary", {}, icon("right"), this.#summary),
    this.#text.element,
  );
  #shown: Reasoning = { text: "", ms: undefined, thinking: false };

  show(shown: Reasoning): void {
    const { thinking } = shown;
    this.#shown = shown;
    this.element.hidden = shown.text === "";
    this.element.classList.toggle("thinking", thinking);
    this.#summary.textContent = thinking
      ? "Thinking…"
      : shown.ms === undefined
        ? "Thoughts"
        : `Thought for ${seconds(shown.ms)}`;
    // What is folded costs nothing.
    if (this.element.open) this.#text.show(shown.text, !thinking);
  }
}

export class MessageView {
  readonly element: HTMLElement;
  readonly #app: App;
  readonly #message: Message;
  readonly #text = new MarkdownView();
  readonly #reasoning = new ReasoningView();
  readonly #calls = h("div");
  readonly #waiting = h("div");
  readonly #failure = h("div");
  readonly #tools = h("div", { class: "tools" });
  #editing = false;

  constructor(app: App, message: Message) {
    this.#app = app;
    this.#message = message;
    const who = message.role === "user" ? "You" : shortName(message.model ?? "Model");
    this.element = h(
      "article",
      { class: `message ${message.role}`, "data-id": message.id },
      h("h3", { class: "off-screen" }, who),
      ...(message.role === "user"
        ? [h("div", { class: "bubble" })]
        : [this.#reasoning.element, this.#text.element, this.#calls, this.#waiting, this.#failure]),
      this.#tools,
    );
  }

  edit(): void {
    this.#editing = true;
    this.show(undefined);
  }

  show(answering: Answering | undefined): void {
    if (this.#message.role === "user") this.#showQuestion();
    else this.#showAnswer(answering?.message === this.#message ? answering : undefined);
  }

  #showQuestion(): void {
    const bubble = this.element.querySelector(".bubble")!;
    this.element.classList.toggle("editing", this.#editing);
    const leave = () => {
      this.#editing = false;
      this.show(undefined);
    };
    if (this.#editing) {
      const save = (text: string) => {
        this.#editing = false;
        void this.#app.edit(this.#message, text.trim());
      };
      if (bubble.querySelector(".editor") === null) {
        editIn(bubble, { field: "Edit the message", save: "Send" }, this.#message.content, save, leave);
      }
      this.#tools.replaceChildren();
    } else {
      bubble.replaceChildren(this.#message.content);
      this.#tools.replaceChildren(
        ...[
          alternatives(this.#app, this.#message),
          iconButton("edit", "Edit", () => this.edit()),
          copyButton("Copy", () => this.#message.content),
        ].filter((part) => part !== null),
      );
    }
  }

  #showAnswer(answering: Answering | undefined): void {
    const message = this.#message;
    const writing = answering !== undefined;
    const started = message.content !== "" || message.toolCalls !== undefined;
    this.element.classList.toggle("writing", writing && started);
    this.element.setAttribute("aria-busy", String(writing));
    const thinking = writing && answering.phase.at === "thinking";
    this.#reasoning.show({ text: message.reasoning ?? "", ms: message.reasoningMs, thinking });
    this.#text.show(message.content, !writing);
    this.#calls.replaceChildren(
      ...(message.toolCalls ?? []).map(({ name, arguments: given }) => codeBlock(`calls ${name}`, given, false)),
    );
    const waits = writing && !started && !thinking;
    this.#waiting.replaceChildren(...(waits ? [waitingLine(answering.phase, message.model ?? "")] : []));
    const failure = writing ? null : failureNote(this.#app, message);
    this.#failure.replaceChildren(...(failure === null ? [] : [failure]));
    if (writing) {
      this.#tools.replaceChildren(
        h("span", { class: "stats" }, liveStats(answering.pieces, answering.piecesPerSecond)),
      );
      return;
    }
    this.#tools.replaceChildren(
      ...[
        alternatives(this.#app, message),
        started ? copyButton("Copy", () => message.content) : null,
        iconButton("again", "Answer again", () => void this.#app.regenerate(message)),
        h("span", { class: "stats" }, statsLine(message)),
      ].filter((part) => part !== null),
    );
  }
}
