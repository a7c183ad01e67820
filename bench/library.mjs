import { fork } from "node:child_process";

const TIMEOUT_MS = 120_000;
const child = new URL("./child.mjs", import.meta.url);

/** A library in its own process, so that threads, flags and memory of one do not disturb another. */
export class Library {
  #process;
  #stderr = "";

  constructor(name, threads) {
    this.name = name;
    this.wanted = threads;
  }

  /** Learns the version and the threads really used; a library that cannot load keeps the reason in `error`. */
  async greet() {
    try {
      Object.assign(this, await this.ask("hello"));
    } catch (error) {
      this.error = error.message;
    }
  }

  /** Sends a request and waits for its answer. A process that died is started anew with the next request. */
  ask(request, args = {}) {
    if (this.error) return Promise.reject(new Error(this.error));
    this.#process ??= this.#start();
    const process = this.#process;
    return new Promise((resolve, reject) => {
      const settle = (action) => {
        clearTimeout(timer);
        process.off("message", onMessage).off("exit", onExit);
        action();
      };
      const lose = (reason) =>
        settle(() => {
          this.stop();
          reject(new Error(reason));
        });
      const onMessage = ({ value, error }) =>
        settle(() => (error === undefined ? resolve(value) : reject(new Error(error))));
      const onExit = (code, signal) =>
        lose(`process ended with ${signal ?? code}: ${this.#stderr.trim().split("\n")[0]}`);
      const timer = setTimeout(() => lose(`no answer within ${TIMEOUT_MS / 1000} s`), TIMEOUT_MS);
      process.on("message", onMessage).on("exit", onExit);
      process.send({ request, ...args });
    });
  }

  #start() {
    this.#stderr = "";
    const started = fork(child, [this.name, String(this.wanted)], { stdio: ["ignore", "ignore", "pipe", "ipc"] });
    started.stderr.on("data", (text) => {
      this.#stderr += text;
    });
    return started;
  }

  stop() {
    this.#process?.kill();
    this.#process = undefined;
  }
}
