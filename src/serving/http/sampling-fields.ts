/** How tokens are chosen, and when an answer ends, by the names that OpenAI, vLLM and llama-server have for it. */
import type { SamplingOptions } from "../../models/generation/sampling.ts";
import { invalid } from "./errors.ts";
import type { Fields } from "./fields.ts";

const MOST_STOPS = 16;

/** `choice` is which of several answers: each draws by a seed of its own, the first by the one that was given. */
export function samplingOf(fields: Fields, vocabSize: number, choice = 0): SamplingOptions {
  const seed = fields.count("seed", { min: Number.MIN_SAFE_INTEGER });
  const topP = fields.number("top_p", { min: 0, max: 1 });
  const topK = fields.count("top_k", { min: -1 });
  return {
    temperature: fields.number("temperature", { min: 0, max: 2 }) ?? 1,
    // As no share at all would leave no token, it leaves the likeliest.
    topP: topP === 0 ? Number.EPSILON : topP,
    topK: topK === -1 ? 0 : topK,
    minP: fields.number("min_p", { min: 0, max: 1 }),
    repetitionPenalty: fields.number("repetition_penalty", { min: 0.01, max: 100 }),
    presencePenalty: fields.number("presence_penalty", { min: -2, max: 2 }),
    frequencyPenalty: fields.number("frequency_penalty", { min: -2, max: 2 }),
    logitBias: logitBiasOf(fields, vocabSize),
    seed: seed === undefined ? undefined : seed + choice,
  };
}

function logitBiasOf(fields: Fields, vocabSize: number): ReadonlyMap<number, number> | undefined {
  const given = fields.object("logit_bias");
  if (!given) return undefined;
  const biases = new Map<number, number>();
  for (const token of Object.keys(given.values)) {
    const id = Number(token);
    if (!/^\d+$/.test(token) || id >= vocabSize) {
      invalid(given.param(token), `logit_bias: ${JSON.stringify(token)} is no token id; there are ${vocabSize}`);
    }
    const bias = given.number(token, { min: -100, max: 100 });
    if (bias !== undefined) biases.set(id, bias);
  }
  return biases;
}

export interface EndFields {
  readonly maxTokens: number | undefined;
  readonly stop: readonly string[];
  readonly stopTokens: readonly number[];
  readonly ignoreEos: boolean | undefined;
}

/** `limits` are the names of the field that limits the tokens, the one that counts first. */
export function endOf(fields: Fields, limits: readonly string[]): EndFields {
  const stop = fields.texts("stop") ?? [];
  if (stop.length > MOST_STOPS) invalid("stop", `stop has ${stop.length} texts; ${MOST_STOPS} are the most`);
  if (stop.includes("")) invalid("stop", "an empty stop text would end every answer at once");
  const counts = limits.map((name) => fields.count(name, { min: 1 }));
  return {
    maxTokens: counts.find((count) => count !== undefined),
    stop,
    stopTokens: idsOf(fields.list("stop_token_ids") ?? [], "stop_token_ids"),
    ignoreEos: fields.flag("ignore_eos"),
  };
}

const isIds = (value: unknown): value is readonly number[] =>
  Array.isArray(value) && value.every((id) => typeof id === "number");

const idsOf = (value: unknown, param: string): readonly number[] =>
  isIds(value) && value.every((id) => Number.isSafeInteger(id) && id >= 0)
    ? value
    : invalid(param, `${param} must be a list of token ids`, "invalid_type");

/** A text, several, the token ids of one, or of several. */
export function inputsOf(given: unknown, param: string): (string | readonly number[])[] {
  if (typeof given === "string") return [given];
  if (!Array.isArray(given) || given.length === 0) {
    const what = `${param} must be a text, a list of texts, token ids, or lists of them`;
    return invalid(param, what, "invalid_type");
  }
  const items: unknown[] = given;
  if (isIds(items)) return [idsOf(items, param)];
  return items.map((item, i) => (typeof item === "string" ? item : idsOf(item, `${param}[${i}]`)));
}

/** Whether the answer streams, and what else the stream has. */
export function streamingOf(fields: Fields): { readonly isStream: boolean; readonly includeUsage: boolean } {
  const isStream = fields.flag("stream") ?? false;
  const options = fields.object("stream_options");
  if (options && !isStream) invalid("stream_options", "stream_options is for streams: set stream to true");
  return { isStream, includeUsage: options?.flag("include_usage") ?? false };
}
