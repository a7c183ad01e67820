/** The numbers of a schema. */
import { numbersBetween, partsOf } from "./digits.ts";
import { type Expression, NOTHING, oneOf, text } from "./expression.ts";
import type { Plain } from "./schema.ts";
import { isMultiple } from "./schema-values.ts";

/** Digits that every reader of JSON keeps. */
const MOST_DIGITS = 15;
/** Digits behind the point where the bounds do not have more. */
const USUAL_PLACES = 6;
const MOST_MULTIPLES = 500;

/** Null where nothing is said of them. */
export function numberOf(plain: Plain, whole: boolean): Expression | null {
  const { minimum, maximum, above, below, multiples } = plain;
  const bounds = [minimum, maximum, above, below].filter(Number.isFinite);
  if (bounds.length === 0 && multiples.length === 0) return null;
  const places = whole ? 0 : placesFor(bounds);
  const low = lowest(minimum, above, places) ?? -defaultBound(bounds, places);
  const high = highest(maximum, below, places) ?? defaultBound(bounds, places);
  if (multiples.length > 0) return multiplesBetween(plain, whole, low, high, places);
  if (low <= high) return numbersBetween(low, high, places);
  // Between bounds that are very close there may be nothing but a bound.
  const own = [minimum, maximum].find(
    (x) => Number.isFinite(x) && x >= minimum && x <= maximum && x > above && x < below,
  );
  return own === undefined || (whole && !Number.isInteger(own)) ? NOTHING : text(JSON.stringify(own));
}

function placesFor(bounds: readonly number[]): number {
  const largest = Math.max(1, ...bounds.map(Math.abs));
  const digits = Math.floor(Math.log10(largest)) + 1;
  const own = bounds.map((bound) => -Math.floor(Math.log10(Math.abs(bound) || 1)) + 2);
  return Math.max(0, Math.min(MOST_DIGITS - digits, Math.max(USUAL_PLACES, ...own)));
}

const larger = (a: bigint | null, b: bigint | null): bigint | null => (a === null || (b !== null && b > a) ? b : a);

function lowest(minimum: number, above: number, places: number): bigint | null {
  const from = Number.isFinite(minimum) ? partsOf(minimum, places, true).parts : null;
  if (!Number.isFinite(above)) return from;
  const { parts, exact } = partsOf(above, places, true);
  return larger(from, exact ? parts + 1n : parts);
}

function highest(maximum: number, below: number, places: number): bigint | null {
  const low = lowest(-maximum, -below, places);
  return low === null ? null : -low;
}

/** Where one side has no bound. */
function defaultBound(bounds: readonly number[], places: number): bigint {
  const usual = 10n ** BigInt(MOST_DIGITS) - 1n;
  const largest = Math.max(0, ...bounds.map(Math.abs));
  const farther = partsOf(largest, places, true).parts * 10n;
  return farther > usual ? farther : usual;
}

/** One by one, those nearest to zero: whether a quotient is whole is a matter of rounding. */
function multiplesBetween(plain: Plain, whole: boolean, low: bigint, high: bigint, places: number): Expression {
  const [step, ...others] = plain.multiples as [number, ...number[]];
  const digits = Math.max(places, MOST_DIGITS);
  const unit = partsOf(step, digits, true).parts;
  const scale = 10n ** BigInt(digits - places);
  const first = ceilDivide(low * scale, unit);
  const last = -ceilDivide(-high * scale, unit);
  const start = first > 0n ? first : last < 0n ? last - BigInt(MOST_MULTIPLES) : -BigInt(MOST_MULTIPLES / 2);
  const found: string[] = [];
  for (let k = start < first ? first : start; k <= last && found.length < MOST_MULTIPLES; k++) {
    const written = decimalText(k * unit, digits);
    const value = Number(written);
    if ((whole && !Number.isInteger(value)) || !isMultiple(value, [step, ...others])) continue;
    if (value >= plain.minimum && value <= plain.maximum && value > plain.above && value < plain.below)
      found.push(written);
    if (k - start > 100_000n) break;
  }
  return oneOf(found);
}

const ceilDivide = (a: bigint, b: bigint): bigint => a / b + (a % b > 0n ? 1n : 0n);

function decimalText(parts: bigint, places: number): string {
  const digits = String(parts < 0n ? -parts : parts).padStart(places + 1, "0");
  const fraction = digits.slice(digits.length - places).replace(/0+$/, "");
  const magnitude = digits.slice(0, digits.length - places) + (fraction === "" ? "" : `.${fraction}`);
  return parts < 0n ? `-${magnitude}` : magnitude;
}
