/** The CPU device. */
import { StagedBackend } from "./staged-backend.ts";

export class CpuBackend extends StagedBackend {}
