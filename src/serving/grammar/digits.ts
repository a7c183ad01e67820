/** Numbers between bounds, digit by digit. */
import { chars, choice, type Expression, NOTHING, optional, repeat, sequence, text } from "./expression.ts";

const digit = (first: string, last: string): Expression => (first === last ? text(first) : chars(`${first}${last}`));
const anyDigits = (count: number): Expression => repeat(chars("09"), count, count);

/** Strings of as many digits as both bounds have. */
function between(low: string, high: string): Expression {
  if (low === "") return text("");
  if (/^0*$/.test(low) && /^9*$/.test(high)) return anyDigits(low.length);
  const [a, b] = [low[0]!, high[0]!];
  const rest = (value: string): string => value.slice(1);
  if (a === b) return sequence(text(a), between(rest(low), rest(high)));
  const lows = sequence(text(a), between(rest(low), "9".repeat(low.length - 1)));
  const highs = sequence(text(b), between("0".repeat(low.length - 1), rest(high)));
  const next = String(Number(a) + 1);
  const before = String(Number(b) - 1);
  const middle = next <= before ? sequence(digit(next, before), anyDigits(low.length - 1)) : NOTHING;
  return choice(lows, middle, highs);
}

/** Whole numbers from 0 up, written without leading zeros. */
function naturals(low: bigint, high: bigint): Expression {
  if (low > high) return NOTHING;
  const cases: Expression[] = [];
  for (let length = String(low).length; length <= String(high).length; length++) {
    const first = length === 1 ? 0n : 10n ** BigInt(length - 1);
    const last = 10n ** BigInt(length) - 1n;
    cases.push(between(String(low > first ? low : first), String(high < last ? high : last)));
  }
  return choice(...cases);
}

/** A point and digits whose value is from `low` to `high` parts of 10^places; nothing where that may be zero. */
function fraction(low: bigint, high: bigint, places: number): Expression {
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
