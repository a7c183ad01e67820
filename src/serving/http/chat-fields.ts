/** A chat as clients ask for one: its messages and tools, and how it is to be answered. */
import type { ChatMessage, ToolDefinition } from "../../models/chat/messages.ts";
import { invalid } from "./errors.ts";
import { Fields, isRecord } from "./fields.ts";

const roles = ["system", "developer", "user", "assistant", "tool"] as const;

export function messagesOf(fields: Fields): ChatMessage[] {
  fields.required("messages");
  const list = fields.list("messages")!;
  if (list.length === 0) invalid("messages", "messages is empty: a chat needs at least one");
  return list.map((item, i) => {
    const message = new Fields(item, `messages[${i}]`);
    message.required("role");
    const role = message.choice("role", roles)!;
    checkContent(message, role);
    const { content, ...others } = message.values;
    // Templates know the role by its older name.
    return { ...others, role: role === "developer" ? "system" : role, content } as ChatMessage;
  });
}

function checkContent(message: Fields, role: string): void {
  const content = message.get("content");
  const calls = message.list("tool_calls");
  if (content === undefined) {
    if (role === "assistant" && calls && calls.length > 0) return;
    invalid(message.param("content"), `${message.param("content")} is missing`, "missing_required_parameter");
  }
  if (typeof content === "string") return;
  if (!Array.isArray(content)) {
    invalid(message.param("content"), `${message.param("content")} must be text or a list of parts`, "invalid_type");
  }
  for (const [i, part] of (content as unknown[]).entries()) {
    const param = `${message.param("content")}[${i}]`;
    const type = isRecord(part) ? part.type : undefined;
    if (type !== "text" || typeof (part as { text?: unknown }).text !== "string") {
      invalid(param, `${param} is of type ${JSON.stringify(type)}; models here take { type: "text", text }`);
    }
  }
}

export type ToolChoice = "none" | "auto" | "required" | { readonly name: string };

export interface ToolFields {
  readonly tools: readonly ToolDefinition[];
  readonly choice: ToolChoice;
  /** Whether an answer may call several; where that is not said, one that is made to call calls one. */
  readonly isParallel: boolean | undefined;
}

const TOOL_NAME = /^[\w.:-]{1,128}$/;

/** `functions` gives each item's function: the chat's has it under that name, the one of responses is it. */
export function toolsOf(fields: Fields, functionOf: (tool: Fields) => Fields): ToolFields {
  const tools = (fields.list("tools") ?? []).map((item, i): ToolDefinition => {
    const tool = new Fields(item, `tools[${i}]`);
    if (tool.required("type") !== "function") {
      invalid(tool.param("type"), `${tool.param("type")} must be function; there are no other tools here`);
    }
    const called = functionOf(tool);
    called.required("name");
    const name = called.text("name")!;
    if (!TOOL_NAME.test(name)) invalid(called.param("name"), `${JSON.stringify(name)} is no name of a function`);
    const [description, parameters] = [called.text("description"), called.object("parameters")?.values];
    return {
      type: "function",
      function: {
        name,
        ...(description !== undefined && { description }),
        ...(parameters !== undefined && { parameters }),
      },
    };
  });
  const names = tools.map((tool) => tool.function.name);
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice !== undefined) invalid("tools", `two tools are named ${twice}`);
  return { tools, choice: choiceOf(fields, names, functionOf), isParallel: fields.flag("parallel_tool_calls") };
}

function choiceOf(fields: Fields, names: readonly string[], functionOf: (tool: Fields) => Fields): ToolChoice {
  const given = fields.get("tool_choice");
  const has = names.length > 0;
  if (given === undefined) return has ? "auto" : "none";
  if (typeof given === "string") {
    const choice = fields.choice("tool_choice", ["none", "auto", "required"])!;
    if (choice === "required" && !has) invalid("tool_choice", "tool_choice asks for a tool, but there are no tools");
    return has ? choice : "none";
  }
  const tool = new Fields(given, "tool_choice");
  tool.choice("type", ["function"]);
  const called = functionOf(tool);
  called.required("name");
  const name = called.text("name")!;
  if (!names.includes(name)) invalid("tool_choice", `tool_choice asks for ${JSON.stringify(name)}, which is no tool`);
  return { name };
}
