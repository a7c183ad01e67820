/** The CPU device: ops that have machine code take it, the others WebAssembly. */
import type { BinaryOp, UnaryOp, View } from "../backend.ts";
import type { Storage } from "../storage.ts";
import { findNative, type Native } from "./native/native.ts";
import * as map from "./native/ops/map.ts";
import { matmul } from "./native/ops/matmul.ts";
import { StagedBackend } from "./staged-backend.ts";

export class CpuBackend extends StagedBackend {
  #native: Native | null | undefined;

  /** Machine code, looked for at the first op that is worth it; null where there is none. */
  get native(): Native | null {
    if (this.#native === undefined) this.#native = findNative();
    return this.#native;
  }

  override unary(op: UnaryOp, x: View, param: number): Storage {
    return map.unary(this, op, x) ?? super.unary(op, x, param);
  }

  override affine(x: View, mul: number, add: number): Storage {
    return map.affine(this, x, mul, add) ?? super.affine(x, mul, add);
  }

  override binary(op: BinaryOp, a: View, b: View): Storage {
    return map.binary(this, op, a, b) ?? super.binary(op, a, b);
  }

  override matmul(a: View, b: View): Storage {
    return (this.native && matmul(this, this.native, a, b)) ?? super.matmul(a, b);
  }
}
