/**
 * Run-time compilers in child processes (compile-child.js): several programs side by side, whatever locks a compiler
 * holds, an event loop that stays free, and a compiler that crashes, hangs or answers nonsense costs a child.
 */
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { availableParallelism, freemem } from "node:os";
import type { Duplex } from "node:stream";
import { fileURLToPath } from "node:url";
import { fail } from "../../core/errors.ts";
import { STACK_BYTES } from "./library.ts";

export interface CompileRequest {
  readonly source: string;
  readonly name: string;
  readonly options: readonly string[];
  readonly output: "code" | "assembly";
}

/** What a compiler said: its result code with its log, or why it could not be asked. */
export type CompileAnswer =
  | { readonly call: "create" | "compile"; readonly code: number; readonly log: string; readonly bytes: Uint8Array }
  | { readonly problem: string };

const entry = fileURLToPath(new URL("./compile-child.js", import.meta.url));
/** The memory that one compilation may take. */
const COMPILER_BYTES = 2 ** 29;
const MAX_CHILDREN = 16;
/** A child that waits so long for work ends. */
const IDLE_MS = 2000;
/** How much of the end of what a child prints is kept to explain its death. */
const KEPT_OUTPUT = 2000;
const ANSWER_LIMIT = 2 ** 30;

/** Seconds that one program may take. */
function secondsEach(): number {
  const given = process.env.WICK_COMPILE_SECONDS;
  if (given === undefined || given === "") return 300;
  const seconds = Number(given);
  if (seconds > 0) return seconds;
  return fail("InvalidArgument", `WICK_COMPILE_SECONDS=${given} is no number of seconds above 0`);
}

/** Children at once: one per core, as far as memory goes. */
const width = (): number =>
  Math.max(1, Math.min(MAX_CHILDREN, availableParallelism(), Math.floor(freemem() / COMPILER_BYTES)));

interface Job {
  readonly request: CompileRequest;
  resolve(answer: CompileAnswer): void;
}

export class CompilePool {
  readonly #arguments: readonly string[];
  readonly #waiting: Job[] = [];
  readonly #idle: CompileChild[] = [];
  #busy = 0;

  constructor(library: string, prototypes: Readonly<Record<string, string>>) {
    this.#arguments = [entry, library, JSON.stringify(prototypes), String(STACK_BYTES)];
  }

  /** Never rejects: what goes wrong is the answer's problem. */
  compile(request: CompileRequest): Promise<CompileAnswer> {
    return new Promise((resolve) => {
      this.#waiting.push({ request, resolve });
      this.#next();
    });
  }

  /** As `compile`, while this thread waits. */
  compileSync(request: CompileRequest): CompileAnswer {
    const seconds = secondsEach();
    const { output, signal, status, stderr } = spawnSync(process.execPath, this.#arguments, {
      input: frame(request),
      stdio: ["pipe", "ignore", "pipe", "pipe"],
      timeout: seconds * 1000,
      killSignal: "SIGKILL",
      maxBuffer: ANSWER_LIMIT,
    });
    const answer = output ? parse(Buffer.from(output[3] ?? "")) : undefined;
    if (answer) return answer.answer;
    const words = lastWords(String(stderr ?? ""));
    if (signal === "SIGKILL") return { problem: `gave no answer within ${seconds} s and was ended${words}` };
    return { problem: died(status, signal) + words };
  }

  #next(): void {
    while (this.#waiting.length > 0 && this.#busy < width()) {
      const { request, resolve } = this.#waiting.shift()!;
      const child = this.#rested() ?? new CompileChild(this.#arguments);
      this.#busy++;
      void child.run(request, secondsEach()).then((answer) => {
        this.#busy--;
        if (child.isAlive) this.#rest(child);
        resolve(answer);
        this.#next();
      });
    }
  }

  /** One that waits and has not ended. */
  #rested(): CompileChild | undefined {
    for (let child = this.#idle.pop(); child; child = this.#idle.pop()) if (child.isAlive) return child;
    return undefined;
  }

  #rest(child: CompileChild): void {
    this.#idle.push(child);
    child.rest(IDLE_MS);
  }
}

class CompileChild {
  readonly #process: ChildProcess;
  #received = Buffer.alloc(0);
  #output = "";
  #isAlive = true;
  #finish: ((answer: CompileAnswer) => void) | undefined;
  #resting: NodeJS.Timeout | undefined;

