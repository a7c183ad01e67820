/** The CPU device: ops that have machine code take it, the others WebAssembly. */
import type { QuantType } from "../../core/quant-types.ts";
import type { View } from "../backend.ts";
import type { Storage } from "../storage.ts";
import { nativeQmatmul } from "./native/kernels/quant-matmul.ts";
import { findNative, type Native } from "./native/native.ts";
import { StagedBackend } from "./staged-backend.ts";

export class CpuBackend extends StagedBackend {
  #native: Native | null | undefined;

  /** Machine code, looked for at the first op that is worth it; null where there is none. */
  get native(): Native | null {
    if (this.#native === undefined) this.#native = findNative();
    return this.#native;
  }

  override qmatmul(type: QuantType, x: View, blocks: View): Storage {
    const { native } = this;
    return (
      (native && nativeQmatmul(this, native, this.engine.threads, type, x, blocks)) ?? super.qmatmul(type, x, blocks)
    );
  }
}
