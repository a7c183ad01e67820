/**
 * Compiles grammars and says which tokens may come, on a thread of its own: a grammar that takes long, or all memory, is ended
 * with its thread. Masks lie in memory that the other side reads, so that it need not wait for a message.
 */
import { parentPort, workerData } from "node:worker_threads";
import { ClosingPath } from "./closing.js";
import { loadXgrammar } from "./xgrammar.js";

/**
 * @typedef {import("@mlc-ai/web-xgrammar").CompiledGrammar} CompiledGrammar
 * @typedef {import("@mlc-ai/web-xgrammar").GrammarMatcher} GrammarMatcher
 * @typedef {{ bytes: Uint8Array, ends: Uint32Array }} Vocabulary
 * @typedef {{ vocabulary: Vocabulary, stopTokens: readonly number[], vocabSize: number, memory: number }} Setup
 * @typedef {{ ebnf: string, shown: readonly (readonly [number, string])[] }} Source
 * @typedef {{ type: "compile", id: number, source: Source } |
 *   { type: "open", id: number, source: Source, state: SharedArrayBuffer, tokens: readonly number[], left: number | null, margin: number, least: number } |
 *   { type: "accept", id: number, token: number } |
 *   { type: "close", id: number }} Message
 * @typedef {{ compiled: CompiledGrammar, idle: GrammarMatcher[], live: number }} Known
 * @typedef {{ matcher: GrammarMatcher, known: Known, closing: ClosingPath | null, state: Int32Array }} Live
 */

/** Words before the mask: how many masks were written, and what is to be said of the last. */
const HEADER = 2;
const ENDED = 1;
const FAILED = 2;
/** Compiled grammars that are kept. */
const MOST_KNOWN = 64;

/** @type {Setup} */
const setup = workerData;
limitMemory(setup.memory);
const xgrammar = loadXgrammar();
/** @type {Map<string, Known>} */
const grammars = new Map();
/** @type {Map<string, Promise<import("@mlc-ai/web-xgrammar").GrammarCompiler>>} */
const compilers = new Map();
/** @type {Map<number, Live>} */
const open = new Map();

let turn = Promise.resolve();
parentPort?.on("message", (/** @type {Message} */ message) => {
  turn = turn
    .then(() => handle(message))
    .catch((error) => {
      parentPort?.postMessage({ id: -1, error: said(error), broken: true });
    });
});

/** @param {Message} message */
async function handle(message) {
  switch (message.type) {
    case "compile":
      return await answer(message.id, () => compiled(message.source));
    case "open":
      return await begin(message);
    case "accept":
      return await advance(message.id, message.token);
    case "close":
      return close(message.id);
  }
}

/**
 * @param {number} id
 * @param {() => Promise<unknown>} work
 */
async function answer(id, work) {
  try {
    await work();
    parentPort?.postMessage({ id });
  } catch (error) {
    // What xgrammar says of a grammar is an error of its own.
    parentPort?.postMessage({ id, error: said(error), broken: isTrap(error) });
  }
}

/**
 * Whether the memory of xgrammar is as it happens to be.
 * @param {unknown} error
 */
const isTrap = (error) => !(error instanceof Error) || error.name === "RuntimeError" || error instanceof RangeError;

/** @param {unknown} error */
const said = (error) =>
  (error instanceof Error ? error.message : String(error)).replace(/^\[[^\]]*\]\s*\S+:\d+:\s*/, "");

/**
 * Of WebAssembly, which has no limit of its own.
 * @param {number} bytes
 */
function limitMemory(bytes) {
  const { grow } = WebAssembly.Memory.prototype;
  WebAssembly.Memory.prototype.grow = function (pages) {
    if (this.buffer.byteLength + pages * 65536 > bytes) throw new RangeError("the grammar needs too much memory");
    return grow.call(this, pages);
  };
}

