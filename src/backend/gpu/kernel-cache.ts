/**
 * Compiled kernels on disk, so that only the first run of a version compiles. An entry's name is the hash of all that
 * went into it (source, options, arch, the compiler's identity); its last bytes are the hash of the rest, and an entry
 * that does not match is compiled anew. Processes may fill one folder at once: entries appear by renaming. What nobody
 * has used for long goes, and beyond a limit in bytes what was used longest ago.
 */

import { createHash } from "node:crypto";
import { readdirSync, readFileSync, statSync, utimesSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { positive, variable } from "../../core/environment.ts";
import { discard, replaceFile } from "./replace-file.ts";

const MIB = 2 ** 20;
const DAY_MS = 86_400_000;
const KEPT_DAYS = 90;
const DEFAULT_LIMIT_MIB = 512;
/** A file of this age without the name of an entry was left by a process that ended while it wrote. */
const ABANDONED_MS = DAY_MS;

const digest = (...parts: (string | Uint8Array)[]): Buffer => {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(`${part.length}:`).update(part);
  return hash.digest();
};

export interface CacheKey {
  readonly source: string;
  readonly options: readonly string[];
  /** With the features that the device has on: "gfx90a:sramecc+:xnack-". */
  readonly arch: string;
  /** The compiler's identity. */
  readonly compiler: string;
}

export interface CacheContents {
  readonly entries: number;
  readonly bytes: number;
  /** Entries whose hash is not theirs: they will be compiled anew when they are needed. */
  readonly damaged: number;
}

const entryName = /^[0-9a-f]{40}\.\w+$/;
/** Entries, and those that are being written. */
const ownName = /^[0-9a-f]{40}\.\w+(\.[0-9a-f-]{36})?$/;
/** Looking through the folder takes longer than a write; a process does it with its first and then now and then. */
const EVICT_EVERY = 64;

/** The code of an entry; undefined when its last bytes are not the hash of the rest. */
function codeOf(entry: Buffer): Uint8Array | undefined {
  const code = entry.subarray(0, -32);
  return entry.length > 32 && digest(code).equals(entry.subarray(-32)) ? code : undefined;
}

export class KernelCache {
  readonly folder: string;
  /** Bytes that entries may take together. */
  readonly limit: number;
  /** Why nothing is written, once a write has failed. */
  #problem: string | undefined;
  #written = 0;

  constructor(folder = variable("WICK_CACHE") ?? defaultFolder(), limit = limitFromEnvironment()) {
    this.folder = folder;
    this.limit = limit;
  }

  get problem(): string | undefined {
    return this.#problem;
  }

  /** Code for an arch without its features runs with any of them, so it serves where there is no other. */
  get(key: CacheKey): Uint8Array | undefined {
    const plain = key.arch.split(":")[0]!;
    return this.#read(key) ?? (plain === key.arch ? undefined : this.#read({ ...key, arch: plain }));
  }

  #read(key: CacheKey): Uint8Array | undefined {
    const path = this.#path(key);
    try {
      const code = codeOf(readFileSync(path));
      if (code) noteUse(path);
      return code;
    } catch {
      return undefined;
    }
  }

  /** Reads every entry. A folder that does not exist yet has none. */
  contents(): CacheContents {
    const total = { entries: 0, bytes: 0, damaged: 0 };
    for (const name of this.#names()) {
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
    // A folder that cannot be written costs time at the next start, nothing else.
    this.#problem = replaceFile(this.#path(key), Buffer.concat([code, digest(code)])) ?? this.#problem;
    this.#written++;
    if (this.#written % EVICT_EVERY === 1) this.evict();
  }

  /** Removes what is old, and what was used longest ago beyond the limit. Other processes may do the same meanwhile. */
  evict(now = Date.now()): void {
    let bytes = 0;
    for (const { path, size, age, isEntry } of this.#files(now)) {
      bytes += isEntry ? size : 0;
      const drop = isEntry ? age > KEPT_DAYS * DAY_MS || bytes > this.limit : age > ABANDONED_MS;
      if (drop) discard(path);
    }
  }

  /** What Wick has written here, what was used last first. */
  #files(now: number): { path: string; size: number; age: number; isEntry: boolean }[] {
    return this.#names()
      .filter((name) => ownName.test(name))
      .flatMap((name) => {
        const path = join(this.folder, name);
        const facts = statSync(path, { throwIfNoEntry: false });
        return facts ? [{ path, size: facts.size, age: now - facts.mtimeMs, isEntry: entryName.test(name) }] : [];
      })
      .sort((a, b) => a.age - b.age);
  }

  #names(): string[] {
    try {
      return readdirSync(this.folder);
    } catch {
      return [];
    }
  }

  #path({ source, options, arch, compiler }: CacheKey): string {
    return join(
      this.folder,
      `${digest(source, options.join("\0"), arch, compiler).toString("hex").slice(0, 40)}.${arch.split(":")[0]}`,
    );
  }
}

/** An entry's time is that of its last use, to the day: a write per read would be too much. */
function noteUse(path: string): void {
  const now = new Date();
  try {
    if (now.getTime() - statSync(path).mtimeMs > DAY_MS) utimesSync(path, now, now);
  } catch {
    // A folder that cannot be written, as in a container's image: nothing is evicted from it either.
  }
}

const limitFromEnvironment = (): number => positive("WICK_CACHE_MB", "MiB", DEFAULT_LIMIT_MIB) * MIB;

function defaultFolder(): string {
  return join(variable("XDG_CACHE_HOME") ?? join(homedir(), ".cache"), "wick", "kernels");
}
