/** What is in the cache, by the names under which it can be asked for, and taking it out again. */
import { readdir, readFile, realpath, rm, stat } from "node:fs/promises";
import { basename, join } from "node:path";
import { fail, WickError } from "../../core/errors.ts";
import { shardsOf } from "../../formats/safetensors/sharded.ts";
import { RepoCache } from "./cache.ts";
import { ggufModels } from "./gguf-names.ts";
import { isLocked } from "./lock.ts";
import { parseModelName } from "./name.ts";
import { selectFiles } from "./selection.ts";
import { type HubSettings, hubSettings } from "./settings.ts";
import { sourceOf } from "./source.ts";

export interface CachedModel {
  /** As `loadModel` and `wick` take it. */
  readonly name: string;
  readonly commit: string;
  readonly bytes: number;
  readonly files: number;
  readonly lastUsed: Date;
  /** Whether it can be loaded without a network. */
  readonly isComplete: boolean;
  /** What is wrong where it cannot. */
  readonly problem?: string;
}

/** The models in the cache, those of other tools among them; the last used first. */
export async function cachedModels(given?: HubSettings): Promise<CachedModel[]> {
  const settings = given ?? (await hubSettings());
  const models: CachedModel[] = [];
  for (const { cache, name } of await repositories(settings)) models.push(...(await modelsIn(cache, name)));
  return models.sort((a, b) => b.lastUsed.getTime() - a.lastUsed.getTime());
}

interface Repository {
  readonly cache: RepoCache;
  readonly name: string;
}

async function repositories({ cache, urlCache }: HubSettings): Promise<Repository[]> {
  const list = (folder: string, prefix: string) =>
    readdir(folder).then(
      (names) => names.filter((name) => name.startsWith(prefix)).map((name) => new RepoCache(folder, name)),
      () => [],
    );
  const repos = (await list(cache, "models--")).map((found) => ({
    cache: found,
    name: basename(found.folder).slice("models--".length).replace("--", "/"),
  }));
  const urls: Repository[] = [];
  for (const found of await list(urlCache, "urls--")) {
    const name = await readFile(join(found.folder, "url"), "utf8").catch(() => null);
    if (name !== null) urls.push({ cache: found, name });
  }
  return [...repos, ...urls];
}

async function modelsIn(cache: RepoCache, repo: string): Promise<CachedModel[]> {
  const revisions = await revisionsOf(cache);
  const commits = await readdir(join(cache.folder, "snapshots")).catch(() => []);
  const models: CachedModel[] = [];
  for (const commit of commits) {
    const refs = revisions.get(commit) ?? [];
    const at = refs.includes("main") ? "" : `@${refs[0] ?? commit.slice(0, 12)}`;
    models.push(...(await modelsOf(cache, commit, `${repo}${at}`)));
  }
  const parts = (await readdir(join(cache.folder, "blobs")).catch(() => [])).filter((n) => n.endsWith(".incomplete"));
  if (parts.length > 0) {
    const paths = parts.map((name) => join(cache.folder, "blobs", name));
    const problem = "a download that was interrupted; pull it again to go on";
    models.push({ name: repo, commit: "", ...(await measured(paths)), isComplete: false, problem });
  }
  return models;
}

/** The models of a snapshot: each quantization is one, and a folder with safetensors is one. */
async function modelsOf(cache: RepoCache, commit: string, name: string): Promise<CachedModel[]> {
  const folder = cache.snapshot(commit);
  const paths = await cache.files(commit);
  const entry = async (own: string, files: readonly string[], problem?: string): Promise<CachedModel> => ({
    name: own,
    commit,
    ...(await measured(files.map((path) => join(folder, path)))),
    isComplete: problem === undefined,
    ...(problem !== undefined && { problem }),
  });
  const ggufs = ggufModels(paths);
  const isAddress = name.includes("://");
  const models = await Promise.all(
    ggufs.map(({ files, quantization }) => entry(isAddress ? name : `${name}:${quantization}`, files)),
  );
  const others = paths.filter((path) => !ggufs.some(({ files }) => files.includes(path)));
  if (isAddress && models.length === 0) return [await entry(name, paths)];
  if (others.length === 0 || (ggufs.length > 0 && !others.includes("config.json"))) return models;
  models.push(await entry(name, others, await problemOf(folder, others)));
  return models;
}

/** Why a folder's files are no model; undefined where they are one. */
async function problemOf(folder: string, paths: readonly string[]): Promise<string | undefined> {
  try {
    const { index } = selectFiles(paths, undefined, "it");
    const shards = index === undefined ? [] : await shardsOf(join(folder, index));
    const missing = shards.filter((path) => !paths.includes(path));
    return missing.length === 0 ? undefined : `lacks ${missing.length} of ${shards.length} files of weights`;
  } catch (error) {
    if (!(error instanceof WickError)) throw error;
    return error.code === "NoUsableWeights" ? "no weights that Wick reads" : error.message;
  }
}

