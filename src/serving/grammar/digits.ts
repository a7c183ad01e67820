/** Numbers between bounds, digit by digit. */
import { chars, choice, type Expression, NOTHING, optional, repeat, sequence, text } from "./expression.ts";

const digit = (first: string, last: string): Expression => (first === last ? text(first) : chars(`${first}${last}`));
const anyDigits = (count: number): Expression => repeat(chars("09"), count, count);

const isAll = (digits: string, value: "0" | "9"): boolean => digits === value.repeat(digits.length);

/** Strings of as many digits as both bounds have. */
function between(low: string, high: string): Expression {
  const rest = low.length - 1;
  if (rest < 0) return text("");
  if (low[0] === high[0]) return sequence(text(low[0]!), between(low.slice(1), high.slice(1)));
  // A first digit behind which all may come belongs to those in the middle.
  const isLowFree = isAll(low.slice(1), "0");
  const isHighFree = isAll(high.slice(1), "9");
  const first = Number(low[0]) + (isLowFree ? 0 : 1);
  const last = Number(high[0]) - (isHighFree ? 0 : 1);
  return choice(
    ...(isLowFree ? [] : [sequence(text(low[0]!), between(low.slice(1), "9".repeat(rest)))]),
    ...(first <= last ? [sequence(digit(String(first), String(last)), anyDigits(rest))] : []),
    ...(isHighFree ? [] : [sequence(text(high[0]!), between("0".repeat(rest), high.slice(1)))]),
  );
}

/** Whole numbers from 0 up, written without leading zeros. */
function naturals(low: bigint, high: bigint): Expression {
  if (low > high) return NOTHING;
  const [shortest, longest] = [String(low).length, String(high).length];
  if (shortest === longest) return between(String(low), String(high));
  const inner = longest - shortest - 1;
  return choice(
    between(String(low), "9".repeat(shortest)),
    ...(inner > 0 ? [sequence(chars("19"), repeat(chars("09"), shortest, shortest + inner - 1))] : []),
    between(`1${"0".repeat(longest - 1)}`, String(high)),
  );
}

/** A point and digits whose value is from `low` to `high` parts of 10^places; nothing where that may be zero. */
function fraction(low: bigint, high: bigint, places: number): Expression {
  if (low === 0n && high === 10n ** BigInt(places) - 1n) {
    return optional(sequence(text("."), repeat(chars("09"), 1, places)));
  }
  const cases: Expression[] = [];
  for (let length = 1; length <= places; length++) {
    const unit = 10n ** BigInt(places - length);
    const [from, to] = [(low + unit - 1n) / unit, high / unit];
    const padded = (value: bigint): string => String(value).padStart(length, "0");
    if (from <= to) cases.push(between(padded(from), padded(to)));
  }
  const written = sequence(text("."), choice(...cases));
  return low === 0n ? optional(written) : written;
}

/** Numbers from 0 up, in parts of 10^places. */
function decimals(low: bigint, high: bigint, places: number): Expression {
  if (low > high) return NOTHING;
  if (places === 0) return naturals(low, high);
  const one = 10n ** BigInt(places);
  const [firstWhole, lastWhole] = [low / one, high / one];
  if (firstWhole === lastWhole) return sequence(text(String(firstWhole)), fraction(low % one, high % one, places));
  const whole = (from: bigint, to: bigint): Expression => sequence(naturals(from, to), fraction(0n, one - 1n, places));
  return choice(
    sequence(text(String(firstWhole)), fraction(low % one, one - 1n, places)),
    whole(firstWhole + 1n, lastWhole - 1n),
    sequence(text(String(lastWhole)), fraction(0n, high % one, places)),
  );
}

/** Numbers from `low` to `high` parts of 10^places. */
export function numbersBetween(low: bigint, high: bigint, places: number): Expression {
  const most = (a: bigint, b: bigint): bigint => (a > b ? a : b);
  const negative = sequence(text("-"), decimals(most(1n, -high), -low, places));
  return choice(low < 0n ? negative : NOTHING, high >= 0n ? decimals(most(0n, low), high, places) : NOTHING);
}

/** A finite number as whole parts of 10^places: the most that are not above it (or, `up`, the fewest not below), and whether they are it. */
export function partsOf(
  value: number,
  places: number,
  up: boolean,
): { readonly parts: bigint; readonly exact: boolean } {
  const [mantissa, exponent = "0"] = String(value).split("e") as [string, string?];
  const [whole, decimals = ""] = mantissa.replace("-", "").split(".") as [string, string?];
  // value = digits · 10^shift
  const shift = Number(exponent) - decimals.length + places;
  const magnitude = BigInt(whole + decimals);
  const sign = value < 0 ? -1n : 1n;
  if (shift >= 0) return { parts: sign * magnitude * 10n ** BigInt(shift), exact: true };
  const unit = 10n ** BigInt(-shift);
  const [cut, left] = [(sign * magnitude) / unit, (sign * magnitude) % unit];
  if (left === 0n) return { parts: cut, exact: true };
  // Division cuts towards zero.
  if (up) return { parts: left > 0n ? cut + 1n : cut, exact: false };
  return { parts: left < 0n ? cut - 1n : cut, exact: false };
}
