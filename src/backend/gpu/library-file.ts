/** The files behind loaded libraries: which one the loader took, and whether it is still the same. */
import { readFileSync, realpathSync, statSync } from "node:fs";
import { basename, isAbsolute } from "node:path";

/** The file behind a library that the loader found by its name. */
export function loadedPath(library: string): string {
  if (isAbsolute(library)) return library;
  try {
    const files = readFileSync("/proc/self/maps", "utf8").matchAll(/\s(\/.*)$/gm);
    for (const [, path] of files) if (basename(path!).startsWith(library)) return path!;
  } catch {
    // Without /proc the name has to do.
  }
  return library;
}

/** The same with links followed; a name that leads to no file stays as it is. */
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
