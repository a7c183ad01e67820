/**
 * How quants come out of the blocks of each type: once for all kernels. A type is emitted as the code of one block of each
 * row of w, as many rows as a vector has lanes; groups of weights that share a scale are taken one after the other.
 */
import type { QuantType } from "../../../../core/quant-types.ts";
import type { Mem, Vec } from "../operands.ts";
import { gpr, place, type QuantCode, slots, type Words } from "./quant-code.ts";

/** Weights that share a scale: those of 32 activations, or of one half of them. */
export interface Group {
  /** Which 32, from where x stands. */
  readonly block: number;
  readonly half?: 0 | 1;
  /** Its factors, and its minima, in the frame. */
  readonly scale: Mem;
  readonly minimum?: Mem;
}

/** What a kernel does with quants. */
export interface Sink {
  /** Unsigned bytes 4 · word … + 3 of a half of a group, in `quants`, which is used up. */
  take(group: Group, half: number, word: number, quants: Vec): void;
  finish(group: Group): void;
  /** x moves on by so many times 32. */
  advance(blocks: number): void;
}

export interface BlockCode {
  /** What is taken from the unsigned quants; sums of activations make up for it. */
  readonly offset: number;
  /** Groups are of sixteen. */
  readonly halves: boolean;
  emit(c: QuantCode, sink: Sink): void;
}

const NIBBLES = 0x0f0f0f0f;

/** The low or the high nibbles of bytes. */
function nibbles(c: QuantCode, to: Vec, bytes: Vec, high: boolean): void {
  if (high) c.a.vpsrlw(to, bytes, 4);
  c.and(to, high ? to : bytes, c.constantInt(NIBBLES));
}

/** Runs `body` `times` times, in which weights move on by `bytes` and the cursor in the frame by `places`. */
function repeat(c: QuantCode, times: number, bytes: number, places: number, body: () => void): void {
  const { a } = c;
  a.mov(gpr.cursor, gpr.frame);
  a.mov(gpr.inner, times);
  const loop = a.here();
  body();
  a.add(gpr.weights, bytes);
  a.add(gpr.cursor, slots(places));
  a.dec(gpr.inner);
  a.jne(loop);
  a.sub(gpr.weights, times * bytes);
}

function storeWords(c: QuantCode, name: "upper", first: number, words: Words): void {
  for (const [word, bytes] of words.entries()) c.a.vmovups(place(name, first + word), bytes);
}

/** Small blocks: an f16 is the scale of all weights. */
function blockScale(c: QuantCode): Group {
  c.halves(c.quants, 0);
  c.a.vmovups(place("scales", 0), c.quants);
  return { block: 0, scale: place("scales", 0) };
}

const Q8_0: BlockCode = {
  offset: 128,
  halves: false,
  emit(c, sink) {
    const group = blockScale(c);
    for (const half of [0, 1]) {
      const { words } = c.fetch(2 + 16 * half);
      for (const [word, bytes] of words.entries()) {
        c.xor(c.quants, bytes, c.constantInt(0x80808080 | 0));
        sink.take(group, half, word, c.quants);
      }
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
    for (const half of [0, 1]) {
      for (const [word, bytes] of words.entries()) {
        nibbles(c, c.quants, bytes, half === 1);
        sink.take(group, half, word, c.quants);
      }
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
  const [d, least] = c.integers as [Vec, Vec];
  const copy = c.quants;
  a.vpsrld(copy, both, 16);
  c.lowHalves(d, both);
  c.lowHalves(least, copy);
  for (const [own, factor, name, nibble] of [
    [scales, d, "scales", 0],
    [minima, least, "minima", 4],
  ] as const) {
    for (let i = 0; i < 8; i++) {
      const byte = 8 * (i & 3);
      if (i < 4) {
        a.vpsrld(free, own, byte);
        c.and(free, free, c.constantInt(0x3f));
      } else {
        a.vpsrld(free, rest, byte + nibble);
        c.and(free, free, c.constantInt(0x0f));
        a.vpsrld(copy, own, byte + 2);
        c.orMasked(free, copy, c.constantInt(0x30));
      }
      a.vcvtdq2ps(free, free);
      a.vmulps(free, free, factor);
      a.vmovups(place(name, i), free);
    }
  }
}

/** Of 64 weights whose nibbles share 32 bytes, the low ones or the high ones; x moves on in between. */
const nibbleGroup = (i: number): Group => ({
  block: 0,
  scale: place("scales", i, gpr.cursor),
  minimum: place("minima", i, gpr.cursor),
});

const Q4_K: BlockCode = {
  offset: 0,
  halves: false,
  emit(c, sink) {
    sixBits(c);
    repeat(c, 4, 32, 2, () => {
      const { halves } = c.fetchBoth(16, 32);
      for (const high of [0, 1]) {
        const group = nibbleGroup(high);
        for (const [half, words] of halves.entries()) {
          for (const [word, bytes] of words.entries()) {
            nibbles(c, c.quants, bytes, high === 1);
            sink.take(group, half, word, c.quants);
          }
        }
        sink.finish(group);
        sink.advance(1);
      }
    });
  },
};

const Q5_K: BlockCode = {
  offset: 0,
  halves: false,
  emit(c, sink) {
    const { a } = c;
    sixBits(c);
    for (const half of [0, 1]) storeWords(c, "upper", 4 * half, c.fetch(16 + 16 * half).words);
    repeat(c, 4, 32, 2, () => {
      const { halves, free } = c.fetchBoth(48, 64);
      for (const high of [0, 1]) {
        const group = nibbleGroup(high);
        for (const [half, words] of halves.entries()) {
          for (const [word, bytes] of words.entries()) {
            // A byte of upper bits serves all eight groups, one after the other: its lowest bit becomes the fifth.
            const upper = place("upper", 4 * half + word);
            nibbles(c, c.quants, bytes, high === 1);
            a.vmovups(free, upper);
            a.vpsllw(free, free, 4 - high);
            c.orMasked(c.quants, free, c.constantInt(0x10101010));
            if (high === 1) {
              a.vmovups(free, upper);
              a.vpsrlw(free, free, 2);
              a.vmovups(upper, free);
            }
            sink.take(group, half, word, c.quants);
          }
        }
        sink.finish(group);
        sink.advance(1);
      }
    });
  },
};

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
      a.vmovups(place("scales", i), own.free);
    }
    for (let part = 0; part < 4; part++) storeWords(c, "upper", 4 * part, c.fetch(128 + 16 * part).words);
    // Half of the block: 32 bytes of upper bits serve two times 32 bytes of nibbles.
    repeat(c, 2, 64, 8, () => {
      for (const odd of [0, 1]) {
        for (const half of [0, 1] as const) {
          const { words, free } = c.fetch(32 * odd + 16 * half);
          for (const high of [0, 1]) {
            const block = odd + 2 * high;
            const group: Group = { block, half, scale: place("scales", 2 * block + half, gpr.cursor) };
            for (const [word, bytes] of words.entries()) {
              nibbles(c, c.quants, bytes, high === 1);
              // Bits 0 and 1 are of block 0, 2 and 3 of block 1 …: they become the fifth and the sixth.
              a.vmovups(free, place("upper", 4 * half + word, gpr.cursor));
              const shift = 4 - 2 * block;
              if (shift > 0) a.vpsllw(free, free, shift);
              else if (shift < 0) a.vpsrlw(free, free, -shift);
              c.orMasked(c.quants, free, c.constantInt(0x30303030));
              sink.take(group, half, word, c.quants);
            }
            sink.finish(group);
          }
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
