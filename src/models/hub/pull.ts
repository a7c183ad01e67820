/** A model by its name: from the cache, or into it. */
import { mkdir, realpath, rm, stat, statfs, utimes } from "node:fs/promises";
import { basename, join } from "node:path";
import { formatBytes } from "../../backend/usage.ts";
import { fail, WickError } from "../../core/errors.ts";
import { shardsOf } from "../../formats/safetensors/sharded.ts";
import { cachedModels } from "./cached-models.ts";
import { downloadBlob, hasItsHash, isWhole } from "./download.ts";
import { HASH, type Listing, type RemoteFile } from "./listing.ts";
import { isRemote, type ModelName, parseModelName, type RemoteName } from "./name.ts";
import { selectConfig, selectFiles, selectTokenizer } from "./selection.ts";
import { type HubSettings, hubSettings } from "./settings.ts";
import { type Source, sourceOf } from "./source.ts";

export interface DownloadProgress {
  /** The file, as the repository names it. */
  readonly file: string;
  /** What is there of it, that of earlier runs included. */
  readonly bytesDone: number;
  /** null where the server does not tell. */
  readonly bytesTotal: number | null;
}

export interface PullOptions {
  readonly signal?: AbortSignal | undefined;
  /** Called as bytes arrive, first with what an earlier run has left; once for a file that is there already. */
  readonly onDownload?: ((progress: DownloadProgress) => void) | undefined;
  /** Called where the hub is not reached, with why, and the model is taken as the cache has it. */
  readonly onUnreached?: ((why: string) => void) | undefined;
  /** Whether no more is needed than the tokenizer. */
  readonly tokenizerOnly?: boolean | undefined;
  /** Whether no more is needed than what says of which shape the model is. */
  readonly configOnly?: boolean | undefined;
  /** Whether files that are there already are read and compared with their hashes. */
  readonly check?: boolean | undefined;
}

export interface PulledModel {
  /** What `loadModel` takes: a folder, or the (first) file of a GGUF. */
  readonly path: string;
  readonly commit: string;
  /** Where the files are by their names. */
  readonly folder: string;
  readonly files: readonly string[];
  readonly bytes: number;
}

export interface LocatedModel {
  readonly path: string;
  /** Where it came from the cache. */
  readonly pulled?: PulledModel;
}

/** Files under way at once. */
const AT_ONCE = 4;

/** Where a model of any name lies: downloads it where it is not on this machine. */
export async function locateModel(name: string, options: PullOptions = {}): Promise<LocatedModel> {
  const settings = await hubSettings();
  const parsed = await understood(name, settings);
  if (parsed.kind === "path") return parsed;
  const pulled = await pull(name, parsed, options, settings);
  return { path: pulled.path, pulled };
}

/** Says of a model that cannot be read whether a file of it is no longer what was downloaded: blobs are named by their hashes. */
export async function refuseDamaged(name: string, { pulled }: LocatedModel): Promise<void> {
  for (const file of pulled?.files ?? []) {
    const blob = await realpath(join(pulled!.folder, file));
    const etag = basename(blob);
    if (!HASH.test(etag) || (await hasItsHash(blob, etag))) continue;
    fail("DownloadDamaged", `${file} of ${name} was altered in the cache; \`wick pull ${name} --check\` replaces it`);
  }
}

/**
 * Brings a model into the cache that other tools share, by the environment's settings unless others are given. What is
 * there already is not downloaded again.
 */
export async function pullModel(name: string, options: PullOptions = {}, given?: HubSettings): Promise<PulledModel> {
  const settings = given ?? (await hubSettings());
  const parsed = await understood(name, settings);
  if (parsed.kind !== "path") return pull(name, parsed, options, settings);
  return fail("InvalidArgument", `pull: ${name} is no name at the hub and no address; write owner/name or a URL`);
}

/** A name that is also a file or folder here means that. */
async function understood(name: string, { endpoint }: HubSettings): Promise<ModelName> {
  const isHere = !isRemote(name) && (await stat(name).catch(() => null)) !== null;
  return isHere ? { kind: "path", path: name } : parseModelName(name, endpoint);
}

