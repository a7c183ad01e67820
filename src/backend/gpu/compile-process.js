/**
 * The parent's side of compile-child.js: one child process that compiles what it is given, one program after another. Plain
 * JavaScript, as that is, because a worker thread uses it, too.
 *
 * @typedef {{ readonly source: string, readonly name: string, readonly options: readonly string[], readonly output: "code" | "assembly" }} CompileRequest
 * @typedef {{ readonly call: "create" | "compile", readonly code: number, readonly log: string, readonly bytes: Uint8Array } | { readonly problem: string }} CompileAnswer
 * What a compiler said: its result code with its log, or why it could not be asked.
 */
import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";

const entry = fileURLToPath(new URL("./compile-child.js", import.meta.url));
/** How much of the end of what a child prints is kept to explain its death. */
const KEPT_OUTPUT = 2000;
const ANSWER_LIMIT = 2 ** 30;

export class CompileProcess {
  #process;
  #received = Buffer.alloc(0);
  #output = "";
  #isAlive = true;
  /** @type {((answer: CompileAnswer) => void) | undefined} */
  #finish;
  /** @type {NodeJS.Timeout | undefined} */
  #resting;

  /** @param {readonly string[]} args of compile-child.js */
  constructor(args) {
    this.#process = spawn(process.execPath, [entry, ...args], { stdio: ["pipe", "ignore", "pipe", "pipe"] });
    this.#process.on("error", (error) => this.#end(`could not be started: ${error.message}`));
    // "close" and not "exit": what it printed last has been read by then.
    this.#process.on("close", (code, signal) => {
      this.#end((signal ? `died by ${signal}` : `ended with exit code ${code}`) + this.#lastWords());
    });
    // A child that died no longer reads; its death is told by "close".
    this.#process.stdin?.on("error", () => {});
    this.#process.stderr?.on("data", (/** @type {Buffer} */ chunk) => {
      this.#output = (this.#output + chunk.toString()).slice(-KEPT_OUTPUT);
    });
    this.#answers?.on("data", (/** @type {Buffer} */ chunk) => this.#read(chunk));
  }

  get isAlive() {
    return this.#isAlive;
  }

  get #answers() {
    return /** @type {import("node:stream").Duplex | null} */ (this.#process.stdio[3]);
  }

  /**
   * Never rejects: what goes wrong is the answer's problem.
   * @param {CompileRequest} request
   * @param {number} seconds
   * @returns {Promise<CompileAnswer>}
   */
  run(request, seconds) {
    clearTimeout(this.#resting);
    this.#hold("ref");
    this.#output = "";
    return new Promise((resolve) => {
      const timer = setTimeout(() => {
        this.#process.kill("SIGKILL");
        this.#end(`gave no answer within ${seconds} s and was ended${this.#lastWords()}`);
      }, seconds * 1000);
      this.#finish = (answer) => {
        clearTimeout(timer);
        resolve(answer);
      };
      if (!this.#isAlive) this.#end("had ended");
      else this.#process.stdin?.write(frame(request));
    });
  }

  /**
   * Waits for more work so long, without keeping this process alive.
   * @param {number} ms
   */
  rest(ms) {
    this.#hold("unref");
    this.#resting = setTimeout(() => {
      this.#isAlive = false;
      this.#process.stdin?.end();
    }, ms);
    this.#resting.unref();
  }

  /**
   * Whether this process stays for the child's sake.
   * @param {"ref" | "unref"} how
   */
  #hold(how) {
    this.#process[how]();
    for (const stream of [this.#process.stdin, this.#process.stderr, this.#answers]) {
      /** @type {{ ref?(): void, unref?(): void } | null} */ (stream)?.[how]?.();
    }
  }

  /** @param {Buffer} chunk */
  #read(chunk) {
    this.#received = Buffer.concat([this.#received, chunk]);
    const whole = parse(this.#received);
    if (!whole) return;
    this.#received = this.#received.subarray(whole.length);
    const finish = this.#finish;
    this.#finish = undefined;
    // It may be anything by now.
    if ("problem" in whole.answer) {
      this.#isAlive = false;
      this.#process.kill("SIGKILL");
    }
    finish?.(whole.answer);
  }

  /** @param {string} problem */
  #end(problem) {
    this.#isAlive = false;
    const finish = this.#finish;
    this.#finish = undefined;
    finish?.({ problem });
  }

  #lastWords() {
    const lines = this.#output.trim().split("\n").slice(-4).join("\n");
    return lines && `; its last words: ${lines}`;
  }
}

/** @param {CompileRequest} request */
function frame(request) {
  const text = Buffer.from(JSON.stringify(request));
  const head = Buffer.alloc(4);
  head.writeUInt32LE(text.length);
  return Buffer.concat([head, text]);
}

/**
 * The answer that the bytes begin with, and how many of them it takes; undefined while it is not whole.
 * @param {Buffer} bytes
 * @returns {{ readonly answer: CompileAnswer, readonly length: number } | undefined}
 */
function parse(bytes) {
  if (bytes.length < 8) return undefined;
  const textEnd = 8 + bytes.readUInt32LE(0);
  const length = textEnd + bytes.readUInt32LE(4);
  const nonsense = { answer: { problem: "answered nonsense" }, length: bytes.length };
  if (length > ANSWER_LIMIT) return nonsense;
  if (bytes.length < length) return undefined;
  try {
    const facts = JSON.parse(bytes.subarray(8, textEnd).toString());
    if ("problem" in facts) return { answer: { problem: `could not be used: ${facts.problem}` }, length };
    return { answer: { ...facts, bytes: new Uint8Array(bytes.subarray(textEnd, length)) }, length };
  } catch {
    return nonsense;
  }
}
