/**
 * The map of the shared memory below the heap, and the constants that TypeScript and WebAssembly agree on.
 * TypeScript writes layouts at INFO before it calls an op; an op writes its arguments at ARGS before it fans out.
 */
export const CONTROL: usize = 1024; // the pool's words, see pool.ts
export const ERROR: usize = 1152; // i32 flag, then at +8 the bad id as i64 and at +16 its position as i64
export const ARGS: usize = 2048; // one op's arguments, 8 bytes each
export const INFO: usize = 4096; // layouts of the current op, up to 65536

// dtype codes: the same numbers as in core/dtype.ts
export const U8: i32 = 0;
export const U32: i32 = 1;
export const I16: i32 = 2;
export const I32: i32 = 3;
export const I64: i32 = 4;
export const BF16: i32 = 5;
export const F16: i32 = 6;
export const F32: i32 = 7;
export const F64: i32 = 8;
export const F8E4M3: i32 = 9;

/** log2 of the bytes per element. */
// @inline
export function shiftOf(dtype: i32): i32 {
  if (dtype === U8 || dtype === F8E4M3) return 0;
  if (dtype === I16 || dtype === BF16 || dtype === F16) return 1;
  if (dtype === I64 || dtype === F64) return 3;
  return 2;
}

/** Arguments of the running op; every kernel reads its own from here. */
// @inline
export function arg<T>(i: i32): T {
  return load<T>(ARGS + ((<usize>i) << 3));
}
// @inline
export function setArg<T>(i: i32, value: T): void {
  store<T>(ARGS + ((<usize>i) << 3), value);
}

/** Records the first bad id; TypeScript turns it into an InvalidIndex error when the op returns. */
export function badIndex(id: i64, position: usize): void {
  if (atomic.cmpxchg<i32>(ERROR, 0, 1) === 0) {
    store<i64>(ERROR + 8, id);
    store<i64>(ERROR + 16, <i64>position);
  }
}
