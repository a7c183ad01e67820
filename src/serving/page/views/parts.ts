/** What stands under an answer, in a chat and in a story: what it took, what went wrong, its alternatives. */
import type { Phase } from "../answering.ts";
import type { App } from "../app.ts";
import { type Message, type Stats, siblingsOf } from "../conversation.ts";
import { h, icon, iconButton } from "../dom.ts";
import { shortName } from "./model-picker.ts";

const count = new Intl.NumberFormat("en");
const rate = (perSecond: number): string =>
  `${perSecond < 20 ? perSecond.toFixed(1) : count.format(Math.round(perSecond))} tokens/s`;
const duration = (ms: number): string => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

const endings: Readonly<Record<string, string>> = {
  length: "reached its token limit",
  stopped: "stopped",
  content_filter: "filtered",
};

/** `usual` are the ends that go without saying. */
export function statsLine(message: Message, usual: readonly string[] = []): string {
  const parts: string[] = [];
  const { stats, finish } = message;
  if (stats !== undefined) parts.push(...statParts(stats));
  const ending = finish === undefined ? "unfinished" : endings[finish];
  if (ending !== undefined && !usual.includes(finish ?? "")) parts.push(ending);
  return parts.join(" · ");
}

function statParts({ completionTokens, tokensPerSecond, firstMs, counted }: Stats): string[] {
  const parts = [`${counted ? "about " : ""}${count.format(completionTokens)} tokens`];
  if (tokensPerSecond !== null) parts.push(rate(tokensPerSecond));
  if (firstMs !== null) parts.push(`first after ${duration(firstMs)}`);
  return parts;
}

/** The same while it is written. */
export const liveStats = (pieces: number, perSecond: number | null): string =>
  pieces === 0 ? "" : `${count.format(pieces)} tokens${perSecond === null ? "" : ` · ${rate(perSecond)}`}`;

/** What is waited for before the first word. */
export function waitingLine(phase: Phase, model: string): HTMLElement {
  if (phase.at === "loading") {
    const percent = Math.round(phase.progress * 100);
    return h(
      "div",
      { class: "waiting" },
      h("span", {}, `${phase.phase === "download" ? "Downloading" : "Loading"} ${shortName(model)}… ${percent} %`),
      h("progress", { class: "bar", max: "1", value: phase.progress, "aria-label": "Loading the model" }),
    );
  }
  if (phase.at === "waiting") {
    return h("div", { class: "waiting" }, `The server is busy. Trying again in ${phase.seconds} s…`);
  }
  return h("div", { class: "waiting" }, h("span", { class: "breath", "aria-label": "The model reads" }));
}

const advice: Readonly<Record<string, string>> = {
  context_length_exceeded: "This conversation no longer fits what the model can read at once.",
  unreachable: "Is the server still running?",
  interrupted: "What had come by then is kept.",
};

export function failureNote(app: App, message: Message): HTMLElement | null {
  const { failure } = message;
  if (failure === undefined) return null;
  const again = () => void app.regenerate(message);
  const trim = () => {
    app.current.trims = true;
    void app.regenerate(message);
  };
  const isFull = failure.code === "context_length_exceeded";
  return h(
    "div",
    { class: "failure", role: "alert" },
    icon("warning"),
    h("div", {}, h("p", {}, failure.message), h("p", { class: "quiet" }, advice[failure.code] ?? failure.code)),
    h(
      "div",
      { class: "row" },
      isFull && h("button", { type: "button", class: "plain", onclick: trim }, "Leave out the oldest"),
      isFull && h("button", { type: "button", class: "plain", onclick: () => app.open(null) }, "New conversation"),
      !isFull && h("button", { type: "button", class: "plain", onclick: again }, "Try again"),
    ),
  );
}

/** ‹ 2 of 3 ›, where there are several. */
export function alternatives(app: App, message: Message): HTMLElement | null {
  const siblings = siblingsOf(app.current, message);
  if (siblings.length < 2) return null;
  const at = siblings.indexOf(message);
  return h(
    "span",
    { class: "alternatives" },
    iconButton("left", "The one before", () => app.turn(message, -1), { disabled: at === 0 }),
    h("span", { "aria-label": `Version ${at + 1} of ${siblings.length}` }, `${at + 1}/${siblings.length}`),
    iconButton("right", "The next one", () => app.turn(message, 1), { disabled: at === siblings.length - 1 }),
  );
}

/** A field in the place of a text, which is in the document: the next key is the field's already. */
export function editIn(
  place: Element,
  names: { readonly field: string; readonly save: string },
  text: string,
  save: (text: string) => void,
  leave: () => void,
): void {
  const field = h("textarea", { "aria-label": names.field }, text);
  const fit = () => {
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight + 2, innerHeight * 0.6)}px`;
  };
  const submit = () => {
    if (field.value.trim() !== "") save(field.value);
  };
  field.addEventListener("input", fit);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") leave();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  const buttons = h(
    "div",
    { class: "row end" },
    h("button", { type: "button", class: "plain", onclick: leave }, "Cancel"),
    h("button", { type: "button", class: "primary", onclick: submit, title: "Ctrl+Enter" }, names.save),
  );
  place.replaceChildren(h("div", { class: "editor" }, field, buttons));
  fit();
  field.focus();
  field.setSelectionRange(field.value.length, field.value.length);
}
