/**
 * Finds, opens and binds the vendors' shared libraries. Nothing here runs before a GPU is asked for, so Wick imports on
 * machines where neither the libraries nor the FFI itself can be loaded.
 */

import { existsSync, readFileSync, statSync } from "node:fs";
import { basename, isAbsolute } from "node:path";
import { type VariableName, variable } from "../../core/environment.ts";
import { fail, WickError } from "../../core/errors.ts";
import { ffi, type Koffi } from "../ffi.ts";
import { besides, candidates, expand, filesIn, here, type LibraryFiles } from "./search.ts";

export { ffi, ffiPath, STACK_BYTES } from "../ffi.ts";

/** Pointers are BigInts; typed arrays are passed by address for the time of the call. */
export type Argument = bigint | number | string | null | ArrayBufferView | readonly string[];
export interface NativeFunction<Result = number> {
  (...args: Argument[]): Result;
  async(...args: [...Argument[], (error: Error | null, result: Result) => void]): void;
}
/** Prototypes by our name for the call: `{ malloc: "int hipMalloc(void *out, size_t bytes)" }`. */
export type Prototypes = Readonly<Record<string, string>>;
export type Bound<Table extends Prototypes> = { readonly [Call in keyof Table]: NativeFunction };

/** The address of a view's first byte; valid while the view's buffer lives. */
export const addressOf = (view: ArrayBufferView): bigint => ffi().address(view);

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
  /** Where it is; its name where the system does not tell. */
  readonly path: string;

  /** The symbols of one that is `global` are seen by what it loads itself. */
  constructor(title: string, path: string, global = false) {
    this.#handle = ffi().load(path, { global });
    this.title = title;
    this.path = loadedPath(path);
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

  /** Of a variable that it has. */
  address(symbol: string): bigint {
    this.#require([symbol]);
    return this.#handle.symbol(symbol) as bigint;
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

export interface LibrarySpec extends LibraryFiles {
  readonly title: string;
  /** Environment variable that names the file, or the folder it is in. */
  readonly env: VariableName;
  /** How a user gets it. */
  readonly install: string;
  /** Its symbols must be seen by what it loads itself. */
  readonly global?: boolean;
}

/** Opens what was asked for explicitly, else what the environment names, else what is found. */
export function openLibrary(spec: LibrarySpec, explicit?: string, near?: Library): Library {
  const asked = explicit ?? variable(spec.env);
  if (asked) return openAsked(spec, asked, explicit === undefined ? spec.env : undefined);

  const refused: string[] = [];
  const where = here();
  // Libraries of one release belong together, so the folder of one that is open comes first.
  const beside = near ? besides(near.path, where) : [];
  for (const path of candidates(spec, where, beside)) {
    try {
      return new Library(spec.title, path, spec.global);
    } catch (error) {
      if (error instanceof WickError) throw error;
      // A bare name that the loader does not know says nothing; a file that exists and does not load does.
      if (isAbsolute(path)) refused.push(`${path}: ${reason(error)}`);
    }
  }
  const folders = [...beside, ...(spec.named ?? []), ...spec.folders].flatMap((pattern) => expand(pattern, where));
  const looked = ["the system's library path", ...new Set(folders)].join(", ");
  const why = refused.length > 0 ? `; found but not loadable: ${refused.join("; ")}` : "";
  return fail(
    "LibraryNotFound",
    `${spec.title} was not found: none of ${shownNames(spec)} in ${looked}${why}; ${spec.install}, or set ${spec.env} to the library's path`,
  );
}

/** A library of the same release as `near`, or null where none lies beside it. */
export function openBeside(spec: LibrarySpec, near: Library): Library | null {
  const where = here();
  for (const path of filesIn(besides(near.path, where), spec.names, where)) {
    try {
      return new Library(spec.title, path, spec.global);
    } catch (error) {
      if (error instanceof WickError) throw error;
    }
  }
  return null;
}

function openAsked(spec: LibrarySpec, asked: string, env: string | undefined): Library {
  const isFolder = existsSync(asked) && statSync(asked).isDirectory();
  const path = isFolder ? [...filesIn([asked], spec.names, here())][0] : asked;
  const source = env ? `${env}=${asked}` : asked;
  if (path === undefined) {
    return fail("LibraryNotFound", `${source} is a folder without ${shownNames(spec)} (${spec.title})`);
  }
  try {
    return new Library(spec.title, path, spec.global);
  } catch (cause) {
    if (cause instanceof WickError) throw cause;
    const wayOut = env ? `correct or unset ${env}` : `give the path of ${spec.title}, or none to have it searched for`;
    return fail("LibraryNotFound", `${source} cannot be loaded as ${spec.title}: ${reason(cause)}; ${wayOut}`, {
      cause,
    });
  }
}

/** Without the names that a pattern among them covers. */
const shownNames = ({ names }: LibrarySpec): string => {
  const stems = names.filter((name) => name.endsWith(".*")).map((name) => name.slice(0, -1));
  return names.filter((name) => name.endsWith("*") || !stems.some((stem) => name.startsWith(stem))).join(", ");
};

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
