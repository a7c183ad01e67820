/** Writes that either replace the whole file or leave no trace. */
import { randomUUID } from "node:crypto";
import { type FileHandle, open, rename, rm } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { fail, WickError } from "../core/errors.ts";

/**
 * Runs `write` on a new file beside `path`, which then takes the name `path` in one step. Where anything throws, the
 * new file is removed and whatever `path` was before stays as it was.
 */
export async function writeAtomically(
  path: string,
  write: (handle: FileHandle) => Promise<void>,
  signal?: AbortSignal,
): Promise<void> {
  signal?.throwIfAborted();
  const temporary = join(dirname(path), `.${basename(path).slice(0, 100)}.${randomUUID()}.tmp`);
  const handle = await open(temporary, "wx").catch((error: Error) => cannotWrite(path, error));
  try {
    try {
      await write(handle);
      await handle.sync();
    } finally {
      await handle.close();
    }
    signal?.throwIfAborted();
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true });
    // Only the file system's own errors carry `syscall`; those of tensors and signals reach the caller unchanged.
    if (error instanceof Error && !(error instanceof WickError) && "syscall" in error) cannotWrite(path, error);
    throw error;
  }
}

function cannotWrite(path: string, cause: Error): never {
  return fail("InvalidFile", `${path} cannot be written: ${cause.message}`, { cause });
}
