/** What the routes share: the models, the limits, what is counted and told. */
import type { Context } from "hono";
import type { Device } from "../../backend/device.ts";
import { PAGE_SIZE } from "../../backend/paged-attention.ts";
import type { Tokenizer } from "../../models/text/tokenizer.ts";
import type { Access } from "./access.ts";
import { ApiError, invalid } from "./errors.ts";
import type { Exchange } from "./exchange.ts";
import type { Log } from "./log.ts";
import type { ServerMetrics } from "./metrics.ts";
import type { Lease, Registry } from "./registry.ts";

export interface Limits {
  readonly bodyBytes: number;
  /** Tokens of a prompt; the context of a model is a limit besides. */
  readonly promptTokens: number;
  /** Answers under way at once, those that wait for their turn among them. */
  readonly answers: number;
  /** Answers to one request. */
  readonly choices: number;
  /** From a request to the end of its answer. */
  readonly requestSeconds: number;
}

export interface ServerContext {
  readonly registry: Registry;
  readonly metrics: ServerMetrics;
  readonly log: Log;
  readonly access: Access;
  readonly limits: Limits;
  readonly devices: readonly Device[];
  readonly version: string;
  readonly admission: Admission;
}

export interface AppEnv {
  Variables: { exchange: Exchange };
}
export type AppContext = Context<AppEnv>;

/** Lets in as many answers as the limit says, and none once the server is about to end. */
export class Admission {
  readonly #most: number;
  #active = 0;
  isClosed = false;

  constructor(most: number) {
    this.#most = most;
  }

  get active(): number {
    return this.#active;
  }

  enter(count: number): Disposable {
    if (this.isClosed) throw draining();
    if (this.#active + count > this.#most) {
      throw new ApiError(429, "too_many_requests", `${this.#active} answers are under way, which is the most`, {
        retryAfter: 1,
      });
    }
    this.#active += count;
    let isIn = true;
    return {
      [Symbol.dispose]: () => {
        if (isIn) this.#active -= count;
        isIn = false;
      },
    };
  }
}

export const draining = (): ApiError =>
  new ApiError(503, "shutting_down", "the server is about to end and takes no more requests", { retryAfter: 5 });

/** Characters of each vocabulary's longest token. */
const longest = new WeakMap<Tokenizer, number>();

function longestToken(tokenizer: Tokenizer, vocabSize: number): number {
  const known = longest.get(tokenizer);
  if (known !== undefined) return known;
  let found = 1;
  for (let id = 0; id < vocabSize; id++) found = Math.max(found, tokenizer.token(id)?.length ?? 0);
  longest.set(tokenizer, found);
  return found;
}

/** Texts that cannot fit however they are cut into tokens are refused before that is done: it would keep everybody waiting. */
export function checkLength(texts: readonly string[], lease: Lease, limits: Limits, param: string): void {
  const { tokenizer, config } = lease.model;
  const length = texts.reduce((sum, text) => sum + text.length, 0);
  const most = mostTokens(lease, limits);
  // Small ones are not worth the look at the vocabulary.
  if (length <= most || !tokenizer) return;
  const least = Math.ceil(length / longestToken(tokenizer, config.vocabSize));
  if (least > most) tooLong(`at least ${least}`, lease, limits, param);
}

/** Tokens that a prompt may have. */
const mostTokens = ({ model, engine }: Lease, limits: Limits): number =>
  Math.min(limits.promptTokens, Math.min(model.config.contextLength, engine.stats.pages.total * PAGE_SIZE) - 1);

function tooLong(count: number | string, lease: Lease, limits: Limits, param: string): never {
  const { contextLength } = lease.model.config;
  const most = mostTokens(lease, limits);
  const what =
    most === limits.promptTokens
      ? `this server takes prompts of ${most} tokens`
      : most === contextLength - 1
        ? `the model's context holds ${contextLength}`
        : `this server has memory for ${most + 1}`;
  return invalid(param, `the prompt has ${count} tokens, but ${what}; shorten it`, "context_length_exceeded");
}

/** Told before the engine would: with the name of the field and the code that clients look for. */
export function checkPrompt(prompt: readonly number[], lease: Lease, limits: Limits, param: string): void {
  const { vocabSize } = lease.model.config;
  if (prompt.length === 0) invalid(param, `${param} has no tokens, so there is nothing to answer`);
  const wrong = prompt.find((id) => id >= vocabSize);
  if (wrong !== undefined) invalid(param, `${param}: ${wrong} is no token id; there are ${vocabSize}`);
  if (prompt.length > mostTokens(lease, limits)) tooLong(prompt.length, lease, limits, param);
}

/** Changes where answers to one seed may: with the version, the model, the device and the dtype. */
export const fingerprint = ({ version }: ServerContext, { model }: Lease): string =>
  `wick-${version}-${model.config.architecture}-${model.dtype}-${model.devices.map(({ name }) => name.replace(/[^\w]+/g, "_")).join("-")}`;
