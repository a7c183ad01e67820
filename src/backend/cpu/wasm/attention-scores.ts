/** What both ways to compute attention share: the words that describe it, which keys a row sees, and lane functions. */

import { Sdpa, shiftOf } from "./abi";
import { expNegative4, tanh4 } from "./math";
import { arg } from "./memory";
import { packPanel } from "./pack";

export const DTYPE = 0;
export const P = 1;
export const Q = 2;
export const KEYS = 3;
export const VALUES = 4;
export const MASK = 5;
export const SINKS = 6;
export const OUT = 7;
export const SCALE = 8;
export const SOFTCAP = 9;
/** Arguments of the one or the other way begin here. */
export const OWN = 10;

// @inline
export function word(i: i32): i32 {
  return load<i32>(arg<usize>(P) + ((<usize>i) << 2));
}

/** The last key that row i may see, and the first. */
// @inline
export function lastKey(i: i32): i32 {
  if (!word(Sdpa.CAUSAL) && word(Sdpa.WINDOW) === 0) return word(Sdpa.TK) - 1;
  const ahead = word(Sdpa.CAUSAL) ? 0 : word(Sdpa.WINDOW);
  return min(i + word(Sdpa.TK) - word(Sdpa.TQ) + ahead, word(Sdpa.TK) - 1);
}
// @inline
export function firstKey(i: i32): i32 {
  if (word(Sdpa.WINDOW) === 0) return 0;
  const own = word(Sdpa.CAUSAL) ? 1 : 0;
  return max(i + word(Sdpa.TK) - word(Sdpa.TQ) - word(Sdpa.WINDOW) + own, 0);
}

/** What a row of a head begins with, at `to`: its greatest score and the sum of exponentials, of the sink or of nothing. */
export function begin<T>(head: i32, to: usize): void {
  if (!arg<usize>(SINKS)) {
    store<T>(to, <T>-Infinity);
    store<T>(to, 0, sizeof<T>());
    return;
  }
  const dtype = arg<i32>(DTYPE);
  packPanel(dtype, arg<usize>(SINKS) + ((<usize>head) << shiftOf(dtype)), 0, 1, 1, 1, 1, to);
  store<T>(to, 1, sizeof<T>());
}

// @inline
export function expLanes<T>(x: v128): v128 {
  if (sizeof<T>() === 4) return expNegative4(x);
  return f64x2(Math.exp(f64x2.extract_lane(x, 0)), Math.exp(f64x2.extract_lane(x, 1)));
}

// @inline
export function tanhLanes<T>(x: v128): v128 {
  if (sizeof<T>() === 4) return tanh4(x);
  return f64x2(Math.tanh(f64x2.extract_lane(x, 0)), Math.tanh(f64x2.extract_lane(x, 1)));
}

/** A maximum of −inf (no key seen yet) as 0, so that differences with it stay −inf instead of NaN. */
// @inline
export function finiteMax<T>(m: v128): v128 {
  return v128.andnot(m, v128.eq<T>(m, v128.splat<T>(<T>-Infinity)));
}
