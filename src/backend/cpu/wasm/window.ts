/** The words that describe a convolution, and which input each of its taps reads. */

export const CB = 0;
export const CC = 1;
export const CH = 2;
export const CW = 3;
export const CO = 4;
export const CKH = 5;
export const CKW = 6;
export const CSH = 7;
export const CSW = 8;
export const CPH = 9;
export const CPW = 10;
export const CDH = 11;
export const CDW = 12;
export const CGROUPS = 13;
export const COH = 14;
export const COW = 15;
export const CXS = 16;
export const CWS = 20;

// @inline
export function word(p: usize, i: i32): i32 {
  return load<i32>(p + ((<usize>i) << 2));
}

/** Along one axis (0 height, 1 width): where the first tap of output `o` lies, in inputs or, transposed, in outputs. */
// @inline
export function origin(p: usize, axis: i32, o: i32, transposed: bool): i32 {
  return transposed ? o + word(p, CPH + axis) : o * word(p, CSH + axis) - word(p, CPH + axis);
}

/** The input that a tap reads from such an origin; −1 in the padding or between the inputs. */
// @inline
export function source(p: usize, axis: i32, from: i32, tap: i32, transposed: bool): i32 {
  let at = tap * word(p, CDH + axis);
  if (!transposed) at += from;
  else {
    const distance = from - at;
    const stride = word(p, CSH + axis);
    at = distance / stride;
    if (distance < 0 || at * stride !== distance) return -1;
  }
  return <u32>at < <u32>word(p, CH + axis) ? at : -1;
}
