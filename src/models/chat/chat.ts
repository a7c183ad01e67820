/** One turn of a chat: messages and tools in, the answer's parts out as they come. */
import { fail } from "../../core/errors.ts";
import type { Finish, GenerateOptions, Piece } from "../generation/generate.ts";
import type { Model } from "../model.ts";
import { ChatTemplate, PLAIN_TEMPLATE, type RenderOptions } from "../text/chat-template.ts";
import type { Tokenizer } from "../text/tokenizer.ts";
import { type Answer, type AnswerEvent, AnswerParser } from "./answer.ts";
import { type AnswerForm, callEnds, detectAnswerForm, innerMarkers, markersOf } from "./answer-form.ts";
import type { ChatMessage } from "./messages.ts";

export interface ChatOptions extends GenerateOptions, Pick<RenderOptions, "tools" | "variables"> {
  /** Where the form that the template shows is not the one the model writes. */
  readonly answerForm?: Partial<AnswerForm> | undefined;
  /** Is told each token, also those that no event comes of. */
  readonly onPiece?: ((piece: Piece) => void) | undefined;
}

export type ChatEvent =
  | AnswerEvent
  /** The last one: all that came before, put together, and how many tokens the prompt and the answer had. */
  | {
      readonly type: "end";
      readonly finish: Finish | null;
      readonly answer: Answer;
      readonly promptTokens: number;
      readonly tokens: number;
    };

export interface ChatModel {
  readonly tokenizer: Tokenizer | null;
  readonly chatTemplate: ChatTemplate | null;
  generate(prompt: readonly number[], options: GenerateOptions): AsyncIterable<Piece>;
}

export const needTemplate = (template: ChatTemplate | null): ChatTemplate =>
  template ??
  fail("InvalidArgument", "the model has no chat template; prompt it with text, or load it with `chatTemplate`");

/** For a model that was not made for chat: it goes on with what was said. */
export function plainTemplate({ tokenizer, config }: Pick<Model, "tokenizer" | "config">): ChatTemplate {
  const first = config.bosToken === null ? undefined : tokenizer?.token(config.bosToken);
  return new ChatTemplate(PLAIN_TEMPLATE, first === undefined ? {} : { bos_token: first });
}

/** How a model writes reasoning and tool calls. */
export const answerFormOf = ({ tokenizer, chatTemplate }: Pick<ChatModel, "tokenizer" | "chatTemplate">): AnswerForm =>
  detectAnswerForm(
    `${chatTemplate?.source ?? ""}${chatTemplate?.forTools?.source ?? ""}`,
    (token) => tokenizer?.tokenId(token) !== undefined,
  );

/** A turn whose prompt is written: what generates its answer must know this, and what comes is pushed into the parser. */
export interface Turn {
  readonly prompt: readonly number[];
  /** Special tokens that mean something in the answer. */
  readonly showTokens: readonly string[];
  readonly stopTokens: readonly number[];
  readonly form: AnswerForm;
  /** Whether the prompt has opened the reasoning. */
  readonly startsInReasoning: boolean;
  /** One for each answer. */
  newParser(): AnswerParser;
}

export interface TurnOptions extends Pick<ChatOptions, "tools" | "variables" | "answerForm" | "ignoreEos"> {
  /** What can be called, where not all of it is told to the model. Default: the tools. */
  readonly toolNames?: readonly string[] | undefined;
}

export function openTurn(
  model: Pick<ChatModel, "tokenizer" | "chatTemplate">,
  messages: readonly ChatMessage[],
  { tools, variables, answerForm, ignoreEos, toolNames = tools?.map((tool) => tool.function.name) ?? [] }: TurnOptions,
): Turn {
  const template = needTemplate(model.chatTemplate);
  const tokenizer = model.tokenizer ?? fail("InvalidArgument", "the model was loaded without a tokenizer");
  const form = { ...answerFormOf(model), ...answerForm };
  const text = template.render(messages, { tools, variables });
  const startsInReasoning = form.reasoning !== null && text.trimEnd().endsWith(form.reasoning.open);
  const ends = ignoreEos ? [] : (callEnds[form.toolCalls] ?? []);
  return {
    // A template writes the special tokens itself.
    prompt: tokenizer.encode(text, { special: false }),
    showTokens: [...markersOf(form), ...innerMarkers],
    stopTokens: ends.map((token) => tokenizer.tokenId(token)).filter((id) => id !== undefined),
    form,
    startsInReasoning,
    newParser: () => new AnswerParser(form, { startsInReasoning, toolNames }),
  };
}

export async function* chat(
  model: ChatModel,
  messages: readonly ChatMessage[],
  { tools, variables, answerForm, onPiece, ...options }: ChatOptions,
): AsyncGenerator<ChatEvent, void, undefined> {
  const turn = openTurn(model, messages, { tools, variables, answerForm, ignoreEos: options.ignoreEos });
  const parser = turn.newParser();
  const pieces = model.generate(turn.prompt, {
    ...options,
    showTokens: [...turn.showTokens, ...(options.showTokens ?? [])],
    stopTokens: [...turn.stopTokens, ...(options.stopTokens ?? [])],
  });
  let finish: Finish | null = null;
  let tokens = 0;
  for await (const piece of pieces) {
    finish = piece.finish;
    tokens++;
    onPiece?.(piece);
    yield* parser.push(piece.text);
  }
  yield* parser.end();
  yield { type: "end", finish, answer: parser.answer, promptTokens: turn.prompt.length, tokens };
}
