/** Text from an engine of tokens: whole characters, stop strings, and the parts of an answer to a chat. */
import type { AnswerEvent } from "../models/chat/answer.ts";
import type { Turn } from "../models/chat/chat.ts";
import { checkStops } from "../models/generation/generate.ts";
import { TextStream } from "../models/text/text-stream.ts";
import type { Tokenizer } from "../models/text/tokenizer.ts";
import type { Engine, EngineRequest, TokenEvent } from "./request.ts";

export interface CompletionRequest extends EngineRequest {
  /** Text that ends the answer and is not part of it. */
  readonly stop?: readonly string[] | undefined;
  /** Special tokens whose text is part of the answer. */
  readonly showTokens?: readonly string[] | undefined;
}

export interface CompletionEvent extends TokenEvent {
  /** Whole characters; empty while the token's text is incomplete or may be part of a stop string. */
  readonly text: string;
}

export interface AnswerStep extends CompletionEvent {
  /** What the token brought: none, one or several parts of the answer. */
  readonly parts: readonly AnswerEvent[];
}

/** The request is taken, or refused, before this returns. Leaving the iteration ends it. */
export function complete(
  engine: Engine,
  tokenizer: Tokenizer | null,
  { stop = [], showTokens, ...request }: CompletionRequest,
): AsyncGenerator<CompletionEvent, void, undefined> {
  const stream = new TextStream(tokenizer, request.prompt, checkStops({ stop }, tokenizer), showTokens);
  return withText(engine.submit(request), stream);
}

async function* withText(
  tokens: AsyncIterable<TokenEvent>,
  stream: TextStream,
): AsyncGenerator<CompletionEvent, void, undefined> {
  for await (const event of tokens) {
    const { text, finish } = stream.next(event.token, event.finish);
    yield { ...event, text, finish };
    // A stop string is none of the engine's business: leaving it ends the request.
    if (finish !== null) return;
  }
}

/** One answer of a turn, taken apart as it comes. `request` needs no prompt: the turn has it. */
export function completeTurn(
  engine: Engine,
  tokenizer: Tokenizer | null,
  turn: Turn,
  request: Omit<CompletionRequest, "prompt">,
): AsyncGenerator<AnswerStep, void, undefined> {
  return takenApart(
    complete(engine, tokenizer, {
      ...request,
      prompt: turn.prompt,
      showTokens: [...turn.showTokens, ...(request.showTokens ?? [])],
      stopTokens: [...turn.stopTokens, ...(request.stopTokens ?? [])],
    }),
    turn,
  );
}

async function* takenApart(
  events: AsyncIterable<CompletionEvent>,
  turn: Turn,
): AsyncGenerator<AnswerStep, void, undefined> {
  const parser = turn.newParser();
  for await (const event of events) {
    const parts = parser.push(event.text);
    yield { ...event, parts: event.finish === null ? parts : [...parts, ...parser.end()] };
  }
}
