/** A model's safetensors, wherever they are: one file, or several with an index that says which holds what. */
import { readdir, stat } from "node:fs/promises";
import { basename, dirname, isAbsolute, join } from "node:path";
import { fail } from "../../core/errors.ts";
import type { Tensor } from "../../ops/index.ts";
import { BinaryFile } from "../binary-file.ts";
import { quoted } from "../named-tensors.ts";
import type { ByteRange, FilePlace, ReadOptions } from "../read-options.ts";
import { missing, SafetensorsFile, type SafetensorsReader } from "./file.ts";
import { MAX_HEADER, readStrings, type SafetensorsInfo } from "./header.ts";
import { JsonReader } from "./json-reader.ts";

const FILE = ".safetensors";
const INDEX = ".safetensors.index.json";

/** Opens a safetensors file, an index (`*.safetensors.index.json`) or a folder that holds either. */
export async function openSafetensors(path: string): Promise<SafetensorsReader> {
  const isFolder = await stat(path).then(
    (found) => found.isDirectory(),
    () => false, // opening it as a file gives the better message
  );
  const file = isFolder ? await findIn(path) : path;
  return file.endsWith(".json") ? ShardedSafetensors.open(file) : SafetensorsFile.open(file);
}

async function findIn(folder: string): Promise<string> {
  const names = await readdir(folder).catch((cause: Error) =>
    fail("InvalidFile", `${folder} cannot be listed: ${cause.message}`, { cause }),
  );
  const file = safetensorsAmong(names, folder);
  return file === undefined ? fail("InvalidFile", `${folder} holds no *${FILE} and no *${INDEX}`) : join(folder, file);
}

/** Which of a folder's files to open; undefined where there is none. */
export function safetensorsAmong(names: readonly string[], folder: string): string | undefined {
  for (const usual of [`model${FILE}`, `model${INDEX}`]) if (names.includes(usual)) return usual;
  for (const ending of [INDEX, FILE]) {
    const found = names.filter((name) => name.endsWith(ending)).sort();
    if (found.length === 1) return found[0]!;
    if (found.length > 1) fail("InvalidFile", `${folder} holds ${found.slice(0, 5).join(", ")}: name the one to open`);
  }
  return undefined;
}

/** The files that an index names, relative to it. */
export const shardsOf = async (index: string): Promise<string[]> => [
  ...new Set((await readIndex(index)).shardOf.values()),
];

class ShardedSafetensors implements SafetensorsReader {
  readonly names: readonly string[];
  readonly metadata: ReadonlyMap<string, string>;
  readonly #path: string;
  /** The shard of each tensor, relative to the index. */
  readonly #shardOf: ReadonlyMap<string, string>;
  readonly #open = new Map<string, Promise<SafetensorsFile>>();
  #closed = false;

  private constructor(path: string, index: ShardIndex) {
    this.#path = path;
    this.names = [...index.shardOf.keys()];
    this.metadata = index.metadata;
    this.#shardOf = index.shardOf;
  }

  static async open(path: string): Promise<ShardedSafetensors> {
    return new ShardedSafetensors(path, await readIndex(path));
  }

