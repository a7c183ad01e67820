/** Counters in device memory, which recorded work reads and advances by itself. */
import { call } from "../backend/call.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { composed } from "./composed/index.ts";

/** counts[i] += by, IN PLACE; i64. */
export function advance(counts: Tensor, by: number): void {
  if (call(counts.backend, "advance", counts, by) === null) composed.advance(counts, by);
}
