/** The generation loop: prompts in, pieces of text out, one per token and sequence. */
import { setImmediate } from "node:timers/promises";
import { fail } from "../../core/errors.ts";
import { Tensor } from "../../ops/index.ts";
import { type ModelCache, PART } from "../cache.ts";
import type { Passage } from "../passage.ts";
import { devicesOf } from "../placement/sites.ts";
import { TextStream } from "../text/text-stream.ts";
import type { Tokenizer } from "../text/tokenizer.ts";
import type { Transformer } from "../transformer.ts";
import { openDecoder } from "./decoder.ts";
import type { PromptCache } from "./prompt-cache.ts";
import { Sampler, type SamplingOptions } from "./sampling.ts";
import type { Speculation } from "./speculation.ts";
import { SpeculativeDecoder } from "./speculative-decoder.ts";

export interface GenerateOptions extends SamplingOptions {
  /** Default: as many as the context holds. */
  readonly maxTokens?: number | undefined;
  /** Text that ends the generation and is not part of the result. */
  readonly stop?: string | readonly string[] | undefined;
  /** Tokens that end the generation besides the model's own. */
  readonly stopTokens?: readonly number[] | undefined;
  /** Goes on after the model's end-of-text token. Default false. */
  readonly ignoreEos?: boolean | undefined;
  /** Special tokens whose text is part of the result, such as the markers of a tool call. Default: none. */
  readonly showTokens?: readonly string[] | undefined;
  /** Ends the generation by throwing the signal's reason. */
  readonly signal?: AbortSignal | undefined;
  /** How many positions of the prompt are computed at once. Default 512, on GPUs 2048. */
  readonly prefillChunk?: number | undefined;
  /** Keeps the computed prompt, and reuses what the next one has in common with it. For one sequence. */
  readonly promptCache?: PromptCache | undefined;
  /** Guesses tokens that the model checks several at a time: `promptLookup()`, `draftModel(model)`. For one sequence. */
  readonly speculation?: Speculation | undefined;
}

/** Why a sequence ended: enough tokens, no room in the context, a token or a string that ends it. */
export type Finish = "length" | "context" | "token" | "string";

export interface Piece {
  /** Whole characters; empty while the token's text is incomplete or may be part of a stop string. */
  readonly text: string;
  readonly token: number;
  /** Which of the prompts it continues. */
  readonly sequence: number;
  /** Set on a sequence's last piece. */
  readonly finish: Finish | null;
}

/** A GPU is busy only with many rows. */
const prefillChunkOf = ({ sites }: Transformer): number =>
  devicesOf(sites).some(({ name }) => name === "cpu") ? PART : 2048;

interface Sequence {
  readonly text: TextStream;
  last: number;
  ended: boolean;
}

/** Continues every prompt; pieces come in the order of the steps, and of the prompts within a step. */
export async function* generate(
  model: Transformer,
  tokenizer: Tokenizer | null,
  prompts: readonly (readonly number[])[],
  options: GenerateOptions = {},
): AsyncGenerator<Piece, void, undefined> {
  const { promptCache, speculation, signal } = options;
  const stops = checkStops(options, tokenizer);
  const longest = checkPrompts(prompts, model);
  const limit = checkCount("maxTokens", options.maxTokens ?? Number.MAX_SAFE_INTEGER, 0);
  // The last token needs no place in the context: it is not fed.
  const room = model.config.contextLength - longest + 1;
  const ends = new Set([...(options.ignoreEos ? [] : model.config.eosTokens), ...(options.stopTokens ?? [])]);
  const samplers = prompts.map((prompt, i) => new Sampler(options, prompt, i));
  const sequences = prompts.map((prompt): Sequence => {
    return { text: new TextStream(tokenizer, prompt, stops, options.showTokens), last: 0, ended: false };
  });
  if (promptCache && prompts.length !== 1) fail("InvalidArgument", "a promptCache serves one sequence at a time");
  if (speculation && prompts.length !== 1) fail("InvalidArgument", "speculation serves one sequence at a time");
  speculation?.drafter.check?.(model);
  signal?.throwIfAborted();
  if (limit === 0) return;
  const padding = prompts.map((prompt) => longest - prompt.length);
  const rewindable = speculation !== undefined;
  const cache = promptCache?.open(model, rewindable) ?? model.newCache({ padding, rewindable });
  try {
    const reused = promptCache?.reuse(prompts[0]!) ?? 0;
    const rows = prompts.map((prompt, i) => [...new Array<number>(padding[i]!).fill(0), ...prompt].slice(reused));
    const logits = await prefill(model, rows, cache, longest, options);
    const decoding = { model, cache, samplers, limit: Math.min(limit, room) };
    await using decoder = speculation
      ? new SpeculativeDecoder(logits, prompts[0]!, speculation, decoding)
      : openDecoder(logits, decoding);
    for (let count = 1; ; count++) {
      const tokens = await decoder.next(sequences.map((sequence) => sequence.ended));
      const full: Finish | null = count >= limit ? "length" : count >= room ? "context" : null;
      for (const [i, sequence] of sequences.entries()) {
        if (!sequence.ended) yield advance(sequence, i, tokens[i]!, ends, full);
      }
      if (sequences.every((sequence) => sequence.ended)) return;
      // Lets timers and signals in: on the CPU a step does not return to the event loop by itself.
      await setImmediate();
      signal?.throwIfAborted();
      const fed = sequences.map((sequence) => sequence.last);
      decoder.accept(fed);
      promptCache?.fed(fed);
    }
  } finally {
    if (!promptCache) cache.dispose();
  }
}

