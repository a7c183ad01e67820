/**
 * How quants come out of the blocks of each type: once for all kernels. A type is emitted as the code of one block of each
 * row of w, as many rows as a vector has lanes; groups of weights that share a scale are taken one after the other.
 */
import type { QuantType } from "../../../../core/quant-types.ts";
import { type Mem, mem, rsp, type Vec } from "../operands.ts";
import { frame, gpr, type QuantCode, SLOT } from "./quant-code.ts";

/** Weights that share a scale: a record of 32 activations, or one half of it. */
export interface Group {
  /** Which record, from where x stands. */
  readonly block: number;
  readonly half?: 0 | 1;
  /** Its factors, and its minima, in the frame. */
  readonly scale: Mem;
  readonly minimum?: Mem;
}

/** What a kernel does with quants: words of a group with the 32-bit part of its activations that they belong to. */
export interface Sink {
  take(group: Group, part: number, words: Vec): void;
  finish(group: Group): void;
  /** x moves on by so many records. */
  advance(blocks: number): void;
}

export interface BlockCode {
  /** What is taken from quants; sums of activations make up for it. */
  readonly offset: number;
  /** Groups of sixteen. */
  readonly halves: boolean;
  emit(c: QuantCode, sink: Sink): void;
}

const slot = (base: Mem["base"], at: number, i: number): Mem => mem(base, at + i * SLOT);
const scaleAt = (i: number): Mem => slot(rsp, frame.scales, i);
const minimumAt = (i: number): Mem => slot(rsp, frame.minima, i);
const upperAt = (i: number): Mem => slot(rsp, frame.upper, i);

/** Where words of bytes, four of which are at place `word` of sixteen, find their activations. */
const evenPart = (half: number, word: number): number => 4 * half + word;
const oddPart = (half: number, word: number): number => 8 + 4 * half + word;

/** Four bytes of each row: the even ones and the odd ones meet their activations. */
function takeBytes(c: QuantCode, sink: Sink, group: Group, half: number, word: number, bytes: Vec): void {
  c.and(c.quants, bytes, c.splat(0x00ff00ff));
  sink.take(group, evenPart(half, word), c.quants);
  c.a.vpsrlw(c.quants, bytes, 8);
  sink.take(group, oddPart(half, word), c.quants);
}

/** The same of signed bytes. */
function takeSigned(c: QuantCode, sink: Sink, group: Group, half: number, word: number, bytes: Vec): void {
  c.a.vpsllw(c.quants, bytes, 8);
  c.a.vpsraw(c.quants, c.quants, 8);
  sink.take(group, evenPart(half, word), c.quants);
  c.a.vpsraw(c.quants, bytes, 8);
  sink.take(group, oddPart(half, word), c.quants);
}

/** The low or the high nibbles. */
function takeNibbles(
  c: QuantCode,
  sink: Sink,
  group: Group,
  half: number,
  word: number,
  bytes: Vec,
  high: boolean,
): void {
  const mask = c.splat(0x000f000f);
  if (high) c.a.vpsrlw(c.quants, bytes, 4);
  c.and(c.quants, high ? c.quants : bytes, mask);
  sink.take(group, evenPart(half, word), c.quants);
  c.a.vpsrlw(c.quants, bytes, high ? 12 : 8);
  if (!high) c.and(c.quants, c.quants, mask);
  sink.take(group, oddPart(half, word), c.quants);
}

/** Runs `body` `times` times, in which weights move on by `bytes` and the cursor in the frame by `slots`. */
function repeat(c: QuantCode, times: number, bytes: number, slots: number, body: () => void): void {
  const { a } = c;
  a.mov(gpr.cursor, rsp);
  a.mov(gpr.inner, times);
  const loop = a.here();
  body();
  a.add(gpr.weights, bytes);
  a.add(gpr.cursor, slots * SLOT);
  a.dec(gpr.inner);
  a.jne(loop);
  a.sub(gpr.weights, times * bytes);
}

/** Small blocks: an f16 for all weights. */
function blockScale(c: QuantCode): Group {
  c.halves(c.quants, 0);
  c.store(scaleAt(0), c.quants);
  return { block: 0, scale: scaleAt(0) };
}

const Q8_0: BlockCode = {
  offset: 0,
  halves: false,
  emit(c, sink) {
    const group = blockScale(c);
    for (const half of [0, 1]) {
      const { words } = c.fetch(2 + 16 * half);
      for (const [word, bytes] of words.entries()) takeSigned(c, sink, group, half, word, bytes);
    }
    sink.finish(group);
    sink.advance(1);
  },
};

const Q4_0: BlockCode = {
  offset: 8,
  halves: false,
  emit(c, sink) {
    const group = blockScale(c);
    const { words } = c.fetch(2);
    for (const [word, bytes] of words.entries()) {
      takeNibbles(c, sink, group, 0, word, bytes, false);
      takeNibbles(c, sink, group, 1, word, bytes, true);
    }
    sink.finish(group);
    sink.advance(1);
  },
};

/**
 * Q4_K and Q5_K begin with two f16 and twelve bytes that hold eight scales and eight minima of six bits; the last four of
 * each lie in nibbles and spare bits.
 */
