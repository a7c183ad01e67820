/** GGUF's blocks, weight by weight, as ggml's definitions have them. */
import { f16ToF32, f32ToF16 } from "../../src/core/halves.ts";
import { type QuantType, quantTypes } from "../../src/core/quant-types.ts";

/** One block: its bytes, and the halves and signed bytes among them. */
class Block {
  constructor(readonly bytes: Uint8Array) {}
  u8 = (at: number): number => this.bytes[at]!;
  i8 = (at: number): number => (this.bytes[at]! << 24) >> 24;
  u16 = (at: number): number => this.bytes[at]! | (this.bytes[at + 1]! << 8);
  f16 = (at: number): number => f16ToF32(this.u16(at));
  f32 = (at: number): number => new DataView(this.bytes.buffer, this.bytes.byteOffset).getFloat32(at, true);
  /** The i-th of 32 numbers of 4 bits: the low halves of 16 bytes, then the high ones. */
  nibble = (at: number, i: number): number => (i < 16 ? this.u8(at + i) & 15 : this.u8(at + i - 16) >> 4);
  bit = (at: number, i: number): number => (this.u8(at + (i >> 3)) >> (i & 7)) & 1;
}

/** Q4_K's and Q5_K's eight pairs of scale and minimum, of 6 bits each in 12 bytes. */
function scaleAndMin(b: Block, at: number, j: number): [scale: number, min: number] {
  if (j < 4) return [b.u8(at + j) & 63, b.u8(at + j + 4) & 63];
  const low = b.u8(at + j + 4);
  return [(low & 15) | ((b.u8(at + j - 4) >> 6) << 4), (low >> 4) | ((b.u8(at + j) >> 6) << 4)];
}

/** Q3_K's sixteen scales of 6 bits, less 32: the low four bits in 8 bytes, the high two in 4 more. */
const q3Scale = (b: Block, at: number, j: number): number => {
  const low = j < 8 ? b.u8(at + j) & 15 : b.u8(at + j - 8) >> 4;
  return (low | (((b.u8(at + 8 + (j & 3)) >> (2 * (j >> 2))) & 3) << 4)) - 32;
};

const iq4 = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
const fp4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0, -0.5, -1, -1.5, -2, -3, -4, -6];

/** The i-th weight of a block. */
const weights: Readonly<Record<QuantType, (b: Block, i: number) => number>> = {
  Q4_0: (b, i) => b.f16(0) * (b.nibble(2, i) - 8),
  Q4_1: (b, i) => b.f16(0) * b.nibble(4, i) + b.f16(2),
  Q5_0: (b, i) => b.f16(0) * ((b.nibble(6, i) | (b.bit(2, i) << 4)) - 16),
  Q5_1: (b, i) => b.f16(0) * (b.nibble(8, i) | (b.bit(4, i) << 4)) + b.f16(2),
  Q8_0: (b, i) => b.f16(0) * b.i8(2 + i),
  Q8_1: (b, i) => b.f16(0) * b.i8(4 + i),
  Q2_K: (b, i) => {
    // 16 groups of 16; 128 weights share 32 bytes, two bits each.
    const scales = b.u8(i >> 4);
    const quant = (b.u8(16 + 32 * (i >> 7) + (i & 31)) >> (2 * ((i >> 5) & 3))) & 3;
    return b.f16(80) * (scales & 15) * quant - b.f16(82) * (scales >> 4);
  },
  Q3_K: (b, i) => {
    const low = (b.u8(32 + 32 * (i >> 7) + (i & 31)) >> (2 * ((i >> 5) & 3))) & 3;
    const high = (b.u8(i & 31) >> (i >> 5)) & 1;
    return b.f16(108) * q3Scale(b, 96, i >> 4) * (low - (high ? 0 : 4));
  },
  Q4_K: (b, i) => {
    const [scale, min] = scaleAndMin(b, 4, i >> 5);
    const byte = b.u8(16 + 32 * (i >> 6) + (i & 31));
    return b.f16(0) * scale * ((i >> 5) & 1 ? byte >> 4 : byte & 15) - b.f16(2) * min;
  },
  Q5_K: (b, i) => {
    const [scale, min] = scaleAndMin(b, 4, i >> 5);
    const byte = b.u8(48 + 32 * (i >> 6) + (i & 31));
    const high = (b.u8(16 + (i & 31)) >> (i >> 5)) & 1;
    return b.f16(0) * scale * (((i >> 5) & 1 ? byte >> 4 : byte & 15) | (high << 4)) - b.f16(2) * min;
  },
  Q6_K: (b, i) => {
    // 128 weights: their low halves in 64 bytes, their high pairs of bits in 32.
    const [half, part, l] = [i >> 7, (i >> 5) & 3, i & 31];
    const byte = b.u8(64 * half + l + 32 * (part & 1));
    const low = part < 2 ? byte & 15 : byte >> 4;
    const high = (b.u8(128 + 32 * half + l) >> (2 * part)) & 3;
    return b.f16(208) * b.i8(192 + 8 * half + 2 * part + (l >> 4)) * ((low | (high << 4)) - 32);
  },
  Q8_K: (b, i) => b.f32(0) * b.i8(4 + i),
  IQ4_NL: (b, i) => b.f16(0) * iq4[b.nibble(2, i)]!,
  IQ4_XS: (b, i) => {
    const group = i >> 5;
    const low = (b.u8(4 + (group >> 1)) >> (4 * (group & 1))) & 15;
    const scale = (low | (((b.u16(2) >> (2 * group)) & 3) << 4)) - 32;
    return b.f16(0) * scale * iq4[b.nibble(8 + 16 * group, i & 31)]!;
  },
  MXFP4: (b, i) => 2 ** (b.u8(0) - 127) * fp4[b.nibble(1, i)]!,
};

