/** Log-probabilities of tokens, as the chat and the completions endpoint write them. */
import type { Tokenizer } from "../../models/text/tokenizer.ts";
import type { TokenEvent } from "../request.ts";

/** JSON has no infinity; OpenAI writes this. */
const LEAST = -9999;
const finite = (logprob: number): number => Math.max(logprob, LEAST);

const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
const textOf = (tokenizer: Tokenizer, id: number, bytes = tokenizer.bytes(id)): string =>
  bytes ? decoder.decode(bytes) : (tokenizer.token(id) ?? "");

function entry(tokenizer: Tokenizer, id: number, logprob: number) {
  const bytes = tokenizer.bytes(id);
  return { token: textOf(tokenizer, id, bytes), logprob: finite(logprob), bytes: bytes && [...bytes] };
}

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
    this.tokens.push(textOf(tokenizer, token));
    this.token_logprobs.push(finite(logprob));
    this.top_logprobs.push(
      Object.fromEntries(top.map(({ token: id, logprob: of }) => [textOf(tokenizer, id), finite(of)])),
    );
    this.text_offset.push(offset);
  }
}
