/** POST /v1/completions */
import { randomUUID } from "node:crypto";
import { type CompletionEvent, complete } from "../../completion.ts";
import { readBody } from "../body.ts";
import { Constraints } from "../constraints.ts";
import { invalid } from "../errors.ts";
import type { Exchange } from "../exchange.ts";
import type { Fields } from "../fields.ts";
import { finishReason } from "../finish.ts";
import { type Format, formatOf, responseFormatOf } from "../format-fields.ts";
import { CompletionLogprobs } from "../logprobs.ts";
import { merge } from "../merge.ts";
import { Meter } from "../meter.ts";
import type { Lease } from "../registry.ts";
import { type EndFields, endOf, inputsOf, samplingOf, streamingOf } from "../sampling-fields.ts";
import { type AppContext, checkPrompt, fingerprint, type Limits, type ServerContext } from "../server-context.ts";
import { type ServerEvent, streamed } from "../sse.ts";

const MOST_LOGPROBS = 20;
/** OpenAI's. */
const USUAL_TOKENS = 16;

interface CompletionFields {
  readonly model: string | undefined;
  readonly prompts: readonly (string | readonly number[])[];
  /** Answers to each prompt. */
  readonly count: number;
  readonly end: EndFields;
  readonly logprobs: number | undefined;
  readonly format: Format | null;
  readonly fields: Fields;
}

interface CompletionStep {
  readonly index: number;
  readonly event: CompletionEvent;
  readonly lease: Lease;
  readonly meter: Meter;
}

export const completions = (server: ServerContext) => async (c: AppContext) => {
  const exchange = c.get("exchange");
  const fields = await readBody(c.req.raw, server.limits.bodyBytes);
  const { isStream, includeUsage } = streamingOf(fields);
  const steps = answers(server, exchange, completionOf(fields, server.limits));
  const head = { id: `cmpl-${randomUUID()}`, created: Math.floor(Date.now() / 1000) };
  if (isStream) {
    const onFailure = (error: unknown) => server.log.error(error, exchange.id);
    return streamed(chunks(server, steps, head, includeUsage), { exchange, onFailure });
  }
  return c.json(await wholeAnswer(server, steps, head));
};

function completionOf(fields: Fields, limits: Limits): CompletionFields {
  fields.refuse(["suffix"], (value) => value === "");
  fields.refuse(["echo"], (value) => value === false);
  const prompts = inputsOf(fields.required("prompt"), "prompt");
  const count = fields.count("n", { min: 1, max: limits.choices }) ?? 1;
  fields.refuse(["best_of"], (value) => value === count);
  if (prompts.length * count > limits.choices) {
    invalid("prompt", `${prompts.length} prompts with ${count} answers each are more than ${limits.choices} answers`);
  }
  const end = endOf(fields, ["max_tokens"]);
  return {
    model: fields.text("model"),
    prompts,
    count,
    end: { ...end, maxTokens: end.maxTokens ?? USUAL_TOKENS },
    logprobs: fields.count("logprobs", { max: MOST_LOGPROBS }),
    format: formatOf(fields, responseFormatOf(fields.object("response_format"))),
    fields,
  };
}

async function* answers(
  server: ServerContext,
  exchange: Exchange,
  request: CompletionFields,
): AsyncGenerator<CompletionStep, void, undefined> {
  const { prompts, count, end, logprobs } = request;
  using _place = server.admission.enter(prompts.length * count);
  using lease = await server.registry.acquire(request.model, exchange.signal);
  exchange.model = lease.id;
  const { model, engine } = lease;
  using constraints = await Constraints.open(lease, request);
  const ids = prompts.map((prompt) => model.encode(prompt));
  for (const prompt of ids) checkPrompt(prompt, lease, server.limits, "prompt");
  const samplings = Array.from({ length: count }, (_, choice) =>
    samplingOf(request.fields, model.config.vocabSize, choice),
  );
  const meter = new Meter(
    exchange,
    server.metrics,
    lease.id,
    ids.reduce((sum, { length }) => sum + length, 0),
  );
  const sources = ids.flatMap((prompt) =>
    samplings.map((sampling) =>
      complete(engine, model.tokenizer, {
        ...end,
        prompt,
        sampling,
        logprobs,
        constraint: constraints.next(prompt),
        showTokens: constraints.showTokens,
        signal: exchange.signal,
      }),
    ),
  );
  for await (const { index, value: event } of merge(sources)) {
    meter.token(index, event, Math.floor(index / count));
    yield { index, event, lease, meter };
  }
}

interface Head {
  readonly id: string;
  readonly created: number;
}

const headOf = (server: ServerContext, { lease }: CompletionStep, head: Head) => ({
  id: head.id,
  object: "text_completion",
  created: head.created,
  model: lease.id,
  system_fingerprint: fingerprint(server, lease),
});

interface Choice {
  text: string;
  logprobs: CompletionLogprobs | null;
  reason: string | null;
}

async function wholeAnswer(server: ServerContext, steps: AsyncIterable<CompletionStep>, head: Head) {
  const choices = new Map<number, Choice>();
  let last: CompletionStep | undefined;
  for await (const found of steps) {
    last = found;
    const { index, event, lease } = found;
    let choice = choices.get(index);
    if (!choice) {
      choice = { text: "", logprobs: null, reason: null };
      choices.set(index, choice);
    }
    if (event.logprob !== undefined) {
      choice.logprobs ??= new CompletionLogprobs();
      choice.logprobs.add(lease.model.tokenizer!, event, choice.text.length);
    }
    choice.text += event.text;
    if (event.finish !== null) choice.reason = finishReason(event.finish);
  }
  const { meter } = last!;
  return {
    ...headOf(server, last!, head),
    choices: [...choices]
      .sort(([a], [b]) => a - b)
      .map(([index, { text, logprobs, reason }]) => ({ index, text, logprobs, finish_reason: reason })),
    usage: meter.usage,
    timings: meter.timings,
  };
}

async function* chunks(
  server: ServerContext,
  steps: AsyncIterable<CompletionStep>,
  head: Head,
  includeUsage: boolean,
): AsyncGenerator<ServerEvent, void, undefined> {
  /** The length of what has gone out of each answer. */
  const lengths = new Map<number, number>();
  let meter: Meter | undefined;
  let base: object | undefined;
  const chunk = (rest: object): ServerEvent => ({
    data: JSON.stringify({ ...base, ...(includeUsage && { usage: null }), ...rest }),
  });
  for await (const found of steps) {
    const { index, event, lease } = found;
    meter = found.meter;
    base ??= headOf(server, found, head);
    const offset = lengths.get(index) ?? 0;
    lengths.set(index, offset + event.text.length);
    if (event.text === "" && event.finish === null && event.logprob === undefined) continue;
    const logprobs = event.logprob === undefined ? null : new CompletionLogprobs();
    logprobs?.add(lease.model.tokenizer!, event, offset);
    const reason = event.finish === null ? null : finishReason(event.finish);
    const timings = reason === null || includeUsage ? {} : { timings: meter.timings };
    yield chunk({ choices: [{ index, text: event.text, logprobs, finish_reason: reason }], ...timings });
  }
  if (includeUsage && meter) yield chunk({ choices: [], usage: meter.usage, timings: meter.timings });
  yield { data: "[DONE]" };
}
