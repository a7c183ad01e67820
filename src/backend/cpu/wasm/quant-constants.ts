/**
 * Vector constants for loops. V8 keeps what was loaded ahead of a loop in a register, but not constants, which it builds
 * or loads anew at every use.
 */
const TABLE = memory.data<u32>(
  [
    0x00ff00ff, 0x00ff00ff, 0x00ff00ff, 0x00ff00ff, 0x000f000f, 0x000f000f, 0x000f000f, 0x000f000f, 0x0f0f0f0f,
    0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f, 0x03030303, 0x03030303, 0x03030303, 0x03030303, 0x8fffe000, 0x8fffe000,
    0x8fffe000, 0x8fffe000, 0x77800000, 0x77800000, 0x77800000, 0x77800000, 0x7c000000, 0x7c000000, 0x7c000000,
    0x7c000000, 0x7f800000, 0x7f800000, 0x7f800000, 0x7f800000, 0x04040404, 0x04040404, 0x04040404, 0x04040404,
    0x10101010, 0x10101010, 0x10101010, 0x10101010, 0x30303030, 0x30303030, 0x30303030, 0x30303030,
  ],
  16,
);

/** The lower byte, and the lowest four bits, of words. */
export const WORD_BYTE: usize = 0;
export const WORD_NIBBLE: usize = 16;
/** The lowest bits of bytes. */
export const BYTE_NIBBLE: usize = 32;
export const BYTE_PAIR: usize = 48;
/** For f16 in the upper halves of lanes: all but copies of the sign once shifted, 2^112, the exponent, infinity as f32. */
export const HALF_BITS: usize = 64;
export const HALF_SCALE: usize = 80;
export const HALF_EXPONENT: usize = 96;
export const INFINITIES: usize = 112;

/** Bits above the lowest two, or four, of bytes. */
export const BYTE_THIRD: usize = 128;
export const BYTE_FIFTH: usize = 144;
export const BYTE_FIFTH_SIXTH: usize = 160;

// @inline
export function constant(which: usize): v128 {
  return v128.load(TABLE + which);
}
