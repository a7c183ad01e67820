/**
 * The register tile of every matrix product and the loops that run it over cache blocks. With fused multiply-add the
 * tile is 3 rows × 3 vectors: nine sums, three vectors of B and a broadcast of A fit the sixteen vector registers of
 * x86. Without, products need registers of their own, and 4 × 2 is nearly twice as fast.
 */
import { F64, shiftOf } from "./abi";
import { narrow, native, SCRATCH_FREE } from "./block";
import { packPanel } from "./pack";
import { scratch } from "./pool";

/** Rows of the tile, and bytes of its columns: 12 f32 or 6 f64, 8 or 4 without relaxed SIMD. */
export const MR: usize = RELAXED ? 3 : 4;
export const ROW: usize = RELAXED ? 48 : 32;
/** A cache block of A is MC × KC: it stays in the second-level cache while a panel of B, KC deep, stays in the first. */
export const MC: usize = 96;
export const KC: usize = 256;
/** Columns that `multiply` takes at most, so that a block of C in f32 fits the scratch memory. */
export const COLS: usize = 1536;

// Scratch: tile for ragged edges, packed block of A, block of C before narrowing; callers own the rest. `block` alone
// leaves everything from BLOCK_FREE on.
const EDGE: usize = SCRATCH_FREE;
export const BLOCK_FREE: usize = EDGE + 256;
export const A_BLOCK: usize = BLOCK_FREE;
export const C_BLOCK: usize = A_BLOCK + ((MC * KC) << 3);
export const MULTIPLY_FREE: usize = C_BLOCK + ((MC * COLS) << 2);

// @inline
export function fma<T>(a: v128, b: v128, c: v128): v128 {
  return RELAXED ? v128.relaxed_madd<T>(a, b, c) : v128.add<T>(v128.mul<T>(a, b), c);
}

/** Columns per panel of B. */
// @inline
export function columnsOf(dtype: i32): usize {
  return ROW >> (dtype === F64 ? 3 : 2);
}

/** What becomes of C: it is A·B, A·B is added to it, or its sums go on with A·B, term by term. */
export const SET: i32 = 0;
export const ADD: i32 = 1;
export const CONTINUE: i32 = 2;

/** One tile of C; a and b are panels, kc ≥ 1, ldc in bytes. */
// @inline
function tile<T>(kc: usize, a: usize, b: usize, c: usize, ldc: usize, mode: i32): void {
  if (RELAXED) tile3x3<T>(kc, a, b, c, ldc, mode);
  else tile4x2<T>(kc, a, b, c, ldc, mode);
}

function tile3x3<T>(kc: usize, a: usize, b: usize, c: usize, ldc: usize, mode: i32): void {
  const size = sizeof<T>();
  let c00 = v128.splat<T>(0);
  let c01 = c00;
  let c02 = c00;
  let c10 = c00;
  let c11 = c00;
  let c12 = c00;
  let c20 = c00;
  let c21 = c00;
  let c22 = c00;
  const d = c + ldc;
  const e = d + ldc;
  if (mode === CONTINUE) {
    c00 = v128.load(c);
    c01 = v128.load(c, 16);
    c02 = v128.load(c, 32);
    c10 = v128.load(d);
    c11 = v128.load(d, 16);
    c12 = v128.load(d, 32);
    c20 = v128.load(e);
    c21 = v128.load(e, 16);
    c22 = v128.load(e, 32);
  }
  const end = b + kc * ROW;
  do {
    const b0 = v128.load(b);
    const b1 = v128.load(b, 16);
    const b2 = v128.load(b, 32);
    let x = v128.load_splat<T>(a);
    c00 = fma<T>(x, b0, c00);
    c01 = fma<T>(x, b1, c01);
    c02 = fma<T>(x, b2, c02);
    x = v128.load_splat<T>(a, size);
    c10 = fma<T>(x, b0, c10);
    c11 = fma<T>(x, b1, c11);
    c12 = fma<T>(x, b2, c12);
    x = v128.load_splat<T>(a, 2 * size);
    c20 = fma<T>(x, b0, c20);
    c21 = fma<T>(x, b1, c21);
    c22 = fma<T>(x, b2, c22);
    a += MR * size;
    b += ROW;
  } while (b < end);
  if (mode === ADD) {
    c00 = v128.add<T>(c00, v128.load(c));
    c01 = v128.add<T>(c01, v128.load(c, 16));
    c02 = v128.add<T>(c02, v128.load(c, 32));
    c10 = v128.add<T>(c10, v128.load(d));
    c11 = v128.add<T>(c11, v128.load(d, 16));
    c12 = v128.add<T>(c12, v128.load(d, 32));
    c20 = v128.add<T>(c20, v128.load(e));
    c21 = v128.add<T>(c21, v128.load(e, 16));
    c22 = v128.add<T>(c22, v128.load(e, 32));
  }
  v128.store(c, c00);
  v128.store(c, c01, 16);
  v128.store(c, c02, 32);
  v128.store(d, c10);
  v128.store(d, c11, 16);
  v128.store(d, c12, 32);
  v128.store(e, c20);
  v128.store(e, c21, 16);
  v128.store(e, c22, 32);
}

