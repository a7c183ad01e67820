/** Files that several processes may write at once: each appears whole, by renaming. */
import { randomUUID } from "node:crypto";
import { mkdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";

/** Gives why it was not written, undefined where it was: what is kept here is only there to save time. */
export function replaceFile(path: string, contents: string | Uint8Array): string | undefined {
  const temporary = `${path}.${randomUUID()}`;
  try {
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(temporary, contents);
    renameSync(temporary, path);
    return undefined;
  } catch (error) {
    discard(temporary);
    return error instanceof Error ? error.message : String(error);
  }
}

/** Where nothing can be written, nothing can be removed either, and that is no news. */
export function discard(path: string): void {
  try {
    rmSync(path, { force: true });
  } catch {
    // What cannot be removed stays.
  }
}
