/**
 * Finds, opens and binds the vendors' shared libraries. Nothing here runs before a GPU is asked for, so Wick imports on
 * machines where neither the libraries nor the FFI itself can be loaded.
 */
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, dirname, isAbsolute, join } from "node:path";
import { fail, WickError } from "../../core/errors.ts";

type Koffi = typeof import("koffi");

/** Pointers are BigInts; typed arrays are passed by address for the time of the call. */
export type Argument = bigint | number | string | null | NodeJS.ArrayBufferView | readonly string[];
export interface NativeFunction<Result = number> {
  (...args: Argument[]): Result;
  async(...args: [...Argument[], (error: Error | null, result: Result) => void]): void;
}
/** Prototypes by our name for the call: `{ malloc: "int hipMalloc(void *out, size_t bytes)" }`. */
export type Prototypes = Readonly<Record<string, string>>;
export type Bound<Table extends Prototypes> = { readonly [Call in keyof Table]: NativeFunction };

const require = createRequire(import.meta.url);
/** What a thread has elsewhere: the vendors' libraries compile and load kernels on it. The FFI's own is 128 KiB on pool threads. */
const stackBytes = 8 * 2 ** 20;
export const ffiConfig = { sync_stack_size: stackBytes, async_stack_size: stackBytes } as const;
let koffi: Koffi | undefined;

export function ffi(): Koffi {
  if (koffi) return koffi;
  try {
    koffi = require("koffi") as Koffi;
    koffi.config(ffiConfig);
    return koffi;
  } catch (cause) {
    return fail(
      "LibraryNotFound",
      "GPU libraries are called through the package koffi, which cannot be loaded here; reinstall it for this platform, or use the device cpu",
      { cause },
    );
  }
}

/** Where child processes find the FFI package. */
export const ffiPath = (): string => require.resolve("koffi");

/** The address of a view's first byte; valid while the view's buffer lives. */
export const addressOf = (view: NodeJS.ArrayBufferView): bigint => ffi().address(view);

/** Native memory as an ArrayBuffer, without a copy; the caller keeps the memory alive. */
export const viewOf = (address: bigint, bytes: number): ArrayBuffer => ffi().view(address, bytes);

export const textAt = (address: bigint): string => (address ? ffi().decode.string(address) : "");

/** Runs a call on a pool thread; the promise gives its result code. */
export const callAsync = (fn: NativeFunction, ...args: Argument[]): Promise<number> =>
  new Promise((resolve, reject) => {
    fn.async(...args, (error, result) => (error ? reject(error) : resolve(result)));
  });

export const symbolOf = (prototype: string): string => /(\w+)\s*\(/.exec(prototype)![1]!;

export class Library {
  readonly #handle: ReturnType<Koffi["load"]>;
  /** What it is, for messages: "the HIP runtime". */
  readonly title: string;
  /** The path or name it was loaded by. */
  readonly path: string;

  constructor(title: string, path: string) {
    this.#handle = ffi().load(path);
    this.title = title;
    this.path = path;
  }

  /** Looks in the libraries that this one depends on, too. */
  has(symbol: string): boolean {
    try {
      this.#handle.symbol(symbol);
      return true;
    } catch {
      return false;
    }
  }

  func<Result = number>(prototype: string): NativeFunction<Result> {
    this.#require([symbolOf(prototype)]);
    return this.#handle.func(prototype) as NativeFunction<Result>;
  }

  /** Binds a table of prototypes, naming every symbol that is missing. */
  bind<Table extends Prototypes>(table: Table): Bound<Table> {
    this.#require(Object.values(table).map(symbolOf));
    return Object.fromEntries(
      Object.entries(table).map(([call, prototype]) => [call, this.func(prototype)]),
    ) as Bound<Table>;
  }

  #require(symbols: readonly string[]): void {
    const missing = symbols.filter((symbol) => !this.has(symbol));
    if (missing.length === 0) return;
    fail(
      "LibraryNotFound",
      `${this.path} was loaded as ${this.title} but lacks ${missing.join(", ")}; it is another library or a release that is too old`,
    );
  }
}

