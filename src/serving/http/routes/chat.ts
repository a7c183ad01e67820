/** POST /v1/chat/completions */
import { randomUUID } from "node:crypto";
import type { AnswerEvent } from "../../../models/chat/answer.ts";
import type { ToolCall } from "../../../models/chat/messages.ts";
import { readBody } from "../body.ts";
import { messagesOf, toolsOf } from "../chat-fields.ts";
import { answerChat, type ChatRequest, type ChatStep } from "../chat-run.ts";
import { invalid } from "../errors.ts";
import { Fields } from "../fields.ts";
import { finishReason } from "../finish.ts";
import { formatOf, responseFormatOf } from "../format-fields.ts";
import { type ChatLogprob, chatLogprob } from "../logprobs.ts";
import type { Meter } from "../meter.ts";
import { endOf, streamingOf } from "../sampling-fields.ts";
import { type AppContext, fingerprint, type Limits, type ServerContext } from "../server-context.ts";
import { type ServerEvent, streamed } from "../sse.ts";

const MOST_LOGPROBS = 20;

export const chatCompletions = (server: ServerContext) => async (c: AppContext) => {
  const exchange = c.get("exchange");
  const fields = await readBody(c.req.raw, server.limits.bodyBytes);
  const { isStream, includeUsage } = streamingOf(fields);
  const steps = answerChat(server, exchange, chatRequestOf(fields, server.limits));
  const head = { id: `chatcmpl-${randomUUID()}`, created: Math.floor(Date.now() / 1000) };
  if (isStream) {
    const onFailure = (error: unknown) => server.log.error(error, exchange.id);
    return streamed(chunks(server, steps, head, includeUsage), { exchange, onFailure });
  }
  return c.json(await wholeAnswer(server, steps, head));
};

function chatRequestOf(fields: Fields, limits: Limits): ChatRequest {
  fields.refuse(["functions", "function_call", "audio", "prediction", "web_search_options"]);
  fields.refuse(["modalities"], (value) => Array.isArray(value) && value.every((item) => item === "text"));
  fields.refuse(["continue_final_message", "echo"], (value) => value === false);
  const logprobs = fields.flag("logprobs") ?? false;
  const top = fields.count("top_logprobs", { max: MOST_LOGPROBS });
  if (top !== undefined && !logprobs) invalid("top_logprobs", "top_logprobs needs logprobs to be true");
  const effort = fields.text("reasoning_effort");
  return {
    model: fields.text("model"),
    messages: messagesOf(fields),
    tools: toolsOf(fields, (tool) => new Fields(tool.required("function"), tool.param("function"))),
    format: formatOf(fields, responseFormatOf(fields.object("response_format"))),
    variables: {
      ...(effort !== undefined && { reasoning_effort: effort }),
      ...fields.object("chat_template_kwargs")?.values,
    },
    count: fields.count("n", { min: 1, max: limits.choices }) ?? 1,
    end: endOf(fields, ["max_completion_tokens", "max_tokens"]),
    logprobs: logprobs ? (top ?? 0) : undefined,
    fields,
  };
}

interface Head {
  readonly id: string;
  readonly created: number;
}

const headOf = (server: ServerContext, { lease }: ChatStep, head: Head, object: string) => ({
  id: head.id,
  object,
  created: head.created,
  model: lease.id,
  system_fingerprint: fingerprint(server, lease),
});

/** An answer that is put together. */
interface Message {
  content: string;
  reasoning: string;
  readonly calls: ToolCall[];
  readonly logprobs: ChatLogprob[];
  reason: string | null;
}

async function wholeAnswer(server: ServerContext, steps: AsyncIterable<ChatStep>, head: Head) {
  const messages = new Map<number, Message>();
  let last: ChatStep | undefined;
  for await (const found of steps) {
    last = found;
    const { index, step, lease } = found;
    let message = messages.get(index);
    if (!message) {
      message = { content: "", reasoning: "", calls: [], logprobs: [], reason: null };
      messages.set(index, message);
    }
    if (step.logprob !== undefined) message.logprobs.push(chatLogprob(lease.model.tokenizer!, step));
    for (const part of step.parts) {
      if (part.type === "text") message.content += part.text;
      else if (part.type === "reasoning") message.reasoning += part.text;
      else message.calls.push(part.call);
    }
    if (step.finish !== null) message.reason = finishReason(step.finish, message.calls.length > 0);
  }
  const { meter } = last!;
  const hasLogprobs = last!.step.logprob !== undefined;
  return {
    ...headOf(server, last!, head, "chat.completion"),
    choices: [...messages]
      .sort(([a], [b]) => a - b)
      .map(([index, { content, reasoning, calls, logprobs, reason }]) => ({
        index,
        message: {
          role: "assistant",
          content: content === "" && calls.length > 0 ? null : content,
          refusal: null,
          ...(reasoning !== "" && { reasoning_content: reasoning }),
          ...(calls.length > 0 && { tool_calls: calls }),
        },
        logprobs: hasLogprobs ? { content: logprobs, refusal: null } : null,
        finish_reason: reason,
      })),
    usage: meter.usage,
    timings: meter.timings,
  };
}

/** What of a choice has gone out. */
interface Sent {
  calls: number;
  /** Of tokens whose text is held back. */
  logprobs: ChatLogprob[];
}

async function* chunks(
  server: ServerContext,
  steps: AsyncIterable<ChatStep>,
  head: Head,
  includeUsage: boolean,
): AsyncGenerator<ServerEvent, void, undefined> {
  const sent = new Map<number, Sent>();
  let meter: Meter | undefined;
  let base: ReturnType<typeof headOf> | undefined;
  let open = 0;
  const chunk = (rest: object): ServerEvent => ({
    // Where it is told at the end, it is null before: OpenAI's way.
    data: JSON.stringify({ ...base, ...(includeUsage && { usage: null }), ...rest }),
  });
  for await (const found of steps) {
    const { index, step, lease } = found;
    meter = found.meter;
    base ??= headOf(server, found, head, "chat.completion.chunk");
    let choice = sent.get(index);
    if (!choice) {
      choice = { calls: 0, logprobs: [] };
      sent.set(index, choice);
      open++;
      yield chunk({ choices: [choiceOf(index, { role: "assistant", content: "" })] });
    }
    if (step.logprob !== undefined) choice.logprobs.push(chatLogprob(lease.model.tokenizer!, step));
    for (const part of step.parts) {
      yield chunk({ choices: [choiceOf(index, deltaOf(part, choice), choice)] });
    }
    if (step.finish !== null) {
      const isLast = --open === 0;
      const reason = finishReason(step.finish, choice.calls > 0);
      const choices = [{ ...choiceOf(index, {}, choice), finish_reason: reason }];
      yield chunk({ choices, ...(isLast && !includeUsage && { timings: meter.timings }) });
    }
  }
  if (includeUsage && meter) yield chunk({ choices: [], usage: meter.usage, timings: meter.timings });
  yield { data: "[DONE]" };
}

function choiceOf(index: number, delta: object, sent?: Sent) {
  const content = sent?.logprobs.splice(0) ?? [];
  const logprobs = content.length > 0 ? { content, refusal: null } : null;
  return { index, delta, logprobs, finish_reason: null };
}

function deltaOf(part: AnswerEvent, sent: Sent): object {
  if (part.type === "text") return { content: part.text };
  if (part.type === "reasoning") return { reasoning_content: part.text };
  return { tool_calls: [{ index: sent.calls++, ...part.call }] };
}
