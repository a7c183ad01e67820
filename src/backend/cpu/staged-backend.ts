/** The CPU device over all memory of the machine. */
import { WasmBackend } from "./wasm-backend.ts";

export class StagedBackend extends WasmBackend {}
