/** The ranks that a command has joined, for whoever ends it or tells of its errors. */
import { WickError } from "../core/errors.ts";
import type { Group } from "../distributed/group.ts";
import { isAnnounced } from "../distributed/rendezvous.ts";

let joined: Group | null = null;

export function setJoined(group: Group): void {
  joined = group;
}

export const isJoined = (): boolean => joined !== null;

/** Leaves the other ranks in order, or tells them that this one failed. */
export async function leaveRanks(error?: unknown): Promise<void> {
  const group = joined;
  joined = null;
  if (!group) return;
  if (error === undefined) await group[Symbol.asyncDispose]();
  else group.fail(`failed: ${error instanceof Error ? error.message : String(error)}`);
}

/** Of errors once each: a lost rank is told by whoever notices first. */
const told = new Set<unknown>();
export function tellError(error: unknown): void {
  if (told.has(error) || isAnnounced(error)) return;
  told.add(error);
  const who = joined && joined.rank > 0 ? `rank ${joined.rank}: ` : "";
  console.error(error instanceof WickError ? `wick: ${who}${error.message} [${error.code}]` : error);
}
