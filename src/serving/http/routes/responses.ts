/** POST /v1/responses: what it shares with chat. Nothing is kept: a conversation is sent as a whole each time. */
import { randomUUID } from "node:crypto";
import { readBody } from "../body.ts";
import { toolsOf } from "../chat-fields.ts";
import { answerChat, type ChatRequest, type ChatStep } from "../chat-run.ts";
import type { ApiError } from "../errors.ts";
import type { Fields } from "../fields.ts";
import { formatOf, responseFormatOf } from "../format-fields.ts";
import type { Meter } from "../meter.ts";
import { inputMessages } from "../responses-input.ts";
import { ResponseOutput } from "../responses-output.ts";
import { endOf } from "../sampling-fields.ts";
import type { AppContext, ServerContext } from "../server-context.ts";
import { type ServerEvent, streamed } from "../sse.ts";

export const responses = (server: ServerContext) => async (c: AppContext) => {
  const exchange = c.get("exchange");
  const fields = await readBody(c.req.raw, server.limits.bodyBytes);
  const steps = answerChat(server, exchange, requestOf(fields));
  const response = new ResponseInProgress(fields);
  if (fields.flag("stream")) {
    return streamed(response.events(steps), {
      exchange,
      onFailure: (error) => server.log.error(error, exchange.id),
      onError: (error) => response.failed(error),
    });
  }
  for await (const _ of response.events(steps));
  return c.json(response.body);
};

function requestOf(fields: Fields): ChatRequest {
  fields.refuse(["previous_response_id", "conversation", "prompt"]);
  fields.refuse(["background"], (value) => value === false);
  fields.refuse(["truncation"], (value) => value === "disabled");
  fields.refuse(["top_logprobs"], (value) => value === 0);
  const effort = fields.object("reasoning")?.text("effort");
  return {
    model: fields.text("model"),
    messages: inputMessages(fields),
    tools: toolsOf(fields, (tool) => tool),
    format: formatOf(fields, responseFormatOf(fields.object("text")?.object("format"))),
    variables: {
      ...(effort !== undefined && { reasoning_effort: effort }),
      ...fields.object("chat_template_kwargs")?.values,
    },
    count: 1,
    end: endOf(fields, ["max_output_tokens"]),
    logprobs: undefined,
    fields,
  };
}

class ResponseInProgress {
  readonly #fields: Fields;
  readonly #output = new ResponseOutput();
  readonly #id = `resp_${randomUUID().replaceAll("-", "")}`;
  readonly #created = Math.floor(Date.now() / 1000);
  #status: "in_progress" | "completed" | "incomplete" | "failed" = "in_progress";
  #model: string | null = null;
  #meter: Meter | undefined;
  #error: { readonly code: string; readonly message: string } | null = null;

  constructor(fields: Fields) {
    this.#fields = fields;
  }

  async *events(steps: AsyncIterable<ChatStep>): AsyncGenerator<ServerEvent, void, undefined> {
    for await (const { step, lease, meter } of steps) {
      if (this.#model === null) {
        this.#model = lease.id;
        this.#meter = meter;
        yield this.#output.event("response.created", { response: this.body });
        yield this.#output.event("response.in_progress", { response: this.body });
      }
      for (const part of step.parts) yield* this.#output.push(part);
      if (step.finish === null) continue;
      this.#status = step.finish === "length" || step.finish === "context" ? "incomplete" : "completed";
      yield* this.#output.close(this.#status);
    }
    yield this.#output.event(`response.${this.#status}`, { response: this.body });
  }

  failed({ code, message }: ApiError): ServerEvent {
    this.#status = "failed";
    this.#error = { code, message };
    return this.#output.event("response.failed", { response: this.body });
  }

  get body() {
    const fields = this.#fields;
    const meter = this.#meter;
    return {
      id: this.#id,
      object: "response",
      created_at: this.#created,
      status: this.#status,
      error: this.#error,
      incomplete_details: this.#status === "incomplete" ? { reason: "max_output_tokens" } : null,
      instructions: fields.get("instructions") ?? null,
      max_output_tokens: fields.get("max_output_tokens") ?? null,
      metadata: fields.get("metadata") ?? {},
      model: this.#model,
      output: this.#output.items,
      parallel_tool_calls: fields.get("parallel_tool_calls") ?? true,
      previous_response_id: null,
      reasoning: fields.get("reasoning") ?? null,
      store: false,
      temperature: fields.get("temperature") ?? 1,
      text: fields.get("text") ?? { format: { type: "text" } },
      tool_choice: fields.get("tool_choice") ?? "auto",
      tools: fields.get("tools") ?? [],
      top_p: fields.get("top_p") ?? 1,
      truncation: "disabled",
      usage:
        this.#status === "in_progress" || !meter
          ? null
          : {
              input_tokens: meter.promptTokens,
              input_tokens_details: { cached_tokens: meter.cachedTokens },
              output_tokens: meter.tokens,
              output_tokens_details: { reasoning_tokens: meter.reasoningTokens },
              total_tokens: meter.promptTokens + meter.tokens,
            },
      ...(meter && this.#status !== "in_progress" && { timings: meter.timings }),
    };
  }
}
