/** Tokens one by one as text: whole characters only, and nothing that may turn out to be a stop string. */
import { overlap } from "../chat/marker-scanner.ts";
import type { Finish } from "../generation/generate.ts";
import type { Tokenizer } from "./tokenizer.ts";

const REPLACEMENT = "\ufffd";

/**
 * Decoders look at neighbours (they strip a first space, join bytes), so a token is decoded behind those before it. A
 * character whose bytes are not all there yet decodes to one U+FFFD at the end, which is held back.
 */
class IncrementalDecoder {
  readonly #tokenizer: Tokenizer;
  /** Tokens whose text has been given out entirely. */
  #context: readonly number[];
  #pending: number[] = [];
  /** How much of the pending tokens' text has been given out. */
  #given = 0;

  constructor(tokenizer: Tokenizer, prompt: readonly number[]) {
    this.#tokenizer = tokenizer;
    this.#context = prompt.slice(-4);
  }

  push(token: number): string {
    this.#pending.push(token);
    const text = this.#pendingText();
    if (text.endsWith(REPLACEMENT)) return this.#give(text.slice(0, -1));
    const fresh = this.#give(text);
    // Tokens without text (special ones) stay behind the last that has some: it is the context.
    if (text !== "") this.#context = this.#pending;
    this.#pending = [];
    this.#given = 0;
    return fresh;
  }

  /** What is left when no more tokens come. */
  end(): string {
    const text = this.#give(this.#pendingText());
    this.#pending = [];
    this.#given = 0;
    return text;
  }

  /** A token that is given as `text` whatever stands before it. */
  pushAs(text: string, token: number): string {
    const before = this.end();
    this.#context = [token];
    return before + text;
  }

  #give(text: string): string {
    const fresh = text.slice(this.#given);
    this.#given = Math.max(this.#given, text.length);
    return fresh;
  }

  #pendingText(): string {
    const before = this.#tokenizer.decode(this.#context, { skipSpecial: true });
    const all = this.#tokenizer.decode([...this.#context, ...this.#pending], { skipSpecial: true });
    return all.slice(commonLength(before, all));
  }
}

/** `before` may end in half a character, which `all` completes. */
function commonLength(before: string, all: string): number {
  return all.startsWith(before) ? before.length : before.length - (before.endsWith(REPLACEMENT) ? 1 : 0);
}

/** Text up to the first stop string. The end of what came so far is held while it may be the start of one. */
export class StopScanner {
  readonly #stops: readonly string[];
  #held = "";
  #stopped = false;

  constructor(stops: readonly string[]) {
    this.#stops = stops;
  }

  get stopped(): boolean {
    return this.#stopped;
  }

  push(text: string): string {
    if (this.#stopped) return "";
    const all = this.#held + text;
    const found = firstStop(all, this.#stops);
    if (found !== undefined) {
      this.#stopped = true;
      this.#held = "";
      return all.slice(0, found);
    }
    const keep = Math.max(0, ...this.#stops.map((stop) => overlap(all, stop)));
    this.#held = all.slice(all.length - keep);
    return all.slice(0, all.length - keep);
  }

  end(): string {
    const rest = this.#held;
    this.#held = "";
    return rest;
  }
}

/** Where the stop string starts that is complete first (the longest of those), however the text was cut. */
function firstStop(text: string, stops: readonly string[]): number | undefined {
  const found = stops.map((stop) => ({ start: text.indexOf(stop), length: stop.length })).filter((f) => f.start >= 0);
  found.sort((a, b) => a.start + a.length - (b.start + b.length) || a.start - b.start);
  return found[0]?.start;
}

export class TextStream {
  readonly #decoder: IncrementalDecoder | null;
  readonly #scanner: StopScanner;
  readonly #shown: ReadonlyMap<number, string>;

  /** Without a tokenizer there is no text. `shown` are special tokens that are text nevertheless. */
  constructor(
    tokenizer: Tokenizer | null,
    prompt: readonly number[],
    stops: readonly string[],
    shown: readonly string[] = [],
  ) {
    this.#decoder = tokenizer && new IncrementalDecoder(tokenizer, prompt);
    this.#scanner = new StopScanner(stops);
    this.#shown = tokenizer ? hiddenTokens(tokenizer, shown) : new Map();
  }

  /** Whether a stop string has been met. */
  get stopped(): boolean {
    return this.#scanner.stopped;
  }

  /** The text of one more token, and why the text ends with it: for `finish`, or for a stop string. */
  next(token: number, finish: Finish | null): { text: string; finish: Finish | null } {
    // A token that ends the answer is no part of it.
    const text = finish === "token" ? "" : this.push(token);
    const why = finish !== "token" && this.stopped ? "string" : finish;
    return { text: why === null ? text : text + this.end(), finish: why };
  }

  push(token: number): string {
    if (!this.#decoder) return "";
    const shown = this.#shown.get(token);
    return this.#scanner.push(shown === undefined ? this.#decoder.push(token) : this.#decoder.pushAs(shown, token));
  }

  end(): string {
    if (!this.#decoder) return "";
    return this.#scanner.push(this.#decoder.end()) + this.#scanner.end();
  }
}

/** Those of the tokens that decoding leaves out. */
function hiddenTokens(tokenizer: Tokenizer, tokens: readonly string[]): Map<number, string> {
  const hidden = new Map<number, string>();
  for (const token of tokens) {
    const id = tokenizer.tokenId(token);
    if (id !== undefined && tokenizer.decode([id], { skipSpecial: true }) === "") hidden.set(id, token);
  }
  return hidden;
}
