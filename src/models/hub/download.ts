/** One file into the cache: taken up where it was left, checked against its hash, and only then given its name. */
import { createHash, type Hash } from "node:crypto";
import { constants, type FileHandle, mkdir, open, rename, rm, stat } from "node:fs/promises";
import { dirname } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { fail, WickError } from "../../core/errors.ts";
import { ATTEMPTS, reasonOf, request, unreachable } from "./http.ts";
import type { RemoteFile } from "./listing.ts";
import { holdLock } from "./lock.ts";
import type { HubSettings } from "./settings.ts";

/** Written and hashed at once. */
const PIECE = 2 ** 20;
/** Of a slow connection, what has come by then. */
const SOON_MS = 200;

export interface DownloadOptions {
  readonly settings: HubSettings;
  /** The model that the file belongs to, for messages. */
  readonly subject: string;
  readonly signal?: AbortSignal | undefined;
  readonly onBytes?: ((done: number, total: number | null) => void) | undefined;
  /** Says why the server refuses the file. */
  readonly refuse: (response: Response) => Promise<never> | never;
}

/** Whether the file is there in its whole size. */
export const isWhole = (blob: string, { size }: RemoteFile): Promise<boolean> =>
  stat(blob).then(
    (found) => found.isFile() && (size === null || found.size === size),
    () => false,
  );

export async function downloadBlob(
  file: RemoteFile,
  { blob, lock }: { readonly blob: string; readonly lock: string },
  options: DownloadOptions,
): Promise<void> {
  await using _ = await holdLock(lock, options.signal);
  // Another process may have brought it in the meantime.
  if (await isWhole(blob, file)) return;
  const partial = `${blob}.incomplete`;
  await mkdir(dirname(blob), { recursive: true });
  const handle = await open(partial, constants.O_RDWR | constants.O_CREAT, 0o644);
  try {
    const download = new Download(file, handle, options);
    await download.run();
    await handle.sync();
  } catch (error) {
    // What cannot become the file is not kept; what was only interrupted is.
    if (error instanceof WickError && error.code === "DownloadDamaged") await rm(partial, { force: true });
    throw error;
  } finally {
    await handle.close();
  }
  await rename(partial, blob);
}

class Download {
  readonly #file: RemoteFile;
  readonly #handle: FileHandle;
  readonly #options: DownloadOptions;
  #hash: Hash;
  #done = 0;

  constructor(file: RemoteFile, handle: FileHandle, options: DownloadOptions) {
    this.#file = file;
    this.#handle = handle;
    this.#options = options;
    this.#hash = newHash(file);
  }

