/** A request on its way through the scheduler: its tokens, its pages, and how far it is. */
import type { SamplerSpec } from "../backend/transformers.ts";
import { samplerSpec } from "../models/generation/sampling.ts";
import type { Page, TextPart } from "./pages.ts";
import type { EngineRequest } from "./request.ts";
import type { Runner, Slot } from "./runner.ts";
import type { TokenStream } from "./token-stream.ts";

export interface TaskParts extends Pick<Task, "request" | "stream" | "arrival" | "onEnd"> {
  readonly runner: Runner;
  /** Positions that a request may have. */
  readonly context: number;
}

export class Task {
  readonly request: EngineRequest;
  readonly stream: TokenStream;
  /** Its place in the order of arrival. */
  readonly arrival: number;
  /** The most tokens it says. */
  readonly limit: number;
  /** Whether the context, not the request, sets the limit. */
  readonly limitIsContext: boolean;
  /** Tokens that end it. */
  readonly ends: ReadonlySet<number>;
  /** The prompt, and behind it what was said. */
  readonly tokens: number[];
  readonly promptLength: number;
  readonly onEnd: () => void;
  /** With a seed of its own where the request brings none: whenever it is taken up again, it goes on as before. */
  readonly sampling: SamplerSpec;

  /** What follows counts while it runs; a slot says that it does. */
  slot: Slot | null = null;
  readonly pages: Page[] = [];
  /** How many of them others can find. */
  registered = 0;
  /** Their indices. */
  readonly table: number[] = [];
  /** Positions whose keys and values are there, or will be by steps that are enqueued. */
  computed = 0;
  /** Tokens that are fed from the host: all there were when it began to run. */
  target = 0;
  /** Positions that were there already when it began to run. */
  skipped = 0;
  /** The step that it last took part in. */
  lastStep = 0;

  /** Rows of enqueued steps that choose a token for it; some may be from before it was put back. */
  inFlight = 0;
  /** How many have been taken before it that came later. */
  passed = 0;
  /** Of the prompt, what was there already when its first token was chosen. */
  cached: number | null = null;
  ended = false;

  /** Positions whose pages may be shared, and with texts of what kind. */
  readonly shareable: number;
  readonly #pageSize: number;

  constructor({ request, stream, arrival, runner, context, onEnd }: TaskParts) {
    this.request = request;
    this.stream = stream;
    this.arrival = arrival;
    this.onEnd = onEnd;
    const { logprobs, constraint } = request;
    this.sampling = samplerSpec(request.sampling ?? {}, request.prompt, 0, {
      logprobs,
      masked: constraint !== undefined,
    });
    this.tokens = [...request.prompt];
    this.promptLength = this.tokens.length;
    // The last token needs no place in the context: it is not fed.
    const room = context - this.promptLength + 1;
    const asked = request.maxTokens ?? Number.POSITIVE_INFINITY;
    this.limit = Math.min(asked, room);
    this.limitIsContext = room < asked;
    this.ends = new Set([...(request.ignoreEos ? [] : runner.eosTokens), ...(request.stopTokens ?? [])]);
    this.#pageSize = runner.pageSize;
    this.shareable = runner.turnedAlikeUntil(this.promptLength);
  }

  get said(): number {
    return this.tokens.length - this.promptLength;
  }

  /** Whether its prompt, or what it had said before it was put back, is not all computed. */
  get prefills(): boolean {
    return this.computed < this.target;
  }

  /** Whether its next token can be computed now. What has a constraint must know the last one first. */
  get decodes(): boolean {
    if (this.slot === null || this.prefills || this.said + this.inFlight >= this.limit) return false;
    return this.inFlight === 0 || this.request.constraint === undefined;
  }

  /** The positions that it must have pages for. */
  get needed(): number {
    if (this.slot === null) return 0;
    return this.prefills ? this.target : this.decodes ? this.computed + 1 : 0;
  }

  /** The positions that decide how the one behind `past` is turned: alone, a prompt is fed as a whole. */
  extentAt(past: number): number {
    return Math.max(this.promptLength, past + 1);
  }

  /** How many of its pages have tokens that are all known, and may be shared. */
  get wholePages(): number {
    const whole = Math.floor(Math.min(this.tokens.length, this.shareable) / this.#pageSize);
    return Math.min(whole, this.pages.length);
  }

  /** Its tokens from a page on. */
  textFrom(page: number): TextPart {
    return { tokens: this.tokens, from: page * this.#pageSize, kind: this.shareable };
  }

  /** Positions up to this one were there already. */
  passOver(until: number): void {
    if (until <= this.computed) return;
    this.skipped += until - this.computed;
    this.computed = until;
  }

  addPage(page: Page): void {
    this.pages.push(page);
    this.table.push(page.index);
  }

  replacePage(place: number, page: Page): void {
    this.pages[place] = page;
    this.table[place] = page.index;
  }
}
