/**
 * Reads JSON whose structure is known, from files that are not trusted. `JSON.parse` would keep the last of two equal
 * keys without a word and build whatever the text describes, at many times its size, before anything can be checked.
 * Here the caller says what it expects next, and the first thing that differs ends the reading.
 */
import { fail } from "../../core/errors.ts";
import { isWellFormed, quoted } from "../named-tensors.ts";

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const MAX_DEPTH = 32;
const MAX_NUMBER_LENGTH = 64;
const numberSyntax = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/;

export class JsonReader {
  readonly #text: string;
  readonly #source: string;
  #at = 0;

  /** `source` opens the error messages. */
  constructor(bytes: Uint8Array, source: string) {
    this.#source = source;
    try {
      this.#text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch (cause) {
      this.#text = fail("InvalidFile", `${source} is not UTF-8 text`, { cause });
    }
  }

  /** `member` is called with each key and must read its value. */
  object(member: (key: string) => void): void {
    const keys = new Set<string>();
    this.#list("{", "}", "an object", () => {
      const key = this.string();
      if (keys.has(key)) this.#fail(`the key ${quoted(key)} appears twice`);
      keys.add(key);
      if (this.#peek() !== ":") this.#expected('":"');
      this.#at++;
      member(key);
    });
  }

  /** `element` must read one value each time it is called. */
  array(element: () => void): void {
    this.#list("[", "]", "an array", element);
  }

  string(): string {
    if (this.#peek() !== '"') this.#expected("a string");
    const text = this.#text;
    const start = this.#at;
    let at = start + 1;
    let escaped = false;
    for (let code = text.charCodeAt(at); at < text.length && code !== QUOTE; code = text.charCodeAt(at)) {
      if (code === BACKSLASH) escaped = true;
      at += code === BACKSLASH ? 2 : 1;
    }
    this.#at = at + 1;
    let value: string;
    try {
      value = JSON.parse(text.slice(start, this.#at)) as string;
    } catch {
      return this.#fail(`the string that starts at character ${start} is not valid`);
    }
    // UTF-8 has no half surrogates, but an escape may name one.
    if (escaped && !isWellFormed(value)) this.#fail(`the string ${quoted(value)} is not well-formed Unicode`);
    return value;
  }

  /** A whole number from 0 up that a JavaScript number holds exactly. */
  size(): number {
    const value = this.#number();
    if (Number.isSafeInteger(value) && value >= 0 && !Object.is(value, -0)) return value;
    return this.#fail(`${value} is not a whole number between 0 and 2^53 - 1`);
  }

  /** Reads past any value and gives its text. */
  any(depth = 0): string {
    if (depth > MAX_DEPTH) this.#fail(`nested deeper than ${MAX_DEPTH} levels`);
    const first = this.#peek();
    const start = this.#at;
    if (first === "{") this.object(() => this.any(depth + 1));
    else if (first === "[") this.array(() => this.any(depth + 1));
    else if (first === '"') this.string();
    else if (!this.#literal()) this.#number();
    return this.#text.slice(start, this.#at);
  }

  /** Only white space may follow. */
  end(): void {
    if (this.#peek() !== "") this.#expected("the end");
  }

  #list(open: string, close: string, what: string, item: () => void): void {
    if (this.#peek() !== open) this.#expected(what);
    this.#at++;
    if (this.#peek() !== close) {
      item();
      while (this.#peek() === ",") {
        this.#at++;
        item();
      }
    }
    if (this.#peek() !== close) this.#expected(`"," or "${close}"`);
    this.#at++;
  }

  #literal(): boolean {
    const word = ["true", "false", "null"].find((w) => this.#text.startsWith(w, this.#at));
    this.#at += word?.length ?? 0;
    return word !== undefined;
  }

  #number(): number {
    this.#peek();
    const start = this.#at;
    while (this.#at - start <= MAX_NUMBER_LENGTH && "0123456789-+.eE".includes(this.#text[this.#at] ?? "end"))
      this.#at++;
    const digits = this.#text.slice(start, this.#at);
    if (numberSyntax.test(digits) && digits.length <= MAX_NUMBER_LENGTH) return Number(digits);
    this.#at = start;
    return this.#expected("a number");
  }

  /** The next character that is not white space; "" at the end. */
  #peek(): string {
    while (" \t\n\r".includes(this.#text[this.#at] ?? "end")) this.#at++;
    return this.#text[this.#at] ?? "";
  }

  #expected(what: string): never {
    const found = this.#text.slice(this.#at, this.#at + 20);
    return this.#fail(`expected ${what}, found ${found === "" ? "the end" : quoted(found)}`);
  }

  #fail(problem: string): never {
    return fail("InvalidFile", `${this.#source}: ${problem} (at character ${this.#at})`);
  }
}