/** A part of the prompts on its way. */
interface Part {
  readonly ids: Tensor;
  readonly fed: readonly number[];
  readonly passage: Passage;
}

/**
 * The logits behind the prompts' last positions. Parts follow each other through the segments of the model: a device
 * computes the next one while that behind it has this one.
 */
async function prefill(
  model: Transformer,
  rows: readonly (readonly number[])[],
  cache: ModelCache,
  extent: number,
  { prefillChunk = prefillChunkOf(model), signal, promptCache }: GenerateOptions,
): Promise<Tensor> {
  checkCount("prefillChunk", prefillChunk, 1);
  const length = rows[0]!.length;
  const first = cache.length;
  /** Those under way, the oldest first. */
  const parts: Part[] = [];
  const enter = (from: number): void => {
    const fed = rows.map((row) => row.slice(from, from + prefillChunk));
    const shape = [fed.length, fed[0]!.length];
    const ids = Tensor.from(Uint32Array.from(fed.flat()), { shape, device: model.device }).keep();
    parts.push({ ids, fed: fed[0]!, passage: model.enter(ids, { cache, start: first + from, extent }) });
  };
  const leave = ({ ids, fed, passage }: Part, isLast: boolean): Tensor | null => {
    using _ids = ids;
    const logits = isLast ? model.leave(passage, ids, { cache, last: true }) : null;
    if (!isLast) model.pass(passage, ids, cache);
    promptCache?.fed(fed);
    return logits;
  };
  try {
    for (let from = 0; ; from += prefillChunk) {
      if (from < length) enter(from);
      // Devices that work by themselves are given their work before the host is kept by those that do not.
      const [ahead, behind] = [parts.filter(runsByItself), parts.filter((part) => !runsByItself(part))];
      for (const { passage } of [...ahead, ...behind]) if (!isThrough(passage)) passage.advance();
      const [oldest] = parts as [Part];
      if (isThrough(oldest.passage)) {
        const isLast = parts.length === 1 && from + prefillChunk >= length;
        const logits = leave(parts.shift()!, isLast);
        if (logits) return logits;
      }
      await setImmediate();
      signal?.throwIfAborted();
    }
  } catch (error) {
    if (parts.length > 0) cache.recover();
    throw error;
  } finally {
    for (const { ids, passage } of parts) {
      ids.dispose();
      passage.abandon();
    }
  }
}

const isThrough = ({ next }: Passage): boolean => next === null;
const runsByItself = ({ passage: { next } }: Part): boolean => next?.backend.beginRead !== undefined;

function advance(
  sequence: Sequence,
  index: number,
  token: number,
  ends: ReadonlySet<number>,
  full: Finish | null,
): Piece {
  sequence.last = token;
  const { text, finish } = sequence.text.next(token, ends.has(token) ? "token" : full);
  sequence.ended = finish !== null;
  return { text, token, sequence: index, finish };
}

function checkPrompts(prompts: readonly (readonly number[])[], { config }: Transformer): number {
  if (prompts.length === 0) fail("InvalidArgument", "generate needs at least one prompt");
  for (const prompt of prompts) {
    if (prompt.length === 0) fail("InvalidArgument", "the prompt has no tokens, so there is nothing to continue");
    if (prompt.length > config.contextLength) {
      fail(
        "ValueOutOfRange",
        `the prompt has ${prompt.length} tokens, but the model's context holds ${config.contextLength}; shorten it`,
      );
    }
    for (const id of prompt) {
      if (!Number.isInteger(id) || id < 0 || id >= config.vocabSize)
        fail("InvalidIndex", `${id} is no token id; the vocabulary has ${config.vocabSize}`);
    }
  }
  return Math.max(...prompts.map((prompt) => prompt.length));
}

export function checkStops({ stop }: Pick<GenerateOptions, "stop">, tokenizer: Tokenizer | null): readonly string[] {
  const stops = stop === undefined ? [] : typeof stop === "string" ? [stop] : stop;
  if (stops.includes("")) fail("InvalidArgument", "an empty stop string would end every generation at once");
  if (stops.length > 0 && !tokenizer) fail("InvalidArgument", "stop strings need a tokenizer; use stopTokens");
  return stops;
}

function checkCount(name: string, value: number, least: number): number {
  if (Number.isSafeInteger(value) && value >= least) return value;
  return fail("InvalidArgument", `${name} must be a whole number from ${least} up, not ${value}`);
}
