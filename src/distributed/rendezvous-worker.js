/**
 * The thread by which a rank meets the others: rank 0 listens, the others come to it. It is a thread of its own because the
 * main one may wait inside a library for a rank that is gone; this one notices, says so in memory that both share, stops
 * the library, and ends the process where the main thread does not hear.
 */
import { writeSync } from "node:fs";
import { createRequire } from "node:module";
import { createConnection, createServer } from "node:net";
import { parentPort, workerData } from "node:worker_threads";

/**
 * @typedef {{ rank: number, size: number, host: string, port: number, bind: string, job: string, seconds: number,
 *   stalledSeconds: number, announces: boolean, state: SharedArrayBuffer, koffi: string | null }} Setup
 * @typedef {{ type: "exchange", topic: string, value: unknown } | { type: "tell", value: unknown } | { type: "guard", library: string, prototype: string, handle: bigint } |
 *   { type: "unguard", handle: bigint } | { type: "close" } | { type: "fail", message: string }} Order
 * @typedef {{ join: number, size: number, job: string } | { put: string, value: unknown } | { told: unknown } | { all: string, values: unknown[] } |
 *   { ready: true } | { beat: true } | { bye: true } | { failed: string } | { refused: string } | { lost: number, why: string }} Word
 * @typedef {{ rank: number, socket: import("node:net").Socket, heard: number, left: boolean }} Peer
 */

/** @type {Setup} */
const setup = workerData;
const { rank, size, state: shared } = setup;

/** Words of the shared memory, as rendezvous.ts has them: the lost rank + 1, beats of the main thread, that it knows, that all is closed, ranks that have left. */
const [LOST, BEAT, KNOWN, CLOSED, LEFT, TEXT_BYTES, HEADER] = [0, 1, 2, 3, 4, 5, 8];
const state = new Int32Array(shared, 0, HEADER);
const text = new Uint8Array(shared, 4 * HEADER);

const BEAT_MS = 500;
/** Without a word for so long a process is stopped, or its machine is gone. */
const SILENCE_MS = 5000;
/** How long the main thread has to hear of a loss. */
const GRACE_MS = 3000;
const RETRY_MS = 100;
const LONGEST_WORD = 2 ** 26;

/** @type {Map<number, Peer>} */
const peers = new Map();
/** @type {Map<string, Map<number, unknown>>} */
const topics = new Map();
/** @type {Map<bigint, () => void>} */
const guards = new Map();
let isReady = false;
let isOver = false;
/** @type {import("node:net").Server | null} */
let server = null;

/** @param {object} message */
const tell = (message) => parentPort?.postMessage(message);
/** @param {import("node:net").Socket} socket @param {Word} word */
const send = (socket, word) => socket.writable && socket.write(`${JSON.stringify(word)}\n`);
/** @param {Word} word */
const sendAll = (word) => {
  for (const { socket, left } of peers.values()) if (!left) send(socket, word);
};

/** Calls `take` for each word that comes. @param {import("node:net").Socket} socket @param {(word: Word) => void} take */
function listen(socket, take) {
  let rest = "";
  socket.setEncoding("utf8").setNoDelay(true);
  socket.on("data", (/** @type {string} */ data) => {
    rest += data;
    if (rest.length > LONGEST_WORD) return socket.destroy();
    const lines = rest.split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      /** @type {Word} */
      let word;
      try {
        word = JSON.parse(line);
      } catch {
        return socket.destroy();
      }
      take(word);
    }
  });
}

const missing = () => Array.from({ length: size }, (_, i) => i).filter((i) => i !== rank && !peers.has(i));

/** Nobody can begin. @param {string} why */
function refuse(why) {
  if (isOver) return;
  sendAll({ refused: why });
  finish();
  tell({ type: "refused", why });
}

function ready() {
  isReady = true;
  tell({ type: "ready" });
}

