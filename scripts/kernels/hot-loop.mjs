// The loop in which a kernel spends its time, what it is made of, and how much of its time the matrix unit can work in it. All
// of it is read off the compiled code: docs/kernels.md says what is counted and what is not.
import { blocksOf, loopsOf, roundOf } from "./listing.mjs";

const isMatrix = ({ name }) => /^v_s?w?(wmma|mfma|swmmac|smfmac)/.test(name);
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
 * Cycles of a SIMD by family of targets. `matrix` from AMD's matrix instruction calculator ("Execution cycles"), for products
 * of 16 × 16 results over 16 halves, whose work others have a multiple of; `beside` says whether the vector unit goes on while
 * the matrix unit works ("Can co-execute with VALU") once it was issued; a compute unit has `simds` of them, which share 128 bytes of
 * shared memory and 64 of the first cache in each cycle.
 */
const machines = [
  { archs: /^gfx90a/, wave: 64, vector: 4, matrix: 32, beside: true, simds: 4 },
  { archs: /^gfx9(42|50)/, wave: 64, vector: 4, matrix: 16, beside: true, simds: 4 },
  { archs: /^gfx9/, wave: 64, vector: 4, matrix: 0, beside: false, simds: 4 },
  { archs: /^gfx12/, wave: 32, vector: 1, matrix: 16, beside: false, simds: 2 },
  { archs: /^gfx1/, wave: 32, vector: 1, matrix: 32, beside: false, simds: 2 },
];
const machineOf = (arch) => machines.find(({ archs }) => archs.test(arch));
const SHARED_BYTES = 128;
const CACHE_BYTES = 64;

/** Of a matrix instruction, as a multiple of 16 × 16 × 16 halves: k of bytes is worth half as much. */
function workOf({ name }) {
  const [, m, n, k] = /_(\d+)x(\d+)x(\d+)/.exec(name) ?? [0, 16, 16, 16];
  const isBytes = /(i8|iu8|fp8|bf8)/.test(name);
  return (Number(m) * Number(n) * Number(k)) / 4096 / (isBytes ? 2 : 1);
}

/** Quarter rate: transcendental functions, and products of 32-bit integers. */
const slow = /^v_(exp|log|rcp|rsq|sqrt|sin|cos)_|^v_(mul_lo_u32|mul_hi_[ui]32|mad_[ui]64_[ui]32)/;

/** Cycles that each pipe of a SIMD is busy with a round of the loop; shared ones count for all SIMDs that share them. */
export function cyclesOf(round, arch) {
  const { wave, vector, matrix, beside, simds } = machineOf(arch);
  const sum = (list, of) => list.reduce((total, one) => total + of(one), 0);
  const products = round.filter(isMatrix);
  const others = round.filter((one) => isVector(one) && !isMatrix(one));
  const moved = round.filter((one) => isMoved(one, "load") || isMoved(one, "store"));
  const lines = (list, bytes) => (simds * wave * sum(list, bytesOf)) / 1;
  return {
    matrix: sum(products, (one) => matrix * workOf(one)),
    // Where the matrix unit works beside, issuing to it takes the place of one other instruction.
    vector: sum(others, ({ name }) => vector * (slow.test(name) ? 4 : 1)) + (beside ? vector * products.length : 0),
    shared: lines(round.filter(isShared)) / SHARED_BYTES,
    memory: lines(moved) / CACHE_BYTES,
  };
}

/** The matrix unit's share of a round when waves enough are there to hide every wait: what its pipes allow. */
export function shareOfPipes(round, arch) {
  const { matrix, vector, shared, memory } = cyclesOf(round, arch);
  const arithmetic = machineOf(arch).beside ? Math.max(matrix, vector) : matrix + vector;
  return matrix / Math.max(arithmetic, shared, memory);
}

/**
 * The share when one wave has the SIMD for itself, by the cycles that llvm-mca finds for a round, waits included. Its cycles on
 * gfx9 are of four clocks, as those of instructions there, and it knows what an MFMA takes; a WMMA it takes for one cycle.
 */
export function shareAlone(round, arch, mcaCycles) {
  const { wave, matrix, beside } = machineOf(arch);
  const busy = round.filter(isMatrix).reduce((total, one) => total + matrix * workOf(one), 0);
  const clocks = mcaCycles * (wave === 64 ? 4 : 1);
  return busy / (beside ? clocks : clocks + busy - round.filter(isMatrix).length);
}

/** The loop to look at: the innermost one with matrix instructions, else the one that loads in the widest pieces. */
function hottest(blocks) {
  const loops = loopsOf(blocks);
  const all = (loop) => [...loop.blocks].flatMap((block) => blocks[block].code);
  const innermost = (holds) => {
    const holding = new Set(loops.filter((loop) => all(loop).some(holds)));
    const inside = (loop) => loops.filter((one) => one !== loop && loop.blocks.has(one.head));
    return [...holding]
      .filter((loop) => !inside(loop).some((one) => holding.has(one)))
      .map((loop) => roundOf(blocks, loop, inside(loop)));
  };
  const best = (rounds, ...ranks) =>
    rounds.toSorted((a, b) => ranks.map((rank) => rank(b) - rank(a)).find((difference) => difference !== 0) ?? 0)[0];
  const loads = (round) => round.filter((one) => isMoved(one, "load"));
  return (
    best(
      innermost(isMatrix),
      (round) => round.filter(isMatrix).length,
      (round) => -round.length,
    ) ??
    best(
      innermost((one) => isMoved(one, "load")),
      (round) => Math.max(0, ...loads(round).map(bytesOf)),
      (round) => loads(round).reduce((total, one) => total + bytesOf(one), 0),
    )
  );
}

/** A round of the hot loop of a function, as instructions; all of it where nothing loops. */
export function hotRound(instructions) {
  return hottest(blocksOf(instructions)) ?? instructions;
}

/** What is kept of a round: counts of instructions, widths of accesses, the share that its pipes allow. */
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
    ...(matrix > 0 && { pipes: Number(shareOfPipes(round, arch).toFixed(2)) }),
  };
}
