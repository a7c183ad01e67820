/** Whether a request can be answered at all, found out before it waits for its turn. */
import { fail } from "../core/errors.ts";
import type { EngineRequest } from "./request.ts";
import type { Runner } from "./runner.ts";

/** `room` is how many positions the cache holds. */
export function checkRequest(
  { prompt, maxTokens, stopTokens = [] }: EngineRequest,
  runner: Runner,
  room: number,
): void {
  const { contextLength, vocabSize } = runner;
  if (prompt.length === 0) fail("InvalidArgument", "the prompt has no tokens, so there is nothing to continue");
  if (prompt.length > contextLength) {
    fail(
      "ValueOutOfRange",
      `the prompt has ${prompt.length} tokens, but the model's context holds ${contextLength}; shorten it`,
    );
  }
  if (prompt.length > room) {
    const pages = `${runner.pages} pages of ${runner.pageSize}`;
    fail(
      "OutOfMemory",
      `the prompt has ${prompt.length} tokens, but the engine's cache holds ${room} (${pages}); shorten it, or give the engine more pages`,
    );
  }
  for (const ids of [prompt, stopTokens]) {
    // A loop, as prompts are long and first tokens wait for it.
    for (let i = 0; i < ids.length; i++) {
      const id = ids[i]!;
      if (Number.isInteger(id) && id >= 0 && id < vocabSize) continue;
      fail("InvalidIndex", `${id} is no token id; the vocabulary has ${vocabSize}`);
    }
  }
  if (maxTokens !== undefined && !(Number.isSafeInteger(maxTokens) && maxTokens >= 0)) {
    fail("InvalidArgument", `maxTokens must be a whole number from 0 up, not ${maxTokens}`);
  }
}
