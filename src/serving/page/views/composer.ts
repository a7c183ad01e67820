/** Where one writes: grows with its text, keeps what was begun, sends with Enter and stops with Escape. */
import type { App } from "../app.ts";
import { h, icon } from "../dom.ts";
import { preference, setPreference } from "../preferences.ts";
import { tokensIn } from "../question.ts";

const count = new Intl.NumberFormat("en");

export class Composer {
  readonly element: HTMLElement;
  readonly #app: App;
  readonly #field = h("textarea", { rows: "1", id: "write", enterkeyhint: "send" });
  readonly #button = h("button", { type: "submit", class: "send" });
  readonly #room = h("span", { class: "room" });
  readonly #hint = h("span", { class: "hint" });
  /** What was begun in conversations that are not shown. */
  readonly #drafts = new Map<string, string>();
  #shownFor: string | null = null;

  constructor(app: App, onEditLast: () => void) {
    this.#app = app;
    this.#field.value = preference("draft") ?? "";
    this.#field.addEventListener("input", () => {
      this.#fit();
      this.#show();
      setPreference("draft", this.#field.value === "" ? null : this.#field.value);
    });
    this.#field.addEventListener("keydown", (event) => {
      // A phone's keyboard has no Shift+Enter: there, Enter is a new line and the button sends.
      const touch = matchMedia("(pointer: coarse)").matches;
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !touch) {
        event.preventDefault();
        this.#submit();
      } else if (event.key === "ArrowUp" && this.#field.value === "" && !event.altKey) {
        event.preventDefault();
        onEditLast();
      }
    });
    const submit = (event: Event) => {
      event.preventDefault();
      if (app.answering !== undefined) app.stop();
      else this.#submit();
    };
    this.element = h(
      "form",
      { class: "composer", onsubmit: submit },
      h("label", { for: "write", class: "off-screen" }, "Message"),
      h("div", { class: "field" }, this.#field, this.#button),
      h("div", { class: "under" }, this.#hint, this.#room),
    );
    app.on(["thread", "models"], () => this.#show());
    this.#show();
  }

  focus(): void {
    this.#field.focus();
  }

  /** To be called when the composer is in the page. */
  mount(): void {
    this.#fit();
    addEventListener("resize", () => this.#fit());
  }

  #submit(): void {
    const text = this.#field.value;
    const goesOn = this.#app.form === "story" && this.#app.path.length > 0;
    if (this.#app.answering !== undefined || (text.trim() === "" && !goesOn)) return;
    this.#field.value = "";
    setPreference("draft", null);
    this.#fit();
    void this.#app.send(text);
  }

  #fit(): void {
    this.#field.style.height = "auto";
    this.#field.style.height = `${Math.min(this.#field.scrollHeight, innerHeight * 0.4)}px`;
  }

  #show(): void {
    const { current, answering, model, path, form } = this.#app;
    if (this.#shownFor !== null && this.#shownFor !== current.id) {
      this.#drafts.set(this.#shownFor, this.#field.value);
      this.#field.value = this.#drafts.get(current.id) ?? "";
      this.#fit();
    }
    // A draft from before a reload belongs to whatever is opened first.
    if (this.#app.started) this.#shownFor = current.id;
    const isStory = form === "story";
    const empty = this.#field.value.trim() === "";
    this.#field.placeholder = !isStory
      ? "Write a message"
      : path.length === 0
        ? "Begin a story"
        : "Add a line, or let it go on";
    const stops = answering !== undefined;
    const label = stops ? "Stop" : isStory && path.length > 0 ? "Go on" : "Send";
    if (this.#button.dataset.does !== label) {
      this.#button.dataset.does = label;
      this.#button.replaceChildren(icon(stops ? "stop" : "send"));
      this.#button.setAttribute("aria-label", label);
      this.#button.title = stops ? "Stop (Esc)" : `${label} (Enter)`;
    }
    this.#button.disabled = !stops && empty && !(isStory && path.length > 0);
    this.#hint.textContent = "Only this browser and your server see what you write.";
    const used = tokensIn(current);
    const all = model?.contextLength ?? null;
    // A story slides through its context; a chat fills it.
    this.#room.hidden = used === null || all === null || isStory;
    if (used !== null && all !== null) {
      this.#room.textContent = `${count.format(used)} of ${count.format(all)} tokens`;
      this.#room.classList.toggle("tight", used > 0.8 * all);
    }
  }
}
