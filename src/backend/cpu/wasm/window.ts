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

// @ts-ignore: decorator
@inline
export function word(p: usize, i: i32): i32 {
  return load<i32>(p + (<usize>i << 2));
}

/** The input along one axis (0 height, 1 width) that a tap of output `o` reads; −1 in the padding or between inputs. */
export function source(p: usize, axis: i32, o: i32, tap: i32, transposed: bool): i32 {
  const size = word(p, CH + axis);
  const stride = word(p, CSH + axis);
  const reach = tap * word(p, CDH + axis) - word(p, CPH + axis);
  if (!transposed) {
    const at = o * stride + reach;
    return <u32>at < <u32>size ? at : -1;
  }
  const distance = o - reach;
  if (distance < 0 || distance % stride != 0) return -1;
  const at = distance / stride;
  return at < size ? at : -1;
}
