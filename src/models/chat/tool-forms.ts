/** The forms in which models write tool calls between markers, one row for each. */

/** A call as a model wrote it; arguments are JSON. */
export interface WrittenCall {
  readonly name: string;
  readonly arguments: string;
  readonly id?: string | undefined;
}

export interface TaggedForm {
  /** What a call, or several, stand behind. */
  readonly open: string;
  /** What ends them; without one they go on to the next `open` or the end of the answer. */
  readonly close?: string;
  /** Markers around all calls, which mean nothing else. */
  readonly around?: readonly string[];
  /** Whether an answer that is JSON from its first character is a call without a marker. */
  readonly bare?: boolean;
  /** The calls in what stands behind `open`, or null where it is none. */
  readonly parse: (body: string) => WrittenCall[] | null;
}

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

function fromJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** `{name, arguments}`, by any of the names that models give to these, or a list of them. */
function callsOf(value: unknown): WrittenCall[] | null {
  const items = Array.isArray(value) ? value : [value];
  const calls = items.map((item): WrittenCall | null => {
    const call = isRecord(item) && isRecord(item.function) ? item.function : item;
    const name = isRecord(call) ? (call.name ?? call.tool_name) : undefined;
    if (!isRecord(call) || typeof name !== "string") return null;
    const given = call.arguments ?? call.parameters ?? {};
    if (typeof given !== "string" && !isRecord(given)) return null;
    const id = isRecord(item) && typeof item.id === "string" ? { id: item.id } : {};
    return { name, arguments: typeof given === "string" ? given : JSON.stringify(given), ...id };
  });
  return calls.length > 0 && calls.every((call) => call !== null) ? calls : null;
}

/** Several JSON values behind one another, with `;`, commas or space between them. */
function jsonValues(text: string): unknown[] | null {
  const values: unknown[] = [];
  let rest = text.trim();
  while (rest !== "") {
    const end = endOfJson(rest);
    const value = end === 0 ? undefined : fromJson(rest.slice(0, end));
    if (value === undefined) return null;
    values.push(value);
    rest = rest.slice(end).replace(/^[\s;,]+/, "");
  }
  return values.length > 0 ? values : null;
}

/** Where the object or list ends that a text starts with; 0 where there is none. */
function endOfJson(text: string): number {
  if (text[0] !== "{" && text[0] !== "[") return 0;
  let depth = 0;
  let inText = false;
  for (let i = 0; i < text.length; i++) {
    const c = text[i];
    if (inText) {
      if (c === "\\") i++;
      else if (c === '"') inText = false;
    } else if (c === '"') inText = true;
    else if (c === "{" || c === "[") depth++;
    else if ((c === "}" || c === "]") && --depth === 0) return i + 1;
  }
  return 0;
}

const parseJsonCalls = (body: string): WrittenCall[] | null => {
  const values = jsonValues(body);
  return values && callsOf(values.flat());
};

/** Qwen3-Coder's: `<function=name><parameter=key>value</parameter></function>`. Values that are JSON are taken as such. */
function parseParameterTags(body: string): WrittenCall[] | null {
  const name = /^\s*<function=([^>\s]+)>/.exec(body)?.[1];
  if (name === undefined) return null;
  const pairs = [...body.matchAll(/<parameter=([^>\s]+)>\n?([\s\S]*?)\n?<\/parameter>/g)];
  const values = pairs.map(([, key, text]) => [key!, fromJson(text!) ?? text!] as const);
  return [{ name, arguments: JSON.stringify(Object.fromEntries(values)) }];
}

/** GLM's: `name` and pairs of `<arg_key>` and `<arg_value>`. */
function parseArgumentTags(body: string): WrittenCall[] | null {
  const name = /^\s*([\w.:-]+)\s*(?:<arg_key>|$)/.exec(body)?.[1];
  if (name === undefined) return null;
  const pairs = [...body.matchAll(/<arg_key>([\s\S]*?)<\/arg_key>\s*<arg_value>([\s\S]*?)<\/arg_value>/g)];
  const values = pairs.map(([, key, text]) => [key!.trim(), fromJson(text!) ?? text!] as const);
  return [{ name, arguments: JSON.stringify(Object.fromEntries(values)) }];
}

