/**
 * What both ways to compute attention share: the words that describe it, whose rows and keys a thread has before it, which
 * of them a row sees, lane functions, and the order in which keys are summed. That order is one for a row alone and for
 * a row among many: scores are dots as those of lines.ts; a BLOCK of keys after the other, counted from the first key
 * of the sequence, adds its exponentials and its weighted values, key by key; every RANGE begins anew, and ranges are
 * merged in their order. What a row does not see counts nothing, so that it does not matter whether it is computed.
 */

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
/** Of sequences in pages, i64: where the rows of each begin, how many keys it has, and the pages they are in; or 0. */
export const OFFSETS = 10;
export const LENGTHS = 11;
export const TABLES = 12;
export const WIDTH = 13; // pages per table
/** Arguments of the one or the other way begin here. */
export const OWN = 14;

/** Keys that are scored at a time: a page of them. */
export const BLOCK: i32 = 64;
const LOG_BLOCK: i32 = 6;
/** Keys that are summed by themselves. */
export const RANGE: i32 = 512;

// @inline
export function word(i: i32): i32 {
  return load<i32>(arg<usize>(P) + ((<usize>i) << 2));
}

/** Of the sequence that this thread has before it: query rows and keys. */
export let rowCount: i32 = 0;
export let keyCount: i32 = 0;
let batch: i32 = 0;
let table: usize = 0;
let firstRow: isize = 0;

export function openSequence(b: i32): void {
  batch = b;
  if (arg<usize>(TABLES) === 0) {
    rowCount = word(Sdpa.TQ);
    keyCount = word(Sdpa.TK);
    return;
  }
  const at = (<usize>b) << 3;
  table = arg<usize>(TABLES) + at * arg<usize>(WIDTH);
  firstRow = <isize>load<i64>(arg<usize>(OFFSETS) + at);
  rowCount = <i32>(load<i64>(arg<usize>(OFFSETS) + at, 8) - firstRow);
  keyCount = <i32>load<i64>(arg<usize>(LENGTHS) + at);
}

/** Where the keys of a head begin, from key j of a block on, or with the other arguments the values. */
// @inline
export function blockAt(base: i32, strides: i32, kvHead: i32, j: i32): usize {
  let outer: isize = batch;
  if (arg<usize>(TABLES) !== 0) {
    outer = <isize>load<i64>(table + ((<usize>(j >> LOG_BLOCK)) << 3));
    j &= BLOCK - 1;
  }
  const at = outer * word(strides) + <isize>kvHead * word(strides + 1) + <isize>j * word(strides + 2);
  return arg<usize>(base) + (at << shiftOf(arg<i32>(DTYPE)));
}

/** Where row i of a query head begins. */
// @inline
export function queryAt(head: i32, i: i32): usize {
  let at = <isize>head * word(Sdpa.Q_STRIDES + 1) + <isize>i * word(Sdpa.Q_STRIDES + 2);
  at += arg<usize>(TABLES) !== 0 ? firstRow * word(Sdpa.Q_STRIDES + 2) : <isize>batch * word(Sdpa.Q_STRIDES);
  return arg<usize>(Q) + (at << shiftOf(arg<i32>(DTYPE)));
}

/** Where its result goes: rows of heads in pages, heads of rows elsewhere. */
// @inline
export function resultAt(head: i32, i: i32): usize {
  const heads = word(Sdpa.HQ);
  const row =
    arg<usize>(TABLES) !== 0 ? (firstRow + i) * heads + head : (<isize>batch * heads + head) * rowCount + <isize>i;
  return arg<usize>(OUT) + ((<usize>row * <usize>word(Sdpa.DV)) << shiftOf(arg<i32>(DTYPE)));
}

/** Where the mask of a row of a head begins, from key j on. */
// @inline
export function maskAt(head: i32, i: i32, j: i32): usize {
  const at =
    <isize>batch * word(Sdpa.MASK_STRIDES) +
    <isize>head * word(Sdpa.MASK_STRIDES + 1) +
    <isize>i * word(Sdpa.MASK_STRIDES + 2) +
    <isize>j * word(Sdpa.MASK_STRIDES + 3);
  return arg<usize>(MASK) + (at << shiftOf(arg<i32>(DTYPE)));
}

/** The last key that row i may see, and the first. */
// @inline
export function lastKey(i: i32): i32 {
  if (!word(Sdpa.CAUSAL) && word(Sdpa.WINDOW) === 0) return keyCount - 1;
  const ahead = word(Sdpa.CAUSAL) ? 0 : word(Sdpa.WINDOW);
  return min(i + keyCount - rowCount + ahead, keyCount - 1);
}
// @inline
export function firstKey(i: i32): i32 {
  if (word(Sdpa.WINDOW) === 0) return 0;
  const own = word(Sdpa.CAUSAL) ? 1 : 0;
  return max(i + keyCount - rowCount - word(Sdpa.WINDOW) + own, 0);
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
