/** Random draws that depend on a seed alone, so that a case can be run by itself. */
export function draws(seed) {
  let state = (seed * 2654435761) | 0;
  const next = () => {
    state = (state + 0x6d2b79f5) | 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  };
  const int = (least, most) => least + Math.floor(next() * (most - least + 1));
  return { int, pick: (list) => list[int(0, list.length - 1)], chance: (n) => int(1, n) === 1 };
}