/** @param {number} gone @param {string} why */
function lose(gone, why) {
  if (isOver || !isReady) return isOver ? undefined : refuse(`rank ${gone} ${why}`);
  isOver = true;
  sendAll({ lost: gone, why });
  const bytes = new TextEncoder().encode(`rank ${gone} ${why}`).subarray(0, text.byteLength);
  text.set(bytes);
  Atomics.store(state, TEXT_BYTES, bytes.byteLength);
  Atomics.store(state, LOST, gone + 1);
  Atomics.notify(state, LOST);
  if (setup.announces) say(`rank ${gone} ${why}`);
  for (const stop of guards.values()) stop();
  tell({ type: "lost" });
  setTimeout(() => {
    if (Atomics.load(state, KNOWN) === 0 && Atomics.load(state, CLOSED) === 0) end(`rank ${gone} ${why}`);
  }, GRACE_MS);
  closeSockets(GRACE_MS / 2);
}

/** @param {string} why */
function say(why) {
  writeSync(2, `wick: rank ${rank} cannot go on: ${why} [RankLost]\n`);
}

/** The main thread is inside a call that does not return. @param {string} why */
function end(why) {
  if (!setup.announces) say(`${why}, and a call that waits for it did not return`);
  try {
    const koffi = createRequire(import.meta.url)(setup.koffi ?? "koffi");
    koffi.load(null).func("void _exit(int code)")(1);
  } catch {
    process.kill(process.pid, "SIGKILL");
  }
}

/** @param {number} after */
function closeSockets(after) {
  server?.close();
  server = null;
  for (const { socket } of peers.values()) socket.end();
  setTimeout(() => {
    for (const { socket } of peers.values()) socket.destroy();
  }, after).unref();
}

function finish() {
  isOver = true;
  closeSockets(200);
}

/** @param {number} from @param {string} topic @param {unknown} value */
function collect(from, topic, value) {
  const values = topics.get(topic) ?? new Map();
  topics.set(topic, values);
  values.set(from, value);
  if (values.size < size) return;
  topics.delete(topic);
  const all = Array.from({ length: size }, (_, i) => values.get(i));
  sendAll({ all: topic, values: all });
  tell({ type: "all", topic, values: all });
}

/** @param {Peer} peer @param {Word} word */
function hear(peer, word) {
  peer.heard = Date.now();
  if ("put" in word) collect(peer.rank, word.put, word.value);
  else if ("all" in word) tell({ type: "all", topic: word.all, values: word.values });
  else if ("told" in word) tell({ type: "told", value: word.told });
  else if ("ready" in word) ready();
  else if ("refused" in word) refuse(word.refused);
  else if ("lost" in word) lose(word.lost, word.why);
  else if ("failed" in word) lose(peer.rank, word.failed);
  else if ("bye" in word) {
    peer.left = true;
    Atomics.add(state, LEFT, 1);
  }
}

/** @param {Peer} peer */
function watch(peer) {
  peer.socket.on("close", () => {
    if (!peer.left) lose(peer.rank, "has ended, and without a word");
  });
}

function serve() {
  server = createServer((socket) => {
    /** @type {Peer | null} */
    let peer = null;
    socket.on("error", () => {});
    // Whoever does not say at once which rank it is has nothing to do here.
    const stranger = setTimeout(() => socket.destroy(), SILENCE_MS);
    listen(socket, (word) => {
      if (peer) return hear(peer, word);
      clearTimeout(stranger);
      if (!("join" in word) || word.job !== setup.job) return socket.destroy();
      const { join } = word;
      if (word.size !== size) {
        send(socket, { refused: `rank ${join} is of ${word.size} ranks, and rank 0 of ${size}` });
        return refuse(`rank ${join} is of ${word.size} ranks, and rank 0 of ${size}`);
      }
      if (!Number.isInteger(join) || join < 1 || join >= size || peers.has(join)) {
        send(socket, { refused: `there are two processes that are rank ${join}` });
        return refuse(`there are two processes that are rank ${join}`);
      }
      peer = { rank: join, socket, heard: Date.now(), left: false };
      peers.set(join, peer);
      watch(peer);
      if (missing().length > 0) return;
      // The port is needed no longer.
      server?.close();
      server = null;
      sendAll({ ready: true });
      ready();
    });
  });
  server.on("error", (error) => refuse(`rank 0 cannot listen on ${setup.bind}:${setup.port}: ${error.message}`));
  server.listen(setup.port, setup.bind, () => {
    const address = /** @type {import("node:net").AddressInfo} */ (server?.address());
    tell({ type: "listening", port: address.port });
    if (size > 1) return;
    server?.close();
    server = null;
    ready();
  });
}

