/** Requests of nobody, before there are any: what the host does for one takes it several times as long before it is compiled. */
import { BatchEngine } from "./engine.ts";
import type { Runner } from "./runner.ts";

/** Pairs of requests with prompts that begin alike: many, for what is done once for each, and some long ones. */
const PAIRS = 400;
const LONG = 16;
const PAGES = 64;
const MOST_MS = 150;

/** As much as another runner holds, without a model: every token is the same. */
class IdleRunner implements Runner {
  readonly pageSize: number;
  readonly pages = 2 * PAGES;
  readonly slots = 2;
  readonly ahead: number;
  readonly vocabSize = 2;
  readonly contextLength: number;
  readonly eosTokens = [];

  constructor({ pageSize, ahead }: Pick<Runner, "pageSize" | "ahead">) {
    this.pageSize = pageSize;
    this.ahead = ahead;
    this.contextLength = PAGES * pageSize;
  }

  async ready(): Promise<void> {}

  turnedAlikeUntil(): number {
    return Number.POSITIVE_INFINITY;
  }

  open(): Disposable {
    return { [Symbol.dispose]() {} };
  }

  async step(rows: Parameters<Runner["step"]>[0]) {
    return rows.map(({ samples }) => (samples ? { token: 0 } : null));
  }

  async [Symbol.asyncDispose](): Promise<void> {}
}

/** The way of a request through a scheduler whose pages are as large as those of `runner`. */
export async function rehearse(runner: Runner): Promise<void> {
  await using engine = new BatchEngine(new IdleRunner(runner));
  const until = performance.now() + MOST_MS;
  for (let pair = 0; pair < PAIRS && performance.now() < until; pair++) {
    const length = ((pair % LONG === 0 ? PAGES : 2) - 1 / 2) * runner.pageSize;
    const prompt = Array.from({ length }, (_, i) => ((pair >> (i % 8)) ^ i) & 1);
    for (const last of [0, 1]) {
      for await (const _ of engine.submit({ prompt: [...prompt, last], maxTokens: 2 }));
    }
  }
}
