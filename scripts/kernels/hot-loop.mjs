// The loop in which a kernel spends its time, what it is made of, and how much of its time the matrix unit can work in it. All
// of it is read off the compiled code: docs/kernels.md says what is counted and what is not.
import { blocksOf, loopsOf, roundOf } from "./listing.mjs";

const isMatrix = ({ name }) => /^v_(wmma|mfma|swmmac|smfmac)_/.test(name);
const isDot = ({ name }) => /^v_dot/.test(name);
const isVector = ({ name }) => name.startsWith("v_");
const isScalar = ({ name }) => name.startsWith("s_") && !/^s_(wait|nop|delay|clause|barrier|sethalt)/.test(name);
const isShared = ({ name }) => /^ds_(?!bpermute|permute|swizzle|nop)/.test(name);
const isMoved = ({ name }, way) => new RegExp(`^(global|flat|buffer)_${way}_`).test(name);

const widths = [
  [/(dwordx4|b128)/, 16],
  [/(dwordx3|b96)/, 12],
  [/(dwordx2|b64)/, 8],
  [/(short|[ui]16|b16)/, 2],
  [/(byte|[ui]8|b8)/, 1],
];
/** Bytes that an instruction moves for each lane; ds_read2 and its like move two elements. */
export function bytesOf({ name }) {
  const each = widths.find(([pattern]) => pattern.test(name))?.[1] ?? 4;
  return /^ds_(read|write|load|store)(xchg)?_?2/.test(name) ? 2 * each : each;
}

/** How many accesses of each width, the widest first: "4×16 + 2×2 B". */
export function widthsOf(round, way) {
  const counts = new Map();
  for (const one of round.filter((one) => isMoved(one, way))) {
    counts.set(bytesOf(one), (counts.get(bytesOf(one)) ?? 0) + 1);
  }
  return [...counts].sort(([a], [b]) => b - a);
}

/**
 * What a SIMD takes, by family of targets, in cycles. `matrix` is for a product of 16 × 16 results over 16 halves, of which
 * other instructions are a multiple, and `beside` says whether the vector unit goes on meanwhile: "Execution cycles" and "Can
 * co-execute with VALU" of AMD's matrix instruction calculator. A compute unit has `simds`, which share 128 bytes of shared
 * memory and 64 of the first cache in each cycle.
 */
const machines = [
  { archs: /^gfx90a/, wave: 64, vector: 4, matrix: 32, beside: true, simds: 4 },
  { archs: /^gfx9(42|50)/, wave: 64, vector: 4, matrix: 16, beside: true, simds: 4 },
  { archs: /^gfx9/, wave: 64, vector: 4, simds: 4 },
  { archs: /^gfx11/, wave: 32, vector: 1, matrix: 32, beside: false, simds: 2 },
  { archs: /^gfx12/, wave: 32, vector: 1, matrix: 16, beside: false, simds: 2 },
  { archs: /^gfx1/, wave: 32, vector: 1, simds: 2 },
];
const machineOf = (arch) => machines.find(({ archs }) => archs.test(arch));
const SHARED_BYTES = 128;
const CACHE_BYTES = 64;

/** Of a matrix instruction, in products of 16 × 16 × 16 halves: twice as many bytes go in the same time. */
function workOf({ name }) {
  const [, m, n, k] = /_(\d+)x(\d+)x(\d+)/.exec(name);
  const isBytes = /(i8|iu8|[fb]8)/.test(name.replace(/^v_\w+?_[fi]32/, ""));
  return (Number(m) * Number(n) * Number(k)) / 4096 / (isBytes ? 2 : 1);
}

/** Transcendental functions and products of 32-bit integers go at a quarter of the rate. */
const slow = /^v_(exp|log|rcp|rsq|sqrt|sin|cos)_|^v_(mul_lo_u32|mul_hi_[ui]32|mad_[ui]64_[ui]32)/;

