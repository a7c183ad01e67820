/** What a counter is advanced by so that its values are far apart: 2⁶⁴ over the golden ratio. */
export const STEP = 0x9e3779b97f4a7c15n;

/** SplitMix64: the counter's bits stirred until each depends on all. */
export function mix(x: bigint): bigint {
  let z = BigInt.asUintN(64, x + STEP);
  z = BigInt.asUintN(64, (z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n);
  z = BigInt.asUintN(64, (z ^ (z >> 27n)) * 0x94d049bb133111ebn);
  return z ^ (z >> 31n);
}
