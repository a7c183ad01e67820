/**
 * Brings an answer to its end before its tokens run out. From time to time a way to the end is looked for, by tokens that close
 * what is open; when there are only just enough tokens left for it, nothing else may come.
 */

/**
 * @typedef {import("@mlc-ai/web-xgrammar").GrammarMatcher} GrammarMatcher
 * @typedef {import("./worker.js").Setup} Setup
 */

/**
 * @param {Int32Array} mask
 * @param {number} id
 */
const has = (mask, id) => (((mask[id >> 5] ?? 0) >> (id & 31)) & 1) === 1;

/** How a token is liked on the way to an end; the lower the better, and the longer among equals. */
const likings = [/^[}\]]+$/, /^"[}\]]*$/, /^\\["\\]*$/, /^:$/, /^,$/, /^[0-9]$/, /^[A-Za-z0-9_]+$/, /^\S+$/, /^/];
const QUOTES = likings.findIndex((liking) => liking.test('"'));
const CLOSERS = likings.findIndex((liking) => liking.test("}"));
/** Ways that are tried: one by liking, the others by chance. */
const TRIES = 4;

/** @type {{ order: Uint32Array, starts: number[], open: number, close: number } | null} */
let liked = null;

/** Token ids by liking, where each liking starts, and the tokens of the two braces, which only the inside of a string takes both. */
function likedOrder(/** @type {Setup} */ { vocabulary: { bytes, ends }, vocabSize, stopTokens }) {
  if (liked) return liked;
  const decoder = new TextDecoder();
  const stops = new Set(stopTokens);
  const groups = likings.map(() => /** @type {{ id: number, length: number }[]} */ ([]));
  let [open, close] = [-1, -1];
  for (let id = 0; id < vocabSize; id++) {
    const text = decoder.decode(bytes.subarray(id === 0 ? 0 : ends[id - 1], ends[id]));
    if (text === "" || stops.has(id)) continue;
    if (text === "{") open = id;
    if (text === "}") close = id;
    groups[likings.findIndex((liking) => liking.test(text))]?.push({ id, length: text.length });
  }
  for (const group of groups) group.sort((a, b) => b.length - a.length || a.id - b.id);
  const starts = [0];
  for (const group of groups) starts.push(/** @type {number} */ (starts.at(-1)) + group.length);
  liked = { order: Uint32Array.from(groups.flat(), ({ id }) => id), starts, open, close };
  return liked;
}

export class ClosingPath {
  #matcher;
  #setup;
  #left;
  #margin;
  /** At so many tokens left the way to the end is looked for again. */
  #next;
  /** @type {number[] | null} */
  #path = null;
  #chance = 1;

  /**
   * @param {GrammarMatcher} matcher
   * @param {Setup} setup
   * @param {number} left
   * @param {number} margin tokens by which one token can make the way longer
   * @param {number} least tokens of the whole way, about
   */
  constructor(matcher, setup, left, margin, least) {
    this.#matcher = matcher;
    this.#setup = setup;
    this.#left = left;
    this.#margin = margin;
    // Before half of them are used up, nothing can be said that there is no way back from.
    this.#next = Math.max(Math.floor(left / 2), Math.min(left, least + margin));
  }

  /** @param {number} count tokens that came before */
  passed(count) {
    this.#left -= count;
  }

  /** @param {number} token */
  accept(token) {
    this.#left--;
    if (this.#path?.[0] === token) this.#path.shift();
    else this.#path = null;
  }

  /** The mask where it is no longer the grammar's; null where it is. */
  async mask() {
    if (!this.#path && this.#left <= this.#next) await this.#look();
    if (!this.#path) return null;
    const mask = new Int32Array(Math.ceil(this.#setup.vocabSize / 32));
    const tokens = this.#path.length > 0 ? [/** @type {number} */ (this.#path[0])] : this.#setup.stopTokens;
    for (const id of tokens) mask[id >> 5] = /** @type {number} */ (mask[id >> 5]) | (1 << (id & 31));
    return mask;
  }

  async #look() {
    const path = await this.#find();
    if (!path) {
      // None is near: it is looked for again in a while.
      this.#next = this.#left - Math.max(1, Math.floor(this.#left / 8));
      return;
    }
    // One token ends the answer.
    const spare = this.#left - 1 - path.length - this.#margin;
    if (spare <= 0) this.#path = path;
    else this.#next = this.#left - Math.max(1, Math.floor(spare / 4));
  }

  /** Tokens to the end, at most as many as are left. */
  async #find() {
    for (let attempt = 0; attempt < TRIES; attempt++) {
      const path = await this.#walk(attempt > 0);
      if (path) return path;
    }
    return null;
  }

  /** @param {boolean} byChance */
  async #walk(byChance) {
    /** @type {number[]} */
    const path = [];
    let found = false;
    while (!found && path.length < this.#left) {
      const mask = await this.#matcher.getNextTokenBitmask();
      found = this.#setup.stopTokens.some((id) => has(mask, id));
      const token = found ? -1 : this.#choose(mask, byChance);
      if (token < 0) break;
      this.#matcher.acceptToken(token);
      path.push(token);
    }
    if (path.length > 0) this.#matcher.rollBack(path.length);
    return found ? path : null;
  }

  /**
   * @param {Int32Array} mask
   * @param {boolean} byChance
   */
  #choose(mask, byChance) {
    const { order, starts, open, close } = likedOrder(this.#setup);
    const inString = open >= 0 && close >= 0 && has(mask, open) && has(mask, close);
    if (inString) {
      const quote = order.subarray(starts[QUOTES], starts[QUOTES + 1]).find((id) => has(mask, id));
      if (quote !== undefined) return quote;
    }
    const from = inString ? /** @type {number} */ (starts[Math.max(QUOTES, CLOSERS) + 1]) : 0;
    if (!byChance) return order.subarray(from).find((id) => has(mask, id)) ?? -1;
    // A kind of token first: what closes is rare among all that may come.
    const kinds = likings.map((_, i) => order.subarray(starts[i], starts[i + 1]).filter((id) => has(mask, id)));
    const kind = this.#pick(kinds.filter((ids) => ids.length > 0));
    return kind ? (this.#pick(kind) ?? -1) : -1;
  }

  /**
   * @template T
   * @param {ArrayLike<T>} items
   */
  #pick(items) {
    this.#chance = (Math.imul(this.#chance, 1664525) + 1013904223) >>> 0;
    return items[Math.floor((this.#chance / 2 ** 32) * items.length)];
  }
}
