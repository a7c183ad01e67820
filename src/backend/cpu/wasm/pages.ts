/** New rows of sequences whose keys and values are in pages: they are turned by their positions, and enter the pages. */
import { Pages, shiftOf } from "./abi";
import { BLOCK } from "./attention-scores";
import { arg, setArg } from "./memory";
import { parallel } from "./pool";
import { turnRow } from "./rope";
import { Address, DTypeCode, OutAddress, Params } from "./types";

const CHUNK: usize = 32768;
const PAGE: usize = <usize>BLOCK;

const enum Arg {
  DTYPE,
  P,
  Q,
  K,
  V,
  COS,
  SIN,
  OFFSETS,
  LENGTHS,
  TABLES,
  STARTS,
  K_PAGES,
  V_PAGES,
  TURNED,
}

// @inline
function word(i: i32): usize {
  return <usize>load<i32>(arg<usize>(Arg.P) + ((<usize>i) << 2));
}

// @inline
function count(at: i32, i: usize): usize {
  return <usize>load<i64>(arg<usize>(at) + (i << 3));
}

/**
 * The rows of q (rows, hq · d) become `turned` (rows, hq, d), contiguous; those of k and v go to the pages (pages, hk, PAGE,
 * d) that the tables name. Offsets, lengths, tables and starts are as `sdpaPages` has them, and starts the rows of cos
 * and sin that positions 0 have, or none.
 */
export function enterPages(
  dtype: DTypeCode,
  p: Params,
  q: Address,
  k: Address,
  v: Address,
  cos: Address,
  sin: Address,
  offsets: Address,
  lengths: Address,
  tables: Address,
  starts: Address,
  kPages: OutAddress,
  vPages: OutAddress,
  turned: OutAddress,
): void {
  setArg<i32>(Arg.DTYPE, dtype);
  setArg<usize>(Arg.P, p);
  setArg<usize>(Arg.Q, q);
  setArg<usize>(Arg.K, k);
  setArg<usize>(Arg.V, v);
  setArg<usize>(Arg.COS, cos);
  setArg<usize>(Arg.SIN, sin);
  setArg<usize>(Arg.OFFSETS, offsets);
  setArg<usize>(Arg.LENGTHS, lengths);
  setArg<usize>(Arg.TABLES, tables);
  setArg<usize>(Arg.STARTS, starts);
  setArg<usize>(Arg.K_PAGES, kPages);
  setArg<usize>(Arg.V_PAGES, vPages);
  setArg<usize>(Arg.TURNED, turned);
  const elements = (word(Pages.HQ) + (word(Pages.HK) << 1)) * word(Pages.D);
  parallel(enterRows, count(Arg.OFFSETS, word(Pages.SEQUENCES)), max<usize>(1, CHUNK / max<usize>(elements, 1)));
}

function enterRows(lo: usize, hi: usize): void {
  const shift = shiftOf(arg<i32>(Arg.DTYPE));
  const hk = word(Pages.HK);
  const d = word(Pages.D);
  const line = d << shift;
  let s: usize = 0;
  for (let r = lo; r < hi; r++) {
    while (r >= count(Arg.OFFSETS, s + 1)) s++;
    const rows = count(Arg.OFFSETS, s + 1) - count(Arg.OFFSETS, s);
    const length = count(Arg.LENGTHS, s);
    const position = length === 0 ? 0 : length - rows + r - count(Arg.OFFSETS, s);
    const angle = position + (arg<usize>(Arg.STARTS) ? count(Arg.STARTS, s) : 0);
    const q = arg<usize>(Arg.Q) + ((r * word(Pages.Q_ROW)) << shift);
    turnHeads(q, angle, word(Pages.HQ), line, arg<usize>(Arg.TURNED) + ((r * word(Pages.HQ) * d) << shift));
    if (length === 0) continue;
    const page = count(Arg.TABLES, s * word(Pages.WIDTH) + position / PAGE);
    const to = ((page * hk * PAGE + (position % PAGE)) * d) << shift;
    const k = arg<usize>(Arg.K) + ((r * word(Pages.K_ROW)) << shift);
    turnHeads(k, angle, hk, PAGE * line, arg<usize>(Arg.K_PAGES) + to);
    const v = arg<usize>(Arg.V) + ((r * word(Pages.V_ROW)) << shift);
    for (let h: usize = 0; h < hk; h++) memory.copy(arg<usize>(Arg.V_PAGES) + to + h * PAGE * line, v + h * line, line);
  }
}

/** The heads of a row, whose results are `step` bytes apart. Elements behind those that turn stay as they are. */
function turnHeads(x: usize, angle: usize, heads: usize, step: usize, out: usize): void {
  const dtype = arg<i32>(Arg.DTYPE);
  const shift = shiftOf(dtype);
  const pairs = word(Pages.PAIRS);
  const d = word(Pages.D);
  const cos = arg<usize>(Arg.COS) + ((angle * pairs) << shift);
  const sin = arg<usize>(Arg.SIN) + ((angle * pairs) << shift);
  const rest = pairs << (shift + 1);
  for (let h: usize = 0; h < heads; h++, x += d << shift, out += step) {
    turnRow(word(Pages.INTERLEAVED) !== 0, dtype, x, 1, cos, sin, pairs, out);
    if (rest < d << shift) memory.copy(out + rest, x + rest, (d << shift) - rest);
  }
}
