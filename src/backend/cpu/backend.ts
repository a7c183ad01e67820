/** The CPU device: ops that have machine code take it, the others WebAssembly. */
import { findNative, type Native } from "./native/native.ts";
import { StagedBackend } from "./staged-backend.ts";

export class CpuBackend extends StagedBackend {
  #native: Native | null | undefined;

  /** Machine code, looked for at the first op that is worth it; null where there is none. */
  get native(): Native | null {
    if (this.#native === undefined) this.#native = findNative();
    return this.#native;
  }
}
