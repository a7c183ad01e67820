/**
 * Scaled dot-product attention with an online softmax: scores live in blocks, the whole matrix never exists. Few query
 * rows per head read keys and values once, at memory speed (attention-decode.ts); many go through the register tile
 * (attention-prefill.ts). Rows that see only −inf give NaN, as a softmax of them does, unless there is a sink; without
 * any keys (tk = 0) the result is 0.
 */
import { Sdpa, shiftOf } from "./abi";
import { decode, fitsDecode } from "./attention-decode";
import { prefill } from "./attention-prefill";
import { DTYPE, KEYS, MASK, OUT, P, Q, SCALE, SINKS, SOFTCAP, VALUES, word } from "./attention-scores";
import { setArg } from "./memory";
import { Address, DTypeCode, OutAddress, Params } from "./types";

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
  const elements = <usize>word(Sdpa.B) * <usize>word(Sdpa.HQ) * <usize>word(Sdpa.TQ) * <usize>word(Sdpa.DV);
  if (elements === 0) return;
  if (word(Sdpa.TK) === 0) return memory.fill(out, 0, elements << shiftOf(dtype));
  if (word(Sdpa.TQ) <= FEW && fitsDecode()) decode();
  else prefill();
}
