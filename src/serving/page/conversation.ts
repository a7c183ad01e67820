/**
 * A conversation is a tree: an edited message or another try is a sibling of the first, so nothing that was said is
 * lost. `leaf` is the end of the branch that is shown.
 */

export interface ToolCall {
  name: string;
  arguments: string;
}

export interface Stats {
  readonly promptTokens: number | null;
  readonly completionTokens: number;
  readonly tokensPerSecond: number | null;
  /** From the question to the first token. */
  readonly firstMs: number | null;
  /** Whether the page has counted because the server had not told. */
  readonly counted: boolean;
}

export interface Failure {
  readonly code: string;
  readonly message: string;
}

export interface Message {
  readonly id: string;
  readonly parent: string | null;
  readonly role: "user" | "assistant";
  content: string;
  reasoning?: string;
  reasoningMs?: number;
  toolCalls?: ToolCall[];
  model?: string;
  stats?: Stats;
  /** OpenAI's reason, or "stopped" by the user; missing while it is written, and for ever where the page was closed. */
  finish?: string;
  failure?: Failure;
}

/** What is not set is left to the server. */
export interface Sampling {
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  repetition_penalty?: number;
  presence_penalty?: number;
  frequency_penalty?: number;
  max_tokens?: number;
  seed?: number;
  stop?: string[];
}

export type Form = "chat" | "story";

export interface Conversation {
  readonly id: string;
  /** Where the user gave one. */
  title: string | null;
  readonly created: number;
  updated: number;
  model: string | null;
  /** Messages, or one text that a model goes on with: as its first model has it, whatever model comes later. */
  form: Form | null;
  system: string;
  sampling: Sampling;
  /** Leave out the oldest messages where all of them do not fit. */
  trims: boolean;
  messages: Message[];
  leaf: string | null;
}

// `crypto.randomUUID` is for secure contexts only, and a server on the local network is none.
const newId = (): string =>
  Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");

export function newConversation(model: string | null): Conversation {
  const now = Date.now();
  return {
    id: newId(),
    title: null,
    created: now,
    updated: now,
    model,
    form: null,
    system: "",
    sampling: {},
    trims: false,
    messages: [],
    leaf: null,
  };
}

export function addMessage(
  conversation: Conversation,
  role: Message["role"],
  content: string,
  parent: string | null,
): Message {
  const message: Message = { id: newId(), parent, role, content };
  conversation.messages.push(message);
  conversation.leaf = message.id;
  conversation.updated = Date.now();
  return message;
}

/** The branch that is shown, from its start. */
export function pathOf(conversation: Conversation): Message[] {
  const byId = new Map(conversation.messages.map((message) => [message.id, message]));
  const path: Message[] = [];
  let next = conversation.leaf === null ? undefined : byId.get(conversation.leaf);
  while (next !== undefined && path.length <= byId.size) {
    path.push(next);
    next = next.parent === null ? undefined : byId.get(next.parent);
  }
  return path.reverse();
}

/** Messages in the same place, in the order in which they came. */
export const siblingsOf = (conversation: Conversation, { parent, role }: Message): Message[] =>
  conversation.messages.filter((other) => other.parent === parent && other.role === role);

/** Shows the branch through a message: on from it, the newest. */
export function showBranch(conversation: Conversation, id: string): void {
  conversation.leaf = id;
  for (let i = 0; i < conversation.messages.length; i++) {
    const child = conversation.messages.findLast(({ parent }) => parent === conversation.leaf);
    if (child === undefined) break;
    conversation.leaf = child.id;
  }
}

export const storyOf = (path: readonly Message[]): string => path.map(({ content }) => content).join("");

export function titleOf(conversation: Conversation): string {
  if (conversation.title !== null) return conversation.title;
  const first = conversation.messages.find(({ content }) => content.trim() !== "")?.content ?? "";
  const line = first.trim().split("\n", 1)[0]!;
  return line === "" ? "New conversation" : line.length > 70 ? `${line.slice(0, 68).trimEnd()}…` : line;
}

export function asMarkdown(conversation: Conversation): string {
  const parts = [`# ${titleOf(conversation)}`];
  if (conversation.system !== "") parts.push(`> ${conversation.system.replaceAll("\n", "\n> ")}`);
  for (const { role, content, model } of pathOf(conversation)) {
    parts.push(`**${role === "user" ? "You" : (model ?? "Model")}**`, content);
  }
  return `${parts.join("\n\n")}\n`;
}

const isRecord = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null;
const isMessage = (value: unknown): value is Message =>
  isRecord(value) &&
  typeof value.id === "string" &&
  (value.parent === null || typeof value.parent === "string") &&
  (value.role === "user" || value.role === "assistant") &&
  typeof value.content === "string";

/** What was stored, if it is a conversation: a store may hold what another version or another program wrote. */
export function readConversation(value: unknown): Conversation | null {
  if (!isRecord(value) || typeof value.id !== "string" || !Array.isArray(value.messages)) return null;
  if (!value.messages.every(isMessage)) return null;
  const number = (candidate: unknown) => (typeof candidate === "number" ? candidate : Date.now());
  const textOrNull = (candidate: unknown) => (typeof candidate === "string" ? candidate : null);
  return {
    id: value.id,
    title: textOrNull(value.title),
    created: number(value.created),
    updated: number(value.updated),
    model: textOrNull(value.model),
    form: value.form === "story" ? "story" : "chat",
    system: textOrNull(value.system) ?? "",
    sampling: isRecord(value.sampling) ? (value.sampling as Sampling) : {},
    trims: value.trims === true,
    messages: value.messages,
    leaf: textOrNull(value.leaf),
  };
}
