/** From a conversation to the request that asks for its next message. */
import { type Conversation, type Message, pathOf, storyOf } from "./conversation.ts";
import type { Model } from "./model.ts";

/** A story model is given room for a page, and draws more soberly than OpenAI's default of 1. */
export const storyDefaults = { temperature: 0.7, max_tokens: 160 } as const;

/** Where nothing is known yet; English has about four characters to a token, code and other languages fewer. */
const CHARACTERS_PER_TOKEN = 3;

function charactersPerToken(path: readonly Message[]): number {
  const told = path.findLast(({ stats }) => stats !== undefined && stats.completionTokens >= 16);
  const measured = told === undefined ? CHARACTERS_PER_TOKEN : told.content.length / told.stats!.completionTokens;
  return Math.min(5, Math.max(1, measured));
}

/** The end of a text, from the start of a word. */
function endOf(text: string, characters: number): string {
  if (text.length <= characters) return text;
  const cut = text.slice(text.length - characters);
  const space = cut.search(/\s/);
  return space < 0 ? cut : cut.slice(space + 1);
}

export interface Question {
  readonly path: "v1/chat/completions" | "v1/completions";
  readonly body: object;
}

/**
 * Asks for what follows `before`. `share` is the part of the room that is filled, for a server that found more tokens
 * than were estimated here.
 */
export function questionFor(
  conversation: Conversation,
  before: readonly Message[],
  model: Model,
  share: number,
): Question {
  const { sampling, system, trims } = conversation;
  const context = model.contextLength ?? Number.POSITIVE_INFINITY;
  const perToken = charactersPerToken(before);
  if (conversation.form === "story") {
    const most = sampling.max_tokens ?? Math.min(storyDefaults.max_tokens, Math.ceil(context / 3));
    const room = Math.max(32, context - most - 8) * perToken * share;
    const prompt = endOf(storyOf(before), room);
    return {
      path: "v1/completions",
      body: { ...storyDefaults, ...sampling, max_tokens: most, model: model.id, prompt },
    };
  }
  let left = trims ? Math.max(64, context * 0.7) * perToken * share - system.length : Number.POSITIVE_INFINITY;
  const messages: { readonly role: string; readonly content: string }[] = [];
  for (const { role, content } of before.toReversed()) {
    left -= content.length;
    // The question itself goes in any case, and templates want a question first.
    if (left < 0 && messages.length > 0) {
      if (messages.at(-1)!.role === "assistant") messages.pop();
      break;
    }
    if (content !== "") messages.push({ role, content });
  }
  if (system.trim() !== "") messages.push({ role: "system", content: system });
  return { path: "v1/chat/completions", body: { ...sampling, model: model.id, messages: messages.reverse() } };
}

/** Tokens that the shown branch takes, where the server has told. */
export function tokensIn(conversation: Conversation): number | null {
  const last = pathOf(conversation).findLast(({ stats }) => stats?.promptTokens != null)?.stats;
  return last === undefined ? null : last.promptTokens! + last.completionTokens;
}
