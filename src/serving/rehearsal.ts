/** Requests of nobody, before there are any: what the host does for one takes it several times as long before it is compiled. */
import { BatchEngine } from "./engine.ts";
import type { Runner } from "./runner.ts";

/** Pairs of requests with prompts that begin alike: many, for what is done once for each, and some long ones. */
const PAIRS = 400;
const LONG_ONES = 8;
const PAGES = { long: 64, short: 2 };
const QUESTION = 16;
const MOST_MS = 250;

/** The way of requests through a scheduler and `runner`, which computes nothing meanwhile, and whose every token is the first. */
export async function rehearse(runner: Runner): Promise<void> {
  const { pageSize, slots, ahead, vocabSize, contextLength, eosTokens } = runner;
  const pages = Math.min(runner.pages, 2 * PAGES.long, Math.floor(contextLength / pageSize));
  if (pages === 0) return;
  await using engine = new BatchEngine({
    ...{ pageSize, pages, slots, ahead, vocabSize, contextLength, eosTokens },
    ready: async () => {},
    turnedAlikeUntil: (extent) => runner.turnedAlikeUntil(extent),
    open: (spec, constraint) => runner.open(spec, constraint),
    step: (rows, copies) => runner.step(rows, copies),
    // It is not the engine's own.
    [Symbol.asyncDispose]: async () => {},
  });
  const until = performance.now() + MOST_MS;
  for (let pair = 0; pair < PAIRS && performance.now() < until; pair++) {
    const held = Math.min(pages, pair % LONG_ONES === 0 ? PAGES.long : PAGES.short);
    const prompt = Array.from({ length: (held - 1 / 2) * pageSize }, (_, i) => ((pair >> (i % 8)) ^ i) & 1);
    for (const token of [0, 1]) {
      const question = new Array<number>(QUESTION).fill(token);
      for await (const _ of engine.submit({ prompt: [...prompt, ...question], maxTokens: 2, ignoreEos: true }));
    }
  }
}
