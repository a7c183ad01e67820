/**
 * A process of its own for a vendor's run-time compiler, which may crash, hang, or hold a lock for as long as it works.
 * Requests come as frames on standard input, answers leave as frames on descriptor 3, because compilers print as they
 * like. Plain JavaScript: it is started from the sources by tests and from the package by users.
 *
 *   request: u32 length, JSON { source, name, options, output }
 *   answer:  u32 length of JSON, u32 length of code, JSON { code, call, log } or { problem }, code
 */
import { writeSync } from "node:fs";
import { createRequire } from "node:module";

/** @typedef {Record<"create" | "destroy" | "compile" | "logSize" | "log" | "codeSize" | "code" | "assemblySize" | "assembly", (...args: unknown[]) => number>} Compiler */
/** @typedef {{ source: string, name: string, options: string[], output: "code" | "assembly" }} Request */

const [libraryPath = "", prototypes = "{}", stackBytes = "0"] = process.argv.slice(2);

/** @returns {Compiler} */
function open() {
  const koffi = createRequire(import.meta.url)("koffi");
  koffi.config({ sync_stack_size: Number(stackBytes) });
  const library = koffi.load(libraryPath);
  const table = Object.entries(JSON.parse(prototypes));
  const bound = Object.fromEntries(table.map(([call, prototype]) => [call, library.func(prototype)]));
  return /** @type {Compiler} */ (bound);
}

/** @type {Compiler | undefined} */
let compiler;

/** @param {Request} request */
function run({ source, name, options, output }) {
  compiler ??= open();
  const api = compiler;
  const cell = new BigUint64Array(1);
  /** @type {(sizeCall: keyof Compiler, readCall: keyof Compiler) => Uint8Array} */
  const read = (sizeCall, readCall) => {
    const size = new BigUint64Array(1);
    if (api[sizeCall](cell[0], size) !== 0) return new Uint8Array();
    const bytes = new Uint8Array(Number(size[0]));
    return bytes.length > 0 && api[readCall](cell[0], bytes) !== 0 ? new Uint8Array() : bytes;
  };
  // As bytes: a string argument would have to fit the FFI's fixed heap.
  const created = api.create(cell, Buffer.from(`${source}\0`), name, 0, 0n, 0n);
  if (created !== 0) return { facts: { call: "create", code: created, log: "" }, bytes: new Uint8Array() };
  const code = api.compile(cell[0], options.length, options);
  const log = Buffer.from(read("logSize", "log")).toString().replaceAll("\0", "");
  const bytes = code === 0 ? read(`${output}Size`, output) : new Uint8Array();
  api.destroy(cell);
  return { facts: { call: "compile", code, log }, bytes };
}

/** @param {Request} request */
function answer(request) {
  try {
    return run(request);
  } catch (error) {
    return { facts: { problem: error instanceof Error ? error.message : String(error) }, bytes: new Uint8Array() };
  }
}

/** @param {Uint8Array} bytes */
function send(bytes) {
  for (let at = 0; at < bytes.length; ) {
    try {
      at += writeSync(3, bytes, at);
    } catch (error) {
      if (/** @type {NodeJS.ErrnoException} */ (error).code !== "EAGAIN") throw error;
    }
  }
}

let received = Buffer.alloc(0);
process.stdin.on("data", (/** @type {Buffer} */ chunk) => {
  received = Buffer.concat([received, chunk]);
  while (received.length >= 4 && received.length >= 4 + received.readUInt32LE(0)) {
    const end = 4 + received.readUInt32LE(0);
    const request = JSON.parse(received.subarray(4, end).toString());
    received = received.subarray(end);
    const { facts, bytes } = answer(request);
    const text = Buffer.from(JSON.stringify(facts));
    const head = Buffer.alloc(8);
    head.writeUInt32LE(text.length, 0);
    head.writeUInt32LE(bytes.length, 4);
    send(Buffer.concat([head, text, bytes]));
  }
});
