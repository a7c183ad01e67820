/**
 * Compiled kernels on disk, so that only the first run of a version compiles. An entry's name is the hash of all that
 * went into it (source, options, arch, compiler version); its last bytes are the hash of the rest, and an entry that
 * does not match is compiled anew. Processes may fill one folder at once: entries appear by renaming.
 */
import { createHash, randomUUID } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";

const digest = (...parts: (string | Uint8Array)[]): Buffer => {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(`${part.length}:`).update(part);
  return hash.digest();
};

export interface CacheKey {
  readonly source: string;
  readonly options: readonly string[];
  readonly arch: string;
  readonly compiler: string;
}

export interface CacheContents {
  readonly entries: number;
  readonly bytes: number;
  /** Entries whose hash is not theirs: they will be compiled anew when they are needed. */
  readonly damaged: number;
}

const entryName = /^[0-9a-f]{40}\.\w+$/;

/** The code of an entry; undefined when its last bytes are not the hash of the rest. */
function codeOf(entry: Buffer): Uint8Array | undefined {
  const code = entry.subarray(0, -32);
  return entry.length > 32 && digest(code).equals(entry.subarray(-32)) ? code : undefined;
}

export class KernelCache {
  readonly folder: string;
  /** Why nothing is written, once a write has failed. */
  #problem: string | undefined;

  constructor(folder = process.env.WICK_CACHE || defaultFolder()) {
    this.folder = folder;
  }

  get problem(): string | undefined {
    return this.#problem;
  }

  get(key: CacheKey): Uint8Array | undefined {
    try {
      return codeOf(readFileSync(this.#path(key)));
    } catch {
      return undefined;
    }
  }

  /** Reads every entry. A folder that does not exist yet has none. */
  contents(): CacheContents {
    const total = { entries: 0, bytes: 0, damaged: 0 };
    let names: string[] = [];
    try {
      names = readdirSync(this.folder);
    } catch {
      return total;
    }
    for (const name of names) {
      if (!entryName.test(name)) continue;
      try {
        const entry = readFileSync(join(this.folder, name));
        total.entries++;
        total.bytes += entry.length;
        if (!codeOf(entry)) total.damaged++;
      } catch {
        // Another process may have replaced it, or it is no file.
      }
    }
    return total;
  }

  put(key: CacheKey, code: Uint8Array): void {
    const path = this.#path(key);
    const temporary = `${path}.${randomUUID()}`;
    try {
      mkdirSync(this.folder, { recursive: true });
      writeFileSync(temporary, Buffer.concat([code, digest(code)]));
      renameSync(temporary, path);
    } catch (error) {
      // A folder that cannot be written costs time at the next start, nothing else.
      this.#problem = error instanceof Error ? error.message : String(error);
      discard(temporary);
    }
  }

  #path({ source, options, arch, compiler }: CacheKey): string {
    return join(
      this.folder,
      `${digest(source, options.join("\0"), arch, compiler).toString("hex").slice(0, 40)}.${arch.split(":")[0]}`,
    );
  }
}

/** Where nothing can be written, nothing can be removed either, and that is no news. */
function discard(path: string): void {
  try {
    rmSync(path, { force: true });
  } catch {
    // The write's own error is kept.
  }
}

function defaultFolder(): string {
  return join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), "wick", "kernels");
}
