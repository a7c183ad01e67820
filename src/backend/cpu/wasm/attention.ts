/**
 * Scaled dot-product attention with an online softmax: scores live in blocks, the whole matrix never exists. Few query
 * rows per head read keys and values once, at memory speed (attention-decode.ts); many go through the register tile
 * (attention-prefill.ts); a row's result is the same either way. Rows that see only −inf give NaN, as a softmax of them
 * does, unless there is a sink; without any keys (tk = 0) the result is 0.
 */
import { Sdpa, shiftOf } from "./abi";
import { decode, fitsDecode } from "./attention-decode";
import { prefill } from "./attention-prefill";
import {
  DTYPE,
  KEYS,
  LENGTHS,
  MASK,
  OFFSETS,
  OUT,
  openSequence,
  P,
  Q,
  rowCount,
  SCALE,
  SINKS,
  SOFTCAP,
  TABLES,
  VALUES,
  WIDTH,
  word,
} from "./attention-scores";
import { setArg } from "./memory";
import { Address, Count, DTypeCode, OutAddress, Params } from "./types";

/** Query rows per head up to which packing keys and values costs more than it gains. */
const FEW: i32 = 4;

/**
 * out: (b, hq, tq, dv), contiguous. Causal rows see keys ≤ i + tk − tq, of these with window > 0 only the last `window`;
 * others with window > 0 the keys up to `window` away. sinks: (hq), a logit of each head that has no value, or none.
 */
export function sdpa(
  dtype: DTypeCode,
  p: Params,
  q: Address,
  k: Address,
  v: Address,
  mask: Address,
  sinks: Address,
  out: OutAddress,
  scale: f64,
  softcap: f64,
): void {
  setArguments(dtype, p, q, k, v, mask, sinks, out, scale, softcap);
  setArg<usize>(TABLES, 0);
  const elements = <usize>word(Sdpa.B) * <usize>word(Sdpa.HQ) * <usize>word(Sdpa.TQ) * <usize>word(Sdpa.DV);
  if (elements === 0) return;
  if (word(Sdpa.TK) === 0) return memory.fill(out, 0, elements << shiftOf(dtype));
  attend(0, word(Sdpa.B));
}

/**
 * The same for sequences whose keys are in pages of BLOCK positions, as many sequences as p says: rows offsets[i] … of q
 * and out (rows, hq, d) are those of sequence i, which has lengths[i] keys, in the pages tables[i · width …]; all three
 * are i64. The first `singles` have one row each.
 */
export function sdpaPages(
  dtype: DTypeCode,
  p: Params,
  q: Address,
  k: Address,
  v: Address,
  sinks: Address,
  offsets: Address,
  lengths: Address,
  tables: Address,
  width: Count,
  singles: Count,
  out: OutAddress,
  scale: f64,
  softcap: f64,
): void {
  setArguments(dtype, p, q, k, v, 0, sinks, out, scale, softcap);
  setArg<usize>(OFFSETS, offsets);
  setArg<usize>(LENGTHS, lengths);
  setArg<usize>(TABLES, tables);
  setArg<usize>(WIDTH, width);
  if (singles > 0) attend(0, <i32>singles);
  for (let i = <i32>singles; i < word(Sdpa.B); i++) attend(i, 1);
}

function setArguments(
  dtype: i32,
  p: usize,
  q: usize,
  k: usize,
  v: usize,
  mask: usize,
  sinks: usize,
  out: usize,
  scale: f64,
  softcap: f64,
): void {
  setArg<i32>(DTYPE, dtype);
  setArg<usize>(P, p);
  setArg<usize>(Q, q);
  setArg<usize>(KEYS, k);
  setArg<usize>(VALUES, v);
  setArg<usize>(MASK, mask);
  setArg<usize>(SINKS, sinks);
  setArg<usize>(OUT, out);
  setArg<f64>(SCALE, scale);
  setArg<f64>(SOFTCAP, softcap);
}

/** `count` sequences from `first` on, which have equally many rows. */
function attend(first: i32, count: i32): void {
  openSequence(first);
  if (rowCount <= FEW && fitsDecode()) decode(first, count);
  else prefill(first, count);
}
