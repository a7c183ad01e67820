/**
 * How quants come out of the blocks of each type: once for all kernels. A type is emitted as the code of one block of each
 * row of w, as many rows as a vector has lanes; groups of weights that share a scale are taken one after the other.
 */
import type { QuantType } from "../../../../core/quant-types.ts";
import type { Mem, Vec } from "../operands.ts";
import { gpr, place, type QuantCode, slots, type Word } from "./quant-code.ts";

/** Weights that share a scale: those of 32 activations, or of one half of them. */
export interface Group {
  /** Which 32, from where x stands. */
  readonly block: number;
  readonly half?: 0 | 1;
  /** Its factors, and its minima, in the frame. */
  readonly scale: Mem;
  readonly minimum?: Mem;
}

/** Four unsigned quants of each row: `emit` makes them, and is asked again where they are needed again. */
export interface Quants {
  readonly at: number;
  emit(): Vec;
}

/** What a kernel does with quants. */
export interface Sink {
  /** All quants of a group meet their activations. */
  add(group: Group, quants: Iterable<Quants>): void;
  /** x moves on by so many times 32. */
  advance(blocks: number): void;
}

export interface BlockCode {
  /** What is taken from the unsigned quants; sums of activations make up for it. */
  readonly offset: number;
  /** Groups are of sixteen. */
  readonly halves: boolean;
  /** Registers in which quants are kept while they are needed. */
  readonly keep: number;
  /** Groups have minima. */
  readonly minima: boolean;
  /** Blocks of 32 in strips, whose bytes are taken in words of four as if they were one. */
  readonly strip?: (c: QuantCode, sink: Sink) => void;
  emit(c: QuantCode, sink: Sink): void;
}

const NIBBLES = 0x0f0f0f0f;

/** Made where the bytes are, once. */
function inPlace({ at, bytes }: Word, make: () => void): Quants {
  let isMade = false;
  return {
    at,
    emit() {
      if (!isMade) make();
      isMade = true;
      return bytes;
    },
  };
}

/** Made in the register for quants, or once in one of those that keep them. */
function made(c: QuantCode, at: number, i: number, make: (to: Vec) => void): Quants {
  const own = c.kept[i];
  if (own) return inPlace({ at, bytes: own }, () => make(own));
  return {
    at,
    emit() {
      make(c.quants);
      return c.quants;
    },
  };
}

/** The high nibbles take the place of the bytes; the low ones are taken before. */
function nibblesOf(c: QuantCode, word: Word, high: boolean): Quants {
  const { at, bytes } = word;
  if (!high) return made(c, at, at, (to) => c.and(to, bytes, c.constantInt(NIBBLES)));
  return inPlace(word, () => {
    c.a.vpsrlw(bytes, bytes, 4);
    c.and(bytes, bytes, c.constantInt(NIBBLES));
  });
}

/** The high nibbles where they are of the second sixteen. */
const upperNibbles = (c: QuantCode, word: Word): Quants => ({ ...nibblesOf(c, word, true), at: 4 + word.at });

const unsignedBytes = (c: QuantCode, word: Word): Quants =>
  inPlace(word, () => c.xor(word.bytes, word.bytes, c.constantInt(0x80808080 | 0)));

/** Runs `body` `times` times, in which weights move on by `bytes` and the cursor in the frame by `places`. */
function repeat(c: QuantCode, times: number, bytes: number, places: number, body: () => void): void {
  const { a } = c;
  a.mov(gpr.cursor, gpr.frame);
  a.mov(gpr.inner, times);
  const loop = a.here();
  body();
  c.move(bytes);
  a.add(gpr.cursor, slots(places));
  a.dec(gpr.inner);
  a.jne(loop);
  c.move(-times * bytes);
}

function storeUpper(c: QuantCode, first: number, words: readonly Word[]): void {
  for (const { at, bytes } of words) c.a.vmovups(place("upper", first + at), bytes);
}

/** Small blocks: an f16 is the scale of all weights. */
function blockScale(c: QuantCode): Group {
  c.halves(c.quants, 0);
  c.a.vmovups(place("scales", 0), c.quants);
  return { block: 0, scale: place("scales", 0) };
}

/** Blocks of a strip: their bytes fill whole vectors, of small blocks of either type. */
export const STRIP = 16;
/** Whether strips can be taken: with a shift over two words, and where no quant is asked for twice. */
export const takesStrips = (c: QuantCode, { strip }: BlockCode): boolean =>
  strip !== undefined && c.isa.vbmi2 && !c.asksTwice && c.spare.length >= 3;

/**
 * A strip of blocks of an f16 and `words` words of quants. Every second block begins with a word of which its scale is one
 * half: its quants are shifted by that, and the last word has the next one's scale.
 */
function inStrips(c: QuantCode, sink: Sink, words: number, quantsOf: (word: Word) => Quants[]): void {
  const { a } = c;
  const [before, t, scale] = c.spare as readonly [Vec, Vec, Vec];
  let fetched: readonly Vec[] = [];
  /** The i-th word of each row. */
  const word = (i: number): Vec => {
    if (i % 8 === 0)
      fetched = c
        .fetch32(4 * i)
        .words.toSorted((x, y) => x.at - y.at)
        .map(({ bytes }) => bytes);
    return fetched[i % 8]!;
  };
  const storeScale = (i: number) => {
    c.lowHalves(scale, t);
    a.vmovups(place("scales", i), scale);
  };
  for (let pair = 0; pair < STRIP / 2; pair++) {
    const first = pair * (2 * words + 1);
    let last = word(first);
    a.vmovups(t, last);
    storeScale(0);
    const shifted = function* (): Generator<Quants> {
      for (let at = 0; at < words; at++) {
        let own = last;
        // What is fetched next takes the place of what was there.
        if ((first + at + 1) % 8 === 0) {
          own = before;
          a.vmovups(own, last);
        }
        last = word(first + at + 1);
        if (at === words - 1) {
          a.vpsrld(t, last, 16);
          storeScale(1);
        }
        a.vpshrdd(own, own, last, 16);
        yield* quantsOf({ at, bytes: own });
      }
    };
    const aligned = function* (): Generator<Quants> {
      for (let at = 0; at < words; at++) yield* quantsOf({ at, bytes: word(first + words + 1 + at) });
    };
    for (const [i, quants] of [shifted(), aligned()].entries()) {
      sink.add({ block: 0, scale: place("scales", i) }, quants);
      sink.advance(1);
    }
  }
}

