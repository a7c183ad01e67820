/** The words that describe a convolution, and which input each of its taps reads. */
import { Conv } from "./abi";

// @inline
export function word(p: usize, i: i32): i32 {
  return load<i32>(p + ((<usize>i) << 2));
}

/** Along one axis (0 height, 1 width): where the first tap of output `o` lies, in inputs or, transposed, in outputs. */
// @inline
export function origin(p: usize, axis: i32, o: i32, transposed: bool): i32 {
  return transposed
    ? o + word(p, Conv.PADDING_H + axis)
    : o * word(p, Conv.STRIDE_H + axis) - word(p, Conv.PADDING_H + axis);
}

/** The input that a tap reads from such an origin; −1 in the padding or between the inputs. */
// @inline
export function source(p: usize, axis: i32, from: i32, tap: i32, transposed: bool): i32 {
  let at = tap * word(p, Conv.DILATION_H + axis);
  if (!transposed) at += from;
  else {
    const distance = from - at;
    const stride = word(p, Conv.STRIDE_H + axis);
    at = distance / stride;
    if (distance < 0 || at * stride !== distance) return -1;
  }
  return <u32>at < <u32>word(p, Conv.INPUT_H + axis) ? at : -1;
}
