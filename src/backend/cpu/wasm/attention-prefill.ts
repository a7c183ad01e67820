/**
 * Attention for many query rows, transposed: scoresᵀ = K·Qᵀ and outᵀ = Vᵀ·P. A panel then holds a vector of query rows
 * for each key, so the softmax runs over lanes without any horizontal step, and its result is already the packed
 * operand of the second product.
 */
import { F64, Sdpa, shiftOf } from "./abi";
import {
  begin,
  DTYPE,
  expLanes,
  finiteMax,
  firstKey,
  KEYS,
  lastKey,
  MASK,
  OUT,
  OWN,
  Q,
  SCALE,
  SOFTCAP,
  tanhLanes,
  VALUES,
  word,
} from "./attention-scores";
import { narrow, native, RUN, slot } from "./block";
import { arg, setArg } from "./memory";
import { packPanel } from "./pack";
import { parallel, SCRATCH_BYTES, scratch } from "./pool";
import { BLOCK_FREE, block, MR, packRows, ROW } from "./tile";

const PANELS = OWN; // panels of query rows per item
const BLOCK = OWN + 1; // keys per block, a multiple of every tile height
/** Multiplications that are worth a chunk. */
const CHUNK: f64 = 262144;

function roundUp(n: usize, to: usize): usize {
  return ((n + to - 1) / to) * to;
}

/** Bytes of scratch memory: queries, scores, sums and statistics of each panel; keys, values and mask of a block. */
function bytes(panels: usize, keys: usize, size: usize): usize {
  const d = <usize>word(Sdpa.D);
  const dv = roundUp(<usize>word(Sdpa.DV), MR);
  return ROW * (panels * (d + keys + dv + 2) + keys + 1) + keys * (d + dv) * size;
}

export function prefill(): void {
  const size: usize = arg<i32>(DTYPE) === F64 ? 8 : 4;
  const lanes = ROW / size;
  const heads = <usize>word(Sdpa.B) * <usize>word(Sdpa.HQ);
  const tq = <usize>word(Sdpa.TQ);
  let panels = min<usize>(96 / lanes, (tq - 1) / lanes + 1);
  while (panels > 2 && heads * ((tq - 1) / (panels * lanes) + 1) < 16) panels = (panels + 1) >> 1;
  let keys: usize = 96;
  while (panels > 1 && bytes(panels, keys, size) > SCRATCH_BYTES - BLOCK_FREE) panels >>= 1;
  while (keys > 12 && bytes(panels, keys, size) > SCRATCH_BYTES - BLOCK_FREE) keys -= 12;
  setArg<usize>(PANELS, panels);
  setArg<usize>(BLOCK, keys);
  const blocks = (tq - 1) / (panels * lanes) + 1;
  const work = <f64>(panels * lanes) * <f64>word(Sdpa.TK) * <f64>(word(Sdpa.D) + word(Sdpa.DV));
  parallel(size === 8 ? chunk64 : chunk32, heads * blocks, <usize>max(1.0, CHUNK / (work + 64.0)));
}

function chunk32(lo: usize, hi: usize): void {
  items<f32>(lo, hi);
}
function chunk64(lo: usize, hi: usize): void {
  items<f64>(lo, hi);
}

/** Items (batch element, query head, block of query rows). */
function items<T>(lo: usize, hi: usize): void {
  const lanes = ROW / sizeof<T>();
  const tq = <usize>word(Sdpa.TQ);
  const rows = arg<usize>(PANELS) * lanes;
  const blocks = (tq - 1) / rows + 1;
  for (let item = lo; item < hi; item++) {
    const head = item / blocks;
    const first = (item % blocks) * rows;
    attend<T>(<i32>(head / word(Sdpa.HQ)), <i32>(head % word(Sdpa.HQ)), <i32>first, <i32>min(rows, tq - first));
  }
}