function sixBits(c: QuantCode): void {
  const { a } = c;
  const { words, free } = c.fetch(0);
  const [both, scales, minima, rest] = words;
  const [d, least, copy] = c.integers as readonly [Vec, Vec, Vec, ...Vec[]];
  a.vpsrld(copy, both, 16);
  c.lowHalves(d, both);
  c.lowHalves(least, copy);
  for (const [own, factor, at, nibble] of [
    [scales, d, scaleAt, 0],
    [minima, least, minimumAt, 4],
  ] as const) {
    for (let i = 0; i < 8; i++) {
      const byte = 8 * (i & 3);
      if (i < 4) {
        a.vpsrld(free, own, byte);
        c.and(free, free, c.splat(0x3f));
      } else {
        a.vpsrld(free, rest, byte + nibble);
        c.and(free, free, c.splat(0x0f));
        a.vpsrld(copy, own, byte + 2);
        c.and(copy, copy, c.splat(0x30));
        c.or(free, free, copy);
      }
      a.vcvtdq2ps(free, free);
      a.vmulps(free, free, factor);
      c.store(at(i), free);
    }
  }
}

/** Of 64 weights whose nibbles share 32 bytes, the low ones and the high ones. */
const nibbleGroups = (): readonly [Group, Group] =>
  [0, 1].map((i) => ({
    block: i,
    scale: slot(gpr.cursor, frame.scales, i),
    minimum: slot(gpr.cursor, frame.minima, i),
  })) as unknown as readonly [Group, Group];

const Q4_K: BlockCode = {
  offset: 0,
  halves: false,
  emit(c, sink) {
    sixBits(c);
    repeat(c, 4, 32, 2, () => {
      const [low, high] = nibbleGroups();
      for (const half of [0, 1]) {
        const { words } = c.fetch(16 + 16 * half);
        for (const [word, bytes] of words.entries()) {
          takeNibbles(c, sink, low, half, word, bytes, false);
          takeNibbles(c, sink, high, half, word, bytes, true);
        }
      }
      sink.finish(low);
      sink.finish(high);
      sink.advance(2);
    });
  },
};

/** Four bytes of nibbles with their upper bits, which are in `free` and stay inside the mask. */
function join(c: QuantCode, bytes: Vec, free: Vec, high: boolean, mask: number): void {
  c.and(free, free, c.splat(mask));
  if (high) c.a.vpsrlw(bytes, bytes, 4);
  c.and(c.quants, bytes, c.splat(0x0f0f0f0f));
  c.or(free, free, c.quants);
}

const Q5_K: BlockCode = {
  offset: 0,
  halves: false,
  emit(c, sink) {
    sixBits(c);
    for (const half of [0, 1]) {
      const { words } = c.fetch(16 + 16 * half);
      for (const [word, bytes] of words.entries()) c.store(upperAt(4 * half + word), bytes);
    }
    // Each byte of upper bits serves all eight groups, two at a time; then it moves on by two.
    repeat(c, 4, 32, 2, () => {
      const groups = nibbleGroups();
      for (const half of [0, 1]) {
        const { words, free } = c.fetch(48 + 16 * half);
        for (const [word, bytes] of words.entries()) {
          const upper = upperAt(4 * half + word);
          for (const [i, group] of groups.entries()) {
            c.load(free, upper);
            c.a.vpsllw(free, free, 4 - i);
            join(c, bytes, free, i === 1, 0x10101010);
            takeBytes(c, sink, group, half, word, free);
          }
          c.load(free, upper);
          c.a.vpsrlw(free, free, 2);
          c.store(upper, free);
        }
      }
      for (const group of groups) sink.finish(group);
      sink.advance(2);
    });
  },
};

/** The order in which Q6_K's groups are taken: bytes of nibbles, low or high, of the first or the second sixteen. */
const Q6_K: BlockCode = {
  offset: 32,
  halves: true,
  emit(c, sink) {
    const { a } = c;
    const d = c.integers[0]!;
    c.halves(d, 208);
    const own = c.fetch(192);
    for (let i = 0; i < 16; i++) {
      const bytes = own.words[i >> 2]!;
      a.vpslld(own.free, bytes, 24 - 8 * (i & 3));
      a.vpsrad(own.free, own.free, 24);
      a.vcvtdq2ps(own.free, own.free);
      a.vmulps(own.free, own.free, d);
      c.store(scaleAt(i), own.free);
    }
    for (let part = 0; part < 4; part++) {
      const { words } = c.fetch(128 + 16 * part);
      for (const [word, bytes] of words.entries()) c.store(upperAt(4 * part + word), bytes);
    }
    // Half of the block: 32 bytes of upper bits serve two times 32 bytes of nibbles.
    repeat(c, 2, 64, 8, () => {
      for (const odd of [0, 1]) {
        for (const half of [0, 1] as const) {
          const { words, free } = c.fetch(32 * odd + 16 * half);
          const groups = [odd, odd + 2].map(
            (block): Group => ({ block, half, scale: slot(gpr.cursor, frame.scales, 2 * block + half) }),
          );
          for (const [word, bytes] of words.entries()) {
            for (const [i, group] of groups.entries()) {
              // Bits 0 and 1 are of block 0, 2 and 3 of block 1 …: they go to bits 4 and 5.
              const shift = 4 - 2 * group.block;
              c.load(free, slot(gpr.cursor, frame.upper, 4 * half + word));
              if (shift > 0) a.vpsllw(free, free, shift);
              else if (shift < 0) a.vpsrlw(free, free, -shift);
              join(c, bytes, free, i === 1, 0x30303030);
              takeBytes(c, sink, group, half, word, free);
            }
          }
          for (const group of groups) sink.finish(group);
        }
      }
      sink.advance(4);
    });
  },
};

/** The types that have native kernels. */
export const blockCodes = { Q8_0, Q4_0, Q4_K, Q5_K, Q6_K } as const satisfies Partial<Record<QuantType, BlockCode>>;
export type NativeQuantType = keyof typeof blockCodes;
export const hasNativeCode = (type: QuantType): type is NativeQuantType => Object.hasOwn(blockCodes, type);
