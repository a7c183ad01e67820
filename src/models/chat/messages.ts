/** Chats in the form of OpenAI's API: messages, content in parts, tools, their calls and results. */
import { fail } from "../../core/errors.ts";

export interface TextPart {
  readonly type: "text";
  readonly text: string;
}

/** A function that the model may ask for; `parameters` is a JSON schema. */
export interface ToolDefinition {
  readonly type: "function";
  readonly function: {
    readonly name: string;
    readonly description?: string | undefined;
    readonly parameters?: Readonly<Record<string, unknown>> | undefined;
  };
}

export interface ToolCall {
  readonly id: string;
  readonly type: "function";
  readonly function: {
    readonly name: string;
    /** JSON. In messages that are given to a model it may be an object, too. */
    readonly arguments: string;
  };
}

export interface GivenToolCall extends Omit<ToolCall, "id" | "function"> {
  readonly id?: string | undefined;
  readonly function: { readonly name: string; readonly arguments: string | Readonly<Record<string, unknown>> };
}

export interface ChatMessage {
  readonly role: "system" | "user" | "assistant" | "tool" | (string & {});
  /** Null or absent where an assistant's message only calls tools. */
  readonly content?: string | readonly TextPart[] | null | undefined;
  /** What an assistant thought before it answered. */
  readonly reasoning_content?: string | undefined;
  readonly tool_calls?: readonly GivenToolCall[] | undefined;
  /** Which call a tool's message answers. */
  readonly tool_call_id?: string | undefined;
  /** The tool's, or the speaker's. */
  readonly name?: string | undefined;
}

/** What a template takes where templates differ. */
export interface MessageForm {
  readonly content: "text" | "parts";
  readonly arguments: "object" | "text";
}

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** Messages as a template takes them; fields without a value are left out, since templates ask whether they are there. */
export function messagesFor(messages: readonly ChatMessage[], form: MessageForm): Record<string, unknown>[] {
  if (messages.length === 0) fail("InvalidArgument", "a chat needs at least one message");
  return messages.map((message) => {
    if (!isRecord(message) || typeof message.role !== "string")
      fail("InvalidArgument", `a chat message needs a role and a content; got ${JSON.stringify(message)}`);
    const { content, tool_calls: calls, reasoning_content: reasoning, ...others } = message;
    const known = Object.fromEntries(Object.entries(others).filter(([, value]) => value !== undefined));
    const hasCalls = calls !== undefined && calls.length > 0;
    return {
      ...known,
      content: contentFor(content, message, form, hasCalls),
      // Under both names that templates know it by.
      ...(reasoning !== undefined && { reasoning_content: reasoning, thinking: reasoning }),
      ...(hasCalls && { tool_calls: calls.map((call) => callFor(call, form)) }),
    };
  });
}

function contentFor(
  content: ChatMessage["content"],
  message: ChatMessage,
  form: MessageForm,
  mayMiss: boolean,
): string | TextPart[] {
  if (content === null || content === undefined) {
    if (mayMiss) return "";
    fail(
      "InvalidArgument",
      `a chat message needs a role and a content (text, or parts of text); got ${JSON.stringify(message)}`,
    );
  }
  if (typeof content === "string") return form.content === "parts" ? [{ type: "text", text: content }] : content;
  if (!Array.isArray(content))
    fail("InvalidArgument", `a chat message's content is text or a list of parts; got ${JSON.stringify(message)}`);
  const parts = content.map((part: unknown) => {
    if (isRecord(part) && part.type === "text" && typeof part.text === "string")
      return { type: "text" as const, text: part.text };
    const what = isRecord(part) && typeof part.type === "string" ? `of type "${part.type}"` : JSON.stringify(part);
    return fail("InvalidArgument", `a part of a message's content is ${what}; models here take { type: "text", text }`);
  });
  return form.content === "parts" ? parts : parts.map(({ text }) => text).join("\n");
}

function callFor(call: GivenToolCall, form: MessageForm): Record<string, unknown> {
  const { name, arguments: given } = call.function ?? {};
  if (typeof name !== "string" || (typeof given !== "string" && !isRecord(given)))
    fail(
      "InvalidArgument",
      `a tool call is { id, type: "function", function: { name, arguments } } with arguments as JSON or an object; got ${JSON.stringify(call)}`,
    );
  const { id, type = "function", ...others } = call;
  const args = form.arguments === "text" ? (typeof given === "string" ? given : JSON.stringify(given)) : parsed(given);
  return { ...others, ...(id !== undefined && { id }), type, function: { name, arguments: args } };
}

/** Arguments that are no JSON object, as a model may write them, stay text. */
function parsed(given: string | Readonly<Record<string, unknown>>): unknown {
  if (typeof given !== "string") return given;
  try {
    const value: unknown = JSON.parse(given === "" ? "{}" : given);
    return isRecord(value) ? value : given;
  } catch {
    return given;
  }
}

export function checkTools(tools: readonly ToolDefinition[]): void {
  for (const tool of tools) {
    if (tool?.type !== "function" || typeof tool.function?.name !== "string")
      fail(
        "InvalidArgument",
        `a tool is { type: "function", function: { name, description, parameters } }; got ${JSON.stringify(tool)}`,
      );
  }
}