  async info(name: string): Promise<SafetensorsInfo> {
    return (await this.#shard(name)).info(name);
  }

  async read(name: string, options?: ReadOptions): Promise<Tensor> {
    return (await this.#shard(name)).read(name, options);
  }

  async readBytes(name: string, signal?: AbortSignal, range?: ByteRange): Promise<Uint8Array> {
    return (await this.#shard(name)).readBytes(name, signal, range);
  }

  async readInto(out: Uint8Array, name: string, start: number, signal?: AbortSignal): Promise<void> {
    return (await this.#shard(name)).readInto(out, name, start, signal);
  }

  async place(name: string): Promise<FilePlace> {
    return (await this.#shard(name)).place(name);
  }

  async close(): Promise<void> {
    this.#closed = true;
    const files = await Promise.allSettled(this.#open.values());
    this.#open.clear();
    await Promise.all(files.map((file) => file.status === "fulfilled" && file.value.close()));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  toString(): string {
    const shards = new Set(this.#shardOf.values()).size;
    return `ShardedSafetensors(${this.#path}, ${this.names.length} tensors in ${shards} files)`;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.toString();
  }

  async #shard(name: string): Promise<SafetensorsFile> {
    if (this.#closed) fail("Disposed", `${this.#path} was closed; open it again to read from it`);
    const shard = this.#shardOf.get(name) ?? missing(name, this.#path, this.names);
    const path = join(dirname(this.#path), shard);
    let opening = this.#open.get(shard);
    if (!opening) {
      opening = SafetensorsFile.open(path);
      this.#open.set(shard, opening);
    }
    const file = await opening.catch((error: Error) => {
      this.#open.delete(shard);
      if (!isNotFound(error.cause)) throw error;
      return fail(
        "MissingTensor",
        `tensor ${quoted(name)} is in ${path} according to ${this.#path}, but that file does not exist`,
      );
    });
    if (!file.has(name))
      fail("MissingTensor", `tensor ${quoted(name)} is in ${path} according to ${this.#path}, but that file lacks it`);
    return file;
  }
}

const isNotFound = (error: unknown): boolean => error instanceof Error && "code" in error && error.code === "ENOENT";

interface ShardIndex {
  readonly shardOf: ReadonlyMap<string, string>;
  readonly metadata: ReadonlyMap<string, string>;
}

async function readIndex(path: string): Promise<ShardIndex> {
  await using file = await BinaryFile.open(path);
  if (file.size > MAX_HEADER) fail("InvalidFile", `${path} has ${file.size} bytes, too many for an index of shards`);
  const reader = new JsonReader(await file.read(0, file.size), path);
  let shardOf: ReadonlyMap<string, string> | undefined;
  const metadata = new Map<string, string>();
  reader.object((key) => {
    if (key === "weight_map") shardOf = readStrings(reader);
    // Usually {"total_size": 123}: numbers become text, as safetensors files have it.
    else if (key === "metadata") reader.object((name) => metadata.set(name, asText(reader.any())));
    else reader.any();
  });
  reader.end();
  if (!shardOf) return fail("InvalidFile", `${path} has no "weight_map", so it is no index of shards`);
  for (const shard of new Set(shardOf.values())) checkShardName(shard, path);
  return { shardOf, metadata };
}

const asText = (json: string): string => (json.startsWith('"') ? (JSON.parse(json) as string) : json);

/** An index from elsewhere must not make us read files outside its folder. */
function checkShardName(shard: string, path: string): void {
  const parts = shard.split(/[/\\]/);
  if (isAbsolute(shard) || parts.includes("..") || basename(shard) === "" || shard.includes("\0")) {
    fail("InvalidFile", `${path} names the shard ${quoted(shard)}, which is not a file inside its folder`);
  }
}

export interface LoadProgress {
  /** The tensor just read. */
  readonly name: string;
  readonly bytesLoaded: number;
  readonly bytesTotal: number;
}

export interface LoadOptions extends ReadOptions {
  readonly onProgress?: ((progress: LoadProgress) => void) | undefined;
}

/** Every tensor of what `openSafetensors` takes. Where one fails, those read before it are freed. */
export async function loadSafetensors(path: string, options: LoadOptions = {}): Promise<Map<string, Tensor>> {
  await using source = await openSafetensors(path);
  const sizes = new Map<string, number>();
  for (const name of source.names) sizes.set(name, (await source.info(name)).byteLength);
  const bytesTotal = [...sizes.values()].reduce((a, b) => a + b, 0);
  const tensors = new Map<string, Tensor>();
  let bytesLoaded = 0;
  try {
    for (const [name, bytes] of sizes) {
      tensors.set(name, await source.read(name, options));
      bytesLoaded += bytes;
      options.onProgress?.({ name, bytesLoaded, bytesTotal });
    }
  } catch (error) {
    for (const tensor of tensors.values()) tensor.dispose();
    throw error;
  }
  return tensors;
}
