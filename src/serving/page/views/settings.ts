/** What shapes the answers of one conversation. What is left empty is the server's to decide. */
import type { App } from "../app.ts";
import type { Sampling } from "../conversation.ts";
import { h } from "../dom.ts";
import { storyDefaults } from "../question.ts";
import { showDialog } from "./dialogs.ts";

interface Setting {
  readonly name: Exclude<keyof Sampling, "stop">;
  readonly label: string;
  readonly hint: string;
  readonly min: number;
  readonly max: number;
  readonly step: number;
}

const settings: readonly Setting[] = [
  { name: "temperature", label: "Temperature", hint: "0 always takes the likeliest word", min: 0, max: 2, step: 0.05 },
  { name: "top_p", label: "Top p", hint: "only words that together are so likely", min: 0.01, max: 1, step: 0.01 },
  { name: "top_k", label: "Top k", hint: "only so many words; 0 is all", min: 0, max: 1000, step: 1 },
  { name: "min_p", label: "Min p", hint: "only words so likely beside the likeliest", min: 0, max: 1, step: 0.01 },
  {
    name: "repetition_penalty",
    label: "Repetition penalty",
    hint: "above 1, words come back less",
    min: 0.5,
    max: 2,
    step: 0.01,
  },
  { name: "presence_penalty", label: "Presence penalty", hint: "against what was said", min: -2, max: 2, step: 0.1 },
  { name: "frequency_penalty", label: "Frequency penalty", hint: "… as often as it was", min: -2, max: 2, step: 0.1 },
  { name: "max_tokens", label: "Most tokens", hint: "an answer ends there", min: 1, max: 1_000_000, step: 1 },
  { name: "seed", label: "Seed", hint: "the same gives the same text", min: 0, max: 2 ** 32 - 1, step: 1 },
];

export function openSettings(app: App): void {
  const { current: conversation } = app;
  const isStory = app.form === "story";
  const defaults: Partial<Record<keyof Sampling, number>> = isStory ? storyDefaults : {};

  const system = h(
    "textarea",
    { id: "system", rows: "6", placeholder: "You are a patient teacher. Answer in short sentences." },
    conversation.system,
  );
  const fields = settings.map(({ name, label, hint, min, max, step }) => {
    const field = h("input", {
      type: "number",
      id: `setting-${name}`,
      min,
      max,
      step,
      value: conversation.sampling[name] ?? "",
      placeholder: defaults[name] ?? "default",
      inputmode: "decimal",
      "aria-describedby": `hint-${name}`,
    });
    const row = h(
      "div",
      { class: "setting" },
      h("label", { for: field.id }, label, h("small", { id: `hint-${name}` }, hint)),
      field,
    );
    return { name, field, row };
  });
  const stop = h(
    "textarea",
    { id: "stop", rows: "2", placeholder: "one on each line" },
    (conversation.sampling.stop ?? []).join("\n"),
  );
  const trims = h("input", { type: "checkbox", checked: conversation.trims });

  const save = () => {
    conversation.system = system.value;
    conversation.trims = trims.checked;
    const sampling: Sampling = {};
    for (const { name, field } of fields) {
      if (field.value !== "" && field.validity.valid) sampling[name] = field.valueAsNumber;
    }
    const ends = stop.value.split("\n").filter((line) => line !== "");
    if (ends.length > 0) sampling.stop = ends.slice(0, 4);
    conversation.sampling = sampling;
    app.save(conversation);
  };
  const reset = () => {
    for (const { field } of fields) field.value = "";
    stop.value = "";
    save();
  };

  const systemPart = h(
    "section",
    {},
    h("label", { for: "system" }, "System prompt"),
    system,
    h("p", { class: "quiet small" }, "Said before everything else, in every answer of this conversation."),
  );
  const trimPart = h("label", { class: "check" }, trims, "Leave out the oldest messages when the context is full");
  const dialog = showDialog(
    "This conversation",
    { class: "sheet" },
    h(
      "div",
      { class: "sheet-body", oninput: save },
      ...(isStory ? [] : [systemPart]),
      h("section", {}, h("h3", {}, "Sampling"), ...fields.map(({ row }) => row)),
      h("section", {}, h("label", { for: "stop" }, "Stop at"), stop),
      ...(isStory ? [] : [h("section", {}, trimPart)]),
      h("button", { type: "button", class: "plain", onclick: reset }, "Back to the defaults"),
    ),
  );
  dialog.addEventListener("close", () => app.changed("thread"));
}
