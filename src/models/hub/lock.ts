/** One process at a time writes a file of the cache; another waits for it, and takes over where it died. */
import { randomUUID } from "node:crypto";
import { link, mkdir, open, readFile, rename, rm, stat, utimes } from "node:fs/promises";
import { hostname } from "node:os";
import { dirname } from "node:path";
import { setTimeout as pause } from "node:timers/promises";

const POLL_MS = 100;
/** Who holds a lock says so every few seconds; a process of another machine that shares the folder can be judged by nothing else. */
const HEARTBEAT_MS = 5_000;
const SILENT_MS = 60_000;

interface Holder {
  readonly id: string;
  readonly pid: number;
  readonly host: string;
}

/** Waits for the lock. It is given back when it is disposed. */
export async function holdLock(path: string, signal?: AbortSignal): Promise<AsyncDisposable> {
  await mkdir(dirname(path), { recursive: true });
  const own: Holder = { id: randomUUID(), pid: process.pid, host: hostname() };
  while (!(await create(path, own))) {
    signal?.throwIfAborted();
    const holder = await readHolder(path);
    if (await isHeld(path, holder)) await pause(POLL_MS, undefined, { signal });
    else await remove(path, holder);
  }
  const heartbeat = setInterval(() => {
    const now = new Date();
    utimes(path, now, now).catch(() => {});
  }, HEARTBEAT_MS).unref();
  return {
    [Symbol.asyncDispose]: async () => {
      clearInterval(heartbeat);
      if ((await readHolder(path))?.id === own.id) await rm(path, { force: true });
    },
  };
}

async function create(path: string, holder: Holder): Promise<boolean> {
  try {
    await using file = await open(path, "wx");
    await file.writeFile(JSON.stringify(holder));
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return false;
    throw error;
  }
}

/** Whether somebody who is alive holds it. */
export const isLocked = async (path: string): Promise<boolean> => isHeld(path, await readHolder(path));

async function isHeld(path: string, holder: Holder | null): Promise<boolean> {
  if (holder?.host === hostname()) return isAlive(holder.pid);
  const found = await stat(path).catch(() => null);
  return found !== null && Date.now() - found.mtimeMs < SILENT_MS;
}

/** Of several who find a lock abandoned one removes it; who was late, and has taken away a newer one, puts it back. */
async function remove(path: string, abandoned: Holder | null): Promise<void> {
  const aside = `${path}.${randomUUID()}`;
  await rename(path, aside).catch(() => {});
  if ((await readHolder(aside))?.id !== abandoned?.id) await link(aside, path).catch(() => {});
  await rm(aside, { force: true });
}

async function readHolder(path: string): Promise<Holder | null> {
  try {
    return JSON.parse(await readFile(path, "utf8")) as Holder;
  } catch {
    // Created and not yet written, or gone.
    return null;
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}
