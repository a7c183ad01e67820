/** The arguments of the running op, which its first thread writes before it fans out, and the report of a bad id. */
import { ARGS, BAD_INDEX } from "./abi";

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
  if (atomic.cmpxchg<i32>(BAD_INDEX, 0, 1) === 0) {
    store<i64>(BAD_INDEX + 8, id);
    store<i64>(BAD_INDEX + 16, <i64>position);
  }
}