function tile4x2<T>(kc: usize, a: usize, b: usize, c: usize, ldc: usize, mode: i32): void {
  const size = sizeof<T>();
  let c00 = v128.splat<T>(0);
  let c01 = c00;
  let c10 = c00;
  let c11 = c00;
  let c20 = c00;
  let c21 = c00;
  let c30 = c00;
  let c31 = c00;
  const d = c + ldc;
  const e = d + ldc;
  const f = e + ldc;
  if (mode === CONTINUE) {
    c00 = v128.load(c);
    c01 = v128.load(c, 16);
    c10 = v128.load(d);
    c11 = v128.load(d, 16);
    c20 = v128.load(e);
    c21 = v128.load(e, 16);
    c30 = v128.load(f);
    c31 = v128.load(f, 16);
  }
  const end = b + kc * ROW;
  do {
    const b0 = v128.load(b);
    const b1 = v128.load(b, 16);
    let x = v128.load_splat<T>(a);
    c00 = fma<T>(x, b0, c00);
    c01 = fma<T>(x, b1, c01);
    x = v128.load_splat<T>(a, size);
    c10 = fma<T>(x, b0, c10);
    c11 = fma<T>(x, b1, c11);
    x = v128.load_splat<T>(a, 2 * size);
    c20 = fma<T>(x, b0, c20);
    c21 = fma<T>(x, b1, c21);
    x = v128.load_splat<T>(a, 3 * size);
    c30 = fma<T>(x, b0, c30);
    c31 = fma<T>(x, b1, c31);
    a += MR * size;
    b += ROW;
  } while (b < end);
  if (mode === ADD) {
    c00 = v128.add<T>(c00, v128.load(c));
    c01 = v128.add<T>(c01, v128.load(c, 16));
    c10 = v128.add<T>(c10, v128.load(d));
    c11 = v128.add<T>(c11, v128.load(d, 16));
    c20 = v128.add<T>(c20, v128.load(e));
    c21 = v128.add<T>(c21, v128.load(e, 16));
    c30 = v128.add<T>(c30, v128.load(f));
    c31 = v128.add<T>(c31, v128.load(f, 16));
  }
  v128.store(c, c00);
  v128.store(c, c01, 16);
  v128.store(d, c10);
  v128.store(d, c11, 16);
  v128.store(e, c20);
  v128.store(e, c21, 16);
  v128.store(f, c30);
  v128.store(f, c31, 16);
}

/**
 * C (rows × cols) as `mode` says for kc terms. A: packed, panels kc deep. B: packed, `bStep` bytes from panel to panel.
 * One panel of B meets all panels of A before the next.
 */
export function block<T>(
  rows: usize,
  cols: usize,
  kc: usize,
  a: usize,
  b: usize,
  bStep: usize,
  c: usize,
  ldc: usize,
  mode: i32,
): void {
  const size = sizeof<T>();
  const nr = ROW / size;
  const aStep = kc * MR * size;
  for (let j: usize = 0; j < cols; j += nr, b += bStep, c += ROW) {
    const width = min(nr, cols - j);
    let panel = a;
    for (let i: usize = 0; i < rows; i += MR, panel += aStep) {
      const height = min(MR, rows - i);
      const at = c + i * ldc;
      if (width === nr && height === MR) tile<T>(kc, panel, b, at, ldc, mode);
      else {
        const edge = scratch + EDGE;
        for (let r: usize = 0; mode !== SET && r < height; r++)
          for (let s: usize = 0; s < width; s++) store<T>(edge + r * ROW + s * size, load<T>(at + r * ldc + s * size));
        tile<T>(kc, panel, b, edge, ROW, mode);
        for (let r: usize = 0; r < height; r++)
          for (let s: usize = 0; s < width; s++) store<T>(at + r * ldc + s * size, load<T>(edge + r * ROW + s * size));
      }
    }
  }
}

/** A's rows as panels of MR, one after the other. */
export function packRows(dtype: i32, a: usize, aRow: isize, aCol: isize, rows: usize, kc: usize, dst: usize): void {
  const shift = shiftOf(dtype);
  const step = (kc * MR) << (dtype === F64 ? 3 : 2);
  for (let i: usize = 0; i < rows; i += MR, dst += step) {
    packPanel(dtype, a + ((<isize>i * aRow) << shift), aRow, aCol, min(MR, rows - i), MR, kc, dst);
  }
}

/**
 * out (rows × cols, `ldo` elements from row to row) = A·B, any dtype of floats; all of k is summed before the result is
 * narrowed. B: packed over all of k. cols ≤ COLS.
 */
export function multiply(
  dtype: i32,
  rows: usize,
  cols: usize,
  k: usize,
  a: usize,
  aRow: isize,
  aCol: isize,
  b: usize,
  out: usize,
  ldo: usize,
): void {
  const shift = shiftOf(dtype);
  const packed = scratch + A_BLOCK;
  const direct = native(dtype);
  for (let i: usize = 0; i < rows; i += MC) {
    const mc = min(MC, rows - i);
    const from = a + ((<isize>i * aRow) << shift);
    const to = out + ((i * ldo) << shift);
    const c = direct ? to : scratch + C_BLOCK;
    const ldc = direct ? ldo << shift : cols << 2;
    for (let p: usize = 0; p < k; p += KC) {
      const kc = min(KC, k - p);
      packRows(dtype, from + ((<isize>p * aCol) << shift), aRow, aCol, mc, kc, packed);
      if (dtype === F64) block<f64>(mc, cols, kc, packed, b + p * ROW, k * ROW, c, ldc, p > 0 ? ADD : SET);
      else block<f32>(mc, cols, kc, packed, b + p * ROW, k * ROW, c, ldc, p > 0 ? ADD : SET);
    }
    if (!direct) for (let r: usize = 0; r < mc; r++) narrow(dtype, c + r * ldc, to + ((r * ldo) << shift), cols);
  }
}
