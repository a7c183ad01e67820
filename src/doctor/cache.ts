/** The folder of compiled kernels: how much is in it, and whether more can be put there. */
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { KernelCache } from "../backend/gpu/kernel-cache.ts";

export interface CacheFacts {
  readonly folder: string;
  readonly entries: number;
  readonly bytes: number;
  readonly damaged: number;
  /** Why nothing can be written; absent when it can. */
  readonly problem?: string;
}

export function cacheFacts(cache = new KernelCache()): CacheFacts {
  const { folder } = cache;
  const trial = join(folder, `.wick-${process.pid}`);
  const facts = { folder, ...cache.contents() };
  try {
    // Permissions alone do not tell: the disk may be full or mounted read-only.
    mkdirSync(folder, { recursive: true });
    writeFileSync(trial, "");
    rmSync(trial);
    return facts;
  } catch (error) {
    return { ...facts, problem: error instanceof Error ? error.message : String(error) };
  }
}
