/**
 * A child process for whatever a vendor's library may do to the process it is loaded in: crash it, end it or hang. The
 * parent is told by an outcome, and a fresh child does the next task.
 */

import { type ChildProcess, fork } from "node:child_process";
import { fileURLToPath } from "node:url";
import { environment } from "../core/environment.ts";
import type { Message, Request, TaskName, Tasks } from "./tasks.ts";

export type Outcome<T> =
  | { readonly ok: true; readonly value: T }
  /** `part` is what was found out before. */
  | { readonly ok: false; readonly problem: string; readonly part?: T };

export interface Doing {
  readonly doing: string;
  readonly done?: number;
  readonly total?: number;
}

export interface RunOptions {
  readonly seconds: number;
  readonly onProgress?: (doing: Doing) => void;
}

export interface ChildOptions {
  /** The compiled child-main module. */
  readonly entry?: string;
  readonly env?: Readonly<Record<string, string>>;
  /** Ends the child. */
  readonly signal?: AbortSignal;
}

const defaultEntry = fileURLToPath(new URL("child-main.js", import.meta.url));
/** How much of the end of what a child prints is kept to explain its death. */
const KEPT_OUTPUT = 2000;
const SHOWN_LINES = 4;
const CLOSING_MS = 5000;

export class Child {
  readonly #options: ChildOptions;
  #process: ChildProcess | undefined;
  #output = "";

  constructor(options: ChildOptions = {}) {
    this.#options = options;
  }

  /** Tasks of one child run one after another: the caller waits for each. */
  run<Name extends TaskName>(
    task: Name,
    input: Tasks[Name]["input"],
    { seconds, onProgress }: RunOptions,
  ): Promise<Outcome<Tasks[Name]["output"]>> {
    const child = this.#start();
    let doing = "starting";
    let part: Tasks[Name]["output"] | undefined;
    this.#output = "";
    return new Promise((resolve) => {
      const finish = (outcome: Outcome<Tasks[Name]["output"]>): void => {
        clearTimeout(timer);
        child.removeAllListeners("message");
        child.removeAllListeners("close");
        resolve(outcome);
      };
      const give = (problem: string): void => finish({ ok: false, problem, ...(part !== undefined && { part }) });
      const timer = setTimeout(() => {
        this.kill();
        give(`no answer within ${seconds} s while ${doing}; the process was ended`);
      }, seconds * 1000);
      child.on("message", (message: Message) => {
        switch (message.kind) {
          case "doing":
            doing = message.doing;
            onProgress?.(message);
            return;
          case "found":
            part = message.part as Tasks[Name]["output"];
            return;
          case "done":
            return finish({ ok: true, value: message.value as Tasks[Name]["output"] });
          case "failed":
            return give(message.problem);
          default:
            message satisfies never;
        }
      });
      // "close" and not "exit": what it printed last has been read by then.
      child.on("close", (code, signal) => {
        this.#process = undefined;
        const end = signal ? `crashed with ${signal}` : `ended with exit code ${code}`;
        give(`${end} while ${doing}${lastWords(this.#output)}`);
      });
      child.send({ task, input } satisfies Request, () => {
        // A child that is gone already is told by "close".
      });
    });
  }

  /** Lets it end by itself; one whose libraries hang at the end is ended. */
  close(): void {
    const child = this.#process;
    this.#process = undefined;
    if (!child) return;
    if (child.connected) child.disconnect();
    const timer = setTimeout(() => child.kill("SIGKILL"), CLOSING_MS).unref();
    child.once("close", () => clearTimeout(timer));
  }

  kill(): void {
    this.#process?.kill("SIGKILL");
    this.#process = undefined;
  }

  #start(): ChildProcess {
    if (this.#process) return this.#process;
    const { entry = defaultEntry, env, signal } = this.#options;
    const child = fork(entry, [], {
      execArgv: [],
      env: { ...environment(), ...env },
      stdio: ["ignore", "pipe", "pipe", "ipc"],
      serialization: "advanced",
      killSignal: "SIGKILL",
      ...(signal && { signal }),
    });
    const keep = (text: Buffer): void => {
      this.#output = (this.#output + text.toString()).slice(-KEPT_OUTPUT);
    };
    child.stdout?.on("data", keep);
    child.stderr?.on("data", keep);
    // Of an aborted child "close" tells as well; without a listener the error would end this process.
    child.on("error", () => {});
    this.#process = child;
    return child;
  }
}

/** The last lines that a process printed, of which a stack of ours is no part. */
function lastWords(output: string): string {
  const lines = output
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "" && !line.startsWith("at ") && !line.startsWith("Node.js v"));
  return lines.length === 0 ? "" : `; it printed last: ${lines.slice(-SHOWN_LINES).join(" | ")}`;
}
