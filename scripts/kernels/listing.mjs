// Reads what llvm-objdump writes of a code object: the instructions of each function, and its loops. A branch backwards is not
// yet a loop, as compilers put what seldom runs behind everything else, so loops are found by dominators.

/** A line of the listing: tab, instruction, comment with its address. */
const line = /^\s+(\w+)(?: ([^/]*?))?\s*\/\/ ([0-9A-Fa-f]+):/;

/** The instructions of each function, by its name: `{ at, name, operands }`, with the address that a branch goes to as `to`. */
export function functionsOf(listing) {
  const functions = new Map();
  let current;
  for (const text of listing.split("\n")) {
    const label = /^(?:[0-9a-f]+ )?<(\w[\w.$]*)>:$/.exec(text);
    if (label) {
      current = [];
      functions.set(label[1], current);
      continue;
    }
    const found = current && line.exec(text);
    if (!found) continue;
    const [, name, operands = "", address] = found;
    const at = Number.parseInt(address, 16);
    // So many words from the next instruction on, in 16 bits with a sign.
    const to = /^s_c?branch/.test(name) ? at + 4 + ((Number(operands) << 16) >> 14) : undefined;
    current.push(to === undefined ? { at, name, operands } : { at, name, operands, to });
  }
  return functions;
}

const ends = /^s_(branch|endpgm|setpc)/;

/** Blocks of instructions that run one after another, with the numbers of those that may follow. */
export function blocksOf(instructions) {
  const starts = new Set([instructions[0]?.at]);
  for (const [i, { to, name }] of instructions.entries()) {
    if (to !== undefined) starts.add(to);
    if ((to !== undefined || ends.test(name)) && instructions[i + 1]) starts.add(instructions[i + 1].at);
  }
  const blocks = [];
  const numbers = new Map();
  for (const instruction of instructions) {
    if (starts.has(instruction.at)) {
      numbers.set(instruction.at, blocks.length);
      blocks.push({ code: [], next: [] });
    }
    blocks.at(-1).code.push(instruction);
  }
  for (const [i, { code, next }] of blocks.entries()) {
    const last = code.at(-1);
    if (!ends.test(last.name) && i + 1 < blocks.length) next.push(i + 1);
    if (numbers.has(last.to)) next.push(numbers.get(last.to));
  }
  return blocks;
}

/** Of each block the one that every way to it has met last (Cooper, Harvey, Kennedy); undefined where none leads to it. */
function dominatorsOf(blocks) {
  const order = [];
  const seen = new Set([0]);
  const stack = [{ block: 0, edge: 0 }];
  while (stack.length > 0) {
    const top = stack.at(-1);
    const to = blocks[top.block].next[top.edge++];
    if (to === undefined) order.push(stack.pop().block);
    else if (!seen.has(to)) {
      seen.add(to);
      stack.push({ block: to, edge: 0 });
    }
  }
  const rank = new Map(order.map((block, i) => [block, i]));
  const from = blocks.map(() => []);
  for (const block of order) for (const to of blocks[block].next) from[to].push(block);
  const above = [0];
  const meet = (a, b) => {
    let [x, y] = [a, b];
    while (x !== y) {
      if (rank.get(x) < rank.get(y)) x = above[x];
      else y = above[y];
    }
    return x;
  };
  for (let changed = true; changed; ) {
    changed = false;
    for (const block of order.toReversed()) {
      if (block === 0) continue;
      const known = from[block].filter((one) => above[one] !== undefined).reduce(meet);
      if (above[block] !== known) changed = true;
      above[block] = known;
    }
  }
  return { above, from };
}

/** The natural loops of a function: the block each begins with, all its blocks, and those that go back to the first. */
export function loopsOf(blocks) {
  if (blocks.length === 0) return [];
  const { above, from } = dominatorsOf(blocks);
  const dominates = (a, b) => {
    let block = b;
    while (block !== a && block !== 0) block = above[block];
    return block === a;
  };
  const loops = new Map();
  for (const [block, { next }] of blocks.entries()) {
    if (above[block] === undefined) continue;
    for (const head of next.filter((to) => dominates(to, block))) {
      const loop = loops.get(head) ?? { head, blocks: new Set([head]), back: [] };
      loops.set(head, loop);
      loop.back.push(block);
      const open = [block];
      for (let at = open.pop(); at !== undefined; at = open.pop()) {
        if (loop.blocks.has(at)) continue;
        loop.blocks.add(at);
        open.push(...from[at]);
      }
    }
  }
  return [...loops.values()];
}

/**
 * What runs in an ordinary round of a loop: the blocks on a way from its first one back that enters none of the `avoided` loops,
 * or all of its blocks where each way enters one. In the order in which they run, with both sides of every branch.
 */
export function roundOf(blocks, loop, avoided) {
  const closed = new Set(avoided.flatMap((inner) => [...inner.blocks]));
  const inside = (isOpen) => {
    // Every block after all that lead to it: the reverse of the order in which a search leaves them.
    const order = [];
    const seen = new Set();
    const leadsBack = new Map();
    const visit = (block) => {
      seen.add(block);
      let isBack = loop.back.includes(block);
      for (const to of blocks[block].next.filter((one) => one !== loop.head && loop.blocks.has(one) && isOpen(one))) {
        if (!seen.has(to)) visit(to);
        isBack ||= leadsBack.get(to) ?? false;
      }
      leadsBack.set(block, isBack);
      if (isBack) order.push(block);
    };
    visit(loop.head);
    return order.reverse();
  };
  const ordinary = inside((block) => !closed.has(block));
  const chosen = ordinary.length > 0 ? ordinary : inside(() => true);
  return chosen.flatMap((block) => blocks[block].code);
}
