/**
 * Compiles for a thread that waits: an op that meets a kernel for the first time cannot return to the event loop. This
 * thread has one of its own, and keeps its child process for the next program.
 */
import { workerData } from "node:worker_threads";
import { CompileProcess } from "./compile-process.js";

/** @typedef {{ request: import("./compile-process.js").CompileRequest, seconds: number, done: SharedArrayBuffer }} Job */

/** A child that waits so long for work ends. */
const IDLE_MS = 5000;

/** @type {{ args: readonly string[], requests: import("node:worker_threads").MessagePort }} */
const { args, requests } = workerData;
/** @type {CompileProcess | undefined} */
let child;

requests.on("message", async (/** @type {Job} */ { request, seconds, done }) => {
  child = child?.isAlive ? child : new CompileProcess(args);
  const answer = await child.run(request, seconds);
  if (child.isAlive) child.rest(IDLE_MS);
  requests.postMessage(answer);
  const flag = new Int32Array(done);
  Atomics.store(flag, 0, 1);
  Atomics.notify(flag, 0);
});
