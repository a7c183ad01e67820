/** Log-probabilities of tokens, as the chat and the completions endpoint write them. */
import type { Tokenizer } from "../../models/text/tokenizer.ts";
import type { TokenEvent } from "../request.ts";

/** JSON has no infinity; OpenAI writes this. */
const LEAST = -9999;
const finite = (logprob: number): number => Math.max(logprob, LEAST);

/** A token's text wherever it stands: decoders strip the first one's space, so it is decoded behind itself. */
export function tokenText(tokenizer: Tokenizer, id: number): string {
  return tokenizer.decode([id, id]).slice(tokenizer.decode([id]).length);
}

const entry = (tokenizer: Tokenizer, id: number, logprob: number) => {
  const token = tokenText(tokenizer, id);
  // Part of a character is no text of its own.
  const bytes = token.includes("\ufffd") ? null : [...Buffer.from(token)];
  return { token, logprob: finite(logprob), bytes };
};

/** An item of `logprobs.content` of a chat. */
export const chatLogprob = (tokenizer: Tokenizer, { token, logprob = LEAST, top = [] }: TokenEvent) => ({
  ...entry(tokenizer, token, logprob),
  top_logprobs: top.map(({ token: id, logprob: of }) => entry(tokenizer, id, of)),
});
export type ChatLogprob = ReturnType<typeof chatLogprob>;

/** `logprobs` of a completion, which has a list for each kind of thing. */
export class CompletionLogprobs {
  readonly tokens: string[] = [];
  readonly token_logprobs: number[] = [];
  readonly top_logprobs: Record<string, number>[] = [];
  readonly text_offset: number[] = [];

  /** `offset` is where the token's text starts. */
  add(tokenizer: Tokenizer, { token, logprob = LEAST, top = [] }: TokenEvent, offset: number): void {
    this.tokens.push(tokenText(tokenizer, token));
    this.token_logprobs.push(finite(logprob));
    this.top_logprobs.push(
      Object.fromEntries(top.map(({ token: id, logprob: of }) => [tokenText(tokenizer, id), finite(of)])),
    );
    this.text_offset.push(offset);
  }
}