/** Mistral's newer one: `name[ARGS]{…}`, with `[CALL_ID]id` between where there is one. */
function parseNamedArguments(body: string): WrittenCall[] | null {
  const found = /^\s*([\w.:-]+)(?:\[CALL_ID\]([\w-]+))?\[ARGS\]([\s\S]*)$/.exec(body);
  if (!found) return null;
  const [, name, id, args] = found;
  const json = args!.trim() === "" ? "{}" : args!.trim();
  return isRecord(fromJson(json)) ? [{ name: name!, arguments: json, id }] : null;
}

/** Llama's built-in tools: `name.call(key="value", …)`. */
function parsePython(body: string): WrittenCall[] | null {
  const found = /^\s*(\w+)\.call\(([\s\S]*)\)\s*$/.exec(body);
  if (!found) return null;
  const pairs = [...found[2]!.matchAll(/(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|-?[\d.]+|true|false|null)/g)];
  const values = pairs.map(([, key, json]) => [key!, fromJson(json!)] as const);
  return [{ name: found[1]!, arguments: JSON.stringify(Object.fromEntries(values)) }];
}

/** DeepSeek's: `function⟨sep⟩name` and fenced JSON, or, since V3.1, `name⟨sep⟩` and JSON. */
function parseDeepseek(body: string): WrittenCall[] | null {
  const [head, tail] = body.split("<｜tool▁sep｜>");
  if (head === undefined || tail === undefined) return null;
  const fenced = /^\s*(\S+)\s*```(?:json)?\s*([\s\S]*?)\s*```\s*$/.exec(tail);
  const [name, args] = fenced ? [fenced[1]!, fenced[2]!] : [head.trim(), tail.trim()];
  return isRecord(fromJson(args)) ? [{ name, arguments: args }] : null;
}

/** Kimi's: `functions.name:0⟨arguments⟩{…}`, the first part of which is the call's id. */
function parseKimi(body: string): WrittenCall[] | null {
  const found = /^\s*((?:functions\.)?([\w.-]+?)(?::\d+)?)\s*<\|tool_call_argument_begin\|>\s*([\s\S]*)$/.exec(body);
  if (!found) return null;
  const [, id, name, args] = found;
  return isRecord(fromJson(args!.trim())) ? [{ name: name!, arguments: args!.trim(), id }] : null;
}

export const taggedForms = {
  /** Hermes, Qwen and many others. */
  hermes: {
    open: "<tool_call>",
    close: "</tool_call>",
    parse: (body) => parseJsonCalls(body) ?? parseParameterTags(body) ?? parseArgumentTags(body),
  },
  nemotron: { open: "<TOOLCALL>", close: "</TOOLCALL>", parse: parseJsonCalls },
  /** Granite's, and Phi 4's, which closes it. */
  granite: { open: "<|tool_call|>", close: "<|/tool_call|>", parse: parseJsonCalls },
  cohere: {
    open: "<|START_ACTION|>",
    close: "<|END_ACTION|>",
    around: ["<|START_RESPONSE|>", "<|END_RESPONSE|>"],
    parse: parseJsonCalls,
  },
  kimi: {
    open: "<|tool_call_begin|>",
    close: "<|tool_call_end|>",
    around: ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
    parse: parseKimi,
  },
  llama3: { open: "<|python_tag|>", bare: true, parse: (body) => parseJsonCalls(body) ?? parsePython(body) },
  mistral: { open: "[TOOL_CALLS]", parse: (body) => parseNamedArguments(body) ?? parseJsonCalls(body) },
  deepseek: {
    open: "<｜tool▁call▁begin｜>",
    close: "<｜tool▁call▁end｜>",
    around: ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
    parse: parseDeepseek,
  },
} satisfies Record<string, TaggedForm>;

export type TaggedFormName = keyof typeof taggedForms;
