/** A text that a model goes on with: one piece of prose, in which only the ink says who wrote what. */
import type { Answering } from "../answering.ts";
import type { App } from "../app.ts";
import { copyButton } from "../code-block.ts";
import { type Message, storyOf } from "../conversation.ts";
import { h, icon, iconButton } from "../dom.ts";
import { alternatives, editIn, failureNote, liveStats, statsLine, waitingLine } from "./parts.ts";

export class StoryView {
  readonly element = h("article", { class: "story" });
  readonly #app: App;
  readonly #prose = h("div", { class: "prose" });
  readonly #foot = h("div", { class: "foot" });
  readonly #spans = new Map<Message, { span: HTMLElement; text: Text }>();
  #editing = false;

  constructor(app: App) {
    this.#app = app;
    this.element.append(h("h3", { class: "off-screen" }, "Story"), this.#prose, this.#foot);
  }

  edit(): void {
    if (this.#app.answering !== undefined) return;
    this.#editing = true;
    this.show(this.#app.path, undefined);
  }

  show(path: readonly Message[], answering: Answering | undefined): void {
    if (this.#editing) {
      this.#showEditor(path);
      return;
    }
    const wanted = path.map((message) => this.#spanFor(message, answering?.message === message));
    const same =
      wanted.length === this.#prose.childNodes.length && wanted.every((span, i) => span === this.#prose.childNodes[i]);
    if (!same) this.#prose.replaceChildren(...wanted);
    this.#showFoot(path.at(-1), answering);
  }

  /** Text is only ever appended to: what is there already is not laid out again by us. */
  #spanFor(message: Message, writing: boolean): HTMLElement {
    let entry = this.#spans.get(message);
    if (entry === undefined) {
      const text = document.createTextNode("");
      entry = { span: h("span", { class: message.role, "data-id": message.id }, text), text };
      this.#spans.set(message, entry);
    }
    const { span, text } = entry;
    if (message.content.startsWith(text.data)) text.appendData(message.content.slice(text.length));
    else text.data = message.content;
    span.classList.toggle("writing", writing);
    return span;
  }

  #showFoot(last: Message | undefined, answering: Answering | undefined): void {
    if (last === undefined) {
      this.#foot.replaceChildren();
      return;
    }
    if (answering !== undefined) {
      const waits = last.content === "";
      this.#foot.replaceChildren(
        waits
          ? waitingLine(answering.phase, last.model ?? "")
          : h(
              "div",
              { class: "tools" },
              h("span", { class: "stats" }, liveStats(answering.pieces, answering.piecesPerSecond)),
            ),
      );
      return;
    }
    const isAnswer = last.role === "assistant";
    const goOn = h(
      "button",
      { type: "button", class: "plain", onclick: () => void this.#app.send("") },
      "Go on",
      icon("right"),
    );
    const tools = h(
      "div",
      { class: "tools" },
      isAnswer && last.failure === undefined && goOn,
      alternatives(this.#app, last),
      isAnswer && iconButton("again", "Another way on", () => void this.#app.regenerate(last)),
      iconButton("edit", "Edit the text", () => this.edit()),
      copyButton("Copy", () => storyOf(this.#app.path)),
      h("span", { class: "stats" }, isAnswer ? statsLine(last, ["length"]) : ""),
    );
    const failure = failureNote(this.#app, last);
    this.#foot.replaceChildren(...(failure === null ? [tools] : [failure, tools]));
  }

  #showEditor(path: readonly Message[]): void {
    if (this.#prose.querySelector(".editor") !== null) return;
    const leave = () => {
      this.#editing = false;
      this.show(this.#app.path, this.#app.answering);
    };
    const save = (text: string) => {
      this.#editing = false;
      if (text === storyOf(path)) leave();
      else this.#app.rewrite(text.trimEnd());
    };
    editIn(this.#prose, { field: "Edit the story", save: "Save" }, storyOf(path), save, leave);
    this.#foot.replaceChildren();
  }
}