  async run(): Promise<void> {
    const isResumed = await this.#takeUp();
    await this.#transfer();
    if (this.#isRight()) return;
    // What was there before may have been the fault.
    if (isResumed) {
      await this.#restart();
      await this.#transfer();
      if (this.#isRight()) return;
    }
    const { path, url, size } = this.#file;
    fail(
      "DownloadDamaged",
      `${this.#options.subject}: ${path} came with ${size === null || this.#done === size ? "another hash" : `${this.#done} bytes instead of ${size}`} than ${new URL(url).host} promises for it, and was discarded; try again later or without a proxy`,
    );
  }

  /** Reads what an earlier run has left. */
  async #takeUp(): Promise<boolean> {
    const { size, isHash, validator } = this.#file;
    const { size: there } = await this.#handle.stat();
    if ((size !== null && there > size) || !(isHash || validator)) await this.#restart();
    else {
      const buffer = Buffer.alloc(PIECE);
      while (this.#done < there) {
        this.#options.signal?.throwIfAborted();
        const { bytesRead } = await this.#handle.read(buffer, 0, PIECE, this.#done);
        if (bytesRead === 0) break;
        this.#count(buffer.subarray(0, bytesRead));
      }
    }
    this.#report();
    return this.#done > 0;
  }

  /** Until every byte is there, or nothing comes any more. */
  async #transfer(): Promise<void> {
    const { settings, subject, signal } = this.#options;
    let failures = 0;
    while (!this.#isComplete()) {
      const before = this.#done;
      try {
        await this.#receive();
        // The end of a file whose size nobody knows.
        if (this.#file.size === null) return;
        if (this.#isComplete()) return;
        throw new Error(`the connection ended after ${this.#done} of ${this.#file.size} bytes`);
      } catch (error) {
        signal?.throwIfAborted();
        if (error instanceof WickError || (error instanceof Error && "syscall" in error)) throw error;
        failures = this.#done > before ? 1 : failures + 1;
        if (failures >= ATTEMPTS) unreachable(this.#file.url, subject, reasonOf(error), error);
        await pause(settings.retryMs * 2 ** (failures - 1), undefined, { signal });
      }
    }
  }

  async #receive(): Promise<void> {
    const { url, validator, isHash } = this.#file;
    const { settings, subject, signal, refuse } = this.#options;
    const stalled = new AbortController();
    const ranged = this.#done > 0;
    const response = await request(url, {
      settings,
      subject,
      patient: true,
      signal: signal ? AbortSignal.any([signal, stalled.signal]) : stalled.signal,
      headers: {
        ...(ranged && { range: `bytes=${this.#done}-` }),
        ...(ranged && !isHash && validator && { "if-range": validator }),
      },
    });
    if (response.status === 416) return this.#restart();
    if (!response.ok) return refuse(response);
    // A server without ranges begins anew; so does one that has another file by now.
    const starts = `bytes ${this.#done}-`;
    if (ranged && !(response.status === 206 && response.headers.get("content-range")?.startsWith(starts))) {
      await this.#restart();
      if (response.status === 206) return response.body?.cancel();
    }
    const stall = () => stalled.abort(new Error(`no byte for ${settings.stallMs / 1000} s`));
    const timer = setTimeout(stall, settings.stallMs);
    try {
      for await (const piece of inPieces(response.body, () => timer.refresh())) {
        await writeAll(this.#handle, piece, this.#done);
        this.#count(piece);
        this.#report();
      }
    } finally {
      clearTimeout(timer);
    }
  }

  #count(piece: Uint8Array): void {
    this.#hash.update(piece);
    this.#done += piece.byteLength;
  }

  #report(): void {
    this.#options.onBytes?.(this.#done, this.#file.size);
  }

  async #restart(): Promise<void> {
    await this.#handle.truncate(0);
    this.#hash = newHash(this.#file);
    this.#done = 0;
  }

  #isComplete(): boolean {
    return this.#file.size !== null && this.#done >= this.#file.size;
  }

  #isRight(): boolean {
    const { size, etag, isHash } = this.#file;
    return (size === null || this.#done === size) && (!isHash || this.#hash.copy().digest("hex") === etag);
  }
}

/** SHA-256 of what is stored apart; of small files, which Git holds, its SHA-1 of a head and the content. */
function newHash({ etag, size }: RemoteFile): Hash {
  return etag.length === 64 ? createHash("sha256") : createHash("sha1").update(`blob ${size}\0`);
}

/** Whether a blob holds what its name says. */
export async function hasItsHash(blob: string, etag: string, signal?: AbortSignal): Promise<boolean> {
  await using handle = await open(blob, "r");
  const { size } = await handle.stat();
  const hash = newHash({ etag, size, path: "", url: "", isHash: true });
  for await (const piece of handle.createReadStream({ highWaterMark: PIECE, autoClose: false, signal })) {
    hash.update(piece as Buffer);
  }
  return hash.digest("hex") === etag;
}

/** The network's small pieces put together; those of a body that breaks off, too. */
async function* inPieces(body: Response["body"], onChunk: () => void): AsyncGenerator<Buffer> {
  let waiting: Uint8Array[] = [];
  let bytes = 0;
  let last = performance.now();
  const all = (): Buffer => {
    const piece = Buffer.concat(waiting);
    waiting = [];
    bytes = 0;
    last = performance.now();
    return piece;
  };
  try {
    for await (const chunk of (body ?? []) as AsyncIterable<Uint8Array>) {
      onChunk();
      waiting.push(chunk);
      bytes += chunk.byteLength;
      if (bytes >= PIECE || performance.now() - last > SOON_MS) yield all();
    }
  } catch (error) {
    if (bytes > 0) yield all();
    throw error;
  }
  if (bytes > 0) yield all();
}

async function writeAll(handle: FileHandle, bytes: Uint8Array, position: number): Promise<void> {
  for (let at = 0; at < bytes.byteLength; ) {
    const { bytesWritten } = await handle.write(bytes, at, bytes.byteLength - at, position + at);
    at += bytesWritten;
  }
}