async function pull(text: string, name: RemoteName, options: PullOptions, settings: HubSettings): Promise<PulledModel> {
  const select = options.configOnly ? selectConfig : options.tokenizerOnly ? selectTokenizer : selectFiles;
  const source = sourceOf(name, settings, select);
  const commit = /^[0-9a-f]{40}$/.test(source.revision) ? source.revision : undefined;
  try {
    // What a commit holds never changes.
    if (commit && !options.check && (await missingOf(source, commit))?.length === 0)
      return await cached(source, commit);
    if (settings.offline) return await instead(text, source, settings, "HF_HUB_OFFLINE is set");
    const listing = await source.list({ settings, signal: options.signal }).catch((error: unknown) => {
      if (error instanceof WickError && error.code === "NetworkError") return error;
      throw error;
    });
    if (listing instanceof WickError) {
      const found = await instead(text, source, settings, listing.message.replace(/^\S+: /, ""));
      options.onUnreached?.(listing.message);
      return found;
    }
    return await new Pull(source, listing, options, settings).run();
  } catch (error) {
    if (error instanceof WickError && error.code === "ModelNotFound" && !isRemote(text)) {
      return fail("ModelNotFound", `there is no file or folder ${text} here, and ${error.message}`, { cause: error });
    }
    if (error instanceof Error && "syscall" in error) ofDisk(error, source.cache.folder);
    throw error;
  }
}

/** What the cache lacks of a model; undefined where it has no such model at all. */
async function missingOf(source: Source, commit: string): Promise<string[] | undefined> {
  const { cache, subject } = source;
  const there = await cache.files(commit);
  if (there.length === 0) return undefined;
  const { files, index } = source.select(there, `${subject} in the cache`);
  const needed = index === undefined ? files : [...files, ...(await shardsOf(join(cache.snapshot(commit), index)))];
  return needed.filter((path) => !there.includes(path));
}

/** The model as the cache has it, which must be whole. */
async function cached(source: Source, commit: string): Promise<PulledModel> {
  const { cache, subject } = source;
  const { files, index, entry } = source.select(await cache.files(commit), `${subject} in the cache`);
  const folder = cache.snapshot(commit);
  const all = index === undefined ? files : [...files, ...(await shardsOf(join(folder, index)))];
  const sizes = await Promise.all(all.map((path) => used(join(folder, path))));
  return {
    path: entry === undefined ? folder : join(folder, entry),
    commit,
    folder,
    files: all,
    bytes: sizes.reduce((a, b) => a + b, 0),
  };
}

/** Where the hub cannot be asked, what the cache has; else an error that says what that is. */
async function instead(text: string, source: Source, settings: HubSettings, why: string): Promise<PulledModel> {
  const commit = await source.cache.commitOf(source.revision);
  const missing = commit === undefined ? undefined : await missingOf(source, commit).catch(because(why));
  if (commit !== undefined && missing?.length === 0) return cached(source, commit);
  const names = (await cachedModels(settings)).filter(({ isComplete }) => isComplete).map(({ name }) => name);
  const there = names.length === 0 ? "nothing" : names.slice(0, 10).join(", ");
  const nowhere = isRemote(text) ? "is not in the cache" : "is no file or folder here, and not in the cache";
  const state = missing === undefined ? nowhere : `lacks ${missing.slice(0, 5).join(", ")} in the cache`;
  return fail("NetworkError", `${source.subject} ${state}; ${why}. The cache (${settings.cache}) has ${there}`);
}

/** What the cache does not have of a model could be had otherwise. */
const because =
  (why: string) =>
  (error: unknown): never => {
    if (error instanceof WickError) fail(error.code, `${error.message}; ${why}`, { cause: error });
    throw error;
  };

/** Notes that a file was used, where the file system does not: others show it, too. Gives its size. */
async function used(path: string): Promise<number> {
  const { size, mtime } = await stat(path);
  await utimes(path, new Date(), mtime).catch(() => {});
  return size;
}

class Pull {
  readonly #source: Source;
  readonly #listing: Listing;
  readonly #options: PullOptions;
  readonly #settings: HubSettings;

