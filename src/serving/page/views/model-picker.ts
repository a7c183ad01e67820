/** Which model answers, and how far it is loaded. */
import type { App } from "../app.ts";
import { h, icon } from "../dom.ts";
import type { Model } from "../model.ts";
import { toggleMenu } from "./menu.ts";

const count = new Intl.NumberFormat("en");
const states = { unloaded: "loads at the first message", ready: "ready" } as const;

function noteOn({ state, phase, progress, error, contextLength, kind }: Model): string {
  const loading = `${phase === "download" ? "downloading" : "loading"}, ${Math.round(progress * 100)} %`;
  const parts = [
    state === "loading" ? loading : state === "unloaded" && error !== null ? `failed: ${error}` : states[state],
  ];
  if (contextLength !== null) parts.push(`${count.format(contextLength)} tokens of context`);
  if (kind === "completion") parts.push("goes on with a text");
  return parts.join(" · ");
}

/** The last part of a path or of a name with its owner. */
export const shortName = (id: string): string => id.split("/").at(-1)!;

export function modelPicker(app: App): HTMLElement {
  const name = h("span", { class: "name" });
  const dot = h("span", { class: "dot", "aria-hidden": "true" });
  const bar = h("progress", { class: "bar", max: "1", "aria-label": "Loading the model" });
  const button = h(
    "button",
    {
      type: "button",
      class: "model-picker",
      "aria-haspopup": "menu",
      "aria-expanded": "false",
      onclick: () => {
        void app.server.refresh();
        const items = app.server.usable.map((model) => ({
          label: shortName(model.id),
          note: noteOn(model),
          checked: model.id === app.model?.id,
          run: () => app.choose(model),
        }));
        if (items.length > 0) toggleMenu(button, items);
      },
    },
    dot,
    name,
    icon("down"),
    bar,
  );
  const missing = () => (app.server.connected === null ? "…" : app.server.connected ? "no model" : "no server");
  const show = () => {
    const { model } = app;
    name.textContent = model === null ? missing() : shortName(model.id);
    button.title = model === null ? "" : `${model.id}: ${noteOn(model)}`;
    button.setAttribute("aria-label", model === null ? "Model" : `Model: ${model.id}, ${noteOn(model)}`);
    dot.dataset.state = model?.state ?? "unloaded";
    bar.hidden = model?.state !== "loading";
    bar.value = model?.progress ?? 0;
  };
  app.on(["models", "connection", "thread"], show);
  show();
  return button;
}