/** Cycles that each unit is busy with a round of the loop on every SIMD. */
export function cyclesOf(round, arch) {
  const { wave, vector, matrix, beside, simds } = machineOf(arch);
  const sum = (list, of) => list.reduce((total, one) => total + of(one), 0);
  const bytes = (list) => simds * wave * sum(list, bytesOf);
  const products = round.filter(isMatrix);
  const others = round.filter((one) => isVector(one) && !isMatrix(one));
  return {
    matrix: sum(products, (one) => matrix * workOf(one)),
    // Where the matrix unit works beside, each product still takes the place of one other instruction.
    vector: sum(others, ({ name }) => vector * (slow.test(name) ? 4 : 1)) + (beside ? vector * products.length : 0),
    shared: bytes(round.filter(isShared)) / SHARED_BYTES,
    memory: bytes(round.filter((one) => isMoved(one, "load") || isMoved(one, "store"))) / CACHE_BYTES,
  };
}

/** The matrix unit's share of a round where other waves hide every wait: what is left is how busy each unit is. */
export function shareByCount(round, arch) {
  const { matrix, vector, shared, memory } = cyclesOf(round, arch);
  const arithmetic = machineOf(arch).beside ? Math.max(matrix, vector) : matrix + vector;
  return matrix / Math.max(arithmetic, shared, memory);
}

/** The first by the given ranks, the greatest first. */
const best = (list, ...ranks) =>
  list.toSorted((a, b) => ranks.map((rank) => rank(b) - rank(a)).find((difference) => difference !== 0) ?? 0)[0];

/**
 * An ordinary round of the loop in which a kernel spends its time, as instructions. With matrix instructions that is the innermost
 * loop that has most of them; of several, and where there are none, the one that reads memory in the widest pieces, as narrower
 * ones are for edges and odd strides; then the shortest or innermost. What is in no loop counts as one.
 */
export function hotRound(instructions) {
  const blocks = blocksOf(instructions);
  const loops = loopsOf(blocks);
  const inside = (loop) => loops.filter((one) => one !== loop && loop.blocks.has(one.head));
  const holds = (loop, is) => [...loop.blocks].some((block) => blocks[block].code.some(is));
  const isLoad = (one) => isMoved(one, "load");
  // Inner loops that read memory are for edges, or are judged by themselves; others are part of the round.
  const ordinary = (loop) =>
    roundOf(
      blocks,
      loop,
      inside(loop).filter((one) => holds(one, isLoad)),
    );
  const loads = (round) => round.filter(isLoad).map(bytesOf);
  const widest = (round) => Math.max(0, ...loads(round));
  const multiplying = loops.filter(
    (loop) => holds(loop, isMatrix) && !inside(loop).some((one) => holds(one, isMatrix)),
  );
  if (multiplying.length > 0) {
    return best(
      multiplying.map(ordinary),
      (round) => round.filter(isMatrix).length,
      widest,
      (round) => -round.length,
    );
  }
  const looped = new Set(loops.flatMap((loop) => [...loop.blocks]));
  const straight = blocks.flatMap(({ code }, block) => (looped.has(block) ? [] : code));
  const rounds = loops.map((loop) => ({
    round: ordinary(loop),
    depth: loops.filter((one) => one.blocks.has(loop.head)).length,
  }));
  return best(
    [...rounds, { round: straight, depth: 0 }],
    ({ round }) => widest(round),
    ({ depth }) => depth,
    ({ round }) => loads(round).reduce((sum, bytes) => sum + bytes, 0),
  ).round;
}

/** What is kept of a round: counts of instructions, widths of accesses, the matrix unit's share by count. */
export function roundFacts(round, arch) {
  const count = (is) => round.filter(is).length;
  const matrix = count(isMatrix);
  return {
    matrix,
    dot: count(isDot),
    vector: count(isVector) - matrix - count(isDot),
    scalar: count(isScalar),
    shared: count(isShared),
    loads: widthsOf(round, "load"),
    stores: widthsOf(round, "store"),
    flat: count(({ name }) => name.startsWith("flat_")),
    ...(matrix > 0 && { counted: Number(shareByCount(round, arch).toFixed(2)) }),
  };
}
