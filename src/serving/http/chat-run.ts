/** Answers to a chat, one or several, as they come: what the chat and the responses endpoint share. */
import type { AnswerEvent } from "../../models/chat/answer.ts";
import { openTurn, type Turn } from "../../models/chat/chat.ts";
import type { ChatMessage } from "../../models/chat/messages.ts";
import { type AnswerStep, completeTurn } from "../completion.ts";
import type { ToolFields } from "./chat-fields.ts";
import { Constraints } from "./constraints.ts";
import type { Exchange } from "./exchange.ts";
import type { Fields } from "./fields.ts";
import type { Format } from "./format-fields.ts";
import { merge } from "./merge.ts";
import { Meter } from "./meter.ts";
import type { Lease } from "./registry.ts";
import { type EndFields, samplingOf } from "./sampling-fields.ts";
import { checkPrompt, type ServerContext } from "./server-context.ts";

export interface ChatRequest {
  readonly model: string | undefined;
  readonly messages: readonly ChatMessage[];
  readonly tools: ToolFields;
  readonly format: Format | null;
  /** Of the template. */
  readonly variables: Readonly<Record<string, unknown>>;
  /** How many answers. */
  readonly count: number;
  readonly end: EndFields;
  /** How many of the likeliest tokens are told beside each; undefined: none, and nothing of the token either. */
  readonly logprobs: number | undefined;
  /** Where sampling is read from. */
  readonly fields: Fields;
}

export interface ChatStep {
  /** Which of the answers. */
  readonly index: number;
  readonly step: AnswerStep;
  readonly lease: Lease;
  readonly meter: Meter;
}

export async function* answerChat(
  server: ServerContext,
  exchange: Exchange,
  request: ChatRequest,
): AsyncGenerator<ChatStep, void, undefined> {
  using _place = server.admission.enter(request.count);
  using lease = await server.registry.acquire(request.model, exchange.signal);
  exchange.model = lease.id;
  const { model, engine } = lease;
  using constraints = await Constraints.open(lease, request);
  const turn = openChatTurn(lease, request, constraints);
  checkPrompt(turn.prompt, lease, server.limits, "messages");
  const samplings = Array.from({ length: request.count }, (_, index) =>
    samplingOf(request.fields, model.config.vocabSize, index),
  );
  const meter = new Meter(exchange, server.metrics, lease.id, turn.prompt.length);
  const answers = samplings.map((sampling) =>
    completeTurn(engine, model.tokenizer, turn, {
      ...request.end,
      sampling,
      logprobs: request.logprobs,
      constraint: constraints.next(turn.prompt, turn),
      showTokens: constraints.showTokens,
      signal: exchange.signal,
    }),
  );
  const { isParallel } = request.tools;
  const called = new Set<number>();
  for await (const { index, value: step } of merge(answers)) {
    meter.token(index, step);
    const parts = isParallel === false ? firstCalls(step.parts, called, index) : step.parts;
    if (step.parts.length > 0 && step.parts.every(({ type }) => type === "reasoning")) meter.reasoningTokens++;
    yield { index, step: { ...step, parts }, lease, meter };
  }
}

/** Of the calls of each answer no more than one. */
function firstCalls(parts: readonly AnswerEvent[], called: Set<number>, index: number): readonly AnswerEvent[] {
  return parts.filter(({ type }) => {
    if (type !== "tool_call") return true;
    const isFirst = !called.has(index);
    called.add(index);
    return isFirst;
  });
}

function openChatTurn({ model, template }: Lease, request: ChatRequest, { answerForm }: Constraints): Turn {
  const { tools, choice } = request.tools;
  // A template without a place for tools can only be made to call one.
  const isShown = choice !== "none" && template.takesTools;
  return openTurn({ tokenizer: model.tokenizer, chatTemplate: template }, request.messages, {
    tools: isShown ? tools : undefined,
    variables: request.variables,
    toolNames: tools.map((tool) => tool.function.name),
    answerForm,
    ignoreEos: request.end.ignoreEos,
  });
}