async function measured(paths: readonly string[]): Promise<Pick<CachedModel, "bytes" | "files" | "lastUsed">> {
  // A file may go while this looks.
  const found = (await Promise.all(paths.map((path) => stat(path).catch(() => null)))).filter(
    (entry) => entry !== null,
  );
  return {
    bytes: found.reduce((sum, { size }) => sum + size, 0),
    files: found.length,
    lastUsed: new Date(Math.max(0, ...found.map(({ atimeMs }) => atimeMs))),
  };
}

/** The branches and tags of each commit. */
async function revisionsOf(cache: RepoCache): Promise<Map<string, string[]>> {
  const folder = join(cache.folder, "refs");
  const entries = await readdir(folder, { recursive: true, withFileTypes: true }).catch(() => []);
  const revisions = new Map<string, string[]>();
  for (const entry of entries.filter((found) => found.isFile())) {
    const path = join(entry.parentPath, entry.name);
    const commit = (await readFile(path, "utf8")).trim();
    const name = path.slice(folder.length + 1).replaceAll("\\", "/");
    revisions.set(commit, [...(revisions.get(commit) ?? []), name]);
  }
  return revisions;
}

export interface RemovedModel {
  readonly name: string;
  readonly bytes: number;
}

/**
 * Takes a model out of the cache: `owner/name` with all it has, `owner/name@revision` as it was there,
 * `owner/name:Q4_K_M` its files alone. Blobs that something else still names stay.
 */
export async function removeModel(text: string, given?: HubSettings): Promise<RemovedModel> {
  const settings = given ?? (await hubSettings());
  const name = parseModelName(text, settings.endpoint);
  if (name.kind === "path") {
    return fail("InvalidArgument", `remove: ${text} is no name at the hub and no address; delete files by other means`);
  }
  const { cache, revision, subject, select } = sourceOf(name, settings);
  if ((await stat(cache.folder).catch(() => null)) === null) return notThere(subject, settings);
  await refuseIfBusy(cache, subject);
  const before = await bytesIn(cache);
  const isPart = name.kind === "repo" && (name.wanted !== undefined || text.includes("@"));
  if (isPart) {
    const commit = (await cache.commitOf(revision)) ?? (await notThere(subject, settings));
    const folder = cache.snapshot(commit);
    if (name.wanted === undefined) {
      for (const ref of (await revisionsOf(cache)).get(commit) ?? []) await rm(join(cache.folder, "refs", ref));
      await rm(folder, { recursive: true, force: true });
    } else {
      const { files } = select(await cache.files(commit), `${subject} in the cache`);
      for (const path of files) await rm(join(folder, path));
    }
    await dropUnnamed(cache);
  } else await cache.remove();
  return { name: subject, bytes: before - (await bytesIn(cache)) };
}

async function notThere(subject: string, settings: HubSettings): Promise<never> {
  const names = (await cachedModels(settings)).map(({ name }) => name);
  const there = names.length === 0 ? "it is empty" : `it has ${[...new Set(names)].slice(0, 10).join(", ")}`;
  return fail("ModelNotFound", `${subject} is not in the cache (${settings.cache}); ${there}`);
}

async function refuseIfBusy(cache: RepoCache, subject: string): Promise<void> {
  for (const name of await readdir(cache.locks).catch(() => [])) {
    if (name.endsWith(".wick.lock") && (await isLocked(join(cache.locks, name)))) {
      fail("AccessDenied", `${subject} is being downloaded; wait for that, or stop it, and remove it then`);
    }
  }
}

/** Removes the blobs that no snapshot names, and the folder where nothing is left. */
async function dropUnnamed(cache: RepoCache): Promise<void> {
  const commits = await readdir(join(cache.folder, "snapshots")).catch(() => []);
  const named = new Set<string>();
  for (const commit of commits) {
    for (const path of await cache.files(commit)) named.add(await realpath(join(cache.snapshot(commit), path)));
  }
  if (named.size === 0) return cache.remove();
  const folder = await realpath(join(cache.folder, "blobs"));
  for (const name of await readdir(folder)) if (!named.has(join(folder, name))) await rm(join(folder, name));
}

async function bytesIn(cache: RepoCache): Promise<number> {
  const folder = join(cache.folder, "blobs");
  return (await measured((await readdir(folder).catch(() => [])).map((name) => join(folder, name)))).bytes;
}
