/**
 * Panels: the form in which matrix operands reach the register tile. A panel holds `width` rows (of A) or columns (of B)
 * interleaved, element k of each next to the other, so that the tile reads both operands straight ahead.
 */
import { shiftOf } from "./abi";
import { native, widen } from "./block";

/**
 * One panel of `width` lines, of which the first `valid` exist and the others are zero. `minor` is the stride from line
 * to line and `major` along a line, in elements. Small floats are packed at the panel's end and widened from there, so
 * no other memory is needed.
 */
export function packPanel(
  dtype: i32,
  src: usize,
  minor: isize,
  major: isize,
  valid: usize,
  width: usize,
  count: usize,
  dst: usize,
): void {
  const shift = shiftOf(dtype);
  if (width === 1 && major === 1) {
    if (native(dtype)) memory.copy(dst, src, count << shift);
    else widen(dtype, src, dst, count);
    return;
  }
  if (shift === 3) return interleave<u64>(src, minor, major, valid, width, count, dst);
  if (shift === 2) return interleave<u32>(src, minor, major, valid, width, count, dst);
  const raw = rawPanel(dtype, dst, width * count);
  if (shift === 1) interleave<u16>(src, minor, major, valid, width, count, raw);
  else interleave<u8>(src, minor, major, valid, width, count, raw);
  widen(dtype, raw, dst, width * count);
}

/** Where to put the unwidened elements of a panel: the last of them, read in order, is never overwritten too early. */
export function rawPanel(dtype: i32, dst: usize, n: usize): usize {
  return native(dtype) ? dst : dst + n * (4 - ((<usize>1) << shiftOf(dtype)));
}

function interleave<T>(
  src: usize,
  minor: isize,
  major: isize,
  valid: usize,
  width: usize,
  count: usize,
  dst: usize,
): void {
  const size = sizeof<T>();
  const line = minor * <isize>size;
  const step = major * <isize>size;
  const bytes = width * size;
  if (valid === width) {
    if (minor === 1) return copyLines(src, step, bytes, count, dst);
    if (width === 3) return interleave3<T>(src, line, step, count, dst);
    if (major === 1 && (width & 3) === 0 && (size === 4 || size === 2)) {
      const body = count & ~3;
      for (let r: usize = 0; r < width; r += 4) {
        if (size === 4) transpose32(src + r * line, line, body, dst + r * size, bytes);
        else transpose16(src + r * line, line, body, dst + r * size, bytes);
      }
      src += body * size;
      dst += body * bytes;
      count -= body;
    }
  } else memory.fill(dst, 0, count * bytes);
  for (let r: usize = 0; r < valid; r++) {
    let from = src + r * line;
    let to = dst + r * size;
    const end = to + count * bytes;
    for (; to < end; to += bytes) {
      store<T>(to, load<T>(from));
      from += step;
    }
  }
}

/** Lines that lie side by side: `bytes` at a time. */
function copyLines(src: usize, step: isize, bytes: usize, count: usize, dst: usize): void {
  const end = dst + count * bytes;
  if (bytes === 48) {
    for (; dst < end; dst += 48, src += step) {
      v128.store(dst, v128.load(src));
      v128.store(dst, v128.load(src, 16), 16);
      v128.store(dst, v128.load(src, 32), 32);
    }
    return;
  }
  for (; dst < end; src += step) {
    let from = src;
    for (let i = bytes >> 4; i !== 0; i--, dst += 16, from += 16) v128.store(dst, v128.load(from));
    if (bytes & 8) {
      store<u64>(dst, load<u64>(from));
      dst += 8;
      from += 8;
    }
    if (bytes & 4) {
      store<u32>(dst, load<u32>(from));
      dst += 4;
      from += 4;
    }
    if (bytes & 2) {
      store<u16>(dst, load<u16>(from));
      dst += 2;
      from += 2;
    }
    if (bytes & 1) store<u8>(dst++, load<u8>(from));
  }
}

function interleave3<T>(src: usize, line: isize, step: isize, count: usize, dst: usize): void {
  const end = dst + count * 3 * sizeof<T>();
  let second = src + line;
  let third = second + line;
  for (; dst < end; dst += 3 * sizeof<T>()) {
    store<T>(dst, load<T>(src));
    store<T>(dst, load<T>(second), sizeof<T>());
    store<T>(dst, load<T>(third), 2 * sizeof<T>());
    src += step;
    second += step;
    third += step;
  }
}

/** Four lines in 4×4 blocks; `count` is a multiple of four. */
function transpose32(src: usize, line: isize, count: usize, dst: usize, bytes: usize): void {
  const end = src + (count << 2);
  for (; src < end; src += 16, dst += bytes << 2) {
    const a = v128.load(src);
    const b = v128.load(src + line);
    const c = v128.load(src + 2 * line);
    const d = v128.load(src + 3 * line);
    const ab = v128.shuffle<u32>(a, b, 0, 4, 1, 5);
    const cd = v128.shuffle<u32>(c, d, 0, 4, 1, 5);
    const AB = v128.shuffle<u32>(a, b, 2, 6, 3, 7);
    const CD = v128.shuffle<u32>(c, d, 2, 6, 3, 7);
    v128.store(dst, v128.shuffle<u64>(ab, cd, 0, 2));
    v128.store(dst + bytes, v128.shuffle<u64>(ab, cd, 1, 3));
    v128.store(dst + 2 * bytes, v128.shuffle<u64>(AB, CD, 0, 2));
    v128.store(dst + 3 * bytes, v128.shuffle<u64>(AB, CD, 1, 3));
  }
}

function transpose16(src: usize, line: isize, count: usize, dst: usize, bytes: usize): void {
  const end = src + (count << 1);
  for (; src < end; src += 8, dst += bytes << 2) {
    const a = v128.load64_zero(src);
    const b = v128.load64_zero(src + line);
    const c = v128.load64_zero(src + 2 * line);
    const d = v128.load64_zero(src + 3 * line);
    const ab = v128.shuffle<u16>(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    const cd = v128.shuffle<u16>(c, d, 0, 8, 1, 9, 2, 10, 3, 11);
    const low = v128.shuffle<u32>(ab, cd, 0, 4, 1, 5);
    const high = v128.shuffle<u32>(ab, cd, 2, 6, 3, 7);
    v128.store64_lane(dst, low, 0);
    v128.store64_lane(dst + bytes, low, 1);
    v128.store64_lane(dst + 2 * bytes, high, 0);
    v128.store64_lane(dst + 3 * bytes, high, 1);
  }
}
