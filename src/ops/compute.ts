/** Ops that a device may have in one piece: by its own kernel where it has one, else composed of other ops. */
import type { Backend } from "../backend/backend.ts";
import { callWith } from "../backend/call.ts";
import type { FusedOps } from "../backend/fused-ops.ts";
import { Storage } from "../backend/storage.ts";
import type { Shape } from "../core/layout.ts";
import { result, type Tensor } from "../tensor/tensor.ts";
import { composed } from "./composed/index.ts";

/** Those whose result is one tensor. */
export type SingleOp = {
  [K in keyof FusedOps]: ReturnType<FusedOps[K]> extends Storage | null ? K : never;
}[keyof FusedOps];

/** The result has the given shape. */
export function compute<K extends SingleOp>(
  backend: Backend,
  op: K,
  shape: Shape,
  ...args: Parameters<FusedOps<Tensor>[K]>
): Tensor {
  const made: unknown = callWith<Partial<FusedOps>, K>(backend, op, args as never);
  if (made instanceof Storage) return result(made, shape);
  return (composed[op] as (...args: Parameters<FusedOps<Tensor>[K]>) => Tensor)(...args);
}