export function dequantized(type: QuantType, bytes: Uint8Array): number[] {
  const { size, bytes: each } = quantTypes[type];
  return Array.from({ length: bytes.length / each }, (_, n) => {
    const block = new Block(bytes.subarray(n * each, (n + 1) * each));
    return Array.from({ length: size }, (_, i) => weights[type](block, i));
  }).flat();
}

const f16Bytes = (x: number): number[] => {
  const bits = f32ToF16(x);
  return [bits & 255, bits >> 8];
};
const nibbles = (quants: readonly number[]): number[] =>
  quants.slice(0, 16).map((low, i) => (low & 15) | ((quants[16 + i]! & 15) << 4));
const highBits = (quants: readonly number[]): number[] =>
  [0, 1, 2, 3].map((byte) => quants.slice(8 * byte, 8 * byte + 8).reduce((bits, q, i) => bits | ((q >> 4) << i), 0));

const { fround } = Math;
/** The element of the largest magnitude, with its sign; the first of several. */
const extreme = (x: readonly number[]): number => x.reduce((a, b) => (Math.abs(b) > Math.abs(a) ? b : a), 0);
const inverse = (d: number): number => (d === 0 ? 0 : fround(1 / d));

/** `levels` steps around zero, the extreme at the lowest of them. */
function symmetric(x: readonly number[], levels: number): { d: number; quants: number[] } {
  const d = fround(extreme(x) / -(levels / 2));
  const id = inverse(d);
  return { d, quants: x.map((v) => Math.min(levels - 1, Math.trunc(fround(fround(v * id) + levels / 2 + 0.5)))) };
}

/** `levels` steps from the least to the greatest. */
function affine(x: readonly number[], levels: number): { d: number; min: number; quants: number[] } {
  const min = Math.min(...x);
  const d = fround(fround(Math.max(...x) - min) / (levels - 1));
  const id = inverse(d);
  const quants = x.map((v) => Math.min(levels - 1, Math.trunc(fround(fround(fround(v - min) * id) + 0.5))));
  return { d, min, quants };
}

/** 32 weights as a block, of the types that quantize by themselves. */
export const quantizers: Partial<Readonly<Record<QuantType, (x: readonly number[]) => number[]>>> = {
  Q4_0: (x) => {
    const { d, quants } = symmetric(x, 16);
    return [...f16Bytes(d), ...nibbles(quants)];
  },
  Q4_1: (x) => {
    const { d, min, quants } = affine(x, 16);
    return [...f16Bytes(d), ...f16Bytes(min), ...nibbles(quants)];
  },
  Q5_0: (x) => {
    const { d, quants } = symmetric(x, 32);
    return [...f16Bytes(d), ...highBits(quants), ...nibbles(quants)];
  },
  Q5_1: (x) => {
    const { d, min, quants } = affine(x, 32);
    return [...f16Bytes(d), ...f16Bytes(min), ...highBits(quants), ...nibbles(quants)];
  },
  Q8_0: (x) => {
    const d = fround(Math.abs(extreme(x)) / 127);
    const id = inverse(d);
    const round = (v: number): number => Math.sign(v) * Math.floor(Math.abs(v) + 0.5);
    return [...f16Bytes(d), ...x.map((v) => round(fround(v * id)) & 255)];
  },
};
