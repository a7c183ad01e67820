/** Philox 4×32-10 and what is drawn with it, as the header of the CPU's random.ts states it, in bigints. */
const MASK = 0xffffffffn;

function words(counter: bigint, seed: bigint): bigint[] {
  let c = [counter & MASK, counter >> 32n, 0n, 0n] as [bigint, bigint, bigint, bigint];
  let [k0, k1] = [seed & MASK, (seed >> 32n) & MASK];
  for (let round = 0; round < 10; round++) {
    const [p0, p1] = [c[0] * 0xd2511f53n, c[2] * 0xcd9e8d57n];
    c = [(p1 >> 32n) ^ c[1] ^ k0, p1 & MASK, (p0 >> 32n) ^ c[3] ^ k1, p0 & MASK];
    k0 = (k0 + 0x9e3779b9n) & MASK;
    k1 = (k1 + 0xbb67ae85n) & MASK;
  }
  return c;
}

const uniform = (high: bigint, low: bigint): number => Number((high >> 5n) * 67108864n + (low >> 6n)) * 2 ** -53;

/** n numbers, uniform on [a, b) or normal with mean a and deviation b. */
export function draws(kind: "uniform" | "normal", n: number, seed: bigint, a: number, b: number): number[] {
  const out: number[] = [];
  for (let i = 0n; out.length < n; i++) {
    const [w0, w1, w2, w3] = words(i, seed) as [bigint, bigint, bigint, bigint];
    const [u0, u1] = [uniform(w0, w1), uniform(w2, w3)];
    if (kind === "uniform") {
      out.push(a + u0 * (b - a), a + u1 * (b - a));
    } else {
      const r = Math.sqrt(-2 * Math.log(1 - u0));
      out.push(r * Math.cos(2 * Math.PI * u1) * b + a, r * Math.sin(2 * Math.PI * u1) * b + a);
    }
  }
  return out.slice(0, n);
}
