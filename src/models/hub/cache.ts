/**
 * The cache as Hugging Face's tools lay it out. A repository has a folder; in it `blobs/` holds files by their hashes,
 * `snapshots/<commit>/` links their names to them, and `refs/<revision>` says which commit a branch or tag was at.
 * A blob gets its name when it is whole and its hash is right, a link when the blob is there, a ref when every file
 * that was asked for is: so whatever has a name can be trusted, however a run before has ended.
 */
import { randomUUID } from "node:crypto";
import {
  link,
  lstat,
  mkdir,
  readdir,
  readFile,
  readlink,
  rename,
  rm,
  stat,
  symlink,
  writeFile,
} from "node:fs/promises";
import { dirname, join, relative } from "node:path";

export class RepoCache {
  readonly folder: string;
  readonly #locks: string;

  constructor(cache: string, folderName: string) {
    this.folder = join(cache, folderName);
    this.#locks = join(cache, ".locks", folderName);
  }

  static of(cache: string, repo: string): RepoCache {
    return new RepoCache(cache, `models--${repo.replaceAll("/", "--")}`);
  }

  get locks(): string {
    return this.#locks;
  }

  blob(etag: string): string {
    return join(this.folder, "blobs", etag);
  }

  /** Other tools have locks of another kind in the same folder. */
  lock(etag: string): string {
    return join(this.#locks, `${etag}.wick.lock`);
  }

  snapshot(commit: string): string {
    return join(this.folder, "snapshots", commit);
  }

  /** The commit that a revision was at when it was last pulled; a commit stands for itself, also shortened. */
  async commitOf(revision: string): Promise<string | undefined> {
    const ref = await readFile(join(this.folder, "refs", revision), "utf8").catch(() => undefined);
    if (ref !== undefined) return ref.trim();
    const commits = await readdir(join(this.folder, "snapshots")).catch(() => []);
    const fitting = /^[0-9a-f]{7,40}$/.test(revision) ? commits.filter((commit) => commit.startsWith(revision)) : [];
    return fitting.length === 1 ? fitting[0] : undefined;
  }

  async setRef(revision: string, commit: string): Promise<void> {
    if (revision === commit || (await this.commitOf(revision)) === commit) return;
    const path = join(this.folder, "refs", revision);
    const temporary = `${path}.${randomUUID().slice(0, 8)}.tmp`;
    await mkdir(dirname(path), { recursive: true });
    await writeFile(temporary, commit);
    await rename(temporary, path);
  }

  /** The files of a snapshot whose blobs are there, relative to it. */
  async files(commit: string): Promise<string[]> {
    const folder = this.snapshot(commit);
    const entries = await readdir(folder, { recursive: true, withFileTypes: true }).catch(() => []);
    const paths = entries.filter((entry) => !entry.isDirectory()).map((entry) => join(entry.parentPath, entry.name));
    const there = await Promise.all(
      paths.map((path) =>
        stat(path).then(
          (found) => found.isFile(),
          () => false,
        ),
      ),
    );
    return paths.filter((_, i) => there[i]).map((path) => relative(folder, path).replaceAll("\\", "/"));
  }

  /** Gives a blob its name in a snapshot. */
  async link(etag: string, commit: string, path: string): Promise<void> {
    const name = join(this.snapshot(commit), path);
    const target = relative(dirname(name), this.blob(etag));
    if ((await readlink(name).catch(() => undefined)) === target) return;
    await mkdir(dirname(name), { recursive: true });
    const temporary = `${name}.${randomUUID().slice(0, 8)}.tmp`;
    await symlink(target, temporary).catch(async (error: NodeJS.ErrnoException) => {
      // Windows lets only some users make symbolic links.
      if (error.code !== "EPERM") throw error;
      await link(this.blob(etag), temporary);
    });
    await rename(temporary, name);
  }

  /** What of a download is there, whole or in part. */
  async bytesOf(etag: string): Promise<number> {
    for (const path of [this.blob(etag), `${this.blob(etag)}.incomplete`]) {
      const found = await lstat(path).catch(() => null);
      if (found) return found.size;
    }
    return 0;
  }

  async remove(): Promise<void> {
    // In this order nothing that is left can be trusted where this is interrupted.
    for (const name of ["refs", "snapshots", "."]) await rm(join(this.folder, name), { recursive: true, force: true });
    await rm(this.#locks, { recursive: true, force: true });
  }
}
