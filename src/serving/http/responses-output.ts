/** The output of /v1/responses: items that are added, grow and are done, each step an event of a stream. */
import { randomUUID } from "node:crypto";
import type { AnswerEvent } from "../../models/chat/answer.ts";
import type { ServerEvent } from "./sse.ts";

interface Part {
  readonly type: "output_text" | "reasoning_text";
  text: string;
  readonly annotations?: readonly never[];
  readonly logprobs?: readonly never[];
}

interface Item {
  readonly id: string;
  readonly type: "message" | "reasoning" | "function_call";
  status: "in_progress" | "completed" | "incomplete";
  readonly role?: "assistant";
  readonly content?: Part[];
  readonly summary?: readonly never[];
  readonly call_id?: string;
  readonly name?: string;
  arguments?: string;
}

/** How the two kinds of items that hold text differ. */
const kinds = {
  text: { item: "message", prefix: "msg", part: "output_text", event: "response.output_text" },
  reasoning: { item: "reasoning", prefix: "rs", part: "reasoning_text", event: "response.reasoning_text" },
} as const;
type Kind = keyof typeof kinds;

const newId = (prefix: string): string => `${prefix}_${randomUUID().replaceAll("-", "")}`;

export class ResponseOutput {
  readonly items: Item[] = [];
  #open: { readonly kind: Kind; readonly item: Item; readonly part: Part } | null = null;
  #sequence = 0;

  event(type: string, fields: object): ServerEvent {
    return { event: type, data: JSON.stringify({ type, sequence_number: this.#sequence++, ...fields }) };
  }

  *push(part: AnswerEvent): Generator<ServerEvent> {
    if (part.type === "tool_call") {
      yield* this.close("completed");
      yield* this.#call(part.call.id, part.call.function.name, part.call.function.arguments);
      return;
    }
    if (this.#open?.kind !== part.type) {
      yield* this.close("completed");
      yield* this.#begin(part.type);
    }
    const open = this.#open!;
    open.part.text += part.text;
    const logprobs = part.type === "text" ? { logprobs: [] } : {};
    yield this.event(`${kinds[part.type].event}.delta`, { ...this.#place(open.item), delta: part.text, ...logprobs });
  }

  /** The item that grows, if any, grows no more. */
  *close(status: "completed" | "incomplete"): Generator<ServerEvent> {
    if (!this.#open) return;
    const { kind, item, part } = this.#open;
    this.#open = null;
    item.status = status;
    const place = this.#place(item);
    const logprobs = kind === "text" ? { logprobs: [] } : {};
    yield this.event(`${kinds[kind].event}.done`, { ...place, text: part.text, ...logprobs });
    yield this.event("response.content_part.done", { ...place, part });
    yield this.event("response.output_item.done", { output_index: place.output_index, item });
  }

  *#begin(kind: Kind): Generator<ServerEvent> {
    const { item: type, prefix, part: partType } = kinds[kind];
    const part: Part = { type: partType, text: "", ...(kind === "text" && { annotations: [], logprobs: [] }) };
    const item: Item = {
      id: newId(prefix),
      type,
      status: "in_progress",
      ...(kind === "text" ? { role: "assistant" } : { summary: [] }),
      content: [],
    };
    this.items.push(item);
    yield this.event("response.output_item.added", { output_index: this.items.length - 1, item });
    item.content!.push(part);
    this.#open = { kind, item, part };
    yield this.event("response.content_part.added", { ...this.#place(item), part });
  }

  *#call(callId: string, name: string, args: string): Generator<ServerEvent> {
    const item: Item = {
      id: newId("fc"),
      type: "function_call",
      status: "in_progress",
      call_id: callId,
      name,
      arguments: "",
    };
    this.items.push(item);
    const place = { item_id: item.id, output_index: this.items.length - 1 };
    yield this.event("response.output_item.added", { output_index: place.output_index, item });
    item.arguments = args;
    item.status = "completed";
    yield this.event("response.function_call_arguments.delta", { ...place, delta: args });
    yield this.event("response.function_call_arguments.done", { ...place, name, arguments: args });
    yield this.event("response.output_item.done", { output_index: place.output_index, item });
  }

  #place(item: Item) {
    return { item_id: item.id, output_index: this.items.indexOf(item), content_index: 0 };
  }
}