/** @param {Source["shown"]} shown */
async function compilerFor(shown) {
  const key = JSON.stringify(shown);
  const known = compilers.get(key);
  if (known) return await known;
  const { vocabulary, vocabSize, stopTokens } = setup;
  const { bytes, ends } = vocabulary;
  const hidden = new Set(stopTokens);
  // No grammar takes an empty text.
  const texts = Array.from({ length: vocabSize }, (_, id) => {
    const start = id === 0 ? 0 : (ends[id - 1] ?? 0);
    return hidden.has(id) ? new Uint8Array() : bytes.subarray(start, ends[id] ?? start);
  });
  for (const [id, text] of shown) texts[id] = new TextEncoder().encode(text);
  const strings = /** @type {string[]} */ (/** @type {unknown} */ (texts));
  const info = xgrammar.TokenizerInfo.createTokenizerInfo(strings, "raw", false, vocabSize, [...stopTokens]);
  const compiler = info.then((made) => xgrammar.GrammarCompiler.createGrammarCompiler(made, false));
  compilers.set(key, compiler);
  return await compiler;
}

/** @param {Source} source */
async function compiled(source) {
  const key = JSON.stringify(source);
  const before = grammars.get(key);
  grammars.delete(key);
  const known = before ?? { compiled: await compile(source), idle: [], live: 0 };
  grammars.set(key, known);
  for (const [other, { live, idle, compiled: old }] of grammars) {
    if (grammars.size <= MOST_KNOWN) break;
    if (live > 0 || other === key) continue;
    for (const matcher of idle) matcher.dispose();
    old.dispose();
    grammars.delete(other);
  }
  return known;
}

/** @param {Source} source */
async function compile({ ebnf, shown }) {
  const compiler = await compilerFor(shown);
  const grammar = await xgrammar.Grammar.fromEBNF(ebnf);
  try {
    return await compiler.compileGrammar(grammar);
  } finally {
    grammar.dispose();
  }
}

/** @param {Extract<Message, { type: "open" }>} message */
async function begin({ id, source, state, tokens, left, margin, least }) {
  const words = new Int32Array(state);
  await orFail(words, async () => {
    const known = await compiled(source);
    const matcher = known.idle.pop() ?? (await xgrammar.GrammarMatcher.createGrammarMatcher(known.compiled));
    known.live++;
    const closing = left === null ? null : new ClosingPath(matcher, setup, left, margin, least);
    open.set(id, { matcher, known, closing, state: words });
    for (const token of tokens) if (!matcher.acceptToken(token)) throw new Error(`token ${token} may not come here`);
    closing?.passed(tokens.length);
    await writeMask(id, tokens.length + 1);
  });
}

/**
 * @param {number} id
 * @param {number} token
 */
async function advance(id, token) {
  const live = open.get(id);
  if (!live) return;
  const count = Atomics.load(live.state, 0);
  await orFail(live.state, async () => {
    if (!live.matcher.acceptToken(token)) throw new Error(`token ${token} may not come here`);
    live.closing?.accept(token);
    await writeMask(id, count + 1);
  });
}

/** @param {number} id */
function close(id) {
  const live = open.get(id);
  if (!live) return;
  open.delete(id);
  live.matcher.reset();
  live.known.live--;
  live.known.idle.push(live.matcher);
}

/**
 * @param {number} id
 * @param {number} count
 */
async function writeMask(id, count) {
  const { matcher, closing, state } = /** @type {Live} */ (open.get(id));
  const mask = (await closing?.mask()) ?? (await matcher.getNextTokenBitmask());
  state.set(mask.subarray(0, state.length - HEADER), HEADER);
  publish(state, count, isOnlyEnd(mask) ? ENDED : 0);
}

/** @param {Int32Array} mask */
function isOnlyEnd(mask) {
  const rest = mask.slice();
  let ends = false;
  for (const token of setup.stopTokens) {
    const bit = 1 << (token & 31);
    if (/** @type {number} */ (rest[token >> 5]) & bit) ends = true;
    rest[token >> 5] = /** @type {number} */ (rest[token >> 5]) & ~bit;
  }
  return ends && rest.every((word) => word === 0);
}

/**
 * @param {Int32Array} state
 * @param {number} count
 * @param {number} flags
 */
function publish(state, count, flags) {
  state[1] = flags;
  Atomics.store(state, 0, count);
  Atomics.notify(state, 0);
}

/**
 * @param {Int32Array} state
 * @param {() => Promise<void>} work
 */
async function orFail(state, work) {
  const count = Atomics.load(state, 0);
  try {
    await work();
  } catch (error) {
    publish(state, count + 1, FAILED);
    parentPort?.postMessage({ id: -1, error: said(error), broken: isTrap(error) });
  }
}