  constructor(source: Source, listing: Listing, options: PullOptions, settings: HubSettings) {
    this.#source = source;
    this.#listing = listing;
    this.#options = options;
    this.#settings = settings;
  }

  async run(): Promise<PulledModel> {
    const { cache, revision, subject } = this.#source;
    const { commit, paths } = this.#listing;
    const { files, index } = this.#source.select(paths, subject);
    await this.#source.sign();
    await this.#bring(files);
    if (index !== undefined) {
      const shards = await shardsOf(join(cache.snapshot(commit), index));
      const absent = shards.find((path) => !paths.includes(path));
      if (absent !== undefined) fail("NoUsableWeights", `${subject}: ${index} names ${absent}, which is not there`);
      await this.#bring(shards);
    }
    await cache.setRef(revision, commit);
    return cached(this.#source, commit);
  }

  async #bring(paths: readonly string[]): Promise<void> {
    const files = await Promise.all(paths.map((path) => this.#listing.file(path)));
    await this.#requireRoom(files);
    const { signal } = this.#options;
    const failed = new AbortController();
    const within = signal ? AbortSignal.any([signal, failed.signal]) : failed.signal;
    const waiting = [...files].sort((a, b) => (b.size ?? 0) - (a.size ?? 0));
    let problem: unknown;
    const worker = async (): Promise<void> => {
      for (let file = waiting.shift(); file && !within.aborted; file = waiting.shift()) {
        await this.#bringOne(file, within).catch((error: unknown) => {
          if (!failed.signal.aborted) problem = error;
          failed.abort();
        });
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
    if (failed.signal.aborted) throw problem;
    signal?.throwIfAborted();
  }

  async #bringOne(file: RemoteFile, signal: AbortSignal): Promise<void> {
    const { cache, subject } = this.#source;
    const { check, onDownload } = this.#options;
    const settings = this.#settings;
    const blob = cache.blob(file.etag);
    if (check && file.isHash && (await isWhole(blob, file)) && !(await hasItsHash(blob, file.etag, signal))) {
      await rm(blob);
    }
    const onBytes = (bytesDone: number, bytesTotal: number | null) =>
      onDownload?.({ file: file.path, bytesDone, bytesTotal });
    if (!(await isWhole(blob, file))) {
      const refuse = (response: Response) => this.#source.refuse(response, { settings, signal });
      const places = { blob, lock: cache.lock(file.etag) };
      await downloadBlob(file, places, { settings, subject, signal, onBytes, refuse });
    }
    const { size } = await stat(blob);
    onBytes(size, size);
    await cache.link(file.etag, this.#listing.commit, file.path);
  }

  /** Said before hours of downloading, and not after. */
  async #requireRoom(files: readonly RemoteFile[]): Promise<void> {
    const { cache, subject } = this.#source;
    const there = await Promise.all(files.map(({ etag }) => cache.bytesOf(etag)));
    const needed = files.reduce((sum, { size }, i) => sum + Math.max(0, (size ?? 0) - there[i]!), 0);
    await mkdir(cache.folder, { recursive: true });
    const { bavail, bsize } = await statfs(cache.folder);
    if (needed > bavail * bsize) {
      fail(
        "DiskFull",
        `${subject} needs ${formatBytes(needed)} more, and ${cache.folder} has ${formatBytes(bavail * bsize)} free; ${MAKE_ROOM}`,
      );
    }
  }
}

const MAKE_ROOM =
  "`wick models` shows what is in the cache, `wick remove NAME` frees it, and HF_HUB_CACHE sets another folder";

/** An error of the file system in words. */
function ofDisk(cause: Error & { readonly code?: unknown }, folder: string): never {
  if (cause.code === "ENOSPC" || cause.code === "EDQUOT") {
    fail("DiskFull", `${folder}: no room is left; what has come is kept, and ${MAKE_ROOM}`, { cause });
  }
  return fail("AccessDenied", `${folder} cannot be used: ${cause.message}; HF_HUB_CACHE sets another folder`, {
    cause,
  });
}
