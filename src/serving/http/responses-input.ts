/** The input of /v1/responses as the messages of a chat. */
import type { ChatMessage, GivenToolCall } from "../../models/chat/messages.ts";
import { invalid } from "./errors.ts";
import { Fields, isRecord } from "./fields.ts";

const roles = ["system", "developer", "user", "assistant"] as const;
const textTypes = ["input_text", "output_text", "text", "refusal"];

interface Assistant {
  role: "assistant";
  content: string | null;
  reasoning_content?: string;
  tool_calls?: GivenToolCall[];
}

/** What an assistant thought, said and called are items of their own there, and one message here. */
export function inputMessages(fields: Fields): ChatMessage[] {
  const instructions = fields.text("instructions");
  const messages: (ChatMessage | Assistant)[] =
    instructions === undefined ? [] : [{ role: "system", content: instructions }];
  const input = fields.required("input");
  if (typeof input === "string") return [...messages, { role: "user", content: input }];
  let assistant: Assistant | null = null;
  const speak = (): Assistant => {
    if (assistant) return assistant;
    assistant = { role: "assistant", content: null };
    messages.push(assistant);
    return assistant;
  };
  for (const [i, given] of (fields.list("input") ?? []).entries()) {
    const item = new Fields(given, `input[${i}]`);
    const type = item.text("type") ?? "message";
    if (type === "message") {
      item.required("role");
      const role = item.choice("role", roles)!;
      const content = textOf(item, "content");
      if (role === "assistant") {
        const turn: Assistant = speak();
        turn.content = (turn.content ?? "") + content;
      } else {
        assistant = null;
        messages.push({ role: role === "developer" ? "system" : role, content });
      }
    } else if (type === "function_call") {
      for (const name of ["call_id", "name", "arguments"]) item.required(name);
      const turn: Assistant = speak();
      turn.tool_calls ??= [];
      turn.tool_calls.push({
        id: item.text("call_id"),
        type: "function",
        function: { name: item.text("name")!, arguments: item.text("arguments")! },
      });
    } else if (type === "function_call_output") {
      item.required("call_id");
      assistant = null;
      messages.push({ role: "tool", tool_call_id: item.text("call_id"), content: textOf(item, "output") });
    } else if (type === "reasoning") {
      const turn: Assistant = speak();
      const thought = (item.list("content") ?? [])
        .map((part) => (isRecord(part) ? String(part.text ?? "") : ""))
        .join("");
      if (thought !== "") turn.reasoning_content = (turn.reasoning_content ?? "") + thought;
    } else invalid(item.param("type"), `items of type ${JSON.stringify(type)} are not supported here`);
  }
  const said = messages.filter(
    (message) => message.role !== "assistant" || message.content !== null || (message as Assistant).tool_calls,
  );
  if (said.length === 0) invalid("input", "input is empty: there is nothing to answer");
  return said;
}

function textOf(item: Fields, name: string): string {
  const given = item.required(name);
  if (typeof given === "string") return given;
  return (item.list(name) ?? [])
    .map((part, i) => {
      const fields = new Fields(part, `${item.param(name)}[${i}]`);
      const type = fields.text("type");
      if (type !== undefined && textTypes.includes(type))
        return fields.text(type === "refusal" ? "refusal" : "text") ?? "";
      return invalid(fields.param("type"), `parts of type ${JSON.stringify(type)} are not supported here; text is`);
    })
    .join("\n");
}