  constructor(args: readonly string[]) {
    this.#process = spawn(process.execPath, args, { stdio: ["pipe", "ignore", "pipe", "pipe"] });
    this.#process.on("error", (error) => this.#end(`could not be started: ${error.message}`));
    // "close" and not "exit": what it printed last has been read by then.
    this.#process.on("close", (code, signal) => this.#end(died(code, signal) + lastWords(this.#output)));
    // A child that died no longer reads; its death is told by "close".
    this.#process.stdin?.on("error", () => {});
    this.#process.stderr?.on("data", (chunk: Buffer) => {
      this.#output = (this.#output + chunk.toString()).slice(-KEPT_OUTPUT);
    });
    this.#answers?.on("data", (chunk: Buffer) => this.#read(chunk));
  }

  get isAlive(): boolean {
    return this.#isAlive;
  }

  get #answers(): Duplex | null {
    return this.#process.stdio[3] as Duplex | null;
  }

  run(request: CompileRequest, seconds: number): Promise<CompileAnswer> {
    clearTimeout(this.#resting);
    this.#hold("ref");
    this.#output = "";
    return new Promise((resolve) => {
      const timer = setTimeout(() => {
        this.#process.kill("SIGKILL");
        this.#end(`gave no answer within ${seconds} s and was ended${lastWords(this.#output)}`);
      }, seconds * 1000);
      this.#finish = (answer) => {
        clearTimeout(timer);
        resolve(answer);
      };
      if (!this.#isAlive) this.#end("had ended");
      else this.#process.stdin?.write(frame(request));
    });
  }

  /** Waits for more work so long, without keeping this process alive. */
  rest(ms: number): void {
    this.#hold("unref");
    this.#resting = setTimeout(() => {
      this.#isAlive = false;
      this.#process.stdin?.end();
    }, ms);
    this.#resting.unref();
  }

  /** Whether this process stays for the child's sake. */
  #hold(how: "ref" | "unref"): void {
    this.#process[how]();
    for (const stream of [this.#process.stdin, this.#process.stderr, this.#answers]) {
      (stream as { ref?(): void; unref?(): void } | null)?.[how]?.();
    }
  }

  #read(chunk: Buffer): void {
    this.#received = Buffer.concat([this.#received, chunk]);
    const whole = parse(this.#received);
    if (!whole) return;
    this.#received = this.#received.subarray(whole.length);
    const finish = this.#finish;
    this.#finish = undefined;
    finish?.(whole.answer);
    if ("problem" in whole.answer) this.#process.kill("SIGKILL");
  }

  #end(problem: string): void {
    this.#isAlive = false;
    const finish = this.#finish;
    this.#finish = undefined;
    finish?.({ problem });
  }
}

const died = (code: number | null, signal: NodeJS.Signals | null): string =>
  signal ? `died by ${signal}` : `ended with exit code ${code}`;

function lastWords(output: string): string {
  const lines = output.trim().split("\n").slice(-4).join("\n");
  return lines && `; its last words: ${lines}`;
}

function frame(request: CompileRequest): Buffer {
  const text = Buffer.from(JSON.stringify(request));
  const head = Buffer.alloc(4);
  head.writeUInt32LE(text.length);
  return Buffer.concat([head, text]);
}

/** The answer that the bytes begin with, and how many of them it takes; undefined while it is not whole. */
function parse(bytes: Buffer): { readonly answer: CompileAnswer; readonly length: number } | undefined {
  if (bytes.length < 8) return undefined;
  const textEnd = 8 + bytes.readUInt32LE(0);
  const length = textEnd + bytes.readUInt32LE(4);
  const nonsense = { answer: { problem: "answered nonsense" }, length: bytes.length };
  if (length > ANSWER_LIMIT) return nonsense;
  if (bytes.length < length) return undefined;
  try {
    const facts = JSON.parse(bytes.subarray(8, textEnd).toString()) as CompileAnswer;
    if ("problem" in facts) return { answer: { problem: `could not be used: ${facts.problem}` }, length };
    return { answer: { ...facts, bytes: new Uint8Array(bytes.subarray(textEnd, length)) }, length };
  } catch {
    return nonsense;
  }
}