/** Rows first … first+rows−1 of one head. */
function attend<T>(b: i32, head: i32, first: i32, rows: i32): void {
  const dtype = arg<i32>(DTYPE);
  const shift = shiftOf(dtype);
  const lanes = <i32>(ROW / sizeof<T>());
  const panels = (rows + lanes - 1) / lanes;
  const d = <usize>word(Sdpa.D);
  const height = roundUp(<usize>word(Sdpa.DV), MR);
  const depth = arg<usize>(BLOCK);
  const kvHead = head / (word(Sdpa.HQ) / word(Sdpa.HK));
  const q =
    arg<usize>(Q) +
    ((<isize>b * word(Sdpa.Q_STRIDES) +
      <isize>head * word(Sdpa.Q_STRIDES + 1) +
      <isize>first * word(Sdpa.Q_STRIDES + 2)) <<
      shift);
  const k = arg<usize>(KEYS) + ((<isize>b * word(Sdpa.K_STRIDES) + <isize>kvHead * word(Sdpa.K_STRIDES + 1)) << shift);
  const v =
    arg<usize>(VALUES) + ((<isize>b * word(Sdpa.V_STRIDES) + <isize>kvHead * word(Sdpa.V_STRIDES + 1)) << shift);

  const queries = scratch + BLOCK_FREE;
  const scores = queries + <usize>panels * d * ROW;
  const sums = scores + <usize>panels * depth * ROW;
  const stats = sums + <usize>panels * height * ROW; // for each panel: largest score, sum of exponentials
  const factors = stats + 2 * <usize>panels * ROW;
  const masks = factors + ROW;
  const keys = masks + depth * ROW;
  const values = keys + depth * d * sizeof<T>();

  begin<T>(head, factors);
  for (let i = 0; i < panels; i++) {
    const from = q + ((<isize>(i * lanes) * word(Sdpa.Q_STRIDES + 2)) << shift);
    packPanel(
      dtype,
      from,
      word(Sdpa.Q_STRIDES + 2),
      word(Sdpa.Q_STRIDES + 3),
      min(lanes, rows - i * lanes),
      lanes,
      d,
      queries + <usize>i * d * ROW,
    );
    for (let at: usize = 0; at < ROW; at += sizeof<T>()) {
      store<T>(stats + <usize>(2 * i) * ROW + at, load<T>(factors));
      store<T>(stats + <usize>(2 * i + 1) * ROW + at, load<T>(factors, sizeof<T>()));
    }
  }
  memory.fill(sums, 0, <usize>panels * height * ROW);
  const end = lastKey(first + rows - 1) + 1;
  for (let j = firstKey(first); j < end; j += <i32>depth) {
    const count = <usize>min(<i32>depth, end - j);
    const padded = roundUp(count, MR);
    packRows(
      dtype,
      k + ((<isize>j * word(Sdpa.K_STRIDES + 2)) << shift),
      word(Sdpa.K_STRIDES + 2),
      word(Sdpa.K_STRIDES + 3),
      count,
      d,
      keys,
    );
    packRows(
      dtype,
      v + ((<isize>j * word(Sdpa.V_STRIDES + 2)) << shift),
      word(Sdpa.V_STRIDES + 3),
      word(Sdpa.V_STRIDES + 2),
      word(Sdpa.DV),
      count,
      values,
    );
    for (let i = 0; i < panels; i++) {
      const row = first + i * lanes;
      const valid = min(lanes, rows - i * lanes);
      if (lastKey(row + valid - 1) < j || firstKey(row) >= j + <i32>count) continue;
      const panel = scores + <usize>i * depth * ROW;
      const stat = stats + <usize>(2 * i) * ROW;
      const sum = sums + <usize>i * height * ROW;
      if (d === 0) memory.fill(panel, 0, padded * ROW);
      else block<T>(padded, lanes, d, keys, queries + <usize>i * d * ROW, 0, panel, ROW, false);
      adjust<T>(b, head, row, valid, j, count, panel, masks);
      if (softmax<T>(panel, count, stat, factors)) rescale<T>(sum, height, factors);
      block<T>(height, lanes, count, values, panel, 0, sum, ROW, true);
    }
  }
  for (let i = 0; i < panels; i++) {
    const valid = min(lanes, rows - i * lanes);
    const row =
      (<usize>(b * word(Sdpa.HQ) + head) * <usize>word(Sdpa.TQ) + <usize>(first + i * lanes)) * <usize>word(Sdpa.DV);
    finish<T>(
      dtype,
      sums + <usize>i * height * ROW,
      stats + <usize>(2 * i + 1) * ROW,
      valid,
      arg<usize>(OUT) + (row << shift),
    );
  }
}

