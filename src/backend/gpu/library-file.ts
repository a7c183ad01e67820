/** The files behind loaded libraries: which one the loader took, and whether it is still the same. */
import { realpathSync, statSync } from "node:fs";
import { loadedPath } from "./library.ts";

/** The file that a library was loaded from, with links followed; a name that leads to no file stays as it is. */
export function realFile(library: string): string {
  const path = loadedPath(library);
  try {
    return realpathSync(path);
  } catch {
    return path;
  }
}

/** Changes when the file is replaced by another. */
export function identityOf(file: string): string {
  try {
    const { size, mtimeMs } = statSync(file);
    return `${file} ${size} ${mtimeMs}`;
  } catch {
    return file;
  }
}
