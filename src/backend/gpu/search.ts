/**
 * Where a vendor's library may lie: a pure function of the operating system, the environment and what folders hold, so
 * that the rules for Windows can be tested on Linux.
 */

import { readdirSync } from "node:fs";
import { posix, win32 } from "node:path";
import { type Environment, environment, type VariableName } from "../../core/environment.ts";

export interface Surroundings {
  readonly platform: string;
  readonly env: Environment;
  /** The names in a folder; none where it is none. */
  list(folder: string): readonly string[];
}

export interface LibraryFiles {
  /** File names, the best first; `*` stands for a version, of which the highest comes first. */
  readonly names: readonly string[];
  /** Folders that the user chose by a variable: they come before what the loader knows. */
  readonly named?: readonly string[];
  /** Folders to look in when the loader does not know the names; `*` matches within a path segment. */
  readonly folders: readonly string[];
}

export const here = (): Surroundings => ({
  platform: process.platform,
  env: environment(),
  list(folder) {
    try {
      return readdirSync(folder);
    } catch {
      return [];
    }
  },
});

/** What to open, one after another: files beside an open library, chosen folders, the loader's own names, usual folders. */
export function* candidates(
  files: LibraryFiles,
  where: Surroundings,
  beside: readonly string[] = [],
): Generator<string> {
  yield* filesIn([...beside, ...(files.named ?? [])], files.names, where);
  for (const name of files.names) if (!name.includes("*")) yield name;
  yield* filesIn(files.folders, files.names, where);
}

export function* filesIn(
  patterns: readonly string[],
  names: readonly string[],
  where: Surroundings,
): Generator<string> {
  const { join } = pathsOf(where);
  for (const folder of patterns.flatMap((pattern) => expand(pattern, where))) {
    const there = where.list(folder);
    const given = new Set<string>();
    for (const name of names.flatMap((pattern) => matching(pattern, there, where))) {
      if (!given.has(name)) yield join(folder, name);
      given.add(name);
    }
  }
}

/** Folders that a pattern stands for and that hold anything, later versions first. */
export function expand(pattern: string, where: Surroundings): string[] {
  const { join, parse, sep } = pathsOf(where);
  const { root } = parse(pattern);
  let found = [root];
  for (const segment of pattern.slice(root.length).split(sep).filter(Boolean)) {
    found = found.flatMap((folder) =>
      segment.includes("*")
        ? latestFirst(where.list(folder).filter((name) => like(segment, ".*", where).test(name))).map((name) =>
            join(folder, name),
          )
        : [join(folder, segment)],
    );
  }
  return found.filter((folder) => where.list(folder).length > 0);
}

/** ROCm's wheels spread one release over folders side by side. */
export function besides(library: string, where: Surroundings): string[] {
  const { dirname, isAbsolute, join, basename } = pathsOf(where);
  if (!isAbsolute(library)) return [];
  const folder = dirname(library);
  const wheel = dirname(folder);
  return basename(wheel).startsWith("_rocm_sdk_")
    ? [folder, join(dirname(wheel), "_rocm_sdk_*", basename(folder))]
    : [folder];
}

/** Patterns under the folder that a variable names; none when it is unset. */
export const under = (where: Surroundings, variable: VariableName, ...patterns: readonly string[]): string[] => {
  const root = where.env[variable];
  return root ? patterns.map((pattern) => pathsOf(where).join(root, pattern)) : [];
};

/** The folders of PATH, where Windows looks for libraries. */
export const pathFolders = ({ env }: Surroundings): string[] => (env.PATH ?? env.Path ?? "").split(";").filter(Boolean);

const pathsOf = ({ platform }: Surroundings) => (platform === "win32" ? win32 : posix);

function matching(pattern: string, names: readonly string[], where: Surroundings): string[] {
  const shape = like(pattern, "[0-9._]*", where);
  return latestFirst(names.filter((name) => shape.test(name)));
}

/** Windows does not tell cases apart. */
const like = (pattern: string, star: string, { platform }: Surroundings): RegExp =>
  new RegExp(`^${pattern.split("*").map(literal).join(star)}$`, platform === "win32" ? "i" : "");

const literal = (text: string): string => text.replace(/[.+?^${}()|[\]\\]/g, "\\$&");

const latestFirst = (names: readonly string[]): string[] =>
  [...names].sort((a, b) => b.localeCompare(a, undefined, { numeric: true }));
