/** The comparison that golden cases ask for: |got − want| ≤ abs + rel · |want|, NaN where NaN is, infinities equal. */
import { formatShape, sameShape } from "../core/layout.ts";
import type { Tensor } from "../ops/index.ts";

export interface Difference {
  readonly maxAbs: number;
  readonly maxRel: number;
  /** Says what is wrong; absent when all is within the tolerance. */
  readonly error?: string;
}

export async function compare(got: Tensor, want: Tensor, tolerance: { rel: number; abs: number }): Promise<Difference> {
  const wrong = (error: string): Difference => ({
    maxAbs: Number.POSITIVE_INFINITY,
    maxRel: Number.POSITIVE_INFINITY,
    error,
  });
  if (!sameShape(got.shape, want.shape))
    return wrong(`shape ${formatShape(got.shape)}, expected ${formatShape(want.shape)}`);
  if (got.dtype !== want.dtype) return wrong(`dtype ${got.dtype}, expected ${want.dtype}`);
  const [a, b] = [await got.data(), await want.data()];
  let [maxAbs, maxRel, bad] = [0, 0, -1];
  for (let i = 0; i < b.length; i++) {
    if (a[i] === b[i]) continue;
    const [x, y] = [Number(a[i]), Number(b[i])];
    if (Number.isNaN(x) && Number.isNaN(y)) continue;
    // Exact integers may differ where their doubles do not.
    const abs = typeof a[i] === "bigint" ? Number(BigInt(a[i]!) - BigInt(b[i]!)) : x - y;
    const delta = Number.isNaN(abs) ? Number.POSITIVE_INFINITY : Math.abs(abs);
    maxAbs = Math.max(maxAbs, delta);
    maxRel = Math.max(maxRel, y === 0 ? delta : delta / Math.abs(y));
    if (bad < 0 && !(delta <= tolerance.abs + tolerance.rel * Math.abs(y))) bad = i;
  }
  if (bad < 0) return { maxAbs, maxRel };
  return {
    maxAbs,
    maxRel,
    error: `element ${bad} is ${a[bad]}, expected ${b[bad]} (tolerance ${tolerance.abs} + ${tolerance.rel}·|x|)`,
  };
}