/** Scale, softcap, mask and causality of a panel of scores (keys j … j+count−1, query rows from `row` on). */
function adjust<T>(b: i32, head: i32, row: i32, valid: i32, j: i32, count: usize, panel: usize, masks: usize): void {
  const end = panel + count * ROW;
  const cap = <T>arg<f64>(SOFTCAP);
  const scale = v128.splat<T>(<T>arg<f64>(SCALE));
  for (let at = panel; at < end; at += 16) v128.store(at, v128.mul<T>(v128.load(at), scale));
  if (cap > 0) {
    const c = v128.splat<T>(cap);
    for (let at = panel; at < end; at += 16)
      v128.store(at, v128.mul<T>(c, tanhLanes<T>(v128.div<T>(v128.load(at), c))));
  }
  if (arg<usize>(MASK)) {
    const dtype = arg<i32>(DTYPE);
    const at =
      <isize>b * word(Sdpa.MASK_STRIDES) +
      <isize>head * word(Sdpa.MASK_STRIDES + 1) +
      <isize>row * word(Sdpa.MASK_STRIDES + 2) +
      <isize>j * word(Sdpa.MASK_STRIDES + 3);
    packPanel(
      dtype,
      arg<usize>(MASK) + (at << shiftOf(dtype)),
      word(Sdpa.MASK_STRIDES + 2),
      word(Sdpa.MASK_STRIDES + 3),
      valid,
      ROW / sizeof<T>(),
      count,
      masks,
    );
    for (let at = panel, from = masks; at < end; at += 16, from += 16)
      v128.store(at, v128.add<T>(v128.load(at), v128.load(from)));
  }
  if (!word(Sdpa.CAUSAL) && word(Sdpa.WINDOW) === 0) return;
  for (let r = 0; r < valid; r++) {
    const column = panel + <usize>r * sizeof<T>();
    const before = min(max(firstKey(row + r) - j, 0), <i32>count);
    const after = min(max(lastKey(row + r) + 1 - j, 0), <i32>count);
    for (let key = 0; key < before; key++) store<T>(column + <usize>key * ROW, <T>-Infinity);
    for (let key = after; key < <i32>count; key++) store<T>(column + <usize>key * ROW, <T>-Infinity);
  }
}

/** Scores become exponentials relative to the largest so far; true when earlier sums must be rescaled by `factors`. */
function softmax<T>(panel: usize, count: usize, stat: usize, factors: usize): bool {
  const end = panel + count * ROW;
  let changed = false;
  for (let column: usize = 0; column < ROW; column += 16) {
    const old = v128.load(stat + column);
    let m = old;
    for (let at = panel + column; at < end; at += ROW) m = v128.max<T>(m, v128.load(at));
    v128.store(stat + column, m);
    m = finiteMax<T>(m);
    let total = v128.splat<T>(0);
    for (let at = panel + column; at < end; at += ROW) {
      const e = expLanes<T>(v128.sub<T>(v128.load(at), m));
      total = v128.add<T>(total, e);
      v128.store(at, e);
    }
    const factor = expLanes<T>(v128.sub<T>(old, m));
    v128.store(factors + column, factor);
    v128.store(stat + ROW + column, v128.add<T>(v128.mul<T>(v128.load(stat + ROW + column), factor), total));
    if (v128.any_true(v128.ne<T>(factor, v128.splat<T>(1)))) changed = true;
  }
  return changed;
}

function rescale<T>(sum: usize, height: usize, factors: usize): void {
  const end = sum + height * ROW;
  for (let column: usize = 0; column < ROW; column += 16) {
    const factor = v128.load(factors + column);
    for (let at = sum + column; at < end; at += ROW) v128.store(at, v128.mul<T>(v128.load(at), factor));
  }
}

/** Divides by the sums of exponentials and turns the panel into rows of the result. */
function finish<T>(dtype: i32, sum: usize, totals: usize, valid: i32, out: usize): void {
  const dv = <usize>word(Sdpa.DV);
  for (let r = 0; r < valid; r++) {
    const total = load<T>(totals + <usize>r * sizeof<T>());
    for (let c: usize = 0; c < dv; c += RUN) {
      const count = min(RUN, dv - c);
      const to = out + ((<usize>r * dv + c) << shiftOf(dtype));
      const at = native(dtype) ? to : slot(0);
      for (let i: usize = 0; i < count; i++)
        store<T>(at + i * sizeof<T>(), load<T>(sum + (c + i) * ROW + <usize>r * sizeof<T>()) / total);
      if (!native(dtype)) narrow(dtype, at, to, count);
    }
  }
}