let lastTry = "";
function connect() {
  if (isOver) return;
  const { host, port, job } = setup;
  const socket = createConnection({ host, port });
  socket.once("error", (error) => {
    lastTry = error.message;
  });
  /** @type {Peer} */
  const peer = { rank: 0, socket, heard: Date.now(), left: false };
  socket.once("connect", () => {
    peers.set(0, peer);
    send(socket, { join: rank, size, job });
    listen(socket, (word) => hear(peer, word));
    watch(peer);
    socket.on("error", () => {});
  });
  socket.once("close", () => {
    if (!peers.has(0) && !isOver) setTimeout(connect, RETRY_MS);
  });
}

/** @param {Extract<Order, { type: "guard" }>} order */
function guard({ library, prototype, handle }) {
  const koffi = createRequire(import.meta.url)(setup.koffi ?? "koffi");
  const abort = koffi.load(library).func(prototype);
  guards.set(handle, () => abort.async(handle, () => {}));
}

parentPort?.on("message", (/** @type {Order} */ order) => {
  if (order.type === "guard") return guard(order);
  if (order.type === "unguard") return void guards.delete(order.handle);
  if (order.type === "tell") return sendAll({ told: order.value });
  if (order.type === "exchange") {
    if (rank === 0) return collect(0, order.topic, order.value);
    const to = peers.get(0);
    return to && void send(to.socket, { put: order.topic, value: order.value });
  }
  // A rank that fails says why; rank 0 tells the others.
  if (order.type === "fail" && !isOver)
    sendAll(rank === 0 ? { lost: 0, why: order.message } : { failed: order.message });
  else if (!isOver) sendAll({ bye: true });
  finish();
  Atomics.store(state, CLOSED, 1);
  Atomics.notify(state, CLOSED);
  // What is written must leave before the thread does.
  setTimeout(() => process.exit(0), 250);
});

let [beat, beatAt] = [0, Date.now()];
setInterval(() => {
  if (isOver) return;
  const now = Date.now();
  if (isReady) {
    sendAll({ beat: true });
    const current = Atomics.load(state, BEAT);
    if (current !== beat) [beat, beatAt] = [current, now];
    const stalled = now - beatAt;
    if (stalled > setup.stalledSeconds * 1000) {
      const why = `has not answered for ${Math.round(stalled / 1000)} s`;
      if (rank !== 0) sendAll({ failed: why });
      return lose(rank, why);
    }
    for (const peer of peers.values()) {
      if (!peer.left && now - peer.heard > SILENCE_MS)
        return lose(peer.rank, `has been silent for ${SILENCE_MS / 1000} s`);
    }
  }
}, BEAT_MS);

setTimeout(() => {
  if (isReady || isOver) return;
  const others = missing();
  const at = `${setup.host}:${setup.port}`;
  refuse(
    rank === 0
      ? `after ${setup.seconds} s rank${others.length === 1 ? "" : "s"} ${others.join(", ")} had not come to ${at}`
      : `rank 0 was not reached at ${at} in ${setup.seconds} s, or the other ranks did not come${lastTry && ` (${lastTry})`}`,
  );
}, setup.seconds * 1000);

if (rank === 0) serve();
else connect();
