/** How a model writes reasoning and tool calls, found out from its template and vocabulary. */
import { type TaggedFormName, taggedForms } from "./tool-forms.ts";

/** "harmony" has a channel for each kind of text, gpt-oss's way. */
export type ToolCallForm = TaggedFormName | "harmony" | "none";

export interface AnswerForm {
  readonly toolCalls: ToolCallForm;
  /** What reasoning stands between; null where there is none, or channels tell it apart. */
  readonly reasoning: { readonly open: string; readonly close: string } | null;
}

const reasoningMarkers = [
  { open: "<think>", close: "</think>" },
  { open: "[THINK]", close: "[/THINK]" },
  { open: "<|START_THINKING|>", close: "<|END_THINKING|>" },
  { open: "<seed:think>", close: "</seed:think>" },
];

/** What tells a form, in a template or, where that is silent, in the vocabulary; the first that is found. */
const toolSigns: readonly (readonly [ToolCallForm, string])[] = [
  ["harmony", "<|channel|>"],
  ...(Object.keys(taggedForms) as TaggedFormName[]).map((name) => [name, taggedForms[name].open] as const),
];

/** Llama 3.2's template has no marker: it asks for JSON. */
const asksForJson = (template: string): boolean =>
  template.includes("<|start_header_id|>") && template.includes("tool_calls");

/** `hasToken` asks the vocabulary. */
export function detectAnswerForm(template: string, hasToken: (token: string) => boolean = () => false): AnswerForm {
  const find = (has: (sign: string) => boolean) => toolSigns.find(([, sign]) => has(sign))?.[0];
  const shown = find((sign) => template.includes(sign)) ?? (asksForJson(template) ? "llama3" : undefined);
  const toolCalls = shown ?? find(hasToken) ?? "none";
  if (toolCalls === "harmony") return { toolCalls, reasoning: null };
  const reasons = (has: (marker: string) => boolean) =>
    reasoningMarkers.find(({ open, close }) => has(open) || has(close));
  return { toolCalls, reasoning: reasons((marker) => template.includes(marker)) ?? reasons(hasToken) ?? null };
}

/** Every text that means something in answers of this form. */
export function markersOf({ toolCalls, reasoning }: AnswerForm): string[] {
  if (toolCalls === "harmony") return [...harmonyMarkers];
  const between = reasoning ? [reasoning.open, reasoning.close] : [];
  if (toolCalls === "none") return between;
  const {
    open,
    close,
    around = [],
  }: { open: string; close?: string; around?: readonly string[] } = taggedForms[toolCalls];
  return [...between, open, ...(close === undefined ? [] : [close]), ...around];
}

/** Tokens that a call is made of besides its markers. */
export const innerMarkers: readonly string[] = [
  "[ARGS]",
  "[CALL_ID]",
  "<｜tool▁sep｜>",
  "<|tool_call_argument_begin|>",
  "<|constrain|>",
];

export const harmonyMarkers = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"] as const;

/** Tokens that end an answer which asks for a tool, beside those that the model's files name. */
export const callEnds: Readonly<Partial<Record<ToolCallForm, readonly string[]>>> = {
  harmony: ["<|call|>", "<|return|>"],
  llama3: ["<|eom_id|>"],
};
