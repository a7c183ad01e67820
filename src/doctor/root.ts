import { accessSync, constants, existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { dirname, join } from "node:path";

export type Access = "ok" | "denied" | "missing";

/** The system's files under a folder that stands for "/": tests make one up. What cannot be read is not there. */
export class Root {
  readonly #path: string;

  constructor(path = "/") {
    this.#path = path;
  }

  has(path: string): boolean {
    return existsSync(this.#at(path));
  }

  text(path: string): string | null {
    try {
      return readFileSync(this.#at(path), "utf8");
    } catch {
      return null;
    }
  }

  line(path: string): string | null {
    const text = this.text(path);
    return text === null ? null : text.split("\n", 1).join("").trim();
  }

  entries(path: string): string[] {
    try {
      return readdirSync(this.#at(path)).sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
    } catch {
      return [];
    }
  }

  /** Files by a pattern whose last segment may end in `*`. */
  matching(pattern: string): string[] {
    if (!pattern.endsWith("*")) return this.has(pattern) ? [pattern] : [];
    return this.entries(dirname(pattern))
      .map((name) => join(dirname(pattern), name))
      .filter((file) => file.startsWith(pattern.slice(0, -1)));
  }

  /** Whether this process may read and write the file. */
  access(path: string): Access {
    if (!this.has(path)) return "missing";
    try {
      accessSync(this.#at(path), constants.R_OK | constants.W_OK);
      return "ok";
    } catch {
      return "denied";
    }
  }

  /** The permissions of a file and its group's number. */
  owner(path: string): { readonly mode: string; readonly gid: number } | null {
    try {
      const { mode, gid } = statSync(this.#at(path));
      return { mode: (mode & 0o777).toString(8), gid };
    } catch {
      return null;
    }
  }

  #at(path: string): string {
    return join(this.#path, path);
  }
}
