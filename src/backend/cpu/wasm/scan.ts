/** Running sums along rows. Floats add up in f64, which no later rounding can make worse than f32. */
import { shiftOf } from "./abi";
import { CF32, CF64, CI32, CU32, classOf, commit, RUN, target } from "./block";
import { arg, setArg } from "./memory";
import { parallel } from "./pool";
import { fetchRun } from "./reduce";
import { Address, Cols, DTypeCode, Layouts, OutAddress, Rows } from "./types";

const CHUNK: usize = 32768;

const enum Arg {
  DTYPE,
  COLS,
  INFO,
  X,
  OUT,
}

export function cumsum(dtype: DTypeCode, rows: Rows, cols: Cols, info: Layouts, x: Address, out: OutAddress): void {
  if (cols === 0) return;
  setArg<i32>(Arg.DTYPE, dtype);
  setArg<usize>(Arg.COLS, cols);
  setArg<usize>(Arg.INFO, info);
  setArg<usize>(Arg.X, x);
  setArg<usize>(Arg.OUT, out);
  parallel(cumsumRows, rows, max<usize>(1, CHUNK / cols));
}

function cumsumRows(lo: usize, hi: usize): void {
  const kind = classOf(arg<i32>(Arg.DTYPE));
  if (kind === CF32) running<f32, f64>(lo, hi);
  else if (kind === CF64) running<f64, f64>(lo, hi);
  else if (kind === CI32) running<i32, i32>(lo, hi);
  else if (kind === CU32) running<u32, u32>(lo, hi);
  else running<i64, i64>(lo, hi);
}

/** Rows are contiguous in the result, so runs may cross them: the sum starts again at each row's first column. */
function running<T, A>(lo: usize, hi: usize): void {
  const dtype = arg<i32>(Arg.DTYPE);
  const cols = arg<usize>(Arg.COLS);
  const end = hi * cols;
  let sum: A = 0;
  let c: usize = 0;
  for (let start = lo * cols; start < end; start += RUN) {
    const n = min(RUN, end - start);
    const p = fetchRun(dtype, arg<usize>(Arg.X), arg<usize>(Arg.INFO), start, n);
    const place = arg<usize>(Arg.OUT) + (start << shiftOf(dtype));
    const to = target(dtype, place);
    for (let i: usize = 0; i < n; i++) {
      sum += <A>load<T>(p + i * sizeof<T>());
      store<T>(to + i * sizeof<T>(), <T>sum);
      if (++c === cols) {
        c = 0;
        sum = 0;
      }
    }
    commit(dtype, to, place, n);
  }
}
