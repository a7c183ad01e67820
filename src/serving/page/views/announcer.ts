/** Reads an answer to screen readers in whole sentences, as it comes; every piece by itself would be a stutter. */
import { h } from "../dom.ts";

const PAUSE_MS = 1500;
/** Who wants more of a text that came all at once reads it in its place. */
const MOST = 2000;

export class Announcer {
  readonly element = h("div", { class: "off-screen", role: "status", "aria-live": "polite" });
  #said = 0;
  #at = 0;

  begin(): void {
    this.#said = 0;
    this.#at = 0;
    this.say("The model is answering.");
  }

  /** Where in a text the listener is; the whole of it is said at the end. */
  follow(text: string, whole: boolean): void {
    const now = performance.now();
    if (!whole && now - this.#at < PAUSE_MS) return;
    const rest = text.slice(this.#said);
    const sentences = whole ? rest : (/^.*(?:[.!?:]\s|\n)/s.exec(rest)?.[0] ?? "");
    if (sentences.trim() === "") return;
    this.#said += sentences.length;
    this.#at = now;
    this.say(sentences.slice(-MOST));
  }

  say(text: string): void {
    this.element.textContent = text;
  }
}