export interface LibrarySpec {
  readonly title: string;
  /** Environment variable that names the file, or the folder it is in. */
  readonly env: string;
  /** File names, the best first. */
  readonly names: readonly string[];
  /** Folders to look in when the loader does not know the names; `*` matches within a path segment. */
  readonly folders: readonly string[];
  /** How a user gets it. */
  readonly install: string;
}

/** Opens what was asked for explicitly, else what the environment names, else what is found. */
export function openLibrary(spec: LibrarySpec, explicit?: string, near?: Library): Library {
  const asked = explicit ?? process.env[spec.env];
  if (asked) return openAsked(spec, asked, explicit === undefined ? spec.env : undefined);

  const refused: string[] = [];
  const attempt = (path: string): Library | undefined => {
    try {
      return new Library(spec.title, path);
    } catch (error) {
      if (error instanceof WickError) throw error;
      // A bare name that the loader does not know says nothing; a file that exists and does not load does.
      if (isAbsolute(path)) refused.push(`${path}: ${reason(error)}`);
      return undefined;
    }
  };
  // Libraries of one release belong together, so the folder of one that is open comes first.
  const beside = near && isAbsolute(near.path) ? [dirname(near.path)] : [];
  const folders = spec.folders.flatMap(expand);
  const candidates = [...filesIn(beside, spec.names), ...spec.names, ...filesIn(folders, spec.names)];
  for (const path of candidates) {
    const library = attempt(path);
    if (library) return library;
  }
  const looked = ["the system's library path", ...beside, ...folders].join(", ");
  const why = refused.length > 0 ? `; found but not loadable: ${refused.join("; ")}` : "";
  return fail(
    "LibraryNotFound",
    `${spec.title} was not found: none of ${spec.names.join(", ")} in ${looked}${why}; ${spec.install}, or set ${spec.env} to the library's path`,
  );
}

function openAsked(spec: LibrarySpec, asked: string, env: string | undefined): Library {
  const isFolder = existsSync(asked) && statSync(asked).isDirectory();
  const path = isFolder ? filesIn([asked], spec.names)[0] : asked;
  const source = env ? `${env}=${asked}` : asked;
  if (path === undefined) {
    return fail("LibraryNotFound", `${source} is a folder without ${spec.names.join(", ")} (${spec.title})`);
  }
  try {
    return new Library(spec.title, path);
  } catch (cause) {
    if (cause instanceof WickError) throw cause;
    const wayOut = env ? `correct or unset ${env}` : `give the path of ${spec.title}, or none to have it searched for`;
    return fail("LibraryNotFound", `${source} cannot be loaded as ${spec.title}: ${reason(cause)}; ${wayOut}`, {
      cause,
    });
  }
}

const reason = (error: unknown): string => (error instanceof Error ? error.message : String(error));

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

const filesIn = (folders: readonly string[], names: readonly string[]): string[] =>
  folders.flatMap((folder) => names.map((name) => join(folder, name))).filter((path) => existsSync(path));

/** Folders that match a pattern, later versions first. Patterns of unset variables come out empty. */
function expand(pattern: string): string[] {
  let found = [pattern.startsWith("/") ? "/" : ""];
  for (const segment of pattern.split("/").filter(Boolean)) {
    if (!segment.includes("*")) {
      found = found.map((folder) => join(folder, segment));
      continue;
    }
    const [head = "", tail = ""] = segment.split("*");
    found = found.flatMap((folder) =>
      entriesOf(folder)
        .filter((name) => name.length >= head.length + tail.length && name.startsWith(head) && name.endsWith(tail))
        .sort((a, b) => b.localeCompare(a, undefined, { numeric: true }))
        .map((name) => join(folder, name)),
    );
  }
  return found.filter((folder) => existsSync(folder));
}

function entriesOf(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

/** Patterns under the folder that a variable names; none when it is unset. */
export const under = (variable: string, ...patterns: readonly string[]): string[] => {
  const root = process.env[variable];
  return root ? patterns.map((pattern) => join(root, pattern)) : [];
};