const Q8_0: BlockCode = {
  offset: 128,
  halves: false,
  keep: 0,
  minima: false,
  emit(c, sink) {
    const group = blockScale(c);
    const { words } = c.fetch32(2);
    sink.add(
      group,
      words.map((word) => unsignedBytes(c, word)),
    );
    sink.advance(1);
  },
  strip: (c, sink) => inStrips(c, sink, 8, (word) => [unsignedBytes(c, word)]),
};

const Q4_0: BlockCode = {
  offset: 8,
  halves: false,
  keep: 4,
  minima: false,
  emit(c, sink) {
    const group = blockScale(c);
    const { words } = c.fetch16(2);
    sink.add(group, [...words.map((word) => nibblesOf(c, word, false)), ...words.map((word) => upperNibbles(c, word))]);
    sink.advance(1);
  },
  strip: (c, sink) => inStrips(c, sink, 4, (word) => [nibblesOf(c, word, false), upperNibbles(c, word)]),
};

/**
 * Q4_K and Q5_K begin with two f16 and twelve bytes that hold eight scales and eight minima of six bits; the last four of
 * each lie in nibbles and spare bits.
 */
function sixBits(c: QuantCode): void {
  const { a } = c;
  const { words, free } = c.fetch16(0);
  const [both, scales, minima, rest] = words.map(({ bytes }) => bytes) as [Vec, Vec, Vec, Vec];
  const copy = c.quants;
  const [d, least] = c.temporary;
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
  keep: 0,
  minima: true,
  emit(c, sink) {
    sixBits(c);
    repeat(c, 4, 32, 2, () => {
      const { words } = c.fetch32(16);
      for (const high of [0, 1]) {
        sink.add(
          nibbleGroup(high),
          words.map((word) => nibblesOf(c, word, high === 1)),
        );
        sink.advance(1);
      }
    });
  },
};

const Q5_K: BlockCode = {
  offset: 0,
  halves: false,
  keep: 8,
  minima: true,
  emit(c, sink) {
    const { a } = c;
    sixBits(c);
    storeUpper(c, 0, c.fetch32(16).words);
    repeat(c, 4, 32, 2, () => {
      const { words, free } = c.fetch32(48);
      for (const high of [0, 1]) {
        const quants = words.map(({ at, bytes }) =>
          made(c, at, at, (to) => {
            // A byte of upper bits serves all eight groups, one after the other: its lowest bit becomes the fifth.
            const upper = place("upper", at);
            if (high === 1) a.vpsrlw(to, bytes, 4);
            c.and(to, high === 1 ? to : bytes, c.constantInt(NIBBLES));
            a.vmovups(free, upper);
            a.vpsllw(free, free, 4 - high);
            c.orMasked(to, free, c.constantInt(0x10101010));
          }),
        );
        sink.add(nibbleGroup(high), quants);
        sink.advance(1);
      }
      for (const { at } of words) {
        a.vmovups(free, place("upper", at));
        a.vpsrlw(free, free, 2);
        a.vmovups(place("upper", at), free);
      }
    });
  },
};

const Q6_K: BlockCode = {
  offset: 32,
  halves: true,
  keep: 4,
  minima: false,
  emit(c, sink) {
    const { a } = c;
    const own = c.fetch16(192);
    const d = c.quants;
    c.halves(d, 208);
    for (let i = 0; i < 16; i++) {
      a.vpslld(own.free, own.words[i >> 2]!.bytes, 24 - 8 * (i & 3));
      a.vpsrad(own.free, own.free, 24);
      a.vcvtdq2ps(own.free, own.free);
      a.vmulps(own.free, own.free, d);
      a.vmovups(place("scales", i), own.free);
    }
    for (const half of [0, 1]) storeUpper(c, 8 * half, c.fetch32(128 + 32 * half).words);
    // Half of the block: 32 bytes of upper bits serve two times 32 bytes of nibbles.
    repeat(c, 2, 64, 8, () => {
      for (const odd of [0, 1]) {
        for (const half of [0, 1] as const) {
          const { words, free } = c.fetch16(32 * odd + 16 * half, half);
          for (const [high, block] of [odd, odd + 2].entries()) {
            const quants = words.map(({ at, bytes }, i) =>
              made(c, at, i, (to) => {
                if (high === 1) a.vpsrlw(to, bytes, 4);
                c.and(to, high === 1 ? to : bytes, c.constantInt(NIBBLES));
                // Bits 0 and 1 are of block 0, 2 and 3 of block 1 …: they become the fifth and the sixth.
                a.vmovups(free, place("upper", at, gpr.cursor));
                const shift = 4 - 2 * block;
                if (shift > 0) a.vpsllw(free, free, shift);
                else if (shift < 0) a.vpsrlw(free, free, -shift);
                c.orMasked(to, free, c.constantInt(0x30303030));
              }),
            );
            sink.add({ block, half, scale: place("scales", 2 * block + half, gpr.cursor) }, quants);
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
